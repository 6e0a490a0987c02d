"""`isotropy learn` at work on small images: its JSON, its run folder, its options, its display."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learn_runs import (
    FAST,
    assert_one_sentence,
    bars,
    bars_file,
    outcome,
    run_here,
    run_process,
)
from safetensors.torch import load_file

import isotropy
from isotropy.evidence.objectives import OBJECTIVES
from isotropy.networks.zoo import specification
from isotropy.symmetry.actions.images import LILA_GENERATORS

Capture = pytest.CaptureFixture[str]
MODEL_FILE = """
from neighbour import WIDTH
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.hidden = nn.Linear(shape[0] * shape[1] * shape[2], WIDTH)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, images):
        return self.head(self.drop(self.hidden(images.flatten(1)).tanh()))

make = Net
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with bars.npz in it."""
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    return tmp_path


def learn(capsys: Capture, *words: str | Path) -> dict[str, Any]:
    """The record of a short run on bars.npz, with one generator unless `words` say otherwise."""
    start = ("learn", "--data", "bars.npz", *FAST, "--generators", "rotation", "--out", "run")
    return run_here(capsys, *start, *words, "--json").record


# -- what comes out ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and in `run` a run with all defaults but its length.

    It is made by `python -m isotropy`, and its standard streams are kept.
    """
    place = tmp_path_factory.mktemp("plain")
    data = bars_file(place)
    finished = run_process(
        "learn", "--data", data, *FAST, "--seed", "3", "--out", place / "run", "--json"
    )
    assert finished.status == 0, finished.stderr
    (place / "stdout").write_text(finished.stdout)
    (place / "stderr").write_text(finished.stderr)
    return place


def test_json_is_one_object_with_the_promised_fields(plain_run: Path) -> None:
    (line,) = (plain_run / "stdout").read_text().splitlines()
    record = json.loads(line)
    assert record["schema"] == 1
    assert record["command"] == "learn"
    assert record["isotropy"] == isotropy.__version__
    assert record["seed"] == 3
    assert record["device"] == "cpu"
    assert record["seconds"] > 0
    assert record["run_folder"] == str(plain_run / "run")
    assert record["objective"] == "evidence"
    assert isinstance(record["curvature"], str) and record["curvature"]
    assert record["samples"] == 2
    assert 0 <= record["test_accuracy"] <= 1
    assert record["log_evidence"] < 0
    per_example = record["log_evidence"] / record["train_examples"]
    assert record["log_evidence_per_example"] == pytest.approx(per_example)
    assert record["train_examples"] + record["test_examples"] == 60
    assert json.loads((plain_run / "run" / "result.json").read_text()) == record


def test_run_folder_holds_what_it_says(plain_run: Path) -> None:
    run = plain_run / "run"
    assert {path.name for path in run.iterdir()} == {
        "config.json", "metrics.jsonl", "checkpoint.safetensors", "augmentation.json",
        "result.json", "samples.npz", "report.html",
    }  # fmt: skip
    config = json.loads((run / "config.json").read_text())
    network = {"kind": "backbone", "name": "mlp", "arguments": {"hidden": 5}, "sha256": None}
    assert config["network"] == network
    assert config["schedule"]["epochs"] == 3 and config["schedule"]["batch_size"] == 32
    assert config["command"].startswith("isotropy learn --data ")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert set(rows[-1]["ranges"]) == set(LILA_GENERATORS)
    tensors = load_file(run / "checkpoint.safetensors")
    assert tensors["network/1.weight"].shape == (5, 64)
    report = (run / "report.html").read_text()
    assert report.startswith("<!DOCTYPE html>") and "rotation" in report.lower()


def test_progress_goes_to_standard_error(plain_run: Path) -> None:
    stderr = (plain_run / "stderr").read_text()
    assert "12 examples) held out by seed 3" in stderr
    assert "bars: 48 examples, model mlp:5, objective evidence, 2 samples, 3 epochs" in stderr
    assert "too few" in stderr
    lines = [line for line in stderr.splitlines() if line.startswith("epoch ")]
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all("loss" in line and "evidence/example" in line for line in lines)
    assert "\x1b" not in stderr and "Traceback" not in stderr


def test_words_instead_of_json(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, "learn", "--data", "bars.npz", *FAST, "--generators", "rotation")
    assert finished.status == 0
    *sentences, report = finished.stdout.splitlines()
    assert any("Test accuracy" in sentence for sentence in sentences)
    assert any("Log evidence" in sentence and "nats" in sentence for sentence in sentences)
    path = Path(report.removeprefix("Report: "))
    assert path.is_file() and path.parts[0] == "runs"
    assert path.parent.name.startswith("learn-bars-original-evidence-0-")


def test_two_runs_at_once_have_folders_of_their_own(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda style: "20240101-000000")
    words = ("learn", "--data", "bars.npz", *FAST, "--objective", "none", "--json", "--epochs", "1")
    folders = {run_here(capsys, *words).record["run_folder"] for _ in range(2)}
    assert len(folders) == 2


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives(
    objective: str, folder: Path, capsys: Capture, request: pytest.FixtureRequest
) -> None:
    if objective == "trivial-augment":
        request.getfixturevalue("torchvision_imports")
    given = ["--range", "rotation=30"] if objective in ("fixed", "averaged-losses") else []
    record = learn(capsys, "--objective", objective, *given)
    assert record["objective"] == objective
    without = objective not in ("evidence", "fixed", "none")
    assert (record["log_evidence"] is None) == without
    assert (record["log_evidence_per_example"] is None) == without
    assert record["samples"] == (1 if objective == "none" else 2)
    found = {symmetry["name"]: symmetry["high"] for symmetry in record["symmetries"]}
    if objective == "trivial-augment":
        assert found == {"trivial_augment": 1.0}
    elif objective in ("fixed", "averaged-losses", "none"):
        expected = 0.0 if objective == "none" else 30.0
        assert found == {"rotation": pytest.approx(expected, rel=1e-6)}
    else:
        assert found["rotation"] > 0
        assert found["rotation"] != pytest.approx(float(np.degrees(0.05)))


def test_the_evidence_may_be_a_bound(folder: Path, capsys: Capture) -> None:
    record = learn(capsys, "--model", "rff:6", "--evidence", "elbo", "--calibration")
    assert record["evidence"]["kind"] == "elbo" and record["curvature"] == "none"
    parts = record["elbo"]
    bound = parts["expected_log_likelihood"] - parts["kl"]
    assert record["log_evidence_per_example"] == pytest.approx(bound)
    assert parts["prior_variance"] == pytest.approx(1 / record["prior_precision"]["all"])
    assert set(record["calibration"]) == {"probit", "monte-carlo", "plug-in"}
    assert record["search"] is None and record["verdicts"] is None
    assert learn(capsys, "--objective", "laplace", "--out", "older")["elbo"] is None
    start = ("learn", "--data", "bars.npz", *FAST, "--model", "rff:6", "--evidence", "elbo")
    assert "Evidence bound −" in run_here(capsys, *start).stdout


def test_cap_bounds_what_is_learned(folder: Path, capsys: Capture) -> None:
    words = ("--objective", "augerino", "--generators", "rotation,scale")
    free = learn(capsys, *words, "--out", "free")
    capped = learn(capsys, *words, "--out", "capped", "--cap", "rotation=1", "--cap", "scale=0.5")
    assert free["symmetries"][0]["high"] > 1
    assert 0 < capped["symmetries"][0]["high"] <= 1 + 1e-6


def test_subset_and_image_size(folder: Path, capsys: Capture) -> None:
    record = learn(capsys, "--subset", "20", "--image-size", "6", "--batch-size", "7")
    assert record["train_examples"] == 20 and record["test_examples"] == 12
    config = json.loads(Path("run/config.json").read_text())
    assert config["data"]["shape"] == [1, 6, 6]
    assert config["schedule"]["batch_size"] == 7


def test_test_data_is_only_scored(folder: Path, capsys: Capture) -> None:
    test = bars_file(folder, "test.npz", count=30, seed=9)
    record = learn(capsys, "--test", test)
    assert record["train_examples"] == 60 and record["test_examples"] == 30
    other = bars_file(folder, "other.npz", count=20, seed=8)
    again = learn(capsys, "--test", other, "--out", "again")
    assert again["log_evidence"] == record["log_evidence"]


def test_embedded_digits_are_the_default(folder: Path, capsys: Capture) -> None:
    words = ("--subset", "40", "--image-size", "10", "--objective", "none", "--out", "run")
    record = run_here(capsys, "learn", *FAST, *words, "--json").record
    assert record["train_examples"] == 40 and record["test_examples"] == 1000


def test_regression(folder: Path, capsys: Capture) -> None:
    images, labels = bars()
    targets = np.stack([labels - 0.5, images.mean((1, 2)) / 255], 1).astype(np.float32)
    np.savez("bars.npz", x=images, y=targets)
    record = learn(capsys)
    assert record["test_accuracy"] is None
    assert record["noise"] > 0
    assert np.isfinite(record["log_evidence"]) and np.isfinite(record["test_log_likelihood"])


def test_prior_per_layer(folder: Path, capsys: Capture) -> None:
    precisions = learn(capsys, "--prior", "layer")["prior_precision"]
    assert len(precisions) == 2


def test_seed_decides_the_numbers(folder: Path, capsys: Capture) -> None:
    first, second, other = (
        learn(capsys, "--out", name, "--seed", seed)
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    )
    assert first["log_evidence"] == second["log_evidence"] != other["log_evidence"]
    assert outcome(Path("a")) == outcome(Path("b"))


# -- models ------------------------------------------------------------------------------------


def test_model_from_a_file(folder: Path, capsys: Capture) -> None:
    Path("models").mkdir()
    Path("models/nets.py").write_text(MODEL_FILE)
    Path("models/neighbour.py").write_text("WIDTH = 4\n")
    record = learn(capsys, "--model", "models/nets.py:make")
    network = json.loads(Path("run/config.json").read_text())["network"]
    assert network["kind"] == "file" and len(network["sha256"]) == 64
    assert network["name"] == f"{(folder / 'models' / 'nets.py').resolve()}:make"
    tensors = load_file("run/checkpoint.safetensors")
    assert tensors["network/hidden.weight"].shape == (4, 64)
    again = run_here(capsys, "learn", "--resume", "run", "--json").record
    assert again["log_evidence"] == record["log_evidence"]


def test_changed_model_file_is_refused(folder: Path, capsys: Capture) -> None:
    Path("nets.py").write_text(MODEL_FILE)
    Path("neighbour.py").write_text("WIDTH = 4\n")
    learn(capsys, "--model", "nets.py:make")
    Path("nets.py").write_text(MODEL_FILE.replace("0.1", "0.2"))
    finished = run_here(capsys, "learn", "--resume", "run")
    assert_one_sentence(finished, "nets.py", "has changed since the run began")
    finished = run_here(capsys, "learn", "--data", "bars.npz", "--model", "run", "--epochs", "1")
    assert_one_sentence(finished, "nets.py", "has changed since the run began")


@pytest.mark.slow
def test_code_of_a_run_folder_is_named_again(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("nets.py").write_text(MODEL_FILE)
    Path("neighbour.py").write_text("WIDTH = 4\n")
    learn(capsys, "--model", "nets.py:make")
    as_model = ("learn", "--data", "bars.npz", "--model", "run", "--epochs", "1")
    for words in (("learn", "--resume", "run"), as_model):
        monkeypatch.setattr(specification, "_named_by_caller", {})  # as in another process
        finished = run_here(capsys, *words)
        assert_one_sentence(finished, "run/config.json names code", "--code FILE.py:make")
        assert run_here(capsys, *words, "--code", "nets.py:make").status == 0
    monkeypatch.setattr(specification, "_named_by_caller", {})
    resumed = run_here(capsys, "learn", "--resume", "run", "--model", "nets.py:make")
    assert resumed.status == 0
    assert_one_sentence(run_here(capsys, *as_model, "--code", "nets"), "expected FILE.py:factory")


def test_run_folder_as_model_goes_on_from_its_weights(folder: Path, capsys: Capture) -> None:
    learn(capsys, "--out", "first")
    before = Path("first/checkpoint.safetensors").read_bytes()
    words = ("--model", "first", "--epochs", "1", "--out", "second")
    learn(capsys, *words)
    config = json.loads(Path("second/config.json").read_text())
    assert config["network"]["arguments"] == {"hidden": 5}
    old, new = (load_file(f"{name}/checkpoint.safetensors") for name in ("first", "second"))
    fresh = learn(capsys, "--epochs", "1", "--out", "fresh")
    assert fresh["epochs"] == 1
    start = load_file("fresh/checkpoint.safetensors")
    moved = [(new["network/1.weight"] - other["network/1.weight"]).norm() for other in (old, start)]
    assert 0 < moved[0] < moved[1], "the second run must begin where the first one ended"
    assert Path("first/checkpoint.safetensors").read_bytes() == before


# -- resuming ----------------------------------------------------------------------------------


def test_resuming_a_finished_run_reports_it_again(folder: Path, capsys: Capture) -> None:
    record = learn(capsys)
    before = outcome(Path("run"))
    finished = run_here(capsys, "learn", "--resume", "run", "--json")
    again = finished.record
    assert again.pop("seconds") > 0 and record.pop("seconds") > 0
    assert again == record
    assert outcome(Path("run")) == before
    assert "continuing after epoch 3 of 3" in finished.stderr
    report = Path("run/report.html").read_text()
    assert "--resume" not in report, "the report says how the run was started"


def test_resuming_from_another_folder_with_the_same_words(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = learn(capsys)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    words = ("--data", "../bars.npz", "--epochs", "3", "--device", "cpu")
    again = run_here(capsys, "learn", "--resume", "../run", *words, "--json").record
    assert again["log_evidence"] == record["log_evidence"]
    assert again["run_folder"] == "../run"


# -- how weights are trained -------------------------------------------------------------------

DESCENT = (
    "--optimiser", "sgd", "--momentum", "0.8", "--nesterov", "--weight-rate", "0.05",
    "--scalar-rate", "0.5", "--warm-up", "1.5", "--ema-decay", "0.9", "--prior-steps", "4",
)  # fmt: skip


def test_options_of_the_weights_are_settings(folder: Path, capsys: Capture) -> None:
    """The folder holds the averaged weights as its network, and the trained ones beside them."""
    learn(capsys, *DESCENT, "--no-search", "--verdicts", "0")
    schedule = json.loads(Path("run/config.json").read_text())["schedule"]
    expected = {"optimiser": "sgd", "momentum": 0.8, "nesterov": True, "weight_rate": 0.05,
                "scalar_rate": 0.5, "warm_up": 1.5, "ema_decay": 0.9, "prior_steps": 4}  # fmt: skip
    assert {name: schedule[name] for name in expected} == expected
    tensors = load_file("run/checkpoint.safetensors")
    names = [key.removeprefix("trained/") for key in tensors if key.startswith("trained/")]
    assert names
    for name in names:
        average, trained = tensors[f"network/{name}"], tensors[f"trained/{name}"]
        assert average.shape == trained.shape and not average.equal(trained)
    resumed = run_here(capsys, "learn", "--resume", "run", "--optimiser", "adam")
    assert_one_sentence(resumed, "started with --optimiser sgd, not adam")


REFUSED_WEIGHTS = {
    "momentum": (("--optimiser", "sgd", "--momentum", "1"), "momentum: expected at least 0"),
    "nesterov": (("--nesterov",), "nesterov: expected the optimiser sgd"),
    "rate": (("--weight-rate", "nan"), "weight rate: expected above 0, got nan"),
    "average": (("--ema-decay", "1"), "ema decay: expected at least 0 and below 1"),
    "depth": (("--model", "wrn:12-1"), "expected 6·n + 4 with n of 1 or more, got 12"),
}


@pytest.mark.parametrize(("words", "sentence"), REFUSED_WEIGHTS.values(), ids=REFUSED_WEIGHTS)
def test_what_cannot_be_trained_is_refused(
    words: tuple[str, ...], sentence: str, folder: Path, capsys: Capture
) -> None:
    start = ("learn", "--data", "bars.npz", *FAST, "--out", "run")
    assert_one_sentence(run_here(capsys, *start, "--quiet", *words), sentence)
    assert not Path("run").exists()


# -- how long a run is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "is_told"), [((), False), (("--set", "refine=true"), True), (("--no-search",), True)]
)
def test_few_epochs_are_told_where_ranges_move(
    folder: Path, capsys: Capture, words: tuple[str, ...], is_told: bool
) -> None:
    """Amounts that a search has found stay as they are, however short the run."""
    given = [word for word in FAST if word != "--no-search"]
    told = run_here(
        capsys, "learn", "--data", "bars.npz", *given, "--generators", "rotation",
        "--set", "search_examples=10", "--verdicts", "2", "--out", "run", *words,
    )  # fmt: skip
    assert ("3 epochs are too few for the ranges to settle" in told.stdout + told.stderr) == is_told
