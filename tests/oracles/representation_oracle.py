"""Representations written out with numpy and scipy: Kronecker products, harmonics, characters."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
from scipy.linalg import block_diag, expm
from scipy.special import sph_harm_y


def kronecker(*matrices: np.ndarray) -> np.ndarray:
    """ρ_1(g) ⊗ ρ_2(g) ⊗ …, the first index slow."""
    return reduce(np.kron, matrices, np.ones((1, 1)))


def direct_sum(*blocks: np.ndarray) -> np.ndarray:
    """One block after another along the diagonal."""
    return np.asarray(block_diag(*blocks))


def contragredient(matrix: np.ndarray) -> np.ndarray:
    """ρ(g⁻¹)ᵀ."""
    return np.linalg.inv(matrix).T


def derivative(rho: Callable[[np.ndarray], np.ndarray], generator: np.ndarray) -> np.ndarray:
    """d/dt ρ(exp tA) at t = 0 by central differences of fourth order."""
    step = 1e-3

    def difference(size: float) -> np.ndarray:
        return (rho(expm(size * generator)) - rho(expm(-size * generator))) / (2 * size)

    return (4 * difference(step) - difference(2 * step)) / 3


def rotation_character(order: int, angle: float) -> float:
    """Trace of the irreducible representation of SO(3) of dimension 2l + 1."""
    return float(np.sin((2 * order + 1) * angle / 2) / np.sin(angle / 2))


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """By `angle` about `axis`, by Rodrigues' formula."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def real_harmonics(order: int, point: np.ndarray) -> np.ndarray:
    """Real spherical harmonics of a point of R³, m = −l … l, without the (−1)^m."""
    x, y, z = point / np.linalg.norm(point)
    polar, azimuth = np.arccos(z), np.arctan2(y, x)
    values = []
    for m in range(-order, order + 1):
        value = (-1) ** m * sph_harm_y(order, abs(m), polar, azimuth)
        values.append(value.real if m == 0 else 2**0.5 * (value.imag if m < 0 else value.real))
    return np.array(values)


def symmetric_traceless(order: int, dimension: int) -> np.ndarray:
    """An orthonormal basis (d^l, count) of symmetric traceless tensors of order l ≥ 2, by SVD."""
    shape = (dimension,) * order
    size = dimension**order
    identity = np.eye(size).reshape(*shape, size)
    swaps = [
        (np.swapaxes(identity, axis, axis + 1) - identity).reshape(size, size)
        for axis in range(order - 1)
    ]
    trace = np.einsum("ii...->...", identity).reshape(-1, size)
    _, values, rows = np.linalg.svd(np.concatenate([*swaps, trace]))
    return rows[np.sum(values > 1e-10) :].T
