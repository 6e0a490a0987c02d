"""Rows by Ray are rows by processes; a worker that is lost costs nothing."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.experiments.runner import Job, RunOptions, read_rows, run_series

CPU = torch.device("cpu")
JOBS = [Job(f"row {number}", (0, 1), {"number": number}) for number in range(10)]


def squares(job: Job, device: torch.device) -> list[dict[str, Any]]:
    return [{"square": job.settings["number"] ** 2 + seed} for seed in job.seeds]


def squares_but_once(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """The same; the worker of one row is killed the first time."""
    mark = Path(job.settings["folder"]) / "killed"
    if job.settings["number"] == 4 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squares(job, device)


def without_where(path: Path) -> list[tuple[str, int, int]]:
    return sorted((each["row"], each["seed"], each["square"]) for each in read_rows(path))


@pytest.mark.slow
def test_ten_rows_arrive_though_a_worker_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    told: list[str] = []
    jobs = [Job(j.row, j.seeds, {**j.settings, "folder": str(tmp_path)}) for j in JOBS]
    options = RunOptions(CPU, workers=2, engine="ray")
    assert run_series(squares_but_once, jobs, tmp_path / "ray", options, told.append) == []
    assert (tmp_path / "killed").exists() and len(told) == 10
    assert run_series(squares, JOBS, tmp_path / "local", RunOptions(CPU), told.append) == []
    assert without_where(tmp_path / "ray") == without_where(tmp_path / "local")
    assert len(without_where(tmp_path / "ray")) == 20


def test_ray_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CallerError, match=r"pip install isotropy\[distributed\]"):
        run_series(squares, JOBS, tmp_path / "rows", RunOptions(CPU, engine="ray"), print)


def test_a_cluster_that_does_not_answer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError(f"nobody at {options['address']}")

    nobody = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", nobody)
    options = RunOptions(CPU, engine="ray", ray_address="here:1")
    with pytest.raises(CallerError, match="nobody at here:1; see --ray-address"):
        run_series(squares, JOBS, tmp_path / "rows", options, print)


def test_engines_have_names(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="engine"):
        run_series(squares, JOBS, tmp_path / "rows", RunOptions(CPU, engine="slurm"), print)
