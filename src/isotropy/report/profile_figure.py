"""A profile: a value over the amount of one symmetry, with where it is largest.

The line joins the amounts that were tried. A band marks the credible interval, a full upright line
the maximum, a dashed one the truth. A second, quiet line can share the axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotropy.report.canvas import (
    ACCENT,
    MUTED,
    TRUTH,
    quiet_axes,
    set_value_axis,
    style,
    svg_of,
)


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
