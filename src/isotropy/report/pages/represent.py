"""The report of `isotropy represent`: what the code ignores, and whether it tells entities apart.

The page says, in this order: how many held-out entities are found by their code, distances within
and between entities, what else the code is blind to, the worst neighbours, the course of training,
what the numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.report.canvas import ACCENT, MUTED, Drawing, canvas, name_ends, set_value_axis
from isotropy.report.figures import Curve, CurvePanel, curve_drawings
from isotropy.report.page import (
    KeyNumber,
    Table,
    named,
    number,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.record import Head, read
from isotropy.report.wording import (
    error_text,
    known_text,
    number_text,
    percent_text,
    power_text,
    title_of,
)

BLIND = 0.05
"""A change of the code, of the distance between entities, below which two things are one to it."""


@dataclass(frozen=True)
class Neighbour:
    """An entity, that of the nearest other sample, and distances to its own and to that."""

    entity: str
    nearest: str
    own_distance: float
    nearest_distance: float


@dataclass(frozen=True)
class Steps:
    """A row of the history."""

    epoch: float
    invariance: float
    reconstruction: float
    retrieval: float


@dataclass(frozen=True)
class Represented(Head):
    """`isotropy represent`.

    distances: shares in bins (`log_edges`) of log₁₀ (distance / mean distance between entities)
    """

    data: str
    steps: float
    judged_entities: float
    retrieval: float
    retrieval_raw: float
    auc: float
    within_over_between: float
    reconstruction_mse: float
    loss_share: float
    over_invariance: dict[str, float]
    classes_kept: dict[str, float]
    distances: dict[str, list[float]]
    worst: list[Neighbour]
    permutations: list[list[float]]
    permutation_changes: dict[str, float]
    epochs: list[Steps]


def represent_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page; result: as printed by `--json`, config: beside it."""
    told = read(Represented, result)
    rows = [
        [named(each.entity), named(each.nearest), number(error_text(each.own_distance)),
         number(error_text(each.nearest_distance))]
        for each in told.worst
    ]  # fmt: skip
    titles = ("Entity", "Nearest other", "To its own other sample", "To the nearest other")
    changes = [
        [named(title_of(name)), number(percent_text(change))]
        for name, change in told.over_invariance.items()
    ]
    return render_page(
        "represent",
        told,
        represent_sentences(told),
        settings_groups("represent", result, config, ("network", "steps")),
        data_name=told.data or "unnamed data",
        key_numbers=key_numbers(told),
        distances=_distances_drawing(told.distances),
        worst=Table(titles, rows, style="dense") if rows else None,
        changes=Table(("Done to a sample", "Its code moves by"), changes, style="short"),
        courses=_courses(told),
    )


def represent_sentences(result: Mapping[str, Any] | Represented) -> list[str]:
    """What was found, and what the code does not tell apart."""
    told = read(Represented, result)
    if not math.isfinite(told.retrieval):
        return [
            "A code was learned; without held-out samples of the same entities nothing is known of "
            "what it tells apart."
        ]
    sentences = [
        f"The code finds {percent_text(told.retrieval)} of "
        f"{number_text(told.judged_entities, 0)} held-out entities; the data as they are find "
        f"{percent_text(told.retrieval_raw)}."
    ]
    if not math.isfinite(told.within_over_between):
        return [*sentences, "All codes are equal: nothing was learned. Try a lower rate."]
    sentences.append(
        f"Samples of an entity are {percent_text(told.within_over_between)} as far apart as "
        "different entities."
    )
    for name, change in told.over_invariance.items():
        if change < BLIND:
            sentences.append(
                f"The code is blind to {name}: it changes by {percent_text(change)} of the "
                "distance between entities. Equal codes do not mean the same entity."
            )
    if told.classes_kept:
        code, raw = (told.classes_kept.get(name, math.nan) for name in ("code", "raw"))
        words = "classes are not kept" if code < raw else "and keeps classes"
        sentences.append(
            f"Neighbours in the code share their class in {percent_text(code, 0)} of the cases, in "
            f"the data as they are in {percent_text(raw, 0)}: the code tells entities apart, "
            f"{words}."
        )
    if told.permutations:
        found, random = (told.permutation_changes.get(name) for name in ("found", "random"))
        count = len(told.permutations)
        sentences.append(
            f"The distortion is {f'one of {count} permutations' if count > 1 else 'a permutation'} "
            f"of the features. The code moves by {percent_text(found)} of the distance between "
            f"entities at most under these, and by {percent_text(random)} under random ones."
        )
    return sentences


def key_numbers(told: Represented) -> list[KeyNumber]:
    """Retrieval, distances, reconstruction and time."""
    entities = known_text(told.judged_entities, "{} held-out entities")
    return [
        KeyNumber("Found by the code", percent_text(told.retrieval), entities),
        KeyNumber(
            "Within over between",
            error_text(told.within_over_between),
            f"area under the curve {number_text(told.auc, 4)}",
        ),
        KeyNumber(
            "Reconstruction",
            error_text(told.reconstruction_mse),
            f"of the variance; invariance loss {percent_text(told.loss_share)} of a constant's",
        ),
        time_number(told, known_text(told.steps, "{} steps ")),
    ]


def _distances_drawing(distances: Mapping[str, list[float]]) -> Drawing | None:
    """Two histograms over the logarithm of distances."""
    edges = distances.get("log_edges", [])
    lines = {"within": ACCENT, "between": MUTED}
    shares = {name: distances.get(name, []) for name in lines}
    known = [*edges, *shares["within"], *shares["between"]]
    bins = {len(each) for each in shares.values()}
    if bins != {len(edges) - 1} or not all(map(math.isfinite, known)):
        return None
    label = "Shares of distances within entities and between them, over powers of ten"
    with canvas(640, 230, left=46, right=70, key="distances", label=label) as drawn:
        ends = []
        for name, colour in lines.items():
            percent = [100 * share for share in shares[name]]
            drawn.axes.stairs(percent, edges, color=colour, linewidth=1.6)
            ends.append((max(percent), name, colour))
        powers = range(math.ceil(edges[0]), math.floor(edges[-1]) + 1)
        drawn.axes.set_xticks(list(powers), [power_text(power) for power in powers])
        drawn.axes.set_xlim(edges[0], edges[-1])
        set_value_axis(drawn.axes, "%")
        name_ends(drawn.axes, ends)
    note = "relative to the mean distance between entities; smaller ones are in the first bin"
    return Drawing("Distances of codes, per cent in each bin", note, drawn.svg)


def _courses(told: Represented) -> list[Drawing]:
    """Logarithms of the losses, and retrieval, over the rows of the history."""
    places = [row.epoch for row in told.epochs]

    def logs(name: str) -> list[float]:
        return [math.log10(max(getattr(row, name), 1e-12)) for row in told.epochs]

    found = [100 * row.retrieval for row in told.epochs]
    parts = [
        Curve(places, logs("invariance"), "invariance"),
        Curve(places, logs("reconstruction"), "rebuilding", main=False),
    ]
    return curve_drawings(
        [
            CurvePanel("Held-out entities found", "per cent", [Curve(places, found)], percent=True),
            CurvePanel("Parts of the loss", "log₁₀ of the mean over an epoch of 100 steps", parts),
        ]
    )
