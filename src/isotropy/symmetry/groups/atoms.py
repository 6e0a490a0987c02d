"""Atoms: representations that are not split further, of which all others are sums of products.

    V    the space on which the group's own matrices act     ρ(g) = g
    R'   the dual of R                                       ρ(g⁻¹)ᵀ,  dρ'(A) = −dρ(A)ᵀ
    P    pseudoscalar, of real groups                        sign det g

An atom is a function ρ of the group's own matrices g (…, d, d) that belongs to no group before it
is used with one; its images of the generators, `discrete` and `algebra`, are all that a solver
sees. A new one needs `name`, `size` and `element`; dρ follows by forward-mode differentiation at
the identity. (Finzi 2023, Table 2.1 and section 2.4.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group, signed_permutation

Product = tuple["Atom", ...]
"""The atoms of one tensor product, slowest index first; none for a scalar."""

ROUNDING = 1e-12
"""Below this an entry of ρ(g) that should be zero is."""


class Atom(ABC):
    """A representation that is not split further, as a function of the group's own matrices.

    Atoms are equal if their class and name are; one that has more to it extends `identity`.
    """

    name: str
    """As it is written."""
    is_dual: bool = False
    """Whether it was made as the dual of another: of the two, the one written with more."""

    @abstractmethod
    def size(self, group: Group) -> int:
        """Its dimension."""

    @abstractmethod
    def element(self, group: Group, elements: Tensor) -> Tensor:
        """ρ(g) (…, size, size) of elements g (…, d, d); differentiable."""

    def check(self, group: Group) -> None:  # noqa: B027 - most are one of every group
        """Raise `CallerError` if this is no representation of `group`; called on binding."""

    def discrete(self, group: Group) -> tuple[sparse.csr_array, ...]:
        """ρ(h_k) of every discrete generator."""
        return _discrete(self, group)

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        """dρ(A_i) = d/dt ρ(1 + t A_i) at t = 0, of every infinitesimal generator."""
        return _algebra(self, group)

    @property
    def dual(self) -> Atom:
        """ρ(g⁻¹)ᵀ."""
        return _Dual(self)

    def is_self_dual(self, group: Group) -> bool:
        """Whether ρ is real and orthogonal, so that its dual is itself."""
        images = (*self.algebra(group), *self.discrete(group))
        if any(np.iscomplexobj(each.data) for each in images):
            return False
        skew = all(_is_zero(each + each.T) for each in self.algebra(group))
        return skew and all(_is_orthogonal(each) for each in self.discrete(group))

    def is_permutation(self, group: Group) -> bool:
        """Whether ρ permutes coordinates, so that pointwise functions commute with it."""
        found = [signed_permutation(each) for each in self.discrete(group)]
        permutes = all(each is not None and bool((each[1] > 0).all()) for each in found)
        return permutes and all(_is_zero(each) for each in self.algebra(group))

    def key(self, group: Group) -> str:
        """What tells its images of the generators of `group` from another atom's, on disk too."""
        return self.name

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two atoms equal."""
        return (type(self), self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

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
    is_dual = True

    def __init__(self, of: Atom) -> None:
        self.of = of
        self.name = f"{of.name}'"

    def size(self, group: Group) -> int:
        return self.of.size(group)

    def element(self, group: Group, elements: Tensor) -> Tensor:
        return torch.linalg.inv(self.of.element(group, elements)).mT

    def check(self, group: Group) -> None:
        self.of.check(group)

    def discrete(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return tuple(
            each if _is_orthogonal(each) else as_sparse(np.linalg.inv(each.toarray()).T)
            for each in self.of.discrete(group)
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

    def key(self, group: Group) -> str:
        return f"{self.of.key(group)}'"

    @property
    def identity(self) -> tuple[object, ...]:
        return (_Dual, self.of)


class _Pseudoscalar(Atom):
    name = "P"

    def size(self, group: Group) -> int:
        return 1

    def element(self, group: Group, elements: Tensor) -> Tensor:
        self.check(group)
        return torch.linalg.det(elements).detach().sign()[..., None, None]

    def check(self, group: Group) -> None:
        if group.is_complex:
            raise CallerError(
                f"a pseudoscalar is the sign of a determinant and needs a real group, got {group}; "
                "use its real form: group.real_form()"
            )

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        return tuple(sparse.csr_array((1, 1)) for _ in group.algebra)

    @property
    def dual(self) -> Atom:
        return self

    def is_self_dual(self, group: Group) -> bool:
        return True


BASE = _Base()
PSEUDOSCALAR = _Pseudoscalar()


# -- images of generators ----------------------------------------------------------------------


@lru_cache(maxsize=512)
def _discrete(atom: Atom, group: Group) -> tuple[sparse.csr_array, ...]:
    return tuple(as_sparse(atom.element(group, h)) for h in group.discrete_tensor())


@lru_cache(maxsize=512)
def _algebra(atom: Atom, group: Group) -> tuple[sparse.csr_array, ...]:
    generators = group.algebra_tensor()
    identity = torch.eye(group.dimension, dtype=generators.dtype)

    def rho(elements: Tensor) -> Tensor:
        return atom.element(group, elements)

    return tuple(as_sparse(torch.func.jvp(rho, (identity,), (a,))[1]) for a in generators)


def as_sparse(matrix: Tensor | np.ndarray) -> sparse.csr_array:
    """The matrix without the rounding of entries that should be whole: orbits need exact ±1."""
    array = matrix.detach().cpu().numpy() if isinstance(matrix, Tensor) else matrix
    whole = np.round(array)
    return sparse.csr_array(np.where(np.abs(array - whole) < ROUNDING, whole, array))


def _is_zero(matrix: sparse.csr_array) -> bool:
    return bool(np.abs(matrix.data).max(initial=0.0) < ROUNDING)


def _is_orthogonal(matrix: sparse.csr_array) -> bool:
    if np.iscomplexobj(matrix.data):
        return False
    return _is_zero(matrix.T @ matrix - sparse.identity(matrix.shape[0], format="csr"))
