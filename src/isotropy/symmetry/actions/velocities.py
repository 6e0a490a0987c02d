"""Slopes of sampled signals along one axis: what the velocity of a resampling Action is made of.

An Action that resamples, output(p) = v(exp(−tA) p), moves data with the velocity

    X v(p) = d/dt output(p) at t = 0 = −∇v(p)·(A p)

and ∇v depends on what lies between the samples. Two answers, per sample and axis, in values per
sample distance:

`neighbour_slope`, of the interpolant that `act` resamples with. Straight lines have a kink at
every sample; the central derivative is the mean of both sides. Torch's cubic (a = −3/4) is smooth:

    straight lines  (v[i+1] − v[i−1]) / 2          cubic  3/4 · (v[i+1] − v[i−1])

`band_limited_slope`, of the trigonometric polynomial through the samples: the slope without an
error of interpolation. By Fourier transform, of which an odd derivative leaves no Nyquist term.

Beyond its ends a signal of N samples goes on by an `Extension`:

    zeros      v[−1] = 0
    edge       v[−1] = v[0]        half-sample symmetric where more is needed, with period 2N
    mirror     v[−1] = v[1]        whole-sample symmetric, with period 2(N − 1)
    circular   v[−1] = v[N−1]      with period N

Zeros would have a jump at the border, which no band-limited signal has: `band_limited_slope` goes
on by `edge` instead, which is continuous, so that it gives no credit to a border for what is an
artefact of transforming.

Data are (…, samples, …), any strides; plain operations, for every mode of differentiation.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Extension = Literal["zeros", "edge", "mirror", "circular"]


def neighbour_slope(data: Tensor, axis: int, extension: Extension) -> Tensor:
    """v[i+1] − v[i−1] along `axis`, like `data`: the central slope per two sample distances.

    Times 1/2 it is the slope of straight lines, times 3/4 that of torch's cubic.
    """
    length = data.shape[axis]
    if length == 1:
        # Both neighbours are the sample itself, or both are zero.
        return torch.zeros_like(data)
    first, second = data.narrow(axis, 0, 1), data.narrow(axis, 1, 1)
    last, before_last = data.narrow(axis, length - 1, 1), data.narrow(axis, length - 2, 1)
    if extension == "zeros":
        left, right = second, -before_last
    elif extension == "edge":
        left, right = second - first, last - before_last
    elif extension == "circular":
        left, right = second - last, first - before_last
    else:
        left = right = torch.zeros_like(first)
    inner = data.narrow(axis, 2, length - 2) - data.narrow(axis, 0, length - 2)
    return torch.cat((left, inner, right), axis)


def band_limited_slope(data: Tensor, axis: int, extension: Extension) -> Tensor:
    """The slope of the band-limited signal through the samples along `axis`, like `data`.

    Half precision is transformed in single precision.
    """
    length = data.shape[axis]
    if length == 1:
        return torch.zeros_like(data)
    wide = data.to(torch.promote_types(data.dtype, torch.float32))
    if extension == "circular":
        extended = wide
    elif extension == "mirror":
        extended = torch.cat((wide, wide.narrow(axis, 1, length - 2).flip(axis)), axis)
    else:
        extended = torch.cat((wide, wide.flip(axis)), axis)
    period = extended.shape[axis]
    spectrum = torch.fft.rfft(extended, dim=axis)
    frequency = torch.arange(period // 2 + 1, device=data.device, dtype=wide.dtype)
    below_nyquist = 2 * frequency < period
    factor = torch.complex(torch.zeros_like(frequency), 2 * math.pi / period * frequency)
    shape = [1] * data.ndim
    shape[axis] = -1
    spectrum = spectrum * (factor * below_nyquist).reshape(shape)
    slope = torch.fft.irfft(spectrum, n=period, dim=axis)
    return slope.narrow(axis, 0, length).to(data.dtype)
