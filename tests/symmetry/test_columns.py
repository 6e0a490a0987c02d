"""Actions on the columns of tables: what each name does, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.catalogue import actions_named, default_names
from isotropy.symmetry.actions.finite import FiniteAction

COLUMNS = ("age", "height", "width")
X = torch.tensor([[1.0, 2.0, 3.0], [-4.0, 5.0, 0.5]], dtype=torch.float64)


def action_of(name: str) -> Action | FiniteAction:
    (action,) = actions_named([name], (3,), columns=COLUMNS)
    return action


@pytest.mark.parametrize(
    "name, factors",
    [
        ("scale", (math.e, math.e, math.e)),
        ("scale:height", (1, math.e, 1)),
        ("scale:-1", (1, 1, math.e)),
    ],
)
def test_scale(name, factors):
    action = action_of(name)
    assert isinstance(action, Action) and action.names == (name,)
    moved = action.act(torch.ones(2, 1, 1, dtype=torch.float64), X)[:, 0]
    torch.testing.assert_close(moved, X * torch.tensor(factors, dtype=torch.float64))
    (generator,) = action.generators
    assert generator.unit == "log factor"


@pytest.mark.parametrize("name", ["sign:width", "sign:2"])
def test_sign_of_a_column(name):
    action = action_of(name)
    assert action.names == (name,)
    assert torch.equal(action.move(0, X), X * torch.tensor([1, 1, -1]))


def test_permutations_of_columns():
    exchange = action_of("permute:age:width")
    assert exchange.names == ("permute:age:width",)
    assert torch.equal(exchange.move(0, X), X[:, [2, 1, 0]])
    orders = action_of("permute:0:1:2")
    moved = [tuple(orders.move(index, X)[0].tolist()) for index in range(len(orders.elements))]
    assert len(set(moved)) == 5 and (1.0, 2.0, 3.0) not in moved
    assert all(sorted(each) == [1.0, 2.0, 3.0] for each in moved)


def test_matrices_of_the_user(tmp_path):
    turn = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 0]])
    np.save(tmp_path / "turn.npy", turn)
    action = action_of(f"generator:{tmp_path / 'turn.npy'}")
    moved = action.act(torch.full((2, 1, 1), math.pi / 2, dtype=torch.float64), X)[:, 0]
    torch.testing.assert_close(moved, torch.stack([-X[:, 1], X[:, 0], X[:, 2]], 1))
    swap = np.eye(3)[[1, 0, 2]]
    np.save(tmp_path / "swap.npy", swap)
    assert torch.equal(action_of(f"element:{tmp_path / 'swap.npy'}").move(0, X), X[:, [1, 0, 2]])
    np.save(tmp_path / "small.npy", np.eye(2))
    with pytest.raises(CallerError, match=r"a matrix of 3 rows and columns, .* got shape \(2, 2\)"):
        action_of(f"element:{tmp_path / 'small.npy'}")


def test_generators_share_one_action_and_signs_follow():
    names = ["sign_change", "scale:age", "permute:age:width", "scale:width"]
    scale, exchange, sign = actions_named(names, (3,), columns=COLUMNS)
    assert scale.names == ("scale:age", "scale:width")
    assert exchange.names == ("permute:age:width",) and sign.names == ("sign_change",)


def test_columns_without_names_have_numbers():
    (action,) = actions_named(["sign:1"], (3,))
    assert torch.equal(action.move(0, X), X * torch.tensor([1, -1, 1]))


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("rotation", "unknown generator 'rotation' of a table: expected one of scale, scale:A"),
        ("sign:depth", "got 'depth'; the columns are age, height, width"),
        ("sign:3", "its number from 0 to 2, got '3'"),
        ("sign", "expected 1 columns after the first colon, got 0"),
        ("permute:age", "expected 2 to 4 columns .* got 1, as in permute:age:height"),
        ("permute:age:0", "expected different columns"),
        ("element:nowhere.npy", "expected a matrix that numpy.save wrote"),
    ],
)
def test_refused(name, sentence):
    with pytest.raises(CallerError, match=sentence):
        action_of(name)


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (3, 20), (9, 2), (9, 3), (4,)], ids=lambda shape: str(len(shape))
)
def test_the_default_names_are_actions_on_data_of_that_shape(shape):
    data = torch.randn(2, *shape)
    for action in actions_named(default_names(shape), shape):
        if isinstance(action, Action):
            moved = action.act(torch.zeros(2, 1, action.coordinate_count), data)
            torch.testing.assert_close(moved[:, 0], data, atol=1e-5, rtol=1e-5)
        else:
            action.check(data)


def test_no_default_for_other_shapes():
    with pytest.raises(CallerError, match="give actions="):
        default_names((2, 3, 4, 5))
