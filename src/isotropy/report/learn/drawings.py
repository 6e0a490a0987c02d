"""Which drawings and pictures a record of `isotropy learn` gives, with the words beside them.

Axes are shared where numbers may be compared: panels of one unit have one value axis, all
panels have one epoch axis. What a record does not hold gives no drawing rather than an empty
one. How a drawing is drawn is the business of `figures` and `page`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from isotropy.report.figures import (
    Curve,
    MatrixPanel,
    RangePanel,
    ReliabilityBin,
    curves_figure,
    flow_figure,
    matrix_figure,
    range_figure,
    reliability_figure,
)
from isotropy.report.learn.reading import is_probability, reading_of
from isotropy.report.page import Drawing, picture_uri
from isotropy.report.record import LearnRecord
from isotropy.report.wording import (
    finite,
    finite_or_nan,
    mapping_of,
    number_text,
    objects_of,
    percent_text,
    spoken_name,
    title_of,
)

EXAMPLE_ROWS, EXAMPLE_COPIES, FLOW_SAMPLES = 8, 8, 8
NO_UNIT = "no unit"


def range_drawings(record: LearnRecord) -> list[Drawing]:
    """The course of each range over the epochs, against the truth where it is known.

    A range that was zero throughout has no course.
    """
    symmetries = record.result.get("symmetries") or ()
    epochs = _column(record.history, "epoch")
    courses = {symmetry["name"]: _course(record, symmetry["name"]) for symmetry in symmetries}
    drawings: list[Drawing] = []
    for index, symmetry in enumerate(symmetries):
        name, unit = symmetry["name"], symmetry.get("unit")
        reading = reading_of(unit)
        known = [value for value in courses[name] if math.isfinite(value)]
        if not any(known):
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
        what = "probability" if is_probability(symmetry) else "half-width"
        label = f"{title_of(name)}: {what} from {first} to {last} over the epochs"
        if panel.truth is not None:
            label += f"; truth {panel.truth:g}{reading.symbol}"
        svg = range_figure(panel, key=f"range-{index}", label=label)
        drawings.append(Drawing(title_of(name), str(unit or NO_UNIT), Markup(svg)))
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


def matrix_drawing(
    names: object, matrix: object, *, key: str, title: str, note: str, largest: float | None = None
) -> Drawing | None:
    """A heat map between generators, or None where the matrix does not fit the names."""
    if not isinstance(names, list | tuple) or not isinstance(matrix, list | tuple) or not names:
        return None
    if len(matrix) != len(names) or any(len(row or ()) != len(names) for row in matrix):
        return None
    values = [[finite_or_nan(value) for value in row] for row in matrix]
    spoken = [spoken_name(str(name)) for name in names]
    entries = [
        f"{spoken[i]} and {spoken[j]} {number_text(values[i][j])}"
        for i in range(len(names))
        for j in range(i)
    ]
    size = max((abs(v) for row in values for v in row if math.isfinite(v)), default=0.0)
    decimals = 2 if size < 10 else 1 if size < 100 else 0
    panel = MatrixPanel(spoken, values, decimals, largest)
    label = f"{title}: {', '.join(entries) or 'one entry'}"
    svg = Markup(matrix_figure(panel, key=key, label=label))
    return Drawing(title, note, svg, width=math.ceil(1.2 * panel.width))


def correlation_drawing(record: LearnRecord) -> Drawing | None:
    """The correlations between the amounts of correlated ranges."""
    correlations = mapping_of(record.result.get("correlations"))
    return matrix_drawing(
        correlations.get("names"),
        correlations.get("matrix"),
        key="correlations",
        title="Correlation of amounts",
        note="from −1 to 1; the columns are numbered like the rows",
        largest=1.0,
    )


def calibration_drawings(record: LearnRecord) -> list[Drawing]:
    """A reliability diagram for each way of predicting that was scored."""
    drawings: list[Drawing] = []
    for index, (name, scores) in enumerate(mapping_of(record.result.get("calibration")).items()):
        bins = _known_bins(mapping_of(scores))
        if not bins:
            continue
        ends = ", ".join(
            f"{percent_text(each.confidence, 0)} sure, {percent_text(each.accuracy, 0)} right"
            for each in bins
        )
        title = title_of(str(name))
        svg = reliability_figure(bins, key=f"reliability-{index}", label=f"{title}: {ends}")
        drawings.append(Drawing(title, "right, over how sure; per cent", Markup(svg)))
    return drawings


def _known_bins(scores: Mapping[str, Any]) -> list[ReliabilityBin]:
    bins = objects_of(scores.get("bins"))
    total = sum(finite(each.get("count")) or 0.0 for each in bins)
    known: list[ReliabilityBin] = []
    for each in bins:
        numbers = [finite(each.get(n)) for n in ("low", "high", "count", "confidence", "accuracy")]
        low, high, count, confidence, accuracy = (finite_or_nan(number) for number in numbers)
        if None not in numbers and count > 0:
            known.append(ReliabilityBin(low, high, count / total, confidence, accuracy))
    return known


def _course(record: LearnRecord, name: str) -> list[float]:
    return [finite_or_nan((row.get("ranges") or {}).get(name)) for row in record.history]


def _column(history: Sequence[Mapping[str, Any]], name: str, factor: float = 1.0) -> list[float]:
    return [factor * finite_or_nan(row.get(name)) for row in history]


def _last_text(curve: Curve, percent: bool) -> str:
    last = [value for value in curve.values if math.isfinite(value)][-1]
    return number_text(last, 1, " %") if percent else number_text(last, 3)
