"""An oracle for sequences moved in time: the definition, sample by sample.

A sequence is continued beyond its ends (repeated, or by zeros) and joined by straight lines;
content at place u, in half lengths after the middle, goes where the exponential of the 2×2 matrix
of stretch and shift sends it.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg


def line_map(stretch: float, shift: float) -> tuple[float, float]:
    """(factor, offset) of u ↦ factor·u + offset, from scipy's exponential."""
    result = scipy.linalg.expm(np.array([[stretch, shift], [0.0, 0.0]]))
    return float(result[0, 0]), float(result[0, 1])


def moved(
    sequence: np.ndarray, *, shift: float, stretch: float, amplitude: float, boundary: str
) -> np.ndarray:
    """sequence (length,) under one element."""
    length = len(sequence)
    factor, offset = line_map(stretch, shift)
    result = np.zeros(length)
    for i in range(length):
        u = (i - (length - 1) / 2) / (length / 2)
        came_from = (u - offset) / factor * (length / 2) + (length - 1) / 2
        for j in (math.floor(came_from), math.floor(came_from) + 1):
            weight = 1 - abs(came_from - j)
            if boundary == "circular":
                result[i] += weight * sequence[j % length]
            elif 0 <= j < length:
                result[i] += weight * sequence[j]
    return math.exp(amplitude) * result
