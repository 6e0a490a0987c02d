"""Tables A.1 to A.8 of the thesis, computed now and put beside the published ranks.

A rank that is not as published is a mismatch and never shown as anything else; a blank of the
thesis is filled and marked as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isotropy.bases.published_ranks import PUBLISHED_RANKS
from isotropy.checkpoint import CONFIG, RESULT, make_folder, plain, write_json
from isotropy.workflows.basis import equivariant_basis
from isotropy.workflows.provenance import record_head

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
