"""Invariant tensors of classical groups, counted and checked in ways of their own.

Counting by walks: V ⊗ W splits into irreducible representations by adding a box to the Young
diagram of W, or taking one away, so invariants of a power of V are walks from the empty diagram
back. Counting by Gram matrices: the rank of all diagrams' inner products, by fractions. Checking
by elements: a tensor is moved by group elements, one slot after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, permutations
from math import comb

import numpy as np

Shape = tuple[int, ...]


def _neighbours(shape: Shape, step: int) -> Iterator[Shape]:
    """Diagrams with one box more (step 1) or less (step −1); rows of zero are kept off."""
    rows = [*shape, 0] if step > 0 else [*shape]
    for i in range(len(rows)):
        new = [*rows]
        new[i] += step
        if all(a >= b for a, b in pairwise(new)) and min(new) >= 0:
            yield tuple(row for row in new if row)


def _walk(steps: Sequence[tuple[int, ...]], is_allowed: Callable[[Shape], bool]) -> Counter[Shape]:
    ways: Counter[Shape] = Counter({(): 1})
    for directions in steps:
        after: Counter[Shape] = Counter()
        for shape, count in ways.items():
            for direction in directions:
                for new in _neighbours(shape, direction):
                    if is_allowed(new):
                        after[new] += count
        ways = after
    return ways


def _is_orthogonal(shape: Shape, n: int) -> bool:
    """The first two columns of the diagrams of O(n) have at most n boxes together."""
    return len(shape) + sum(row > 1 for row in shape) <= n


def orthogonal(n: int, slots: int) -> int:
    return _walk([(1, -1)] * slots, lambda shape: _is_orthogonal(shape, n))[()]


def special_orthogonal(n: int, slots: int) -> int:
    """Walks of O(n) back to the start, or to the determinant, a column of n boxes."""
    ways = _walk([(1, -1)] * slots, lambda shape: _is_orthogonal(shape, n))
    return ways[()] + ways[(1,) * n]


def symplectic(m: int, slots: int) -> int:
    return _walk([(1, -1)] * slots, lambda shape: len(shape) <= m)[()]


def general_linear(n: int, upper: int, lower: int) -> int:
    """Up for slots of V, then down for slots of its dual."""
    return _walk([(1,)] * upper + [(-1,)] * lower, lambda shape: len(shape) <= n)[()]


def special_linear(n: int, upper: int, lower: int) -> int:
    """Ends at a rectangle of n rows, which is a power of the determinant."""
    upper, lower = max(upper, lower), min(upper, lower)
    ways = _walk([(1,)] * upper + [(-1,)] * lower, lambda shape: len(shape) <= n)
    width, rest = divmod(upper - lower, n)
    return 0 if rest else ways[(width,) * n if width else ()]


def catalan(k: int) -> int:
    return 1 if k == 0 else catalan(k - 1) * 2 * (2 * k - 1) // (k + 1)


def riordan(k: int) -> int:
    """1, 0, 1, 1, 3, 6, 15, …: invariants of SO(3) on k vectors."""
    found = [1, 0]
    for i in range(2, k + 1):
        found.append((i - 1) * (2 * found[-1] + 3 * found[-2]) // (i + 1))
    return found[k]


def permutations_without_long_falls(k: int, n: int) -> int:
    """Permutations of k without a falling subsequence of n + 1."""
    return sum(
        not any(all(a > b for a, b in pairwise(c)) for c in combinations(p, n + 1))
        for p in permutations(range(k))
    )


def stirling_sum(n: int, k: int) -> int:
    """Ways to part k things into at most n sets: invariants of S(n) on T(k)."""
    row = [1]
    for _ in range(k):
        row = [
            (row[j - 1] if j else 0) + (j * row[j] if j < len(row) else 0)
            for j in range(len(row) + 1)
        ]
    return sum(row[: n + 1])


def rubiks_cube(k: int) -> int:
    """T(k) of Rubik's cube: which facets share a small cube, and where they are on it.

    Corners have 3 facets and edges 2; nothing else is kept while a small cube is left untouched.
    """
    corners, edges = ([_on_small_cubes(j, facets) for j in range(k + 1)] for facets in (3, 2))
    return sum(comb(k, j) * corners[j] * edges[k - j] for j in range(k + 1))


def _on_small_cubes(k: int, facets: int) -> int:
    """Set partitions of k, each block with facets^(size − 1) ways to lie on one small cube."""
    if k == 0:
        return 1
    return sum(
        comb(k - 1, size - 1) * facets ** (size - 1) * _on_small_cubes(k - size, facets)
        for size in range(1, k + 1)
    )


def two_symmetric_groups(k: int) -> int:
    """T(k) of S(n) × S(n) on n + n points, n at least k."""
    bell = [stirling_sum(j, j) for j in range(k + 1)]
    return sum(comb(k, j) * bell[j] * bell[k - j] for j in range(k + 1))


# -- Gram matrices -----------------------------------------------------------------------------


def matchings(points: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    if not points:
        yield ()
        return
    first, *rest = points
    for partner in rest:
        for others in matchings([point for point in rest if point != partner]):
            yield ((first, partner), *others)


def matching_gram(slots: int, loop: int) -> list[list[int]]:
    """loop^(number of loops) of every two matchings laid over each other."""
    every = [_partners(each) for each in matchings(range(slots))]
    return [[loop ** _loops(a, b) for b in every] for a in every]


def permutation_gram(k: int, n: int) -> list[list[int]]:
    """n^(number of cycles of σ⁻¹τ)."""
    every = [{i: k + p for i, p in enumerate(each)} for each in permutations(range(k))]
    both = [each | {b: a for a, b in each.items()} for each in every]
    return [[n ** _loops(a, b) for b in both] for a in both]


def symbol_gram(slots: int, n: int) -> list[list[int]]:
    """Of ε on n slots and a matching of the others, without the factor n! that all have.

    A path from the first diagram's ε to itself gives zero; otherwise paths join the two ε, with
    the sign of the permutation, and loops count n.
    """
    every = [
        (legs, _partners(each))
        for legs in combinations(range(slots), n)
        for each in matchings([point for point in range(slots) if point not in legs])
    ]
    return [[_symbol_product(a, b, n) for b in every] for a in every]


def _symbol_product(
    a: tuple[tuple[int, ...], dict[int, int]], b: tuple[tuple[int, ...], dict[int, int]], n: int
) -> int:
    (legs, first), (other_legs, second) = a, b
    seen, ends = set(), []
    for point in legs:
        use_second = True
        seen.add(point)
        while point in (second if use_second else first):
            point = (second if use_second else first)[point]
            seen.add(point)
            use_second = not use_second
        if not use_second:  # it came back to the first diagram's own symbol
            return 0
        ends.append(other_legs.index(point))
    sign = 1
    for i, j in combinations(range(n), 2):
        sign *= 1 if ends[i] < ends[j] else -1
    kept = {p: q for p, q in first.items() if p not in seen}
    return sign * n ** _loops(kept, {p: q for p, q in second.items() if p not in seen})


def _partners(matching: Sequence[tuple[int, int]]) -> dict[int, int]:
    return {a: b for pair in matching for a, b in (pair, pair[::-1])}


def _loops(first: dict[int, int], second: dict[int, int]) -> int:
    left, count = set(first), 0
    while left:
        point, count = min(left), count + 1
        while point in left:
            left -= {point, first[point]}
            point = second[first[point]]
    return count


def rational_rank(matrix: Sequence[Sequence[int]]) -> int:
    """Exact, by elimination in fractions."""
    rows = [[Fraction(int(entry)) for entry in row] for row in matrix]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for i in range(rank + 1, len(rows)):
            if rows[i][column]:
                factor = rows[i][column] / rows[rank][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return rank


# -- elements ----------------------------------------------------------------------------------


def moved(element: np.ndarray, is_dual: Sequence[bool], tensors: np.ndarray) -> np.ndarray:
    """Tensors (d, …, d, count) with g applied to every slot of V, g⁻ᵀ to every slot of V*."""
    inverse = np.linalg.inv(element).T
    for axis, dual in enumerate(is_dual):
        matrix = inverse if dual else element
        tensors = np.moveaxis(np.tensordot(matrix, tensors, axes=(1, axis)), 0, axis)
    return tensors
