"""Benchmarks run, on cases too small to time anything, and their reports have what they claim."""

from __future__ import annotations

import importlib
import json
import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from isotropy.data.labelled import Split
from isotropy.data.readers import digits

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks stand beside the package, not within it

from benchmarks import (  # noqa: E402
    evidence,
    orbit_training,
    peers,
    same_ranges,
    timing,
)
from benchmarks.paths import PATHS, parts_of  # noqa: E402
from isotropy.evidence.settings import LearnConfig  # noqa: E402

CPU = torch.device("cpu")
SMALL = "mlp:8"
PARTS = ["epoch", "factors", "gradient", "full"]


def check_report(report: dict[str, Any]) -> None:
    """What every report has: a device, and goals that say what was measured and whether met."""
    assert json.loads(json.dumps(report)) == report
    assert {"benchmark", "device", "device_name", "threads", "commit", "goals"} <= report.keys()
    for each in report["goals"]:
        assert math.isfinite(each["measured"])
        above = each["measured"] >= each["goal"]
        below = each["measured"] <= each["goal"]
        assert each["met"] is {"least": above, "most": below}[each["at"]]


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "at", "met"),
    [
        (1.9, "least", False),
        (2.0, "least", True),
        (2.0, "most", True),
        (2.1, "most", False),
        (math.nan, "most", False),
        (math.nan, "least", False),
    ],
)
def test_a_goal_is_met_or_not(measured: float, at: Any, met: bool) -> None:
    found = timing.goal("speed", measured, 2.0, at=at, unit="times as fast")
    assert found["met"] is met
    (line,) = timing.goal_lines({"goals": [found]})
    assert ("MISSED" in line) is not met


def test_reports_of_several_devices_lie_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"device": "cuda:0", "device_name": "NVIDIA H200", "threads": 16}
    gpu = {"benchmark": "evidence", **names, "goals": []}
    cpu = {**gpu, "device": "cpu", "device_name": "x86_64", "threads": 2}
    for report in (gpu, cpu):
        timing.publish(report, Namespace(out=tmp_path / "bench", json=False), "a table")
    written = sorted(path.name for path in (tmp_path / "bench").iterdir())
    assert written == ["evidence-nvidia-h200.json", "evidence-x86-64-2-threads.json"]
    timing.publish(gpu, Namespace(out=tmp_path / "one.json", json=True), "a table")
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8")) == gpu
    printed = capsys.readouterr().out
    assert printed.startswith("a table\na table\n{") and printed.count("a table") == 2


def test_recorded_results_are_called_after_their_device() -> None:
    paths = sorted((ROOT / "results" / "bench").glob("*.json"))
    assert paths
    for path in paths:
        assert timing.file_name(json.loads(path.read_text(encoding="utf-8"))) == path.name


def test_every_benchmark_is_known_by_name() -> None:
    found = importlib.import_module("benchmarks.__main__").BENCHMARKS
    assert {"evidence", "lie_derivative", "orbit_training", "warp"} <= found.keys()


# --- training and evidence ------------------------------------------------------------------------


def test_orbit_training_by_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orbit_training, "SHAPE", (1, 8, 8))
    report = orbit_training.run(24, 0, CPU, networks=[SMALL], samples=2)
    check_report(report)
    row = report["networks"][SMALL]
    assert list(row["times_faster"]) == PARTS
    assert list(row["epochs"]) == ["fast", "reference"]
    assert row["epochs"]["fast"]["epoch"] == 1.0
    assert "seconds" not in row  # absolute times are for GPUs
    assert "full" in orbit_training._table(report)


def test_seconds_and_bytes_on_an_h200_have_goals() -> None:
    parts = {"epoch": 0.08, "factors": 0.4, "gradient": 0.9, "full": 1.3}
    row = {
        "seconds": {"fast": parts, "reference": parts},
        "peak_bytes": {name: {"epoch": 1e9, "gradient": 1.3e9} for name in PATHS},
        "times_faster": dict.fromkeys(parts, 1.0),
    }
    report: dict[str, Any] = {
        "device": "cuda",
        "device_name": "NVIDIA H200",
        "data": "random images",
        "examples": 60_000,
        "samples": 31,
        "batch": 1000,
        "networks": {"mlp": row},
    }
    report["goals"] = orbit_training._goals(report)
    found = {each["what"]: each["met"] for each in report["goals"]}
    assert found["mlp, epoch"] and found["mlp, memory"] and not found["mlp, full"]
    table = orbit_training._table(report)
    assert "1.3000 s" in table and "1.30 GB" in table
    fewer = orbit_training._goals({**report, "examples": 1000})
    assert [each["unit"] for each in fewer] == ["times as fast"] * 2


def test_both_paths_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orbit_training, "SHAPE", (1, 8, 8))
    data = orbit_training.images(12, None)
    config = LearnConfig(samples=3, batch_size=6, gradient_batches=0)
    fast, reference = (parts_of(path, SMALL, data, config, CPU) for path in PATHS.values())
    for parts in (fast, reference):
        parts.epoch()
    assert fast.trainer.epoch == 1
    assert fast.trainer.config.captured and not reference.trainer.config.captured
    assert fast.factors() == pytest.approx(reference.factors(), rel=1e-4)
    first, second = fast.gradient()[0], reference.gradient()[0]
    torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-3)


def test_an_epoch_with_a_hyper_step_is_noticed() -> None:
    data = orbit_training.images(12, None)
    parts = parts_of(PATHS["fast"], SMALL, data, LearnConfig(samples=2), CPU)
    parts.trainer.epoch = 1000
    with pytest.raises(AssertionError, match="hyper step"):
        parts.epoch()


def test_same_ranges_from_both_paths() -> None:
    whole = digits()
    small = Split(train=whole.train.subset(40, seed=0), test=None)
    options = {"examples": 30, "epochs": 2, "seeds": (0, 1), "network": SMALL, "samples": 2}
    report = same_ranges.run(small, CPU, **options)  # type: ignore[arg-type]
    assert list(report["ranges"]) == ["fast", "reference"]
    rotation = report["ranges"]["fast"]["rotation"]
    assert len(rotation["values"]) == 2 and rotation["unit"] == "degrees"
    assert rotation["mean"] == pytest.approx(sum(rotation["values"]) / 2)
    assert len(report["goals"]) == 2
    assert any("rotation" in line for line in same_ranges.table(report))


def test_ranges_that_differ_miss_their_goal() -> None:
    def row(degrees: float, scale: float) -> same_ranges.Row:
        return {"rotation": {"mean": degrees}, "scale_x": {"mean": scale}}

    goals = same_ranges._goals({"fast": row(170, 0.0), "reference": row(177, 0.01)})
    assert {each["unit"]: each["met"] for each in goals} == {"degrees": False, "": True}


def test_evidence_in_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SAMPLES": 2,
        "SHAPE": (1, 8, 8),
        "RECIPE": {SMALL: 8},
        "GOALS": {SMALL: evidence.GOALS["mlp"]},
        "BESIDE_PEERS": SMALL,
    }.items():
        monkeypatch.setattr(evidence, name, value)
    monkeypatch.setattr(peers, "_PEERS", (("absent", missing_peer),))
    report = evidence.run(16, 0, CPU)
    check_report(report)
    row = report["evidence_over_epoch"][SMALL]
    assert set(evidence.COLUMNS) <= row.keys()
    assert row["full"] == pytest.approx(row["factors"] + row["gradient"])
    assert math.isfinite(report["peers"]["isotropy"]["log_evidence"])
    assert report["peers"]["absent"] == "missing: not installed"
    assert "recipe, kfac-mc" in evidence._table(report)


def missing_peer(*_: object) -> Any:
    raise ImportError("not installed")


def test_a_slower_peer_meets_the_goal() -> None:
    epochs = {"mlp": 2.0, "cnn": 9.0}
    steps = {name: dict.fromkeys(evidence.COLUMNS, each) for name, each in epochs.items()}
    beside = {"laplace-torch": {"over_isotropy": 1.2}, "curvlinops": "missing: not installed"}
    found = {each["what"]: each["met"] for each in evidence.goals(steps, beside)}
    assert found["evidence step, mlp, full"] and not found["evidence step, cnn, recipe"]
    assert found["pass one without augmentation against laplace-torch"]
    assert not any("curvlinops" in what for what in found)
