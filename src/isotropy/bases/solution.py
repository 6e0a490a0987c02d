"""What a solver found: the basis of one product, and of all linear maps between two sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.problem import Columns
from isotropy.checks import CallerError

LARGEST_BYTES = 4e9
"""What a basis, or the work of finding it, may take."""
DEPENDENT = 1e-12
"""Eigenvalues of a Gram matrix, relative to the largest, below which columns are dependent."""


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
