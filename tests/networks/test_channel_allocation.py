"""Channels are shared out as the paper says, and every channel is used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotropy.checks import CallerError
from isotropy.networks.equivariant.channels import rank_amounts, uniform_representation
from isotropy.symmetry.groups.catalogue import GL, SL, SO, O, SO13p, Sp
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Scalar, T


def test_the_published_example():
    assert rank_amounts(256, 3) == [70, 23, 7, 2]
    group = SO(3)
    expected = 70 * Scalar + 7 * T(2) + 23 * T(1) + 2 * T(3)  # even ranks first
    assert uniform_representation(256, group) == expected(group)


@given(channels=st.integers(1, 600), dimension=st.integers(1, 7))
def test_every_channel_is_used(channels, dimension):
    amounts = rank_amounts(channels, dimension)
    assert sum(n * dimension**rank for rank, n in enumerate(amounts)) == channels
    assert all(amounts)


@given(channels=st.integers(1, 400))
def test_duals_share_the_ranks_as_binomial_coefficients_say(channels):
    found = uniform_representation(channels, GL(2))
    assert found.size == channels
    by_rank: dict[int, list[int]] = {}
    for term in found.terms:
        by_rank.setdefault(len(term.atoms), []).append(term.amount)
    for rank, amount in enumerate(rank_amounts(channels, 2)):
        assert sum(by_rank[rank]) == amount
    vectors = {str(term.atoms): term.amount for term in found.terms if len(term.atoms) == 1}
    if len(vectors) == 2:
        first, second = vectors.values()
        assert abs(first - second) <= 1


def test_what_is_left_over_goes_where_the_largest_fractions_are():
    assert rank_amounts(48, 2) == [14, 7, 3, 1]
    written = str(uniform_representation(48, SL(2)))
    assert written == "14Scalar + V*V + V*V' + V'*V' + 4V + 3V' + V*V*V'"


@pytest.mark.parametrize("group", [O(3), SO13p(), Sp(1)], ids=str)
def test_no_duals_where_the_group_keeps_a_form(group):
    found = uniform_representation(100, group)
    assert all(atom.name == "V" for term in found.terms for atom in term.atoms)


def test_a_line_has_tensors_of_low_rank_only():
    sign = Group("sign", discrete=[[[-1.0]]])
    found = uniform_representation(50, sign)
    assert found.size == 50 and max(len(term.atoms) for term in found.terms) == 3


def test_no_channels_are_refused():
    with pytest.raises(CallerError, match="at least one channel, got 0"):
        uniform_representation(0, SO(3))
