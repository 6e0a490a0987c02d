"""Everything that is measured of one network on one data set, as part of a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.equivariance.bridge import Acting, Outputs, Own, Side
from isotropy.equivariance.finite_error import (
    amounts_text,
    default_half_width,
    element_errors,
    exact_errors,
    finite_errors,
    finite_layout,
    neighbourhood,
)
from isotropy.equivariance.layouts import Follows, Invariant, Layout
from isotropy.equivariance.measurement import (
    default_batch,
    mean_and_error,
    measure_action,
    output_layout,
)
from isotropy.equivariance.subject import Inputs, Subject, rows_of
from isotropy.equivariance.translation_metrics import FRACTION, translation_errors
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.images import AffineAction, affine
from isotropy.workflows.runs.prepared import device_of

Progress = Callable[[str, int, int], None]

FINITE_SAMPLES = 8
"""Elements near the identity for each example."""


@dataclass(frozen=True, eq=False)
class MeasuredData:
    """Examples to measure on, and all that there are with labels, for the accuracy."""

    label: str
    name: str
    inputs: Inputs
    labelled: LabelledData | None


def measured_entry(
    subject: Subject,
    data: MeasuredData,
    actings: Sequence[Acting],
    *,
    layers: Mapping[str, Any],
    finite: bool,
    skip_unknown: bool,
    seed: int,
    tell: Progress,
) -> dict[str, Any]:
    """Everything about one network on one data set.

    actings:      what is measured, and how the output moves
    skip_unknown: leave out, with a remark, Actions under which the output cannot be known to move.
    """
    place = device_of(subject.network)
    dtype = next((p.dtype for p in subject.network.parameters()), None)
    inputs = _placed(data.inputs, place, dtype)
    for acting in actings:
        acting.inputs.check(subject.moved(inputs), what="inputs")
    subject.check(inputs)
    with torch.no_grad():
        output = subject(rows_of(inputs, slice(0, 1)))
    actings = [acting.fitted(output) for acting in actings]
    cases = [case for acting in actings for case in acting.cases()]
    # Derivatives come in batches of their own; what only needs outputs is cut up here.
    size = layers["batch_size"] or default_batch(subject.moved(inputs))
    in_parts = replace(subject, at_once=size)
    generator = torch.Generator().manual_seed(seed)
    measured: list[dict[str, Any]] = []
    layout = _layout(subject, inputs, cases)
    remarks = [acting.note for acting in actings if acting.note is not None]
    for action, outputs in cases:
        if isinstance(action, FiniteAction):
            continue
        assert not isinstance(outputs, FiniteAction), "an Action goes with an Action"
        if skip_unknown:
            try:
                output_layout(subject, inputs, action, outputs)
            except CallerError as error:
                remarks.append(f"{', '.join(action.names)} left out: {error}")
                continue

        def on_the_way(done: int, total: int, text: str = ", ".join(action.names)) -> None:
            tell(text, done, total)

        found = measure_action(
            subject,
            inputs,
            action,
            outputs=outputs,
            generator=generator,
            progress=on_the_way,
            **layers,
        )
        own, _ = output_layout(subject, inputs, action, outputs)
        for number, each in enumerate(found):
            row = asdict(each)
            row["layers"] = [dict(layer) for layer in row["layers"]]
            row["finite"] = None
            if finite:
                tell(f"{each.name}, finite", 0, 1)
                row["finite"] = _finite(in_parts, inputs, action, number, own, generator)
            measured.append(row)
    exact: list[dict[str, Any]] = []
    translations = None
    if finite:
        tell("exact elements", 0, 1)
        moved = subject.moved(inputs)
        if moved.ndim == 4 and any(isinstance(own, AffineAction) for own, _ in cases):
            exact = _exact(in_parts, inputs, layout)
            if not isinstance(layout, Follows):
                translations = _translations(in_parts, inputs, layout, generator)
        exact += [
            _element(in_parts, inputs, own, _finite_layout(own, outputs, layout, output))
            for own, outputs in cases
            if isinstance(own, FiniteAction)
        ]
    else:
        left = [own.name for own, _ in cases if isinstance(own, FiniteAction)]
        remarks += [f"{name} left out: finite=False" for name in left]
    if data.labelled is not None and not data.labelled.is_classification:
        # The largest of several numbers is no prediction where these are no classes.
        for row in measured:
            if row["finite"] is not None:
                row["finite"].update(inconsistency=None, inconsistency_standard_error=None)
        for row in exact:
            row["inconsistency"] = None
    return {
        "parameters": sum(p.numel() for p in subject.network.parameters()),
        "data": data.label,
        "data_name": data.name,
        "examples": len(subject.moved(inputs)),
        "accuracy": _accuracy(in_parts, data.labelled, place, dtype),
        "output": _output_text(actings, layout),
        "output_dimension": math.prod(output.shape[1:]),
        "actions": measured,
        "exact": exact,
        "translation_metrics": translations,
        "remarks": remarks,
    }


def _layout(subject: Subject, inputs: Inputs, cases: Sequence[tuple[Own, Outputs]]) -> Layout:
    """How the output moves when places move: by the first Action with a grid, else by any."""
    continuous = [
        (own, outputs)
        for own, outputs in cases
        if isinstance(own, Action) and not isinstance(outputs, FiniteAction)
    ]
    first = next((case for case in continuous if case[0].grid_axes), None)
    if not continuous:
        said = cases[0][1]
        if subject.moved(inputs).ndim != 4 or isinstance(said, FiniteAction):
            return Invariant()
        # Stands for the places that flips and turns move.
        first = affine(("rotation",)), said
    return output_layout(subject, inputs, *(first or continuous[0]))[0]


def _finite_layout(
    own: FiniteAction, outputs: Outputs, layout: Layout, output: Tensor
) -> Layout | FiniteAction:
    """How the output follows single elements: as said for them, else as it follows the Actions.

    An Action of the output's own is another symmetry's, and says nothing about elements.
    """
    assert not isinstance(outputs, Action), "a finite action goes with a finite action"
    if isinstance(outputs, FiniteAction) or outputs == "invariant" or isinstance(layout, Follows):
        return finite_layout(own, outputs, output)
    return layout


def _output_text(actings: Sequence[Acting], layout: Layout) -> str:
    """What the output's motion is called: that of the Actions, else that of the elements."""
    first = actings[0]
    if first.inputs.continuous is None and isinstance(first.outputs, Side):
        return first.outputs.text
    return layout.text


def _placed(inputs: Inputs, place: torch.device, dtype: torch.dtype | None) -> Inputs:
    """Inputs where the network is; floating-point ones in its precision."""

    def put(tensor: Tensor) -> Tensor:
        floating = tensor.is_floating_point() and dtype is not None
        return tensor.to(place, dtype) if floating else tensor.to(place)

    if isinstance(inputs, Tensor):
        return put(inputs)
    return {name: put(tensor) for name, tensor in inputs.items()}


def _finite(
    subject: Subject,
    inputs: Inputs,
    action: Action,
    number: int,
    layout: Layout,
    generator: torch.Generator,
) -> dict[str, Any]:
    which = action.generators[number]
    half_width = default_half_width(which)
    count = len(subject.moved(inputs))
    coordinates = neighbourhood(
        action, number, half_width, FINITE_SAMPLES, count, generator=generator
    )
    found = finite_errors(subject, inputs, action, layout, coordinates)
    changed = _told(found.inconsistency)
    return {
        "amounts": amounts_text(which, half_width),
        "samples": FINITE_SAMPLES,
        **_told(found.errors),
        "resampling_floor": mean_and_error(found.floors)[0],
        "inconsistency": changed["error"],
        "inconsistency_standard_error": changed["standard_error"],
    }


def _told(errors: Tensor | None) -> dict[str, float | None]:
    """Mean and standard error of errors (examples), as a record has them."""
    error, spread = (None, None) if errors is None else mean_and_error(errors)
    return {"error": error, "standard_error": spread}


def _exact(subject: Subject, inputs: Inputs, layout: Layout) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "what": each.what,
            **_told(each.errors),
            "inconsistency": _told(each.inconsistency)["error"],
            "remark": each.remark,
        }
        for each in exact_errors(subject, inputs, layout)
    ]


def _element(
    subject: Subject, inputs: Inputs, finite: FiniteAction, layout: Layout | FiniteAction
) -> dict[str, Any]:
    found = element_errors(subject, inputs, finite, layout)
    changed = None if found.inconsistency is None else float(found.inconsistency.mean())
    skipped = f"left out: {', '.join(found.skipped)}" if found.skipped else None
    return {
        "name": finite.name,
        "what": ", ".join(found.names),
        **_told(found.errors.mean(0) if found.names else None),
        "inconsistency": changed,
        "remark": skipped,
    }


def _translations(
    subject: Subject, inputs: Inputs, layout: Layout, generator: torch.Generator
) -> dict[str, Any] | None:
    record: dict[str, Any] = {"range": FRACTION}
    for name, whole in (("eq_t", True), ("eq_t_frac", False)):
        found = translation_errors(
            subject, inputs, layout, whole_pixels=whole, samples=FINITE_SAMPLES, generator=generator
        )
        if found is None:
            return None
        record[name] = {
            **_told(found.errors),
            "resampling_floor": mean_and_error(found.floors)[0],
            "decibel": found.decibel,
        }
    return record


def _accuracy(
    subject: Subject,
    labelled: LabelledData | None,
    place: torch.device,
    dtype: torch.dtype | None,
) -> float | None:
    if labelled is None or not labelled.is_classification:
        return None
    right = 0
    with torch.no_grad():
        for start in range(0, len(labelled), 500):
            batch = labelled.inputs[start : start + 500].to(place, dtype)
            scores = subject(batch)
            if scores.ndim != 2 or scores.shape[1] != labelled.num_classes:
                return None  # classes of its own, as a network that was trained elsewhere has
            targets = labelled.targets[start : start + 500].to(place)
            right += int((scores.argmax(1) == targets).sum())
    return right / len(labelled)
