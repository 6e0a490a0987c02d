"""Representations: how something transforms when the group moves its space V.

    V       the space on which the group's own matrices act        ρ(g) = g
    V.dual  its dual                                               ρ(g⁻¹)ᵀ,  dρ(A) = −Aᵀ
    R + S   direct sum: one after the other                        ρ_R ⊕ ρ_S
    3 * R   the sum of three
    R * S   tensor product, the left index slow                    ρ_R ⊗ ρ_S
    T(p, q) V^p ⊗ V*^q;  T(0) = Scalar
    R >> S  linear maps from R to S, matrices (dim S, dim R)       ρ_S ⊗ ρ_R*

(Finzi 2023, Table 2.1.) A representation is written before there is a group, `V >> V * V`, and
bound to one by a call, `(V >> V * V)(SO(3))`; what is bound to different groups does not mix.

Kept in normal form: a sum of products of `Atom`s, `terms`, each an amount and the atoms of one
product. A product of sums is the sum of all products, in the order left to right; its blocks lie
one after another. Bases are found for each pair of terms (`isotropy.bases`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups import Group

Product = tuple["Atom", ...]
"""The atoms of one tensor product, slowest index first; none for a scalar."""


class Atom(ABC):
    """A representation that is not split further, as a function of the group's own matrices."""

    name: str
    """As it is written, and what tells it from other atoms: equal names, equal atoms."""

    @abstractmethod
    def size(self, group: Group) -> int:
        """Its dimension."""

    @abstractmethod
    def element(self, group: Group, elements: Tensor) -> Tensor:
        """ρ(g) (…, size, size) of elements g (…, d, d); differentiable."""

    def discrete(self, group: Group) -> tuple[sparse.csr_array, ...]:
        """ρ(h_k) of every discrete generator."""
        return tuple(_sparse(self.element(group, h)) for h in group.discrete_tensor())

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        """dρ(A_i) = d/dt ρ(1 + t A_i) at t = 0, of every infinitesimal generator."""
        identity = torch.eye(group.dimension, dtype=group.algebra_tensor().dtype)
        return tuple(
            _sparse(torch.func.jvp(lambda g: self.element(group, g), (identity,), (a,))[1])
            for a in group.algebra_tensor()
        )

    @property
    def dual(self) -> Atom:
        """ρ(g⁻¹)ᵀ."""
        return _Dual(self)

    def is_self_dual(self, group: Group) -> bool:
        """Whether ρ is orthogonal, so that its dual is itself."""
        return False

    def is_permutation(self, group: Group) -> bool:
        """Whether ρ permutes coordinates, so that pointwise functions commute with it."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


class _Base(Atom):
    name = "V"

    def size(self, group: Group) -> int:
        return group.dimension

    def element(self, group: Group, elements: Tensor) -> Tensor:
        return elements

    def discrete(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return group.discrete

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return group.algebra

    def is_self_dual(self, group: Group) -> bool:
        return group.is_self_dual

    def is_permutation(self, group: Group) -> bool:
        return group.is_permutation


class _Dual(Atom):
    def __init__(self, of: Atom) -> None:
        self.of = of
        self.name = f"{of.name}'"

    def size(self, group: Group) -> int:
        return self.of.size(group)

    def element(self, group: Group, elements: Tensor) -> Tensor:
        return torch.linalg.inv(self.of.element(group, elements)).mT

    def discrete(self, group: Group) -> tuple[sparse.csr_array, ...]:
        found = self.of.discrete(group)
        return tuple(
            each if _is_orthogonal(each) else _sparse(np.linalg.inv(each.toarray()).T)
            for each in found
        )

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return tuple(sparse.csr_array(-each.T) for each in self.of.algebra(group))

    @property
    def dual(self) -> Atom:
        return self.of

    def is_self_dual(self, group: Group) -> bool:
        return self.of.is_self_dual(group)

    def is_permutation(self, group: Group) -> bool:
        return self.of.is_permutation(group)


class _Pseudoscalar(Atom):
    name = "P"

    def size(self, group: Group) -> int:
        return 1

    def element(self, group: Group, elements: Tensor) -> Tensor:
        determinants = torch.linalg.det(elements)
        if determinants.is_complex():
            raise CallerError(f"a pseudoscalar needs a real group, got {group}")
        return determinants.detach().sign()[..., None, None]

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return tuple(sparse.csr_array((1, 1)) for _ in group.algebra)

    def is_self_dual(self, group: Group) -> bool:
        return True


class Custom(Atom):
    """A representation of your own: ρ as a function of the group's matrices (…, d, d).

    dρ follows by forward-mode differentiation at the identity. `check_representation` tells
    whether it is one.
    """

    def __init__(self, name: str, rho: Callable[[Tensor], Tensor]) -> None:
        self.name = name
        self._rho = rho

    def size(self, group: Group) -> int:
        return int(self.element(group, torch.eye(group.dimension, dtype=torch.float64)).shape[-1])

    def element(self, group: Group, elements: Tensor) -> Tensor:
        return self._rho(elements)


BASE = _Base()
PSEUDOSCALAR = _Pseudoscalar()


@dataclass(frozen=True)
class Term:
    """`amount` copies of one product of atoms."""

    amount: int
    atoms: Product

    def __str__(self) -> str:
        body = "*".join(atom.name for atom in self.atoms) or "Scalar"
        return body if self.amount == 1 else f"{self.amount}({body})"


class Representation:
    """A sum of products of atoms, bound to a group or not; see the module."""

    def __init__(self, terms: tuple[Term, ...], group: Group | None = None) -> None:
        self.terms = _merged(terms)
        self._group = group

    @property
    def group(self) -> Group:
        """The group it is bound to."""
        if self._group is None:
            raise CallerError(
                f"the representation {self} is not bound to a group; call it with one: rep(group)"
            )
        return self._group

    @property
    def is_bound(self) -> bool:
        return self._group is not None

    def __call__(self, group: Group) -> Representation:
        """The same, of this group. Bound to a larger group before, it is restricted."""
        return Representation(self.terms, group)

    @property
    def products(self) -> list[Product]:
        """Every product of the sum, each as often as it comes."""
        return [term.atoms for term in self.terms for _ in range(term.amount)]

    @property
    def size(self) -> int:
        """Its dimension."""
        return sum(term.amount * product_size(term.atoms, self.group) for term in self.terms)

    @property
    def dual(self) -> Representation:
        """ρ(g⁻¹)ᵀ, the order of indices kept."""
        terms = tuple(Term(t.amount, tuple(a.dual for a in t.atoms)) for t in self.terms)
        return Representation(terms, self._group)

    @property
    def is_permutation(self) -> bool:
        """Whether pointwise functions commute with it."""
        return all(is_permutation(term.atoms, self.group) for term in self.terms)

    def element(self, elements: Tensor) -> Tensor:
        """ρ(g), (…, size, size), block diagonal, of elements g (…, d, d) of the group."""
        blocks = [
            block
            for term in self.terms
            for block in [product_element(term.atoms, self.group, elements)] * term.amount
        ]
        found = elements.new_zeros(*elements.shape[:-2], self.size, self.size)
        start = 0
        for block in blocks:
            end = start + block.shape[-1]
            found[..., start:end, start:end] = block
            start = end
        return found

    def __add__(self, other: Representation | int) -> Representation:
        if other == 0:  # so that sum() works
            return self
        right = _as_representation(other)
        return Representation(self.terms + right.terms, _common_group(self, right))

    __radd__ = __add__

    def __mul__(self, other: Representation | int) -> Representation:
        if isinstance(other, int):
            if other < 0:
                raise CallerError(f"expected a multiplicity of at least 0, got {other}")
            terms = self.terms if len(self.terms) != 1 else ()
            if terms:
                return Representation(terms * other, self._group)
            (only,) = self.terms
            return Representation((Term(other * only.amount, only.atoms),), self._group)
        right = _as_representation(other)
        terms = tuple(
            Term(1, first + second) for first in self.products for second in right.products
        )
        return Representation(terms, _common_group(self, right))

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Representation:
        found = Representation((Term(1, ()),), self._group)
        for _ in range(power):
            found = found * self
        return found

    def __rshift__(self, target: Representation) -> Maps:
        return Maps(self, target)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Representation)
            and self.terms == other.terms
            and self._group == other._group
        )

    def __hash__(self) -> int:
        return hash(self.terms)

    def __str__(self) -> str:
        return " + ".join(str(term) for term in self.terms) or "0"

    def __repr__(self) -> str:
        return f"{self} of {self._group}" if self._group else str(self)


class Maps:
    """Linear maps from `source` to `target`: matrices (target.size, source.size)."""

    def __init__(self, source: Representation, target: Representation) -> None:
        group = _common_group(source, target)
        if group is not None:
            source, target = source(group), target(group)
        self.source, self.target = source, target

    def __call__(self, group: Group) -> Maps:
        """The same, of this group."""
        return Maps(self.source(group), self.target(group))

    @property
    def group(self) -> Group:
        return self.source.group

    @property
    def size(self) -> int:
        """Entries of a matrix."""
        return self.source.size * self.target.size

    @property
    def as_representation(self) -> Representation:
        """ρ_target ⊗ ρ_source*, whose blocks lie one after another."""
        return self.target * self.source.dual

    def __str__(self) -> str:
        return f"{self.source} >> {self.target}"

    __repr__ = __str__


def T(p: int, q: int = 0) -> Representation:
    """V^p ⊗ V*^q."""
    if p < 0 or q < 0:
        raise CallerError(f"T(p, q): expected p and q of at least 0, got {p} and {q}")
    return Representation((Term(1, (BASE,) * p + (BASE.dual,) * q),))


def custom(name: str, rho: Callable[[Tensor], Tensor]) -> Representation:
    """A representation of your own: ρ as a function of matrices (…, d, d); see `Custom`."""
    return Representation((Term(1, (Custom(name, rho),)),))


# -- products ----------------------------------------------------------------------------------


def product_size(atoms: Product, group: Group) -> int:
    """The dimension of one product."""
    return prod(atom.size(group) for atom in atoms)


def product_element(atoms: Product, group: Group, elements: Tensor) -> Tensor:
    """ρ(g) (…, size, size) of one product."""
    found = elements.new_ones(*elements.shape[:-2], 1, 1)
    for atom in atoms:
        block = atom.element(group, elements)
        outer = torch.einsum("...ij,...kl->...ikjl", found, block)
        side = found.shape[-1] * block.shape[-1]
        found = outer.reshape(*elements.shape[:-2], side, side)
    return found


def is_permutation(atoms: Product, group: Group) -> bool:
    """Whether the product permutes coordinates; a scalar does."""
    return all(atom.is_permutation(group) for atom in atoms)


def _merged(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Neighbours that are equal in one term, and none of amount zero."""
    kept = [term for term in terms if term.amount]
    return tuple(
        Term(sum(term.amount for term in run), atoms)
        for atoms, run in ((atoms, list(run)) for atoms, run in groupby(kept, lambda t: t.atoms))
    )


def _common_group(first: Representation, second: Representation) -> Group | None:
    groups = [each.group for each in (first, second) if each.is_bound]
    if len(groups) == 2 and groups[0] != groups[1]:
        raise CallerError(
            f"expected representations of one group, got {first} of {groups[0]} and {second} of "
            f"{groups[1]}; bind both to the smaller group, or use their direct product"
        )
    return groups[0] if groups else None


def _as_representation(other: object) -> Representation:
    if not isinstance(other, Representation):
        raise CallerError(f"expected a representation, got {other!r}")
    return other


def _sparse(matrix: Tensor | np.ndarray) -> sparse.csr_array:
    array = matrix.detach().numpy() if isinstance(matrix, Tensor) else matrix
    return sparse.csr_array(array)


def _is_orthogonal(matrix: sparse.csr_array) -> bool:
    if np.iscomplexobj(matrix.data):
        return False
    product = matrix.T @ matrix - sparse.identity(matrix.shape[0])
    return bool(np.abs(product.data).max(initial=0.0) < 1e-12)


V = Representation((Term(1, (BASE,)),))
Scalar = Representation((Term(1, ()),))
P = Representation((Term(1, (PSEUDOSCALAR,)),))
