"""Representations of one factor of a direct product, as representations of the product.

    of_factor(R, i):    ρ(g_1 ⊗ … ⊗ g_m) = ρ_R(g_i)

of G_1 × … × G_m on V_1 ⊗ … ⊗ V_m: the other factors leave it in place. Generators of a product
belong to one factor each, so that their images, all that a solver needs, follow from the factor's.

An element of the product, given as one matrix, tells g_i up to a number: (c g_1) ⊗ (g_2 / c) is
the same matrix. `element` takes the g_i that is in the group where only one multiple of it is:
permutations, whose columns sum to 1, and real matrices of odd size with determinant 1. Elsewhere
it refuses; bases are found all the same.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from numbers import Integral

import scipy.sparse as sparse
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups.atoms import Atom
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.products import direct_product, has_determinant_one
from isotropy.symmetry.groups.representations import Representation, Term


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
        _check_product(group)
        return group.factors[self.index]


def of_factor(representation: Representation, index: int) -> Representation:
    """The representation of factor `index`, counted from 0, as one of the direct product.

    >>> (of_factor(V, 0) * of_factor(V, 1))(direct_product(SO(3), S(4)))  # the product's own V
    """
    given: object = index
    if not isinstance(given, Integral) or int(given) < 0:
        raise CallerError(f"of_factor: expected an index of at least 0, got {index!r}")
    if representation.is_bound:
        raise CallerError(
            f"of_factor: expected a representation that is not bound to a group, got "
            f"{representation!r}; bind the result to the direct product"
        )
    return Representation(
        tuple(
            Term(term.amount, tuple(OfFactor(atom, int(given)) for atom in term.atoms))
            for term in representation.terms
        )
    )


@lru_cache(maxsize=64)
def _check_product(group: Group) -> None:
    """The generators are those of `direct_product`, in its order, on which `OfFactor` relies."""
    if direct_product(*group.factors) != group:
        names = " x ".join(each.name for each in group.factors)
        raise CallerError(
            f"{group}: its generators are not those of the direct product {names} of its factors; "
            "make it by direct_product"
        )


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
