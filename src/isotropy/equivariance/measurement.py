"""Measure one network on many examples: batches go through, means and standard errors come out.

For each generator of an Action: the local equivariance error of Eq. 4.4 with the part that
interpolation alone makes (`lie_derivative`), and what every operation contributes (`attribution`).
Errors are per coordinate squared: for a rotation per radian², for a shift per (half a width)².

Under an Action on images every operation from feature maps to feature maps has its EQ-T beside it,
its error under shifts by whole pixels (`translation_metrics`), which is the same for all
generators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, check_finite
from isotropy.equivariance.attribution import Attribution, LayerSettings, attribute
from isotropy.equivariance.layouts import Layout, layout_for
from isotropy.equivariance.lie_derivative import lie_derivatives
from isotropy.equivariance.subject import Inputs, Subject, first_of, rows_of
from isotropy.equivariance.translation_metrics import LayerTranslations
from isotropy.symmetry.actions.action import Action, Generator

Progress = Callable[[int, int], None]
MeanAndError = tuple[float, float | None]
DEFAULT_LAYERS = LayerSettings()

COORDINATE_UNITS = {
    "degrees": "radian",
    "fraction of image width": "half an image width",
    "fraction of length": "half a length",
}
"""What one coordinate is, for units in which a coordinate is not one."""

NUMBERS_AT_ONCE = 2**19
"""Input numbers in a batch where the user gives no batch size; sets the memory."""


@dataclass(frozen=True)
class LayerMeasure:
    """One operation: mean ‖C_i‖ with its standard error, and the signed share of the whole.

    eq_t: its own error under shifts by whole pixels, with its standard error; None where it has
          none
    """

    name: str
    kind: str
    layout: str
    norm: float
    norm_error: float | None
    share: float
    eq_t: float | None
    eq_t_error: float | None
    judged_at: str | None
    remark: str | None


@dataclass(frozen=True)
class ActionMeasure:
    """One generator: error, floor and layers; `errors` are those of the single examples."""

    name: str
    unit: str
    error: float
    standard_error: float | None
    errors: tuple[float, ...]
    resampling_floor: float | None
    resampling_floor_standard_error: float | None
    attribution: Mapping[str, Any] | None
    remark: str | None
    layers: tuple[LayerMeasure, ...]


def coordinate_unit(generator: Generator) -> str:
    """What one coordinate of a generator is, in words."""
    if generator.coordinate_per_unit == 1.0:
        return generator.unit
    return COORDINATE_UNITS.get(
        generator.unit, f"{1 / generator.coordinate_per_unit:g} {generator.unit}"
    )


def output_layout(
    subject: Subject, inputs: Inputs, action: Action, wanted: str | Layout | Action
) -> tuple[Layout, Tensor]:
    """How the output transforms, with the output of one example."""
    with torch.no_grad():
        output = subject(first_of(inputs, 1))
    return layout_for(wanted, action, output, what="network output"), output


def measure_action(
    subject: Subject,
    inputs: Inputs,
    action: Action,
    *,
    outputs: str | Layout | Action = "auto",
    layers: LayerSettings | None = DEFAULT_LAYERS,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> list[ActionMeasure]:
    """Measure every generator of an Action on all `inputs`; one `ActionMeasure` each.

    The network is in evaluation mode and `inputs` are where it is; see `Subject.check`.
    layers:   how errors are attributed to layers; None for not at all
    progress: told how many of how many examples are done
    """
    moved = subject.moved(inputs)
    count = len(moved)
    size = batch_size or default_batch(moved)
    check_at_least(size, 1, what="batch_size")
    layout, _ = output_layout(subject, inputs, action, outputs)
    remark = "layers were not asked for" if layers is None else None
    if layers is not None and not action.grid_axes and not layers.layouts:
        remark = (
            f"no layers: how hidden layers transform under {', '.join(action.names)} is not known; "
            "say it with layouts="
        )
        layers = None
    # Not from the generator itself, whose draws belong to directions and probes.
    seed = 0 if generator is None else generator.initial_seed()
    translations = LayerTranslations(torch.Generator().manual_seed(seed))
    if layers is not None and action.grid_axes == 2:
        layers = replace(layers, observe=translations)
    parts: list[_Batch] = []
    for start in range(0, count, size):
        batch = rows_of(inputs, slice(start, start + size))
        directions = directions_of(action, subject.moved(batch), generator)
        with torch.no_grad():
            found = lie_derivatives(subject, batch, action, directions, layout)
        check_finite(
            found.derivatives,
            what=f"derivatives by {', '.join(action.names)}",
            advice="the network has none at these inputs, as a root or a norm at zero has none; "
            "leave the examples out",
        )
        attributed = None
        if layers is not None:
            attributed = attribute(
                subject, batch, action, directions, found.derivatives, layout, layers, generator
            )
            layers = replace(layers, method=attributed.method)
        parts.append(_Batch(found.errors(), found.floor_errors(), attributed))
        if progress is not None:
            progress(min(start + size, count), count)
    # Copies of an example, as an averaged network has them, lie next to each other.
    shifted = {
        name: mean_and_error(torch.cat(errors).reshape(count, -1).mean(1))
        for name, errors in translations.errors.items()
        if len(errors) == len(parts)
    }
    probes = 0 if layers is None else layers.probes
    return [
        _summary(each, number, parts, remark, probes, shifted)
        for number, each in enumerate(action.generators)
    ]


def default_batch(moved: Tensor) -> int:
    """How many examples at once, where the user does not say."""
    return max(1, min(64, NUMBERS_AT_ONCE // max(1, moved[0].numel())))


def directions_of(action: Action, data: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One direction a generator: (generators, coordinates), or with a batch axis in between.

    A generator that stands for many equal coordinates gets a random direction for each example, of
    variance 1/multiplicity a coordinate, so that its error is the mean over all directions.
    """
    multiplicities = [each.multiplicity for each in action.generators]
    if max(multiplicities) == 1:
        return torch.eye(len(multiplicities), dtype=data.dtype, device=data.device)
    drawn = torch.zeros(len(multiplicities), len(data), sum(multiplicities), dtype=data.dtype)
    start = 0
    for number, many in enumerate(multiplicities):
        part = drawn[number, :, start : start + many]
        part.copy_(
            torch.randn(part.shape, generator=generator, dtype=data.dtype) / math.sqrt(many)
            if many > 1
            else torch.ones_like(part)
        )
        start += many
    return drawn.to(data.device)


@dataclass(frozen=True, eq=False)
class _Batch:
    errors: Tensor
    floors: Tensor | None
    attributed: Attribution | None


def _summary(
    generator: Generator,
    number: int,
    parts: list[_Batch],
    remark: str | None,
    probes: int,
    shifted: Mapping[str, MeanAndError],
) -> ActionMeasure:
    errors = torch.cat([part.errors[number] for part in parts])
    error, standard_error = mean_and_error(errors)
    floors = [part.floors[number] for part in parts if part.floors is not None]
    floor, floor_error = mean_and_error(torch.cat(floors)) if floors else (None, None)
    attributed = [part.attributed for part in parts if part.attributed is not None]
    return ActionMeasure(
        name=generator.name,
        unit=coordinate_unit(generator),
        error=error,
        standard_error=standard_error,
        errors=tuple(errors.double().tolist()),
        resampling_floor=floor,
        resampling_floor_standard_error=floor_error,
        attribution=_how(attributed, number, probes),
        remark=remark,
        layers=tuple(_layers(attributed, number, shifted)),
    )


def _how(attributed: list[Attribution], number: int, probes: int) -> dict[str, Any] | None:
    if not attributed:
        return None
    method = attributed[0].method
    # Over all examples: of one whose outputs hardly move, rounding is all there is.
    missing = torch.cat([each.missing[number] for each in attributed]).double().norm()
    scale = torch.cat([each.scale[number] for each in attributed]).double().norm()
    closure = float(missing / scale) if float(scale) > 0 else 0.0
    return {
        "method": method,
        "probes": probes if method == "probes" else None,
        "closure": closure,
    }


def _layers(
    attributed: list[Attribution], number: int, shifted: Mapping[str, MeanAndError]
) -> list[LayerMeasure]:
    if not attributed:
        return []
    rows = attributed[0].rows
    if any([row.name for row in each.rows] != [row.name for row in rows] for each in attributed):
        raise CallerError(
            "network: other operations run for other examples, so that their contributions cannot "
            "be averaged; measure examples that take the same way together, or use layers=False"
        )
    norms = torch.cat([each.norms[:, number] for each in attributed], 1).double()
    inner = torch.cat([each.inner[:, number] for each in attributed], 1).double().sum(1)
    square = torch.cat([each.squares[number] for each in attributed]).double().sum()
    shares = inner / square if float(square) > 0 else torch.zeros_like(inner)
    found = []
    for position, row in enumerate(rows):
        norm, error = mean_and_error(norms[position])
        eq_t, eq_t_error = shifted.get(row.name, (None, None))
        # Where norms are estimated by probes, each example has its own: their noise is in it.
        found.append(
            LayerMeasure(
                row.name, row.kind, row.layout, norm, error, float(shares[position]),
                eq_t, eq_t_error, row.judged_at, row.remark,
            )
        )  # fmt: skip
    return found


def mean_and_error(values: Tensor) -> MeanAndError:
    """Mean and standard error over examples; no error from one example."""
    values = values.double()
    if len(values) < 2:
        return float(values.mean()), None
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
