"""Atoms whose coordinates fall into blocks that no generator mixes: one small problem a word.

If every generator is block diagonal on an atom, R = B_1 ⊕ B_2 ⊕ …, the product of atoms is the sum
over all words of blocks, one block an axis,

    R ⊗ S ⊗ …  =  ⊕_words  B_{w1} ⊗ C_{w2} ⊗ …

and its invariant vectors are those of the words. Blocks that the group leaves in place only take up
room, and words with the same blocks in another order have the same solution, its axes in another
order, so that few problems are left: for O(2) about an axis of R³ the 64 words of T(6), of 729
entries in all, are seven problems, the largest of 64 entries.

Blocks are the connected components of the coordinates, joined where some generator has an entry.
"""

from __future__ import annotations

from itertools import product as words_of
from math import prod

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from isotropy.bases.problem import Problem
from isotropy.bases.products import Solve
from isotropy.bases.solution import check_memory
from isotropy.symmetry.groups.atoms import Atom
from isotropy.symmetry.groups.group import Group

MOST_WORDS = 20_000
"""Beyond so many words the product is left to other methods."""


class Block(Atom):
    """The coordinates of an atom in one block, which no generator of the group leaves."""

    def __init__(self, of: Atom, coordinates: tuple[int, ...]) -> None:
        self.of, self.coordinates = of, coordinates
        self.name = f"{of.name}[{','.join(map(str, coordinates))}]"

    def size(self, group: Group) -> int:
        return len(self.coordinates)

    def element(self, group: Group, elements: Tensor) -> Tensor:
        picked = self.of.element(group, elements)[..., list(self.coordinates), :]
        return picked[..., list(self.coordinates)]

    def discrete(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return tuple(self._restricted(each) for each in self.of.discrete(group))

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return tuple(self._restricted(each) for each in self.of.algebra(group))

    def _restricted(self, matrix: sparse.csr_array) -> sparse.csr_array:
        places = list(self.coordinates)
        return sparse.csr_array(matrix[places][:, places])

    def is_trivial(self, group: Group) -> bool:
        """Whether the group leaves its one coordinate in place."""
        still = len(self.coordinates) == 1 and all(
            not a.count_nonzero() for a in self.algebra(group)
        )
        return still and all((h.toarray() == 1).all() for h in self.discrete(group))

    def key(self, group: Group) -> str:
        return f"{self.of.key(group)}[{','.join(map(str, self.coordinates))}]"

    @property
    def identity(self) -> tuple[object, ...]:
        return (Block, self.of, self.coordinates)


def block_basis(problem: Problem, solve: Solve) -> sparse.csc_array | None:
    """The columns of all words, one word after another; None if no atom has several blocks.

    solve: finds the basis of one word
    """
    axes = _axes(problem)
    if axes is None:
        return None
    trivial = {block: block.is_trivial(problem.group) for axis in axes for block in axis}
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    rank = nonzeros = 0
    for word in words_of(*axes):
        order = sorted(
            (axis for axis, block in enumerate(word) if not trivial[block]),
            key=lambda axis: (word[axis].name, axis),
        )
        solution = solve(problem.group, tuple(word[axis] for axis in order))
        if not solution.rank:
            continue
        entries = sparse.coo_array(solution.columns)
        nonzeros += entries.nnz
        check_memory(
            nonzeros * 48,
            f"a basis with {nonzeros:,} nonzeros so far, of {problem.size:,} entries a vector,",
            "solve for the rank alone, or split the representation",
        )
        rows = _places(problem.shape, word, order)[entries.row]
        parts.append((rows, entries.col.astype(np.int64) + rank, entries.data))
        rank += solution.rank
    rows, columns, data = (
        (np.concatenate(each) for each in zip(*parts, strict=True))
        if parts
        else (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, problem.dtype))
    )
    return sparse.csc_array((data, (rows, columns)), (problem.size, rank))


def block_rank(problem: Problem, rank: Solve) -> int | None:
    """The ranks of all words added up; None where `block_basis` is.

    rank: finds the rank of one word, with or without columns
    """
    axes = _axes(problem)
    if axes is None:
        return None
    group = problem.group
    trivial = {block: block.is_trivial(group) for axis in axes for block in axis}
    return sum(
        rank(group, tuple(sorted((b for b in word if not trivial[b]), key=lambda b: b.name))).rank
        for word in words_of(*axes)
    )


def blocks_of(atom: Atom, group: Group) -> list[Block]:
    """The blocks of an atom, in the order of their first coordinates."""
    size = atom.size(group)
    pattern = sparse.csr_array((size, size), dtype=np.float64)
    for each in (*atom.algebra(group), *atom.discrete(group)):
        pattern = pattern + abs(each)
    count, labels = connected_components(pattern, directed=False)
    return [Block(atom, tuple(np.flatnonzero(labels == label).tolist())) for label in range(count)]


def _axes(problem: Problem) -> list[list[Block]] | None:
    """The blocks of every axis, if there is something to split and not too much of it."""
    if any(isinstance(atom, Block) for atom in problem.atoms):
        return None
    found = {atom: blocks_of(atom, problem.group) for atom in set(problem.atoms)}
    axes = [found[atom] for atom in problem.atoms]
    words = prod(len(axis) for axis in axes)
    return axes if 1 < words <= MOST_WORDS else None


def _places(shape: tuple[int, ...], word: tuple[Block, ...], order: list[int]) -> np.ndarray:
    """The flat index in the whole product of every entry of a word solved in this order of axes."""
    steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    start = sum(
        step * block.coordinates[0]
        for axis, (step, block) in enumerate(zip(steps, word, strict=True))
        if axis not in order
    )
    places = np.array([start], np.int64)
    for axis in order:
        offsets = steps[axis] * np.array(word[axis].coordinates, np.int64)
        places = np.add.outer(places, offsets).ravel()
    return places
