"""Verdicts: the words as a table, and what they are on points whose symmetry is known."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from planar_problems import Radius, Turn, by_angle, by_first, by_radius, mirror, mlp, trainer_of
from torch import nn

from isotropy.checks import CallerError
from isotropy.evidence import verdict as room
from isotropy.evidence.refitting import RefitPlan
from isotropy.evidence.training import Trainer
from isotropy.evidence.verdict import Gain, Verdict, amount_of, is_whole, judge, word_for
from isotropy.networks.augmentations import Augmentation
from isotropy.networks.mixtures import augmentation_over
from isotropy.symmetry.finite_actions import Element, MapAction, PointPermutation, quarter_turns
from isotropy.symmetry.image_actions import affine

PLAN = RefitPlan(epochs=10, weight_rate=0.02, prior_rate=0.1)


# --- the words --------------------------------------------------------------------------------

SURE, DOUBTFUL, NOTHING, LOSS = (
    Gain(0.1, 0.01),
    Gain(0.02, 0.015),
    Gain(0.001, 0.0005),
    Gain(-0.1, 0.01),
)
WORDS = {
    "wanted, all of it": (SURE, 1.0, 1.0, True, "present"),
    "wanted, some of it": (SURE, 1.0, 1.0, False, "partial"),
    "wanted, learned by the weights": (SURE, 0.0, 1.0, True, "present"),
    "wanted although built in": (SURE, 0.0, 0.01, True, "already built in"),
    "wanted, other weights would not react": (SURE, 1.0, 0.01, True, "present"),
    "not larger than its error": (DOUBTFUL, 1.0, 1.0, True, "cannot tell"),
    "not larger than its error, built in": (DOUBTFUL, 0.01, 1.0, True, "already built in"),
    "no gain": (NOTHING, 1.0, 1.0, True, "absent"),
    "no gain, built in": (NOTHING, 0.01, 1.0, False, "already built in"),
    "a loss": (LOSS, 1.0, 1.0, True, "absent"),
    "a loss with a large error": (Gain(-0.01, 0.02), 1.0, 1.0, True, "cannot tell"),
    "a gain of no consequence, known well": (Gain(0.004, 0.0001), 1.0, 1.0, True, "absent"),
    "never learned": (None, 1.0, 1.0, False, "absent"),
    "never learned, built in": (None, 0.01, 1.0, False, "already built in"),
}


@pytest.mark.parametrize(
    ("gain", "reaction", "shuffled", "whole", "word"), WORDS.values(), ids=WORDS
)
def test_words(gain: Gain | None, reaction: float, shuffled: float, whole: bool, word: str) -> None:
    assert word_for(gain, reaction, shuffled, whole) == word


def test_a_gain_cannot_be_certain_and_negligible() -> None:
    for mean in torch.linspace(-0.05, 0.05, 41).tolist():
        for error in (0.0, 1e-3, 4e-3, 0.02):
            gain = Gain(mean, error)
            assert not (gain.is_certain and mean <= 0)
            assert not (gain.is_certain and mean < 2 * error)
            assert not (gain.is_negligible and mean > 2 * room.LEAST_GAIN)


def symmetries_of(*actions, start) -> tuple[Augmentation, dict]:
    augmentation = augmentation_over(list(actions), start=start, dtype=torch.float64)
    return augmentation, {each.name: each for each in augmentation.symmetries()}


WHOLES = {
    "a whole turn": (affine(("rotation",)), "rotation", 180.0, True),
    "nearly": (affine(("rotation",)), "rotation", 163.0, True),
    "not quite": (affine(("rotation",)), "rotation", 161.0, False),
    "a large factor": (affine(("scale_x",)), "scale_x", 0.41, True),
    "a small factor": (affine(("scale_x",)), "scale_x", 0.39, False),
    "a fifth of the width": (affine(("translation_x",)), "translation_x", 0.21, True),
    "less": (affine(("translation_x",)), "translation_x", 0.19, False),
    "half of the time": (mirror(0), "mirror_x", 0.5, True),
    "a third of the time": (mirror(0), "mirror_x", 0.33, False),
    "one of four": (quarter_turns(), "turn_90", 0.24, True),
    "one of four, rarely": (quarter_turns(), "turn_90", 0.2, False),
    "always": (PointPermutation(), "point_permutation", 1.0, True),
    "half of what can be": (PointPermutation(), "point_permutation", 0.5, False),
}


@pytest.mark.parametrize(("action", "name", "amount", "whole"), WHOLES.values(), ids=WHOLES)
def test_is_whole(action, name: str, amount: float, whole: bool) -> None:
    augmentation, symmetries = symmetries_of(action, start={name: amount})
    assert is_whole(symmetries[name], augmentation) is whole


def test_amounts_are_coordinates_or_probabilities() -> None:
    augmentation, symmetries = symmetries_of(
        affine(("rotation",)), mirror(0), start={"rotation": 90.0, "mirror_x": 0.3}
    )
    assert amount_of(symmetries["rotation"], augmentation) == pytest.approx(torch.pi / 2)
    assert amount_of(symmetries["mirror_x"], augmentation) == pytest.approx(0.3)


# --- on points --------------------------------------------------------------------------------


def verdicts_of(trainer: Trainer, **options) -> dict[str, Verdict]:
    found = judge(trainer, plan=PLAN, **options)
    assert json.loads(json.dumps([each.as_dict() for each in found], allow_nan=False))
    return {each.name: each for each in found}


def test_rotation_of_labels_by_radius_is_present() -> None:
    trainer = trainer_of(mlp, by_radius, Turn(), ranges={"turn": 180.0})
    before = copy.deepcopy(trainer.model.state_dict())
    turn = verdicts_of(trainer, repeats=3)["turn"]
    assert turn.verdict == "present" and turn.group == ()
    assert turn.gain is not None and turn.gain > 0.03
    assert turn.error is not None and 0 < turn.error < turn.gain / 2
    after = trainer.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_network_of_the_radius_has_it_built_in() -> None:
    """Averaging changes nothing, so that the gain is exactly none, and the outputs do not move."""
    trainer = trainer_of(Radius, by_radius, Turn(), ranges={"turn": 180.0}, epochs=10)
    turn = verdicts_of(trainer)["turn"]
    assert turn.verdict == "already built in"
    assert turn.gain == pytest.approx(0.0, abs=1e-9)
    assert turn.reaction == pytest.approx(0.0, abs=1e-12)
    assert turn.shuffled == pytest.approx(0.0, abs=1e-12)


def test_rotation_of_labels_by_angle_is_absent() -> None:
    turn = verdicts_of(trainer_of(lambda: mlp(4), by_angle, Turn(), ranges={"turn": 90.0}))["turn"]
    assert turn.verdict == "absent"
    assert turn.gain is not None and turn.gain < -0.05


def test_what_rests_at_the_floor_is_not_refitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a tenth of a radian, or one time in twenty, a symmetry was not learned."""
    trainer = trainer_of(
        mlp, by_first, [Turn(), mirror(0)], ranges={"turn": 5.0, "mirror_x": 0.04}, epochs=2
    )
    monkeypatch.setattr(room, "refit", lambda *a, **k: pytest.fail("nothing to refit"))
    found = verdicts_of(trainer)
    assert {each.verdict for each in found.values()} == {"absent"}
    assert all(each.gain is None and each.error is None for each in found.values())


def test_mirrors_are_told_apart() -> None:
    """Labels by the sign of x: a mirror of y is present, one of x absent."""
    trainer = trainer_of(
        mlp, by_first, [mirror(0), mirror(1)], ranges={"mirror_x": 0.2, "mirror_y": 0.5}
    )
    found = verdicts_of(trainer)
    assert found["mirror_x"].verdict == "absent" and found["mirror_y"].verdict == "present"
    assert found["mirror_x"].gain < 0 < found["mirror_y"].gain


# --- standing in for each other ----------------------------------------------------------------


def same_mirror(name: str) -> MapAction:
    move = mirror(0)
    return MapAction(name, {Element(name): lambda points: move.move(0, points)})


def test_two_names_for_one_mirror_have_a_gain_together() -> None:
    """With either at ½ the other adds nothing at all; without both, the symmetry is gone."""
    actions = [same_mirror("first"), same_mirror("second")]
    trainer = trainer_of(mlp, by_radius, actions, ranges={"first": 0.5, "second": 0.5})
    told: list[str] = []
    found = verdicts_of(trainer, progress=told.append)
    judged = room._Judge(trainer, PLAN, 2, None)
    for name in ("first", "second"):
        assert judged.gain([name]).mean == pytest.approx(0.0, abs=1e-9)
        assert found[name].verdict == "present"
        assert found[name].gain == pytest.approx(judged.gain(["first", "second"]).mean)
        assert found[name].gain > 0.02
    assert found["first"].group == ("second",) and found["second"].group == ("first",)
    assert told == [
        "refitting with everything that was learned",
        "refitting without first",
        "refitting without second",
        "refitting without first, second",
    ]


def test_two_generators_of_one_rotation_have_a_gain_together() -> None:
    trainer = trainer_of(
        mlp, by_radius, Turn("turn", "spin"), ranges={"turn": 180.0, "spin": 180.0}
    )
    found = verdicts_of(trainer, repeats=3)
    assert {each.verdict for each in found.values()} == {"present"}
    assert found["turn"].gain == found["spin"].gain > 0.03
    assert found["turn"].group == ("spin",) and found["spin"].group == ("turn",)


# --- what is compared ---------------------------------------------------------------------------


def test_only_refits_with_the_same_noise_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences are those of `EvidenceValue`, which refuses what differs besides the model."""
    trainer = trainer_of(mlp, by_radius, Turn(), ranges={"turn": 180.0}, epochs=2)
    whole = room.refit
    seeds: list[int] = []

    def other_seeds(trainer, state, plan, *, seed):
        seeds.append(seed)
        return whole(trainer, state, plan, seed=len(seeds))

    monkeypatch.setattr(room, "refit", other_seeds)
    with pytest.raises(CallerError, match="evidences differ in noise seed"):
        judge(trainer, plan=replace(PLAN, epochs=1))
    assert len(seeds) == 4 and seeds[:2] == seeds[2:] and seeds[0] != seeds[1]


def test_at_least_two_seeds() -> None:
    """One alone has no standard error."""
    trainer = trainer_of(mlp, by_radius, Turn(), ranges={"turn": 180.0}, epochs=2)
    (turn,) = judge(trainer, plan=replace(PLAN, epochs=1), repeats=1)
    assert turn.error is not None and turn.error > 0


def test_reaction_is_relative_to_the_inputs() -> None:
    """A linear network reacts to a rotation as much as its inputs do; one of y alone, to pushes
    along x, not at all."""

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(inputs * torch.tensor([0.0, 1.0], dtype=inputs.dtype))

    def identity() -> nn.Module:
        layer = nn.Linear(2, 2)
        nn.init.eye_(layer.weight)
        return layer

    plan = replace(PLAN, epochs=1)
    plain = trainer_of(identity, by_radius, Turn(), epochs=0)
    assert room._Judge(plain, plan, 2, None).verdicts()[0].reaction == pytest.approx(1.0)
    blind = trainer_of(Second, by_radius, [mirror(0), mirror(1)], epochs=0)
    first, second = room._Judge(blind, plan, 2, None).verdicts()
    assert first.reaction == first.shuffled == 0.0 and first.verdict == "already built in"
    assert second.reaction > 0.5 and second.verdict == "absent"
