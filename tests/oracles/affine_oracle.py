"""Oracles for affine maps of images: scipy's exponential, resampling by loops, LILA's own grid.

Resampling here is the textbook definition: the image is continued to the whole integer lattice
(by zeros, by its border, by reflection) and convolved with the interpolation kernel,

    output(p) = Σ_ij k(y − i) k(x − j) image_ij ,        (x, y) = T p in pixels,

pixel by pixel and tap by tap, in pixel coordinates about the image's middle.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import torch
from torch.nn import functional

# Entries of LILA's six 3×3 generators: tx, ty, rot, sx, sy, shear (Immer et al. 2022).
LILA_ENTRIES = (
    {(0, 2): 1.0},
    {(1, 2): 1.0},
    {(0, 1): -1.0, (1, 0): 1.0},
    {(0, 0): 1.0},
    {(1, 1): 1.0},
    {(0, 1): 1.0, (1, 0): 1.0},
)


def homogeneous(block: np.ndarray, translation: np.ndarray) -> np.ndarray:
    """The 3×3 matrix [[B, b], [0, 0]]."""
    matrix = np.zeros((3, 3))
    matrix[:2, :2], matrix[:2, 2] = block, translation
    return matrix


def exponential(block: np.ndarray, translation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(e^B, V b) from the upper rows of the 3×3 exponential."""
    result = scipy.linalg.expm(homogeneous(block, translation))
    return result[:2, :2], result[:2, 2]


def exponential_derivative(
    block: np.ndarray, translation: np.ndarray, block_dot: np.ndarray, translation_dot: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The Fréchet derivative of `exponential` in a direction."""
    result = scipy.linalg.expm_frechet(
        homogeneous(block, translation),
        homogeneous(block_dot, translation_dot),
        compute_expm=False,
    )
    return result[:2, :2], result[:2, 2]


def kernel(distance: float, interpolation: str) -> float:
    """The hat, or Keys' cubic convolution kernel with a = −0.75."""
    x = abs(distance)
    if interpolation == "bilinear":
        return max(0.0, 1 - x)
    a = -0.75
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    if x < 2:
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return 0.0


def continued(index: int, length: int, padding: str, align_corners: bool) -> int | None:
    """Which pixel stands at `index` of the integer line; None for a zero."""
    if 0 <= index < length:
        return index
    if padding == "zeros":
        return None
    if padding == "border":
        return min(max(index, 0), length - 1)
    # Mirrors at the centres of the outer pixels, or at their outer edges.
    if align_corners:
        index %= 2 * (length - 1)
        return index if index < length else 2 * (length - 1) - index
    index %= 2 * length
    return index if index < length else 2 * length - 1 - index


def resample(
    image: np.ndarray,
    linear: np.ndarray,
    shift: np.ndarray,
    *,
    interpolation: str,
    padding: str,
    align_corners: bool,
) -> np.ndarray:
    """image (channels, height, width) read at linear p + shift, the unit half a width."""
    height, width = image.shape[1:]
    unit = (width - 1) / 2 if align_corners else width / 2
    result = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            # A linear map is the same in pixels as in half widths; only the shift has a unit.
            p = np.array([column - (width - 1) / 2, row - (height - 1) / 2])
            x, y = linear @ p + shift * unit + [(width - 1) / 2, (height - 1) / 2]
            for i in range(math.floor(y) - 1, math.floor(y) + 3):
                for j in range(math.floor(x) - 1, math.floor(x) + 3):
                    weight = kernel(y - i, interpolation) * kernel(x - j, interpolation)
                    a = continued(i, height, padding, align_corners)
                    b = continued(j, width, padding, align_corners)
                    if a is not None and b is not None:
                        result[:, row, column] += weight * image[:, a, b]
    return result


def lila_matrix(coordinates: np.ndarray) -> np.ndarray:
    """LILA's T = expm(Σ_k a_k G_k), 3×3, for coordinates (6,)."""
    algebra = np.zeros((3, 3))
    for amount, entries in zip(coordinates, LILA_ENTRIES, strict=True):
        for place, value in entries.items():
            algebra[place] += amount * value
    return scipy.linalg.expm(algebra)


def lila_transform(images: torch.Tensor, coordinates: torch.Tensor) -> torch.Tensor:
    """LILA's transformation of images (batch, …) by coordinates (batch, 6), one sample each."""
    rows = np.stack([lila_matrix(each)[:2] for each in coordinates.numpy()])
    theta = torch.from_numpy(rows).to(images)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=True)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="zeros", align_corners=True
    )
