"""Tables 1 and 2 of Immer et al. (2022) beside ours: for `results_page.py`.

What must hold comes first, what fails before the rest. A cell is ours, the published accuracy in
brackets, and the difference; means over the seeds that were run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equivariant_tables import NOT_RUN, goals_told, made_with

from isotropy.experiments import lila_tables
from isotropy.experiments.runner import ROWS, read_rows

Record = Mapping[str, Any]


def lila_table(results: Path) -> str:
    """Goals, accuracies, and the ranges that were learned."""
    records = read_rows(results / "lila-tables" / ROWS)
    if not records:
        return NOT_RUN
    said = goals_told(lila_tables.goals(records))
    parts = [said, accuracy_table(records), range_table(records), made_with(records)]
    return "\n\n".join(part for part in parts if part)


def accuracy_table(records: Sequence[Record]) -> str:
    """A line for each network and version, a column for each method."""
    ours, theirs = lila_tables.accuracies(records), lila_tables.published(records)
    methods = list(dict.fromkeys(method for cell in ours.values() for method in cell))
    lines = [f"| network | version | epochs | seeds | {' | '.join(methods)} |",
             "|---" * (len(methods) + 4) + "|"]  # fmt: skip
    for (network, version), cell in ours.items():
        own = [r for r in records if (r["network"], r["version"]) == (network, version)]
        paper = theirs.get((network, version), {})
        cells = [_cell(cell.get(method), paper.get(method)) for method in methods]
        epochs = ", ".join(sorted({str(each["config"]["epochs"]) for each in own}))
        seeds = len({each["seed"] for each in own})
        lines.append(f"| {network} | {version} | {epochs} | {seeds} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(ours: float | None, paper: float | None) -> str:
    if ours is None:
        return ""
    return f"{ours:.2f}" if paper is None else f"{ours:.2f} ({paper:.2f}, {ours - paper:+.2f})"


def range_table(records: Sequence[Record]) -> str:
    """What LILA learned, seed by seed, beside what was imposed."""
    own = [each for each in records if each["method"] == lila_tables.LILA]
    if not own:
        return ""
    head = "| network | version | seed | learned half-widths | imposed |"
    lines = [head, "|---" * 5 + "|"]
    for each in own:
        learned = ", ".join(f"{n} {abs(v):.3g}" for n, v in each["ranges"].items())
        imposed = ", ".join(f"{n} {v:.3g}" for n, v in each["imposed"].items())
        lines.append(
            f"| {each['network']} | {each['version']} | {each['seed']} | {learned} | {imposed} |"
        )
    return "\n".join(lines)


TABLES = {"lila": lila_table}
