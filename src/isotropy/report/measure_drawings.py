"""The drawings of a record of `isotropy measure`, with the words above them.

Bars per transformation; accuracy against error, per transformation; and the staircases of Figure
4.4, of several networks over each other or of one network on its own: Σ_{j≤i} ‖C_j‖ over the
operations i, and the same sum of signed shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from isotropy.report.measure_figures import (
    Bar,
    Point,
    Staircase,
    bars_figure,
    error_axis,
    points_figure,
    staircase_figure,
    staircases_figure,
)
from isotropy.report.measure_tables import (
    HIGHLIGHTED,
)
from isotropy.report.measure_words import (
    Row,
    action_name,
    action_names_of,
    action_of,
    entries_of,
    entry_name,
    error_text,
    largest_layers,
    layer_text,
    layers_of,
    measured_actions,
    share_text,
)
from isotropy.report.page import (
    Drawing,
)
from isotropy.report.wording import (
    finite,
    finite_or_nan,
    joined,
    percent_text,
    spoken_name,
    title_of,
)

LEAST_POINTS = 3
"""Models from which accuracy against error is worth a drawing."""


def _bar(name: str, action: Row) -> Bar:
    return Bar(
        name,
        finite_or_nan(action.get("error")),
        finite_or_nan(action.get("standard_error")),
        finite_or_nan(action.get("resampling_floor")),
    )


def _bars_label(bars: Sequence[Bar]) -> str:
    return "; ".join(f"{bar.name} {error_text(bar.value, bar.error)}" for bar in bars)


def single_bars(record: Mapping[str, Any]) -> list[Drawing]:
    """One drawing with a bar per transformation; none where nothing was measured."""
    drawings = []
    for entry in entries_of(record):
        bars = [_bar(action_name(action), action) for action in measured_actions(entry)]
        if bars:
            svg = bars_figure(
                bars, error_axis(bars), width=760, left=170, key="bars",
                label=f"local errors: {_bars_label(bars)}",
            )  # fmt: skip
            drawings.append(Drawing("Local equivariance error", "", Markup(svg), width=760))
    return drawings


def grouped_bars(record: Mapping[str, Any]) -> list[Drawing]:
    """A drawing per transformation with a bar per entry, all on one axis."""
    groups = {}
    for name in action_names_of(record):
        pairs = [(entry, action_of(entry, name)) for entry in entries_of(record)]
        groups[name] = [
            _bar(entry_name(entry, record), action)
            for entry, action in pairs
            if finite(action.get("error")) is not None
        ]
    axis = error_axis([bar for bars in groups.values() for bar in bars])
    drawings = []
    for place, (name, bars) in enumerate(groups.items()):
        unit = next(
            (unit for e in entries_of(record) if (unit := action_of(e, name).get("unit"))), None
        )
        svg = bars_figure(
            bars, axis, width=390, left=150, key=f"bars-{place}",
            label=f"errors under {spoken_name(name)}: {_bars_label(bars)}",
        )  # fmt: skip
        note = f"coordinate: {unit}" if unit else ""
        drawings.append(Drawing(title_of(name), note, Markup(svg)))
    return drawings


def accuracy_drawings(record: Mapping[str, Any]) -> list[Drawing]:
    """Accuracy against error, per transformation, where enough entries have both."""
    entries = entries_of(record)
    first = entries[0].get("data") if entries else None
    drawings = []
    for place, name in enumerate(action_names_of(record)):
        points = []
        for entry in entries:
            error = finite(action_of(entry, name).get("error"))
            accuracy = finite(entry.get("accuracy"))
            if error is not None and accuracy is not None:
                model = str(entry.get("model") or "a network")
                points.append(Point(model, error, accuracy, entry.get("data") == first))
        if len(points) >= LEAST_POINTS:
            told = "; ".join(
                f"{p.name} {percent_text(p.accuracy)} at {error_text(p.error)}" for p in points
            )
            svg = points_figure(
                points, key=f"points-{place}", label=f"accuracy and {spoken_name(name)}: {told}"
            )
            drawings.append(Drawing(title_of(name), "accuracy over local error", Markup(svg)))
    return drawings


def _sums(action: Row, part: str) -> list[float]:
    """Σ_{j≤i} of norms ‖C_j‖ or shares, for each operation i; what is missing counts as nothing."""
    return list(accumulate(finite(layer.get(part)) or 0.0 for layer in layers_of(action)))


def depth_drawings(record: Mapping[str, Any]) -> list[Drawing]:
    """The models' staircases on the first data set over each other, per transformation."""
    entries = entries_of(record)
    own = [entry for entry in entries if entry.get("data") == entries[0].get("data")]
    drawings = []
    for place, name in enumerate(action_names_of(record)):
        pairs = [
            (str(entry.get("model") or "a network"), _sums(action_of(entry, name), "norm"))
            for entry in own
        ]
        lines = [(model, norms) for model, norms in pairs if norms]
        if len(lines) > 1:
            ends = "; ".join(f"{model} {error_text(norms[-1])}" for model, norms in lines)
            svg = staircases_figure(
                lines,
                key=f"staircases-{place}",
                label=f"cumulative contributions under {spoken_name(name)}: {ends}",
            )
            note = "sum of the norms so far, over depth in the network"
            drawings.append(Drawing(title_of(name), note, Markup(svg)))
    return drawings


def layer_drawings(action: Row, key: str) -> list[Drawing]:
    """One network's staircases for one transformation: norms, and signed shares if known."""
    layers, name = layers_of(action), action_name(action)
    marked = largest_layers(action, HIGHLIGHTED)
    told = [
        f"step {index + 1} is {layer_text(layers[index]).replace('`', '')}"
        for index in sorted(marked)
    ]
    note = joined(told) if told else "no operation contributes"
    known = {
        part: any(finite(layer.get(part)) is not None for layer in layers)
        for part in ("norm", "share")
    }
    drawings = []
    if known["norm"]:
        norms = _sums(action, "norm")
        svg = staircase_figure(
            Staircase(norms, marked),
            key=f"{key}-norms",
            label=f"{name}: norms of {len(layers)} contributions add up to "
            f"{error_text(norms[-1])}; {note}",
        )
        drawings.append(Drawing("Sum of the norms so far", note, Markup(svg)))
    if known["share"]:
        shares = _sums(action, "share")
        svg = staircase_figure(
            Staircase(shares, marked, percent=True),
            key=f"{key}-shares",
            label=f"{name}: signed shares add up to {share_text(shares[-1])}; {note}",
        )
        note = "of the whole error; contributions may cancel"
        drawings.append(Drawing("Signed share so far", note, Markup(svg)))
    return drawings
