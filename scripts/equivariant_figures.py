"""Draw Figures 2.5, 2.6 and A.1 of Finzi (2023) from results/ into docs/figures/.

    python scripts/equivariant_figures.py [--results results] [--out docs/figures]

Every figure is one or more panels on logarithmic axes, a line for each network through the
geometric means over its seeds, and a band from the least to the largest of them. A line that a
later one covers is drawn wider, so that it shows on both sides. A series that has no rows yet is
left out, and said so.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.experiments.runner import ROWS, read_rows, read_table
from isotropy.experiments.thesis.problems import STEP
from isotropy.report.canvas import UNITS_PER_INCH, style
from isotropy.report.wording import power_text

ROOT = Path(__file__).resolve().parent.parent
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#e08e0b", "#3aa6a6", "#c2559d", "#8c8c1f")
WITHOUT_SYMMETRY = {"MLP": "#6b5b53", "MLP-Aug": "#b08968"}
"""Networks that look the same in all panels: dashed, in colours of their own."""
WIDTH, HEIGHT = 300.0, 270.0
FLOOR = 1e-18
"""In place of zero, which has no logarithm."""
COVERED = 0.03
"""Curves that differ by less than this part everywhere lie on one another."""
MOST_MARKED = 20
"""Points up to which each is marked, and each is a tick of a logarithmic axis."""


@dataclass(frozen=True)
class Curve:
    """x (points), y (seeds, points)."""

    name: str
    x: Sequence[float]
    y: Sequence[Sequence[float]]

    @property
    def middle(self) -> np.ndarray:
        """Geometric means over seeds, (points)."""
        return np.exp(np.log(np.asarray(self.y, dtype=float)).mean(0))


@dataclass(frozen=True)
class CurvePanel:
    """One set of axes. log_x: whether x is logarithmic; y always is."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve] = field(default_factory=tuple)
    log_x: bool = False


@dataclass(frozen=True)
class Arrangement:
    """How panels lie, each of width × height pixels.

    columns: panels in a row; None for all
    legend:  "panel", one below each; "figure", one below all; "right", one beside all
    shares:  whether the panels of a row have the same y axis
    """

    columns: int | None = None
    legend: str = "panel"
    shares: bool = False
    width: float = WIDTH
    height: float = HEIGHT


def curve_figure(
    panels: Sequence[CurvePanel], *, key: str, arrangement: Arrangement | None = None
) -> str:
    """SVG of the panels."""
    from matplotlib.figure import Figure

    lies = arrangement or Arrangement()
    columns = lies.columns or len(panels)
    rows = -(-len(panels) // columns)
    size = columns * lies.width / UNITS_PER_INCH, rows * lies.height / UNITS_PER_INCH
    with style(key):
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(
            rows, columns, squeeze=False, sharey="row" if lies.shares else "none"
        ).flat
        for axes, panel in zip(grid, panels, strict=False):
            _draw_panel(axes, panel)
            if lies.legend == "panel" and panel.curves:
                _legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=2)
        if lies.legend != "panel":
            below = lies.legend == "figure"
            names = len(panels[0].curves)
            _legend(
                figure,
                *figure.axes[0].get_legend_handles_labels(),
                loc="outside lower center" if below else "outside right center",
                ncol=max(names, 1) if below else 1,
            )
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _draw_panel(axes: Any, panel: CurvePanel) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    for number, curve in enumerate(panel.curves):
        covers = sum(_covers(later, curve) for later in panel.curves[number + 1 :])
        _draw(axes, curve, number, 1.5 + 1.8 * covers)
    axes.yaxis.set_major_locator(LogLocator(numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: power_text(round(np.log10(value))))
    )
    if panel.log_x:
        axes.set_xscale("log")
        places = sorted(set(chain.from_iterable(curve.x for curve in panel.curves)))
        if len(places) <= MOST_MARKED:
            axes.xaxis.set_major_locator(FixedLocator(places))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel(panel.x_label, fontsize=10)
    axes.set_ylabel(panel.y_label, fontsize=10)
    axes.tick_params(labelsize=9.5)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw(axes: Any, curve: Curve, number: int, width: float) -> None:
    values = np.asarray(curve.y, dtype=float)
    colour = WITHOUT_SYMMETRY.get(curve.name, COLOURS[number % len(COLOURS)])
    dashed = curve.name in WITHOUT_SYMMETRY or number >= len(COLOURS)
    marker = "o" if len(curve.x) < MOST_MARKED else None
    axes.plot(
        curve.x, curve.middle, color=colour, linewidth=width, marker=marker,
        markersize=2 + width, label=curve.name, linestyle="--" if dashed else "-",
    )  # fmt: skip
    if len(values) > 1:
        axes.fill_between(
            curve.x, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0
        )


def _legend(where: Any, *entries: Any, **options: Any) -> None:
    """A legend of `where`, a figure or axes, whose lines are all of one width."""
    legend = where.legend(*entries, frameon=False, fontsize=9.5, columnspacing=1.2, **options)
    for line in legend.get_lines():
        line.set(linewidth=1.5, markersize=3.5)


def _covers(later: Curve, curve: Curve) -> bool:
    """Do the two lie on one another?"""
    if list(later.x) != list(curve.x):
        return False
    return bool(np.all(np.abs(later.middle / curve.middle - 1) < COVERED))


def _count(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


# -- the three figures -------------------------------------------------------------------------

Records = Iterable[Mapping[str, Any]]


def data_efficiency_figure(records: Records, titles: Mapping[str, str]) -> str:
    """Figure 2.5: test error over N. titles: of the problems, by name, in their order."""
    found = list(records)
    panels = []
    for problem, title in titles.items():
        own = [each for each in found if each["problem"] == problem and each["test_error"]]
        networks = sorted({each["network"] for each in own}, key=lambda name: (name[0], len(name)))
        curves = [
            Curve(network, *_by(own, "network", network, "examples", "test_error"))
            for network in networks
        ]
        panels.append(
            CurvePanel(title, "training examples", "mean squared test error", curves, log_x=True)
        )
    lies = Arrangement(height=HEIGHT + 60)
    return curve_figure(panels, key="data-efficiency", arrangement=lies)


def dynamics_figure(records: Records, step: float) -> str:
    """Figure 2.6: angular momentum and state along rollouts. step: seconds between states."""
    found = list(records)
    networks = list(dict.fromkeys(each["network"] for each in found))
    panels = []
    for number, label in (("momentum_by_time", "angular momentum"), ("error_by_time", "state")):
        for kind, words in (("HNN", "Hamiltonian network"), ("ODE", "neural ODE")):
            curves = []
            for network in networks:
                own = [
                    each[number][1:]
                    for each in found
                    if each["kind"] == kind and each["network"] == network
                ]
                if own:
                    times = [step * (n + 1) for n in range(len(own[0]))]
                    curves.append(Curve(network, times, own))
            panels.append(CurvePanel(f"{words}: {label}", "seconds", "relative error", curves))
    lies = Arrangement(columns=2, legend="figure", shares=True, width=350, height=250)
    return curve_figure(panels, key="dynamics", arrangement=lies)


def convergence_figure(records: Records) -> str:
    """Figure A.1: ‖C X‖ over iterations, the slowest case first."""
    curves = [
        Curve(each["row"], range(len(each["norms"])), [np.maximum(each["norms"], FLOOR).tolist()])
        for each in records
    ]
    curves.sort(key=lambda curve: -float(np.log(curve.middle).mean()))
    panel = CurvePanel("Gradient descent on ½‖CX‖²", "iterations", "‖CX‖", curves)
    lies = Arrangement(legend="right", width=620, height=360)
    return curve_figure([panel], key="convergence", arrangement=lies)


def _by(
    records: Records, name: str, value: str, x: str, y: str
) -> tuple[list[float], list[list[float]]]:
    """Sorted x, and y (seeds, x), of the records with this name, where all seeds have all x."""
    table: dict[int, dict[float, float]] = {}
    for each in records:
        if each[name] == value:
            table.setdefault(each["seed"], {})[each[x]] = each[y]
    shared = sorted(set.intersection(*(set(row) for row in table.values())))
    return shared, [[row[place] for place in shared] for row in table.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    options = parser.parse_args()
    problems = read_table("data-efficiency")["problems"]
    titles = {name: about["title"] for name, about in problems.items()}
    drawings = {
        "data-efficiency": lambda records: data_efficiency_figure(records, titles),
        "dynamics": lambda records: dynamics_figure(records, STEP),
        "convergence": convergence_figure,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for name, draw in drawings.items():
        records = read_rows(options.results / name / ROWS)
        if not records:
            print(f"{name}: no rows in {options.results / name}")
            continue
        (options.out / f"{name}.svg").write_text(draw(records), encoding="utf-8")
        print(f"{name}: {len(records)} records")


if __name__ == "__main__":
    main()
