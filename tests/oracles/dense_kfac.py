"""KFAC of an averaged network written out densely from its formula, one position at a time.

For a layer whose weight is used at positions t = 1..T (pixels, tokens, repeated calls), with
a_nst what enters it and ĝ_nst = ∂f̂_n / ∂(its output) for sample s of example n:

    A = Σ_n Σ_t ā_nt ā_ntᵀ ,              ā_nt = Σ_s w_s a_nst
    G = (1/T) Σ_n Σ_t ḡ_nt Λ_n ḡ_ntᵀ ,    ḡ_nt = Σ_s ĝ_nst        (ĝ already carries w_s)
    block of the weight = (1/N) G ⊗ A     one for each group of a grouped convolution
    block of the bias   = Σ_n j_n Λ_n j_nᵀ ,    j_n = Σ_t ḡ_nt    (exact)

(Immer et al. 2022, Eq. 7 and 15). A transposed convolution has its positions in its input: a_nst
are the channels there, ĝ_nst is the patch of the output's gradient that the position reaches, and
the block is (1/N) A ⊗ G, for its weight has the input's channels first. Attention is two Linear
layers, which `spelled_out` puts in its place.

Slow on purpose: patches are gathered pixel by pixel, and ĝ is the `torch.func` Jacobian by a
perturbation added to the layer's output. Everything stays differentiable in `rows`. Knows torch
only; works for Linear, convolutions and transposed convolutions in one to three dimensions.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import torch
from oracles.dense_ggn import OutputCurvature, Samples, average_over_samples
from torch import Tensor, nn
from torch.func import jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def dense_kfac(
    network: nn.Module, name: str, rows: Tensor, samples: Samples, output_curvature: OutputCurvature
) -> dict[str, Tensor]:
    """Blocks of layer `name`: "weight" (groups, p, p) and, where it has one, "bias" (out, out)."""
    layer = network.get_submodule(name)
    inputs, jacobians, outputs = layer_jacobians(network, layer, rows, samples)
    curvature = output_curvature(outputs)
    count = len(outputs)
    groups = getattr(layer, "groups", 1)
    into = torch.cat(
        [average_over_samples(layer_inputs(layer, use), samples) for use in inputs], dim=2
    )  # (batch, groups, positions, in)
    summed = [_over_samples(use, samples) for use in jacobians]
    pairs = zip(inputs, summed, strict=True)
    back = torch.cat(
        [_positions(layer, use, given) for given, use in pairs], dim=3
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
        factors = (g_factor / positions, a_factor)
        if isinstance(layer, TRANSPOSED):  # the slow index of its weight is the input's
            factors = factors[::-1]
        blocks.append(torch.kron(*factors) / count)
    found = {"weight": torch.stack(blocks)}
    if layer.bias is not None:
        total = sum(_over_space(layer, use) for use in summed)  # (batch, outputs, out)
        found["bias"] = sum(total[n].T @ curvature[n] @ total[n] for n in range(count))
    return found


def _over_samples(jacobian: Tensor, samples: Samples) -> Tensor:
    """∂f̂_n/∂(output of sample s of n), summed over s: (batch, outputs, rows, …) → (batch, …)."""
    count = samples if isinstance(samples, int) else len(samples)
    parts = [of_n[:, n * count : (n + 1) * count].sum(1) for n, of_n in enumerate(jacobian)]
    return torch.stack(parts)  # (outputs, …) each


def _over_space(layer: nn.Module, jacobian: Tensor) -> Tensor:
    """(batch, outputs, …) with the channels somewhere → (batch, outputs, channels)."""
    if isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)):
        return jacobian.flatten(3).sum(3)
    return jacobian.reshape(*jacobian.shape[:2], -1, jacobian.shape[-1]).sum(2)


def layer_jacobians(
    network: nn.Module, layer: nn.Module, rows: Tensor, samples: Samples
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
    network: nn.Module, layer: nn.Module, hook: Callable, rows: Tensor, samples: Samples
) -> Tensor:
    handle = layer.register_forward_hook(hook)
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels cannot be differentiated twice
            return average_over_samples(network(rows), samples)
    finally:
        handle.remove()


def layer_inputs(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What the weight multiplies, (rows, groups, positions, in)."""
    if isinstance(layer, CONVOLUTIONS):
        return patches_by_pixel(layer, inputs)
    if isinstance(layer, TRANSPOSED):
        return _grouped(layer, inputs)
    return inputs.reshape(len(inputs), 1, -1, inputs.shape[-1])


def _positions(layer: nn.Module, jacobian: Tensor, inputs: Tensor) -> Tensor:
    """(batch, outputs, …) → (batch, outputs, groups, positions, out)."""
    if isinstance(layer, CONVOLUTIONS):
        return _grouped(layer, jacobian.flatten(0, 1)).unflatten(0, jacobian.shape[:2])
    if isinstance(layer, TRANSPOSED):
        patches = reached_by_pixel(layer, jacobian.flatten(0, 1), inputs.shape[2:])
        return patches.unflatten(0, jacobian.shape[:2])
    return jacobian.reshape(*jacobian.shape[:2], 1, -1, jacobian.shape[-1])


def _grouped(layer: nn.Module, maps: Tensor) -> Tensor:
    """(rows, channels, *space) → (rows, groups, positions, channels of a group)."""
    split = maps.reshape(len(maps), layer.groups, maps.shape[1] // layer.groups, -1)
    return split.transpose(-1, -2)


def patches_by_pixel(layer: nn.Module, images: Tensor) -> Tensor:
    """The patch that each output pixel sees, (rows, groups, pixels, in/groups · kernel)."""
    sizes = images.shape[2:]
    return _gathered(layer, images, [_reach(layer, axis, size) for axis, size in enumerate(sizes)])


def reached_by_pixel(layer: nn.Module, outputs: Tensor, sizes: torch.Size) -> Tensor:
    """The output patch that each input pixel of a transposed convolution adds to.

    outputs (rows, channels, *space) and the input's `sizes` → (rows, groups, pixels, out · kernel).
    """
    reach = [
        [
            [
                _index(
                    place * layer.stride[axis] + step * layer.dilation[axis] - layer.padding[axis],
                    outputs.shape[axis + 2],
                    "zeros",
                )
                for step in range(layer.kernel_size[axis])
            ]
            for place in range(size)
        ]
        for axis, size in enumerate(sizes)
    ]
    return _gathered(layer, outputs, reach)


def _gathered(layer: nn.Module, images: Tensor, reach: list[list[list[int | None]]]) -> Tensor:
    """Pixels of every patch, one at a time; `reach` has the indices an axis, place by place."""
    black = torch.zeros_like(images.flatten(2)[:, :, 0])
    patches = []
    for places in itertools.product(*reach):
        pixels = [
            black if None in at else images[(slice(None), slice(None), *at)]
            for at in itertools.product(*places)
        ]
        patches.append(torch.stack(pixels, -1))  # (rows, channels, kernel pixels)
    stacked = torch.stack(patches, 1)  # (rows, pixels, channels, kernel pixels)
    split = stacked.reshape(*stacked.shape[:2], layer.groups, -1)
    return split.transpose(1, 2)


def _reach(layer: nn.Module, axis: int, size: int) -> list[list[int | None]]:
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


class SpelledOutAttention(nn.Module):
    """Self-attention as a formula, on (batch, tokens, embedding), from two Linear layers."""

    batch_first = False  # what nn.TransformerEncoderLayer asks before it takes its fused path

    def __init__(self, source: nn.MultiheadAttention) -> None:
        super().__init__()
        size, bias = source.embed_dim, source.in_proj_bias is not None
        self.num_heads = source.num_heads
        self.in_proj = nn.Linear(size, 3 * size, bias, dtype=source.in_proj_weight.dtype)
        self.in_proj.weight = source.in_proj_weight
        if bias:
            self.in_proj.bias = source.in_proj_bias
        self.out_proj = nn.Linear(size, size, bias, dtype=source.in_proj_weight.dtype)
        self.out_proj.weight, self.out_proj.bias = source.out_proj.weight, source.out_proj.bias

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        size = query.shape[-1] // self.num_heads
        projected = self.in_proj(query)
        heads, weights = [], []
        for head in range(self.num_heads):
            q, k, v = (
                part[..., head * size : (head + 1) * size] for part in projected.chunk(3, dim=-1)
            )
            scores = torch.einsum("nie,nje->nij", q, k) / size**0.5
            if attn_mask is not None:  # (tokens, tokens)
                scores = _masked(scores, attn_mask)
            if key_padding_mask is not None:  # (batch, tokens)
                scores = _masked(scores, key_padding_mask[:, None, :].expand_as(scores))
            weights.append(scores.exp() / scores.exp().sum(-1, keepdim=True))
            heads.append(torch.einsum("nij,nje->nie", weights[-1], v))
        mean = torch.stack(weights).mean(0) if need_weights else None
        return self.out_proj(torch.cat(heads, -1)), mean


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return scores.masked_fill(mask, float("-inf"))
    return scores + mask


def spelled_out(network: nn.Module) -> nn.Module:
    """A copy in which every nn.MultiheadAttention is a `SpelledOutAttention`.

    Its parameters have the same names, with "in_proj_weight" now "in_proj.weight".
    """
    made = copy.deepcopy(network)
    if isinstance(made, nn.MultiheadAttention):
        return SpelledOutAttention(made)
    for name, module in list(made.named_modules()):
        if isinstance(module, nn.MultiheadAttention):
            above, _, last = name.rpartition(".")
            setattr(made.get_submodule(above), last, SpelledOutAttention(module))
    return made
