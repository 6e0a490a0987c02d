"""Curves of the equivariant experiments: Figures 2.5, 2.6 and A.1 of Finzi (2023) from records.

Every figure is one or more panels side by side on logarithmic axes, a line for each network, a band
from the least to the largest of its seeds. Plain SVG that stands by itself, unlike the drawings of
a report's page.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isotropy.report.canvas import style

COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#8d6e63", "#e08e0b", "#3aa6a6", "#777777")
WIDTH, HEIGHT = 300.0, 250.0


@dataclass(frozen=True)
class Curve:
    """x (points), y (seeds, points); dashed for what has no symmetry built in."""

    name: str
    x: Sequence[float]
    y: Sequence[Sequence[float]]
    dashed: bool = False


@dataclass(frozen=True)
class CurvePanel:
    """One set of axes. log_x: whether x is logarithmic; y always is."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve] = field(default_factory=tuple)
    log_x: bool = False


def curve_figure(panels: Sequence[CurvePanel], *, key: str) -> str:
    """SVG of the panels side by side."""
    from matplotlib.figure import Figure

    with style(key):
        figure = Figure(figsize=(WIDTH * len(panels) / 72, HEIGHT / 72), layout="constrained")
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), place + 1)
            for number, curve in enumerate(panel.curves):
                _draw(axes, curve, COLOURS[number % len(COLOURS)])
            axes.set_yscale("log")
            if panel.log_x:
                axes.set_xscale("log")
            axes.set_title(panel.title, fontsize=11)
            axes.set_xlabel(panel.x_label)
            axes.set_ylabel(panel.y_label)
            axes.grid(alpha=0.25, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            if panel.curves:
                axes.legend(fontsize=7, frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _draw(axes: Any, curve: Curve, colour: str) -> None:
    values = np.asarray(curve.y, dtype=float)
    middle = np.exp(np.log(values).mean(0))
    dashes = {"linestyle": "--"} if curve.dashed else {}
    marker = "o" if len(curve.x) < 20 else None
    axes.plot(
        curve.x, middle, color=colour, linewidth=1.4, marker=marker, markersize=3,
        label=curve.name, **dashes,
    )  # fmt: skip
    if len(values) > 1:
        axes.fill_between(
            curve.x, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0
        )


# -- the three figures -------------------------------------------------------------------------

Records = Iterable[Mapping[str, Any]]


def data_efficiency_figure(records: Records, titles: Mapping[str, str]) -> str:
    """Figure 2.5: test error over N. titles: of the problems, by name, in their order."""
    found = list(records)
    panels = []
    for problem, title in titles.items():
        own = [each for each in found if each["problem"] == problem and each["test_error"]]
        curves = []
        for network in sorted({each["network"] for each in own}):
            sizes, values = _by(own, "network", network, "examples", "test_error")
            curves.append(Curve(network, sizes, values, dashed=network.startswith("MLP")))
        panels.append(CurvePanel(title, "training examples", "test error", curves, log_x=True))
    return curve_figure(panels, key="data-efficiency")


def dynamics_figure(records: Records, step: float) -> str:
    """Figure 2.6: angular momentum and state along rollouts. step: seconds between states."""
    found = list(records)
    panels = []
    for kind in ("HNN", "ODE"):
        for number, label in (
            ("momentum_by_time", "angular momentum"),
            ("error_by_time", "state"),
        ):
            curves = []
            for network in dict.fromkeys(each["network"] for each in found):
                own = [
                    each[number][1:]
                    for each in found
                    if each["kind"] == kind and each["network"] == network
                ]
                if own:
                    times = [step * (n + 1) for n in range(len(own[0]))]
                    curves.append(Curve(network, times, own, dashed=network == "MLP"))
            panels.append(CurvePanel(f"{kind}: {label}", "seconds", "relative error", curves))
    return curve_figure(panels, key="dynamics")


def convergence_figure(records: Records) -> str:
    """Figure A.1: ‖C X‖ over iterations."""
    curves = [
        Curve(each["row"], range(len(each["norms"])), [np.maximum(each["norms"], 1e-18).tolist()])
        for each in records
    ]
    panel = CurvePanel("gradient descent on ½‖CX‖²", "iterations", "‖C X‖", curves)
    return curve_figure([panel], key="convergence")


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
