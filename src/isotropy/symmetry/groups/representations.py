"""Representations: how something transforms when the group moves its space V.

    V       the space on which the group's own matrices act        ρ(g) = g
    V.dual  its dual                                               ρ(g⁻¹)ᵀ,  dρ(A) = −Aᵀ
    R + S   direct sum: one after the other                        ρ_R ⊕ ρ_S
    3 * R   the sum of three: R + R + R
    R * S   tensor product, the left index slow                    ρ_R ⊗ ρ_S
    R ** 3  R * R * R
    T(p, q) V^p ⊗ V*^q;  T(0) = Scalar
    R >> S  linear maps from R to S, matrices (dim S, dim R)       ρ_S ⊗ ρ_R*

(Finzi 2023, Table 2.1.) A representation is written before there is a group, `V >> V * V`, and
bound to one by a call, `(V >> V * V)(SO(3))`; what is bound to different groups does not mix.

Kept in normal form: a sum of products of `Atom`s, `terms`, each an amount and the atoms of one
product. A product of sums is the sum of all products, in the order left to right; its blocks lie
one after another. Bases are found for each pair of terms (`isotropy.bases`).

On binding each atom is asked whether it is a representation of the group. One given by its user
(`custom`) is checked on sampled elements g, h and every infinitesimal generator A,

    ρ(1) = 1,    ρ(g h) = ρ(g) ρ(h),    exp(dρ(A)) = ρ(exp A)

each within `TOLERANCE` of the norms on its right. The last two are compared on a few random
vectors, so that ρ of size n takes O(n²) work. Sums, products, duals and restrictions of
representations are representations by construction.

`str` writes what `language` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from math import prod
from numbers import Integral

import numpy as np
import scipy.sparse as sparse
import torch
from scipy.sparse.linalg import expm_multiply
from torch import Tensor

from isotropy.checks import CallerError, shape_text
from isotropy.symmetry.groups.atoms import (
    BASE,
    PSEUDOSCALAR,
    Atom,
    Irreducible,
    OfFactor,
    Product,
)
from isotropy.symmetry.groups.group import Group, digest_of
from isotropy.symmetry.groups.products import check_subgroup

__all__ = [
    "BASE", "PSEUDOSCALAR", "Atom", "Custom", "Maps", "P", "Product", "Representation", "Scalar",
    "T", "Term", "V", "custom", "irrep", "is_permutation", "of_factor", "product_element",
    "product_size",
]  # fmt: skip

TOLERANCE = 1e-8
"""The largest violation, relative to the norms of ρ(g) and ρ(h)."""
PAIRS = 3
"""How many g and h are sampled."""
VECTORS = 3
"""On how many vectors both sides are compared."""
LARGEST = 1.0
"""The Frobenius norm of the largest Σ z_i A_i: boosts and scalings grow exponentially with it."""
LARGEST_TERMS = 20_000
"""Terms in one sum: beyond it a multiplicity or a power was a slip."""
LARGEST_FACTORS = 128
"""Factors of one tensor product, two powers of 64."""
LARGEST_PRODUCTS = 10_000_000
"""Products that are listed one by one."""


class Custom(Atom):
    """A representation of your own: ρ as a function of one matrix (d, d) of the group.

    Written in torch operations that can be differentiated; dρ follows by forward-mode
    differentiation at the identity, and many elements at once by `torch.func.vmap`. It is checked
    on binding. Equal names and equal functions, equal atoms.
    """

    def __init__(self, name: str, rho: Callable[[Tensor], Tensor]) -> None:
        if not re.fullmatch(r"[^\W\d]\w*", name) or name in ("V", "T", "P", "Scalar", "irrep"):
            raise CallerError(
                "the name of a representation of your own: expected a word that is not one of V, "
                f"T, P, Scalar and irrep, got {name!r}"
            )
        self.name = name
        self._rho = rho

    def size(self, group: Group) -> int:
        identity = torch.eye(group.dimension, dtype=group.algebra_tensor().dtype)
        return int(self._rho(identity).shape[-1])

    def element(self, group: Group, elements: Tensor) -> Tensor:
        if elements.ndim == 2:
            return self._rho(elements)
        images = _each(self._rho, elements.flatten(0, -3))
        return images.unflatten(0, elements.shape[:-2])

    def check(self, group: Group) -> None:
        _check_once(self, group)

    def key(self, group: Group) -> str:
        """Its name and a digest of its images of the generators: they decide every basis."""
        return f"{self.name}:{_digest(self, group)}"

    @property
    def identity(self) -> tuple[object, ...]:
        return (Custom, self.name, self._rho)


def _each(rho: Callable[[Tensor], Tensor], elements: Tensor) -> Tensor:
    """ρ of many elements (count, d, d): all at once, or one after the other."""
    try:
        return torch.func.vmap(rho)(elements)
    except RuntimeError:  # ρ branches on values, or writes into new tensors
        return torch.stack([rho(each) for each in elements])


@lru_cache(maxsize=512)
def _check_once(atom: Atom, group: Group) -> None:
    check_atom(atom, group)


@lru_cache(maxsize=512)
def _digest(atom: Atom, group: Group) -> str:
    """Of its size and its images of the generators."""
    return digest_of(atom.size(group), atom.algebra(group), atom.discrete(group))


@dataclass(frozen=True)
class Term:
    """`amount` copies of one product of atoms."""

    amount: int
    atoms: Product

    def __str__(self) -> str:
        runs = [(atom.name, len(list(run))) for atom, run in groupby(self.atoms)]
        words = [
            f"{name}^{count}" if count > 2 else "*".join([name] * count) for name, count in runs
        ]
        return ("" if self.amount == 1 else str(self.amount)) + ("*".join(words) or "Scalar")


class Representation:
    """A sum of products of atoms, bound to a group or not; see the module."""

    def __init__(self, terms: tuple[Term, ...], group: Group | None = None) -> None:
        self.terms = _merged(terms)
        self._group = group
        if group is not None:
            for atom in {atom for term in self.terms for atom in term.atoms}:
                atom.check(group)

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
        if self._group is None or self._group == group:
            return Representation(self.terms, group)
        return self.restrict(group)

    def restrict(self, subgroup: Group) -> Representation:
        """The same of a subgroup, whose elements are matrices of the group: the same ρ of fewer g.

        Refused where the subgroup cannot be one: another dimension (`embed` it first), or one of
        the properties that `products.check_subgroup` knows.
        """
        check_subgroup(subgroup, self.group)
        return Representation(self.terms, subgroup)

    @property
    def products(self) -> list[Product]:
        """Every product of the sum, each as often as it comes.

        Raises CallerError where these are too many to list.
        """
        count = sum(term.amount for term in self.terms)
        if count > LARGEST_PRODUCTS:
            raise CallerError(
                f"{self}: expected at most {LARGEST_PRODUCTS:,} products, got {count:,}"
            )
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

    @property
    def algebra(self) -> tuple[sparse.csr_array, ...]:
        """dρ(A_i), (size, size), block diagonal, of every infinitesimal generator of the group."""
        count = range(len(self.group.algebra))
        return tuple(self._diagonal(partial(_product_algebra, index=i)) for i in count)

    @property
    def discrete(self) -> tuple[sparse.csr_array, ...]:
        """ρ(h_k), (size, size), block diagonal, of every discrete generator of the group."""
        count = range(len(self.group.discrete))
        return tuple(self._diagonal(partial(_product_discrete, index=k)) for k in count)

    def _diagonal(self, image: Callable[[Product, Group], sparse.csr_array]) -> sparse.csr_array:
        """The images of all products along the diagonal."""
        blocks = [(image(term.atoms, self.group), term.amount) for term in self.terms]
        rows = [sparse.kron(sparse.eye_array(amount), block) for block, amount in blocks]
        return sparse.csr_array(sparse.block_diag(rows, format="csr"))

    def element(self, elements: Tensor) -> Tensor:
        """ρ(g), (…, size, size), block diagonal, of elements g (…, d, d) of the group."""
        dimension = self.group.dimension
        if elements.ndim < 2 or elements.shape[-2:] != (dimension, dimension):
            raise CallerError(
                f"elements of {self.group}: expected (…, {dimension}, {dimension}), got "
                f"{shape_text(elements)}"
            )
        found = elements.new_zeros(*elements.shape[:-2], self.size, self.size)
        start = 0
        for term in self.terms:
            block = product_element(term.atoms, self.group, elements)
            for _ in range(term.amount):
                end = start + block.shape[-1]
                found[..., start:end, start:end] = block
                start = end
        return found

    def __add__(self, other: Representation | int) -> Representation:
        if isinstance(other, int) and other == 0:  # so that sum() works
            return self
        right = _as_representation(other)
        return Representation(self.terms + right.terms, _common_group(self, right))

    __radd__ = __add__

    def __mul__(self, other: Representation | int) -> Representation:
        if not isinstance(other, Representation):
            return Representation(_repeated(self.terms, _as_amount(other)), self._group)
        width = len(other.terms)
        _check_terms(sum(width * left.amount if width > 1 else 1 for left in self.terms))
        terms: list[Term] = []
        for left in self.terms:
            row = tuple(Term(term.amount, left.atoms + term.atoms) for term in other.terms)
            _check_factors(max((len(term.atoms) for term in row), default=0))
            terms += _repeated(row, left.amount)
        return Representation(tuple(terms), _common_group(self, other))

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Representation:
        found = Representation((Term(1, ()),), self._group)
        for _ in range(_as_amount(power)):
            found = found * self
        return found

    def __rshift__(self, target: Representation) -> Maps:
        return Maps(self, _as_representation(target))

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


@dataclass(frozen=True, repr=False)
class Maps:
    """Linear maps from `source` to `target`: matrices (target.size, source.size)."""

    source: Representation
    target: Representation

    def __post_init__(self) -> None:
        group = _common_group(self.source, self.target)
        if group is not None:
            object.__setattr__(self, "source", self.source(group))
            object.__setattr__(self, "target", self.target(group))

    def __call__(self, group: Group) -> Maps:
        """The same, of this group."""
        return Maps(self.source(group), self.target(group))

    @property
    def group(self) -> Group:
        return self.source.group

    @property
    def is_bound(self) -> bool:
        return self.source.is_bound

    @property
    def size(self) -> int:
        """Entries of a matrix."""
        return self.source.size * self.target.size

    def __str__(self) -> str:
        return f"{self.source} >> {self.target}"

    def __repr__(self) -> str:
        return f"{self} of {self.group}" if self.is_bound else str(self)


def T(p: int, q: int = 0) -> Representation:
    """V^p ⊗ V*^q."""
    orders: tuple[object, ...] = (p, q)
    if not all(isinstance(each, Integral) and int(each) >= 0 for each in orders):
        raise CallerError(f"T(p, q): expected whole p and q of at least 0, got {p} and {q}")
    return Representation((Term(1, (BASE,) * p + (BASE.dual,) * q),))


def irrep(order: int) -> Representation:
    """The irreducible representation of order l; see `atoms`. That of order 0 is `Scalar`.

    Of groups of orthogonal 2×2 and 3×3 matrices; refused on binding to another.
    """
    given: object = order
    if not isinstance(given, Integral) or int(given) < 0:
        raise CallerError(f"irrep(order): expected a whole number of at least 0, got {order!r}")
    if int(given) == 0:
        return Scalar
    return Representation((Term(1, (Irreducible(int(given)),)),))


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


def custom(name: str, rho: Callable[[Tensor], Tensor]) -> Representation:
    """A representation of your own: ρ as a function of a matrix (d, d); see `Custom`."""
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


def _product_algebra(atoms: Product, group: Group, index: int) -> sparse.csr_array:
    """dρ(A_i) = Σ_j 1 ⊗ … dρ_j(A_i) … ⊗ 1 of one product."""
    sizes = [atom.size(group) for atom in atoms]
    found = sparse.csr_array((prod(sizes), prod(sizes)))
    for place, atom in enumerate(atoms):
        before, after = (
            sparse.eye_array(prod(each)) for each in (sizes[:place], sizes[place + 1 :])
        )
        found = found + sparse.kron(sparse.kron(before, atom.algebra(group)[index]), after)
    return sparse.csr_array(found)


def _product_discrete(atoms: Product, group: Group, index: int) -> sparse.csr_array:
    """ρ(h_k) = ρ_1(h_k) ⊗ ρ_2(h_k) ⊗ … of one product."""
    found = sparse.csr_array(sparse.eye_array(1))
    for atom in atoms:
        found = sparse.kron(found, atom.discrete(group)[index], "csr")
    return found


def is_permutation(atoms: Product, group: Group) -> bool:
    """Whether the product permutes coordinates; a scalar does."""
    return all(atom.is_permutation(group) for atom in atoms)


def _merged(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Neighbours that are equal in one term, and none of amount zero."""
    kept = [term for term in terms if term.amount]
    return tuple(
        Term(sum(term.amount for term in run), atoms)
        for atoms, run in groupby(kept, lambda term: term.atoms)
    )


def _repeated(terms: tuple[Term, ...], times: int) -> tuple[Term, ...]:
    """The whole sum `times` times over."""
    if len(terms) == 1:
        return (Term(times * terms[0].amount, terms[0].atoms),)
    _check_terms(len(terms) * times)
    return terms * times


def _check_factors(count: int) -> None:
    if count > LARGEST_FACTORS:
        raise CallerError(
            f"a tensor product of {count:,} factors: expected at most {LARGEST_FACTORS}; its "
            "entries could not be counted"
        )


def _check_terms(count: int) -> None:
    if count > LARGEST_TERMS:
        raise CallerError(
            f"a sum of {count:,} terms: expected at most {LARGEST_TERMS:,}; collect equal "
            "products, as in 1000 * V + 1000 * Scalar instead of 1000 * (V + Scalar)"
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


def _as_amount(other: object) -> int:
    if not isinstance(other, Integral) or int(other) < 0:
        raise CallerError(f"expected a representation or a whole number, got {other!r}")
    return int(other)


# -- is it a representation? -------------------------------------------------------------------


def check_atom(atom: Atom, group: Group, *, generator: torch.Generator | None = None) -> None:
    """Raise `CallerError` unless `atom` is a representation of `group`; see the module."""
    generator = generator or torch.Generator().manual_seed(0)
    _check_values(atom, group)
    elements = group.sample(2 * PAIRS, generator, largest=LARGEST)
    vectors = torch.randn(atom.size(group), VECTORS, generator=generator, dtype=torch.float64)
    vectors = (vectors / torch.linalg.vector_norm(vectors, dim=0)).to(elements.dtype)
    for g, h in elements.unflatten(0, (PAIRS, 2)):
        left, right, both = (_image(atom, group, each) for each in (g, h, g @ h))
        scale = float(torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right))
        expected = left @ (right @ vectors)
        _check_equal(both @ vectors, expected, scale, "ρ(gh) = ρ(g)ρ(h)", atom, group)
    _check_derivatives(atom, group, vectors)


def _check_values(atom: Atom, group: Group) -> None:
    """ρ(1) is a finite square matrix of the group's numbers, and the identity."""
    identity = torch.eye(group.dimension, dtype=group.algebra_tensor().dtype)
    image = _image(atom, group, identity)
    if not isinstance(image, Tensor) or image.ndim != 2 or image.shape[0] != image.shape[1]:
        got = f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else repr(type(image))
        raise CallerError(
            f"ρ of {atom}, a representation of {group}: expected a square matrix for a matrix "
            f"{tuple(identity.shape)}, got {got}"
        )
    if image.dtype != identity.dtype:
        raise CallerError(
            f"ρ of {atom}, a representation of {group}: expected {identity.dtype} for "
            f"{identity.dtype}, got {image.dtype}; let constants follow the dtype of the argument, "
            "and take the real form of what is complex"
        )
    expected = torch.eye(len(image), dtype=image.dtype)
    _check_equal(image, expected, len(image) ** 0.5, "ρ(1) = 1", atom, group)


def _check_derivatives(atom: Atom, group: Group, vectors: Tensor) -> None:
    for generator, image in zip(group.algebra_tensor(), atom.algebra(group), strict=True):
        if not np.isfinite(image.data).all():
            raise CallerError(
                f"{atom} is not a representation of {group}: its derivative at the identity has a "
                "NaN or an infinity; ρ has to be smooth there, beware of square roots of zero"
            )
        step = LARGEST / max(LARGEST, float(torch.linalg.matrix_norm(generator)))
        moved = _image(atom, group, torch.linalg.matrix_exp(step * generator))
        expected = torch.from_numpy(expm_multiply(step * image, vectors.numpy()))
        scale = float(torch.linalg.matrix_norm(moved))
        _check_equal(moved @ vectors, expected, scale, "ρ(exp A) = exp(dρ(A))", atom, group)


def _image(atom: Atom, group: Group, element: Tensor) -> Tensor:
    """ρ(g), all of it finite."""
    image = atom.element(group, element)
    if isinstance(image, Tensor) and not bool(torch.isfinite(image).all()):
        raise CallerError(
            f"{atom} is not a representation of {group}: ρ(g) of an element has a NaN or an "
            "infinity"
        )
    return image


def _check_equal(
    found: Tensor, expected: Tensor, scale: float, law: str, atom: Atom, group: Group
) -> None:
    """‖found − expected‖ within the tolerance of `scale`."""
    worst = float(torch.linalg.matrix_norm(found - expected)) / max(scale, 1.0)
    if not worst <= TOLERANCE:
        raise CallerError(
            f"{atom} is not a representation of {group}: expected {law}, got a relative difference "
            f"of {worst:.1e}; write ρ as a smooth function of the group's matrix g that keeps "
            "products"
        )


V = Representation((Term(1, (BASE,)),))
Scalar = Representation((Term(1, ()),))
P = Representation((Term(1, (PSEUDOSCALAR,)),))
