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

The search before a run on the page: profiles over amounts, and beside held-out data.

Every symmetry has a panel of the log predictive density L over its amounts, relative to none of it;
one that was taken has a second panel of the held-out log density, and a table of both and of the
log evidence. All are of the linearised network. Panels of one unit share the axis of amounts. What
a record does not hold gives no drawing and no row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from isotropy.report.figures import ProfilePanel, profile_figure
from isotropy.report.page import Drawing
from isotropy.report.record import LearnRecord
from isotropy.report.wording import (
    finite,
    interval_text,
    joined,
    mapping_of,
    number_text,
    objects_of,
    pair_of,
    reading_of,
    signed_amount,
    spoken_name,
    title_of,
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


_SHARES = {0.0: "none", 0.5: "½", 1.0: "1, learned", 2.0: "2"}


@dataclass(frozen=True)
class HeldOutRow:
    """The search beside held-out data at one amount, as text.

    first:     how many rows the symmetry has, on the first of them; else 0
    preferred: whether held-out data prefer this amount against L
    """

    name: str
    first: int
    times: str
    amount: str
    log_predictive: str
    log_evidence: str
    held_out: str
    preferred: bool


def search_drawings(record: LearnRecord) -> list[Drawing]:
    """The profile of each symmetry that was searched, those taken with their held-out profile."""
    searched = searched_by_name(record.result)
    units = _units(record)
    spans = _spans(searched, units)
    drawings: list[Drawing] = []
    for index, (name, own) in enumerate(searched.items()):
        unit, taken = units.get(name, ""), finite(own.get("amount")) or None
        rows = [(finite(r.get("amount")), finite(r.get("log_predictive"))) for r in _profile(own)]
        known = [(amount, value) for amount, value in rows if amount is not None]
        zero = next((value for amount, value in known if amount == 0), None)
        values = [math.nan if value is None or zero is None else value - zero for _, value in known]
        if not any(map(math.isfinite, values)):
            continue
        panel = ProfilePanel(
            amounts=[amount for amount, _ in known],
            values=values,
            span=(0.0, spans[unit]),
            maximum=taken,
            interval=pair_of(own.get("interval")),
            truth=record.truth.get(name),
            symbol=reading_of(unit).symbol,
            small=True,
        )
        best = max(
            range(len(values)), key=lambda i: -math.inf if values[i] != values[i] else values[i]
        )
        note = f"{unit or 'no unit'}; 95 % interval {interval_text(own.get('interval'), unit)}"
        label = (
            f"{title_of(name)}: log predictive density over its amount, largest at "
            f"{signed_amount(panel.amounts[best], unit)} with {number_text(values[best], 1)} nats "
            "above none"
        )
        svg = profile_figure(panel, key=f"search-{index}", label=label)
        drawings.append(Drawing(title_of(name), note, Markup(svg)))
        points = held_out_points(own)
        if points:
            beside = ProfilePanel(
                amounts=[point.amount for point in points],
                values=[point.test_log_likelihood for point in points],
                span=panel.span,
                maximum=taken,
                truth=panel.truth,
                symbol=panel.symbol,
                small=True,
            )
            ends = ", ".join(
                f"{number_text(p.test_log_likelihood, 3)} at {signed_amount(p.amount, unit)}"
                for p in points
            )
            label = f"{title_of(name)}: held-out log density per example, {ends}"
            svg = profile_figure(beside, key=f"search-{index}-held-out", label=label)
            drawings.append(
                Drawing(f"{title_of(name)}, held-out", "log density per example", Markup(svg))
            )
    return drawings


def held_out_rows(record: LearnRecord) -> list[HeldOutRow]:
    """The table of the search beside held-out data, up to four rows for each that was taken."""
    units = _units(record)
    rows: list[HeldOutRow] = []
    for name, own in searched_by_name(record.result).items():
        points = held_out_points(own)
        pair = disagreement(points)
        for place, point in enumerate(points):
            times = next((t for s, t in _SHARES.items() if abs(point.share - s) < 1e-6), None)
            rows.append(
                HeldOutRow(
                    name=title_of(name),
                    first=0 if place else len(points),
                    times=times or "the largest",
                    amount=signed_amount(point.amount, units.get(name, "")),
                    log_predictive=number_text(point.log_predictive, 1),
                    log_evidence=number_text(point.log_evidence, 1),
                    held_out=number_text(point.test_log_likelihood, 3),
                    preferred=pair is not None and point is pair[1],
                )
            )
    return rows


def _profile(own: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return objects_of(own.get("profile"))


def _units(record: LearnRecord) -> dict[str, str]:
    symmetries = record.result.get("symmetries") or ()
    return {str(s["name"]): str(s.get("unit") or "") for s in symmetries}


def _spans(searched: Mapping[str, Mapping[str, Any]], units: Mapping[str, str]) -> dict[str, float]:
    """The largest amount that was tried, by unit."""
    spans: dict[str, float] = {}
    for name, own in searched.items():
        unit = units.get(name, "")
        amounts = [finite(row.get("amount")) or 0.0 for row in _profile(own)]
        spans[unit] = max([spans.get(unit, 0.0), *amounts])
    return spans
