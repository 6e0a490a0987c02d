"""Ranks of integer matrices, against elimination in fractions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.invariant_oracle import matching_gram, rational_rank

from isotropy.bases.null_spaces import PRIMES, exact_rank, rank_modulo
from isotropy.checks import CallerError


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_products_of_thin_matrices(rows, columns, inner, seed):
    draw = np.random.default_rng(seed)
    left = draw.integers(-9, 10, (rows, inner))
    matrix = left @ draw.integers(-9, 10, (inner, columns))
    assert exact_rank(matrix) == rational_rank(matrix.tolist())


def test_large_entries_do_not_overflow():
    draw = np.random.default_rng(0)
    matrix = draw.integers(-(2**62), 2**62, (12, 12))
    matrix[7] = matrix[3] // 2 * 2 - matrix[3]  # its own parity
    assert exact_rank(matrix) == rational_rank(matrix.tolist()) == 12
    matrix[7] = matrix[2] // 4 + matrix[3] // 4
    matrix[2], matrix[3] = matrix[2] // 4, matrix[3] // 4
    assert exact_rank(matrix) == rational_rank(matrix.tolist()) == 11


def test_a_nearly_singular_matrix_is_not_rounded():
    # A determinant of 1 at entries of 10⁹: floating point finds a rank of 1.
    matrix = np.array([[10**9 + 1, 10**9], [10**9, 10**9 - 1]])
    assert np.linalg.matrix_rank(matrix) == 1
    assert exact_rank(matrix) == 2


@pytest.mark.parametrize("loop", [1, 2, 3, 4, -2, -4])
def test_loops(loop):
    gram = matching_gram(6, loop)
    assert exact_rank(np.array(gram)) == rational_rank(gram)


def test_one_unlucky_prime_is_outvoted():
    # Rank 2 of 3 rows, but 1 modulo the first prime.
    matrix = np.array([[1, 0, 0], [0, PRIMES[0], 0], [0, 0, 0]])
    assert rank_modulo(matrix, PRIMES[0]) == 1
    assert exact_rank(matrix) == 2


def test_ranks_that_never_agree_are_in_doubt():
    first, second, third, _ = PRIMES
    matrix = np.diag([1, first * second, first * third, first * third, 0, 0])
    assert [rank_modulo(matrix, prime) for prime in PRIMES] == [1, 3, 2, 4]
    with pytest.raises(CallerError, match="in doubt"):
        exact_rank(matrix)


def test_primes_are_prime():
    small = np.arange(2, 46341)
    for prime in PRIMES:
        assert prime < 2**31
        assert (prime % small != 0).all()


def test_empty():
    assert exact_rank(np.zeros((0, 3), np.int64)) == 0
    assert exact_rank(np.zeros((3, 0), np.int64)) == 0
    assert exact_rank(np.zeros((3, 3), np.int64)) == 0


def test_floats_are_refused():
    with pytest.raises(CallerError, match="integers, got float64"):
        exact_rank(np.eye(2))
