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


@dataclass(frozen=True)
class Basis:
    """A basis of the invariant vectors of one product.

    rank:     how many there are
    size:     entries of each
    shape:    each is a tensor of this shape, row-major
    method:   how it was found
    residual: the largest relative violation of a constraint, measured on the columns
              (None without columns)
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
    def orthonormal(self) -> np.ndarray:
        """An orthonormal basis (size, rank), dense."""
        columns = self._written_out()
        if isinstance(columns, np.ndarray) and _is_orthonormal(columns):
            return columns
        gram = columns.conj().T @ columns
        gram = gram.toarray() if sparse.issparse(gram) else gram
        # C G^{-1/2}, symmetric: the nearest orthonormal basis, and itself where it is one.
        values, vectors = np.linalg.eigh(gram)
        root = (vectors / np.sqrt(values)) @ vectors.conj().T
        return np.asarray(columns @ root)

    @property
    def dense(self) -> np.ndarray:
        """The columns written out (size, rank)."""
        columns = self._written_out()
        return columns.toarray() if sparse.issparse(columns) else columns

    def _written_out(self) -> Columns:
        if self.columns is None:
            raise CallerError(
                f"this basis of rank {self.rank} was asked for its rank alone; solve without "
                "rank_only to have its vectors"
            )
        needed = self.rank * self.size * (16 if np.iscomplexobj(self.columns) else 8)
        check_memory(
            needed,
            f"a basis of {self.rank:,} vectors of {self.size:,} entries written out",
            "use its sparse columns, or split the representation",
        )
        return self.columns


def check_memory(needed: float, what: str, advice: str) -> None:
    """Raise if `what` takes more bytes than are allowed, before anything is allocated."""
    if needed > LARGEST_BYTES:
        raise CallerError(
            f"{what} takes {needed / 1e9:,.1f} GB, more than the {LARGEST_BYTES / 1e9:.1f} GB "
            f"allowed; {advice}"
        )


def _is_orthonormal(columns: np.ndarray) -> bool:
    gram = columns.conj().T @ columns
    return bool(np.abs(gram - np.eye(gram.shape[0])).max(initial=0.0) < 1e-12)
