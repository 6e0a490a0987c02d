"""`assert_equivariant`: one line in a user's own tests.

    f(ρ_in(g) x) = ρ_out(g) f(x)      for all g,  up to rounding

What is checked follows from what the symmetry is:

- every generator of an Action *locally*: the Lie derivative vanishes. Where the Action resamples
  and its ideal velocity is known, what interpolation contributes is taken off first: it is not the
  network's;
- an Action that does not resample (points, vectors, intensities) also *at a distance*, at elements
  of each generator's one-parameter group up to coordinates of one; of a representation by matrices
  up to ‖A‖ = 1 in g = exp(A), on both sides;
- an Action that does resample at those elements that need no resampling: quarter turns of square
  images if it has a rotation, whole-pixel shifts if it is periodic (Fourier images, circular
  sequences). At others no network on pixels is equivariant, and failing would say nothing;
- every element of a finite action, those that are drawn several times;
- of a group and its representations every infinitesimal generator, as an Action, and every discrete
  one, as an element: together they generate the group.

Every check of a `Trial` is a `Finding` with a name and an error relative to how much the output
varies with the input,

    error = rms(f(ρ_in(g) x) − ρ_out(g) f(x)) / variation          variation = rms(f(x) − mean f)

and the same for Lie derivatives, per unit of a coordinate. An output that does not vary passes
every such test and is refused. Elements of groups that are not compact blow up rounding errors, so
that errors are divided by the condition numbers of ρ_in(g) and ρ_out(g) where these are matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least, shape_text
from isotropy.equivariance.bridge import Acting, Acts, Outputs, Own, Side, Symmetry, symmetries
from isotropy.equivariance.finite_error import (
    PixelShifts,
    element_errors,
    finite_layout,
    neighbourhood,
)
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
from isotropy.networks.one_output import Select
from isotropy.symmetry.actions.action import Action, Composition
from isotropy.symmetry.actions.finite import Element, FiniteAction, MapAction, quarter_turns
from isotropy.symmetry.actions.images import AffineAction
from isotropy.symmetry.actions.linear import LinearAction
from isotropy.symmetry.actions.sequences import SequenceAction


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


TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest relative error that counts as rounding, by the input's type."""

DRAWN_EXAMPLES = 16


def assert_equivariant(
    model: nn.Module | Callable[..., Any],
    symmetry: Symmetry | list[Symmetry],
    inputs: Inputs | None = None,
    *,
    outputs: str | Layout | Acts = "auto",
    tolerance: float | None = None,
    samples: int = 8,
    generator: torch.Generator | None = None,
    select: Select = None,
) -> float:
    """Raise `AssertionError` unless the model is equivariant; return the largest relative error.

    >>> assert_equivariant(model, points(3, ("rotation_x", "rotation_y", "rotation_z")), clouds)
    >>> assert_equivariant(layer, (vector, vector))         # vectors in, vectors out
    >>> assert_equivariant(EMLP(V, T(2), O(3)), (V, T(2), O(3)))

    model:     a module in evaluation mode, or a function of the inputs
    symmetry:  an Action, a finite action, a group or a representation bound to one; a pair
               (input's, output's) with the same coordinates, elements or group; or a list of these.
               A group alone acts on inputs by V and on outputs by V where they are as large, a
               representation alone leaves outputs as they are (`bridge`)
    inputs:    a batch of them, best of several different examples; drawn where the symmetry is a
               representation or given by matrices
    outputs:   how the output transforms where no pair says so: "auto" reads it off the axes,
               "invariant", "image", "sequence", "tokens", a Layout, an Action, a representation
    tolerance: the largest relative error; 1e-4 in single and 1e-9 in double precision by default
    samples:   elements for each generator, and draws of each random element
    generator: where elements are drawn from; by default always the same ones
    select:    which of several outputs

    The message names every generator and element that failed, with its error. A `CallerError` says
    that nothing could be tested, as when the output does not depend on the input.
    """
    check_at_least(samples, 1, what="samples")
    actings = symmetries(symmetry, outputs)
    network = model if isinstance(model, nn.Module) else _Function(model)
    if inputs is None:
        inputs = _drawn_inputs(network, actings[0].inputs)
    subject = Subject(network, select=select)
    moved = subject.moved(inputs)
    for each in actings:
        each.inputs.check(moved, what="inputs")
    subject.check(inputs)
    source = torch.Generator(moved.device).manual_seed(0) if generator is None else generator
    findings: list[Finding] = []
    with torch.no_grad():
        found = subject(inputs)
        trial = Trial(
            subject, inputs, found, variation_of(subject, inputs, found, source), samples, source
        )
        actings = [each.fitted(found) for each in actings]
        for own, others in (case for each in actings for case in each.cases()):
            findings += findings_of(trial, own, others)
    allowed = TOLERANCES.get(moved.dtype, 1e-4) if tolerance is None else tolerance
    # A NaN is not within any tolerance.
    failed = [each for each in findings if not each.error <= allowed]
    if failed:
        raise AssertionError(_message(failed, len(findings), allowed, actings))
    return max(each.error for each in findings)


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise CallerError(f"model: expected a module or a function, got {function!r}")
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor, **named: Tensor) -> Any:
        return self.function(*arguments, **named)


def _drawn_inputs(network: nn.Module, own: Side) -> Tensor:
    linear = own.continuous if isinstance(own.continuous, LinearAction) else None
    size = own.size if linear is None else linear.dimensions
    if size is None:
        raise CallerError(
            "inputs: expected a batch of them, got none; only for a representation by matrices "
            "can they be drawn"
        )
    like = next((each for each in network.parameters() if each.is_floating_point()), None)
    draws = torch.Generator().manual_seed(1)
    drawn = torch.randn((DRAWN_EXAMPLES, size), generator=draws, dtype=torch.float64)
    return drawn.to(torch.get_default_dtype()) if like is None else drawn.to(like)


def _message(
    failed: list[Finding],
    count: int,
    tolerance: float,
    actings: Sequence[Acting],
) -> str:
    worst: dict[str, float] = {}
    for each in failed:
        # A NaN compares with nothing, and stays.
        if each.what not in worst or not each.error <= worst[each.what]:
            worst[each.what] = each.error
    lines = [
        f"not equivariant: {len(failed)} of {count} checks have a relative error above the "
        f"tolerance of {tolerance:g}",
        *(f"  {what}: {error:.3g}" for what, error in sorted(worst.items(), key=lambda x: -x[1])),
    ]
    lines += [each.note for each in actings if each.note is not None]
    continuous = [each.inputs.continuous for each in actings]
    if any(part.grid_axes for own in continuous if own is not None for part in parts_of(own)):
        lines.append("isotropy.measure says which layer it comes from, and what resampling adds")
    return "\n".join(lines)
