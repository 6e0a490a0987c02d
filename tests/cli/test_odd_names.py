"""File names that are not UTF-8, too long or not readable, and a last batch of one example."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from learn_runs import FAST, assert_one_sentence, bars, bars_file, run_here

NETS = """
import torch

def normalised():
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.BatchNorm1d(5)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(5, 3))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_that_is_not_utf8(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"b\xffrs.npz")
    bars_file(folder).rename(name)
    run = os.fsdecode(b"r\xffn")
    given = ("learn", "--data", name, *FAST, "--generators", "rotation", "--out", run)
    finished = run_here(capsys, *given)
    assert finished.status == 0, finished.stderr
    assert "b\\udcffrs" in Path(run, "report.html").read_text()
    assert json.loads(Path(run, "result.json").read_text())["data"].startswith("b\udcffrs")
    assert run_here(capsys, "learn", "--resume", run, "--json").status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--data", "x" * 300),
        ("--data", "bars.npz", "--model", "x" * 300),
        ("--data", "bars.npz", "--out", "x" * 300),
        ("--resume", "x" * 300),
        ("--data", "bars.npz", "--model", "x" * 300 + ".py:net"),
    ],
)
def test_names_that_are_too_long(
    words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars_file(folder)
    options = ("--epochs", "1") if "--resume" in words else FAST
    model = "--model" in words
    given = options if not model else [each for each in options if each not in ("--model", "mlp:5")]
    assert_one_sentence(run_here(capsys, "learn", *given, *words, "--quiet"), "x" * 100)


def test_a_last_batch_of_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, _ = bars()
    assert len(images) - len(images) // 5 == 48
    bars_file(folder)
    (folder / "nets.py").write_text(NETS)
    model = ("--model", "nets.py:normalised", "--batch-size", "47", "--samples", "1")
    given = ("--data", "bars.npz", *FAST, *model, "--generators", "rotation", "--out", "run")
    for objective in ("evidence", "augerino"):
        given = (*given[:-1], objective)
        finished = run_here(capsys, "learn", *given, "--objective", objective, "--json", "--quiet")
        assert finished.status == 0, finished.stderr
