"""`isotropy represent`: JSON, run folders, codes of a file, and mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import assert_one_sentence, run_here

import isotropy
from isotropy.data.pairs import distorted_vectors

KEYS = {
    "retrieval", "retrieval_raw", "auc", "within_over_between", "reconstruction_mse", "loss_share",
    "over_invariance", "permutations", "held_out_entities",
}  # fmt: skip
FAST = ("--steps", "20", "--batch-size", "16", "--device", "cpu", "--quiet")
HEAD = ["schema", "command", "seed", "isotropy", "versions", "commit", "device"]


def table(entities: int = 12) -> dict[str, np.ndarray]:
    split = distorted_vectors("shift", 4, 0, entities=entities, held_out=2, copies=3)
    return {"x": split.train.inputs.numpy(), "entity": split.train.targets.numpy()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "pairs.npz", **table())
    return tmp_path / "pairs.npz"


def test_json_folder_and_codes(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    ended = run_here(capsys, "represent", "--data", file, *FAST, "--out", folder, "--json")
    record = ended.record
    assert list(record)[: len(HEAD)] == HEAD and set(record) >= KEYS
    assert record["permutations"] is None and record["held_out_entities"] == 2
    assert set(record["over_invariance"]) == {"reversal", "sign"}
    assert json.loads((folder / "result.json").read_text()) == record
    assert (folder / "report.html").exists()
    words = ("represent", "--encode", folder, "--data", file)
    written = run_here(capsys, *words, "--json").record
    assert written["samples"] == 36
    model = isotropy.load(folder)
    with np.load(folder / "codes.npz") as codes:
        expected = model(torch.from_numpy(table()["x"])).detach().numpy()
        assert (codes["invariant"] == expected).all() and codes["varying"].shape == (36, 4)
        assert (codes["entity"] == table()["entity"]).all()
    told = run_here(capsys, *words, "--out", tmp_path / "mine.npz")
    assert told.stdout == f"Codes of 36 samples: {tmp_path / 'mine.npz'}\n"


def test_the_column_of_entities_is_that_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, entity = table()["x"], table()["entity"]
    lines = [f"p{n},{','.join(map(str, row))}" for n, row in zip(entity, x.tolist(), strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["patient,a,b,c,d", *lines]))
    (tmp_path / "new.csv").write_text("a,b,c,d\n" + lines[0].partition(",")[2])
    run, words = tmp_path / "run", ("represent", "--encode", tmp_path / "run", "--data")
    data = ("--data", tmp_path / "a.csv", "--entity", "patient")
    assert run_here(capsys, "represent", *data, *FAST, "--out", run).status == 0
    assert run_here(capsys, *words, tmp_path / "new.csv", "--json").record["samples"] == 1
    assert run_here(capsys, *words, tmp_path / "a.csv").status == 0
    with np.load(run / "codes.npz") as codes:
        assert codes["entity"].tolist() == [f"p{n}" for n in entity]


def test_a_run_is_resumed_with_its_options(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    first = run_here(capsys, "represent", "--data", file, *FAST, "--out", folder, "--json").record
    again = run_here(capsys, "represent", "--resume", folder, "--json", "--quiet").record
    assert {key: again[key] for key in KEYS} == {key: first[key] for key in KEYS}
    other = run_here(capsys, "represent", "--resume", folder, "--rate", "0.5")
    assert_one_sentence(other, folder, "--rate")


def test_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("represent", "--demo", "two-part", "--size", "4", "--distances", *FAST)
    ended = run_here(capsys, *words, "--steps", "2", "--out", tmp_path / "run")
    assert ended.status == 0, ended.stderr
    assert "held-out entities" in ended.stdout and "Report: " in ended.stdout


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def mistakes(folder: Path) -> dict[str, tuple[Path, str]]:
    """A file for each mistake, and what its sentence says."""
    x, entity = table()["x"], table()["entity"]
    few = entity < 7
    missing = np.where(x > 0.5, np.nan, x)
    equal = np.repeat(x[::3], 3, axis=0)
    csv = folder / "missing.csv"
    csv.write_text(
        "entity,a,b\n" + "".join(f"{n // 2},{n},{n % 3}\n" for n in range(20)) + "9,,1\n"
    )
    pairs = {"x": x, "other": x[::-1]}
    return {
        "few": (write(folder / "few.npz", x=x[few], entity=entity[few]), "at least 8 entities"),
        "one": (write(folder / "one.npz", x=x[:-2], entity=entity[:-2]), "one of entity '11'"),
        "equal": (write(folder / "equal.npz", x=equal, entity=entity), "equal ones within every"),
        "constant": (write(folder / "c.npz", x=x * 0, entity=entity), "constant columns only"),
        "missing": (write(folder / "m.npz", x=missing, entity=entity), "finite numbers"),
        "missing in CSV": (csv, "line 22, got a missing value"),
        "negative": (write(folder / "n.npz", **pairs, distance=x[:, 0] - 3), "at least 0"),
        "all zero": (write(folder / "z.npz", **pairs, distance=x[:, 0] * 0), "zeros alone"),
        "unlabelled": (write(folder / "u.npz", x=x), "expected an entity"),
    }


NAMES = ("few", "one", "equal", "constant", "missing", "missing in CSV", "negative", "all zero",
         "unlabelled")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_are_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = mistakes(tmp_path)[name]
    ended = run_here(capsys, "represent", "--data", path, "--out", tmp_path / "run", *FAST)
    assert_one_sentence(ended, path, words)
    assert not (tmp_path / "run").exists()


def test_mistakes_of_options(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_sentence(run_here(capsys, "represent"), "--data", "--demo")
    both = run_here(capsys, "represent", "--data", file, "--demo", "shift")
    assert_one_sentence(both, "one of --data FILE and --demo")
    for words in (("--demo", "digits", "--size", "8"), ("--data", file, "--distances")):
        other = run_here(capsys, "represent", *words)
        assert_one_sentence(other, "--size and --distances: expected a demo with vectors")
    folder = tmp_path / "run"
    run_here(capsys, "represent", "--data", file, *FAST, "--out", folder)
    narrow = write(tmp_path / "narrow.npz", x=table()["x"][:, 1:])
    encoded = run_here(capsys, "represent", "--encode", folder, "--data", narrow)
    assert_one_sentence(encoded, narrow, "expected (4,) for each, as in training, got (3)")
    missing = write(tmp_path / "missing.npz", x=np.full((3, 4), np.nan))
    encoded = run_here(capsys, "represent", "--encode", folder, "--data", missing)
    assert_one_sentence(encoded, missing, "expected finite numbers")
    assert not (folder / "codes.npz").exists()
    assert_one_sentence(run_here(capsys, "represent", "--encode", folder), "add --data")
    nowhere = run_here(capsys, "represent", "--encode", tmp_path, "--data", file)
    assert_one_sentence(nowhere, "not a run folder")
