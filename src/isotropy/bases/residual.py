"""By how much vectors violate the constraints: every basis is put back into them.

For a generator g and a vector v let C_g v be dρ(A) v, or ρ(h) v − v. The residual of a basis is

    max over vectors and generators of  ‖C_g v‖ / (‖v‖ size_g)                  (`Problem.sizes`)

Measured in one of three ways, every vector on its own in each:

    labels  signed permutations, and vectors that share no entry and are ± one number each, as those
            of orbits: integers are compared, and the residual is 0 exactly
    exact   where it is little work (`LITTLE`): the formula above
    probes  elsewhere: C_g v as a matrix U (left, right), rows the first axes, columns the others,
            is asked for aᵀ U b with normal a and b. E (aᵀ U b)² = ‖U‖², and by transposing

                aᵀ (ρ(h) v) b = (ρ_left(h)ᵀ a)ᵀ v (ρ_right(h)ᵀ b)

            the generator acts on a and b, which are small, and never on v. The Lie algebra is asked
            as one, by a normal combination of all A_i: E (aᵀ U b)² = Σ_i ‖C_i v‖² / size_i².

Probes give the root of the mean over `PROBES` of them, with the root of the sum of squares over the
Lie algebra in place of its largest: an estimate, of the same numbers each time (a check is a
function). Each probe is at worst a product of three normal numbers: in 9 cases of 10 the estimate
is then from 0.1 to 2 times the truth, and a vector wrong by 100 times the tolerance passes with a
probability of 2e-4, by 1000 times of 7e-7, by 10⁶ times of 1e-16. One with a wrong entry or sign is
mostly wrong by more. No vector is overlooked for being one of many.

What is guaranteed: no vector is returned that is not invariant, for certain by labels and exact, up
to these odds by probes. That none is missing no residual can see: it is up to each method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.problem import Columns, Matrix, Problem, kronecker, kronecker_sum
from isotropy.symmetry.groups.group import signed_permutation

LITTLE = 2e5
"""Products of an entry of a vector with one of a generator up to which all are formed."""
PROBES = 4
"""How often all vectors and generators are asked."""
AT_ONCE = 4_000_000
"""Entries of columns that are put into a constraint at once."""
LABELLED = 8
"""Labels are written down for every row where this many times the nonzeros are as many."""


def residual(problem: Problem, columns: Columns) -> float:
    """The largest relative violation of a constraint by columns (size, rank), dense or sparse.

    0 if there are no columns; NaN if one is zero or not finite.
    """
    is_sparse = sparse.issparse(columns)
    if columns.shape[1] == 0:
        return 0.0
    if is_sparse:
        columns = sparse.csc_array(columns)
        norms = _column_norms(columns)
    else:
        norms = np.linalg.norm(columns, axis=0)
    if not (norms.all() and np.isfinite(norms).all()):
        return float("nan")
    if is_sparse and _are_orbits(problem, columns):
        return 0.0
    generators = (*problem.algebra, *problem.discrete)
    work = sum(1 + sum(f.nnz / max(f.shape[0], 1) for f in factors) for factors in generators)
    entries = columns.nnz if is_sparse else columns.size
    measure = _exact if work * entries <= LITTLE else _probed
    worst = [(measure(problem, part) / size).max() for part, size in _parts(columns, norms)]
    return float(np.max(worst))  # of Python's own `max` a NaN may be lost


# -- all products ------------------------------------------------------------------------------


def _exact(problem: Problem, columns: Columns) -> np.ndarray:
    """max_g ‖C_g v‖ / size_g of every column."""
    worst = np.zeros(columns.shape[1])
    for size, left in zip(problem.sizes, problem.constraints(columns), strict=True):
        worst = np.maximum(worst, _column_norms(left) / size)
    return worst


# -- labels ------------------------------------------------------------------------------------


def _are_orbits(problem: Problem, columns: sparse.csc_array) -> bool:
    """Whether all generators are seen, by integers alone, to leave all columns in place."""
    if any(factor.nnz for factors in problem.algebra for factor in factors):
        return False
    by_atom = {
        atom: [signed_permutation(each) for each in atom.discrete(problem.group)]
        for atom in set(problem.atoms)
    }
    if any(each is None for images in by_atom.values() for each in images):
        return False
    labels = _labels(columns)
    if labels is None:
        return False
    cut = _cut(problem.shape)
    for number in range(len(problem.discrete)):
        images = [by_atom[atom][number] for atom in problem.atoms]
        signed = [each for each in images if each is not None]
        (rows, row_signs), (places, signs) = _product(signed[:cut]), _product(signed[cut:])
        tensor = labels.reshape(len(rows), len(places))
        moved = np.take(tensor[rows], places, axis=1)
        if (row_signs < 0).any() or (signs < 0).any():
            moved *= row_signs[:, None]
            moved *= signs
        if not np.array_equal(moved, tensor):
            return False
    return True


def _labels(columns: sparse.csc_array) -> np.ndarray | None:
    """± the number of the column, from 1, that has an entry in a row, 0 without one.

    None if two columns have an entry in one row, or a column is not ± one number.
    """
    size, rank = columns.shape
    if size > LABELLED * columns.nnz or np.iscomplexobj(columns.data):
        return None
    counts = np.diff(columns.indptr)
    values = np.repeat(np.abs(columns.data[columns.indptr[:-1]]), counts)
    if not np.array_equal(np.abs(columns.data), values) or not values.all():
        return None
    numbers = np.repeat(np.arange(1, rank + 1, dtype=np.int32), counts)
    labels = np.zeros(size, np.int32)
    labels[columns.indices] = np.where(columns.data < 0, -numbers, numbers)
    return labels if np.count_nonzero(labels) == columns.nnz else None


def _product(signed: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """A tensor product of signed permutations (places, signs)."""
    places, signs = np.zeros(1, np.int64), np.ones(1, np.int32)
    for more, factors in signed:
        places = np.add.outer(places * len(more), more).ravel()
        signs = np.multiply.outer(signs, factors.astype(np.int32)).ravel()
    return places, signs


# -- probes ------------------------------------------------------------------------------------


def _probed(problem: Problem, columns: Columns) -> np.ndarray:
    """An estimate of max_g ‖C_g v‖ / size_g of every column."""
    generator = np.random.default_rng(0)
    cut, number = _cut(problem.shape), len(problem.algebra)
    shapes = problem.shape[:cut], problem.shape[cut:]
    squares = np.zeros((1 + len(problem.discrete), columns.shape[1]))
    mixes = {atom: _mix(atom.algebra(problem.group)) for atom in set(problem.atoms) if number}
    for _ in range(PROBES):
        start = [generator.standard_normal((prod(shape), 1)) for shape in shapes]
        weights = generator.standard_normal(number) / problem.sizes[:number]
        # One functional (left, right) after another: dρ on the left, dρ on the right, none, each h.
        lefts, rights = [], []
        if number:
            by_atom = {atom: mix(weights) for atom, mix in mixes.items()}
            mixed = [by_atom[atom].T for atom in problem.atoms]
            lefts += [kronecker_sum(shapes[0], mixed[:cut], start[0]), start[0]]
            rights += [start[1], kronecker_sum(shapes[1], mixed[cut:], start[1])]
        lefts.append(start[0])
        rights.append(start[1])
        for factors in problem.discrete:
            transposed = [factor.T for factor in factors]
            lefts.append(kronecker(shapes[0], transposed[:cut], start[0]))
            rights.append(kronecker(shapes[1], transposed[cut:], start[1]))
        values = _values(columns, np.concatenate(lefts, 1), np.concatenate(rights, 1))
        if number:
            squares[0] += np.abs(values[0] + values[1]) ** 2
            values = values[2:]
        for row, (size, moved) in enumerate(
            zip(problem.sizes[number:], values[1:], strict=True), start=1
        ):
            squares[row] += np.abs((moved - values[0]) / size) ** 2
    return np.sqrt(squares.max(0) / PROBES)


def _mix(matrices: Sequence[Matrix]) -> Callable[[np.ndarray], Matrix]:
    """weights ↦ Σ_i weights[i] matrices[i], for many weights."""
    entries = [sparse.coo_array(each) for each in matrices]
    counts = [each.nnz for each in entries]
    rows, places = (np.concatenate([each.coords[axis] for each in entries]) for axis in (0, 1))
    data = np.concatenate([each.data for each in entries])
    return lambda weights: sparse.csr_array(
        (data * np.repeat(weights, counts), (rows, places)), matrices[0].shape
    )


def _values(columns: Columns, lefts: np.ndarray, rights: np.ndarray) -> np.ndarray:
    """aᵀ v b (functionals, rank) for a, b columns of lefts, rights, and v every column."""
    height, width = len(lefts), len(rights)
    if not sparse.issparse(columns):
        tensor = np.ascontiguousarray(columns).reshape(height, -1)
        half = (lefts.T @ tensor).reshape(lefts.shape[1], width, -1)
        return np.einsum("fwr,wf->fr", half, rights)
    row, place = np.divmod(columns.indices, width)
    found = [
        np.add.reduceat(left[row] * right[place] * columns.data, columns.indptr[:-1])
        for left, right in zip(lefts.T.copy(), rights.T.copy(), strict=True)
    ]
    return np.stack(found)


# -- in common ---------------------------------------------------------------------------------


def _cut(shape: Sequence[int]) -> int:
    """How many axes go left, so that left and right are about as large."""
    return min(range(len(shape) + 1), key=lambda cut: max(prod(shape[:cut]), prod(shape[cut:])))


def _parts(columns: Columns, norms: np.ndarray) -> Iterator[tuple[Columns, np.ndarray]]:
    """Neighbouring columns with about AT_ONCE entries, and their norms."""
    if sparse.issparse(columns):
        breaks = np.searchsorted(columns.indptr, np.arange(AT_ONCE, columns.nnz, AT_ONCE))
    else:
        step = max(1, AT_ONCE // max(len(columns), 1))
        breaks = np.arange(step, columns.shape[1], step)
    edges = np.unique([0, *breaks, columns.shape[1]])
    if len(edges) == 2:
        yield columns, norms
        return
    for start, end in pairwise(edges):
        yield columns[:, start:end], norms[start:end]


def _column_norms(columns: Columns) -> np.ndarray:
    if not sparse.issparse(columns):
        return np.asarray(np.linalg.norm(columns, axis=0))
    column = np.repeat(np.arange(columns.shape[1]), np.diff(columns.indptr))
    return np.sqrt(np.bincount(column, np.abs(columns.data) ** 2, columns.shape[1]))
