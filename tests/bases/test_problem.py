"""Constraints and residuals of a problem against matrices built by Kronecker products."""

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from basis_cases import (
    ALL_LORENTZ,
    D5,
    E2,
    O3,
    SO3,
    SU2,
    TRIVIAL,
    case_name,
    problem_of,
    projector_of,
    rotations,
)
from oracles.basis_oracle import constraint_matrix, kronecker, kronecker_sum, word_factors

from isotropy.bases.problem import Problem
from isotropy.symmetry.groups import Group
from isotropy.symmetry.representations import BASE, custom

SIGNED = Group("signed", discrete=[[[0, -1, 0], [1, 0, 0], [0, 0, 1]], [0, 2, 1]])
CASES = [
    (SO3, "VVV", 1),
    (O3, "VV", 1),
    (ALL_LORENTZ, "Vd", 1),
    (D5, "VVV", 0),
    (SU2, "VVd", 0),
    (E2, "Vdd", 2),
    (SIGNED, "VVV", 0),
    (SIGNED, "VV", 1),
    (SIGNED, "", 1),
    (TRIVIAL, "V", 3),
]
by_case = pytest.mark.parametrize("case", CASES, ids=case_name)


def matrices(group, word):
    algebra = word_factors([a.toarray() for a in group.algebra], word, infinitesimal=True)
    discrete = word_factors([h.toarray() for h in group.discrete], word, infinitesimal=False)
    return algebra, discrete


def some_vectors(problem, count=5):
    generator = np.random.default_rng(0)
    found = generator.standard_normal((problem.size, count))
    if problem.is_complex:
        found = found + 1j * generator.standard_normal(found.shape)
    return found


@by_case
def test_constraints_are_the_kronecker_products(case):
    group, word, _ = case
    problem = problem_of(group, word)
    vectors = some_vectors(problem)
    algebra, discrete = matrices(group, word)
    wanted = [kronecker_sum(factors) @ vectors for factors in algebra]
    wanted += [kronecker(factors) @ vectors - vectors for factors in discrete]
    for found, expected in zip(problem.constraints(vectors), wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@by_case
def test_written_out_and_normal_are_of_one_matrix(case):
    group, word, _ = case
    problem = problem_of(group, word)
    whole = constraint_matrix(*matrices(group, word), problem.size)
    scaled = whole / np.repeat(problem.sizes, problem.size)[:, None]
    np.testing.assert_allclose(problem.written_out().toarray(), scaled, atol=1e-12)
    vectors = some_vectors(problem)
    np.testing.assert_allclose(
        problem.normal(vectors), scaled.conj().T @ (scaled @ vectors), atol=1e-11
    )


@by_case
def test_sizes_are_spectral_norms(case):
    group, word, _ = case
    algebra, discrete = matrices(group, word)
    wanted = [max((np.linalg.norm(f, 2) for f in each), default=1) for each in algebra]
    wanted += [max(np.linalg.norm(kronecker(each), 2), 1) for each in discrete]
    np.testing.assert_allclose(problem_of(group, word).sizes, wanted, rtol=1e-9)


@by_case
@pytest.mark.parametrize("kind", ["dense", "sparse", "disjoint"])
def test_the_residual_is_the_largest_relative_violation(case, kind):
    group, word, _ = case
    problem = problem_of(group, word)
    columns = some_vectors(problem, min(problem.size, 20))
    if kind == "sparse":
        columns = sparse.csc_array(
            np.where(np.abs(columns) > 0.7, columns, 0) + np.eye(*columns.shape)
        )
    if kind == "disjoint":
        label = np.arange(problem.size) % min(problem.size, 3)
        columns = sparse.csc_array((np.abs(columns[:, 0]) + 0.1, (np.arange(problem.size), label)))
    dense = columns.toarray() if sparse.issparse(columns) else columns
    norms, worst = np.linalg.norm(dense, axis=0), 0.0
    whole = constraint_matrix(*matrices(group, word), problem.size)
    for index, size in enumerate(problem.sizes):
        left = whole[index * problem.size : (index + 1) * problem.size] @ dense
        worst = max(worst, (np.linalg.norm(left, axis=0) / norms).max() / size)
    assert problem.residual(columns) == pytest.approx(worst, abs=1e-13)


@pytest.mark.parametrize("case", [case for case in CASES if case[2]], ids=case_name)
def test_invariants_have_no_residual(case):
    group, word, rank = case
    projector = projector_of(group, word)
    assert round(np.trace(projector).real) == rank
    _, vectors = np.linalg.eigh(projector)
    problem = problem_of(group, word)
    assert problem.residual(vectors[:, -rank:]) < 1e-12
    assert problem.residual(sparse.csc_array(vectors[:, -rank:])) < 1e-12


def test_orbits_with_one_wrong_label_are_noticed():
    """The quick way for disjoint columns must not take a wrong orbit for a right one."""
    group = Group("Z(4)", discrete=[[1, 2, 3, 0]])
    problem = problem_of(group, "VV")
    label = (np.arange(4)[:, None] - np.arange(4)).ravel() % 4
    good = sparse.csc_array((np.full(16, 0.5), (np.arange(16), label)))
    assert problem.residual(good) == 0
    label[3] = (label[3] + 1) % 4
    assert problem.residual(sparse.csc_array((np.full(16, 0.5), (np.arange(16), label)))) > 0.1
    values = np.full(16, 0.5)
    values[5] = -0.5
    label[3] = (label[3] - 1) % 4
    assert problem.residual(sparse.csc_array((values, (np.arange(16), label)))) > 0.1


def test_many_columns_go_in_parts(monkeypatch):
    problem = problem_of(SO3, "VVV")
    columns = sparse.csc_array(some_vectors(problem, 11))
    whole = problem.residual(columns)
    monkeypatch.setattr("isotropy.bases.problem.AT_ONCE", 40)
    assert problem.residual(columns) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("bad", [0.0, np.nan])
@pytest.mark.parametrize("make", [np.asarray, sparse.csc_array])
def test_a_column_of_zeros_or_nan_has_no_good_residual(make, bad):
    columns = np.ones((9, 2))
    columns[:, 1] = bad
    assert not problem_of(SO3, "VV").residual(make(columns)) <= 1e8


def test_a_violation_is_seen_in_any_units():
    tiny = Group("tiny units", algebra=[1e-12 * each for each in rotations(3)])
    assert problem_of(tiny, "V").residual(np.eye(3)[:, :1]) == pytest.approx(1)


def test_a_complex_representation_of_a_real_group_is_complex():
    group = Group("SO(2)", algebra=[[[0, -1], [1, 0]]])
    (atom,) = custom("charge", lambda g: g[..., :1, :1] + 1j * g[..., 1:, :1]).terms[0].atoms
    assert Problem(group, (atom,)).is_complex
    assert not Problem(group, (BASE,)).is_complex
    assert torch.allclose(
        torch.from_numpy(Problem(group, (atom,)).algebra[0][0].toarray()),
        torch.tensor([[1j]], dtype=torch.complex128),
    )
