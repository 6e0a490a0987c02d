"""Draw Figure 3 of van der Ouderaa, Immer and van der Wilk (2023) from results/.

    python scripts/layer_figures.py [--results results] [--out docs/figures]

What the layers of the learned networks became: a bar for every layer, from inputs (top) to outputs,
divided by relative effective number of parameters. A line of panels for two pathways, then one for
each data set with three; colours are those of the report. Rows that were not run are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equivariant_tables import NOT_RUN
from layer_rows import NAME, Rows, about, layers_of, rows_of
from results_figures import standalone

from isotropy.report.canvas import INK, LINE, MUTED, UNITS_PER_INCH, style, svg_of
from isotropy.report.pages.relax import Paint, paints, shares_text
from isotropy.report.record import RelaxedLayer
from isotropy.report.wording import MISSING

ROOT = Path(__file__).resolve().parent.parent
LINES = (("toy", "cifar10"), ("groups-mnist",), ("groups-cifar10",))
PATHWAYS = {
    "toy": "ffc+conv",
    "cifar10": "ffc+conv",
    "groups-mnist": "ffc+conv+gconv",
    "groups-cifar10": "ffc+conv+gconv",
}
TITLES = {
    "toy": "Quadrants",
    "cifar10": "CIFAR-10",
    "groups-mnist": "MNIST",
    "groups-cifar10": "CIFAR-10",
}
COLUMNS = 3
"""As wide with fewer panels, so that letters stay as large."""
WIDTH, LEFT, RIGHT = 274.0, 52.0, 102.0
ROW, TOP, BOTTOM, LEGEND = 17.0, 30.0, 24.0, 30.0
"""Pixels: of a panel, of its margins, of a bar, and of what lies above, below and under all."""


@dataclass(frozen=True)
class Panel:
    """One network: its title, pathways, and layers as records have them."""

    title: str
    kinds: Sequence[str]
    layers: Sequence[RelaxedLayer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    options = parser.parse_args()
    lines = panel_lines(rows_of(options.results))
    if not lines:
        print(f"{NAME}: no rows to draw in {options.results / NAME}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{NAME}.svg").write_text(layers_figure(lines), encoding="utf-8")
    print(f"{NAME}: {sum(map(len, lines))} networks")


def figure_link(results: Path) -> str:
    """What the page has in place of the figure, or the figure."""
    lines = panel_lines(rows_of(results))
    shown = "; ".join(panel.title for line in lines for panel in line)
    return f"![share of each pathway by layer: {shown}](figures/{NAME}.svg)" if lines else NOT_RUN


def panel_lines(rows: Rows) -> list[list[Panel]]:
    """The panels of every line, in the order of the series; lines without any are left out."""
    found = []
    for tables in LINES:
        line = [
            panel
            for table in tables
            for problem in about(table)["problems"]
            if (panel := _panel(rows, table, problem)) is not None
        ]
        if line:
            found.append(line)
    return found


def _panel(rows: Rows, table: str, problem: str) -> Panel | None:
    """The network that was learned with the first seed; None if it was not, or has no shares."""
    records = rows.get(f"{table}/{problem}/{PATHWAYS[table]}/laplace", ())
    layers = layers_of(records[0]) if records else []
    if not any(map(shares_text, layers)):
        return None
    alone = len(about(table)["problems"]) == 1
    title = TITLES[table] if alone else f"{TITLES[table]}, {problem}"
    return Panel(title, PATHWAYS[table].split("+"), layers)


def layers_figure(lines: Sequence[Sequence[Panel]]) -> str:
    """SVG of all panels, each line below the one before it."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(k for line in lines for panel in line for k in panel.kinds))
    found = paints(kinds)
    heights = [TOP + ROW * max(len(panel.layers) for panel in line) + BOTTOM for line in lines]
    width, height = COLUMNS * WIDTH, sum(heights) + LEGEND
    with style(NAME):
        figure = Figure(figsize=(width / UNITS_PER_INCH, height / UNITS_PER_INCH))
        figure.patch.set_visible(False)
        above = 0.0
        for line, own in zip(lines, heights, strict=True):
            for place, panel in enumerate(line):
                bars = ROW * len(panel.layers)
                box = (
                    (place * WIDTH + LEFT) / width, (height - above - TOP - bars) / height,
                    (WIDTH - LEFT - RIGHT) / width, bars / height,
                )  # fmt: skip
                _draw(figure.add_axes(box), panel, found)
            above += own
        _legend(figure, found)
        return standalone(svg_of(figure, key=NAME, label=told(lines)))


def told(lines: Sequence[Sequence[Panel]]) -> str:
    """The figure for those who cannot see it: every share in words."""
    return ". ".join(
        f"{panel.title}: "
        + "; ".join(f"{layer.name} {shares_text(layer)}" for layer in panel.layers)
        for line in lines
        for panel in line
    )


def _draw(axes: Any, panel: Panel, found: Mapping[str, Paint]) -> None:
    for place, layer in enumerate(panel.layers):
        edge = 0.0
        for kind in panel.kinds:
            share = 100 * layer.effective.get(kind, 0.0)
            paint = found[kind]
            axes.barh(place, share, left=edge, height=0.72, color=paint.colour,
                      alpha=paint.opacity, linewidth=0)  # fmt: skip
            edge += share
        axes.annotate(
            layer.became or MISSING, (1, place), va="center", fontsize=9,
            xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points",
            color=MUTED, annotation_clip=False,
        )  # fmt: skip
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlim(0, 100)
    axes.set_ylim(len(panel.layers) - 0.5, -0.5)
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"])
    axes.set_yticks(range(len(panel.layers)), [layer.name for layer in panel.layers])
    axes.tick_params(length=0, labelsize=9, colors=MUTED, pad=4)
    axes.set_title(panel.title, fontsize=11, color=INK, loc="left", pad=6)


def _legend(figure: Any, found: Mapping[str, Paint]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(color=paint.colour, alpha=paint.opacity, linewidth=0, label=kind)
        for kind, paint in found.items()
    ]
    figure.legend(
        handles=patches, loc="lower center", ncol=len(patches), frameon=False, fontsize=10,
        labelcolor=INK, borderaxespad=0.3,
    )  # fmt: skip


if __name__ == "__main__":
    main()
