"""Networks by plain operations, which can be differentiated twice and for many directions at once.

Gradients of curvature are second derivatives, batched over directions or over examples. Some of
torch's fused operations are not made for that:

    scaled_dot_product_attention   the kernels that save memory have no second derivative
    nn.MultiheadAttention and nn.TransformerEncoderLayer in evaluation mode   nor has their kernel
    layer_norm, instance_norm      a second derivative that is wrong where the first one, by the
                                   gain, was batched: no error, other numbers
    group_norm                     no batched second derivative

Inside `plain_operations` these are made of what they are made of: products, means, a softmax. The
values are the same. It acts on functions, so that modules of one's own are covered, too.
Oracle: torch's own values, and finite differences for the gradients.

What stands in for torch's operations while layers are recorded: the same values, less work.

The curvature of a recorded pass takes every derivative by the inputs of an operation, many times
and never by a weight. These operations keep what all of those have in common:

    convolutions, transposed too     constant weights           `constant_convolutions`
    tanh, sigmoid, ReLU, SiLU, GELU  slopes, kept                `activations`
    max_pool2d                       selections, before φ        `max_pooling`

One that is not differentiated, whose weight is differentiated, or that is part of a transform of
torch.func stays torch's own.

What stands in for torch's operations while weights are trained on a GPU: kernels for small ones.

    conv2d       few channels, or a kernel that covers its image      `small_convolutions`
    max_pool2d   windows that lie side by side                        `pooling`
    pad          maps that are continued periodically                 `circular_padding`

torch's own are made for many channels and for windows that overlap. Values and derivatives are the
same up to rounding, and everything else stays torch's. On a CPU and on the reference path (`fused`)
nothing is changed.

Periodic continuation of maps, in two copies forward and a few sums back.

    y = x continued by a rim of its own other side          (…, X, Y) → (…, X + above + below, …)

The derivative adds what the rim received to where it came from. torch's own writes the rim piece by
piece into an empty tensor, forward, and takes its derivative piece by piece: some forty operations,
a third of the time of a convolution of few channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from isotropy.kernels.activations import gelu, relu, sigmoid, silu, tanh
from isotropy.kernels.constant_convolutions import convolution, transposed_convolution
from isotropy.kernels.fused import fused_module, is_plain
from isotropy.kernels.max_pooling import max_pool2d, windows_side_by_side
from isotropy.kernels.small_convolutions import is_small, small_convolution

Stands = Mapping[Callable[..., Any], Callable[..., Any]]
"""Functions of torch, and what stands in for them."""


@contextmanager
def plain_operations(others: Stands | None = None) -> Iterator[None]:
    """Attention and normalisations by plain operations inside, torch's choice after.

    others: what stands in for more functions of torch meanwhile.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), StandIns({**_PLAIN, **(others or {})}):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def normalised(inputs: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """(x − mean) / √(variance + eps), mean and variance over `axes`."""
    centred = inputs - inputs.mean(axes, keepdim=True)
    return centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()


class StandIns(TorchFunctionMode):
    """A context in which other functions stand in for some of torch's."""

    def __init__(self, stands: Stands) -> None:
        super().__init__()
        self.stands = stands

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.stands.get(function, function)(*arguments, **(named or {}))


# Each has the arguments of the function in torch.nn.functional that it stands for.


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    plain = normalised(input, tuple(range(-len(normalized_shape), 0)), eps)
    plain = plain if weight is None else plain * weight
    return plain if bias is None else plain + bias


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    groups = input.unflatten(1, (num_groups, -1)).flatten(2)
    return _by_channel(normalised(groups, (2,), eps).reshape(input.shape), weight, bias)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    return _by_channel(normalised(input, tuple(range(2, input.ndim)), eps), weight, bias)


def _by_channel(plain: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    channels = (-1, *(1 for _ in plain.shape[2:]))
    plain = plain if weight is None else plain * weight.reshape(channels)
    return plain if bias is None else plain + bias.reshape(channels)


_PLAIN: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
    functional.instance_norm: _instance_norm,
}


LEAN: Stands = {
    functional.conv1d: convolution(1),
    functional.conv2d: convolution(2),
    functional.conv3d: convolution(3),
    functional.conv_transpose1d: transposed_convolution(1),
    functional.conv_transpose2d: transposed_convolution(2),
    functional.conv_transpose3d: transposed_convolution(3),
    functional.max_pool2d: max_pool2d,
    torch.max_pool2d: max_pool2d,
    functional.relu: relu,
    torch.relu: relu,
    Tensor.relu: relu,
    functional.silu: silu,
    functional.gelu: gelu,
    functional.tanh: tanh,
    torch.tanh: tanh,
    Tensor.tanh: tanh,
    functional.sigmoid: sigmoid,
    torch.sigmoid: sigmoid,
    Tensor.sigmoid: sigmoid,
}


Rim = tuple[int, int, int, int]
"""Left, right, above, below, as `functional.pad` takes them."""


def circular_padding(maps: Tensor, rim: Rim) -> Tensor:
    """Maps (…, X, Y) continued periodically by at most one period on each side."""
    padded: Tensor = _CircularPadding.apply(maps, rim)
    return padded


class _CircularPadding(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, rim: Rim) -> Tensor:
        left, right, above, below = rim
        return _continued(_continued(maps, -1, left, right), -2, above, below)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rim = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        left, right, above, below = ctx.rim
        return _folded(_folded(gradient, -2, above, below), -1, left, right), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return circular_padding(tangent, ctx.rim)


def _continued(maps: Tensor, axis: int, before: int, after: int) -> Tensor:
    if not before and not after:
        return maps
    size = maps.shape[axis]
    return torch.cat(
        [maps.narrow(axis, size - before, before), maps, maps.narrow(axis, 0, after)], axis
    )


def _folded(gradient: Tensor, axis: int, before: int, after: int) -> Tensor:
    if not before and not after:
        return gradient
    size = gradient.shape[axis] - before - after
    inner = gradient.narrow(axis, before, size).clone()
    if before:
        inner.narrow(axis, size - before, before).add_(gradient.narrow(axis, 0, before))
    if after:
        inner.narrow(axis, 0, after).add_(gradient.narrow(axis, before + size, after))
    return inner


def _pad(
    input: Tensor, pad: list[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    fits = mode == "circular" and len(pad) == 4 and input.ndim == 4 and min(pad) >= 0
    if fits and max(pad[:2]) <= input.shape[-1] and max(pad[2:]) <= input.shape[-2]:
        return circular_padding(input, (pad[0], pad[1], pad[2], pad[3]))
    return functional.pad(input, pad, mode, value)


CIRCULAR: Stands = {functional.pad: _pad}
"""`functional.pad` with the faster kernel for periodic maps; all else is torch's."""


def swift_operations(device: torch.device) -> AbstractContextManager[Any]:
    """Within this context operations on `device` are by the faster kernel, where there is one."""
    if device.type != "cuda" or is_plain():
        return nullcontext()
    return StandIns(SWIFT)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str) or not is_small(input, weight, stride, padding, dilation, groups):
        return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)
    return small_convolution(input, weight, bias, stride, padding)


def _max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    size = windows_side_by_side(kernel_size, stride, padding, dilation, ceil_mode)
    kernels = None
    if size is not None and input.ndim == 4 and not return_indices:
        kernels = fused_module("isotropy.kernels.pooling", input)
    if size is None or kernels is None or not kernels.can_pool(input, *size):
        plain: Any = functional.max_pool2d
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return kernels.pool(input, *size)


SWIFT: Stands = {
    **CIRCULAR,
    functional.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
}
