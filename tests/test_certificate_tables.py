"""The tables of certificates and of transition models follow their records."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAD = {"seed": 0, "device": "cpu", "threads": 1, "seconds": 2.0}
CERTIFICATE = {
    **HEAD, "row": "table/mnist", "part": "table", "model": "oriented:32", "bound": 0.09,
    "thesis_bound": 0.1, "train_error": 0.03, "test_error": None, "dimension": 500,
    "bits": {"total": 2500.0}, "published": 11.6, "goal": 9.5,
}  # fmt: skip
TRANSITION = {
    **HEAD, "row": "transitions/Swimmer/mlp", "robot": "Swimmer", "network": "mlp",
    "symmetry": "exact", "test_error": 0.02, "errors": {"10": 0.02, "30": 0.04},
    "equivariance_error": 0.5,
}  # fmt: skip


def table_of(
    monkeypatch: pytest.MonkeyPatch, results: Path, series: str, *records: dict[str, Any]
) -> str:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = {"certificates": "certificate_tables", "transitions": "soft_tables"}[series]
    if records:
        (results / series).mkdir()
        text = "".join(json.dumps(each) + "\n" for each in records)
        (results / series / "rows.jsonl").write_text(text, encoding="utf-8")
    found: str = importlib.import_module(module).TABLES[series](results)
    return found


@pytest.mark.parametrize("series", ["certificates", "transitions"])
def test_nothing_is_said_of_nothing(
    series: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table_of(monkeypatch, tmp_path, series) == "Not run yet."


def test_certificates_begin_with_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = {**CERTIFICATE, "row": "table/cifar-10", "bound": 0.6, "goal": 57.0}
    second = {**CERTIFICATE, "seed": 1, "bound": 0.07}
    text = table_of(monkeypatch, tmp_path, "certificates", CERTIFICATE, missed, second)
    first, then = text.splitlines()[:2]
    assert first == "- Does not hold: table/cifar-10: at most 57 % (60.0)."
    assert then == "- Holds: table/mnist: at most 9.5 % (8.0)."
    row = "| table/mnist | oriented:32 | 2 | 8.0 | 10.0 | 3.0 |  | 500 | 2,500 | 11.6 | 2 |"
    assert row in text


def test_transition_models_are_told_by_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = {**TRANSITION, "seed": 1, "errors": {"10": 0.08, "30": 0.04}}
    others = [
        {**TRANSITION, "row": f"transitions/Swimmer/{name}", "network": name, "test_error": error}
        for name, error in (("rpp", 0.015), ("rpp-trivial", 0.0151))
    ]
    text = table_of(monkeypatch, tmp_path, "transitions", TRANSITION, better, *others)
    assert text.startswith("- Does not hold: Swimmer: rpp at least 4 % below rpp-trivial.")
    assert "| Swimmer | exact | mlp | 4.00 | 4.00 | 50 |" in text
