"""Several inputs of a network as one tensor, of which the Actions move the first.

    packed = packed_inputs(network, (images, vectors), affine(("rotation",)))
    result = isotropy.learn(packed.model, (packed.inputs, labels), actions=packed.actions)
    logits = result.model(packed.model.pack((new_images, new_vectors)))

Verbs that train hold their inputs as one tensor. Here each example is one row, (examples, numbers):
the inputs one after the other, flattened. The network unpacks its row again, so nothing changes for
its layers and their curvature. An Action moves the first part of the row and copies the rest.

    act(a, [x, v]) = [act(a, x), v]

Whole numbers, such as tokens for an embedding, are exact up to 2²⁴ in float32 and are whole numbers
again when the network gets them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, shape_text
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import FiniteAction

LARGEST_WHOLE = 2**24
"""The largest whole number up to which float32 has all of them."""


class SeveralInputs(nn.Module):
    """A network of several inputs as one of rows (batch, numbers).

    inputs: an example of them, by position or by name, (batch, …) each
    """

    def __init__(self, network: nn.Module, inputs: Sequence[Any] | Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.names = tuple(inputs) if isinstance(inputs, Mapping) else None
        tensors = self._tensors(inputs)
        self.shapes = tuple(tuple(each.shape[1:]) for each in tensors)
        self.types = tuple(each.dtype for each in tensors)
        self.sizes = tuple(math.prod(shape) for shape in self.shapes)

    def pack(self, inputs: Sequence[Any] | Mapping[str, Any]) -> Tensor:
        """Inputs as rows (batch, numbers), of float32 where they are not of a larger type."""
        tensors = self._tensors(inputs)
        shapes = tuple(tuple(each.shape[1:]) for each in tensors)
        if shapes != self.shapes:
            raise CallerError(f"inputs: expected examples of shapes {self.shapes}, got {shapes}")
        for each in tensors:
            largest = 0 if each.is_floating_point() else int(each.long().abs().max())
            if largest > LARGEST_WHOLE:
                raise CallerError(
                    f"inputs: expected whole numbers up to {LARGEST_WHOLE:,}, got {largest:,}; "
                    "number what they stand for from 0"
                )
        kinds = [each.dtype for each in tensors if each.is_floating_point()]
        kind = torch.float64 if torch.float64 in kinds else torch.float32
        return torch.cat([each.reshape(len(each), -1).to(kind) for each in tensors], 1)

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """The inputs of rows; those that were whole numbers are so again."""
        parts = rows.split(self.sizes, 1)
        found = []
        for part, shape, kind in zip(parts, self.shapes, self.types, strict=True):
            tensor = part.unflatten(1, shape) if len(shape) > 1 else part.reshape(-1, *shape)
            found.append(tensor if kind.is_floating_point else tensor.round().to(kind))
        return found

    def forward(self, rows: Tensor) -> Any:
        """The network's output for rows (batch, numbers)."""
        parts = self.unpack(rows)
        if self.names is None:
            return self.network(*parts)
        return self.network(**dict(zip(self.names, parts, strict=True)))

    def _tensors(self, inputs: Any) -> list[Tensor]:
        if not isinstance(inputs, tuple | list | Mapping):
            raise CallerError(
                "inputs: expected a tuple or a dictionary of tensors, got "
                f"{type(inputs).__name__}; a network of one input needs no packing"
            )
        names = tuple(inputs) if isinstance(inputs, Mapping) else None
        if names != self.names:
            raise CallerError(f"inputs: expected {self.names or 'a tuple'}, got {names}")
        values = inputs.values() if isinstance(inputs, Mapping) else inputs
        tensors = [torch.as_tensor(each) for each in values]
        if len(tensors) < 2 or len({each.shape[:1] for each in tensors}) != 1:
            came = ", ".join(shape_text(each) for each in tensors)
            raise CallerError(
                f"inputs: expected two or more with equally many examples (batch, …), got {came}"
            )
        return tensors


class MovesFirst(Action):
    """An Action on the first input of packed rows; all others stay as they are."""

    def __init__(self, action: Action, shape: tuple[int, ...]) -> None:
        self.action, self.shape, self.size = action, shape, math.prod(shape)
        self.generators, self.is_exact = action.generators, action.is_exact

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Move rows (batch, numbers); returns (batch, samples, numbers)."""
        first, rest = data[:, : self.size], data[:, self.size :]
        moved = self.action.act(coordinates, first.unflatten(1, self.shape)).flatten(2)
        return torch.cat((moved, rest[:, None].expand(-1, moved.shape[1], -1)), 2)

    def velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """That of the first input, and zero for the others."""
        first, rest = data[:, : self.size], data[:, self.size :]
        moved = self.action.velocity(direction, first.unflatten(1, self.shape)).flatten(1)
        return torch.cat((moved, torch.zeros_like(rest)), 1)


class MovesFirstFinite(FiniteAction):
    """A finite action on the first input of packed rows."""

    def __init__(self, action: FiniteAction, shape: tuple[int, ...]) -> None:
        self.action, self.shape, self.size = action, shape, math.prod(shape)
        self.name, self.elements, self.is_random = action.name, action.elements, action.is_random

    def check(self, data: Tensor) -> None:
        self.action.check(data[:, : self.size].unflatten(1, self.shape))

    def move(self, index: int, data: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        first = data[:, : self.size].unflatten(1, self.shape)
        moved = self.action.move(index, first, generator=generator).flatten(1)
        return torch.cat((moved, data[:, self.size :]), 1)


@dataclass(frozen=True)
class Packed:
    """What a verb takes in place of a network of several inputs: model, inputs, actions."""

    model: SeveralInputs
    inputs: Tensor
    actions: list[Action | FiniteAction]


def packed_inputs(
    network: nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    actions: Action | FiniteAction | Sequence[Action | FiniteAction],
) -> Packed:
    """A network of several inputs for verbs that take one tensor; see the top of this file.

    inputs: (batch, …) each, in the order of the network's arguments or by their names; the first is
            the one that moves
    actions: on the first input
    """
    model = SeveralInputs(network, inputs)
    given = [actions] if isinstance(actions, Action | FiniteAction) else actions
    shape = model.shapes[0]
    wrapped: list[Action | FiniteAction] = [
        MovesFirst(each, shape) if isinstance(each, Action) else MovesFirstFinite(each, shape)
        for each in given
    ]
    return Packed(model, model.pack(inputs), wrapped)
