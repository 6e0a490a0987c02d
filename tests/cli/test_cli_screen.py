"""`isotropy learn` beyond its defaults: --screen, kinds of curvature, fallbacks, distributions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from learn_runs import FAST, assert_one_sentence, bars_file, outcome, run_here

import isotropy
from isotropy.evidence.screening import _Climb
from isotropy.workflows import learning
from isotropy.workflows.runs import prepared as runs

Capture = pytest.CaptureFixture[str]
MODEL_FILE = """
import torch

class Gain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(64))

    def forward(self, features):
        return features * self.factor

def make(shape, outputs):
    return torch.nn.Sequential(torch.nn.Flatten(), Gain(), torch.nn.Linear(64, outputs))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with bars.npz in it."""
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def short_screening(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screening before a run has a length of its own."""
    monkeypatch.setattr("isotropy.workflows.exploring.EPOCHS", 3)


START = ("learn", "--data", "bars.npz", *FAST, "--out", "run")
TWO = ("--generators", "rotation,horizontal_flip")


def learn(capsys: Capture, *words: str | Path) -> dict[str, Any]:
    return run_here(capsys, *START, *words, "--json").record


# -- screening instead of a run ------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--screen",), ("--screen", "only")], ids=["flag", "only"])
def test_screen_prints_its_record(words: tuple[str, ...], folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, *START, *TWO, *words, "--json")
    record = finished.record
    assert record["command"] == "screen" and record["training"]["epochs"] == 3
    assert sorted(record["screening"]["ranking"]) == ["horizontal_flip", "rotation"]
    assert record["run_folder"] == "run"
    assert {path.name for path in Path("run").iterdir()} == {
        "config.json", "result.json", "report.html",
        "checkpoint.safetensors", "metrics.jsonl", "evidences.jsonl",
    }  # fmt: skip
    assert json.loads(Path("run/result.json").read_text()) == record
    config = json.loads(Path("run/config.json").read_text())
    assert config["command"].startswith("isotropy learn --data bars.npz")
    assert config["request"]["screening"] == "only" and config["truth"] == {}
    assert "bars: 48 examples, model mlp:5" in finished.stderr


def test_screen_in_words(folder: Path, capsys: Capture) -> None:
    words = ("learn", "--data", "bars.npz", *FAST, *TWO, "--variant", "rotated", "--screen")
    finished = run_here(capsys, *words)
    assert finished.status == 0
    first, *_, report = finished.stdout.splitlines()
    assert first.startswith("The plain network asks for ")
    path = Path(report.removeprefix("Report: "))
    assert path.is_file() and path.parent.name.startswith("learn-bars-rotated-screen-0-")
    truth = json.loads((path.parent / "config.json").read_text())["truth"]
    assert truth == {"rotation": 180.0}


class Steps:
    """What a screening computes: epochs and evidences, counted, and stopped after so many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.epochs = self.evidences = 0
        self.stop_at: tuple[str, int] | None = None
        self._count(monkeypatch, learning.Trainer, "run_epoch", "epochs")
        self._count(monkeypatch, _Climb, "_computed", "evidences")

    def _count(self, monkeypatch: Any, owner: Any, method: str, what: str) -> None:
        own = getattr(owner, method)

        def counted(*given: Any, **named: Any) -> Any:
            if self.stop_at == (what, getattr(self, what)):
                raise KeyboardInterrupt
            setattr(self, what, getattr(self, what) + 1)
            return own(*given, **named)

        monkeypatch.setattr(owner, method, counted)


def found_by(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """All numbers of a screening but those that differ from one time to the next."""
    record = json.loads((folder / "result.json").read_text())
    return record["screening"], [record["training"], record["units"], record["curvature"]]


STOPS = {"in the epochs": ("epochs", 2), "in the evidences": ("evidences", 5)}


@pytest.mark.parametrize("stop_at", STOPS.values(), ids=STOPS)
def test_an_interrupted_screening_goes_on(
    stop_at: tuple[str, int], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the numbers of an unbroken one, and nothing is computed twice."""
    words = (*START[:-2], *TWO, "--screen")
    unbroken = Steps(monkeypatch)
    assert run_here(capsys, *words, "--out", "unbroken").status == 0
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    steps = Steps(monkeypatch)
    steps.stop_at = stop_at
    stopped = run_here(capsys, *words, "--out", "run")
    assert stopped.status == 130
    assert "continue with: isotropy learn --resume run" in stopped.stderr
    steps.stop_at = None
    resumed = run_here(capsys, "learn", "--resume", "run", "--json")
    assert resumed.status == 0, resumed.stderr
    assert (steps.epochs, steps.evidences) == (3, resumed.record["screening"]["evaluations"])
    assert ("continuing after 5 evidences" in resumed.stderr) is (stop_at[0] == "evidences")
    assert found_by(Path("run")) == found_by(Path("unbroken"))
    assert resumed.record["seconds"] > 0 and unbroken.epochs == 6, "both were counted by it"


def test_a_finished_screening_is_reported_again(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = learn(capsys, *TWO, "--screen")
    steps = Steps(monkeypatch)
    again = run_here(capsys, "learn", "--resume", "run", "--json").record
    assert (steps.epochs, steps.evidences) == (0, 0)
    assert again["screening"] == before["screening"]
    model = isotropy.load("run")
    assert [each.high for each in model.augmentation.symmetries()] == [0.0, 0.0], "a plain network"


def test_another_screening_is_not_resumed(folder: Path, capsys: Capture) -> None:
    learn(capsys, *TWO, "--screen")
    other = run_here(capsys, "learn", "--resume", "run", "--seed", "1")
    assert_one_sentence(other, "'run'", "--seed 0")


# -- screening to start from ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", STOPS.values(), ids=STOPS)
def test_a_run_that_was_stopped_in_its_screening_goes_on(
    stop_at: tuple[str, int], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*START[:-2], *TWO, "--screen", "first")
    assert run_here(capsys, *words, "--out", "unbroken").status == 0
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    steps = Steps(monkeypatch)
    steps.stop_at = stop_at
    stopped = run_here(capsys, *words, "--out", "run")
    assert stopped.status == 130 and "isotropy learn --resume run" in stopped.stderr
    assert not Path("run/config.json").exists(), "the run itself has not begun"
    steps.stop_at = None
    assert_one_sentence(run_here(capsys, *words, "--out", "run"), "--resume run")
    resumed = run_here(capsys, "learn", "--resume", "run", "--out", "run", "--json")
    assert resumed.status == 0, resumed.stderr
    assert steps.epochs == 3 + 3, "of the screening and of the run"
    assert steps.evidences == resumed.record["screening"]["evaluations"]
    assert outcome(Path("run")) == outcome(Path("unbroken"))
    assert not Path("run/screening").exists()
    names = [sorted(path.name for path in Path(run).iterdir()) for run in ("run", "unbroken")]
    assert names[0] == names[1]


def test_screen_first_starts_the_run_from_it(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, *START, *TWO, "--screen", "first", "--json")
    record = finished.record
    assert record["command"] == "learn" and record["epochs"] == 3
    screening = record["screening"]
    assert sorted(screening["ranking"]) == ["horizontal_flip", "rotation"]
    start = json.loads(Path("run/config.json").read_text())["schedule"]["start"]
    for name, least in {"rotation": 2.86, "horizontal_flip": 0.02}.items():
        assert start[name] == pytest.approx(max(least, screening["start"].get(name, 0)), rel=0.01)
    assert "The plain network asks for " in finished.stderr
    assert json.loads(Path("run/screening.json").read_text()) == screening


def test_a_run_in_the_way_is_told_before_screening(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(capsys, "--generators", "rotation")
    monkeypatch.setattr(
        "isotropy.cli.learn.screen", lambda *a, **k: pytest.fail("screened for nothing")
    )
    finished = run_here(capsys, *START, *TWO, "--screen", "first")
    assert_one_sentence(finished, "'run'", "already holds a run")


def test_resuming_does_not_screen_again(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped and resumed: the same start, the same numbers, and the screening still told."""
    words = (*TWO, "--screen", "first")
    run_here(capsys, *START, *words, "--out", "unbroken", "--json")
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    whole_epoch = learning.Trainer.run_epoch

    def stop_after_two(trainer: Any, test: Any = None) -> Any:
        if trainer.epoch == 2 and trainer.config.objective == "evidence":
            raise KeyboardInterrupt
        return whole_epoch(trainer, test)

    monkeypatch.setattr(learning.Trainer, "run_epoch", stop_after_two)
    stopped = run_here(capsys, *START, *words, "--json")
    assert stopped.status == 130 and "--resume run" in stopped.stderr
    monkeypatch.setattr(learning.Trainer, "run_epoch", whole_epoch)
    monkeypatch.setattr(
        "isotropy.cli.learn.screen", lambda *a, **k: pytest.fail("screened a second time")
    )
    resumed = run_here(capsys, "learn", "--resume", "run", "--json")
    assert "continuing after epoch 2 of 3" in resumed.stderr
    assert resumed.record["screening"]["ranking"]
    assert outcome(Path("run")) == outcome(Path("unbroken"))


# -- other options -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kfac-ef", "kfac-mc", "diagonal-ggn", "last-layer-ggn"])
def test_curvature(kind: str, folder: Path, capsys: Capture) -> None:
    record = learn(capsys, "--generators", "rotation", "--curvature", kind)
    assert record["curvature"] == record["evidence"]["curvature"] == kind
    assert record["log_evidence"] < 0


def test_fallback(folder: Path, capsys: Capture) -> None:
    """A layer without a rule is refused, or treated as asked and named in record and words."""
    Path("nets.py").write_text(MODEL_FILE)
    words = ("--generators", "rotation", "--model", "nets.py:make")
    refused = run_here(capsys, *START, *words, "--fallback", "refuse")
    assert_one_sentence(refused, "layer '1'", "Gain", "fallback")
    finished = run_here(capsys, *START, *words, "--json")
    assert finished.record["fallback"] == {"1": "Gain"}
    assert "no curvature rule, so diagonal blocks: 1 (Gain)" in finished.stderr
    fixed = learn(capsys, *words, "--fallback", "fixed", "--out", "fixed")
    assert fixed["fallback"] == {"1": "Gain"}
    assert fixed["log_evidence"] != finished.record["log_evidence"]


def test_correlated_ranges(folder: Path, capsys: Capture) -> None:
    words = ("--generators", "scale_x,scale_y", "--distribution", "correlated")
    record = learn(capsys, *words)
    assert record["distribution"] == "correlated"
    found = record["correlations"]
    assert found["names"] == ["scale_x", "scale_y"]
    (one, between), (other, again) = found["matrix"]
    assert one == pytest.approx(1) == again
    assert between == pytest.approx(other) and abs(between) <= 1 + 1e-9
    law = json.loads(Path("run/augmentation.json").read_text())
    assert law["kind"] == "correlated"
    again_record = run_here(capsys, "learn", "--resume", "run", "--json").record
    assert again_record["correlations"] == found


def test_finite_actions_beside_generators(folder: Path, capsys: Capture) -> None:
    record = learn(capsys, *TWO)
    rotation, flip = record["symmetries"]
    assert (rotation["name"], rotation["kind"]) == ("rotation", "range")
    assert (flip["name"], flip["kind"], flip["low"]) == ("horizontal_flip", "probability", 0.0)
    assert 0 <= flip["high"] <= 0.5
    config = json.loads(Path("run/config.json").read_text())
    assert config["actions"] == ["rotation", "horizontal_flip"]
    assert record["correlations"] is None


def test_finite_actions_by_the_name_of_the_set(folder: Path, capsys: Capture) -> None:
    """The set is asked for, its elements are what is learned; caps are by element."""
    record = learn(capsys, "--generators", "quarter_turns", "--cap", "turn_180=0.01")
    high = {symmetry["name"]: symmetry["high"] for symmetry in record["symmetries"]}
    assert list(high) == ["turn_90", "turn_180", "turn_270"] and high["turn_180"] <= 0.01 + 1e-6
    config = json.loads(Path("run/config.json").read_text())
    assert config["actions"] == ["quarter_turns"] and config["generators"] == list(high)
    again = run_here(capsys, "learn", "--resume", "run", "--json").record
    assert again["symmetries"] == record["symmetries"]


def test_verdicts_and_calibration(folder: Path, capsys: Capture) -> None:
    words = ("--generators", "rotation", "--search", "--verdicts", "2", "--calibration")
    finished = run_here(capsys, *START, *words, "--json")
    (verdict,) = finished.record["verdicts"]
    assert verdict["name"] == "rotation" and isinstance(verdict["verdict"], str)
    assert "searching for symmetries with trials on 48 examples" in finished.stderr
    (symmetry,) = finished.record["symmetries"]
    low, high = symmetry["interval"]
    assert 0 <= low <= high <= 180.1
    assert finished.record["search"]["examples"] == 48
    assert finished.record["calibration"]["probit"]["examples"] == 12
    assert "scoring the posterior predictive" in finished.stderr
    again = run_here(capsys, "learn", "--resume", "run", "--json").record
    assert again["verdicts"] == finished.record["verdicts"]
    without = run_here(capsys, "learn", "--resume", "run", "--verdicts", "0", "--json").record
    assert without["verdicts"] is None and without["symmetries"] == again["symmetries"]


def test_verdicts_are_made_unless_told_otherwise(folder: Path, capsys: Capture) -> None:
    words = ("learn", "--data", "bars.npz", *FAST[: FAST.index("--verdicts")])
    record = run_here(capsys, *words, "--generators", "rotation", "--json").record
    assert [verdict["name"] for verdict in record["verdicts"]] == ["rotation"]
