"""The exact rank of a matrix of integers, by elimination modulo primes.

Modulo a prime p no number grows and nothing is rounded. The rank modulo p is never above the rank
over the rationals, and below it only if p divides every largest minor that is not zero: a full
rank modulo one prime is a proof. Any other is asked of a second prime; that two primes near 2³¹
both mislead takes a matrix made for it.
"""

from __future__ import annotations

import numpy as np

from isotropy.checks import CallerError

PRIMES = (2147483647, 2147483629, 2147483587, 2147483579)
"""The largest below 2³¹: a product of two remainders fits into 63 bits."""


def exact_rank(matrix: np.ndarray) -> int:
    """The rank of a matrix of integers (rows, columns); two primes agree, or it is full."""
    best = -1
    for prime in PRIMES:
        found = rank_modulo(matrix, prime)
        if found in (best, *matrix.shape):
            return found
        best = max(best, found)
    raise CallerError(
        f"the rank of a {matrix.shape[0]} x {matrix.shape[1]} matrix is in doubt: it differs "
        f"modulo {len(PRIMES)} primes, at least {best}; divide out common factors of its rows"
    )


def rank_modulo(matrix: np.ndarray, prime: int) -> int:
    """The rank of a matrix of integers (rows, columns) modulo a prime below 2³¹."""
    if not np.issubdtype(matrix.dtype, np.integer):
        raise CallerError(f"expected a matrix of integers, got {matrix.dtype}; round it first")
    left = matrix.astype(np.int64) % prime
    rank = 0
    while left.size:
        # A pivot in the first column; a column without one is dropped.
        rows = np.flatnonzero(left[:, 0])
        if len(rows) == 0:
            left = left[:, 1:]
            continue
        pivot = left[rows[0]]
        pivot = pivot[1:] * pow(int(pivot[0]), -1, prime) % prime
        others = np.delete(left, rows[0], axis=0)
        left = (others[:, 1:] - others[:, :1] * pivot % prime) % prime
        rank += 1
    return rank
