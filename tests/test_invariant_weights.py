"""Tables and figures of the invariant weights follow their records, beside published numbers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from isotropy.experiments.commands import read_experiment

ROOT = Path(__file__).resolve().parents[1]
ROWS = read_experiment("invariant-weights")["rows"]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("invariant_weights")


def keep(results: Path, row: str, bound: float | None, high: float, seed: int = 0) -> None:
    """A record of a row of the experiment, with a course from 5° to `high`."""
    result = {"log_evidence_per_example": bound, "test_accuracy": 0.9364, "seconds": 3.0,
              "device": "cpu", "threads": 2,
              "symmetries": [{"name": "rotation", "high": high}]}  # fmt: skip
    history = [{"epoch": n, "ranges": {"rotation": r}} for n, r in enumerate((5.0, high), 1)]
    record = {"row": row, "published": ROWS[row].get("published"), "result": result}
    folder = results / "invariant-weights"
    folder.mkdir(exist_ok=True)
    text = json.dumps({**record, "history": history})
    (folder / f"{row}-seed{seed}.json").write_text(text, encoding="utf-8")


def test_nothing_run_is_said(tables: ModuleType, tmp_path: Path) -> None:
    assert {make(tmp_path) for make in tables.TABLES.values()} == {"Not run yet."}
    assert tables.figures({}) == {}


def test_bounds_stand_beside_the_published_ones(tables: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, "mnist-rotated-rff-fixed-175", -0.273, 175.0)
    keep(tmp_path, "mnist-original-rff-learned-5", -0.19, 42.4)
    keep(tmp_path, "sampled-mnist-original-relu-learned-45", -0.02, 30.0)
    solved, sampled, *links = tables.weights_tables(tmp_path).split("\n\nMNIST, ReLU, ")
    assert "| fixed ±175° | -0.27 (-0.43) |  |  | ±175° |  |  | 93.6 (91.6) |  |  |" in solved
    assert "| learned from ±5° |  |  | -0.19 (-0.26) |  |  | ±42° |  |  | 93.6 (96.4) |" in solved
    assert sampled.startswith("by sampled gradients") and "-0.02 (-0.02)" in sampled and not links
    assert "figures/invariant-weights-sampled-relu.svg" in sampled
    assert "point" not in sampled  # which was not run


def test_seeds_are_told_one_by_one(tables: ModuleType, tmp_path: Path) -> None:
    for seed, high in enumerate((170.0, 161.0)):
        keep(tmp_path, "embedded-rotated", -0.5 - seed / 10, high, seed)
    keep(tmp_path, "embedded-rotated-point", None, 12.0)
    table = tables.embedded_table(tmp_path)
    assert "| embedded-rotated | ±170°, ±161° | -0.55 | 93.6 % | 3, 2 CPU threads |" in table
    assert "| embedded-rotated-point | ±12° |  | 93.6 % |" in table


def test_figures_tell_where_lines_end(tables: ModuleType, tmp_path: Path) -> None:
    for start, high in ((5, 170.0), (175, 176.0)):
        keep(tmp_path, f"mnist-rotated-rff-learned-{start}", -0.3, high)
    for network in ("rff", "relu"):
        keep(tmp_path, f"mnist-rotated-{network}-point", None, 8.0)
    found = tables.figures(tables.records(tmp_path, tables.NAME))
    assert set(found) == {"invariant-weights-rff", "invariant-weights-point"}
    courses = found["invariant-weights-rff"]
    assert courses["fully rotated"]["from ±5°"] == [(1, 5.0), (2, 170.0)]
    drawing = tables.courses_figure("invariant-weights-rff", courses)
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "from ±5° ends at 170°; from ±175° ends at 176°" in drawing
    told = tables.told(found["invariant-weights-point"])
    assert "point estimate ends at 8°; evidence bound ends at 170°" in told
