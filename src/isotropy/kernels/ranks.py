"""Several processes of one run: whose share is whose, and how what they found is put together.

`torchrun` or the caller starts the processes and their group (`torch.distributed`); the group that
is there is used, inside `shared_run` alone: other calls may be those of one rank. Without a group
there is one rank, and nothing here costs anything.

    share     batch k of an evidence pass and part k of a weight step belong to rank k mod ranks
    sum       factors, statistics and gradients of the shares are added up over ranks
    agree     weights, ranges and precisions are those of the first rank, to the last bit

All ranks draw the same numbers from the same streams and leave out those of the shares of others,
so that a result does not depend on how many ranks there are, but for the order of sums. The first
rank writes files and speaks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, distributed

from isotropy.checks import CallerError

Value = TypeVar("Value")
_NOTHING: Any = object()


@dataclass(frozen=True)
class Ranks:
    """This process's number among so many."""

    number: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def are_many(self) -> bool:
        return self.count > 1

    def is_mine(self, index: int) -> bool:
        """Whether the share of this number belongs to this rank."""
        return index % self.count == self.number

    @torch.no_grad()
    def add_(self, tensors: Sequence[Tensor]) -> None:
        """Sums over ranks, in place; all ranks hold tensors of the same shapes, in one order."""
        if not self.are_many:
            return
        for own in _by_type(tensors):
            flat = torch.cat([each.detach().reshape(-1) for each in own])
            distributed.all_reduce(flat)
            _put_back(own, flat)

    @torch.no_grad()
    def agree_(self, tensors: Sequence[Tensor]) -> None:
        """The first rank's values, in place."""
        if not self.are_many:
            return
        for own in _by_type(tensors):
            flat = torch.cat([each.detach().reshape(-1) for each in own])
            distributed.broadcast(flat, 0)
            _put_back(own, flat)

    def told(self, value: Value) -> Value:
        """The first rank's value, whatever the others have."""
        return self.by_first(lambda: value)

    def by_first(self, work: Callable[[], Value]) -> Value:
        """What the first rank makes, on all of them; the others wait."""
        held: list[Any] = [work() if self.is_first else None]
        if self.are_many:
            distributed.broadcast_object_list(held, 0)
        found: Value = held[0]
        return found

    def gathered(self, value: Value) -> list[Value]:
        """The values of all ranks, in their order."""
        if not self.are_many:
            return [value]
        held: list[Any] = [None] * self.count
        distributed.all_gather_object(held, value)
        return held

    def in_turn(self, values: Sequence[Value]) -> list[Value]:
        """What the shares of all ranks gave, in the order of the shares (`is_mine`)."""
        every = itertools.zip_longest(*self.gathered(list(values)), fillvalue=_NOTHING)
        return [each for turn in every for each in turn if each is not _NOTHING]

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raise CallerError on all ranks where one has other facts than the first."""
        first, *others = self.gathered(dict(facts))
        for number, own in enumerate(others, start=1):
            for name, value in own.items():
                if value != first[name]:
                    raise CallerError(
                        f"rank {number} has another {name} than rank 0: {value} and {first[name]}; "
                        "start all processes on the same data with the same code"
                    )


ALONE = Ranks()


_shares: ContextVar[bool] = ContextVar("_shares", default=False)


@contextmanager
def shared_run() -> Iterator[None]:
    """Inside, the ranks of the group share the work; all of them must get here."""
    token = _shares.set(True)
    try:
        yield
    finally:
        _shares.reset(token)


Arguments = ParamSpec("Arguments")


def shared_by_ranks(workflow: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Have the ranks of the group share a function's work."""

    @functools.wraps(workflow)
    def shared(*arguments: Arguments.args, **named: Arguments.kwargs) -> Value:
        with shared_run():
            return workflow(*arguments, **named)

    return shared


def ranks() -> Ranks:
    """The ranks that share the work that is going on."""
    return group() if _shares.get() else ALONE


def group() -> Ranks:
    """The ranks of the process group that is there, whatever they do."""
    if not distributed.is_available() or not distributed.is_initialized():
        return ALONE
    return Ranks(distributed.get_rank(), distributed.get_world_size())


def _by_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors of one type and device each, which travel together."""
    found: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for each in tensors:
        found.setdefault((each.dtype, each.device), []).append(each)
    return list(found.values())


def _put_back(tensors: Sequence[Tensor], flat: Tensor) -> None:
    parts = flat.split([each.numel() for each in tensors])
    for each, part in zip(tensors, parts, strict=True):
        each.detach().copy_(part.view(each.shape))
