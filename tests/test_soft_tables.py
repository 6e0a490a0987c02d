"""The table of soft symmetry follows its records."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAD = {
    "device": "cpu", "threads": 1, "seconds": 1.0, "equivariance_error": 0.25, "published": None,
    "free_precision": None, "lambda": None, "symmetry": "exact", "problem": "inertia-exact",
    "wind": None, "equivariance_by_epoch": [], "closed_precision": 9e5,
}  # fmt: skip


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("soft_tables")


def write(results: Path, folder: str, *records: dict[str, Any]) -> Path:
    (results / folder).mkdir(parents=True)
    lines = []
    for each in records:
        row = f"{each.get('problem', 'inertia-exact')}/{each['network']}"
        lines.append(json.dumps({**HEAD, "row": row, "seed": 0, **each}))
    (results / folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return results


def test_without_records_nothing_is_said(tables: ModuleType, tmp_path: Path) -> None:
    assert tables.soft_symmetry_table(tmp_path) == "Not run yet."


def test_medians_goals_and_precisions(tables: ModuleType, tmp_path: Path) -> None:
    learned = {"network": "rpp-learned", "test_error": 1.5, "free_precision": {"head": 2e8}}
    write(
        tmp_path,
        "soft-symmetry-quick",
        *({"network": "mlp", "test_error": e, "seed": s} for s, e in enumerate((4.0, 5.0, 9.0))),
        {"network": "emlp", "test_error": 1.0, "equivariance_error": 1e-7, "published": 0.7},
        {"network": "rpp", "test_error": 1.3},
        learned,
    )
    text = tables.soft_symmetry_table(tmp_path)
    assert "| inertia-exact | exact | mlp | 5 |  | 0.25 |" in text
    assert "| inertia-exact | exact | emlp | 1 | 0.7 | 1e-07 |" in text
    assert "- Missed: inertia-exact: RPP at most 1.2 × EMLP." in text
    assert "- Met: inertia-exact: learned within 2 × of the best fixed λ." in text
    assert "| free precision δ | head |" in text and "| inertia-exact | 9e+05 |" in text
    assert text.endswith("These are rows of the quick version, `--quick`.")


def test_whole_runs_count_before_quick_ones(tables: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "soft-symmetry-quick", {"network": "mlp", "test_error": 4.0})
    write(tmp_path, "soft-symmetry", {"network": "mlp", "test_error": 3.0})
    text = tables.soft_symmetry_table(tmp_path)
    assert "| mlp | 3 |" in text and "quick" not in text
