"""Experiments as data: their rows are commands that exist, and a run leaves its raw record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isotropy.checks import CallerError
from isotropy.cli.main import cli, main
from isotropy.data.variants import TRUE_RANGES
from isotropy.experiments.runner import Job, experiments, jobs, read_experiment, run_job

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
        assert set(settings) <= {"options", "truth", "published", "data", "seeds"}, row


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
