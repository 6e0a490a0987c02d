"""The table of docs/performance.md is what results/bench gives, and leaves nothing out."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "speed_table.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("speed_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_what_the_results_give() -> None:
    checked = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_goals_met_missed_and_lacking(script: ModuleType, tmp_path: Path) -> None:
    goal = {"what": "an epoch", "unit": "s", "measured": 0.51234, "at": "most", "goal": 0.64}
    gpu = {"benchmark": "training", "device": "cuda", "device_name": "NVIDIA H200", "threads": 16}
    cpu = {"benchmark": "training", "device": "cpu", "device_name": "x86_64", "threads": 2}
    missed = {**goal, "measured": 0.8, "met": False}
    reports = {
        "training-nvidia-h200": {**gpu, "goals": [{**goal, "met": True}]},
        "training-x86-64-2-threads": {**cpu, "goals": [missed]},
        "warp-x86-64-2-threads": {**cpu, "benchmark": "warp"},
    }
    for name, report in reports.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(report), encoding="utf-8")
    rows = script.table(tmp_path).splitlines()[2:]
    assert rows == [
        "| `training` | an epoch | NVIDIA H200 | 0.512 s | at most 0.64 s | met |",
        "| `training` | an epoch | 2 CPU threads (x86_64) | 0.8 s | at most 0.64 s | missed |",
        "",
        "Recorded without goals: `warp-x86-64-2-threads`.",
    ]


def test_no_results_are_said_to_be_none(script: ModuleType, tmp_path: Path) -> None:
    assert script.table(tmp_path) == "Not run yet."
