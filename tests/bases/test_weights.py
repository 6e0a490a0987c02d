"""The method of weights, and discrete generators after it, against an SVD of all constraints."""

from itertools import product

import numpy as np
import pytest
import torch
from basis_cases import (
    ALL_LORENTZ,
    E2,
    HEISENBERG,
    LORENTZ,
    O3,
    SL2_AND_SHIFTS,
    SO3,
    SO4,
    SU3,
    TRANSLATION,
    WITH_TORUS,
    WITHOUT_TORUS,
    assert_basis,
    case_name,
    in_other_coordinates,
    problem_of,
    projector_of,
    unit,
)
from oracles.basis_oracle import invariant_projector

from isotropy.bases import problem as problems
from isotropy.bases.null_spaces import dense_null_space, kept_by_discrete, null_space
from isotropy.bases.problem import Problem
from isotropy.bases.residual import residual
from isotropy.bases.weights import _Algebra, real_span, weight_basis, zero_sums
from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import BASE, PSEUDOSCALAR, custom


@pytest.mark.parametrize("case", WITH_TORUS, ids=case_name)
def test_rank_and_span_are_the_oracles(case):
    group, word, rank = case
    problem = problem_of(group, word)
    found = weight_basis(problem)
    assert_basis(found, group, word, rank)
    assert residual(problem, found) < 1e-11


@pytest.mark.parametrize("case", WITHOUT_TORUS, ids=case_name)
def test_groups_without_a_torus_are_left_to_others(case):
    assert weight_basis(problem_of(case[0], case[1])) is None


def atom_of(name, rho):
    return custom(name, rho).terms[0].atoms[0]


def test_a_representation_of_your_own():
    """Symmetric matrices of SO(3), in six coordinates: trace and a quintuplet."""
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    basis = np.stack([(unit(3, i, j) + unit(3, j, i)).ravel() for i, j in pairs], axis=1)
    into, back = torch.from_numpy(basis), torch.linalg.pinv(torch.from_numpy(basis))

    def rho(g):
        g = g.double()
        return back @ torch.einsum("...ij,...kl->...ikjl", g, g).reshape(*g.shape[:-2], 9, 9) @ into

    problem = Problem(O3, (atom_of("symmetric", rho), BASE, atom_of("symmetric", rho), BASE))
    found = weight_basis(problem)
    algebra = [[f.toarray() for f in each] for each in problem.algebra]
    discrete = [[f.toarray() for f in each] for each in problem.discrete]
    projector = invariant_projector(algebra, discrete, problem.size)
    assert (
        found.shape[1] == round(np.trace(projector)) == 6
    )  # (0+2)(0+2) and (0+1+2) share: 2 + 1 + 3
    np.testing.assert_allclose(found @ found.T, projector, atol=1e-9)


def test_a_pseudoscalar_takes_part():
    for group, rank in ((O3, 1), (SO3, 1)):
        assert weight_basis(Problem(group, (PSEUDOSCALAR, BASE, BASE, BASE))).shape[1] == rank
    assert weight_basis(Problem(O3, (BASE, BASE, BASE))).shape[1] == 0


def test_a_representation_on_which_the_torus_is_not_diagonal_is_left_to_others():
    """Scalings as shears: 1 ↦ [[0, 1], [0, 0]] is nilpotent, though 1 is diagonal on V."""

    def rho(g):
        logarithm = torch.log(g[..., 0, 0])
        one, zero = torch.ones_like(logarithm), torch.zeros_like(logarithm)
        rows = [torch.stack([one, logarithm], -1), torch.stack([zero, one], -1)]
        return torch.stack(rows, -2)

    scaling = Group("scaling", algebra=[np.eye(2)])
    problem = Problem(scaling, (atom_of("shear", rho),))
    assert weight_basis(problem) is None
    assert dense_null_space(problem).shape[1] == 1


@pytest.mark.parametrize(
    ("group", "rank", "count"),
    [(SO3, 1, 1), (SO4, 2, 2), (LORENTZ, 2, 2), (SU3, 2, 2), (E2, 1, 2), (SL2_AND_SHIFTS, 1, 4)],
    ids=str,
)
@pytest.mark.parametrize("change", [lambda group: group, in_other_coordinates])
def test_the_torus_is_a_cartan_subalgebra_and_few_generators_suffice(group, rank, count, change):
    """Simple roots where the algebra is reductive, all roots where it is not."""
    algebra = _Algebra(problem_of(change(group), "V"))
    torus = algebra.torus()
    elements = algebra.on(BASE, torus)
    assert len(torus) == rank
    for first, second in product(elements, repeat=2):
        np.testing.assert_allclose(first @ second - second @ first, 0, atol=1e-9)
    assert len(algebra.generators(torus)) == count


def test_columns_of_weight_zero_are_few():
    levels = [np.array([0.0, 1.0, -1.0])] * 4
    places = zero_sums(levels)
    digits = np.array(np.unravel_index(np.arange(81), (3, 3, 3, 3)))
    sums = sum(level[digit] for level, digit in zip(levels, digits, strict=True))
    np.testing.assert_array_equal(places, np.flatnonzero(sums == 0))
    assert len(places) == 19  # of 81: all that the constraints of SO(3) are applied to


def test_zero_sums_of_different_axes_and_of_none():
    generator = np.random.default_rng(0)
    basis = generator.standard_normal(2)
    levels = [generator.integers(-2, 3, (n, 2)) @ basis for n in (4, 6, 3, 5)]
    wanted = np.flatnonzero(
        np.abs(np.add.outer(np.add.outer(np.add.outer(*levels[:2]), levels[2]), levels[3])) < 1e-9
    )
    assert len(wanted)
    np.testing.assert_array_equal(zero_sums(levels), wanted)
    np.testing.assert_array_equal(zero_sums([]), [0])
    assert len(zero_sums([np.array([1.0, 2.0]), np.array([1.0, 3.0])])) == 0


def test_large_zero_weight_spaces_go_through_the_iteration(monkeypatch):
    monkeypatch.setattr("isotropy.bases.weights.LARGEST_DENSE", 10)
    for group, word, rank in ((SO3, "VVVVV", 6), (ALL_LORENTZ, "VVdd", 3), (SU3, "VVdd", 2)):
        assert_basis(weight_basis(problem_of(group, word)), group, word, rank)


def test_real_span_refuses_a_space_that_is_not_closed_under_conjugation():
    with pytest.raises(AssertionError, match="conjugation"):
        real_span(np.array([[1.0], [1j]]) / 2**0.5)


def test_memory_is_checked_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(problems, "LARGEST_BYTES", 1e4)
    with pytest.raises(CallerError, match="GB"):
        weight_basis(problem_of(SO3, "VVVVVV"))


def test_discrete_generators_are_taken_one_after_the_other():
    problem = problem_of(ALL_LORENTZ, "VVdd")
    connected = null_space(np.concatenate(problem_of(LORENTZ, "VVdd").constraints(np.eye(256))))
    assert connected.shape[1] == 4
    found = kept_by_discrete(problem, connected)
    assert_basis(found, ALL_LORENTZ, "VVdd", 3)


def test_a_discrete_generator_that_leaves_the_span_keeps_what_it_fixes():
    """A rotation by 90° about another axis does not map the axis of the algebra to itself."""
    axis = Group("one rotation", algebra=[unit(3, 0, 1) - unit(3, 1, 0)])
    quarter = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    both = Group("with a quarter turn", algebra=list(axis.algebra), discrete=[quarter])
    found = weight_basis(problem_of(both, "VVV"))
    projector = projector_of(both, "VVV")
    np.testing.assert_allclose(found @ found.T, projector, atol=1e-10)
    assert found.shape[1] == 1


def test_none_is_left_of_translations():
    for group in (TRANSLATION, HEISENBERG):
        assert not len(_Algebra(problem_of(group, "V")).torus())
