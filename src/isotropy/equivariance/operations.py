"""See every operation of a running network: each leaf layer, and each torch function between them.

A leaf layer (a module without modules inside, and attention) is one operation, under its own name.
What a network does between its layers (`x + y`, `torch.cat`, `flatten`, `softmax`) is an operation
too, named after the module in whose forward pass it stands: `blocks.0: add`. A second call gets a
number: `blocks.0: add (2)`.

`watch` runs a network so that every operation goes through a function of the caller's, which must
call it and return what it returns. For that time only, modules carry a forward pass of their own;
afterwards nothing is left on them, whatever happened.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

LEAVES: tuple[type[nn.Module], ...] = (nn.MultiheadAttention, torch.jit.ScriptModule)
"""Modules that are one operation although they have modules inside; into scripts nobody looks."""

WHOLE = "network"
"""The name of the network itself where it is one operation."""

CUTS = {"detach", "detach_", "data", "numpy", "tolist"}
"""Functions that hand values on without their derivative."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One call: `function(*arguments, **named)`.

    name:    unique within a run
    kind:    the layer's class or the function's name
    module:  the leaf layer, or None for a function
    mutates: whether it changes its first argument in place
    """

    name: str
    kind: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    module: nn.Module | None
    mutates: bool

    def run(self) -> Any:
        """Call it as the network would."""
        return self.function(*self.arguments, **self.named)

    def tensors(self) -> list[Tensor]:
        """All tensors among its arguments, in order, each once."""
        found = {id(each): each for each in tensors_of((self.arguments, dict(self.named)))}
        return list(found.values())

    def floats(self, result: Any) -> list[Tensor]:
        """The results that have a derivative; of what changes its first argument, that one."""
        return floats_of(self.arguments[0] if self.mutates else result)

    def with_tensors(self, replacements: Mapping[int, Tensor]) -> Any:
        """Call it with other tensors in place of some, by the identity of those."""

        def replaced(leaf: Any) -> Any:
            return replacements.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

        arguments, named = pytree.tree_map(replaced, (self.arguments, dict(self.named)))
        result = self.function(*arguments, **named)
        # What changes its first argument in place may return nothing (x[0] = y).
        return arguments[0] if self.mutates else result


def is_differentiable(found: Any) -> bool:
    """Whether something is a tensor of real or complex numbers, which has a derivative."""
    return isinstance(found, Tensor) and (found.is_floating_point() or found.is_complex())


def tensors_of(result: Any) -> list[Tensor]:
    """All tensors in a result."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def floats_of(result: Any) -> list[Tensor]:
    """The tensors in a result that have a derivative."""
    return [tensor for tensor in tensors_of(result) if is_differentiable(tensor)]


Visitor = Callable[[Operation], Any]


@contextmanager
def watch(network: nn.Module, visit: Visitor) -> Iterator[None]:
    """Inside, every operation of `network` is handed to `visit`, which runs it."""
    watcher = _Watcher(visit)
    kept: list[tuple[nn.Module, Any]] = []
    missing = object()
    try:
        for name, module in network.named_modules():
            kept.append((module, module.__dict__.get("forward", missing)))
            if module is network:
                # What stands in the forward of a network without layers is told apart.
                is_leaf = isinstance(module, torch.jit.ScriptModule)
            else:
                is_leaf = isinstance(module, LEAVES) or not list(module.children())
            if is_leaf:
                watched = watcher.layer(name or WHOLE, module, module.forward)
            else:
                watched = watcher.scope(name, module, module.forward)
            module.__dict__["forward"] = watched
        with watcher:
            yield
    finally:
        for module, forward in kept:
            if forward is missing:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


class UniqueNames:
    """Numbers names which come again: the second of a kind is `name (2)`."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        while True:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            found = name if count == 1 else f"{name} ({count})"
            # A layer's second call may have been given the name already.
            if found == name or found not in self._counts:
                self._counts.setdefault(found, 1)
                return found


class Followed:
    """Tensors that depend on others, known by identity for as long as they live."""

    def __init__(self, *start: Tensor) -> None:
        self._known: dict[int, weakref.ref[Tensor]] = {}
        self.add(start)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Follow these too."""
        self._known.update({id(tensor): weakref.ref(tensor) for tensor in tensors})

    def __contains__(self, tensor: Tensor) -> bool:
        reference = self._known.get(id(tensor))
        return reference is not None and reference() is tensor

    def is_read_by(self, operation: Operation) -> bool:
        """Whether one of them is an argument."""
        return any(tensor in self for tensor in operation.tensors())


class _Watcher(TorchFunctionMode):
    def __init__(self, visit: Visitor) -> None:
        super().__init__()
        self.visit = visit
        self.unique = UniqueNames()
        self.scopes: list[str] = [""]
        self.inside = False

    def layer(self, name: str, module: nn.Module, forward: Callable[..., Any]) -> Any:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self.inside:
                return forward(*arguments, **named)
            mutates = bool(getattr(module, "inplace", False))
            return self._hand_over(
                Operation(
                    self.unique(name), type(module).__name__, forward, arguments, named,
                    module, mutates,
                )
            )  # fmt: skip

        return watched

    def scope(self, name: str, module: nn.Module, forward: Callable[..., Any]) -> Any:
        def scoped(*arguments: Any, **named: Any) -> Any:
            self.scopes.append(name)
            try:
                return forward(*arguments, **named)
            finally:
                self.scopes.pop()

        return scoped

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if self.inside:
            return func(*args, **named)
        kind = _function_name(func)
        where = f"{self.scopes[-1]}: {kind}" if self.scopes[-1] else kind
        mutates = _is_in_place(kind, named) and bool(args) and isinstance(args[0], Tensor)
        operation = Operation(where, kind, func, args, named, None, mutates)
        return self._hand_over(operation)

    def _hand_over(self, operation: Operation) -> Any:
        self.inside = True
        try:
            return self.visit(operation)
        finally:
            self.inside = False


def _function_name(function: Callable[..., Any]) -> str:
    """`add` for torch.add, Tensor.add and x + y alike; a property by its own name."""
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        owner = getattr(function, "__self__", None)
        return str(getattr(owner, "__name__", "property"))
    if name.startswith("__") and name.endswith("__"):
        plain = name.strip("_")
        return _OPERATORS.get(plain, plain)
    return str(name)


_OPERATORS = {
    "radd": "add", "rmul": "mul", "rsub": "rsub", "truediv": "div", "rtruediv": "rdiv",
    "rmatmul": "matmul", "iadd": "add_", "imul": "mul_", "isub": "sub_", "itruediv": "div_",
    "setitem": "setitem_",
}  # fmt: skip


def _is_in_place(kind: str, named: Mapping[str, Any]) -> bool:
    return kind.endswith("_") or bool(named.get("inplace", False))
