"""Invariant tensors of the classical groups on V and its dual: the first fundamental theorem.

    O(n), Sp(m)  pairings of all slots: B⁻¹ joins two slots of V, B two of V*, δ one of each
    SO(n)        also one Levi-Civita symbol ε on n slots, the others paired
    GL(n), U(n)  pairings δ of all slots of V with all of V*
    SL(n), SU(n) also symbols ε on slots of V, or on slots of V*, never both

with gᵀ B g = B the form that the group keeps (Weyl 1939, II.A and VI.1). ε has upper indices;
those in slots of V* are lowered by B. Lorentz groups differ from O(n) by their form alone, and
SU from SL in nothing, since invariants are the same for a group and its complexification.

`diagrams` knows which of these tensors are independent, and how many there are without listing
them; vectors are sparse, and never written out densely. A tensor is row-major, its first
slot slow. That a group is classical is checked where it is made (`Group.classical`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from math import factorial
from typing import Literal

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.diagrams import (
    Diagrams,
    count_linear,
    count_orthogonal,
    count_symplectic,
    independent_pairings,
)
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
