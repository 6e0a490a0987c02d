"""Every number of Tables A.1 to A.8, and every blank filled."""

from __future__ import annotations

import re
from functools import cache

import pytest
from oracles import invariant_oracle as oracle

from isotropy.bases.invariants import invariant_rank
from isotropy.bases.orbits import orbit_rank
from isotropy.bases.problem import Problem
from isotropy.experiments.thesis.bases import PUBLISHED_RANKS
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import T

named = cache(group_named)


def slots(representation: str) -> tuple[int, int]:
    """p and q of T(p) or T(p,q)."""
    matched = re.fullmatch(r"T\((\d+)(?:,(\d+))?\)", representation)
    assert matched, representation
    return int(matched[1]), int(matched[2] or 0)


def closed_form(group: str, p: int, q: int) -> int:
    """What theory says."""
    name, numbers = group.split("(")[0], [int(n) for n in re.findall(r"\d+", group)]
    n, k = sum(numbers), p + q  # O(1,3) is like O(4)
    return {
        "Z": lambda: n ** (k - 1),
        "S": lambda: oracle.stirling_sum(n, k),
        "PublishedRubiksCube": lambda: oracle.two_symmetric_groups(k),
        "RubiksCube": lambda: oracle.rubiks_cube(k),
        "SO": lambda: oracle.special_orthogonal(n, k),
        "SO+": lambda: oracle.special_orthogonal(n, k),
        "O": lambda: oracle.orthogonal(n, k),
        "Sp": lambda: oracle.symplectic(n, k),
        "SU": lambda: oracle.special_linear(n, p, q),
    }[name]()


ENTRIES = [
    (table, group, representation, rank)
    for table, groups in PUBLISHED_RANKS.items()
    for group, ranks in groups.items()
    for representation, rank in ranks.items()
]
GROUPS = [(table, group) for table, groups in PUBLISHED_RANKS.items() for group in groups]


@pytest.mark.parametrize(("table", "group"), GROUPS, ids=[group for _, group in GROUPS])
def test_ranks(table, group):
    """Computed, published and known to theory are the same, blanks included."""
    found = named(group)
    for representation, published in PUBLISHED_RANKS[table][group].items():
        p, q = slots(representation)
        problem = Problem(found, T(p, q).terms[0].atoms)
        theory = closed_form(group, p, q)
        assert published is None or published == theory, representation
        if found.classical is not None:
            assert invariant_rank(problem) == theory, representation
        else:
            assert orbit_rank(problem) == theory, representation


@pytest.mark.parametrize(("k", "rank"), [(1, 2), (2, 9), (3, 51), (4, 350)])
def test_rubiks_cube_itself(k, rank):
    """Not in the thesis: Table A.3 is of a larger group."""
    problem = Problem(named("RubiksCube"), T(k).terms[0].atoms)
    assert orbit_rank(problem) == oracle.rubiks_cube(k) == rank


def test_the_tables_are_whole():
    counted = {
        table: (
            sum(1 for entry in ENTRIES if entry[0] == table and entry[3] is not None),
            sum(1 for entry in ENTRIES if entry[0] == table and entry[3] is None),
        )
        for table in PUBLISHED_RANKS
    }
    assert counted == {
        "A.1": (41, 8),
        "A.2": (45, 4),
        "A.3": (3, 5),
        "A.4": (37, 5),
        "A.5": (37, 5),
        "A.6": (21, 0),
        "A.7": (33, 9),
        "A.8": (21, 0),
    }
