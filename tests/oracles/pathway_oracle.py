"""Factored layers by loops of their definition, and their KFAC from explicit vectors.

    y(c', x', y') = Σ_c θ1(c', c, x', y') [Σ_xy x(c, x, y) θ2(c', c, x, y) + b2(c')] + b1(x', y')

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 5.) Appendix C.1 writes both halves as a matrix
times a block-diagonal one: θ2 (C', C·XY) times the columns a_c, which hold x(c) in their part c and
zeros elsewhere, and θ1 (X'Y', C'·C) times the columns a_c', which hold z(c') in part c'. With g_c
and g_c' the gradients of column c of z (C', C) and of column c' of y (X'Y', C'),

    block of θ2 = (1/(N C))  [Σ_n Σ_c g_c Λ g_cᵀ] ⊗ [Σ_n Σ_c a_c a_cᵀ]
    block of θ1 = (1/(N C')) [Σ_n Σ_c' g_c' Λ g_c'ᵀ] ⊗ [Σ_n Σ_c' a_c' a_c'ᵀ]

both written out in full, zeros and all. Copies of an example are averaged in a and summed in g.
Knows torch only.
"""

from __future__ import annotations

import torch
from oracles.dense_ggn import OutputCurvature, average_over_samples
from oracles.dense_kfac import layer_jacobians
from torch import Tensor, nn


def factored_forward(
    maps: Tensor, theta1: Tensor, bias1: Tensor, theta2: Tensor, bias2: Tensor
) -> Tensor:
    """(batch, C, X, Y) → (batch, C', X', Y') with θ1 (C', C, X', Y'), b1 (X', Y'),
    θ2 (C', C, X, Y), b2 (C')."""
    outputs, inputs, height, width = theta1.shape
    found = torch.zeros(len(maps), outputs, height, width, dtype=maps.dtype)
    for n in range(len(maps)):
        for c_out in range(outputs):
            for x_out in range(height):
                for y_out in range(width):
                    total = bias1[x_out, y_out].clone()
                    for c in range(inputs):
                        value = bias2[c_out].clone()
                        for x in range(maps.shape[2]):
                            for y in range(maps.shape[3]):
                                value += maps[n, c, x, y] * theta2[c_out, c, x, y]
                        total += theta1[c_out, c, x_out, y_out] * value
                    found[n, c_out, x_out, y_out] = total
    return found


def dense_factored_kfac(
    network: nn.Module,
    readout: str,
    spread: str,
    rows: Tensor,
    samples: int,
    output_curvature: OutputCurvature,
) -> dict[str, Tensor]:
    """Blocks of θ2 (C'·C·XY)² as "readout" and of θ1 (X'Y'·C'·C)² as "spread".

    readout, spread: names of the modules that return z (rows, C', C) and y (rows, C', X'Y').
    """
    inputs, jacobians, outputs = layer_jacobians(
        network, network.get_submodule(readout), rows, samples
    )
    curvature = output_curvature(outputs)
    columns = [_columns(average_over_samples(use.flatten(2), samples)) for use in inputs]
    # ∂f̂/∂z(·, c), (batch, outputs, C', C) → (batch, C, outputs, C')
    gradients = [_summed(use, samples).permute(0, 3, 1, 2) for use in jacobians]
    found = {"readout": _block(columns, gradients, curvature)}

    inputs, jacobians, _ = layer_jacobians(network, network.get_submodule(spread), rows, samples)
    columns = [_columns(average_over_samples(use, samples)) for use in inputs]
    # ∂f̂/∂y(c', ·), (batch, outputs, C', X'Y') → (batch, C', outputs, X'Y')
    gradients = [_summed(use, samples).permute(0, 2, 1, 3) for use in jacobians]
    found["spread"] = _block(columns, gradients, curvature)
    return found


def _columns(values: Tensor) -> Tensor:
    """(batch, channels, k) → (batch, channels, channels·k): part c of column c holds values(c)."""
    batch, channels, size = values.shape
    found = torch.zeros(batch, channels, channels * size, dtype=values.dtype)
    for channel in range(channels):
        found[:, channel, channel * size : (channel + 1) * size] = values[:, channel]
    return found


def _summed(jacobian: Tensor, samples: int) -> Tensor:
    """∂f̂_n by the outputs of its own rows, summed: (batch, outputs, rows, …) → (batch, …)."""
    return torch.stack(
        [of_n[:, n * samples : (n + 1) * samples].sum(1) for n, of_n in enumerate(jacobian)]
    )


def _block(columns: list[Tensor], gradients: list[Tensor], curvature: Tensor) -> Tensor:
    count, positions = len(curvature), sum(part.shape[1] for part in columns)
    a_factor = torch.zeros(columns[0].shape[-1], columns[0].shape[-1], dtype=curvature.dtype)
    g_factor = torch.zeros(gradients[0].shape[-1], gradients[0].shape[-1], dtype=curvature.dtype)
    for into, back in zip(columns, gradients, strict=True):
        for n in range(count):
            for position in range(into.shape[1]):
                a, g = into[n, position], back[n, position]
                a_factor = a_factor + torch.outer(a, a)
                g_factor = g_factor + g.T @ curvature[n] @ g
    return torch.kron(g_factor, a_factor) / (count * positions)
