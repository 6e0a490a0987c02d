"""Permutations: the invariant vectors are constant on the orbits of index tuples.

If every generator permutes the coordinates of every atom, it permutes the tuples i = (i_1, …, i_m)
of a product, slowest index first, and ρ(h) v = v says v[h i] = v[i]. So the rank is the number of
orbits, and the basis

    v = Σ_{i in orbit} e_i / √size

one column for each. For S(n) on T(k) these are the ways to say which of k indices are equal (Maron
et al. 2018; Finzi 2023, A.1.5.2), for Z(n) on maps V → V the diagonals of a convolution. Integers
until the columns are normalised; how orbits are found is in `orbit_tree`.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.orbit_tree import OrbitTree
from isotropy.bases.problem import Problem
from isotropy.bases.signed_elements import Elements
from isotropy.bases.solution import check_memory
from isotropy.symmetry.groups import signed_permutation

BYTES_PER_ENTRY = 32
"""Labels, and columns while their entries are sorted."""


def orbit_basis(problem: Problem) -> sparse.csc_array | None:
    """Orthonormal columns (size, rank), 1/√size on every orbit, in the order of smallest tuples.

    None if a generator is not a permutation on every atom, or the Lie algebra does not vanish.
    """
    found = product_elements(problem)
    if found is None or found[1].signs is not None:
        return None
    return label_columns(problem, *found)


def orbit_rank(problem: Problem) -> int | None:
    """The number of orbits; labels of all tuples are not written down. None as `orbit_basis`."""
    found = product_elements(problem)
    if found is None or found[1].signs is not None:
        return None
    return label_count(problem, *found)


def product_elements(problem: Problem) -> tuple[tuple[int, ...], Elements] | None:
    """Where the points of every axis start, and the generators as signed permutations of points.

    Axes on which all generators are the same share their points; points that are last needed by
    an early axis come last, as `OrbitTree` wants them. None if a generator is not a signed
    permutation on every atom, or the Lie algebra does not vanish.
    """
    if any(np.any(factor.data) for factors in problem.algebra for factor in factors):
        return None
    count = len(problem.discrete)
    by_atom: dict[object, tuple[np.ndarray, np.ndarray]] = {}
    for axis, (atom, size) in enumerate(zip(problem.atoms, problem.shape, strict=True)):
        if atom in by_atom:
            continue
        found = [signed_permutation(factors[axis]) for factors in problem.discrete]
        if any(each is None for each in found):
            return None
        places = np.array([each[0] for each in found if each], np.int32).reshape(count, size)
        signs = np.array([each[1] for each in found if each], np.int8).reshape(count, size)
        by_atom[atom] = places, signs
    axes = [by_atom[atom] for atom in problem.atoms]
    names = [(places.shape[1], places.tobytes(), signs.tobytes()) for places, signs in axes]
    last = {name: axis for axis, name in enumerate(names)}
    starts: dict[tuple[int, bytes, bytes], int] = {}
    all_places, all_signs, points = [], [], 0
    for name in sorted(last, key=lambda name: -last[name]):
        places, signs = axes[last[name]]
        starts[name] = points
        all_places.append(places + np.int32(points))
        all_signs.append(signs)
        points += name[0]
    elements = Elements(np.concatenate([np.zeros((count, 0), np.int32), *all_places], 1))
    signs = np.concatenate([np.zeros((count, 0), np.int8), *all_signs], 1)
    if (signs < 0).any():
        elements = Elements(elements.places, signs, np.ones(count, np.int8))
    return tuple(starts[name] for name in names), elements


def label_count(problem: Problem, starts: tuple[int, ...], elements: Elements) -> int:
    """The number of orbits that count."""
    return OrbitTree(problem.shape, starts, elements).root.count


def label_columns(
    problem: Problem, starts: tuple[int, ...], elements: Elements
) -> sparse.csc_array:
    """Columns (size, rank): ±1/√size where the label of a tuple is ± the number of the column."""
    check_memory(
        BYTES_PER_ENTRY * problem.size,
        f"a basis of the orbits of {problem.size:,} tuples",
        "ask for the rank alone, or split the representation",
    )
    orbits = OrbitTree(problem.shape, starts, elements).root
    labels = orbits.labels
    if elements.signs is None:
        begins = np.arange(len(labels) + 1, dtype=np.int32)
        signs, numbers = np.ones(len(labels), np.int8), labels - np.int32(1)
    else:
        begins = np.concatenate([[0], np.cumsum(labels != 0)]).astype(np.int32)
        labels = labels[labels != 0]
        signs, numbers = np.sign(labels).astype(np.int8), np.abs(labels) - np.int32(1)
    by_row = sparse.csr_array((signs, numbers, begins), shape=(problem.size, orbits.count))
    by_column = by_row.tocsc()
    sizes = np.diff(by_column.indptr)
    values = by_column.data * np.repeat((1 / np.sqrt(sizes)).astype(problem.dtype), sizes)
    return sparse.csc_array(
        (values, by_column.indices, by_column.indptr), shape=by_column.shape, copy=False
    )
