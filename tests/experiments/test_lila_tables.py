"""The tables of LILA in miniature: rows, a run that goes on, what the records show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.evidence.settings import LearnConfig
from isotropy.experiments import lila_tables
from isotropy.experiments.runner import Job, read_table
from isotropy.networks.zoo.specification import parse_network
from isotropy.workflows import learning

TABLE = read_table("lila-tables")
CPU = torch.device("cpu")
TINY = {"epochs": 4, "samples": 2, "batch_size": 20, "burn_in": 1, "search": False}


def test_rows_are_those_of_the_paper() -> None:
    jobs = lila_tables.jobs(TABLE, quick=False)
    assert len({job.row for job in jobs}) == len(jobs)
    of_table = [job for job in jobs if job.settings["table"] == "1"]
    assert len(of_table) == 5 * 5 * 3
    assert all(job.settings["published"] is not None for job in of_table)
    one = next(job for job in jobs if job.row == "fashion-mnist-cnn/translated/augerino")
    assert one.settings["published"] == 82.94 and one.seeds == (0, 1)
    wide = {job.row: job.settings["published"] for job in jobs if job.settings["table"] == "2"}
    assert wide["cifar-10-wrn/original/lila"] == 91.98 and len(wide) == 6


def test_settings_are_settings_and_networks_are_networks() -> None:
    for job in lila_tables.jobs(TABLE, quick=False):
        LearnConfig(**job.settings["config"]).check()
        parse_network(job.settings["model"])


def tiny_job(**settings: Any) -> Job:
    (job, *_) = lila_tables.jobs(TABLE, quick=True)
    config = {**job.settings["config"], **TINY, "objective": "evidence"}
    own = {**job.settings, "examples": 40, "model": "mlp:4", "config": config, **settings}
    return Job(job.row, (3,), own)


def test_a_row_that_is_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotropy.workflows.runs.prepared.CHECKPOINT_SECONDS", 0.0)
    (whole,) = lila_tables.run(tiny_job(), CPU)

    class Cut(Exception):
        pass

    def cut(*arguments: Any, **named: Any) -> None:
        raise Cut

    monkeypatch.setattr(learning, "_result", cut)
    job = tiny_job(unfinished=str(tmp_path))
    with pytest.raises(Cut):
        lila_tables.run(job, CPU)
    (folder,) = tmp_path.iterdir()
    assert (folder / "checkpoint.safetensors").exists()
    monkeypatch.undo()
    (resumed,) = lila_tables.run(job, CPU)
    assert not folder.exists()
    for name in ("test_accuracy", "ranges", "ranges_by_epoch", "log_evidence_per_example"):
        assert resumed[name] == whole[name], name
    assert whole["imposed"] == {"rotation": 180.0} and whole["train_examples"] == 40


def test_data_that_are_not_named_are_asked_for() -> None:
    with pytest.raises(CallerError, match="--data MNIST=FOLDER"):
        lila_tables.run(tiny_job(data="MNIST"), CPU)


def record(network: str, version: str, method: str, accuracy: float, **more: Any) -> dict[str, Any]:
    job = next(
        each
        for each in lila_tables.jobs(TABLE, quick=False)
        if each.row == f"{network}/{version}/{method}"
    )
    told = {name: job.settings[name] for name in ("table", "network", "version", "published")}
    ranges = {"ranges": {"rotation": 170.0}, "imposed": {"rotation": 180.0}}
    imposed = ranges if version == "rotated" else {"ranges": {}, "imposed": {}}
    own = {"row": job.row, "seed": 0, "method": method, "test_accuracy": accuracy}
    return {**told, **own, **imposed, **more}


def test_goals_are_of_filled_cells() -> None:
    records = [
        record("mnist-mlp", "rotated", "none", 0.94),
        record("mnist-mlp", "rotated", "lila", 0.979),
        record("mnist-mlp", "original", "none", 0.985),
        record("mnist-mlp", "original", "lila", 0.984),
        record("cifar-10-wrn", "original", "lila", 0.91),
        record("cifar-10-wrn", "original", "none", 0.88),
    ]
    told = {what.partition(" (")[0]: holds for what, holds in lila_tables.goals(records).items()}
    assert told["Table 1: LILA above none"] is False
    assert told["Table 1: half of the published gain in all cells but 2"] is True
    assert told["mnist-mlp, rotated: the rotation within 10 %"] is True
    assert told["Table 2: LILA at least 90.5 %"] is True
    assert told["Table 2: LILA 4 points above none"] is False
    assert "Table 2: the empirical Fisher within a point" not in told
    assert any("97.90 (97.74)" in line for line in lila_tables.summary(records))
    assert lila_tables.goals([]) == {}


def test_the_fisher_and_a_range_that_is_off() -> None:
    records = [
        record("cifar-10-wrn", "original", "lila", 0.91),
        record("cifar-10-wrn", "original", "lila-ef", 0.88),
        record("mnist-mlp", "rotated", "lila", 0.97, ranges={"rotation": -90.0}),
    ]
    told = {what.partition(" (")[0]: holds for what, holds in lila_tables.goals(records).items()}
    assert told["Table 2: the empirical Fisher within a point"] is False
    assert told["mnist-mlp, rotated: the rotation within 10 %"] is False


def test_one_direction_beside_all() -> None:
    found = [
        record("cifar-10-resnet-fishers", "rotated", method, 0.4, seed=seed, ranges=ranges)
        for seed in (0, 1)
        for method, ranges in {
            "lila": {"rotation": 170.0 + 8 * seed, "scale_x": 0.02},
            "lila-ggn": {"rotation": -172.0, "scale_x": 0.06},
        }.items()
    ]
    ((what, holds),) = lila_tables.goals(found).items()
    assert "(2.0° and 0.040)" in what and not holds
    assert lila_tables.goals(found[:1]) == {}
