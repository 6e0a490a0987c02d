"""Lie groups by weights: an invariant vector lies in the space of weight zero, which is small.

A torus is a set of commuting elements H of the Lie algebra that are diagonalisable on every atom;
their eigenvalues on an eigenvector common to all are its weight. In a basis of such vectors

    weight(e_i ⊗ e_j ⊗ …) = weight(e_i) + weight(e_j) + …

and H v = 0 says that v has only entries whose weights add up to zero. These places are found axis
by axis without forming the product, partial sums that nothing can complete being dropped. The rest
of the algebra is applied to these columns with all its rows (a root vector takes weight 0 to weight
α: with rows of weight zero alone nothing would be left of its constraint), and the null space is
that of a matrix with few columns.

Correct for any torus and any algebra. Where the torus is a Cartan subalgebra and the algebra acts
reductively (a torus that is its own centraliser, a trace form without kernel) the vectors of the
simple roots do for the whole algebra: a vector of weight zero that they annihilate is a highest
weight vector of weight zero, thus invariant. An algebra without a torus, such as that of
translations, is left to other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.null_spaces import (
    kept_by_discrete,
    krylov_null_space,
    sparse_operator,
    tall_null_space,
)
from isotropy.bases.problem import Problem, check_memory, kronecker, kronecker_sum
from isotropy.symmetry.groups.atoms import BASE, Atom

LARGEST_ALGEBRA = 2_000_000
"""Entries of all generators up to which commuting ones are sought."""
LARGEST_ATOM = 500
"""Size of atoms up to which eigenvectors are sought."""
LARGEST_DENSE = 3000
"""Columns of weight zero up to which the null space is found by dense decompositions."""
ROUNDING = 1e-9
"""Relative size below which a number that should be zero is."""
CLOSE = 1e-7
"""Weights closer than this are taken for equal; that only keeps more columns than needed."""


def weight_basis(problem: Problem) -> np.ndarray | None:
    """An orthonormal basis (size, rank), real if the problem is; None if there is no torus."""
    algebra = _Algebra(problem)
    if not algebra.applies:
        return None
    torus = algebra.torus()
    if not len(torus):
        return None
    frames = {atom: _frame(algebra.on(atom, torus)) for atom in set(problem.atoms)}
    if any(frame is None for frame in frames.values()):
        return None
    axes = [frame for frame in (frames[atom] for atom in problem.atoms) if frame is not None]
    places = zero_sums([frame.levels for frame in axes])
    columns = _invariant_coordinates(algebra, axes, torus, places)
    whole = 3 * problem.size * columns.shape[1] * 16
    check_memory(
        whole,
        f"a basis of {columns.shape[1]:,} vectors of {problem.size:,} entries",
        "split the representation",
    )
    found = np.zeros((problem.size, columns.shape[1]), np.complex128)
    found[places] = columns
    found = kronecker(problem.shape, [frame.vectors for frame in axes], found)
    if not all(frame.is_unitary for frame in axes):
        found, _ = np.linalg.qr(found)
    if not problem.is_complex:
        found = real_span(found)
    return kept_by_discrete(problem, found)


def real_span(columns: np.ndarray) -> np.ndarray:
    """A real orthonormal basis of a space closed under conjugation, of a complex one (size, rank).

    If columns = R W with R real and orthonormal and W unitary, [Re, Im] = R [Re W, Im W], and the
    rows of [Re W, Im W] are orthonormal: its Gram matrix has eigenvalues one and zero only.
    """
    both = np.concatenate([columns.real, columns.imag], axis=1)
    values, vectors = np.linalg.eigh(both.T @ both)
    kept = values > 0.5
    if kept.sum() != columns.shape[1] or np.abs(values - kept).max(initial=0.0) > 1e-6:
        raise AssertionError("the invariants of a real group are not closed under conjugation")
    found, _ = np.linalg.qr(both @ vectors[:, kept])
    return found


def zero_sums(levels: list[np.ndarray]) -> np.ndarray:
    """Places (count,), ascending, in the product of axes where one number of each adds up to zero.

    levels: for every axis a number for each index
    """
    if not levels:
        return np.zeros(1, np.int64)
    scale = max((float(np.abs(each).max(initial=0.0)) for each in levels), default=0.0)
    close = CLOSE * max(scale, 1e-300)
    completions = [np.zeros(1)]  # what the axes from here on can add, each number once
    for each in reversed(levels[1:]):
        completions.append(_distinct(np.add.outer(_distinct(each, close), completions[-1]), close))
    places, sums = np.zeros(1, np.int64), np.zeros(1)
    for each, remaining in zip(levels, reversed(completions), strict=True):
        check_memory(
            32.0 * len(places) * len(each),
            f"{len(places) * len(each):,} places of weight zero",
            "split the representation",
        )
        places = np.add.outer(places * len(each), np.arange(len(each))).ravel()
        sums = np.add.outer(sums, each).ravel()
        after = np.searchsorted(remaining, -sums)
        below = np.abs(sums + remaining[np.maximum(after - 1, 0)])
        above = np.abs(sums + remaining[np.minimum(after, len(remaining) - 1)])
        kept = np.minimum(below, above) <= close * (len(levels) + 1)
        places, sums = places[kept], sums[kept]
    return places


def _distinct(numbers: np.ndarray, close: float) -> np.ndarray:
    """Ascending, neighbours closer than `close` once."""
    ordered = np.sort(numbers, axis=None)
    return ordered[np.concatenate([[True], np.diff(ordered) > close])]


@dataclass(frozen=True)
class _Frame:
    """Common eigenvectors of the torus on one atom.

    vectors: one a column, grouped by weight (size, size)
    levels:  one real number for each that tells their weights apart and adds up as they do
    """

    vectors: np.ndarray
    levels: np.ndarray

    @cached_property
    def is_unitary(self) -> bool:
        product = self.vectors.conj().T @ self.vectors
        return bool(np.abs(product - np.eye(len(product))).max(initial=0.0) < 1e-12)

    @cached_property
    def inverse(self) -> np.ndarray:
        return self.vectors.conj().T if self.is_unitary else np.linalg.inv(self.vectors)


def _frame(elements: np.ndarray) -> _Frame | None:
    """Of commuting matrices (count, size, size); None unless all can be diagonalised at once."""
    count, size = len(elements), elements.shape[-1]
    mixing = np.random.default_rng(0).uniform(1, 2, (2, count))
    scale = max(float(np.abs(elements).max(initial=0.0)), 1e-300)
    mixed = np.tensordot(mixing[0], elements, axes=1)
    values = np.linalg.eigvals(mixed)
    spaces, levels, left = [], [], values
    while len(left):
        value = left[np.abs(left - left[0]) <= 1e-5 * scale].mean()
        left = left[np.abs(left - left[0]) > 1e-5 * scale]
        _, singular, rows = np.linalg.svd(mixed - value * np.eye(size))
        space = rows[singular <= ROUNDING * size * scale].conj().T
        if not space.shape[1]:
            return None
        weights = np.einsum("ia,kij,ja->k", space.conj(), elements, space) / space.shape[1]
        strays = elements @ space - weights[:, None, None] * space
        if np.abs(strays).max(initial=0.0) > 1e2 * ROUNDING * size * scale:
            return None
        spaces.append(space)
        level = float(mixing[0] @ weights.real + mixing[1] @ weights.imag)
        levels.append(np.full(space.shape[1], level))
    vectors = np.concatenate(spaces, axis=1)
    if vectors.shape[1] != size or not np.linalg.cond(vectors) < 1e6:
        return None
    return _Frame(vectors, np.concatenate(levels))


class _Algebra:
    """The Lie algebra by real coefficients of the generators given, on V and on every atom."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.count = len(problem.group.algebra)
        dimension = problem.group.dimension
        is_small = self.count * dimension**2 <= LARGEST_ALGEBRA
        self.applies = self.count > 0 and is_small and max(*problem.shape, 1, 1) <= LARGEST_ATOM

    @cached_property
    def given(self) -> np.ndarray:
        """The generators on V, each of norm one, (count, d, d)."""
        matrices = np.stack([each.toarray() for each in self.problem.group.algebra])
        return matrices / self._scales[:, None, None]

    @cached_property
    def _scales(self) -> np.ndarray:
        norms = [np.linalg.norm(each.data) for each in self.problem.group.algebra]
        return np.where(np.array(norms) > 0, norms, 1.0)

    @cached_property
    def _on_atoms(self) -> dict[Atom, np.ndarray]:
        axes = {atom: axis for axis, atom in enumerate(self.problem.atoms)}
        found = {
            atom: np.stack([factors[axis].toarray() for factors in self.problem.algebra])
            / self._scales[:, None, None]
            for atom, axis in axes.items()
        }
        return {BASE: self.given, **found}

    def on(self, atom: Atom, elements: np.ndarray) -> np.ndarray:
        """dρ of elements given by coefficients (…, count), (…, size, size)."""
        return np.tensordot(elements, self._on_atoms[atom], axes=1)

    def torus(self) -> np.ndarray:
        """Coefficients (rank, count) of commuting elements, diagonalisable on every atom.

        First those among the generators, whose eigenvectors are the simplest, then general
        elements of what commutes with them.
        """
        found = np.zeros((0, self.count))
        for unit in np.eye(self.count):
            found = self._extended(found, unit)
        generator = np.random.default_rng(1)
        while True:
            commuting = self.centraliser(found)
            if len(commuting) <= len(found):
                return found
            larger = self._extended(found, generator.standard_normal(len(commuting)) @ commuting)
            if len(larger) == len(found):
                return found
            found = larger

    def _extended(self, torus: np.ndarray, element: np.ndarray) -> np.ndarray:
        """The torus with one more element, if that commutes, is new and can be diagonalised."""
        matrix = self.on(BASE, element)
        size = float(np.linalg.norm(matrix))
        if size <= ROUNDING:
            return torus
        known = self.on(BASE, torus)
        brackets = known @ matrix - matrix @ known
        if np.abs(brackets).max(initial=0.0) > ROUNDING * size:
            return torus
        larger = np.concatenate([torus, element[None] / size])
        rows = _as_real(self.on(BASE, larger))
        if np.linalg.svd(rows, compute_uv=False)[-1] <= 1e-6:
            return torus
        single = larger[-1:]
        is_diagonal = all(_frame(self.on(atom, single)) is not None for atom in self._on_atoms)
        return larger if is_diagonal else torus

    def centraliser(self, torus: np.ndarray) -> np.ndarray:
        """Coefficients of an orthonormal basis of all that commutes with the torus."""
        if not len(torus):
            return self._span
        known = self.on(BASE, torus)[:, None]
        basis = self.on(BASE, self._span)
        rows = _as_real((known @ basis - basis @ known).swapaxes(0, 1))
        _, values, right = np.linalg.svd(rows.T, full_matrices=True)
        values = np.concatenate([values, np.zeros(len(right) - len(values))])
        return right[values <= ROUNDING * len(self.given[0])] @ self._span

    @cached_property
    def _span(self) -> np.ndarray:
        """Coefficients of a basis: the generators may depend on one another."""
        left, values, _ = np.linalg.svd(_as_real(self.given), full_matrices=False)
        return (left[:, values > 1e-8] / values[values > 1e-8]).T

    def generators(self, torus: np.ndarray) -> np.ndarray:
        """Complex coefficients (number, count) of elements whose constraints suffice for vectors
        of weight zero: simple root vectors, or all of the algebra but the torus."""
        roots = self._roots(torus) if len(self.centraliser(torus)) == len(torus) else None
        if roots is None:
            return self._span.astype(complex)
        levels, elements = roots
        form = np.einsum("aij,bji->ab", self.on(BASE, self._span), self.on(BASE, self._span))
        singular = np.linalg.svd(form, compute_uv=False)
        if singular[-1] < 1e-6 * singular[0]:  # not reductive: all roots
            return elements[np.abs(levels) > CLOSE]
        positive = levels[levels > CLOSE]
        sums = np.sort(np.add.outer(positive, positive), axis=None)
        counts = np.searchsorted(sums, levels + CLOSE) - np.searchsorted(sums, levels - CLOSE)
        return elements[(levels > CLOSE) & (counts == 0)]

    def _roots(self, torus: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Levels of roots, as those of weights, and coefficients of a vector for each."""
        basis = self._span
        given = _as_real(self.on(BASE, basis))
        brackets = []
        for element in torus:
            known, moved = self.on(BASE, element), self.on(BASE, basis)
            rows = _as_real(known @ moved - moved @ known)
            brackets.append(np.linalg.lstsq(given.T, rows.T, rcond=None)[0])
        frame = _frame(np.stack(brackets))
        return None if frame is None else (frame.levels, frame.vectors.T @ basis)


def _as_real(matrices: np.ndarray) -> np.ndarray:
    """(count, …) as real rows (count, everything else)."""
    rows = matrices.reshape(len(matrices), -1)
    return np.concatenate([rows.real, rows.imag], axis=1) if np.iscomplexobj(rows) else rows


def _invariant_coordinates(
    algebra: _Algebra, axes: list[_Frame], torus: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Orthonormal columns (len(places), rank) that all of the algebra annihilates."""
    problem, count = algebra.problem, len(places)
    unit = sparse.csc_array(
        (np.ones(count, complex), (places, np.arange(count))), (prod(problem.shape), count)
    )
    frames, rows = dict(zip(problem.atoms, axes, strict=True)), []
    for generator in algebra.generators(torus):
        turned = {atom: _turned(algebra.on(atom, generator), frames[atom]) for atom in frames}
        factors = [turned[atom] for atom in problem.atoms]
        part = sparse.csr_array(kronecker_sum(problem.shape, factors, unit))
        rows.append(part[np.flatnonzero(np.diff(part.indptr))])
    matrix = sparse.csr_array(sparse.vstack(rows)) if rows else sparse.csr_array((0, count))
    if count <= LARGEST_DENSE:
        return tall_null_space(matrix)
    return krylov_null_space(sparse_operator(matrix), f"{count:,} places of weight zero")


def _turned(matrix: np.ndarray, frame: _Frame) -> sparse.csc_array:
    """In the basis of eigenvectors, rounding removed."""
    turned = frame.inverse @ matrix @ frame.vectors
    turned[np.abs(turned) <= 1e-13 * max(float(np.abs(turned).max(initial=0.0)), 1.0)] = 0
    return sparse.csc_array(turned)
