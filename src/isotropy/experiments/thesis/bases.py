"""Bases of the thesis of Finzi (2023): ranks of Tables A.1 to A.8, convergence of Figure A.1.

How many invariant tensors there are is computed now and put beside what was printed:

    PUBLISHED_RANKS[table][group][representation] = rank, or None where the table is blank

Groups and representations are written as on the command line. A rank that is not as published is a
mismatch and never shown as anything else; a blank of the thesis is filled and marked as ours. T(1)
is left out of Tables A.4 to A.7, where it has no invariants. Table A.3 says "> 20" of T(4), which
is a blank, too; its numbers are not those of Rubik's cube, which has a row of blanks of its own (2,
9, 51 and 350), but of a larger group (`groups.catalogue`).

The series `convergence` shows how fast Algorithm 1 finds a basis, ‖C X_t‖ over iterations of
gradient descent. Rows are GROUP REPRESENTATION: `SO(3) T(4)`. There is one start, so one seed, and
no device: it runs in float64 on the CPU. The rate is that of the spectral gap,
−log10(1 − λ / λ_max) decades an iteration, where λ is the smallest eigenvalue of CᴴC that is not
zero. Of the table's cases D(6) T(6) is the fastest, with λ_max / λ = 7/3 and 0.24 decades, and flat
from about iteration 65 on because only rounding is left. Three cases are still on their way after
300 iterations: O(3) T(5), the slowest, with a ratio of 17 and 0.026 decades, has 2e-9 of the start
left, the Rubik's cube on T(2), with 13.2, 2e-11, and SO(3) T(4), with 10, 4e-15. For SO(3) on T(k)
the ratio is k (k + 1) / 2, so that iterations grow with the square of the order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log10
from pathlib import Path
from typing import Any

import torch

from isotropy.bases.null_spaces import convergence
from isotropy.bases.problem import Problem
from isotropy.experiments.runner import Job, Series
from isotropy.records import record_head
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.language import parse_representation
from isotropy.symmetry.groups.representations import Representation
from isotropy.workflows.basis import equivariant_basis
from isotropy.workflows.runs.result import Result

Ranks = dict[str, int | None]


def _powers(first: int, *ranks: int | None) -> Ranks:
    """T(first), T(first + 1), …"""
    return {f"T({first + i})": rank for i, rank in enumerate(ranks)}


def _upper(*ranks: int | None) -> Ranks:
    """T(2,0), T(3,0), …"""
    return {f"T({2 + i},0)": rank for i, rank in enumerate(ranks)}


def _mixed(*ranks: int | None) -> Ranks:
    """The columns of Table A.8."""
    names = ("T(3,0)", "T(3,1)", "T(3,2)", "T(3,3)", "T(4,0)", "T(4,1)", "T(4,2)")
    return dict(zip(names, ranks, strict=True))


PUBLISHED_RANKS: dict[str, dict[str, Ranks]] = {
    "A.1": {
        "Z(2)": _powers(1, 1, 2, 4, 8, 16, 32, 64),
        "Z(3)": _powers(1, 1, 3, 9, 27, 81, 243, 729),
        "Z(4)": _powers(1, 1, 4, 16, 64, 256, 1024, 4096),
        "Z(5)": _powers(1, 1, 5, 25, 125, 625, 3125, None),
        "Z(6)": _powers(1, 1, 6, 36, 216, 1296, None, None),
        "Z(7)": _powers(1, 1, 7, 49, 343, 2401, None, None),
        "Z(8)": _powers(1, 1, 8, 64, 512, None, None, None),
    },
    "A.2": {
        "S(2)": _powers(1, 1, 2, 4, 8, 16, 32, 64),
        "S(3)": _powers(1, 1, 2, 5, 14, 41, 122, 365),
        "S(4)": _powers(1, 1, 2, 5, 15, 51, 187, 715),
        "S(5)": _powers(1, 1, 2, 5, 15, 52, 202, 855),
        "S(6)": _powers(1, 1, 2, 5, 15, 52, 203, None),
        "S(7)": _powers(1, 1, 2, 5, 15, 52, 203, None),
        "S(8)": _powers(1, 1, 2, 5, 15, 52, None, None),
    },
    "A.3": {
        "PublishedRubiksCube": _powers(1, 2, 6, 22, None),
        "RubiksCube": _powers(1, None, None, None, None),
    },
    "A.4": {
        "SO(2)": _powers(2, 2, 0, 6, 0, 20, 0, 70),
        "SO(3)": _powers(2, 1, 1, 3, 6, 15, 36, 91),
        "SO(4)": _powers(2, 1, 0, 4, 0, 25, 0, 196),
        "SO(5)": _powers(2, 1, 0, 3, 1, 15, 15, None),
        "SO(6)": _powers(2, 1, 0, 3, 0, 16, None, None),
        "SO(7)": _powers(2, 1, 0, 3, 0, 15, None, None),
    },
    "A.5": {
        "O(2)": _powers(2, 1, 0, 3, 0, 10, 0, 35),
        "O(3)": _powers(2, 1, 0, 3, 0, 15, 0, 91),
        "O(4)": _powers(2, 1, 0, 3, 0, 15, 0, 105),
        "O(5)": _powers(2, 1, 0, 3, 0, 15, 0, None),
        "O(6)": _powers(2, 1, 0, 3, 0, 15, None, None),
        "O(7)": _powers(2, 1, 0, 3, 0, 15, None, None),
    },
    "A.6": {
        "SO+(1,3)": _upper(1, 0, 4, 0, 25, 0, 196),
        "SO(1,3)": _upper(1, 0, 4, 0, 25, 0, 196),
        "O(1,3)": _upper(1, 0, 3, 0, 15, 0, 105),
    },
    "A.7": {
        "Sp(1)": _upper(1, 0, 2, 0, 5, 0, 14),
        "Sp(2)": _upper(1, 0, 3, 0, 14, 0, 84),
        "Sp(3)": _upper(1, 0, 3, 0, 15, 0, None),
        "Sp(4)": _upper(1, 0, 3, 0, 15, None, None),
        "Sp(5)": _upper(1, 0, 3, 0, None, None, None),
        "Sp(6)": _upper(1, 0, 3, 0, None, None, None),
    },
    "A.8": {
        "SU(2)": _mixed(0, 2, 0, 5, 2, 0, 5),
        "SU(3)": _mixed(1, 0, 0, 6, 0, 3, 0),
        "SU(4)": _mixed(0, 0, 0, 6, 1, 0, 0),
    },
}


OURS = "*"
"""What marks a rank that the thesis leaves blank."""


@dataclass(frozen=True)
class Entry:
    """One rank: found, published (None where blank), and how."""

    rank: int
    published: int | None
    method: str
    seconds: float

    @property
    def is_wrong(self) -> bool:
        return self.published is not None and self.published != self.rank

    @property
    def text(self) -> str:
        if self.is_wrong:
            return f"{self.rank} ≠ {self.published}"
        return f"{self.rank}{OURS if self.published is None else ''}"


Table = Mapping[str, Mapping[str, Entry]]
"""Entries by group and representation."""


@dataclass(frozen=True, repr=False)
class RankTables(Result):
    """All tables that were asked for, by name."""

    tables: Mapping[str, Table]

    @property
    def mismatches(self) -> list[str]:
        """`Table A.4, SO(3) T(6): 16, published 15`."""
        found: list[str] = self.record["mismatches"]
        return found


def rank_tables(
    names: Sequence[str] = tuple(PUBLISHED_RANKS),
    *,
    folder: str | Path | None = None,
    seed: int = 0,
    progress: Callable[[str, str], None] | None = None,
    describe: Mapping[str, Any] | None = None,
) -> RankTables:
    """Compute the ranks of these tables; progress is told group and representation before each."""
    tables: dict[str, dict[str, dict[str, Entry]]] = {}
    rows: list[dict[str, Any]] = []
    mismatches: list[str] = []
    for name in names:
        tables[name] = {}
        for group, row in PUBLISHED_RANKS[name].items():
            tables[name][group] = {}
            for text, published in row.items():
                if progress is not None:
                    progress(group, text)
                found = equivariant_basis(group, text, rank_only=True)
                entry = Entry(found.rank, published, found.method, found.seconds)
                tables[name][group][text] = entry
                words = {"table": name, "group": group, "representation": text}
                rows.append({**words, **asdict(entry)})
                if entry.is_wrong:
                    mismatches.append(
                        f"Table {name}, {group} {text}: {entry.rank}, published {published}"
                    )
    seconds = sum(row["seconds"] for row in rows)
    head = record_head("basis", seed=seed, device=torch.device("cpu"), seconds=seconds)
    record = {**head, "tables": rows, "mismatches": mismatches}
    config = {"schema": 1, **(describe or {})}
    return RankTables(tables, record=record, config=config).kept_in(folder)


def table_text(name: str, table: Table) -> str:
    """One table as lines: a row for each representation, a column for each group."""
    groups = list(table)
    texts = list(dict.fromkeys(text for row in table.values() for text in row))
    cells = [["", *groups]]
    for text in texts:
        entries = [table[group].get(text) for group in groups]
        cells.append([text, *("" if entry is None else entry.text for entry in entries)])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [f"Table {name}"]
    for row in cells:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
    return "\n".join(lines)


# -- convergence -------------------------------------------------------------------------------

FLOOR = 1e-12
"""‖C X_t‖ over ‖C X_0‖ below which nothing but rounding is left."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every case of the table of convergence."""
    cases = table["quick"]["cases"] if quick else table["cases"]
    found = []
    for group, representation in cases:
        own = {
            "group": group,
            "representation": representation,
            "columns": table["columns"],
            "iterations": table["iterations"],
        }
        found.append(Job(f"{group} {representation}", (0,), own))
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """‖C X_t‖ of one case."""
    own = job.settings
    started = time.perf_counter()
    representation = parse_representation(own["representation"])
    assert isinstance(representation, Representation)
    (product,) = representation.products
    problem = Problem(group_named(own["group"]), product)
    sizes = convergence(problem, own["columns"], own["iterations"])
    seconds = time.perf_counter() - started
    return [{**own, "size": problem.size, "norms": sizes, "seconds": seconds}]


def decades(norms: Sequence[float]) -> float:
    """Factors of ten by which ‖C X_t‖ falls in an iteration, over those before the floor."""
    above = [norm for norm in norms if norm > FLOOR * norms[0]]
    return log10(above[0] / above[-1]) / max(len(above) - 1, 1)


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each case how far it came, and how fast."""
    return [
        f"{record['row']:<18} {record['norms'][-1] / record['norms'][0]:8.1e} of the start after "
        f"{len(record['norms']) - 1} iterations, {decades(record['norms']):.3f} decades each"
        for record in records
    ]


SERIES = Series(jobs, run, summary)
