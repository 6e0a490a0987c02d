"""Atoms: representations that are not split further, of which all others are sums of products.

    V         the space on which the group's own matrices act     ρ(g) = g
    R'        the dual of R                                       ρ(g⁻¹)ᵀ,  dρ'(A) = −dρ(A)ᵀ
    P         pseudoscalar, of real groups                        sign det g
    irrep(l)  irreducible, of SO(2), O(2), SO(3), O(3)            symmetric traceless tensors
    R@i       R of factor i of a direct product                   ρ(g_1 ⊗ … ⊗ g_m) = ρ_R(g_i)

An atom is a function ρ of the group's own matrices g (…, d, d) that belongs to no group before it
is used with one; its images of the generators, `discrete` and `algebra`, are all that a solver
sees. A new one needs `name`, `size` and `element`; dρ follows by forward-mode differentiation at
the identity. (Finzi 2023, Table 2.1 and section 2.4.)

**Irreducible.** ρ_l(g) = Bᵀ g^{⊗l} B with B an orthonormal basis of the symmetric traceless tensors
of order l, of dimension 1 for l = 0, else 2 in the plane and 2l + 1 in space: a polynomial of g, so
that it is one of every group of orthogonal 2×2 or 3×3 matrices. In the plane it turns by l times
the angle. A reflection keeps its natural parity, ρ_l(−1) = (−1)^l; times P it has the other. B is
not written out: tensors of order l are within V ⊗ (those of order l − 1), by an isometry C_l,

    ρ_l(g) = C_lᵀ (g ⊗ ρ_{l−1}(g)) C_l,    C_l (d · dim_{l−1}, dim_l), the index of V slow

Bases: l = 1 is V itself. In the plane (Re, Im) (x + iy)^l. In space, from l = 2 on, the real
spherical harmonics of order m = −l … l, which move as Y_l(g x) = ρ_l(g) Y_l(x); C_l is then a
Clebsch–Gordan matrix of 1 ⊗ (l − 1) → l. (Condon & Shortley 1935, table 2³.)

**Of one factor.** The other factors leave it in place. Generators of a product belong to one factor
each, so that their images follow from the factor's. An element of the product, given as one matrix,
tells g_i up to a number: (c g_1) ⊗ (g_2 / c) is the same matrix. `element` takes the g_i that is in
the group where only one multiple of it is: permutations, whose columns sum to 1, and real matrices
of odd size with determinant 1. Elsewhere it refuses; bases are found all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from math import prod

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group, signed_permutation
from isotropy.symmetry.groups.products import has_determinant_one, is_direct_product

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

    @property
    def dual(self) -> Atom:
        return self


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


# -- irreducible representations ---------------------------------------------------------------


class Irreducible(Atom):
    """The irreducible representation of order l of SO(2), O(2), SO(3) or O(3); see the module."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.name = f"irrep({order})"

    def check(self, group: Group) -> None:
        if group.dimension not in (2, 3):
            raise CallerError(
                f"{self} of {group}: expected a group of 2×2 or 3×3 matrices, got "
                f"{group.dimension}×{group.dimension}; use tensors T(p, q), or custom(name, rho)"
            )
        if not group.is_self_dual:
            raise CallerError(
                f"{self} of {group}: expected a group of orthogonal matrices, a subgroup of "
                f"O({group.dimension}), got one that is not; use tensors T(p, q), or "
                "custom(name, rho)"
            )

    def size(self, group: Group) -> int:
        self.check(group)
        return _size(self.order, group.dimension)

    def element(self, group: Group, elements: Tensor) -> Tensor:
        self.check(group)
        found = elements.new_ones(*elements.shape[:-2], 1, 1) if self.order == 0 else elements
        for order in range(2, self.order + 1):
            found = _coupled(order, elements, found)
        return found

    @property
    def dual(self) -> Atom:
        return self

    def is_self_dual(self, group: Group) -> bool:
        return True


def _coupled(order: int, elements: Tensor, before: Tensor) -> Tensor:
    """C_lᵀ (g ⊗ ρ_{l−1}(g)) C_l from g (…, d, d) and ρ_{l−1}(g)."""
    dimension = elements.shape[-1]
    matrix = _coupling(order, dimension)
    tensor = torch.from_numpy(matrix).to(elements).unflatten(0, (dimension, before.shape[-1]))
    # The right C first, one factor at a time, then the left one.
    right = torch.einsum("...ab,bcn->...acn", elements, tensor)
    both = torch.einsum("...dc,...acn->...adn", before, right)
    return torch.einsum("adm,...adn->...mn", tensor, both)


def _size(order: int, dimension: int) -> int:
    if order == 0:
        return 1
    return 2 if dimension == 2 else 2 * order + 1


@lru_cache(maxsize=256)
def _coupling(order: int, dimension: int) -> np.ndarray:
    """C_l (d · dim_{l−1}, dim_l) for l ≥ 2, with orthonormal columns."""
    return _plane_coupling() if dimension == 2 else _space_coupling(order)


def _plane_coupling() -> np.ndarray:
    """(c, s) ⊗ (c', s') ↦ (cc' − ss', sc' + cs'): angles add, whatever the order."""
    return np.array([[1.0, 0, 0, -1], [0, 1, 1, 0]]).T / np.sqrt(2)


def _space_coupling(order: int) -> np.ndarray:
    """Clebsch–Gordan coefficients of 1 ⊗ (l − 1) → l between real bases."""
    below = order - 1
    coefficients = np.zeros((3, 2 * below + 1, 2 * order + 1))  # m of V, m of l − 1, m of l
    m = np.arange(-order, order + 1)
    stretched = (
        np.sqrt((below - m) * (below - m + 1) / ((2 * below + 1) * (2 * below + 2))),
        np.sqrt((below - m + 1) * (below + m + 1) / ((2 * below + 1) * (below + 1))),
        np.sqrt((below + m) * (below + m + 1) / ((2 * below + 1) * (2 * below + 2))),
    )
    for index, step in enumerate((-1, 0, 1)):
        inside = np.abs(m - step) <= below
        coefficients[index, (m - step + below)[inside], np.nonzero(inside)[0]] = stretched[index][
            inside
        ]
    axes = _real_basis(1)[[2, 0, 1]]  # x, y, z are the harmonics of m = 1, −1, 0
    previous = axes if below == 1 else _real_basis(below)
    real = np.einsum("ap,bq,cr,pqr->abc", axes, previous, _real_basis(order).conj(), coefficients)
    assert np.abs(real.imag).max() < 1e-12
    return np.ascontiguousarray(real.real.reshape(-1, 2 * order + 1))


def _real_basis(order: int) -> np.ndarray:
    """Real spherical harmonics from complex ones: Y_real[m] = Σ_n U[m, n] Y[n], m = −l … l.

    Y_m = √2 (−1)^m Re Y^m, Y_{−m} = √2 (−1)^m Im Y^m for m > 0, and Y_0 = Y^0, with the
    Condon–Shortley phase Y^{−m} = (−1)^m conj Y^m.
    """
    found = np.zeros((2 * order + 1, 2 * order + 1), complex)
    found[order, order] = 1
    for m in range(1, order + 1):
        sign = (-1) ** m
        found[order + m, [order + m, order - m]] = sign / np.sqrt(2), 1 / np.sqrt(2)
        found[order - m, [order + m, order - m]] = sign / (1j * np.sqrt(2)), -1 / (1j * np.sqrt(2))
    return found


# -- of one factor of a direct product ---------------------------------------------------------


class OfFactor(Atom):
    """`atom` of the factor `index`, counted from 0, of a direct product; see the module."""

    def __init__(self, atom: Atom, index: int) -> None:
        self.atom = atom
        self.index = index
        self.is_dual = atom.is_dual
        self.name = f"{atom.name}@{index}"

    def check(self, group: Group) -> None:
        self.atom.check(self._factor(group))

    def size(self, group: Group) -> int:
        return self.atom.size(self._factor(group))

    def element(self, group: Group, elements: Tensor) -> Tensor:
        return self.atom.element(self._factor(group), _part(group, self.index, elements))

    def discrete(self, group: Group) -> tuple[sparse.csr_array, ...]:
        identity = sparse.csr_array(sparse.eye_array(self.size(group)))
        images = self.atom.discrete(self._factor(group))
        others = [(identity,) * len(each.discrete) for each in group.factors]
        return self._in_order(others, images)

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        zero = sparse.csr_array((self.size(group), self.size(group)))
        images = self.atom.algebra(self._factor(group))
        others = [(zero,) * len(each.algebra) for each in group.factors]
        return self._in_order(others, images)

    def _in_order(
        self, others: list[tuple[sparse.csr_array, ...]], images: tuple[sparse.csr_array, ...]
    ) -> tuple[sparse.csr_array, ...]:
        """The images in the place of this factor's, among those of the other factors."""
        others[self.index] = images
        return tuple(image for each in others for image in each)

    @property
    def dual(self) -> Atom:
        return OfFactor(self.atom.dual, self.index)

    def is_self_dual(self, group: Group) -> bool:
        return self.atom.is_self_dual(self._factor(group))

    def is_permutation(self, group: Group) -> bool:
        return self.atom.is_permutation(self._factor(group))

    def key(self, group: Group) -> str:
        factor = self._factor(group)
        return f"{self.atom.key(factor)}@{self.index} {factor.key}"

    @property
    def identity(self) -> tuple[object, ...]:
        return (OfFactor, self.atom, self.index)

    def _factor(self, group: Group) -> Group:
        if self.index >= len(group.factors):
            raise CallerError(
                f"{self} of {group}: expected a direct product of at least {self.index + 1} "
                f"groups, got {len(group.factors) or 1}; factors are counted from 0"
            )
        if not is_direct_product(group):
            names = " x ".join(each.name for each in group.factors)
            raise CallerError(
                f"{group}: its generators are not those of the direct product {names} of its "
                "factors; make it by direct_product"
            )
        return group.factors[self.index]


def _part(group: Group, index: int, elements: Tensor) -> Tensor:
    """g_i (…, d_i, d_i) of g_1 ⊗ … ⊗ g_m (…, d, d): the multiple of a block that is in G_i."""
    factor = group.factors[index]
    sizes = [each.dimension for each in group.factors]
    before, size, after = prod(sizes[:index]), sizes[index], prod(sizes[index + 1 :])
    tensor = elements.reshape(-1, before, size, after, before, size, after)
    blocks = tensor.permute(0, 1, 3, 4, 6, 2, 5).flatten(1, 4)  # (batch, others, d_i, d_i)
    largest = torch.linalg.matrix_norm(blocks).argmax(1)
    block = blocks[torch.arange(len(blocks), device=blocks.device), largest]
    if factor.is_permutation:
        found = block * (size / block.sum((-2, -1), keepdim=True))
    elif size % 2 == 1 and not factor.is_complex and has_determinant_one(factor):
        determinant = torch.linalg.det(block)[:, None, None]
        found = block / (determinant.sign() * determinant.abs() ** (1 / size))
    else:
        raise CallerError(
            f"elements of {group} given as one matrix do not tell their part in {factor}: "
            "(−g) ⊗ (−h) = g ⊗ h; sample elements of the factors instead"
        )
    return found.reshape(*elements.shape[:-2], size, size)
