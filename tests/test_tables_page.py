"""The table of errors in the manual says what results/tables.json holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_manual_has_the_measured_errors() -> None:
    rows = json.loads((ROOT / "results" / "tables.json").read_text())["rows"]
    manual = (ROOT / "docs" / "manual.md").read_text(encoding="utf-8")
    for row in rows:
        count = row["train_examples"] + row["test_examples"]
        numbers = f"{row['test_rmse']:.3f} | {row['ridge_rmse']:.3f}"
        assert re.search(rf"\| {row['data']} \| {count:,} \| {re.escape(numbers)} \|", manual)
    assert {row["data"] for row in rows} == {"energy", "wine"}
