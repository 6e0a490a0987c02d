"""EQ-T and EQ-T_frac: how well a network, or each of its layers, follows translations.

A translation T by up to 1/8 of the size each way, in whole pixels (EQ-T) or any amount
(EQ-T_frac), goes in, and the output is brought back:

    error    mean over valid pixels of (T⁻¹ f(T x) − f(x))²
    decibel  10 log10(range² / error)

A pixel is valid if neither moving it nor bringing it back reads from beyond the frame, where there
are zeros; the public code asks this of one of the two, and border pixels then hide how good a good
network is. The range is the largest minus the smallest output of the batch. An output that does not
move (logits) has the plain mean of squares and no decibels.

Fractions of a pixel are read with a Lanczos filter of 3 pixels each way, whose weights add up to
one, as in the metric's public code. The *floor* is what two such readings do alone to the output,
the mean of (T⁻¹ T f(x) − f(x))², nil for whole pixels.

A layer with a stride s moves its output by 1/s of its input's motion. Whole pixels are then
multiples of the stride, so that nothing has to be rounded on the coarser grid. The stride of a
whole network is taken as the ratio of the sizes, rounded, so that a convolution without padding,
which shortens the map, has stride one.

Layer by layer (`LayerTranslations`) f is one operation of the network at the tensors that it gets
in a forward pass, all of which are moved by T: beside the infinitesimal e = df(X u) − X f(u) of the
Lie derivative this is the error of the same operation under finite motions. Only whole pixels are
tried, so that resampling adds nothing. The sum of squares over the N valid numbers is divided by N;
the thesis also shows a division by √N, and the two rank layers differently, which is why
contributions to the Lie derivative are to be preferred.

Axis order: maps (batch, channels, rows, columns), shifts (batch, 2) in pixels, down and right.

Karras et al., Alias-free generative adversarial networks (2021); Gruver et al. (2023), A.3.3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least, check_axes
from isotropy.equivariance.finite_error import mean_square
from isotropy.equivariance.layout_rules import MOVES_ABOUT, Known, strided_like
from isotropy.equivariance.layouts import Grid, Invariant, Layout, Tokens
from isotropy.equivariance.operations import Operation, floats_of
from isotropy.equivariance.subject import Inputs, Subject
from isotropy.equivariance.tangents import run_on_copy

FRACTION = 0.125
"""How far translations go each way, of height and width."""
LANCZOS = 3
LAYER_SAMPLES = 4
"""Translations that every example makes through each layer."""


@dataclass(frozen=True, eq=False)
class TranslationErrors:
    """Means over draws for each example, (batch,).

    decibel: 10 log10(range² / mean error), infinite where there is no error; None for outputs
             that do not move
    """

    errors: Tensor
    floors: Tensor
    decibel: float | None


def translation_errors(
    subject: Subject,
    inputs: Inputs,
    layout: Layout,
    *,
    whole_pixels: bool,
    samples: int = 10,
    generator: torch.Generator,
) -> TranslationErrors | None:
    """EQ-T (whole_pixels) or EQ-T_frac of a network on images.

    layout:   the output's: `Invariant`, or a `Grid` or `Tokens` with rows and columns
    samples:  translations for each example
    None where there is nothing to compare: ±1/8 contains no whole pixel (or cell of a coarser
    output) but zero, or the output is too small for the filter.
    """
    images = subject.moved(inputs)
    check_axes(images, ("batch", "channels", "height", "width"), what="images")
    check_at_least(samples, 1, what="samples")
    with torch.no_grad():
        outputs = subject(inputs)
        ratios = (1.0, 1.0)
        if not isinstance(layout, Invariant):
            ratios = _size_ratios(images, _maps(layout, outputs))
        if whole_pixels and not any(_most_steps(images, ratios)):
            return None
        errors, floors = [], []
        for _ in range(samples):
            shifts = _draw_shifts(images, ratios, whole_pixels, generator)
            after = subject(subject.with_moved(inputs, translate(images, shifts, whole_pixels)[0]))
            if isinstance(layout, Invariant):
                errors.append(mean_square(after - outputs))
                floors.append(torch.zeros_like(errors[-1]))
                continue
            own = -shifts / shifts.new_tensor(ratios)
            before = _maps(layout, outputs)
            compared = _compare(_maps(layout, after), before, own, whole_pixels)
            if compared is None:
                return None
            errors.append(compared[0])
            floors.append(compared[1])
    found = torch.stack(errors).mean(0)
    decibel = None if isinstance(layout, Invariant) else _decibel(outputs, found)
    return TranslationErrors(found, torch.stack(floors).mean(0), decibel)


def _maps(layout: Layout, tensor: Tensor) -> Tensor:
    if not _has_rows_and_columns(layout):
        raise CallerError(
            "outputs: expected logits, images or a grid of tokens, which a translation moves or "
            f"leaves alone, got an output that is {layout.text}"
        )
    return layout.to_maps(tensor)


def _has_rows_and_columns(layout: Layout | None) -> TypeGuard[Grid | Tokens]:
    if isinstance(layout, Grid):
        return len(layout.axes) == 2
    return isinstance(layout, Tokens) and len(layout.grid) == 2


def _decibel(outputs: Tensor, errors: Tensor) -> float:
    mean, span = float(errors.mean()), float(outputs.max() - outputs.min())
    if mean == 0:
        return math.inf
    return 10 * math.log10(span**2 / mean) if span > 0 else -math.inf


# --- translating --------------------------------------------------------------------------


def translate(maps: Tensor, shifts: Tensor, whole_pixels: bool) -> tuple[Tensor, Tensor]:
    """Maps (batch, channels, rows, columns) with their content moved down and right by `shifts`.

    shifts: (batch, 2) in pixels; whole numbers where whole_pixels
    Returns the moved maps, zero beyond the frame, and where they read nothing from there,
    (batch, 1, rows, columns).
    """
    if whole_pixels:
        return _by_whole_pixels(maps, shifts)
    moved, rows = _along(maps, shifts[:, 0], 2)
    moved, columns = _along(moved, shifts[:, 1], 3)
    return moved, (rows[:, :, None] & columns[:, None, :])[:, None]


def _by_whole_pixels(maps: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    height, width = maps.shape[2:]
    down, right = shifts.round().long()[:, :, None].unbind(1)
    rows = torch.arange(height, device=maps.device) - down  # (batch, height)
    columns = torch.arange(width, device=maps.device) - right
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None
    ]
    places = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    index = places.flatten(1)[:, None].expand(-1, maps.shape[1], -1)
    moved = maps.flatten(2).gather(2, index).reshape(maps.shape)
    return moved * inside[:, None], inside[:, None]


def _along(maps: Tensor, shift: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Along one axis: moved[i] = Σ_k w_k maps[i − ⌊shift⌋ − k], and where all of it exists."""
    batch, length = len(maps), maps.shape[axis]
    start = shift.floor()
    taps = torch.arange(1 - LANCZOS, LANCZOS + 1, device=maps.device)
    distance = taps - (shift - start)[:, None]
    weights = torch.sinc(distance) * torch.sinc(distance / LANCZOS)
    weights = weights / weights.sum(1, keepdim=True)  # (batch, taps)
    index = torch.arange(length, device=maps.device) - start.long()[:, None]  # (batch, length)
    total = torch.zeros_like(maps)
    valid = torch.ones(batch, length, device=maps.device, dtype=torch.bool)
    shape = [batch, 1, 1, 1]
    shape[axis] = length
    for weight, tap in zip(weights.unbind(1), taps.tolist(), strict=True):
        wanted = index - tap
        inside = (wanted >= 0) & (wanted < length)
        # A weight that is zero up to rounding, of a shift by a whole number, reads nothing.
        valid &= inside | (weight.abs() < 1e-6)[:, None]
        place = wanted.clamp(0, length - 1).reshape(shape).expand_as(maps)
        read = maps.gather(axis, place) * inside.reshape(shape)
        total = total + weight.to(maps.dtype)[:, None, None, None] * read
    return total, valid


def _draw_shifts(
    images: Tensor,
    ratios: tuple[float, float],
    whole: bool,
    generator: torch.Generator,
) -> Tensor:
    """Shifts (batch, 2) of the input in pixels, uniform within ±1/8 of rows and columns."""
    drawn = torch.rand(
        (len(images), 2), generator=generator, device=generator.device, dtype=torch.float64
    ).to(images.device)
    if not whole:
        return (2 * drawn - 1) * FRACTION * drawn.new_tensor(images.shape[-2:])
    most = drawn.new_tensor(_most_steps(images, ratios))
    steps = (drawn * (2 * most + 1)).floor() - most
    return steps * drawn.new_tensor(ratios).clamp(min=1)


def _most_steps(images: Tensor, ratios: tuple[float, float]) -> list[int]:
    """How many whole steps fit into ±1/8, down and right; a step is a stride."""
    sizes = images.shape[-2:]
    return [int(FRACTION * n / max(r, 1)) for n, r in zip(sizes, ratios, strict=True)]


def _size_ratios(before: Tensor, after: Tensor) -> tuple[float, float]:
    """Pixels of `before` for one of `after`, by their sizes, rounded: down and right."""
    down, right = (
        float(round(n / m)) if n >= m else 1 / round(m / n)
        for n, m in zip(before.shape[-2:], after.shape[-2:], strict=True)
    )
    return down, right


def _compare(
    after: Tensor, before: Tensor, back: Tensor, whole: bool
) -> tuple[Tensor, Tensor] | None:
    """Mean squares of T⁻¹ after − before and of T⁻¹ T before − before.

    back: the shift T⁻¹ of these maps, (batch, 2); results are (batch,). None where none is valid.
    """
    returned, valid = translate(after, back, whole)
    again = before
    if not whole:
        there, readable = translate(before, -back, whole)
        again = translate(there, back, whole)[0]
        # Where all that is read on the way back was readable on the way there.
        valid &= (translate(readable.to(before.dtype), back, whole)[0] - 1).abs() < 1e-6
    if not bool(valid.flatten(1).any(1).all()):
        return None
    mask = valid.expand_as(returned)
    return mean_square(returned - before, mask), mean_square(again - before, mask)


# --- layer by layer -----------------------------------------------------------------------


@dataclass(eq=False)
class LayerTranslations:
    """Observes a sweep, and finds EQ-T of every operation from grids to a grid.

    generator: where translations are drawn from
    errors:    by the operation's name, means over draws for each example, (batch,), one tensor for
               each pass. Operations are left out that only move numbers about, whose inputs and
               result are no grids of rows and columns, or where there is no whole pixel (or cell
               of a coarser grid) within ±1/8.
    """

    generator: torch.Generator
    samples: int = LAYER_SAMPLES
    errors: dict[str, list[Tensor]] = field(default_factory=dict)

    def __call__(
        self,
        name: str,
        operation: Operation,
        known: Sequence[Known],
        result: Tensor,
        layout: Layout | None,
    ) -> None:
        """Try one operation, as `Sweep.observe`."""
        if operation.kind in MOVES_ABOUT or not _has_rows_and_columns(layout):
            return
        moving: list[tuple[Tensor, Grid | Tokens]] = []
        for each in known:
            if _has_rows_and_columns(each.layout):
                moving.append((each.tensor, each.layout))
            elif not isinstance(each.layout, Invariant):
                return
        maps = [own.to_maps(tensor) for tensor, own in moving]
        before = layout.to_maps(result)
        alike = {(len(each), *each.shape[-2:]) for each in maps}
        if len(alike) != 1 or len(maps[0]) != len(before):
            return
        ratios = _ratios_of(operation, maps[0], before)
        if not any(_most_steps(maps[0], ratios)):
            return
        errors = []
        for _ in range(self.samples):
            shifts = _draw_shifts(maps[0], ratios, True, self.generator)
            replacements = {
                id(tensor): strided_like(
                    own.with_maps(tensor, translate(image, shifts, True)[0]), tensor
                )
                for (tensor, own), image in zip(moving, maps, strict=True)
            }
            after = floats_of(run_on_copy(operation, replacements))[0]
            back = -shifts / shifts.new_tensor(ratios)
            compared = _compare(layout.to_maps(after), before, back, True)
            if compared is None:
                return
            errors.append(compared[0])
        self.errors.setdefault(name, []).append(torch.stack(errors).mean(0))


def _ratios_of(operation: Operation, image: Tensor, output: Tensor) -> tuple[float, float]:
    """Pixels of the operation's input for one of its output: its stride where it has one."""
    stride = getattr(operation.module, "stride", None)
    if isinstance(stride, int):
        stride = (stride, stride)
    grows = output.shape[-2] > image.shape[-2] or output.shape[-1] > image.shape[-1]
    transposed = isinstance(operation.module, nn.modules.conv._ConvTransposeNd)
    if not isinstance(stride, tuple) or len(stride) != 2 or (grows and not transposed):
        return _size_ratios(image, output)
    down, right = (float(each) for each in stride)
    return (1 / down, 1 / right) if transposed else (down, right)
