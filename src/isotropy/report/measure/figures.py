"""The drawings of `isotropy measure`: errors as bars, layers as a staircase, models as points.

Bars have a thin line for the standard error and a mark where the resampling floor is. A staircase
is Figure 4.4 of Gruver et al. (2023): operations in the order of the network along the axis, the
sum of their contributions so far upright; the largest steps are coloured and numbered. Errors that
differ by more than a factor of 30 are on a logarithmic axis.

The drawings of a record of `isotropy measure`, with the words above them.

Bars per transformation; accuracy against error, per transformation; and the staircases of Figure
4.4, of several networks over each other or of one network on its own: Σ_{j≤i} ‖C_j‖ over the
operations i, and the same sum of signed shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from isotropy.report.canvas import (
    ACCENT,
    BAND,
    INK,
    LINE,
    MUTED,
    TEXT_SIZE,
    TRUTH,
    UNITS_PER_INCH,
    quiet_axes,
    set_value_axis,
    style,
    svg_of,
)
from isotropy.report.measure.tables import (
    HIGHLIGHTED,
)
from isotropy.report.measure.words import (
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
    power_text,
    share_text,
    spread_is_large,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MOST_DECADES = 8
_LETTER_WIDTH = 0.56 * TEXT_SIZE  # of the page's font, on average
_LINES = ((ACCENT, "-"), (TRUTH, "-"), (INK, "-"), (MUTED, "-"),
          (ACCENT, "--"), (TRUTH, "--"), (INK, "--"), (MUTED, "--"),
          (ACCENT, ":"), (TRUTH, ":"), (INK, ":"), (MUTED, ":"))  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """One error: its name, value, standard error and floor; NaN where one is not known."""

    name: str
    value: float
    error: float = math.nan
    floor: float = math.nan
    main: bool = True


@dataclass(frozen=True)
class ErrorAxis:
    """An axis for errors, shared by drawings that may be compared."""

    low: float
    high: float
    is_logarithmic: bool


@dataclass(frozen=True)
class Staircase:
    """Sums of contributions, one per operation; marked: positions of the largest steps.

    percent: whether values are shares, of which the sum is 1
    """

    values: Sequence[float]
    marked: Sequence[int] = ()
    percent: bool = False


@dataclass(frozen=True)
class Point:
    """A model by its error and accuracy; main: of the first data set."""

    name: str
    error: float
    accuracy: float
    main: bool = True


def error_axis(bars: Sequence[Bar]) -> ErrorAxis:
    """From zero, or logarithmic where the errors (floors count as well) differ much."""
    tops = [bar.value + (bar.error if bar.error > 0 else 0) for bar in bars] + [
        bar.floor for bar in bars
    ]
    positive = [v for bar in bars for v in (bar.value, bar.floor) if v > 0 and math.isfinite(v)]
    high = max((top for top in tops if top > 0 and math.isfinite(top)), default=1.0)
    if not spread_is_large([bar.value for bar in bars]):
        return ErrorAxis(0.0, 1.05 * high, False)
    # Down to the decade of the least value, but not to errors that are zero up to rounding.
    least = max(min(positive), high * 10.0**-_MOST_DECADES)
    return ErrorAxis(10.0 ** math.floor(math.log10(least) - 1e-9), 1.25 * high, True)


def bars_figure(
    bars: Sequence[Bar], axis: ErrorAxis, *, width: float, left: float, key: str, label: str
) -> str:
    """SVG of errors as lying bars, one below the other, with standard errors and floors."""
    with style(key):
        height = 24 * len(bars) + 44
        figure, axes = quiet_axes(width=width, height=height, left=left, right=16)
        _set_error_axis(axes, axis)
        for place, bar in enumerate(bars):
            if not math.isfinite(bar.value):
                continue
            value = max(bar.value, axis.low)
            axes.barh(
                place, value - axis.low, left=axis.low, height=0.56,
                color=ACCENT if bar.main else MUTED, linewidth=0,
            )  # fmt: skip
            if bar.error > 0:
                ends = [max(bar.value - bar.error, axis.low), max(bar.value + bar.error, axis.low)]
                axes.plot(ends, [place, place], color=INK, linewidth=1.6, solid_capstyle="butt")
            if bar.floor >= axis.low:
                axes.plot([bar.floor] * 2, [place - 0.42, place + 0.42], color=TRUTH, linewidth=2)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        most = int((left - 10) / _LETTER_WIDTH)
        axes.set_yticks(range(len(bars)), [_shortened(bar.name, most) for bar in bars])
        axes.tick_params("y", colors=INK)
        return svg_of(figure, key=key, label=label)


def staircase_figure(staircase: Staircase, *, key: str, label: str) -> str:
    """SVG of one staircase over the number of the operation."""
    with style(key):
        figure, axes = quiet_axes(width=390, height=225, left=58, right=16)
        values = [0.0, *staircase.values]
        scale = 100.0 if staircase.percent else 1.0
        heights = [scale * value for value in values]
        axes.step(range(len(heights)), heights, where="post", color=ACCENT, linewidth=1.6, zorder=3)
        for index in staircase.marked:
            axes.plot(
                [index + 1] * 2, heights[index : index + 2], color=TRUTH, linewidth=3, zorder=4,
                solid_capstyle="butt",
            )  # fmt: skip
            axes.annotate(
                str(index + 1), (index + 1, heights[index + 1]), xytext=(0, 4),
                textcoords="offset points", ha="center", va="bottom", color=TRUTH, zorder=5,
            )  # fmt: skip
        axes.set_xlim(0, len(heights) - 0.5)
        low, high = min(heights), max(heights)
        room = 0.12 * ((high - low) or 1.0)
        axes.set_ylim(low - (room if low < 0 else 0), high + room)
        if staircase.percent:
            axes.axhline(100, color=MUTED, linewidth=0.8, dashes=(4, 3))
        _set_operation_axis(axes)
        _set_plain_axis(axes, "%" if staircase.percent else "")
        return svg_of(figure, key=key, label=label)


def staircases_figure(
    staircases: Sequence[tuple[str, Sequence[float]]], *, key: str, label: str
) -> str:
    """SVG of several networks' staircases over relative depth, each named at its end."""
    with style(key):
        figure, axes = quiet_axes(width=390, height=245, left=58, right=104)
        ends = []
        for place, (name, values) in enumerate(staircases):
            colour, dashes = _LINES[place % len(_LINES)]
            heights = [0.0, *values]
            depth = [100 * step / max(len(values), 1) for step in range(len(heights))]
            axes.plot(depth, heights, color=colour, linestyle=dashes, linewidth=1.6)
            ends.append((heights[-1], name, colour))
        axes.set_xlim(0, 100)
        axes.set_ylim(0, None)
        _set_plain_axis(axes, "")
        set_value_axis(axes, "%", horizontal=True, most_ticks=5)
        _name_ends(axes, ends)
        return svg_of(figure, key=key, label=label)


def points_figure(points: Sequence[Point], *, key: str, label: str) -> str:
    """SVG of accuracy against error, a named point per model, tied to hollow ones of other data."""
    with style(key):
        figure, axes = quiet_axes(width=390, height=250, left=52, right=24)
        axis = error_axis([Bar(point.name, point.error) for point in points])
        if not axis.is_logarithmic:
            axis = ErrorAxis(0.0, 1.1 * axis.high, False)
        _set_error_axis(axes, axis)
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        heights = [100 * point.accuracy for point in points]
        room = max(0.15 * (max(heights) - min(heights)), 1.0)
        axes.set_ylim(min(heights) - room, min(max(heights) + room, 100 + room))
        set_value_axis(axes, "%")
        places = [(max(point.error, axis.low), y) for point, y in zip(points, heights, strict=True)]
        for (x, y), point in zip(places, points, strict=True):
            axes.plot(
                [x], [y], "o", markersize=7, clip_on=False, zorder=4,
                markeredgecolor=ACCENT, markerfacecolor=ACCENT if point.main else BAND,
            )  # fmt: skip
        for name in dict.fromkeys(point.name for point in points):
            own = [place for place, p in zip(places, points, strict=True) if p.name == name]
            axes.plot(*zip(*own, strict=True), color=MUTED, linewidth=0.9, zorder=3)
        _name_points(axes, places, [point.name if point.main else "" for point in points])
        return svg_of(figure, key=key, label=label)


def _set_error_axis(axes: Axes, axis: ErrorAxis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.grid(False, axis="y")
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    if not axis.is_logarithmic:
        axes.set_xlim(axis.low, axis.high)
        _set_plain_axis(axes, "", horizontal=True)
        return
    axes.set_xscale("log")
    axes.set_xlim(axis.low, axis.high)
    decades = math.log10(axis.high / axis.low)
    # A short axis has room for 2 and 5 between the powers of ten.
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1, 3) if decades < 2 else (1,), numticks=7 if decades < 2 else 5)
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_text(value)))


def _set_plain_axis(axes: Axes, symbol: str, *, horizontal: bool = False) -> None:
    """Few ticks; numbers that are very small or large as three digits and a power of ten."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    low, high = axes.get_xlim() if horizontal else axes.get_ylim()
    size = max(abs(low), abs(high))
    if 0.01 <= size < 1e5:
        set_value_axis(axes, symbol, horizontal=horizontal)
        return
    axis = axes.xaxis if horizontal else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick_text(value)))


def _tick_text(value: float) -> str:
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    if -3 <= power < 5:
        return f"{value:,.10f}".rstrip("0").rstrip(".").replace("-", "\N{MINUS SIGN}")
    digits = f"{value / 10.0**power:.3g}".replace("-", "\N{MINUS SIGN}")
    return power_text(power) if digits == "1" else f"{digits}·{power_text(power)}"


def _set_operation_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: max(most - 1, 1)] + "…"


def _name_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Names to the right of the lines' ends, pushed apart where they would touch."""
    low, high = axes.get_ylim()
    height = axes.bbox.height / axes.figure.dpi * UNITS_PER_INCH
    gap = (high - low) * (TEXT_SIZE * 1.25) / height
    last = -math.inf
    for value, name, colour in sorted(ends):
        last = max(value, last + gap)
        axes.annotate(
            _shortened(name, 15), (1, last), xycoords=("axes fraction", "data"), xytext=(8, 0),
            textcoords="offset points", va="center", annotation_clip=False, color=colour,
        )  # fmt: skip


def _name_points(axes: Axes, places: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Each name beside its point: right, left, above or below it, where it covers least."""
    inch = axes.figure.dpi / UNITS_PER_INCH
    corners = [tuple(corner / inch for corner in axes.transData.transform(p)) for p in places]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in corners]
    right_edge = axes.bbox.x1 / inch + 22
    for (x, y), place, name in zip(corners, places, names, strict=True):
        if not name:
            continue
        text = _shortened(name, 22)
        width, half = _LETTER_WIDTH * len(text), 0.6 * TEXT_SIZE
        choices = [
            ("left", "center", 8.0, 0.0, (x + 8, y - half, x + 8 + width, y + half)),
            ("right", "center", -8.0, 0.0, (x - 8 - width, y - half, x - 8, y + half)),
            ("center", "bottom", 0.0, 6.0, (x - width / 2, y + 6, x + width / 2, y + 6 + 2 * half)),
            ("center", "top", 0.0, -6.0, (x - width / 2, y - 6 - 2 * half, x + width / 2, y - 6)),
        ]
        costs = [
            sum(_overlap(box, other) for other in taken)
            + 40 * max(0.0, box[2] - right_edge, -box[0])
            for *_, box in choices
        ]
        across, upright, dx, dy, box = choices[costs.index(min(costs))]
        taken.append(box)
        axes.annotate(
            text, place, xytext=(dx, dy), textcoords="offset points", ha=across, va=upright,
            color=INK, annotation_clip=False, zorder=5,
        )  # fmt: skip


def _overlap(
    one: tuple[float, float, float, float], other: tuple[float, float, float, float]
) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


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
