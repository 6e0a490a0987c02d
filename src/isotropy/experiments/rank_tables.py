"""Tables A.1 to A.8 of the thesis, computed now and put beside the published ranks.

A rank that is not as published is a mismatch and never shown as anything else; a blank of the
thesis is filled and marked as ours.

How many invariant tensors there are, as Finzi (2023) printed it in Tables A.1 to A.8.

    PUBLISHED_RANKS[table][group][representation] = rank, or None where the table is blank

Groups and representations are written as on the command line. Blanks are left as they are: what
fills them is computed. T(1) is left out of Tables A.4 to A.7, where it has no invariants. Table A.3
says "> 20" of T(4), which is a blank, too; its numbers are not those of Rubik's cube, which has a
row of blanks of its own (2, 9, 51 and 350), but of a larger group (`groups.catalogue`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isotropy.records import CONFIG, RESULT, make_folder, plain, record_head, write_json
from isotropy.workflows.basis import equivariant_basis

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


@dataclass(frozen=True)
class RankTables:
    """All tables that were asked for, by name."""

    tables: Mapping[str, Table]
    run_folder: str | None
    seed: int

    @property
    def seconds(self) -> float:
        """What solving took."""
        return sum(entry.seconds for _, _, _, entry in self._entries())

    @property
    def mismatches(self) -> list[str]:
        """`Table A.4, SO(3) T(6): 16, published 15`."""
        return [
            f"Table {table}, {group} {text}: {entry.rank}, published {entry.published}"
            for table, group, text, entry in self._entries()
            if entry.is_wrong
        ]

    @property
    def record(self) -> dict[str, Any]:
        """Everything in JSON."""
        return {
            **record_head(
                "basis",
                seed=self.seed,
                device=torch.device("cpu"),
                seconds=self.seconds,
                run_folder=self.run_folder,
            ),
            "tables": [
                {
                    "table": table,
                    "group": group,
                    "representation": text,
                    "rank": entry.rank,
                    "published": entry.published,
                    "method": entry.method,
                    "seconds": entry.seconds,
                }
                for table, group, text, entry in self._entries()
            ],
            "mismatches": self.mismatches,
        }

    def _entries(self) -> list[tuple[str, str, str, Entry]]:
        return [
            (table, group, text, entry)
            for table, groups in self.tables.items()
            for group, row in groups.items()
            for text, entry in row.items()
        ]


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
    result = RankTables(tables, None if folder is None else str(folder), seed)
    if folder is not None:
        folder = make_folder(Path(folder))
        write_json(folder / CONFIG, {"schema": 1, **(describe or {})})
        write_json(folder / RESULT, plain(result.record))
    return result


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
