"""Large pictures with a network of timm: the cost is said first, then an epoch with a hyper step.

A small network stands in for timm's, which may not be installed; all else is the command as typed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from learn_runs import run_here
from PIL import Image
from torch import nn

import isotropy

WORDS = (
    "learn", "--data", "pictures", "--image-size", "224", "--model", "timm:resnet18",
    "--generators", "rotation", "--samples", "2", "--test-samples", "2", "--epochs", "1",
    "--set", "burn_in=0", "--no-search", "--out", "run", "--seed", "1",
)  # fmt: skip


def create_model(name: str, num_classes: int, in_chans: int) -> nn.Module:
    """What `timm.create_model` is asked for."""
    assert name == "resnet18"
    return nn.Sequential(
        nn.Conv2d(in_chans, 4, 7, stride=8, padding=3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.MaxPool2d(3, 2), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, num_classes),
    )  # fmt: skip


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six pictures, and a stand-in for timm."""
    timm: Any = SimpleNamespace(list_models=lambda: ["resnet18"], create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.chdir(tmp_path)
    for kind, bright in {"cat": 60, "dog": 200}.items():
        folder = tmp_path / "pictures" / kind
        folder.mkdir(parents=True)
        for number in range(3):
            pixels = np.full((230, 230, 3), bright + number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path


def test_the_cost_is_said_before_the_first_epoch(
    pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drawing and packing pictures of this size for the report takes most of the time.
    monkeypatch.setattr(isotropy.LearnResult, "write", lambda result, folder: None)
    finished = run_here(capsys, *WORDS, "--json")
    assert finished.status == 0, finished.stderr
    lines = finished.stderr.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("epoch 1/1"))
    before = "\n".join(lines[:first])
    assert "resized to 224 × 224 pixels" in before
    assert "the factors of the curvature take" in before
    assert " GB to go" in before
    row = json.loads((pictures / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["log_evidence"] is not None, "an epoch with a hyper step"


@pytest.mark.parametrize("is_slow", [False, True])
def test_what_a_slow_curvature_takes_is_said_before_all_else(
    is_slow: bool,
    pictures: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before layers are looked at, which takes minutes on large images; other runs say it later."""

    def stopped(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isotropy.cli.shared.inputs.LONG_SECONDS", 0.0 if is_slow else 1e9)
    monkeypatch.setattr("isotropy.cli.learn.learn", stopped)
    finished = run_here(capsys, *WORDS)
    assert finished.status == 130
    assert finished.stderr.count("the factors of the curvature take") == is_slow
