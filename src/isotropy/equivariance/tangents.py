"""Push tangents through a function: f(u) and df|ᵤ(u̇) for many u̇ at once, in forward mode.

    values     computed once
    tangents   (tangents, …) beside each input and each result, a batch of their own (vmap)

Where a function cannot be batched, tangents go through one by one. An operation that changes its
first argument in place works on a copy of it, and the caller puts the result where it belongs.

Layers that are linear in their input push a tangent forward as they push the input.

    y = W u + b        ẏ = W u̇

torch's forward mode also adds (dW) u for weights that do not move, with a dW of zeros: a
convolution then costs three in place of two, and normalisation by fixed statistics several passes
over memory in place of one. Inside `linear_tangents` these layers take the short way wherever
their input has a tangent and their weights have none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from isotropy.checks import CallerError
from isotropy.equivariance.operations import Operation, floats_of, is_differentiable

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

_IN_ORDER: tuple[Callable[..., Any], ...] = (functional.group_norm, torch.group_norm)
"""Functions whose forward mode takes no tensor in another order of memory, as channels last."""

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
        if func in _IN_ORDER and args:
            args = (args[0].contiguous(), *args[1:])
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


@dataclass(eq=False)
class Outcome:
    """What a function returned, its floating-point results, and their tangents (None for zero)."""

    result: Any
    floats: list[Tensor]
    tangents: list[Tensor | None]


Moving = Sequence[tuple[Tensor, Tensor]]
"""Inputs, and for each as many tangents as for any other: (tangents, …)."""


def push_forward(function: Callable[..., Any], moving: Moving, *, what: str) -> Outcome:
    """Run `function` of the inputs that move, once, and push all tangents through its derivative.

    It may return any structure of tensors and others. what: how error sentences call it.
    """
    count = len(moving[0][1])
    if count > 1:
        try:
            return _together(function, moving)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if isinstance(error, CallerError | torch.OutOfMemoryError):
                raise
    outcomes = [_one(function, [(p, t[each]) for p, t in moving], what) for each in range(count)]
    first = outcomes[0]
    columns = zip(*(outcome.tangents for outcome in outcomes), strict=True)
    return Outcome(first.result, first.floats, [_stacked(column) for column in columns])


def differentiate(
    operation: Operation, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> Outcome:
    """Run an operation once for its values and push all tangents through its derivative."""
    moving = [(p, t) for p, t in zip(primals, tangents, strict=True) if t is not None]
    if not moving:
        result = run_on_copy(operation, {}) if operation.mutates else operation.run()
        floats = floats_of(result)
        return Outcome(result, floats, [None] * len(floats))

    def function(*given: Tensor) -> Any:
        return run_on_copy(operation, {id(p): g for (p, _), g in zip(moving, given, strict=True)})

    return push_forward(function, moving, what=f"operation {operation.name!r} ({operation.kind})")


def run_on_copy(operation: Operation, replacements: dict[int, Tensor]) -> Any:
    """Run it with other tensors; one that changes its first argument gets a copy to change."""
    if operation.mutates:
        first = operation.arguments[0]
        replacements = {**replacements, id(first): replacements.get(id(first), first).clone()}
    return operation.with_tensors(replacements)


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    return torch.stack([torch.zeros_like(like) if part is None else part for part in parts])


def _one(function: Callable[..., Any], moving: Moving, what: str) -> Outcome:
    with forward_ad.dual_level(), linear_tangents():
        duals = [forward_ad.make_dual(_own_memory(p), t) for p, t in moving]
        try:
            result = function(*duals)
        except NotImplementedError as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise CallerError(
                f"{what} has no forward-mode derivative ({first_line}); write it with torch "
                "operations, or give its autograd.Function a jvp"
            ) from error
        floats, tangents = [], []
        same = {id(dual): p for dual, (p, _) in zip(duals, moving, strict=True)}

        def plain(leaf: Any) -> Any:
            if not is_differentiable(leaf):
                return leaf
            value, tangent = forward_ad.unpack_dual(leaf)
            # An identity hands its input on: it stays the tensor it was.
            value = same.get(id(leaf), value)
            floats.append(value)
            tangents.append(tangent)
            return value

        result = pytree.tree_map(plain, result)
    return Outcome(result, floats, tangents)


def _together(function: Callable[..., Any], moving: Moving) -> Outcome:
    primals = tuple(p for p, _ in moving)
    kept: dict[str, Any] = {}

    def values(*given: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Floating-point results, and other tensors; where each belongs goes into `kept`."""
        leaves, kept["structure"] = pytree.tree_flatten(function(*given))
        handed_on = {id(g): p for p, g in zip(primals, given, strict=True)}
        kept["identity"] = [handed_on.get(id(leaf)) for leaf in leaves]
        kept["is float"] = [is_differentiable(leaf) for leaf in leaves]
        kept["is tensor"] = [isinstance(leaf, Tensor) for leaf in leaves]
        kept["others"] = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        floats = tuple(tensor for tensor in tensors if is_differentiable(tensor))
        return floats, tuple(tensor for tensor in tensors if not is_differentiable(tensor))

    def along(*tangents: Tensor) -> Any:
        return torch.func.jvp(values, primals, tangents, has_aux=True)

    apart: Any = (None, 0, None)  # values once, derivatives for every tangent
    with linear_tangents():
        floats, pushed, rest = torch.func.vmap(along, out_dims=apart)(*(t for _, t in moving))
    remaining, others = iter(floats), iter(rest)
    leaves, results = [], []
    for is_float, is_tensor, other, same in zip(
        kept["is float"], kept["is tensor"], kept["others"], kept["identity"], strict=True
    ):
        if is_float:
            value = next(remaining)
            leaves.append(value if same is None else same)
            results.append(leaves[-1])
        else:
            leaves.append(next(others) if is_tensor else other)
    return Outcome(pytree.tree_unflatten(leaves, kept["structure"]), results, list(pushed))


def _own_memory(tensor: Tensor) -> Tensor:
    """The tensor, copied where elements share memory (`expand`), which cannot have a tangent."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor
