"""The checks behind `assert_equivariant`: from one symmetry to relative errors with names.

A `Trial` is a network on a batch, with f(x) and how much it varies; `findings_of` tries a symmetry
on it and gives one `Finding` for each generator or element that was tried:

    error = rms(f(ρ_in(g) x) − ρ_out(g) f(x)) / variation          variation = rms(f(x) − mean f)

and the same for Lie derivatives, per unit of a coordinate. Which elements are tried, and why, is
said in `testing`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, shape_text
from isotropy.equivariance.bridge import Outputs, Own
from isotropy.equivariance.exact_error import PixelShifts, element_errors, finite_layout
from isotropy.equivariance.finite_error import neighbourhood
from isotropy.equivariance.layouts import (
    Follows,
    Grid,
    Invariant,
    Layout,
    Tokens,
    layout_for,
)
from isotropy.equivariance.lie_derivative import lie_derivatives
from isotropy.equivariance.subject import Inputs, Subject
from isotropy.symmetry.actions import Action, Composition
from isotropy.symmetry.finite_actions import Element, FiniteAction, MapAction, quarter_turns
from isotropy.symmetry.image_actions import AffineAction
from isotropy.symmetry.linear_actions import LinearAction
from isotropy.symmetry.sequence_actions import SequenceAction


@dataclass(frozen=True, eq=False)
class Trial:
    """What all checks of one call share."""

    subject: Subject
    inputs: Inputs
    outputs: Tensor
    variation: float
    samples: int
    generator: torch.Generator

    @property
    def moved(self) -> Tensor:
        return self.subject.moved(self.inputs)

    def relative(self, difference: Tensor) -> float:
        """The root mean square of a difference between outputs, in units of their variation."""
        return _size(difference) / self.variation


@dataclass(frozen=True)
class Finding:
    """What was tried, and the relative error that came out."""

    what: str
    error: float


# --- how much outputs vary ----------------------------------------------------------------


def _size(tensor: Tensor) -> float:
    return math.sqrt(float(tensor.double().square().mean()))


def variation_of(
    subject: Subject, inputs: Inputs, outputs: Tensor, generator: torch.Generator
) -> float:
    """The root mean square deviation of outputs, over examples or else under noise on the input."""
    least = 10 * torch.finfo(outputs.dtype).eps * _size(outputs)
    found = _size(outputs - outputs.mean(0))
    if found > least:
        return found
    moved = subject.moved(inputs)
    noise = torch.randn(moved.shape, generator=generator, device=generator.device).to(moved)
    noisy = moved + noise * max(_size(moved), torch.finfo(moved.dtype).tiny)
    found = _size(subject(subject.with_moved(inputs, noisy)) - outputs)
    if not found > least:
        raise CallerError(
            "network output: does not vary with the input, and a constant is equivariant to "
            "everything; expected an output that depends on it, as of a network that is not zero"
        )
    return found


# --- what is checked ----------------------------------------------------------------------


def findings_of(trial: Trial, own: Own, outputs: Outputs) -> list[Finding]:
    if isinstance(own, FiniteAction):
        assert not isinstance(outputs, Action), "a finite action goes with a finite action"
        return _elements(trial, own, finite_layout(own, outputs, trial.outputs))
    assert not isinstance(outputs, FiniteAction), "an Action goes with an Action"
    layout = layout_for(outputs, own, trial.outputs, what="network output")
    findings = _derivatives(trial, own, layout)
    if any(part.grid_axes for part in (*parts_of(own), *_output_parts(layout))):
        return findings + _exact_elements(trial, own, layout)
    return findings + _at_a_distance(trial, own, layout)


def parts_of(action: Action) -> tuple[Action, ...]:
    return action.actions if isinstance(action, Composition) else (action,)


def _output_parts(layout: Layout) -> tuple[Action, ...]:
    return parts_of(layout.own) if isinstance(layout, Follows) else ()


def _derivatives(trial: Trial, action: Action, layout: Layout) -> list[Finding]:
    """The Lie derivative for every generator; for one with many coordinates, in random mixtures."""
    directions, names, start = [], [], 0
    identity = torch.eye(action.coordinate_count, dtype=torch.float64)
    for each in action.generators:
        block = identity[start : start + each.multiplicity]
        start += each.multiplicity
        if each.multiplicity > trial.samples:
            source = trial.generator
            shape = (trial.samples, each.multiplicity)
            mixture = torch.randn(shape, generator=source, device=source.device)
            block = nn.functional.normalize(mixture.to(block)) @ block
        directions.append(block)
        names += [each.name] * len(block)
    chosen = torch.cat(directions).to(trial.moved)
    # Without an ideal velocity of the output there is no telling what interpolation contributes.
    known = layout.ideal_velocity(action, chosen[0], trial.outputs) is not None
    found = lie_derivatives(trial.subject, trial.inputs, action, chosen, layout, with_floor=known)
    own = found.derivatives if found.floors is None else found.derivatives - found.floors
    return [
        Finding(f"{name}, Lie derivative", trial.relative(derivative))
        for name, derivative in zip(names, own, strict=True)
    ]


def _at_a_distance(trial: Trial, action: Action, layout: Layout) -> list[Finding]:
    """Elements of each one-parameter group, of an Action that does not resample."""
    findings, moved = [], trial.moved
    linear = [each for each in (action, *_output_parts(layout)) if isinstance(each, LinearAction)]
    for index, generator in enumerate(action.generators):
        # ‖A‖ ≤ 1 on both sides where A is known.
        norms = [
            float(torch.linalg.matrix_norm(torch.tensor(each.generators[index].matrix), 2))
            for each in linear
        ]
        reach = 1 / max(norms) if norms and max(norms) > 0 else 1.0
        drawn = neighbourhood(
            action, index, reach, trial.samples, len(moved), generator=trial.generator
        )
        for coordinates in drawn.to(moved):
            there = action.act(coordinates[:, None], moved)[:, 0]
            after = trial.subject(trial.subject.with_moved(trial.inputs, there))
            difference = after - layout.move(action, coordinates, trial.outputs)
            for each in linear:
                condition = torch.linalg.cond(each.element(coordinates))
                difference = difference / condition.reshape(-1, *[1] * (difference.ndim - 1))
            error = trial.relative(difference)
            findings.append(Finding(f"{generator.name}, finite elements", error))
    return findings


def _exact_elements(trial: Trial, action: Action, layout: Layout) -> list[Finding]:
    """Those elements of an Action on grids that need no resampling."""
    findings: list[Finding] = []
    for part in parts_of(action):
        if isinstance(part, AffineAction):
            findings += _exact_elements_of_images(trial, action, part, layout)
        if isinstance(part, SequenceAction) and part.boundary == "circular":
            followed = isinstance(layout, Invariant) or (
                isinstance(layout, Grid) and trial.outputs.shape[2:] == trial.moved.shape[2:]
            )
            if "shift" in part.names and followed:
                rolls = MapAction(
                    "whole-sample shifts",
                    {Element(f"shift_{k}"): partial(torch.roll, shifts=k, dims=2) for k in (1, 2)},
                )
                findings += _elements(trial, rolls, layout if layout == Invariant() else rolls)
    return findings


def _exact_elements_of_images(
    trial: Trial, action: Action, part: AffineAction, layout: Layout
) -> list[Finding]:
    findings: list[Finding] = []
    maps = layout.to_maps(trial.outputs) if isinstance(layout, Grid | Tokens) else None
    if "rotation" in part.names and all(
        each is None or each.shape[-2] == each.shape[-1] for each in (trial.moved, maps)
    ):
        turned: Layout | FiniteAction = layout
        if isinstance(layout, Follows):
            turned = _turns_of(layout.own, action.names.index("rotation"))
        findings += _elements(trial, quarter_turns(), turned)
    if part.interpolation == "fourier" and not isinstance(layout, Follows):
        axes = tuple(f"shift_{axis}" for axis in "xy" if f"translation_{axis}" in part.names)
        tried = _elements(trial, PixelShifts(), layout, or_none=True) if axes else []
        findings += [each for each in tried if each.what.startswith(axes)]
    return findings


def _turns_of(own: Action, index: int) -> FiniteAction:
    """Quarter turns by an Action's own rotation, the coordinate at `index`."""

    def turn(data: Tensor, turns: int) -> Tensor:
        coordinates = data.new_zeros(len(data), 1, own.coordinate_count)
        coordinates[..., index] = turns * math.pi / 2
        return own.act(coordinates, data)[:, 0]

    return MapAction(
        "turns", {Element(f"turn_{90 * k}"): partial(turn, turns=k) for k in (1, 2, 3)}
    )


def _elements(
    trial: Trial,
    finite: FiniteAction,
    layout: Layout | FiniteAction,
    *,
    or_none: bool = False,
) -> list[Finding]:
    findings = []
    for _ in range(trial.samples if finite.is_random else 1):
        found = element_errors(
            trial.subject, trial.inputs, finite, layout, generator=trial.generator
        )
        if not found.names and not or_none:
            raise CallerError(
                f"{finite.name}: no element moves an output of {shape_text(trial.outputs)} by "
                "whole cells, so that nothing can be tested; take elements that do"
            )
        for name, errors in zip(found.names, found.errors, strict=True):
            findings.append(Finding(name, math.sqrt(float(errors.mean())) / trial.variation))
    return findings
