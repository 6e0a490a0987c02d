"""A symmetric matrix between named things, as a heat map with its numbers in it.

Above zero in the accent colour, below in the other, each as strong as its share of the largest
entry (or of `largest`, for correlations 1). Half strength at most, so that the numbers can be
read on every cell in light and dark. Rows and columns in the order given, names on the left and
numbers of the rows above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isotropy.report.canvas import (
    ACCENT,
    BAND,
    INK,
    MUTED,
    TEXT_SIZE,
    TRUTH,
    UNITS_PER_INCH,
    style,
    svg_of,
)
from isotropy.report.wording import number_text

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
