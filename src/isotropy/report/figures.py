"""Drawings as inline SVG that takes its colours from the page, so light and dark both work.

matplotlib draws with sentinel colours; in the SVG text each is then replaced by a CSS variable
(`var(--accent)`). One unit of a drawing is one CSS pixel at its natural width, text stays text
in the page's own font, and titles and units are left to the page, where they can wrap. Each
drawing is small and single: the page lays them out side by side or, on a phone, in a column.

Only the object interface of matplotlib is used (no pyplot, no global figure), and it is
imported inside the functions, so that importing this file is cheap.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from isotropy.report.flow_lines import arrow_heads, border, flow_lines, lines_apart, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Sentinel colours, unlikely anywhere else, and the CSS variable each stands for.
INK, MUTED, LINE = "#01a1e1", "#02a2e2", "#03a3e3"
ACCENT, TRUTH, BAND = "#04a4e4", "#05a5e5", "#06a6e6"
COLOUR_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    ACCENT: "var(--accent)",
    TRUTH: "var(--truth)",
    BAND: "var(--band)",
}

_UNITS_PER_INCH = 72.0  # of matplotlib's SVG
_TEXT_SIZE = 11.0
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
    with _style(key):
        figure, axes = _axes(width=300, height=190, left=42)
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
        _set_value_axis(axes, panel.symbol)
        return _svg(figure, key=key, label=label)


def curves_figure(curves: Sequence[Curve], *, percent: bool, key: str, label: str) -> str:
    """SVG of curves that share one unit, each named at its end; the main ones in colour."""
    with _style(key):
        figure, axes = _axes(width=390, height=225, left=46, right=62)
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
        _set_value_axis(axes, "%" if percent else "")
        _name_curves(axes, ends)
        return _svg(figure, key=key, label=label)


def flow_figure(flow: np.ndarray, image_shape: tuple[int, int], *, key: str, label: str) -> str:
    """SVG of one sampled transformation: flow lines, and the image's frame before and after.

    flow: (2, rows, columns, 2): where points start, where their content moves to; pixels,
          (x right, y down). The after-frame is the moved border of the grid of points; its
          upper edge is drawn thicker, so that one sees which way up the image is.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    height, width = image_shape
    reach = 0.5 * 1.44 * max(height, width)
    with _style(key):
        figure, axes = _bare_axes(side=150)
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
        return _svg(figure, key=key, label=label)


@contextmanager
def _style(key: str) -> Iterator[None]:
    """Settings that only rcParams can carry, for the time of one drawing."""
    import matplotlib

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": key,
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same layout everywhere
        "font.size": _TEXT_SIZE,
        "text.parse_math": False,
        "path.simplify_threshold": 0.2,
    }
    with matplotlib.rc_context(settings):
        yield


def _axes(*, width: float, height: float, left: float, right: float = 10) -> tuple[Figure, Axes]:
    """A figure in CSS pixels with quiet axes; margins are fixed so that panels align."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _UNITS_PER_INCH, height / _UNITS_PER_INCH))
    figure.patch.set_visible(False)
    bottom, top = 28, 10
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width,
         (height - bottom - top) / height)
    )  # fmt: skip
    axes.patch.set_visible(False)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=MUTED, linewidth=0.8)
    axes.tick_params(colors=MUTED, length=0, labelsize=_TEXT_SIZE, pad=7)
    axes.tick_params("x", pad=9)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _bare_axes(side: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(side / _UNITS_PER_INCH, side / _UNITS_PER_INCH))
    figure.patch.set_visible(False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    return figure, axes


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


def _set_value_axis(axes: Axes, symbol: str) -> None:
    """Few ticks, all with the same number of decimals."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if symbol == "°":
        steps: list[float] = [1, 1.5, 3, 4.5, 6, 9, 10]  # 45°, 60°, 90° rather than 50° and 100°
    else:
        steps = [1, 2, 2.5, 5, 10]
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=steps))
    ticks = [float(tick) for tick in axes.get_yticks()]
    exact = (d for d in range(7) if all(abs(round(tick, d) - tick) < 1e-9 for tick in ticks))
    decimals = next(exact, 7)
    axes.yaxis.set_major_formatter(
        FuncFormatter(
            lambda value, _: f"{value:,.{decimals}f}{symbol}".replace("-", "\N{MINUS SIGN}")
        )
    )


def _name_curves(axes: Axes, ends: list[tuple[float, Curve]]) -> None:
    """Write each curve's name to the right of its end, pushed apart where they would touch."""
    low, high = axes.get_ylim()
    height = axes.bbox.height / axes.figure.dpi * _UNITS_PER_INCH
    gap = (high - low) * (_TEXT_SIZE * 1.25) / height
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


def _svg(figure: Figure, *, key: str, label: str) -> str:
    """The figure as an `<svg>` element that is safe to put into a page beside others."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return inline_svg(buffer.getvalue(), key=key, label=label)


def inline_svg(text: str, *, key: str, label: str) -> str:
    """Make a matplotlib SVG file fit to stand inside an HTML page.

    Leaves out the XML head, metadata, comments and style sheet (its `*` rule would reach the
    whole page); lets the page set size, font and colours; keeps only ids that something refers
    to, and starts them with `key`; and gives the drawing a role and a label.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None, "matplotlib always writes a viewBox"
    opening = f'<svg {view.group()} role="img" aria-label="{escape(label)}">'
    text = opening + text[text.index(">") + 1 :]
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(
        r' id="([^"]+)"',
        lambda found: f' id="{key}-{found.group(1)}"' if found.group(1) in used else "",
        text,
    )
    text = re.sub(r'(url\(|href=")#', rf"\g<1>#{key}-", text)
    text = text.replace("'DejaVu Sans'", "inherit")
    for sentinel, variable in COLOUR_VARIABLES.items():
        text = text.replace(sentinel, variable)
    # Smaller, and nothing is lost: a hundredth of a pixel, turns by zero, empty groups.
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path.group()), text)
    text = re.sub(r' transform="rotate\(-?0 [^"]*"|<g/>', "", text)
    return re.sub(r"\n\s*", "\n", text).strip()
