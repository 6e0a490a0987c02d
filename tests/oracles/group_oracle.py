"""Groups by brute force: elements, orders, orbits, and invariants from written-out matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import lcm

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

RUBIK_CYCLES: dict[str, list[tuple[int, ...]]] = {
    "U": [(1, 3, 8, 6), (2, 5, 7, 4), (9, 33, 25, 17), (10, 34, 26, 18), (11, 35, 27, 19)],
    "L": [(9, 11, 16, 14), (10, 13, 15, 12), (1, 17, 41, 40), (4, 20, 44, 37), (6, 22, 46, 35)],
    "F": [(17, 19, 24, 22), (18, 21, 23, 20), (6, 25, 43, 16), (7, 28, 42, 13), (8, 30, 41, 11)],
    "R": [(25, 27, 32, 30), (26, 29, 31, 28), (3, 38, 43, 19), (5, 36, 45, 21), (8, 33, 48, 24)],
    "B": [(33, 35, 40, 38), (34, 37, 39, 36), (3, 9, 46, 32), (2, 12, 47, 29), (1, 14, 48, 27)],
    "D": [(41, 43, 48, 46), (42, 45, 47, 44), (14, 22, 30, 38), (15, 23, 31, 39), (16, 24, 32, 40)],
}
"""The six quarter turns as cycles of stickers on the unfolded cube, as computer algebra systems
print them: top 1–8, left 9–16, front 17–24, right 25–32, rear 33–40, bottom 41–48, in rows."""


def dense(matrices: Sequence[csr_array]) -> list[np.ndarray]:
    """Sparse matrices written out."""
    return [each.toarray() for each in matrices]


def rubik_turn(face: str) -> np.ndarray:
    """A quarter turn as places of 48 facets, faces in the order U F R B L D."""
    start = {"U": 0, "L": 8, "F": 16, "R": 24, "B": 32, "D": 40}
    ours = {start[f] + i: 8 * k + i for k, f in enumerate("UFRBLD") for i in range(8)}
    places = np.arange(48)
    for cycle in RUBIK_CYCLES[face]:
        for here, there in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            places[ours[here - 1]] = ours[there - 1]
    return places


def elements(generators: Sequence[np.ndarray], largest: int = 2000) -> np.ndarray:
    """Every element of the finite group with these matrices, (order, d, d)."""
    found = [np.eye(len(generators[0]), dtype=complex)]
    index = 0
    while index < len(found):
        for generator in generators:
            product = generator @ found[index]
            if np.abs(np.stack(found) - product).max((1, 2)).min() > 1e-6:
                found.append(product)
        index += 1
        assert len(found) <= largest, "more elements than expected"
    return np.stack(found)


def matrix_order(matrix: np.ndarray, largest: int = 1000) -> int:
    """The smallest k ≥ 1 with matrix^k = 1."""
    power = matrix
    for k in range(1, largest + 1):
        if np.abs(power - np.eye(len(matrix))).max() < 1e-9:
            return k
        power = power @ matrix
    raise AssertionError(f"no order up to {largest}")


def permutation_order(places: np.ndarray) -> int:
    """The least common multiple of the lengths of its cycles."""
    lengths, seen = [], set()
    for start in range(len(places)):
        length, at = 0, start
        while at not in seen:
            seen.add(at)
            at, length = int(places[at]), length + 1
        lengths.append(max(length, 1))
    return reduce(lcm, lengths, 1)


def permutation_group_order(generators: Sequence[np.ndarray], rounds: int = 40) -> int:
    """|G| = Π of the orbit sizes along a chain of stabilisers (Schreier and Sims, randomised).

    Random elements are sifted through the chain, and what is left over joins it. The result never
    exceeds |G|, and falls short of it with a probability of about 2^−rounds.
    """
    random = np.random.default_rng(0)
    size = len(generators[0])
    identity = np.arange(size)
    pool = [np.asarray(each) for each in generators] * max(1, -(-10 // len(generators)))
    strong: list[list[np.ndarray]] = [[] for _ in range(size)]  # fix 0 … level − 1
    chain: list[dict[int, np.ndarray]] = [{level: identity} for level in range(size)]

    def random_element() -> np.ndarray:
        first, second = random.choice(len(pool), 2, replace=False)
        other = pool[second] if random.random() < 0.5 else np.argsort(pool[second])
        pool[first] = other[pool[first]] if random.random() < 0.5 else pool[first][other]
        return pool[first]

    def orbit(level: int) -> dict[int, np.ndarray]:
        found, queue = {level: identity}, [level]
        for point in queue:
            for each in (g for deeper in strong[level:] for g in deeper):
                image = int(each[point])
                if image not in found:
                    found[image] = each[found[point]]
                    queue.append(image)
        return found

    for _ in range(50):
        random_element()
    unchanged = 0
    while unchanged < rounds:
        element, level = random_element(), 0
        while level < size and int(element[level]) in chain[level]:
            element = np.argsort(chain[level][int(element[level])])[element]
            level += 1
        if level == size:
            unchanged += 1
            continue
        unchanged = 0
        strong[level].append(element)
        for each in range(level + 1):
            chain[each] = orbit(each)
    order = 1
    for each in chain:
        order *= len(each)
    return order


def count_orbits(generators: Sequence[np.ndarray], rank: int = 1) -> int:
    """Orbits of permutations on tuples of `rank` points."""
    size = len(generators[0])
    shape = (size,) * rank
    points = np.arange(size**rank)
    digits = np.unravel_index(points, shape)
    rows, columns = [], []
    for places in generators:
        rows.append(points)
        columns.append(np.ravel_multi_index(tuple(places[digit] for digit in digits), shape))
    edges = np.concatenate(rows), np.concatenate(columns)
    graph = coo_array((np.ones(len(edges[0])), edges), (len(points), len(points)))
    return int(connected_components(graph, directed=False)[0])


def real_rows(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Complex matrices as rows of real numbers."""
    stacked = np.stack(matrices).reshape(len(matrices), -1)
    return np.concatenate([stacked.real, stacked.imag], 1)


def is_closed(algebra: Sequence[np.ndarray]) -> bool:
    """Whether every bracket is a real combination of the matrices."""
    rows = real_rows(algebra)
    for first in algebra:
        for second in algebra:
            bracket = real_rows([first @ second - second @ first])[0]
            weights = np.linalg.lstsq(rows.T, bracket, rcond=None)[0]
            if np.abs(weights @ rows - bracket).max() > 1e-9:
                return False
    return True


def count_invariants(
    algebra: Sequence[np.ndarray], discrete: Sequence[np.ndarray], rank: int
) -> int:
    """The dimension of the tensors of `rank` that the generators leave in place, by SVD."""
    size = len((*algebra, *discrete)[0])
    conditions = [
        sum(
            np.kron(np.kron(np.eye(size**axis), a), np.eye(size ** (rank - 1 - axis)))
            for axis in range(rank)
        )
        for a in algebra
    ]
    conditions += [reduce(np.kron, [h] * rank) - np.eye(size**rank) for h in discrete]
    values = np.linalg.svd(np.concatenate(conditions), compute_uv=False)
    return int((values < 1e-9).sum())


def rotation(axis: Sequence[float], angle: float) -> np.ndarray:
    """The rotation of space about an axis (3, 3), by Rodrigues' formula."""
    x, y, z = np.asarray(axis, dtype=float) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def icosahedral_generators() -> list[np.ndarray]:
    """Rotations of an icosahedron with a corner at (0, 1, φ): about it, and about a face."""
    golden = (1 + 5**0.5) / 2
    return [rotation([0, 1, golden], 2 * np.pi / 5), rotation([1, 1, 1], 2 * np.pi / 3)]


def octahedral_generators() -> list[np.ndarray]:
    """Rotations of a cube with faces across the axes: about a face and about a corner."""
    return [rotation([0, 0, 1], np.pi / 2), rotation([1, 1, 1], 2 * np.pi / 3)]
