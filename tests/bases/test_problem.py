"""Constraints of a problem against matrices built by Kronecker products."""

import numpy as np
import pytest
import torch
from basis_cases import SMALL, case_name, constraint_factors, problem_of, some_vectors
from oracles.basis_oracle import constraint_matrix, kronecker, kronecker_sum

from isotropy.bases.problem import Problem
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import BASE, custom

by_case = pytest.mark.parametrize("case", SMALL, ids=case_name)


@by_case
def test_constraints_are_the_kronecker_products(case):
    group, word, _ = case
    problem = problem_of(group, word)
    vectors = some_vectors(problem)
    algebra, discrete = constraint_factors(group, word)
    wanted = [kronecker_sum(factors) @ vectors for factors in algebra]
    wanted += [kronecker(factors) @ vectors - vectors for factors in discrete]
    for found, expected in zip(problem.constraints(vectors), wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@by_case
def test_written_out_and_normal_are_of_one_matrix(case):
    group, word, _ = case
    problem = problem_of(group, word)
    whole = constraint_matrix(*constraint_factors(group, word), problem.size)
    scaled = whole / np.repeat(problem.sizes, problem.size)[:, None]
    np.testing.assert_allclose(problem.written_out().toarray(), scaled, atol=1e-12)
    vectors = some_vectors(problem)
    np.testing.assert_allclose(
        problem.normal(vectors), scaled.conj().T @ (scaled @ vectors), atol=1e-11
    )


@by_case
def test_sizes_are_spectral_norms(case):
    group, word, _ = case
    algebra, discrete = constraint_factors(group, word)
    wanted = [max((np.linalg.norm(f, 2) for f in each), default=1) for each in algebra]
    wanted += [max(np.linalg.norm(kronecker(each), 2), 1) for each in discrete]
    np.testing.assert_allclose(problem_of(group, word).sizes, wanted, rtol=1e-9)


def test_a_complex_representation_of_a_real_group_is_complex():
    group = Group("SO(2)", algebra=[[[0, -1], [1, 0]]])
    (atom,) = custom("charge", lambda g: g[..., :1, :1] + 1j * g[..., 1:, :1]).terms[0].atoms
    assert Problem(group, (atom,)).is_complex
    assert not Problem(group, (BASE,)).is_complex
    assert torch.allclose(
        torch.from_numpy(Problem(group, (atom,)).algebra[0][0].toarray()),
        torch.tensor([[1j]], dtype=torch.complex128),
    )
