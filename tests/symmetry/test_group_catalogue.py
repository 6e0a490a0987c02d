"""The catalogue of groups: one contract for all, known orders and invariants, names read back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import factorial

import numpy as np
import pytest
import torch
from oracles.group_oracle import (
    count_invariants,
    count_orbits,
    dense,
    elements,
    is_closed,
    matrix_order,
    permutation_group_order,
    permutation_order,
    real_rows,
    rubik_turn,
)

from isotropy.checks import CallerError
from isotropy.symmetry.groups import catalogue as catalogue
from isotropy.symmetry.groups.catalogue import (
    FACES,
    GROUPS,
    face_permutation,
    facet_permutation,
    group_named,
    torn_facet_permutation,
)
from isotropy.symmetry.groups.group import Group

LORENTZ = np.diag([1.0, -1.0, -1.0, -1.0])
PLANE = np.diag([1.0, -1.0])


def omega(m: int) -> np.ndarray:
    zero, one = np.zeros((m, m)), np.eye(m)
    return np.block([[zero, one], [-one, zero]])


@dataclass(frozen=True)
class Known:
    """What is known of a group.

    size:    dimension of V
    lie:     dimension of the Lie algebra
    orders:  of the discrete generators
    order:   of the group, where finite
    form:    a bilinear form that it keeps
    special: all determinants are 1
    """

    size: int
    lie: int = 0
    orders: tuple[int, ...] = ()
    order: int | None = None
    form: np.ndarray | None = None
    special: bool = False
    unitary: bool = False
    permutes: bool = False
    is_complex: bool = False


def finite(size: int, orders: tuple[int, ...], order: int, **more: bool) -> Known:
    return Known(size, 0, orders, order, np.eye(size), unitary=True, **more)


CASES: dict[str, Known] = {
    "Trivial(3)": finite(3, (), 1, permutes=True, special=True),
    "Z(1)": finite(1, (1,), 1, permutes=True, special=True),
    "Z(5)": finite(5, (5,), 5, permutes=True, special=True),
    "S(1)": finite(1, (), 1, permutes=True, special=True),
    "S(2)": finite(2, (2,), 2, permutes=True),
    "S(4)": finite(4, (2, 2, 2), 24, permutes=True),
    "C(1)": finite(2, (1,), 1, permutes=True, special=True),
    "C(4)": finite(2, (4,), 4, special=True),
    "C(5)": finite(2, (5,), 5, special=True),
    "D(1)": finite(2, (1, 2), 2),
    "D(4)": finite(2, (4, 2), 8),
    "D(6)": finite(2, (6, 2), 12),
    "SO(2)": Known(2, 1, form=np.eye(2), special=True, unitary=True),
    "SO(5)": Known(5, 10, form=np.eye(5), special=True, unitary=True),
    "O(1)": Known(1, 0, (2,), 2, np.eye(1), unitary=True),
    "O(3)": Known(3, 3, (2,), None, np.eye(3), unitary=True),
    "SO+(1,3)": Known(4, 6, form=LORENTZ, special=True),
    "SO(1,3)": Known(4, 6, (2,), form=LORENTZ, special=True),
    "O(1,3)": Known(4, 6, (2, 2), form=LORENTZ),
    "SO+(1,1)": Known(2, 1, form=PLANE, special=True),
    "O(1,1)": Known(2, 1, (2, 2), form=PLANE),
    "Sp(1)": Known(2, 3, form=omega(1), special=True),
    "Sp(3)": Known(6, 21, form=omega(3), special=True),
    "SU(2)": Known(2, 3, special=True, unitary=True, is_complex=True),
    "SU(4)": Known(4, 15, special=True, unitary=True, is_complex=True),
    "U(1)": Known(1, 1, unitary=True, is_complex=True),
    "U(3)": Known(3, 9, unitary=True, is_complex=True),
    "SL(2)": Known(2, 3, special=True),
    "SL(4)": Known(4, 15, special=True),
    "GL(1)": Known(1, 1),
    "GL(3)": Known(3, 9),
    "Scaling(3)": Known(3, 1),
    "Parity": finite(4, (2,), 2),
    "TimeReversal": finite(4, (2,), 2),
    "Cube": finite(6, (4, 4), 24, permutes=True),
    "RubiksCube": Known(48, 0, (4,) * 6, None, np.eye(48), unitary=True, permutes=True),
    "PublishedRubiksCube": Known(48, 0, (4,) * 6, None, np.eye(48), unitary=True, permutes=True),
    "Rubik": Known(48, 0, (4,) * 6, None, np.eye(48), unitary=True, permutes=True),
    "Grid(1,3)": finite(9, (3, 3), 9, permutes=True, special=True),
    "Grid(2,3)": finite(18, (3, 3, 2), 18, permutes=True),
    "Grid(4,3)": finite(36, (3, 3, 4), 36, permutes=True),
    "SO2eR3": Known(3, 1, form=np.eye(3), special=True, unitary=True),
    "O2eR3": Known(3, 1, (2,), form=np.eye(3), unitary=True),
    "DkeR3(6)": finite(3, (6, 2), 12),
    "Embedded(SL(2),4,1)": Known(4, 3, special=True),
    "Semidirect(SO(2),D(4))": Known(2, 1, (4, 2), form=np.eye(2), unitary=True),
    "Wreath(Z(3),S(2))": finite(6, (3, 2), 18, permutes=True),
    "Wreath(SO(3),Z(2))": Known(6, 6, (2,), form=np.eye(6), unitary=True),
    "Real(SU(2))": Known(4, 3, form=np.eye(4), special=True, unitary=True),
    "Z(2) x Z(3)": finite(6, (2, 3), 6, permutes=True),
    "SO(3) x S(2)": Known(6, 3, (2,), form=np.eye(6), unitary=True),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Group, Known]:
    return group_named(request.param), CASES[request.param]


def test_every_row_of_the_table_is_tested():
    heads = {re.split(r"\(", name)[0] for name in CASES}
    assert heads >= {pattern.partition("(")[0] for pattern in GROUPS}
    literal = {pattern for pattern in GROUPS if re.search(r"\(\d", pattern) or "(" not in pattern}
    assert literal <= set(CASES)
    assert all(row.meaning for row in GROUPS.values())


def test_numbers_of_generators(case: tuple[Group, Known]):
    group, known = case
    assert group.dimension == known.size
    assert len(group.algebra) == known.lie
    if known.lie:
        assert np.linalg.matrix_rank(real_rows(dense(group.algebra))) == known.lie
    assert tuple(matrix_order(h) for h in dense(group.discrete)) == known.orders


def test_flags(case: tuple[Group, Known]):
    group, known = case
    assert group.is_permutation == known.permutes
    assert group.is_unitary == known.unitary
    assert group.is_complex == known.is_complex
    assert group.is_self_dual == (known.unitary and not known.is_complex)


@pytest.mark.parametrize("name", [name for name, known in CASES.items() if known.lie])
def test_algebra_is_closed(name: str):
    assert is_closed(dense(group_named(name).algebra))


def test_elements_keep_what_the_group_keeps(case: tuple[Group, Known]):
    group, known = case
    found = group.sample(6, torch.Generator().manual_seed(1), largest=2.0).numpy()
    assert np.isfinite(found).all()
    if known.order != 1:
        assert np.abs(found - np.eye(known.size)).max() > 0.1
    if known.form is not None:
        kept = np.swapaxes(found, 1, 2) @ known.form @ found
        np.testing.assert_allclose(kept, np.broadcast_to(known.form, kept.shape), atol=1e-12)
    determinants = np.linalg.det(found)
    if known.special:
        np.testing.assert_allclose(determinants, 1, atol=1e-12)
    else:
        many = group.sample(40, torch.Generator().manual_seed(2), largest=2.0).numpy()
        assert np.abs(np.linalg.det(many) - 1).max() > 0.1
    if known.unitary:
        unit = np.swapaxes(found.conj(), 1, 2) @ found
        np.testing.assert_allclose(
            unit, np.broadcast_to(np.eye(known.size), unit.shape), atol=1e-12
        )


@pytest.mark.parametrize("name", [n for n in CASES if re.match(r"(SO|O|SO\+|Sp)\([\d,]+\)$", n)])
def test_the_claimed_form_is_the_known_one(name: str):
    classical = group_named(name).classical
    assert classical is not None and classical.form is not None
    np.testing.assert_array_equal(classical.form, CASES[name].form)


@pytest.mark.parametrize("name", [name for name, known in CASES.items() if known.order])
def test_order_of_the_group(name: str):
    group = group_named(name)
    generators = dense(group.discrete) or [np.eye(group.dimension)]
    assert len(elements(generators)) == CASES[name].order


def test_name_is_read_back(case: tuple[Group, Known]):
    group, _ = case
    again = group_named(group.name)
    assert again == group and again.name == group.name and again.factors == group.factors
    assert (again.classical is None) == (group.classical is None)


@pytest.mark.parametrize(
    "name, kind",
    [(f"{kind}(2)", kind) for kind in ("O", "SO", "Sp", "SU", "SL", "GL", "U")]
    + [(f"{kind}(1,3)", kind.strip("+")) for kind in ("SO+", "SO", "O")]
    + [(f"{kind}(1,1)", kind.strip("+")) for kind in ("SO+", "O")],
)
def test_classical_kind(name: str, kind: str):
    classical = group_named(name).classical
    assert classical is not None and classical.kind == kind


INVARIANTS = [
    ("Z(3)", 3, 9),
    ("S(3)", 3, 5),
    ("S(4)", 2, 2),
    ("D(4)", 2, 1),
    ("D(4)", 4, 4),
    ("SO(2)", 4, 6),
    ("SO(3)", 3, 1),
    ("SO(3)", 4, 3),
    ("O(2)", 4, 3),
    ("O(3)", 3, 0),
    ("SO+(1,3)", 2, 1),
    ("SO+(1,3)", 4, 4),
    ("SO(1,3)", 4, 4),
    ("O(1,3)", 4, 3),
    ("SO+(1,1)", 2, 2),
    ("O(1,1)", 2, 1),
    ("Sp(1)", 4, 2),
    ("Sp(2)", 4, 3),
    ("SU(2)", 4, 2),
    ("SU(3)", 3, 1),
    ("U(2)", 2, 0),
    ("SL(2)", 2, 1),
    ("GL(2)", 2, 0),
    ("Scaling(2)", 1, 0),
    ("SO2eR3", 1, 1),
    ("SO2eR3", 2, 3),
    ("O2eR3", 2, 2),
    ("Cube", 2, 3),
    ("Z(2) x Z(3)", 2, 6),
    ("SO(3) x S(2)", 2, 2),
    ("Wreath(SO(3),Z(2))", 2, 1),
]
"""(group, tensor rank, dimension of the invariants): the tables of the thesis, or by hand."""


@pytest.mark.parametrize("name, rank, expected", INVARIANTS)
def test_number_of_invariants(name: str, rank: int, expected: int):
    group = group_named(name)
    assert count_invariants(dense(group.algebra), dense(group.discrete), rank) == expected


# -- the two cubes -----------------------------------------------------------------------------


def compose(*turns: np.ndarray) -> np.ndarray:
    """One after the other, from left to right."""
    found = np.arange(48)
    for turn in turns:
        found = turn[found]
    return found


def inverse(turn: np.ndarray) -> np.ndarray:
    return np.argsort(turn)


@pytest.mark.parametrize("face", FACES)
def test_quarter_turn(face: str):
    turn = facet_permutation(face)
    assert permutation_order(turn) == 4
    assert (turn != np.arange(48)).sum() == 20
    np.testing.assert_array_equal(turn, rubik_turn(face))


def test_facets_of_corners_and_edges_are_the_two_orbits():
    turns = [facet_permutation(face) for face in FACES]
    moved = sum((turn != np.arange(48)).astype(int) for turn in turns)
    assert np.bincount(moved).tolist() == [0, 0, 24, 24]  # edges by 2 faces, corners by 3
    assert count_orbits(turns) == 2
    corners = moved == 3
    assert all((corners[turn] == corners).all() for turn in turns)


def test_known_relations_of_rubiks_cube():
    R, U, F = (facet_permutation(face) for face in "RUF")
    assert permutation_order(compose(R, U)) == 105
    assert permutation_order(compose(R, inverse(U))) == 63
    assert permutation_order(compose(R, U, inverse(R), inverse(U))) == 6
    assert permutation_order(compose(R, R, U, U)) == 6
    assert permutation_order(compose(R, U, inverse(R), U, R, U, U, inverse(R))) == 6  # Sune
    assert permutation_order(compose(F, facet_permutation("B"))) == 4  # opposite faces commute


def test_number_of_states_of_rubiks_cube():
    turns = [facet_permutation(face) for face in FACES]
    states = factorial(8) * 3**7 * factorial(12) * 2**11 // 2
    assert permutation_group_order(turns) == states == 43_252_003_274_489_856_000


def test_pairs_of_facets_of_rubiks_cube():
    """Corner facets: same, next, last on the corner, elsewhere; edge facets: same, other,
    elsewhere; one of each kind, in both orders."""
    turns = [facet_permutation(face) for face in FACES]
    assert [count_orbits(turns, rank) for rank in (1, 2, 3)] == [2, 4 + 3 + 2, 51]


def test_published_ranks_of_rubiks_cube_are_of_another_group():
    turns = [torn_facet_permutation(face) for face in FACES]
    assert [count_orbits(turns, rank) for rank in (1, 2, 3)] == [2, 6, 22]
    assert permutation_group_order(turns) == factorial(24) ** 2 // 2
    assert [permutation_order(turn) for turn in turns] == [4] * 6
    true = [(turn == rubik_turn(face)).all() for face, turn in zip(FACES, turns, strict=True)]
    assert true == [True] + [False] * 5


def test_order_by_stabilisers_agrees_with_listing():
    assert permutation_group_order([face_permutation("B"), face_permutation("R")]) == 24
    assert permutation_group_order([np.roll(np.arange(7), 1)]) == 7
    assert permutation_group_order([np.array([1, 0, 2, 3, 4, 5]), np.roll(np.arange(6), 1)]) == 720


def test_faces_of_the_cube():
    assert face_permutation("B").tolist() == [4, 1, 0, 3, 5, 2]
    assert face_permutation("R").tolist() == [3, 0, 2, 5, 4, 1]


# -- what single groups do ---------------------------------------------------------------------


def test_shift_moves_every_coordinate_to_the_next():
    (shift,) = dense(catalogue.Z(4).discrete)
    assert (shift @ [1, 2, 3, 4]).tolist() == [4, 1, 2, 3]


@pytest.mark.parametrize("turns", [2, 4])
def test_grid_group_moves_images(turns: int):
    images = np.random.default_rng(0).standard_normal((turns, 5, 5))
    found = [h @ images.ravel() for h in dense(catalogue.GridGroup(turns, 5).discrete)]
    expected = [np.roll(images, 1, 1), np.roll(images, 1, 2)]
    expected.append(np.roll(np.rot90(images, 4 // turns, (1, 2)), 1, 0))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other.ravel())


def test_grid_group_acts_as_on_itself():
    """So that maps of V to itself are the group's convolutions, one for each of its elements."""
    group = catalogue.GridGroup(4, 3)
    pairs = group.signed_permutations
    assert pairs is not None
    places = [each for each, _ in pairs]
    assert count_orbits(places, 1) == 1
    assert count_orbits(places, 2) == group.dimension == 36


def test_quarter_turns_are_exact():
    assert catalogue.C(4).signed_permutations is not None
    assert catalogue.D(2).signed_permutations is not None
    assert catalogue.D(3).signed_permutations is None


def test_boosts_of_the_lorentz_group_mix_time_and_space():
    boost = dense(catalogue.SO13p().algebra)[0]
    np.testing.assert_array_equal(boost, [[0, 1, 0, 0], [1, 0, 0, 0], [0] * 4, [0] * 4])


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, same",
    [
        (" SO( 3 ) ", "SO(3)"),
        ("SO⁺(1, 3)", "SO+(1,3)"),
        ("Rubik", "RubiksCube"),
        ("Z(4)xZ(4)", "Z(4) x Z(4)"),
        ("Z(4) × Z(4)", "Z(4) x Z(4)"),
        ("Cube x Z(2) x Z(2)", "Cube x Z(2) x Z(2)"),
        ("Wreath( Z(2) x Z(2), S(3) )", "Wreath(Z(2) x Z(2),S(3))"),
        ("Real(Z(3))", "Z(3)"),
    ],
)
def test_spellings(text: str, same: str):
    assert group_named(text) == group_named(same)
    assert group_named(text).name == same


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("Z4", r"unknown group 'Z4'.*did you mean Z\(n\)"),
        ("so(3)", r"unknown group 'so'.*did you mean SO\(n\)"),
        ("Rubiks", "did you mean Rubik"),
        ("Lorentz", "unknown group 'Lorentz': expected one of Trivial"),
        ("SO", r"expected SO\(1,3\) or SO\(n\)"),
        ("SO(2,3)", r"group 'SO\(2,3\)': expected SO\(1,3\) or SO\(n\)"),
        ("SO+(3)", r"expected SO\+\(1,3\) or SO\+\(1,1\)"),
        ("Cube(3)", r"group 'Cube\(3\)': expected Cube"),
        ("Wreath(3,4)", r"expected Wreath\(G,H\)"),
        ("SO(Z(2))", r"group 'SO\(Z\(2\)\)': expected"),
        ("SO(3", r"expected '\)' at position 5 of .*, got the end"),
        ("SO(3))", r"at position 6 of .*, got '\)'"),
        ("SO(3) y", "at position 7 of .*, got 'y'"),
        ("Z(2) x", "the name of a group at position 7 of .*, got the end"),
        ("Z(1.5)", r"expected '\)' at position 4 of .*, got '\.'"),
        ("", "the name of a group at position 1 of .*, got the end"),
        ("3", "the name of a group at position 1 of .*, got '3'"),
        ("Z(-2)", "at least 1, got -2"),
    ],
)
def test_wrong_names(text: str, complaint: str):
    with pytest.raises(CallerError, match=complaint):
        group_named(text)


@pytest.mark.parametrize(
    "name, least",
    [(name, 1) for name in "Z S C D O Sp U GL Scaling Trivial".split()]
    + [(name, 2) for name in "SO SU SL".split()],
)
def test_wrong_sizes(name: str, least: int):
    make = getattr(catalogue, name)
    make(least)
    make(np.int64(least))
    for wrong in (least - 1, least + 0.5, float(least), True, "3", None):
        with pytest.raises(CallerError, match=f"whole number of at least {least}"):
            make(wrong)


def test_wrong_grids():
    for turns in (0, 3, 8):
        with pytest.raises(CallerError, match=rf"Grid\({turns},5\): expected 1, 2 or 4 turns"):
            catalogue.GridGroup(turns, 5)
    with pytest.raises(CallerError, match="whole number"):
        catalogue.GridGroup(4, 0)
