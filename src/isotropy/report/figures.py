"""The drawings that pages share: curves, ranges, profiles, matrices, reliability, and flows.

Each is small and single: the page lays them out side by side or, on a phone, in a column. Colours,
axes and the way into the page are those of `canvas`; titles and units are left to the page.

A flow shows one transformation g = exp(A), which moves a point p along the curve exp(tA) p, t from
0 to 1. A record keeps only p and exp(A) p; for affine maps of the plane that is enough to find the
curve again. Its arrays are (…, 2) with (x right, y down) in pixels, and `flow`
(2, rows, columns, 2) has in [0] where points start and in [1] where their content moves to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from scipy.interpolate import make_interp_spline
from scipy.linalg import fractional_matrix_power

from isotropy.report.canvas import (
    ACCENT,
    BAND,
    INK,
    LETTER_WIDTH,
    LINE,
    MUTED,
    TRUTH,
    Drawing,
    canvas,
    name_ends,
    set_epoch_axis,
    set_value_axis,
)
from isotropy.report.record import CalibrationScores, Epoch, Interval
from isotropy.report.wording import number_text, percent_text, spoken_name, title_of

FLOW_SAMPLES = 8
_ARROWS_PER_SIDE = 6


def flow_lines(flow: np.ndarray, steps: int = 16) -> np.ndarray:
    """Paths (points, steps + 1, 2) of exp(tA) p for t from 0 to 1, from p and exp(A) p alone.

    The map is fitted as one 3 × 3 affine matrix M, and M^(1/steps) is applied step by step. A
    motion that is not affine, or a half turn, which has no unique root, is shown by straight lines
    instead.
    """
    start, end = flow.reshape(2, -1, 2).astype(np.float64)
    around = start.mean(axis=0)
    places = np.hstack([start - around, np.ones((len(start), 1))])
    fitted, *_ = np.linalg.lstsq(places, end - around, rcond=None)
    root = fractional_matrix_power(np.vstack([fitted.T, [0.0, 0.0, 1.0]]), 1 / steps).real
    points = [places]
    for _ in range(steps):
        points.append(points[-1] @ root.T)
    paths: np.ndarray = np.stack(points, axis=1)[..., :2] + around
    if np.allclose(paths[:, -1], end, rtol=0, atol=0.01 * float(np.abs(start - around).max())):
        return paths
    share = np.linspace(0, 1, steps + 1)[:, None]
    straight: np.ndarray = (1 - share) * start[:, None] + share * end[:, None]
    return straight


def lines_apart(lines: np.ndarray, distance: float) -> np.ndarray:
    """Those lines that keep their distance from all earlier ones, so that none hides another."""
    kept: list[np.ndarray] = []
    for line in lines:
        gaps = (np.linalg.norm(line[:, None] - other[None], axis=-1).min() for other in kept)
        if all(gap >= distance for gap in gaps):
            kept.append(line)
    return np.stack(kept)


def arrow_heads(lines: np.ndarray, size: float) -> list[np.ndarray]:
    """A triangle (3, 2) at the end of each line (steps + 1, 2), along its last step."""
    heads: list[np.ndarray] = []
    for line in lines:
        along = line[-1] - line[-2]
        along = size * along / np.hypot(*along)
        across = 0.5 * np.array([-along[1], along[0]])
        back = line[-1] - along
        heads.append(np.stack([line[-1] + 0.3 * along, back + across, back - across]))
    return heads


def thinned(flow: np.ndarray, per_side: int) -> np.ndarray:
    """A flow at no more than `per_side` rows and columns, evenly spaced by interpolation."""
    for axis in (1, 2):
        size = flow.shape[axis]
        if size > per_side:
            line = make_interp_spline(np.arange(size), flow, k=1, axis=axis)
            flow = line(np.linspace(0, size - 1, per_side))
    return flow


def border(grid: np.ndarray) -> np.ndarray:
    """The closed border of a grid of points (rows, columns, 2), as (points, 2)."""
    sides = (grid[0], grid[1:, -1], grid[-1, -2::-1], grid[-2::-1, 0])
    return np.concatenate(sides)


def flow_drawings(flows: np.ndarray | None, image_shape: tuple[int, int] | None) -> list[Drawing]:
    """The first few sampled transformations (samples, 2, rows, columns, 2) that are all numbers."""
    drawings: list[Drawing] = []
    known = [flow for flow in (() if flows is None else flows) if np.isfinite(flow).all()]
    for index, flow in enumerate(known[:FLOW_SAMPLES], start=1):
        # Without a known shape the points themselves say how large the image is.
        width, height = (math.ceil(size) for size in flow[0].max(axis=(0, 1)) + 1)
        label = f"Sampled transformation {index}: arrows from where content is to where it moves"
        svg = flow_figure(flow, image_shape or (height, width), key=f"flow-{index}", label=label)
        drawings.append(Drawing(f"Sample {index}", "", svg))
    return drawings


def flow_figure(flow: np.ndarray, image_shape: tuple[int, int], *, key: str, label: str) -> Markup:
    """One sampled transformation: flow lines, and the image's frame before and after.

    The after-frame is the moved border of the grid of points; its upper edge is drawn thicker, so
    that one sees which way up the image is.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    height, width = image_shape
    reach = 0.5 * 1.44 * max(height, width)
    lines = lines_apart(
        flow_lines(thinned(flow, _ARROWS_PER_SIDE)), 0.55 * max(height, width) / _ARROWS_PER_SIDE
    )
    moved = lines[np.hypot(*(lines[:, -1] - lines[:, 0]).T) > 0.02 * reach]
    with canvas(150, 150, key=key, label=label) as drawn:
        axes = drawn.axes
        axes.plot(*border(flow[0]).T, color=MUTED, linewidth=0.7, alpha=0.5)
        axes.plot(*border(flow[1]).T, color=ACCENT, linewidth=0.9)
        axes.plot(*flow[1, 0].T, color=ACCENT, linewidth=2.6, solid_capstyle="round")
        axes.add_collection(LineCollection(list(moved), colors=MUTED, linewidths=0.9))
        axes.add_collection(PolyCollection(arrow_heads(moved, 0.055 * reach), facecolors=INK))
        axes.plot(*lines[:, 0].T, "o", color=MUTED, markersize=2.4, markeredgewidth=0)
        axes.set_xlim(width / 2 - reach, width / 2 + reach)
        axes.set_ylim(height / 2 + reach, height / 2 - reach)
    return drawn.svg


@dataclass(frozen=True)
class Curve:
    """One line of a panel: a value per epoch (NaN where there is none) and how it is named."""

    epochs: Sequence[float]
    values: Sequence[float]
    label: str = ""
    main: bool = True

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Epochs and values where both are known."""
        return _finite_points(self.epochs, self.values)


@dataclass(frozen=True)
class CurvePanel:
    """Curves that share one unit, with the words above them."""

    title: str
    note: str
    curves: Sequence[Curve]
    percent: bool = False


def curve_drawings(panels: Iterable[CurvePanel]) -> list[Drawing]:
    """Panels of curves over the epochs, each named at its end, the main ones in colour.

    A curve, and a panel, of which nothing is known is left out.
    """
    drawings: list[Drawing] = []
    for place, panel in enumerate(panels):
        known = [curve for curve in panel.curves if len(curve.points[1])]
        if not known:
            continue
        symbol, decimals = (" %", 1) if panel.percent else ("", 3)
        told = ", ".join(
            f"{curve.label} ends at {number_text(curve.points[1][-1], decimals, symbol)}"
            for curve in known
        )
        label = f"{panel.title} over the epochs: {told}"
        with canvas(390, 225, left=46, right=62, key=f"curve-{place}", label=label) as drawn:
            ends = []
            for curve in known:
                epochs, values = curve.points
                colour, width = (ACCENT, 1.8) if curve.main else (MUTED, 1.2)
                drawn.axes.plot(epochs, values, color=colour, linewidth=width)
                drawn.axes.plot(
                    epochs[-1:], values[-1:], "o", color=colour, markersize=4.5, clip_on=False
                )
                ends.append((float(values[-1]), curve.label, colour))
            set_epoch_axis(drawn.axes, [epoch for curve in known for epoch in curve.epochs])
            set_value_axis(drawn.axes, "%" if panel.percent else "")
            name_ends(drawn.axes, ends)
        drawings.append(Drawing(panel.title, panel.note, drawn.svg))
    return drawings


def accuracy_panel(rows: Sequence[Epoch]) -> CurvePanel:
    """Accuracy on test and training data over epochs."""
    epochs = [row.epoch for row in rows]
    curves = [
        Curve(epochs, [100 * row.test_accuracy for row in rows], "test"),
        Curve(epochs, [100 * row.train_accuracy for row in rows], "training", main=False),
    ]
    return CurvePanel("Accuracy", "per cent of examples", curves, percent=True)


@dataclass(frozen=True)
class RangePanel:
    """The course of one learned range: half-width per epoch, in its unit.

    truth: the true half-width, or NaN; found: the threshold, shown as the top of a band
    top:   upper end of the axis, shared by all panels of one unit; symbol: after each number
    """

    curve: Curve
    truth: float
    found: float
    top: float
    symbol: str = ""


def range_figure(panel: RangePanel, *, key: str, label: str) -> Markup:
    """A range over epochs against its truth (dashed) and the threshold (band)."""
    with canvas(300, 190, left=42, key=key, label=label) as drawn:
        axes = drawn.axes
        epochs, values = panel.curve.points
        axes.axhspan(0, panel.found, color=BAND, linewidth=0)
        axes.plot(epochs, values, color=ACCENT, linewidth=1.8, clip_on=False, zorder=3)
        axes.plot(epochs[-1:], values[-1:], "o", color=ACCENT, markersize=5, clip_on=False)
        if math.isfinite(panel.truth):
            axes.axhline(
                panel.truth, color=TRUTH, linewidth=1.3, dashes=(4, 3), clip_on=False, zorder=2
            )
        axes.set_ylim(0, panel.top)
        set_epoch_axis(axes, panel.curve.epochs)
        set_value_axis(axes, panel.symbol)
    return drawn.svg


_CELL, _ROW = 52.0, 30.0
_STRENGTH = 0.5


def matrix_drawing(
    names: Sequence[str],
    matrix: Sequence[Sequence[float]],
    *,
    key: str,
    title: str,
    note: str,
    largest: float = 0.0,
) -> Drawing | None:
    """A symmetric matrix between generators as a heat map with its numbers in it.

    Above zero in the accent colour, below in the other, each as strong as its share of the largest
    entry (or of `largest`, for correlations 1). Half strength at most, so that the numbers can be
    read on every cell in light and dark. Names are on the left, numbers of the rows above. None
    where the matrix does not fit the names.
    """
    from matplotlib.patches import Rectangle

    size = len(names)
    if not size or len(matrix) != size or any(len(row) != size for row in matrix):
        return None
    spoken = [spoken_name(name) for name in names]
    known = [abs(value) for row in matrix for value in row if math.isfinite(value)]
    most = max(known, default=0.0)
    full = largest or most or 1.0
    decimals = 2 if most < 10 else 1 if most < 100 else 0
    told = [
        f"{spoken[i]} and {spoken[j]} {number_text(matrix[i][j])}"
        for i in range(size)
        for j in range(i)
    ]
    left, top = LETTER_WIDTH * max(map(len, spoken)) + 38, 22.0
    width, height = left + _CELL * size, top + _ROW * size
    label = f"{title}: {', '.join(told) or 'one entry'}"
    with canvas(width, height, key=key, label=label) as drawn:
        axes = drawn.axes
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        for i, name in enumerate(spoken):
            middle, across = top + _ROW * (i + 0.5), left + _CELL * (i + 0.5)
            for x, y, text, ha, va, colour in (
                (left - 34, middle, name, "right", "center_baseline", INK),
                (left - 12, middle, str(i + 1), "right", "center_baseline", MUTED),
                (across, top - 9, str(i + 1), "center", "baseline", MUTED),
            ):
                axes.text(x, y, text, ha=ha, va=va, color=colour)
            for j, value in enumerate(matrix[i]):
                share = min(abs(value) / full, 1.0) if math.isfinite(value) else 0.0
                corner = (left + _CELL * j + 1, top + _ROW * i + 1)
                layers = [(BAND, 1.0), (ACCENT if value > 0 else TRUTH, _STRENGTH * share)]
                for colour, strength in layers:
                    axes.add_patch(
                        Rectangle(
                            corner, _CELL - 2, _ROW - 2,
                            linewidth=0, facecolor=colour, alpha=strength,
                        )
                    )  # fmt: skip
                axes.text(
                    left + _CELL * (j + 0.5), middle, number_text(value, decimals),
                    ha="center", va="center_baseline", color=INK,
                )  # fmt: skip
    return Drawing(title, note, drawn.svg, width=math.ceil(1.2 * width))


def reliability_drawings(calibration: Mapping[str, CalibrationScores]) -> list[Drawing]:
    """How often predictions are right, over how sure they say they are, for each way of predicting.

    One point per bin of confidence; on the dashed diagonal confidence is justified, below it the
    predictions are overconfident. Upright bars from the axis show the share of predictions in each
    bin, full height for all of them. Axes in per cent.
    """
    drawings: list[Drawing] = []
    for index, (name, scores) in enumerate(calibration.items()):
        bins = [
            each
            for each in scores.bins
            if each.count > 0
            and math.isfinite(each.low + each.high + each.confidence + each.accuracy)
        ]
        if not bins:
            continue
        total = sum(each.count for each in scores.bins if math.isfinite(each.count))
        told = ", ".join(
            f"{percent_text(each.confidence, 0)} sure, {percent_text(each.accuracy, 0)} right"
            for each in bins
        )
        title, key = title_of(name), f"reliability-{index}"
        with canvas(300, 250, left=42, right=16, key=key, label=f"{title}: {told}") as drawn:
            axes = drawn.axes
            axes.set_xlim(0, 100)
            axes.set_ylim(0, 100)
            for each in bins:
                axes.bar(
                    50 * (each.low + each.high), 100 * (each.count / total),
                    width=92 * (each.high - each.low), color=LINE, linewidth=0,
                )  # fmt: skip
            axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1.0, dashes=(4, 3))
            axes.plot(
                [100 * each.confidence for each in bins], [100 * each.accuracy for each in bins],
                "o-", color=ACCENT, linewidth=1.6, markersize=4.5, clip_on=False, zorder=3,
            )  # fmt: skip
            set_value_axis(axes, "%")
            set_value_axis(axes, "%", horizontal=True)
        drawings.append(Drawing(title, "right, over how sure; per cent", drawn.svg))
    return drawings


@dataclass(frozen=True)
class ProfilePanel:
    """A value over the amount of one symmetry, in its unit; NaN where there is none.

    beside: a second, quiet line on the same axis
    maximum, truth: amounts, NaN where unknown; interval: around the maximum
    span: first and last amount of the axis, shared by panels that may be compared
    small: one of many on a page
    """

    amounts: Sequence[float]
    values: Sequence[float]
    span: tuple[float, float]
    beside: Sequence[float] = ()
    maximum: float = math.nan
    interval: Interval = ()
    truth: float = math.nan
    symbol: str = ""
    small: bool = False


def profile_figure(panel: ProfilePanel, *, key: str, label: str) -> Markup:
    """The line joins the amounts that were tried; a full upright line marks the maximum, a band its
    interval, a dashed line the truth."""
    size = (300, 170) if panel.small else (390, 225)
    with canvas(*size, left=52, right=14, key=key, label=label) as drawn:
        axes = drawn.axes
        first, last = panel.span
        axes.set_xlim(first, last if last > first else first + 1)
        if panel.interval:
            # No thinner than a pixel or two: a narrow interval is still one.
            low, high = panel.interval
            least = 0.006 * (axes.get_xlim()[1] - axes.get_xlim()[0])
            middle, half = (low + high) / 2, max((high - low) / 2, least)
            axes.axvspan(middle - half, middle + half, color=ACCENT, alpha=0.2, linewidth=0)
        for values, colour, width in ((panel.beside, MUTED, 1.2), (panel.values, ACCENT, 1.8)):
            axes.plot(
                *_finite_points(panel.amounts, values), "o-", color=colour, linewidth=width,
                markersize=4, clip_on=False, zorder=3,
            )  # fmt: skip
        if math.isfinite(panel.maximum):
            axes.axvline(panel.maximum, color=ACCENT, linewidth=1.0, zorder=2)
        if math.isfinite(panel.truth):
            axes.axvline(
                panel.truth, color=TRUTH, linewidth=1.3, dashes=(4, 3), zorder=2, clip_on=False
            )
        set_value_axis(axes)
        set_value_axis(axes, panel.symbol, horizontal=True, most_ticks=5)
    return drawn.svg


def _finite_points(
    amounts: Sequence[float], values: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    pairs = [pair for pair in zip(amounts, values, strict=False) if all(map(math.isfinite, pair))]
    where, known = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return where, known
