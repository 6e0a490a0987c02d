"""A reliability diagram: how often predictions are right, over how sure they say they are.

One point per bin of confidence at (mean confidence, accuracy); on the dashed diagonal confidence
is justified, below it the predictions are overconfident. Upright bars from the axis show the share
of predictions in each bin, full height for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isotropy.report.canvas import ACCENT, LINE, MUTED, quiet_axes, set_value_axis, style, svg_of


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
