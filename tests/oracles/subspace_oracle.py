"""Random subspaces as dense integer matrices, from a stream of signs in plain Python integers.

NumPy and the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    """The finaliser of SplitMix64."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def splitmix64(state: int, count: int) -> list[int]:
    """The generator as its author published it: add the golden ratio, then mix."""
    found = []
    for _ in range(count):
        state = (state + GOLDEN) & MASK
        found.append(mix(state))
    return found


def signs(seed: int, stream: int, rows: int, columns: int) -> np.ndarray:
    start = mix((mix(seed & MASK) + stream) & MASK)
    words = splitmix64(start, -(-rows * columns // 64))
    row = [1 - 2 * ((words[j // 64] >> (j % 64)) & 1) for j in range(rows * columns)]
    return np.array(row, dtype=np.int64).reshape(rows, columns)


def near_square(count: int) -> tuple[int, int]:
    columns = next(side for side in range(1, count + 1) if side * side >= count)
    return math.ceil(count / columns), columns


def matrix(
    kind: str, num_weights: int, dimension: int, seed: int, stream: int, rows: Sequence[int] = ()
) -> tuple[np.ndarray, float]:
    """The D × d integer matrix and its scale."""
    a, b = near_square(num_weights)
    if kind == "dense":
        return signs(seed, stream, num_weights, dimension), 1 / math.sqrt(num_weights)
    if kind == "kronecker-product":
        p, r = near_square(dimension)
        whole = np.kron(signs(seed, stream, a, p), signs(seed, stream + 1, b, r))
        return whole[:num_weights, :dimension], 1 / math.sqrt(num_weights)
    if kind == "kronecker-sum":
        u, v = signs(seed, stream, a, dimension), signs(seed, stream + 1, b, dimension)
        v[0] = u[0]
        whole = np.kron(u, np.ones((b, 1), int)) + np.kron(np.ones((a, 1), int), v)
        return whole[:num_weights], 1 / math.sqrt(2 * num_weights)
    assert kind == "film"
    whole = np.zeros((num_weights, dimension), dtype=np.int64)
    whole[list(rows)] = signs(seed, stream, len(rows), dimension)
    return whole, 1 / math.sqrt(len(rows))


def operator(
    kind: str, num_weights: int, dimension: int, seed: int, rows: Sequence[int] = ()
) -> np.ndarray:
    """P, dense, in float64."""
    kinds = kind.split("+")
    terms = [
        matrix(each, num_weights, dimension, seed, 2 * place, rows)
        for place, each in enumerate(kinds)
    ]
    return sum(whole * scale for whole, scale in terms) / math.sqrt(len(kinds))
