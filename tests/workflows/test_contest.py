"""Rivals of what a search found: which are trained, with what settings, and which of them stays."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from workflows.searched_runs import (
    EPOCHS,
    EXAMPLES,
    HALF_TURN,
    SETTINGS,
    WHOLE_TURN,
    Stopped,
    Surface,
    learned,
    numbers,
    peaked,
    record,
    starts_of,
    stop,
    symmetry,
)

from isotropy.evidence.search.amounts import peak_of
from isotropy.evidence.settings import LEAST_STEPS, PRIOR_STEPS, LearnConfig
from isotropy.workflows import learning
from isotropy.workflows.runs import contest as contests
from isotropy.workflows.runs import prepared as prepared_run
from isotropy.workflows.runs.contest import (
    COPIES,
    LARGEST_BATCH,
    LEAST_GAIN,
    MANY_MORE,
    compared,
    halved,
    shortened,
    weight_steps,
    with_amounts,
)
from isotropy.workflows.runs.prepared import PreparedRun

# -- the record of a search ------------------------------------------------------------------------

WHOLE = {"rotation": symmetry(180.0)}
MANY = {
    "rotation": symmetry(180.0),
    "tilt": symmetry(100.0),
    "spin": symmetry(0.0),
    "scale_x": symmetry(0.5, "open", 0.4),
    "flip": symmetry(0.5, "finite", 0.45),
}
HALVED = {
    "a whole period": (WHOLE, {"rotation": 90.0}),
    "just whole": ({"rotation": symmetry(162.0)}, {"rotation": 81.0}),
    "not quite whole": ({"rotation": symmetry(161.9)}, {}),
    "absent": ({"rotation": symmetry(0.0)}, {}),
    "a whole open motion": ({"scale_x": symmetry(0.5, "open", 0.4)}, {}),
    "a whole finite element": ({"flip": symmetry(0.5, "finite", 0.45)}, {}),
    "two whole periods": (
        {"rotation": symmetry(180.0), "tilt": symmetry(170.0)}, {"rotation": 90.0, "tilt": 85.0},
    ),
    "one of many": (
        MANY, {"rotation": 90.0, "tilt": 100.0, "spin": 0.0, "scale_x": 0.5, "flip": 0.5}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("symmetries", "expected"), HALVED.values(), ids=HALVED)
def test_half_of_every_whole_period(symmetries, expected: dict[str, float]) -> None:
    assert halved(record(symmetries)) == expected


# -- which of the trained networks stays -----------------------------------------------------------


def contest(
    found: dict[str, Any], surface: Surface, examples: int = EXAMPLES, **settings: Any
) -> tuple[PreparedRun, list[dict[str, float]]]:
    """The run that stays, not trained yet, and the amounts of all that were trained."""
    trained: list[dict[str, float]] = []
    asked = LearnConfig(**settings)

    def prepare(config: LearnConfig) -> PreparedRun:
        start = dict(config.start or {})
        resolved = config.resolved(examples=examples, on_gpu=False)
        trainer: Any = SimpleNamespace(
            config=replace(resolved, refine=bool(config.refine)), examples=examples, epoch=0,
            final_evidence=lambda: SimpleNamespace(nats=surface(start)), features=None,
        )  # fmt: skip
        return PreparedRun(trainer, None, {})  # type: ignore[arg-type]

    def train(run: PreparedRun) -> None:
        trained.append(dict(run.trainer.config.start or {}))

    amounts = {name: amount for name, amount in found["amounts"].items() if amount}
    first = replace(prepare(replace(asked, start=amounts)), search=found)
    run = compared(first, asked, prepare, train)
    assert compared(run, asked, prepare, stop) is run, "what was decided is not decided again"
    return run, trained


EVIDENCE = {
    # Log evidence of the whole, of the half and of neither; what stays.
    "the whole leads by more": (LEAST_GAIN + 1e-6, 0.0, -90.0, 180.0),
    "the whole leads by just so much": (LEAST_GAIN, 0.0, -90.0, 90.0),
    "equal": (-300.0, -300.0, -400.0, 90.0),
    "the half leads": (-300.0, -200.0, -400.0, 90.0),
    "no number for the whole": (math.nan, -200.0, -100.0, 180.0),
    "no number for the half": (-300.0, math.nan, -400.0, 180.0),
    "nothing leads the half": (-300.0, -200.0, -200.0 + LEAST_GAIN + 1e-6, 0.0),
    "nothing leads by just so much": (-300.0, -200.0, -200.0 + LEAST_GAIN, 90.0),
    "no number for nothing": (-300.0, -200.0, math.nan, 90.0),
}


@pytest.mark.parametrize(("whole", "half", "none", "stays"), EVIDENCE.values(), ids=EVIDENCE)
def test_a_whole_period(whole: float, half: float, none: float, stays: float) -> None:
    """It must lead half of it by log 20, and neither may be led so by a network without."""
    values = {180.0: whole, 90.0: half, 0.0: none}
    found = record(WHOLE, examples=200)
    before = copy.deepcopy(found)
    run, trained = contest(found, lambda start: values[start.get("rotation", 0.0)])
    assert found == before, "what was given is left as it was"
    search = run.search
    assert search is not None and search["amounts"] == {"rotation": stays}
    assert search["symmetries"]["rotation"]["amount"] == stays
    assert (run.trainer.config.start or {}).get("rotation", 0.0) == stays
    amounts = [180.0, 90.0, 0.0]
    assert [row["amounts"]["rotation"] for row in search["trained"]] == amounts
    assert [each.get("rotation", 0.0) for each in trained] == amounts
    written = [row["log_evidence"] for row in search["trained"]]
    expected = [None if math.isnan(values[amount]) else values[amount] for amount in amounts]
    assert written == expected, "as JSON can hold it"
    assert search["examples"] == 200


PARTS = {"tilt": symmetry(100.0), "spin": symmetry(0.0), "scale_x": symmetry(0.5, "open", 0.4)}


@pytest.mark.parametrize(
    ("tilt", "scale", "stays"),
    [
        (30.0, 20.0, {"tilt", "scale_x"}),
        (-30.0, 20.0, {"scale_x"}),
        (20.0, -30.0, {"tilt"}),
        (-30.0, -20.0, set()),
    ],
)
def test_parts_that_are_not_confirmed_go(tilt: float, scale: float, stays: set[str]) -> None:
    """Each is left out alone only where nothing at all is better than all of them."""
    gains = {"tilt": tilt, "scale_x": scale}
    run, trained = contest(record(PARTS), lambda start: sum(gains[name] for name in start))
    assert run.search is not None
    assert {name for name, amount in run.search["amounts"].items() if amount} == stays
    assert (run.trainer.config.start or {}).keys() == stays
    alone = [] if tilt + scale > 0 else [{"scale_x": 0.5}, {"tilt": 100.0}]
    assert trained == [{"tilt": 100.0, "scale_x": 0.5}, {}, *alone]
    copies = run.trainer.config.samples
    assert copies == (16 if stays else 1), "without any symmetry one copy is enough"


PART = {"rotation": symmetry(100.0)}


@pytest.mark.parametrize("best", [20.0, 45.0, 60.0, 75.0])
def test_ranges_become_smaller_on_more_data(best: float) -> None:
    """The peak of the evidence of trained networks is found; its interval replaces the search's."""
    run, trained = contest(record(PART), peaked(best), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None
    (amount,) = run.search["amounts"].values()
    assert amount == pytest.approx(best, rel=0.13)
    assert run.trainer.config.start == {"rotation": amount}, "its run stays"
    own = run.search["symmetries"]["rotation"]
    low, high = own["interval"]
    assert low < best < high and high - low < 100
    assert own["amount"] == amount and low <= amount <= high
    tried = [row["amounts"]["rotation"] for row in run.search["trained"]]
    assert tried[:2] == pytest.approx([100.0, 70.0]) and tried[-1] == 0.0
    assert len(trained) == len(tried) <= 9


@pytest.mark.parametrize("with_flip", [False, True])
def test_the_interval_ends_where_the_evidence_does(with_flip: bool) -> None:
    """Between the last range that was tried and none at all it is that of the line between both."""
    found = {"rotation": {**symmetry(100.0), "interval": [95.0, 105.0]}}
    if with_flip:  # nothing at all is then no range of 0
        found["flip"] = symmetry(0.5, "finite", 0.45)
    amounts, values = [0.0, 49.0, 70.0, 100.0], [-400.0, -6.0, 0.0, -30.0]
    examples = MANY_MORE * EXAMPLES
    run, _ = contest(
        record(found),
        lambda start: float(np.interp(start.get("rotation", 0.0), amounts, values)),
        examples=examples,
    )
    assert run.search is not None and run.search["amounts"]["rotation"] == 70.0
    low, high = run.search["symmetries"]["rotation"]["interval"]
    if with_flip:
        assert low == pytest.approx(49.0) and high > 70.0
        return
    expected = peak_of(amounts, values, examples=examples).interval
    assert (low, high) == pytest.approx(expected)
    assert 40 < low < 49


def test_ranges_that_are_enough_stay() -> None:
    """One smaller one is tried; the interval remains that of the search."""
    found = record(PART)
    run, trained = contest(found, peaked(110.0), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None and run.search["amounts"] == {"rotation": 100.0}
    assert run.search["symmetries"] == found["symmetries"]
    assert [each.get("rotation", 0.0) for each in trained] == pytest.approx([100.0, 70.0, 0.0])


def test_small_losses_do_not_add_up() -> None:
    """Each step loses less than log 20, and two of them more: the second is not taken."""

    def surface(start: Mapping[str, float]) -> float:
        amount = start.get("rotation", 0.0)
        return 0.6 * LEAST_GAIN * math.log(amount / 100, 1 / 0.7) if amount else -1e4

    run, trained = contest(record(PART), surface, examples=MANY_MORE * EXAMPLES)
    assert run.search is not None
    assert [each["rotation"] for each in trained[1:3]] == pytest.approx([70.0, 49.0])
    assert run.search["amounts"]["rotation"] == pytest.approx(70.0)
    assert len(trained) == 4, "nothing is trained twice"


@pytest.mark.parametrize("best", [75.0, 90.0, 135.0])
def test_whole_periods_become_smaller_too(best: float) -> None:
    """On many examples, by the same steps as other ranges."""
    run, trained = contest(record(WHOLE), peaked(best), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None
    assert run.search["amounts"]["rotation"] == pytest.approx(best, rel=0.13)
    assert [each["rotation"] for each in trained[:2]] == pytest.approx([180.0, 126.0])
    low, high = run.search["symmetries"]["rotation"]["interval"]
    assert best / 2 < low < best < high <= 180


def test_a_whole_period_that_leads_on_many_examples() -> None:
    """One smaller range is tried."""
    found = record(WHOLE)
    run, trained = contest(found, peaked(180.0), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None and run.search["amounts"] == {"rotation": 180.0}
    assert run.search["symmetries"] == found["symmetries"]
    tried = [each.get("rotation", 0.0) for each in trained]
    assert tried == pytest.approx([180.0, 126.0, 0.0])


def test_finite_elements_stay_as_they_are() -> None:
    found = record({"tilt": symmetry(100.0), "flip": symmetry(0.5, "finite", 0.45)})
    run, trained = contest(found, peaked(50.0), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None and run.search["amounts"]["flip"] == 0.5
    assert all(each.get("flip") == 0.5 for each in trained if each)
    flip = run.search["symmetries"]["flip"]
    assert flip == found["symmetries"]["flip"]


def test_ranges_without_numbers_are_not_made_smaller() -> None:
    def surface(start: Mapping[str, float]) -> float:
        return math.nan if start.get("rotation", 0.0) == pytest.approx(70.0) else -100.0

    run, _ = contest(record(PART), surface, examples=MANY_MORE * EXAMPLES)
    assert run.search is not None and run.search["amounts"] == {"rotation": 100.0}


def test_few_more_examples_change_no_range() -> None:
    run, trained = contest(record(PART), peaked(40.0), examples=MANY_MORE * EXAMPLES - 1)
    assert run.search is not None and run.search["amounts"] == {"rotation": 100.0}
    assert trained == [{"rotation": 100.0}, {}]


# -- their settings --------------------------------------------------------------------------------

SIZES = {
    # Settings and examples of a run, and the batch of its rivals.
    "the digits": ({}, 2000, 100),
    "all of MNIST": ({}, 60_000, LARGEST_BATCH),
    "very many": ({"epochs": 7}, 500_001, LARGEST_BATCH),
    "few epochs": ({"epochs": 12}, 10_000, 75),
    "few epochs of large batches": ({"epochs": 12, "batch_size": 1000}, 10_000, 75),
    "one epoch": ({"epochs": 1}, 10_000, 32),
    "few copies": ({"samples": 3, "epochs": 5}, 60_000, 187),
    "few examples": ({}, 100, 32),
    "very few examples": ({}, 10, 10),
    "its own batch": ({"batch_size": 8}, 2000, 8),
}


@pytest.mark.parametrize(("settings", "examples", "batch"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("as_read", [False, True])
def test_rivals_have_the_steps_they_need(
    settings: dict[str, Any], examples: int, batch: int, as_read: bool
) -> None:
    """Their settings are the same for a run that is read from its folder again."""
    config = LearnConfig(warm_up=0.5, curvature="diagonal-ggn", refine=False, **settings)
    run = config.resolved(examples=examples, on_gpu=False)
    if as_read:
        run = run.resolved(examples=examples, on_gpu=False)
    trainer: Any = SimpleNamespace(config=run, examples=examples)
    short = shortened(trainer).resolved(examples=examples, on_gpu=False)
    assert (short.batch_size, short.samples) == (batch, min(COPIES, run.samples))
    assert LEAST_STEPS <= weight_steps(short, examples) < LEAST_STEPS + math.ceil(examples / batch)
    assert short.warm_up == pytest.approx(short.epochs * run.warm_up / run.epochs)
    assert short.burn_in <= short.epochs // 6
    updates = (short.epochs - short.burn_in) // short.update_every
    assert updates * short.prior_steps >= PRIOR_STEPS, "enough for precisions to settle"
    same = {"curvature", "start", "refine", "caps", "weight_rate", "prior_precision", "seed"}
    assert all(getattr(short, name) == getattr(run, name) for name in same)
    open_ones = {each.name for each in fields(LearnConfig) if getattr(short, each.name) is None}
    assert open_ones <= {"micro_batch", "start", "ranges", "caps"}


def test_the_run_keeps_its_own_settings() -> None:
    run, _ = contest(record(WHOLE), peaked(90.0), epochs=7, samples=9)
    assert (run.trainer.config.epochs, run.trainer.config.samples) == (7, 9)
    assert run.search is not None and run.search["trained_steps"] >= LEAST_STEPS


# -- what is not tried -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "settings"),
    [
        ({"nothing_learned": True}, {}),
        ({"trained": []}, {}),
        ({"amounts": {"rotation": 0.0}}, {}),
        ({}, {"refine": True}),
    ],
    ids=["nothing learned", "confirmed before", "nothing found", "refined"],
)
def test_nothing_is_trained(entries: dict[str, Any], settings: dict[str, Any]) -> None:
    found = {**record(WHOLE), **entries}
    run, trained = contest(found, lambda _: 0.0, **settings)
    assert not trained and run.search is found


def test_a_run_that_has_begun_goes_on() -> None:
    trainer = SimpleNamespace(config=SimpleNamespace(refine=False), epoch=1)
    run = PreparedRun(trainer, None, {}, search=record(WHOLE))  # type: ignore[arg-type]
    assert compared(run, LearnConfig(), stop, stop) is run


def test_what_is_said_of_others_is_left() -> None:
    found = record(MANY)
    result = with_amounts(found, halved(found), [])
    same = [name for name in MANY if result["symmetries"][name] == MANY[name]]
    assert same == ["tilt", "spin", "scale_x", "flip"]
    none = with_amounts(found, {**found["amounts"], "tilt": 0.0}, [])["symmetries"]["tilt"]
    assert none == {**MANY["tilt"], "amount": 0.0, "interval": [0.0, 100.0]}


WITH_HALF = {
    # What was found, the interval, a trial that failed, and by how much L changes to the half.
    "a trial at both": (180.0, [90.0, 180.0], None, -60.0 - -50.0),
    "the interval is stretched": (180.0, [150.0, 180.0], None, -60.0 - -50.0),
    "a trial at neither": (170.0, [50.0, 180.0], None, (-80 + 20 * 40 / 45) - (-70 + 20 * 35 / 45)),
    "a failed trial": (180.0, [90.0, 180.0], 90.0, -75.0 - -50.0),
}


@pytest.mark.parametrize(
    ("amount", "interval", "failed", "change"), WITH_HALF.values(), ids=WITH_HALF
)
def test_what_is_said_of_the_half(
    amount: float, interval: list[float], failed: float | None, change: float
) -> None:
    """Its gain is that of the whole, changed as the profile does; the interval holds it."""
    own = {**symmetry(amount), "interval": interval, "probability": 0.99}
    own["profile"] = [
        {**row, "log_predictive": None if row["amount"] == failed else row["log_predictive"]}
        for row in own["profile"]
    ]
    found = record({"rotation": own})
    half = with_amounts(found, halved(found), [])["symmetries"]["rotation"]
    assert half["amount"] == amount / 2
    assert half["interval"] == [min(interval[0], amount / 2), interval[1]]
    assert half["gain_nats"] == pytest.approx(50 + change)
    assert half["gain_interval"] == pytest.approx([30 + change, 70 + change])
    changed = {"amount", "interval", "gain_nats", "gain_interval"}
    assert {name: half[name] for name in own.keys() - changed} == {
        name: own[name] for name in own.keys() - changed
    }


# -- runs ------------------------------------------------------------------------------------------

SHORT_EPOCHS = 2
RIVALS = [(WHOLE_TURN, SHORT_EPOCHS), (HALF_TURN, SHORT_EPOCHS), ({}, SHORT_EPOCHS)]


@pytest.fixture
def half_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the whole leads, in rivals of two epochs of sixty points."""
    monkeypatch.setattr(contests, "LEAST_STEPS", SHORT_EPOCHS * math.ceil(60 / 30))
    monkeypatch.setattr(contests, "COPIES", 3)
    monkeypatch.setattr(contests, "LEAST_GAIN", math.inf)
    monkeypatch.setattr(prepared_run, "CHECKPOINT_SECONDS", 0.0)


SHORT = replace(SETTINGS, batch_size=30)


@pytest.mark.parametrize("whole_stays", [False, True])
def test_a_run_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_stays, whole_stays: bool
) -> None:
    """With what its rivals prefer; it is what a run with these amounts is, in all files."""
    if whole_stays:
        monkeypatch.setattr(contests, "halved", lambda _: {})
    told: list[learning.LearnProgress] = []
    said: list[str] = []
    result = learned(config=SHORT, folder=tmp_path, progress=told.append, remark=said.append)
    rivals, start = ([RIVALS[0], RIVALS[-1]], WHOLE_TURN) if whole_stays else (RIVALS, HALF_TURN)
    expected = [amounts for amounts, epochs in rivals for _ in range(epochs)]
    assert starts_of(told) == expected + [start] * EPOCHS
    copies = [1 if not amounts else 3 for amounts in expected]
    assert [each.config.samples for each in told] == copies + [4] * EPOCHS
    assert sum("comparing" in sentence for sentence in said) == len(rivals)
    turn, mirrored = result.symmetries
    assert turn.high == pytest.approx(start["turn"]) and mirrored.high == 0.0
    written = json.loads((tmp_path / "result.json").read_text())
    found = written["search"]
    assert found["amounts"] == {**start, "mirror_x": 0.0}
    assert found["symmetries"]["turn"]["amount"] == start["turn"]
    assert found["trained_steps"] == 2 * SHORT_EPOCHS
    amounts = [each["amounts"]["turn"] for each in found["trained"]]
    assert amounts == [each.get("turn", 0.0) for each, _ in rivals]
    tried = [row["amount"] for row in found["symmetries"]["turn"]["beside_held_out"]]
    assert tried == [0.0, 45.0, 90.0, 180.0]
    verdict = next(each for each in written["verdicts"] if each["name"] == "turn")
    assert verdict["verdict"] == ("present" if whole_stays else "partial")
    assert verdict["gain_nats"] == found["symmetries"]["turn"]["gain_nats"]
    assert not (tmp_path / "rivals").exists()

    config = replace(SHORT, start=start, caps={"mirror_x": 0.0}, refine=False)
    alone = learned(config=config)
    assert result.log_evidence == alone.log_evidence
    assert written["test_accuracy"] == alone.record["test_accuracy"]
    weights, wanted = result.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)

    before = numbers(tmp_path)
    assert before[2]["schedule"]["start"] == start and len(before[1]) == EPOCHS
    monkeypatch.setattr(learning, "find_amounts", stop)
    again = learned(config=SHORT, folder=tmp_path, resume=True, progress=pytest.fail)
    assert numbers(tmp_path) == before
    weights = again.model.state_dict()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted), "the checkpoint's"


@pytest.mark.parametrize("epoch", [1, 2, 3, 4, 5, 6, 8, 9])
def test_stopped_runs_end_as_unbroken_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_stays, epoch: int
) -> None:
    """In every epoch of its rivals, and of the run; settings as `--resume` reads them."""
    folder = tmp_path / "stopped"
    learned(config=SHORT, folder=tmp_path / "unbroken", dropout=0.3)
    told: list[learning.LearnProgress] = []

    def progress(each: learning.LearnProgress) -> None:
        told.append(each)
        if len(told) == epoch:
            raise Stopped

    with pytest.raises(Stopped):
        learned(config=SHORT, folder=folder, progress=progress, dropout=0.3)
    kept = LearnConfig.from_dict(json.loads((folder / "config.json").read_text())["schedule"])
    before = len(told)
    monkeypatch.setattr(learning, "find_amounts", stop)
    learned(config=kept, folder=folder, resume=True, progress=told.append, dropout=0.3)
    assert numbers(folder) == numbers(tmp_path / "unbroken")
    whole = sum(epochs for _, epochs in RIVALS) + EPOCHS
    assert before <= len(told) <= whole + 1 and not (folder / "rivals").exists()


PLACES = {
    "before it is decided": (contests, "with_amounts"),
    "in the verdicts": (learning, "judge"),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("saved", ["after each epoch", "at the end"])
def test_what_was_trained_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_stays, place: Any, saved: str
) -> None:
    seconds = 0.0 if saved == "after each epoch" else math.inf
    monkeypatch.setattr(prepared_run, "CHECKPOINT_SECONDS", seconds)
    unbroken, folder = tmp_path / "unbroken", tmp_path / "stopped"
    learned(config=SHORT, folder=unbroken)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(*place, stop)
        learned(config=SHORT, folder=folder)
    assert not (folder / "result.json").exists()
    told: list[learning.LearnProgress] = []
    learned(config=SHORT, folder=folder, resume=True, progress=told.append)
    left = [] if place == PLACES["in the verdicts"] else [HALF_TURN] * EPOCHS
    assert starts_of(told) == left
    assert numbers(folder) == numbers(unbroken)


def test_stopped_while_the_run_takes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_stays
) -> None:
    """No weights of what was found are left beside the record of what stays."""
    unbroken, folder = tmp_path / "unbroken", tmp_path / "stopped"
    learned(config=SHORT, folder=unbroken)
    save = prepared_run.save_trainer

    def saved(place: Path, trainer, history, config) -> None:
        if trainer.config.start == HALF_TURN and place == folder:
            raise Stopped
        save(place, trainer, history, config)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(prepared_run, "save_trainer", saved)
        learned(config=SHORT, folder=folder)
    assert not (folder / "checkpoint.safetensors").exists()
    told: list[learning.LearnProgress] = []
    learned(config=SHORT, folder=folder, resume=True, progress=told.append)
    assert starts_of(told) == [HALF_TURN] * EPOCHS
    assert numbers(folder) == numbers(unbroken)


def test_a_run_that_was_left_without_a_symmetry_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = {"turn": 0.0, "mirror_x": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(contests._Contest, "decide", lambda _: none)
        result = learned(folder=tmp_path)
    assert [each.high for each in result.symmetries] == [0.0, 0.0]
    words = {each["name"]: each["verdict"] for each in result.record["verdicts"]}
    assert words["turn"] == "cannot tell"
    before = numbers(tmp_path)
    learned(folder=tmp_path, resume=True, progress=pytest.fail)
    assert numbers(tmp_path) == before


def test_amounts_that_are_refined_are_trained_once(half_stays) -> None:
    told: list[learning.LearnProgress] = []
    config = replace(SHORT, refine=True)
    found = learned(config=config, progress=told.append).record["search"]
    assert starts_of(told) == [WHOLE_TURN] * EPOCHS
    assert found["amounts"]["turn"] == 180.0 and "trained" not in found
