"""One problem of a solver: the vectors of one tensor product that a group leaves in place.

    dρ(A_i) v = 0   for all i        ρ(h_k) v = v   for all k             (Finzi 2023, 2.4, 2.5)

with ρ = ρ_1 ⊗ … ⊗ ρ_m of the product's atoms, slowest index first, v row-major. A constraint is
applied one factor at a time, so that ρ itself is never formed. Every constraint is measured
against the size of its own generator, so that units of generators do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sparse

from isotropy.symmetry.groups.atoms import Product
from isotropy.symmetry.groups.group import Group

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

    @cached_property
    def is_complex(self) -> bool:
        """Whether v is: the group's own matrices are, or those of an atom."""
        return self.group.is_complex or any(
            np.iscomplexobj(factor.data)
            for factors in (*self.algebra, *self.discrete)
            for factor in factors
        )

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

    @cached_property
    def sizes(self) -> list[float]:
        """What each constraint is divided by, algebra first: the largest ‖dρ_j(A_i)‖, and
        ‖ρ_1(h_k)‖ … ‖ρ_m(h_k)‖ where that is above 1."""
        matrices = {
            id(factor): factor for factors in (*self.algebra, *self.discrete) for factor in factors
        }
        norms = {name: _norm(factor) for name, factor in matrices.items()}
        return [
            *(max((norms[id(f)] for f in factors), default=0.0) or 1.0 for factors in self.algebra),
            *(prod(max(norms[id(f)], 1.0) for f in factors) for factors in self.discrete),
        ]

    # -- on dense vectors ----------------------------------------------------------------------

    def constraints(self, vectors: np.ndarray) -> list[np.ndarray]:
        """dρ(A_i) v and ρ(h_k) v − v of every generator, for vectors (size, count)."""
        return [
            *(self.infinitesimal(factors, vectors) for factors in self.algebra),
            *(self.moved(factors, vectors) - vectors for factors in self.discrete),
        ]

    def normal(self, vectors: np.ndarray) -> np.ndarray:
        """CᴴC v, where C has all constraints, each divided by its size, one below another."""
        found = np.zeros(vectors.shape, np.result_type(vectors, self.dtype))
        count = len(self.algebra)
        for size, factors in zip(self.sizes[:count], self.algebra, strict=True):
            left = self.infinitesimal(factors, vectors)
            found += self.infinitesimal(_adjoint(factors), left) / size**2
        for size, factors in zip(self.sizes[count:], self.discrete, strict=True):
            left = self.moved(factors, vectors) - vectors
            found += (self.moved(_adjoint(factors), left) - left) / size**2
        return found

    def infinitesimal(self, factors: Sequence[Matrix], vectors: np.ndarray) -> np.ndarray:
        """(Σ_j 1 ⊗ … dρ_j … ⊗ 1) v."""
        found = np.zeros(vectors.shape, np.result_type(vectors, self.dtype))
        for axis, factor in enumerate(factors):
            if factor.nnz:
                found += along(self.shape, axis, factor, vectors)
        return found

    def moved(self, factors: Sequence[Matrix], vectors: np.ndarray) -> np.ndarray:
        """(ρ_1 ⊗ … ⊗ ρ_m) v."""
        for axis, factor in enumerate(factors):
            vectors = along(self.shape, axis, factor, vectors)
        return vectors

    @cached_property
    def nonzeros(self) -> float:
        """About how many nonzeros C has, for one column of it."""
        shares = [[f.nnz / f.shape[0] for f in factors] for factors in self.algebra]
        moved = [[f.nnz / f.shape[0] for f in factors] for factors in self.discrete]
        return float(sum(map(sum, shares)) + sum(prod(each) + 1 for each in moved))

    # -- on sparse vectors ---------------------------------------------------------------------

    def written_out(self, columns: sparse.csc_array | None = None) -> sparse.csr_array:
        """C, each constraint divided by its size, or C times sparse columns (size, count)."""
        if columns is None:
            columns = sparse.identity(self.size, dtype=self.dtype, format="csc")
        parts = [
            *(kronecker_sum_times(self.shape, factors, columns) for factors in self.algebra),
            *(kronecker_times(self.shape, each, columns) - columns for each in self.discrete),
        ]
        if not parts:
            return sparse.csr_array((0, columns.shape[1]), dtype=self.dtype)
        scaled = [part / size for part, size in zip(parts, self.sizes, strict=True)]
        return sparse.csr_array(sparse.vstack(scaled))


def along(shape: Sequence[int], axis: int, factor: Matrix, vectors: np.ndarray) -> np.ndarray:
    """One factor applied to one axis of vectors (prod(shape), count)."""
    before, size = prod(shape[:axis]), shape[axis]
    tensor = vectors.reshape(before, size, -1)
    if before == 1:
        return np.asarray(factor @ tensor[0]).reshape(vectors.shape)
    turned = np.moveaxis(tensor, 1, 0).reshape(size, -1)
    result = np.asarray(factor @ turned).reshape(size, before, -1)
    return np.moveaxis(result, 0, 1).reshape(vectors.shape)


def kronecker_sum_times(
    shape: Sequence[int], factors: Sequence[Matrix], columns: sparse.csc_array
) -> sparse.csc_array:
    """(Σ_j 1 ⊗ … factor_j … ⊗ 1) v for sparse columns."""
    entries = columns.tocoo()
    start = (entries.row.astype(np.int64), entries.col, entries.data)
    parts = [_spread(shape, axis, factor, *start) for axis, factor in enumerate(factors)]
    if not parts:
        return sparse.csc_array(columns.shape, dtype=columns.dtype)
    rows, places, data = (np.concatenate(each) for each in zip(*parts, strict=True))
    return sparse.csc_array((data, (rows, places)), columns.shape)


def kronecker_times(
    shape: Sequence[int], factors: Sequence[Matrix], columns: sparse.csc_array
) -> sparse.csc_array:
    """(factor_1 ⊗ … ⊗ factor_m) v for sparse columns."""
    for axis, factor in enumerate(factors):
        entries = columns.tocoo()
        rows, places, data = _spread(
            shape, axis, factor, entries.row.astype(np.int64), entries.col, entries.data
        )
        columns = sparse.csc_array((data, (rows, places)), columns.shape)
    return columns


def _spread(
    shape: Sequence[int],
    axis: int,
    factor: Matrix,
    rows: np.ndarray,
    places: np.ndarray,
    data: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every entry goes to where the factor's column at its index on the axis has nonzeros."""
    factor = sparse.csc_array(factor)
    after = prod(shape[axis + 1 :])
    index = rows // after % shape[axis]
    starts = factor.indptr.astype(np.int64)
    counts = (starts[1:] - starts[:-1])[index]
    source = np.repeat(np.arange(len(rows)), counts)
    first = starts[index] - (np.cumsum(counts) - counts)
    place = np.arange(len(source)) + first[source]
    moved = rows[source] + (factor.indices[place] - index[source]) * after
    return moved, places[source], data[source] * factor.data[place]


def _adjoint(factors: Sequence[Matrix]) -> tuple[Matrix, ...]:
    return tuple(factor.conj().T for factor in factors)


def _norm(factor: Matrix) -> float:
    """The spectral norm; of matrices of over 200 rows only a bound, exact for permutations."""
    sizes = abs(factor)
    bound = float(np.sqrt(sizes.sum(0).max(initial=0.0) * sizes.sum(1).max(initial=0.0)))
    if factor.shape[0] > 200 or bound in (0.0, 1.0):
        return bound
    return float(np.linalg.norm(factor.toarray(), 2))
