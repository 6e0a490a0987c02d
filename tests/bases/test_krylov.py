"""The iteration against an SVD of all constraints, and what it does where it must give up."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sparse
from basis_cases import (
    D5,
    HEISENBERG,
    O3,
    SO3,
    SU2,
    TRIVIAL,
    WITH_TORUS,
    WITHOUT_TORUS,
    assert_basis,
    case_name,
    problem_of,
    projector_of,
    turn,
)

from isotropy.bases import null_spaces
from isotropy.bases import problem as problems
from isotropy.bases.null_spaces import convergence, krylov_basis, krylov_null_space, sparse_operator
from isotropy.bases.residual import residual
from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group


@pytest.mark.parametrize("case", WITH_TORUS + WITHOUT_TORUS, ids=case_name)
def test_rank_and_span_are_the_oracles(case):
    group, word, rank = case
    problem = problem_of(group, word)
    found = krylov_basis(problem)
    assert_basis(found, group, word, rank)
    assert residual(problem, found) < 1e-10


@pytest.mark.parametrize(
    "case", [(SO3, "VVVV", 3), (O3, "VVVV", 3), (SU2, "VVdd", 2)], ids=case_name
)
def test_without_a_matrix_it_is_the_same(case, monkeypatch):
    monkeypatch.setattr(null_spaces, "WRITTEN_OUT", 0)
    group, word, rank = case
    assert_basis(krylov_basis(problem_of(group, word)), group, word, rank)


def diagonal(values, seed=0):
    """An operator with these singular values, and an orthonormal basis of its null space."""
    generator = np.random.default_rng(seed)
    right, _ = np.linalg.qr(generator.standard_normal((len(values), len(values))))
    operator = sparse_operator(sparse.csr_array(np.diag(values) @ right.T))
    return operator, right[:, np.asarray(values) == 0]


@pytest.mark.parametrize("rank", [0, 1, 15, 16, 17, 48, 70, 119, 120])
def test_ranks_around_the_sizes_of_blocks(rank):
    values = np.concatenate([np.zeros(rank), np.linspace(0.3, 1, 120 - rank)])
    operator, null = diagonal(values)
    found = krylov_null_space(operator, "a test")
    assert found.shape == null.shape
    np.testing.assert_allclose(found @ found.T, null @ null.T, atol=1e-10)


def test_many_equal_eigenvalues_next_to_zero():
    """More than a block of them: Ritz vectors never settle, and need not."""
    values = np.concatenate([np.zeros(5), np.full(60, 0.2), np.full(60, 1.0)])
    operator, null = diagonal(values)
    found = krylov_null_space(operator, "a test")
    np.testing.assert_allclose(found @ found.T, null @ null.T, atol=1e-10)


def test_a_small_gap_takes_longer_but_is_seen():
    values = np.concatenate([np.zeros(3), [1e-2, 2e-2], np.linspace(0.1, 1, 95)])
    operator, null = diagonal(values)
    found = krylov_null_space(operator, "a test")
    np.testing.assert_allclose(found @ found.T, null @ null.T, atol=1e-10)


@pytest.mark.parametrize("small", [1e-7, 1e-9])
def test_a_gap_in_doubt_is_refused(small):
    values = np.concatenate([np.zeros(3), [small], np.linspace(0.1, 1, 60)])
    with pytest.raises(CallerError, match="the rank of a test is in doubt"):
        krylov_null_space(diagonal(values)[0], "a test")


def test_a_tiny_turn_is_refused_and_named():
    tiny = Group("tiny turn", discrete=[turn(10_000_000), np.diag([-1.0, 1.0])])
    with pytest.raises(CallerError, match=r"V\*V\*V of tiny turn is in doubt"):
        krylov_basis(problem_of(tiny, "VVV"))


def test_it_gives_up_in_the_end(monkeypatch):
    monkeypatch.setattr(null_spaces, "MOST_PRODUCTS", 10)
    with pytest.raises(CallerError, match=r"V\*V\*V\*V of SO\(3\) did not converge"):
        krylov_basis(problem_of(SO3, "VVVV"))


def test_it_is_a_function():
    first, second = (krylov_basis(problem_of(D5, "VVVVVV")) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_another_start_finds_the_same_space():
    operator, null = diagonal(np.concatenate([np.zeros(20), np.linspace(0.5, 1, 60)]))
    found = krylov_null_space(operator, "a test", generator=np.random.default_rng(7))
    np.testing.assert_allclose(found @ found.T, null @ null.T, atol=1e-10)


def test_memory_is_checked_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(problems, "LARGEST_BYTES", 1e5)
    with pytest.raises(CallerError, match="GB"):
        krylov_basis(problem_of(HEISENBERG, "VVVVVV"))


def test_the_bound_on_the_largest_eigenvalue_holds_and_is_close():
    for seed in range(5):
        values = np.random.default_rng(seed).uniform(0, 3, 90)
        operator, _ = diagonal(values)
        bound = operator.largest(np.random.default_rng(seed))
        assert values.max() ** 2 <= bound * (1 + 1e-12) < 1.3 * values.max() ** 2


@pytest.mark.parametrize("case", [(SO3, "VVVV", 3), (D5, "VVVV", 3)], ids=case_name)
def test_gradient_descent_converges_as_its_formula(case):
    """‖C X_t‖ = ‖Σ (1 − η Σ²)^t Vᴴ X_0‖, exponentially down to rounding."""
    problem = problem_of(*case[:2])
    norms = convergence(problem, columns=20, iterations=300)
    assert len(norms) == 301
    values = np.linalg.svd(problem.written_out().toarray(), compute_uv=False)
    values = values[values > 1e-9]
    # Late on, the slowest of all decides: ratios of steps approach 1 − σ_min² / σ_max².
    slowest = 1 - values.min() ** 2 / values.max() ** 2
    late = [k for k in range(20, 300) if norms[k] > 1e-9 * norms[0]][-1]
    assert norms[late] / norms[late - 1] == pytest.approx(slowest, rel=0.02)
    assert norms[-1] < 1e-6 * norms[0]
    assert all(after <= before * (1 + 1e-9) + 1e-11 for before, after in pairwise(norms))


def test_nothing_to_converge_to_without_constraints():
    assert convergence(problem_of(TRIVIAL, "VV"), iterations=3) == [0.0] * 4
    assert np.trace(projector_of(TRIVIAL, "VV")) == 9
