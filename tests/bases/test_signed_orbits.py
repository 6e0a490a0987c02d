"""Signed permutations: orbits on the double cover against group average and characters."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.orbit_oracle import all_elements, burnside_rank, group_average

from isotropy.bases import orbit_tree
from isotropy.bases.null_spaces import dense_null_space
from isotropy.bases.orbits import signed_orbit_basis, signed_orbit_rank
from isotropy.bases.problem import Problem
from isotropy.bases.residual import residual
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import P, Representation, Scalar, T, V

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

CASES: dict[str, tuple[Group, Representation]] = {
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
    "scalar": (D4, Scalar),
    "no generators": (Group("trivial", dimension=3), T(2)),
    "permutations": (Group("Z(4)", discrete=[[1, 2, 3, 0]]), T(3)),
}


def problem_of(group: Group, representation: Representation) -> Problem:
    (term,) = representation.terms
    return Problem(group, term.atoms)


def elements_of(problem: Problem) -> list[tuple[np.ndarray, ...]]:
    generators = [
        tuple(factor.toarray().astype(int) for factor in factors) for factors in problem.discrete
    ]
    return all_elements(generators, problem.shape)


def check_against_the_average(problem: Problem) -> None:
    elements = elements_of(problem)
    average = group_average(elements, problem.size)
    columns = signed_orbit_basis(problem)
    assert sparse.issparse(columns) and columns.format == "csc"
    assert columns.shape == (problem.size, burnside_rank(elements))
    assert signed_orbit_rank(problem) == columns.shape[1]
    assert columns.nnz == np.count_nonzero(np.diag(average) > 1e-9)  # none where v vanishes
    dense = columns.toarray()
    np.testing.assert_allclose(dense @ dense.T, average, atol=1e-12)
    np.testing.assert_allclose(dense.T @ dense, np.eye(dense.shape[1]), atol=1e-12)
    leads = [columns[:, [k]].sorted_indices() for k in range(columns.shape[1])]
    first = [int(each.indices[0]) for each in leads]
    assert first == sorted(first)
    assert all(each.data[0] > 0 for each in leads)
    assert residual(problem, columns) == 0.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_basis_spans_what_the_group_average_projects_on(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, value in WAYS[way].items():
        monkeypatch.setattr(orbit_tree, setting, value)
    check_against_the_average(problem_of(*CASES[name]))


@st.composite
def random_groups(draw: st.DrawFn) -> tuple[Group, Representation]:
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


@given(random_groups(), st.sampled_from([*WAYS]))
@settings(max_examples=80, deadline=None)
def test_random_groups(drawn: tuple[Group, Representation], way: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for setting, value in WAYS[way].items():
            patch.setattr(orbit_tree, setting, value)
        check_against_the_average(problem_of(*drawn))


@pytest.mark.parametrize("name", ["D(4) T(4)", "cube T(4)", "cube pseudotensors"])
def test_basis_spans_the_null_space(name: str) -> None:
    problem = problem_of(*CASES[name])
    columns, expected = signed_orbit_basis(problem), dense_null_space(problem)
    assert columns is not None
    np.testing.assert_allclose(
        columns.toarray() @ columns.toarray().T, expected @ expected.T, atol=1e-10
    )


def test_orbits_that_meet_their_negatives_do_not_count() -> None:
    """D(4) has 2 orbits of tuples in T(2) and 8 in T(4), of which 1 and 4 count."""
    assert signed_orbit_rank(problem_of(D4, T(2))) == 1
    assert signed_orbit_rank(problem_of(D4, T(4))) == 4
    unsigned = Group("without signs", discrete=[[1, 0], [0, 1]])
    assert signed_orbit_rank(problem_of(unsigned, T(2))) == 2
    assert signed_orbit_rank(problem_of(unsigned, T(4))) == 8


def test_invariant_of_the_rotations_that_reflections_turn_around() -> None:
    """The Levi-Civita symbol: of the rotations in T(3), of all of the cube's group in P T(3)."""
    found = signed_orbit_basis(problem_of(ROTATIONS, T(3)))
    assert found is not None and found.shape[1] == 1
    symbol = np.zeros((3, 3, 3))
    symbol[[0, 1, 2], [1, 2, 0], [2, 0, 1]] = 1
    symbol[[0, 2, 1], [2, 1, 0], [1, 0, 2]] = -1
    np.testing.assert_allclose(found.toarray()[:, 0], symbol.ravel() / 6**0.5, atol=1e-15)
    assert signed_orbit_rank(problem_of(CUBE, T(3))) == 0
    with_parity = signed_orbit_basis(problem_of(CUBE, P * T(3)))
    assert with_parity is not None
    np.testing.assert_array_equal(with_parity.toarray(), found.toarray())


def test_larger_groups_count_what_closed_forms_say() -> None:
    """All signed permutations of n coordinates: partitions of 2k indices into even parts."""
    n = 9
    swaps = [np.eye(n)[[j, *range(1, j), 0, *range(j + 1, n)]] for j in range(1, n)]
    group = Group("signed permutations", discrete=[*swaps, np.diag([-1.0] + [1.0] * (n - 1))])
    expected = {1: 0, 2: 1, 3: 0, 4: 4, 5: 0, 6: 31}  # 1 + 3, 1 + 15 + 15
    for rank, count in expected.items():
        assert signed_orbit_rank(problem_of(group, T(rank))) == count


@pytest.mark.parametrize(
    "group",
    [
        Group("SO(2)", algebra=[QUARTER_TURN]),
        Group("C(3)", discrete=[[[-0.5, -(0.75**0.5)], [0.75**0.5, -0.5]]]),
        Group("scaled", discrete=[[[0, 2], [0.5, 0]]]),
        Group("complex", discrete=[[[0, 1j], [1, 0]]]),
    ],
    ids=str,
)
def test_other_groups_are_left_to_others(group: Group) -> None:
    assert signed_orbit_basis(problem_of(group, T(2))) is None
    assert signed_orbit_rank(problem_of(group, T(2))) is None


def test_pseudoscalars_of_a_lie_group() -> None:
    """Its algebra vanishes on them: P P of O(2) has one invariant, P none."""
    group = Group("O(2)", algebra=[QUARTER_TURN], discrete=[REFLECTION])
    assert signed_orbit_rank(problem_of(group, P * P)) == 1
    assert signed_orbit_rank(problem_of(group, P)) == 0
