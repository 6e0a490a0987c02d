"""`isotropy profile`: its JSON, its words, its folder, and every mistake one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learn_runs import FAST, assert_one_sentence, bars_file, run_here

from isotropy.cli.profile import profile_command
from isotropy.workflows.profiling import DEFAULT_CURVATURES

Capture = pytest.CaptureFixture[str]
QUICK = FAST[: FAST.index("--verdicts")]
"""A profile has no verdicts."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    bars_file(tmp_path)
    return tmp_path


START = ("profile", "--data", "bars.npz", *QUICK, "--epochs", "2", "--amounts", "0,90,180")


def test_profile_prints_its_record(folder: Path, capsys: Capture) -> None:
    words = ("--curvatures", "kfac-ggn, diagonal-ggn", "--variant", "partially-rotated")
    finished = run_here(capsys, *START, *words, "--out", "run", "--json")
    record = finished.record
    assert record["command"] == "profile" and record["run_folder"] == "run"
    assert (record["generator"], record["unit"], record["truth"]) == ("rotation", "degrees", 90.0)
    assert record["train_examples"] == 48 and record["test_examples"] == 12
    assert [each["curvature"] for each in record["profiles"]] == ["kfac-ggn", "diagonal-ggn"]
    for each in record["profiles"]:
        assert each["amounts"] == [0.0, 90.0, 180.0] and each["error"] is None
        assert len(each["log_evidence"]) == len(each["test_log_likelihood"]) == 3
    assert json.loads(Path("run/result.json").read_text()) == record
    config = json.loads(Path("run/config.json").read_text())
    assert config["command"].startswith("isotropy profile --data bars.npz")
    assert config["request"]["data"] == str(folder / "bars.npz")
    assert Path("run/report.html").read_text().startswith("<!DOCTYPE html>")
    lines = [line for line in finished.stderr.splitlines() if "rotation" in line and "held" in line]
    assert len(lines) == 6 and lines[1].startswith("kfac-ggn  rotation 90  evidence/example ")


def test_profile_in_words(folder: Path, capsys: Capture) -> None:
    finished = run_here(capsys, *START, "--generators", "rotation", "--curvatures", "kfac")
    assert finished.status == 0
    *sentences, report = finished.stdout.splitlines()
    assert sentences and all(sentence.endswith(".") for sentence in sentences)
    path = Path(report.removeprefix("Report: "))
    assert path.is_file() and path.parent.name.startswith("profile-bars-original-rotation-0-")


def test_profile_of_a_flip(folder: Path, capsys: Capture) -> None:
    words = ("--generators", "rotation,horizontal_flip", "--generator", "horizontal_flip")
    start = ("profile", "--data", "bars.npz", *QUICK, "--epochs", "1", "--quiet", "--json")
    finished = run_here(capsys, *start, *words, "--curvatures", "kfac", "--amounts", "0,0.2,0.5")
    assert finished.stderr == "" and finished.record["unit"] == "probability"


def test_all_kinds_by_default(folder: Path, capsys: Capture) -> None:
    words = ("--generators", "rotation", "--epochs", "1", "--json")
    record = run_here(capsys, *START, *words).record
    assert tuple(each["curvature"] for each in record["profiles"]) == DEFAULT_CURVATURES


def test_help_lists_every_option(capsys: Capture) -> None:
    finished = run_here(capsys, "profile", "--help")
    assert finished.status == 0 and finished.stderr == ""
    for parameter in profile_command.params:
        assert parameter.opts[0] in finished.stdout
    assert "profile" in run_here(capsys, "--help").stdout


def test_a_profile_is_not_resumed(folder: Path, capsys: Capture) -> None:
    run_here(capsys, *START, "--curvatures", "kfac", "--out", "run", "--quiet")
    finished = run_here(capsys, "learn", "--resume", "run")
    assert_one_sentence(finished, "'run'", "not written by this version of `isotropy learn`")


MODEL_FILE = """
import torch

def without_rule():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.PReLU(), torch.nn.Linear(64, 3))

def too_wide():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(100, 3))
"""

MISTAKES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "unknown generator": (["--generator", "rotaton"], ("'rotaton'", "did you mean 'rotation'?")),
    "generator not among those": (
        ["--generators", "scale_x"], ("generator 'rotation'", "scale_x")
    ),
    "two amounts": (["--amounts", "0,1"], ("amounts", "three or more", "[0.0, 1.0]")),
    "amounts in words": (["--amounts", "0,some,all"], ("--amounts", "'0,some,all'")),
    "negative amounts": (["--amounts=-90,0,90"], ("amounts", "at least 0")),
    "no amounts": (["--amounts", ""], ("--amounts",)),
    "unknown kind": (["--curvatures", "kfac-ggn,kfac-gnn"], ("'kfac-gnn'",)),
    "no kind": (["--curvatures", ""], ("curvature ''",)),
    "no kind that works": (
        ["--model", "nets.py:without_rule", "--curvatures", "kfac"], ("layer '1'", "PReLU")
    ),
    "network does not fit": (["--model", "nets.py:too_wide"], ("(1, 8, 8)",)),
    "missing data": (["--data", "gone.npz"], ("gone.npz", "found nothing")),
    "test alone": (["--test", "bars.npz", "--data", ""], ("empty path",)),
    "zero epochs": (["--epochs", "0"], ("epochs", "got 0")),
    "zero samples": (["--samples", "0"], ("samples", "got 0")),
    "unknown option": (["--screen"], ("--screen",)),
    "unknown variant": (["--variant", "turned"], ("--variant", "'turned'")),
    "unknown device": (["--device", "banana"], ("'banana'",)),
    "out holds a run": (["--out", "ran"], ("'ran'", "already holds a run")),
    "out below a file": (["--out", "bars.npz/run"], ("bars.npz/run", "Not a directory")),
}  # fmt: skip


@pytest.mark.parametrize(("words", "named"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(words: list[str], named: tuple[str, ...], folder: Path, capsys: Capture) -> None:
    Path("nets.py").write_text(MODEL_FILE)
    Path("ran").mkdir()
    Path("ran/checkpoint.safetensors").write_bytes(b"precious")
    start = (*START, "--epochs", "1", "--curvatures", "kfac", "--quiet")
    assert_one_sentence(run_here(capsys, *start, *words), *named)
    assert not Path("runs").exists()
    assert {path.name for path in Path("ran").iterdir()} == {"checkpoint.safetensors"}
