"""`isotropy relax`: its JSON, its words, its folder, its data, and every mistake one sentence."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import FAST, assert_one_sentence, bars_file, run_here

from isotropy.cli.relax import QUICK, _completed, _model, relax_command, relax_data
from isotropy.data.variants import TASKS
from isotropy.evidence.layers.structure import relaxed_layers
from isotropy.evidence.weight_steps import WeightSteps
from isotropy.records import load_tensors
from isotropy.workflows.loading import load

Capture = pytest.CaptureFixture[str]

TINY = ("--width", "1", "--epochs", "2", "--curvature", "kfac-mc", "--device", "cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(**changes: Any) -> dict[str, Any]:
    """The command's options as they are parsed without any word, but for these."""
    with relax_command.make_context("relax", []) as context:
        return {**context.params, **changes}


# --- runs -----------------------------------------------------------------------------------------


def test_relax_prints_its_record(folder: Path, capsys: Capture) -> None:
    words = ("relax", *TINY, "--subset", "40", "--task", "digit-quadrant", "--harden")
    finished = run_here(capsys, *words, "--out", "run", "--json")
    record = finished.record
    assert (record["command"], record["run_folder"]) == ("relax", "run")
    assert (record["task"], record["pathways"], record["width"]) == (TASKS[1], ["ffc", "conv"], 1)
    assert 0 <= record["test_accuracy"] <= 1 and record["test_nll"] > 0
    assert record["log_evidence"] < 0 and record["num_parameters"] > 0
    assert [layer["name"] for layer in record["layers"]] == [f"stage{n}" for n in range(1, 9)]
    for layer in record["layers"]:
        assert set(layer["effective"]) == set(layer["prior_precision"]) == {"ffc", "conv"}
        assert sum(layer["effective"].values()) == pytest.approx(1)
        assert layer["became"] is None, "two epochs learn nothing"
    assert record["hyper_steps"] == 0
    assert record["hardened"]["num_parameters"] <= record["num_parameters"]
    assert record["config"]["epochs"] == len(record["epochs"]) == 2
    assert record["command_line"] == "isotropy " + " ".join((*words, "--out", "run", "--json"))
    assert json.loads(Path("run/result.json").read_text()) == record
    assert Path("run/report.html").read_text().startswith("<!DOCTYPE html>")
    assert "class and quadrant" in finished.stderr and "epoch 2/2" in finished.stderr
    again = run_here(capsys, *words, "--out", "run")
    assert_one_sentence(again, "'run'", "already holds a run")


def test_relax_in_words_on_images_of_ones_own(folder: Path, capsys: Capture) -> None:
    bars_file(folder, count=30, size=16)
    words = ("--data", "bars.npz", "--objective", "map", "--pathways", "conv, gconv")
    finished = run_here(capsys, "relax", *TINY, *words)
    assert finished.status == 0, finished.stderr
    *sentences, report = finished.stdout.splitlines()
    assert sentences[0] == (
        "All 8 layers keep conv and gconv: training by MAP does not choose between pathways."
    )
    assert sentences[1].startswith("Test accuracy ") and "nats per example" in sentences[1]
    path = Path(report.removeprefix("Report: "))
    assert path.is_file() and path.parent.name.startswith("relax-bars-original-conv-gconv-0-")
    assert json.loads((path.parent / "result.json").read_text())["group"] == "C(4)"
    assert "resized from 16 × 16 to 32 × 32" in finished.stderr


def test_quiet_is_quiet_and_an_interruption_says_what_is_left(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isotropy.cli.relax.relax_and_learn", interrupted)
    finished = run_here(capsys, "relax", "--quiet", "--device", "cpu")
    assert (finished.status, finished.stdout) == (130, "")
    assert finished.stderr.strip() == "isotropy: interrupted; nothing was saved yet"
    assert not Path("runs").exists()


SMALL = ("--data", "bars.npz", "--device", "cpu", "--batch-size", "4")


def assert_same_numbers(one: str, other: str) -> None:
    """All that two run folders tell but times and how they were called."""
    records = [json.loads(Path(each, "result.json").read_text()) for each in (one, other)]
    for record in records:
        del record["command_line"], record["run_folder"]
        for each in (record, *record["epochs"]):
            assert each.pop("seconds") >= 0
    assert records[0] == records[1]
    ours, theirs = (load_tensors(Path(each, "checkpoint.safetensors"))[0] for each in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if "generator" not in name)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--model", "net.py:make"), ("--width", "1")], ids=" ".join)
def test_an_interrupted_run_is_resumed_with_the_same_numbers(
    words: tuple[str, ...], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars_file(folder, count=30)
    net_file(folder)
    words = ("relax", *SMALL, *words, "--epochs", "3", "--curvature", "kfac-mc")
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)
    epoch = WeightSteps.epoch

    def stopped(steps: WeightSteps, number: int, *others: Any) -> Any:
        if number > 2:
            raise KeyboardInterrupt
        return epoch(steps, number, *others)

    with monkeypatch.context() as patch:
        patch.setattr(WeightSteps, "epoch", stopped)
        broken = run_here(capsys, *words, "--out", "a run", "--json")
    assert (broken.status, broken.stdout) == (130, "")
    advice = next(line for line in broken.stderr.splitlines() if "interrupted;" in line)
    said, _, command = advice.partition("continue with: isotropy ")
    assert said == "isotropy: interrupted; " and not Path("a run/result.json").exists()

    other = run_here(capsys, *shlex.split(command), "--epochs", "5")
    assert_one_sentence(other, "--epochs 3, not 5", "leave --epochs out")
    other = run_here(capsys, *shlex.split(command), "--pathways", "conv")
    assert_one_sentence(other, "--pathways ffc,conv, not conv", "leave --pathways out")
    assert_one_sentence(run_here(capsys, "learn", "--resume", "a run"), "`isotropy learn`")
    monkeypatch.chdir("a run")  # data and network are found from anywhere
    resumed = run_here(capsys, "relax", "--resume", "../a run", "--json")
    monkeypatch.chdir(folder)
    assert resumed.status == 0 and "continuing after epoch 2 of 3" in resumed.stderr
    assert run_here(capsys, *words, "--out", "unbroken").status == 0
    assert_same_numbers("a run", "unbroken")


# --- other networks -------------------------------------------------------------------------------


def net_file(folder: Path) -> None:
    (folder / "net.py").write_text(
        "from torch import nn\n"
        "def make(shape, outputs):\n"
        "    return nn.Sequential(\n"
        "        nn.Conv2d(shape[0], 3, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),\n"
        "        nn.Flatten(), nn.Linear(3, outputs))\n"
    )


@pytest.mark.parametrize("text", ["net.py:make", "resnet:2", "compact:2", "learned"])
def test_any_network_can_be_relaxed_and_comes_back_from_its_folder(
    text: str, folder: Path, capsys: Capture
) -> None:
    bars_file(folder, count=24)
    net_file(folder)
    if text == "learned":
        fast = tuple("net.py:make" if word == "mlp:5" else word for word in FAST)
        run_here(capsys, "learn", "--data", "bars.npz", *fast, "--out", text)
    words = ("relax", *SMALL, "--model", text, "--pathways", "ffc,conv", "--epochs", "1")
    finished = run_here(capsys, *words, "--out", "run", "--json")
    record = finished.record
    assert record["width"] is None and len(record["layers"]) >= 1
    if text in ("net.py:make", "learned"):
        assert [layer["name"] for layer in record["layers"]] == ["0"]
    assert all(set(layer["effective"]) == {"ffc", "conv"} for layer in record["layers"])
    assert "resized" not in finished.stderr, "images keep their size"
    drawn = torch.get_rng_state()
    network = load("run")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert sum(p.numel() for p in network.parameters()) == record["num_parameters"]
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert relaxed_names(network) == [layer["name"] for layer in record["layers"]]
    measured = run_here(capsys, "measure", "--model", "run", "--device", "cpu", "--out", "m")
    assert measured.status == 0, measured.stderr
    assert json.loads(Path("m/result.json").read_text())["actions"][0]["error"] >= 0


def relaxed_names(network: torch.nn.Module) -> list[str]:
    assert all(layer.contributions for layer in relaxed_layers(network).values())
    return list(relaxed_layers(network))


def test_the_weights_of_a_learned_network_are_relaxed(folder: Path, capsys: Capture) -> None:
    bars_file(folder, count=24)
    net_file(folder)
    fast = tuple("net.py:make" if word == "mlp:5" else word for word in FAST)
    run_here(capsys, "learn", "--data", "bars.npz", *fast, "--out", "learned")
    options = {**given(), "data": "bars.npz", "model_text": "learned"}
    data = relax_data(_completed(options)).train
    model = _model(options, data, None)
    assert model is not None and model[0].text.endswith("net.py:make")
    saved, _ = load_tensors(Path("learned/checkpoint.safetensors"))
    for name, tensor in model[1].state_dict().items():
        assert torch.equal(tensor, saved[f"network/{name}"])


# --- options --------------------------------------------------------------------------------------


def test_quick_fills_in_what_was_not_typed() -> None:
    quick = _completed(given(quick=True, epochs=3))
    assert quick["epochs"] == 3
    assert {name: quick[name] for name in QUICK if name != "epochs"} == {
        name: value for name, value in QUICK.items() if name != "epochs"
    }
    assert (_completed(given())["width"], _completed(given())["epochs"]) == (10, None)


def test_a_group_comes_with_its_pathway() -> None:
    assert _completed(given())["group"] is None
    assert _completed(given(pathways=("conv", "gconv-full")))["group"] == "C(4)"
    assert _completed(given(pathways=("conv", "gconv")))["width"] == 2
    assert _completed(given(pathways=("gconv",), group="D(4)", width=3))["group"] == "D(4)"


def test_data() -> None:
    for task, classes in (("digit", 10), ("digit-quadrant", 40)):
        split = relax_data(_completed(given(task=task, subset=12)))
        assert tuple(split.train.inputs.shape) == (12, 1, 32, 32)
        assert split.train.num_classes == classes
        assert split.test is not None and len(split.test) == 1000
    split = relax_data(_completed(given(data="digits", variant="rotated", subset=5)))
    assert tuple(split.train.inputs.shape) == (5, 1, 32, 32) and "rotated" in split.train.name


def test_digits_of_quadrants_may_be_others(folder: Path) -> None:
    bars_file(folder, count=20, size=10)
    options = _completed(given(digits_data="bars.npz", task="digit-quadrant", image_size=20))
    split = relax_data(options)
    assert split.train.num_classes == 12 and "in quadrants" in split.train.name
    # At twice its side a canvas is not resampled: three quarters of it are black.
    black = split.train.inputs.amin()
    assert float(black) == pytest.approx(-0.1307 / 0.3081)
    assert bool(((split.train.inputs != black).float().mean((1, 2, 3)) <= 0.25).all())
