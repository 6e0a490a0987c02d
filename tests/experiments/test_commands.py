"""Experiments as data: their rows are commands that exist, and a run leaves its raw record."""

from __future__ import annotations

import io
import json
import subprocess
import tempfile
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import bars_file

from isotropy.checks import CallerError
from isotropy.cli.main import cli, main
from isotropy.cli.reproduce import SERIES
from isotropy.cli.shared.inputs import settings_from
from isotropy.data.variants import TRUE_RANGES
from isotropy.evidence.objectives import OBJECTIVES
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments.commands import (
    CommandJob,
    destination,
    experiments,
    jobs,
    keep_record,
    read_experiment,
    run,
    with_rows,
)

CPU = torch.device("cpu")

NAMES = tuple(experiments())
TINY = (
    *("--epochs", "2", "--samples", "2", "--subset", "40", "--model", "mlp:5"),
    *("--device", "cpu", "--verdicts", "0", "--no-search", "--test-samples", "2"),
    *("--generators", "rotation"),
)


def options_of(command: str) -> set[str]:
    return {option for parameter in cli.commands[command].params for option in parameter.opts}


def commands_of(name: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every command of an experiment: the row, the command, its options and settings."""
    experiment = read_experiment(name)
    found = []
    for row, settings in experiment["rows"].items():
        found.append((row, experiment["command"], settings))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_options_of_the_command(name: str) -> None:
    for row, command, settings in commands_of(name):
        assert {f"--{option}" for option in settings["options"]} <= options_of(command), row
    for row, settings in read_experiment(name)["rows"].items():
        keys = {"options", "settings", "truth", "published", "data", "seeds"}
        assert set(settings) <= keys, row


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_fields_that_the_command_can_set(name: str) -> None:
    for row, command, settings in commands_of(name):
        by_option = {"--" + key for key in settings["options"]}
        own = {p.name for p in cli.commands[command].params if by_option & set(p.opts)}
        texts = [
            f"{field}={value if isinstance(value, str) else json.dumps(value)}"
            for field, value in settings.get("settings", {}).items()
        ]
        config = LearnConfig(**settings_from(texts))
        config.check()
        assert not set(settings.get("settings", {})) & own, row
        assert not texts or "--set" in options_of(command), row


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_accepted_by_the_command(name: str, tmp_path: Path) -> None:
    """Every row's words are parsed by the command itself; nothing is run."""
    rows = read_experiment(name)["rows"].values()
    places = {row["data"]: tmp_path for row in rows if "data" in row}
    for job in jobs(name, data=places):
        command, *words = job.arguments
        cli.commands[command].make_context(command, words)


@pytest.mark.parametrize("name", ["baselines", "ablations"])
def test_rows_to_be_compared_have_the_same_test_copies(name: str) -> None:
    copies = {row["options"]["test-samples"] for row in read_experiment(name)["rows"].values()}
    assert len(copies) == 1


def test_baselines_have_every_objective() -> None:
    rows = read_experiment("baselines")["rows"].values()
    assert {row["options"].get("objective", "evidence") for row in rows} == set(OBJECTIVES)


CROSSED = {
    "command": "learn",
    "options": {"test-samples": 31, "epochs": 5},
    "problems": {
        "easy": {"options": {"variant": "original"}},
        "hard": {"data": "MNIST", "options": {"variant": "rotated"}, "truth": {"rotation": 180.0}},
    },
    "methods": {
        "plain": {"options": {"objective": "none"}},
        "wide": {"options": {"epochs": 9}, "settings": {"augerino_weight": 0.1}},
    },
    "rows": {"one": {"options": {"variant": "scaled"}}},
}


def test_problems_times_methods() -> None:
    rows = with_rows(CROSSED)["rows"]
    assert set(rows) == {"easy-plain", "easy-wide", "hard-plain", "hard-wide", "one"}
    assert rows["hard-wide"] == {
        "data": "MNIST",
        "truth": {"rotation": 180.0},
        "options": {"test-samples": 31, "epochs": 9, "variant": "rotated"},
        "settings": {"augerino_weight": 0.1},
    }
    assert rows["one"] == {"options": {"test-samples": 31, "epochs": 5, "variant": "scaled"}}


def test_settings_and_lists_become_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "options": {"range": ["rotation=30", "scale=1"]},
        "settings": {"curvature": "kfac-ef", "augerino_weight": 1, "caps": {"scale": 2.0}},
    }
    experiment = {"command": "learn", "seeds": [3], "rows": {"one": row}}
    monkeypatch.setattr("isotropy.experiments.commands.read_experiment", lambda name: experiment)
    (job,) = jobs("any")
    assert job.arguments == (
        "learn", "--seed", "3", "--json", "--range", "rotation=30", "--range", "scale=1",
        "--set", "curvature=kfac-ef", "--set", "augerino_weight=1", "--set", 'caps={"scale": 2.0}',
    )  # fmt: skip
    texts = [after for word, after in zip(job.arguments, job.arguments[1:], strict=False)
             if word == "--set"]  # fmt: skip
    found = settings_from(texts)
    assert found == {"curvature": "kfac-ef", "augerino_weight": 1.0, "caps": {"scale": 2.0}}
    assert isinstance(found["augerino_weight"], float)


@pytest.mark.parametrize("name", NAMES)
def test_truth_is_the_law_of_the_variant(name: str) -> None:
    for settings in read_experiment(name)["rows"].values():
        if name == "photographs":  # turned by their makers
            law = {"rotation": 180.0 if settings["data"].startswith("rotated") else 0.0}
        else:
            law = TRUE_RANGES[settings["options"].get("variant", "original")]
        assert settings.get("truth", {}) == pytest.approx(law, abs=1e-4)


def test_a_row_and_seed_is_one_job_with_one_place(tmp_path: Path) -> None:
    found = list(jobs("learning-digits", rows=("embedded-rotated",), seeds=(4, 7)))
    assert [job.seeds for job in found] == [(4,), (7,)]
    assert found[0].arguments == ("learn", "--seed", "4", "--json", "--variant", "rotated")
    assert destination(found[1], tmp_path) == tmp_path / "embedded-rotated-seed7.json"


def test_data_that_is_elsewhere_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="needs the data set MNIST; say where it is with --data"):
        list(jobs("learning-digits", rows=("mnist-5000-rotated",)))
    with pytest.raises(CallerError, match="unknown row 'embeded-rotated'.*did you mean"):
        list(jobs("learning-digits", rows=("embeded-rotated",)))
    with pytest.raises(CallerError, match="unknown experiment"):
        list(jobs("nothing"))


def ran(job: CommandJob, folder: Path) -> dict[str, Any]:
    """The record that a job leaves in a folder."""
    (record,) = run(job, CPU)
    keep_record(destination(job, folder), record, "abc")
    found: dict[str, Any] = json.loads(destination(job, folder).read_text())
    return found


@pytest.mark.slow
def test_a_job_leaves_its_record(tmp_path: Path) -> None:
    data = ("--data", str(bars_file(tmp_path)))
    arguments = ("learn", "--seed", "1", "--json", "--quiet", *data, *TINY)
    record = ran(CommandJob("tiny", (1,), {"truth": {}}, arguments=arguments), tmp_path)
    assert record["arguments"] == ["isotropy", *arguments]
    assert record["result"]["seed"] == 1 and record["result"]["run_folder"] is None
    assert record["result"]["commit"]
    assert [row["epoch"] for row in record["history"]] == [1, 2]
    assert record["schedule"]["samples"] == 2


def test_a_command_need_not_leave_a_schedule_or_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps({"report": "there"}))

    monkeypatch.setattr("isotropy.experiments.commands.subprocess.run", fake)
    words = ("measure", "--data", "/far/away", "--model", "mlp")
    job = CommandJob("one", (0,), {"data": "MNIST"}, arguments=words)
    record = ran(job, tmp_path / "deep")
    assert record["schedule"] is None and record["history"] == []
    assert record["arguments"] == ["isotropy", "measure", "--data", "MNIST", "--model", "mlp"]
    assert record["result"]["report"] == "there" and record["result"]["commit"] == "abc"


def test_a_command_has_the_threads_of_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def fake(command: list[str], env: dict[str, str], **_: object) -> object:
        seen.append(env["OMP_NUM_THREADS"])
        return subprocess.CompletedProcess(command, 0, stdout="{}")

    monkeypatch.setattr("isotropy.experiments.commands.subprocess.run", fake)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            run(CommandJob("one", (0,), {}, arguments=("measure",)), CPU)
    finally:
        torch.set_num_threads(before)
    assert seen == ["1", "2"]


def test_a_command_that_fails_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 2, stdout="")

    monkeypatch.setattr("isotropy.experiments.commands.subprocess.run", fake)
    job = CommandJob("two", (3,), {}, arguments=("learn", "--samples", "0"))
    with pytest.raises(CallerError, match="row 'two', seed 3: `isotropy learn --samples 0` ended"):
        run(job, CPU)


# -- failures and the command ----------------------------------------------------------------

run_as_it_is = subprocess.run


def in_this_process(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run`, without starting Python anew for a command of ours."""
    if command[1:3] != ["-m", "isotropy"]:
        return run_as_it_is(command, **settings)
    told = io.StringIO()
    with redirect_stdout(told), pytest.raises(SystemExit) as stop:
        main(command[3:])
    assert isinstance(stop.value.code, int)
    return subprocess.CompletedProcess(command, stop.value.code, stdout=told.getvalue())


def test_a_failing_row_is_named_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of commands and of series go through one runner."""
    monkeypatch.setattr("isotropy.experiments.commands.subprocess.run", in_this_process)
    tiny = {"objective": "none", "epochs": 2, "subset": 40, "device": "cpu", "model": "mlp:5"}
    rows = {"good": {"options": tiny}, "broken": {"options": {"samples": 0}}}
    experiment = {"command": "learn", "seeds": [0], "rows": rows}
    monkeypatch.setattr("isotropy.experiments.commands.read_experiment", lambda name: experiment)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "any", "--results", str(tmp_path), "--json", "--commit", "abc"])
    told = capsys.readouterr()
    assert stop.value.code == 1 and "1 rows failed: broken" in told.err
    assert "broken failed: CallerError: row 'broken', seed 0" in told.err
    assert [each["commit"] for each in json.loads(told.out)["results"]] == ["abc"]
    (kept,) = (tmp_path / "any").iterdir()
    assert kept.name == "good-seed0.json"
    record = json.loads(kept.read_text())
    assert len(record["history"]) == record["schedule"]["epochs"] == 2
    assert tempfile.gettempdir() not in kept.read_text()


def test_command_lists_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.split() == [*NAMES, *SERIES]


def test_command_leaves_a_row_with_a_result_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "learning-digits" / "embedded-rotated-seed0.json"
    place.parent.mkdir()
    place.write_text("kept")
    words = ["reproduce", "learning-digits", "--row", "embedded-rotated", "--seed", "0"]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--results", str(tmp_path)])
    assert stop.value.code == 0 and place.read_text() == "kept"
    assert "nothing to run" in capsys.readouterr().out


def test_profiles_try_the_same_evenly_spaced_ranges_whatever_the_truth() -> None:
    rows = read_experiment("profiles")["rows"].values()
    bounds = [row for row in rows if "evidence" in row["options"]]
    larger = [row for row in rows if "subset" in row["options"]]
    whole = [row for row in rows if "data" in row and row not in larger]
    others = [row for row in rows if not any(row in kind for kind in (bounds, larger, whole))]
    for kind in (others, larger):
        assert len({row["truth"]["rotation"] for row in kind}) > 1
    for kind, first in ((others, 0), (bounds, 5), (larger, 45), (whole, 30)):
        (tried,) = {row["options"]["amounts"] for row in kind}
        amounts = [float(each) for each in tried.split(",")]
        assert amounts[0] == first and amounts[-1] == 180
        assert len({b - a for a, b in pairwise(amounts[1:])}) == 1
