"""Experiments as data: their rows are commands that exist, and a run leaves its raw record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isotropy.checks import CallerError
from isotropy.cli.main import cli, main
from isotropy.data.variants import TRUE_RANGES
from isotropy.evidence.schedule import OBJECTIVES, LearnConfig
from isotropy.evidence.settings import settings_from
from isotropy.experiments.runner import (
    Job,
    experiments,
    jobs,
    read_experiment,
    run_job,
    with_rows,
)

NAMES = tuple(experiments())
TINY = ("--epochs", "2", "--samples", "2", "--subset", "40", "--model", "mlp:5", "--device", "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_options_of_the_command(name: str) -> None:
    experiment = read_experiment(name)
    known = {
        option.removeprefix("--")
        for parameter in cli.commands[experiment["command"]].params
        for option in parameter.opts
    }
    for row, settings in experiment["rows"].items():
        assert set(settings["options"]) <= known, row
        keys = {"options", "settings", "truth", "published", "data", "seeds"}
        assert set(settings) <= keys, row


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_fields_that_the_command_can_set(name: str) -> None:
    experiment = read_experiment(name)
    command = cli.commands[experiment["command"]]
    by_option = {"--" + key for row in experiment["rows"].values() for key in row["options"]}
    own = {p.name for p in command.params if by_option & set(p.opts)}
    for row, settings in experiment["rows"].items():
        texts = [f"{field}={value}" for field, value in settings.get("settings", {}).items()]
        config = LearnConfig(**settings_from(texts))
        config.check()
        assert not set(settings.get("settings", {})) & own, row


@pytest.mark.parametrize("name", NAMES)
def test_rows_with_settings_are_accepted_by_the_command(name: str, tmp_path: Path) -> None:
    """Every row's words are parsed by the command itself; nothing is run."""
    places = {"MNIST": tmp_path}
    command = cli.commands[read_experiment(name)["command"]]
    if "--set" not in {option for parameter in command.params for option in parameter.opts}:
        pytest.skip("the command has no --set yet")
    for job in jobs(name, tmp_path, data=places):
        command.make_context("learn", list(job.arguments[1:]))


@pytest.mark.parametrize("name", ["baselines", "ablations"])
def test_rows_to_be_compared_have_the_same_test_copies(name: str) -> None:
    copies = {row["options"]["test-samples"] for row in read_experiment(name)["rows"].values()}
    assert len(copies) == 1


def test_baselines_have_every_objective() -> None:
    rows = read_experiment("baselines")["rows"].values()
    assert {row["options"].get("objective", "laplace") for row in rows} == set(OBJECTIVES)


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
    monkeypatch.setattr("isotropy.experiments.runner.read_experiment", lambda name: experiment)
    (job,) = jobs("any", tmp_path)
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
        law = TRUE_RANGES[settings["options"]["variant"]]
        assert settings.get("truth", {}) == pytest.approx(law, abs=1e-4)


def test_a_row_and_seed_is_one_job_with_one_place(tmp_path: Path) -> None:
    found = list(jobs("learning-digits", tmp_path, rows=("embedded-rotated",), seeds=(4, 7)))
    assert [job.seed for job in found] == [4, 7]
    assert found[0].arguments == ("learn", "--seed", "4", "--json", "--variant", "rotated")
    assert found[1].destination == tmp_path / "learning-digits" / "embedded-rotated-seed7.json"


def test_data_that_is_elsewhere_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="needs the data set MNIST; say where it is with --data"):
        list(jobs("learning-digits", tmp_path, rows=("mnist-5000-rotated",)))
    with pytest.raises(CallerError, match="unknown row 'embeded-rotated'.*did you mean"):
        list(jobs("learning-digits", tmp_path, rows=("embeded-rotated",)))
    with pytest.raises(CallerError, match="unknown experiment"):
        list(jobs("nothing", tmp_path))


def test_a_job_leaves_its_record(tmp_path: Path) -> None:
    arguments = ("learn", "--seed", "1", "--json", "--quiet", *TINY)
    job = Job("tiny", 1, arguments, tmp_path / "tiny-seed1.json", {"truth": {}})
    run_job(job, commit="abc")
    record = json.loads(job.destination.read_text())
    assert record["arguments"] == ["isotropy", *arguments]
    assert record["result"]["seed"] == 1 and record["result"]["run_folder"] is None
    assert record["result"]["commit"]
    assert [row["epoch"] for row in record["history"]] == [1, 2]
    assert record["schedule"]["samples"] == 2


def test_a_failing_job_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    job = Job("broken", 0, ("learn", "--samples", "0"), tmp_path / "broken.json", {})
    with pytest.raises(CallerError, match="row 'broken', seed 0: .* ended with status 2"):
        run_job(job)
    assert not job.destination.exists()


def test_command_lists_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.split() == list(NAMES)


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
