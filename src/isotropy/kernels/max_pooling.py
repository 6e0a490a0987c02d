"""Largest values of windows, whose derivatives are those of a selection.

    y_p = z_{i(p)},     its gradient: g to the positions i,     the gradient of that: h from them

The selection i is a constant almost everywhere. A maximum commutes with an elementwise φ that never
falls, and is taken first: what φ costs for every direction shrinks by the size of a window.

    max_t φ(z_t) = φ(max_t z_t)

Where z is a layer's output whose gradient is only wanted summed over copies (below), the sum is
taken while the gradient goes to its positions, and no map of all copies is written on the way.

Windows that do not overlap are compared slice by slice on a CPU, faster than position by position.

The Kronecker form keeps of a layer's gradient only its sum over copies (`layer_rules`). It is asked
for as the gradient by a shift ε that all copies of the layer's output have in common, which lets
an operation that follows the layer add up as it goes:

    z_s + ε,   ε = 0        ∂/∂ε = Σ_s ∂/∂z_s

Axes: images (rows, channels, height, width), outputs (batch·copies, …), shifts (batch, …), copies
fastest. Oracle: torch's own values and derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isotropy.kernels.activations import before_monotone, needs_own_derivative


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, shift: Tensor) -> Tensor:
        ctx.batch = len(shift)
        # No view: what the network does to it in place is seen by its version alone.
        return outputs.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.reshape(ctx.batch, -1, *gradient.shape[1:]).sum(1)


def shifted(outputs: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """outputs + ε with rows (batch·copies, …), and ε (batch, …), a zero to differentiate by."""
    shape = (len(outputs) // copies, *outputs.shape[1:])
    shift = outputs.new_zeros(()).expand(shape).requires_grad_()
    moved: Tensor = _Shift.apply(outputs, shift)
    node: Any = moved.grad_fn
    node.source, node.shift, node.version = outputs, shift, moved._version
    return moved, shift


def before_shift(outputs: Tensor) -> tuple[Tensor, Tensor] | None:
    """What `shifted` was given, and ε; None for anything else, or if it was written to since."""
    node: Any = outputs.grad_fn
    if node is None or not hasattr(node, "shift") or outputs._version != node.version:
        return None
    return node.source, node.shift


Windows = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], bool]
"""Kernel, stride, padding, dilation, and whether an incomplete last window counts."""


class _Select(torch.autograd.Function):
    """images → values at the positions."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, values: Tensor, positions: Tensor, windows: Windows
    ) -> Tensor:
        ctx.windows = windows
        ctx.save_for_backward(images.detach(), positions)
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Of the images only the shape is used; as a constant they get no gradient of zeros.
        images, positions = ctx.saved_tensors
        found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient, images, *ctx.windows, positions
        )
        return found, None, None, None


class _SelectShifted(torch.autograd.Function):
    """Values selected from images + shift, the same shift for all copies; it is zero."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, shift: Tensor, positions: Tensor) -> Tensor:
        maps = torch.arange(shift.shape[0] * shift.shape[1], device=shift.device)
        maps = maps.reshape(shift.shape[0], 1, shift.shape[1], 1, 1) * shift[0, 0].numel()
        ctx.shape = shift.shape
        ctx.save_for_backward((positions.unflatten(0, (len(shift), -1)) + maps).flatten())
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (places,) = ctx.saved_tensors
        nothing = gradient.new_zeros(ctx.shape.numel())
        summed = nothing.index_add(0, places, gradient.flatten())
        return gradient, summed.reshape(ctx.shape), None


@torch.no_grad()
def _largest(images: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """Values and positions (row · width + column) of the first largest in every window."""
    kernel = windows[0]
    if images.is_cuda or not _side_by_side(windows) or max(kernel) > 255:
        found: tuple[Tensor, Tensor] = torch.ops.aten.max_pool2d_with_indices(images, *windows)
        return found
    (down, across), (height, width) = kernel, images.shape[2:]
    rows, columns = height // down, width // across
    whole = images[:, :, : rows * down, : columns * across]
    values = whole[:, :, ::down, ::across].contiguous()
    # Where in its window the largest is, in bytes and by products: `where` is many times slower.
    inside = [torch.zeros_like(values, dtype=torch.uint8) for _ in range(2)]
    for row in range(down):
        for column in range(across):
            if row or column:
                others = whole[:, :, row::down, column::across]
                larger = (others > values).view(torch.uint8)
                for place, found_at in zip((row, column), inside, strict=True):
                    found_at.mul_(larger ^ 1).add_(larger, alpha=place)
                values = torch.maximum(values, others)  # NaN goes through, as in torch
    corners = torch.arange(rows, dtype=torch.int32)[:, None] * (down * width)
    corners = corners + torch.arange(columns, dtype=torch.int32) * across
    positions = inside[0].int().mul_(width).add_(corners.to(images.device)).add_(inside[1].int())
    return values, positions.long()


def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`functional.max_pool2d`."""
    if return_indices or input.ndim != 4 or not needs_own_derivative(input):
        plain: Any = functional.max_pool2d
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    windows = _windows(kernel_size, stride, padding, dilation, ceil_mode)
    behind = before_monotone(input)
    if behind is None:
        return _selected(input, windows)
    activation, source = behind
    return activation(_selected(source, windows))


def _selected(images: Tensor, windows: Windows) -> Tensor:
    shifted = None if images.is_cuda else before_shift(images)
    if shifted is not None:
        images, shift = shifted
    values, positions = _largest(images, windows)
    values = _Select.apply(images, values, positions, windows)
    return values if shifted is None else _SelectShifted.apply(values, shift, positions)


def _windows(
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
) -> Windows:
    if stride is None or (not isinstance(stride, int) and len(stride) == 0):
        stride = kernel_size
    return _pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation), ceil_mode


def _side_by_side(windows: Windows) -> bool:
    """Whether windows touch and do not overlap, and all are whole."""
    kernel, stride, padding, dilation, partial = windows
    touching = tuple(kernel) == tuple(stride) and tuple(dilation) == (1, 1)
    return touching and not any(padding) and not partial


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
