"""Invariant vectors by the book: every constraint as a dense matrix, and its null space by an SVD.

    C = [ Σ_j 1 ⊗ … A_j … ⊗ 1 ; … ; h_1 ⊗ … ⊗ h_m − 1 ; … ]        C v = 0

from lists of each generator's factors, one matrix for each axis of the tensor, slowest first.
Knows numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

Factors = Sequence[np.ndarray]


def kronecker(factors: Factors) -> np.ndarray:
    """factors[0] ⊗ factors[1] ⊗ …"""
    return reduce(np.kron, factors, np.eye(1))


def kronecker_sum(factors: Factors) -> np.ndarray:
    """Σ_j 1 ⊗ … factors[j] … ⊗ 1."""
    identities = [np.eye(len(factor)) for factor in factors]
    size = int(np.prod([len(factor) for factor in factors], initial=1))
    found = np.zeros((size, size))
    for axis, factor in enumerate(factors):
        found = found + kronecker([*identities[:axis], factor, *identities[axis + 1 :]])
    return found


def constraint_matrix(
    algebra: Sequence[Factors], discrete: Sequence[Factors], size: int
) -> np.ndarray:
    """C, one generator below another."""
    rows = [kronecker_sum(factors) for factors in algebra]
    rows += [kronecker(factors) - np.eye(size) for factors in discrete]
    return np.concatenate([np.zeros((0, size)), *rows])


def invariant_projector(
    algebra: Sequence[Factors], discrete: Sequence[Factors], size: int
) -> np.ndarray:
    """The orthogonal projector (size, size) onto the null space of C; its trace is the rank."""
    matrix = constraint_matrix(algebra, discrete, size)
    if not len(matrix):
        return np.eye(size)
    _, values, rows = np.linalg.svd(matrix, full_matrices=len(matrix) < size)
    kept = np.concatenate([values, np.zeros(len(rows) - len(values))]) < 1e-9 * max(values[0], 1)
    null = rows[kept]
    return null.conj().T @ null


def word_factors(
    matrices: Sequence[np.ndarray], word: str, *, infinitesimal: bool
) -> list[list[np.ndarray]]:
    """For each matrix on V its factors on a word of axes: "V" for V, "d" for the dual of V."""
    found = []
    for matrix in matrices:
        dual = -matrix.T if infinitesimal else np.linalg.inv(matrix).T
        found.append([matrix if letter == "V" else dual for letter in word])
    return found
