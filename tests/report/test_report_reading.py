"""The words that numbers turn into: cases are data."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_pages import GENERATOR_UNITS, result_with

from isotropy.report.learn.reading import (
    READINGS,
    finding_sentence,
    finding_sentences,
    number_text,
    reading_of,
    verdict_of,
)
from isotropy.report.wording import gain_text, interval_text, nats_text, spoken_name

NO_TRUTH: dict[str, float] = {}
ZERO = dict.fromkeys(GENERATOR_UNITS, 0.0)


STILL = "No other transformation was found: every other learned range is at the noise floor"
CASES = {
    "one found": (
        result_with(rotation=175.0),
        NO_TRUTH,
        f"The labels do not change under rotation by up to ±175°. {STILL} (below 0.02).",
    ),
    "found and known": (
        result_with(rotation=175.0),
        ZERO | {"rotation": 180.0},
        f"The labels do not change under rotation by up to ±175°. {STILL} (below 0.02). "
        "The data were made with rotation by any angle.",
    ),
    "partial": (
        result_with(rotation=88.4, translation_x=0.003),
        {"rotation": 90.0},
        f"The labels do not change under rotation by up to ±88°. {STILL} (below 0.02). "
        "The data were made with rotation by up to ±90°.",
    ),
    "several found": (
        result_with(rotation=88.0, translation_x=0.12, scale_x=0.25),
        NO_TRUTH,
        "The labels do not change under translation along x by up to ±0.12 of the image width, "
        "rotation by up to ±88° and scaling along x by factors from 0.78 to 1.28. "
        f"{STILL} (below 0.02).",
    ),
    "all but one found": (
        result_with(
            rotation=90.0, translation_x=0.2, translation_y=0.2, scale_x=0.3, hyperbolic_rotation=0
        ),
        NO_TRUTH,
        "The labels do not change under translation along x by up to ±0.20 of the image width, "
        "translation along y by up to ±0.20 of the image width, rotation by up to ±90° and "
        "scaling along x by factors from 0.74 to 1.35. "
        "Exactly zero: hyperbolic rotation.",
    ),
    "asymmetric": (
        result_with(rotation=(-10.0, 90.0)),
        NO_TRUTH,
        f"The labels do not change under rotation from −10° to 90°. {STILL} (below 0.02).",
    ),
    "nothing found": (
        result_with(rotation=2.14),
        NO_TRUTH,
        "No symmetry was found. "
        "Every learned range is at the noise floor (rotation ±2.1°, the rest below 0.02).",
    ),
    "nothing found, and there is nothing": (
        result_with(rotation=2.14),
        ZERO,
        "No symmetry was found. "
        "Every learned range is at the noise floor (rotation ±2.1°, the rest below 0.02). "
        "The data were made without any of them.",
    ),
    "missed": (
        result_with(rotation=2.14),
        ZERO | {"rotation": 45.0},
        "No symmetry was found. "
        "Every learned range is at the noise floor (rotation ±2.1°, the rest below 0.02). "
        "The data were made with rotation by up to ±45°. In the data but not found: rotation.",
    ),
    "too small to call": (
        result_with(rotation=15.0),
        NO_TRUTH,
        "No symmetry was found. Too small to call: rotation ±15°. "
        "Every other learned range is at the noise floor (below 0.02).",
    ),
    "found too much": (
        result_with(rotation=90.0),
        ZERO,
        f"The labels do not change under rotation by up to ±90°. {STILL} (below 0.02). "
        "The data were made without any of them. Found but not put into the data: rotation.",
    ),
    "one is not a number": (
        result_with(rotation=None),
        NO_TRUTH,
        "No symmetry was found. The learned range of rotation is not a finite number. "
        "Every other learned range is at the noise floor (below 0.02).",
    ),
    "none is a number": (
        result_with("laplace", **dict.fromkeys(GENERATOR_UNITS, math.nan)),
        NO_TRUTH,
        "Nothing can be said: no learned range is a finite number.",
    ),
    "zeros beside one found": (
        result_with(**(ZERO | {"rotation": 175.0})),
        ZERO | {"rotation": 180.0},
        "The labels do not change under rotation by up to ±175°. Exactly zero: translation along "
        "x, translation along y, scaling along x and hyperbolic rotation. "
        "The data were made with rotation by any angle.",
    ),
    "all zero": (
        result_with(**ZERO),
        NO_TRUTH,
        "No symmetry was found. Exactly zero: all that was tried.",
    ),
    "objective none": (
        result_with("none", **dict.fromkeys(GENERATOR_UNITS, 0.0)),
        {"rotation": 180.0},
        "Nothing was learned: every range was fixed at zero. "
        "The data were made with rotation by any angle.",
    ),
    "objective fixed": (
        result_with("fixed", **(ZERO | {"rotation": 90.0})),
        NO_TRUTH,
        "The ranges were given, not learned: rotation by up to ±90°.",
    ),
    "objective fixed at zero": (
        result_with("fixed", **ZERO),
        NO_TRUTH,
        "The ranges were given, not learned: all are zero.",
    ),
    "objective averaged-losses": (
        result_with("averaged-losses", **(ZERO | {"rotation": 90.0})),
        {"rotation": 180.0},
        "The ranges were given, not learned: rotation by up to ±90°. "
        "Losses were averaged over the copies, not outputs: ordinary augmentation. "
        "The data were made with rotation by any angle.",
    ),
    "objective trivial-augment": (
        {"objective": "trivial-augment", "symmetries": []},
        NO_TRUTH,
        "Nothing was learned: every copy was changed by one transformation that TrivialAugment "
        "drew at random.",
    ),
    "objective augerino-original": (
        result_with("augerino-original", rotation=175.0),
        NO_TRUTH,
        f"The labels do not change under rotation by up to ±175°. {STILL} (below 0.02).",
    ),
    "nothing tried": ({"symmetries": []}, NO_TRUTH, "No transformation was tried."),
}


@pytest.mark.parametrize("case", CASES)
def test_finding_sentence(case: str) -> None:
    result, truth, expected = CASES[case]
    assert finding_sentence(result, truth) == expected


@pytest.mark.parametrize("unit", [*READINGS, "furlong", None])
def test_verdict_changes_at_the_thresholds(unit: str | None) -> None:
    reading = reading_of(unit)

    def verdict(width: float) -> str:
        return verdict_of({"name": "any", "unit": unit, "low": -width, "high": width})

    assert 0 < reading.floor < reading.found < reading.full_scale
    assert verdict(reading.found) == "found"
    assert verdict(0.999 * reading.found) == "too small to call"
    assert verdict(0.999 * reading.floor) == "at the noise floor"
    assert verdict(0.0) == "zero"
    assert verdict(math.nan) == "not a number"


def test_thresholds_are_the_documented_ones() -> None:
    assert {unit: reading.found for unit, reading in READINGS.items()} == {
        "degrees": 20.0,
        "fraction of image width": 0.05,
        "fraction of length": 0.05,
        "log factor": 0.1,
        "tangent": 0.1,
        "grey level": 0.1,
        "unit length": 0.1,
        "probability": 0.1,
    }


@pytest.mark.parametrize(
    ("value", "decimals", "expected"),
    [
        (-1234.56, 1, "−1,234.6"),
        (0.0, 2, "0.00"),
        (-0.0001, 2, "0.00"),
        (None, 2, "–"),
        (math.nan, 2, "–"),
        (-math.inf, 2, "–"),
        ("seven", 2, "–"),
        (True, 2, "–"),
        (16, 0, "16"),
    ],
)
def test_number_text(value: object, decimals: int, expected: str) -> None:
    assert number_text(value, decimals) == expected


def test_a_run_that_still_moves_and_was_not_judged_claims_nothing() -> None:
    symmetry = {"name": "rotation", "kind": "range", "low": -90.0, "high": 90.0, "unit": "degrees"}
    moving = {"objective": "laplace", "symmetries": [symmetry], "settled": False}
    headline, made = finding_sentences(moving, {"rotation": 180.0})
    assert headline.startswith("The run has not settled: the ranges or the evidence still moved")
    assert "now rotation ±90°" in headline
    assert made == "The data were made with rotation by any angle."
    assert finding_sentences({**moving, "settled": True}, {})[0].startswith("The labels do not")


# --- probabilities --------------------------------------------------------------------------------


def flip(probability: float | None) -> dict[str, Any]:
    return {
        "name": "horizontal_flip",
        "kind": "probability",
        "low": 0.0,
        "high": probability,
        "unit": "probability",
    }


@pytest.mark.parametrize(
    ("probability", "expected"),
    [
        (0.4987, "The labels do not change under horizontal flip."),
        (0.31, "The labels do not change under horizontal flip with probability 0.31."),
        (0.07, "No symmetry was found. Too small to call: horizontal flip probability 0.07."),
        (
            0.012,
            "No symmetry was found. Horizontal flip probability 0.012 is at the noise floor.",
        ),
        (None, "Nothing can be said: no learned range is a finite number."),
    ],
)
def test_a_probability_is_read_as_it_is_and_not_halved(
    probability: float | None, expected: str
) -> None:
    assert finding_sentence({"symmetries": [flip(probability)]}, {}) == expected


def test_the_truth_of_a_probability() -> None:
    told = finding_sentences({"objective": "laplace", "symmetries": [flip(0.01)]}, ONE_FLIP)
    assert told[-2:] == (
        "The data were made with horizontal flip.",
        "In the data but not found: horizontal flip.",
    )


ONE_FLIP = {"horizontal_flip": 0.5}


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain", "error", "expected"),
    [
        (1.0821, 0.0012, "1.08 ± 0.00"),
        (0.0312, 0.0021, "0.031 ± 0.002"),
        (-0.0071, 0.0064, "−0.0071 ± 0.0064"),
        (0.0998, None, "0.10"),
        (None, 0.1, "–"),
        (-math.inf, None, "–"),
    ],
)
def test_gain_text(gain: float | None, error: float | None, expected: str) -> None:
    assert gain_text(gain, error) == expected


@pytest.mark.parametrize(
    ("nats", "expected"),
    [(283.6, "284"), (-61.4, "−61"), (9.96, "10"), (9.94, "9.9"), (-0.04, "0.0"), (None, "–")],
)
def test_nats_text(nats: float | None, expected: str) -> None:
    assert nats_text(nats) == expected


@pytest.mark.parametrize(
    ("interval", "unit", "expected"),
    [
        ([170.2, 180.0], "degrees", "±170° to ±180°"),
        ([0.0, 0.034], "log factor", "0 to ±0.034"),
        ([0.41, 0.5], "probability", "0.41 to ½"),
        ([None, 1.0], "degrees", "–"),
        ([1.0], "degrees", "–"),
        (None, "degrees", "–"),
    ],
)
def test_interval_text(interval: list[Any] | None, unit: str, expected: str) -> None:
    assert interval_text(interval, unit) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rotation_z", "rotation about z"),
        ("turn_90", "turn by 90°"),
        ("horizontal_flip", "horizontal flip"),
    ],
)
def test_spoken_name(name: str, expected: str) -> None:
    assert spoken_name(name) == expected


def test_a_truth_that_is_not_known_is_not_told() -> None:
    result = result_with(rotation=175.0)
    unknown: dict[str, Any] = {"rotation": None, "scale_x": math.nan}
    assert finding_sentences(result, unknown) == finding_sentences(result, {})
