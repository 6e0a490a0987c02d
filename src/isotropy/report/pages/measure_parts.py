"""The tables and drawings of `isotropy measure`.

Per entry there are tables of local errors, of finite ones, and of what needs no resampling. Layers
keep the order of the network; of a long network only the largest are listed, and a line says what
the rest adds up to (shares do add up, norms do not). Several entries make one table of models by
transformations, and differences between data sets or models others.

Bars have a thin line for the standard error and a mark where the resampling floor is. A staircase
is Figure 4.4 of Gruver et al. (2023): operations i in the order of the network along the axis,
Σ_{j≤i} ‖C_j‖ upright, or the same sum of signed shares; the largest steps are coloured and
numbered. Errors that differ by more than a factor of 30 are on a logarithmic axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from markupsafe import Markup

from isotropy.report.canvas import (
    ACCENT,
    BAND,
    INK,
    LETTER_WIDTH,
    LINE,
    MUTED,
    TEXT_SIZE,
    TRUTH,
    UNITS_PER_INCH,
    Drawing,
    canvas,
    name_ends,
    name_rows,
    set_value_axis,
    tick_text,
)
from isotropy.report.measured import (
    Contribution,
    Difference,
    Measured,
    MeasuredAction,
    MeasuredEntry,
    Moved,
)
from isotropy.report.page import Cell, Table, named, number
from isotropy.report.wording import (
    MISSING,
    error_text,
    joined,
    number_text,
    percent_text,
    share_text,
    shortened,
    spoken_name,
    title_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LAYERS = 40
"""Rows of a table of layers; what is smaller is added up."""
HIGHLIGHTED = 3
LEAST_POINTS = 3
"""Models from which accuracy against error is worth a drawing."""
_MOST_DECADES = 8
_LINES = [(colour, dashes) for dashes in ("-", "--", ":") for colour in (ACCENT, TRUTH, INK, MUTED)]


# --- tables -------------------------------------------------------------------------------------


def local_table(entry: MeasuredEntry) -> Table | None:
    """A row for each transformation with a local error."""
    rows = []
    for action in entry.measured:
        layer, most = action.culprit, Cell(MISSING)
        if layer is not None:
            after = f" ({layer.kind})" if layer.kind else ""
            text = Markup("{} <code>{}</code>{}").format(share_text(layer.share), layer.name, after)
            most = Cell(text)
        rows.append(
            [
                named(
                    title_of(action.name or "unnamed"),
                    f"coordinate: {action.unit}" if action.unit else "",
                ),
                number(
                    error_text(action.error, action.standard_error),
                    "within the floor" if action.is_within_floor else "",
                ),
                number(error_text(action.resampling_floor)),
                most,
            ]
        )
    titles = ("Transformation", "Error", "Resampling floor", "Largest contribution")
    return Table(titles, rows) if rows else None


def finite_table(entry: MeasuredEntry) -> Table | None:
    """A row for each transformation made in finite amounts, and shifts as Karras et al. do."""
    rows = [
        _moved_row(title_of(action.name or "unnamed"), action.finite.amounts, action.finite)
        for action in entry.actions
        if action.finite.amounts or math.isfinite(action.finite.error)
    ]
    metrics = entry.translation_metrics
    within = ""
    if math.isfinite(metrics.range):
        within = f", within {percent_text(metrics.range)} of the width"
    for metric, name, what in (
        (metrics.eq_t, "EQ-T", "whole pixels"),
        (metrics.eq_t_frac, "EQ-T frac", "fractions of a pixel"),
    ):
        if math.isfinite(metric.error):
            rows.append(_moved_row(name, what + within, metric))
    titles = ("Transformation", "Amount", "Error", "Resampling floor", "Predictions that change")
    return Table(titles, rows) if rows else None


def exact_table(entry: MeasuredEntry) -> Table | None:
    """What needs no resampling: quarter turns, whole pixels, elements of finite actions."""
    rows = []
    for row in entry.exact:
        amounts = "; ".join(text for text in (row.what, row.remark) if text)
        name, amount, error, _, changed = _moved_row(title_of(row.name or "unnamed"), amounts, row)
        rows.append([name, amount, error, changed])
    titles = ("Transformation", "Amount", "Error", "Predictions that change")
    return Table(titles, rows) if rows else None


def _moved_row(name: str, amounts: str, moved: Moved) -> list[Cell]:
    error = error_text(moved.error, moved.standard_error)
    if math.isfinite(moved.decibel):
        error += f", {number_text(moved.decibel, 1, ' dB')}"
    changed = percent_text(moved.inconsistency)
    if math.isfinite(moved.inconsistency) and math.isfinite(moved.inconsistency_standard_error):
        spread = percent_text(moved.inconsistency_standard_error)
        changed = f"{number_text(100 * moved.inconsistency, 1)} ± {spread}"
    floor = error_text(moved.resampling_floor)
    return [named(name), Cell(amounts or MISSING), number(error), number(floor), number(changed)]


def layer_table(action: MeasuredAction) -> tuple[Table, str]:
    """The largest operations in the order of the network, and what the others add up to."""
    layers, large = action.layers, action.largest(HIGHLIGHTED)
    norms, shares = _known(action, "norm"), _known(action, "share")
    whole = sum(norms) or 1.0
    sizes = [max(abs(share), norm / whole) for share, norm in zip(shares, norms, strict=True)]
    shown = sorted(sorted(range(len(layers)), key=lambda index: -sizes[index])[:MOST_LAYERS])
    has_shifts = any(math.isfinite(layers[index].eq_t) for index in shown)
    rows = [
        [
            Cell(str(index + 1)),
            named(layers[index].name or "unnamed"),
            Cell(layers[index].kind),
            number(error_text(layers[index].norm, layers[index].norm_error)),
            number(share_text(layers[index].share)),
            *([_shifted(layers[index])] if has_shifts else []),
            Cell(layers[index].judged_at),
        ]
        for index in shown
    ]
    marked = {place: "large" for place, index in enumerate(shown) if index in large}
    shifts = ("EQ-T",) if has_shifts else ()
    titles = ("No.", "Operation", "Kind", "Norm", "Share", *shifts, "Judged at")
    rest = ""
    if len(shown) < len(layers):
        share = share_text(sum(shares) - sum(shares[index] for index in shown))
        rest = (
            f"{len(layers) - len(shown)} smaller operations are not listed; their shares add up to "
            f"{share}. The run folder's result.json has them all."
        )
    return Table(titles, rows, marked, "dense"), rest


def _shifted(layer: Contribution) -> Cell:
    """The operation's own EQ-T; nothing where it has none."""
    return number(error_text(layer.eq_t, layer.eq_t_error) if math.isfinite(layer.eq_t) else "")


def _known(action: MeasuredAction, part: str) -> list[float]:
    """Norms or shares of the operations; what is missing counts as nothing."""
    values = [float(getattr(layer, part)) for layer in action.layers]
    return [value if math.isfinite(value) else 0.0 for value in values]


def comparison(measured: Measured) -> Table:
    """Models and data sets by transformations, with size and accuracy."""
    rows = []
    for entry in measured.entries:
        actions = [entry.action(name) for name in measured.action_names]
        facts = [number_text(entry.parameters, 0), percent_text(entry.accuracy)]
        errors = [error_text(each.error, each.standard_error) for each in actions]
        head = [named(entry.model or MISSING), Cell(entry.data or MISSING)]
        rows.append([*head, *map(number, [*facts, *errors])])
    titles = ("Model", "Data", "Parameters", "Accuracy", *map(title_of, measured.action_names))
    return Table(titles, rows, style="dense")


def differences(rows: Sequence[Difference], head: str) -> list[tuple[str, Table]]:
    """(title, table) of gaps or drifts for each pair of data sets or models; head: of the rows."""
    tables = []
    for start, end in dict.fromkeys((row.from_, row.to) for row in rows):
        own = [row for row in rows if (row.from_, row.to) == (start, end)]
        actions = list(dict.fromkeys(row.action for row in own))
        cells = {(row.model or row.data, row.action): _difference_cell(row) for row in own}
        lines = []
        for name in dict.fromkeys(row.model or row.data for row in own):
            own_cells = [cells.get((name, action), number(MISSING)) for action in actions]
            lines.append([named(name or MISSING), *own_cells])
        table = Table((head, *map(title_of, actions)), lines, style="dense")
        tables.append((f"From {start or MISSING} to {end or MISSING}", table))
    return tables


def _difference_cell(row: Difference) -> Cell:
    text = error_text(row.difference, row.standard_error)
    style = "number clear" if clearness(row) > 2 else "number"
    return Cell("+" + text if row.difference > 0 else text, style=style)


def clearness(row: Difference) -> float:
    """The size of a difference in its standard errors; a clear one has more than two."""
    if not math.isfinite(row.difference + row.standard_error) or not row.difference:
        return 0.0
    return abs(row.difference) / row.standard_error if row.standard_error else math.inf


# --- bars ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One error: its name, value, standard error and floor; NaN where one is not known."""

    name: str
    value: float
    error: float = math.nan
    floor: float = math.nan


@dataclass(frozen=True)
class ErrorAxis:
    """An axis for errors, shared by drawings that may be compared."""

    low: float
    high: float
    is_logarithmic: bool


def single_bars(measured: Measured) -> list[Drawing]:
    """One drawing with a bar per transformation; none where nothing was measured."""
    drawings = []
    for entry in measured.entries:
        bars = [_bar(spoken_name(action.name), action) for action in entry.measured]
        if bars:
            label = f"local errors: {_bars_label(bars)}"
            svg = bars_figure(bars, error_axis(bars), (760, 170), key="bars", label=label)
            drawings.append(Drawing("Local equivariance error", "", svg, width=760))
    return drawings


def grouped_bars(measured: Measured) -> list[Drawing]:
    """A drawing per transformation with a bar per entry, all on one axis."""
    groups = {
        name: [
            _bar(measured.name_of(entry), entry.action(name))
            for entry in measured.entries
            if math.isfinite(entry.action(name).error)
        ]
        for name in measured.action_names
    }
    axis = error_axis([bar for bars in groups.values() for bar in bars])
    drawings = []
    for place, (name, bars) in enumerate(groups.items()):
        units = (entry.action(name).unit for entry in measured.entries)
        unit = next((unit for unit in units if unit), "")
        label = f"errors under {spoken_name(name)}: {_bars_label(bars)}"
        svg = bars_figure(bars, axis, (390, 150), key=f"bars-{place}", label=label)
        drawings.append(Drawing(title_of(name), f"coordinate: {unit}" if unit else "", svg))
    return drawings


def _bar(name: str, action: MeasuredAction) -> Bar:
    return Bar(name, action.error, action.standard_error, action.resampling_floor)


def _bars_label(bars: Sequence[Bar]) -> str:
    return "; ".join(f"{bar.name} {error_text(bar.value, bar.error)}" for bar in bars)


def error_axis(bars: Sequence[Bar]) -> ErrorAxis:
    """From zero, or logarithmic where the errors (floors count as well) differ much."""
    tops = [bar.value + (bar.error if bar.error > 0 else 0) for bar in bars]
    tops += [bar.floor for bar in bars]
    high = max((top for top in tops if 0 < top < math.inf), default=1.0)
    errors = [bar.value for bar in bars if 0 < bar.value < math.inf]
    if not errors or max(errors) <= 30 * min(errors):
        return ErrorAxis(0.0, 1.05 * high, False)
    # Down to the decade of the least value, but not to errors that are zero up to rounding.
    floors = [bar.floor for bar in bars if 0 < bar.floor < math.inf]
    least = max(min(errors + floors), high * 10.0**-_MOST_DECADES)
    return ErrorAxis(10.0 ** math.floor(math.log10(least) - 1e-9), 1.25 * high, True)


def bars_figure(
    bars: Sequence[Bar], axis: ErrorAxis, size: tuple[float, float], *, key: str, label: str
) -> Markup:
    """Errors as lying bars, one below the other, with standard errors and floors.

    size: width of the drawing, and of its left margin with the names
    """
    width, left = size
    with canvas(width, 24 * len(bars) + 44, left=left, right=16, key=key, label=label) as drawn:
        axes = drawn.axes
        name_rows(axes, [bar.name for bar in bars], left)
        _set_error_axis(axes, axis)
        for place, bar in enumerate(bars):
            if not math.isfinite(bar.value):
                continue
            value = max(bar.value, axis.low)
            axes.barh(
                place, value - axis.low, left=axis.low, height=0.56, color=ACCENT, linewidth=0
            )
            if bar.error > 0:
                ends = [max(bar.value - bar.error, axis.low), max(bar.value + bar.error, axis.low)]
                axes.plot(ends, [place, place], color=INK, linewidth=1.6, solid_capstyle="butt")
            if bar.floor >= axis.low:
                axes.plot([bar.floor] * 2, [place - 0.42, place + 0.42], color=TRUTH, linewidth=2)
        axes.set_ylim(len(bars) - 0.4, -0.6)
    return drawn.svg


def _set_error_axis(axes: Axes, axis: ErrorAxis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if not axis.is_logarithmic:
        axes.set_xlim(axis.low, axis.high)
        set_value_axis(axes, horizontal=True)
        return
    axes.set_xscale("log")
    axes.set_xlim(axis.low, axis.high)
    # A short axis has room for 3 between the powers of ten.
    is_short = math.log10(axis.high / axis.low) < 2
    subs, most = ((1, 3), 7) if is_short else ((1,), 5)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=most))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))


# --- accuracy against error ---------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A model by its error and accuracy; main: of the first data set."""

    name: str
    error: float
    accuracy: float
    main: bool = True


def accuracy_drawings(measured: Measured) -> list[Drawing]:
    """Accuracy against error, per transformation, where enough entries have both."""
    drawings = []
    for place, name in enumerate(measured.action_names):
        points = [
            Point(
                entry.model or "a network",
                entry.action(name).error,
                entry.accuracy,
                entry.data == measured.entries[0].data,
            )
            for entry in measured.entries
            if math.isfinite(entry.action(name).error + entry.accuracy)
        ]
        if len(points) >= LEAST_POINTS:
            told = "; ".join(
                f"{p.name} {percent_text(p.accuracy)} at {error_text(p.error)}" for p in points
            )
            label = f"accuracy and {spoken_name(name)}: {told}"
            svg = points_figure(points, key=f"points-{place}", label=label)
            drawings.append(Drawing(title_of(name), "accuracy over local error", svg))
    return drawings


def points_figure(points: Sequence[Point], *, key: str, label: str) -> Markup:
    """Accuracy against error, a named point per model, tied to hollow ones of other data."""
    with canvas(390, 250, left=52, right=24, key=key, label=label) as drawn:
        axes = drawn.axes
        axis = error_axis([Bar(point.name, point.error) for point in points])
        if not axis.is_logarithmic:
            axis = ErrorAxis(0.0, 1.1 * axis.high, False)
        axes.grid(axis="x", color=LINE, linewidth=0.8)
        _set_error_axis(axes, axis)
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
    return drawn.svg


def _name_points(axes: Axes, places: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Each name beside its point: right, left, above or below it, where it covers least."""
    inch = axes.figure.dpi / UNITS_PER_INCH
    corners = [tuple(corner / inch for corner in axes.transData.transform(p)) for p in places]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in corners]
    right_edge = axes.bbox.x1 / inch + 22
    for (x, y), place, name in zip(corners, places, names, strict=True):
        if not name:
            continue
        text = shortened(name, 22)
        width, half = LETTER_WIDTH * len(text), 0.6 * TEXT_SIZE
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


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


# --- staircases ---------------------------------------------------------------------------------


def depth_drawings(measured: Measured) -> list[Drawing]:
    """The models' staircases on the first data set over each other, per transformation."""
    own = [entry for entry in measured.entries if entry.data == measured.entries[0].data]
    drawings = []
    for place, name in enumerate(measured.action_names):
        lines = [
            (entry.model or "a network", list(accumulate(norms)))
            for entry in own
            if (norms := _known(entry.action(name), "norm"))
        ]
        if len(lines) > 1:
            ends = "; ".join(f"{model} {error_text(norms[-1])}" for model, norms in lines)
            label = f"cumulative contributions under {spoken_name(name)}: {ends}"
            svg = staircases_figure(lines, key=f"staircases-{place}", label=label)
            note = "sum of the norms so far, over depth in the network"
            drawings.append(Drawing(title_of(name), note, svg))
    return drawings


def staircases_figure(
    staircases: Sequence[tuple[str, Sequence[float]]], *, key: str, label: str
) -> Markup:
    """Several networks' staircases over relative depth, each named at its end."""
    with canvas(390, 245, left=58, right=104, key=key, label=label) as drawn:
        axes = drawn.axes
        ends = []
        for place, (name, values) in enumerate(staircases):
            colour, dashes = _LINES[place % len(_LINES)]
            heights = [0.0, *values]
            depth = [100 * step / max(len(values), 1) for step in range(len(heights))]
            axes.plot(depth, heights, color=colour, linestyle=dashes, linewidth=1.6)
            ends.append((heights[-1], name, colour))
        axes.set_xlim(0, 100)
        axes.set_ylim(0, None)
        set_value_axis(axes)
        set_value_axis(axes, "%", horizontal=True, most_ticks=5)
        name_ends(axes, ends)
    return drawn.svg


def layer_drawings(action: MeasuredAction, key: str) -> list[Drawing]:
    """One network's staircases for one transformation: norms, and signed shares if known."""
    layers, name = action.layers, spoken_name(action.name or "an unnamed transformation")
    marked = action.largest(HIGHLIGHTED)
    told = [f"step {i + 1} is {layers[i].text.replace('`', '')}" for i in sorted(marked)]
    note = joined(told) or "no operation contributes"
    norms, shares = (list(accumulate(_known(action, part))) for part in ("norm", "share"))
    drawings = []
    if any(math.isfinite(layer.norm) for layer in layers):
        label = f"{name}: norms of {len(layers)} contributions add up to {error_text(norms[-1])}"
        svg = staircase_figure(norms, marked, key=f"{key}-norms", label=f"{label}; {note}")
        drawings.append(Drawing("Sum of the norms so far", note, svg))
    if any(math.isfinite(layer.share) for layer in layers):
        label = f"{name}: signed shares add up to {share_text(shares[-1])}; {note}"
        svg = staircase_figure(shares, marked, percent=True, key=f"{key}-shares", label=label)
        note = "of the whole error; contributions may cancel"
        drawings.append(Drawing("Signed share so far", note, svg))
    return drawings


def staircase_figure(
    sums: Sequence[float], marked: Sequence[int], *, percent: bool = False, key: str, label: str
) -> Markup:
    """One staircase over the number of the operation.

    marked: positions of the largest steps; percent: whether sums are of shares, in all 1
    """
    from matplotlib.ticker import MaxNLocator

    with canvas(390, 225, left=58, right=16, key=key, label=label) as drawn:
        axes = drawn.axes
        heights = [(100.0 if percent else 1.0) * value for value in (0.0, *sums)]
        axes.step(range(len(heights)), heights, where="post", color=ACCENT, linewidth=1.6, zorder=3)
        for index in marked:
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
        if percent:
            axes.axhline(100, color=MUTED, linewidth=0.8, dashes=(4, 3))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        set_value_axis(axes, "%" if percent else "")
    return drawn.svg
