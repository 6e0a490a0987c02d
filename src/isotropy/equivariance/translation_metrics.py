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

Layer by layer, from inputs that are those of a forward pass, the sum of squares over the N valid
numbers is divided by N; the division by √N that the thesis shows beside it is given too. The
two rank layers differently, which is why contributions to the Lie derivative are to be preferred.

Axis order: maps (batch, channels, rows, columns), shifts (batch, 2) in pixels, down and right.

Karras et al., Alias-free generative adversarial networks (2021); Gruver et al. (2023), A.3.3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least, check_axes
from isotropy.equivariance.finite_error import mean_square
from isotropy.equivariance.layouts import Grid, Invariant, Layout, Tokens
from isotropy.equivariance.subject import Inputs, Subject, plain_network

FRACTION = 0.125
LANCZOS = 3


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
    fraction: float = FRACTION,
    samples: int = 10,
    generator: torch.Generator,
) -> TranslationErrors | None:
    """EQ-T (whole_pixels) or EQ-T_frac of a network on images.

    layout:   the output's: `Invariant`, or a `Grid` or `Tokens` with rows and columns
    fraction: how far translations go each way, of width and height
    samples:  translations for each example
    None where there is nothing to compare: ±fraction contains no whole pixel (or cell of a coarser
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
        if whole_pixels and not any(_most_steps(images, ratios, fraction)):
            return None
        errors, floors = [], []
        for _ in range(samples):
            shifts = _draw_shifts(images, ratios, fraction, whole_pixels, generator)
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
    grids = 0
    if isinstance(layout, Grid | Tokens):
        grids = len(layout.axes if isinstance(layout, Grid) else layout.grid)
    if not isinstance(layout, Grid | Tokens) or grids != 2:
        raise CallerError(
            "outputs: expected logits, images or a grid of tokens, which a translation moves or "
            f"leaves alone, got an output that is {layout.text}"
        )
    return layout.to_maps(tensor)


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
    moved, rows = _along(maps, shifts[:, 0], 2, whole_pixels)
    moved, columns = _along(moved, shifts[:, 1], 3, whole_pixels)
    return moved, (rows[:, :, None] & columns[:, None, :])[:, None]


def _along(maps: Tensor, shift: Tensor, axis: int, whole: bool) -> tuple[Tensor, Tensor]:
    """Along one axis: moved[i] = Σ_k w_k maps[i − ⌊shift⌋ − k], and where all of it exists."""
    batch, length = len(maps), maps.shape[axis]
    start = shift.round() if whole else shift.floor()
    taps = torch.arange(1 - LANCZOS, LANCZOS + 1, device=maps.device)
    if whole:
        taps = torch.zeros_like(taps[:1])
    distance = taps - (shift - start)[:, None]
    weights = torch.sinc(distance) * torch.sinc(distance / LANCZOS)
    weights = weights / weights.sum(1, keepdim=True)  # (batch, taps)
    if whole:
        weights = torch.ones_like(weights)
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
    fraction: float,
    whole: bool,
    generator: torch.Generator,
) -> Tensor:
    """Shifts (batch, 2) of the input in pixels, uniform within ±fraction of rows and columns."""
    drawn = torch.rand(
        (len(images), 2), generator=generator, device=generator.device, dtype=torch.float64
    ).to(images.device)
    if not whole:
        return (2 * drawn - 1) * fraction * drawn.new_tensor(images.shape[-2:])
    most = drawn.new_tensor(_most_steps(images, ratios, fraction))
    steps = (drawn * (2 * most + 1)).floor() - most
    return steps * drawn.new_tensor(ratios).clamp(min=1)


def _most_steps(images: Tensor, ratios: tuple[float, float], fraction: float) -> list[int]:
    """How many whole steps fit into ±fraction, down and right; a step is a stride."""
    sizes = images.shape[-2:]
    return [int(fraction * n / max(r, 1)) for n, r in zip(sizes, ratios, strict=True)]


def _size_ratios(before: Tensor, after: Tensor) -> tuple[float, float]:
    """Pixels of `before` for one of `after`, by their sizes, rounded: down and right."""
    down, right = (
        float(round(n / m)) if n >= m else 1 / round(m / n)
        for n, m in zip(before.shape[-2:], after.shape[-2:], strict=True)
    )
    return down, right


def _compare(
    after: Tensor, before: Tensor, back: Tensor, whole: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Mean squares of T⁻¹ after − before and of T⁻¹ T before − before, and how many were valid.

    back: the shift T⁻¹ of these maps, (batch, 2); results are (batch,). None where none is valid.
    """
    returned, valid = translate(after, back, whole)
    there, readable = translate(before, -back, whole)
    again = translate(there, back, whole)[0]
    # Where all that is read on the way back was readable on the way there.
    valid &= (translate(readable.to(before.dtype), back, whole)[0] - 1).abs() < 1e-6
    if not bool(valid.flatten(1).any(1).all()):
        return None
    mask = valid.expand_as(returned)
    error, floor = mean_square(returned - before, mask), mean_square(again - before, mask)
    return error, floor, mask.flatten(1).sum(1)


# --- layer by layer -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LayerTranslationErrors:
    """One call of a layer: means over draws for each example, (batch,).

    errors       Σ of squares / N over the N valid numbers
    root_errors  Σ of squares / √N, the thesis's other choice
    floors       what reading between pixels does alone, as `errors`
    """

    name: str
    kind: str
    errors: Tensor
    root_errors: Tensor
    floors: Tensor


def layer_translation_errors(
    subject: Subject,
    inputs: Inputs,
    *,
    whole_pixels: bool,
    fraction: float = FRACTION,
    samples: int = 20,
    generator: torch.Generator,
) -> list[LayerTranslationErrors]:
    """EQ-T or EQ-T_frac of every leaf layer from maps to maps, in the order they are called.

    A layer is tried if its first input and its output are (batch, channels, rows, columns) with
    more than one position, and if there is something to compare, as in `translation_errors`; a
    layer that is called twice is listed twice. The network is as it was afterwards.
    """
    check_at_least(samples, 1, what="samples")
    found: list[LayerTranslationErrors] = []
    kept: dict[nn.Module, Tensor] = {}

    def before(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], Tensor):
            kept[layer] = arguments[0].detach().clone()  # the layer may work in place

    def after(layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        image = kept.pop(layer, None)
        if image is None or not _is_map(image) or not _is_map(output):
            return
        ratios = _layer_ratios(layer, image, output)
        if whole_pixels and not any(_most_steps(image, ratios, fraction)):
            return
        reference, draws = output.detach().clone(), []
        for _ in range(samples):
            shifts = _draw_shifts(image, ratios, fraction, whole_pixels, generator)
            moved = translate(image, shifts, whole_pixels)[0]
            # Not through __call__, which would end up here again.
            result = layer.forward(moved, *arguments[1:])
            own = -shifts / shifts.new_tensor(ratios)
            compared = _compare(result, reference, own, whole_pixels)
            if compared is None:
                return
            draws.append(compared)
        errors, floors, counts = (torch.stack(each) for each in zip(*draws, strict=True))
        root_errors = errors * counts.sqrt()
        means = (errors.mean(0), root_errors.mean(0), floors.mean(0))
        found.append(LayerTranslationErrors(names[layer], type(layer).__name__, *means))

    names = {layer: name for name, layer in _leaves(plain_network(subject.network))}
    hooks = []
    try:
        for layer in names:
            hooks.append(layer.register_forward_pre_hook(before))
            hooks.append(layer.register_forward_hook(after))
        with torch.no_grad():
            subject(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _leaves(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers without layers inside; what computes a weight (a parametrization) is no layer."""
    leaves = []
    for name, module in network.named_modules():
        children = [child for child, _ in module.named_children() if child != "parametrizations"]
        if not children and "parametrizations" not in name.split("."):
            leaves.append((name, module))
    return leaves


def _is_map(found: Any) -> bool:
    return isinstance(found, Tensor) and found.ndim == 4 and found.shape[2] * found.shape[3] > 1


def _layer_ratios(layer: nn.Module, image: Tensor, output: Tensor) -> tuple[float, float]:
    """Pixels of the layer's input for one of its output: its stride where it has one."""
    stride = getattr(layer, "stride", None)
    if isinstance(stride, int):
        stride = (stride, stride)
    if not isinstance(stride, tuple) or len(stride) != 2:
        return _size_ratios(image, output)
    down, right = (float(each) for each in stride)
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        return 1 / down, 1 / right
    return down, right
