"""Stand-ins for operations of torch while curvature is computed: the same values, other means.

Derivatives of curvature are second derivatives, batched over directions or over examples. Some of
torch's fused operations are not made for that:

    scaled_dot_product_attention   the kernels that save memory have no second derivative
    nn.MultiheadAttention and nn.TransformerEncoderLayer in evaluation mode   nor has their kernel
    layer_norm, instance_norm      a second derivative that is wrong where the first one, by the
                                   gain, was batched: no error, other numbers
    group_norm                     no batched second derivative
    hardsigmoid, hardswish         no second derivative
    prelu                          wrong shapes where it is batched twice

Inside `twice_differentiable` these are made of products, means and a softmax. It acts on functions,
so that modules of one's own are covered, too.

While layers are recorded there is more to gain. The curvature of a recorded pass takes every
derivative by the inputs of an operation, many times and never by a weight; the stand-ins of
`RECORDED` keep what all of those have in common:

    convolutions, transposed too                 constant weights   `constant_convolutions`
    tanh, sigmoid, ReLU, SiLU, GELU, max_pool2d  slopes             `kept_slopes`

An operation that is not differentiated, whose weight is differentiated, or that is part of a
transform of torch.func stays torch's own.
Oracle: torch's own values and derivatives, and finite differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from isotropy.kernels.constant_convolutions import convolution, transposed_convolution
from isotropy.kernels.kept_slopes import gelu, max_pool2d, relu, sigmoid, silu, tanh

Stands = Mapping[Callable[..., Any], Callable[..., Any]]
"""Functions of torch, and what stands in for them."""


@contextmanager
def twice_differentiable(others: Stands | None = None) -> Iterator[None]:
    """Attention and normalisations by operations with second derivatives inside, torch's after.

    others: what stands in for more functions of torch meanwhile.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), StandIns({**_TWICE_DIFFERENTIABLE, **(others or {})}):
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


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return (input / 6 + 0.5).clamp(0, 1)


def _hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    return input * _hardsigmoid(input)


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    slopes = weight if weight.numel() == 1 or input.ndim < 2 else _channels(weight, input)
    return torch.where(input > 0, input, slopes * input)


def _channels(weight: Tensor, like: Tensor) -> Tensor:
    return weight.reshape(-1, *(1 for _ in like.shape[2:]))


_TWICE_DIFFERENTIABLE: Stands = {
    functional.prelu: _prelu,
    torch.prelu: _prelu,
    functional.hardsigmoid: _hardsigmoid,
    functional.hardswish: _hardswish,
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
    functional.instance_norm: _instance_norm,
}


RECORDED: Stands = {
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
"""For a pass whose layers are recorded: `twice_differentiable(RECORDED)`."""
