"""A matrix group: a basis of its Lie algebra and its discrete generators, nothing else.

Every element of a group with finitely many components is a product

    g = exp(Σ_i α_i A_i) Π_k h_k                                      (Finzi 2023, A.10)

of the exponential of its Lie algebra and of discrete generators, so that a linear condition on all
of the group is one on the generators A_i and h_k. They are given on the space V = R^d or C^d on
which the group is defined, as dense or sparse matrices, as permutations (a sequence of d integers,
coordinate i goes to place p[i]: (P x)[p[i]] = x[i]), or as `scipy` linear operators; all become
sparse matrices in float64, or complex128 where there is an imaginary part. Every other
representation is made of V (`representations`).

    >>> quarter_turn = Group("C(4)", discrete=[[[0, -1], [1, 0]]])
    >>> screw = Group("screw", algebra=[[[0, -1, 0], [1, 0, 0], [0, 0, 0]]], discrete=[[0, 2, 1]])

Named groups are in `catalogue`, products of groups in `products`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse as sparse
import torch
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups.found_permutations import FoundPermutations

ROUNDING = 1e-9
"""Relative size below which a number that should be zero is."""
LARGEST_PART = 10_000_000
"""Entries of brackets that are looked at together."""
LARGEST_ALGEBRA = 500
"""Matrices of a Lie algebra by name, whose brackets are all checked."""
LARGEST_EXTENT = 4_000_000
"""Dimension, and dimension × discrete generators, of a group by name."""


@dataclass(frozen=True)
class Classical:
    """Which classical group this is, for the first fundamental theorem.

    kind: "O" and "SO" keep a symmetric form, "Sp" an alternating form; "SU", "SL", "GL", "U"
    form: the matrix B of the form (x, y) ↦ xᵀ B y, kept by every element: gᵀ B g = B (O, SO, Sp)
    """

    kind: Literal["O", "SO", "Sp", "SU", "SL", "GL", "U"]
    form: np.ndarray | None = None


def check_extent(name: str, dimension: int, *, algebra: int = 0, discrete: int = 0) -> None:
    """Raise, before anything is allocated, for a group of too many numbers.

    algebra, discrete: how many generators of each kind there would be
    """
    if algebra > LARGEST_ALGEBRA:
        raise CallerError(
            f"group {name}: expected a Lie algebra of at most {LARGEST_ALGEBRA:,} matrices, got "
            f"{algebra:,}; take fewer dimensions"
        )
    numbers = dimension * max(1, discrete)
    if numbers > LARGEST_EXTENT:
        raise CallerError(
            f"group {name}: expected at most {LARGEST_EXTENT:,} numbers in its permutations, got "
            f"{dimension:,} dimensions and {discrete:,} generators; take fewer dimensions"
        )


class Group:
    """A matrix group on V, known by its generators.

    name:     as users and files write it
    algebra:  matrices A_i (d, d) that span the Lie algebra; closed under the bracket
    discrete: invertible matrices h_k (d, d), permutations, or operators; or what
              `find_permutations` found
    dimension: d, needed where there are no generators
    classical: which classical group it is, if one; checked against the generators
    factors:  the groups of which this is the direct product, on V₁ ⊗ V₂ ⊗ …
    """

    def __init__(
        self,
        name: str,
        *,
        algebra: Sequence[Any] = (),
        discrete: Sequence[Any] | FoundPermutations = (),
        dimension: int | None = None,
        classical: Classical | None = None,
        factors: tuple[Group, ...] = (),
    ) -> None:
        self.name = name
        self.classical = classical
        self.factors = factors
        if isinstance(discrete, FoundPermutations):
            dimension = discrete.dimension
            discrete = discrete.check_found().generators
        self.algebra = tuple(as_matrix(each, f"group {name}, algebra") for each in algebra)
        self.discrete = tuple(as_matrix(each, f"group {name}, discrete") for each in discrete)
        sizes = {each.shape[0] for each in (*self.algebra, *self.discrete)}
        if dimension is not None:
            sizes.add(dimension)
        if len(sizes) != 1:
            what = f"sizes {sorted(sizes)}" if sizes else "neither generators nor a dimension"
            raise CallerError(f"group {name}: expected generators of one size (d, d), got {what}")
        self.dimension: int = sizes.pop()
        if self.dimension < 1:
            raise CallerError(f"group {name}: expected at least 1 dimension, got {self.dimension}")
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
        """A digest of what defines the group: two groups with the same generators share it.

        Numbers count to 12 digits each, however small, so that rounding does not tell two groups
        apart and units do not make them one.
        """
        return digest_of(self.dimension, self.algebra, self.discrete)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return self.name

    # -- elements ------------------------------------------------------------------------------

    def algebra_tensor(self) -> Tensor:
        """All A_i, (D, d, d), float64 or complex128."""
        return self._stacked(self.algebra)

    def discrete_tensor(self) -> Tensor:
        """All h_k, (M, d, d), float64 or complex128."""
        return self._stacked(self.discrete)

    def _stacked(self, matrices: Sequence[sparse.csr_array]) -> Tensor:
        dense = np.zeros((len(matrices), self.dimension, self.dimension), np.complex128)
        for place, each in zip(dense, matrices, strict=True):
            place[:] = each.toarray()
        return torch.from_numpy(dense if self.is_complex else dense.real.copy())

    @property
    def _dtype(self) -> torch.dtype:
        return torch.complex128 if self.is_complex else torch.float64

    def sample(
        self, count: int, generator: torch.Generator, *, largest: float | None = None
    ) -> Tensor:
        """`count` elements (count, d, d): exp(Σ z_i A_i), z normal, times powers of every h_k.

        Three rounds of all discrete generators, each round in a random order of its own, each
        generator to a power in −5 … 4. Spread over the group, but not with the invariant measure.
        largest: the Frobenius norm beyond which Σ z_i A_i is scaled down; boosts and scalings
                 grow exponentially with it
        On the device of `generator`, float64 or complex128.
        """
        algebra = self.algebra_tensor().to(generator.device)
        found = torch.eye(self.dimension, dtype=self._dtype, device=generator.device)
        found = found.expand(count, -1, -1)
        if len(algebra):
            weights = torch.randn(
                count, len(algebra), generator=generator, dtype=torch.float64, device=found.device
            )
            inner = torch.einsum("ci,ijk->cjk", weights.to(algebra.dtype), algebra)
            if largest is not None:
                norms = torch.linalg.matrix_norm(inner)[:, None, None]
                inner = inner * (largest / norms.clamp(min=largest))
            found = torch.linalg.matrix_exp(inner)
        return found @ self._sampled_words(count, generator) if self.discrete else found.clone()

    def _sampled_words(self, count: int, generator: torch.Generator) -> Tensor:
        """Products (count, d, d) of discrete generators, as `sample` says."""
        device, number = generator.device, len(self.discrete)
        discrete = self.discrete_tensor()
        powers = torch.stack([torch.linalg.matrix_power(discrete, p) for p in range(-5, 5)])
        powers = powers.to(device)  # (10, M, d, d)
        found = torch.eye(self.dimension, dtype=self._dtype, device=device).expand(count, -1, -1)
        for _ in range(3):
            keys = torch.rand(count, number, generator=generator, device=device)
            for k in keys.argsort(1).unbind(1):
                power = torch.randint(10, (count,), generator=generator, device=device)
                found = found @ powers[power, k]
        return found

    def real_form(self) -> Group:
        """The same group on R^2d: every X + iY becomes [[X, −Y], [Y, X]]; itself if real."""
        if not self.is_complex:
            return self
        return Group(
            f"Real({self.name})",
            algebra=[realified(each) for each in self.algebra],
            discrete=[realified(each) for each in self.discrete],
            dimension=2 * self.dimension,
        )

    # -- checks --------------------------------------------------------------------------------

    def _check(self) -> None:
        for index, each in enumerate(self.discrete):
            if signed_permutation(each) is None and is_singular(each):
                raise CallerError(
                    f"group {self.name}: discrete generator {index} is singular, and a group has "
                    "only invertible elements; infinitesimal generators go into algebra="
                )
        if len(self.algebra) > 1:
            self._check_bracket()
        if self.classical is not None:
            check_classical(self, self.classical)

    def _check_bracket(self) -> None:
        """Every [A_i, A_j] is a real combination of the algebra; many pairs at once."""
        span, number, d = Span(self.algebra), len(self.algebra), self.dimension
        sizes = np.array([np.linalg.norm(each.data) for each in self.algebra])
        at_once = max(1, LARGEST_PART // (number * max(span.entries, 1)))
        for start in range(0, number, at_once):
            block = self.algebra[start : start + at_once]
            left = (sparse.vstack(block) @ sparse.hstack(self.algebra)).tocoo()
            right = (sparse.vstack(self.algebra) @ sparse.hstack(block)).tocoo()
            i, j, places = _blocks(left, d)
            j_right, i_right, places_right = _blocks(right, d)
            pairs = np.concatenate([i * number + j, i_right * number + j_right])
            entries = np.concatenate([left.data, -right.data])
            brackets = sparse.csr_array(
                (entries, (pairs, np.concatenate([places, places_right]))),
                (len(block) * number, d * d),
            )
            scale = np.outer(sizes[start : start + at_once], sizes).ravel()
            some = np.flatnonzero(np.diff(brackets.indptr))  # most matrices commute
            outside = some[span.distances(brackets[some]) > 1e-7 * scale[some]]
            if len(outside):
                first, second = divmod(int(outside[0]), number)
                raise CallerError(
                    f"group {self.name}: the algebra is not closed under the bracket: "
                    f"[A{start + first}, A{second}] is not a real combination of the {number} "
                    "matrices given; add the brackets that are missing"
                )


def _blocks(matrix: sparse.coo_array, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every entry of a matrix of blocks (d, d): row and column of its block, place in it."""
    block_row, row = np.divmod(matrix.row.astype(np.int64), d)
    block_column, column = np.divmod(matrix.col.astype(np.int64), d)
    return block_row, block_column, row * d + column


def check_classical(group: Group, classical: Classical) -> None:
    """Raise unless the generators are those of the classical group that they are said to be.

    A Lie algebra that keeps the form (or has no trace) and has the dimension of the classical one
    is it; the dimension is over the complex numbers, since conditions on tensors are linear there.
    A wrong claim would give a basis that is too small, which no residual shows.
    """
    kind, d = classical.kind, group.dimension
    dimensions = {"O": d * (d - 1) // 2, "SO": d * (d - 1) // 2, "Sp": d * (d + 1) // 2}
    dimensions |= {"SU": d * d - 1, "SL": d * d - 1, "GL": d * d, "U": d * d}
    rows = group.algebra_tensor().reshape(-1, d * d)
    found = int(torch.linalg.matrix_rank(rows)) if len(rows) else 0
    problem = ""
    if found != dimensions[kind]:
        problem = f"its algebra has {dimensions[kind]} dimensions, got {found}"
    determinants = [complex(np.linalg.det(each.toarray())) for each in group.discrete]
    if kind in ("O", "SO", "Sp"):
        problem = problem or _broken_form(group, classical)
        if kind == "O" and not any(abs(each + 1) < 1e-6 for each in determinants):
            problem = problem or "it has a discrete generator of determinant −1, got none"
    if kind in ("SU", "SL") and any(abs(each.trace()) > 1e-7 for each in group.algebra):
        problem = problem or "its algebra has no trace"
    if kind in ("SO", "SU", "SL") and any(abs(each - 1) > 1e-6 for each in determinants):
        problem = problem or "its elements have determinant 1"
    if problem:
        raise CallerError(f"group {group.name} is not classical of kind {kind!r}: {problem}")


def _broken_form(group: Group, classical: Classical) -> str:
    form = classical.form
    if form is None or form.shape != (group.dimension, group.dimension):
        got = "none" if form is None else form.shape
        return f"it needs a form ({group.dimension}, {group.dimension}), got {got}"
    sign = -1 if classical.kind == "Sp" else 1
    if np.abs(form - sign * form.T).max() > 0 or abs(np.linalg.det(form)) < ROUNDING:
        return f"its form is {'alternating' if sign < 0 else 'symmetric'} and invertible"
    kept = all(np.abs(a.T @ form + form @ a).max() < 1e-7 for a in group.algebra)
    if kept and all(np.abs(h.T @ form @ h - form).max() < 1e-7 for h in group.discrete):
        return ""
    return "every generator keeps the form, AᵀB + BA = 0 and hᵀBh = B, and one does not"


def _is_small(matrix: sparse.csr_array, against: sparse.csr_array) -> bool:
    largest = np.abs(against.data).max(initial=1.0)
    return bool(np.abs(matrix.data).max(initial=0.0) <= ROUNDING * largest)


def digest_of(size: int, *lists: Sequence[sparse.csr_array]) -> str:
    """What tells lists of matrices (size, size) from others; numbers count to 12 digits each."""
    digest = hashlib.sha256(f"{size} {[len(each) for each in lists]};".encode())
    for matrix in itertools.chain(*lists):
        entries = matrix.tocoo()
        numbers = _rounded(entries.data.astype(complex))
        order = np.lexsort((entries.col, entries.row))
        for part in (entries.row.astype(np.int64), entries.col.astype(np.int64), numbers):
            digest.update(np.ascontiguousarray(part[order]).tobytes())
    return digest.hexdigest()


def _rounded(numbers: np.ndarray) -> np.ndarray:
    """Complex numbers to 40 binary digits of the larger of their two parts; no −0."""
    parts = numbers.view(np.float64).reshape(-1, 2)
    _, exponents = np.frexp(np.abs(parts).max(1, keepdims=True))
    # One power of two after the other: 2⁻¹⁰⁷⁴ to 2⁴⁰ at once is more than a float holds.
    whole = np.rint(np.ldexp(np.ldexp(parts, -exponents), 40))
    return np.concatenate([whole + 0.0, exponents], axis=1)


# -- generators as a user gives them, and what their matrices show ---------------------------


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
