"""What the search before a run says: nothing learned, what training adds, where data disagree.

A record's `search` holds, for every symmetry, the log predictive density L of trials at some
amounts: each training example is predicted from all others. For one that was taken it holds L, the
log evidence and the held-out log density at 0, ½, 1 and 2 times its amount. All are of the network
linearised at its start; the record's own `log_evidence` and `null_log_evidence` are of the trained
network. A sentence says so where another of these amounts is preferred

    by held-out data, not by L:       held-out log density per example there exceeds that at the
                                      learned amount by more than `HELD_OUT_NATS`, and L there is
                                      lower by more than `EVIDENCE_NATS`
    by the evidence, not by held-out  log evidence is largest there and exceeds that at the learned
    data:                             amount by more than `EVIDENCE_NATS`, and held-out log density
                                      per example there is lower by more than `HELD_OUT_NATS`

All functions are pure and take what `isotropy learn --json` printed; a record without a search
gives nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.report.units import signed_amount
from isotropy.report.wording import (
    finite,
    joined,
    mapping_of,
    number_text,
    objects_of,
    spoken_name,
)

HELD_OUT_NATS = 0.02
"""Nats per held-out example by which amounts must differ."""
EVIDENCE_NATS = 3.0
"""Nats, over all examples of the search, by which L or the evidence must differ: log 20."""
LEARNED_NATS = math.log(20)
"""Nats by which the evidence of a trained network that predicts exceeds that of a constant."""


@dataclass(frozen=True)
class HeldOutPoint:
    """How the linearised network predicts at one amount of a symmetry.

    amount:              in the symmetry's unit
    share:               of the learned amount; 1 at the amount itself
    log_predictive:      L, nats over all examples of the search
    log_evidence:        nats, over the same examples
    test_log_likelihood: log density, nats per held-out example
    """

    amount: float
    share: float
    log_predictive: float
    log_evidence: float
    test_log_likelihood: float


def searched_by_name(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What the search says of each symmetry; empty without a search."""
    found = mapping_of(mapping_of(result.get("search")).get("symmetries"))
    return {str(name): mapping_of(own) for name, own in found.items()}


def is_nothing_learned(result: Mapping[str, Any]) -> bool:
    """Whether a constant does as well as the linearised network, so that nothing is claimed."""
    return mapping_of(result.get("search")).get("nothing_learned") is True


def null_words(result: Mapping[str, Any]) -> str:
    """The trained network's null model: class frequencies, or in a regression a constant."""
    return "class frequencies alone" if finite(result.get("noise")) is None else "a constant"


def only_training_learned(result: Mapping[str, Any]) -> bool:
    """Whether the trained network does better than a constant where the search learned nothing."""
    evidence, null = finite(result.get("log_evidence")), finite(result.get("null_log_evidence"))
    if evidence is None or null is None:
        return False
    return is_nothing_learned(result) and evidence > null + LEARNED_NATS


def nothing_learned_sentence(result: Mapping[str, Any]) -> str:
    """That the linearised network predicts no better than a constant, with both densities.

    Where the trained network does better, the search cannot tell, and the sentence says what to do.
    """
    search = mapping_of(result.get("search"))
    density, null = finite(search.get("log_predictive")), finite(search.get("null_log_predictive"))
    examples = finite(search.get("examples"))
    is_part = examples is not None and examples != finite(result.get("train_examples"))
    part = f" over the {number_text(examples, 0)} examples of the search" if is_part else ""
    if only_training_learned(result):
        values = ""
        if density is not None and null is not None:
            values = (
                f" (log predictive density {number_text(density, 1)} nats, of a constant "
                f"{number_text(null, 1)}{part})"
            )
        more = "let the search take more examples (--set search_examples=N)"
        return (
            "The search cannot tell: the network linearised at its start predicts no better than a "
            f"constant{values}, although the trained network does, so no symmetry is claimed; "
            f"{more if is_part else 'give more examples'}, or learn amounts by gradient with "
            "--no-search."
        )
    begin = (
        "Nothing was learned by the search: the log predictive density of the network linearised "
        "at its start"
    )
    other, end = "that of a constant", "no symmetry is claimed."
    if density is None or null is None:
        return f"{begin} does not exceed {other}; {end}"
    value = f"{begin}, {number_text(density, 1)} nats{part},"
    if density <= null:
        return f"{value} does not exceed {other}, {number_text(null, 1)}; {end}"
    return f"{value} exceeds {other}, {number_text(null, 1)}, by less than 3 nats; {end}"


def held_out_points(own: Mapping[str, Any]) -> list[HeldOutPoint]:
    """The search beside held-out data for one symmetry that was taken; else empty.

    own: what the search says of the symmetry; rows with a number that is missing are left out
    """
    learned = finite(own.get("amount"))
    points: list[HeldOutPoint] = []
    for row in objects_of(own.get("beside_held_out")):
        names = ("amount", "log_predictive", "log_evidence", "test_log_likelihood")
        numbers = [number for name in names if (number := finite(row.get(name))) is not None]
        if learned and len(numbers) == len(names):
            amount, density, evidence, held_out = numbers
            points.append(HeldOutPoint(amount, amount / learned, density, evidence, held_out))
    return points


def disagreement(points: list[HeldOutPoint]) -> tuple[HeldOutPoint, HeldOutPoint] | None:
    """The learned amount and the one that held-out data prefer to it against L."""
    learned = _learned(points)
    if learned is None:
        return None
    better = [
        point
        for point in points
        if point.test_log_likelihood > learned.test_log_likelihood + HELD_OUT_NATS
        and point.log_predictive < learned.log_predictive - EVIDENCE_NATS
    ]
    if not better:
        return None
    return learned, max(better, key=lambda point: point.test_log_likelihood)


def wrong_evidence(points: list[HeldOutPoint]) -> tuple[HeldOutPoint, HeldOutPoint] | None:
    """The learned amount and the one that the evidence prefers to it against held-out data."""
    learned = _learned(points)
    if learned is None:
        return None
    other = max(points, key=lambda point: point.log_evidence)
    is_preferred = other.log_evidence > learned.log_evidence + EVIDENCE_NATS
    is_worse = other.test_log_likelihood < learned.test_log_likelihood - HELD_OUT_NATS
    return (learned, other) if is_preferred and is_worse else None


def _learned(points: list[HeldOutPoint]) -> HeldOutPoint | None:
    """The point at the learned amount, if it is among these."""
    return next((point for point in points if abs(point.share - 1) <= 1e-6), None)


def disagreement_sentences(result: Mapping[str, Any]) -> list[str]:
    """A sentence for every symmetry on which L, or the evidence, disagrees with held-out data."""
    units = {str(s["name"]): str(s.get("unit") or "") for s in result.get("symmetries") or []}
    sentences: list[str] = []
    for name, own in searched_by_name(result).items():
        points, unit = held_out_points(own), units.get(name, "")
        if pair := disagreement(points):
            learned, other = pair
            there, here = (signed_amount(point.amount, unit) for point in (other, learned))
            lower = number_text(learned.log_predictive - other.log_predictive, 1)
            sentences.append(
                f"The search and held-out data disagree on {spoken_name(name)}: of the linearised "
                f"network, the held-out log density per example is {_held_out(other)} at {there} "
                f"and {_held_out(learned)} at {here}, while the log predictive density of training "
                f"examples left out is lower at {there} by {lower} nats."
            )
        if pair := wrong_evidence(points):
            learned, other = pair
            there, here = (signed_amount(point.amount, unit) for point in (other, learned))
            higher = number_text(other.log_evidence - learned.log_evidence, 1)
            sentences.append(
                f"On {spoken_name(name)} the evidence of the linearised network prefers {there} to "
                f"the learned {here} by {higher} nats, and held-out data do not: their log density "
                f"per example is {_held_out(other)} at {there} and {_held_out(learned)} at {here}."
            )
    return sentences


def trained_sentences(result: Mapping[str, Any]) -> list[str]:
    """What training with rivals of the amounts that were found came to; nothing without rivals.

    Rivals are half of the periods that were found whole, no symmetry at all, and all but one.
    """
    search = mapping_of(result.get("search"))
    trained = objects_of(search.get("trained"))
    rows = [
        (mapping_of(row.get("amounts")), evidence)
        for row in trained
        if (evidence := finite(row.get("log_evidence"))) is not None
    ]
    if not rows or finite(trained[0].get("log_evidence")) is None:
        return []
    units = {str(s["name"]): str(s.get("unit") or "") for s in result.get("symmetries") or []}
    kept, (before, first), *rivals = mapping_of(search.get("amounts")), *rows
    sentences: list[str] = []
    for amounts, evidence in rivals:
        halves = {
            str(name): amount
            for name in amounts
            if (amount := finite(amounts[name])) and amount != before.get(name)
        }
        if halves:
            phrases = joined(
                f"{spoken_name(name)} by up to {signed_amount(amount, units.get(name, ''))}"
                for name, amount in halves.items()
            )
            is_needed = kept == before
            end = "all of it is needed" if is_needed else "no more is needed than half"
            sentences.append(
                f"Trained with half the period, {phrases}, the network has a log evidence of "
                f"{number_text(evidence, 1)} nats, with the whole of it {number_text(first, 1)}: "
                f"{end}."
            )
            if not is_needed:
                before, first = amounts, evidence
        elif not any(amounts.values()):
            lost = [spoken_name(str(n)) for n in before if before[n] and not kept.get(n)]
            end = f"{joined(lost)} left out, not confirmed by training" if lost else "confirmed"
            sentences.append(
                f"Trained without any symmetry the network has a log evidence of "
                f"{number_text(evidence, 1)} nats, with what the search found "
                f"{number_text(first, 1)}: {end}."
            )
    return sentences


def _held_out(point: HeldOutPoint) -> str:
    return number_text(point.test_log_likelihood, 3)
