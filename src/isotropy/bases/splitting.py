"""Problems that fall into smaller ones: by factors of the group, or by blocks of coordinates.

**Direct products.** What is invariant under G₁ × G₂ in (V₁ ⊗ V₂)^p is spanned by products v₁ ⊗ v₂
of invariants of V₁^p and V₂^p (Finzi 2023, A.1.7); duals the same. The axes come interleaved,

    (V₁ ⊗ V₂) ⊗ (V₁ ⊗ V₂)   ↔   (V₁ ⊗ V₁) ⊗ (V₂ ⊗ V₂)

so an entry of factor f with indices i₁ … i_m contributes Σ_j i_j s_f D^{m−j} to the place of its
product, where D is the dimension of V and s_f that of the factors after f. An axis that belongs to
one factor alone (`OfFactor`) is an index of that factor's vectors only.

**Blocks.** If every generator is block diagonal on an atom, R = B_1 ⊕ B_2 ⊕ …, the product of atoms
is the sum over all words of blocks, one block an axis,

    R ⊗ S ⊗ …  =  ⊕_words  B_{w1} ⊗ C_{w2} ⊗ …

and its invariant vectors are those of the words. Blocks that the group leaves in place only take up
room, and words with the same blocks in another order have the same solution, its axes in another
order, so that few problems are left: for O(2) about an axis of R³ the 64 words of T(6), of 729
entries in all, are seven problems, the largest of 64 entries. Blocks are the connected components
of the coordinates, joined where some generator has an entry.

Both are handed what solves the smaller problems: a function of a group and a product of atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as words_of
from math import prod

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from isotropy.bases.problem import Basis, Columns, Problem, check_memory
from isotropy.symmetry.groups.atoms import BASE, Atom, OfFactor, Product
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.products import is_direct_product

Solve = Callable[[Group, Product], Basis]

DENSE = 0.25
"""Products with a larger share of nonzeros are written out."""
MOST_WORDS = 20_000
"""Beyond so many words the product is left to other methods."""


# -- direct products ---------------------------------------------------------------------------


def product_basis(problem: Problem, solve: Solve) -> Columns | None:
    """Kronecker products of the factors' columns, the last factor's column fastest; None unless
    the group is a direct product and all atoms are V, its dual, or of one factor. Orthonormal if
    the factors' are.

    solve: finds the basis of a product of atoms for one factor
    """
    words = _words(problem)
    if words is None:
        return None
    factors = problem.group.factors
    bases: list[Columns] = [solve(*each).columns for each in zip(factors, words, strict=True)]
    assert all(basis is not None for basis in bases), "a factor was solved for its rank alone"
    rank, nonzeros = prod(each.shape[1] for each in bases), prod(_nonzeros(each) for each in bases)
    is_dense = nonzeros > DENSE * problem.size * rank
    number = np.result_type(*(basis.dtype for basis in bases))
    check_memory(
        nonzeros * (number.itemsize + 32) + (problem.size * rank * number.itemsize) * is_dense,
        f"a basis of {rank:,} products of {problem.size:,} entries, {nonzeros:,} not zero in all,",
        "solve for the rank alone, or split the representation",
    )
    rows, places, data = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1)
    for index, basis in enumerate(bases):
        entries = sparse.coo_array(basis)
        rows = np.add.outer(rows, _offsets(problem, index)[entries.row]).ravel()
        places = np.add.outer(places * basis.shape[1], entries.col.astype(np.int64)).ravel()
        data = np.multiply.outer(data, entries.data).ravel()
    if is_dense:
        found = np.zeros((problem.size, rank), number)
        found[rows, places] = data
        return found
    return sparse.csc_array((data, (rows, places)), (problem.size, rank))


def product_rank(problem: Problem, rank: Solve) -> int | None:
    """The product of the factors' ranks; None where `product_basis` is.

    rank: finds the rank of a product of atoms for one factor, with or without columns
    """
    words = _words(problem)
    if words is None:
        return None
    return prod(rank(*each).rank for each in zip(problem.group.factors, words, strict=True))


def _words(problem: Problem) -> list[Product] | None:
    """The product of atoms that each factor sees; None if the problem is not a product."""
    factors = problem.group.factors
    parts = [_parts(atom, len(factors)) for atom in problem.atoms]
    if any(each is None for each in parts) or not is_direct_product(problem.group):
        return None
    return [
        tuple(atom for each in parts if each is not None and (atom := each[index]) is not None)
        for index in range(len(factors))
    ]


def _parts(atom: Atom, count: int) -> tuple[Atom | None, ...] | None:
    """What an atom is for each factor, None where the factor leaves it in place."""
    if atom in (BASE, BASE.dual):
        return (atom,) * count
    if isinstance(atom, OfFactor):
        return tuple(atom.atom if index == atom.index else None for index in range(count))
    return None


def _nonzeros(columns: Columns) -> int:
    return int(columns.nnz) if sparse.issparse(columns) else int(np.count_nonzero(columns))


def _offsets(problem: Problem, index: int) -> np.ndarray:
    """What each entry of one factor's vector adds to the place of a product."""
    factors = problem.group.factors
    after = prod(factor.dimension for factor in factors[index + 1 :])
    found = np.zeros(1, np.int64)
    for size, atom in zip(problem.shape, problem.atoms, strict=True):
        found = found * size
        if not isinstance(atom, OfFactor):
            steps = np.arange(factors[index].dimension, dtype=np.int64) * after
            found = np.add.outer(found, steps).ravel()
        elif atom.index == index:
            found = np.add.outer(found, np.arange(size, dtype=np.int64)).ravel()
    return found


# -- blocks ------------------------------------------------------------------------------------


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
