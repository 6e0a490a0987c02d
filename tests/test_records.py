"""Run folders: whole files or none, no pickle, and sentences for what is broken."""

from __future__ import annotations

import builtins
import errno
import io
import json
import math
import os
import pickle
import pickletools
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from learn_runs import CONFIG, bar_tensors, small_network
from safetensors.torch import save_file
from torch import nn

import isotropy
from isotropy import records
from isotropy.checks import CallerError
from isotropy.evidence.training import Trainer
from isotropy.records import (
    check_unused,
    load_module,
    load_tensors,
    load_trainer,
    locked,
    make_folder,
    plain,
    read_json,
    read_lines,
    save_tensors,
    save_trainer,
    write_bytes,
    write_json,
    write_lines,
)


def full_disk(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(*arguments: Any, **options: Any) -> Any:
    raise KeyboardInterrupt


# -- writing -----------------------------------------------------------------------------------


def full_on_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening works, writing does not."""
    original = builtins.open

    def open_full(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        file = original(path, mode, *rest, **options)
        if "x" not in mode:
            return file
        file.close()
        return original("/dev/full", mode.replace("x", "w"), *rest, **options)

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(builtins, "open", open_full)


FAILURES: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], str | None]] = {
    "full when written": (full_on_write, "No space left on device"),
    "full when synchronised": (lambda m: m.setattr("os.fsync", full_disk), "No space left"),
    "full when moved": (lambda m: m.setattr("os.replace", full_disk), "No space left on device"),
    "interrupted": (lambda m: m.setattr("os.fsync", interrupted), None),
}


@pytest.mark.parametrize(("fail", "reason"), FAILURES.values(), ids=FAILURES)
def test_failed_write_keeps_the_previous_file(
    fail: Callable[[pytest.MonkeyPatch], object],
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "result.json"
    write_bytes(path, b"the first")
    fail(monkeypatch)
    with pytest.raises(CallerError if reason else KeyboardInterrupt, match=reason) as caught:
        write_bytes(path, b"the second, longer")
    monkeypatch.undo()
    assert not reason or (str(path) in str(caught.value) and "\n" not in str(caught.value))
    assert path.read_bytes() == b"the first"
    assert list(tmp_path.iterdir()) == [path], "nothing half written may stay"


def test_planted_links_are_not_followed(tmp_path: Path) -> None:
    """Nobody knows the name of the file beside, and the place itself is replaced, not followed."""
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    (tmp_path / "result.json").symlink_to(other)
    (tmp_path / "result.json.part").symlink_to(other)
    write_bytes(tmp_path / "result.json", b"ours")
    assert other.read_bytes() == b"theirs"
    assert not (tmp_path / "result.json").is_symlink()


HOLDER = """
import sys
from pathlib import Path
from isotropy.records import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(CallerError, match="in use by another process"):
            isotropy.learn(small_network(), bar_tensors(), config=CONFIG, folder=folder)
        holder.kill()
    with locked(folder):  # a dead process holds nothing
        assert [each.name for each in folder.iterdir()] == [".lock"]
    assert list(folder.iterdir()) == []
    with locked(tmp_path / "made" / "for it"):
        assert (tmp_path / "made" / "for it" / ".lock").exists()
    assert not (tmp_path / "made").exists()


def test_writing_below_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    below = tmp_path / "file" / "run"
    for write in (lambda: make_folder(below), lambda: write_bytes(below, b"x")):
        with pytest.raises(CallerError, match="Not a directory") as caught:
            write()
        assert str(below) in str(caught.value)


def test_unwritable_folder_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user without permission sees it; the tests may run as one who has them all."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(CallerError, match="Permission denied; choose another with --out"):
        make_folder(tmp_path / "run")
    monkeypatch.undo()
    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(CallerError, match="Permission denied"):
        write_bytes(tmp_path / "run" / "config.json", b"x")


def test_made_folder_is_empty_and_may_exist(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a" / "b")
    assert make_folder(folder) == folder and list(folder.iterdir()) == []


@pytest.mark.parametrize("written", ["checkpoint.safetensors", "result.json"])
def test_folder_with_a_run_is_not_unused(tmp_path: Path, written: str) -> None:
    check_unused(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    check_unused(tmp_path)
    (tmp_path / written).touch()
    with pytest.raises(CallerError, match="already holds a run; continue it with --resume"):
        check_unused(tmp_path)


# -- JSON --------------------------------------------------------------------------------------


def test_json_holds_null_for_what_is_not_finite(tmp_path: Path) -> None:
    record = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": {"d": (1, 2.0), 3: Path("x")}}
    write_json(tmp_path / "r.json", record)
    expected = {"a": None, "b": [None, None, 1.5], "c": {"d": [1, 2.0], "3": "x"}}
    assert read_json(tmp_path / "r.json") == expected == plain(record)
    assert "NaN" not in (tmp_path / "r.json").read_text()
    write_lines(tmp_path / "r.jsonl", [record, {"g": 2}])
    assert read_lines(tmp_path / "r.jsonl") == [expected, {"g": 2}]


def test_floats_survive_the_journey_exactly(tmp_path: Path) -> None:
    numbers = [0.1, 1 / 3, 1e-300, float(torch.tensor(0.1))]
    write_json(tmp_path / "r.json", {"numbers": numbers})
    assert read_json(tmp_path / "r.json")["numbers"] == numbers


BROKEN_JSON = {
    "cut": ('{"a": 1, "b', "cannot be read"),
    "empty": ("", "cannot be read"),
    "a list": ("[1]", "expected a JSON object, got list"),
}


@pytest.mark.parametrize(("text", "sentence"), BROKEN_JSON.values(), ids=BROKEN_JSON)
def test_broken_json_is_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CallerError, match=sentence) as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_missing_json_says_that_it_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="not a run folder: it has no config.json"):
        read_json(tmp_path / "config.json")


def test_broken_lines_are_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    for text in ('{"epoch": 1}\n{"epo\n', "[1]\n"):
        path.write_text(text)
        with pytest.raises(CallerError, match="metrics.jsonl"):
            read_lines(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CallerError, match="metrics.jsonl"):
        read_lines(path)


def test_torn_last_line_is_dropped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"row": "a"}\n{"ro')
    with pytest.warns(UserWarning, match="rows.jsonl.*its last line is torn and was dropped"):
        assert read_lines(path) == [{"row": "a"}]


# -- tensors -----------------------------------------------------------------------------------


def test_tensors_and_record_come_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    tensors = {
        "a": torch.arange(6.0).view(2, 3).T,  # not contiguous
        "b": torch.tensor(3, dtype=torch.int64),
        "c": torch.arange(4, dtype=torch.uint8),
        "d": torch.rand(2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    }
    save_tensors(path, tensors, {"epoch": 3, "value": math.nan})
    loaded, record = load_tensors(path)
    assert record == {"epoch": 3, "value": None}
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def write_pickle(path: Path) -> None:
    torch.save({"a": torch.ones(2)}, path)


def without_record(path: Path) -> None:
    save_file({"a": torch.ones(2)}, path)


BROKEN_CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": truncate,
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "pickle": write_pickle,
    "no record": without_record,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("spoil", BROKEN_CHECKPOINTS.values(), ids=BROKEN_CHECKPOINTS)
def test_broken_checkpoint_is_a_sentence(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_tensors(path, {"a": torch.ones(5)}, {"epoch": 1})
    spoil(path)
    with pytest.raises(CallerError, match="checkpoint") as caught:
        load_tensors(path)
    assert str(tmp_path) in str(caught.value)


OTHER_MODELS: dict[str, tuple[nn.Module, str]] = {
    "another shape": (
        nn.Linear(3, 4, bias=False),
        r"it holds \(2, 3\) for 'weight', this model has \(4, 3\)",
    ),
    "a tensor more": (nn.Linear(3, 2), r"it holds nothing for 'bias', this model has \(2,\)"),
    "a tensor less": (nn.Identity(), r"it holds \(2, 3\) for 'weight', this model has nothing"),
}


@pytest.mark.parametrize(("model", "sentence"), OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_tensors_of_another_model_are_refused(model: nn.Module, sentence: str) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CallerError, match="'run' is of another model: " + sentence):
        load_module(Path("run"), model, {"network/weight": torch.zeros(2, 3)}, "network")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), "a refused model must stay as it was"


# -- a trainer ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> isotropy.LearnResult:
    return isotropy.learn(small_network(), bar_tensors(), config=CONFIG)


def other_trainer() -> Trainer:
    """A trainer of the same shapes in another state."""
    return isotropy.learn(small_network(seed=7), bar_tensors(seed=7), config=CONFIG).trainer


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Everything that a run changes: weights, ranges, precisions and the optimisers' moments."""
    tensors = {f"model/{k}": v for k, v in trainer.model.state_dict().items()}
    tensors |= {f"precisions/{k}": v for k, v in trainer.prior.state_dict().items()}
    for name, optimiser in trainer.optimisers.items():
        for index, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"{name}/{index}/{key}": value for key, value in moments.items()}
    return tensors


def test_trainer_comes_back_bit_for_bit(result: isotropy.LearnResult, tmp_path: Path) -> None:
    save_trainer(tmp_path, result.trainer, result.history, result.config)
    random_state = torch.get_rng_state()
    other = other_trainer()
    assert not torch.equal(
        state_of(other)["model/augmentation.half_widths"],
        state_of(result.trainer)["model/augmentation.half_widths"],
    )
    torch.rand(3)
    assert load_trainer(tmp_path, other, result.config) == json.loads(json.dumps(result.history))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert other.epoch == result.trainer.epoch and other.seconds == result.trainer.seconds
    expected, got = state_of(result.trainer), state_of(other)
    assert expected.keys() == got.keys()
    parts = {"model", "precisions", "weights", "ranges", "prior"}
    assert {key.split("/")[0] for key in got} == parts
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name


def test_history_beyond_the_checkpoint_is_left_out(
    result: isotropy.LearnResult, tmp_path: Path
) -> None:
    save_trainer(tmp_path, result.trainer, result.history, result.config)
    write_lines(tmp_path / "metrics.jsonl", [*result.history, {"epoch": 5}])
    assert len(load_trainer(tmp_path, other_trainer(), result.config)) == 4


def test_checkpoint_that_is_no_run(result: isotropy.LearnResult, tmp_path: Path) -> None:
    save_tensors(tmp_path / "checkpoint.safetensors", {"a": torch.ones(2)}, {"epoch": 1})
    with pytest.raises(CallerError, match="is not the checkpoint of a run"):
        load_trainer(tmp_path, result.trainer, result.config)


def flip_a_bit(folder: Path) -> None:
    path = folder / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def change_checkpoint(
    folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]
) -> None:
    """Rewrite a checkpoint with other tensors or another record, its digest left as it was."""
    path = folder / "checkpoint.safetensors"
    tensors, record = load_tensors(path)
    with safetensors.safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    change(tensors, record)
    save_file(tensors, path, metadata={**metadata, "record": json.dumps(record)})


def cast(tensors: dict[str, Any], record: dict[str, Any]) -> None:
    name = next(name for name in tensors if name.startswith("network/"))
    tensors[name] = tensors[name].to(torch.int32)


def lose_a_moment(tensors: dict[str, Any], record: dict[str, Any]) -> None:
    del tensors[next(name for name in tensors if name.startswith("optimiser/"))]


def change_history(folder: Path) -> None:
    rows = read_lines(folder / "metrics.jsonl")
    rows[0]["train_loss"] = 0.5
    write_lines(folder / "metrics.jsonl", rows)


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit": (flip_a_bit, "checkpoint .* is damaged"),
    "a type": (lambda folder: change_checkpoint(folder, cast), "checkpoint .* is damaged"),
    "a moment": (lambda folder: change_checkpoint(folder, lose_a_moment), "is damaged"),
    "an epoch": (
        lambda folder: change_checkpoint(folder, lambda _, record: record.update(epoch=2)),
        "checkpoint .* is damaged",
    ),
    "the history": (change_history, "metrics.jsonl.*expected the lines of the 4 epochs"),
    "a line": (
        lambda folder: write_lines(folder / "metrics.jsonl", [{"epoch": 1}]),
        "metrics.jsonl.*expected the lines of the 4 epochs",
    ),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_runs_are_refused(
    damage: Callable[[Path], object], sentence: str, result: isotropy.LearnResult, tmp_path: Path
) -> None:
    save_trainer(tmp_path, result.trainer, result.history, result.config)
    damage(tmp_path)
    with pytest.raises(CallerError, match=sentence):
        load_trainer(tmp_path, result.trainer, result.config)


def test_checkpoint_of_another_run_is_refused(result: isotropy.LearnResult, tmp_path: Path) -> None:
    result.save(tmp_path / "run")
    isotropy.load(tmp_path / "run", network=small_network())
    schedule = {**result.config["schedule"], "seed": 99}
    write_json(tmp_path / "run" / "config.json", {**result.config, "schedule": schedule})
    with pytest.raises(CallerError, match="is not of the run that the config.json beside it"):
        isotropy.load(tmp_path / "run", network=small_network())


def test_full_disk_leaves_the_last_checkpoint(
    result: isotropy.LearnResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_trainer(tmp_path, result.trainer, result.history, result.config)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(CallerError, match="No space left on device"):
        save_trainer(tmp_path, result.trainer, [], result.config)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 4


# -- no pickle ---------------------------------------------------------------------------------


def holds_pickle(content: bytes) -> bool:
    """Whether these bytes begin with a whole pickle, or are an archive with such a member."""
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return any(holds_pickle(archive.read(name)) for name in archive.namelist())
    try:
        return bool(list(pickletools.genops(content)))
    except Exception:  # whatever the disassembler makes of bytes that mean something else
        return False


def test_run_folder_holds_no_pickle(result: isotropy.LearnResult, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 7
    assert [path.name for path in files if holds_pickle(path.read_bytes())] == []
    with np.load(folder / "samples.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype != object for name in archive.files)


def test_pickle_would_be_noticed(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "new")
    torch.save({"a": torch.ones(2)}, tmp_path / "old", _use_new_zipfile_serialization=False)
    assert holds_pickle((tmp_path / "new").read_bytes())
    assert holds_pickle((tmp_path / "old").read_bytes())
    assert holds_pickle(pickle.dumps({"a": 1}))


class WithNotes(nn.Linear):
    """Has state of its own that is no tensor."""

    notes = "as made"

    def get_extra_state(self) -> str:
        return self.notes

    def set_extra_state(self, state: str) -> None:
        self.notes = state


def test_state_that_is_no_tensor_stays_as_it_is() -> None:
    model, weight = WithNotes(3, 2, bias=False), torch.arange(6.0).reshape(2, 3)
    model.notes = "learned"
    load_module(Path("run"), model, {"network/weight": weight}, "network")
    assert torch.equal(model.weight, weight) and model.notes == "learned"


# --- entries of other types -----------------------------------------------------------------------

WRONG = {
    "schema": ("config.json", {"schema": 7}, "schema 1, got 7"),
    "epochs in words": ("config.json", {"schedule": {"epochs": "3"}}, "'schedule.epochs'"),
    "no epochs": ("config.json", {"schedule": {"epochs": 0}}, "at least 1"),
    "true epochs": ("config.json", {"schedule": {"epochs": True}}, "'schedule.epochs'"),
    "shape of words": ("config.json", {"data": {"shape": ["a"]}}, "'data.shape'"),
    "negative outputs": ("config.json", {"data": {"outputs": -1}}, "'data.outputs'"),
    "data a list": ("config.json", {"data": [1]}, "'data' to be dict"),
    "seconds": ("result.json", {"seconds": "long"}, "'seconds'"),
    "errors": ("certificate.json", {"errors": -3}, "'errors'"),
    "a seed beyond all": ("config.json", {"schedule": {"seed": 2**70}}, "schedule.seed"),
    "infinite bound": ("certificate.json", {"bound": float("inf")}, "'bound'"),
}


@pytest.mark.parametrize(("name", "record", "sentence"), WRONG.values(), ids=WRONG)
def test_entries_of_other_types(name: str, record: dict, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(record))
    with pytest.raises(CallerError, match=sentence) as caught:
        records.read_json(tmp_path / name)
    assert name in str(caught.value)


def test_entries_that_are_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"data": {"name": "bars"}}')
    config = records.read_json(tmp_path / "config.json")
    with pytest.raises(CallerError, match=r"config.json.*expected an entry 'shape'"):
        config["data"]["shape"]
    assert config.get("network") is None and config["data"]["name"] == "bars"


def test_deep_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CallerError, match="cannot be read"):
        records.read_json(tmp_path / "config.json")


@pytest.mark.parametrize("row", ['{"row": 3}', '{"seed": "a"}', '{"epoch": 0}', "[]"])
def test_rows_of_other_types(row: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"row": "a", "seed": 0}}\n{row}\n')
    with pytest.raises(CallerError, match="line 2"):
        records.read_lines(path)


# --- the commit -----------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@pytest.mark.parametrize("place", ["lib/site-packages/isotropy", "src/isotropy"])
def test_a_repository_around_the_package_is_not_asked(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / place).mkdir(parents=True)
    monkeypatch.setattr(records, "__file__", str(tmp_path / place / "records.py"))
    (tmp_path / place / "records.py").write_text("")
    own = ("-c", "user.name=a", "-c", "user.email=a@b")
    git(tmp_path, *own, "commit", "-q", "--allow-empty", "-m", "x")
    assert records.commit() is None
    git(tmp_path, "add", ".")
    git(tmp_path, *own, "commit", "-q", "-m", "y")
    assert (records.commit() is None) == place.startswith("lib")


def test_rows_that_a_run_writes_do_not_change_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, rows = tmp_path / "src/isotropy/records.py", tmp_path / "results/rows.jsonl"
    for path in (code, rows):
        path.parent.mkdir(parents=True)
        path.write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    monkeypatch.setattr(records, "__file__", str(code))
    clean = records.commit()
    rows.write_text("a row")
    assert clean is not None and records.commit() == clean
    code.write_text("changed")
    assert records.commit() == f"{clean}-dirty"


def test_git_runs_nothing_of_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src/isotropy").mkdir(parents=True)
    (tmp_path / "src/isotropy/records.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x")
    git(tmp_path, "config", "core.fsmonitor", f"touch {tmp_path / 'ran'}; true")
    monkeypatch.setattr(records, "__file__", str(tmp_path / "src/isotropy/records.py"))
    assert records.commit() is not None and not (tmp_path / "ran").exists()


def test_turned_text_is_escaped() -> None:
    assert records.as_bytes("a\u202eb") == b"a\\u202eb"
