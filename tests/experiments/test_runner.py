"""A series of rows: kept at once, one record each, by rank, in workers, within limits."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.cli.reproduce import SERIES
from isotropy.experiments import calibration, layer_equivariance
from isotropy.experiments.runner import (
    Job,
    RunOptions,
    keep,
    missing,
    one_seed_each,
    read_rows,
    run_series,
)
from isotropy.experiments.thesis import dynamics

CPU = torch.device("cpu")
OPTIONS = RunOptions(CPU, command="isotropy reproduce it", commit="abc")


def ignore(line: str) -> None:
    pass


def stand_in(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """A run of no time; rows called "bad" fail."""
    if job.row == "bad":
        raise RuntimeError("no such luck")
    return [{"value": job.settings["value"] + seed, "seconds": 0.0} for seed in job.seeds]


def jobs(*rows: str) -> list[Job]:
    return [Job(row, (0, 1), {"value": 10.0 * n}, float(n)) for n, row in enumerate(rows)]


def test_rows_are_kept_with_where_they_were_made(tmp_path: Path) -> None:
    path = tmp_path / "it" / "rows.jsonl"
    assert run_series(stand_in, jobs("a", "b"), path, OPTIONS, ignore) == []
    kept = read_rows(path)
    assert [(r["row"], r["seed"], r["value"]) for r in kept] == [
        ("b", 0, 10.0), ("b", 1, 11.0), ("a", 0, 0.0), ("a", 1, 1.0),
    ]  # fmt: skip
    assert all(r["commit"] == "abc" and r["device"] == "cpu" and "versions" in r for r in kept)
    assert missing(jobs("a", "b", "c"), kept) == jobs("a", "b", "c")[2:]
    assert missing(jobs("a"), kept[:3])[0].seeds == (1,)
    run_series(stand_in, [Job("a", (1,), {"value": 70.0})], path, OPTIONS, ignore)
    assert {r["value"] for r in read_rows(path) if r["row"] == "a"} == {0.0, 71.0}
    assert read_rows(tmp_path / "nothing") == []


def test_a_row_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    told: list[str] = []
    rows = jobs("a", "bad", "b")
    assert run_series(stand_in, rows, tmp_path / "rows", OPTIONS, told.append) == ["bad"]
    assert {r["row"] for r in read_rows(tmp_path / "rows")} == {"a", "b"}
    assert any("no such luck" in line for line in told)


def test_after_the_limit_no_row_starts(tmp_path: Path) -> None:
    told: list[str] = []
    late = RunOptions(CPU, limit=-1.0)
    assert run_series(stand_in, jobs("a", "b"), tmp_path / "rows", late, told.append) == []
    assert read_rows(tmp_path / "rows") == []
    assert told == ["the time limit left 2 rows; call again for them"]


@pytest.mark.slow
def test_workers_share_the_rows(tmp_path: Path) -> None:
    shared = RunOptions(CPU, workers=2)
    rows = jobs("a", "bad", "b", "c")
    assert run_series(stand_in, rows, tmp_path / "rows", shared, ignore) == ["bad"]
    assert {(r["row"], r["seed"]) for r in read_rows(tmp_path / "rows")} == {
        (row, seed) for row in "abc" for seed in (0, 1)
    }
    with pytest.raises(CallerError, match="at least 1 worker, got 0"):
        run_series(stand_in, rows, tmp_path / "rows", RunOptions(CPU, workers=0), ignore)


def test_numbers_that_json_has_not_become_null(tmp_path: Path) -> None:
    job = [Job("a", (0,), {"value": math.nan})]
    run_series(stand_in, job, tmp_path / "rows", OPTIONS, ignore)
    assert read_rows(tmp_path / "rows")[0]["value"] is None


# -- one record each ---------------------------------------------------------------------------


def test_a_new_record_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "it" / "rows.jsonl"
    keep(path, [{"row": "a", "seed": 0, "commit": "old"}, {"row": "a", "seed": 1, "commit": "old"}])
    keep(path, [{"row": "a", "seed": 0, "commit": "new"}])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(r["seed"], r["commit"]) for r in lines] == [(1, "old"), (0, "new")]
    assert [each.name for each in path.parent.iterdir()] == ["rows.jsonl"]


def test_two_records_of_one_row_and_seed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    two = [{"row": "a", "seed": 3, "commit": commit} for commit in ("first", "second")]
    path.write_text("\n".join(map(json.dumps, two)), encoding="utf-8")
    with pytest.raises(CallerError, match="row a with seed 3, got two, of commits first and secon"):
        read_rows(path)


# -- order and end -----------------------------------------------------------------------------


def test_rows_of_a_lower_rank_come_first_then_the_longest(tmp_path: Path) -> None:
    short, long, late = jobs("short", "long", "late")
    run_series(stand_in, [replace(late, rank=1), short, long], tmp_path / "rows", OPTIONS, ignore)
    order = dict.fromkeys(record["row"] for record in read_rows(tmp_path / "rows"))
    assert list(order) == ["long", "short", "late"]


def test_seeds_can_be_jobs_of_their_own() -> None:
    (job,) = jobs("a")
    assert one_seed_each([job]) == [replace(job, seeds=(0,)), replace(job, seeds=(1,))]


def sleeper(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """A run of as many seconds as the row says."""
    time.sleep(float(job.row))
    return [{"seconds": float(job.row)} for _ in job.seeds]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_running_rows_are_given_up_and_finished_ones_kept(tmp_path: Path, workers: int) -> None:
    rows = [Job("0", (0,), {}, cost=2), Job("600", (0,), {}, cost=1)]
    told: list[str] = []
    started = time.time()
    options = RunOptions(CPU, workers=workers, stop=25.0)  # workers take seconds to start
    assert run_series(sleeper, rows, tmp_path / "rows", options, told.append) == []
    assert time.time() - started < 60
    assert [each["row"] for each in read_rows(tmp_path / "rows")] == ["0"]
    assert told[-1] == "the time limit left 1 rows; call again for them"


LEFT_BEHIND = """
import os, signal, time
from pathlib import Path
import torch
from isotropy.experiments.runner import Job, RunOptions, run_series

def named(job, device):
    Path(job.row).touch()
    time.sleep(120)
    return []

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell with & ignores it
    jobs = [Job(row, (0,), {}) for row in ("a", "b")]
    run_series(named, jobs, Path("rows"), RunOptions(torch.device("cpu"), workers=2), print)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: int) -> None:
    (tmp_path / "left_behind.py").write_text(LEFT_BEHIND)
    command = [sys.executable, "left_behind.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while not all((tmp_path / row).exists() for row in ("a", "b")):
            time.sleep(0.1)
        process.send_signal(number)
        killed = time.time()
        process.stdout.read()  # workers hold it open: it ends with the last of them
    assert time.time() - killed < 60


# -- what is told of records -------------------------------------------------------------------

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", [name for name in SERIES if (RESULTS / name).is_dir()])
def test_kept_records_are_summed_up(name: str) -> None:
    records = read_rows(RESULTS / name / "rows.jsonl")
    lines = SERIES[name].summary(records)
    assert lines and not any("nan" in line for line in lines)


@pytest.mark.parametrize("name", SERIES)
def test_nothing_is_told_of_no_records(name: str) -> None:
    assert SERIES[name].summary([]) == []


def test_goals_are_missed_by_records_that_miss_them() -> None:
    """Those that are kept, with two networks exchanged, or random labels called symmetric."""
    exchanged = {"O(2)": "MLP", "MLP": "O(2)"}
    kept = read_rows(RESULTS / "dynamics" / "rows.jsonl")
    bad = [{**each, "network": exchanged.get(each["network"], each["network"])} for each in kept]
    best, worst = "O(2) is best among Hamiltonian networks", "the MLP is worst among Hamiltonian"
    for records, is_best in ((kept, True), (bad, False)):
        told = dynamics.goals(records)
        assert told[best] is is_best
        assert any(what.startswith(worst) for what in told)
    kept = read_rows(RESULTS / "calibration" / "rows.jsonl")
    believed = [
        {**each, "nothing_learned": False, "symmetries": [
            {**own, "verdict": "present"} for own in each["symmetries"]]}
        if each["truth"] == calibration.NOTHING else each
        for each in kept
    ]  # fmt: skip
    for records, holds in ((kept, True), (believed, False)):
        claims = [
            met for what, met in calibration.goals(records).items() if "random labels" in what
        ]
        assert claims and all(met is holds for met in claims)


def test_a_number_that_json_has_not_does_not_end_a_summary() -> None:
    records = read_rows(RESULTS / "layer-equivariance" / "rows.jsonl")
    line, *_ = layer_equivariance.summary([{**records[0], "test_accuracy": None}])
    assert records[0]["row"] in line and "no finite score" in line
