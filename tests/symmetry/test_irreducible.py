"""Irreducible representations against characters, spherical harmonics and tensors by SVD."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.representation_oracle import (
    real_harmonics,
    rotation,
    rotation_character,
    symmetric_traceless,
)

from isotropy.checks import CallerError
from isotropy.symmetry.groups.atoms import Irreducible
from isotropy.symmetry.groups.catalogue import GL, SO, SU, D, O, Scaling
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import P, Scalar, check_atom, irrep

ORDERS = [0, 1, 2, 3, 5, 8]
every_order = pytest.mark.parametrize("order", ORDERS)
RANDOM = np.random.default_rng(3)


def of_matrix(order: int, group: Group, element: np.ndarray) -> np.ndarray:
    return irrep(order)(group).element(torch.from_numpy(element)).numpy()


@every_order
@pytest.mark.parametrize("group", [SO(2), O(2), SO(3), O(3), D(5)], ids=str)
def test_is_an_orthogonal_representation(order: int, group: Group) -> None:
    representation = irrep(order)(group)
    for atom in {atom for term in representation.terms for atom in term.atoms}:
        check_atom(atom, group, generator=torch.Generator().manual_seed(order))
    images = representation.element(group.sample(3, torch.Generator().manual_seed(1)))
    identity = torch.eye(representation.size, dtype=torch.float64).expand_as(images)
    torch.testing.assert_close(images @ images.mT, identity, rtol=0, atol=1e-12)
    expected = 1 if order == 0 else 2 if group.dimension == 2 else 2 * order + 1
    assert representation.size == expected
    assert representation.dual == representation


@every_order
def test_character_of_rotations(order: int) -> None:
    for _ in range(3):
        angle = float(RANDOM.uniform(0.2, 3.0))
        image = of_matrix(order, SO(3), rotation(RANDOM.normal(size=3), angle))
        assert np.trace(image) == pytest.approx(rotation_character(order, angle), abs=1e-12)


@every_order
def test_parity_is_natural(order: int) -> None:
    image = of_matrix(order, O(3), -np.eye(3))
    np.testing.assert_allclose(image, (-1) ** order * np.eye(2 * order + 1), atol=1e-13)
    other = (irrep(order) * P)(O(3)).element(-torch.eye(3, dtype=torch.float64))
    np.testing.assert_allclose(other.numpy(), -image, atol=1e-13)


@every_order
def test_moves_spherical_harmonics(order: int) -> None:
    for element in O(3).sample(4, torch.Generator().manual_seed(order)).numpy():
        point = RANDOM.normal(size=3)
        # Of order 1 the basis is x, y, z, where that of the harmonics is y, z, x.
        places = [1, 2, 0] if order == 1 else slice(None)
        image = of_matrix(order, O(3), element)[places][:, places]
        expected = real_harmonics(order, element @ point)
        np.testing.assert_allclose(image @ real_harmonics(order, point), expected, atol=1e-12)


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_equivalent_to_symmetric_traceless_tensors(order: int, dimension: int) -> None:
    """B by SVD spans the same representation: one matrix takes one to the other for every g."""
    basis = symmetric_traceless(order, dimension)
    group = O(dimension)
    elements = group.sample(6, torch.Generator().manual_seed(0)).numpy()
    intertwiners = 0.0
    for element in elements:
        power = np.ones((1, 1))
        for _ in range(order):
            power = np.kron(power, element)
        tensor, ours = basis.T @ power @ basis, of_matrix(order, group, element)
        assert tensor.shape == ours.shape
        assert np.trace(tensor) == pytest.approx(np.trace(ours), abs=1e-12)
        size = len(ours)
        left = np.kron(tensor, np.eye(size)) - np.kron(np.eye(size), ours.T)
        intertwiners = intertwiners + left.T @ left
    values = np.linalg.eigvalsh(intertwiners)
    assert values[0] < 1e-12 < 1e-6 < values[1]  # by Schur exactly one, up to a factor


@every_order
def test_turns_by_order_times_the_angle(order: int) -> None:
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    image = of_matrix(order, SO(2), turn)
    cosine, sine = np.cos(order * angle), np.sin(order * angle)
    expected = np.eye(1) if order == 0 else np.array([[cosine, -sine], [sine, cosine]])
    np.testing.assert_allclose(image, expected, atol=1e-13)


def test_low_orders_are_scalar_and_vector() -> None:
    assert irrep(0) == Scalar
    elements = O(3).sample(2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(irrep(1)(O(3)).element(elements), elements, rtol=0, atol=0)


def test_dtype_follows_the_elements_and_gradients_flow() -> None:
    group = SO(3)
    elements = group.sample(2, torch.Generator().manual_seed(0)).float().requires_grad_()
    image = irrep(3)(group).element(elements)
    assert image.dtype == torch.float32
    assert image.shape == (2, 7, 7)
    image.square().sum().backward()
    assert elements.grad is not None
    assert bool(elements.grad.abs().sum() > 0)


def test_whole_entries_are_exact() -> None:
    """So that finite subgroups of signed permutations are seen as such."""
    quarter = Group("quarter", discrete=[[[0, -1, 0], [1, 0, 0], [0, 0, 1]]])
    (image,) = Irreducible(4).discrete(quarter)
    assert set(np.unique(image.toarray())) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("group", [SO(4), GL(3), Scaling(2), SU(2)], ids=str)
def test_refused_for_other_groups(group: Group) -> None:
    with pytest.raises(CallerError, match=r"irrep\(2\) of .*expected a group of"):
        irrep(2)(group)


@pytest.mark.parametrize("order", [-1, 1.5, "2"])
def test_refuses_other_orders(order: int) -> None:
    with pytest.raises(CallerError, match="whole number of at least 0"):
        irrep(order)
