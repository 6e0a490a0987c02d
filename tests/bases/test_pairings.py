"""Independent diagrams, and how many: against walks, Gram matrices and brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from oracles import invariant_oracle as oracle

from isotropy.bases.invariants import (
    count_linear,
    count_orthogonal,
    count_symplectic,
    independent_pairings,
    partitions,
    standard_tableaux,
)

SIDES = (1, 2, 3, 4, 5, 6, 7)
SLOTS = range(11)


@pytest.mark.parametrize("side", SIDES)
def test_orthogonal_counts_are_walks(side):
    for slots in SLOTS:
        even = count_orthogonal(slots, side)
        assert even == oracle.orthogonal(side, slots)
        assert even + count_orthogonal(slots, side, symbols=1) == oracle.special_orthogonal(
            side, slots
        )


@pytest.mark.parametrize("pairs", SIDES)
def test_symplectic_counts_are_walks(pairs):
    for slots in SLOTS:
        assert count_symplectic(slots, pairs) == oracle.symplectic(pairs, slots)


@pytest.mark.parametrize("side", SIDES)
def test_linear_counts_are_walks(side):
    for lower in range(6):
        assert count_linear(lower, lower, side, 0) == oracle.general_linear(side, lower, lower)
        for symbols in range(4):
            upper = lower + symbols * side
            if upper < 10:
                wanted = oracle.special_linear(side, upper, lower)
                assert count_linear(upper, lower, side, symbols) == wanted


def test_known_numbers():
    for k in range(8):
        assert count_symplectic(2 * k, 1) == oracle.catalan(k)
        assert count_linear(2 * k, 0, 2, k) == oracle.catalan(k)
        both = count_orthogonal(k, 3) + count_orthogonal(k, 3, symbols=1)
        assert both == oracle.riordan(k)
    for n in (1, 2, 3, 4):
        assert count_linear(5, 5, n, 0) == oracle.permutations_without_long_falls(5, n)


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_counts_are_ranks_of_gram_matrices(side):
    ranks = [oracle.rational_rank(oracle.matching_gram(6, loop)) for loop in (side, -2 * side)]
    assert ranks == [count_orthogonal(6, side), count_symplectic(6, side)]
    assert oracle.rational_rank(oracle.permutation_gram(4, side)) == count_linear(4, 4, side, 0)
    slots = 6 if side % 2 == 0 else 5
    wanted = oracle.rational_rank(oracle.symbol_gram(slots, side))
    assert count_orthogonal(slots, side, symbols=1) == wanted


def test_tableaux():
    assert [standard_tableaux(shape) for shape in [(), (1,), (2, 1), (3, 2), (4, 4)]] == [
        1, 1, 2, 5, 14,
    ]  # fmt: skip
    assert list(partitions(4, 2)) == [(4,), (3, 1), (2, 2)]
    assert sum(standard_tableaux(shape) ** 2 for shape in partitions(6, 6)) == 720


# -- the diagrams themselves -------------------------------------------------------------------


def longest(pairs: np.ndarray, are_nested: bool) -> int:
    """The most edges of which every two are nested, or no two are; by trying all sets."""
    edges = [tuple(edge) for edge in pairs.tolist()]
    for size in range(len(edges), 0, -1):
        for chosen in combinations(edges, size):
            nested = [(a < c) == (d < b) for (a, b), (c, d) in combinations(chosen, 2)]
            if all(each == are_nested for each in nested):
                return size
    return 0


@pytest.mark.parametrize("are_falling", [False, True], ids=["rising", "falling"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_matchings_are_all_that_avoid_the_pattern(most, are_falling):
    found = independent_pairings(8, most, are_falling=are_falling)
    as_sets = {frozenset(map(tuple, each)) for each in found.pairs.tolist()}
    wanted = {
        frozenset(each)
        for each in oracle.matchings(range(8))
        if longest(np.array(each), are_nested=are_falling) <= most
    }
    assert as_sets == wanted
    assert len(found.pairs) == len(wanted)


@pytest.mark.parametrize(
    ("slots", "side"), [(1, 1), (2, 2), (5, 1), (5, 3), (5, 5), (6, 2), (7, 3), (8, 2), (8, 4)]
)
def test_symbols_and_pairs_use_every_slot_once(slots, side):
    found = independent_pairings(slots, side, symbols=1, side=side)
    assert len(found.pairs) == count_orthogonal(slots, side, symbols=1)
    used = np.concatenate([found.pairs.reshape(len(found.pairs), -1), found.symbols[:, 0]], axis=1)
    assert (np.sort(used, axis=1) == np.arange(slots)).all()
    assert len(np.unique(used, axis=0)) == len(used)
    assert (np.diff(found.symbols, axis=2) > 0).all()


@pytest.mark.parametrize(("side", "lower", "symbols"), [(2, 1, 2), (2, 3, 1), (3, 2, 1), (1, 2, 2)])
def test_linear_diagrams_pair_upper_with_lower(side, lower, symbols):
    upper = lower + side * symbols
    found = independent_pairings(
        upper + lower, side, first_closer=upper, symbols=symbols, side=side
    )
    assert len(found.pairs) == count_linear(upper, lower, side, symbols)
    assert (found.pairs[..., 0] < upper).all()
    assert (found.pairs[..., 1] >= upper).all()
    assert (found.symbols < upper).all()
    # As sets of sets of slots no two are the same.
    names = {
        (frozenset(map(tuple, pairs)), frozenset(map(tuple, sets)))
        for pairs, sets in zip(found.pairs.tolist(), found.symbols.tolist(), strict=True)
    }
    assert len(names) == len(found.pairs)


def test_no_diagrams():
    assert independent_pairings(3, 2).pairs.shape[0] == 0
    assert independent_pairings(3, 2, symbols=1, side=2).symbols.shape == (0, 1, 2)
    assert independent_pairings(1, 2, symbols=1, side=2).symbols.shape == (0, 1, 2)
    assert independent_pairings(0, 2).pairs.shape == (1, 0, 2)
