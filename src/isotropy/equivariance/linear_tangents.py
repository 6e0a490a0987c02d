"""Layers that are linear in their input push a tangent forward as they push the input.

    y = W u + b        ẏ = W u̇

torch's forward mode also adds (dW) u for weights that do not move, with a dW of zeros: a
convolution then costs three in place of two, and normalisation by fixed statistics several passes
over memory in place of one. Inside `linear_tangents` these layers take the short way wherever
their input has a tangent and their weights have none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LINEAR_IN_INPUT: tuple[Callable[..., Any], ...] = (
    functional.linear,
    functional.conv1d,
    functional.conv2d,
    functional.conv3d,
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)
"""Functions of (input, weight, bias, …), linear in the input but for the bias."""

_BATCH_NORM = inspect.signature(functional.batch_norm)


class linear_tangents(TorchFunctionMode):
    """Inside, linear layers push tangents through once."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in LINEAR_IN_INPUT and args:
            return _linear(func, args, named)
        if func is functional.batch_norm:
            return _batch_norm(args, named)
        return func(*args, **named)


def _linear(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    value, tangent = _unpacked(args[0])
    rest = (*args[1:], *named.values())
    if tangent is None or any(_unpacked(other)[1] is not None for other in rest):
        return func(*args, **named)
    # Positions after the input: weight, bias, then settings.
    without_bias = (args[1], None, *args[3:]) if len(args) > 2 else args[1:]
    named_without = {name: None if name == "bias" else each for name, each in named.items()}
    output = func(value, *args[1:], **named)
    return forward_ad.make_dual(output, func(tangent, *without_bias, **named_without))


def _batch_norm(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    given = _BATCH_NORM.bind(*args, **named)
    given.apply_defaults()
    settings = given.arguments
    value, tangent = _unpacked(settings["input"])
    fixed = not settings["training"] and settings["running_var"] is not None
    weight = settings["weight"]
    others = (weight, settings["bias"])
    if tangent is None or not fixed or any(_unpacked(each)[1] is not None for each in others):
        return functional.batch_norm(*args, **named)
    output = functional.batch_norm(**{**settings, "input": value})
    factor = torch.rsqrt(settings["running_var"] + settings["eps"])
    factor = factor if weight is None else factor * weight
    shape = (1, -1, *(1 for _ in range(value.ndim - 2)))
    return forward_ad.make_dual(output, tangent * factor.to(value.dtype).reshape(shape))


def _unpacked(tensor: Any) -> tuple[Any, Tensor | None]:
    """A tensor's value and tangent; no tangent for what has none, and for what is no tensor."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return tensor, None
    value, tangent = forward_ad.unpack_dual(tensor)
    return value, tangent
