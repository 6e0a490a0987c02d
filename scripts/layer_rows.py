"""Records of the layer-equivariance series by row, and the numbers and cells of its tables.

Rows are TABLE/PROBLEM/PATHWAYS/OBJECTIVE, in the order of the series' TOML file; those that it does
not have are left out. Numbers are means over seeds, with their standard error where there are
several; what is missing or not finite is None, and a dash as text. Cells have the published number,
that of the record, behind ours in brackets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from isotropy.experiments import layer_equivariance
from isotropy.experiments.runner import ROWS, read_rows, read_table
from isotropy.report.record import Relaxed, RelaxedLayer, read
from isotropy.report.wording import MISSING, finite, number_text

NAME = "layer-equivariance"
QUICK = f"{NAME}-quick"
OBJECTIVES = ("map", "laplace")

Record = Mapping[str, Any]
Rows = Mapping[str, Sequence[Record]]
"""Records of every seed, by row."""


def planned_rows() -> list[str]:
    """Every row of the series, run or not."""
    return [job.row for job in layer_equivariance.jobs(read_table(NAME), False)]


def planned_seeds() -> list[tuple[str, int]]:
    """Every row with each of its seeds."""
    jobs = layer_equivariance.jobs(read_table(NAME), False)
    return [(job.row, seed) for job in jobs for seed in job.seeds]


def rows_of(results: Path, name: str = NAME) -> dict[str, list[Record]]:
    """The records by row, seeds in order; rows without any are left out."""
    records: list[Record] = [*read_rows(results / name / ROWS)]
    records.sort(key=lambda each: each["seed"])
    found = {row: [r for r in records if r["row"] == row] for row in planned_rows()}
    return {row: own for row, own in found.items() if own}


def table_of(row: str) -> str:
    """The first part of its name."""
    return row.split("/")[0]


def about(name: str) -> Mapping[str, Any]:
    """What the TOML file says of one table."""
    found = read_table(NAME)
    return {**found["settings"], **found["tables"][name]}


def has(rows: Rows, *tables: str) -> bool:
    """Whether a row of one of these tables was run."""
    return any(table_of(row) in tables for row in rows)


def number(rows: Rows, row: str, key: str) -> float | None:
    """The mean over seeds; None where the row is missing or a seed has no finite number."""
    known = _values(rows, row, key)
    return mean(known) if known else None


def error(rows: Rows, row: str, key: str) -> float | None:
    """The standard error of that mean; None with fewer than two seeds."""
    known = _values(rows, row, key)
    return stdev(known) / len(known) ** 0.5 if len(known) > 1 else None


def _values(rows: Rows, row: str, key: str) -> list[float]:
    """One for each seed, or none at all."""
    values = [finite(record.get(key)) for record in rows.get(row, ())]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def points(rows: Rows, row: str) -> float | None:
    """Test accuracy in per cent."""
    accuracy = number(rows, row, "test_accuracy")
    return None if accuracy is None else 100 * accuracy


def parts(rows: Rows, row: str, kind: str, key: str = "effective") -> list[float]:
    """A pathway's number of a layer's record, in every layer (and seed): by default its share."""
    layers = [layer for record in rows.get(row, ()) for layer in layers_of(record)]
    values = [getattr(layer, key).get(kind, math.nan) for layer in layers]
    return [value for value in values if math.isfinite(value)]


def layers_of(record: Record) -> list[RelaxedLayer]:
    """The layers with pathways, from inputs to outputs."""
    return read(Relaxed, record).layers


def published(rows: Rows, row: str, key: str) -> float | None:
    """The published number that a row carries."""
    return finite((rows[row][0].get("published") or {}).get(key)) if row in rows else None


def accuracy_cell(rows: Rows, row: str) -> str:
    """`84.21 ± 0.15 (84.07)`: per cent, ours and published."""
    ours = _with_error(rows, row, "test_accuracy", 2, factor=100)
    return _beside(ours, published(rows, row, "accuracy"), 2)


def nll_cell(rows: Rows, row: str) -> str:
    """`0.451 ± 0.002 (0.464)`: nats per example, ours and published."""
    return _beside(_with_error(rows, row, "test_nll", 3), published(rows, row, "nll"), 3)


def _beside(ours: str, known: float | None, decimals: int) -> str:
    return ours if known is None else f"{ours} ({known:.{decimals}f})"


def evidence_cell(rows: Rows, row: str) -> str:
    """`−1.232 ± 0.004`: log evidence in nats per example."""
    return _with_error(rows, row, "log_evidence_per_example", 3)


def _with_error(rows: Rows, row: str, key: str, decimals: int, *, factor: float = 1.0) -> str:
    value, spread = number(rows, row, key), error(rows, row, key)
    shown = number_text(None if value is None else factor * value, decimals)
    return shown if spread is None else f"{shown} ± {number_text(factor * spread, decimals)}"


def parameters_cell(rows: Rows, stem: str) -> str:
    """Those of the rows TABLE/PROBLEM/PATHWAYS, whatever the objective."""
    counts = (number(rows, f"{stem}/{objective}", "num_parameters") for objective in OBJECTIVES)
    return number_text(next((count for count in counts if count is not None), None), 0)


def share_cell(rows: Rows, row: str, kind: str) -> str:
    """`44 % (0–99)`: mean, least and largest over layers."""
    values = parts(rows, row, kind)
    if not values:
        return MISSING
    return f"{100 * mean(values):.0f} % ({100 * min(values):.0f}–{100 * max(values):.0f})"


SCORES = (
    "parameters", "MAP: NLL", "accuracy, %", "log Z/N", "Laplace: NLL", "accuracy, %", "log Z/N",
)  # fmt: skip
"""Titles of `score_cells`."""


def words(pathways: str) -> str:
    """`ffc + conv`."""
    return pathways.replace("+", " + ")


def score_cells(rows: Rows, stem: str) -> list[str]:
    """Parameters; likelihood, accuracy and evidence under both objectives."""
    cells = [parameters_cell(rows, stem)]
    for objective in OBJECTIVES:
        row = f"{stem}/{objective}"
        cells += [nll_cell(rows, row), accuracy_cell(rows, row), evidence_cell(rows, row)]
    return cells


def table_text(columns: Sequence[str], lines: Sequence[Sequence[str]], below: Sequence[str]) -> str:
    """A table of Markdown, and lines of text below it."""
    text = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    text += [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([*text, "", *below] if below else text)
