"""What was found, confirmed by training: which rivals are trained, and which network stays."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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

from isotropy.evidence.settings import LearnConfig
from isotropy.workflows import learning
from isotropy.workflows.runs import contest as confirming
from isotropy.workflows.runs import prepared as prepared_run
from isotropy.workflows.runs import prepared as runs
from isotropy.workflows.runs.contest import (
    ENOUGH_STEPS,
    LEAST_GAIN,
    MANY_MORE,
    confirmed,
    halved,
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
    found: dict[str, Any],
    surface: Surface,
    examples: int = EXAMPLES,
    epochs: int = ENOUGH_STEPS,
    **settings: Any,
) -> tuple[PreparedRun, list]:
    """The run that stays, and the amounts of all that were trained after the first."""
    trained: list[dict[str, float]] = []

    def prepare(config: LearnConfig) -> PreparedRun:
        start = dict(config.start or {})
        evidence = SimpleNamespace(nats=surface(start))
        trainer = SimpleNamespace(
            config=replace(
                config, refine=bool(config.refine), epochs=epochs, batch_size=examples
            ),
            final_evidence=lambda: evidence, examples=examples, features=None,
        )  # fmt: skip
        return PreparedRun(trainer, None, {}, search=found)  # type: ignore[arg-type]

    def train(run: PreparedRun) -> None:
        trained.append(dict(run.trainer.config.start or {}))

    config = LearnConfig(**settings)
    first = prepare(replace(config, start={n: a for n, a in found["amounts"].items() if a}))
    return confirmed(first, config, prepare, train), trained


EVIDENCE = {
    # Log evidence of the whole, of the half and of neither; what stays.
    "the whole leads by more": (LEAST_GAIN + 1e-6, 0.0, 90.0, 180.0),
    "the whole leads by just so much": (LEAST_GAIN, 0.0, -90.0, 90.0),
    "equal": (-300.0, -300.0, -400.0, 90.0),
    "the half leads": (-300.0, -200.0, -400.0, 90.0),
    "no number for the whole": (math.nan, -200.0, -100.0, 180.0),
    "no number for the half": (-300.0, math.nan, -100.0, 180.0),
    "nothing leads the half": (-300.0, -200.0, -200.0 + LEAST_GAIN + 1e-6, 0.0),
    "nothing leads by just so much": (-300.0, -200.0, -200.0 + LEAST_GAIN, 90.0),
    "no number for nothing": (-300.0, -200.0, math.nan, 90.0),
}


@pytest.mark.parametrize(("whole", "half", "none", "stays"), EVIDENCE.values(), ids=EVIDENCE)
def test_a_whole_period(whole: float, half: float, none: float, stays: float) -> None:
    """One that leads is confirmed without a third network."""
    values = {180.0: whole, 90.0: half, 0.0: none}
    found = record(WHOLE, examples=200)
    before = copy.deepcopy(found)
    run, trained = contest(found, lambda start: values[start.get("rotation", 0.0)])
    assert found == before, "what was given is left as it was"
    search = run.search
    assert search is not None and search["amounts"] == {"rotation": stays}
    assert search["symmetries"]["rotation"]["amount"] == stays
    assert (run.trainer.config.start or {}).get("rotation", 0.0) == stays
    amounts = [180.0, 90.0] if stays == 180.0 else [180.0, 90.0, 0.0]
    assert [row["amounts"]["rotation"] for row in search["trained"]] == amounts
    assert [each.get("rotation", 0.0) for each in trained] == amounts[1:]
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
    assert trained == [{}, *alone]
    copies = run.trainer.config.samples
    assert copies == (None if stays else 1), "without any symmetry one copy is enough"


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
    assert len(trained) == len(tried) - 1 <= 8


def test_ranges_that_are_enough_stay() -> None:
    """One smaller one is tried; the interval remains that of the search."""
    found = record(PART)
    run, trained = contest(found, peaked(110.0), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None and run.search["amounts"] == {"rotation": 100.0}
    assert run.search["symmetries"] == found["symmetries"]
    assert [each.get("rotation", 0.0) for each in trained] == pytest.approx([70.0, 0.0])


def test_small_losses_do_not_add_up() -> None:
    """Each step loses less than log 20, and two of them more: the second is not taken."""

    def surface(start: Mapping[str, float]) -> float:
        amount = start.get("rotation", 0.0)
        return 0.6 * LEAST_GAIN * math.log(amount / 100, 1 / 0.7) if amount else -1e4

    run, trained = contest(record(PART), surface, examples=MANY_MORE * EXAMPLES)
    assert run.search is not None
    assert [each["rotation"] for each in trained[:2]] == pytest.approx([70.0, 49.0])
    assert run.search["amounts"]["rotation"] == pytest.approx(70.0)
    assert len(trained) == 3, "nothing is trained twice"


def test_half_of_a_whole_period_becomes_smaller() -> None:
    """The whole is a value beside the half."""
    run, trained = contest(record(WHOLE), peaked(75.0), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None
    assert run.search["amounts"]["rotation"] == pytest.approx(75.0, rel=0.13)
    assert trained[0] == {"rotation": 90.0} and trained[1] == {"rotation": pytest.approx(63.0)}
    low, high = run.search["symmetries"]["rotation"]["interval"]
    assert low < 75 < high < 180


SHORT = {
    # Leads over the whole in nats per example, in a short run and in a long one, and what stays.
    "the half leads by little": ({90.0: 0.04}, 180.0, 90.0),
    "the half leads by much": ({90.0: 0.06}, 90.0, 90.0),
    "nothing leads the half by little": ({90.0: 0.06, 0.0: 0.1}, 90.0, 0.0),
    "nothing leads the half by much": ({90.0: 0.06, 0.0: 0.12}, 0.0, 0.0),
}


@pytest.mark.parametrize(("leads", "short", "long"), SHORT.values(), ids=SHORT)
def test_small_leads_in_a_short_run(leads: dict[float, float], short: float, long: float) -> None:
    """They are those of networks that are trained sooner."""
    for epochs, stays in ((ENOUGH_STEPS - 1, short), (ENOUGH_STEPS, long)):
        run, _ = contest(
            record(WHOLE),
            lambda start: EXAMPLES * leads.get(start.get("rotation", 0.0), 0.0),
            epochs=epochs,
        )
        assert run.search is not None and run.search["amounts"] == {"rotation": stays}
        assert run.search["least_lead"] == (0.05 * EXAMPLES if epochs < ENOUGH_STEPS else 0.0)


@pytest.mark.parametrize(("lead", "stays"), [(0.06, 70.0), (0.04, 100.0)])
def test_smaller_ranges_in_a_short_run(lead: float, stays: float) -> None:
    many = MANY_MORE * EXAMPLES
    values = {100.0: 0.0, 70.0: lead * many, 0.0: -1e4}

    def surface(start: Mapping[str, float]) -> float:
        return values.get(round(start.get("rotation", 0.0), 6), 0.0)

    run, _ = contest(record(PART), surface, examples=many, epochs=10)
    assert run.search is not None
    assert run.search["amounts"]["rotation"] == pytest.approx(stays)


def test_leads_that_do_not_count_say_nothing_of_the_interval() -> None:
    many = MANY_MORE * EXAMPLES
    leads = {90.0: 0.5, 63.0: 0.54, 0.0: -1e3}

    def surface(start: Mapping[str, float]) -> float:
        return many * leads.get(round(start.get("rotation", 0.0), 6), 0.0)

    own = {}
    for epochs in (10, ENOUGH_STEPS):
        run, _ = contest(record(WHOLE), surface, examples=many, epochs=epochs)
        assert run.search is not None
        own[epochs] = run.search["symmetries"]["rotation"]
    assert own[10]["amount"] == 90.0 and own[10]["interval"] == [90.0, 180.0]
    assert own[ENOUGH_STEPS]["amount"] < 90.0 and own[ENOUGH_STEPS]["interval"][1] < 180.0


def test_finite_elements_stay_as_they_are() -> None:
    found = record({"tilt": symmetry(100.0), "flip": symmetry(0.5, "finite", 0.45)})
    run, trained = contest(found, peaked(50.0), examples=MANY_MORE * EXAMPLES)
    assert run.search is not None and run.search["amounts"]["flip"] == 0.5
    assert all(each.get("flip") in (0.5, None) for each in trained)
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
    assert trained == [{}]


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


@pytest.fixture
def half_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the whole leads, in runs of three epochs too."""
    monkeypatch.setattr(confirming, "ENOUGH_STEPS", 0)
    monkeypatch.setattr(confirming, "LEAST_GAIN", math.inf)


@pytest.mark.parametrize("whole_stays", [False, True])
def test_the_better_of_both_runs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_stays: bool
) -> None:
    """It is what a run with its amounts is, in all files of the folder."""
    monkeypatch.setattr(confirming, "ENOUGH_STEPS", 0)
    monkeypatch.setattr(confirming, "LEAST_GAIN", -math.inf if whole_stays else math.inf)
    told: list[learning.LearnProgress] = []
    said: list[str] = []
    result = learned(folder=tmp_path, progress=told.append, remark=said.append)
    rivals = [HALF_TURN] if whole_stays else [HALF_TURN, {}]
    assert starts_of(told) == [start for start in (WHOLE_TURN, *rivals) for _ in range(EPOCHS)]
    assert sum("training once more" in sentence for sentence in said) == len(rivals)
    start = WHOLE_TURN if whole_stays else HALF_TURN
    turn, mirrored = result.symmetries
    assert turn.high == pytest.approx(start["turn"]) and mirrored.high == 0.0
    record = json.loads((tmp_path / "result.json").read_text())
    found = record["search"]
    assert found["amounts"] == {**start, "mirror_x": 0.0}
    assert found["symmetries"]["turn"]["amount"] == start["turn"]
    amounts = [row["amounts"]["turn"] for row in found["trained"]]
    assert amounts == [180.0, *(rival.get("turn", 0.0) for rival in rivals)]
    assert found["trained"][0 if whole_stays else 1]["log_evidence"] == result.log_evidence
    tried = [row["amount"] for row in found["symmetries"]["turn"]["beside_held_out"]]
    assert tried == [0.0, 45.0, 90.0, 180.0]
    verdict = next(each for each in record["verdicts"] if each["name"] == "turn")
    assert verdict["verdict"] == ("present" if whole_stays else "partial")
    assert verdict["gain_nats"] == found["symmetries"]["turn"]["gain_nats"]

    config = replace(SETTINGS, start=start, caps={"mirror_x": 0.0}, refine=False)
    expected = learned(config=config)
    assert result.log_evidence == expected.log_evidence
    assert record["test_accuracy"] == expected.test_accuracy
    for given, wanted in zip(result.history, expected.history, strict=True):
        assert {**given, "seconds": 0} == {**wanted, "seconds": 0}
    weights, wanted = result.model.state_dict(), expected.model.state_dict()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)

    _, rows, kept, search = before = numbers(tmp_path)
    assert kept["schedule"]["start"] == start and search["amounts"] == found["amounts"]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    monkeypatch.setattr(learning, "find_amounts", stop)
    again = learned(folder=tmp_path, resume=True, progress=pytest.fail)
    assert numbers(tmp_path) == before
    weights = again.model.state_dict()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted), "the checkpoint's"


STOPS = {
    # Where, and the epochs of both rivals that are left: saved after each epoch, and at their end.
    "in the second training": (None, (1, EPOCHS), (EPOCHS, EPOCHS)),
    "before it is decided": ((confirming, "with_amounts"), (0, 0), (0, 0)),
    "in the verdicts": ((learning, "judge"), (0, 0), (0, 0)),
}


@pytest.mark.parametrize("saved", ["after each epoch", "at the end"])
@pytest.mark.parametrize(("place", "often", "seldom"), STOPS.values(), ids=STOPS)
def test_stopped_runs_end_as_unbroken_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_stays, place, often, seldom, saved: str
) -> None:
    """The first run is kept, and so are its rivals: what is left of them is trained."""
    seconds = 0.0 if saved == "after each epoch" else math.inf
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", seconds)
    unbroken, folder = tmp_path / "unbroken", tmp_path / "stopped"
    learned(folder=unbroken, dropout=0.3)

    def progress(told: learning.LearnProgress) -> None:
        if place is None and told.config.start == HALF_TURN and told.row.epoch == 2:
            raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        if place is not None:
            patch.setattr(*place, stop)
        learned(folder=folder, progress=progress, dropout=0.3)
    assert not (folder / "result.json").exists()
    told: list[learning.LearnProgress] = []
    monkeypatch.setattr(learning, "find_amounts", stop)
    learned(folder=folder, resume=True, progress=told.append, dropout=0.3)
    half, none = often if saved == "after each epoch" else seldom
    assert starts_of(told) == [HALF_TURN] * half + [{}] * none
    assert not (folder / "rivals").exists() and not (unbroken / "rivals").exists()
    mine, theirs = numbers(folder), numbers(unbroken)
    assert mine == theirs
    assert mine[0]["search"]["amounts"]["turn"] == 90.0


def test_stopped_while_the_second_run_takes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_stays
) -> None:
    """No weights of the first are left beside the record of the second, which begins again."""
    unbroken, folder = tmp_path / "unbroken", tmp_path / "stopped"
    learned(folder=unbroken)
    save = prepared_run.save_trainer

    def saved(place: Path, trainer, history, config) -> None:
        if trainer.config.start == HALF_TURN and place == folder:
            raise Stopped
        save(place, trainer, history, config)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(prepared_run, "save_trainer", saved)
        learned(folder=folder)
    assert not (folder / "checkpoint.safetensors").exists()
    told: list[learning.LearnProgress] = []
    learned(folder=folder, resume=True, progress=told.append)
    assert starts_of(told) == [HALF_TURN] * EPOCHS
    assert numbers(folder) == numbers(unbroken)


def test_a_run_that_was_left_without_a_symmetry_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(self: Any, run: PreparedRun) -> dict[str, float]:
        none = dict.fromkeys(self.found["amounts"], 0.0)
        self.kept = self._run(none)
        return none

    with monkeypatch.context() as patch:
        patch.setattr(confirming._Contest, "decide", nothing)
        result = learned(folder=tmp_path)
    assert [each.high for each in result.symmetries] == [0.0, 0.0]
    words = {each["name"]: each["verdict"] for each in result.record["verdicts"]}
    assert words["turn"] == "cannot tell"
    before = numbers(tmp_path)
    learned(folder=tmp_path, resume=True, progress=pytest.fail)
    assert numbers(tmp_path) == before


def test_amounts_that_are_refined_are_trained_once(half_stays) -> None:
    told: list[learning.LearnProgress] = []
    config = replace(SETTINGS, refine=True)
    found = learned(config=config, progress=told.append).record["search"]
    assert starts_of(told) == [WHOLE_TURN] * EPOCHS
    assert found["amounts"]["turn"] == 180.0 and "trained" not in found
