"""Generators as a user gives them, and what can be seen in their matrices.

A generator is a dense or sparse matrix (d, d), a permutation (d integers: coordinate i goes to
place p[i], (P x)[p[i]] = x[i]) or a `scipy` linear operator; all become sparse matrices in float64,
or complex128 where there is an imaginary part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from isotropy.checks import CallerError

ROUNDING = 1e-9
"""Relative size below which a number that should be zero is."""


def signed_permutation(matrix: sparse.csr_array) -> tuple[np.ndarray, np.ndarray] | None:
    """(places, signs) if the matrix has one ±1 in every row and column, else None."""
    columns = matrix.tocsc()
    columns.eliminate_zeros()
    one_each = np.array_equal(columns.indptr, np.arange(matrix.shape[0] + 1))
    if not one_each or np.iscomplexobj(columns.data) or not (np.abs(columns.data) == 1).all():
        return None
    places = columns.indices.astype(np.int64)
    if len(np.unique(places)) != len(places):
        return None
    return places, columns.data.astype(np.int64)


def permutation_matrix(places: Sequence[int] | np.ndarray) -> sparse.csr_array:
    """P with (P x)[places[i]] = x[i]."""
    size = len(places)
    return sparse.csr_array((np.ones(size), (np.asarray(places), np.arange(size))), (size, size))


def as_matrix(given: Any, what: str) -> sparse.csr_array:
    """What a user gave, as a sparse matrix of finite numbers; `what` names it in errors."""
    if isinstance(given, LinearOperator):
        given = _written_out(given)
    if sparse.issparse(given):
        matrix = sparse.csr_array(given, copy=True)
    else:
        array = (
            given.detach().cpu().numpy() if isinstance(given, Tensor) else _as_array(given, what)
        )
        if array.ndim == 1:
            return permutation_matrix(_as_places(array, what))
        if array.ndim != 2:
            raise CallerError(
                f"{what}: expected a matrix (d, d) or a permutation of d integers, got shape "
                f"{tuple(array.shape)}"
            )
        matrix = sparse.csr_array(array)
    if matrix.shape[0] != matrix.shape[1]:
        raise CallerError(f"{what}: expected a square matrix, got shape {tuple(matrix.shape)}")
    if not np.isfinite(matrix.data).all():
        raise CallerError(f"{what}: expected finite numbers, got a NaN or an infinity")
    is_complex = np.iscomplexobj(matrix.data) and bool(np.abs(matrix.data.imag).max(initial=0))
    matrix = matrix.astype(np.complex128) if is_complex else matrix.real.astype(np.float64)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _as_array(given: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biufc":
        raise CallerError(
            f"{what}: expected a matrix (d, d) of numbers or a permutation of d integers, got "
            f"{given!r}"
        )
    return array


def _written_out(operator: LinearOperator, at_once: int = 256) -> sparse.csr_array:
    """Some columns at a time, so that a sparse operator is never written out densely."""
    rows, columns = operator.shape
    parts = [
        operator @ np.eye(columns, min(at_once, columns - start), -start)
        for start in range(0, columns, at_once)
    ]
    return sparse.hstack([sparse.csc_array(part) for part in parts]) if parts else np.eye(rows)


def _as_places(array: np.ndarray, what: str) -> np.ndarray:
    whole = array.astype(np.int64) if np.isfinite(array.astype(float)).all() else array
    if not np.array_equal(whole, array) or not np.array_equal(
        np.sort(whole), np.arange(len(whole))
    ):
        raise CallerError(
            f"{what}: expected a permutation of 0 … {len(array) - 1}, got {array.tolist()}"
        )
    return whole


def is_singular(matrix: sparse.csr_array) -> bool:
    """By the singular values of each block, so that h ⊗ 1 costs no more than h."""
    _, labels = connected_components(np.abs(matrix), directed=False)
    order = np.argsort(labels, kind="stable")
    values = [
        np.linalg.svd(matrix[block][:, block].toarray(), compute_uv=False)
        for block in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    ]
    largest = max(float(each[0]) for each in values)
    return not min(float(each[-1]) for each in values) > ROUNDING * largest


def _real_rows(rows: sparse.csr_array) -> sparse.csr_array:
    """Rows of complex numbers as real parts followed by imaginary parts."""
    if not np.iscomplexobj(rows.data):
        imaginary = sparse.csr_array(rows.shape)
        return sparse.csr_array(sparse.hstack([rows, imaginary]))
    return sparse.csr_array(sparse.hstack([rows.real, rows.imag]))


def realified(matrix: sparse.csr_array) -> sparse.csr_array:
    """X + iY as [[X, −Y], [Y, X]]."""
    real, imaginary = matrix.real, sparse.csr_array(matrix.imag)
    return sparse.csr_array(sparse.block_array([[real, -imaginary], [imaginary, real]]))


class Span:
    """All real combinations of some matrices (d, d): `dimension`, and `entries` that they use."""

    def __init__(self, matrices: Sequence[sparse.csr_array]) -> None:
        self.dimension = self.entries = 0
        if not matrices:
            return
        rows = _real_rows(sparse.vstack([each.reshape(1, -1) for each in matrices]))
        self._used = np.unique(rows.indices)
        self.entries = len(self._used)
        dense = rows[:, self._used].toarray()
        norms = np.linalg.norm(dense, axis=1, keepdims=True)
        _, values, basis = np.linalg.svd(dense / np.where(norms > 0, norms, 1), False)
        self.dimension = int((values > ROUNDING).sum())
        self._basis = basis[: self.dimension]

    def distances(self, rows: sparse.csr_array) -> np.ndarray:
        """How far from the span each matrix is, given as a row (d²)."""
        real = _real_rows(rows)
        if not self.dimension:
            return np.sqrt(real.multiply(real).sum(1))
        inside = real[:, self._used].toarray()
        inside = inside - (inside @ self._basis.T) @ self._basis
        outside = real.copy()
        outside.data[np.isin(outside.indices, self._used)] = 0
        return np.sqrt((inside**2).sum(1) + outside.multiply(outside).sum(1))

    def contains(self, matrix: sparse.csr_array, scale: float | None = None) -> bool:
        """Whether `matrix` is in the span, but for 1e-7 of `scale` (its own norm)."""
        against = float(np.linalg.norm(matrix.data)) if scale is None else scale
        return bool(self.distances(matrix.reshape(1, -1))[0] <= 1e-7 * against)
