"""Trigonometric interpolation by complex sums, frequency by frequency. numpy only."""

from __future__ import annotations

import numpy as np


def _waves(places: np.ndarray, length: int, order: int) -> np.ndarray:
    """Derivatives of e^{2πi k x / N} for the signed frequencies of `fftfreq`, (points, N).

    The Nyquist frequency of an even N is the mean of its two signs, a cosine.
    """
    found = np.zeros((len(places), length), dtype=complex)
    for column in range(length):
        signed = column if column <= length // 2 else column - length
        signs = [signed, -signed] if 2 * signed == length else [signed]
        for each in signs:
            rate = 2j * np.pi * each / length
            found[:, column] += rate**order * np.exp(rate * places) / len(signs)
    return found


def trigonometric(
    image: np.ndarray,
    columns: np.ndarray,
    rows: np.ndarray,
    order: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """The periodic image (height, width), or its derivative of `order` (in x, in y), at places."""
    height, width = image.shape
    spectrum = np.fft.fft2(image) / (height * width)
    along_x = _waves(columns, width, order[0])
    along_y = _waves(rows, height, order[1])
    value = np.einsum("pk,kl,pl->p", along_y, spectrum, along_x)
    assert np.abs(value.imag).max() < 1e-9 * max(1.0, np.abs(value.real).max())
    return value.real
