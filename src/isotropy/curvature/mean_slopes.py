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

from isotropy.curvature.activations import (
    GELU,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    Activation,
    activation_of,
)
from isotropy.curvature.curves import Curve
from isotropy.curvature.slope_kernels import bent, means, pulled, spread, value_and_slope

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
    """z (…, batch·copies, features) → a, b (…, batch, features)."""

    @staticmethod
    def forward(inputs: Tensor, curve: Curve, copies: int) -> tuple[Tensor, Tensor]:
        values, slopes = means(inputs.flatten(0, -2), curve, copies)
        shape = (*inputs.shape[:-2], inputs.shape[-2] // copies, inputs.shape[-1])
        return values.reshape(shape), slopes.reshape(shape)

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

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], inputs: Tensor, curve: Curve, copies: int
    ) -> tuple[Any, Any]:
        return _Means.apply(inputs.movedim(dims[0], 0), curve, copies), (0, 0)


class _Spread(torch.autograd.Function):
    """z (*rest, batch·copies, features), ∂a, ∂b (…, *rest, batch, features) → dz (…, *z's axes)."""

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
        found = spread(
            inputs.flatten(0, -2),
            _by_direction(of_values, inputs),
            _by_direction(of_slopes, inputs),
            curve,
            copies,
        )
        return found.reshape(*given.shape[: given.ndim - inputs.ndim], *inputs.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        points, of_values, of_slopes, ctx.curve, ctx.copies = inputs
        ctx.save_for_backward(points, of_values, of_slopes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        inputs, of_values, of_slopes = ctx.saved_tensors
        rows, along = inputs.flatten(0, -2), _by_direction(weights, inputs)
        to_inputs = to_values = to_slopes = None
        if ctx.needs_input_grad[0]:
            first, second = (_by_direction(each, inputs) for each in (of_values, of_slopes))
            to_inputs = bent(rows, along, first, second, ctx.curve, ctx.copies)
            to_inputs = to_inputs.reshape(inputs.shape)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            to_values, to_slopes = pulled(rows, along, ctx.curve, ctx.copies)
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
        """A new axis in front of the axes of ∂a and ∂b, or of z where that has it."""
        behind = 0
        if dims[0] is not None:
            inputs, behind = inputs.movedim(dims[0], 0), inputs.ndim - 1

        def moved(cotangent: Tensor | None, dim: int | None) -> Tensor | None:
            if cotangent is None:
                return None
            if dim is None:
                cotangent = cotangent.expand(info.batch_size, *cotangent.shape)
                dim = 0
            return cotangent.movedim(dim, cotangent.ndim - 1 - behind if behind else 0)

        first, second = moved(of_values, dims[1]), moved(of_slopes, dims[2])
        given = second if first is None else first
        assert given is not None
        found: Tensor = _Spread.apply(inputs, first, second, curve, copies)
        return found, given.ndim - 1 - behind if behind else 0


def _by_direction(tensor: Any, inputs: Tensor) -> Any:
    """(…, *rest, rows, features) → (directions, rest · rows, features)."""
    if tensor is None:
        return None
    rows = tensor.shape[tensor.ndim - inputs.ndim : -1].numel()
    return tensor.reshape(tensor.shape[: tensor.ndim - inputs.ndim].numel(), rows, tensor.shape[-1])
