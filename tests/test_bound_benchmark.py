"""The benchmark of bounds on a few images: its parts, its order of tightness, its goals."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bound

CPU = torch.device("cpu")


def test_it_is_known_by_name() -> None:
    assert importlib.import_module("benchmarks.__main__").BENCHMARKS["bound"] is bound.main


def test_a_report_on_a_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "SHAPE", (1, 8, 8))
    monkeypatch.setattr(bound, "SIZES", (4, 10))
    setup = bound.Setup(40, 20, 2, "mlp:8")
    report = bound.run(0, CPU, (setup,), examples=40, epochs=4)
    assert json.loads(json.dumps(report)) == report
    row = report["weight_steps"][setup.name]
    every, fits, steps = 4, 10, 2
    assert row["added"] == pytest.approx(row["function-space"] / every + row["pass"] / fits / steps)
    assert row["added by steps"] == pytest.approx(row["step"] / steps)
    lost = report["tightness"]["lost_per_example"]
    for name in ("function-space", "function-space, half conditioned"):
        assert lost[name]["4"] > lost[name]["10"] > 0
    assert lost["function-space, half conditioned"]["10"] < lost["function-space"]["10"]
    assert [each["goal"] for each in report["goals"]] == [bound.MOST]
    assert "half conditioned" in bound._table(report)
