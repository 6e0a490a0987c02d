"""Permutation groups: orbits against the group's average, Burnside's count and plain graphs."""

from __future__ import annotations

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
    stirling,
)

from isotropy.bases import orbit_tree, solution
from isotropy.bases.null_spaces import dense_null_space
from isotropy.bases.orbits import orbit_basis, orbit_rank
from isotropy.bases.problem import Problem
from isotropy.bases.residual import residual
from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, T, V, custom

CUBE = [[4, 1, 0, 3, 5, 2], [3, 0, 2, 5, 4, 1]]
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
WAYS: dict[str, dict[str, int]] = {
    "as it is": {},
    "from too few generators, then joined": {"MOST_GENERATORS": 1, "FEW": 1},
    "in small parts": {"LARGE": 0, "AT_ONCE": 1},
}

CASES: dict[str, tuple[Group, Representation]] = {
    "S(3) T(4)": (symmetric(3), T(4)),
    "S(4) T(3)": (symmetric(4), T(3)),
    "S(4) T(2,2)": (symmetric(4), T(2, 2)),
    "Z(5) T(3)": (cyclic(5), T(3)),
    "Z(5) T(1,2)": (cyclic(5), T(1, 2)),
    "cube T(3)": (Group("cube", discrete=CUBE), T(3)),
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


def problem_of(name: str) -> Problem:
    group, representation = CASES[name]
    (term,) = representation.terms
    return Problem(group, term.atoms)


def tensor_problem(group: Group, rank: int) -> Problem:
    return Problem(group, T(rank).products[0])


def elements_of(problem: Problem) -> list[tuple[np.ndarray, ...]]:
    generators = [
        tuple(factor.toarray().astype(int) for factor in factors) for factors in problem.discrete
    ]
    return all_elements(generators, problem.shape)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_basis_spans_what_the_group_average_projects_on(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, value in WAYS[way].items():
        monkeypatch.setattr(orbit_tree, setting, value)
    problem = problem_of(name)
    elements = elements_of(problem)
    columns = orbit_basis(problem)
    assert sparse.issparse(columns) and columns.format == "csc"
    assert columns.shape == (problem.size, burnside_rank(elements))
    assert columns.nnz == problem.size
    dense = columns.toarray()
    np.testing.assert_allclose(dense @ dense.T, group_average(elements, problem.size), atol=1e-12)
    np.testing.assert_allclose(dense.T @ dense, np.eye(dense.shape[1]), atol=1e-12)
    assert orbit_rank(problem) == dense.shape[1]
    assert residual(problem, columns) == 0.0


@pytest.mark.parametrize("name", ["S(4) T(3)", "cube T(3)", "mixed sizes", "two orbits T(4)"])
def test_basis_spans_the_null_space(name: str) -> None:
    problem = problem_of(name)
    columns = orbit_basis(problem)
    assert columns is not None
    expected = dense_null_space(problem)
    np.testing.assert_allclose(
        columns.toarray() @ columns.toarray().T, expected @ expected.T, atol=1e-10
    )


def test_orbits_come_in_the_order_of_their_smallest_tuples() -> None:
    for name in CASES:
        columns = orbit_basis(problem_of(name))
        assert columns is not None
        first = [int(columns[:, [k]].indices.min()) for k in range(columns.shape[1])]
        assert first == sorted(first)


@st.composite
def random_groups(draw: st.DrawFn) -> tuple[Group, Representation]:
    size = draw(st.integers(1, 5))
    count = draw(st.integers(0, 3))
    generators = [draw(st.permutations(range(size))) for _ in range(count)]
    representations = [V, V.dual, W] if size < 4 else [V, V.dual]
    factors = draw(st.lists(st.sampled_from(representations), min_size=1, max_size=3))
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return Group("random", discrete=generators, dimension=size), product


@given(random_groups(), st.sampled_from([*WAYS]))
@settings(max_examples=60, deadline=None)
def test_labels_are_connected_components(drawn: tuple[Group, Representation], way: str) -> None:
    group, representation = drawn
    problem = Problem(group, representation.products[0])
    generators = [[factor.tocsc().indices for factor in factors] for factors in problem.discrete]
    expected = component_labels(generators, problem.shape)
    with pytest.MonkeyPatch.context() as patch:
        for setting, value in WAYS[way].items():
            patch.setattr(orbit_tree, setting, value)
        columns = orbit_basis(problem)
        assert orbit_rank(problem) == expected.max() + 1
    assert columns is not None
    np.testing.assert_array_equal(columns.tocsr().indices, expected)


# --- Tables A.1 to A.3 --------------------------------------------------------------------


@pytest.mark.parametrize("n", range(2, 9))
def test_cyclic_groups(n: int) -> None:
    """Table A.1, and its blanks: n^(k−1)."""
    for rank in range(1, 8):
        assert orbit_rank(tensor_problem(cyclic(n), rank)) == n ** (rank - 1)


@pytest.mark.parametrize("n", range(2, 9))
def test_symmetric_groups(n: int) -> None:
    """Table A.2, and its blanks: partitions of k indices into at most n classes."""
    for rank in range(1, 8):
        expected = sum(stirling(rank, parts) for parts in range(1, n + 1))
        assert orbit_rank(tensor_problem(symmetric(n), rank)) == expected


@pytest.mark.parametrize(
    ("group", "rank", "expected"),
    [(symmetric(5), 7, 855), (symmetric(6), 5, 52), (symmetric(4), 7, 715), (cyclic(8), 5, 4096)],
    ids=str,
)
def test_columns_of_published_ranks(group: Group, rank: int, expected: int) -> None:
    problem = tensor_problem(group, rank)
    columns = orbit_basis(problem)
    assert columns is not None
    assert columns.shape == (problem.size, expected) and columns.nnz == problem.size
    assert residual(problem, columns) == 0.0


def test_turning_cube_against_a_plain_graph() -> None:
    """Corners and edges: a facet, with itself (2), with those of its own small cube (2 ways for a
    corner, 1 for an edge), with another small cube's (2), and corner with edge (2): 9 in T(2)."""
    group = turning_cube()
    for rank, orbits in ((1, 2), (2, 9), (3, 51)):
        problem = tensor_problem(group, rank)
        generators = [
            [factor.tocsc().indices for factor in factors] for factors in problem.discrete
        ]
        expected = component_labels(generators, problem.shape)
        columns = orbit_basis(problem)
        assert columns is not None and columns.shape[1] == orbits == orbit_rank(problem)
        np.testing.assert_array_equal(columns.tocsr().indices, expected)


def test_many_generators_and_products_that_need_no_test() -> None:
    """More generators than are used: 59 swaps."""
    problem = tensor_problem(symmetric(60), 2)
    columns = orbit_basis(problem)
    assert columns is not None and columns.shape[1] == 2
    np.testing.assert_array_equal(
        columns.tocsr().indices.reshape(60, 60), 1 - np.eye(60, dtype=int)
    )
    assert orbit_rank(tensor_problem(symmetric(60), 6)) == 203


def test_long_cycle() -> None:
    """Diagonals of a convolution."""
    columns = orbit_basis(tensor_problem(cyclic(150), 2))
    assert columns is not None and columns.shape[1] == 150
    row, column = np.indices((150, 150))
    np.testing.assert_array_equal(columns.tocsr().indices.reshape(150, 150), (column - row) % 150)


# --- where it does not apply, or cannot ---------------------------------------------------


@pytest.mark.parametrize(
    "group",
    [
        Group("SO(2)", algebra=[[[0, -1], [1, 0]]]),
        Group("O(2)", algebra=[[[0, -1], [1, 0]]], discrete=[[1, 0]]),
        Group("signed", discrete=[[[0, -1], [1, 0]]]),
        Group("scaled", discrete=[[[0, 2], [0.5, 0]]]),
        Group("complex", discrete=[[[0, 1j], [1, 0]]]),
    ],
    ids=str,
)
def test_other_groups_are_left_to_others(group: Group) -> None:
    assert orbit_basis(tensor_problem(group, 2)) is None
    assert orbit_rank(tensor_problem(group, 2)) is None


def test_scalar_of_any_group_and_algebra_of_zeros() -> None:
    rotations = Group("SO(2)", algebra=[[[0, -1], [1, 0]]])
    assert orbit_rank(Problem(rotations, ())) == 1
    still = Group("still", algebra=[np.zeros((2, 2))], discrete=[[1, 0]])
    assert orbit_rank(tensor_problem(still, 3)) == 4
    units = Group("U(1)", algebra=[[[1j]]])
    columns = orbit_basis(Problem(units, ()))
    assert columns is not None and columns.dtype == complex and columns.toarray() == [[1]]


def test_a_basis_too_large_says_so_and_its_rank_is_counted() -> None:
    problem = tensor_problem(symmetric(2), 40)
    with pytest.raises(CallerError, match="1,099,511,627,776 tuples takes .* GB.*rank alone"):
        orbit_basis(problem)
    assert orbit_rank(problem) == 2**39


def test_labels_too_large_to_join_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solution, "LARGEST_BYTES", 30_000)
    with pytest.raises(CallerError, match="joining orbits of 2,304 tuples takes"):
        orbit_rank(tensor_problem(turning_cube(), 3))
