"""Products of groups: written out by hand, counted, and refused where they are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.group_oracle import count_invariants, count_orbits, dense, elements
from scipy.linalg import expm

from isotropy.checks import CallerError
from isotropy.symmetry.groups.catalogue import (
    SO,
    SU,
    C,
    D,
    GridGroup,
    O,
    RubiksCube,
    S,
    Scaling,
    SO2eR3,
    Trivial,
    Z,
)
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.products import (
    direct_product,
    embed,
    finite_elements,
    semidirect_product,
    wreath_product,
)


def invariants(group: Group, rank: int) -> int:
    return count_invariants(dense(group.algebra), dense(group.discrete), rank)


# -- embedded ----------------------------------------------------------------------------------


def test_embedded_generators():
    group = embed(O(2), 4, 1)
    turn, flip = np.zeros((4, 4)), np.diag([1.0, -1.0, 1.0, 1.0])
    turn[2, 1], turn[1, 2] = 1, -1
    np.testing.assert_array_equal(dense(group.algebra), [turn])
    np.testing.assert_array_equal(dense(group.discrete), [flip])
    assert group.name == "Embedded(O(2),4,1)" and group.is_unitary


@pytest.mark.parametrize("dimension, first", [(2, 1), (1, 0), (4, -1), (4, 3)])
def test_embedding_that_does_not_fit(dimension: int, first: int):
    with pytest.raises(CallerError, match=f"2 coordinates of O\\(2\\) within {dimension}"):
        embed(O(2), dimension, first)


# -- direct ------------------------------------------------------------------------------------


def test_direct_product_is_kronecker():
    group = direct_product(SO(3), D(5))
    first = [np.kron(a, np.eye(2)) for a in dense(SO(3).algebra)]
    second = [np.kron(np.eye(3), h) for h in dense(D(5).discrete)]
    np.testing.assert_array_equal(dense(group.algebra), first)
    np.testing.assert_array_equal(dense(group.discrete), second)


def test_exponential_of_a_kronecker_sum_is_the_product():
    group = direct_product(SO(3), SU(2))
    random = np.random.default_rng(0)
    weights = random.standard_normal(6)
    found = expm(np.tensordot(weights, np.stack(dense(group.algebra)), 1))
    one = expm(np.tensordot(weights[:3], np.stack(dense(SO(3).algebra)), 1))
    two = expm(np.tensordot(weights[3:], np.stack(dense(SU(2).algebra)), 1))
    np.testing.assert_allclose(found, np.kron(one, two), atol=1e-12)
    assert group.is_complex


def test_factors_are_flat():
    nested = direct_product(Z(2), direct_product(SO(2), S(3)))
    assert nested.factors == (Z(2), SO(2), S(3))
    assert nested.name == "Z(2) x SO(2) x S(3)"
    assert nested == direct_product(direct_product(Z(2), SO(2)), S(3))
    assert nested == direct_product(Z(2), SO(2), S(3))
    assert nested.dimension == 12
    assert direct_product(Z(2)) == Z(2) and direct_product(Z(2)).factors == ()


def test_invariants_of_a_direct_product_are_products():
    for rank in (2, 3):
        expected = invariants(SO(3), rank) * invariants(S(2), rank)
        assert invariants(direct_product(SO(3), S(2)), rank) == expected > 0


def test_trivial_factor_adds_copies():
    assert invariants(direct_product(Trivial(2), Z(3)), 1) == 2


# -- semidirect --------------------------------------------------------------------------------


def test_rotations_and_a_reflection_are_the_orthogonal_group():
    group = semidirect_product(SO(2), Group("flip", discrete=[np.diag([-1.0, 1.0])]))
    assert group == O(2)


def test_lie_algebra_acting_on_a_lie_algebra():
    """E(2) as affine maps: translations, normalised by rotations."""
    shift = np.zeros((2, 3, 3))
    shift[0, 0, 2] = shift[1, 1, 2] = 1
    group = semidirect_product(Group("T(2)", algebra=list(shift)), SO2eR3())
    assert len(group.algebra) == 3 and group.name == "Semidirect(T(2),SO2eR3)"


def test_grid_group_is_a_semidirect_product():
    whole = GridGroup(4, 3)
    shifts = direct_product(Trivial(4), Z(3), Z(3))
    turn = Group("turn", discrete=[whole.discrete[2]])
    assert semidirect_product(shifts, turn) == whole
    with pytest.raises(CallerError, match="does not normalise.*h0 n0 h0⁻¹ is not in it"):
        semidirect_product(turn, shifts)


def test_scaling_meets_everything():
    assert len(semidirect_product(SO(2), Scaling(2)).algebra) == 2
    assert len(semidirect_product(Scaling(2), C(5)).discrete) == 1


SWAP = Group("swap", discrete=[[1, 0, 2]])
OTHER_AXES = Group("other axes", discrete=[[0, 2, 1]])


@pytest.mark.parametrize(
    "normal, acting, why",
    [
        (SWAP, Z(3), "h0 n0 h0⁻¹ is not in it"),
        (SO2eR3(), OTHER_AXES, "h0 A0 h0⁻¹ is not in its algebra"),
        (SO2eR3(), SO(3), r"\[B1, A0\] is not in its algebra"),
        (D(4), SO(2), "n1 B0 n1⁻¹ − B0 is not in its algebra"),
        (S(3), SO(2), "two groups on one space, got S\\(3\\) on 3 dimensions and SO\\(2\\) on 2"),
    ],
)
def test_refused_semidirect_products(normal: Group, acting: Group, why: str):
    with pytest.raises(CallerError, match=why):
        semidirect_product(normal, acting)


def test_listing_stops_where_there_is_no_end():
    assert finite_elements(SO(2), 100) is None
    assert finite_elements(RubiksCube(), 300) is None
    assert finite_elements(Group("doubling", discrete=[[[2.0]]]), 10_000) is None
    assert finite_elements(Group("turn by 1", discrete=[expm([[0, -1], [1, 0]])]), 50) is None


@pytest.mark.parametrize("group, order", [(D(5), 10), (S(4), 24), (Trivial(2), 1), (C(7), 7)])
def test_listing_is_complete(group: Group, order: int):
    found = finite_elements(group, 100)
    assert found is not None and len(found) == order
    expected = elements(dense(group.discrete) or [np.eye(group.dimension)])
    mean = np.mean([each.toarray() for each in found.values()], 0)
    np.testing.assert_allclose(mean, expected.mean(0), atol=1e-12)


# -- wreath ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "group, permuting, order",
    [
        (Z(3), S(2), 3**2 * 2),
        (C(4), Z(3), 4**3 * 3),
        (D(3), S(2), 6**2 * 2),
        (Z(3), embed(Z(2), 3, 0), 3**3 * 2),  # two orbits of copies
        (Z(2), Trivial(3), 2**3),  # three
    ],
)
def test_order_of_wreath_products(group: Group, permuting: Group, order: int):
    found = wreath_product(group, permuting)
    assert len(elements(dense(found.discrete))) == order
    assert found.dimension == group.dimension * permuting.dimension


def test_wreath_product_of_a_lie_group():
    group = wreath_product(SO(3), S(3))
    assert len(group.algebra) == 9 and len(group.discrete) == 2
    blocks = group.sample(20, torch.Generator().manual_seed(0)).numpy().reshape(20, 3, 3, 3, 3)
    sizes = np.sqrt((blocks**2).sum((2, 4))).round(9)  # (20, copy, copy)
    assert set(np.unique(sizes)) == {0.0, round(3**0.5, 9)}
    assert ((sizes > 0).sum(1) == 1).all() and ((sizes > 0).sum(2) == 1).all()
    assert (np.diagonal(sizes, axis1=1, axis2=2) == 0).any()
    # Every copy turns by itself.
    first = expm(np.tensordot(np.arange(1.0, 10), np.stack(dense(group.algebra)), 1))
    own = [first[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(3)]
    assert np.abs(own[0] - own[1]).max() > 0.1 and np.abs(own[1] - own[2]).max() > 0.1


def test_maps_of_a_hierarchy():
    """G ≀ H on permutations: maps within a copy by G, and one constant for each H-orbit of pairs of
    different copies (Finzi 2023, A.1.7): r_a + r_b − 1."""
    group = wreath_product(Z(4), Z(3))
    pairs = group.signed_permutations
    assert pairs is not None
    assert count_orbits([places for places, _ in pairs], 2) == 4 + (3 - 1)


def test_wreath_product_needs_permutations():
    with pytest.raises(CallerError, match="expected a group of permutations.*got C\\(4\\)"):
        wreath_product(Z(2), C(4))
