"""Short trainings before a long run: when there are any, what they have, what is left of them."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from workflows.searched_runs import (
    EPOCHS,
    HALF_TURN,
    SETTINGS,
    WHOLE_TURN,
    Stopped,
    learned,
    numbers,
    peaked,
    record,
    starts_of,
    stop,
    symmetry,
)

from isotropy.evidence.settings import LearnConfig
from isotropy.workflows import learning
from isotropy.workflows.runs import contest
from isotropy.workflows.runs import prepared as runs
from isotropy.workflows.runs.contest import (
    COMPARED_BATCH,
    COMPARED_COPIES,
    COMPARED_STEPS,
    WORTH,
    compared,
    compares_first,
    shortened,
    trainings,
    weight_steps,
)
from isotropy.workflows.runs.prepared import PreparedRun

SEARCHED = 1000
PART = {"rotation": symmetry(100.0)}
WHOLE = {"rotation": symmetry(180.0)}


def run_of(
    found: dict[str, Any] | None, config: LearnConfig, examples: int, **parts: Any
) -> PreparedRun:
    """A run without a network."""
    resolved = config.resolved(examples=examples, on_gpu=False)
    given = {"config": resolved, "examples": examples, "features": None, "epoch": 0, **parts}
    trainer: Any = SimpleNamespace(**given)
    return PreparedRun(trainer, None, {}, search=found)  # type: ignore[arg-type]


def searched(symmetries: dict[str, Any], **entries: Any) -> dict[str, Any]:
    return record(symmetries, **{"examples": SEARCHED, **entries})


LONG = LearnConfig(epochs=80, samples=16, start={"rotation": 100.0}, refine=False)
JUST = math.ceil(WORTH * COMPARED_STEPS * COMPARED_BATCH * COMPARED_COPIES / (80 * 16))
"""Examples of which a run of 80 epochs and 16 copies is just long enough."""
FIRST = {
    # What was found, settings, examples; whether amounts are compared first.
    "long": (searched(PART), {}, JUST, True),
    "not long enough": (searched(PART), {}, JUST - 1, False),
    "few copies": (searched(PART), {"samples": 3}, JUST, False),
    "few epochs": (searched(PART), {"epochs": 40}, JUST, False),
    "few epochs of many examples": (searched(PART), {"epochs": 40}, 2 * JUST, True),
    "few examples, however long": (searched(PART), {"epochs": 10**6}, 2 * SEARCHED - 1, False),
    "compared before": (searched(PART, trained=[]), {}, JUST, False),
    "nothing learned": (searched(PART, nothing_learned=True), {}, JUST, False),
    "nothing found": (searched({"rotation": symmetry(0.0)}), {}, JUST, False),
    "no search": (None, {}, JUST, False),
    "moved by gradient": (searched(PART), {"refine": True}, JUST, False),
}


@pytest.mark.parametrize(("found", "changed", "examples", "expected"), FIRST.values(), ids=FIRST)
def test_which_runs_are_long(found, changed: dict[str, Any], examples: int, expected: bool) -> None:
    run = run_of(found, replace(LONG, **changed), examples)
    assert compares_first(run) == expected


def test_a_frozen_network_is_not_long() -> None:
    """Its features are computed once, and an epoch takes next to nothing."""
    assert not compares_first(run_of(searched(PART), LONG, JUST, features=object()))


def test_a_run_that_has_begun_goes_on() -> None:
    assert not compares_first(run_of(searched(PART), LONG, JUST, epoch=1))


@pytest.mark.parametrize("examples", [4688, 10_000, 60_000, 500_001])
@pytest.mark.parametrize("as_read", [False, True])
def test_short_networks_have_the_steps_they_need(examples: int, as_read: bool) -> None:
    """Their settings are the same for a run that is read from its folder again."""
    config = replace(LONG, warm_up=8.0, curvature="diagonal-ggn")
    long = config.resolved(examples=examples, on_gpu=False)
    if as_read:
        long = long.resolved(examples=examples, on_gpu=False)
    trainer: Any = SimpleNamespace(config=long, examples=examples)
    short = shortened(trainer).resolved(examples=examples, on_gpu=False)
    steps = weight_steps(SimpleNamespace(config=short, examples=examples))  # type: ignore[arg-type]
    an_epoch = math.ceil(examples / COMPARED_BATCH)
    assert COMPARED_STEPS <= steps < COMPARED_STEPS + an_epoch
    assert (short.batch_size, short.samples) == (min(long.batch_size, 250), COMPARED_COPIES)
    assert short.warm_up == pytest.approx(short.epochs / 10) and short.burn_in <= short.epochs // 6
    same = {"curvature", "start", "refine", "caps", "weight_rate", "prior_precision", "seed"}
    assert all(getattr(short, name) == getattr(long, name) for name in same)
    open_ones = {each.name for each in fields(LearnConfig) if getattr(short, each.name) is None}
    assert open_ones <= {"micro_batch", "ranges", "caps"}


@pytest.mark.parametrize(("found", "best"), [(PART, 45.0), (PART, 110.0), (WHOLE, 75.0)])
def test_the_run_has_what_short_networks_prefer(found: dict[str, Any], best: float) -> None:
    """They are trained, and it is not; it is trained alone after that."""
    surface, trained = peaked(best), []

    def prepare(config: LearnConfig) -> PreparedRun:
        nats = surface(config.start or {})
        return run_of(None, config, JUST, final_evidence=lambda: SimpleNamespace(nats=nats))

    searched_for = searched(found)
    run = replace(prepare(replace(LONG, start=searched_for["amounts"])), search=searched_for)
    asked = replace(LONG, start=None, refine=None)
    after = compared(run, asked, prepare, trained.append)
    assert all(weight_steps(each.trainer) < 3000 for each in trained)
    assert after.trainer not in [each.trainer for each in trained]
    assert weight_steps(after.trainer) == weight_steps(run.trainer)
    assert after.search is not None
    assert after.search["trained_steps"] == weight_steps(trained[0].trainer)
    amount = after.search["amounts"]["rotation"]
    assert amount == pytest.approx(min(best, 100.0), rel=0.13)
    assert after.trainer.config.start == {"rotation": amount}
    assert len(after.search["trained"]) == len(trained)
    assert trainings(after.search, after.trainer) == 1
    assert compared(after, asked, prepare, stop) is after
    assert contest.confirmed(after, asked, prepare, stop) is after


def test_a_run_that_is_not_long_is_left_alone() -> None:
    run = run_of(searched(PART), LONG, JUST - 1)
    assert compared(run, LONG, stop, stop) is run


# -- runs ------------------------------------------------------------------------------------------

SHORT_EPOCHS = 2


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs of sixty points are long, and the half stays however far the whole leads."""
    monkeypatch.setattr(contest, "WORTH", 0)
    monkeypatch.setattr(contest, "MANY_MORE", 1)
    monkeypatch.setattr(contest, "COMPARED_STEPS", SHORT_EPOCHS)
    monkeypatch.setattr(contest, "COMPARED_COPIES", 3)
    monkeypatch.setattr(contest, "ENOUGH_STEPS", 0)
    monkeypatch.setattr(contest, "LEAST_GAIN", math.inf)
    monkeypatch.setattr(contest, "NARROWER", 0.01)  # below what is called absent
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)


TOLD = [(WHOLE_TURN, SHORT_EPOCHS), (HALF_TURN, SHORT_EPOCHS), ({}, SHORT_EPOCHS)]


def test_a_long_run_is_trained_once(tmp_path: Path, long: None) -> None:
    """With what short ones prefer; it is what a run with these amounts is."""
    told: list[learning.LearnProgress] = []
    said: list[str] = []
    config = replace(SETTINGS, batch_size=60)
    result = learned(config=config, folder=tmp_path, progress=told.append, remark=said.append)
    expected = [start for start, epochs in TOLD for _ in range(epochs)]
    assert starts_of(told) == expected + [HALF_TURN] * EPOCHS
    assert [each.config.samples for each in told] == [3] * 4 + [1] * 2 + [4] * EPOCHS
    assert sum("comparing amounts first, by networks of 2" in each for each in said) == 1
    found = json.loads((tmp_path / "result.json").read_text())["search"]
    assert found["trained_steps"] == SHORT_EPOCHS and found["amounts"]["turn"] == 90.0
    assert [each["amounts"]["turn"] for each in found["trained"]] == [180.0, 90.0, 0.0]
    assert not (tmp_path / "rivals").exists()
    start = {"start": HALF_TURN, "caps": {"mirror_x": 0.0}, "refine": False}
    alone = learned(config=replace(config, **start))
    assert result.log_evidence == alone.log_evidence
    weights, wanted = result.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("epoch", [1, 2, 3, 5, 6, 8])
def test_stopped_runs_end_as_unbroken_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: None, epoch: int
) -> None:
    """Also where their settings are read from the folder, as by `isotropy learn --resume`."""
    config, folder = replace(SETTINGS, batch_size=60), tmp_path / "stopped"
    learned(config=config, folder=tmp_path / "unbroken", dropout=0.3)
    told: list[learning.LearnProgress] = []

    def progress(each: learning.LearnProgress) -> None:
        told.append(each)
        if len(told) == epoch:
            raise Stopped

    with pytest.raises(Stopped):
        learned(config=config, folder=folder, progress=progress, dropout=0.3)
    kept = LearnConfig.from_dict(json.loads((folder / "config.json").read_text())["schedule"])
    before = len(told)
    monkeypatch.setattr(learning, "find_amounts", stop)
    learned(config=kept, folder=folder, resume=True, progress=told.append, dropout=0.3)
    assert numbers(folder) == numbers(tmp_path / "unbroken")
    assert before <= len(told) <= 9 + 1 and not (folder / "rivals").exists()
