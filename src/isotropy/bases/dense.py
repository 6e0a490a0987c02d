"""The null space of all constraints written out, by a singular value decomposition.

    C = [ dρ(A_1); …; ρ(h_1) − 1; … ]        C v = 0                     (Finzi 2023, Eq. 2.6)

For small products of any group, and the oracle of every other method.
"""

from __future__ import annotations

import numpy as np

from isotropy.bases.problem import Problem
from isotropy.checks import CallerError

LARGEST = 700
"""Entries of v up to which constraints are written out."""
GAP = 1e3
"""By how much singular values that count as zero must fall short of the others."""
ROUNDING = 1e-10


def dense_null_space(problem: Problem) -> np.ndarray:
    """An orthonormal basis (size, rank)."""
    identity = np.eye(problem.size, dtype=problem.dtype)
    rows = problem.constraints(identity)
    if not rows:
        return identity
    return null_space(np.concatenate(rows))


def null_space(matrix: np.ndarray) -> np.ndarray:
    """An orthonormal basis of {v : matrix v = 0}; raises where the rank is in doubt."""
    columns = matrix.shape[1]
    if matrix.shape[0] > columns:  # the same null space, and R is as small as it can be
        matrix = np.asarray(np.linalg.qr(matrix, mode="r"))
    _, values, rows = np.linalg.svd(matrix, full_matrices=True)
    values = np.concatenate([values, np.zeros(columns - len(values))])
    largest = max(float(values[0]), 1.0) if len(values) else 1.0
    is_zero = values <= ROUNDING * largest
    kept = values[~is_zero]
    dropped = values[is_zero].max(initial=ROUNDING * largest / GAP)
    if len(kept) and kept.min() < GAP * dropped and kept.min() < 1e-6 * largest:
        raise CallerError(
            "the rank of the constraints is in doubt: singular values "
            f"{kept.min():.1e} and {dropped:.1e} are too close to tell which is zero; rescale the "
            "generators, or give them in higher precision"
        )
    return rows[is_zero].conj().T
