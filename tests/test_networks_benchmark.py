"""The benchmark of equivariant networks on small ones: its parts and its goals."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import equivariant_networks as benchmark


def test_a_report_on_small_networks() -> None:
    found = importlib.import_module("benchmarks.__main__").BENCHMARKS["equivariant_networks"]
    assert found is benchmark.main
    report = benchmark.run(0, torch.device("cpu"), channels=16)
    assert json.loads(json.dumps(report)) == report
    assert report["networks"].keys() == benchmark.PROBLEMS.keys()
    for row, claim in zip(report["networks"].values(), report["goals"], strict=True):
        assert row["ratio"] == pytest.approx(row["emlp"] / row["mlp"])
        assert claim["measured"] == row["ratio"] and claim["goal"] == benchmark.MOST
        assert claim["met"] == (row["ratio"] <= benchmark.MOST)
    assert "SO+(1,3)" in benchmark._table(report)
