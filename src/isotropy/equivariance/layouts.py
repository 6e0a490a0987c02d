"""How a tensor inside or behind a network transforms when the network's input is transformed.

An Action says how its own kind of data moves. Hidden layers and outputs hold other tensors, and
whether a network is equivariant depends on how these are meant to move along:

    Invariant     not at all: logits, pooled features
    Grid          like the input, on a grid of any size: feature maps (batch, channels, rows,
                  columns), or the same with the grid on other axes; sequences have one grid axis
    Tokens        as a grid whose cells lie in a row on one axis, with or without class tokens,
                  which do not move
    Follows       by an Action of its own with the same coordinates: vectors, say, that a
                  representation turns while the input image is turned

Each layout gives the velocity X v = d/dt at t = 0 of the motion, and the motion itself. Every
position on a hidden grid means what it means on the input: the grid's borders are the image's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice, shape_text
from isotropy.symmetry.actions.action import Action


class Layout(ABC):
    """How one tensor (batch, …) transforms."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The layout in a word or two, as records and reports name it."""

    @abstractmethod
    def velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor:
        """X v for a tensor v (batch, …), as `Action.velocity` gives it for the input."""

    @abstractmethod
    def ideal_velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor | None:
        """The same without the error of interpolation; None where that is not known."""

    @abstractmethod
    def move(self, action: Action, coordinates: Tensor, tensor: Tensor) -> Tensor:
        """The tensor moved by g(coordinates), (batch, coordinates)."""


@dataclass(frozen=True)
class Invariant(Layout):
    """Nothing happens to it."""

    text = "invariant"

    def velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    def ideal_velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor | None:
        return torch.zeros_like(tensor)

    def move(self, action: Action, coordinates: Tensor, tensor: Tensor) -> Tensor:
        return tensor


class _Maps(Layout):
    """Tensors that are feature maps (batch, channels, grid…) once their axes are put in order."""

    @abstractmethod
    def to_maps(self, tensor: Tensor) -> Tensor:
        """(batch, channels, grid…), with everything that is no cell of the grid left out."""

    @abstractmethod
    def from_maps(self, maps: Tensor, like: Tensor) -> Tensor:
        """Back to the layout of `like`, with zeros where `to_maps` left something out."""

    def velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor:
        return self.from_maps(action.velocity(direction, self.to_maps(tensor)), tensor)

    def ideal_velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor | None:
        found = action.ideal_velocity(direction, self.to_maps(tensor))
        return None if found is None else self.from_maps(found, tensor)

    def with_maps(self, tensor: Tensor, maps: Tensor) -> Tensor:
        """The tensor with other maps in place of its own; what is no cell of the grid stays."""
        own = self.from_maps(self.to_maps(tensor), tensor)
        return tensor - own + self.from_maps(maps, tensor)  # x − x and x + 0 are exact

    def move(self, action: Action, coordinates: Tensor, tensor: Tensor) -> Tensor:
        moved = action.act(coordinates[:, None], self.to_maps(tensor))[:, 0]
        return self.with_maps(tensor, moved)


@dataclass(frozen=True)
class Grid(_Maps):
    """Feature maps: `axes` are those of the grid, rows before columns; the others are channels."""

    axes: tuple[int, ...]

    @property
    def text(self) -> str:
        return "image" if len(self.axes) == 2 else "sequence"

    def to_maps(self, tensor: Tensor) -> Tensor:
        ordered = tensor.movedim(self.axes, tuple(range(-len(self.axes), 0)))
        if ordered.ndim == len(self.axes) + 1:
            return ordered[:, None]
        return ordered.flatten(1, ordered.ndim - len(self.axes) - 1)

    def from_maps(self, maps: Tensor, like: Tensor) -> Tensor:
        last = tuple(range(-len(self.axes), 0))
        shape = like.movedim(self.axes, last).shape
        return maps.reshape(shape).movedim(last, self.axes)

    def fits(self, tensor: Tensor) -> bool:
        """Whether the tensor has these axes, and more than one cell on them."""
        if tensor.ndim <= max(self.axes):
            return False
        return math.prod(tensor.shape[axis] for axis in self.axes) > 1


@dataclass(frozen=True)
class Tokens(_Maps):
    """Cells of a grid in a row on one axis.

    axis:    where the tokens lie
    grid:    (rows, columns) or (length,)
    places:  where cell 0, 1, … is on the axis; tokens that are no cell (class tokens) are left out
    """

    axis: int
    grid: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"tokens {'×'.join(str(size) for size in self.grid)}"

    def to_maps(self, tensor: Tensor) -> Tensor:
        index = torch.tensor(self.places, device=tensor.device)
        cells = tensor.index_select(self.axis, index).movedim(self.axis, -1)
        if cells.ndim == 2:
            cells = cells[:, None]
        return cells.flatten(1, -2).unflatten(-1, self.grid)

    def from_maps(self, maps: Tensor, like: Tensor) -> Tensor:
        index = torch.tensor(self.places, device=like.device)
        rest = like.movedim(self.axis, -1).shape[:-1]
        cells = maps.flatten(2).reshape(*rest, len(self.places)).movedim(-1, self.axis)
        return torch.zeros_like(like).index_copy(self.axis, index, cells)

    def with_class_tokens(self, more: int) -> Tokens | None:
        """With one or two more tokens in front, or as many fewer where they are class tokens."""
        in_front = self.places[0]
        if not -in_front <= more <= MOST_CLASS_TOKENS or abs(more) > MOST_CLASS_TOKENS:
            return None
        return Tokens(self.axis, self.grid, tuple(place + more for place in self.places))


@dataclass(frozen=True, eq=False)
class Follows(Layout):
    """Moves by an Action of its own, whose coordinates are those of the input's Action.

    called: what it is called in records and reports; the Action's generators if None
    """

    own: Action
    called: str | None = None

    @property
    def text(self) -> str:
        return self.called or f"moved by {', '.join(self.own.names)}"

    def velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor:
        return self.own.velocity(direction, tensor)

    def ideal_velocity(self, action: Action, direction: Tensor, tensor: Tensor) -> Tensor | None:
        return self.own.ideal_velocity(direction, tensor)

    def move(self, action: Action, coordinates: Tensor, tensor: Tensor) -> Tensor:
        return self.own.act(coordinates[:, None], tensor)[:, 0]


LAYOUTS = ("invariant", "image", "sequence", "tokens")
"""Layouts that can be asked for by name."""

MOST_CLASS_TOKENS = 2


def guess_tokens(tensor: Tensor) -> Tokens | None:
    """The square grid that so many tokens (batch, tokens, …) make, after class tokens.

    As in the Lie derivative paper: N, N − 1 or N − 2 is a square number; the first 0, 1 or 2
    tokens are class tokens.
    """
    count = tensor.shape[1]
    for extra in range(MOST_CLASS_TOKENS + 1):
        side = math.isqrt(max(count - extra, 0))
        if side > 1 and side * side == count - extra:
            return Tokens(1, (side, side), tuple(range(extra, count)))
    return None


def layout_named(name: str, tensor: Tensor, *, what: str) -> Layout:
    """The layout a user named, for a tensor (batch, …) of the usual axis order."""
    check_choice(name, LAYOUTS, what=f"layout of {what}")
    if name == "invariant":
        return Invariant()
    if name == "tokens":
        found = guess_tokens(tensor) if tensor.ndim == 3 else None
        if found is None:
            raise CallerError(
                f"{what}: expected tokens (batch, rows·columns + class tokens, channels) of a "
                f"square grid, got {shape_text(tensor)}; give Tokens(axis, grid, places) instead"
            )
        return found
    axes = (2, 3) if name == "image" else (2,)
    if tensor.ndim != len(axes) + 2:
        grid = "height, width" if name == "image" else "length"
        raise CallerError(
            f"{what}: expected {name}s (batch, channels, {grid}), got {shape_text(tensor)}"
        )
    return Grid(axes)


def layout_for(
    wanted: str | Layout | Action, action: Action, tensor: Tensor, *, what: str
) -> Layout:
    """The layout asked for, or with "auto" the one that the tensor's axes suggest.

    Two axes or fewer are invariant; with an Action on images four axes are an image and three are
    tokens of a square grid, with one on sequences three axes are a sequence. Anything else is
    refused: an error measured against the wrong motion would mean nothing.
    """
    if isinstance(wanted, Layout):
        return wanted
    if isinstance(wanted, Action):
        if wanted.coordinate_count != action.coordinate_count:
            raise CallerError(
                f"{what}: expected an Action with {action.coordinate_count} coordinates, as the "
                f"input's, got {wanted.coordinate_count} ({', '.join(wanted.names)})"
            )
        return Follows(wanted)
    if wanted != "auto":
        return layout_named(wanted, tensor, what=what)
    if tensor.ndim <= 2 or math.prod(tensor.shape[2:]) == 1:
        return Invariant()
    if tensor.ndim == action.grid_axes + 2:
        return Grid(tuple(range(2, tensor.ndim)))
    found = guess_tokens(tensor) if action.grid_axes == 2 and tensor.ndim == 3 else None
    if found is None:
        raise CallerError(
            f"{what}: do not know how {shape_text(tensor)} transforms under "
            f'{", ".join(action.names)}; say it with outputs="invariant", one of '
            f"{', '.join(LAYOUTS[1:])}, an Action, or a Layout, or select a tensor with select="
        )
    return found
