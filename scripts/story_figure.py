"""The figure and the table of docs/story.md, from the rows in results/story.

    python scripts/story_figure.py [--results results] [--out docs/figures]

Five panels over the imposed rotation: the learned range with its intervals, the gain in evidence,
what the trained networks have, the certified error and the test error. Lines are means over seeds
and bands go from the least to the largest. `results_page.py` takes the table from here.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from equivariant_tables import NOT_RUN, goals_told, made_with

from isotropy.experiments.runner import ROWS, read_rows
from isotropy.experiments.story import (
    by_angle,
    goals,
    mean_and_error,
    range_text,
    values_of,
)
from isotropy.report.canvas import UNITS_PER_INCH, style
from isotropy.report.wording import power_text

ROOT = Path(__file__).resolve().parent.parent
NAME = "story"
NETWORKS = {
    "plain": ("plain", "#6b5b53"),
    "averaged": ("averaged over the learned range", "#e08e0b"),
    "relaxed": ("soft: C(4) relaxed", "#1b6ca8"),
    "built": ("hard: C(4) built in", "#d1495b"),
}
"""Words and colours, in the order of the legend."""
WIDTH, HEIGHT = 290.0, 230.0
FLOOR = 1e-18
"""In place of zero, which has no logarithm."""
Rows = Mapping[float, Sequence[Mapping[str, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    options = parser.parse_args()
    records = read_rows(options.results / NAME / ROWS)
    if not records:
        print(f"{NAME}: no rows yet")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{NAME}.svg").write_text(story_figure(records), encoding="utf-8")


def networks_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records; where nothing was found the averaged network is the plain one."""
    return [
        {**each, "networks": {"averaged": each["networks"]["plain"], **each["networks"]}}
        for each in records
    ]


def story_figure(records: Sequence[Mapping[str, Any]]) -> str:
    """SVG of the five panels and the legend."""
    from matplotlib.figure import Figure

    rows = by_angle(networks_of(records))
    with style(NAME):
        size = 3 * WIDTH / UNITS_PER_INCH, 2 * HEIGHT / UNITS_PER_INCH
        figure = Figure(figsize=size, layout="constrained")
        learned, gain, measured, certified, tested, legend = figure.subplots(2, 3).flat
        _learned(learned, rows)
        _gain(gain, rows)
        _measured(measured, rows)
        _errors(certified, rows, "certified", ("plain", "relaxed", "built"))
        _errors(tested, rows, "test_error", tuple(NETWORKS))
        titles = {
            learned: "(a) learned range, with intervals", gain: "(b) gain in evidence, nats",
            measured: "(c) measured error", certified: "(d) certified error, %",
            tested: "(e) test error, %",
        }  # fmt: skip
        for axes, title in titles.items():
            axes.set_title(title, fontsize=11)
            axes.set_xlabel("imposed rotation, ± degrees", fontsize=10)
            axes.set_xticks([0, 45, 90, 135, 180])
            axes.tick_params(labelsize=9.5)
            axes.grid(alpha=0.25, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        _legend(legend)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _learned(axes: Any, rows: Rows) -> None:
    for angle, own in rows.items():
        for place, each in enumerate(own):
            at = angle + 2.5 * (place - (len(own) - 1) / 2)
            axes.plot([at, at], each["interval"], color="#2e8b57", linewidth=1.4, alpha=0.7)
            axes.plot([at], [each["learned"]], "o", color="#2e8b57", markersize=3.5)
    axes.plot([0, 180], [0, 180], color="#57606a", linewidth=1, linestyle="--")
    axes.set_yticks([0, 45, 90, 135, 180])


def _gain(axes: Any, rows: Rows) -> None:
    gains = [[each["gain"] for each in own] for own in rows.values()]
    _band(axes, list(rows), gains, "#2e8b57")


def _measured(axes: Any, rows: Rows) -> None:
    axes.set_yscale("log")
    for network in ("plain", "built"):
        for number, line in (("lie_derivative", "-"), ("elements", ":")):
            values = [
                [max(value, FLOOR) for value in values_of(own, network, number)]
                for own in rows.values()
            ]
            _band(axes, list(rows), values, NETWORKS[network][1], line)
    axes.yaxis.set_major_formatter(lambda value, _: power_text(round(np.log10(value))))
    axes.minorticks_off()


def _errors(axes: Any, rows: Rows, number: str, networks: Sequence[str]) -> None:
    for network in networks:
        values = [
            [100 * value for value in values_of(own, network, number)] for own in rows.values()
        ]
        _band(axes, list(rows), values, NETWORKS[network][1])
    axes.set_ylim(bottom=0)


def _band(
    axes: Any, x: Sequence[float], y: Sequence[Sequence[float]], colour: str, line: str = "-"
) -> None:
    """Means over seeds, and from the least to the largest."""
    axes.plot(x, [mean(each) for each in y], line, color=colour, linewidth=1.6, marker="o",
              markersize=3)  # fmt: skip
    least, most = [min(each) for each in y], [max(each) for each in y]
    axes.fill_between(x, least, most, color=colour, alpha=0.15, linewidth=0)


def _legend(axes: Any) -> None:
    from matplotlib.lines import Line2D

    axes.set_axis_off()
    lines = [Line2D([], [], color=colour, label=words) for words, colour in NETWORKS.values()]
    lines += [
        Line2D([], [], color="#2e8b57", label="learned from the training data"),
        Line2D([], [], color="#57606a", linestyle="--", label="imposed"),
        Line2D([], [], color="#57606a", label="(c) Lie derivative along rotations"),
        Line2D([], [], color="#57606a", linestyle=":", label="(c) under the elements of C(4)"),
    ]
    axes.legend(handles=lines, loc="center", frameon=False, fontsize=9.5)


# --- the table ------------------------------------------------------------------------------------


def story_table(results: Path) -> str:
    """Goals, and a line for each angle: means over seeds with standard errors."""
    records = read_rows(results / NAME / ROWS)
    if not records:
        return NOT_RUN
    lines = [
        "| imposed | learned, by seed | gain, nats | Lie derivative: plain, hard | under C(4): "
        "plain, hard | certified error, %: plain, soft, hard | test error, %: plain, averaged, "
        "soft, hard |",
        "|---" * 7 + "|",
    ]
    for angle, own in by_angle(networks_of(records)).items():
        cells = [
            f"±{angle:g}°",
            "; ".join(range_text(each) for each in own),
            f"{mean(each['gain'] or 0.0 for each in own):,.0f}",
            ", ".join(f"{_mean(own, each, 'lie_derivative'):.2g}" for each in ("plain", "built")),
            ", ".join(f"{_mean(own, each, 'elements'):.1g}" for each in ("plain", "built")),
            ", ".join(_percent(own, each, "certified") for each in ("plain", "relaxed", "built")),
            ", ".join(_percent(own, each, "test_error") for each in NETWORKS),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n\n".join([goals_told(goals(records)), "\n".join(lines), made_with(records)])


def _mean(rows: Sequence[Mapping[str, Any]], network: str, number: str) -> float:
    return mean(values_of(rows, network, number))


def _percent(rows: Sequence[Mapping[str, Any]], network: str, number: str) -> str:
    middle, error = mean_and_error([100 * each for each in values_of(rows, network, number)])
    return f"{middle:.1f} ± {error:.1f}" if len(rows) > 1 else f"{middle:.1f}"


TABLES = {"story": story_table}

if __name__ == "__main__":
    main()
