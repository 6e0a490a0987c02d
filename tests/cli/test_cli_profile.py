"""`isotropy profile`: its JSON, its words, its folder, and every mistake one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learn_runs import FAST, assert_one_sentence, bars_file, run_here

from isotropy.workflows.exploring import DEFAULT_CURVATURES

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


def test_all_kinds_by_default(folder: Path, capsys: Capture) -> None:
    words = ("--generators", "rotation", "--epochs", "1", "--json")
    record = run_here(capsys, *START, *words).record
    assert tuple(each["curvature"] for each in record["profiles"]) == DEFAULT_CURVATURES


def test_profile_of_the_bound(folder: Path, capsys: Capture) -> None:
    words = ("--generators", "rotation", "--model", "rff:6", "--evidence", "elbo")
    finished = run_here(capsys, *START, *words, "--json")
    (profile,) = finished.record["profiles"]
    assert profile["curvature"] == "elbo" and profile["error"] is None
    assert all(each["kind"] == "elbo" for each in profile["evidence"])
    assert "factors of the curvature" not in finished.stderr
    sentences = run_here(capsys, *START, *words).stdout
    assert "by the evidence bound." in sentences


def test_a_profile_is_not_resumed(folder: Path, capsys: Capture) -> None:
    run_here(capsys, *START, "--curvatures", "kfac", "--out", "run", "--quiet")
    finished = run_here(capsys, "learn", "--resume", "run")
    assert_one_sentence(finished, "'run'", "not written by this version of `isotropy learn`")
