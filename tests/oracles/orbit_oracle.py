"""Invariant vectors of finite groups by enumeration of all elements, and by a plain graph.

A generator is given by its matrices on the factors of a tensor product. NumPy and SciPy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

Factors = tuple[np.ndarray, ...]


def all_elements(generators: Sequence[Factors], shape: Sequence[int]) -> list[Factors]:
    """Every product of generators, each once: a finite group of integer matrices."""
    identity = tuple(np.eye(size, dtype=int) for size in shape)
    known = {_key(identity): identity}
    edge = [identity]
    while edge:
        grown = []
        for element in edge:
            for generator in generators:
                product = tuple(g @ e for g, e in zip(generator, element, strict=True))
                if _key(product) not in known:
                    known[_key(product)] = product
                    grown.append(product)
        edge = grown
    return list(known.values())


def burnside_rank(elements: Sequence[Factors]) -> int:
    """The mean of the characters, Π_j tr ρ_j(g): the dimension of the invariant vectors."""
    total = sum(int(np.prod([np.trace(factor) for factor in each])) for each in elements)
    rank, left = divmod(total, len(elements))
    assert left == 0
    return rank


def group_average(elements: Sequence[Factors], size: int) -> np.ndarray:
    """The mean of ρ(g), which projects onto the invariant vectors (size, size)."""
    found = np.zeros((size, size))
    for each in elements:
        found += reduce(np.kron, each, np.eye(1))
    return found / len(elements)


def component_labels(
    generators: Sequence[Sequence[np.ndarray]], shape: Sequence[int]
) -> np.ndarray:
    """Orbits of tuples under permutations (i goes to places[i] on each axis): connected components,
    numbered by their first tuple."""
    size = int(np.prod(shape))
    tuples = np.indices(shape).reshape(len(shape), size)
    graph = sparse.csr_array((size, size), dtype=bool)
    for axes in generators:
        images = np.ravel_multi_index(
            [places[index] for places, index in zip(axes, tuples, strict=True)], shape
        )
        graph = graph + sparse.csr_array((np.ones(size, bool), (np.arange(size), images)))
    _, labels = connected_components(graph, directed=False)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _key(factors: Factors) -> bytes:
    return b"".join(np.asarray(each, np.int64).tobytes() for each in factors)
