"""Records of searches, surfaces of evidence, and small runs of which a search finds all turns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from evidence.planar_problems import CONFIG, Turn, by_radius, mirror, mlp, points
from learn_runs import outcome
from torch import nn

import isotropy
from isotropy.workflows import learning

PROFILE = {0.0: -100.0, 45.0: -80.0, 90.0: -60.0, 135.0: -70.0, 180.0: -50.0}


def symmetry(amount: float, kind: str = "periodic", whole: float = 162.0) -> dict[str, Any]:
    """What a search keeps of one symmetry."""
    profile = [{"amount": each, "log_predictive": value} for each, value in PROFILE.items()]
    return {
        "amount": amount,
        "interval": [0.8 * amount, amount],
        "kind": kind,
        "floor": 5.7 if kind == "periodic" else 0.1,
        "whole": whole,
        "gain_nats": 50.0,
        "gain_interval": [30.0, 70.0],
        "profile": profile,
    }


EXAMPLES = 200


def record(symmetries: dict[str, dict[str, Any]], **entries: Any) -> dict[str, Any]:
    amounts = {name: own["amount"] for name, own in symmetries.items()}
    return {"nothing_learned": False, "amounts": amounts, "symmetries": symmetries,
            "examples": EXAMPLES, **entries}  # fmt: skip


Surface = Callable[[Mapping[str, float]], float]


def peaked(best: float) -> Surface:
    """Largest at one range: 50 nats are lost for a factor e in either direction; -1e4 without."""

    def surface(start: Mapping[str, float]) -> float:
        amount = start.get("rotation", start.get("tilt", 0.0))
        return -50 * math.log(amount / best) ** 2 if amount else -1e4

    return surface


EPOCHS = 3
SETTINGS = replace(CONFIG, epochs=EPOCHS, samples=4, test_samples=4)
WHOLE_TURN, HALF_TURN = {"turn": 180.0}, {"turn": 90.0}


class Stopped(Exception):
    """A run was stopped."""


def stop(*arguments: Any, **named: Any) -> None:
    raise Stopped


def learned(*, dropout: float = 0.0, **options: Any) -> isotropy.LearnResult:
    """Points of the plane, labelled by their radius, of which the search finds all turns."""
    torch.manual_seed(0)
    network = nn.Sequential(*mlp(), nn.Dropout(dropout)).double()
    train, test = points(60), points(30, seed=1)
    given = {"actions": [Turn(), mirror(0)], "config": SETTINGS, "verdicts": 2, **options}
    return isotropy.learn(network, (train, by_radius(train)), (test, by_radius(test)), **given)


def starts_of(told: list[learning.LearnProgress]) -> list[Any]:
    """The amounts that each epoch had."""
    return [each.config.start for each in told]


def numbers(folder: Path) -> list[Any]:
    """All numbers of a run's folder but times."""
    result, rows = outcome(folder)
    config, search = (
        json.loads((folder / name).read_text()) for name in ("config.json", "search.json")
    )
    assert result["search"] == search, "the result holds the search as it was kept"
    for each in (search, result["search"]):
        assert each.pop("seconds") >= 0
    return [result, rows, config, search]
