"""What the search before a run says: nothing learned, and evidence against held-out data.

A record's `search` holds, for every symmetry, log evidences of trials at some amounts, and for one
that was taken the evidence and the held-out log density at 0, ½, 1 and 2 times its amount. All are
of the network linearised at its start; the record's own `log_evidence` and `null_log_evidence` are
of the trained network. Evidence and held-out data disagree where held-out data prefer another of
these amounts and the evidence does not:

    held-out log density per example there exceeds that at the learned amount by more
    than `HELD_OUT_NATS`, and the log evidence there is lower by more than `EVIDENCE_NATS`

All functions are pure and take what `isotropy learn --json` printed; a record without a search
gives nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.report.units import signed_amount
from isotropy.report.wording import finite, mapping_of, number_text, objects_of, spoken_name

HELD_OUT_NATS = 0.02
"""Nats per held-out example by which another amount must be better."""
EVIDENCE_NATS = 3.0
"""Nats, over all examples of the search, by which the evidence must be lower there: log 20."""
LEARNED_NATS = math.log(20)
"""Nats by which the evidence of a trained network that predicts exceeds that of a constant."""


@dataclass(frozen=True)
class HeldOutPoint:
    """Evidence and held-out log density of the linearised network at one amount of a symmetry.

    amount:              in the symmetry's unit
    share:               of the learned amount; 1 at the amount itself
    log_evidence:        nats, over all examples of the search
    test_log_likelihood: log density, nats per held-out example
    """

    amount: float
    share: float
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
    """That the linearised network predicts no better than a constant, with both evidences.

    Where the trained network does better, the search cannot tell, and the sentence says what to do.
    """
    search = mapping_of(result.get("search"))
    evidence, null = finite(search.get("log_evidence")), finite(search.get("null_log_evidence"))
    examples = finite(search.get("examples"))
    is_part = examples is not None and examples != finite(result.get("train_examples"))
    part = f" over the {number_text(examples, 0)} examples of the search" if is_part else ""
    if only_training_learned(result):
        values = ""
        if evidence is not None and null is not None:
            values = (
                f" (log evidence {number_text(evidence, 1)} nats, of a constant "
                f"{number_text(null, 1)}{part})"
            )
        more = "let the search take more examples (--set search_examples=N)"
        return (
            "The search cannot tell: the network linearised at its start predicts no better than a "
            f"constant{values}, although the trained network does, so no symmetry is claimed; "
            f"{more if is_part else 'give more examples'}, or learn amounts by gradient with "
            "--no-search."
        )
    begin = "Nothing was learned by the search: the log evidence of the network linearised at its"
    other, end = "that of a constant", "no symmetry is claimed."
    if evidence is None or null is None:
        return f"{begin} start does not exceed {other}; {end}"
    value = f"{begin} start, {number_text(evidence, 1)} nats{part},"
    if evidence <= null:
        return f"{value} does not exceed {other}, {number_text(null, 1)}; {end}"
    return f"{value} exceeds {other}, {number_text(null, 1)}, by less than 3 nats; {end}"


def held_out_points(own: Mapping[str, Any]) -> list[HeldOutPoint]:
    """Evidence beside held-out data for one symmetry that was taken; else empty.

    own: what the search says of the symmetry; rows with a number that is missing are left out
    """
    learned = finite(own.get("amount"))
    points: list[HeldOutPoint] = []
    for row in objects_of(own.get("beside_held_out")):
        names = ("amount", "log_evidence", "test_log_likelihood")
        amount, evidence, held_out = (finite(row.get(name)) for name in names)
        if learned and amount is not None and evidence is not None and held_out is not None:
            points.append(HeldOutPoint(amount, amount / learned, evidence, held_out))
    return points


def disagreement(points: list[HeldOutPoint]) -> tuple[HeldOutPoint, HeldOutPoint] | None:
    """The learned amount and the one that held-out data prefer to it against the evidence."""
    learned = min(points, key=lambda point: abs(point.share - 1), default=None)
    if learned is None or abs(learned.share - 1) > 1e-6:
        return None
    better = [
        point
        for point in points
        if point.test_log_likelihood > learned.test_log_likelihood + HELD_OUT_NATS
        and point.log_evidence < learned.log_evidence - EVIDENCE_NATS
    ]
    if not better:
        return None
    return learned, max(better, key=lambda point: point.test_log_likelihood)


def disagreement_sentences(result: Mapping[str, Any]) -> list[str]:
    """One sentence for every symmetry on which evidence and held-out data disagree."""
    units = {str(s["name"]): str(s.get("unit") or "") for s in result.get("symmetries") or []}
    sentences: list[str] = []
    for name, own in searched_by_name(result).items():
        pair = disagreement(held_out_points(own))
        if pair is None:
            continue
        learned, other = pair
        there, here = (signed_amount(p.amount, units.get(name, "")) for p in (other, learned))
        sentences.append(
            f"Evidence and held-out data disagree on {spoken_name(name)}: of the linearised "
            f"network, the held-out log density per example is "
            f"{number_text(other.test_log_likelihood, 3)} at {there} and "
            f"{number_text(learned.test_log_likelihood, 3)} at {here}, while the log evidence at "
            f"{there} is lower by {number_text(learned.log_evidence - other.log_evidence, 1)} nats."
        )
    return sentences
