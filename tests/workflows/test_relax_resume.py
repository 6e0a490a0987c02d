"""A run of relaxed layers interrupted and resumed ends like an unbroken one, bit by bit."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_runs import CONFIG as OF_LEARNING
from learn_runs import bar_tensors, small_network
from torch import Tensor, nn

import isotropy
from isotropy.evidence.training import Trainer
from isotropy.evidence.weight_steps import WeightSteps
from isotropy.workflows import relaxing
from isotropy.workflows.relaxing import RelaxResult
from isotropy.workflows.runs import prepared as runs

CONFIG = isotropy.RelaxConfig(
    epochs=14, burn_in=1, batch_size=4, update_every=1, weight_rate=0.1, evaluate_every=4, seed=5
)


def network(outputs: int = 3, pathways: tuple[str, ...] = ("ffc", "conv")) -> nn.Module:
    """Dropout draws from torch's own generator, and running means are no parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        plain = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(),
            nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(4, outputs),
        )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    return isotropy.relax(plain, pathways, example=(1, 8, 8), generator=generator)


def real_targets() -> tuple[Tensor, Tensor]:
    """Images and how bright they are, twice."""
    images, _ = bar_tensors(60)
    brightness = images.mean((1, 2, 3))[:, None]
    scaled = 4 * (brightness - brightness.mean()) / brightness.std()
    return images, scaled * torch.tensor([[1.0, -2.0]])


@dataclass(frozen=True)
class Case:
    """A run, and how many outputs its network has."""

    config: isotropy.RelaxConfig
    data: Callable[[], tuple[Tensor, Tensor]] = bar_tensors
    outputs: int = 3

    def run(self, **options: Any) -> RelaxResult:
        return isotropy.learn_layers(
            network(self.outputs), self.data(), bar_tensors(30, seed=1) if self.outputs == 3
            else None, config=self.config, hardened=True, **options,
        )  # fmt: skip


CASES = {
    "classes": Case(CONFIG),
    "drawn labels": Case(replace(CONFIG, curvature="kfac-mc", epochs=10)),
    "regression": Case(replace(CONFIG, epochs=6), real_targets, outputs=2),
    "map": Case(replace(CONFIG, epochs=4, objective="map", augmentation="flips")),
}
STOPS = [
    ("classes", "start"), ("classes", "3"), ("classes", "hyper step"), ("classes", "off"),
    ("classes", "end"), ("drawn labels", "hyper step"), ("regression", "3"), ("map", "2"),
]  # fmt: skip
"""Runs, and after which epoch they are interrupted: `hyper step` and `off` are the first ones with
a hyper step and with a pathway switched off."""


@dataclass(frozen=True)
class Unbroken:
    """A run in one piece, and how many pathways were switched off after each of its epochs."""

    result: RelaxResult
    off: list[int]

    def epoch(self, stop: str) -> int:
        """The epoch that a word of STOPS stands for."""
        rows = self.result.record["epochs"]
        if stop == "hyper step":
            return next(row["epoch"] for row in rows if row["log_evidence"] is not None)
        if stop == "off":
            return next(epoch for epoch, count in enumerate(self.off, start=1) if count)
        return {"start": 0, "end": len(rows)}[stop] if stop.isalpha() else int(stop)


def stopping_after(patch: pytest.MonkeyPatch, epoch: int) -> None:
    """Every epoch is saved; the one after `epoch` is interrupted when its weight steps are done."""
    patch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    steps, structures = WeightSteps.epoch, relaxing.structures

    def stopped(own: WeightSteps, number: int, *others: Any) -> Any:
        found = steps(own, number, *others)
        if number > epoch:
            raise KeyboardInterrupt
        return found

    def stopped_at_the_end(trainer: Trainer) -> Any:
        structures(trainer)
        raise KeyboardInterrupt

    patch.setattr(WeightSteps, "epoch", stopped)
    patch.setattr(relaxing, "structures", stopped_at_the_end)


def interrupted(case: Case, folder: Path, epoch: int, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopping_after(patch, epoch)
        case.run(folder=folder, **options)


def numbers(result: RelaxResult) -> dict[str, Any]:
    """All of a record but times and places."""
    record = copy.deepcopy(result.record)
    for each in (record, *record["epochs"]):
        assert each.pop("seconds") >= 0
    record.pop("run_folder")
    return json.loads(json.dumps(record))


def assert_same_run(one: RelaxResult, other: RelaxResult) -> None:
    assert numbers(one) == numbers(other)
    for mine, theirs in zip(
        one.trainer.modules().values(), other.trainer.modules().values(), strict=True
    ):
        ones, others = mine.state_dict(), theirs.state_dict()
        assert ones.keys() == others.keys()
        assert all(torch.equal(ones[name], others[name]) for name in ones)
    assert one.trainer.hyper.state() == other.trainer.hyper.state()
    # The first is the rate, which every step writes before it is taken.
    mine, theirs = (list(each.trainer.optimisers["weights"].state())[1:] for each in (one, other))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.fixture(scope="module")
def unbroken() -> dict[str, Unbroken]:
    found: dict[str, Unbroken] = {}
    run_epoch = Trainer.run_epoch
    for name, case in CASES.items():
        off: list[int] = []

        def told(trainer: Trainer, test: Any = None, off: list[int] = off) -> Any:
            row = run_epoch(trainer, test)
            off.append(len(trainer.hyper.off))
            return row

        with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
            patch.setattr(Trainer, "run_epoch", told)
            torch.manual_seed(7)
            found[name] = Unbroken(case.run(), off)
    return found


@pytest.mark.parametrize(("name", "stop"), STOPS)
def test_a_resumed_run_ends_like_an_unbroken_one(
    name: str, stop: str, tmp_path: Path, unbroken: dict[str, Unbroken]
) -> None:
    case, folder, begun = CASES[name], tmp_path / "run", []
    whole, epoch = unbroken[name].result, unbroken[name].epoch(stop)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        interrupted(case, folder, epoch)
        assert not (folder / "result.json").exists()
        torch.manual_seed(11)  # what a new process would draw
        result = case.run(
            folder=folder, resume=True, started=lambda config, epoch: begun.append(epoch)
        )
    assert begun == [epoch], "what was done must not be done again"
    assert_same_run(result, whole)
    written = json.loads((folder / "result.json").read_text())
    assert written["log_evidence"] == whole.record["log_evidence"]
    assert written["run_folder"] == str(folder)
    loaded = isotropy.load(folder, network=network(case.outputs))
    weights = whole.harden().state_dict()  # these runs are hardened
    assert all(torch.equal(t, weights[key]) for key, t in loaded.state_dict().items())


def test_a_run_may_be_interrupted_twice_and_resumed_when_it_has_ended(
    tmp_path: Path, unbroken: dict[str, Unbroken]
) -> None:
    case, folder = CASES["classes"], tmp_path / "run"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        interrupted(case, folder, 5)
        interrupted(case, folder, 11, resume=True)
        assert_same_run(case.run(folder=folder, resume=True), unbroken["classes"].result)
        assert_same_run(case.run(folder=folder, resume=True), unbroken["classes"].result)


def test_saving_and_a_folder_from_the_start_give_the_same(
    tmp_path: Path, unbroken: dict[str, Unbroken]
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        kept = CASES["map"].run(folder=tmp_path / "kept")
    saved = unbroken["map"].result.save(tmp_path / "saved")
    assert_same_run(kept, unbroken["map"].result)
    for name in ("config.json", "checkpoint.safetensors", "metrics.jsonl", "report.html"):
        assert (tmp_path / "kept" / name).exists() and (saved / name).exists()
    assert_same_run(CASES["map"].run(folder=saved, resume=True), unbroken["map"].result)


def test_another_run_is_not_resumed(tmp_path: Path) -> None:
    case, folder = CASES["map"], tmp_path / "run"
    interrupted(case, folder, 2)
    before = (folder / "checkpoint.safetensors").read_bytes()

    def refuses(sentence: str, model: nn.Module, data: Any, **settings: Any) -> None:
        config = replace(case.config, **settings)
        with pytest.raises(isotropy.CallerError, match=sentence):
            isotropy.learn_layers(model, data, config=config, folder=folder, resume=True)
        assert (folder / "checkpoint.safetensors").read_bytes() == before

    data = bar_tensors()
    refuses("of another schedule: its schedule has epochs 4, this run has 5", network(), data,
            epochs=5)  # fmt: skip
    refuses("of another schedule.*seed 5, this run has 6", network(), data, seed=6)
    refuses("of another objective", network(), data, objective="laplace")
    refuses("of another data set", network(), bar_tensors(30))
    refuses("of another model", network(pathways=("sfc", "conv")), data)
    with pytest.raises(isotropy.CallerError, match="already holds a run; continue it with"):
        case.run(folder=folder)
    with pytest.raises(isotropy.CallerError, match="of another command: expected one of learn"):
        isotropy.learn(small_network(), data, config=OF_LEARNING, folder=folder, resume=True)
