"""The choice among methods, the check of every result, and what is kept in memory."""

from __future__ import annotations

import numpy as np
import pytest

from isotropy.bases import solving
from isotropy.bases.problem import Problem
from isotropy.bases.solving import METHODS, Method, forget, rank, solve
from isotropy.checks import CallerError
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.language import parse_representation
from isotropy.symmetry.groups.representations import Product

CHOICES = {
    ("S(4)", "T(4)"): ("orbits", 15),
    ("D(4)", "T(4)"): ("signed", 4),
    ("SO(3) x S(3)", "T(2)"): ("product", 2),
    ("SO(3)", "T(5)"): ("invariants", 6),
    ("SU(3)", "T(3,3)"): ("invariants", 6),
    ("O2eR3", "T(4)"): ("blocks", 10),
    ("SO(3)", "irrep(2)*irrep(2)*irrep(2)"): ("weights", 1),
    ("D(5)", "T(4)"): ("dense", 3),
}


def atoms_of(text: str) -> Product:
    (term,) = parse_representation(text).terms
    return term.atoms


@pytest.fixture(autouse=True)
def nothing_known():
    forget()
    yield
    forget()


@pytest.mark.parametrize(("group", "words"), CHOICES)
def test_structure_decides(group: str, words: str) -> None:
    method, expected = CHOICES[group, words]
    found = solve(group_named(group), atoms_of(words))
    assert (found.method, found.rank) == (method, expected)
    assert found.residual is not None and found.residual < 1e-12
    assert rank(group_named(group), atoms_of(words)).rank == expected


@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_applies_finds_the_same_rank(method: str) -> None:
    """SO(3) and D(4) between them are taken by all methods but orbits, products and blocks."""
    for group, words, expected in (("SO(3)", "T(4)", 3), ("D(4)", "T(4)", 4), ("S(3)", "T(3)", 5)):
        problem = Problem(group_named(group), atoms_of(words))
        if METHODS[method].basis(problem) is None:
            with pytest.raises(CallerError, match="no method finds"):
                solve(problem.group, problem.atoms, method=method)
        else:
            assert solve(problem.group, problem.atoms, method=method).rank == expected


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(CallerError, match=r"unknown method 'orbit'.*did you mean 'orbits'"):
        solve(group_named("S(3)"), atoms_of("T(2)"), method="orbit")


def test_a_wrong_basis_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Method(lambda problem: np.ones((problem.size, 1)))
    monkeypatch.setattr(solving, "METHODS", {"wrong": wrong})
    with pytest.raises(CallerError, match=r"by 'wrong' violates its constraints by"):
        solve(group_named("SO(3)"), atoms_of("T(2)"))
    assert not solving._known


def test_a_second_time_costs_nothing() -> None:
    group, atoms = group_named("SO(3)"), atoms_of("T(4)")
    first, second = solve(group, atoms), solve(group_named("SO(3)"), atoms)
    assert second.columns is first.columns and second.seconds == 0
