"""Dense null spaces against an SVD of constraints built by Kronecker products."""

import numpy as np
import pytest
from basis_cases import (
    D5,
    SO3,
    WITH_TORUS,
    WITHOUT_TORUS,
    assert_basis,
    case_name,
    problem_of,
    rotations,
    turn,
)

from isotropy.bases.null_spaces import dense_null_space, null_space, tall_null_space
from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group


@pytest.mark.parametrize("case", WITH_TORUS + WITHOUT_TORUS, ids=case_name)
def test_rank_and_span_are_the_oracles(case):
    group, word, rank = case
    assert_basis(dense_null_space(problem_of(group, word)), group, word, rank)


def with_singular_values(values, rows=40, columns=12, seed=0):
    """A matrix (rows, columns) with these singular values, and the right vectors."""
    generator = np.random.default_rng(seed)
    left, _ = np.linalg.qr(generator.standard_normal((rows, columns)))
    right, _ = np.linalg.qr(generator.standard_normal((columns, columns)))
    return left * values @ right.T, right


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("solve", [null_space, tall_null_space])
def test_small_singular_values_are_told_from_zero(solve, smallest):
    # Their squares are 1e-12 of the largest: the eigenvalues of the Gram matrix alone fail here.
    values = np.array([1.0] * 5 + [smallest] * 4 + [0.0] * 3)
    matrix, right = with_singular_values(values)
    found = solve(matrix)
    assert found.shape == (12, 3)
    projector = right[:, 9:] @ right[:, 9:].T
    np.testing.assert_allclose(found @ found.T, projector, atol=1e-14 / smallest)


@pytest.mark.parametrize("solve", [null_space, tall_null_space])
def test_a_rank_in_doubt_is_refused(solve):
    values = np.array([1.0] * 9 + [3e-10, 8e-11, 0.0])
    with pytest.raises(CallerError, match="rank of the constraints is in doubt"):
        solve(with_singular_values(values)[0])


def test_a_wide_matrix_and_one_of_zeros():
    matrix = np.random.default_rng(0).standard_normal((3, 7))
    found = null_space(matrix)
    assert found.shape == (7, 4)
    np.testing.assert_allclose(matrix @ found, 0, atol=1e-14)
    np.testing.assert_array_equal(np.abs(tall_null_space(np.zeros((9, 4)))), np.eye(4))


@pytest.mark.parametrize("unit", [1e-12, 1e9])
def test_units_of_generators_do_not_matter(unit):
    scaled = Group("SO(3) in other units", algebra=[unit * each for each in rotations(3)])
    found = dense_null_space(problem_of(scaled, "VVVV"))
    assert_basis(found, SO3, "VVVV", 3)


def test_dense_and_sparse_constraints_agree():
    """The turn fills its constraints, so that they are written out; in space they stay sparse."""
    problem = problem_of(D5, "VVVVVV")
    assert problem.nonzeros > problem.size
    flat, stays_sparse = dense_null_space(problem), tall_null_space(problem.written_out())
    np.testing.assert_allclose(flat @ flat.T, stays_sparse @ stays_sparse.T, atol=1e-12)


def test_a_tiny_turn_is_not_the_identity():
    tiny = Group("tiny turn", discrete=[turn(10_000_000)])
    assert dense_null_space(problem_of(tiny, "V")).shape == (2, 0)
