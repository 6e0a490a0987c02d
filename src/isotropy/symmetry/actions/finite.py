"""Symmetries that are present or absent: flips, quarter turns, permutations, random transforms.

Between an image and its mirror image lies nothing, so a finite set of elements has no ranges. What
can be learned is how much of each there is: a distribution over the elements, and the mixture

    f̂(x) = (1 − Σ_g p_g) f(x) + Σ_g p_g f(g·x) ,

which is exact and smooth in p. A `FiniteAction` gives the elements g, all but the identity, and
moves data (batch, …) → (batch, …) by one of them.

An element may also be drawn anew each time it acts (`is_random`): a permutation of the points, or
any augmentation that another library has (`RandomTransform`). Then g·x is itself a sample, and p_g
may be as large as one.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_axes, check_choice, shape_text

MOST_CHANNELS = 4
"""Channels up to which all permutations are listed unasked: 4! − 1 = 23 of them."""


@dataclass(frozen=True)
class Element:
    """One element: what users and files call it, and what it does to the content."""

    name: str
    meaning: str = ""


class FiniteAction(ABC):
    """A finite set of elements and how each moves data.

    name:      what the set is called
    elements:  all but the identity
    is_random: `move` draws, and the probability of an element may be as large as one
    """

    name: str
    elements: tuple[Element, ...]
    is_random: bool = False

    @abstractmethod
    def move(self, index: int, data: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Move `data` (batch, …) by `elements[index]`; returns the same shape.

        generator: where a random element draws from (torch's global generator by default)
        """

    def check(self, data: Tensor) -> None:  # noqa: B027 (an action on any data checks nothing)
        """Raise `CallerError` when this does not act on such data."""

    @property
    def names(self) -> tuple[str, ...]:
        """The elements' names, in their order."""
        return tuple(element.name for element in self.elements)

    def check_index(self, index: int) -> None:
        """Raise unless `elements[index]` exists, counted from the front."""
        if not 0 <= index < len(self.elements):
            raise CallerError(
                f"element of {self.name!r}: expected an index from 0 to {len(self.elements) - 1} "
                f"({', '.join(self.names)}), got {index}"
            )


class MapAction(FiniteAction):
    """Elements given as functions of the data, and what data they need.

    maps:   a function (batch, …) → (batch, …) for each element
    needs:  raises `CallerError` for data on which they do not act
    """

    def __init__(
        self,
        name: str,
        maps: dict[Element, Callable[[Tensor], Tensor]],
        needs: Callable[[Tensor], None] | None = None,
    ) -> None:
        if not maps:
            raise CallerError(f"{name}: expected one or more elements, got none")
        self.name = name
        self.elements = tuple(maps)
        self._maps = tuple(maps.values())
        self._needs = needs

    def check(self, data: Tensor) -> None:
        if self._needs is not None:
            self._needs(data)

    def move(self, index: int, data: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        self.check_index(index)
        self.check(data)
        return self._maps[index](data)


# --- images -------------------------------------------------------------------------------


def flip(direction: Literal["horizontal", "vertical"]) -> FiniteAction:
    """Mirror images (batch, …, height, width).

    "horizontal" exchanges left and right, "vertical" top and bottom.
    """
    axes = {"horizontal": (-1, "left and right"), "vertical": (-2, "top and bottom")}
    axis, sides = axes[check_choice(direction, axes, what="direction")]
    element = Element(f"{direction}_flip", f"{sides} are exchanged")
    return MapAction(element.name, {element: partial(torch.flip, dims=(axis,))}, _needs_images)


def quarter_turns() -> FiniteAction:
    """Turn square images (batch, …, height, width) by 90°, 180° and 270°.

    Content turns counter-clockwise as seen, as under a rotation of the affine group.
    """
    maps: dict[Element, Callable[[Tensor], Tensor]] = {
        Element(f"turn_{90 * turns}", "content turns counter-clockwise as seen"): partial(
            torch.rot90, k=turns, dims=(-2, -1)
        )
        for turns in (1, 2, 3)
    }
    return MapAction("quarter_turns", maps, _needs_square_images)


def channel_permutations(
    channels: int = 3, permutations: Sequence[Sequence[int]] | None = None
) -> FiniteAction:
    """Reorder the channels of (batch, channels, …): channel i of the result is p[i] of the data.

    permutations: those to be considered, without the identity; all by default, which is allowed
    for up to four channels (of five there are 119).
    """
    identity = tuple(range(channels))
    if permutations is None:
        if not 2 <= channels <= MOST_CHANNELS:
            raise CallerError(
                f"channels: expected 2 to {MOST_CHANNELS} to take all permutations of, got "
                f"{channels}; name those to be considered, as in permutations=[(1, 0, 2)]"
            )
        permutations = [each for each in itertools.permutations(identity) if each != identity]
    maps: dict[Element, Callable[[Tensor], Tensor]] = {}
    for permutation in permutations:
        order = tuple(permutation)
        numbers = " ".join(map(str, order))
        element = Element(
            f"channels_{numbers.replace(' ', '_')}", f"channels come in the order {numbers}"
        )
        if tuple(sorted(order)) != identity or order == identity or element in maps:
            raise CallerError(
                f"permutations: expected different orders of {', '.join(map(str, identity))}, each "
                f"of them another one than this, got {order}{' twice' if element in maps else ''}"
            )
        maps[element] = partial(_reorder, order=order)
    return MapAction("channel_permutations", maps, partial(_needs_channels, channels=channels))


# --- sequences, points, any data ----------------------------------------------------------


def reversal() -> FiniteAction:
    """Play sequences (batch, channels, length) backwards."""
    element = Element("reversal", "time runs backwards")
    return MapAction(element.name, {element: partial(torch.flip, dims=(-1,))}, _needs_sequences)


def sign_change() -> FiniteAction:
    """x ↦ −x, of data of any shape."""
    element = Element("sign_change", "every value changes its sign")
    return MapAction(element.name, {element: torch.neg}, _needs_signs)


def point_reflection(axis: int) -> FiniteAction:
    """Mirror point clouds (batch, points, dimensions) at the plane where coordinate `axis` is 0."""
    if axis < 0:
        raise CallerError(f"axis: expected 0 for x, 1 for y, 2 for z, …, got {axis}")
    letter = "xyz"[axis] if axis < 3 else str(axis)
    element = Element(f"reflection_{letter}", f"coordinate {letter} changes its sign")
    return MapAction(
        element.name,
        {element: partial(_reflect, axis=axis)},
        partial(_needs_points, dimensions=axis + 1),
    )


# --- elements that are drawn --------------------------------------------------------------


class PointPermutation(FiniteAction):
    """A uniformly random order of the points of each cloud (batch, points, dimensions)."""

    name = "point_permutation"
    elements = (Element("point_permutation", "the points come in another order"),)
    is_random = True

    def check(self, data: Tensor) -> None:
        _needs_points(data)

    def move(self, index: int, data: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        self.check_index(index)
        self.check(data)
        # In double precision two equal keys, which would make an order likelier, do not occur.
        place = data.device if generator is None else generator.device
        keys = torch.rand(data.shape[:2], generator=generator, device=place, dtype=torch.float64)
        order = keys.argsort(1).to(data.device)
        return data.gather(1, order[..., None].expand_as(data))


def point_permutation() -> FiniteAction:
    """A random order of the points of each cloud, uniform over all orders."""
    return PointPermutation()


class RandomTransform(FiniteAction):
    """Any random transform (batch, …) → (batch, …) that draws from torch's global generator.

    transform:   a callable or `nn.Module`: kornia's augmentations, torchvision's v2 transforms
    name:        what it is called in results
    meaning:     what it does to the content
    per_example: call it once for each example. torchvision draws once for a whole batch, and
                 should be given this; kornia draws for each example by itself.

    Under a given `generator` the transform runs with torch's global generators set from it and
    put back afterwards: the same state of it replays the same transform, and no other draw is
    disturbed. Gradients reach the transform's parameters where it is differentiable in them.
    """

    is_random = True

    def __init__(
        self,
        transform: Callable[[Tensor], Tensor],
        name: str,
        meaning: str = "",
        *,
        per_example: bool = False,
    ) -> None:
        if not callable(transform):
            raise CallerError(
                f"transform: expected a function or module, got {type(transform).__name__}"
            )
        self.transform = transform
        self.name = name
        self.elements = (Element(name, meaning),)
        self.per_example = per_example

    def move(self, index: int, data: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        self.check_index(index)
        with _drawing_from(generator, data.device):
            if self.per_example:
                moved = torch.stack([self.transform(example) for example in data])
            else:
                moved = self.transform(data)
        if not isinstance(moved, Tensor) or moved.shape != data.shape:
            came = shape_text(moved) if isinstance(moved, Tensor) else type(moved).__name__
            raise CallerError(
                f"{self.name}: expected a transform that keeps the shape {shape_text(data)}, "
                f"got {came}"
            )
        return moved


@contextmanager
def _drawing_from(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Within, torch's global generators of the CPU and of `device` follow `generator`."""
    if generator is None:
        yield
        return
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device).item()
    devices = [] if device.type in ("cpu", "meta") else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cpu"):
        torch.set_rng_state(torch.Generator().manual_seed(int(seed)).get_state())
        for each in devices:
            state = torch.Generator(each).manual_seed(int(seed)).get_state()
            torch.get_device_module(each).set_rng_state(state, each)
        yield


# --- what data they need ------------------------------------------------------------------


def _reorder(data: Tensor, order: tuple[int, ...]) -> Tensor:
    return data[:, list(order)]


def _reflect(data: Tensor, axis: int) -> Tensor:
    signs = torch.ones(data.shape[-1], device=data.device, dtype=data.dtype)
    signs[axis] = -1
    return data * signs


def _needs_images(data: Tensor) -> None:
    if data.ndim < 3:
        raise CallerError(
            f"images: expected (batch, …, height, width), got {shape_text(data)}; one image is "
            "x[None]"
        )


def _needs_square_images(data: Tensor) -> None:
    _needs_images(data)
    if data.shape[-2] != data.shape[-1]:
        raise CallerError(
            f"images: expected as many rows as columns for quarter turns, got {shape_text(data)}; "
            "pad or crop to a square"
        )


def _needs_channels(data: Tensor, channels: int) -> None:
    if data.ndim < 2 or data.shape[1] != channels:
        raise CallerError(
            f"data: expected (batch, {channels}, …), got {shape_text(data)}; channels= says how "
            "many there are"
        )


def _needs_sequences(data: Tensor) -> None:
    axes = ("batch", "channels", "length")
    check_axes(data, axes, what="sequences", advice="add a channel axis with x[:, None]")


def _needs_signs(data: Tensor) -> None:
    if not data.dtype.is_signed:
        raise CallerError(
            f"data: expected numbers that have a sign, got {data.dtype}; convert with x.float()"
        )


def _needs_points(data: Tensor, dimensions: int = 1) -> None:
    check_axes(
        data, ("batch", "points", "dimensions"), what="clouds", advice="one cloud is x[None]"
    )
    if data.shape[2] < dimensions:
        raise CallerError(
            f"clouds: expected (batch, points, dimensions) with at least {dimensions} dimensions, "
            f"got {shape_text(data)}"
        )
