"""The null space of all constraints written out, by decompositions of dense matrices.

    C = [ dρ(A_1); …; ρ(h_1) − 1; … ]        C v = 0                     (Finzi 2023, Eq. 2.6)

For small products of any group, and the oracle of every other method. C itself is sparse; the
eigenvectors of CᴴC with eigenvalue zero are a first guess, one step of which

    Q ← Q − P Λ⁻¹ Pᴴ Cᴴ (C Q)        CᴴC = P Λ Pᴴ on the complement

takes back what squaring has cost. Where the eigenvalues leave the rank open, for they are squares
and singular values below 1e-8 drown in rounding, the singular values of C decide.

A group of several components: given an orthonormal basis Q of the vectors that the Lie algebra
annihilates, the vectors Qx that a discrete h leaves in place, too, are those with

    (ρ(h) − 1) Q x = 0

with all rows: ρ(h) need not map the span of Q into itself unless h normalises the algebra. There
are only as many unknowns as Q has columns, and fewer after every generator.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse as sparse

from isotropy.bases.problem import Matrix, Problem, check_memory, kronecker
from isotropy.checks import CallerError

LARGEST = 2000
"""Entries of v up to which constraints are written out. Where the group has weights, these are
quicker from about 100 entries on; the iteration (`krylov`) is so only from about 2000 on."""
GAP = 1e3
"""By how much singular values that count as zero must fall short of the others."""
SPARSE = 0.5
"""Constraints with fewer nonzeros in a column, per entry of v, stay sparse."""
ROUNDING = 1e-10
"""The largest singular value that counts as zero, relative to the largest of all, at least 1."""
CLEAR = 1e-8
"""Eigenvalues of CᴴC above this, relative to the largest, are certainly not zero."""


def dense_null_space(problem: Problem) -> np.ndarray:
    """An orthonormal basis (size, rank)."""
    check_memory(
        4 * problem.size**2 * problem.dtype.itemsize,
        f"a basis of {problem.size:,} entries by dense matrices",
        "use another method",
    )
    if problem.nonzeros < SPARSE * problem.size:
        return tall_null_space(problem.written_out())
    identity = np.eye(problem.size, dtype=problem.dtype)
    rows = zip(problem.constraints(identity), problem.sizes, strict=True)
    return tall_null_space(np.concatenate([left / size for left, size in rows]))


def tall_null_space(matrix: np.ndarray | Matrix) -> np.ndarray:
    """An orthonormal basis of {v : matrix v = 0} of a matrix with many more rows than columns,
    sparse or not; raises where the rank is in doubt."""
    columns = matrix.shape[1]
    adjoint = matrix.conj().T
    gram = _dense(adjoint @ matrix)
    values, vectors = scipy.linalg.eigh(gram, check_finite=False)
    largest = max(float(values[-1]), 1.0) if columns else 1.0
    is_zero = values <= 1e-4 * CLEAR * largest
    if not (is_zero | (values >= CLEAR * largest)).all():
        return null_space(_dense(matrix))
    found, others = vectors[:, is_zero], vectors[:, ~is_zero]
    if not found.shape[1]:
        return found
    left = adjoint @ (matrix @ found)
    found = found - others @ ((others.conj().T @ left) / values[~is_zero, None])
    found, _ = np.linalg.qr(found)
    if not np.linalg.norm(matrix @ found, axis=0).max() <= ROUNDING * largest**0.5:
        return null_space(_dense(matrix))
    return found


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


def _dense(matrix: Matrix) -> np.ndarray:
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)


def kept_by_discrete(problem: Problem, columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the vectors in the span of orthonormal columns (size, count) that
    every discrete generator leaves in place; raises where their number is in doubt."""
    count = len(problem.algebra)
    for size, factors in zip(problem.sizes[count:], problem.discrete, strict=True):
        if not columns.shape[1]:
            break
        left = (kronecker(problem.shape, factors, columns) - columns) / size
        columns = columns @ null_space(left)
    return columns
