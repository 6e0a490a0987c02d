"""All equivariant linear maps between two representations, found for each pair of products.

    W = Σ_(c, b) Σ_(k, l, r) θ_(k, l, r) Q_r      Q_r (out, in) of the pair (c, b)

A representation is a sum of products, many of them alike: 30 V and 10 V*V are two *kinds*. The maps
from one copy of kind b to one copy of kind c are the invariant vectors of c ⊗ b* (Finzi 2023, 2.3),
and the same for all copies, so that one solution a pair of kinds is all there is to find. Each
solution is orthonormal, so the whole basis is: a matrix W is projected onto it by Qᵀ W.

Coefficients θ lie one pair after another, each (copies out, copies in, rank), row-major.
A bias is a map from `Scalar`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.problem import Basis, Columns, check_memory
from isotropy.bases.solving import solve
from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import (
    Maps,
    Product,
    Representation,
    product_size,
)


@dataclass(frozen=True, eq=False)
class Kind:
    """All copies of one product in a representation.

    atoms:  the product, in normal form (`normal_form`)
    places: the coordinates of each copy, (copies, size)
    """

    atoms: Product
    places: np.ndarray

    @property
    def copies(self) -> int:
        return int(self.places.shape[0])

    @property
    def size(self) -> int:
        return int(self.places.shape[1])


@dataclass(frozen=True, eq=False)
class Pair:
    """The maps from one copy of kind `source` to one of kind `target`.

    columns: orthonormal (target.size · source.size, rank), each a row-major matrix (out, in);
             sparse where no two of them share an entry, dense otherwise
    solution: what the solver says of it: method, residual, seconds
    """

    target: Kind
    source: Kind
    columns: Columns
    solution: Basis

    @property
    def rank(self) -> int:
        """Maps between one copy and one copy."""
        return int(self.columns.shape[1])

    @property
    def coefficients(self) -> tuple[int, int, int]:
        """(copies out, copies in, rank)."""
        return self.target.copies, self.source.copies, self.rank

    @property
    def is_sparse(self) -> bool:
        return bool(sparse.issparse(self.columns))

    @cached_property
    def elements(self) -> np.ndarray:
        """The maps written out, (rank, out, in)."""
        check_memory(
            8.0 * self.rank * self.columns.shape[0],
            f"{self.rank:,} maps of {self.target.size:,} × {self.source.size:,} written out",
            "use their sparse columns",
        )
        columns = self.columns.toarray() if self.is_sparse else self.columns
        return np.ascontiguousarray(columns.T).reshape(-1, self.target.size, self.source.size)


@dataclass(frozen=True, eq=False)
class MapBasis:
    """An orthonormal basis of all equivariant maps; pairs of kinds without maps are left out."""

    maps: Maps
    targets: tuple[Kind, ...]
    sources: tuple[Kind, ...]
    pairs: tuple[Pair, ...]
    solutions: tuple[Basis, ...]
    """What the solver says of every pair, those without maps included."""

    @property
    def rank(self) -> int:
        """How many independent maps there are."""
        return sum(int(np.prod(pair.coefficients)) for pair in self.pairs)

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of each map."""
        return self.maps.target.size, self.maps.source.size

    @property
    def is_complex(self) -> bool:
        return self.maps.group.is_complex

    @property
    def residual(self) -> float:
        """The largest relative violation of a constraint by any solution."""
        return max((each.residual or 0.0 for each in self.solutions), default=0.0)

    def spans(self) -> Iterator[tuple[Pair, slice]]:
        """Every pair, and where its coefficients lie."""
        start = 0
        for pair in self.pairs:
            end = start + int(np.prod(pair.coefficients))
            yield pair, slice(start, end)
            start = end

    def matrix(self, coefficients: np.ndarray) -> np.ndarray:
        """W = Σ θ_i Q_i, (out, in)."""
        coefficients = np.asarray(coefficients)
        if coefficients.shape != (self.rank,):
            raise CallerError(
                f"expected {self.rank} coefficients, one for each map of {self.maps}, got shape "
                f"{coefficients.shape}"
            )
        found = np.zeros(self.shape, np.result_type(coefficients, self._dtype))
        for pair, span in self.spans():
            copies_out, copies_in, rank = pair.coefficients
            blocks = pair.columns @ coefficients[span].reshape(-1, rank).T
            tensor = blocks.reshape(pair.target.size, pair.source.size, copies_out, copies_in)
            rows, columns = pair.target.places.ravel(), pair.source.places.ravel()
            found[rows[:, None], columns] = tensor.transpose(2, 0, 3, 1).reshape(
                len(rows), len(columns)
            )
        return found

    def project(self, matrix: np.ndarray) -> np.ndarray:
        """Qᵀ W: the coefficients (rank,) of the nearest equivariant map to `matrix` (out, in)."""
        matrix = np.asarray(matrix)
        if matrix.shape != self.shape:
            raise CallerError(f"expected a matrix {self.shape} of {self.maps}, got {matrix.shape}")
        found = np.zeros(self.rank, np.result_type(matrix, self._dtype))
        for pair, span in self.spans():
            rows, columns = pair.target.places.ravel(), pair.source.places.ravel()
            tensor = matrix[rows[:, None], columns].reshape(
                pair.target.copies, pair.target.size, pair.source.copies, pair.source.size
            )
            blocks = tensor.transpose(1, 3, 0, 2).reshape(pair.columns.shape[0], -1)
            found[span] = np.asarray(pair.columns.conj().T @ blocks).T.ravel()
        return found

    @property
    def _dtype(self) -> type:
        return np.complex128 if self.is_complex else np.float64


def map_basis(maps: Maps) -> MapBasis:
    """All equivariant linear maps from `maps.source` to `maps.target`, bound to a group.

    Raises `CallerError` where a pair of products is too large for every method.
    """
    group = maps.group
    targets, sources = kinds(maps.target), kinds(maps.source)
    pairs, solutions = [], []
    for target in targets:
        for source in sources:
            columns, solution = _pair_columns(target.atoms, source.atoms, group)
            solutions.append(solution)
            if columns.shape[1]:
                pairs.append(Pair(target, source, columns, solution))
    return MapBasis(maps, targets, sources, tuple(pairs), tuple(solutions))


def kinds(representation: Representation) -> tuple[Kind, ...]:
    """The products of a representation, equal ones together, in the order of their first copy."""
    group = representation.group
    starts: dict[Product, list[int]] = {}
    position = 0
    for term in representation.terms:
        size = product_size(term.atoms, group)
        found = starts.setdefault(normal_form(term.atoms, group), [])
        found.extend(position + size * copy for copy in range(term.amount))
        position += term.amount * size
    return tuple(
        Kind(atoms, np.array(each)[:, None] + np.arange(product_size(atoms, group)))
        for atoms, each in starts.items()
    )


def normal_form(atoms: Product, group: Group) -> Product:
    """The product with every dual written as the atom itself where they are the same."""
    return tuple(atom.dual if atom.is_dual and atom.is_self_dual(group) else atom for atom in atoms)


def map_atoms(target: Product, source: Product, group: Group) -> Product:
    """The atoms of target ⊗ source*, in normal form: its invariant vectors are the maps."""
    return normal_form((*target, *(atom.dual for atom in source)), group)


def _pair_columns(target: Product, source: Product, group: Group) -> tuple[Columns, Basis]:
    """Orthonormal columns of one pair.

    The solver is asked for the product with its atoms sorted, so that all orders of the same atoms
    share a solution; its axes are then put in order.
    """
    atoms = map_atoms(target, source, group)
    order = sorted(range(len(atoms)), key=lambda place: atoms[place].name)
    solution = solve(group, tuple(atoms[place] for place in order))
    columns = solution.orthonormal
    if order != sorted(order):
        numbers = np.arange(solution.size).reshape(solution.shape)
        rows = numbers.transpose(np.argsort(order)).ravel()
        columns = columns.tocsr()[rows].tocsc() if sparse.issparse(columns) else columns[rows]
    return columns, solution
