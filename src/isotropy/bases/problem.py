"""One problem of a solver: the vectors of one tensor product that a group leaves in place.

    dρ(A_i) v = 0   for all i        ρ(h_k) v = v   for all k             (Finzi 2023, 2.4, 2.5)

with ρ = ρ_1 ⊗ … ⊗ ρ_m of the product's atoms, slowest index first, v row-major. A constraint is
applied one factor at a time, so that ρ itself is never formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sparse

from isotropy.symmetry.groups import Group
from isotropy.symmetry.representations import Product

Matrix: TypeAlias = Any
"""A sparse matrix, `scipy.sparse.csr_array`."""
Columns: TypeAlias = Any
"""Vectors (size, rank), one a column: `numpy.ndarray` or `scipy.sparse.csc_array`."""


@dataclass(frozen=True)
class Problem:
    """The invariant vectors of one product of atoms under a group."""

    group: Group
    atoms: Product

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the atoms: v is a tensor of this shape."""
        return tuple(atom.size(self.group) for atom in self.atoms)

    @property
    def size(self) -> int:
        """Entries of v."""
        return prod(self.shape)

    @property
    def is_complex(self) -> bool:
        return self.group.is_complex

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.complex128 if self.is_complex else np.float64)

    @cached_property
    def algebra(self) -> list[tuple[Matrix, ...]]:
        """For every A_i, dρ_1(A_i), …, dρ_m(A_i)."""
        by_atom = {atom: atom.algebra(self.group) for atom in set(self.atoms)}
        return [
            tuple(by_atom[atom][i] for atom in self.atoms) for i in range(len(self.group.algebra))
        ]

    @cached_property
    def discrete(self) -> list[tuple[Matrix, ...]]:
        """For every h_k, ρ_1(h_k), …, ρ_m(h_k)."""
        by_atom = {atom: atom.discrete(self.group) for atom in set(self.atoms)}
        return [
            tuple(by_atom[atom][k] for atom in self.atoms) for k in range(len(self.group.discrete))
        ]

    def constraints(self, vectors: np.ndarray) -> list[np.ndarray]:
        """dρ(A_i) v and ρ(h_k) v − v of every generator, for vectors (size, count)."""
        return [
            *(self.infinitesimal(factors, vectors) for factors in self.algebra),
            *(self.moved(factors, vectors) - vectors for factors in self.discrete),
        ]

    def infinitesimal(self, factors: Sequence[Matrix], vectors: np.ndarray) -> np.ndarray:
        """(Σ_j 1 ⊗ … dρ_j … ⊗ 1) v."""
        found = np.zeros(vectors.shape, np.result_type(vectors, self.dtype))
        for axis, factor in enumerate(factors):
            if factor.nnz:
                found += self._along(axis, factor, vectors)
        return found

    def moved(self, factors: Sequence[Matrix], vectors: np.ndarray) -> np.ndarray:
        """(ρ_1 ⊗ … ⊗ ρ_m) v."""
        for axis, factor in enumerate(factors):
            vectors = self._along(axis, factor, vectors)
        return vectors

    def _along(self, axis: int, factor: Matrix, vectors: np.ndarray) -> np.ndarray:
        """One factor applied to one axis."""
        before, size = prod(self.shape[:axis]), self.shape[axis]
        tensor = vectors.reshape(before, size, -1)
        if before == 1:
            return np.asarray(factor @ tensor[0]).reshape(vectors.shape)
        turned = np.moveaxis(tensor, 1, 0).reshape(size, -1)
        result = np.asarray(factor @ turned).reshape(size, before, -1)
        return np.moveaxis(result, 0, 1).reshape(vectors.shape)

    def residual(self, columns: Columns, at_once: int = 16) -> float:
        """The largest ‖constraint‖ of any column and generator, relative to ‖v‖ and the generator.

        For sparse columns the constraints are applied to sparse matrices and nothing is written
        out densely.
        """
        if columns.shape[1] == 0:
            return 0.0
        if sparse.issparse(columns):
            return self._sparse_residual(columns)
        worst = 0.0
        sizes = [max(_norm(factors), 1.0) for factors in (*self.algebra, *self.discrete)]
        for start in range(0, columns.shape[1], at_once):
            part = np.ascontiguousarray(columns[:, start : start + at_once])
            norms = np.linalg.norm(part, axis=0)
            for size, left in zip(sizes, self.constraints(part), strict=True):
                worst = max(worst, float((np.linalg.norm(left, axis=0) / norms).max() / size))
        return worst

    def _sparse_residual(self, columns: sparse.csc_array) -> float:
        norms = np.sqrt(np.asarray(columns.multiply(columns.conj()).sum(0)).real.ravel())
        worst = 0.0
        for is_algebra, generators in ((True, self.algebra), (False, self.discrete)):
            for factors in generators:
                left = (
                    self._sparse_infinitesimal(factors, columns)
                    if is_algebra
                    else self._sparse_moved(factors, columns) - columns
                )
                found = np.sqrt(np.asarray(left.multiply(left.conj()).sum(0)).real.ravel())
                worst = max(worst, float((found / norms).max()) / max(_norm(factors), 1.0))
        return worst

    def _sparse_infinitesimal(
        self, factors: Sequence[Matrix], columns: sparse.csc_array
    ) -> sparse.csc_array:
        found = sparse.csc_array(columns.shape, dtype=self.dtype)
        for axis, factor in enumerate(factors):
            found = found + self._sparse_along(axis, factor, columns)
        return found

    def _sparse_moved(
        self, factors: Sequence[Matrix], columns: sparse.csc_array
    ) -> sparse.csc_array:
        for axis, factor in enumerate(factors):
            columns = self._sparse_along(axis, factor, columns)
        return columns

    def _sparse_along(
        self, axis: int, factor: Matrix, columns: sparse.csc_array
    ) -> sparse.csc_array:
        """One factor applied to one axis: its index becomes the row of a matrix, and back."""
        entries = columns.tocoo()
        after = prod(self.shape[axis + 1 :])
        size, count = self.shape[axis], columns.shape[1]
        high, rest = np.divmod(entries.row.astype(np.int64), size * after)
        index, low = np.divmod(rest, after)
        others = prod(self.shape[:axis]) * after
        place = (high * after + low) * count + entries.col
        used, place = np.unique(place, return_inverse=True)
        turned = sparse.csr_array((entries.data, (index, place)), (size, len(used)))
        result = (factor @ turned).tocoo()
        assert used.max(initial=0) < others * count
        high_low, column = np.divmod(used[result.col], count)
        high, low = np.divmod(high_low, after)
        rows = (high * size + result.row) * after + low
        return sparse.csc_array((result.data, (rows, column)), columns.shape)


def _norm(factors: Sequence[Matrix]) -> float:
    """The largest Frobenius norm among one generator's factors."""
    return max((float(np.linalg.norm(factor.data)) for factor in factors), default=1.0)
