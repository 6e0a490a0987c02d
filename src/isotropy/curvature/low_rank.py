"""Large factors of curvature by their largest eigenvalues and the trace of the rest.

A factor A = XᵀX of n rows takes n² numbers and about 10 n³ operations for its spectrum: 1.2 GB and
a quarter of an hour for 12,288 inputs, pictures of 64 × 64 pixels in colour. From `LARGEST_EXACT`
rows on it is kept as

    A ≈ RᵀR + ρ/(n − r) · (I − U Uᵀ)        R (r, n), r ≤ `RANK`;  ρ what was left out of the trace

where U (n, r) spans the rows of R. Rows are added to R; when there are twice as many as `RANK`, the
largest singular values of R stay and the squares of the others go to ρ. No n × n matrix is made:
products take n r numbers, spectra (2r)³ operations (Ghashami et al. 2016, "Frequent directions",
without its shrinking). With no more than `RANK` rows in all, nothing is left out.

Factors from `THIN_FROM` to `LARGEST_EXACT` rows are exact. They are kept by their root as long as
that has at most half as many rows, as with few examples, and are written out from then on.

**Known error.** What is kept lies below A and has its trace together with ρ. So the determinant
that leaves ρ out is a lower bound, and the one that spreads ρ evenly, which is used, an upper one:
of all matrices with this trace the most even one has the largest determinant. `log_determinant_gap`
is the difference.

**Derivatives.** The pullback of a log-determinant is U diag(w) Uᵀ + w_ρ (I − U Uᵀ), with w_ρ for
the eigenvalue ρ/(n − r): two thin products and a multiple of the root (`ThinPullback`).

Oracle: the exact factors (`blocks`), where these are small enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from isotropy.curvature.eigen import eigenpairs

LARGEST_EXACT = 3072
"""Rows up to which a factor is written out: an MLP on 32 × 32 pixels in colour."""
RANK = 512
"""Largest eigenvalues that are kept of larger factors."""


THIN_FROM = 1024
"""Rows from which a factor is kept by its root as long as that has at most half as many rows."""


def is_thin(root: Tensor) -> bool:
    """Whether the factor of this root (…, rows, n) is kept by the root."""
    rows, size = root.shape[-2:]
    return size > LARGEST_EXACT or (size > THIN_FROM and 2 * rows <= size)


@dataclass(frozen=True)
class LowRankGram:
    """RᵀR + ρ/(n − r) (I − UUᵀ): root (groups, r, n), rest ρ (groups,) in float64."""

    root: Tensor
    rest: Tensor

    @classmethod
    def of(cls, root: Tensor) -> LowRankGram:
        """Of a root (groups, rows, n), a part of its rows after the other."""
        if root.shape[-1] <= LARGEST_EXACT:
            return cls(root, root.new_zeros(len(root), dtype=torch.float64))
        first, *others = root.split(RANK, -2)
        found = cls(first, root.new_zeros(len(root), dtype=torch.float64))
        for part in others:
            more = found + cls(part, torch.zeros_like(found.rest))
            assert isinstance(more, LowRankGram)
            found = more
        return found

    def __add__(self, other: Gram) -> Gram:
        if isinstance(other, Tensor):
            return other + self.root.mT @ self.root
        joined = LowRankGram(torch.cat([self.root, other.root], -2), self.rest + other.rest)
        if self.size > LARGEST_EXACT:
            return joined if joined.root.shape[-2] <= 2 * RANK else joined.compressed()
        return joined if is_thin(joined.root) else joined.root.mT @ joined.root

    __radd__ = __add__

    def compressed(self) -> LowRankGram:
        """With at most `RANK` rows: the largest singular values of the root."""
        values, turns = _spectrum_of_rows(self.root)
        kept = values.argsort(-1, descending=True)[..., :RANK]
        largest = turns.gather(-1, kept[..., None, :].expand(*turns.shape[:-1], -1))
        total, own = values.sum(-1), values.gather(-1, kept).sum(-1)
        root = largest.mT.to(self.root.dtype) @ self.root
        return LowRankGram(root, self.rest + (total - own).clamp_min(0.0))

    @property
    def size(self) -> int:
        """n."""
        return int(self.root.shape[-1])

    def decomposed(self, count: int, values_only: bool) -> tuple[Tensor, Tensor]:
        """Eigenvalues (groups, n) and eigenvectors (groups, n, r) of A / count, in float64.

        The last n − r eigenvalues are those of the rest.
        """
        rows = self.root.shape[-2]
        gram = self.compressed() if self.size > LARGEST_EXACT and rows > RANK else self
        values, turns = _spectrum_of_rows(gram.root)
        rows = min(values.shape[-1], self.size)
        level = gram.rest / max(1, self.size - rows)
        padded = functional.pad(values, (0, self.size - rows))
        padded[..., rows:] = level[..., None]
        if values_only:
            return padded / count, values.new_empty(0)
        vectors = gram.root.double().mT @ turns
        lengths = vectors.norm(dim=-2, keepdim=True)
        # Rows that depend on each other leave roots of zero; nothing lies along those.
        some = lengths > 1e-7 * lengths.amax(-1, keepdim=True)
        return padded / count, torch.where(some, vectors / lengths, 0.0)

    def dense(self) -> Tensor:
        """Written out, (groups, n, n); for tests."""
        values, vectors = self.decomposed(1, False)
        kept, level = values[..., : vectors.shape[-1]], values[..., -1:]
        found = (vectors * (kept - level)[..., None, :]) @ vectors.mT
        return found + level[..., None] * torch.eye(self.size, dtype=found.dtype)


Gram = Tensor | LowRankGram
"""A factor: written out (…, n, n), or by its root."""


def _spectrum_of_rows(root: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (…, r) and eigenvectors (…, r, r) of R Rᵀ in float64."""
    gram = root.double() @ root.double().mT
    values, turns = eigenpairs((gram + gram.mT) / 2, what="a factor")
    return values.clamp_min(0.0), turns


@dataclass(frozen=True)
class ThinPullback:
    """U diag(w) Uᵀ + rest (I − UUᵀ): vectors (groups, n, r), values (groups, r), rest (groups,)."""

    vectors: Tensor
    values: Tensor
    rest: Tensor

    def times(self, root: Tensor) -> Tensor:
        """X V for X (groups, rows, n), or (rows, n) where there is one group."""
        rows = root if root.ndim == 3 else root[None]
        level = self.rest[:, None, None]
        along = (rows @ self.vectors) * (self.values[:, None, :] - level)
        found = along @ self.vectors.mT + level * rows
        return found if root.ndim == 3 else found[0]

    def __add__(self, other: Tensor | ThinPullback) -> PullbackSum:
        return PullbackSum(self, other)


@dataclass(frozen=True)
class PullbackSum:
    """The sum of two pullbacks that act on one root."""

    first: ThinPullback
    second: Tensor | ThinPullback

    def times(self, root: Tensor) -> Tensor:
        """X (V + W)."""
        return times(root, self.first) + times(root, self.second)


Pullback = Tensor | ThinPullback | PullbackSum


def times(root: Tensor, pullback: Pullback) -> Tensor:
    """X V, where a diagonal V comes as a vector."""
    if not isinstance(pullback, Tensor):
        return pullback.times(root)
    return root * pullback if pullback.ndim == 1 else root @ pullback


def conjugated(vectors: Tensor, values: Tensor, dtype: torch.dtype) -> Pullback:
    """U diag(w) Uᵀ; thin where there are fewer eigenvectors (…, n, r) than values (…, n)."""
    size, rank = vectors.shape[-2:]
    vectors, values = vectors.to(dtype), values.to(dtype)
    if rank == size:
        return (vectors * values[..., None, :]) @ vectors.mT
    if vectors.ndim == 2:
        vectors, values = vectors[None], values[None]
    return ThinPullback(vectors, values[..., :rank], values[..., -1])


def turned(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Rows X (…, n) along all eigenvectors: X U, and beside it X (I − UUᵀ) where U is thin."""
    along = matrix @ vectors
    if vectors.shape[-1] == vectors.shape[-2]:
        return along
    return torch.cat([along, matrix - along @ vectors.mT], -1)


def turned_values(values: Tensor, vectors: Tensor) -> Tensor:
    """The eigenvalue of each column that `turned` gives."""
    size, rank = vectors.shape[-2:]
    if rank == size:
        return values
    return torch.cat([values[..., :rank], values[..., -1:].expand(*values.shape[:-1], size)], -1)


def without_rest(values: Tensor, rank: int) -> Tensor:
    """Eigenvalues (…, n) with those of the rest at zero."""
    return torch.cat([values[..., :rank], torch.zeros_like(values[..., rank:])], -1)
