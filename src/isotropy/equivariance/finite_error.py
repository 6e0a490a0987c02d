"""How far a network is from equivariance to transformations of a definite size.

For a group element g, per example and per output dimension,

    error            ‖ρ_out(g)⁻¹ f(ρ_in(g) x) − f(x)‖² / dim f(x)
    resampling floor ‖f(ρ_in(g)⁻¹ ρ_in(g) x) − f(x)‖² / dim f(x)
    inconsistency    whether argmax f(ρ_in(g) x) differs from argmax f(x), for class scores

*Elements near the identity* (`finite_errors`) are sampled, and all three are means over them
(expected group sample error and consistency of the thesis, A.3.3.3). The floor moves the input
there and back: everything is where it was, and what is left is the damage that resampling does. An
output that is an image, or a grid of tokens, loses content at its borders when it is moved. It is
compared where none was lost: where an image of ones that is moved there and back is one to within
1/1000. Padding that shows no zeros keeps everything. What a receptive field brings in from beyond
the border is not masked. The inverse is g(−a), which holds for one generator at a time and for
joint exponentials; the parts of a `Composition` are undone in reverse order. Coordinates are
(samples, batch, coordinates): each sample is one pass of the network.

*Elements that need no resampling* (`element_errors`, `exact_errors`) have no floor: quarter turns
of square images, shifts by whole pixels round the borders, flips and permutations only reorder what
is there, or change its sign. They are applied to f(x) instead of undone in f(g x); where they keep
lengths the error is the same. An output that is an image or a grid of tokens moves along; on a
coarser grid a shift counts only if it is a whole number of cells. Class tokens stay. Errors are
(elements, batch). The discrete consistency of Zhang, Making convolutional networks shift-invariant
again (2019), is one minus the inconsistency under shifts.

Gruver, Finzi, Goldblum, Wilson, The Lie derivative for measuring learned equivariance (2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, shape_text
from isotropy.equivariance.layouts import (
    Follows,
    Grid,
    Invariant,
    Layout,
    Tokens,
    guess_tokens,
    layout_named,
)
from isotropy.equivariance.subject import Inputs, Subject
from isotropy.symmetry.actions.action import Action, Composition, Generator
from isotropy.symmetry.actions.finite import Element, FiniteAction, quarter_turns

HALF_WIDTHS = {
    "fraction of image width": 0.125,  # as EQ-T; the thesis moves by 5 pixels of 224
    "fraction of length": 0.125,  # as for images
    "degrees": 15.0,  # as common augmentation; the published code's range rounds to 0
    "log factor": 0.1,  # a tenth larger or smaller
    "tangent": 0.1,  # moves the border as far as a log factor of 0.1 does
    "grey level": 0.1,  # a tenth of the way from black to white
    "unit length": 0.1,  # a tenth of clouds that were scaled to about one
}
"""How far elements near the identity go, by the unit in which a generator is reported."""

OTHER_HALF_WIDTH = 0.1
"""A tenth of a coordinate, where the unit says nothing about size."""


def default_half_width(generator: Generator) -> float:
    """The half-width of `neighbourhood` for a generator, in coordinates."""
    return generator.from_units(HALF_WIDTHS.get(generator.unit, OTHER_HALF_WIDTH))


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
            changes.append(_changes(after, outputs, layout))
    means = torch.stack(errors).mean(0), torch.stack(floors).mean(0)
    inconsistency = _stacked(changes)
    return FiniteErrors(*means, None if inconsistency is None else inconsistency.mean(0))


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


def _changes(after: Tensor, outputs: Tensor, layout: Layout | FiniteAction) -> Tensor | None:
    """Whether predictions changed, (batch,); None unless outputs are scores (batch, classes)."""
    if not isinstance(layout, Invariant) or outputs.ndim != 2 or outputs.shape[1] < 2:
        return None
    return (after.argmax(1) != outputs.argmax(1)).to(outputs.dtype)


def _stacked(changes: Sequence[Tensor | None]) -> Tensor | None:
    known = [each for each in changes if each is not None]
    return torch.stack(known) if known else None


class PixelShifts(FiniteAction):
    """Shifts by whole pixels, round the borders, of images (batch, …, height, width).

    steps: for each element how far content moves, (down, right) in pixels
    """

    name = "whole_pixel_shifts"

    def __init__(self, shifts: Sequence[int] = (1, 2, 3, 4)) -> None:
        if not shifts or any(shift == 0 for shift in shifts):
            raise CallerError(f"shifts: expected whole pixels other than zero, got {shifts!r}")
        self.steps = tuple((0, each) for each in shifts) + tuple((each, 0) for each in shifts)
        self.elements = tuple(
            Element(f"shift_{axis}_{each}", f"content moves {each} pixels {where}")
            for axis, where in (("x", "right"), ("y", "down"))
            for each in shifts
        )

    def check(self, data: Tensor) -> None:
        if data.ndim < 3:
            raise CallerError(f"images: expected (batch, …, height, width), got {shape_text(data)}")

    def move(self, index: int, data: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        self.check_index(index)
        self.check(data)
        return torch.roll(data, self.steps[index], (-2, -1))

    def move_map(self, index: int, maps: Tensor, size: Sequence[int]) -> Tensor | None:
        """The same motion of maps whose grid stands for images of `size` pixels (rows, columns).

        None where it is no whole number of cells.
        """
        cells = []
        for step, pixels, length in zip(self.steps[index], size, maps.shape[-2:], strict=True):
            if step * length % pixels:
                return None
            cells.append(step * length // pixels)
        return torch.roll(maps, cells, (-2, -1))


GRID_ELEMENTS = ("horizontal_flip", "vertical_flip", "quarter_turns", "reversal", PixelShifts.name)
"""Finite actions that move places and nothing else, so that hidden maps can follow them."""


@dataclass(frozen=True, eq=False)
class ElementErrors:
    """Errors of single elements.

    names          of the elements that were tried
    errors         (elements, batch)   ‖f(g x) − g f(x)‖² / dim
    inconsistency  (elements, batch), zero or one; None without classes
    skipped        names of elements whose motion of the output is no whole number of cells
    """

    names: tuple[str, ...]
    errors: Tensor
    inconsistency: Tensor | None
    skipped: tuple[str, ...] = ()


def element_errors(
    subject: Subject,
    inputs: Inputs,
    finite: FiniteAction,
    layout: Layout | FiniteAction,
    *,
    generator: torch.Generator | None = None,
) -> ElementErrors:
    """The error of every element of a finite action.

    layout:    how the output moves: a layout whose grid follows flips, turns, reversal and shifts,
               or a finite action with as many elements, that draws alike where elements are random
    generator: where random elements draw from
    """
    moved = subject.moved(inputs)
    source = torch.Generator(moved.device).manual_seed(0) if generator is None else generator
    names, errors, changes, skipped = [], [], [], []
    with torch.no_grad():
        outputs = subject(inputs)
        for element, tried in zip(
            finite.elements,
            element_outputs(subject, inputs, finite, layout, outputs, source),
            strict=True,
        ):
            if tried is None:
                skipped.append(element.name)
                continue
            after, wanted = tried
            names.append(element.name)
            errors.append(mean_square(after - wanted))
            changes.append(_changes(after, outputs, layout))
    stacked = torch.stack(errors) if errors else moved.new_zeros(0, len(moved))
    return ElementErrors(tuple(names), stacked, _stacked(changes), tuple(skipped))


def element_outputs(
    subject: Subject,
    inputs: Inputs,
    finite: FiniteAction,
    layout: Layout | FiniteAction,
    outputs: Tensor,
    source: torch.Generator,
) -> Iterator[tuple[Tensor, Tensor] | None]:
    """f(g x) and g f(x) for every element g, both (batch, …), from outputs = f(x).

    None for an element whose motion of the output is no whole number of cells. Differentiable by
    the network's parameters where grad mode is on.
    """
    moved = subject.moved(inputs)
    finite.check(moved)
    if isinstance(layout, FiniteAction) and len(layout.elements) != len(finite.elements):
        raise CallerError(
            f"outputs: expected a finite action with {len(finite.elements)} elements, as the "
            f"input's, got {len(layout.elements)} ({', '.join(layout.names)})"
        )
    for index in range(len(finite.elements)):
        # The output's element draws what the input's drew.
        twin = torch.Generator(source.device)
        twin.set_state(source.get_state())
        there = finite.move(index, moved, generator=source)
        wanted = _moved_output(finite, index, layout, outputs, tuple(moved.shape[-2:]), twin)
        yield None if wanted is None else (subject(subject.with_moved(inputs, there)), wanted)


def finite_layout(
    finite: FiniteAction, wanted: str | Layout | FiniteAction, outputs: Tensor
) -> Layout | FiniteAction:
    """How the output follows a finite action: as asked for, or as its axes suggest."""
    if isinstance(wanted, Layout | FiniteAction):
        return wanted
    if wanted != "auto":
        return layout_named(wanted, outputs, what="network output")
    if outputs.ndim <= 2:
        return Invariant()
    found: Layout | None = None
    if finite.name in GRID_ELEMENTS:
        axes = (2,) if finite.name == "reversal" else (2, 3)
        if outputs.ndim == len(axes) + 2:
            found = Grid(axes)
        elif outputs.ndim == 3 and len(axes) == 2:
            found = guess_tokens(outputs)
    if found is None:
        raise CallerError(
            f"network output: do not know what {finite.name} does to {shape_text(outputs)}; give a "
            "pair (input's, output's) of finite actions, or outputs=\"invariant\""
        )
    return found


def _moved_output(
    finite: FiniteAction,
    index: int,
    layout: Layout | FiniteAction,
    outputs: Tensor,
    size: tuple[int, ...],
    generator: torch.Generator,
) -> Tensor | None:
    """The outputs as they should be; None where that is no whole number of cells."""
    if isinstance(layout, Invariant):
        return outputs
    if isinstance(layout, FiniteAction):
        return layout.move(index, outputs, generator=generator)
    if not isinstance(layout, Grid | Tokens) or finite.name not in GRID_ELEMENTS:
        raise CallerError(
            f"outputs: do not know what {finite.name} does to an output that is {layout.text}; "
            "give a pair of finite actions, for the input and for the output"
        )
    maps = layout.to_maps(outputs)
    if isinstance(finite, PixelShifts):
        moved = finite.move_map(index, maps, size)
    else:
        moved = finite.move(index, maps)
    return None if moved is None else layout.with_maps(outputs, moved)


@dataclass(frozen=True, eq=False)
class ExactErrors:
    """Errors of elements that need no resampling, means over them for each example (batch,).

    name, what: "quarter turns", "90°, 180°, 270°"
    errors, inconsistency: None where nothing could be tried (inconsistency: without classes too)
    remark: what was left out, and why
    """

    name: str
    what: str
    errors: Tensor | None
    inconsistency: Tensor | None
    remark: str | None = None


def exact_errors(subject: Subject, inputs: Inputs, layout: Layout) -> list[ExactErrors]:
    """Quarter turns of square images, and shifts by 1 to 4 whole pixels right and down.

    Outputs that are images or token grids are turned and shifted along, on a coarser grid only
    by whole cells. What cannot be tried has no errors and says so in its remark.
    """
    moved = subject.moved(inputs)
    turns = ("quarter turns", "90°, 180°, 270°")
    pixels = ("whole-pixel shifts", "1 to 4 pixels, round the borders")
    why = _untried(moved, layout)
    if why is not None:
        return [ExactErrors(*each, None, None, why) for each in (turns, pixels)]
    found = []
    sides = {"images": moved.shape[-2:]}
    if isinstance(layout, Grid | Tokens):
        with torch.no_grad():
            sides["outputs"] = layout.to_maps(subject(inputs)).shape[-2:]
    oblong = [name for name, (rows, columns) in sides.items() if rows != columns]
    if oblong:
        found.append(ExactErrors(*turns, None, None, f"{' and '.join(oblong)} are not square"))
    else:
        found.append(_averaged(*turns, element_errors(subject, inputs, quarter_turns(), layout)))
    tried = element_errors(subject, inputs, PixelShifts(), layout)
    return [*found, _averaged(*pixels, tried)]


def _averaged(name: str, what: str, found: ElementErrors) -> ExactErrors:
    remark = None
    if found.skipped:
        remark = f"no whole number of cells of the output, left out: {', '.join(found.skipped)}"
    if not found.names:
        return ExactErrors(name, what, None, None, remark)
    changed = None if found.inconsistency is None else found.inconsistency.mean(0)
    return ExactErrors(name, what, found.errors.mean(0), changed, remark)


def _untried(moved: Tensor, layout: Layout) -> str | None:
    if moved.ndim != 4:
        return f"inputs are no images (batch, channels, height, width) but {shape_text(moved)}"
    if isinstance(layout, Grid) and len(layout.axes) != 2:
        return "the output is no image"
    if isinstance(layout, Tokens) and len(layout.grid) != 2:
        return "the output's tokens are no grid of rows and columns"
    if not isinstance(layout, Grid | Tokens | Invariant):
        return f"how an output that is {layout.text} follows exact elements is not known"
    return None
