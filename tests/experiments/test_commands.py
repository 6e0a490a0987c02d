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
    FIRST_RUN,
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
        if "first" in settings:
            found.append((row, settings["first"]["command"], settings["first"]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_options_of_the_command(name: str) -> None:
    for row, command, settings in commands_of(name):
        assert {f"--{option}" for option in settings["options"]} <= options_of(command), row
    for row, settings in read_experiment(name)["rows"].items():
        keys = {"options", "settings", "truth", "published", "data", "seeds", "first"}
        assert set(settings) <= keys, row
        assert set(settings.get("first", {})) <= {"command", "options", "settings"}, row


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
        for words in (job.arguments, job.first):
            if words:
                cli.commands[words[0]].make_context(words[0], list(words[1:]))


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


# -- what runs first -------------------------------------------------------------------------

FOLLOWED = {
    "command": "profile",
    "seeds": [2],
    "options": {"amounts": "0,1"},
    "first": {"command": "learn", "options": {"epochs": 5}, "settings": {"weight_rate": 0.1}},
    "problems": {"easy": {}, "far": {"data": "MNIST", "first": {"options": {"epochs": 7}}}},
    "methods": {
        "wide": {"first": {"options": {"model": "mlp:9"}, "settings": {"burn_in": 1}}},
        "untrained": {"first": False, "options": {"model": "mlp:3"}},
    },
}


def test_what_runs_first_is_joined_or_left_out() -> None:
    rows = with_rows(FOLLOWED)["rows"]
    assert rows["far-wide"] == {
        "data": "MNIST",
        "options": {"amounts": "0,1"},
        "first": {
            "command": "learn",
            "options": {"epochs": 7, "model": "mlp:9"},
            "settings": {"weight_rate": 0.1, "burn_in": 1},
        },
    }
    assert rows["easy-wide"]["first"]["options"] == {"epochs": 5, "model": "mlp:9"}
    assert rows["far-untrained"] == {
        "data": "MNIST", "options": {"amounts": "0,1", "model": "mlp:3"}
    }  # fmt: skip


def test_both_commands_get_the_seed_and_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = with_rows(FOLLOWED)
    monkeypatch.setattr("isotropy.experiments.commands.read_experiment", lambda name: experiment)
    job, plain = jobs("any", rows=("far-wide", "far-untrained"), data={"MNIST": Path("here")})
    assert job.arguments == (
        "profile", "--seed", "2", "--json", "--amounts", "0,1", "--data", "here",
        "--model", FIRST_RUN,
    )  # fmt: skip
    assert job.first == (
        "learn", "--seed", "2", "--json", "--epochs", "7", "--model", "mlp:9", "--data", "here",
        "--set", "weight_rate=0.1", "--set", "burn_in=1",
    )  # fmt: skip
    assert plain.first == () and "mlp:3" in plain.arguments and FIRST_RUN not in plain.arguments


REFUSED = {
    "two models": (
        {"options": {"model": "mlp"}},
        "row 'easy-wide': expected the model of what runs first, got a model of its own too",
    ),
    "no command": (
        {"first": {"options": {"epochs": 5}}},
        "row 'easy-wide': expected the command that runs first, such as command = \"learn\"",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_run_first_is_refused(
    change: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = with_rows({**FOLLOWED, **change})
    monkeypatch.setattr("isotropy.experiments.commands.read_experiment", lambda name: experiment)
    with pytest.raises(CallerError, match=sentence):
        list(jobs("any"))


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


def test_the_second_command_goes_on_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained by no more than rounding, the network scores as the first run left it."""
    monkeypatch.setattr("isotropy.experiments.commands.subprocess.run", in_this_process)
    tiny = ("--objective", "none", "--epochs", "2", "--subset", "40", "--device", "cpu", "--quiet")
    still = ("--set", "weight_rate=1e-12", "--set", "weight_rate_end=1e-12", "--set", "burn_in=2")
    job = CommandJob(
        "both",
        (1,),
        {},
        arguments=("learn", "--seed", "1", "--json", *tiny, *still, "--model", FIRST_RUN),
        first=("learn", "--seed", "1", "--json", *tiny, "--model", "mlp:5"),
    )
    record = ran(job, tmp_path)
    assert record["arguments"] == ["isotropy", *job.arguments]
    first = record["first"]
    assert first["arguments"] == ["isotropy", *job.first]
    assert set(first) == {"arguments", "result", "schedule", "history"}
    assert first["schedule"]["weight_rate"] > 1e-3 and record["schedule"]["weight_rate"] == 1e-12
    assert len(first["history"]) == len(record["history"]) == 2
    for result in (record["result"], first["result"]):
        assert result["run_folder"] is None and result["commit"] == "abc"
    scores = [row["test_log_likelihood"] for row in (first["result"], record["result"])]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert first["history"][0]["train_loss"] != pytest.approx(record["history"][0]["train_loss"])
    assert tempfile.gettempdir() not in json.dumps(record)


def test_a_command_need_not_leave_a_schedule_or_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that names the first run's folder is kept without the path."""
    commands: list[list[str]] = []

    def fake(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        told = {"model": command[command.index("--model") + 1], "report": "there"}
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(told))

    monkeypatch.setattr("isotropy.experiments.commands.subprocess.run", fake)
    words = ("measure", "--data", "/far/away", "--model", FIRST_RUN)
    before = ("learn", "--data", "/far/away", "--model", "mlp")
    job = CommandJob("one", (0,), {"data": "MNIST"}, arguments=words, first=before)
    record = ran(job, tmp_path / "deep")
    learned, measured = commands
    assert measured[measured.index("--model") + 1] == learned[learned.index("--out") + 1]
    assert measured[measured.index("--out") + 1] != learned[learned.index("--out") + 1]
    assert record["schedule"] is None and record["history"] == []
    assert record["result"]["model"] == FIRST_RUN and record["first"]["result"]["model"] == "mlp"
    assert record["arguments"] == ["isotropy", "measure", "--data", "MNIST", "--model", FIRST_RUN]
    assert record["first"]["arguments"] == [
        "isotropy", "learn", "--data", "MNIST", "--model", "mlp"
    ]  # fmt: skip


def test_a_first_command_that_fails_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def fake(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 2, stdout="")

    monkeypatch.setattr("isotropy.experiments.commands.subprocess.run", fake)
    words = ("learn", "--model", FIRST_RUN)
    job = CommandJob("two", (3,), {}, arguments=words, first=("learn", "--samples", "0"))
    with pytest.raises(CallerError, match="row 'two', seed 3: `isotropy learn --samples 0` ended"):
        run(job, CPU)
    assert len(commands) == 1


def test_measured_networks_differ_in_what_their_names_say() -> None:
    rows = read_experiment("measured-networks")["rows"]
    problems = ("cifar10", "fashion-mnist")
    methods = {"mlp", "convnet", "convnet-blur", "convnet-wide", "convnet-augmented",
               "convnet-untrained", "vit", "vit-augmented", "mixer"}  # fmt: skip
    assert set(rows) == {f"{problem}-{method}" for problem in problems for method in methods}
    for row, settings in rows.items():
        if row.endswith("untrained"):
            assert "first" not in settings and settings["options"]["model"] == "convnet"
            continue
        first = settings["first"]
        amounts = [float(text.partition("=")[2]) for text in first["options"]["range"]]
        assert all(amounts) if row.endswith("augmented") else not any(amounts), row
        same = dict(first["options"])
        del same["model"], same["range"]
        reference = rows["cifar10-convnet"]["first"]["options"]
        assert same.items() <= reference.items(), row


# -- failures and the command ----------------------------------------------------------------


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
    assert [path.name for path in (tmp_path / "any").iterdir()] == ["good-seed0.json"]


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
    others = [row for row in rows if "evidence" not in row["options"]]
    assert len({row["truth"]["rotation"] for row in others}) > 1
    for kind, first in ((others, 0), (bounds, 5)):
        (tried,) = {row["options"]["amounts"] for row in kind}
        amounts = [float(each) for each in tried.split(",")]
        assert amounts[0] == first and amounts[-1] == 180
        assert len({b - a for a, b in pairwise(amounts[1:])}) == 1
