"""How far a network is from equivariance to transformations of a definite size.

For a group element g, per example and per output dimension,

    error            ‖ρ_out(g)⁻¹ f(ρ_in(g) x) − f(x)‖² / dim f(x)
    resampling floor ‖f(ρ_in(g)⁻¹ ρ_in(g) x) − f(x)‖² / dim f(x)
    inconsistency    whether argmax f(ρ_in(g) x) differs from argmax f(x), for class scores

The floor moves the input there and back: everything is where it was, and what is left is the
damage that resampling does. Error, floor and inconsistency are means over sampled elements
(expected group sample error and consistency of the thesis, A.3.3.3). Elements that need no
resampling, quarter turns and whole-pixel shifts, have a file of their own (`exact_error`).

An output that is an image, or a grid of tokens, loses content at its borders when it is moved. It
is compared where none was lost: where an image of ones that is moved there and back is one to
within 1/1000. Padding that shows no zeros keeps everything. What a receptive field brings in from
beyond the border is not masked.

The inverse is g(−a), which holds for one generator at a time and for joint exponentials; the
parts of a `Composition` are undone in reverse order.

Samples are first, coordinates (samples, batch, coordinates): each is one pass of the network.

Gruver, Finzi, Goldblum, Wilson, The Lie derivative for measuring learned equivariance (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, shape_text
from isotropy.equivariance.layouts import Follows, Invariant, Layout
from isotropy.equivariance.subject import Inputs, Subject
from isotropy.symmetry.actions import Action, Composition, Generator
from isotropy.symmetry.finite_actions import FiniteAction


@dataclass(frozen=True)
class HalfWidth:
    """How far elements near the identity go, in a generator's reported unit, and why."""

    amount: float
    reason: str


HALF_WIDTHS: dict[str, HalfWidth] = {
    "fraction of image width": HalfWidth(0.125, "as EQ-T; the thesis moves by 5 pixels of 224"),
    "fraction of length": HalfWidth(0.125, "as for images"),
    "degrees": HalfWidth(15.0, "as common augmentation; the published code's range rounds to 0"),
    "log factor": HalfWidth(0.1, "a tenth larger or smaller"),
    "tangent": HalfWidth(0.1, "moves the border as far as a log factor of 0.1 does"),
    "grey level": HalfWidth(0.1, "a tenth of the way from black to white"),
    "unit length": HalfWidth(0.1, "a tenth of clouds that were scaled to about one"),
}
"""Default half-widths by unit; any other unit takes `OTHER_UNIT`."""

OTHER_UNIT = HalfWidth(0.1, "a tenth of a coordinate, where the unit says nothing about size")
THESIS_PIXELS = 5


def default_half_width(generator: Generator, width: int | None = None) -> float:
    """The half-width of `neighbourhood` for a generator, in coordinates.

    width: pixels (or samples) across the data. Where it is given, a translation goes ±5 pixels as
    in the thesis; else it goes ±0.125 of the width.
    """
    if width is not None and generator.unit.startswith("fraction of "):
        check_at_least(width, 1, what="width")
        return generator.from_units(THESIS_PIXELS / width)
    return generator.from_units(HALF_WIDTHS.get(generator.unit, OTHER_UNIT).amount)


def amounts_text(generator: Generator, half_width: float) -> str:
    """`±15 degrees`: a half-width in coordinates as records and reports say it."""
    return f"±{generator.in_units(half_width):.3g} {generator.unit}"


def neighbourhood(
    action: Action,
    generator_index: int,
    half_width: float,
    samples: int,
    batch: int,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Coordinates (samples, batch, coordinates), uniform within ±half_width for one generator.

    All others are zero. The coordinates of a generator with a multiplicity are drawn one by one.
    Float64, on the generator's device; `finite_errors` brings them to the input's.
    """
    if not 0 <= generator_index < len(action.generators):
        raise CallerError(
            f"generator_index: expected 0 to {len(action.generators) - 1} "
            f"({', '.join(action.names)}), got {generator_index}"
        )
    check_at_least(samples, 1, what="samples")
    counts = [each.multiplicity for each in action.generators]
    start, count = sum(counts[:generator_index]), counts[generator_index]
    place, dtype = generator.device, torch.float64
    drawn = torch.rand((samples, batch, count), generator=generator, device=place, dtype=dtype)
    coordinates = torch.zeros((samples, batch, sum(counts)), device=place, dtype=dtype)
    coordinates[..., start : start + count] = half_width * (2 * drawn - 1)
    return coordinates


@dataclass(frozen=True, eq=False)
class FiniteErrors:
    """Means over sampled elements for each example; `inconsistency` is None without classes."""

    errors: Tensor
    floors: Tensor
    inconsistency: Tensor | None


def finite_errors(
    subject: Subject, inputs: Inputs, action: Action, layout: Layout, coordinates: Tensor
) -> FiniteErrors:
    """Error, resampling floor and inconsistency over elements g(coordinates), each (batch,).

    coordinates: (samples, batch, coordinates), as from `neighbourhood`
    layout:      how the output transforms
    """
    moved = subject.moved(inputs)
    if coordinates.ndim != 3 or not len(coordinates):
        raise CallerError(
            f"coordinates: expected (samples, batch, coordinates) = (samples, {len(moved)}, "
            f"{action.coordinate_count}), got {shape_text(coordinates)}"
        )
    errors, floors, changes = [], [], []
    with torch.no_grad():
        outputs = subject(inputs)
        for each in coordinates.to(moved):
            there = action.act(each[:, None], moved)[:, 0]
            back = moved_back(Follows(action), action, each, there)
            after = subject(subject.with_moved(inputs, there))
            still = subject(subject.with_moved(inputs, back))
            mask = _kept(layout, action, each, outputs)
            returned = moved_back(layout, action, each, after)
            errors.append(mean_square(returned - outputs, mask))
            floors.append(mean_square(still - outputs, mask))
            if are_scores(outputs, layout):
                changes.append((after.argmax(1) != outputs.argmax(1)).to(outputs.dtype))
    inconsistency = torch.stack(changes).mean(0) if changes else None
    return FiniteErrors(torch.stack(errors).mean(0), torch.stack(floors).mean(0), inconsistency)


def moved_back(layout: Layout, action: Action, coordinates: Tensor, tensor: Tensor) -> Tensor:
    """ρ(g)⁻¹ of a tensor (batch, …) with this layout, g = g(coordinates), (batch, coordinates)."""
    if isinstance(layout, Follows):
        own, inverse = _inverse(layout.own, coordinates)
        return own.act(inverse[:, None], tensor)[:, 0]
    undoing, inverse = _inverse(action, coordinates)
    return layout.move(undoing, inverse, tensor)


def _inverse(action: Action, coordinates: Tensor) -> tuple[Action, Tensor]:
    if not isinstance(action, Composition):
        return action, -coordinates
    parts = coordinates.split([part.coordinate_count for part in action.actions], -1)
    return Composition(action.actions[::-1]), -torch.cat(parts[::-1], -1)


def _kept(layout: Layout, action: Action, coordinates: Tensor, outputs: Tensor) -> Tensor | None:
    """Where nothing is lost by moving there and back: like the outputs; None for everywhere."""
    own = layout.own if isinstance(layout, Follows) else action
    if isinstance(layout, Invariant) or not own.grid_axes:
        return None
    there = layout.move(action, coordinates, torch.ones_like(outputs))
    return (moved_back(layout, action, coordinates, there) - 1).abs() < 1e-3


def mean_square(difference: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of squares for each example, (batch,), where the mask (batch, …) says so."""
    squares = difference.square()
    if mask is None:
        return squares.reshape(len(squares), -1).mean(1)
    counts = mask.flatten(1).sum(1)
    if bool((counts == 0).any()):
        raise CallerError(
            "coordinates: expected elements that keep some of every output in the frame, got one "
            "that moves all of it out; take smaller ones"
        )
    return (squares * mask).flatten(1).sum(1) / counts


def are_scores(outputs: Tensor, layout: Layout | FiniteAction) -> bool:
    """Whether outputs are class scores (batch, classes), which have a largest one."""
    return isinstance(layout, Invariant) and outputs.ndim == 2 and outputs.shape[1] > 1
