"""Runs on streamed data end with the numbers of runs on the same data in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_runs import FAST, bars, bars_file, run_here
from stream_cases import Items, shards
from torch import nn

import isotropy
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import digits
from isotropy.data.streams.streamed import StreamedData, streamed
from isotropy.evidence.settings import LearnConfig
from isotropy.workflows.runs import prepared

SETTINGS: dict[str, Any] = {
    "epochs": 3, "samples": 2, "test_samples": 2, "batch_size": 70, "burn_in": 0, "search": False,
    "curvature_batch": 40, "weight_rate": 0.02,
}  # fmt: skip
COUNT = 300


def data() -> LabelledData:
    return digits().train.subset(COUNT, 0)


def stream(sample: int = 60, workers: int = 0) -> StreamedData:
    own = data()
    return streamed(Items(own.inputs, own.targets), sample=sample, workers=workers)


def network(name: str = "mlp") -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "mlp":
            layers = [nn.Flatten(), nn.Linear(784, 8), nn.Tanh(), nn.Linear(8, 10)]
        else:
            pool, drop = nn.AvgPool2d(8), nn.Dropout(0.1)
            layers = [nn.Conv2d(1, 4, 5), nn.ReLU(), pool, nn.Flatten(), drop, nn.Linear(36, 10)]
        return nn.Sequential(*layers)


def learned(train: Any, name: str = "mlp", **settings: Any) -> isotropy.LearnResult:
    config = LearnConfig(**{**SETTINGS, **settings})
    test = digits().test
    assert test is not None
    torch.manual_seed(5)  # of dropout
    return isotropy.learn(
        network(name),
        train,
        test.subset(50, 0),
        actions=isotropy.affine(("rotation", "translation_x")),
        config=config,
        verdicts=2 if config.search else 0,
    )


def assert_same(one: isotropy.LearnResult, other: isotropy.LearnResult) -> None:
    """To the last bit."""
    for mine, yours in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, yours)
    assert one.symmetries == other.symmetries
    for mine, yours in zip(one.history, other.history, strict=True):
        assert {**mine, "seconds": 0} == {**yours, "seconds": 0}
    assert one.log_evidence == other.log_evidence
    assert one.record["train_examples"] == other.record["train_examples"] == COUNT
    if one.record["search"] is not None:
        assert one.record["search"]["amounts"] == other.record["search"]["amounts"]
        assert one.record["verdicts"] == other.record["verdicts"]


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "all data": ("mlp", {}),
    "a sample of them": ("mlp", {"curvature_examples": 90, "ema_decay": 0.5}),
    "micro-batches, dropout, sgd": (
        "cnn", {"micro_batch": 30, "optimiser": "sgd", "curvature": "kfac-mc"},
    ),
    "augerino": ("mlp", {"objective": "augerino"}),
    "a search first": ("mlp", {"search": True, "search_examples": 80, "epochs": 2}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(*run, id=what, marks=[pytest.mark.slow] if "search" in run[1] else [])
        for what, run in RUNS.items()
    ],
)
def test_streams_give_the_numbers_of_memory(name: str, settings: dict[str, Any]) -> None:
    assert_same(learned(data(), name, **settings), learned(stream(), name, **settings))


@pytest.mark.slow
def test_workers_and_samples_change_nothing() -> None:
    found = learned(data())
    ahead = learned(stream(sample=COUNT, workers=2))
    assert_same(found, ahead)
    # With all of them in the sample everything else is the same too.
    for key in ("null_log_evidence", "class_counts", "evidence"):
        assert found.record[key] == ahead.record[key]
    part = learned(stream())
    assert part.record["class_counts"] is None
    assert part.record["null_log_evidence"] == pytest.approx(
        found.record["null_log_evidence"], rel=0.1
    )
    notes = part.config["notes"]
    assert any("300 examples are read while they are used" in note for note in notes)


def test_targets_of_a_regression() -> None:
    inputs, targets = torch.rand(60, 5), torch.rand(60, 2)
    config = LearnConfig(**{**SETTINGS, "batch_size": 20})
    layers = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    found = [
        isotropy.learn(layers, train, config=config, verdicts=0).record["log_evidence"]
        for train in ((inputs, targets), streamed(Items(inputs, targets), workers=0, sample=9))
    ]
    assert found[0] == found[1]


def test_clouds_stay_as_they_came() -> None:
    inputs, labels = torch.rand(40, 6, 2), torch.arange(40) % 2
    layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    config = LearnConfig(**{**SETTINGS, "batch_size": 20})
    found = [
        isotropy.learn(layers, train, actions=isotropy.points(2), config=config, verdicts=0)
        for train in ((inputs, labels), streamed(Items(inputs, labels), workers=0, sample=9))
    ]
    assert found[0].log_evidence == found[1].log_evidence
    assert found[1].config["data"]["shape"] == [6, 2]


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "CHECKPOINT_SECONDS", 0.0)
    config, whole = LearnConfig(**SETTINGS), learned(data())

    class Cut(Exception):
        pass

    def cut(told: Any) -> None:
        if told.row.epoch == 2:
            raise Cut

    folder = tmp_path / "run"
    common: dict[str, Any] = {
        "actions": isotropy.affine(("rotation", "translation_x")),
        "config": config,
        "folder": folder,
        "verdicts": 0,
    }
    with pytest.raises(Cut):
        isotropy.learn(network(), stream(), progress=cut, **common)
    resumed = isotropy.learn(network(), stream(workers=1), resume=True, **common)
    for mine, yours in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, yours)
    assert resumed.log_evidence == whole.log_evidence
    own = data()
    others = streamed(Items(own.inputs.flip(3), own.targets), sample=60, workers=0)
    with pytest.raises(CallerError, match="of another data set"):
        isotropy.learn(network(), others, resume=True, **common)


def test_a_frozen_backbone_is_passed_through_every_time() -> None:
    result = learned(stream(), freeze="backbone")
    assert result.trainer.features is None
    before = dict(network().named_parameters())
    after = dict(result.model.network.named_parameters())
    assert torch.equal(before["1.weight"], after["1.weight"])
    assert not torch.equal(before["3.weight"], after["3.weight"])


@pytest.mark.parametrize("settings", [{"evidence": "elbo"}, {"bound": "function-space"}], ids=str)
def test_what_holds_all_data_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match="expected the Laplace evidence and no bound"):
        learned(stream(), **settings)


def test_a_network_with_too_few_outputs_is_named_at_once() -> None:
    own = data()
    first = (own.targets < 4).nonzero()[:, 0]
    few = Items(own.inputs[first], own.targets[first], classes=[str(n) for n in range(11)])
    with pytest.raises(CallerError, match="labels: expected 0 to 9"):
        learned(streamed(few, workers=0, sample=30))


def test_the_command_line_reads_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shards(tmp_path / "shards", *bars())
    of = {
        "memory": ("--data", bars_file(tmp_path)),
        "shards": ("--data", folder),
        "stream": ("--data", folder / "shard-{000..002}.tar", "--stream"),
    }
    found = {
        name: run_here(capsys, "learn", *words, *FAST, "--json", "--out", tmp_path / name).record
        for name, words in of.items()
    }
    for name in ("shards", "stream"):
        for key in ("log_evidence", "test_accuracy", "symmetries", "class_counts"):
            assert found[name][key] == found["memory"][key], key
    assert any("are read while they are used" in note for note in found["stream"]["notes"])
    again = run_here(capsys, "learn", "--resume", tmp_path / "stream", "--json").record
    assert again["log_evidence"] == found["stream"]["log_evidence"]


GROWTH = """
import json, sys
from benchmarks.streaming import run
print(json.dumps(run(int(sys.argv[1]), samples=1, workers=1)))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_examples() -> None:
    """As one tensor, 45,000 images take 94 MB more than 15,000."""
    peaks = {}
    for count in (15_000, 45_000):
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, str(count)],
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=220,
        )
        report = json.loads(done.stdout)
        assert np.isfinite(report["log_evidence_per_example"])
        peaks[count] = report["peak_megabytes"]
    assert peaks[45_000] - peaks[15_000] < 30, peaks
