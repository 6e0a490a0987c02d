"""Rows that lanes find side by side are put together once, and taken into the results."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from types import ModuleType

import pytest
from layer_records import ROOT

from isotropy.checks import CallerError
from isotropy.experiments.runner import ROWS, keep, read_rows


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("run_lanes")


def rows(folder: Path, *names: str, commit: str = "new") -> Path:
    keep(folder, [{"row": name, "seed": 0, "commit": commit} for name in names])
    return folder


def test_rows_of_all_lanes_come_together_once(script: ModuleType, tmp_path: Path) -> None:
    lanes = [tmp_path / f"{script.LANE}{number}" for number in range(2)]
    rows(lanes[0] / "bases" / ROWS, "a", "b")
    rows(lanes[1] / "bases" / ROWS, "b", "c")  # b was there when the second lane began
    rows(lanes[1] / "story" / ROWS, "d")
    script.gather(lanes, tmp_path)
    script.gather(lanes, tmp_path)
    assert sorted(each["row"] for each in read_rows(tmp_path / "bases" / ROWS)) == ["a", "b", "c"]
    assert script.arrived(tmp_path) == ["bases: 3 rows", "story: 1 rows"]


def test_what_is_taken_says_which_rows_are_of_several_commits(
    script: ModuleType, tmp_path: Path
) -> None:
    kept = rows(tmp_path / "results" / "bases" / ROWS, "a", "b", commit="old")
    keep(kept, [{"row": "c", "seed": 1, "commit": "old"}])
    rows(tmp_path / "lanes" / "bases" / ROWS, "a", "c")
    told = script.take(tmp_path / "lanes", tmp_path / "results")
    assert told == ["bases: 2 records of 2 rows; of several commits: c"]
    commits = {(each["row"], each["seed"]): each["commit"] for each in read_rows(kept)}
    assert commits == {("b", 0): "old", ("a", 0): "new", ("c", 0): "new", ("c", 1): "old"}
    with pytest.raises(CallerError, match="found none"):
        script.take(tmp_path / "empty", tmp_path / "results")


@pytest.mark.parametrize("text", ["", "[[lanes]]\ncalls = []", "[[lanes]]\ncalls = ['']"])
def test_a_plan_without_calls_is_refused(script: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(CallerError, match="each with calls"):
        script.read_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize("plan", ["gpu_lanes.toml", "gpu_tables.toml"])
def test_plans_for_a_gpu_name_rows_that_there_are(script: ModuleType, plan: str) -> None:
    from isotropy.cli.reproduce import SERIES
    from isotropy.experiments.runner import read_table

    for calls in script.read_plan(ROOT / "scripts" / plan):
        for experiment, *arguments in calls:
            jobs = {job.row: job for job in SERIES[experiment].jobs(read_table(experiment), False)}
            pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
            named = [jobs[value] for option, value in pairs if option == "--row"]
            seeds = {int(value) for option, value in pairs if option == "--seed"}
            assert all(seeds <= set(job.seeds) for job in named)


@pytest.mark.slow
def test_lanes_run_what_is_missing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "POLL", 0.2)
    lanes = [
        [["convergence", "--quick", "--row", "SO(3) T(3)"]],
        [["convergence", "--quick", "--row", "Z(4) T(3)"]],
    ]
    end = time.monotonic() + 300
    script.run(lanes, tmp_path, ["--commit", "abc"], end)
    arrived = tmp_path / "convergence-quick" / ROWS
    first = read_rows(arrived)
    assert {each["row"] for each in first} == {"SO(3) T(3)", "Z(4) T(3)"}
    assert {each["commit"] for each in first} == {"abc"}
    script.run(lanes, tmp_path, ["--commit", "def"], end)
    assert read_rows(arrived) == first  # nothing was run again
    script.run([lanes[0]], tmp_path / "late", [], time.monotonic() + script.STARTING / 2)
    assert script.arrived(tmp_path / "late") == []
