"""Objectives: what chooses the ranges of a run, what is averaged in training, how it is scored.

    objective          ranges               averaged in training    evidence
    evidence           by the evidence      outputs                 yes
    augerino           by the loss          outputs                 no
    fixed              given                outputs                 yes
    none               absent               –                       yes
    averaged-losses    given                losses                  no
    augerino-original  by the loss          losses, of one copy     no
    trivial-augment    torchvision's own    losses, of one copy     no

`laplace` is an older name of `evidence`, from when there was one kind of it (`EVIDENCES`).

The loss of averaged outputs is minus the log likelihood of one prediction, f̂; the average of
losses is ordinary augmentation, the likelihood of no single prediction, and has no evidence. There
the weights have a fixed decay in place of a learned prior. All are scored alike, outputs averaged
over `test_samples` copies. Two have a rule of their own besides: augerino-original averages
log-probabilities over 4 copies, trivial-augment predicts images as they are. (Averaged
log-probabilities, once they are normalised again, are those of averaged logits; only the number of
copies makes a difference.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Objective = Literal[
    "evidence",
    "laplace",
    "augerino",
    "fixed",
    "none",
    "averaged-losses",
    "augerino-original",
    "trivial-augment",
]

Combination = Literal["outputs", "log-probabilities"]
COMBINATIONS: tuple[Combination, ...] = ("outputs", "log-probabilities")


@dataclass(frozen=True)
class OwnScore:
    """A method's own way to predict: so many copies (0: the data as they are), combined how."""

    copies: int
    combination: Combination = "outputs"


@dataclass(frozen=True)
class Recipe:
    """What an objective does.

    ranges:   what they follow or where they are from
    averaged: over the copies, in the training loss
    evidence: there is a prior whose precision is learned, and an evidence; else a fixed decay
    samples:  copies in training where none are asked for; None: as many as the machine affords
    own:      how the method itself predicts, where that is not how all are scored
    """

    ranges: Literal["evidence", "loss", "given", "absent", "transform"]
    averaged: Literal["outputs", "losses"] = "outputs"
    evidence: bool = True
    samples: int | None = None
    own: OwnScore | None = None

    @property
    def learns(self) -> bool:
        """Whether ranges are learned at all."""
        return self.ranges in ("evidence", "loss")


RECIPES: dict[str, Recipe] = {
    "evidence": Recipe("evidence"),
    "augerino": Recipe("loss", evidence=False),
    "fixed": Recipe("given"),
    "none": Recipe("absent", samples=1),
    "averaged-losses": Recipe("given", averaged="losses", evidence=False),
    "augerino-original": Recipe(
        "loss",
        averaged="losses",
        evidence=False,
        samples=1,
        own=OwnScore(4, "log-probabilities"),
    ),
    "trivial-augment": Recipe(
        "transform", averaged="losses", evidence=False, samples=1, own=OwnScore(0)
    ),
}

OBJECTIVES = tuple(RECIPES)
OLDER_NAMES = {"laplace": "evidence"}
"""Of objectives; settings have the name of today."""


def objectives_with(ranges: str) -> str:
    """The objectives whose ranges are of this kind, as words of a sentence."""
    return " and ".join(name for name, recipe in RECIPES.items() if recipe.ranges == ranges)
