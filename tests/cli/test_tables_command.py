"""`isotropy learn` on a table: from a csv file to scores in the unit of its target."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import assert_one_sentence, run_here

import isotropy

Capture = pytest.CaptureFixture[str]
SHORT = ("--model", "mlp:6", "--epochs", "4", "--samples", "2", "--test-samples", "2",
         "--batch-size", "32", "--no-search", "--quiet", "--out", "run")  # fmt: skip


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """price = 100 + 20 (width² + height²) + noise, in which both columns may be exchanged."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    sides = random.normal(size=(80, 2))
    price = 100 + 20 * (sides**2).sum(1) + random.normal(size=80)
    with gzip.open("houses.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", "height", "price"])
        writer.writerows(np.column_stack([sides, price]).round(4).tolist())
    return tmp_path


def test_scores_are_in_the_unit_of_the_target(table: Path, capsys: Capture) -> None:
    words = ("learn", "--data", "houses.csv.gz", *SHORT)
    finished = run_here(capsys, *words, "--generators", "permute:width:height", "--json")
    record = finished.record
    assert record["test_accuracy"] is None and record["class_counts"] is None
    split = isotropy.read("houses.csv.gz")
    scaling = split.train.scaling
    with torch.no_grad():
        predicted = isotropy.load("run")(split.test.inputs)
    error = (predicted - split.test.targets).double() * scaling.target_deviation[0]
    assert record["test_rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-5)
    noise = record["noise"] * scaling.target_deviation[0]
    density = -((error / noise) ** 2) / 2 - math.log(noise * math.sqrt(2 * math.pi))
    assert record["test_log_likelihood"] == pytest.approx(float(density.mean()), rel=1e-5)
    assert [each["name"] for each in record["symmetries"]] == ["permute:width:height"]
    assert "Test RMSE" in Path("run/report.html").read_text()
    assert any("columns and target standardised" in note for note in record["notes"])


def test_the_command_says_the_error_in_words(table: Path, capsys: Capture) -> None:
    finished = run_here(capsys, "learn", "--data", "houses.csv.gz", "--target", "0", *SHORT)
    assert finished.status == 0
    assert "Test RMSE" in finished.stdout and "on 16 examples, in the target's unit" in (
        finished.stdout
    )


def test_tables_are_measured_too(table: Path, capsys: Capture) -> None:
    run_here(capsys, "learn", "--data", "houses.csv.gz", *SHORT)
    finished = run_here(capsys, "measure", "--model", "run", "--out", "measured", "--quiet")
    assert finished.status == 0, finished.stderr


@pytest.mark.parametrize(
    "words, named",
    [
        (("--target", "cost"), ("houses.csv.gz", "cost", "width, height, price")),
        (("--generators", "sign:depth"), ("sign:depth", "width, height")),
        (("--generators", "rotation"), ("rotation", "permute:A:B")),
        (("--layout", "tables"), ("--layout", "sequences")),
    ],
)
def test_mistakes(
    table: Path, capsys: Capture, words: tuple[str, ...], named: tuple[str, ...]
) -> None:
    finished = run_here(capsys, "learn", "--data", "houses.csv.gz", *SHORT, *words)
    assert finished.status == 2
    if "--layout" not in words:
        assert_one_sentence(finished, *named)
    assert all(name in finished.stderr for name in named)


def test_sequences_from_a_file(tmp_path: Path, monkeypatch: Any, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    waves = np.random.default_rng(0).normal(size=(40, 2, 16)).astype(np.float32)
    np.savez("waves.npz", x=waves, y=np.arange(40) % 2)
    words = ("learn", "--data", "waves.npz", "--layout", "sequences", *SHORT, "--json")
    record = run_here(capsys, *words).record
    assert [each["name"] for each in record["symmetries"]] == ["shift", "stretch", "amplitude"]
    assert record["class_counts"] == {"0": [16, 4], "1": [16, 4]}
