"""Tables and figures of van der Ouderaa and van der Wilk (2021) from results/invariant-weights.

    python scripts/invariant_weights.py [--results results] [--out docs/figures]

draws Figures 2 and 6 (random features), 7 (ReLU) and 3 (the point estimate): the half-width of
rotations over epochs, a panel for each variant of MNIST and a line for each start. The tables are
for `results_page.py`. Rows that were not run are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from equivariant_tables import NOT_RUN, device_text
from matplotlib.figure import Figure
from results_figures import standalone
from results_table import records

from isotropy.report.canvas import INK, LINE, MUTED, style, svg_of

ROOT = Path(__file__).resolve().parent.parent
NAME = "invariant-weights"
VARIANTS = {
    "rotated": "fully rotated",
    "partially-rotated": "partially rotated",
    "original": "regular",
}
COLUMNS = ("bound", "range", "accuracy, %")
AMOUNTS = (5, 45, 90, 135, 175)
NETWORKS = {"rff": "random features", "relu": "ReLU"}
SOLVERS = {"": "solved", "sampled-": "by sampled gradients, α = 1"}
Record = Mapping[str, Any]
Rows = Mapping[str, Sequence[Record]]
Courses = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
"""Epochs and half-widths by panel and line."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, courses in figures(records(options.results, NAME)).items():
        (options.out / f"{name}.svg").write_text(courses_figure(name, courses), encoding="utf-8")
        print(f"{name}: {sum(map(len, courses.values()))} runs")


# --- tables -------------------------------------------------------------------------------------


def weights_tables(results: Path) -> str:
    """Tables 1 to 3, solved and sampled, published numbers in brackets; then links to figures."""
    rows, parts = records(results, NAME), []
    columns = [f"{words}: {what}" for what in COLUMNS for words in VARIANTS.values()]
    head = [f"| range | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    methods = [f"{kind}-{amount}" for kind in ("fixed", "learned") for amount in AMOUNTS]
    for solver, how in SOLVERS.items():
        for network, words in NETWORKS.items():
            lines = [_line(rows, f"{solver}mnist-", f"{network}-{method}") for method in methods]
            if any(lines):
                title = f"MNIST, {words}, {how} (published in brackets):"
                parts.append("\n".join([title, "", *head, *filter(None, lines)]))
    parts += [f"![half-width over epochs](figures/{name}.svg)" for name in figures(rows)]
    return "\n\n".join(parts) or NOT_RUN


def _line(rows: Rows, before: str, method: str) -> str:
    """A line of a table; empty where none of its rows was run."""
    bounds, ranges, accuracies = [], [], []
    for variant in VARIANTS:
        own = rows.get(f"{before}{variant}-{method}", ())
        results = [record["result"] for record in own]
        published = own[0]["published"][variant] if own else ()
        bound = [result["log_evidence_per_example"] for result in results]
        accuracy = [100 * result["test_accuracy"] for result in results]
        bounds.append(f"{mean(bound):.2f} ({published[0]:.2f})" if results else "")
        accuracies.append(f"{mean(accuracy):.1f} ({published[1]:.1f})" if results else "")
        ranges.append(", ".join(f"±{half_width(result):.0f}°" for result in results))
    _, kind, amount = method.split("-")
    named = f"{kind} ±{amount}°" if kind == "fixed" else f"learned from ±{amount}°"
    return f"| {named} | {' | '.join([*bounds, *ranges, *accuracies])} |" if any(bounds) else ""


def embedded_table(results: Path) -> str:
    """Rows of the embedded digits and point estimates: every seed's range, and means."""
    lines = ["| row | learned or given | bound per example | test accuracy | seconds, device |",
             "|---|---|---|---|---|"]  # fmt: skip
    for name, own in records(results, NAME).items():
        if not (name.startswith("embedded") or name.endswith("point")):
            continue
        found = [record["result"] for record in own]
        bounds = [each["log_evidence_per_example"] for each in found]
        bound = "" if None in bounds else f"{mean(bounds):.2f}"
        lines.append(
            f"| {name} | {', '.join(f'±{half_width(each):.0f}°' for each in found)} | {bound} | "
            f"{100 * mean(each['test_accuracy'] for each in found):.1f} % | "
            f"{mean(each['seconds'] for each in found):.0f}, {device_text(found[0])} |"
        )
    return "\n".join(lines) if len(lines) > 2 else NOT_RUN


def half_width(result: Record) -> float:
    """Of the rotations, in degrees."""
    return next(float(s["high"]) for s in result["symmetries"] if s["name"] == "rotation")


TABLES = {"invariant-weights": weights_tables, "invariant-weights-embedded": embedded_table}


# --- figures ------------------------------------------------------------------------------------


def figures(rows: Rows) -> dict[str, Courses]:
    """Courses of the half-width by figure; those without any are left out."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for solver in SOLVERS:
        for network in NETWORKS:
            name = f"{NAME}-{solver}{network}"
            for variant, words in VARIANTS.items():
                row = f"{solver}mnist-{variant}-{network}"
                lines = {f"from ±{a}°": course(rows, f"{row}-learned-{a}") for a in AMOUNTS}
                found.setdefault(name, {})[words] = {k: v for k, v in lines.items() if v}
    points = {}
    for network, words in NETWORKS.items():
        own = f"mnist-rotated-{network}"
        lines = {"point estimate": course(rows, f"{own}-point"),
                 "evidence bound": course(rows, f"{own}-learned-5")}  # fmt: skip
        points[f"fully rotated, {words}"] = {k: v for k, v in lines.items() if v}
    found[f"{NAME}-point"] = points if all("point estimate" in x for x in points.values()) else {}
    run = {name: {k: v for k, v in panels.items() if v} for name, panels in found.items()}
    return {name: panels for name, panels in run.items() if panels}


def course(rows: Rows, row: str) -> list[tuple[float, float]]:
    """(epoch, half-width in degrees) of a row's first seed; empty if it was not run."""
    history = rows[row][0]["history"] if row in rows else []
    return [(each["epoch"], each["ranges"]["rotation"]) for each in history]


def courses_figure(name: str, courses: Courses) -> str:
    """A panel for each data set, a line for each start."""
    with style(name):
        figure = Figure(figsize=(3.2 * len(courses), 2.8), layout="constrained")
        panels = figure.subplots(1, len(courses), sharey=True, squeeze=False)[0]
        for axes, (title, lines) in zip(panels, courses.items(), strict=True):
            for number, (label, points) in enumerate(lines.items()):
                shade = 0.25 + 0.75 * number / max(1, len(lines) - 1)
                axes.plot(*zip(*points, strict=True), color=INK, alpha=shade, lw=1.4, label=label)
            axes.set_xlabel("epoch", color=MUTED)
            axes.set(ylim=(0, 185), yticks=[0, 45, 90, 135, 180])
            axes.set_title(title, fontsize=11, color=INK, loc="left")
            axes.grid(color=LINE, linewidth=0.8)
            axes.tick_params(length=0, labelsize=9, colors=MUTED)
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel("half-width, degrees", color=MUTED)
        handles = max(
            (axes.get_legend_handles_labels() for axes in panels), key=lambda h: len(h[1])
        )
        figure.legend(*handles, loc="outside right", frameon=False, fontsize=8, labelcolor=INK)
        return standalone(svg_of(figure, key=name, label=told(courses)))


def told(courses: Courses) -> str:
    """The figure for those who cannot see it: where every line ends."""
    return ". ".join(
        f"{title}: " + "; ".join(f"{label} ends at {points[-1][1]:.0f}°" for label, points in
                                 lines.items())
        for title, lines in courses.items()
    )  # fmt: skip


if __name__ == "__main__":
    main()
