"""Groups of several components: what the identity component leaves in place, then each h_k.

Given an orthonormal basis Q of the vectors that the Lie algebra annihilates, the vectors Qx that
a discrete h leaves in place, too, are those with

    (ρ(h) − 1) Q x = 0

with all rows: ρ(h) need not map the span of Q into itself unless h normalises the algebra. There
are only as many unknowns as Q has columns, and fewer after every generator.
"""

from __future__ import annotations

import numpy as np

from isotropy.bases.dense import null_space
from isotropy.bases.problem import Problem


def kept_by_discrete(problem: Problem, columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the vectors in the span of orthonormal columns (size, count) that
    every discrete generator leaves in place; raises where their number is in doubt."""
    count = len(problem.algebra)
    for size, factors in zip(problem.sizes[count:], problem.discrete, strict=True):
        if not columns.shape[1]:
            break
        left = (problem.moved(factors, columns) - columns) / size
        columns = columns @ null_space(left)
    return columns
