"""Groups of signed permutations: orbits against group averages, Burnside's count, plain graphs.

A group of permutations is one of signed permutations too, and is tried as both.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.orbit_oracle import (
    all_elements,
    burnside_rank,
    component_labels,
    group_average,
)

from isotropy.bases import orbits, problem
from isotropy.bases.null_spaces import dense_null_space
from isotropy.bases.orbits import orbit_basis, orbit_rank
from isotropy.bases.problem import Problem
from isotropy.bases.residual import residual
from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import P, Representation, Scalar, T, V, custom

signed_basis, signed_rank = partial(orbit_basis, signed=True), partial(orbit_rank, signed=True)

FACES = [[4, 1, 0, 3, 5, 2], [3, 0, 2, 5, 4, 1]]
"""Faces of a cube under two quarter turns."""


def symmetric(n: int) -> Group:
    swaps = [[j, *range(1, j), 0, *range(j + 1, n)] for j in range(1, n)]
    return Group(f"S({n})", discrete=swaps, dimension=n)


def cyclic(n: int) -> Group:
    return Group(f"Z({n})", discrete=[[*range(1, n), 0]])


def turning_cube() -> Group:
    """Rubik's cube from the turns of its 26 small cubes: facets are (place, outward normal)."""
    axes = np.eye(3, dtype=int)
    places = [np.array(each) - 1 for each in np.ndindex(3, 3, 3)]
    facets = [
        (*place, *(side * axes[axis]))
        for axis in range(3)
        for side in (-1, 1)
        for place in places
        if place[axis] == side and np.abs(place).sum() > 1
    ]
    number = {tuple(map(int, facet)): index for index, facet in enumerate(facets)}
    generators = []
    for axis in range(3):
        turn = np.roll(np.roll([[1, 0, 0], [0, 0, -1], [0, 1, 0]], axis, 0), axis, 1)
        both = np.kron(np.eye(2, dtype=int), turn)
        for side in (-1, 1):
            moved = [both @ f if f[axis] == side else np.array(f) for f in facets]
            generators.append([number[tuple(map(int, each))] for each in moved])
    return Group("turning cube", discrete=generators)


def pairs(elements: torch.Tensor) -> torch.Tensor:
    """How ordered pairs of points are permuted: ρ(g) = g ⊗ g."""
    outer = torch.einsum("...ij,...kl->...ikjl", elements, elements)
    side = elements.shape[-1] ** 2
    return outer.reshape(*elements.shape[:-2], side, side)


W = custom("pairs", pairs)
DIHEDRAL = Group("D4 on corners", discrete=[[1, 2, 3, 0], [1, 0, 3, 2]])
TWO_ORBITS = Group("two orbits", discrete=[[1, 2, 0, 4, 3], [1, 0, 2, 3, 4]])
QUARTER_TURN = [[0, -1], [1, 0]]
REFLECTION = [[-1, 0], [0, 1]]
D4 = Group("D(4)", discrete=[QUARTER_TURN, REFLECTION])
C4 = Group("C(4)", discrete=[QUARTER_TURN])
ROTATIONS = Group(
    "rotations of a cube",
    discrete=[[[0, -1, 0], [1, 0, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, -1], [0, 1, 0]]],
)
CUBE = Group("cube with reflections", discrete=[*ROTATIONS.discrete, np.diag([1, 1, -1])])
QUATERNIONS = Group(
    "quaternions",
    discrete=[
        [[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, -1], [0, 0, 1, 0]],
        [[0, 0, -1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, -1, 0, 0]],
    ],
)
MINUS = Group("±1", discrete=[-np.eye(2)])
WAYS: dict[str, dict[str, int]] = {
    "as it is": {},
    "from too few generators, then joined": {"MOST_GENERATORS": 1, "FEW": 1},
    "in small parts": {"LARGE": 0, "AT_ONCE": 1},
}

PERMUTATIONS: dict[str, tuple[Group, Representation]] = {
    "S(3) T(4)": (symmetric(3), T(4)),
    "S(4) T(3)": (symmetric(4), T(3)),
    "S(4) T(2,2)": (symmetric(4), T(2, 2)),
    "Z(5) T(3)": (cyclic(5), T(3)),
    "Z(5) T(1,2)": (cyclic(5), T(1, 2)),
    "cube T(3)": (Group("cube", discrete=FACES), T(3)),
    "D(4) T(4)": (DIHEDRAL, T(4)),
    "two orbits T(4)": (TWO_ORBITS, T(4)),
    "mixed sizes": (symmetric(3), V * W * V),
    "mixed sizes, the larger first": (cyclic(4), W * V.dual),
    "a point that stays": (Group("stays", discrete=[[0, 2, 1, 3], [0, 1, 3, 2]]), T(2)),
    "one axis": (TWO_ORBITS, V),
    "scalar": (symmetric(3), Scalar),
    "no generators": (Group("trivial", dimension=3), T(3)),
    "generators that do nothing": (Group("identity", discrete=[[0, 1, 2]]), T(2)),
    "one point": (Group("point", discrete=[[0]]), T(3)),
}
SIGNED: dict[str, tuple[Group, Representation]] = {
    "D(4) T(2)": (D4, T(2)),
    "D(4) T(4)": (D4, T(4)),
    "D(4) T(3)": (D4, T(3)),
    "D(4) T(1,1)": (D4, T(1, 1)),
    "D(4) pseudovector maps": (D4, P * V * V),
    "D(4) pseudoscalar last": (D4, V * V * P),
    "C(4) T(4)": (C4, T(4)),
    "rotations T(4)": (ROTATIONS, T(4)),
    "cube T(3)": (CUBE, T(3)),
    "cube T(4)": (CUBE, T(4)),
    "cube pseudotensors": (CUBE, P * T(3)),
    "quaternions T(4)": (QUATERNIONS, T(4)),
    "±1 T(2)": (MINUS, T(2)),
    "±1 T(3)": (MINUS, T(3)),
    "pseudoscalar": (D4, P),
    "two pseudoscalars": (D4, P * P),
}
CASES = [
    *(pytest.param(*case, False, id=name) for name, case in PERMUTATIONS.items()),
    *(pytest.param(*case, True, id=f"{name}, signed") for name, case in PERMUTATIONS.items()),
    *(pytest.param(*case, True, id=name) for name, case in SIGNED.items()),
]


def problem_of(group: Group, representation: Representation) -> Problem:
    (atoms,) = representation.products
    return Problem(group, atoms)


def check_against_the_average(problem: Problem, signed: bool) -> None:
    generators = [tuple(f.toarray().astype(int) for f in factors) for factors in problem.discrete]
    elements = all_elements(generators, problem.shape)
    average = group_average(elements, problem.size)
    columns = orbit_basis(problem, signed=signed)
    assert sparse.issparse(columns) and columns.format == "csc"
    assert columns.shape == (problem.size, burnside_rank(elements))
    assert orbit_rank(problem, signed=signed) == columns.shape[1]
    assert columns.nnz == np.count_nonzero(np.diag(average) > 1e-9)  # none where v vanishes
    dense = columns.toarray()
    np.testing.assert_allclose(dense @ dense.T, average, atol=1e-12)
    np.testing.assert_allclose(dense.T @ dense, np.eye(dense.shape[1]), atol=1e-12)
    leads = [columns[:, [k]].sorted_indices() for k in range(columns.shape[1])]
    first = [int(each.indices[0]) for each in leads]
    assert first == sorted(first)  # in the order of their smallest tuples, which have the sign +
    assert all(each.data[0] > 0 for each in leads)
    assert residual(problem, columns) == 0.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("group", "representation", "signed"), CASES)
def test_basis_spans_what_the_group_average_projects_on(
    group: Group,
    representation: Representation,
    signed: bool,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for setting, value in WAYS[way].items():
        monkeypatch.setattr(orbits, setting, value)
    check_against_the_average(problem_of(group, representation), signed)


@pytest.mark.parametrize(
    "case",
    [PERMUTATIONS["mixed sizes"], SIGNED["D(4) T(4)"], SIGNED["cube pseudotensors"]],
    ids=str,
)
def test_basis_spans_the_null_space(case: tuple[Group, Representation]) -> None:
    problem = problem_of(*case)
    columns, expected = signed_basis(problem).toarray(), dense_null_space(problem)
    np.testing.assert_allclose(columns @ columns.T, expected @ expected.T, atol=1e-10)


def plain_labels(problem: Problem) -> np.ndarray:
    generators = [[factor.tocsc().indices for factor in factors] for factors in problem.discrete]
    return component_labels(generators, problem.shape)


@st.composite
def permutation_groups(draw: st.DrawFn) -> tuple[Group, Representation]:
    size = draw(st.integers(1, 5))
    count = draw(st.integers(0, 3))
    generators = [draw(st.permutations(range(size))) for _ in range(count)]
    representations = [V, V.dual, W] if size < 4 else [V, V.dual]
    factors = draw(st.lists(st.sampled_from(representations), min_size=1, max_size=3))
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return Group("random", discrete=generators, dimension=size), product


@given(permutation_groups(), st.sampled_from([*WAYS]))
@settings(max_examples=60, deadline=None)
def test_labels_are_connected_components(drawn: tuple[Group, Representation], way: str) -> None:
    problem = problem_of(*drawn)
    expected = plain_labels(problem)
    with pytest.MonkeyPatch.context() as patch:
        for setting, value in WAYS[way].items():
            patch.setattr(orbits, setting, value)
        columns = orbit_basis(problem)
        assert orbit_rank(problem) == expected.max() + 1
    assert columns is not None
    np.testing.assert_array_equal(columns.tocsr().indices, expected)


@st.composite
def signed_groups(draw: st.DrawFn) -> tuple[Group, Representation]:
    size = draw(st.integers(1, 3))
    generators = []
    for _ in range(draw(st.integers(1, 3))):
        places = draw(st.permutations(range(size)))
        signs = draw(st.lists(st.sampled_from([-1, 1]), min_size=size, max_size=size))
        matrix = np.zeros((size, size))
        matrix[places, range(size)] = signs
        generators.append(matrix)
    factors = draw(st.lists(st.sampled_from([V, V.dual, P]), min_size=1, max_size=4))
    product = Scalar
    for factor in factors:
        product = product * factor
    return Group("random", discrete=generators), product


@given(signed_groups(), st.sampled_from([*WAYS]))
@settings(max_examples=80, deadline=None)
def test_signed_groups(drawn: tuple[Group, Representation], way: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for setting, value in WAYS[way].items():
            patch.setattr(orbits, setting, value)
        check_against_the_average(problem_of(*drawn), signed=True)


# --- known ranks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "rank", "expected"),
    [(symmetric(5), 7, 855), (symmetric(6), 5, 52), (symmetric(4), 7, 715), (cyclic(8), 5, 4096)],
    ids=str,
)
def test_columns_of_published_ranks(group: Group, rank: int, expected: int) -> None:
    problem = problem_of(group, T(rank))
    columns = orbit_basis(problem)
    assert columns is not None
    assert columns.shape == (problem.size, expected) and columns.nnz == problem.size
    assert residual(problem, columns) == 0.0


def test_turning_cube_against_a_plain_graph() -> None:
    """Corners and edges: a facet, with itself (2), with those of its own small cube (2 ways for a
    corner, 1 for an edge), with another small cube's (2), and corner with edge (2): 9 in T(2)."""
    group = turning_cube()
    for rank, count in ((1, 2), (2, 9), (3, 51)):
        problem = problem_of(group, T(rank))
        columns = orbit_basis(problem)
        assert columns is not None and columns.shape[1] == count == orbit_rank(problem)
        np.testing.assert_array_equal(columns.tocsr().indices, plain_labels(problem))


def test_many_generators_and_products_that_need_no_test() -> None:
    """More generators than are used: 59 swaps."""
    problem = problem_of(symmetric(60), T(2))
    columns = orbit_basis(problem)
    assert columns is not None and columns.shape[1] == 2
    np.testing.assert_array_equal(
        columns.tocsr().indices.reshape(60, 60), 1 - np.eye(60, dtype=int)
    )
    assert orbit_rank(problem_of(symmetric(60), T(6))) == 203


def test_long_cycle() -> None:
    """Diagonals of a convolution."""
    columns = orbit_basis(problem_of(cyclic(150), T(2)))
    assert columns is not None and columns.shape[1] == 150
    row, column = np.indices((150, 150))
    np.testing.assert_array_equal(columns.tocsr().indices.reshape(150, 150), (column - row) % 150)


def test_orbits_that_meet_their_negatives_do_not_count() -> None:
    """D(4) has 2 orbits of tuples in T(2) and 8 in T(4), of which 1 and 4 count."""
    assert signed_rank(problem_of(D4, T(2))) == 1
    assert signed_rank(problem_of(D4, T(4))) == 4
    unsigned = Group("without signs", discrete=[[1, 0], [0, 1]])
    assert signed_rank(problem_of(unsigned, T(2))) == 2
    assert signed_rank(problem_of(unsigned, T(4))) == 8


def test_invariant_of_the_rotations_that_reflections_turn_around() -> None:
    """The Levi-Civita symbol: of the rotations in T(3), of all of the cube's group in P T(3)."""
    found = signed_basis(problem_of(ROTATIONS, T(3)))
    assert found is not None and found.shape[1] == 1
    symbol = np.zeros((3, 3, 3))
    symbol[[0, 1, 2], [1, 2, 0], [2, 0, 1]] = 1
    symbol[[0, 2, 1], [2, 1, 0], [1, 0, 2]] = -1
    np.testing.assert_allclose(found.toarray()[:, 0], symbol.ravel() / 6**0.5, atol=1e-15)
    assert signed_rank(problem_of(CUBE, T(3))) == 0
    with_parity = signed_basis(problem_of(CUBE, P * T(3)))
    assert with_parity is not None
    np.testing.assert_array_equal(with_parity.toarray(), found.toarray())


def test_larger_groups_count_what_closed_forms_say() -> None:
    """All signed permutations of n coordinates: partitions of 2k indices into even parts."""
    n = 9
    swaps = [np.eye(n)[[j, *range(1, j), 0, *range(j + 1, n)]] for j in range(1, n)]
    group = Group("signed permutations", discrete=[*swaps, np.diag([-1.0] + [1.0] * (n - 1))])
    expected = {1: 0, 2: 1, 3: 0, 4: 4, 5: 0, 6: 31}  # 1 + 3, 1 + 15 + 15
    for rank, count in expected.items():
        assert signed_rank(problem_of(group, T(rank))) == count


# --- where it does not apply, or cannot ---------------------------------------------------

NEITHER = [
    Group("SO(2)", algebra=[QUARTER_TURN]),
    Group("O(2)", algebra=[QUARTER_TURN], discrete=[[1, 0]]),
    Group("C(3)", discrete=[[[-0.5, -(0.75**0.5)], [0.75**0.5, -0.5]]]),
    Group("scaled", discrete=[[[0, 2], [0.5, 0]]]),
    Group("complex", discrete=[[[0, 1j], [1, 0]]]),
]


@pytest.mark.parametrize(
    ("group", "signed"),
    [*((each, True) for each in NEITHER), *((g, False) for g in [*NEITHER, C4])],
)
def test_other_groups_are_left_to_others(group: Group, signed: bool) -> None:
    assert orbit_basis(problem_of(group, T(2)), signed=signed) is None
    assert orbit_rank(problem_of(group, T(2)), signed=signed) is None


def test_pseudoscalars_of_a_lie_group() -> None:
    """Its algebra vanishes on them: P P of O(2) has one invariant, P none."""
    group = Group("O(2)", algebra=[QUARTER_TURN], discrete=[REFLECTION])
    assert signed_rank(problem_of(group, P * P)) == 1
    assert signed_rank(problem_of(group, P)) == 0


def test_scalar_of_any_group_and_algebra_of_zeros() -> None:
    rotations = Group("SO(2)", algebra=[[[0, -1], [1, 0]]])
    assert orbit_rank(Problem(rotations, ())) == 1
    still = Group("still", algebra=[np.zeros((2, 2))], discrete=[[1, 0]])
    assert orbit_rank(problem_of(still, T(3))) == 4
    units = Group("U(1)", algebra=[[[1j]]])
    columns = orbit_basis(Problem(units, ()))
    assert columns is not None and columns.dtype == complex and columns.toarray() == [[1]]


def test_a_basis_too_large_says_so_and_its_rank_is_counted() -> None:
    large = problem_of(symmetric(2), T(40))
    with pytest.raises(CallerError, match="1,099,511,627,776 tuples takes .* GB.*rank alone"):
        orbit_basis(large)
    assert orbit_rank(large) == 2**39


def test_labels_too_large_to_join_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "LARGEST_BYTES", 30_000)
    with pytest.raises(CallerError, match="joining orbits of 2,304 tuples takes"):
        orbit_rank(problem_of(turning_cube(), T(3)))
