"""Invariant tensors of the classical groups on V and its dual: the first fundamental theorem.

    O(n), Sp(m)  pairings of all slots: B⁻¹ joins two slots of V, B two of V*, δ one of each
    SO(n)        also one Levi-Civita symbol ε on n slots, the others paired
    GL(n), U(n)  pairings δ of all slots of V with all of V*
    SL(n), SU(n) also symbols ε on slots of V, or on slots of V*, never both

with gᵀ B g = B the form that the group keeps (Weyl 1939, II.A and VI.1). ε has upper indices;
those in slots of V* are lowered by B. Lorentz groups differ from O(n) by their form alone, and
SU from SL in nothing, since invariants are the same for a group and its complexification. That a
group is classical is checked where it is made (`Group.classical`). Columns are sparse, and never
written out densely; a tensor is row-major, its first slot slow.

These diagrams span, but depend on each other once n is small: an n × n matrix has no minors of
n + 1.

**Which are independent.** Points in a row, an edge from an opener to a later closer. Two edges are
nested if one lies within the other. The (n + 1)-minors of a symmetric matrix of inner products
xᵢ·xⱼ, and those of a matrix of contractions ξᵢ(xⱼ), are a Gröbner basis of all relations, with
leading terms on the diagonal; the Pfaffians of 2m + 2 of an alternating one, with leading terms
nested (Sturmfels 1990, Conca 1994, Herzog and Trung 1992). So a basis is made of the pairings
without

    O(n), GL(n)   n + 1 edges of which no two are nested:   closers rise, by order of openers
    Sp(m)         m + 1 edges of which every two are:       closers fall

that is, the longest rising (falling) subsequence of closers is at most n (m). A symbol ε times one
more ε on n further, auxiliary points is a determinant of pairings, whose leading term pairs the
slots with those points in order: a diagram with symbols is kept if its pairing with auxiliary
points at the end of the row is. The leading terms of all that are kept differ, hence they are
independent; there are as many as there are invariants, hence they span.

**How many**, without listing them. f(λ), the number of standard Young tableaux of shape λ, summed
over shapes (k slots; for SL and GL p slots of V, q of its dual, p − q = a n ≥ 0):

    O(n)          even rows, at most n of them              λ = 2μ
    ε part of SO  n odd rows                                λ = 2μ + 1ⁿ
    Sp(m)         rows in equal pairs, at most m pairs      λ = (μ₁, μ₁, μ₂, μ₂, …)
    GL(n), SL(n)  f(λ) f(λ + aⁿ), λ of q boxes, n rows
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import factorial
from typing import Literal

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.problem import Problem, check_memory
from isotropy.checks import CallerError
from isotropy.symmetry.groups.representations import BASE, Atom

Kind = Literal["orthogonal", "symplectic", "linear"]

KINDS: dict[str, tuple[Kind, bool]] = {
    "O": ("orthogonal", False),
    "SO": ("orthogonal", True),
    "Sp": ("symplectic", False),
    "GL": ("linear", False),
    "U": ("linear", False),
    "SL": ("linear", True),
    "SU": ("linear", True),
}
"""How a classical group's slots are paired, and whether there are symbols ε."""


def invariant_rank(problem: Problem) -> int | None:
    """How many invariants there are; None where the theorem says nothing."""
    parts = _parts(problem)
    return None if parts is None else sum(part.count for part in parts)


def invariant_basis(problem: Problem) -> sparse.csc_array | None:
    """Independent invariants (size, rank), of unit length; None where the theorem says nothing."""
    parts = _parts(problem)
    if parts is None:
        return None
    _check_size(problem, parts)
    tables = _Tables(problem)
    found = [tables.columns(part.diagrams()) for part in parts if part.count]
    if not found:
        return sparse.csc_array((problem.size, 0), dtype=problem.dtype)
    columns = sparse.csc_array(sparse.hstack(found, format="csc")) if len(found) > 1 else found[0]
    rank = sum(part.count for part in parts)
    assert columns.shape[1] == rank, f"{columns.shape[1]} diagrams, {rank} invariants"
    norms = np.sqrt(np.add.reduceat(np.abs(columns.data) ** 2, columns.indptr[:-1]))
    data = columns.data / np.repeat(norms, np.diff(columns.indptr))
    indices, indptr = columns.indices, columns.indptr
    return sparse.csc_array((data.astype(problem.dtype), indices, indptr), columns.shape)


# -- independent diagrams ----------------------------------------------------------------------


@dataclass(frozen=True)
class Diagrams:
    """Several diagrams of one kind on the same slots.

    pairs:   (diagrams, pairs, 2) slots, the opener first
    symbols: (diagrams, symbols, n) slots under each ε, in order
    """

    pairs: np.ndarray
    symbols: np.ndarray


def independent_pairings(
    slots: int,
    longest: int,
    *,
    are_falling: bool = False,
    first_closer: int = 0,
    symbols: int = 0,
    side: int = 0,
) -> Diagrams:
    """All diagrams on `slots` slots without more than `longest` edges of one direction.

    are_falling:  whether it is falling closers that are few, rather than rising ones
    first_closer: slots before it pair only with slots from it on (V before its dual)
    symbols:      how many ε there are, of `side` slots each
    """
    legs_from = slots  # auxiliary points follow, `side` for each symbol
    points = slots + symbols * side
    closers = np.full((1, points), -1, np.int16)
    is_taken = np.zeros((1, points), bool)
    # The longest sequence that ends with the edge of this opener.
    lengths = np.zeros((1, points), np.int16)
    for opener in range(slots):
        is_free = ~is_taken[:, opener]
        found = [(closers[~is_free], is_taken[~is_free], lengths[~is_free])]
        for closer in range(max(opener + 1, first_closer), points):
            can, most = is_free & ~is_taken[:, closer], longest
            if closer >= legs_from:
                leg = (closer - legs_from) % side
                most = leg + 1  # the other legs of this symbol will follow
                if leg:
                    can &= is_taken[:, closer - 1]
            before = closers[can, :opener]
            follows = (before > closer) if are_falling else (before >= 0) & (before < closer)
            length = 1 + np.where(follows, lengths[can, :opener], 0).max(axis=1, initial=0)
            chosen = np.flatnonzero(can)[length <= most]
            if len(chosen):
                new = closers[chosen], is_taken[chosen], lengths[chosen]
                new[0][:, opener] = closer
                new[1][:, (opener, closer)] = True
                new[2][:, opener] = length[length <= most]
                found.append(new)
        closers, is_taken, lengths = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return _as_diagrams(closers[is_taken.all(axis=1)], legs_from, symbols, side)


def _as_diagrams(closers: np.ndarray, legs_from: int, symbols: int, side: int) -> Diagrams:
    count = len(closers)
    is_edge = (closers >= 0) & (closers < legs_from)
    openers = np.nonzero(is_edge)[1].reshape(count, -1) if count else np.zeros((0, 0), int)
    ends = closers[is_edge].reshape(openers.shape).astype(np.int64)
    legs = np.zeros((count, symbols * side), np.int64)
    row, opener = np.nonzero(closers >= legs_from)
    legs[row, closers[row, opener] - legs_from] = opener
    return Diagrams(np.stack([openers, ends], axis=-1), legs.reshape(count, symbols, side))


# -- counting ----------------------------------------------------------------------------------


def count_orthogonal(slots: int, side: int, symbols: int = 0) -> int:
    """Invariants of O(side) on `slots` slots; with one ε, the tensors of SO(side) that change sign
    under reflections."""
    paired = slots - symbols * side
    if paired < 0 or paired % 2:
        return 0
    shapes = (_with_rows(shape, side) for shape in partitions(paired // 2, side))
    return sum(standard_tableaux(tuple(2 * row + symbols for row in shape)) for shape in shapes)


def count_symplectic(slots: int, pairs: int) -> int:
    """Invariants of Sp(pairs), on 2 · pairs dimensions."""
    if slots % 2:
        return 0
    shapes = partitions(slots // 2, pairs)
    return sum(standard_tableaux(tuple(r for row in shape for r in (row, row))) for shape in shapes)


def count_linear(slots: int, dual_slots: int, side: int, symbols: int) -> int:
    """Invariants of SL(side), slots − dual_slots = symbols · side; of GL(side) for no symbols."""
    found = 0
    for shape in partitions(dual_slots, side):
        larger = tuple(row + symbols for row in _with_rows(shape, side))
        found += standard_tableaux(shape) * standard_tableaux(larger)
    assert slots - dual_slots == symbols * side
    return found


def partitions(total: int, rows: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as a falling sum of at most `rows` positive integers."""
    if total == 0:
        yield ()
    elif rows > 0:
        for first in range(min(total, largest or total), 0, -1):
            for rest in partitions(total - first, rows - 1, first):
                yield (first, *rest)


def standard_tableaux(shape: tuple[int, ...]) -> int:
    """f(λ) by hook lengths, exact."""
    columns = [sum(row > j for row in shape) for j in range(max(shape, default=0))]
    hooks = 1
    for i, row in enumerate(shape):
        for j in range(row):
            hooks *= row - j + columns[j] - i - 1
    return factorial(sum(shape)) // hooks


def _with_rows(shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    return shape + (0,) * (rows - len(shape))


# -- the kinds of diagrams that a group has ----------------------------------------------------


class _Part:
    """Diagrams with the same number of symbols.

    slots:   places in the tensor, in the order of the row of points
    openers: for linear groups, how many slots come before those they pair with; else 0
    """

    def __init__(
        self, kind: Kind, side: int, slots: Sequence[int], openers: int, symbols: int
    ) -> None:
        self.kind, self.side, self.symbols = kind, side, symbols
        self.slots, self.openers = np.array(slots, np.int64), openers
        self.pairs = (len(slots) - symbols * side) // 2
        self.count = self._count()

    def _count(self) -> int:
        slots = len(self.slots)
        if self.kind == "linear":
            return count_linear(self.openers, slots - self.openers, self.side, self.symbols)
        if self.kind == "symplectic":
            return count_symplectic(slots, self.side // 2)
        return count_orthogonal(slots, self.side, self.symbols)

    def diagrams(self) -> Diagrams:
        is_symplectic = self.kind == "symplectic"
        found = independent_pairings(
            len(self.slots),
            self.side // 2 if is_symplectic else self.side,
            are_falling=is_symplectic,
            first_closer=self.openers,
            symbols=self.symbols,
            side=self.side,
        )
        return Diagrams(self.slots[found.pairs], self.slots[found.symbols])


def _parts(problem: Problem) -> list[_Part] | None:
    is_dual = [_is_dual(atom) for atom in problem.atoms]
    classical = problem.group.classical
    if classical is None or None in is_dual:
        return None
    kind, has_symbols = KINDS[classical.kind]
    side, slots = problem.group.dimension, range(len(is_dual))
    if kind != "linear":
        parts = [_Part(kind, side, slots, 0, 0)]
        if has_symbols and len(slots) >= side:
            parts.append(_Part(kind, side, slots, 0, 1))
        return parts
    upper = [slot for slot in slots if not is_dual[slot]]
    lower = [slot for slot in slots if is_dual[slot]]
    many, few = (upper, lower) if len(upper) >= len(lower) else (lower, upper)
    symbols, rest = divmod(len(many) - len(few), side)
    if rest or (symbols and not has_symbols):
        return []
    return [_Part(kind, side, [*many, *few], len(many), symbols)]


def _is_dual(atom: Atom) -> bool | None:
    """Whether an atom is V* rather than V; None if it is neither. Names do not tell."""
    if isinstance(atom, type(BASE)):
        return False
    return True if isinstance(atom.dual, type(BASE)) else None


def _check_size(problem: Problem, parts: Sequence[_Part]) -> None:
    form = problem.group.classical.form if problem.group.classical else None
    side = problem.group.dimension
    # Entries of one pairing; a symbol has a place for every permutation, more if it is lowered by
    # a form that mixes axes.
    wide = side if form is None else max(side, int(np.count_nonzero(form)))
    entries = 0
    for part in parts:
        symbol = min(factorial(side) * (wide // side) ** side, side**side)
        entries += part.count * wide**part.pairs * symbol**part.symbols
    rank = sum(part.count for part in parts)
    check_memory(
        48.0 * entries,
        f"a basis of {rank:,} invariants of {problem.size:,} entries, {entries:,} of them not zero",
        "ask for its rank alone, or split the representation",
    )
    if problem.size >= 2**62:
        raise CallerError(
            f"a tensor of {problem.size:.1e} entries cannot be indexed; ask for the rank alone"
        )


# -- the vectors -------------------------------------------------------------------------------


class _Tables:
    """The entries of a pairing and of a symbol, by whether their slots are V or V*."""

    def __init__(self, problem: Problem) -> None:
        self.side, self.size = problem.group.dimension, problem.size
        self.is_dual = np.array([_is_dual(atom) for atom in problem.atoms], bool)
        powers = range(len(problem.atoms) - 1, -1, -1)
        self.strides = np.array([self.side**power for power in powers], np.int64)
        classical = problem.group.classical
        identity = np.eye(self.side)
        given = classical.form if classical else None
        self.form = identity if given is None else np.asarray(given)
        if not np.iscomplex(self.form).any():
            self.form = self.form.real
        inverse = _inverse(self.form)
        self._pairs = _padded([inverse, identity, identity, self.form])

    def columns(self, diagrams: Diagrams) -> sparse.csc_array:
        """One vector for each diagram, its entries products of those of B, B⁻¹, δ and ε."""
        count = len(diagrams.pairs)
        lowered = self.is_dual[diagrams.symbols].reshape(count, -1)
        # Symbols on the same pattern of V and V* have the same entries. Those of linear groups
        # are all on V or all on V*, and nothing is lowered.
        patterns, which = np.unique(lowered, axis=0, return_inverse=True)
        parts = []
        for number, pattern in enumerate(patterns):
            chosen = np.flatnonzero(which.ravel() == number)
            parts.append(self._alike(diagrams.pairs[chosen], diagrams.symbols[chosen], pattern))
        return parts[0] if len(parts) == 1 else sparse.csc_array(sparse.hstack(parts, format="csc"))

    def _alike(
        self, pairs: np.ndarray, symbols: np.ndarray, pattern: np.ndarray
    ) -> sparse.csc_array:
        count = len(pairs)
        places = np.zeros((count, 1), np.int32 if self.size < 2**31 else np.int64)
        values = np.ones((count, 1))
        first, second, entries = self._pairs
        for i, j in np.moveaxis(pairs, 0, -1):  # the slots of one pair, in every diagram
            kind = 2 * self.is_dual[i] + self.is_dual[j]
            offsets = self.strides[i, None] * first[kind] + self.strides[j, None] * second[kind]
            places, values = _outer(places, values, offsets, entries[kind])
        for slots in np.moveaxis(symbols, 0, 1):
            is_lowered = pattern[: self.side] if symbols.shape[1] == 1 else pattern[:0]
            indices, signs = self._symbol(is_lowered)
            offsets = self.strides[slots] @ indices.T
            places, values = _outer(places, values, offsets, np.tile(signs, (count, 1)))
        starts = np.arange(count + 1, dtype=np.int64) * places.shape[1]
        starts = starts.astype(np.int32) if places.size < 2**31 else starts
        shape = (self.size, count)
        found = sparse.csc_array((values.ravel(), places.ravel(), starts), shape)
        found.eliminate_zeros()
        found.sort_indices()
        return found

    def _symbol(self, is_lowered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ε (entries, n) and their values, with some of its indices lowered by B."""
        indices, values = levi_civita(self.side)
        if not is_lowered.any() or is_lowered.all():  # all of them: det(B) ε
            return indices, values
        form = sparse.csr_array(self.form)
        for axis in np.flatnonzero(is_lowered):
            rows = indices[:, axis]
            counts = np.diff(form.indptr)[rows]
            copies = np.repeat(np.arange(len(rows)), counts)
            within = np.arange(len(copies)) - np.repeat(np.cumsum(counts) - counts, counts)
            entry = form.indptr[rows[copies]] + within
            indices, values = indices[copies], values[copies] * form.data[entry]
            indices[:, axis] = form.indices[entry]
        return _summed(indices, values, self.side)


@lru_cache(maxsize=8)
def levi_civita(side: int) -> tuple[np.ndarray, np.ndarray]:
    """The permutations of 0 … side − 1 (side!, side), and their signs."""
    found = np.array(list(permutations(range(side))), np.int64).reshape(-1, side)
    is_odd = np.zeros(len(found), bool)
    for i in range(side):
        for j in range(i):
            is_odd ^= found[:, j] > found[:, i]
    return found, np.where(is_odd, -1.0, 1.0)


def _outer(
    places: np.ndarray, values: np.ndarray, offsets: np.ndarray, factors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Products of every entry so far with every entry of one more factor, diagram by diagram."""
    count = len(places)
    return (
        (places[:, :, None] + offsets.astype(places.dtype)[:, None, :]).reshape(count, -1),
        (values[:, :, None] * factors[:, None, :]).reshape(count, -1),
    )


def _padded(matrices: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of the entries that are not zero, (matrices, entries) each."""
    found = [sparse.coo_array(matrix) for matrix in matrices]
    width = max(each.nnz for each in found)
    rows, columns = np.zeros((2, len(found), width), np.int64)
    values = np.zeros((len(found), width), np.result_type(*matrices))
    for number, each in enumerate(found):
        rows[number, : each.nnz], columns[number, : each.nnz] = each.coords
        values[number, : each.nnz] = each.data
    return rows, columns, values


def _summed(indices: np.ndarray, values: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries at the same place added."""
    codes = indices @ side ** np.arange(indices.shape[1])
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    if len(first) == len(codes):
        return indices, values
    total = np.zeros(len(first), values.dtype)
    np.add.at(total, which.ravel(), values)
    return indices[first], total


def _inverse(form: np.ndarray) -> np.ndarray:
    """B⁻¹, exact where B is orthogonal."""
    if np.isrealobj(form) and np.array_equal(form @ form.T, np.eye(len(form))):
        return form.T
    found = np.linalg.inv(form)
    found[np.abs(found) < 1e-14 * np.abs(found).max()] = 0
    return found
