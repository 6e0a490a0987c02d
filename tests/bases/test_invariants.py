"""Invariant tensors of the classical groups, against null spaces, group elements and counts."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from oracles.invariant_oracle import moved, special_linear, special_orthogonal

from isotropy.bases import invariants
from isotropy.bases.invariants import invariant_basis, invariant_rank, levi_civita
from isotropy.bases.null_spaces import dense_null_space
from isotropy.bases.problem import Problem
from isotropy.bases.residual import residual
from isotropy.bases.solving import solve
from isotropy.checks import CallerError
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Classical, Group
from isotropy.symmetry.groups.representations import BASE, P, Representation, T, V, custom

NAMES = (
    "O(1) O(2) O(3) SO(2) SO(3) SO(4) O(1,3) SO(1,3) SO+(1,3) O(1,1) SO+(1,1) Sp(1) Sp(2) "
    "SU(2) SU(3) SL(2) SL(3) GL(1) GL(2) GL(3) U(1) U(2)"
).split()
MOST_ENTRIES = 100


named = cache(group_named)


def problem_of(group: Group, p: int, q: int = 0) -> Problem:
    return Problem(group, atoms(T(p, q)))


def atoms(representation: Representation):
    (term,) = representation.terms
    return term.atoms


def span(columns: np.ndarray) -> np.ndarray:
    """The projector onto the columns."""
    vectors, _ = np.linalg.qr(columns)
    return vectors @ vectors.conj().T


def check_against_null_space(problem: Problem) -> int:
    found, wanted = invariant_basis(problem), dense_null_space(problem)
    assert found.shape == wanted.shape == (problem.size, invariant_rank(problem))
    assert found.dtype == problem.dtype
    assert residual(problem, found) < 1e-12
    np.testing.assert_allclose(span(found.toarray()), span(wanted), rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(found.toarray(), axis=0), 1, rtol=1e-12)
    return found.shape[1]


@pytest.mark.parametrize("name", NAMES)
def test_bases_span_the_null_space(name):
    group = named(name)
    ranks = [
        check_against_null_space(problem_of(group, p, q))
        for p, q in product(range(6), repeat=2)
        if group.dimension ** (p + q) <= MOST_ENTRIES and p + q <= 5
    ]
    assert max(ranks) > 0


WORDS = [("O(1,3)", "lul"), ("SO+(1,3)", "lull"), ("SO+(1,3)", "ulul"), ("SO+(1,1)", "luullu"),
         ("Sp(1)", "lulu"), ("Sp(2)", "lulu"), ("SL(2)", "lulluu"), ("SL(2)", "ullll"),
         ("SL(3)", "lll"), ("SU(2)", "luuu"), ("SU(3)", "uluuu"), ("GL(2)", "luul")]  # fmt: skip


@pytest.mark.parametrize(("name", "word"), WORDS)
def test_slots_in_any_order(name, word):
    """V and V* mixed: u for an upper index, l for a lower one."""
    letters = {"u": BASE, "l": BASE.dual}
    problem = Problem(named(name), tuple(letters[letter] for letter in word))
    assert check_against_null_space(problem) == invariant_rank(problem)


@pytest.mark.parametrize(
    ("name", "p", "q"),
    [("O(3)", 6, 0), ("SO(5)", 5, 0), ("SO(4)", 6, 0), ("SO+(1,3)", 3, 3), ("O(1,3)", 4, 2),
     ("Sp(2)", 3, 3), ("SU(3)", 4, 1), ("SU(2)", 5, 3), ("SL(3)", 1, 4), ("GL(3)", 3, 3),
     ("U(2)", 4, 4), ("SL(2)", 8, 0)],
)  # fmt: skip
def test_group_elements_leave_them_in_place(name, p, q):
    group = named(name)
    problem = problem_of(group, p, q)
    tensors = invariant_basis(problem).toarray()
    tensors = tensors.reshape(*problem.shape, -1)
    assert tensors.shape[-1] > 0
    elements = group.sample(3, torch.Generator().manual_seed(0), largest=1.0).numpy()
    for element in elements:
        assert np.abs(element - np.eye(group.dimension)).max() > 0.1
        after = moved(element, [False] * p + [True] * q, tensors)
        np.testing.assert_allclose(after, tensors, rtol=0, atol=1e-10)
        # Another order of slots is another tensor: the check can fail.
        assert np.abs(moved(2 * element, [False] * (p + q), tensors) - tensors).max() > 0.1


def conjugated(name: str, seed: int) -> Group:
    """The group in another basis of V, so that its form is full: B becomes Sᵀ B S."""
    group = named(name)
    side = group.dimension
    basis = np.eye(side) + np.triu(np.random.default_rng(seed).integers(-1, 2, (side, side)), 1)
    back = np.linalg.inv(basis)
    given = group.classical
    form = None if given.form is None else basis.T @ given.form @ basis
    return Group(
        f"{name} conjugated",
        algebra=[back @ each.toarray() @ basis for each in group.algebra],
        discrete=[back @ each.toarray() @ basis for each in group.discrete],
        classical=Classical(given.kind, form),
    )


@pytest.mark.parametrize(
    ("name", "word"),
    [("O(3)", "uulu"), ("SO(3)", "lul"), ("SO(3)", "lulul"), ("SO+(1,3)", "luul"),
     ("Sp(2)", "lulu"), ("SO(2)", "uulllu"), ("SL(3)", "llul"), ("SO(2)", "ll")],
)  # fmt: skip
def test_any_form(name, word):
    group = conjugated(name, seed=3)
    letters = {"u": BASE, "l": BASE.dual}
    assert group.classical.form is None or np.count_nonzero(group.classical.form) > group.dimension
    check_against_null_space(Problem(group, tuple(letters[letter] for letter in word)))


def test_a_form_that_is_not_whole():
    """Vectors are no longer integers, and are found all the same."""
    stretch = np.diag([1.0, 0.3])
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    algebra = [np.linalg.inv(stretch) @ turn @ stretch]
    group = Group("ellipse", algebra=algebra, classical=Classical("SO", stretch @ stretch))
    for p, q in ((2, 0), (1, 1), (0, 2), (4, 0), (2, 2)):
        check_against_null_space(problem_of(group, p, q))


def test_one_dimension():
    """SO(1) has but one element, and ε one entry."""
    group = Group("SO(1)", dimension=1, classical=Classical("SO", np.eye(1)))
    for slots in range(5):
        assert check_against_null_space(problem_of(group, slots)) == 1


# -- known tensors -----------------------------------------------------------------------------


def test_levi_civita():
    indices, signs = levi_civita(4)
    assert len(indices) == 24
    for permutation, sign in zip(indices, signs, strict=True):
        assert np.linalg.det(np.eye(4)[permutation]) == pytest.approx(sign)
    assert levi_civita(1)[1].tolist() == [1]


def test_cross_product_and_metric():
    cross = invariant_basis(problem_of(named("SO(3)"), 3)).toarray().reshape(3, 3, 3)
    first, second = np.random.default_rng(0).normal(size=(2, 3))
    found = np.einsum("ijk,j,k->i", cross, first, second)
    wanted = np.cross(first, second) / 6**0.5
    np.testing.assert_allclose(found * np.sign(cross[0, 1, 2]), wanted, atol=1e-14)
    metric = invariant_basis(problem_of(named("O(1,3)"), 2)).toarray().reshape(4, 4)
    np.testing.assert_allclose(metric * 2, np.diag([1, -1, -1, -1]) * np.sign(metric[0, 0]))
    delta = invariant_basis(problem_of(named("O(1,3)"), 1, 1)).toarray().reshape(4, 4)
    np.testing.assert_allclose(delta * 2, np.eye(4))


@pytest.mark.parametrize("name", NAMES)
def test_a_scalar(name):
    problem = Problem(named(name), ())
    assert invariant_rank(problem) == 1
    assert invariant_basis(problem).toarray().tolist() == [[1.0]]


def test_no_invariants():
    found = invariant_basis(problem_of(named("SO(6)"), 5))
    assert found.shape == (6**5, 0)
    assert invariant_rank(problem_of(named("GL(2)"), 3, 2)) == 0
    assert invariant_rank(problem_of(named("U(2)"), 2, 0)) == 0
    assert invariant_rank(problem_of(named("SU(2)"), 2, 0)) == 1


# -- large ones --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "p", "rank", "entries"),
    [
        ("O(6)", 8, 105, 105 * 6**4),
        ("SO(6)", 8, 126, 105 * 6**4 + 21 * 720 * 6),
        ("SO(7)", 7, 1, 5040),
        ("Sp(3)", 8, 104, 104 * 6**4),
        ("Sp(6)", 6, 15, 15 * 12**3),
        ("SO(2)", 12, 924, 462 * 64 + 462 * 2 * 32),
    ],
)
def test_large_bases_are_sparse(name, p, rank, entries):
    found = invariant_basis(problem_of(named(name), p))
    assert isinstance(found, sparse.csc_array)
    assert found.shape[1] == rank
    assert found.nnz == entries
    used = np.unique(found.indices, return_inverse=True)[1].ravel()
    small = sparse.csc_array((found.data, used, found.indptr), (used.max() + 1, rank))
    values = np.linalg.eigvalsh((small.T @ small).toarray())
    assert values[0] > 1e-6  # independent
    assert values[-1] < rank


def test_ranks_beyond_what_can_be_listed():
    """A tensor of 10¹⁵ entries, of which none is formed."""
    assert invariant_rank(problem_of(named("SO(5)"), 21)) == special_orthogonal(5, 21)
    assert invariant_rank(problem_of(named("SU(3)"), 14, 2)) == special_linear(3, 14, 2)


def test_too_large_is_said_before_it_is_tried():
    with pytest.raises(CallerError, match=r"34,459,425 invariants .* GB, more than"):
        invariant_basis(problem_of(named("O(9)"), 18))
    with pytest.raises(CallerError, match="cannot be indexed"):
        invariant_basis(problem_of(named("Sp(6)"), 25))


# -- where it does not apply -------------------------------------------------------------------


def test_not_for_other_groups_or_representations():
    for representation in (P, V * P, custom("W", lambda g: g), custom("W", lambda g: g).dual):
        problem = Problem(named("O(3)"), atoms(representation))
        assert invariant_rank(problem) is None
        assert invariant_basis(problem) is None
    for name in ("Z(4)", "Scaling(3)", "D(5)"):
        assert invariant_rank(problem_of(named(name), 2)) is None
        assert invariant_basis(problem_of(named(name), 2)) is None


def test_dependent_diagrams_are_noticed(monkeypatch):
    """Every matching of eight slots, though O(3) has only 91 independent ones of the 105."""
    right = invariants.independent_pairings

    def wrong(slots, longest, **options):
        found = right(slots, longest + 1, **options)
        return invariants.Diagrams(found.pairs[:91], found.symbols[:91])

    monkeypatch.setattr(invariants, "independent_pairings", wrong)
    found = solve(named("O(3)"), atoms(T(8)), method="invariants")
    with pytest.raises(CallerError, match="91 columns .* are not independent"):
        _ = found.orthonormal


def test_missing_diagrams_are_noticed(monkeypatch):
    right = invariants.independent_pairings

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        return invariants.Diagrams(found.pairs[1:], found.symbols[1:])

    monkeypatch.setattr(invariants, "independent_pairings", wrong)
    with pytest.raises(AssertionError, match="14 diagrams, 15 invariants"):
        invariant_basis(problem_of(named("O(3)"), 6))
