"""What a solver is asked, a `Problem`, and what it hands back, a `Basis`.

The problem: the vectors of one tensor product that a group leaves in place,

    dρ(A_i) v = 0   for all i        ρ(h_k) v = v   for all k             (Finzi 2023, 2.4, 2.5)

with ρ = ρ_1 ⊗ … ⊗ ρ_m of the product's atoms, slowest index first, v row-major. A constraint is
applied one factor at a time, so that ρ itself is never formed. Every constraint is measured
against the size of its own generator, so that units of generators do not matter. Vectors are
columns (size, count), dense or sparse.

The basis: independent columns (size, rank), with the method that found them and the residual of
the constraints; or the rank alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sparse

from isotropy.checks import CallerError
from isotropy.symmetry.groups.atoms import Product
from isotropy.symmetry.groups.group import Group

Matrix: TypeAlias = Any
"""A sparse matrix, `scipy.sparse.csr_array`."""
Columns: TypeAlias = Any
"""Vectors (size, rank), one a column: `numpy.ndarray` or `scipy.sparse.csc_array`."""
LARGEST_BYTES = 4e9
"""What a basis, or the work of finding it, may take."""
DEPENDENT = 1e-12
"""Eigenvalues of a Gram matrix, relative to the largest, below which columns are dependent."""


@dataclass(frozen=True)
class Problem:
    """The invariant vectors of one product of atoms under a group."""

    group: Group
    atoms: Product

    def __str__(self) -> str:
        return f"{'*'.join(map(str, self.atoms)) or 'Scalar'} of {self.group}"

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

    def constraints(self, vectors: Columns) -> list[Columns]:
        """dρ(A_i) v and ρ(h_k) v − v of every generator, for vectors (size, count)."""
        return [
            *(kronecker_sum(self.shape, factors, vectors) for factors in self.algebra),
            *(kronecker(self.shape, factors, vectors) - vectors for factors in self.discrete),
        ]

    def normal(self, vectors: np.ndarray) -> np.ndarray:
        """CᴴC v, where C has all constraints, each divided by its size, one below another."""
        found = np.zeros(vectors.shape, np.result_type(vectors, self.dtype))
        shape, count = self.shape, len(self.algebra)
        for size, factors in zip(self.sizes[:count], self.algebra, strict=True):
            left = kronecker_sum(shape, factors, vectors)
            found += kronecker_sum(shape, _adjoint(factors), left) / size**2
        for size, factors in zip(self.sizes[count:], self.discrete, strict=True):
            left = kronecker(shape, factors, vectors) - vectors
            found += (kronecker(shape, _adjoint(factors), left) - left) / size**2
        return found

    @cached_property
    def nonzeros(self) -> float:
        """About how many nonzeros C has, for one column of it."""
        shares = [[f.nnz / f.shape[0] for f in factors] for factors in self.algebra]
        moved = [[f.nnz / f.shape[0] for f in factors] for factors in self.discrete]
        return float(sum(map(sum, shares)) + sum(prod(each) + 1 for each in moved))

    def written_out(self) -> sparse.csr_array:
        """C, each constraint divided by its size."""
        identity = sparse.identity(self.size, dtype=self.dtype, format="csc")
        parts = zip(self.constraints(identity), self.sizes, strict=True)
        scaled = [part / size for part, size in parts]
        if not scaled:
            return sparse.csr_array((0, self.size), dtype=self.dtype)
        return sparse.csr_array(sparse.vstack(scaled))


@dataclass(frozen=True)
class Basis:
    """A basis of the invariant vectors of one product.

    rank:     how many there are
    size:     entries of each
    shape:    each is a tensor of this shape, row-major
    method:   how it was found
    residual: the largest relative violation of a constraint, measured on the columns; for large
              bases an estimate of it (`residual`); None without columns
    seconds:  what solving took
    columns:  (size, rank), independent, not always orthonormal; None if only the rank was asked
    """

    rank: int
    size: int
    shape: tuple[int, ...]
    method: str
    residual: float | None
    seconds: float
    columns: Columns | None = None

    @cached_property
    def orthonormal(self) -> Columns:
        """An orthonormal basis (size, rank) of the same space.

        The columns themselves where they are; each divided by its norm, and still sparse, where no
        two share a nonzero entry, as orbits; written out otherwise, as C G^{-1/2} with the Gram
        matrix G = CᴴC: the orthonormal basis nearest to C.
        """
        columns = self._known_columns
        if sparse.issparse(columns):
            normalised = _disjoint_normalised(columns)
            if normalised is not None:
                return normalised
        self._check_written_out()
        for _ in range(3):  # once more where columns were nearly dependent
            gram = columns.conj().T @ columns
            gram = gram.toarray() if sparse.issparse(gram) else gram
            if not sparse.issparse(columns) and _is_identity(gram):
                break
            columns = np.asarray(columns @ self._inverse_root(gram))
        return columns

    def _inverse_root(self, gram: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(gram)
        if not values[0] > DEPENDENT * values[-1]:
            raise CallerError(
                f"the {self.rank} columns found by {self.method!r} are not independent: their Gram "
                f"matrix has eigenvalues from {values[0]:.1e} to {values[-1]:.1e}"
            )
        return np.asarray((vectors / np.sqrt(values)) @ vectors.conj().T)

    @property
    def dense(self) -> np.ndarray:
        """The columns written out (size, rank)."""
        columns = self._known_columns
        if not sparse.issparse(columns):
            return columns
        self._check_written_out()
        return columns.toarray()

    def _check_written_out(self) -> None:
        check_memory(
            self.rank * self.size * self._known_columns.dtype.itemsize,
            f"a basis of {self.rank:,} vectors of {self.size:,} entries written out",
            "use its sparse columns, or split the representation",
        )

    @property
    def _known_columns(self) -> Columns:
        if self.columns is None:
            raise CallerError(
                f"this basis of rank {self.rank} was asked for its rank alone; use `solve` in "
                "place of `rank` to have its vectors"
            )
        return self.columns


def check_memory(needed: float, what: str, advice: str) -> None:
    """Raise if `what` takes more bytes than are allowed, before anything is allocated."""
    if needed > LARGEST_BYTES:
        raise CallerError(
            f"{what} takes {needed / 1e9:,.1f} GB, more than the {LARGEST_BYTES / 1e9:.1f} GB "
            f"allowed; {advice}"
        )


def _is_identity(gram: np.ndarray) -> bool:
    return bool(np.abs(gram - np.eye(gram.shape[0])).max(initial=0.0) < 1e-12)


def _disjoint_normalised(columns: Columns) -> sparse.csc_array | None:
    """Columns divided by their norms if no two share a nonzero entry, else None."""
    entries = sparse.csc_array(columns)
    if not entries.data.all():
        entries = entries.copy()
        entries.eliminate_zeros()
    if np.bincount(entries.indices, minlength=1).max() > 1:
        return None
    counts = np.diff(entries.indptr)
    number = np.repeat(np.arange(entries.shape[1]), counts)
    squares = np.bincount(number, np.abs(entries.data) ** 2, entries.shape[1])
    if np.abs(squares - 1).max(initial=0.0) < 1e-12:
        return entries
    if not squares.all():
        return None
    scaled = entries.data / np.repeat(np.sqrt(squares), counts)
    parts = (scaled, entries.indices, entries.indptr)
    return sparse.csc_array(parts, shape=entries.shape)


# -- products with vectors ---------------------------------------------------------------------


def kronecker_sum(shape: Sequence[int], factors: Sequence[Matrix], vectors: Columns) -> Columns:
    """(Σ_j 1 ⊗ … factor_j … ⊗ 1) v for vectors (prod(shape), count), dense or sparse."""
    if sparse.issparse(vectors):
        parts = [_spread(shape, axis, factor, vectors) for axis, factor in enumerate(factors)]
        if not parts:
            return sparse.csc_array(vectors.shape, dtype=vectors.dtype)
        rows, places, data = (np.concatenate(each) for each in zip(*parts, strict=True))
        return sparse.csc_array((data, (rows, places)), vectors.shape)
    found = np.zeros(vectors.shape, np.result_type(vectors, *(each.dtype for each in factors)))
    for axis, factor in enumerate(factors):
        if factor.nnz:
            found += along(shape, axis, factor, vectors)
    return found


def kronecker(shape: Sequence[int], factors: Sequence[Matrix], vectors: Columns) -> Columns:
    """(factor_1 ⊗ … ⊗ factor_m) v for vectors (prod(shape), count), dense or sparse."""
    for axis, factor in enumerate(factors):
        vectors = along(shape, axis, factor, vectors)
    return vectors


def along(shape: Sequence[int], axis: int, factor: Matrix, vectors: Columns) -> Columns:
    """One factor applied to one axis of vectors (prod(shape), count), dense or sparse."""
    if sparse.issparse(vectors):
        rows, places, data = _spread(shape, axis, factor, vectors)
        return sparse.csc_array((data, (rows, places)), vectors.shape)
    before, size = prod(shape[:axis]), shape[axis]
    tensor = vectors.reshape(before, size, -1)
    if before == 1:
        return np.asarray(factor @ tensor[0]).reshape(vectors.shape)
    turned = np.moveaxis(tensor, 1, 0).reshape(size, -1)
    result = np.asarray(factor @ turned).reshape(size, before, -1)
    return np.moveaxis(result, 0, 1).reshape(vectors.shape)


def _spread(
    shape: Sequence[int], axis: int, factor: Matrix, vectors: sparse.csc_array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every entry goes to where the factor's column at its index on the axis has nonzeros."""
    factor, entries = sparse.csc_array(factor), vectors.tocoo()
    rows = entries.row.astype(np.int64)
    after = prod(shape[axis + 1 :])
    index = rows // after % shape[axis]
    starts = factor.indptr.astype(np.int64)
    counts = (starts[1:] - starts[:-1])[index]
    source = np.repeat(np.arange(len(rows)), counts)
    first = starts[index] - (np.cumsum(counts) - counts)
    place = np.arange(len(source)) + first[source]
    moved = rows[source] + (factor.indices[place] - index[source]) * after
    return moved, entries.col[source], entries.data[source] * factor.data[place]


def _adjoint(factors: Sequence[Matrix]) -> tuple[Matrix, ...]:
    return tuple(factor.conj().T for factor in factors)


def _norm(factor: Matrix) -> float:
    """The spectral norm; of matrices of over 200 rows only a bound, exact for permutations."""
    sizes = abs(factor)
    bound = float(np.sqrt(sizes.sum(0).max(initial=0.0) * sizes.sum(1).max(initial=0.0)))
    if factor.shape[0] > 200 or bound in (0.0, 1.0):
        return bound
    return float(np.linalg.norm(factor.toarray(), 2))
