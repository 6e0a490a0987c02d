"""Run one operation for its values, and push tangents through its derivative.

    f(u) and df|ᵤ(u̇) for many u̇ at once: tangents (tangents, …) beside each input

The tangents are a batch of their own (vmap over forward mode), so that values are computed once;
where an operation cannot be batched they go through one by one. An operation that changes its
first argument in place works on a copy of it, and the caller puts the result where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from isotropy.checks import CallerError
from isotropy.equivariance.linear_tangents import linear_tangents
from isotropy.equivariance.operations import Operation, is_differentiable


@dataclass(eq=False)
class Outcome:
    """What an operation returned, its floating-point results, and their tangents."""

    result: Any
    floats: list[Tensor]
    tangents: list[Tensor | None]


def differentiate(
    operation: Operation, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> Outcome:
    """Run the operation once for its values and push all tangents through its derivative."""
    moving = [(p, t) for p, t in zip(primals, tangents, strict=True) if t is not None]
    if not moving:
        result = _on_copy(operation, {}) if operation.mutates else operation.run()
        floats = floats_of(result)
        return Outcome(result, floats, [None] * len(floats))
    count = len(moving[0][1])
    if count > 1:
        try:
            return _all_together(operation, moving)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if isinstance(error, CallerError | torch.OutOfMemoryError):
                raise
    outcomes = [_one(operation, [(p, t[number]) for p, t in moving]) for number in range(count)]
    gathered = [
        _stacked([outcome.tangents[position] for outcome in outcomes])
        for position in range(len(outcomes[0].floats))
    ]
    return Outcome(outcomes[0].result, outcomes[0].floats, gathered)


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    return torch.stack([torch.zeros_like(like) if part is None else part for part in parts])


def _on_copy(operation: Operation, replacements: dict[int, Tensor]) -> Any:
    """Run it; an operation that changes its first argument gets a copy to change."""
    if operation.mutates:
        first = operation.arguments[0]
        replacements = {**replacements, id(first): replacements.get(id(first), first).clone()}
    return operation.with_tensors(replacements)


def _one(operation: Operation, moving: Sequence[tuple[Tensor, Tensor]]) -> Outcome:
    with forward_ad.dual_level(), linear_tangents():
        duals = {id(p): forward_ad.make_dual(own_memory(p), t) for p, t in moving}
        try:
            result = _on_copy(operation, duals)
        except NotImplementedError as error:
            raise CallerError(
                f"operation {operation.name!r} ({operation.kind}) has no forward-mode derivative; "
                "write it with torch operations, or give its autograd.Function a jvp"
            ) from error
        floats, tangents = [], []
        same = {id(dual): p for p, dual in ((p, duals[id(p)]) for p, _ in moving)}

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


def _all_together(operation: Operation, moving: Sequence[tuple[Tensor, Tensor]]) -> Outcome:
    primals = tuple(p for p, _ in moving)
    kept: dict[str, Any] = {}

    def values(*given: Tensor) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        swapped = {id(p): g for p, g in zip(primals, given, strict=True)}
        leaves, kept["structure"] = pytree.tree_flatten(_on_copy(operation, dict(swapped)))
        kept["identity"] = [
            next((p for p, g in zip(primals, given, strict=True) if leaf is g), None)
            for leaf in leaves
        ]
        kept["float"] = [is_differentiable(x) for x in leaves]
        kept["tensor"] = [isinstance(x, Tensor) for x in leaves]
        kept["others"] = [None if isinstance(x, Tensor) else x for x in leaves]
        floats = tuple(x for x, is_float in zip(leaves, kept["float"], strict=True) if is_float)
        rest = tuple(
            x
            for x, is_float, is_tensor in zip(leaves, kept["float"], kept["tensor"], strict=True)
            if is_tensor and not is_float
        )
        return floats, rest

    def along(*tangents: Tensor) -> Any:
        return torch.func.jvp(values, primals, tangents, has_aux=True)

    apart: Any = (None, 0, None)
    with linear_tangents():
        floats, pushed, rest = torch.func.vmap(along, out_dims=apart)(*(t for _, t in moving))
    remaining, others = iter(floats), iter(rest)
    leaves, results = [], []
    for is_float, is_tensor, other, same in zip(
        kept["float"], kept["tensor"], kept["others"], kept["identity"], strict=True
    ):
        if is_float:
            value = next(remaining)
            leaves.append(value if same is None else same)
            results.append(leaves[-1])
        else:
            leaves.append(next(others) if is_tensor else other)
    return Outcome(pytree.tree_unflatten(leaves, kept["structure"]), results, list(pushed))


def own_memory(tensor: Tensor) -> Tensor:
    """The tensor, copied where elements share memory (`expand`), which cannot have a tangent."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor


def floats_of(result: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if is_differentiable(leaf)]
