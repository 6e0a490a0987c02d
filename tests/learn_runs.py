"""Small learning runs for the tests of command line, run folders and workflow.

Images are bright bars on a dark ground, upright or lying, so that a few epochs learn something;
runs are called in this process or, where signals and real streams matter, as a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isotropy.cli.main import main
from isotropy.evidence.settings import LearnConfig

SIZE = 8
FAST = (
    *("--epochs", "3", "--samples", "2", "--test-samples", "3", "--model", "mlp:5"),
    *("--device", "cpu", "--verdicts", "0", "--no-search"),
)
"""Options that make a run of small images take a moment."""

CONFIG = LearnConfig(epochs=4, samples=2, test_samples=3, batch_size=20, burn_in=1, search=False)
"""The same for runs in Python: epochs enough to stop in the middle, after a hyper step."""


def bars(count: int = 60, size: int = SIZE, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (count, size, size) of bars and int64 labels: 0 upright, 1 lying, 2 none."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 60, (count, size, size), dtype=np.uint8)
    labels = np.arange(count) % 3
    for image, label in zip(images, labels, strict=True):
        place = random.integers(1, size - 1)
        if label == 0:
            image[:, place] = 250
        elif label == 1:
            image[place] = 250
    return images, labels


def bars_file(folder: Path, name: str = "bars.npz", **options: int) -> Path:
    """The same as an npz file."""
    images, labels = bars(**options)
    np.savez(folder / name, x=images, y=labels)
    return folder / name


def bar_tensors(count: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The same as tensors: float32 (count, 1, size, size) in [0, 1], and labels."""
    images, labels = bars(count, seed=seed)
    return torch.from_numpy(images)[:, None] / 255, torch.from_numpy(labels)


def small_network(outputs: int = 3, seed: int = 0) -> nn.Sequential:
    """One hidden layer, initialised by `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(SIZE * SIZE, 5), nn.Tanh(), nn.Linear(5, outputs)
        )


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def record(self) -> dict[str, Any]:
        """Standard output, which is one JSON object in one line and nothing else."""
        assert self.status == 0, self.stderr
        assert self.stdout.count("\n") == 1 and self.stdout.endswith("\n")
        record = json.loads(self.stdout, parse_constant=_no_constant)
        assert isinstance(record, dict)
        return record


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} in JSON: non-finite numbers must be null")


def run_here(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Finished:
    """`isotropy words…` in this process; an exception that passes through fails the test."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return Finished(int(ended.value.code or 0), captured.out, captured.err)


def start_process(*words: str | Path, code: str | None = None, **options: Any) -> Any:
    """`python -m isotropy words…`, or `python -c code words…`, as a process of its own."""
    what = ["-m", "isotropy"] if code is None else ["-c", code]
    return subprocess.Popen(
        [sys.executable, *what, *map(str, words)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell that starts a process in the background lets it ignore SIGINT; this undoes it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def run_process(*words: str | Path, code: str | None = None, **options: Any) -> Finished:
    """The same, waited for."""
    process = start_process(*words, code=code, **options)
    stdout, stderr = process.communicate(timeout=120)
    return Finished(process.returncode, stdout or "", stderr or "")


def assert_one_sentence(finished: Finished, *named: str | Path) -> str:
    """Status 2, nothing on standard output, one line on standard error that names the culprit."""
    assert finished.status == 2, finished
    assert finished.stdout == ""
    assert finished.stderr.count("\n") == 1 and finished.stderr.endswith("\n"), finished.stderr
    assert finished.stderr.startswith("isotropy: ")
    assert "Traceback" not in finished.stderr
    for name in named:
        assert str(name) in finished.stderr
    return finished.stderr


def outcome(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All numbers of a finished run folder but those that differ from one time to the next."""
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in (result, *rows):
        assert record.pop("seconds") >= 0
    assert result.pop("run_folder") == str(folder)
    return result, rows
