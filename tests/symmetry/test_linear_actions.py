"""Representations given by matrices, against scipy's exponential and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from action_cases import draw

from isotropy.checks import CallerError
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.linear import LinearAction, linear_action, matrix_elements

TURN = [[0, -1], [1, 0]]


@pytest.mark.parametrize("axes", [(), (3,), (3, 2)], ids=["vectors", "lists", "tables"])
def test_elements_are_one_joint_exponential(axes):
    one, other = draw(4, 4, seed=1) - 0.5, draw(4, 4, seed=2) - 0.5
    action, data = linear_action({"one": one, "other": other.numpy()}), draw(2, *axes, 4)
    where = 2 * draw(2, 3, 2, seed=3) - 1
    moved = action.act(where, data)
    assert moved.shape == (2, 3, *axes, 4)
    for n in range(2):
        for s in range(3):
            algebra = where[n, s, 0] * one + where[n, s, 1] * other
            element = torch.from_numpy(scipy.linalg.expm(algebra.numpy()))
            wanted = torch.einsum("ij,...j->...i", element, data[n])
            torch.testing.assert_close(moved[n, s], wanted, rtol=0, atol=1e-12)


def test_a_turn_is_from_x_to_y():
    action = LinearAction(
        {"turn": TURN},
        units={"turn": ("degrees", math.pi / 180)},
        periods={"turn": math.pi},
        meanings={"turn": "vectors turn from x to y"},
    )
    (generator,) = action.generators
    assert generator.unit == "degrees" and generator.period == math.pi
    assert generator.meaning == "vectors turn from x to y"
    assert generator.matrix == ((0.0, -1.0), (1.0, 0.0))
    quarter = torch.full((1, 1, 1), generator.from_units(90.0), dtype=torch.float64)
    east = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    north = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(action.act(quarter, east)[:, 0], north)
    direction = torch.full((1,), 2.0, dtype=torch.float64)
    torch.testing.assert_close(action.velocity(direction, east), 2 * north)
    torch.testing.assert_close(action.ideal_velocity(direction, east), 2 * north)


def test_what_is_said_by_default():
    (generator,) = linear_action({"turn": TURN}).generators
    assert (generator.unit, generator.coordinate_per_unit) == ("coordinate", 1.0)
    assert generator.period is None and "turn" in generator.meaning


def test_the_callers_matrix_is_not_kept():
    matrix = torch.tensor(TURN, dtype=torch.float64)
    action, east = linear_action({"turn": matrix}), torch.tensor([[1.0, 0.0]])
    elements = matrix_elements({"turn": matrix})
    matrix.zero_()
    assert action.velocity(torch.ones(1), east).tolist() == [[0.0, 1.0]]
    assert elements.move(0, east).tolist() == [[0.0, 1.0]]


def test_matrices_with_a_gradient_are_taken_by_value():
    matrix = torch.tensor(TURN, dtype=torch.float64, requires_grad=True)
    moved = linear_action({"turn": matrix}).act(torch.ones(1, 1, 1).double(), draw(1, 2))
    assert not moved.requires_grad


REFUSED = {
    "none": ({}, "expected one or more, by the name"),
    "not square": ({"a": draw(2, 3)}, r"matrix of 'a': expected as many rows .* got \(2, 3\)"),
    "a vector": ({"a": draw(3)}, r"matrix of 'a': expected as many rows .* got \(3\)"),
    "empty": ({"a": draw(0, 0)}, r"matrix of 'a': expected as many rows .* got \(0, 0\)"),
    "two sizes": (
        {"a": np.diag([1.0, 2.0]), "b": np.diag([1.0, 2.0, 3.0])},
        r"matrix of 'b': expected the size of 'a', \(2, 2\), got \(3, 3\)",
    ),
    "not finite": (
        {"a": [[0.0, math.nan], [1.0, 0.0]]},
        r"matrix of 'a': expected finite numbers, got 1 .*index \(0, 1\)",
    ),
    "infinite": ({"a": [[math.inf, 0.0], [1.0, 0.0]]}, "matrix of 'a': expected finite numbers"),
    "words": ({"a": "turn"}, "matrix of 'a': expected rows of real numbers.* got str of"),
    "ragged": ({"a": [[1.0], [1.0, 2.0]]}, "matrix of 'a': expected rows of real numbers"),
    "complex": ({"a": torch.eye(2) * 1j}, "matrix of 'a': expected rows of real numbers"),
    "complex array": ({"a": np.eye(2) * 1j}, "matrix of 'a': expected rows of real numbers"),
}


@pytest.mark.parametrize("make", [linear_action, matrix_elements])
@pytest.mark.parametrize(("matrices", "sentence"), REFUSED.values(), ids=REFUSED)
def test_matrices_that_are_refused(make, matrices, sentence):
    with pytest.raises(CallerError, match=sentence):
        make(matrices)


@pytest.mark.parametrize(
    "options",
    [{"units": {"trun": ("degrees", 1.0)}}, {"periods": {"trun": 1.0}}, {"meanings": {"trun": ""}}],
)
def test_words_for_an_unknown_generator(options):
    (what,) = options
    with pytest.raises(CallerError, match=f"{what}: expected names among turn, got 'trun'"):
        linear_action({"turn": TURN}, **options)


# --- discrete elements --------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(), (3,), (3, 2)], ids=["vectors", "lists", "tables"])
def test_discrete_elements_multiply_columns(axes):
    matrices = {"cycle": [[0, 0, 1], [1, 0, 0], [0, 1, 0]], "any": draw(3, 3, seed=1)}
    action = matrix_elements(matrices, name="some")
    assert isinstance(action, FiniteAction) and action.name == "some"
    assert action.names == ("cycle", "any") and not action.is_random
    assert all(element.meaning for element in action.elements)
    data = draw(2, *axes, 3)
    torch.testing.assert_close(action.move(0, data), data.roll(1, -1), rtol=0, atol=0)
    wanted = torch.einsum("ij,...j->...i", matrices["any"], data)
    torch.testing.assert_close(action.move(1, data), wanted)
    assert action.move(1, data.float()).dtype == torch.float32


def test_elements_that_are_refused():
    with pytest.raises(CallerError, match="matrix of 'flat': expected one that has an inverse"):
        matrix_elements({"flat": [[1, 1], [1, 1]]})
    with pytest.raises(CallerError, match="matrix of 'nothing': expected one that has an inverse"):
        matrix_elements({"nothing": [[0, 0], [0, 0]]})
    with pytest.raises(CallerError, match="matrix of 'e': expected another element than the ident"):
        matrix_elements({"swap": [[0, 1], [1, 0]], "e": torch.eye(2)})


def test_vectors_that_do_not_fit():
    swap = matrix_elements({"swap": [[0, 1], [1, 0]]})
    with pytest.raises(CallerError, match=r"vectors: expected \(batch, …, 2\), .* got \(4, 3\)"):
        swap.move(0, draw(4, 3))
    with pytest.raises(CallerError, match="vectors: expected floating-point numbers"):
        swap.move(0, torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(CallerError, match="an index from 0 to 0"):
        swap.move(1, draw(4, 2))
