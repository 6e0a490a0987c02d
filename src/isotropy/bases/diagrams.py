"""Diagrams of the first fundamental theorem: those that are independent, and how many there are.

An invariant tensor of a classical group is a combination of diagrams: every slot of the tensor is
paired with another slot, or is one of n slots under a Levi-Civita symbol ε (Weyl 1939). The
diagrams span, but depend on each other once n is small: an n × n matrix has no minors of n + 1.

**Which.** Points in a row, an edge from an opener to a later closer. Two edges are nested if one
lies within the other. The (n + 1)-minors of a symmetric matrix of inner products xᵢ·xⱼ, and those
of a matrix of contractions ξᵢ(xⱼ), are a Gröbner basis of all relations, with leading terms on
the diagonal; the Pfaffians of 2m + 2 of an alternating one, with leading terms nested (Sturmfels
1990, Conca 1994, Herzog and Trung 1992). So a basis is made of the pairings without

    O(n), GL(n)   n + 1 edges of which no two are nested:   closers rise, by order of openers
    Sp(m)         m + 1 edges of which every two are:       closers fall

that is, the longest rising (falling) subsequence of closers is at most n (m). A symbol ε times one
more ε on n further, auxiliary points is a determinant of pairings, whose leading term pairs the
slots with those points in order: a diagram with symbols is kept if its pairing with auxiliary
points at the end of the row is. The leading terms of all that are kept differ, hence they are
independent; there are as many as there are invariants, hence they span.

**How many.** f(λ), the number of standard Young tableaux of shape λ, summed over shapes (k slots;
for SL and GL p slots of V, q of its dual, p − q = a n ≥ 0):

    O(n)          even rows, at most n of them              λ = 2μ
    ε part of SO  n odd rows                                λ = 2μ + 1ⁿ
    Sp(m)         rows in equal pairs, at most m pairs      λ = (μ₁, μ₁, μ₂, μ₂, …)
    GL(n), SL(n)  f(λ) f(λ + aⁿ), λ of q boxes, n rows
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import factorial

import numpy as np


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
