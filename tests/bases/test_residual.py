"""The residual against constraints written out, and each way to measure it on wrong vectors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
from basis_cases import (
    O3,
    SIGNED,
    SMALL,
    SO3,
    case_name,
    constraint_factors,
    problem_of,
    projector_of,
    rotations,
    some_vectors,
)
from oracles.basis_oracle import constraint_matrix

from isotropy.bases import residual as measuring
from isotropy.bases.orbits import orbit_basis
from isotropy.bases.problem import Problem
from isotropy.bases.residual import residual
from isotropy.symmetry.groups.group import Group

Z4 = Group("Z(4)", discrete=[[1, 2, 3, 0]])
by_case = pytest.mark.parametrize("case", SMALL, ids=case_name)
in_both_forms = pytest.mark.parametrize("make", [np.asarray, sparse.csc_array])


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little work it is, vectors are probed."""
    monkeypatch.setattr(measuring, "LITTLE", -1)
    monkeypatch.setattr(measuring, "_exact", None)


def violations(group: Group, word: str, vectors: np.ndarray) -> np.ndarray:
    """‖C_g v‖ / (‖v‖ size_g), (generators, vectors), by the oracle."""
    problem = problem_of(group, word)
    whole = constraint_matrix(*constraint_factors(group, word), problem.size)
    left = (whole @ vectors).reshape(len(problem.sizes), problem.size, vectors.shape[1])
    norms = np.linalg.norm(left, axis=1) / np.linalg.norm(vectors, axis=0)
    return norms / np.array(problem.sizes)[:, None]


def invariants(group: Group, word: str) -> np.ndarray:
    """Columns of the oracle's projector that are not zero: invariant vectors, many and dense."""
    projector = projector_of(group, word)
    return projector[:, np.linalg.norm(projector, axis=0) > 0.1]


# -- exact -------------------------------------------------------------------------------------


@by_case
@pytest.mark.parametrize("kind", ["dense", "sparse", "disjoint"])
def test_it_is_the_largest_relative_violation(case, kind):
    group, word, _ = case
    problem = problem_of(group, word)
    columns = some_vectors(problem, min(problem.size, 20))
    if kind == "sparse":
        columns = sparse.csc_array(
            np.where(np.abs(columns) > 0.7, columns, 0) + np.eye(*columns.shape)
        )
    if kind == "disjoint":
        label = np.arange(problem.size) % min(problem.size, 3)
        columns = sparse.csc_array((np.abs(columns[:, 0]) + 0.1, (np.arange(problem.size), label)))
    dense = columns.toarray() if sparse.issparse(columns) else columns
    worst = violations(group, word, dense).max(initial=0.0)
    assert residual(problem, columns) == pytest.approx(worst, abs=1e-13)


@in_both_forms
@pytest.mark.parametrize("case", [case for case in SMALL if case[2]], ids=case_name)
def test_invariants_have_none(case, make):
    group, word, rank = case
    projector = projector_of(group, word)
    assert round(np.trace(projector).real) == rank
    assert residual(problem_of(group, word), make(invariants(group, word))) < 1e-12


@pytest.mark.parametrize("little", [1e9, -1])
@in_both_forms
def test_many_columns_go_in_parts(make, little, monkeypatch):
    problem = problem_of(SO3, "VVV")
    columns = make(some_vectors(problem, 11))
    monkeypatch.setattr(measuring, "LITTLE", little)
    whole = residual(problem, columns)
    monkeypatch.setattr(measuring, "AT_ONCE", 40)
    assert residual(problem, columns) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("little", [1e9, -1])
@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@in_both_forms
def test_a_column_of_zeros_or_nan_has_no_good_one(make, bad, little, monkeypatch):
    monkeypatch.setattr(measuring, "LITTLE", little)
    columns = np.ones((9, 2))
    columns[:, 1] = bad
    assert not residual(problem_of(SO3, "VV"), make(columns)) <= 1e8


@pytest.mark.parametrize("little", [1e9, -1])
def test_a_violation_is_seen_in_any_units(little, monkeypatch):
    monkeypatch.setattr(measuring, "LITTLE", little)
    tiny = Group("tiny units", algebra=[1e-12 * each for each in rotations(3)])
    assert 0.1 < residual(problem_of(tiny, "V"), np.eye(3)[:, :1]) < 10
    assert residual(problem_of(tiny, "V"), np.zeros((3, 0))) == 0


# -- labels ------------------------------------------------------------------------------------


@pytest.fixture
def labels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever labels do not settle fails."""
    monkeypatch.setattr(measuring, "_exact", None)
    monkeypatch.setattr(measuring, "_probed", None)


@pytest.mark.parametrize(("group", "word"), [(SIGNED, "VV"), (SIGNED, "VVdV"), (Z4, "Vdd")])
def test_orbits_are_settled_by_integers(group: Group, word: str, labels_alone: None) -> None:
    problem = problem_of(group, word)
    columns = orbit_basis(problem, signed=True)
    assert columns is not None and columns.shape[1]
    assert residual(problem, columns) == 0
    mirrored = columns.copy()
    mirrored.data[: mirrored.indptr[1]] *= -1  # −v is as good as v
    assert residual(problem, mirrored) == 0


@pytest.mark.parametrize("wrong", ["sign", "size", "column", "missing", "twice"])
def test_orbits_with_one_wrong_entry_are_noticed(wrong: str) -> None:
    """Each of them alone, in the last orbit of many, is passed on to where it shows."""
    problem = problem_of(SIGNED, "VVdV")
    columns = orbit_basis(problem, signed=True).toarray()
    row = int(np.flatnonzero(columns[:, -1])[-1])
    if wrong == "sign":
        columns[row, -1] *= -1
    elif wrong == "size":
        columns[row, -1] *= 1 + 1e-6
    elif wrong == "column":
        columns[row, 0], columns[row, -1] = columns[row, -1], 0
    elif wrong == "missing":
        columns[row, -1] = 0
    else:
        columns[row, 0] = 0.5
    expected = violations(SIGNED, "VVdV", columns).max()
    assert expected > 1e-7
    assert residual(problem, sparse.csc_array(columns)) == pytest.approx(expected)


def test_labels_say_nothing_of_a_lie_algebra() -> None:
    problem = problem_of(O3, "V")
    assert residual(problem, sparse.csc_array(np.eye(3)[:, 1:])) > 0.1


# -- probes ------------------------------------------------------------------------------------


@in_both_forms
@by_case
def test_probes_are_the_formula_written_out(case, make, probes):
    """Every draw put into constraints that are matrices, the generators one by one."""
    group, word, _ = case
    problem = problem_of(group, word)
    vectors = some_vectors(problem, min(problem.size, 3))
    vectors = vectors / np.linalg.norm(vectors, axis=0)
    whole = constraint_matrix(*constraint_factors(group, word), problem.size)
    left = (whole @ vectors).reshape(len(problem.sizes), problem.size, vectors.shape[1])
    left = left / np.array(problem.sizes).reshape(-1, 1, 1)
    cut, number = measuring._cut(problem.shape), len(group.algebra)
    sides = [int(np.prod(problem.shape[:cut])), int(np.prod(problem.shape[cut:]))]
    draws, squares = np.random.default_rng(0), 0
    for _ in range(measuring.PROBES):
        a, b, weights = (draws.standard_normal(count) for count in (*sides, number))
        values = np.einsum("s,gsv->gv", np.kron(a, b), left)
        together = (weights @ values[:number])[None]
        squares = squares + np.abs(np.concatenate([together, values[number:]])) ** 2
    expected = np.sqrt(np.max(squares) / measuring.PROBES)
    assert residual(problem, make(vectors)) == pytest.approx(expected, rel=1e-10, abs=1e-14)


def test_many_probes_have_the_mean_square_of_the_violation(probes, monkeypatch) -> None:
    problem = problem_of(SO3, "VVV")
    vectors = some_vectors(problem, 1)
    monkeypatch.setattr(measuring, "PROBES", 1000)
    expected = np.linalg.norm(violations(SO3, "VVV", vectors))
    assert residual(problem, vectors) == pytest.approx(expected, rel=0.2)


@in_both_forms
@pytest.mark.parametrize("case", [case for case in SMALL if case[2]], ids=case_name)
def test_probes_find_nothing_in_invariants(case, make, probes):
    group, word, _ = case
    assert residual(problem_of(group, word), make(invariants(group, word))) < 1e-13


@in_both_forms
@pytest.mark.parametrize("word", ["VVVV", "VdV"])
def test_probes_find_the_one_vector_that_is_wrong(word: str, make, probes) -> None:
    """Each vector of a basis in turn, by one entry; an odd word has different left and right."""
    columns, problem = invariants(SO3, word), problem_of(SO3, word)
    assert residual(problem, make(columns)) < 1e-13
    for index in range(columns.shape[1]):
        wrong = columns.copy()
        wrong[index, index] += 1e-3
        assert residual(problem, make(wrong)) > 1e-5


def test_probes_see_what_a_discrete_generator_alone_forbids(probes) -> None:
    """ε is kept by SO(3), and turned by the reflection of O(3)."""
    epsilon = invariants(SO3, "VVV")
    assert residual(problem_of(SO3, "VVV"), epsilon) < 1e-13
    assert residual(problem_of(O3, "VVV"), epsilon) > 0.1


def test_probes_are_the_same_each_time(probes) -> None:
    problem = problem_of(SO3, "VVV")
    assert residual(problem, some_vectors(problem)) == residual(problem, some_vectors(problem))


def test_much_work_is_probed_and_little_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def way(problem: Problem, columns: np.ndarray) -> str:
        asked = []
        for name in ("_exact", "_probed"):
            monkeypatch.setattr(
                measuring, name, lambda _, part, name=name: asked.append(name) or part[0]
            )
        residual(problem, columns)
        return asked[0]

    assert way(problem_of(SO3, "VVV"), np.ones((27, 2))) == "_exact"
    assert way(problem_of(SO3, "V" * 9), np.ones((3**9, 20))) == "_probed"
