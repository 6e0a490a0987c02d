"""What `isotropy` chooses from the data: size, network, padding; and what it refuses in time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from learn_runs import assert_one_sentence, bars_file, run_here

import isotropy
from isotropy.data.problems import write_photographs

Capture = pytest.CaptureFixture[str]
QUICK = (
    *("--epochs", "2", "--samples", "2", "--test-samples", "2", "--generators", "rotation"),
    *("--device", "cpu"),
)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_photographs(tmp_path / "photographs", 18, smallest=70, largest=110)


def learn(capsys: Capture, *words: str | Path):
    command = ("learn", "--verdicts", "0", "--no-search", *QUICK, "--out", "run", *words, "--json")
    return run_here(capsys, *command)


def test_photographs_with_no_options(photographs: Path, capsys: Capture) -> None:
    run = learn(capsys, "--data", photographs)
    config = json.loads(Path("run/config.json").read_text())
    assert config["data"]["shape"] == [3, 32, 32]
    assert config["request"]["image_size"] == 32 and config["request"]["model_text"] == "auto"
    network = config["network"]
    assert network["name"] == "compact" and network["arguments"]["width"] == 8
    assert len(network["arguments"]["centre"]) == 3 and network["arguments"]["spread"] > 0
    assert config["padding"] == run.record["padding"] == "border"
    for words in ("working size", "cut to their middle", "model compact:8 chosen", "padding border",
                  "factors of the curvature take"):  # fmt: skip
        assert any(words in note for note in run.record["notes"])
        assert words in run.stderr
    assert "trying one batch of every part of the run" in run.stderr
    law = json.loads(Path("run/augmentation.json").read_text())
    assert law["actions"][0]["padding"] == "border"
    assert isotropy.load("run").augmentation.action.padding == "border"


def test_measuring_reads_the_data_as_the_run_did(photographs: Path, capsys: Capture) -> None:
    learn(capsys, "--data", photographs)
    words = ("--generators", "rotation", "--examples", "4", "--no-finite", "--padding", "mean")
    found = run_here(capsys, "measure", "--model", "run", *words, "--out", "measured", "--json")
    assert found.record["padding"] == "mean"


def test_resuming_chooses_the_same(photographs: Path, capsys: Capture) -> None:
    before = learn(capsys, "--data", photographs).record
    after = run_here(capsys, "learn", "--resume", "run", "--json").record
    assert after["log_evidence"] == before["log_evidence"]


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection", "mean"])
def test_padding_as_asked(photographs: Path, capsys: Capture, padding: str) -> None:
    run = learn(capsys, "--data", photographs, "--padding", padding, "--image-size", "16")
    config = json.loads(Path("run/config.json").read_text())
    assert config["padding"] == run.record["padding"] == padding
    assert (config["fill"] is not None) == (padding == "mean")
    warned = any(note.startswith("warning: padding") for note in run.record["notes"])
    assert warned == (padding in ("zeros", "mean"))


def test_profile_and_screen_take_padding(photographs: Path, capsys: Capture) -> None:
    start = ("--data", photographs, "--image-size", "12", *QUICK, "--padding", "reflection")
    profile = ("profile", *start, "--amounts", "0,90,180", "--curvatures", "kfac-ggn")
    assert run_here(capsys, *profile, "--out", "profile", "--json").record
    assert run_here(capsys, "learn", *start, "--screen", "--out", "screen", "--json").record
    for folder in ("profile", "screen"):
        config = json.loads(Path(folder, "config.json").read_text())
        assert config["padding"] == "reflection" and config["notes"]


def test_small_grey_pictures_as_before(tmp_path, monkeypatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    run = learn(capsys, "--data", bars_file(tmp_path))
    config = json.loads(Path("run/config.json").read_text())
    assert config["network"]["name"] == "mlp" and config["network"]["arguments"] == {"hidden": 200}
    assert config["data"]["shape"] == [1, 8, 8]
    assert any("model mlp:200 chosen" in note for note in run.record["notes"])


def test_tables_get_an_mlp(tmp_path, monkeypatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    np.savez("table.npz", x=random.normal(size=(40, 6)).astype(np.float32), y=np.arange(40) % 2)
    learn(capsys, "--data", "table.npz", "--generators", "sign_change")
    config = json.loads(Path("run/config.json").read_text())
    assert config["network"]["name"] == "mlp" and config["padding"] is None


def test_an_mlp_on_photographs_is_refused_with_numbers(
    photographs: Path, capsys: Capture, monkeypatch
) -> None:
    monkeypatch.setattr("isotropy.evidence.machine.free_bytes", lambda device: 4_000_000_000)
    words = ("--data", photographs, "--model", "mlp:20", "--image-size", "224", "--out", "run")
    found = run_here(capsys, "learn", *QUICK, *words)
    parts = ("layer '1'", "150528 rows", "5.55 GB", "--image-size 32", "--model compact")
    assert_one_sentence(found, *parts)
    assert not Path("run").exists()
