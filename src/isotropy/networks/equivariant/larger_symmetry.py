"""Whether products of V and its dual tell a group from a larger one.

    N ⊇ H ⊇ G       N keeps contractions: O(d), the group of the form, or else GL(d); where G
                    permutes coordinates, it keeps pointwise functions: S(d)
                    H = { h ∈ N : h Q = Q for each linear map Q that commutes with G }

Contractions are the same for every element of N. What makes a network one of G is its linear maps,
and of these it has the ones between the products in its layers: two products of ranks p and q have
maps that are invariant tensors of rank p + q. The first that is invariant under D(5) and not under
O(2), for example, has rank 5, and without T(3) every layer of D(5) is one of O(2).

`Kept` narrows N to H, one pair of products after another: its Lie algebra by linear algebra, and
of its other elements some that are not in G: a reflection and −1 where all of G has the determinant
1 and these have not; swaps of two coordinates, of a group of few permutations. So H may be larger
than G without being found so; one that is found is larger.

Tensors of no rank tell SO⁺(1,3) from SO(1,3): polynomials that are invariant under boosts and
rotations are so under −1.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, pairwise, product

import numpy as np
import scipy.sparse as sparse

from isotropy.bases.maps import map_basis
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import (
    BASE,
    Product,
    Representation,
    Term,
    product_size,
)

SAME = 1e-9
"""Squared changes of tensors of norm one below this are none."""
MOST_TENSORS = 48
"""Maps of a pair that are looked at; of more, as many random sums."""
LARGEST_WORK = 20_000_000
"""Entries of tensors times directions of N from which on nothing is looked at."""
MOST_COORDINATES, MOST_PERMUTATIONS = 12, 5000
"""Of a group of permutations whose swaps are looked at."""
LARGEST_SOLVED = 8192
"""Entries (C, A, B) of a contraction that is solved for."""


class LargerSymmetryWarning(UserWarning):
    """A network is equivariant under more than its group."""


@dataclass(frozen=True, eq=False)
class SolvedContraction:
    """A bilinear map that commutes with the group: z_C = Σ tensor[C, (A, B)] x_A x_B.

    first, second, target: the products A, B and C
    tensor: (size of C, size of A · size of B), such that z has variance one where x has
    """

    first: Product
    second: Product
    target: Product
    tensor: np.ndarray

    @property
    def products(self) -> tuple[Product, Product, Product]:
        """A, B and C."""
        return self.first, self.second, self.target


@dataclass(frozen=True, eq=False)
class Telling:
    """What a layer needs so that it has the symmetry of its group alone.

    rank:   products up to this rank tell the group by linear maps; 0 where nothing is needed
    solved: bilinear maps that tell it where linear ones do not; and where these do from rank three
            on, invariants of two objects: Re z⁵ of T(2) and T(3) with D(5)
    """

    rank: int
    solved: tuple[SolvedContraction, ...] = ()


class Kept:
    """H: what of N keeps all maps added so far, except for G itself.

    algebra:  a basis of the Lie algebra of H, (D, d, d)
    elements: matrices in H and not in G, by what they are called
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        own = np.array([each.toarray().ravel() for each in group.algebra])
        self._own = int(np.linalg.matrix_rank(own)) if len(own) else 0
        self.algebra = _contraction_algebra(group)
        self.elements = _foreign_swaps(group) if group.is_permutation else _reflections(group)
        self._is_looked_at = True

    def is_larger(self) -> bool:
        """Whether H is known to be larger than G."""
        return self._is_looked_at and bool(self._extra or self.elements)

    @property
    def _extra(self) -> int:
        return len(self.algebra) - self._own

    def add(self, target: Product, source: Product) -> np.ndarray | None:
        """Narrow by the maps from one product to another.

        Returns (target · source,): of these maps a random one of norm one among those orthogonal to
        all that H had kept; None if it keeps all.
        """
        if any(atom not in (BASE, BASE.dual) for atom in (*target, *source)):
            self._is_looked_at = False  # a representation of G alone
        if not self.is_larger():
            return None
        found = _tensors(target, source, self.group)
        if found.size * (len(self.algebra) + len(self.elements)) > LARGEST_WORK:
            self._is_looked_at = False
        if not len(found) or not self._is_looked_at:
            return None
        is_dual = [atom != BASE for atom in target] + [atom == BASE for atom in source]
        return self._narrow(found, is_dual)

    def _narrow(self, found: np.ndarray, is_dual: Sequence[bool]) -> np.ndarray | None:
        tensors = found.reshape(-1, *[self.group.dimension] * len(is_dual))
        moving = np.array([_velocity(tensors, each, is_dual) for each in self.algebra])
        moving = moving.reshape(len(self.algebra), *found.shape)
        moved = {n: _moved(tensors, m, is_dual).reshape(found.shape) for n, m in self._named()}
        changed = {n: each - found for n, each in moved.items()}
        if self._extra:
            flat = moving.reshape(len(moving), -1)
            values, vectors = np.linalg.eigh(flat @ flat.T)
            still = vectors[:, values < SAME]
            self.algebra = np.einsum("ik,iab->kab", still, self.algebra)
        self.elements = {n: m for n, m in self._named() if np.square(changed[n]).sum() < SAME}
        changes = np.array([*moving, *changed.values()])
        values, vectors = np.linalg.eigh(np.einsum("cme,cne->mn", changes, changes))
        foreign = vectors[:, values > SAME]
        if not foreign.shape[1]:
            return None
        drawn = np.random.RandomState(0).standard_normal(foreign.shape[1])
        return np.asarray(foreign @ (drawn / np.linalg.norm(drawn)) @ found)

    def _named(self) -> list[tuple[str, np.ndarray]]:
        return list(self.elements.items())

    def sentence(self, largest: int) -> str:
        """What H has that G has not."""
        told = [f"{self._extra} more continuous direction(s)"] if self._extra else []
        told += list(self.elements)[:1]
        return (
            f"hidden products up to rank {largest} cannot tell {self.group} from a larger group "
            f"with {' and '.join(told)}: the network is equivariant under that one; give it "
            "tensors of a higher rank, by more channels or by channels=REPRESENTATION"
        )


@lru_cache(maxsize=64)
def telling(products: tuple[Product, ...], group: Group) -> Telling:
    """What a layer of these products needs to have the symmetry of `group` and no more of N."""
    kept = Kept(group)
    by_rank = sorted({len(atoms) for atoms in products})
    for rank in by_rank:
        if not kept.is_larger():
            return Telling(0)
        own = [each for each in products if len(each) <= rank]
        before = copy(kept)
        for target, source in product(own, repeat=2):
            if max(len(target), len(source)) == rank:
                kept.add(target, source)
        if not kept.is_larger():
            invariants = [()] if rank > 2 else []
            return Telling(rank, _solved(own, invariants, before))
    return Telling(by_rank[-1] if by_rank else 0, _solved(products, products, kept))


def _solved(
    sources: Sequence[Product], targets: Sequence[Product], kept: Kept
) -> tuple[SolvedContraction, ...]:
    """Bilinear maps, those of low rank first, each of which makes H smaller."""
    group = kept.group
    own = sorted((each for each in sources if each), key=len)
    ways = [
        (first, second, target)
        for first, second in combinations_with_replacement(own, 2)
        for target in targets
        if product_size((*first, *second, *target), group) <= LARGEST_SOLVED
    ]
    ways.sort(key=lambda way: (sum(map(len, way)), len(way[2])))
    found = []
    for first, second, target in ways:
        if not kept.is_larger():
            break
        drawn = kept.add(target, (*first, *second))
        if drawn is not None:
            size = product_size(target, group)
            tensor = size**0.5 * drawn.reshape(size, -1)
            found.append(SolvedContraction(first, second, target, tensor))
    return tuple(found)


def larger_symmetry(layers: Sequence[Sequence[Product]], group: Group) -> str | None:
    """A sentence if layers of these products, input to output, are equivariant under a group that
    is known to be larger than `group`; None otherwise."""
    kept = Kept(group)
    for sources, targets in pairwise(layers):
        for target, source in product(targets, sources):
            kept.add(target, source)
    for hidden in layers[1:-1]:
        for each in telling(tuple(hidden), group).solved:
            kept.add(each.target, (*each.first, *each.second))
    if kept.is_larger():
        return kept.sentence(max(len(atoms) for hidden in layers[1:-1] for atoms in hidden))
    if _is_half_of_its_closure(group):
        return (
            f"tensors of no rank tell {group} from the group with -1: the network is equivariant "
            "under -1, too; give it a scalar that changes with -1, such as the sign of a time"
        )
    return None


# -- N, and how it moves tensors ---------------------------------------------------------------


def _contraction_algebra(group: Group) -> np.ndarray:
    """A basis of the Lie algebra of N, (D, d, d): A with Aᵀ B + B A = 0, or all A."""
    side = group.dimension
    if group.is_permutation:
        return np.zeros((0, side, side))
    units = np.eye(side * side).reshape(-1, side, side)
    form = _form(group)
    if form is None:
        return units
    sign = 1 if np.allclose(form, -form.T) else -1  # B A is symmetric, or antisymmetric
    rows, columns = np.triu_indices(side, 0 if sign == 1 else 1)
    lowered = units + sign * units.transpose(0, 2, 1)
    return np.asarray(np.linalg.inv(form) @ lowered.reshape(side, side, side, side)[rows, columns])


def _foreign_swaps(group: Group) -> dict[str, np.ndarray]:
    """Swaps of two coordinates that are not in a group of permutations; none where it is large."""
    side, signed = group.dimension, group.signed_permutations
    if side > MOST_COORDINATES or not signed:
        return {}
    generators = [tuple(places.tolist()) for places, _ in signed]
    known = new = {tuple(range(side))}
    while new:
        if len(known) > MOST_PERMUTATIONS:
            return {}
        made = {tuple(each[p] for p in g) for each in new for g in generators}
        new = made - known
        known = known | new
    found = {}
    for i, j in combinations(range(side), 2):
        places = list(range(side))
        places[i], places[j] = j, i
        if tuple(places) not in known:
            found[f"a swap of coordinates {i} and {j}"] = np.eye(side)[places]
    return found


def _reflections(group: Group) -> dict[str, np.ndarray]:
    """Elements of N with the determinant −1, where no element of the group has that."""
    side, form = group.dimension, _form(group)
    found: dict[str, np.ndarray] = {}
    traces = [abs(each.trace()) for each in group.algebra]
    signs = [np.linalg.det(each.toarray()) for each in group.discrete]
    if all(trace < SAME for trace in traces) and all(sign > 0 for sign in signs):
        found["a reflection"] = np.diag([-1.0] + [1.0] * (side - 1))
        if side % 2:
            found["-1"] = -np.eye(side)
    return {
        name: each
        for name, each in found.items()
        if form is None or np.allclose(each.T @ form @ each, form)
    }


def _is_half_of_its_closure(group: Group) -> bool:
    """Whether −1 is not in the group, but every polynomial takes it for one that is: boosts and
    rotations keep the sign of time."""
    form = _form(group)
    if form is None or group.discrete or group.dimension % 2 or not np.allclose(form, form.T):
        return False
    is_classical = group.classical is not None
    return is_classical and bool((np.linalg.eigvalsh(form) > 0).sum() % 2)


def _form(group: Group) -> np.ndarray | None:
    if group.classical is not None and group.classical.form is not None:
        return np.asarray(group.classical.form, dtype=np.float64)
    return np.eye(group.dimension) if group.is_self_dual else None


def _tensors(target: Product, source: Product, group: Group) -> np.ndarray:
    """Maps (maps, target · source), orthonormal, that span those which commute with the group; a
    random part of them where there are many."""
    one, other = (Representation((Term(1, atoms),), group) for atoms in (source, target))
    basis = map_basis(one >> other)
    if not basis.pairs:
        return np.zeros((0, product_size((*target, *source), group)))
    columns = basis.pairs[0].columns
    if columns.shape[1] > MOST_TENSORS:
        drawn = np.random.RandomState(0).standard_normal((columns.shape[1], MOST_TENSORS))
        columns = np.linalg.qr(columns @ drawn)[0]
    return np.asarray(columns.toarray() if sparse.issparse(columns) else columns).T


def _velocity(tensors: np.ndarray, matrix: np.ndarray, is_dual: Sequence[bool]) -> np.ndarray:
    """dρ(A) of tensors (maps, d, d, …), A on each axis of V and −Aᵀ on each of its dual."""
    found = np.zeros_like(tensors)
    for axis, dual in enumerate(is_dual, 1):
        found += _on_axis(tensors, -matrix.T if dual else matrix, axis)
    return found


def _moved(tensors: np.ndarray, matrix: np.ndarray, is_dual: Sequence[bool]) -> np.ndarray:
    """ρ(h) of tensors (maps, d, d, …)."""
    dual_matrix = np.linalg.inv(matrix).T
    for axis, dual in enumerate(is_dual, 1):
        tensors = _on_axis(tensors, dual_matrix if dual else matrix, axis)
    return tensors


def _on_axis(tensors: np.ndarray, matrix: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(np.tensordot(matrix, tensors, (1, axis)), 0, axis)
