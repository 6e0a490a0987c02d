"""KFAC of an averaged network written out densely from its formula, one position at a time.

For a layer whose weight is used at positions t = 1..T (pixels, tokens, repeated calls), with
a_nst what enters it and ĝ_nst = ∂f̂_n / ∂(its output) for sample s of example n:

    A = Σ_n Σ_t ā_nt ā_ntᵀ ,              ā_nt = (1/S) Σ_s a_nst
    G = (1/T) Σ_n Σ_t ḡ_nt Λ_n ḡ_ntᵀ ,    ḡ_nt = Σ_s ĝ_nst        (ĝ already carries 1/S)
    block of the weight = (1/N) G ⊗ A     one for each group of a grouped convolution
    block of the bias   = Σ_n j_n Λ_n j_nᵀ ,    j_n = Σ_t ḡ_nt    (exact)

(Immer et al. 2022, Eq. 7 and 15). Slow on purpose: patches are gathered pixel by pixel, and ĝ is
the `torch.func` Jacobian by a perturbation added to the layer's output. Everything stays
differentiable in `rows`. Knows torch only; works for Linear and Conv2d.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from oracles.dense_ggn import OutputCurvature, average_over_samples
from torch import Tensor, nn
from torch.func import jacrev


def dense_kfac(
    network: nn.Module, name: str, rows: Tensor, samples: int, output_curvature: OutputCurvature
) -> dict[str, Tensor]:
    """Blocks of layer `name`: "weight" (groups, p, p) and, where it has one, "bias" (out, out)."""
    layer = network.get_submodule(name)
    inputs, jacobians, outputs = layer_jacobians(network, layer, rows, samples)
    curvature = output_curvature(outputs)
    count = len(outputs)
    groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
    into = torch.cat(
        [average_over_samples(layer_inputs(layer, use), samples) for use in inputs], dim=2
    )  # (batch, groups, positions, in)
    back = torch.cat([_positions(layer, use) for use in jacobians], dim=4)
    back = torch.stack(
        [back[n, :, n * samples : (n + 1) * samples].sum(1) for n in range(count)]
    )  # (batch, outputs, groups, positions, out)
    positions = into.shape[2]
    blocks = []
    for group in range(groups):
        a_factor = sum(
            torch.outer(into[n, group, t], into[n, group, t])
            for n in range(count)
            for t in range(positions)
        )
        g_factor = sum(
            back[n, :, group, t].T @ curvature[n] @ back[n, :, group, t]
            for n in range(count)
            for t in range(positions)
        )
        blocks.append(torch.kron(g_factor / positions, a_factor) / count)
    found = {"weight": torch.stack(blocks)}
    if layer.bias is not None:
        total = back.sum(3).flatten(2)  # (batch, outputs, all output channels)
        found["bias"] = sum(total[n].T @ curvature[n] @ total[n] for n in range(count))
    return found


def layer_jacobians(
    network: nn.Module, layer: nn.Module, rows: Tensor, samples: int
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """For each call of `layer`: its input, and ∂f̂/∂(its output) (batch, outputs, rows, …); f̂."""
    inputs: list[Tensor] = []
    shapes: list[torch.Size] = []

    def note(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(arguments[0])
        shapes.append(output.shape)

    averaged = _hooked(network, layer, note, rows, samples)
    recorded = list(inputs)

    def perturbed(perturbations: tuple[Tensor, ...]) -> Tensor:
        remaining = iter(perturbations)

        def add(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output + next(remaining)

        return _hooked(network, layer, add, rows, samples)

    zeros = tuple(torch.zeros(shape, dtype=rows.dtype) for shape in shapes)
    return recorded, list(jacrev(perturbed)(zeros)), averaged


def _hooked(
    network: nn.Module, layer: nn.Module, hook: Callable, rows: Tensor, samples: int
) -> Tensor:
    handle = layer.register_forward_hook(hook)
    try:
        return average_over_samples(network(rows), samples)
    finally:
        handle.remove()


def layer_inputs(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What the weight multiplies, (rows, groups, positions, in)."""
    if isinstance(layer, nn.Conv2d):
        return patches_by_pixel(layer, inputs)
    return inputs.reshape(len(inputs), 1, -1, inputs.shape[-1])


def _positions(layer: nn.Module, jacobian: Tensor) -> Tensor:
    """(batch, outputs, rows, …) → (batch, outputs, rows, groups, positions, out)."""
    if isinstance(layer, nn.Conv2d):
        channels = jacobian.shape[3] // layer.groups
        split = jacobian.reshape(*jacobian.shape[:3], layer.groups, channels, -1)
        return split.transpose(-1, -2)
    return jacobian.reshape(*jacobian.shape[:3], 1, -1, jacobian.shape[-1])


def patches_by_pixel(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """The patch that each output pixel sees, (rows, groups, pixels, in/groups · height · width)."""
    height, width = images.shape[2:]
    tall = _reach(layer, 0, height)
    wide = _reach(layer, 1, width)
    black = torch.zeros_like(images[:, :, 0, 0])
    patches = []
    for row_indices in tall:
        for column_indices in wide:
            pixels = [
                black if y is None or x is None else images[:, :, y, x]
                for y in row_indices
                for x in column_indices
            ]
            patches.append(torch.stack(pixels, -1))  # (rows, channels, kernel pixels)
    stacked = torch.stack(patches, 1)  # (rows, pixels, channels, kernel pixels)
    split = stacked.reshape(*stacked.shape[:2], layer.groups, -1)
    return split.transpose(1, 2)


def _reach(layer: nn.Conv2d, axis: int, size: int) -> list[list[int | None]]:
    """Along one axis, the input indices under the kernel for each output index; None is zero."""
    kernel, stride = layer.kernel_size[axis], layer.stride[axis]
    dilation = layer.dilation[axis]
    span = dilation * (kernel - 1)
    if layer.padding == "same":
        before, after = span // 2, span - span // 2
    elif layer.padding == "valid":
        before, after = 0, 0
    else:
        before = after = layer.padding[axis]
    places = (size + before + after - span - 1) // stride + 1
    return [
        [
            _index(place * stride + step * dilation - before, size, layer.padding_mode)
            for step in range(kernel)
        ]
        for place in range(places)
    ]


def _index(index: int, size: int, mode: str) -> int | None:
    if 0 <= index < size:
        return index
    if mode == "zeros":
        return None
    if mode == "circular":
        return index % size
    if mode == "replicate":
        return 0 if index < 0 else size - 1
    assert mode == "reflect", mode
    return -index if index < 0 else 2 * (size - 1) - index
