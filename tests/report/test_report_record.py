"""Reading a run folder: what was written comes back, and what is amiss is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from isotropy.checks import CallerError
from isotropy.report.record import LearnRecord, load_learn_record, save_samples


@pytest.fixture
def run_folder(record: LearnRecord, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    config = {**record.config, "truth": {**record.truth, "unknown": None}}
    (folder / "result.json").write_text(json.dumps(record.result), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    lines = "\n".join(json.dumps(row) for row in record.history)
    (folder / "metrics.jsonl").write_text(lines + "\n", encoding="utf-8")
    save_samples(
        folder, examples=record.examples, flows=record.flows, image_shape=record.image_shape
    )
    return folder


def test_round_trip(record: LearnRecord, run_folder: Path) -> None:
    loaded = load_learn_record(run_folder)
    assert loaded.result == record.result
    assert loaded.config == record.config
    assert list(loaded.history) == list(record.history)
    assert loaded.truth == record.truth
    assert loaded.image_shape == record.image_shape
    assert loaded.examples is not None and loaded.flows is not None
    assert record.examples is not None and record.flows is not None
    np.testing.assert_allclose(loaded.examples, record.examples, rtol=0, atol=1e-6)
    np.testing.assert_allclose(loaded.flows, record.flows, rtol=0, atol=1e-5)


def test_samples_may_be_missing(run_folder: Path) -> None:
    (run_folder / "samples.npz").unlink()
    loaded = load_learn_record(run_folder)
    assert (loaded.examples, loaded.flows, loaded.image_shape) == (None, None, None)


def test_each_sample_may_be_missing(record: LearnRecord, run_folder: Path) -> None:
    save_samples(run_folder, flows=record.flows)
    loaded = load_learn_record(run_folder)
    assert loaded.examples is None and loaded.image_shape is None
    assert loaded.flows is not None


def test_truth_may_be_missing(record: LearnRecord, run_folder: Path) -> None:
    (run_folder / "config.json").write_text(json.dumps(record.config), encoding="utf-8")
    assert load_learn_record(run_folder).truth == {}


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="no such folder"):
        load_learn_record(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["result.json", "config.json", "metrics.jsonl"])
def test_missing_file_is_named(run_folder: Path, name: str) -> None:
    (run_folder / name).unlink()
    with pytest.raises(CallerError, match=f"{name} is missing"):
        load_learn_record(run_folder)


BROKEN = {
    "cut short": ("result.json", '{"schema": 1, "comm', "result.json: expected JSON"),
    "not an object": ("config.json", "[1, 2]", "config.json: expected a JSON object, got list"),
    "a broken row": ("metrics.jsonl", '{"epoch": 1}\n{"epo', "metrics.jsonl, line 2"),
    "another command": (
        "result.json",
        '{"schema": 1, "command": "basis", "symmetries": []}',
        "got command 'basis'",
    ),
    "another schema": (
        "result.json",
        '{"schema": 2, "command": "learn", "symmetries": []}',
        "expected schema 1, got 2",
    ),
    "no symmetries": ("result.json", '{"schema": 1, "command": "learn"}', "expected symmetries"),
    "truth in words": ("config.json", '{"truth": {"rotation": "all"}}', "truth of 'rotation'"),
    "truth as a list": ("config.json", '{"truth": [180]}', "expected truth to be an object"),
    "not an archive": ("samples.npz", "hello", "samples.npz: expected a NumPy archive"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_named(run_folder: Path, case: str) -> None:
    name, text, message = BROKEN[case]
    (run_folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(CallerError, match=message):
        load_learn_record(run_folder)


def test_text_that_is_not_utf8(run_folder: Path) -> None:
    (run_folder / "result.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CallerError, match="UTF-8"):
        load_learn_record(run_folder)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("examples", (6, 9, 14, 14)),
        ("examples", (0, 9, 1, 14, 14)),
        ("flows", (8, 3, 7, 7, 2)),
        ("flows", (8, 2, 7, 7)),
    ],
)
def test_wrong_axes_are_refused(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(CallerError, match=f"{name}: expected"):
        save_samples(tmp_path, **{name: np.zeros(shape)})  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=f"{name}: expected"):
        LearnRecord({}, {}, (), {}, **{name: np.zeros(shape)})  # type: ignore[arg-type]


def test_wrong_image_shape(run_folder: Path) -> None:
    np.savez(run_folder / "samples.npz", image_shape=np.array([28, 28, 1]))
    with pytest.raises(CallerError, match=r"\(height, width\)"):
        load_learn_record(run_folder)
