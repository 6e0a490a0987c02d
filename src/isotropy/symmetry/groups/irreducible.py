"""Irreducible representations of SO(2), O(2), SO(3) and O(3), and what they are of subgroups.

    ρ_l(g) = Bᵀ g^{⊗l} B,    B an orthonormal basis of the symmetric traceless tensors of order l

of dimension 1 for l = 0, else 2 in the plane and 2l + 1 in space: a polynomial of g, so that it is
one of every group of orthogonal 2×2 or 3×3 matrices. In the plane it turns by l times the angle. A
reflection keeps its natural parity, ρ_l(−1) = (−1)^l; times the pseudoscalar P it has the other.

B is not written out. Tensors of order l are within V ⊗ (those of order l − 1), by an isometry C_l:

    ρ_l(g) = C_lᵀ (g ⊗ ρ_{l−1}(g)) C_l,    C_l (d · dim_{l−1}, dim_l), the index of V slow

Bases: l = 1 is V itself. In the plane (Re, Im) (x + iy)^l. In space, from l = 2 on, the real
spherical harmonics of order m = −l … l, which move as Y_l(g x) = ρ_l(g) Y_l(x); C_l is then a
Clebsch–Gordan matrix of 1 ⊗ (l − 1) → l. (Condon & Shortley 1935, table 2³.)
"""

from __future__ import annotations

from functools import lru_cache
from numbers import Integral

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups.atoms import Atom, as_sparse
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, Term


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

    def algebra(self, group: Group) -> tuple[sparse.csr_array, ...]:
        """dρ_l(A) = C_lᵀ (A ⊗ 1 + 1 ⊗ dρ_{l−1}(A)) C_l, what differentiation would give."""
        self.check(group)
        return tuple(self._infinitesimal(each.toarray()) for each in group.algebra)

    def _infinitesimal(self, generator: np.ndarray) -> sparse.csr_array:
        found = generator if self.order else np.zeros((1, 1))
        for order in range(2, self.order + 1):
            coupling = _coupling(order, len(generator))
            left, right = np.eye(len(generator)), np.eye(len(found))
            both = np.kron(generator, right) + np.kron(left, found)
            found = coupling.T @ both @ coupling
        return as_sparse(found)

    @property
    def dual(self) -> Atom:
        return self

    def is_self_dual(self, group: Group) -> bool:
        return True


def irrep(order: int) -> Representation:
    """The irreducible representation of order l; see the module. That of order 0 is `Scalar`.

    Of groups of orthogonal 2×2 and 3×3 matrices; refused on binding to another.
    """
    given: object = order
    if not isinstance(given, Integral) or int(given) < 0:
        raise CallerError(f"irrep(order): expected a whole number of at least 0, got {order!r}")
    if int(given) == 0:
        return Scalar
    return Representation((Term(1, (Irreducible(int(given)),)),))


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
