"""A group from its generators: how they may be given, what is refused, elements, real form."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from oracles.group_oracle import dense, is_closed
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from isotropy.checks import CallerError
from isotropy.symmetry.groups import group as groups
from isotropy.symmetry.groups.catalogue import SO, SU, C, D, GridGroup, O, S, SO13p, Sp, U, Z
from isotropy.symmetry.groups.group import (
    Classical,
    Group,
    Span,
    permutation_matrix,
    signed_permutation,
)

TURN = [[0, -1, 0], [1, 0, 0], [0, 0, 0]]
CYCLE = [1, 2, 0]
RAISE, LOWER = [[0, 1], [0, 0]], [[0, 0], [1, 0]]
PAULI = [[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_group_of_your_own():
    """Turns about an axis, and an exchange of its ends."""
    rotation = [[0, -1, 0], [1, 0, 0], [0, 0, 0]]
    mirror = np.diag([1, 1, -1])
    group = Group("O(2) with mirror", algebra=[rotation], discrete=[mirror])
    elements = group.sample(5, seeded())
    assert group.dimension == 3 and group.is_self_dual and not group.is_permutation
    assert repr(group) == "O(2) with mirror"
    torch.testing.assert_close(elements.mT @ elements, torch.eye(3).double().expand(5, 3, 3))


# -- ways to give generators -------------------------------------------------------------------


class Shift(LinearOperator):
    """An operator that knows only how to act."""

    def __init__(self, size: int) -> None:
        super().__init__(np.dtype(float), (size, size))

    def _matvec(self, vector: np.ndarray) -> np.ndarray:
        return np.roll(vector, 1, 0)

    _matmat = _matvec


MATRIX = permutation_matrix(CYCLE).toarray()
WAYS = {
    "permutation": CYCLE,
    "permutation as tensor": torch.tensor(CYCLE),
    "permutation of whole floats": [1.0, 2.0, 0.0],
    "nested lists": MATRIX.tolist(),
    "integers": MATRIX.astype(np.int8),
    "single precision": MATRIX.astype(np.float32),
    "complex numbers that are real": MATRIX.astype(np.complex64),
    "tensor": torch.from_numpy(MATRIX),
    "sparse matrix": sparse.coo_matrix(MATRIX),
    "sparse array with stored zeros": sparse.csr_array(
        (np.array([1.0, 0.0, 1.0, 1.0]), np.array([2, 0, 0, 1]), np.array([0, 2, 3, 4])), (3, 3)
    ),
    "operator": Shift(3),
    "operator of a matrix": aslinearoperator(MATRIX),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_give_a_generator(way: str):
    group = Group("cycle", discrete=[WAYS[way]])
    assert group == Z(3) and hash(group) == hash(Z(3)) and group.key == Z(3).key
    assert group.is_permutation and not group.is_complex
    assert group.discrete[0].dtype == np.float64
    np.testing.assert_array_equal(group.discrete[0] @ [10, 20, 30], [30, 10, 20])


def test_large_operator_is_read_in_parts():
    assert Group("shift", discrete=[Shift(600)]) == Z(600)


def test_later_changes_of_the_given_matrix_do_nothing():
    given = sparse.csr_array(MATRIX)
    group = Group("cycle", discrete=[given])
    given.data[:] = 7
    assert group == Z(3)


# -- what is refused ---------------------------------------------------------------------------

REFUSED = {
    "singular": ({"discrete": [[[1, 2], [2, 4]]]}, "discrete generator 0 is singular"),
    "empty row": ({"discrete": [CYCLE, np.diag([1, 1, 0])]}, "discrete generator 1 is singular"),
    "nearly singular": ({"discrete": [np.diag([1, 1e-12])]}, "is singular"),
    "singular, complex": ({"discrete": [[[1, 1j], [1j, -1]]]}, "is singular"),
    "singular, one block of two": (
        {"discrete": [[[1, 1, 0], [1, 1, 0], [0, 0, 5]]]},
        "is singular",
    ),
    "not closed": ({"algebra": [RAISE, LOWER]}, r"\[A0, A1\] is not a real combination"),
    "not closed, dependent": (
        {"algebra": [RAISE, RAISE, LOWER]},
        r"not closed under the bracket: \[A0, A2\]",
    ),
    "not closed over the reals": ({"algebra": PAULI}, "not a real combination of the 3"),
    "not square": ({"discrete": [np.ones((2, 3))]}, r"square matrix, got shape \(2, 3\)"),
    "not a matrix": ({"discrete": [np.ones((2, 2, 2))]}, r"got shape \(2, 2, 2\)"),
    "a number": ({"discrete": [3]}, r"got shape \(\)"),
    "ragged": ({"discrete": [[[1, 2], [3]]]}, "expected a matrix .* of numbers"),
    "words": ({"discrete": ["SO(3)"]}, "expected a matrix .* of numbers"),
    "NaN": ({"algebra": [[[0, np.nan], [0, 0]]]}, "algebra: expected finite numbers"),
    "infinity": ({"discrete": [sparse.csr_array(np.diag([np.inf, 1]))]}, "finite numbers"),
    "NaN in a permutation": ({"discrete": [[0, np.nan, 1]]}, "permutation of 0 … 2"),
    "place twice": ({"discrete": [[0, 0, 1]]}, r"permutation of 0 … 2, got \[0, 0, 1\]"),
    "counted from one": ({"discrete": [[2, 3, 1]]}, "permutation of 0 … 2"),
    "half places": ({"discrete": [[0.5, 1, 2]]}, "permutation of 0 … 2"),
    "two sizes": ({"algebra": [TURN], "discrete": [[1, 0]]}, r"one size .* got sizes \[2, 3\]"),
    "other dimension": ({"algebra": [TURN], "dimension": 4}, r"got sizes \[3, 4\]"),
    "nothing": ({}, "neither generators nor a dimension"),
    "no dimensions": ({"dimension": 0}, "at least 1 dimension"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str):
    arguments, complaint = REFUSED[case]
    with pytest.raises(CallerError, match=f"group own.*{complaint}"):
        Group("own", **arguments)


def test_accepted_though_dependent_or_badly_scaled():
    Group("twice", algebra=[TURN, 2 * np.array(TURN)])
    Group("zero", algebra=[np.zeros((2, 2)), np.zeros((2, 2))])
    scaled = [1e-6 * np.array(RAISE), 1e6 * np.array(LOWER), np.diag([1.0, -1.0])]
    assert is_closed(scaled)
    Group("sl(2)", algebra=scaled)
    Group("stretched", discrete=[np.diag([1e-4, 1e4])])
    Group("su(2)", algebra=[1j * np.array(each) for each in PAULI])


def test_bracket_check_in_parts(monkeypatch: pytest.MonkeyPatch):
    """With room for two rows of brackets at a time, one missing far down is still seen."""
    whole = dense(SO(5).algebra)
    fine = [np.zeros((5, 5))] * 7 + whole[:1]
    monkeypatch.setattr(groups, "LARGEST_PART", 2 * len(whole) * 20)
    Group("own", algebra=whole)
    Group("own", algebra=fine)
    with pytest.raises(CallerError, match=r"\[A7, A8\] is not a real combination of the 9"):
        Group("own", algebra=[*fine, whole[1]])


def test_span():
    span = Span(O(3).algebra)
    assert span.dimension == 3
    mixed = sparse.csr_array(sum((k + 1) * a for k, a in enumerate(SO(3).algebra)))
    assert span.contains(mixed)
    assert not span.contains(mixed + sparse.eye_array(3, format="csr"))
    assert not span.contains(1j * mixed)
    symmetric = sparse.csr_array(np.ones((3, 3)) - np.eye(3))
    distance = span.distances(symmetric.reshape(1, -1))
    np.testing.assert_allclose(distance, [6**0.5])
    assert not Span([]).contains(symmetric) and Span([]).dimension == 0


# -- what it is --------------------------------------------------------------------------------


def test_key_tells_groups_apart():
    known = [Z(3), Z(4), S(3), D(3), C(3), SO(3), O(3), SU(2), U(2), Sp(1)]
    known.append(Group("1", dimension=3))
    assert len({group.key for group in known}) == len(known)
    assert Group("a", algebra=[TURN]) != Group("b", discrete=[np.eye(3)])
    assert Group("a", algebra=[TURN]) == Group("b", algebra=[TURN])
    assert SO(3) != "SO(3)"


def test_key_sees_small_changes_but_not_rounding():
    def turned(angle: float) -> Group:
        cosine, sine = np.cos(angle), np.sin(angle)
        return Group("turn", discrete=[[[cosine, -sine], [sine, cosine]]])

    assert turned(1.0) != turned(1.0 + 1e-9)
    assert turned(1.0) == turned(1.0 + 1e-15)
    assert Group("a", discrete=[[[0.0, 1], [1, -0.0]]]) == Group("b", discrete=[[1, 0]])
    assert Group("a", discrete=[[[1j]]]) == Group("b", discrete=[[[complex(-0.0, 1)]]])
    assert Group("a", discrete=[[[1j]]]) == Group("b", discrete=[[[1e-17 + 1j]]])


@pytest.mark.parametrize("unit", [1.0, 1e-13, 1e-200, 5e-324, 1e300])
def test_key_tells_groups_apart_in_any_units(unit: float):
    def weighted(first: float, second: float) -> Group:
        return Group("weights", algebra=[np.diag([first * unit, second * unit])])

    assert weighted(1, 2) == weighted(1, 2)
    assert weighted(1, 2) != weighted(2, 1)
    assert weighted(1, 2) != weighted(1, -2)
    assert weighted(1, 2) != weighted(2, 4)


def test_key_sees_entries_that_are_small_beside_others():
    assert Group("a", algebra=[np.diag([1, 1e-13])]) != Group("b", algebra=[np.diag([1, 2e-13])])


def test_signed_permutations():
    places, signs = signed_permutation(sparse.csr_array([[0, 0, -1], [1, 0, 0], [0, 1, 0]]))
    assert places.tolist() == [1, 2, 0] and signs.tolist() == [1, 1, -1]
    for other in ([[1, 1], [0, 1]], [[2, 0], [0, 1]], [[1, 1], [0, 0]], [[1j, 0], [0, 1]]):
        assert signed_permutation(sparse.csr_array(np.array(other))) is None
    found = D(4).signed_permutations
    assert found is not None and not D(4).is_permutation
    for (places, signs), matrix in zip(found, dense(D(4).discrete), strict=True):
        again = np.zeros((2, 2))
        again[places, np.arange(2)] = signs
        np.testing.assert_array_equal(again, matrix)
    assert SO(2).signed_permutations is None and not SO(2).is_permutation
    assert C(5).signed_permutations is None


# -- claims of being classical -----------------------------------------------------------------

EYE = np.eye(3)
CLAIMS = {
    "too small": ([SO(3).algebra[0]], [], Classical("SO", EYE), "3 dimensions, got 1"),
    "no reflection": (SO(3).algebra, [], Classical("O", EYE), "determinant −1, got none"),
    "a reflection": (SO(3).algebra, [-EYE], Classical("SO", EYE), "determinant 1"),
    "no form": (SO(3).algebra, [], Classical("SO"), r"needs a form \(3, 3\), got none"),
    "other form": (
        SO(3).algebra,
        [],
        Classical("SO", np.diag([1.0, -1, -1])),
        "every generator keeps the form",
    ),
    "not symmetric": (
        SO(3).algebra,
        [],
        Classical("SO", np.triu(np.ones((3, 3)))),
        "symmetric and invertible",
    ),
    "discrete breaks it": (
        SO(3).algebra,
        [np.diag([0.5, 1, -2])],
        Classical("O", EYE),
        "every generator keeps the form",
    ),
    "not alternating": (Sp(1).algebra, [], Classical("Sp", np.eye(2)), "alternating"),
    "with trace": (
        [np.diag([1.0, 0]), RAISE, [[1, 1], [0, 0]]],
        [],
        Classical("SL"),
        "3 dimensions, got 2",
    ),
    "scaled": (SU(2).algebra, [1j * np.eye(2)], Classical("SU"), "determinant 1"),
    "half complex": (
        [np.diag(each) for each in ([1, 0], [1j, 0], [0, 1], [0, 1j])],
        [],
        Classical("GL"),
        "4 dimensions, got 2",
    ),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_wrong_claims(case: str):
    algebra, discrete, classical, complaint = CLAIMS[case]
    with pytest.raises(CallerError, match=f"group own is not classical of kind.*{complaint}"):
        Group("own", algebra=algebra, discrete=discrete, classical=classical)


# -- elements ----------------------------------------------------------------------------------


def test_samples_follow_the_generator():
    first, again = (O(3).sample(4, seeded(3)) for _ in range(2))
    other = O(3).sample(4, seeded(4))
    assert torch.equal(first, again) and not torch.allclose(first, other)
    assert first.shape == (4, 3, 3) and first.dtype == torch.float64
    assert SU(2).sample(2, seeded()).dtype == torch.complex128


def test_samples_differ_from_each_other():
    for group in (SO(3), D(7), S(5), GridGroup(4, 3)):
        found = group.sample(30, seeded())
        assert len(torch.unique(found.reshape(30, -1).mul(1e6).round(), dim=0)) > 5, group


def test_both_components_are_met():
    determinants = torch.linalg.det(O(3).sample(40, seeded()))
    torch.testing.assert_close(determinants.abs(), torch.ones(40).double())
    assert 5 < int((determinants > 0).sum()) < 35


def test_every_element_of_a_small_group_is_met():
    found = D(3).sample(400, seeded()).reshape(400, -1).mul(1e6).round() + 0.0
    _, counts = torch.unique(found, dim=0, return_counts=True)
    assert len(counts) == 6 and int(counts.min()) > 20


def test_largest_limits_the_exponent():
    wild, tame = (SO13p().sample(50, seeded(), largest=size) for size in (None, 0.5))
    assert wild.abs().max() > 3 and tame.abs().max() < np.exp(0.5)
    near = SO13p().sample(50, seeded(), largest=1e9)
    torch.testing.assert_close(near, wild)


def test_no_samples_and_no_generators():
    assert O(3).sample(0, seeded()).shape == (0, 3, 3)
    torch.testing.assert_close(
        Group("1", dimension=2).sample(3, seeded()), torch.eye(2).double().expand(3, 2, 2)
    )


# -- real form ---------------------------------------------------------------------------------


def test_real_form_acts_on_real_and_imaginary_parts():
    group = Group("own", algebra=SU(2).algebra, discrete=[np.diag([1j, 1.0])])
    real = group.real_form()
    assert real.dimension == 4 and not real.is_complex and real.is_self_dual
    assert real.name == "Real(own)"
    random = np.random.default_rng(0)
    vector = random.standard_normal(2) + 1j * random.standard_normal(2)
    split = np.concatenate([vector.real, vector.imag])
    pairs = zip(
        dense(group.algebra + group.discrete), dense(real.algebra + real.discrete), strict=True
    )
    for matrix, realified in pairs:
        moved = matrix @ vector
        np.testing.assert_allclose(realified @ split, np.concatenate([moved.real, moved.imag]))


def test_real_form_of_a_real_group_is_itself():
    group = SO(3)
    assert group.real_form() is group


def test_real_form_is_a_group():
    assert is_closed(dense(U(2).real_form().algebra))
    assert np.linalg.matrix_rank(U(2).real_form().algebra_tensor().reshape(4, -1).numpy()) == 4
