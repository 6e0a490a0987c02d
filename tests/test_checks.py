"""The sentences that callers' mistakes get, word by word, and the right inputs that get none."""

from __future__ import annotations

import math

import pytest
import torch

from isotropy.checks import (
    CallerError,
    check_at_least,
    check_axes,
    check_choice,
    check_finite,
    column_index,
    shape_text,
)

IMAGE_AXES = ("batch", "channels", "height", "width")
COLOURS = ("red", "green", "blue")
NAN, INFINITY = math.nan, math.inf

# Each mistake with the whole of its sentence.
MISTAKES = {
    "axes": (
        lambda: check_axes(torch.zeros(32, 28, 28), IMAGE_AXES, what="images"),
        "images: expected (batch, channels, height, width), got (32, 28, 28)",
    ),
    "axes, with advice": (
        lambda: check_axes(
            torch.zeros(32, 28, 28), IMAGE_AXES, what="images", advice="add a channel axis"
        ),
        "images: expected (batch, channels, height, width), got (32, 28, 28); add a channel axis",
    ),
    "axes, a number": (
        lambda: check_axes(torch.zeros(()), ("batch",), what="labels"),
        "labels: expected (batch), got ()",
    ),
    "one NaN": (
        lambda: check_finite(torch.tensor([[0.0, 1.0], [NAN, 2.0]]), what="inputs"),
        "inputs: expected finite numbers, got 1 that are NaN or infinite "
        "(the first at index (1, 0))",
    ),
    "infinities, with advice": (
        lambda: check_finite(
            torch.tensor([1.0, -INFINITY, INFINITY]), what="targets", advice="drop them"
        ),
        "targets: expected finite numbers, got 2 that are NaN or infinite "
        "(the first at index (1,)); drop them",
    ),
    "a NaN alone": (
        lambda: check_finite(torch.tensor(NAN), what="loss"),
        "loss: expected finite numbers, got 1 that are NaN or infinite (the first at index ())",
    ),
    "choice": (
        lambda: check_choice("mauve", COLOURS, what="colour"),
        "unknown colour 'mauve': expected one of red, green, blue",
    ),
    "choice, nearly right": (
        lambda: check_choice("gren", COLOURS, what="colour"),
        "unknown colour 'gren': expected one of red, green, blue; did you mean 'green'?",
    ),
    "choice, wrong case": (
        lambda: check_choice("Red", COLOURS, what="colour"),
        "unknown colour 'Red': expected one of red, green, blue; did you mean 'red'?",
    ),
    "choice, from a generator": (
        lambda: check_choice("blu", (name for name in COLOURS), what="colour"),
        "unknown colour 'blu': expected one of red, green, blue; did you mean 'blue'?",
    ),
    "too little": (
        lambda: check_at_least(0, 1, what="samples"),
        "samples: expected at least 1, got 0",
    ),
    "too little, fraction": (
        lambda: check_at_least(-0.25, 0.5, what="noise"),
        "noise: expected at least 0.5, got -0.25",
    ),
    "not a number": (
        lambda: check_at_least(NAN, 0, what="noise"),
        "noise: expected at least 0, got nan",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(call, sentence):
    with pytest.raises(CallerError) as caught:
        call()
    assert str(caught.value) == sentence
    assert "\n" not in sentence


RIGHT = {
    "axes": lambda: check_axes(torch.zeros(2, 1, 4, 4), IMAGE_AXES, what="images"),
    "no examples": lambda: check_axes(torch.zeros(0, 1, 4, 4), IMAGE_AXES, what="images"),
    "finite": lambda: check_finite(torch.tensor([0.0, -1e38]), what="inputs"),
    "empty": lambda: check_finite(torch.zeros(0), what="inputs"),
    "whole numbers": lambda: check_finite(torch.tensor([1, 2]), what="labels"),
    "equal": lambda: check_at_least(1, 1, what="samples"),
    "more": lambda: check_at_least(INFINITY, 1, what="samples"),
}


@pytest.mark.parametrize("call", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(call):
    assert call() is None


@pytest.mark.parametrize("colour", COLOURS)
def test_a_right_choice_is_returned(colour):
    assert check_choice(colour, COLOURS, what="colour") == colour
    assert check_choice(colour, dict.fromkeys(COLOURS), what="colour") == colour


@pytest.mark.parametrize(
    ("shape", "text"), [((), "()"), ((3,), "(3)"), ((32, 1, 28, 28), "(32, 1, 28, 28)")]
)
def test_shape_text(shape, text):
    assert shape_text(torch.zeros(shape)) == text


def test_a_callers_mistake_is_a_value_error():
    assert issubclass(CallerError, ValueError)


def test_columns_by_name_and_number() -> None:
    names = ("a", "2", "c")
    found = [column_index(each, names, what="target") for each in ("a", "2", 2, -1, "-3", "1")]
    assert found == [0, 1, 1, 2, 0, 1], "a name counts before a number"
    for wrong in ("d", 3, -4, "1.5"):
        with pytest.raises(CallerError, match="target: expected a column's name .* columns are a"):
            column_index(wrong, names, what="target")
