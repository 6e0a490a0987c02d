"""Several runs at once: functions of one run applied to tensors that hold a whole stack of them.

A stack is any nesting of dictionaries, sequences and dataclasses whose tensors have the runs as
first axis, (runs, …). `over_runs` calls a function written for one run on all of them together
(`torch.func.vmap`), so that every kernel is launched once and every formula stands in one place.
What is not a tensor is the same for all runs and passes through unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

Structure = TypeVar("Structure")


def over_runs(function: Callable[..., Structure], *arguments: Any) -> Structure:
    """`function` of each run's own part of the arguments; what it returns, stacked."""
    tensors = list(_tensors(arguments))
    returned: list[Structure] = []

    def of_tensors(*own: Tensor) -> tuple[Tensor, ...]:
        returned[:] = [function(*_filled(arguments, iter(own)))]
        return tuple(_tensors(returned[0]))

    found = vmap(of_tensors)(*tensors)
    filled: Structure = _filled(returned[0], iter(found))
    return filled


def stack_runs(structures: Sequence[Structure]) -> Structure:
    """One stack of the same structure of several runs."""
    parts = zip(*(_tensors(structure) for structure in structures), strict=True)
    stack: Structure = _filled(structures[0], iter([torch.stack(part) for part in parts]))
    return stack


def of_run(stack: Structure, run: int) -> Structure:
    """One run's own part of a stack; views."""
    own: Structure = _filled(stack, iter([tensor[run] for tensor in _tensors(stack)]))
    return own


def with_state(
    module: nn.Module, state: Mapping[str, Tensor], function: Callable[..., Structure], *given: Any
) -> Structure:
    """`function` of `given` while the module holds the parameters and buffers in `state`."""
    prefixed = {f"module.{name}": tensor for name, tensor in state.items()}
    found: Structure = functional_call(_Holder(module, function), prefixed, given)
    return found


class _Holder(nn.Module):
    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def _tensors(structure: Any) -> Iterator[Tensor]:
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, Mapping):
        for value in structure.values():
            yield from _tensors(value)
    elif isinstance(structure, list | tuple):
        for value in structure:
            yield from _tensors(value)
    elif is_dataclass(structure):
        for field in fields(structure):
            yield from _tensors(getattr(structure, field.name))


def _filled(structure: Any, tensors: Iterator[Tensor]) -> Any:
    """The structure with its tensors, in the order of `_tensors`, replaced by these."""
    if isinstance(structure, Tensor):
        return next(tensors)
    if isinstance(structure, Mapping):
        return {key: _filled(value, tensors) for key, value in structure.items()}
    if isinstance(structure, list | tuple):
        values = [_filled(value, tensors) for value in structure]
        return type(structure)(values) if type(structure) in (list, tuple) else tuple(values)
    if is_dataclass(structure):
        # Copied past `__init__`: what it checks is true of one run, not of a stack.
        twin: Any = copy.copy(structure)
        for field in fields(structure):
            value = _filled(getattr(structure, field.name), tensors)
            object.__setattr__(twin, field.name, value)
        return twin
    return structure
