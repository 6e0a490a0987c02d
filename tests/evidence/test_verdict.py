"""Verdicts: the words as a table, what an architecture has built in, and when a run is settled."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from planar_problems import (
    Push,
    Radius,
    Stretch,
    Turn,
    by_angle,
    by_first,
    by_radius,
    mirror,
    mlp,
    points,
    trainer_of,
)
from torch import nn

from isotropy.evidence import verdict as room
from isotropy.evidence.training import Trainer
from isotropy.evidence.verdict import is_built_in, is_settled, judge, nothing_learned, word_for

# --- the words ------------------------------------------------------------------------------------

WORDS = {
    "all of it": (0.99, True, True, False, "present"),
    "just sure enough": (0.95, True, True, False, "present"),
    "some of it": (0.99, True, False, False, "partial"),
    "taken, sure, and built in": (0.99, True, True, True, "present"),
    "taken, not sure": (0.94, True, True, False, "cannot tell"),
    "taken, not sure, some of it": (0.6, True, False, False, "cannot tell"),
    "not taken though probable": (0.97, False, False, False, "cannot tell"),
    "not taken though probable, built in": (0.97, False, False, True, "already built in"),
    "undecided": (0.5, False, False, False, "cannot tell"),
    "undecided, built in": (0.5, False, False, True, "already built in"),
    "hardly any": (0.06, False, False, False, "cannot tell"),
    "none": (0.04, False, False, False, "absent"),
    "none, built in": (0.04, False, False, True, "already built in"),
    "certainly none": (0.0, False, False, False, "absent"),
}


@pytest.mark.parametrize(
    ("probability", "taken", "whole", "built_in", "word"), WORDS.values(), ids=WORDS
)
def test_words(probability: float, taken: bool, whole: bool, built_in: bool, word: str) -> None:
    assert word_for(probability, gains=taken, whole=whole, built_in=built_in) == word


@pytest.mark.parametrize(
    ("log_evidence", "constant", "nothing"),
    [
        (-60.0, -80.0, False),
        (-80.0, -60.0, True),
        (-60.0, -60.0, True),
        (-60.0 + math.log(20) - 0.01, -60.0, True),
        (-60.0 + math.log(20) + 0.01, -60.0, False),
        (-math.inf, -60.0, True),
        (math.nan, -60.0, True),
    ],
)
def test_nothing_learned(log_evidence: float, constant: float, nothing: bool) -> None:
    assert nothing_learned(log_evidence, constant) is nothing


# --- verdicts of a run ----------------------------------------------------------------------------


def finding(**changes: Any) -> dict[str, Any]:
    return {
        "amount": 0.0, "probability": 0.5, "floor": 0.0, "whole": 1e9, "gain_nats": -4.0,
        "gain_interval": [-6.0, -2.0], **changes,
    }  # fmt: skip


def judged(trainer: Trainer, nothing: bool = False, **symmetries: dict[str, Any]):
    found = {"examples": 80, "nothing_learned": nothing, "symmetries": symmetries}
    verdicts = judge(trainer, found)
    assert json.loads(json.dumps([each.as_dict() for each in verdicts], allow_nan=False))
    return {each.name: each for each in verdicts}


@pytest.fixture(scope="module")
def plain() -> Trainer:
    return trainer_of(mlp, by_radius, [Turn(), mirror(0), mirror(1)], epochs=2)


def test_a_verdict_has_its_numbers(plain: Trainer) -> None:
    taken = finding(amount=170.0, probability=0.99, whole=0.0, gain_nats=20.0,
                    gain_interval=[12.0, 28.0])  # fmt: skip
    found = judged(plain, turn=taken, mirror_x=finding(probability=0.01))
    assert list(found) == ["turn", "mirror_x"], "what was not searched for has no verdict"
    turn = found["turn"]
    assert (turn.verdict, turn.probability) == ("present", 0.99)
    assert (turn.gain, turn.gain_nats, turn.gain_interval) == (0.25, 20.0, (12.0, 28.0))
    assert found["mirror_x"].verdict == "absent" and found["mirror_x"].gain == -0.05


CLAIMED = {"amount": 170.0, "probability": 0.99, "gain_nats": 20.0, "gain_interval": [12.0, 28.0]}
UNSURE = {
    "a gain that may be none": {"gain_interval": [-1.0, 41.0]},
    "too little left by a run on more data": {"floor": 100.0},
    "too little of it": {"probability": 0.9},
}


@pytest.mark.parametrize("changes", UNSURE.values(), ids=UNSURE)
def test_what_is_not_sure_is_not_claimed(plain: Trainer, changes: dict[str, Any]) -> None:
    assert judged(plain, turn=finding(**CLAIMED))["turn"].verdict == "partial"
    assert judged(plain, turn=finding(**CLAIMED | changes))["turn"].verdict == "cannot tell"


def test_where_nothing_was_learned_nothing_is_claimed(plain: Trainer) -> None:
    taken = finding(amount=170.0, probability=0.99, whole=0.0)
    found = judged(plain, nothing=True, turn=taken, mirror_x=finding(probability=0.01))
    assert {each.verdict for each in found.values()} == {"cannot tell"}
    assert {each.probability for each in found.values()} == {None}


def test_amounts_that_could_not_be_trained_with(plain: Trainer) -> None:
    failed = finding(probability=0.97, gain_nats=None, gain_interval=[None, None])
    turn = judged(plain, turn=failed)["turn"]
    assert turn.verdict == "cannot tell" and turn.gain is turn.gain_nats is None
    assert turn.gain_interval == (None, None)


# --- built in -------------------------------------------------------------------------------------


class Second(nn.Module):
    """Of y alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs * torch.tensor([0.0, 1.0], dtype=inputs.dtype))


class Direction(nn.Module):
    """Of the direction alone: a factor changes nothing, one along an axis does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs / inputs.norm(dim=1, keepdim=True))


ARCHITECTURES = {
    "radius, turned": (Radius, by_radius, Turn(), {"turn": True}),
    "radius, mirrored": (
        Radius, by_radius, [mirror(0), mirror(1)], {"mirror_x": True, "mirror_y": True}),
    "radius, pushed": (Radius, by_radius, Push(), {"push_x": False, "push_y": False}),
    "y alone, mirrored": (
        Second, by_first, [mirror(0), mirror(1)], {"mirror_x": True, "mirror_y": False}),
    "y alone, pushed": (Second, by_first, Push(), {"push_x": True, "push_y": False}),
    "direction, stretched": (
        Direction, by_first, Stretch(), {"stretch_x": False, "stretch_y": False}),
    "any, turned": (lambda: mlp(4), by_angle, Turn(), {"turn": False}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("network", "labels", "actions", "expected"), ARCHITECTURES.values(), ids=ARCHITECTURES
)
def test_what_an_architecture_has(network, labels, actions, expected: dict[str, bool]) -> None:
    trainer = trainer_of(network, labels, actions, epochs=5)
    found = {each.name: is_built_in(trainer, each) for each in trainer.model.symmetries()}
    assert found == expected
    words = judged(trainer, **{name: finding(probability=0.97) for name in expected})
    for name, is_there in expected.items():
        assert words[name].verdict == ("already built in" if is_there else "cannot tell")


def test_what_weights_have_learned_is_not_built_in() -> None:
    """A plain network whose own weights do not react to the mirror: others would."""
    trainer = trainer_of(mlp, by_radius, mirror(0), epochs=5)
    with torch.no_grad():
        trainer.network[0].weight[:, 0] = 0.0
    (mirrored,) = trainer.model.symmetries()
    weights = dict(trainer.network.named_parameters())
    assert room._reaction(trainer, mirrored, weights) == 0.0
    assert not is_built_in(trainer, mirrored)


def test_a_plain_network_of_invariant_labels_has_nothing_built_in() -> None:
    """However well it has learned to ignore the angle."""
    trainer = trainer_of(
        lambda: mlp(2, 30), by_radius, [Turn(), mirror(0)],
        ranges={"turn": 180.0}, inputs=points(200), epochs=20, burn_in=20,
    )  # fmt: skip
    assert not any(is_built_in(trainer, each) for each in trainer.model.symmetries())


def test_looking_leaves_the_network_as_it_was(plain: Trainer) -> None:
    before = {name: value.clone() for name, value in plain.model.state_dict().items()}
    first = [is_built_in(plain, each) for each in plain.model.symmetries()]
    assert first == [is_built_in(plain, each) for each in plain.model.symmetries()]
    after = plain.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_reaction_is_relative_to_the_inputs() -> None:
    """A linear network reacts to a rotation as much as its inputs do."""

    def identity() -> nn.Module:
        layer = nn.Linear(2, 2)
        nn.init.eye_(layer.weight)
        return layer

    trainer = trainer_of(identity, by_radius, Turn(), epochs=0)
    (turn,) = trainer.model.symmetries()
    weights = dict(trainer.network.named_parameters())
    assert room._reaction(trainer, turn, weights) == pytest.approx(1.0)
    tenfold = {name: 10 * value for name, value in weights.items()}
    assert room._reaction(trainer, turn, tenfold) == pytest.approx(1.0)


# --- settled --------------------------------------------------------------------------------------

FLOORS = {"turn": 5.0}


def history_of(amounts, evidences=None) -> list[dict[str, Any]]:
    evidences = [-0.5] * len(amounts) if evidences is None else evidences
    return [
        {"ranges": {"turn": amount, "free": 1.0}, "log_evidence_per_example": value}
        for amount, value in zip(amounts, evidences, strict=True)
    ]


STEADY = [90.0] * 20
HISTORIES = {
    "nothing yet": ([], None, False),
    "one epoch": ([90.0], None, True),
    "steady": (STEADY, None, True),
    "steady after a journey": ([4.0 * n for n in range(15)] + [60.0] * 5, None, True),
    "drifting": ([4.0 * n for n in range(20)], None, False),
    "drifting to nothing": ([80 - 4.0 * n for n in range(20)], None, False),
    "a sign is a convention": ([90.0] * 15 + [-90.0] * 5, None, True),
    "a tenth of itself": ([92.0] * 15 + [100.0] * 5, None, True),
    "more than a tenth": ([88.0] * 15 + [100.0] * 5, None, False),
    "below the floor": ([1.0] * 15 + [3.0] * 5, None, True),
    "evidence rises": (STEADY, [-0.9 + 0.02 * n for n in range(20)], False),
    "evidence rises slowly": (STEADY, [-0.9 + 0.01 * n for n in range(20)], True),
    "evidence rose before": (STEADY, [-0.9] * 10 + [-0.5] * 10, True),
    "evidence now and then": (STEADY, [None, -0.5] * 10, True),
    "evidence moves now and then": (STEADY, [None, -0.5, None, -0.7] * 5, False),
    "no evidence at the end": (STEADY, [-0.5] * 10 + [None] * 10, True),
    "NaN at the end": ([90.0] * 19 + [math.nan], None, False),
    "NaN a quarter before": ([90.0] * 14 + [math.nan] + [90.0] * 5, None, False),
    "evidence NaN": (STEADY, [-0.5] * 19 + [math.nan], False),
    "evidence NaN first": (STEADY, [-0.5] * 15 + [math.nan] + [-0.5] * 4, False),
}


@pytest.mark.parametrize(("amounts", "evidences", "settled"), HISTORIES.values(), ids=HISTORIES)
def test_settled(amounts, evidences, settled: bool) -> None:
    assert is_settled(history_of(amounts, evidences), FLOORS) is settled


def test_only_what_is_searched_for_must_settle() -> None:
    drifting = history_of([4.0 * n for n in range(20)])
    assert is_settled(drifting, {}) and is_settled(drifting, {"free": 1.0})
    assert not is_settled(drifting, {"free": 1.0, "turn": 5.0})
