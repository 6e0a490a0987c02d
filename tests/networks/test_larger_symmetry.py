"""Which ranks tell a group from a larger one: against the degrees of its invariants."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
import torch
from oracles.emlp_oracle import map_projector
from oracles.group_oracle import icosahedral_generators, octahedral_generators

from isotropy.networks.equivariant.larger_symmetry import Kept, larger_symmetry, telling
from isotropy.symmetry.groups.catalogue import SO, C, Cube, D, O, S, Trivial, Z, group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import BASE, P, Product, V

ICOSAHEDRAL = Group("Icosahedral", discrete=icosahedral_generators())
OCTAHEDRAL = Group("Octahedral", discrete=octahedral_generators())


def up_to(rank: int) -> tuple[Product, ...]:
    return tuple((BASE,) * each for each in range(rank + 1))


# The least degree of an invariant polynomial or tensor that a larger group has not: k for z^k of
# C(k) and D(k), n for the determinant of SO(n), 6 and 4 for the icosahedron and the octahedron
# (Molien), 3 for which of three faces of a cube follow each other clockwise.
DEGREES = [
    *((group(k), k) for k in range(3, 9) for group in (C, D)),
    *((SO(n), n) for n in (2, 3, 4)),
    (group_named("DkeR3(6)"), 6),
    (ICOSAHEDRAL, 6),
    (OCTAHEDRAL, 4),
    (Cube(), 3),
]


@pytest.mark.parametrize(("group", "degree"), DEGREES, ids=str)
def test_linear_maps_tell_a_group_from_half_the_degree_on(group, degree):
    enough = -(-degree // 2)
    found = telling(up_to(enough), group)
    assert found.rank == enough
    assert all(each.target == () for each in found.solved) and bool(found.solved) == (enough > 2)
    assert larger_symmetry([up_to(enough)] * 3, group) is None
    kept = Kept(group)
    for target, source in product(up_to(enough - 1), repeat=2):
        kept.add(target, source)
    assert kept.is_larger()


@pytest.mark.parametrize("k", [5, 6])
def test_the_oracle_finds_the_same_ranks(k):
    """Maps of rank p + q < k commute with every rotation, some with p + q = k do not."""
    turn = np.array([[np.cos(0.35), -np.sin(0.35)], [np.sin(0.35), np.cos(0.35)]])
    generators = [each.toarray() for each in D(k).discrete]
    for target, source in ((2, 2), (2, 3), (3, 3)):
        moved = [(_power(each, target), _power(each, source)) for each in generators]
        projector = map_projector([], moved, (2**target, 2**source))
        foreign = np.kron(_power(turn, target), _power(turn, source))
        is_kept = np.allclose(foreign @ projector, projector, atol=1e-10)
        assert is_kept == (target + source < k or (target + source - k) % 2 == 1)
        kept = Kept(D(k))
        kept.add((BASE,) * target, (BASE,) * source)
        assert kept.is_larger() == is_kept


def _power(matrix: np.ndarray, rank: int) -> np.ndarray:
    found = np.eye(1)
    for _ in range(rank):
        found = np.kron(found, matrix)
    return found


SOLVED = [
    *[(SO(5), 2), (SO(3), 1), (D(5), 2), (D(6), 2), (D(7), 3), (ICOSAHEDRAL, 2), (Cube(), 1)],
    *[(D(5), 3), (D(8), 4), (ICOSAHEDRAL, 3)],  # invariants
]


@pytest.mark.parametrize(("group", "rank"), SOLVED, ids=str)
def test_a_bilinear_map_tells_a_group_where_linear_ones_do_not(group, rank):
    found = telling(up_to(rank), group)
    assert len(found.solved) == 1
    assert larger_symmetry([up_to(rank)] * 3, group) is None
    (each,) = found.solved
    ranks = [len(atoms) for atoms in each.products]
    for number in range(5):
        element = _element(group, number)
        first, second, target = (_power(element, each) for each in ranks)
        moved = target @ each.tensor
        assert np.allclose(each.tensor @ np.kron(first, second), moved, atol=1e-9)
    entries = each.tensor.shape[0]
    assert np.isclose(np.square(each.tensor).sum(), entries)  # variance one for white inputs


def _element(group: Group, seed: int) -> np.ndarray:
    return group.sample(1, torch.Generator().manual_seed(seed))[0].numpy()


def test_the_bilinear_map_of_so5_is_the_alternating_symbol():
    (each,) = telling(up_to(2), SO(5)).solved
    assert [len(atoms) for atoms in each.products] == [2, 2, 1]
    symbol = np.zeros((5,) * 5)
    for order in permutations(range(5)):
        symbol[order] = np.linalg.det(np.eye(5)[list(order)])
    scale = (5 / np.square(symbol).sum()) ** 0.5
    expected = scale * symbol.reshape(5, 625)
    sign = np.sign((expected * each.tensor).sum())
    assert np.allclose(each.tensor, sign * expected, atol=1e-12)


NOT_TOLD = [
    (D(8), 2, "cannot tell D(8) from a larger group with 1 more continuous direction"),
    (C(7), 2, "cannot tell C(7) from a larger group with 1 more continuous direction"),
    (SO(4), 1, "cannot tell SO(4) from a larger group with a reflection"),
    (ICOSAHEDRAL, 1, "cannot tell Icosahedral from a larger group with 3 more continuous"),
    (group_named("SO(1,3)"), 1, "cannot tell SO(1,3) from a larger group with a reflection"),
    (group_named("SO+(1,3)"), 2, "no rank tell SO+(1,3) from the group with -1"),
]


@pytest.mark.parametrize(("group", "rank", "sentence"), NOT_TOLD, ids=str)
def test_it_says_what_products_cannot_tell(group, rank, sentence):
    found = larger_symmetry([up_to(rank)] * 3, group)
    assert found is not None and sentence in found


NOTHING_LARGER = [O(3), group_named("O(1,3)"), group_named("Sp(1)"), S(4), Z(5), Trivial(3)]


@pytest.mark.parametrize("group", NOTHING_LARGER, ids=str)
def test_vectors_are_enough_for_some(group):
    assert larger_symmetry([up_to(1)] * 3, group) is None
    assert telling(up_to(3), group).rank <= 1


def test_swaps_are_told_apart_from_permutations_of_the_group():
    assert "a swap of coordinates 0 and 1" in Kept(Cube()).elements
    assert len(Kept(Cube()).elements) == 15
    assert not Kept(S(5)).elements
    assert len(Kept(Z(4)).elements) == 6
    assert not Kept(S(13)).elements  # too many to look at


def test_products_of_other_atoms_are_not_looked_at():
    own = (P * V)(D(8)).terms[0].atoms
    assert larger_symmetry([[(BASE,)], [own], [()]], D(8)) is None
    assert larger_symmetry([[(BASE,)], [(BASE,)], [()]], D(8)) is not None


def test_layers_before_and_behind_count():
    """T(4) → T(4) tells D(8) even if it is no hidden layer."""
    tensor = (BASE,) * 4
    hidden = [(), (BASE,)]
    assert larger_symmetry([[(BASE,)], hidden, [(BASE,)]], D(8)) is not None
    assert larger_symmetry([[tensor], [*hidden, tensor], [()]], D(8)) is None
