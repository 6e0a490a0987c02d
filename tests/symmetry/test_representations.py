"""Representations: one contract for all of them, the order of blocks, what does not mix, and
representations of one's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracles.representation_oracle import contragredient, derivative, direct_sum, kronecker
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups.atoms import Atom
from isotropy.symmetry.groups.catalogue import (
    GL,
    O13,
    SO,
    SU,
    C,
    D,
    O,
    Parity,
    S,
    SO2eR3,
    SO13p,
    Sp,
    Trivial,
    U,
    Z,
)
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.products import direct_product
from isotropy.symmetry.groups.representations import (
    BASE,
    Maps,
    P,
    Product,
    Representation,
    Scalar,
    T,
    V,
    check_atom,
    custom,
    irrep,
    of_factor,
    product_element,
    product_size,
)


def kron_square(g: Tensor) -> Tensor:
    return torch.kron(g, g)


def adjoint(g: Tensor) -> Tensor:
    """X ↦ g X g⁻¹ on matrices, row-major; takes any number of axes before."""
    inverse = torch.linalg.inv(g)
    outer = torch.einsum("...ij,...lk->...ikjl", g, inverse)
    return outer.reshape(*g.shape[:-2], g.shape[-1] ** 2, -1)


def sample(group: Group, count: int, seed: int = 0) -> Tensor:
    return group.sample(count, torch.Generator().manual_seed(seed), largest=1.0)


SQUARE = custom("square", kron_square)
ADJOINT = custom("adjoint", adjoint)
GROUPS = [
    *(Trivial(2), Z(4), S(3), D(5), O(3), O13(), SU(2), GL(2), SO2eR3(), SU(2).real_form()),
    *(direct_product(SO(3), Z(2)), direct_product(Z(2), Z(3))),
]
REPRESENTATIONS = [
    *(Scalar, V, V.dual, T(2), T(1, 2), P, P * V.dual, 3 * V + 2 * Scalar),
    *((V + Scalar) * (V.dual + P), SQUARE, SQUARE.dual * V, ADJOINT, irrep(2), irrep(3) * V),
    of_factor(V, 1) + of_factor(P * T(0, 2), 0),
]


def applies(representation: Representation, group: Group) -> bool:
    try:
        representation(group)
    except CallerError:
        return False
    return True


CASES = [
    pytest.param(each(group), id=f"{each} of {group}")
    for group in GROUPS
    for each in REPRESENTATIONS
    if applies(each, group)
]
every_case = pytest.mark.parametrize("case", CASES)


def test_few_cases_fall_away() -> None:
    """P needs a real group, irreps an orthogonal one of size 2 or 3, factors a direct product."""
    assert len(CASES) == 12 * 15 - 3 - 2 * 7 - 10


# -- one contract ------------------------------------------------------------------------------


@every_case
def test_keeps_products(case: Representation) -> None:
    g, h = sample(case.group, 3), sample(case.group, 3, seed=1)
    first, second, both = (case.element(each) for each in (g, h, g @ h))
    assert first.shape == (3, case.size, case.size)
    scale = float(first.abs().max() * second.abs().max()) * case.size
    torch.testing.assert_close(both, first @ second, rtol=0, atol=1e-13 * scale)
    identity = torch.eye(case.group.dimension, dtype=g.dtype)
    expected = torch.eye(case.size, dtype=g.dtype)
    torch.testing.assert_close(case.element(identity), expected, rtol=0, atol=1e-13)


@every_case
def test_images_of_generators(case: Representation) -> None:
    """Of every atom: ρ(h_k), and the derivative of ρ(exp tA) at t = 0."""
    group = case.group
    for atom in atoms_of(case):

        def rho(g: np.ndarray, atom: Atom = atom) -> np.ndarray:
            return atom.element(group, torch.from_numpy(g)).numpy()

        discrete, algebra = atom.discrete(group), atom.algebra(group)
        assert (len(discrete), len(algebra)) == (len(group.discrete), len(group.algebra))
        for image, h in zip(discrete, group.discrete, strict=True):
            np.testing.assert_allclose(image.toarray(), rho(h.toarray()), atol=1e-12)
        for image, a in zip(algebra, group.algebra, strict=True):
            np.testing.assert_allclose(image.toarray(), derivative(rho, a.toarray()), atol=1e-8)


@every_case
def test_dual(case: Representation) -> None:
    assert case.dual.dual == case
    assert case.dual.size == case.size
    g = sample(case.group, 1)[0]
    expected = contragredient(case.element(g).numpy())
    np.testing.assert_allclose(case.dual.element(g).numpy(), expected, atol=1e-11)
    for atom in atoms_of(case):
        is_self = np.allclose(atom.element(case.group, g), atom.dual.element(case.group, g))
        assert is_self or not atom.is_self_dual(case.group)


@every_case
def test_permutations_are_seen(case: Representation) -> None:
    images = case.element(sample(case.group, 4)).numpy()
    permutes = np.allclose(images, np.isclose(images, 1)) and np.allclose(images.sum(-1), 1)
    assert case.is_permutation == permutes


def atoms_of(representation: Representation) -> set[Atom]:
    return {atom for term in representation.terms for atom in term.atoms}


@every_case
def test_the_check_of_atoms_agrees(case: Representation) -> None:
    for atom in atoms_of(case):
        check_atom(atom, case.group, generator=torch.Generator().manual_seed(5))


# -- order of blocks and indices ---------------------------------------------------------------


def test_element_of_a_sum_has_blocks_in_order() -> None:
    group = GL(2)
    g = sample(group, 1)[0]
    m, one = g.numpy(), np.eye(1)
    found = (2 * V + Scalar + V.dual * V + V)(group).element(g).numpy()
    expected = direct_sum(m, m, one, kronecker(contragredient(m), m), m)
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_product_of_sums_is_the_sum_of_products_left_to_right() -> None:
    left, right = V + 2 * P, V.dual + Scalar
    expected = (V * V.dual, V, P * V.dual, P, P * V.dual, P)
    assert left * right == sum(expected, start=0 * V)
    assert [term.amount for term in (left * V).terms] == [1, 2]
    assert 3 * (V + Scalar) == V + Scalar + V + Scalar + V + Scalar == (V + Scalar) * 3
    assert 6 * T(2) == (2 * V) * (3 * V)


def test_multiplicities_and_scalars() -> None:
    assert V + V == 2 * V == V * 2 == np.int64(2) * V
    assert V + Scalar + V != 2 * V + Scalar
    assert V * Scalar == Scalar * V == V == V**1
    assert V**0 == T(0) == Scalar
    assert T(2, 1) == V * V * V.dual
    assert (0 * V).terms == (0 * (V + P)).terms == (3 * (0 * V)).terms == ()
    assert sum([V, V]) == 2 * V
    assert (0 * V)(SO(3)).size == 0
    assert (2 * V + Scalar).products == [(BASE,), (BASE,), ()]


def test_sizes() -> None:
    assert (2 * V + T(2, 1) + P + Scalar)(SO(3)).size == 6 + 27 + 2
    assert (V >> T(2))(SO(3)).size == 27
    atoms: Product = (BASE, BASE.dual)
    assert product_size(atoms, SO(4)) == 16
    assert product_size((), SO(4)) == 1
    assert product_element((), SO(4), sample(SO(4), 2)).tolist() == [[[1.0]], [[1.0]]]


def test_maps_from_source_to_target() -> None:
    maps = (V + Scalar >> V * V)(GL(2))
    assert (maps.source.size, maps.target.size) == (3, 4)
    assert V(GL(2)) >> T(2) == (V >> T(2))(GL(2)) != (V >> T(2))
    assert hash(V(GL(2)) >> T(2)) == hash((V >> T(2))(GL(2)))
    assert repr(V >> T(2)) == "V >> V*V"
    assert repr((V >> T(2))(GL(2))) == "V >> V*V of GL(2)"


def test_words() -> None:
    assert str(3 * T(2, 3) + 2 * Scalar + P) == "3V*V*V'^3 + 2Scalar + P"
    assert str(0 * V) == "0"
    assert repr(V(SO(3))) == "V of SO(3)"


# -- groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda: V.size,
        lambda: V.group,
        lambda: V.is_permutation,
        lambda: V.element(torch.eye(3)),
        lambda: (V >> V).size,
        lambda: V.restrict(SO(3)),
    ],
)
def test_needs_a_group(use: Callable[[], object]) -> None:
    with pytest.raises(CallerError, match="not bound to a group; call it with one"):
        use()


@pytest.mark.parametrize(
    "mix",
    [
        lambda: V(SO(3)) + V(O(3)),
        lambda: V(SO(3)) * V(SO(2)),
        lambda: V(SO(3)) >> V(SO(2)),
        lambda: Maps(Scalar(Z(3)), V(S(3))),
    ],
)
def test_groups_do_not_mix(mix: Callable[[], object]) -> None:
    with pytest.raises(CallerError, match="expected representations of one group, got"):
        mix()


def test_one_bound_side_binds_the_other() -> None:
    assert V(SO(3)) + T(2) == (V + T(2))(SO(3))
    assert (V(SO(3)) * Scalar).group == SO(3)
    assert (V >> V(SO(3))).source.group == SO(3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: V + 1,
        lambda: V * 1.5,
        lambda: -1 * V,
        lambda: V**-1,
        lambda: V >> 3,  # type: ignore[operator]
        lambda: V * "V",  # type: ignore[operator]
        lambda: T(-1),
        lambda: T(1, -2),
        lambda: T(1.5),  # type: ignore[arg-type]
        lambda: V(SO(3)).element(torch.eye(2)),
        lambda: V(SO(3)).element(torch.ones(3)),
        lambda: (V + P) * 10**9,
        lambda: (1000 * V) * (1000 * (V + P)),
        lambda: of_factor(V, -1),
        lambda: of_factor(V(SO(3)), 0),
        lambda: custom("two words", kron_square),
        lambda: custom("T", kron_square),
    ],
)
def test_refuses(wrong: Callable[[], object]) -> None:
    with pytest.raises(CallerError, match="expected"):
        wrong()


def test_pseudoscalar_needs_a_real_group() -> None:
    with pytest.raises(CallerError, match="needs a real group, got SU"):
        (V + P)(SU(2))
    assert P(SU(2).real_form()).size == 1


def test_pseudoscalar_is_the_sign_of_the_determinant() -> None:
    elements = torch.diag_embed(torch.tensor([[2.0, -3.0], [1.0, 5.0]], dtype=torch.float64))
    assert P(GL(2)).element(elements).flatten().tolist() == [-1.0, 1.0]
    assert P.dual == P


SUBGROUPS = {
    "O(3) to SO(3)": (O(3), SO(3)),
    "SO(3) to a turn about z": (SO(3), SO2eR3()),
    "O(2) to D(6)": (O(2), D(6)),
    "D(6) to C(3)": (D(6), C(3)),
    "S(4) to Z(4)": (S(4), Z(4)),
    "U(3) to SO(3)": (U(3), SO(3)),
    "O(1,3) to SO+(1,3)": (O13(), SO13p()),
    "GL(2) to Sp(1)": (GL(2), Sp(1)),
    "to itself": (SO(3), SO(3)),
    "to nothing": (S(3), Trivial(3)),
}


@pytest.mark.parametrize(("group", "subgroup"), SUBGROUPS.values(), ids=SUBGROUPS)
def test_restriction(group: Group, subgroup: Group) -> None:
    large = (V + T(1, 1))(group)
    small = large.restrict(subgroup)
    assert small == large(subgroup) == (V + T(1, 1))(subgroup)
    elements = sample(subgroup, 2)
    torch.testing.assert_close(small.element(elements), large.element(elements))


OTHERS = {
    "has 4 rows|matrices have 4 rows": (SO(3), SO(4)),
    "complex": (GL(2), SU(2)),
    "Lie algebra": (SO13p(), SO(4)),
    "permutes coordinates|does not": (S(4), Parity()),
    "is orthogonal": (O(2), Group("stretch", discrete=[[[2, 0], [0, 0.5]]])),
    "keeps a form": (O13(), Group("swap", discrete=[[1, 0, 2, 3]])),
    "has determinant 1": (SO(3), O(3)),
    "has elements that": (C(4), C(3)),
}


@pytest.mark.parametrize(("complaint", "pair"), OTHERS.items(), ids=OTHERS)
def test_restriction_to_what_is_no_subgroup(complaint: str, pair: tuple[Group, Group]) -> None:
    group, other = pair
    with pytest.raises(CallerError, match=complaint):
        V(group).restrict(other)
    with pytest.raises(CallerError, match="expected a subgroup of"):
        V(group)(other)


# -- factors of direct products ----------------------------------------------------------------


def test_product_of_factors_is_the_product_group_itself() -> None:
    group = direct_product(SO(3), S(4), Z(2))
    parts = of_factor(V, 0) * of_factor(V, 1) * of_factor(V, 2)
    elements = sample(group, 3)
    torch.testing.assert_close(parts(group).element(elements), elements)
    assert of_factor(V.dual, 1) == of_factor(V, 1).dual
    assert of_factor(V, 1)(group).is_permutation
    assert not of_factor(V, 0)(group).is_permutation


def test_factors_of_which_an_element_does_not_tell_have_generators_all_the_same() -> None:
    group = direct_product(O(2), O(2))
    (atom,) = of_factor(V, 1).terms[0].atoms
    assert of_factor(V, 1)(group).size == 2
    np.testing.assert_array_equal(atom.algebra(group)[0].toarray(), np.zeros((2, 2)))
    np.testing.assert_array_equal(atom.algebra(group)[1].toarray(), O(2).algebra[0].toarray())
    np.testing.assert_array_equal(atom.discrete(group)[0].toarray(), np.eye(2))
    with pytest.raises(CallerError, match="do not tell their part in O"):
        of_factor(V, 1)(group).element(sample(group, 1))


def test_factors_need_a_direct_product() -> None:
    with pytest.raises(CallerError, match="expected a direct product of at least 2 groups, got 1"):
        of_factor(V, 1)(SO(3))
    pretended = Group("pretended", algebra=SO(4).algebra, factors=(SO(2), SO(2)))
    with pytest.raises(CallerError, match="not those of the direct product"):
        of_factor(V, 0)(pretended)


# -- of your own -------------------------------------------------------------------------------


def test_own_representation_equals_what_it_computes() -> None:
    group = SO13p()
    g = sample(group, 2)
    torch.testing.assert_close(SQUARE(group).element(g), T(2)(group).element(g))
    torch.testing.assert_close(ADJOINT(group).element(g), T(1, 1)(group).element(g))
    assert SQUARE(group).size == 16
    (atom,) = SQUARE.terms[0].atoms
    assert not atom.is_self_dual(group)
    assert atom.is_self_dual(O(3))


def test_own_representation_that_branches_takes_many_elements_too() -> None:
    def sign(g: Tensor) -> Tensor:
        return g.new_ones(1, 1) if torch.linalg.det(g) > 0 else -g.new_ones(1, 1)

    group = O(3)
    elements = sample(group, 40).reshape(2, 20, 3, 3)
    own, known = custom("sign", sign)(group), P(group)
    torch.testing.assert_close(own.element(elements), known.element(elements))
    torch.testing.assert_close(own.element(elements[:, :2]), known.element(elements[:, :2]))
    many = SQUARE(group).element(elements)
    torch.testing.assert_close(many, T(2)(group).element(elements))


NOT_REPRESENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "squares of entries": lambda g: g * g,
    "reversed": lambda g: g.mT,
    "squares": lambda g: g @ g,
    "twice": lambda g: 2 * g,
    "no derivative": lambda g: g.detach(),
    "NaN": lambda g: g * float("nan"),
    "NaN away from the identity": lambda g: g / (g[0, 0] > 0.999),
    "NaN in the derivative": lambda g: g + torch.sqrt((g - torch.eye(3).to(g)).square().sum()) * 0,
    "float32": lambda g: g.float(),
    "vector": lambda g: g[0],
    "oblong": lambda g: g[:2],
    "complex": lambda g: g + 0j,
}


@pytest.mark.parametrize("rho", NOT_REPRESENTATIONS.values(), ids=NOT_REPRESENTATIONS)
def test_refused_on_binding(rho: Callable[[Tensor], Tensor]) -> None:
    wrong = custom("wrong", rho)
    uses: list[Callable[[], object]] = [
        lambda: wrong(O(3)),
        lambda: V(O(3)) * wrong,
        lambda: V(O(3)) + wrong.dual,
        lambda: wrong >> V(O(3)),
        lambda: check_atom(wrong.terms[0].atoms[0], O(3)),
    ]
    for use in uses:
        with pytest.raises(CallerError, match="wrong"):
            use()


def test_checks_atoms_that_are_not_custom() -> None:
    class Trace(type(BASE)):  # type: ignore[misc]
        name = "Trace"

        def element(self, group: Group, elements: Tensor) -> Tensor:
            return elements * elements.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]

    with pytest.raises(CallerError, match="Trace is not a representation of SO"):
        check_atom(Trace(), SO(3))


def test_own_representations_are_told_apart_by_function_and_content() -> None:
    group = SO(3)
    first, again, other = (
        custom("own", rho) for rho in (kron_square, lambda g: torch.kron(g, g), adjoint)
    )
    assert first == custom("own", kron_square) != again != other
    assert first != custom("else", kron_square)
    keys = [each.terms[0].atoms[0].key(group) for each in (first, again, other)]
    assert keys[0] == keys[1] == keys[2]  # of orthogonal matrices, g⁻¹ᵀ is g
    keys = [each.terms[0].atoms[0].key(GL(3)) for each in (first, again, other)]
    assert keys[0] == keys[1] != keys[2]
    assert first.dual.terms[0].atoms[0].key(group) != keys[0]
    one, two = (custom("own", rho).terms[0].atoms[0] for rho in (kron_square, lambda g: g))
    assert one.key(Trivial(2)) != two.key(Trivial(2))  # no generators, but other sizes
    assert BASE.key(group) == "V"
    assert BASE.dual.key(group) == "V'"


def test_a_name_does_not_make_an_atom() -> None:
    class Impostor(type(BASE)):  # type: ignore[misc]
        name = "V"

    assert Impostor() != BASE
    assert Impostor().dual != BASE.dual
