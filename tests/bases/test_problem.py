"""What a solver is asked and what it hands over: constraints against matrices built by Kronecker
products, orthonormal bases, sparse where they can be, and sizes said first."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from basis_cases import SMALL, case_name, constraint_factors, problem_of, some_vectors
from oracles.basis_oracle import constraint_matrix, kronecker, kronecker_sum

from isotropy.bases import problem as problems
from isotropy.bases.problem import Basis, Columns, Problem, check_memory
from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import BASE, custom

by_case = pytest.mark.parametrize("case", SMALL, ids=case_name)


@by_case
def test_constraints_are_the_kronecker_products(case):
    group, word, _ = case
    problem = problem_of(group, word)
    vectors = some_vectors(problem)
    algebra, discrete = constraint_factors(group, word)
    wanted = [kronecker_sum(factors) @ vectors for factors in algebra]
    wanted += [kronecker(factors) @ vectors - vectors for factors in discrete]
    for found, expected in zip(problem.constraints(vectors), wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@by_case
def test_written_out_and_normal_are_of_one_matrix(case):
    group, word, _ = case
    problem = problem_of(group, word)
    whole = constraint_matrix(*constraint_factors(group, word), problem.size)
    scaled = whole / np.repeat(problem.sizes, problem.size)[:, None]
    np.testing.assert_allclose(problem.written_out().toarray(), scaled, atol=1e-12)
    vectors = some_vectors(problem)
    np.testing.assert_allclose(
        problem.normal(vectors), scaled.conj().T @ (scaled @ vectors), atol=1e-11
    )


@by_case
def test_sizes_are_spectral_norms(case):
    group, word, _ = case
    algebra, discrete = constraint_factors(group, word)
    wanted = [max((np.linalg.norm(f, 2) for f in each), default=1) for each in algebra]
    wanted += [max(np.linalg.norm(kronecker(each), 2), 1) for each in discrete]
    np.testing.assert_allclose(problem_of(group, word).sizes, wanted, rtol=1e-9)


def test_a_complex_representation_of_a_real_group_is_complex():
    group = Group("SO(2)", algebra=[[[0, -1], [1, 0]]])
    (atom,) = custom("charge", lambda g: g[..., :1, :1] + 1j * g[..., 1:, :1]).terms[0].atoms
    assert Problem(group, (atom,)).is_complex
    assert not Problem(group, (BASE,)).is_complex
    assert torch.allclose(
        torch.from_numpy(Problem(group, (atom,)).algebra[0][0].toarray()),
        torch.tensor([[1j]], dtype=torch.complex128),
    )


# -- the basis ---------------------------------------------------------------------------------


def basis_of(columns: Columns) -> Basis:
    size, rank = columns.shape
    return Basis(rank, size, (size,), "test", 0.0, 0.0, columns)


def as_dense(columns: Columns) -> np.ndarray:
    return columns.toarray() if sparse.issparse(columns) else columns


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


DISJOINT = sparse.csc_array(
    np.array([[1.0, 0, 0], [0, 2, 0], [1, 0, 0], [0, -2, 0], [0, 0, 0], [0, 0, 3]])
)
OVERLAPPING = sparse.csc_array(np.array([[1.0, 0], [1, 1], [0, 1], [0, 2]]))
NEARLY_DEPENDENT = random(9, 3) @ np.array([[1, 1, 1], [0, 1e-4, 1e-4], [0, 0, 1e-4]])

COLUMNS: dict[str, Columns] = {
    "disjoint": DISJOINT,
    "disjoint, complex": DISJOINT * (1 + 2j),
    "overlapping": OVERLAPPING,
    "overlapping, complex": OVERLAPPING * 1j,
    "dense": random(7, 3),
    "dense, complex": random(7, 3) + 1j * random(7, 3, seed=1),
    "nearly dependent": NEARLY_DEPENDENT,
    "orthonormal": np.linalg.qr(random(7, 3))[0],
    "none": np.zeros((5, 0)),
    "none, sparse": sparse.csc_array((5, 0)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_orthonormal_spans_the_columns(name: str) -> None:
    columns = as_dense(COLUMNS[name])
    found = as_dense(basis_of(COLUMNS[name]).orthonormal)
    assert found.shape == columns.shape and found.dtype == columns.dtype
    np.testing.assert_allclose(found.conj().T @ found, np.eye(columns.shape[1]), atol=1e-12)
    np.testing.assert_allclose(found @ (found.conj().T @ columns), columns, atol=1e-10)


def test_disjoint_columns_stay_sparse() -> None:
    found = basis_of(DISJOINT).orthonormal
    assert sparse.issparse(found) and found.nnz == 5
    np.testing.assert_allclose(abs(found.data), [0.5**0.5] * 4 + [1], atol=1e-15)
    np.testing.assert_array_equal(DISJOINT.data, [1, 1, 2, -2, 3])  # the caller's are untouched


def test_entries_that_are_zero_do_not_count_as_shared() -> None:
    written = sparse.csc_array(
        (np.array([1.0, 0.0, 0.0, 2.0]), np.array([0, 1, 0, 1]), np.array([0, 2, 4]))
    )
    found = basis_of(written).orthonormal
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), np.eye(2))
    assert written.nnz == 4


def test_columns_that_share_entries_are_not_only_scaled() -> None:
    found = basis_of(OVERLAPPING).orthonormal
    assert isinstance(found, np.ndarray)
    scaled = OVERLAPPING.toarray() / np.linalg.norm(OVERLAPPING.toarray(), axis=0)
    assert np.abs(found - scaled).max() > 0.1


def test_what_is_orthonormal_comes_back_as_it_is() -> None:
    dense = COLUMNS["orthonormal"]
    assert basis_of(dense).orthonormal is dense
    halves = sparse.csc_array(np.array([[0.5**0.5, 0], [0.5**0.5, 0], [0, 1]]))
    np.testing.assert_array_equal(basis_of(halves).orthonormal.data, halves.data)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_dependent_columns_are_refused(as_sparse: bool) -> None:
    columns: Columns = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    if as_sparse:
        columns = sparse.csc_array(columns)
    with pytest.raises(CallerError, match="2 columns found by 'test' are not independent"):
        _ = basis_of(columns).orthonormal


def test_a_column_of_zeros_is_refused() -> None:
    with pytest.raises(CallerError, match="not independent"):
        _ = basis_of(sparse.csc_array(np.array([[1.0, 0.0], [0.0, 0.0]]))).orthonormal


def test_a_rank_alone_has_no_vectors() -> None:
    basis = Basis(4, 100, (10, 10), "test", None, 0.0)
    for ask in ("dense", "orthonormal"):
        with pytest.raises(CallerError, match="rank 4 was asked for its rank alone"):
            getattr(basis, ask)


def test_writing_out_says_its_size_first(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = sparse.csc_array(sparse.eye_array(200_000, format="csc"))
    with pytest.raises(CallerError, match=r"200,000 vectors of 200,000 entries .* 320.0 GB"):
        _ = basis_of(wide).dense
    assert sparse.issparse(basis_of(wide).orthonormal)  # which needs no more than there is
    monkeypatch.setattr(problems, "LARGEST_BYTES", 63.0)
    with pytest.raises(CallerError, match="2 vectors of 4 entries written out takes"):
        _ = basis_of(OVERLAPPING).orthonormal
    monkeypatch.setattr(problems, "LARGEST_BYTES", 64.0)
    np.testing.assert_array_equal(basis_of(OVERLAPPING).dense, OVERLAPPING.toarray())


def test_check_memory() -> None:
    check_memory(problems.LARGEST_BYTES, "this", "split it")
    with pytest.raises(CallerError, match=r"this takes 8.0 GB, more than the 4.0 GB .*; split it"):
        check_memory(8e9, "this", "split it")
