"""Products of representations split into irreducible parts, in which equivariant maps are small.

    x_b = Σ_(λ, m) F_bλmᵀ u_λm        F_bλm (d_λ, size of b), all rows of a product orthonormal

Equal irreducible parts λ get equal coordinates u (d_λ), whichever product they lie in. By Schur's
lemma an equivariant map then mixes parts of one λ and leaves their coordinates alone,

    u_λm ↦ Σ_n θ_mn u_λn              and where λ has complex or quaternionic type
    u_λm ↦ Σ_n Σ_t θ_mnt E_t u_λn     E_1 = 1, E_t antisymmetric with E_t² = −1  (t ≤ 2 or 4)

so that it takes d_λ θ-products instead of a dense matrix, and no matrix has to be assembled.

Parts are eigenspaces of a random symmetric matrix that commutes with the group: a random matrix,
projected onto the solver's basis of such matrices. They are irreducible if the transpose of what
commutes commutes: so it is for orthogonal representations, and for tensors of GL, SL, Sp and the
Lorentz groups, too, whose generators' transposes are generators. The same projections of random
matrices, from a generator that is the same everywhere, tie the coordinates of all parts together:
they depend on nothing that a library for linear algebra is free to choose. What comes out is put
back into the bases; where it does not reproduce them, there is no splitting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.maps import MapBasis, Pair, map_basis
from isotropy.symmetry.groups import Group
from isotropy.symmetry.representations import Product, Representation, Term, product_size

LARGEST_PRODUCT = 128
"""Size of a product from which on it is not split: changing coordinates would cost too much."""
SAME = 1e-7
"""Eigenvalues closer than this, relative to the largest, are one."""
EXACT = 1e-9
"""How far what is built may be from what it should be."""


@dataclass(frozen=True, eq=False)
class Irreducible:
    """ends: what commutes with it, (1, 2 or 4, d, d), the identity first."""

    ends: np.ndarray

    @property
    def size(self) -> int:
        return int(self.ends.shape[1])

    @property
    def degree(self) -> int:
        """1, 2 or 4: real, complex or quaternionic."""
        return int(self.ends.shape[0])


@dataclass(frozen=True, eq=False)
class Splitting:
    """frames: for each product and each irreducible the coordinates (multiplicity, d, size).

    irreducibles: the first one is the trivial one
    """

    irreducibles: tuple[Irreducible, ...]
    frames: dict[Product, tuple[np.ndarray, ...]]


def splitting(group: Group, products: Sequence[Product]) -> Splitting | None:
    """These products of a real group in common coordinates; None where there are none.

    products: in the normal form of `isotropy.bases.maps`
    """
    if any(product_size(atoms, group) > LARGEST_PRODUCT for atoms in products):
        return None
    each = dict.fromkeys([(), *products])
    ordered = sorted(each, key=lambda atoms: (len(atoms), [a.name for a in atoms]))
    return _splitting(group, tuple(ordered), tuple(a.key(group) for p in ordered for a in p))


@lru_cache(maxsize=64)
def _splitting(
    group: Group, products: tuple[Product, ...], keys: tuple[str, ...]
) -> Splitting | None:
    terms = tuple(Term(1, atoms) for atoms in products)
    one_of_each = Representation(terms, group)
    homs = _Homomorphisms(map_basis(one_of_each >> one_of_each))
    found: list[Irreducible] = []
    homes: list[tuple[Product, np.ndarray]] = []  # where each was found, and its frame there
    frames: dict[Product, tuple[np.ndarray, ...]] = {}
    for atoms in products:
        spaces = _eigenspaces(homs, atoms)
        if spaces is None:
            return None
        own: dict[int, list[np.ndarray]] = {}
        for space in spaces:
            number, shared = _shared(homs, homes, atoms, space)
            if number == len(homes):
                ends = _ends([space @ homs.random(atoms, atoms, k) @ space.T for k in range(4)])
                if ends is None:
                    return None
                homes.append((atoms, space))
                found.append(Irreducible(ends))
            turned = _orthogonal(shared)
            if turned is None:
                return None
            own.setdefault(number, []).append(turned @ space)
        size = product_size(atoms, group)
        frames[atoms] = tuple(
            np.array(own.get(k, np.zeros((0, each.size, size)))) for k, each in enumerate(found)
        )
    padded = {
        atoms: (*own, *(np.zeros((0, e.size, own[0].shape[2])) for e in found[len(own) :]))
        for atoms, own in frames.items()
    }
    complete = Splitting(tuple(found), padded)
    return complete if _reproduces(complete, homs) else None


def _shared(
    homs: _Homomorphisms,
    homes: Sequence[tuple[Product, np.ndarray]],
    atoms: Product,
    space: np.ndarray,
) -> tuple[int, np.ndarray]:
    """The irreducible that this part of a product is, and a map (d, d) from the part to it: its
    own identity if it is a new one, which gets the next number."""
    for number, (home, frame) in enumerate(homes):
        shared = frame @ homs.random(home, atoms) @ space.T
        if np.abs(shared).max(initial=0) > SAME:
            return number, shared
    return len(homes), np.eye(len(space))


class _Homomorphisms:
    """Random equivariant maps, the same for the same question."""

    def __init__(self, basis: MapBasis) -> None:
        self.pairs: dict[tuple[Product, Product], Pair] = {
            (pair.target.atoms, pair.source.atoms): pair for pair in basis.pairs
        }
        self.sizes = {kind.atoms: kind.size for kind in basis.sources}
        self._known: dict[tuple[Product, Product, int], np.ndarray] = {}

    def random(self, target: Product, source: Product, number: int = 0) -> np.ndarray:
        """A map (size of target, size of source)."""
        key = target, source, number
        if key not in self._known:
            shape = self.sizes[target], self.sizes[source]
            matrix = np.random.RandomState(number).standard_normal(shape)
            self._known[key] = self.projected(target, source, matrix)
        return self._known[key]

    def projected(self, target: Product, source: Product, matrix: np.ndarray) -> np.ndarray:
        """The nearest equivariant map."""
        pair = self.pairs.get((target, source))
        if pair is None:
            return np.zeros_like(matrix)
        columns = pair.columns
        found = columns @ (columns.T @ matrix.ravel())
        return np.asarray(found.toarray() if sparse.issparse(found) else found).reshape(
            matrix.shape
        )


def _eigenspaces(homs: _Homomorphisms, atoms: Product) -> list[np.ndarray] | None:
    """Orthonormal rows (d, size) of each; None if transposes of maps are no maps."""
    drawn = homs.random(atoms, atoms, 9)
    symmetric = (drawn + drawn.T) / 2
    if not np.allclose(homs.projected(atoms, atoms, symmetric), symmetric, atol=EXACT):
        return None
    values, vectors = np.linalg.eigh(symmetric)
    gaps = np.diff(values) > SAME * np.abs(values).max(initial=0)
    if not gaps.any():
        return [np.eye(len(values))]
    return [vectors[:, part].T for part in np.split(np.arange(len(values)), 1 + np.where(gaps)[0])]


def _orthogonal(matrix: np.ndarray) -> np.ndarray | None:
    """The matrix over a number that makes it orthogonal; None if no number does."""
    if matrix.shape[0] != matrix.shape[1]:
        return None
    scaled = matrix * (len(matrix) ** 0.5 / np.linalg.norm(matrix))
    if not np.allclose(scaled @ scaled.T, np.eye(len(scaled)), atol=EXACT):
        return None
    return np.asarray(scaled)


def _ends(drawn: Sequence[np.ndarray]) -> np.ndarray | None:
    """What commutes with an irreducible part, from random elements of it."""
    size = len(drawn[0])
    found = [np.eye(size)]
    for each in drawn:
        left = each - sum(np.vdot(one, each) / size * one for one in found)
        norm = np.linalg.norm(left) / size**0.5
        if norm > SAME:
            if not np.allclose(left, -left.T, atol=EXACT):
                return None  # not irreducible: an eigenvalue that two parts share
            found.append(left / norm)
    return np.array(found)


def _reproduces(splitting: Splitting, homs: _Homomorphisms) -> bool:
    """Whether maps in these coordinates are those of the bases, as many and the same."""
    for target, outs in splitting.frames.items():
        for source, ins in splitting.frames.items():
            built = np.zeros((homs.sizes[target], homs.sizes[source]))
            count = 0
            draw = np.random.RandomState(1)
            for out, into, each in zip(outs, ins, splitting.irreducibles, strict=True):
                count += len(out) * len(into) * each.degree
                weights = draw.standard_normal((len(out), len(into), each.degree))
                built += np.einsum(
                    "mio,mnt,tij,njs->os", out, weights, each.ends, into, optimize=True
                )
            pair = homs.pairs.get((target, source))
            if count != (0 if pair is None else pair.rank):
                return False
            if not np.allclose(homs.projected(target, source, built), built, atol=EXACT):
                return False
    return True
