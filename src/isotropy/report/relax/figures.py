"""The drawings of a relaxed network: what each layer became, and how that came about.

`layers_figure` is Figure 3 of van der Ouderaa, Immer and van der Wilk (2023) with the shares of
Table 4 in it: a bar per layer from inputs (top) to outputs, divided among its pathways.
`course_figure` has the same division over the epochs. A kind of pathway has the same colour
everywhere (`paints`): convolutions that of the page, full connections its opposite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isotropy.report.canvas import (
    ACCENT,
    COLOUR_VARIABLES,
    INK,
    LINE,
    MUTED,
    TRUTH,
    quiet_axes,
    style,
    svg_of,
)

_LETTER_WIDTH = 6.4
_ROW = 27
# Colours of the families, and how much paler each further pathway of a family is drawn.
_FAMILIES = {"conv": ACCENT, "sconv": ACCENT, "fc": TRUTH, "ffc": TRUTH, "sfc": TRUTH}
_PALENESS = (1.0, 0.55, 0.3, 0.15)


@dataclass(frozen=True)
class Paint:
    """How a kind of pathway is drawn: a sentinel colour of `canvas`, and its opacity."""

    colour: str
    opacity: float

    @property
    def variable(self) -> str:
        """The colour as the page writes it."""
        return COLOUR_VARIABLES[self.colour]


@dataclass(frozen=True)
class LayerBar:
    """One layer: its name, the share of each pathway (NaN: not known), and what it became."""

    name: str
    shares: Mapping[str, float]
    became: str


def paints(kinds: Sequence[str]) -> dict[str, Paint]:
    """A paint for each kind; group convolutions and unknown kinds are grey."""
    used: dict[str, int] = {}
    found = {}
    for kind in kinds:
        colour = _FAMILIES.get(kind, MUTED)
        place = used.get(colour, 0)
        used[colour] = place + 1
        found[kind] = Paint(colour, _PALENESS[min(place, len(_PALENESS) - 1)])
    return found


def layers_figure(bars: Sequence[LayerBar], kinds: Sequence[str], *, key: str, label: str) -> str:
    """SVG of a bar per layer, from inputs (top) to outputs, divided among the pathways."""
    from matplotlib.ticker import FuncFormatter

    found = paints(kinds)
    with style(key):
        width, left, right = 660, 130, 120
        height = _ROW * (len(bars) + 1.2) + 38
        figure, axes = quiet_axes(width=width, height=height, left=left, right=right)
        axes.grid(False, axis="y")
        axes.grid(axis="x", color=LINE, linewidth=0.8)
        for place, bar in enumerate(bars):
            edge = 0.0
            for kind in kinds:
                share = bar.shares.get(kind, math.nan)
                if not share > 0:
                    continue
                axes.barh(
                    place, 100 * share, left=edge, height=0.66, color=found[kind].colour,
                    alpha=found[kind].opacity, linewidth=0,
                )  # fmt: skip
                edge += 100 * share
            axes.annotate(
                _shortened(bar.became, int(right / _LETTER_WIDTH) - 1), (1, place),
                xycoords=("axes fraction", "data"), xytext=(10, 0), textcoords="offset points",
                va="center", color=INK, annotation_clip=False,
            )  # fmt: skip
        for text, height_at in (("input", -0.95), ("output", len(bars) - 0.05)):
            axes.annotate(
                text, (0, height_at), xycoords=("axes fraction", "data"), xytext=(-7, 0),
                textcoords="offset points", ha="right", va="center", color=MUTED,
                annotation_clip=False,
            )  # fmt: skip
        axes.set_xlim(0, 100)
        axes.set_ylim(len(bars) + 0.3, -1.3)
        most = int((left - 10) / _LETTER_WIDTH)
        axes.set_yticks(range(len(bars)), [_shortened(bar.name, most) for bar in bars])
        axes.tick_params("y", colors=INK)
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}%"))
        return svg_of(figure, key=key, label=label)


def course_figure(
    epochs: Sequence[float],
    shares: Mapping[str, Sequence[float]],
    *,
    last_epoch: float,
    key: str,
    label: str,
) -> str:
    """SVG of one layer's division among its pathways over the epochs.

    shares: by kind, one number an epoch, as parts of one; the first kind lies at the bottom
    last_epoch: right end of the axis, the same for all layers
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    found = paints(list(shares))
    with style(key):
        figure, axes = quiet_axes(width=300, height=150, left=42)
        lower = [0.0] * len(epochs)
        for kind, values in shares.items():
            upper = [low + 100 * value for low, value in zip(lower, values, strict=True)]
            paint = found[kind]
            axes.fill_between(
                epochs, lower, upper, color=paint.colour, alpha=paint.opacity, linewidth=0
            )
            lower = upper
        first = min(epochs)
        axes.set_xlim(first, last_epoch if last_epoch > first else first + 1)
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 50, 100])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}%"))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        return svg_of(figure, key=key, label=label)


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: max(most - 1, 1)] + "…"
