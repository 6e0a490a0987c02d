"""Permutations from pairs: exact for the distortions of the paper, none where there are none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from oracles.pair_oracle import pairs
from torch import nn

from isotropy.checks import CallerError
from isotropy.equivariance.testing import assert_equivariant
from isotropy.networks.equivariant.emlp import EMLP
from isotropy.symmetry.actions.linear import matrix_elements
from isotropy.symmetry.groups.found_permutations import (
    cycles,
    find_permutations,
    generated,
    generating_set,
)
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Scalar, V

KINDS = ("shift", "two-part", "permutation", "shift-scale")


def check_exact(kind, d, noise, seed):
    x, y, wanted = pairs(kind, d, noise, seed)
    found = find_permutations(x, y)
    assert {tuple(each) for each in found.permutations} == wanted
    assert len(found.permutations) == len(wanted)
    assert found.is_group
    assert len(found.generators) == (2 if kind == "two-part" else 1)
    assert generated(map(tuple, found.generators)) == wanted
    assert found.support == sorted(found.support, reverse=True)
    assert sum(found.support) <= len(x) and found.explained > 0.97
    return found


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_all_are_found_exactly(kind, noise):
    found = check_exact(kind, 10, noise, seed=31)
    assert "they are a group" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [41, 42])
def test_all_are_found_exactly_among_twenty(kind, noise, seed):
    check_exact(kind, 20, noise, seed)


def test_twenty_coordinates_with_noise():
    """Hardly any pair is sorted into its true order here."""
    x, y, wanted = pairs("shift", 20, 0.05, 43)
    orders = np.empty(x.shape, int)
    np.put_along_axis(orders, x.argsort(1), y.argsort(1), 1)
    assert np.mean([tuple(each) in wanted for each in orders.tolist()]) < 0.01
    check_exact("shift", 20, 0.05, seed=43)


def unrelated(generator, x):
    return generator.uniform(-1, 1, x.shape)


def negative(generator, x):
    return -np.roll(x, 1, 1)


def rotated(generator, x):
    return x @ np.linalg.qr(generator.standard_normal((10, 10)))[0]


def each_its_own(generator, x):
    return generator.permuted(x, axis=1)


def same_background(generator, x):
    x += 10 * np.arange(10)
    return unrelated(generator, x) + 10 * np.arange(10)


@pytest.mark.parametrize(
    "other", [unrelated, negative, rotated, each_its_own, same_background], ids=lambda f: f.__name__
)
def test_nothing_is_found_where_nothing_is(other):
    generator = np.random.default_rng(5)
    x = generator.uniform(-1, 1, (600, 10))
    found = find_permutations(x, other(generator, x))
    assert found.permutations == [] and found.support == [] and found.generators == []
    assert not found.is_group and found.explained == 0
    assert str(found).startswith("none of 600 pairs")
    for use in (lambda: Group("found", discrete=found), lambda: matrix_elements(found)):
        with pytest.raises(CallerError, match="got none; none of 600 pairs"):
            use()


def test_pairs_that_are_no_permutations_do_not_hide_the_others():
    x, y, wanted = pairs("shift", 10, 0.05, 6)
    y[::2] = np.random.default_rng(6).uniform(-1, 1, (1000, 10))
    found = find_permutations(torch.from_numpy(x).float(), torch.from_numpy(y).float())
    assert {tuple(each) for each in found.permutations} == wanted
    assert found.explained == pytest.approx(0.5, abs=0.01)


def test_a_set_that_is_no_group():
    x = np.random.default_rng(7).uniform(-1, 1, (200, 8))
    y = np.concatenate([x[:100], np.roll(x[100:], 1, 1)])
    found = find_permutations(x, y)
    assert found.permutations == [[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 0]]
    assert not found.is_group and found.generators == [[1, 2, 3, 4, 5, 6, 7, 0]]
    assert "not a group" in str(found)


def test_the_order_of_pairs_is_the_direction():
    """Coordinate i goes to place p[i], as in `Group`."""
    x = np.random.default_rng(8).uniform(-1, 1, (50, 6))
    turned = [2, 0, 1, 3, 5, 4]
    y = np.empty_like(x)
    y[:, turned] = 3 * x
    found = find_permutations(x, y)
    assert found.permutations == [turned]
    (matrix,) = Group("found", discrete=found).discrete_tensor()
    np.testing.assert_allclose(3 * x @ matrix.numpy().T, y)
    (element,) = matrix_elements(found).elements
    assert element.name == "(0 2 1)(4 5)"


def test_an_invariant_function_passes_and_another_fails():
    x, y, _ = pairs("two-part", 10, 0.05, 9)
    action = matrix_elements(find_permutations(x, y))
    assert len(action.elements) == 24  # all but the identity
    data = torch.from_numpy(x[:20])
    both = nn.Sequential(nn.Unflatten(1, (2, 5)), nn.MaxPool1d(5))
    assert_equivariant(both, action, data, outputs="invariant")
    with pytest.raises(AssertionError):
        assert_equivariant(nn.MaxPool1d(2), action, data, outputs="invariant")


def test_a_network_of_the_group_ignores_what_was_found():
    x, y, _ = pairs("shift", 10, 0.0, 10, count=300)
    group = Group("found", discrete=find_permutations(x, y))
    assert len(group.discrete) == 1 and group.dimension == 10
    network = EMLP(V, Scalar, group, channels=2 * V, layers=1).double()
    codes = network(torch.from_numpy(x)), network(torch.from_numpy(y))
    torch.testing.assert_close(*codes)
    assert codes[0].std() > 1e-3
    assert_equivariant(network, (V(group), Scalar(group)))


def test_identity_alone_is_the_trivial_group():
    x = np.random.default_rng(11).uniform(-1, 1, (40, 5))
    found = find_permutations(x, 2 * x)
    assert found.permutations == [[0, 1, 2, 3, 4]] and found.is_group and found.generators == []
    assert "generated by the identity" in str(found)
    assert Group("found", discrete=found).dimension == 5


@pytest.mark.parametrize("size", [3, 4, 5])
def test_generating_sets_of_symmetric_groups(size):
    everything = list(itertools.permutations(range(size)))
    chosen, is_group = generating_set(everything)
    assert len(chosen) == 2 and is_group
    assert generated(chosen) == set(everything)


def test_groups_that_are_too_large_are_not_written_out():
    cycle, swap = (*range(1, 12), 0), (1, 0, *range(2, 12))
    assert generating_set([cycle, swap]) == ([cycle, swap], False)


def test_cycles():
    assert cycles([1, 2, 0, 4, 3]) == "(0 1 2)(3 4)" and cycles([0, 1]) == "()"


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((4, 3, 3)), np.ones((4, 3)), "x: expected numbers"),
        (np.ones((4, 2)), np.ones((4, 2)), "d ≥ 3"),
        (np.eye(4), np.full((4, 4), np.nan), "y: expected finite"),
        (np.eye(4), np.eye(5), r"one shape, a row a pair, got \(4, 4\) and \(5, 5\)"),
        (np.eye(4), np.ones((4, 4)), "at least 3 pairs whose samples are not constant, got 0"),
    ],
)
def test_refusals(x, y, message):
    with pytest.raises(CallerError, match=message):
        find_permutations(x, y)
