"""The report of `isotropy story`: what was found, what was built, and what it is worth.

The page says, in this order: the finding in a sentence, the key numbers, the learned ranges with
their intervals and verdicts, what was built and why, a table of the networks with test error,
measured errors and certified error, what these numbers mean, and the steps with their folders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotropy.report.page import (
    Cell,
    KeyNumber,
    Table,
    named,
    number,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.record import Head, Symmetry, Verdict, read
from isotropy.report.wording import (
    duration_text,
    error_text,
    interval_text,
    joined,
    nats_text,
    number_text,
    percent_text,
    short_amount,
    spoken_name,
    title_of,
)

NETWORKS = ("plain", "augmented", "averaged", "built", "relaxed")
"""In the order of the report."""
ABOUT = {
    "plain": "no symmetry",
    "augmented": "trained on images transformed by the learned ranges, predicts them as they are",
    "averaged": "outputs averaged over the learned ranges, in training too",
    "built": "hard: group convolutions, exactly invariant to the group",
    "relaxed": "soft: group convolutions and free ones in one layer, with a prior on each",
}
COMMANDS = {
    "learned": "isotropy measure --model {}",
    "plain": "isotropy measure --model {}",
    "augmented": "isotropy measure --model {}",
    "averaged": "isotropy measure --model {}",
    "built": "isotropy measure --model {}",
    "relaxed": "isotropy measure --model {}",
    "certified": "isotropy verify {}",
}
"""What can be done with the folder of a step alone."""
CLEAR = 2.0
"""Standard errors from which on a difference of two test errors is told."""


@dataclass(frozen=True)
class Measured:
    """The Lie derivative of a network along one generator, or its error under elements."""

    name: str
    unit: str
    error: float
    standard_error: float


@dataclass(frozen=True)
class CertifiedError:
    """What a certificate says."""

    bound: float
    train_error: float
    test_error: float
    n: float
    dimension: float
    bits: float
    num_weights: float


@dataclass(frozen=True)
class Network:
    """What was scored, measured and certified of one network."""

    name: str
    num_parameters: float
    test_error: float
    test_standard_error: float
    log_evidence: float
    lie_derivatives: list[Measured]
    elements: Measured
    certified: CertifiedError
    seconds: float


@dataclass(frozen=True)
class Built:
    """How the group was built in."""

    sentence: str


@dataclass(frozen=True)
class Step:
    """One step of the story."""

    name: str
    folder: str
    seconds: float


@dataclass(frozen=True)
class Told(Head):
    """`isotropy story`."""

    data: str
    train_examples: float
    test_examples: float
    network: str
    epochs: float
    found: list[Symmetry]
    finding: list[str]
    verdicts: list[Verdict]
    symmetries: list[Symmetry]
    group: str
    group_from: str
    built: Built
    networks: list[Network]
    delta: float
    steps: list[Step]

    def of(self, name: str) -> Network | None:
        """The network of this name, where it was trained."""
        return next((each for each in self.networks if each.name == name), None)


# --- sentences ------------------------------------------------------------------------------------


def story_sentences(result: Mapping[str, Any] | Told) -> list[str]:
    """The story in a sentence, then what was found, built and certified in more words."""
    told = read(Told, result)
    best = told.of("built") or told.of("averaged")
    plain = told.of("plain")
    opening = told.finding[0].rstrip(".") if told.finding else "Nothing was found"
    if plain is None or best is None:
        return [f"{opening}: the plain network is all that is justified.", *told.finding[1:]]
    what = f"with {told.group} built in" if told.group else "averaged over that range"
    headline = (
        f"{opening}; {what}, the network errs on {percent_text(best.test_error)} of the test "
        f"images, without it on {percent_text(plain.test_error)}."
    )
    sentences = [headline, *told.finding[1:], *_built_sentences(told)]
    verdict = _paid(plain, best)
    sentences += [verdict] if verdict else []
    bounds = [each for each in told.networks if math.isfinite(each.certified.bound)]
    if bounds:
        amounts = joined([f"{each.name} {percent_text(each.certified.bound)}" for each in bounds])
        confidence = percent_text(1 - told.delta, 0)
        sentences.append(
            f"Certified error on new data, at most, with {confidence} confidence each: {amounts}."
        )
    return sentences


def _built_sentences(told: Told) -> list[str]:
    if told.group and told.group_from == "given":
        return [f"{told.group} was asked for, whatever was found. {told.built.sentence}"]
    if told.group:
        return [told.built.sentence]
    amounts = joined([f"{spoken_name(each.name)} {short_amount(each)}" for each in told.found])
    return [
        f"No group of the grid is justified by {amounts}, so nothing was built hard or soft: the "
        "average over the learned ranges is what can be built."
    ]


def _paid(plain: Network, best: Network) -> str:
    """Where the symmetry costs accuracy, or changes nothing that could be told."""
    spread = math.hypot(plain.test_standard_error, best.test_standard_error)
    gain = plain.test_error - best.test_error
    if gain < -CLEAR * spread:
        return (
            f"The {best.name} network errs more than the plain one: the symmetry is not free here."
        )
    if gain < CLEAR * spread:
        return (
            f"The test errors of the {best.name} and the plain network differ by less than two "
            "standard errors."
        )
    return ""


# --- the page -------------------------------------------------------------------------------------


def story_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy story --json`; config: nested settings beside it
    """
    told = read(Told, result)
    return render_page(
        "story",
        told,
        story_sentences(told),
        settings_groups("story", result, config, ("data", "network")),
        data_name=told.data or "unnamed data",
        key_numbers=key_numbers(told),
        learned=_learned_table(told),
        networks=_network_table(told),
        measured=_measured_table(told),
        certified=_certified_table(told),
        group=told.group,
        examples=number_text(told.train_examples, 0),
        epochs=number_text(told.epochs, 0),
        confidence=percent_text(1 - told.delta, 0),
        steps=_step_table(told.steps),
    )


def key_numbers(told: Told) -> list[KeyNumber]:
    """Learned range, what was built, test and certified errors with and without it, time."""
    plain, best = told.of("plain"), told.of("built") or told.of("averaged")
    first = told.found[0] if told.found else None
    learned = "nothing" if first is None else short_amount(first)
    about = "" if first is None else spoken_name(first.name)
    numbers = [
        KeyNumber("Learned", learned, about),
        KeyNumber(
            "Built",
            told.group or "no group",
            {"given": "as asked for", "found": "from what was found"}.get(
                told.group_from, "none is justified"
            ),
        ),
    ]
    if plain is not None and best is not None:
        numbers += [
            KeyNumber(
                "Test error",
                percent_text(best.test_error),
                f"{best.name}; plain {percent_text(plain.test_error)}",
            ),
            KeyNumber(
                "Certified error",
                percent_text(best.certified.bound),
                f"{best.name}; plain {percent_text(plain.certified.bound)}",
            ),
        ]
    return [*numbers, time_number(told)]


def _learned_table(told: Told) -> Table:
    verdicts = {each.name: each for each in told.verdicts}
    rows = []
    for each in told.symmetries:
        judged = verdicts.get(each.name)
        gain = "" if judged is None else nats_text(judged.gain_nats)
        rows.append(
            [
                named(title_of(each.name), "" if judged is None else judged.verdict),
                number(
                    short_amount(each),
                    interval_text(each.interval, each.unit) if each.interval else "",
                ),
                number(gain),
            ]
        )
    large = {n: "large" for n, each in enumerate(told.symmetries) if each in told.found}
    return Table(("Transformation", "Learned, 95 % interval", "Gain"), rows, large)


def _network_table(told: Told) -> Table:
    rows = [
        [
            named(each.name, ABOUT.get(each.name, "")),
            number(number_text(each.num_parameters, 0)),
            number(
                percent_text(1 - each.test_error), f"± {percent_text(each.test_standard_error)}"
            ),
            number(
                percent_text(each.certified.bound) if math.isfinite(each.certified.bound) else "–"
            ),
        ]
        for each in told.networks
    ]
    titles = ("Network", "Weights", "Test accuracy", "Certified error, at most")
    return Table(titles, rows)


def _measured_table(told: Told) -> Table:
    names = [each.name for each in told.networks[0].lie_derivatives] if told.networks else []
    rows = []
    for each in told.networks:
        cells = [named(each.name)]
        cells += [number(error_text(own.error, own.standard_error)) for own in each.lie_derivatives]
        if told.group:
            cells.append(number(error_text(each.elements.error, each.elements.standard_error)))
        rows.append(cells)
    titles = ["Network", *(title_of(name) for name in names)]
    return Table([*titles, *([f"Elements of {told.group}"] if told.group else [])], rows)


def _certified_table(told: Told) -> Table:
    rows = [
        [
            named(each.name),
            number(percent_text(each.certified.bound)),
            number(percent_text(each.certified.train_error)),
            number(percent_text(each.certified.test_error)),
            number(number_text(each.certified.bits, 0)),
            number(number_text(each.certified.num_weights, 0)),
        ]
        for each in told.networks
        if math.isfinite(each.certified.bound)
    ]
    titles = ("Network", "Certified error", "Training error", "Test error", "Bits", "Weights")
    return Table(titles, rows)


def _step_table(steps: Sequence[Step]) -> Table:
    rows = []
    for each in steps:
        command = COMMANDS.get(each.name.partition("-")[0], "")
        rows.append(
            [
                named(each.name),
                number(duration_text(each.seconds)),
                Cell(command.format(each.folder)),
            ]
        )
    return Table(("Step", "Time", "To take it alone"), rows, style="dense")
