"""One tensor of what a network returns: by name, attribute, position, or a function.

Networks return tensors, dictionaries, tuples, dataclasses and objects with attributes, as those of
Hugging Face do. `select` says which tensor counts:

    "logits"      the entry of that key of a dictionary, or the attribute of that name
    0             the entry at that position of a tuple or list
    function      what the function makes of all that was returned

Where nothing was said, a tensor is taken as it is; else what is called `logits`; else the only
floating-point tensor there is. Everything else is refused, with what there is to choose from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError

Select = str | int | Callable[[Any], Tensor] | None
USUAL_NAME = "logits"


def selected(returned: Any, select: Select = None) -> Tensor:
    """The tensor that `select` says; raises CallerError, naming what there is."""
    found = returned
    if callable(select):
        found = select(returned)
    elif select is not None:
        found = _entry(returned, select)
    elif not isinstance(returned, Tensor):
        usual = usual_choice(returned)
        found = returned if usual is None else _entry(returned, usual)
    if not isinstance(found, Tensor):
        raise CallerError(
            f"network output: expected a tensor, got {_described(found)}; choose one with select=, "
            "a key, an attribute, a position or a function (--select on the command line)"
        )
    return found


def _entry(returned: Any, select: str | int) -> Any:
    if isinstance(select, str) and not isinstance(returned, Mapping):
        found = getattr(returned, select, None)
        if found is not None:
            return found
    try:
        if isinstance(returned, Tensor):  # whose entries are examples
            raise KeyError(select)
        return returned[select]
    except (KeyError, IndexError, TypeError) as error:
        raise CallerError(
            f"select: the network's output has no {select!r}; it is {_described(returned)}"
        ) from error


def usual_choice(returned: Any) -> str | int | None:
    """What is called logits, or the only floating-point tensor; None if neither is there."""
    entries = dict(_entries(returned))
    if isinstance(entries.get(USUAL_NAME), Tensor):
        return USUAL_NAME
    floating = [
        name
        for name, value in entries.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    return floating[0] if len(floating) == 1 else None


def _entries(returned: Any) -> Iterator[tuple[str | int, Any]]:
    """What can be chosen, by name or position."""
    if isinstance(returned, Mapping):
        yield from returned.items()
    elif hasattr(returned, "_fields"):  # a named tuple
        yield from zip(returned._fields, returned, strict=True)
    elif is_dataclass(returned):
        yield from ((each.name, getattr(returned, each.name)) for each in fields(returned))
    elif isinstance(returned, tuple | list):
        yield from enumerate(returned)
    elif not isinstance(returned, Tensor) and hasattr(returned, "__dict__"):
        yield from vars(returned).items()


def _described(returned: Any) -> str:
    if isinstance(returned, Mapping):
        return f"a dictionary with {', '.join(repr(key) for key in returned)}"
    if isinstance(returned, tuple | list) and not hasattr(returned, "_fields"):
        return f"{type(returned).__name__} of {len(returned)}"
    named = [str(name) for name, value in _entries(returned) if isinstance(value, Tensor)]
    told = f" with {', '.join(map(repr, named))}" if named else ""
    return f"{type(returned).__name__}{told}"


class SelectedOutput(nn.Module):
    """`network`, returning the tensor that `select` says."""

    def __init__(self, network: nn.Module, select: Select) -> None:
        super().__init__()
        self.network = network
        self.select = select

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The chosen tensor of what the network returns for these inputs."""
        return selected(self.network(*inputs, **named), self.select)


def one_output(network: nn.Module, example: Tensor, select: Select = None) -> nn.Module:
    """The network itself if it returns a tensor and nothing was said, else one that selects.

    example (2, …). What is not said is decided once, by what the network returns for the example,
    and is the `select` of the module returned. Networks that return more in training than in
    evaluation mode are asked in both; a copy of the network is asked.
    """
    if isinstance(network, SelectedOutput) and select is None:
        return network
    if select is None:
        returned = _returned(network, example)
        other = [each for each in returned if not isinstance(each, Tensor)]
        if not other:
            return network
        selected(other[0])  # raises where it cannot be decided
        if len(other) < len(returned):  # a tensor in evaluation mode, more in training
            return SelectedOutput(network, None)
        select = usual_choice(other[0])
    return SelectedOutput(network, select)


@torch.no_grad()
def _returned(network: nn.Module, example: Tensor) -> list[Any]:
    """What the network returns in evaluation mode, and as it is where that is another mode.

    Nothing for an example that it cannot be run on, which is named where it is trained.
    """
    asked = copy.deepcopy(network)
    modes = [asked.training] if asked.training else []
    found = []
    devices = [example.device] if example.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        for training in (False, *modes):
            try:
                found.append(asked.train(training)(example))
            except (RuntimeError, ValueError, TypeError):
                return []
    return found
