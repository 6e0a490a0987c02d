"""Means over copies of φ(z) and φ′(z) on a GPU, differentiable, by the kernels of `slope_kernels`.

    _Means     z → a, b               its derivative: `_Spread`
    _Spread    z, ∂a, ∂b → dz         can be differentiated once more

A network that ends Linear → φ → Linear needs no more of its last hidden layer than a and b
(`kfac`). Its largest tensor is read once for the two; read and written once for their gradient.

Under `torch.func.vmap` directions of ∂a and ∂b are an axis in front; z is not repeated for them.
Imported when there is work for it, since it needs Triton. Oracle: torch's own derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isotropy.kernels.activations import (
    GELU,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    Activation,
    activation_of,
)
from isotropy.kernels.curves import Curve
from isotropy.kernels.slope_kernels import bent, means, pulled, spread, value_and_slope

__all__ = ["curve_for", "curve_of", "mean_slopes", "value_and_slope"]

_LEAN = {
    id(TANH): "tanh",
    id(RELU): "relu",
    id(SIGMOID): "sigmoid",
    id(SILU): "silu",
    id(GELU): "gelu",
}
_NODES = {
    "Tanh": "tanh",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Silu": "silu",
    "Elu": "elu",
    "LeakyRelu": "leaky_relu",
    "Softplus": "softplus",
    "Mish": "mish",
    "Hardtanh": "hardtanh",
    "Sin": "sin",
    "Cos": "cos",
}
_CONSTANTS = {
    "elu": ("alpha", "scale", "input_scale"),
    "leaky_relu": ("negative_slope",),
    "softplus": ("beta", "threshold"),
    "hardtanh": ("min_val", "max_val"),
}


def curve_for(activation: Activation) -> Curve | None:
    """What the kernels have for it."""
    name = _LEAN.get(id(activation))
    return None if name is None else Curve(name)


def curve_of(values: Tensor) -> Curve | None:
    """Which φ made `values` of its argument, read off the graph; None if the kernels have none."""
    node: Any = values.grad_fn
    if node is None:
        return None
    activation = activation_of(values)
    if activation is not None:
        return curve_for(activation)
    kind = type(node).__name__.removesuffix("Backward0")
    if kind == "Gelu":
        return Curve("gelu_tanh" if node._saved_approximate == "tanh" else "gelu")
    name = _NODES.get(kind)
    if name is None:
        return None
    saved = (getattr(node, f"_saved_{each}") for each in _CONSTANTS.get(name, ()))
    return Curve(name, tuple(float(each) for each in saved))


def mean_slopes(inputs: Tensor, curve: Curve, copies: int) -> tuple[Tensor, Tensor]:
    """Means over copies of φ and φ′: (batch·copies, features) → two (batch, features)."""
    values, slopes = _Means.apply(inputs, curve, copies)
    return values, slopes


class _Means(torch.autograd.Function):
    """z (batch·copies, features) → a, b (batch, features)."""

    @staticmethod
    def forward(inputs: Tensor, curve: Curve, copies: int) -> tuple[Tensor, Tensor]:
        return means(inputs, curve, copies)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        points, ctx.curve, ctx.copies = inputs
        ctx.save_for_backward(points)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, of_values: Tensor | None, of_slopes: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        (inputs,) = ctx.saved_tensors
        if of_values is None and of_slopes is None:
            return None, None, None
        return _Spread.apply(inputs, of_values, of_slopes, ctx.curve, ctx.copies), None, None


class _Spread(torch.autograd.Function):
    """z (batch·copies, features), ∂a, ∂b (…, batch, features) → dz (…, batch·copies, features)."""

    @staticmethod
    def forward(
        inputs: Tensor,
        of_values: Tensor | None,
        of_slopes: Tensor | None,
        curve: Curve,
        copies: int,
    ) -> Tensor:
        given = of_slopes if of_values is None else of_values
        assert given is not None
        found = spread(inputs, _by_direction(of_values), _by_direction(of_slopes), curve, copies)
        return found.reshape(*given.shape[:-2], *inputs.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        points, of_values, of_slopes, ctx.curve, ctx.copies = inputs
        ctx.save_for_backward(points, of_values, of_slopes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        inputs, of_values, of_slopes = ctx.saved_tensors
        along = _by_direction(weights)
        to_inputs = to_values = to_slopes = None
        if ctx.needs_input_grad[0]:
            first, second = _by_direction(of_values), _by_direction(of_slopes)
            to_inputs = bent(inputs, along, first, second, ctx.curve, ctx.copies)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            to_values, to_slopes = pulled(inputs, along, ctx.curve, ctx.copies)
            to_values = None if of_values is None else to_values.reshape(of_values.shape)
            to_slopes = None if of_slopes is None else to_slopes.reshape(of_slopes.shape)
        return to_inputs, to_values, to_slopes, None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[Any, ...],
        inputs: Tensor,
        of_values: Tensor | None,
        of_slopes: Tensor | None,
        curve: Curve,
        copies: int,
    ) -> tuple[Tensor, int]:
        """A new axis in front of the axes of ∂a and ∂b."""
        assert dims[0] is None, "z is recorded outside of the transform"

        def ahead(cotangent: Tensor | None, dim: int | None) -> Tensor | None:
            if cotangent is None:
                return None
            if dim is None:
                return cotangent.expand(info.batch_size, *cotangent.shape)
            return cotangent.movedim(dim, 0)

        first, second = ahead(of_values, dims[1]), ahead(of_slopes, dims[2])
        return _Spread.apply(inputs, first, second, curve, copies), 0


def _by_direction(tensor: Any) -> Any:
    """(…, rows, features) → (directions, rows, features)."""
    if tensor is None:
        return None
    return tensor.reshape(tensor.shape[:-2].numel(), *tensor.shape[-2:])
