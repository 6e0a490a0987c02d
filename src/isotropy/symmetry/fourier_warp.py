"""Trigonometric interpolation: an image as a periodic function, read at any place without error.

The image (H, W) is the trigonometric polynomial of lowest order through its pixels, with period W
pixels in x and H in y. Along one axis of N pixels its real basis is

    1,  cos(2π k x / N),  sin(2π k x / N)   for 0 < k < N/2 ,   cos(π x)  where N is even

(the Nyquist frequency as a cosine, so that real images stay real), N functions for N pixels, and

    value(x, y) = Σ_kl  φ_k(y) C_kl φ_l(x)          C = A_H · image · A_Wᵀ

with A the analysis matrix, which inverts φ at the pixels. Shifts by whole pixels are rolls, shifts
by less lose nothing: they make a group, up to the Nyquist term. Sums are written out, H·W
multiplications for each place and channel, in plain operations for every mode of differentiation.

Axis order: images (batch, channels, height, width), places (batch, points) in pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST_NUMBERS = 2**24
"""How many numbers one chunk of places may hold at a time; reverse mode keeps all chunks."""


def fourier_sample(
    images: Tensor, columns: Tensor, rows: Tensor, *, most_numbers: int = MOST_NUMBERS
) -> Tensor:
    """The values of periodic images (batch, channels, height, width) at places between pixels.

    columns, rows: (batch, points), in pixels, 0 the centre of the first; any number, periodic
    most_numbers:  bounds the memory; results do not depend on it beyond rounding
    Returns (batch, channels, points).
    """
    batch, channels, height, width = images.shape
    coefficients = _analysis(height, images) @ images @ _analysis(width, images).mT
    stacked = coefficients.flatten(1, 2)  # (batch, channels·height, width)
    step = max(1, most_numbers // max(1, batch * (channels * height + height + width)))
    values = []
    for column, row in zip(columns.split(step, 1), rows.split(step, 1), strict=True):
        along_x = (stacked @ _basis(column, width).mT).unflatten(1, (channels, height))
        values.append((along_x * _basis(row, height).mT[:, None]).sum(2))
    return torch.cat(values, 2)


def _basis(places: Tensor, length: int) -> Tensor:
    """The N functions at places (…), in pixels: (…, N), cosines before sines."""
    # Whole periods are taken off first, for the sake of single precision.
    places = places - length * (places.detach() / length).floor()
    frequency = torch.arange(length // 2 + 1, device=places.device, dtype=places.dtype)
    angle = places[..., None] * (2 * math.pi / length * frequency)
    sines = angle[..., 1 : (length + 1) // 2].sin()
    return torch.cat((angle.cos(), sines), -1)


def _analysis(length: int, like: Tensor) -> Tensor:
    """From the values at N pixels to the coefficients of the N functions, (N, N)."""
    # On the CPU, since not every accelerator has double precision.
    basis = _basis(torch.arange(length, dtype=torch.float64), length)
    # The functions are orthogonal on the pixels; the constant and Nyquist are twice as long.
    return (basis / basis.square().sum(0)).mT.to(like)
