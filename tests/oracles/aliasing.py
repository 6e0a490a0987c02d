"""Aliasing in closed form, by numpy's Fourier transform.

A periodic image of N × N samples is h(x) = Σ_n H_n e^{2πi n·x}, with |n| < N/2 and places x in
widths. Sampled at M < N places a side, frequency n becomes Alias(n), the number that differs from
it by a multiple of M and lies in [−M/2, M/2). A shift of the input by t v turns H_n into
H_n e^{−2πi n·v t}, the shift of the output back by as much turns the sum at n′ into
e^{2πi n′·v t} times itself, so that the derivative at t = 0 has the coefficients

    2πi Σ_{n: Alias(n) = n′} v·(n′ − n) H_n

and, by Parseval, ‖L‖² per sample is the sum of their squares: (2π)² Σ_n′ |…|². In two dimensions
up to four frequencies meet in one n′ and interfere.

At a frequency of −M/2 a real image has a cosine, whose sines cancel: a derivative leaves nothing
of it, so that n′ counts as zero there, along that axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np


def aliased(frequency: int, samples: int) -> int:
    """Alias(n): the frequency in [−samples/2, samples/2) that looks the same on the samples."""
    return (frequency + samples // 2) % samples - samples // 2


def aliasing_derivative(
    coefficients: np.ndarray, samples: int, direction: Sequence[float]
) -> np.ndarray:
    """The coefficients of L_v of sampling at `samples` places a side.

    coefficients  H_n of a signal or an image, as `numpy.fft.fftn(h) / h.size` orders them, with no
                  share at the Nyquist frequency of its own grid
    direction     v for each axis, in widths
    """
    size = coefficients.shape[0]
    found = np.zeros((samples,) * coefficients.ndim, dtype=complex)
    for index in itertools.product(range(size), repeat=coefficients.ndim):
        high = [aliased(k, size) for k in index]
        low = [aliased(n, samples) for n in high]
        # The mean of both signs of the output's Nyquist frequency, whose derivative is zero.
        rate = [0 if 2 * abs(n) == samples else n for n in low]
        steps = sum(v * (a - b) for v, a, b in zip(direction, rate, high, strict=True))
        found[tuple(n % samples for n in low)] += 2j * np.pi * steps * coefficients[index]
    return found


def mean_square_of_aliasing(values: np.ndarray, samples: int, direction: Sequence[float]) -> float:
    """‖L_v A h‖² per sample, for sampling h, given by its values on a finer grid."""
    coefficients = np.fft.fftn(values) / values.size
    return float((np.abs(aliasing_derivative(coefficients, samples, direction)) ** 2).sum())


def oversampled(image: np.ndarray, factor: int) -> np.ndarray:
    """The same periodic function on a grid `factor` times as fine; no Nyquist frequency."""
    size = image.shape[0]
    spectrum = np.fft.fftn(image)
    fine = np.zeros((size * factor,) * image.ndim, dtype=complex)
    for index in itertools.product(range(size), repeat=image.ndim):
        fine[tuple(aliased(k, size) % (size * factor) for k in index)] = spectrum[index]
    return np.fft.ifftn(fine).real * factor**image.ndim


def mean_square_of_pointwise(
    image: np.ndarray,
    function: Callable[[np.ndarray], np.ndarray],
    direction: Sequence[float],
    factor: int,
) -> float:
    """‖L_v σ‖² per sample: σ of the continuous function, aliased to the samples of the image.

    σ(h) has frequencies without end; those up to `factor` times the image's are kept.
    """
    return mean_square_of_aliasing(function(oversampled(image, factor)), image.shape[0], direction)
