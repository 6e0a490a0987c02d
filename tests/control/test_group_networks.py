"""Layers of signed permutations against projections written out, and rotations against scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import nn

from isotropy.control.groups import SignedGroup, group_named, joined, still
from isotropy.control.networks import GroupLinear, LayerMaker, orbits, softness, with_rotation

GROUPS = {
    "Walker2d": group_named("Walker2d"),
    "Swimmer": group_named("Swimmer"),
    "Ant": group_named("Ant"),
    "own": SignedGroup("own", ((2, -1, 3), (1, 2, -3)), ((-1,), (1,))),
}


def projection(target: np.ndarray, source: np.ndarray) -> np.ndarray:
    """P = mean over g of ρ_out(g) ⊗ ρ_in(g), on matrices row by row."""
    return np.mean([np.kron(a, b) for a, b in zip(target, source, strict=True)], 0)


@pytest.mark.parametrize("name", GROUPS)
def test_orbits_are_all_equivariant_maps(name: str) -> None:
    group = GROUPS[name]
    pairs = [(group.regular, group.observation), (group.action, group.regular)]
    pairs += [(group.action, group.action), (group.action, still(group.order))]
    for target, source in pairs:
        index, signs, rank = orbits(target, source)
        projected = projection(target.matrices(), source.matrices())
        assert rank == np.linalg.matrix_rank(projected)
        for number in range(min(rank, 5)):
            flat = (signs * (index == number)).ravel()
            assert np.allclose(projected @ flat, flat) and flat.any()


@pytest.mark.parametrize("name", GROUPS)
def test_nearest_is_the_projection(name: str) -> None:
    group = GROUPS[name]
    layer = GroupLinear(group.observation, group.action).double()
    given = torch.randn(layer.matrix.shape, dtype=torch.float64)
    projected = projection(group.action.matrices(), group.observation.matrices())
    expected = torch.from_numpy(projected @ given.numpy().ravel()).view_as(given)
    torch.testing.assert_close(layer.matrix.nearest(given), expected)


def test_gradients_are_those_of_indexing() -> None:
    group = GROUPS["Ant"]
    layer = GroupLinear(group.observation, group.regular.copies(2), free_rate=0.1).double()
    inputs = torch.randn(4, 32, dtype=torch.float64)
    parameters = tuple(layer.parameters())

    def outputs(*_: torch.Tensor) -> torch.Tensor:
        return layer(inputs)

    assert torch.autograd.gradcheck(outputs, parameters)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("free_rate", [None, 0.1])
def test_networks_commute_with_the_group(name: str, free_rate: float | None) -> None:
    group = GROUPS[name]
    maker = LayerMaker(group.regular, free_rate)
    source = joined([group.observation, group.action])
    network = maker.network(source, group.action, (16, 16), nn.ReLU).double()
    assert max(softness(network).values()) < 1e-15
    inputs = torch.randn(8, source.size, dtype=torch.float64)
    before, after = (torch.from_numpy(each.matrices()) for each in (source, group.action))
    for into, out in zip(before, after, strict=True):
        torch.testing.assert_close(network(inputs @ into.mT), network(inputs) @ out.mT)


def test_free_parts_make_a_layer_soft() -> None:
    group = GROUPS["Swimmer"]
    layer = GroupLinear(group.observation, group.action, free_rate=0.5)
    with torch.no_grad():
        layer.free_matrix.copy_(2 * layer.matrix.nearest(torch.randn(2, 8)))
    assert layer.softness() < 1e-6  # what has the symmetry does not count
    nn.init.normal_(layer.free_matrix)
    nn.init.zeros_(layer.matrix.coefficients)
    own = layer.free_matrix.detach().double()
    projected = projection(group.action.matrices(), group.observation.matrices())
    left = own.flatten() - torch.from_numpy(projected) @ own.flatten()
    assert layer.softness() == pytest.approx(float(left.norm() / own.norm()), rel=1e-5)


def test_initial_entries_are_those_of_plain_layers() -> None:
    group = GROUPS["Walker2d"]
    layer = GroupLinear(group.regular.copies(64), group.regular.copies(64))
    own, plain = layer.weight.detach(), nn.Linear(128, 128).weight.detach()
    assert float(own.abs().max()) <= 128**-0.5
    assert float(own.std() / plain.std()) == pytest.approx(1, abs=0.05)


def test_quaternions_become_matrices() -> None:
    turns = Rotation.random(5, random_state=0)
    quaternions = torch.from_numpy(turns.as_quat(scalar_first=True))
    others = torch.randn(5, 4, dtype=torch.float64)
    observation = torch.cat([others[:, :1], 3 * quaternions, others[:, 1:]], 1)
    found = with_rotation(observation, 1, 7)  # the last number is beyond
    torch.testing.assert_close(found[:, 1:10], torch.from_numpy(turns.as_matrix()).flatten(1))
    torch.testing.assert_close(found[:, [0, 10, 11]], others[:, :3])
