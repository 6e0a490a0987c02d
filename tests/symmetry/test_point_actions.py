"""Point clouds: against scipy's exponential and rotations, directions, units, jitter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from action_cases import coordinates, draw
from scipy.spatial.transform import Rotation
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.actions.points import POINT_GENERATORS, points

every_generator = pytest.mark.parametrize(
    ("dimensions", "name"),
    [(d, name) for d, table in POINT_GENERATORS.items() for name in table if name != "jitter"],
)


def cloud(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)[None]


# --- against scipy ------------------------------------------------------------------------

# What each name does to a point p: the velocity B p + b as (B, b), in words of vectors.
E = np.eye(3)


def velocity(dimensions: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    kind, _, axis = name.partition("_")
    block, drift = np.zeros((3, 3)), np.zeros(3)
    if kind == "rotation":
        about = E["xyz".index(axis or "z")]
        block = np.cross(about, E).T  # columns: about × e_j
    elif kind == "translation":
        drift = E["xyz".index(axis)]
    else:
        assert kind == "scale"
        block = E
    return block[:dimensions, :dimensions], drift[:dimensions]


@pytest.mark.parametrize("dimensions", [2, 3])
def test_equals_the_joint_flow(dimensions):
    action, data = points(dimensions), draw(2, 5, dimensions)
    where = 4 * draw(2, 3, len(action.names), seed=1) - 2
    result = action.act(where, data)
    for n, s in np.ndindex(2, 3):
        algebra = np.zeros((dimensions + 1, dimensions + 1))
        for name, amount in zip(action.names, where[n, s].tolist(), strict=True):
            block, drift = velocity(dimensions, name)
            algebra[:dimensions] += amount * np.column_stack([block, drift])
        element = scipy.linalg.expm(algebra)[:dimensions]
        wanted = data[n].numpy() @ element[:, :dimensions].T + element[:, dimensions]
        np.testing.assert_allclose(result[n, s].numpy(), wanted, atol=1e-10)


def test_rotations_in_space_are_one_rotation_vector():
    data, vector = draw(1, 6, 3), draw(3, seed=1) * 4 - 2
    turned = points(3, ("rotation_x", "rotation_y", "rotation_z")).act(vector[None, None], data)
    wanted = Rotation.from_rotvec(vector.numpy()).apply(data[0].numpy())
    np.testing.assert_allclose(turned[0, 0].numpy(), wanted, atol=1e-12)


# --- directions and units -----------------------------------------------------------------

X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
MINUS_X, MINUS_Y, MINUS_Z = (-1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, -1.0)
STAYS = (0.0, 0.0, 0.0)

# A point there starts to move this way.
MEANINGS = {
    "points turn counter-clockwise, y up": {X: Y, Y: MINUS_X, MINUS_X: MINUS_Y},
    "points turn about x, from y towards z": {Y: Z, Z: MINUS_Y, X: STAYS},
    "points turn about y, from z towards x": {Z: X, X: MINUS_Z, Y: STAYS},
    "points turn about z, from x towards y": {X: Y, Y: MINUS_X, Z: STAYS},
    "points move along x": {STAYS: X, Y: X},
    "points move along y": {STAYS: Y, X: Y},
    "points move along z": {STAYS: Z, X: Z},
    "points move away from the origin": {X: X, Y: Y, MINUS_Y: MINUS_Y, STAYS: STAYS},
}


def wrong_motions(dimensions: int, name: str, amount: float) -> list[str]:
    places = MEANINGS[POINT_GENERATORS[dimensions][name].meaning]
    before = cloud(*places)[..., :dimensions]
    after = points(dimensions, (name,)).act(coordinates(amount), before)[:, 0]
    wanted = 1e-4 * cloud(*places.values())[..., :dimensions]
    wrong = (after - before - wanted).abs().amax(-1)[0] > 1e-7
    return [str(place) for place, is_wrong in zip(places, wrong.tolist(), strict=True) if is_wrong]


@every_generator
def test_points_move_as_the_meaning_says(dimensions, name):
    assert wrong_motions(dimensions, name, 1e-4) == []
    assert wrong_motions(dimensions, name, -1e-4) != []


@every_generator
def test_units(dimensions, name):
    generator = POINT_GENERATORS[dimensions][name]
    turns = name.startswith("rotation")
    assert generator.in_units(1.0) == pytest.approx(180 / math.pi if turns else 1.0)
    assert generator.period == (math.pi if turns else None)
    assert generator.multiplicity == 1


def test_a_quarter_turn():
    quarter = POINT_GENERATORS[2]["rotation"].from_units(90)
    turned = points(2, ("rotation",)).act(coordinates(quarter), cloud((2, 0), (0, 1)))
    torch.testing.assert_close(turned[:, 0], cloud((0, 2), (-1, 0)), rtol=0, atol=1e-14)


def test_all_but_jitter_is_the_default():
    assert points().names == ("rotation", "translation_x", "translation_y", "scale")
    for dimensions, table in POINT_GENERATORS.items():
        assert {*points(dimensions).names, "jitter"} == set(table)


# --- jitter -------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [2, 3])
def test_jitter_moves_every_number_by_its_own_coordinate(dimensions):
    action = points(dimensions, ("jitter",), count=4)
    (jitter,) = action.generators
    assert jitter.multiplicity == action.coordinate_count == 4 * dimensions
    data, own = draw(2, 4, dimensions), draw(2, 3, 4 * dimensions, seed=1)
    # Point by point, and x, y, z within a point.
    wanted = data[:, None] + own.reshape(2, 3, 4, dimensions)
    torch.testing.assert_close(action.act(own, data), wanted)


@pytest.mark.parametrize("names", [("jitter", "scale"), ("scale", "jitter")], ids=str)
def test_jitter_comes_first_wherever_it_is_named(names):
    data, own, size = draw(1, 3, 2), draw(1, 1, 6, seed=1), coordinates(0.4)
    parts = {"jitter": own, "scale": size}
    moved = points(2, names, count=3).act(torch.cat([parts[name] for name in names], -1), data)
    wanted = math.exp(0.4) * (data + own.reshape(1, 3, 2))
    torch.testing.assert_close(moved[:, 0], wanted)


def test_a_count_is_kept():
    with pytest.raises(CallerError, match=r"expected \(batch, 5, 2\), got \(1, 4, 2\); count="):
        points(2, ("rotation",), count=5).act(coordinates(0.0), draw(1, 4, 2))
    points(2, ("rotation",)).act(coordinates(0.0), draw(1, 4, 2))


REFUSED = {
    "the plane's name in space": (
        lambda: points(3, ("rotation",)), "unknown generator 'rotation': .*'rotation_",
    ),
    "four dimensions": (lambda: points(4), "dimensions: expected 2 or 3, got 4"),
    "jitter of how many": (
        lambda: points(3, ("jitter",)), r"expected count=, as in points\(3, \('jitter',\), count=",
    ),
    "no points": (lambda: points(2, count=0), "count: expected at least 1, got 0"),
    "too few columns": (
        lambda: points(3).act(torch.zeros(1, 1, 7), torch.zeros(1, 4, 2)),
        r"expected \(batch, points, 3\), .* got \(1, 4, 2\)$",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()
