"""A matrix group: a basis of its Lie algebra and its discrete generators, nothing else.

Every element of a group with finitely many components is a product

    g = exp(Σ_i α_i A_i) Π_k h_k                                      (Finzi 2023, A.10)

of the exponential of its Lie algebra and of discrete generators, so that a linear condition on all
of the group is one on the generators A_i and h_k. They are given on the space V = R^d or C^d on
which the group is defined, as dense or sparse matrices, as permutations (a sequence of d integers,
coordinate i goes to place p[i]: (P x)[p[i]] = x[i]), or as `scipy` linear operators; every other
representation is made of V (`representations`).

    >>> quarter_turn = Group("C(4)", discrete=[[[0, -1], [1, 0]]])
    >>> screw = Group("screw", algebra=[[[0, -1, 0], [1, 0, 0], [0, 0, 0]]], discrete=[[0, 2, 1]])

Named groups are in `group_catalogue`, products of groups in `group_products`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse as sparse
import torch
from scipy.linalg import expm
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from isotropy.checks import CallerError

ROUNDING = 1e-9
"""Relative size below which a number that should be zero is."""


@dataclass(frozen=True)
class Classical:
    """Which classical group this is, for the first fundamental theorem.

    kind: "O" and "SO" keep the symmetric form, "Sp" the alternating form; "SU", "SL", "GL", "U"
    form: the matrix B of the form, x ↦ xᵀ B x, kept by every element: gᵀ B g = B (O, SO, Sp)
    """

    kind: Literal["O", "SO", "Sp", "SU", "SL", "GL", "U"]
    form: np.ndarray | None = None


class Group:
    """A matrix group on V, known by its generators.

    name:     as users and files write it
    algebra:  matrices A_i (d, d) that span the Lie algebra; closed under the bracket
    discrete: invertible matrices h_k (d, d), permutations, or operators
    dimension: d, needed where there are no generators
    classical: which classical group it is, if one (it is believed; the residual check would tell)
    factors:  the groups of which this is the direct product, on V₁ ⊗ V₂ ⊗ …
    """

    def __init__(
        self,
        name: str,
        *,
        algebra: Sequence[Any] = (),
        discrete: Sequence[Any] = (),
        dimension: int | None = None,
        classical: Classical | None = None,
        factors: tuple[Group, ...] = (),
    ) -> None:
        self.name = name
        self.classical = classical
        self.factors = factors
        self.algebra = tuple(_as_matrix(each, f"group {name}, algebra") for each in algebra)
        self.discrete = tuple(_as_matrix(each, f"group {name}, discrete") for each in discrete)
        sizes = {each.shape[0] for each in (*self.algebra, *self.discrete)}
        if dimension is not None:
            sizes.add(dimension)
        if len(sizes) != 1:
            what = f"sizes {sorted(sizes)}" if sizes else "neither generators nor a dimension"
            raise CallerError(f"group {name}: expected generators of one size (d, d), got {what}")
        self.dimension: int = sizes.pop()
        self._check()

    # -- what it is ----------------------------------------------------------------------------

    @cached_property
    def is_complex(self) -> bool:
        """Whether V is C^d."""
        return any(np.iscomplexobj(each.data) for each in (*self.algebra, *self.discrete))

    @cached_property
    def is_unitary(self) -> bool:
        """Aᴴ = −A and hᴴ h = 1: orthogonal, where real, so that V and its dual are the same."""
        identity = sparse.identity(self.dimension, format="csr")
        skew = all(_is_small(a + a.conj().T, a) for a in self.algebra)
        return skew and all(_is_small(h.conj().T @ h - identity, identity) for h in self.discrete)

    @cached_property
    def is_self_dual(self) -> bool:
        """Whether the dual of V is V itself: real and orthogonal."""
        return self.is_unitary and not self.is_complex

    @cached_property
    def is_permutation(self) -> bool:
        """No Lie algebra, and all generators permute coordinates: pointwise functions commute."""
        signed = self.signed_permutations
        return signed is not None and all(bool((signs > 0).all()) for _, signs in signed)

    @cached_property
    def signed_permutations(self) -> tuple[tuple[np.ndarray, np.ndarray], ...] | None:
        """(places, signs) of each generator if all are signed permutations: x[i] goes, times
        signs[i], to place places[i]. None if there is a Lie algebra or another matrix."""
        if self.algebra:
            return None
        found = [signed_permutation(each) for each in self.discrete]
        return None if any(each is None for each in found) else tuple(f for f in found if f)

    @cached_property
    def key(self) -> str:
        """A digest of what defines the group: two groups with the same generators share it."""
        digest = hashlib.sha256()
        for kind, matrices in (("algebra", self.algebra), ("discrete", self.discrete)):
            digest.update(f"{kind} {len(matrices)} {self.dimension};".encode())
            for each in matrices:
                entries = each.tocoo()
                numbers = np.round(entries.data.astype(complex), 12) + 0.0
                order = np.lexsort((entries.col, entries.row))
                for part in (entries.row.astype(np.int64), entries.col.astype(np.int64), numbers):
                    digest.update(np.ascontiguousarray(part[order]).tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return self.name

    # -- elements ------------------------------------------------------------------------------

    def algebra_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        """All A_i, (D, d, d)."""
        return _stacked(self.algebra, self.dimension, dtype or self._dtype)

    def discrete_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        """All h_k, (M, d, d)."""
        return _stacked(self.discrete, self.dimension, dtype or self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.complex128 if self.is_complex else torch.float64

    def sample(
        self, count: int, generator: torch.Generator, *, largest: float | None = None
    ) -> Tensor:
        """`count` elements (count, d, d): exp(Σ z_i A_i), z normal, times powers of every h_k.

        Three rounds of all discrete generators in random order, each to a power in −5 … 4. Every
        component is met, but not with the invariant measure.
        largest: the Frobenius norm beyond which Σ z_i A_i is scaled down; boosts and scalings
                 grow exponentially with it
        """
        dimension, elements = self.dimension, []
        algebra, discrete = self.algebra_tensor().numpy(), self.discrete_tensor().numpy()
        for _ in range(count):
            element = np.eye(dimension, dtype=algebra.dtype)
            if len(algebra):
                weights = torch.randn(len(algebra), generator=generator, dtype=torch.float64)
                inner = np.tensordot(weights.numpy(), algebra, axes=1)
                norm = float(np.linalg.norm(inner))
                if largest is not None and norm > largest:
                    inner = inner * (largest / norm)
                element = expm(inner)
            for _ in range(3 if len(discrete) else 0):
                for k in torch.randperm(len(discrete), generator=generator).tolist():
                    power = int(torch.randint(-5, 5, (), generator=generator))
                    element = element @ np.linalg.matrix_power(discrete[k], power)
            elements.append(element)
        return (
            torch.from_numpy(np.stack(elements)) if elements else torch.zeros(0, *[dimension] * 2)
        )

    def real_form(self) -> Group:
        """The same group on R^2d: every X + iY becomes [[X, −Y], [Y, X]]; itself if real."""
        if not self.is_complex:
            return self
        return Group(
            f"{self.name} real",
            algebra=[_realified(each) for each in self.algebra],
            discrete=[_realified(each) for each in self.discrete],
            dimension=2 * self.dimension,
        )

    # -- checks --------------------------------------------------------------------------------

    def _check(self) -> None:
        for index, each in enumerate(self.discrete):
            if signed_permutation(each) is not None:
                continue
            values = np.linalg.svd(each.toarray(), compute_uv=False)
            if not values[-1] > ROUNDING * values[0]:
                raise CallerError(
                    f"group {self.name}: discrete generator {index} is singular, and a group has "
                    "only invertible elements; infinitesimal generators go into algebra="
                )
        self._check_bracket()

    def _check_bracket(self) -> None:
        if len(self.algebra) < 2:
            return
        rows = sparse.vstack([each.reshape(1, -1) for each in self.algebra]).tocsr()
        used = np.unique(rows.indices)
        span, _ = np.linalg.qr(rows[:, used].toarray().T)
        for i, first in enumerate(self.algebra):
            for j, second in enumerate(self.algebra[:i]):
                bracket = (first @ second - second @ first).reshape(1, -1).tocsr()
                inside = bracket[:, used].toarray()[0]
                whole = np.linalg.norm(bracket.data)
                left = np.linalg.norm(inside - span @ (span.conj().T @ inside))
                outside = float(whole**2 - np.linalg.norm(inside) ** 2)
                scale = np.linalg.norm(first.data) * np.linalg.norm(second.data)
                if max(float(left), max(outside, 0.0) ** 0.5) > 1e-7 * scale:
                    raise CallerError(
                        f"group {self.name}: the algebra is not closed under the bracket: "
                        f"[A{j}, A{i}] is not a combination of the {len(self.algebra)} matrices "
                        "given; add the brackets that are missing"
                    )


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


def _as_matrix(given: Any, what: str) -> sparse.csr_array:
    if isinstance(given, LinearOperator):
        given = given @ np.eye(given.shape[1])
    if sparse.issparse(given):
        matrix = sparse.csr_array(given)
    else:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
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
    numbers = matrix.data
    if not np.isfinite(numbers).all():
        raise CallerError(f"{what}: expected finite numbers, got a NaN or an infinity")
    if np.iscomplexobj(numbers):
        return matrix.astype(np.complex128) if np.abs(numbers.imag).max(initial=0) else matrix.real
    return matrix.astype(np.float64)


def _as_places(array: np.ndarray, what: str) -> np.ndarray:
    whole = array.astype(np.int64) if np.isfinite(array.astype(float)).all() else array
    if not np.array_equal(whole, array) or not np.array_equal(
        np.sort(whole), np.arange(len(whole))
    ):
        raise CallerError(
            f"{what}: expected a permutation of 0 … {len(array) - 1}, got {array.tolist()}"
        )
    return whole


def _is_small(matrix: sparse.csr_array, against: sparse.csr_array) -> bool:
    largest = np.abs(against.data).max(initial=1.0)
    return bool(np.abs(matrix.data).max(initial=0.0) <= ROUNDING * largest)


def _stacked(matrices: Sequence[sparse.csr_array], dimension: int, dtype: torch.dtype) -> Tensor:
    if not matrices:
        return torch.zeros(0, dimension, dimension, dtype=dtype)
    return torch.from_numpy(np.stack([each.toarray() for each in matrices])).to(dtype)


def _realified(matrix: sparse.csr_array) -> sparse.csr_array:
    real, imaginary = matrix.real, sparse.csr_array(matrix.imag)
    return sparse.csr_array(sparse.block_array([[real, -imaginary], [imaginary, real]]))
