"""Filters in a basis, layers of them and their KFAC, written out from the formulas.

    φ = (K_zz + σ² I)⁻¹ K_zt          K(z, t) = (1 + 10⁻⁶) exp(−½ ω² ‖z − t‖²)        σ = 0.01

S-CONV and S-FC pixel by pixel; their blocks by projecting those of the same layers without a basis,
in which every input vector a_{n,p} is written out with its zeros (p a position: a pixel of a
convolution, an input channel c of θ2, an output channel c' of θ1, of all uses of the layer):

    (1/N) [(1/T) Σ_{n,p} g Λ gᵀ] ⊗ [Σ_{n,p} a aᵀ]

    S-CONV  A → (I_C ⊗ φ) A (I_C ⊗ φ)ᵀ      u2  the same         u1  G → φ G φᵀ

With S samples of an example a is their mean and g their sum. Knows numpy, scipy and torch only.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import torch
from oracles.dense_ggn import OutputCurvature, average_over_samples
from oracles.dense_kfac import layer_jacobians
from torch import Tensor, nn


def pixels(height: int, width: int) -> np.ndarray:
    """Centred pixels, row by row, (pixels, 2)."""
    return np.array(
        [[y - (height - 1) / 2, x - (width - 1) / 2] for y in range(height) for x in range(width)]
    )


def kernel(first: np.ndarray, second: np.ndarray, omega: float) -> np.ndarray:
    """K (first, second), entry by entry."""
    found = np.empty((len(first), len(second)))
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            squared = (one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2
            found[i, j] = (1 + 1e-6) * math.exp(-0.5 * omega**2 * squared)
    return found


def functions(anchors: np.ndarray, omega: float, height: int, width: int) -> np.ndarray:
    """φ (anchors, pixels)."""
    noisy = kernel(anchors, anchors, omega) + 0.01**2 * np.eye(len(anchors))
    return scipy.linalg.solve(noisy, kernel(anchors, pixels(height, width), omega))


def nearest_values(phi: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """u (…, anchors) of least ‖u φ − filters‖."""
    return np.linalg.lstsq(phi.T, filters.T, rcond=None)[0].T


def convolved(maps: Tensor, filters: Tensor, bias: Tensor) -> Tensor:
    """Σ_c Σ_t x(c, x' + t) s(c', c, t) + b(c') on periodic maps; filters (C', C, k, k)."""
    reach = filters.shape[-1] // 2
    total = torch.zeros(len(maps), len(filters), *maps.shape[2:], dtype=maps.dtype)
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            moved = maps.roll((-down, -right), (2, 3))  # moved(x') = maps(x' + t)
            weight = filters[:, :, down + reach, right + reach]
            total = total + torch.einsum("ncxy,oc->noxy", moved, weight)
    return total + bias[:, None, None]


def factored(maps: Tensor, second: Tensor, bias: Tensor, first: Tensor) -> Tensor:
    """Eq. 7 channel by channel: second (C, C', X, Y) reads out, first (C', C, X', Y') spreads."""
    channels, outputs = second.shape[:2]
    found = []
    for o in range(outputs):
        total = torch.zeros(len(maps), *first.shape[2:], dtype=maps.dtype)
        for c in range(channels):
            read = (maps[:, c] * second[c, o]).sum((1, 2)) + bias[o]
            total = total + read[:, None, None] * first[o, c]
        found.append(total)
    return torch.stack(found, 1)


def _patches(maps: Tensor, kernel_size: int) -> Tensor:
    """(batch, positions, C · k²) on periodic maps."""
    reach = kernel_size // 2
    parts = [
        maps.roll((-down, -right), (2, 3)).flatten(2)
        for down in range(-reach, reach + 1)
        for right in range(-reach, reach + 1)
    ]
    return torch.stack(parts, 2).flatten(1, 2).mT


def _block_columns(parts: Tensor) -> Tensor:
    """(batch, p, k) → (batch, p, p·k): the vector of position p in its place, zeros elsewhere."""
    batch, count, size = parts.shape
    found = torch.zeros(batch, count, count, size, dtype=parts.dtype)
    for p in range(count):
        found = found.index_put(
            (torch.arange(batch), torch.tensor(p), torch.tensor(p)), parts[:, p]
        )
    return found.flatten(2)


def dense_block(
    network: nn.Module,
    layer: nn.Module,
    form: str,
    phi: Tensor,
    rows: Tensor,
    samples: int,
    output_curvature: OutputCurvature,
) -> Tensor:
    """The block of a layer's values, over `values` row by row.

    form: "convolution" with values (C', C, P), "readout" (C, C', P) or "spread" (C', C, P)
    phi:  φ (P, pixels)
    """
    inputs, jacobians, outputs = layer_jacobians(network, layer, rows, samples)
    curvature = output_curvature(outputs)
    count = len(outputs)
    into, back = [], []
    for given, jacobian in zip(inputs, jacobians, strict=True):
        a = average_over_samples(given, samples)
        g = torch.stack(
            [own[:, n * samples : (n + 1) * samples].sum(1) for n, own in enumerate(jacobian)]
        )  # (batch, outputs, …)
        if form == "convolution":
            into.append(_patches(a, math.isqrt(phi.shape[1])))
            back.append(g.flatten(3).mT)
        elif form == "readout":
            into.append(_block_columns(a.flatten(2)))
            back.append(g.mT)
        else:
            into.append(_block_columns(a))
            back.append(g)
    a, g = torch.cat(into, 1), torch.cat(back, 2)  # (batch, p, in), (batch, outputs, p, out)
    positions = a.shape[1]
    a_factor = torch.einsum("npi,npj->ij", a, a)
    g_factor = torch.einsum("nkpi,nkl,nlpj->ij", g, curvature, g) / positions
    if form == "spread":
        outer, channels = layer.values.shape[:2]
        g_factor = phi @ g_factor @ phi.T
        block = _kron(g_factor, a_factor) / count  # over (P, C', C)
        return _reordered(block, (len(phi), outer, channels), (1, 2, 0))
    channels = a.shape[2] // phi.shape[1]
    projection = torch.kron(torch.eye(channels, dtype=phi.dtype), phi)
    block = _kron(g_factor, projection @ a_factor @ projection.T) / count  # (C', C, P)
    if form == "convolution":
        return block
    return _reordered(block, (g.shape[-1], channels, len(phi)), (1, 0, 2))


def _kron(first: Tensor, second: Tensor) -> Tensor:
    return torch.kron(first.contiguous(), second.contiguous())  # torch refuses other strides


def _reordered(block: Tensor, sizes: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
    places = torch.arange(math.prod(sizes)).reshape(sizes).permute(order).flatten()
    return block[places][:, places]
