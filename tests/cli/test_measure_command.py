"""`isotropy measure`: its JSON, its words, its folder, its data, and every mistake one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import assert_one_sentence, bars_file, run_here

from isotropy.checks import CallerError
from isotropy.cli.measure import NamedModel, measured_data, named_models
from isotropy.data.labelled import LabelledData, Split
from isotropy.workflows.measuring import THESIS_TRANSFORMATIONS

Capture = pytest.CaptureFixture[str]

NETWORKS = """
import torch
from torch import nn

def pooled():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(4, 3, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    Path("nets.py").write_text(NETWORKS)
    return tmp_path


START = ("measure", "--data", "bars.npz", "--device", "cpu", "--examples", "6")
POOLED = ("--model", "nets.py:pooled")


def test_measure_prints_its_record(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, *START, *POOLED, "--out", "run", "--json")
    record = finished.record
    assert record["command"] == "measure" and record["run_folder"] == "run"
    assert (record["on"], record["interpolation"], record["padding"]) == (
        "probabilities", "bilinear", "reflection"
    )  # fmt: skip
    assert [action["name"] for action in record["actions"]] == list(THESIS_TRANSFORMATIONS)
    for action in record["actions"]:
        assert action["error"] > 0 and action["standard_error"] > 0
        assert action["resampling_floor"] >= 0
        if action["name"] == "amplitude":
            assert action["layers"] == [] and "hidden layers" in action["remark"]
            continue
        assert {"name", "norm", "share"} <= set(action["layers"][0])
        assert sum(layer["share"] for layer in action["layers"]) == pytest.approx(1, abs=1e-3)
    (entry,) = record["entries"]
    assert (entry["model"], entry["data"], entry["examples"]) == ("pooled", "test", 6)
    assert entry["actions"] == record["actions"]
    assert json.loads(Path("run/result.json").read_text()) == record
    config = json.loads(Path("run/config.json").read_text())
    assert config["command"].startswith("isotropy measure --data bars.npz")
    assert config["request"]["data"] == str(folder / "bars.npz")
    assert Path("run/report.html").read_text().startswith("<!DOCTYPE html>")
    assert "test: bars" in finished.stderr and "measuring translation_x" in finished.stderr
    assert "not trained" not in finished.stderr, "a file may well load weights"


def test_measure_in_words(folder: Path, capsys: Capture) -> None:
    words = ("--generators", "rotation, horizontal_flip", "--model", "circular:4")
    finished = run_here(capsys, *START, *words)
    assert finished.status == 0, finished.stderr
    *sentences, report = finished.stdout.splitlines()
    assert all(sentence.endswith(".") for sentence in sentences)
    assert "circular:4" in sentences[0] and sentences[1].startswith("Rotation: error ")
    assert any(sentence.startswith("Horizontal flip") for sentence in sentences)
    path = Path(report.removeprefix("Report: "))
    assert path.is_file() and path.parent.name.startswith("measure-bars-original-circular-4-0-")
    assert "circular:4: not trained, its weights are random" in finished.stderr


def test_the_options_count(folder: Path, capsys: Capture) -> None:
    quick = (*START, *POOLED, "--generators", "rotation", "--json", "--quiet")
    plain = run_here(capsys, *quick)
    assert plain.stderr == ""
    same = run_here(capsys, *quick)
    assert same.record["actions"] == plain.record["actions"]
    words = ("--no-layers", "--no-finite", "--on", "outputs", "--interpolation", "bicubic",
             "--padding", "zeros", "--examples", "5", "--split", "train", "--seed", "2",
             "--batch-size", "2")  # fmt: skip
    record = run_here(capsys, *quick, *words).record
    (action,), (entry,) = record["actions"], record["entries"]
    assert action["layers"] == [] and action["finite"] is None and entry["exact"] == []
    assert (record["on"], record["seed"]) == ("outputs", 2)
    assert (record["interpolation"], record["padding"]) == ("bicubic", "zeros")
    assert (entry["data"], entry["examples"]) == ("train", 5)
    probed = run_here(capsys, *quick, "--attribution", "probes", "--probes", "3").record
    assert probed["actions"][0]["attribution"]["method"] == "probes"
    assert probed["actions"][0]["attribution"]["probes"] == 3
    assert probed["actions"][0]["error"] == pytest.approx(plain.record["actions"][0]["error"])


def test_several_networks_and_data_sets(folder: Path, capsys: Capture) -> None:
    words = ("--model", "before=circular:3", "--model", "after=nets.py:pooled", "--split",
             "train,test", "--ood", "rotated", "--generators", "rotation", "--no-finite",
             "--no-layers")  # fmt: skip
    record = run_here(capsys, *START, *words, "--json").record
    assert [(entry["model"], entry["data"]) for entry in record["entries"]] == [
        (model, data) for model in ("before", "after") for data in ("train", "test", "rotated")
    ]
    assert record["entries"][2]["data_name"].endswith("rotated")
    gaps = [(row["model"], row["from"], row["to"]) for row in record["gaps"]]
    assert ("after", "train", "test") in gaps and ("before", "train", "rotated") in gaps
    assert {(row["from"], row["to"]) for row in record["drifts"]} == {("before", "after")}
    by_name = {(entry["model"], entry["data"]): entry["actions"][0] for entry in record["entries"]}
    gap = next(row for row in record["gaps"] if row["model"] == "after" and row["to"] == "test")
    difference = by_name["after", "test"]["error"] - by_name["after", "train"]["error"]
    assert gap["difference"] == pytest.approx(difference)
    finished = run_here(capsys, *START, *words, "--quiet")
    assert "after on rotated (" in finished.stdout


def test_other_data_come_in_the_size_and_colours_of_the_network(
    folder: Path, capsys: Capture
) -> None:
    """Their classes are others, so that there is no accuracy; probabilities are compared."""
    generator = torch.Generator().manual_seed(0)
    colours = torch.rand(9, 3, 20, 20, generator=generator)
    np.savez("other.npz", x=colours.numpy(), y=np.arange(9))
    words = ("--model", "circular:3", "--ood", "other.npz", "--ood", "rotated", "--generators",
             "rotation", "--no-finite", "--no-layers")  # fmt: skip
    record = run_here(capsys, *START, *words, "--json").record
    plain, other, rotated = record["entries"]
    assert [each["data"] for each in record["entries"]] == ["test", "other", "rotated"]
    assert other["accuracy"] is None and other["examples"] == 6 and other["on"] == "probabilities"
    assert plain["accuracy"] is not None and rotated["accuracy"] is not None
    assert [(gap["from"], gap["to"]) for gap in record["gaps"]] == [
        ("test", "other"), ("test", "rotated")
    ]  # fmt: skip
    same = run_here(capsys, *START, *words[:2], "--ood", "bars.npz", *words[6:], "--json").record
    assert same["entries"][1]["accuracy"] is not None, "its classes are those of the network"


def learned(capsys: Capture, out: str, *words: str) -> dict[str, Any]:
    start = ("learn", "--objective", "none", "--model", "circular:3", "--epochs", "2", "--samples",
             "1", "--verdicts", "0", "--device", "cpu", "--quiet", "--json")  # fmt: skip
    return run_here(capsys, *start, "--out", out, *words).record


def test_a_run_folder_is_measured_on_its_own_data(folder: Path, capsys: Capture) -> None:
    """Its held-out examples, that is: they were divided by the run's seed, not by this one."""
    run = learned(capsys, "first", "--data", "bars.npz", "--variant", "translated", "--seed", "3")
    quick = ("measure", "--generators", "rotation", "--no-finite", "--no-layers", "--device",
             "cpu", "--json")  # fmt: skip
    (entry,) = run_here(capsys, *quick, "--model", "first").record["entries"]
    assert entry["model"] == "first" and entry["data_name"].endswith("translated")
    assert entry["accuracy"] == pytest.approx(run["test_accuracy"])
    typed = run_here(capsys, *quick, "--model", "first", "--variant", "original").record
    assert not typed["entries"][0]["data_name"].endswith("translated")


def test_runs_on_different_data(folder: Path, capsys: Capture) -> None:
    learned(capsys, "first", "--data", "bars.npz", "--seed", "3")
    learned(capsys, "second", "--data", "bars.npz", "--seed", "3", "--variant", "rotated")
    both = ("measure", "--model", "first", "--model", "second", "--generators", "rotation",
            "--no-finite", "--no-layers", "--device", "cpu", "--json")  # fmt: skip
    assert_one_sentence(run_here(capsys, *both), "'first'", "'second'", "(variant)", "--variant")
    record = run_here(capsys, *both, "--variant", "rotated").record
    assert [entry["model"] for entry in record["entries"]] == ["first", "second"]
    before = sorted(path.name for path in Path("first").iterdir())
    assert_one_sentence(
        run_here(capsys, *both, "--variant", "rotated", "--out", "first"), "'first'", "holds a run"
    )
    assert sorted(path.name for path in Path("first").iterdir()) == before


def test_names_of_networks(folder: Path) -> None:
    Path("runs/first").mkdir(parents=True)
    Path("odd=name").mkdir()
    texts = [
        "mlp:20",
        "runs/first",
        "nets.py:pooled",
        "wide=mlp:90",
        "odd=name",
        "x=nets.py:pooled",
    ]
    models = named_models(texts)
    assert [(model.label, model.text) for model in models] == [
        ("mlp:20", "mlp:20"),
        ("first", "runs/first"),
        ("pooled", "nets.py:pooled"),
        ("wide", "mlp:90"),
        ("odd=name", "odd=name"),
        ("x", "nets.py:pooled"),
    ]
    untrained = [model.is_untrained for model in models]
    assert untrained == [True, False, False, True, False, False]
    assert NamedModel("m", "mlp").folder is None


def test_data_without_a_test_part() -> None:
    data = LabelledData(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]), None, "four")
    request = {"splits": ("test",), "ood": (), "variant": "original"}
    with pytest.raises(CallerError, match="four: there are no test data; give them with --test"):
        measured_data(request, Split(data, None))
    assert measured_data({**request, "splits": ("train",)}, Split(data, None)) == {"train": data}


def test_a_run_folder_goes_by_its_name_without_the_time() -> None:
    from isotropy.cli.measure import _TIME_STAMP

    stamped = "learn-digits-rotated-laplace-0-20261115-163210"
    assert _TIME_STAMP.sub("", stamped) == "learn-digits-rotated-laplace-0"
    assert _TIME_STAMP.sub("", stamped + "-2") == "learn-digits-rotated-laplace-0"
    assert _TIME_STAMP.sub("", "mine-2026") == "mine-2026"
