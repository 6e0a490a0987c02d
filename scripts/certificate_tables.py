"""The table of certificates, from the rows in results/certificates: for `results_page.py`.

What must hold comes first, what fails before the rest. Then one line a row: means over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from equivariant_tables import NOT_RUN, goals_told, made_with

from isotropy.experiments.runner import ROWS, read_rows, read_table
from isotropy.experiments.thesis import certificates

Record = Mapping[str, Any]


def certificates_table(results: Path) -> str:
    """Goals, and bounds by the parts of the series."""
    records = read_rows(results / "certificates" / ROWS)
    if not records:
        return NOT_RUN
    said = goals_told(certificates.goals(records))
    lines = [
        "| row | network | seeds | bound | by the printed account | training error | test error "
        "| d | bits | published | seconds |",
        "|---" * 11 + "|",
    ]
    for part in read_table("certificates")["parts"]:
        own = [each for each in records if each["part"] == part]
        for row in dict.fromkeys(each["row"] for each in own):
            lines.append(_line(row, [each for each in own if each["row"] == row]))
    return "\n\n".join([said, "\n".join(lines), made_with(records)])


def _line(row: str, records: Sequence[Record]) -> str:
    first = records[0]
    published = "" if first.get("published") is None else f"{first['published']:g}"
    numbers = (_percent(records, name) for name in ("bound", "thesis_bound"))
    errors = (_percent(records, name) for name in ("train_error", "test_error"))
    bits = mean(each["bits"]["total"] for each in records)
    seconds = mean(each["seconds"] for each in records)
    cells = [
        row, first["model"], str(len(records)), *numbers, *errors, str(first["dimension"]),
        f"{bits:,.0f}", published, f"{seconds:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _percent(records: Sequence[Record], name: str) -> str:
    found = [each[name] for each in records if each.get(name) is not None]
    return f"{100 * mean(found):.1f}" if found else ""


TABLES = {"certificates": certificates_table}
