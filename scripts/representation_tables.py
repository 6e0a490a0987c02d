"""Tables of the representations from pairs, from their rows in results/: for `results_page.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from equivariant_tables import NOT_RUN, made_with

from isotropy.experiments import representations
from isotropy.experiments.runner import ROWS, read_rows

Record = Mapping[str, Any]
SAME = "same"
"""The figure of rows that are told which samples are the same."""


def goals_table(results: Path) -> str:
    """What must hold, and what does not before what does."""
    records = read_rows(results / "representations" / ROWS)
    reached = representations.goals(records)
    lines = [f"- Does not hold: {what}." for what, holds in reached.items() if not holds]
    lines += [f"- Holds: {what}." for what, holds in reached.items() if holds]
    return "\n".join(lines) or NOT_RUN


def same_table(results: Path) -> str:
    """A row for each distortion, network and size, and what becomes of classes."""
    table = _pairs_table(results, lambda record: record["figure"] == SAME)
    kept = [
        each["classes_kept"]
        for each in read_rows(results / "representations" / ROWS)
        if each.get("classes_kept") and each["network"] == representations.RICH
    ]
    if not kept:
        return table
    code, raw = (mean(each[name] for each in kept) for name in ("code", "raw"))
    told = f"neighbours share their class in {code:.0%} by code and {raw:.0%} by the data"
    return f"{table}\n\nClasses of digits are not kept: {told}, means over seeds."


def distances_table(results: Path) -> str:
    """The same with distances d*."""
    return _pairs_table(results, lambda record: record["part"] is None and record["figure"] != SAME)


def _pairs_table(results: Path, chosen: Any) -> str:
    records = [each for each in read_rows(results / "representations" / ROWS) if chosen(each)]
    if not records:
        return NOT_RUN
    lines = [
        "| distortion | network | features | seeds | found (lowest) | by the data as they are "
        "| within / between | reconstruction | share of a constant's loss "
        "| change at reversal, sign | seconds |",
        "|---" * 11 + "|",
    ]
    for row in dict.fromkeys(record["row"] for record in records):
        lines.append(_pairs_line([each for each in records if each["row"] == row]))
    return "\n".join([*lines, "", made_with(records)])


def _pairs_line(own: Sequence[Record]) -> str:
    def of(name: str) -> float:
        return mean(float(each[name]) for each in own)

    flips = [mean(each["over_invariance"][name] for each in own) for name in ("reversal", "sign")]
    lowest = min(each["retrieval"] for each in own)
    cells = (
        own[0]["task"], own[0]["network"], own[0]["size"], len(own),
        f"{of('retrieval'):.1%} ({lowest:.1%})", f"{of('retrieval_raw'):.1%}",
        f"{of('within_over_between'):.4f}", f"{of('reconstruction_mse'):.1e}",
        f"{of('loss_share'):.2%}", ", ".join(f"{flip:.3f}" for flip in flips),
        f"{of('seconds'):.0f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def supervised_table(results: Path) -> str:
    """Networks down, sizes, tasks and parts across."""
    records = [each for each in read_rows(results / "representations" / ROWS) if each["part"]]
    if not records:
        return NOT_RUN
    sizes = sorted({each["size"] for each in records})
    columns = {}
    for size, part, task in product(
        sizes, ("encoder", "decoder", "autoencoder"), representations.PARTS
    ):
        number = "reconstruction_mse" if part == "decoder" else "code_mse"
        found = representations.best_rates(records, part, task, number).get(size, {})
        if found:
            columns[f"{part}, {task}, d = {size}"] = found
            if (part, task) == ("encoder", "sine"):
                turning = representations.best_rates(records, part, task, "turning_mse")
                columns[f"of it turning bins, d = {size}"] = turning[size]
    kinds = dict.fromkeys(kind for found in columns.values() for kind in found)
    ordered = sorted(kinds, key=lambda kind: (kind.split("-")[0], int(kind.split("-")[1])))
    lines = [f"| network | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for kind in ordered:
        cells = [f"{found[kind]:.1e}" if kind in found else "" for found in columns.values()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", made_with(records)])


TABLES = {
    "representations-goals": goals_table,
    "representations-same": same_table,
    "representations-distances": distances_table,
    "representations-supervised": supervised_table,
}
