"""The drawings of a learning run: ranges and curves over epochs, and single draws as flows.

Each drawing is small and single: the page lays them out side by side or, on a phone, in a column.
Colours, axes and the way into the page are those of `canvas`; titles and units are left to
the page, where they can wrap.
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
from isotropy.report.flow_lines import arrow_heads, border, flow_lines, lines_apart, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        epochs, values = _finite_points(panel.curve)
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
            epochs, values = _finite_points(curve)
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


def _finite_points(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    epochs = np.asarray(curve.epochs, dtype=np.float64)
    values = np.asarray(curve.values, dtype=np.float64)
    known = np.isfinite(epochs) & np.isfinite(values)
    return epochs[known], values[known]
