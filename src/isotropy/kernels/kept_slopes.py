"""Activations and maxima that keep their slopes: one pass over memory for each direction.

Back-propagation goes through the same operation once for every direction of the output curvature,
and twice with the graph that a gradient needs. torch forms the slopes anew each time; here they are
kept, and what reaches them from all directions adds up before it goes further.

**Elementwise functions** φ, `Activation`:

    y = φ(z),   s = φ′(z)        gradient  g ⊙ s        gradient of that  h ⊙ s  to g,  h ⊙ g  to s
    to z:   g_y ⊙ s + g_s ⊙ φ″(z)        φ″, many operations for GELU and SiLU, once, on the sum

**Largest values of windows**, `max_pool2d`. The selection i is a constant almost everywhere:

    y_p = z_{i(p)},     its gradient: g to the positions i,     the gradient of that: h from them

A maximum commutes with a φ that never falls, and is taken first: what φ costs for every direction
shrinks by the size of a window. Windows that do not overlap are compared slice by slice on a CPU,
faster than position by position.

    max_t φ(z_t) = φ(max_t z_t)

**A shift that all copies have in common**, `shifted`. The Kronecker form keeps of a layer's
gradient only its sum over copies (`layer_rules`). It is asked for as the gradient by ε, so that a
maximum that follows the layer adds up while the gradient goes to its positions, and no map of all
copies is written on the way:

    z_s + ε,   ε = 0        ∂/∂ε = Σ_s ∂/∂z_s

Axes: images (rows, channels, height, width), outputs (batch·copies, …), shifts (batch, …), copies
fastest. Oracle: torch's own values and derivatives, first and second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Activation:
    """φ by its value, φ′ of (z, y), and what reaches z from y and s.

    bent: g_y ⊙ s + g_s ⊙ φ″ of (g_y, g_s, z, y, s); None: φ″ is zero almost everywhere
    is_monotone: φ never falls
    keeps_inputs: `bent` wants z, which is None otherwise
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    bent: Callable[..., Tensor] | None = None
    is_monotone: bool = False
    keeps_inputs: bool = False

    def __call__(self, inputs: Tensor) -> Tensor:
        """φ(inputs)."""
        if not needs_own_derivative(inputs):
            return self.value(inputs)
        values: Tensor
        values, _ = _Elementwise.apply(inputs, self)
        node: Any = values.grad_fn
        node.source, node.versions = inputs, (inputs._version, values._version)
        return values


def needs_own_derivative(inputs: Tensor) -> bool:
    """Whether an operation here stands in for torch's: differentiated, and not transformed."""
    return (
        torch.is_grad_enabled()
        and inputs.requires_grad
        and inputs.is_floating_point()
        and not torch.is_autocast_enabled(inputs.device.type)
        and not torch._C._are_functorch_transforms_active()
    )


class _Elementwise(torch.autograd.Function):
    """z → φ(z), φ′(z); what it saves are its own outputs, so that φ′ can be differentiated."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
        values = activation.value(inputs)
        slopes = activation.slope(inputs, values)
        ctx.activation = activation
        ctx.set_materialize_grads(False)
        if activation.bent is None:
            ctx.mark_non_differentiable(slopes)
        kept = (inputs, values) if activation.keeps_inputs else (None, values)
        ctx.save_for_backward(slopes, *(kept if activation.bent is not None else ()))
        return values, slopes

    @staticmethod
    def backward(
        ctx: Any, of_values: Tensor | None, of_slopes: Tensor | None
    ) -> tuple[Tensor | None, None]:
        slopes, *kept = ctx.saved_tensors
        return _pulled(ctx.activation, of_values, of_slopes, kept, slopes), None


def elementwise_slopes(values: Tensor, arguments: Tensor, create_graph: bool) -> Tensor:
    """φ′(z) where values = φ(arguments) elementwise: kept by an `Activation`, or torch's own."""
    node: Any = _node(values)
    slopes: Tensor
    if node is not None:
        slopes = node.saved_tensors[0]
        return slopes
    (slopes,) = torch.autograd.grad(
        values, arguments, torch.ones_like(values), retain_graph=True, create_graph=create_graph
    )
    return slopes


class _Means(torch.autograd.Function):
    """z → means over copies of φ(z) and φ′(z), from what `_Elementwise` has made of it.

    Their gradients are broadcast over copies as they are used, and never written out.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        values: Tensor,
        slopes: Tensor,
        activation: Activation,
        copies: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.activation, ctx.copies = activation, copies
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(slopes, inputs if activation.keeps_inputs else None, values)
        means = [rows.unflatten(0, (-1, copies)).sum(1) * (1 / copies) for rows in (values, slopes)]
        if activation.bent is None:
            ctx.mark_non_differentiable(means[1])
        return means[0], means[1]

    @staticmethod
    def backward(
        ctx: Any, of_values: Tensor | None, of_slopes: Tensor | None
    ) -> tuple[Tensor | None, None, None, None, None]:
        saved: list[Any] = [
            None if rows is None else rows.unflatten(0, (-1, ctx.copies))
            for rows in ctx.saved_tensors
        ]
        slopes, *kept = saved
        of_values, of_slopes = (
            None if each is None else (each * (1 / ctx.copies))[:, None]
            for each in (of_values, of_slopes)
        )
        found = _pulled(ctx.activation, of_values, of_slopes, kept, slopes)
        return None if found is None else found.flatten(0, 1), None, None, None, None


def _pulled(
    activation: Activation,
    of_values: Tensor | None,
    of_slopes: Tensor | None,
    kept: Sequence[Tensor | None],
    slopes: Tensor,
) -> Tensor | None:
    """What reaches z from gradients by y and s, each None where there is none."""
    if of_slopes is None or activation.bent is None:
        return None if of_values is None else of_values * slopes
    if of_values is None:
        of_values = slopes.new_zeros(()).expand_as(slopes)
    return activation.bent(of_values, of_slopes, *kept, slopes)


def mean_slopes(values: Tensor, copies: int) -> tuple[Tensor, Tensor] | None:
    """Means over copies of φ(z) and φ′(z), where `values` are φ(z) of an `Activation`.

    (batch·copies, features) → two (batch, features); None for values of anything else
    """
    activation = activation_of(values)
    if activation is None:
        return None
    node: Any = values.grad_fn
    slopes = node.saved_tensors[0]
    means: tuple[Tensor, Tensor] = _Means.apply(node.source, values, slopes, activation, copies)
    return means


def activation_of(values: Tensor) -> Activation | None:
    """φ where `values` are what an `Activation` made, and untouched since; None otherwise."""
    node: Any = _node(values)
    if node is None or node.versions != (node.source._version, values._version):
        return None
    activation: Activation = node.activation
    return activation


def before_monotone(values: Tensor) -> tuple[Activation, Tensor] | None:
    """φ and z where `values` are φ(z) of a monotone `Activation`; None for anything else."""
    activation = activation_of(values)
    if activation is None or not activation.is_monotone:
        return None
    node: Any = values.grad_fn
    return activation, node.source


def _node(values: Tensor) -> Any:
    node = values.grad_fn
    found = node is not None and hasattr(node, "activation") and values.output_nr == 0
    return node if found else None


def _tanh_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    return torch.addcmul(to_y, y, to_s, value=-2) * s  # φ″ = −2 y s


def _sigmoid_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    return torch.addcmul(to_y + to_s, y, to_s, value=-2) * s  # φ″ = (1 − 2 y) s


def _silu_slope(z: Tensor, y: Tensor) -> Tensor:
    gate = z.sigmoid()
    return torch.addcmul(gate, y, 1 - gate)


def _silu_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    gate = z.sigmoid()
    bend = gate * (1 - gate) * (2 + z * (1 - 2 * gate))
    return torch.addcmul(to_y * s, to_s, bend)


def _density(z: Tensor) -> Tensor:
    return (z.square() * -0.5).exp() * (1 / math.sqrt(2 * math.pi))


def _gelu_slope(z: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(torch.special.ndtr(z), z, _density(z))


def _gelu_bent(to_y: Tensor, to_s: Tensor, z: Tensor, y: Tensor, s: Tensor) -> Tensor:
    return torch.addcmul(to_y * s, to_s, _density(z) * (2 - z.square()))


def _tanh_slope(z: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(y.new_ones(()), y, y, value=-1)


TANH = Activation(torch.tanh, _tanh_slope, _tanh_bent, is_monotone=True)
SIGMOID = Activation(torch.sigmoid, lambda z, y: y * (1 - y), _sigmoid_bent, is_monotone=True)
RELU = Activation(torch.relu, lambda z, y: (z > 0).to(z.dtype), is_monotone=True)
SILU = Activation(functional.silu, _silu_slope, _silu_bent, keeps_inputs=True)
GELU = Activation(functional.gelu, _gelu_slope, _gelu_bent, keeps_inputs=True)


# Each has the arguments of the function of torch that it stands for.


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """`functional.relu`."""
    return functional.relu(input, inplace=True) if inplace else RELU(input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """`functional.silu`."""
    return functional.silu(input, inplace=True) if inplace else SILU(input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """`functional.gelu`."""
    return GELU(input) if approximate == "none" else functional.gelu(input, approximate=approximate)


def tanh(input: Tensor) -> Tensor:
    """`torch.tanh`."""
    return TANH(input)


def sigmoid(input: Tensor) -> Tensor:
    """`torch.sigmoid`."""
    return SIGMOID(input)


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
