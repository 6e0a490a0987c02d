"""The benchmark of relaxed networks on small ones: its parts and its goal."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import pathways as benchmark


def test_a_report_on_small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "BATCH", 4)
    monkeypatch.setattr(benchmark, "EVIDENCE_EXAMPLES", 3)
    found = importlib.import_module("benchmarks.__main__").BENCHMARKS["pathways"]
    assert found is benchmark.main
    report = benchmark.run(0, torch.device("cpu"), width=1)
    assert json.loads(json.dumps(report)) == report
    assert tuple(report["ratios"]) == benchmark.SUMS
    (claim,) = report["goals"]
    assert claim["measured"] == report["ratios"]["ffc+conv"] and claim["goal"] == benchmark.MOST
    assert claim["met"] == (claim["measured"] <= benchmark.MOST)
    assert "ffc+conv" in benchmark._table(report)
