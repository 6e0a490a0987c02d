"""The drawings of a learning run: ranges and curves over epochs, and single draws as flows.

Each drawing is small and single: the page lays them out side by side or, on a phone, in a column.
Colours, axes and the way into the page are those of `canvas`; titles and units are left to
the page, where they can wrap.

The lines along which a transformation carries points, from where they start and end.

A group element g = exp(A) moves a point p along the curve exp(tA) p, t from 0 to 1. A record
keeps only p and exp(A) p; for affine maps of the plane that is enough to find the curve again.
All arrays are (…, 2) with (x right, y down) in pixels; `flow` is (2, rows, columns, 2), with
[0] where points start and [1] where their content moves to.

A symmetric matrix between named things, as a heat map with its numbers in it.

Above zero in the accent colour, below in the other, each as strong as its share of the largest
entry (or of `largest`, for correlations 1). Half strength at most, so that the numbers can be
read on every cell in light and dark. Rows and columns in the order given, names on the left and
numbers of the rows above.

A reliability diagram: how often predictions are right, over how sure they say they are.

One point per bin of confidence at (mean confidence, accuracy); on the dashed diagonal confidence
is justified, below it the predictions are overconfident. Upright bars from the axis show the share
of predictions in each bin, full height for all of them.

A profile: a value over the amount of one symmetry, with where it is largest.

The line joins the amounts that were tried. A band marks the credible interval, a full upright line
the maximum, a dashed one the truth. A second, quiet line can share the axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isotropy.report.canvas import (
    ACCENT,
    BAND,
    INK,
    LINE,
    MUTED,
    TEXT_SIZE,
    TRUTH,
    UNITS_PER_INCH,
    bare_axes,
    quiet_axes,
    set_value_axis,
    style,
    svg_of,
)
from isotropy.report.wording import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def flow_lines(flow: np.ndarray, halvings: int = 4) -> np.ndarray:
    """Paths (points, steps + 1, 2) of exp(tA) p for t from 0 to 1, from p and exp(A) p alone.

    The map is fitted as one 3 × 3 affine matrix M; repeated square roots (Denman & Beavers
    1976) give M^(1/16), which is applied step by step. A motion that is not affine, or a half
    turn, which has no unique root, is shown by straight lines instead.
    """
    start, end = flow.reshape(2, -1, 2).astype(np.float64)
    around = start.mean(axis=0)
    ones = np.ones((len(start), 1))
    fitted, *_ = np.linalg.lstsq(np.hstack([start - around, ones]), end - around, rcond=None)
    root = np.vstack([fitted.T, [0.0, 0.0, 1.0]])
    steps = 2**halvings
    try:
        with np.errstate(all="ignore"):  # a root that does not exist is noticed below
            for _ in range(halvings):
                root = _square_root(root)
        points = [np.hstack([start - around, ones])]
        for _ in range(steps):
            points.append(points[-1] @ root.T)
        paths: np.ndarray = np.stack(points, axis=1)[..., :2] + around
    except np.linalg.LinAlgError:
        paths = np.full((len(start), steps + 1, 2), np.nan)
    size = float(np.abs(start - around).max())
    if np.allclose(paths[:, -1], end, rtol=0, atol=0.01 * size):
        return paths
    share = np.linspace(0, 1, steps + 1)[:, None]
    straight: np.ndarray = (1 - share) * start[:, None] + share * end[:, None]
    return straight


def _square_root(matrix: np.ndarray) -> np.ndarray:
    """The principal square root: Y ← (Y + Z⁻¹) / 2, Z ← (Z + Y⁻¹) / 2, from Y = M, Z = 1."""
    root, inverse = matrix, np.eye(len(matrix))
    for _ in range(30):
        root, inverse = (
            (root + np.linalg.inv(inverse)) / 2,
            (inverse + np.linalg.inv(root)) / 2,
        )
    return root


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
        if size <= per_side:
            continue
        places = np.linspace(0, size - 1, per_side)
        before = np.minimum(places.astype(int), size - 2)
        weight = np.expand_dims(places - before, (0, 2, 3) if axis == 1 else (0, 1, 3))
        left, right = flow.take(before, axis), flow.take(before + 1, axis)
        flow = (1 - weight) * left + weight * right
    return flow


def border(grid: np.ndarray) -> np.ndarray:
    """The closed border of a grid of points (rows, columns, 2), as (points, 2)."""
    sides = (grid[0], grid[1:, -1], grid[-1, -2::-1], grid[-2::-1, 0])
    return np.concatenate(sides)


_ARROWS_PER_SIDE = 6


@dataclass(frozen=True)
class Curve:
    """One line of a panel: a value per epoch (NaN where there is none) and how it is named."""

    epochs: Sequence[float]
    values: Sequence[float]
    label: str = ""
    main: bool = True


@dataclass(frozen=True)
class RangePanel:
    """The course of one learned range: half-width per epoch, in its unit.

    truth: the true half-width, or None; found: the threshold, shown as the top of a band
    top:   upper end of the axis, shared by all panels of one unit; symbol: after each number
    """

    curve: Curve
    truth: float | None
    found: float
    top: float
    symbol: str = ""


def range_figure(panel: RangePanel, *, key: str, label: str) -> str:
    """SVG of a range over epochs against its truth (dashed) and the threshold (band).

    key:   unique within the page; ids inside the SVG start with it
    label: what a reader who cannot see it is told
    """
    with style(key):
        figure, axes = quiet_axes(width=300, height=190, left=42)
        epochs, values = _finite_points(panel.curve.epochs, panel.curve.values)
        axes.axhspan(0, panel.found, color=BAND, linewidth=0)
        axes.plot(epochs, values, color=ACCENT, linewidth=1.8, clip_on=False, zorder=3)
        if len(values):
            axes.plot(epochs[-1:], values[-1:], "o", color=ACCENT, markersize=5, clip_on=False)
        if panel.truth is not None:
            axes.axhline(
                panel.truth, color=TRUTH, linewidth=1.3, dashes=(4, 3), clip_on=False, zorder=2
            )
        axes.set_ylim(0, panel.top)
        _set_epoch_axis(axes, panel.curve.epochs)
        set_value_axis(axes, panel.symbol)
        return svg_of(figure, key=key, label=label)


def curves_figure(curves: Sequence[Curve], *, percent: bool, key: str, label: str) -> str:
    """SVG of curves that share one unit, each named at its end; the main ones in colour."""
    with style(key):
        figure, axes = quiet_axes(width=390, height=225, left=46, right=62)
        ends: list[tuple[float, Curve]] = []
        for curve in curves:
            epochs, values = _finite_points(curve.epochs, curve.values)
            if not len(values):
                continue
            colour = ACCENT if curve.main else MUTED
            axes.plot(epochs, values, color=colour, linewidth=1.8 if curve.main else 1.2)
            axes.plot(epochs[-1:], values[-1:], "o", color=colour, markersize=4.5, clip_on=False)
            ends.append((float(values[-1]), curve))
        _set_epoch_axis(axes, [epoch for curve in curves for epoch in curve.epochs])
        set_value_axis(axes, "%" if percent else "")
        _name_curves(axes, ends)
        return svg_of(figure, key=key, label=label)


def flow_figure(flow: np.ndarray, image_shape: tuple[int, int], *, key: str, label: str) -> str:
    """SVG of one sampled transformation: flow lines, and the image's frame before and after.

    flow: (2, rows, columns, 2): where points start, where their content moves to; pixels,
          (x right, y down). The after-frame is the moved border of the grid of points; its
          upper edge is drawn thicker, so that one sees which way up the image is.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    height, width = image_shape
    reach = 0.5 * 1.44 * max(height, width)
    with style(key):
        figure, axes = bare_axes(side=150)
        lines = lines_apart(
            flow_lines(thinned(flow, _ARROWS_PER_SIDE)),
            0.55 * max(height, width) / _ARROWS_PER_SIDE,
        )
        moved = lines[np.hypot(*(lines[:, -1] - lines[:, 0]).T) > 0.02 * reach]
        still = lines[:, 0]
        axes.plot(*border(flow[0]).T, color=MUTED, linewidth=0.7, alpha=0.5)
        axes.plot(*border(flow[1]).T, color=ACCENT, linewidth=0.9)
        axes.plot(*flow[1, 0].T, color=ACCENT, linewidth=2.6, solid_capstyle="round")
        axes.add_collection(LineCollection(list(moved), colors=MUTED, linewidths=0.9))
        axes.add_collection(PolyCollection(arrow_heads(moved, 0.055 * reach), facecolors=INK))
        axes.plot(*still.T, "o", color=MUTED, markersize=2.4, markeredgewidth=0)
        axes.set_xlim(width / 2 - reach, width / 2 + reach)
        axes.set_ylim(height / 2 + reach, height / 2 - reach)
        return svg_of(figure, key=key, label=label)


def _set_epoch_axis(axes: Axes, epochs: Sequence[float]) -> None:
    """From the first to the last epoch of the run, so that all panels share the axis."""
    from matplotlib.ticker import MaxNLocator

    known = [epoch for epoch in epochs if math.isfinite(epoch)]
    first, last = (min(known), max(known)) if known else (0.0, 1.0)
    axes.set_xlim(first, last if last > first else first + 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.annotate(
        "epoch", (0, 0), xycoords="axes fraction", xytext=(-7, -9), textcoords="offset points",
        ha="right", va="top", color=MUTED, annotation_clip=False,
    )  # fmt: skip


def _name_curves(axes: Axes, ends: list[tuple[float, Curve]]) -> None:
    """Write each curve's name to the right of its end, pushed apart where they would touch."""
    low, high = axes.get_ylim()
    height = axes.bbox.height / axes.figure.dpi * UNITS_PER_INCH
    gap = (high - low) * (TEXT_SIZE * 1.25) / height
    last = -math.inf
    for value, curve in sorted(ends, key=lambda end: end[0]):
        last = max(value, last + gap)
        axes.annotate(
            curve.label, (1, last), xycoords=("axes fraction", "data"), xytext=(9, 0),
            textcoords="offset points", va="center", annotation_clip=False,
            color=ACCENT if curve.main else MUTED,
        )  # fmt: skip


_CELL, _ROW = 52.0, 30.0
_PER_LETTER = 0.56 * TEXT_SIZE
_STRENGTH = 0.5


@dataclass(frozen=True)
class MatrixPanel:
    """names: one per row, as shown; values: (rows, columns), NaN where there is none.

    largest: magnitude at full strength; that of the largest entry where None
    """

    names: Sequence[str]
    values: Sequence[Sequence[float]]
    decimals: int = 2
    largest: float | None = None

    @property
    def left(self) -> float:
        """Where the cells begin, in CSS pixels, behind the longest name."""
        return _PER_LETTER * max(len(name) for name in self.names) + 38

    @property
    def width(self) -> float:
        """Natural width in CSS pixels."""
        return self.left + _CELL * len(self.names)


def matrix_figure(panel: MatrixPanel, *, key: str, label: str) -> str:
    """SVG of the heat map; key and label as for every drawing."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    size = len(panel.names)
    left, top = panel.left, 22.0
    width, height = panel.width, top + _ROW * size
    known = [abs(value) for row in panel.values for value in row if math.isfinite(value)]
    full = panel.largest or max(known, default=0.0) or 1.0
    with style(key):
        figure = Figure(figsize=(width / UNITS_PER_INCH, height / UNITS_PER_INCH))
        figure.patch.set_visible(False)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        for i, name in enumerate(panel.names):
            middle = top + _ROW * (i + 0.5)
            axes.text(left - 34, middle, name, ha="right", va="center_baseline", color=INK)
            axes.text(left - 12, middle, str(i + 1), ha="right", va="center_baseline", color=MUTED)
            across = left + _CELL * (i + 0.5)
            axes.text(across, top - 9, str(i + 1), ha="center", va="baseline", color=MUTED)
            for j, value in enumerate(panel.values[i]):
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
                    left + _CELL * (j + 0.5), middle, number_text(value, panel.decimals),
                    ha="center", va="center_baseline", color=INK,
                )  # fmt: skip
        return svg_of(figure, key=key, label=label)


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions with a confidence in (low, high], fractions; share: of all predictions."""

    low: float
    high: float
    share: float
    confidence: float
    accuracy: float


def reliability_figure(bins: Sequence[ReliabilityBin], *, key: str, label: str) -> str:
    """SVG of the diagram of bins that hold predictions; axes in per cent."""
    with style(key):
        figure, axes = quiet_axes(width=300, height=250, left=42, right=16)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        for each in bins:
            axes.bar(
                50 * (each.low + each.high), 100 * each.share,
                width=92 * (each.high - each.low), color=LINE, linewidth=0,
            )  # fmt: skip
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1.0, dashes=(4, 3))
        axes.plot(
            [100 * each.confidence for each in bins], [100 * each.accuracy for each in bins],
            "o-", color=ACCENT, linewidth=1.6, markersize=4.5, clip_on=False, zorder=3,
        )  # fmt: skip
        set_value_axis(axes, "%")
        set_value_axis(axes, "%", horizontal=True)
        return svg_of(figure, key=key, label=label)


@dataclass(frozen=True)
class ProfilePanel:
    """amounts: in the symmetry's unit; values, beside: one per amount, NaN where there is none.

    maximum, truth: amounts; interval: a pair of them; each None where unknown
    span: first and last amount of the axis, shared by panels that may be compared
    small: one of many on a page
    """

    amounts: Sequence[float]
    values: Sequence[float]
    span: tuple[float, float]
    beside: Sequence[float] = ()
    maximum: float | None = None
    interval: tuple[float, float] | None = None
    truth: float | None = None
    symbol: str = ""
    small: bool = False


def profile_figure(panel: ProfilePanel, *, key: str, label: str) -> str:
    """SVG of the profile; key and label as for every drawing."""
    with style(key):
        size = (300, 170) if panel.small else (390, 225)
        figure, axes = quiet_axes(width=size[0], height=size[1], left=52, right=14)
        first, last = panel.span
        axes.set_xlim(first, last if last > first else first + 1)
        if panel.interval is not None:
            # No thinner than a pixel or two: a narrow interval is still one.
            low, high = panel.interval
            least = 0.006 * (axes.get_xlim()[1] - axes.get_xlim()[0])
            middle, half = (low + high) / 2, max((high - low) / 2, least)
            axes.axvspan(middle - half, middle + half, color=ACCENT, alpha=0.2, linewidth=0)
        for values, colour, width in ((panel.beside, MUTED, 1.2), (panel.values, ACCENT, 1.8)):
            where, known = _finite_points(panel.amounts, values)
            axes.plot(
                where, known, "o-", color=colour, linewidth=width, markersize=4,
                clip_on=False, zorder=3,
            )  # fmt: skip
        if panel.maximum is not None:
            axes.axvline(panel.maximum, color=ACCENT, linewidth=1.0, zorder=2)
        if panel.truth is not None:
            axes.axvline(
                panel.truth, color=TRUTH, linewidth=1.3, dashes=(4, 3), zorder=2, clip_on=False
            )
        set_value_axis(axes, "")
        set_value_axis(axes, panel.symbol, horizontal=True, most_ticks=5)
        return svg_of(figure, key=key, label=label)


def _finite_points(
    amounts: Sequence[float], values: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    pairs = [
        (amount, value)
        for amount, value in zip(amounts, values, strict=False)
        if math.isfinite(amount) and math.isfinite(value)
    ]
    where, known = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return where, known
