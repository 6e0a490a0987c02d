"""The report of `isotropy control`: returns over training, and how much of the symmetry is left.

The page says, in this order: what the policies gain, the curve with its interval, an episode in
pictures, how well the simulation keeps the maps, how soft each layer stayed, what numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotropy.report.canvas import ACCENT, BAND, MUTED, Drawing, canvas, set_value_axis
from isotropy.report.page import (
    KeyNumber,
    Table,
    named,
    number,
    picture_uri,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.record import Head, Interval, read
from isotropy.report.wording import error_text, known_text, number_text, percent_text

MODEL_WORDS = {
    "mlp": "without symmetry",
    "emlp": "with the symmetry built in",
    "rpp": "with a soft symmetry",
    "rpp-trivial": "with two matrices a layer and no symmetry",
}
SMALL_VIOLATION = 1e-6
"""Of a step's change: below it a map is said to be exact."""


@dataclass(frozen=True)
class CurvePoint:
    """Returns after so many steps: their mean over seeds, its interval, and each."""

    steps: float
    mean: float
    interval: Interval
    returns: list[float]


@dataclass(frozen=True)
class BrokenMap:
    """How much one step of the simulation breaks a map: of states, and of rewards."""

    map: str
    step: float
    reward: float


@dataclass(frozen=True)
class Controlled(Head):
    """`isotropy control`."""

    environment: str
    model: str
    group: str
    elements: float
    violation: float
    violations: list[BrokenMap]
    steps: float
    seeds: list[float]
    mean_return: float
    mean_return_interval: Interval
    area: float
    area_interval: Interval
    curve: list[CurvePoint]
    softness: dict[str, float]
    policy_error: float
    steps_per_second: float
    notes: list[str]


def control_page(
    result: Mapping[str, Any], config: Mapping[str, Any], pictures: np.ndarray | None = None
) -> str:
    """The report as the text of an HTML page; result: as printed by `--json`, config: beside it.

    pictures: of an episode, uint8 (frames, height, width, 3)
    """
    told = read(Controlled, result)
    maps = [
        [named(each.map), number(error_text(each.step)), number(error_text(each.reward))]
        for each in told.violations
    ]
    layers = [
        [named(name), number(percent_text(share, 2))] for name, share in told.softness.items()
    ]
    return render_page(
        "control",
        told,
        control_sentences(told),
        settings_groups("control", result, config, ("model", "steps", "seeds")),
        environment=told.environment or "an environment",
        key_numbers=key_numbers(told),
        curve=_curve_drawing(told),
        strip=[
            picture_uri(np.moveaxis(each, -1, 0) / 255, largest_side=each.shape[0])
            for each in ([] if pictures is None else pictures)
        ],
        maps=Table(("Map", "Of a step's change", "Of rewards"), maps, style="short"),
        layers=Table(("Layer", "Breaks the symmetry"), layers, style="short"),
    )


def control_sentences(result: Mapping[str, Any] | Controlled) -> list[str]:
    """What the policies gain, how sure that is, and what is left of the symmetry."""
    told = read(Controlled, result)
    words = MODEL_WORDS.get(told.model, told.model)
    seeds = len(told.seeds)
    sentences = [
        f"{told.environment}: policies {words} reach a return of "
        f"{number_text(told.mean_return, 0)} after {number_text(told.steps, 0)} steps"
        f"{_between(told.mean_return_interval)}, {seeds} seed{'' if seeds == 1 else 's'}."
    ]
    if seeds < 2:
        sentences.append("One seed says little: returns of other seeds may differ by as much.")
    if math.isfinite(told.policy_error):
        sentences.append(
            f"The mean action at a mirrored state differs from the mirrored action by "
            f"{percent_text(told.policy_error)} of its size."
        )
    if math.isfinite(told.violation):
        kept = (
            "The simulation keeps the maps exactly."
            if told.violation < SMALL_VIOLATION
            else f"A step of the simulation breaks the maps by {percent_text(told.violation)} of "
            "its change."
        )
        sentences.append(kept)
    return [*sentences, *(f"{note[:1].upper()}{note[1:]}." for note in told.notes if note)]


def _between(interval: tuple[float, ...]) -> str:
    if len(interval) < 2:
        return ""
    low, high = (number_text(each, 0) for each in interval)
    return f" (95 % interval {low} to {high})"


def key_numbers(told: Controlled) -> list[KeyNumber]:
    """The last return, the area, what is broken, and time."""
    return [
        KeyNumber(
            "Return at the end",
            number_text(told.mean_return, 0),
            _between(told.mean_return_interval).strip(" ()"),
        ),
        KeyNumber(
            "Mean over training",
            number_text(told.area, 0),
            _between(told.area_interval).strip(" ()"),
        ),
        KeyNumber(
            "Policy breaks the maps by", percent_text(told.policy_error), "of its mean action"
        ),
        time_number(told, known_text(told.steps_per_second, "{} steps a second, ")),
    ]


def _curve_drawing(told: Controlled) -> Drawing | None:
    """Returns of each seed, their mean, and its interval, over thousands of steps."""
    points = [each for each in told.curve if math.isfinite(each.steps + each.mean)]
    if not points:
        return None
    places = [each.steps / 1000 for each in points]
    label = (
        f"Returns over training: from {number_text(points[0].mean, 0)} to "
        f"{number_text(points[-1].mean, 0)}"
    )
    with canvas(640, 260, left=56, right=24, key="curve", label=label) as drawn:
        if all(len(each.interval) == 2 for each in points):
            low, high = zip(*(each.interval for each in points), strict=True)
            drawn.axes.fill_between(places, low, high, color=BAND, linewidth=0)
        seeds = min(len(each.returns) for each in points)
        for seed in range(seeds if seeds > 1 else 0):
            own = [each.returns[seed] for each in points]
            drawn.axes.plot(places, own, color=MUTED, linewidth=0.7)
        means = [each.mean for each in points]
        drawn.axes.plot(places, means, color=ACCENT, linewidth=1.8)
        drawn.axes.plot(places[-1:], means[-1:], "o", color=ACCENT, markersize=4.5, clip_on=False)
        set_value_axis(drawn.axes)
        set_value_axis(drawn.axes, horizontal=True, most_ticks=6)
    note = "over thousands of steps; the mean over seeds with its 95 % interval, and each seed"
    return Drawing("Return of an evaluation", note, drawn.svg)
