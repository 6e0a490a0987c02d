"""An Action: a group given by its generators, and how its elements move one kind of data.

A group element is addressed by its Lie-algebra coordinates a = (a_1, …, a_K):

    g(a) = exp(Σ_k a_k G_k)        (one joint exponential, not a product of flows)

An Action moves data by g(a): `act(coordinates, data)`, with

    coordinates  (batch, samples, generators)
    data         (batch, …)
    result       (batch, samples, …)      samples are the fast axis when flattened

A generator may stand for several equal, independent coordinates (the jitter of a point cloud: one
for each number in the cloud, all with one range). Its `multiplicity` says how many; they lie
together on the last axis, whose length is `coordinate_count`.

Coordinates are what is computed with (radians, half image widths, log factors); each
`Generator` says how they are reported (degrees, fraction of image width, …).
Augmentations, measuring and testing see only Actions, so a user's own Action is at home
everywhere:

    class Brightness(Action):
        generators = (Generator("brightness", unit="grey level"),)
        def act(self, coordinates, data):
            return data[:, None] + coordinates[..., 0, None, None, None]

Close to the identity an Action is a vector field on data, its velocity in a direction of the Lie
algebra, linear in that direction:

    X v = d/dt act(t · direction, v)  at t = 0

It is the *central* derivative: where `act` interpolates by straight lines it has a kink there, and
differentiating it gives one side of it or the other. `ideal_velocity` is what the velocity would
be if nothing had to be interpolated.

An Action that resamples, output(p) = v(exp(−tA) p), has the velocity X v(p) = −∇v(p)·(A p), and ∇v
depends on what lies between the samples. Two answers, per sample and axis, in values per sample
distance:

    neighbour_slope     of the interpolant that `act` resamples with: straight lines have a kink at
                        every sample, whose central derivative is (v[i+1] − v[i−1]) / 2; torch's
                        cubic (a = −3/4) is smooth, 3/4 · (v[i+1] − v[i−1])
    band_limited_slope  of the trigonometric polynomial through the samples, without an error of
                        interpolation; by Fourier transform, of which an odd derivative leaves no
                        Nyquist term

Beyond its ends a signal of N samples goes on by an `Extension`:

    zeros      v[−1] = 0
    edge       v[−1] = v[0]        half-sample symmetric where more is needed, with period 2N
    mirror     v[−1] = v[1]        whole-sample symmetric, with period 2(N − 1)
    circular   v[−1] = v[N−1]      with period N

Zeros would have a jump at the border, which no band-limited signal has: `band_limited_slope` goes
on by `edge` instead, which is continuous, so that it gives no credit to a border for what is an
artefact of transforming.

`compose` makes one Action of several on the same data: a product, the first acts first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, check_choice, shape_text

Extension = Literal["zeros", "edge", "mirror", "circular"]


@dataclass(frozen=True)
class Generator:
    """One direction in a Lie algebra, with the words and the unit in which it is reported.

    name:     what users and files call it
    unit:     unit of reported numbers
    coordinate_per_unit: coordinate = coordinate_per_unit × reported number
    period:   half-width of the largest range that makes sense, in coordinates (π for a
              rotation: beyond it the orbit covers itself), or None
    meaning:  what a positive coordinate does to the content
    papers:   what the papers call it, and their sign and scale where these differ
    multiplicity: how many equal, independent coordinates it stands for
    """

    name: str
    unit: str
    coordinate_per_unit: float = 1.0
    period: float | None = None
    meaning: str = ""
    papers: str = ""
    multiplicity: int = 1

    def __post_init__(self) -> None:
        check_at_least(self.multiplicity, 1, what=f"multiplicity of {self.name!r}")

    def in_units(self, coordinate: float) -> float:
        """A coordinate as it is reported."""
        return coordinate / self.coordinate_per_unit

    def from_units(self, reported: float) -> float:
        """A reported number as a coordinate."""
        return reported * self.coordinate_per_unit


@dataclass(frozen=True)
class MatrixGenerator(Generator):
    """A generator with its matrix: dρ(G) (d, d) of vectors, rows of [B | b] of an affine group."""

    matrix: tuple[tuple[float, ...], ...] = ()


class Action(ABC):
    """A set of generators and how the elements they generate move data.

    grid_axes: the number of trailing axes of data that are places on a grid, where `act` and
               `velocity` move (batch, channels, …) of any size along them: images and the hidden
               maps of a network (2), sequences (1); 0 where data are of one shape
    is_exact:  whether nothing is interpolated, so that the velocity is the ideal one
    """

    generators: tuple[Generator, ...]
    grid_axes: int = 0
    is_exact: bool = False

    @abstractmethod
    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Move `data` (batch, …) by g(coordinates) (batch, samples, generators).

        Returns (batch, samples, …). Coordinates of zero must return the data unchanged.
        """

    def velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """X v = d/dt act(t · direction, v) at t = 0, the central derivative; like `data`.

        direction: (coordinates,), or one for each example (batch, coordinates); linear in it

        Differentiable by `data` in every mode, with or without grad mode. Unless a subclass knows
        better it is the forward-mode derivative of `act` (`torch.func.jvp`, which cannot be inside
        a level of `torch.autograd.forward_ad`). An Action with a kink at zero should know better,
        and one with an `autograd.Function`, of which torch has no forward over forward mode.
        """
        # Inference mode has no tangents in some versions of torch, and says nothing.
        with torch.inference_mode(False):
            tangent = _outside(self.examples_direction(direction, data))[:, None]
            own = _outside(data)

            def move(coordinates: Tensor) -> Tensor:
                return self.act(coordinates, own)[:, 0]

            result: Tensor = torch.func.jvp(move, (torch.zeros_like(tangent),), (tangent,))[1]
        return result

    def ideal_velocity(self, direction: Tensor, data: Tensor) -> Tensor | None:
        """The velocity without the error of interpolation, or None where it is not known.

        Where nothing is interpolated it is the velocity. Arguments are those of `velocity`.
        """
        return self.velocity(direction, data) if self.is_exact else None

    @property
    def names(self) -> tuple[str, ...]:
        """The generators' names, in the order of the coordinates."""
        return tuple(generator.name for generator in self.generators)

    @property
    def coordinate_count(self) -> int:
        """The length of the coordinates' last axis: Σ multiplicity over the generators."""
        return sum(generator.multiplicity for generator in self.generators)

    def check_coordinates(self, coordinates: Tensor, data: Tensor) -> None:
        """Raise unless the coordinates are (batch, samples, generators) for this data.

        A generator counts as often as its multiplicity says.
        """
        wanted = (data.shape[0], self.coordinate_count)
        if coordinates.ndim != 3 or (coordinates.shape[0], coordinates.shape[2]) != wanted:
            described = ", ".join(
                f"{each.name} ({each.multiplicity} of them)" if each.multiplicity > 1 else each.name
                for each in self.generators
            )
            raise CallerError(
                f"coordinates: expected (batch, samples, generators) = ({wanted[0]}, samples, "
                f"{wanted[1]}) for the generators {described}, got {shape_text(coordinates)}"
            )

    def check_direction(self, direction: Tensor, data: Tensor) -> None:
        """Raise unless the direction is (coordinates,) or (batch, coordinates) for this data."""
        count = self.coordinate_count
        if tuple(direction.shape) not in ((count,), (data.shape[0], count)):
            raise CallerError(
                f"direction: expected ({count}), the coordinates of {', '.join(self.names)}, or "
                f"one for each example, ({data.shape[0]}, {count}), got {shape_text(direction)}"
            )

    def examples_direction(self, direction: Tensor, data: Tensor) -> Tensor:
        """The direction of each example (batch, coordinates), checked, of the data's type."""
        self.check_direction(direction, data)
        return direction.to(data.dtype).expand(data.shape[0], -1)


def _outside(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one that was made in inference mode, which has no derivatives."""
    return tensor.clone() if tensor.is_inference() else tensor


class Composition(Action):
    """Several Actions on the same data as one: a product of their elements, the first acts first.

        act(a, x) = act_n(a_n, … act_2(a_2, act_1(a_1, x)))

    Generators and coordinates are those of the parts, one after the other. Between parts there is
    no joint exponential, so the order means something wherever they do not commute. Velocities
    add up, whatever the order.
    """

    actions: tuple[Action, ...]

    def __init__(self, actions: Sequence[Action]) -> None:
        flat: list[Action] = []
        for action in actions:
            flat += action.actions if isinstance(action, Composition) else [action]
        generators = tuple(generator for action in flat for generator in action.generators)
        check_different(generators)
        self.actions = tuple(flat)
        self.generators = generators
        # Grids of any size only where every part moves them.
        self.grid_axes = min(action.grid_axes for action in flat)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Move `data` (batch, …) by each part in turn; returns (batch, samples, …)."""
        self.check_coordinates(coordinates, data)
        first, *others = self.actions
        own, *rest = coordinates.split([action.coordinate_count for action in self.actions], -1)
        moved = first.act(own, data)
        for action, part in zip(others, rest, strict=True):
            # Each copy is data of its own to the next part, with one sample.
            flat = action.act(part.flatten(0, 1)[:, None], moved.flatten(0, 1))[:, 0]
            moved = flat.unflatten(0, coordinates.shape[:2])
        return moved

    def velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """The sum of the parts' velocities, each with its own part of the direction."""
        parts = self._parts(direction, data)
        first, *others = (action.velocity(part, data) for action, part in parts)
        return sum(others, start=first)

    def ideal_velocity(self, direction: Tensor, data: Tensor) -> Tensor | None:
        """The sum of the parts' ideal velocities, or None where one of them is not known."""
        found = [each.ideal_velocity(part, data) for each, part in self._parts(direction, data)]
        known = [each for each in found if each is not None]
        return sum(known[1:], start=known[0]) if len(known) == len(found) else None

    def _parts(self, direction: Tensor, data: Tensor) -> list[tuple[Action, Tensor]]:
        """The parts with their own coordinates of a direction."""
        self.check_direction(direction, data)
        shares = direction.split([action.coordinate_count for action in self.actions], -1)
        return list(zip(self.actions, shares, strict=True))


def compose(*actions: Action) -> Action:
    """One Action made of several on the same data; the first acts first.

    >>> compose(affine(("rotation",)), intensity(("brightness",)))

    A single Action is returned as it is, and compositions among the parts are opened up. Raises
    when two parts have a generator of the same name.
    """
    if not actions:
        raise CallerError("compose: expected one or more Actions, got none")
    return actions[0] if len(actions) == 1 else Composition(actions)


def check_different(generators: Sequence[Generator]) -> None:
    """Raise unless there is at least one generator, and no two have the same name."""
    names = [generator.name for generator in generators]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated or not names:
        came = f"{min(repeated)!r} twice" if repeated else "none"
        raise CallerError(f"generators: expected one or more different names, got {came}")


Named = TypeVar("Named", bound=Generator)


def generators_named(names: Sequence[str], table: Mapping[str, Named]) -> list[Named]:
    """The rows of a table of generators with these names; raises, with the nearest, for others."""
    return [table[check_choice(name, table, what="generator")] for name in names]


def check_floating(data: Tensor, what: str, advice: str = "x.float()") -> None:
    """Raise unless data are floating-point numbers; `what` says which, `advice` how to convert."""
    if not data.is_floating_point():
        raise CallerError(
            f"{what}: expected floating-point numbers, got {data.dtype}; convert with {advice}"
        )


# -- slopes of sampled signals -----------------------------------------------------------------


def neighbour_slope(data: Tensor, axis: int, extension: Extension) -> Tensor:
    """v[i+1] − v[i−1] along `axis`, like `data`: the central slope per two sample distances.

    Times 1/2 it is the slope of straight lines, times 3/4 that of torch's cubic.
    """
    length = data.shape[axis]
    if length == 1:  # both neighbours are the sample itself, or both are zero
        return torch.zeros_like(data)
    first, second = data.narrow(axis, 0, 1), data.narrow(axis, 1, 1)
    last, before_last = data.narrow(axis, length - 1, 1), data.narrow(axis, length - 2, 1)
    if extension == "zeros":
        left, right = second, -before_last
    elif extension == "edge":
        left, right = second - first, last - before_last
    elif extension == "circular":
        left, right = second - last, first - before_last
    else:
        left = right = torch.zeros_like(first)
    inner = data.narrow(axis, 2, length - 2) - data.narrow(axis, 0, length - 2)
    return torch.cat((left, inner, right), axis)


def band_limited_slope(data: Tensor, axis: int, extension: Extension) -> Tensor:
    """The slope of the band-limited signal through the samples along `axis`, like `data`.

    Half precision is transformed in single precision.
    """
    length = data.shape[axis]
    if length == 1:
        return torch.zeros_like(data)
    wide = data.to(torch.promote_types(data.dtype, torch.float32))
    if extension == "circular":
        extended = wide
    elif extension == "mirror":
        extended = torch.cat((wide, wide.narrow(axis, 1, length - 2).flip(axis)), axis)
    else:
        extended = torch.cat((wide, wide.flip(axis)), axis)
    period = extended.shape[axis]
    spectrum = torch.fft.rfft(extended, dim=axis)
    frequency = torch.arange(period // 2 + 1, device=data.device, dtype=wide.dtype)
    below_nyquist = 2 * frequency < period
    factor = torch.complex(torch.zeros_like(frequency), 2 * math.pi / period * frequency)
    shape = [1] * data.ndim
    shape[axis] = -1
    spectrum = spectrum * (factor * below_nyquist).reshape(shape)
    slope = torch.fft.irfft(spectrum, n=period, dim=axis)
    return slope.narrow(axis, 0, length).to(data.dtype)
