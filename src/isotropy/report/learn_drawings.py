"""Which drawings and pictures a record of `isotropy learn` gives, with the words beside them.

Axes are shared where numbers may be compared: panels of one unit have one value axis, all
panels have one epoch axis. What a record does not hold gives no drawing rather than an empty
one. How a drawing is drawn is the business of `figures` and `pictures`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from isotropy.report.figures import Curve, RangePanel, curves_figure, flow_figure, range_figure
from isotropy.report.pictures import picture_uri
from isotropy.report.reading import finite, number_text, reading_of, spoken_name
from isotropy.report.record import LearnRecord

EXAMPLE_ROWS, EXAMPLE_COPIES, FLOW_SAMPLES = 8, 8, 8
NO_UNIT = "no unit"


@dataclass(frozen=True)
class Drawing:
    """An inline SVG with the words that go above it."""

    title: str
    note: str
    svg: Markup


def title_of(symmetry: Mapping[str, Any]) -> str:
    """A symmetry's name as a heading: "Translation along x"."""
    name = spoken_name(str(symmetry["name"]))
    return name[:1].upper() + name[1:]


def range_drawings(record: LearnRecord) -> list[Drawing]:
    """The course of each range over the epochs, against the truth where it is known."""
    symmetries = record.result.get("symmetries") or ()
    epochs = _column(record.history, "epoch")
    courses = {symmetry["name"]: _course(record, symmetry["name"]) for symmetry in symmetries}
    drawings: list[Drawing] = []
    for index, symmetry in enumerate(symmetries):
        name, unit = symmetry["name"], symmetry.get("unit")
        reading = reading_of(unit)
        known = [value for value in courses[name] if math.isfinite(value)]
        if not known:
            continue
        alike = [other["name"] for other in symmetries if other.get("unit") == unit]
        heights = [value for other in alike for value in courses[other] if math.isfinite(value)]
        heights += [record.truth[other] for other in alike if other in record.truth]
        panel = RangePanel(
            curve=Curve(epochs, courses[name]),
            truth=record.truth.get(name),
            found=reading.found,
            top=1.06 * max([1.5 * reading.found, *heights]),
            symbol=reading.symbol,
        )
        first, last = (
            number_text(v, reading.decimals, reading.symbol) for v in (known[0], known[-1])
        )
        label = f"{title_of(symmetry)}: half-width from {first} to {last} over the epochs"
        if panel.truth is not None:
            label += f"; truth {panel.truth:g}{reading.symbol}"
        svg = range_figure(panel, key=f"range-{index}", label=label)
        drawings.append(Drawing(title_of(symmetry), str(unit or NO_UNIT), Markup(svg)))
    return drawings


def curve_drawings(record: LearnRecord) -> list[Drawing]:
    """Evidence (or, where there is none, the training loss) and accuracy over epochs."""
    history, examples = record.history, finite(record.result.get("train_examples"))
    epochs = _column(history, "epoch")
    evidence = Curve(epochs, _column(history, "log_evidence_per_example"), "evidence")
    fits = _column(history, "log_likelihood", 1 / examples if examples else math.nan)
    candidates = [
        ("Log evidence per example", "nats; with the log likelihood it trades against",
         [evidence, Curve(epochs, fits, "likelihood", main=False)], False),
        ("Accuracy", "per cent of examples",
         [Curve(epochs, _column(history, "test_accuracy", 100), "test"),
          Curve(epochs, _column(history, "train_accuracy", 100), "training", main=False)], True),
    ]  # fmt: skip
    if not any(map(math.isfinite, evidence.values)):
        loss = Curve(epochs, _column(history, "train_loss"), "loss")
        candidates[0] = ("Training loss", "per example; no evidence was computed", [loss], False)
    drawings: list[Drawing] = []
    for index, (title, note, curves, percent) in enumerate(candidates):
        known = [curve for curve in curves if any(map(math.isfinite, curve.values))]
        if not known:
            continue
        ends = ", ".join(f"{curve.label} ends at {_last_text(curve, percent)}" for curve in known)
        label = f"{title} over the epochs: {ends}"
        svg = curves_figure(known, percent=percent, key=f"curve-{index}", label=label)
        drawings.append(Drawing(title, note, Markup(svg)))
    return drawings


def example_pictures(record: LearnRecord) -> list[list[str]]:
    """Rows of picture URIs: the original first, then sampled copies."""
    if record.examples is None:
        return []
    shown = record.examples[:EXAMPLE_ROWS, : 1 + EXAMPLE_COPIES]
    return [[picture_uri(image) for image in row] for row in shown]


def flow_drawings(record: LearnRecord) -> list[Drawing]:
    """The first few sampled transformations whose points are all numbers."""
    if record.flows is None:
        return []
    flows = [flow for flow in record.flows if np.isfinite(flow).all()][:FLOW_SAMPLES]
    drawings: list[Drawing] = []
    for index, flow in enumerate(flows, start=1):
        # Without a known shape the points themselves say how large the image is.
        width, height = (math.ceil(size) for size in flow[0].max(axis=(0, 1)) + 1)
        shape = record.image_shape or (height, width)
        label = f"Sampled transformation {index}: arrows from where content is to where it moves"
        svg = flow_figure(flow, shape, key=f"flow-{index}", label=label)
        drawings.append(Drawing(f"Sample {index}", "", Markup(svg)))
    return drawings


def _course(record: LearnRecord, name: str) -> list[float]:
    return [_nan_if_missing((row.get("ranges") or {}).get(name)) for row in record.history]


def _nan_if_missing(value: object) -> float:
    number = finite(value)
    return math.nan if number is None else number


def _column(history: Sequence[Mapping[str, Any]], name: str, factor: float = 1.0) -> list[float]:
    return [factor * _nan_if_missing(row.get(name)) for row in history]


def _last_text(curve: Curve, percent: bool) -> str:
    last = [value for value in curve.values if math.isfinite(value)][-1]
    return number_text(last, 1, " %") if percent else number_text(last, 3)
