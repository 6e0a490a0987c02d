"""Shifts and stretches of sequences in time, and their amplitude.

A sequence is (batch, channels, length). Its place u is measured from the middle, and one unit is
half the length: sample i of N is at u = (i − (N − 1)/2) / (N/2). The element with coordinates
shift t, stretch s and amplitude a moves the content by the flow of u ↦ s u + t, the affine
group of the line, and multiplies it, which commutes with that:

    content at u  goes to  e^s u + φ(s) t          φ(s) = (e^s − 1)/s
    output(u) = e^a · sequence(e^{−s} u − φ(−s) t)

Between samples the sequence is interpolated linearly, by gathering two neighbours, so that
reverse and forward mode, higher derivatives and vmap all work. At a sample itself the
interpolant has a kink, and its slope there is the one to the later side; the velocity has the mean
of both sides,

    X v(u) = −(s u + t) v′(u) + a v(u)          v′ from the two neighbours of a sample

Beyond its ends a sequence goes on as `boundary` says: "circular" repeats it with period N, so
that shifts lose nothing and half a length each way is all of them; "zeros" is silence. Shrinking
shows what lies beyond the ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from isotropy.checks import check_axes, check_choice
from isotropy.symmetry.actions.action import (
    Action,
    Extension,
    Generator,
    band_limited_slope,
    check_different,
    check_floating,
    generators_named,
    neighbour_slope,
)
from isotropy.symmetry.actions.exponential import line_exponential

Boundary = Literal["circular", "zeros"]
BOUNDARIES: tuple[Boundary, ...] = ("circular", "zeros")

SEQUENCE_GENERATORS: dict[str, Generator] = {
    generator.name: generator
    for generator in (
        # The period holds where the boundary is circular.
        Generator("shift", "fraction of length", 2.0, period=1.0, meaning="content comes later"),
        Generator("stretch", "log factor", meaning="content is drawn out about the middle"),
        Generator("amplitude", "log factor", meaning="every value moves away from zero"),
    )
}


class SequenceAction(Action):
    """Affine maps of time, and amplitude, acting on sequences (batch, channels, length)."""

    grid_axes = 1

    def __init__(self, generators: Sequence[Generator], *, boundary: Boundary = "circular") -> None:
        check_different(generators)
        generators_named([each.name for each in generators], SEQUENCE_GENERATORS)
        check_choice(boundary, BOUNDARIES, what="boundary")
        self.generators = tuple(generators)
        self.boundary: Boundary = boundary

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Move sequences (batch, channels, length); returns (batch, samples, channels, length)."""
        _check_sequences(data)
        self.check_coordinates(coordinates, data)
        given = dict(zip(self.names, coordinates.to(data.dtype).unbind(-1), strict=True))
        moved = data[:, None]
        if "shift" in given or "stretch" in given:
            zero = torch.zeros(coordinates.shape[:2], device=data.device, dtype=data.dtype)
            # What is at u came from exp(−A) u.
            factor, offset = line_exponential(
                -given.get("stretch", zero), -given.get("shift", zero)
            )
            moved = self._read(data, factor, offset)
        if "amplitude" in given:
            moved = given["amplitude"].exp()[..., None, None] * moved
        return moved

    def velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """X v of sequences (batch, channels, length) of any length, with central slopes."""
        extension: Extension = "circular" if self.boundary == "circular" else "zeros"
        return self._transport(direction, data, neighbour_slope, extension, 0.5)

    def ideal_velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """X v of the band-limited sequence through the samples.

        It is periodic where the boundary is circular, else mirrored about its ends, half a sample
        distance beyond the last sample, since silence there would be a jump.
        """
        extension: Extension = "circular" if self.boundary == "circular" else "edge"
        return self._transport(direction, data, band_limited_slope, extension, 1.0)

    def _transport(
        self,
        direction: Tensor,
        data: Tensor,
        slope: Callable[[Tensor, int, Extension], Tensor],
        extension: Extension,
        weight: float,
    ) -> Tensor:
        """−(s u + t) · weight · slope(data) + a · data, with slopes per sample."""
        _check_sequences(data)
        self.check_direction(direction, data)
        wide = torch.promote_types(data.dtype, torch.float32)
        amounts = direction.to(wide)[..., None, None].unbind(-3)  # each ([batch,] 1, 1)
        given = dict(zip(self.names, amounts, strict=True))
        total: Tensor | None = None
        if "shift" in given or "stretch" in given:
            length = data.shape[2]
            zero = torch.zeros((), device=data.device, dtype=wide)
            index = torch.arange(length, device=data.device, dtype=wide)
            flow = given.get("stretch", zero) * (index - (length - 1) / 2)
            flow = flow + given.get("shift", zero) * (length / 2)  # in samples
            total = slope(data, 2, extension) * (-weight * flow).to(data.dtype)
        if "amplitude" in given:
            louder = given["amplitude"].to(data.dtype) * data
            total = louder if total is None else total + louder
        assert total is not None, "a generator is one of the three"
        return total

    def _read(self, data: Tensor, factor: Tensor, offset: Tensor) -> Tensor:
        """sequence(factor · u + offset) for all u; factor and offset (batch, samples)."""
        length, samples = data.shape[2], factor.shape[1]
        middle = (length - 1) / 2
        index = torch.arange(length, device=data.device, dtype=data.dtype)
        place = factor[..., None] * (index - middle) + (offset * (length / 2))[..., None] + middle
        floor = place.detach().floor()  # (batch, samples, length), in samples
        later = (place - floor)[:, None]
        first = floor.long()
        value = self._gather(data, first).unflatten(-1, (samples, length))
        following = self._gather(data, first + 1).unflatten(-1, (samples, length))
        return ((1 - later) * value + later * following).transpose(1, 2)

    def _gather(self, data: Tensor, index: Tensor) -> Tensor:
        """The samples at `index` (batch, samples, length): (batch, channels, samples·length)."""
        length = data.shape[2]
        wanted = index.flatten(1)[:, None]
        if self.boundary == "circular":
            return data.gather(2, wanted.remainder(length).expand(-1, data.shape[1], -1))
        inside = wanted.clamp(0, length - 1)
        values = data.gather(2, inside.expand(-1, data.shape[1], -1))
        return torch.where(inside == wanted, values, 0.0)


def _check_sequences(data: Tensor) -> None:
    check_axes(
        data,
        ("batch", "channels", "length"),
        what="sequences",
        advice="add a channel axis with x[:, None]" if data.ndim == 2 else "",
    )
    check_floating(data, "sequences")


def sequences(
    generators: Sequence[str] = ("shift", "stretch", "amplitude"),
    *,
    boundary: Boundary = "circular",
) -> SequenceAction:
    """The Action on sequences with generators chosen by name: shift, stretch, amplitude.

    boundary: "circular" repeats the sequence beyond its ends, "zeros" is silence there; a shift
    has a largest range, half a length each way, only where it is circular.
    """
    chosen = generators_named(generators, SEQUENCE_GENERATORS)
    if boundary == "zeros":
        chosen = [dataclasses.replace(generator, period=None) for generator in chosen]
    return SequenceAction(chosen, boundary=boundary)
