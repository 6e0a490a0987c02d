"""Direct products: a basis for G₁ × G₂ × … on V = V₁ ⊗ V₂ ⊗ … from a basis for each factor.

What is invariant under G₁ × G₂ in (V₁ ⊗ V₂)^p is spanned by products v₁ ⊗ v₂ of invariants of
V₁^p and V₂^p (Finzi 2023, A.1.7); duals the same. The axes come interleaved,

    (V₁ ⊗ V₂) ⊗ (V₁ ⊗ V₂)   ↔   (V₁ ⊗ V₁) ⊗ (V₂ ⊗ V₂)

so an entry of factor f with indices i₁ … i_m contributes Σ_j i_j s_f D^{m−j} to the place of its
product, where D is the dimension of V and s_f that of the factors after f. An axis that belongs to
one factor alone (`factors`) is an index of that factor's vectors only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Protocol

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.problem import Columns, Problem
from isotropy.bases.solution import check_memory
from isotropy.symmetry.groups.atoms import BASE, Atom, OfFactor, Product
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.products import direct_product


class Solved(Protocol):
    """What solving one factor returns: `solution.Basis`."""

    @property
    def rank(self) -> int: ...

    @property
    def columns(self) -> Columns | None: ...


Solve = Callable[[Group, Product], Solved]

DENSE = 0.25
"""Products with a larger share of nonzeros are written out."""


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
    if not factors or any(each is None for each in parts) or not _is_product(problem.group):
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


@lru_cache(maxsize=64)
def _is_product(group: Group) -> bool:
    """Whether the generators are those of the factors: fewer would leave more in place."""
    return direct_product(*group.factors) == group


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
