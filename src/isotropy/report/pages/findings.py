"""What a run of `isotropy learn` found, in words: verdicts, readings, and the sentences of them.

A run that was judged has a verdict per symmetry, from the search before it:

    present, partial     the labels do not change under it: all of it, or as much as was learned
    already built in     the architecture does not react to it, so that averaging adds nothing
    absent, cannot tell

Where nothing was learned by the search, no symmetry is claimed. Otherwise a learned amount h
(half-width or probability) is read in its unit against `READINGS`:

    h ≥ found            "found"               the labels do not change under it
    floor ≤ h < found    "too small to call"
    0 < h < floor        "at the noise floor"  where ranges that are moved by noise come to rest
    h = 0                "zero"                not taken by the search, or held there
    h not finite         "not a number"

The thresholds are conventions, not tests: they say which words are used, and every number is
shown beside its word.

The search holds, for every symmetry, the log predictive density L of trials at some amounts: each
training example is predicted from all others. For one that was taken it holds L, the log evidence
and the held-out log density at 0, ½, 1 and 2 times its amount. All are of the network linearised at
its start; the record's own `log_evidence` and `null_log_evidence` are of the trained network. A
sentence says so where another of these amounts is preferred

    by held-out data, not by L:       held-out log density per example there exceeds that at the
                                      learned amount by more than `HELD_OUT_NATS`, and L there is
                                      lower by more than `EVIDENCE_NATS`
    by the evidence, not by held-out  log evidence is largest there and exceeds that at the learned
    data:                             amount by more than `EVIDENCE_NATS`, and held-out log density
                                      per example there is lower by more than `HELD_OUT_NATS`

All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from isotropy.report.page import Cell, Table, number
from isotropy.report.record import (
    Learned,
    Searched,
    Symmetry,
    Trained,
    Trial,
    Verdict,
    number_of,
    read,
)
from isotropy.report.wording import (
    MISSING,
    amount_of,
    amount_text,
    capital,
    interval_text,
    is_probability,
    joined,
    nats_text,
    number_text,
    reading_of,
    short_amount,
    signed_amount,
    spoken_name,
    title_of,
)

ReadingWord = Literal["found", "too small to call", "at the noise floor", "zero", "not a number"]

FOUND_WORDS = ("found", "present", "partial")
"""Words of readings and verdicts by which the labels do not change under a symmetry."""
NOT_LEARNED = ("none", "fixed", "averaged-losses", "trivial-augment")
"""Objectives that choose no amount: there is nothing to be found."""
STRONG_CORRELATION = 0.5
HELD_OUT_NATS = 0.02
"""Nats per held-out example by which amounts must differ."""
EVIDENCE_NATS = 3.0
"""Nats, over all examples of the search, by which L or the evidence must differ: log 20."""
LEARNED_NATS = math.log(20)
"""Nats by which the evidence of a trained network that predicts exceeds that of a constant."""

_SHARES = {0.0: "none", 0.5: "½", 1.0: "1, learned", 2.0: "2"}


# --- one symmetry -------------------------------------------------------------------------------


def reading_word(symmetry: Symmetry) -> ReadingWord:
    """The word for one symmetry's learned amount; see the module's table."""
    amount, reading = amount_of(symmetry), reading_of(symmetry.unit)
    if not math.isfinite(amount):
        return "not a number"
    if amount == 0:
        return "zero"
    if amount >= reading.found:
        return "found"
    return "too small to call" if amount >= reading.floor else "at the noise floor"


def word_of(symmetry: Symmetry, verdicts: Mapping[str, Verdict]) -> str:
    """The verdict, or where there is none the reading of the amount."""
    judged = verdicts.get(symmetry.name)
    return reading_word(symmetry) if judged is None else judged.verdict or "cannot tell"


def found_names(result: Mapping[str, Any]) -> list[str]:
    """The symmetries of a record of `isotropy learn` that were found."""
    learned = read(Learned, result)
    return [s.name for s in learned.symmetries if word_of(s, learned.judged) in FOUND_WORDS]


def _extent_phrase(symmetry: Symmetry) -> str:
    """`rotation by up to ±175°`, `scaling along x by factors from 0.78 to 1.28`, …"""
    name, unit, high = spoken_name(symmetry.name), symmetry.unit, symmetry.high
    low = symmetry.low if math.isfinite(symmetry.low) else 0.0
    if is_probability(symmetry):
        # An involution at ½ is the whole symmetry and needs no number.
        text = short_amount(symmetry)
        return name if text == "probability ½" else f"{name} with {text}"
    if unit == "log factor":
        return f"{name} by factors from {math.exp(low):.2f} to {math.exp(high):.2f}"
    if unit == "degrees" and high - low >= 360:
        return f"{name} by any angle"
    part = unit.removeprefix("fraction of ")
    after = f" of the {part}" if part != unit else ""
    if abs(low + high) <= 0.02 * (high - low):
        return f"{name} by up to {short_amount(symmetry)}{after}"
    return f"{name} from {amount_text(low, unit)} to {amount_text(high, unit)}{after}"


def _short_phrase(symmetry: Symmetry) -> str:
    return f"{spoken_name(symmetry.name)} {short_amount(symmetry)}"


def _has_amount(symmetry: Symmetry) -> bool:
    return math.isfinite(amount_of(symmetry)) and amount_of(symmetry) != 0


def _names(symmetries: Sequence[Symmetry]) -> str:
    return joined(spoken_name(symmetry.name) for symmetry in symmetries)


# --- the whole run ------------------------------------------------------------------------------


def finding_sentences(
    result: Mapping[str, Any] | Learned, truth: Mapping[str, float]
) -> tuple[str, ...]:
    """The headline, then what else there is to say.

    result: as printed by `isotropy learn --json`
    truth:  true half-widths (or probabilities) by name, in the symmetry's unit; may be empty
    """
    learned = read(Learned, result)
    symmetries = learned.symmetries
    made_with = _made_with(learned, truth)
    if learned.objective == "trivial-augment":
        return (
            "Nothing was learned: every copy was changed by one transformation that "
            "TrivialAugment drew at random.",
            *made_with,
        )
    if not symmetries:
        return ("No transformation was tried.",)
    if learned.objective == "none":
        return ("Nothing was learned: every range was fixed at zero.", *made_with)
    if learned.objective == "fixed":
        return (_given_sentence(symmetries), *made_with)
    if learned.objective == "averaged-losses":
        how = "Losses were averaged over the copies, not outputs: ordinary augmentation."
        return (_given_sentence(symmetries), how, *made_with)
    if learned.search.nothing_learned:
        return (nothing_learned_sentence(learned), *made_with[:1])
    moving = () if learned.settled else (_moving_sentence(symmetries),)
    if moving and not learned.verdicts:
        # Without a search the amounts rest on this run alone, and nothing can be said yet.
        return (*moving, *made_with[:1])
    told = _judged_sentences(learned) if learned.verdicts else _read_sentences(symmetries)
    return (
        *told,
        *trained_sentences(learned),
        *moving,
        *disagreement_sentences(learned),
        *_correlation_sentences(learned),
        *made_with,
    )


def _given_sentence(symmetries: Sequence[Symmetry]) -> str:
    given = [_extent_phrase(symmetry) for symmetry in symmetries if _has_amount(symmetry)]
    return f"The ranges were given, not learned: {joined(given) or 'all are zero'}."


def _moving_sentence(symmetries: Sequence[Symmetry]) -> str:
    """That the run did not settle, with the amounts it has come to."""
    known = [_short_phrase(symmetry) for symmetry in symmetries if _has_amount(symmetry)]
    shown = f" (now {joined(known)})" if known else ""
    return (
        "The run has not settled: the ranges or the evidence still moved over the last quarter of "
        f"its epochs{shown}; give it more epochs."
    )


def _read_sentences(symmetries: Sequence[Symmetry]) -> list[str]:
    """What amounts alone say, by the thresholds."""
    by_word: dict[str, list[Symmetry]] = {}
    for symmetry in symmetries:
        by_word.setdefault(reading_word(symmetry), []).append(symmetry)
    found, broken = by_word.get("found", []), by_word.get("not a number", [])
    if found:
        sentences = [f"The labels do not change under {joined(map(_extent_phrase, found))}."]
    elif len(broken) == len(symmetries):
        return ["Nothing can be said: no learned range is a finite number."]
    else:
        sentences = ["No symmetry was found."]
    if unclear := by_word.get("too small to call"):
        sentences.append(f"Too small to call: {joined(map(_short_phrase, unclear))}.")
    if broken:
        sentences.append(f"The learned range of {_names(broken)} is not a finite number.")
    if still := by_word.get("at the noise floor"):
        alone = len(still) == len(symmetries)
        sentences.append(_still_sentence(still, found=bool(found), alone=alone))
    if zero := by_word.get("zero"):
        every = len(zero) == len(symmetries) > 1
        sentences.append(f"Exactly zero: {'all that was tried' if every else _names(zero)}.")
    return sentences


def _still_sentence(still: Sequence[Symmetry], *, found: bool, alone: bool) -> str:
    """Say that ranges are at the noise floor, and how large they are.

    found: whether another range was found; alone: whether there is no other range at all
    """
    if len(still) == 1:
        return f"{capital(_short_phrase(still[0]))} is at the noise floor."
    subject = "Every learned range is" if alone else "Every other learned range is"
    if found:
        subject = "No other transformation was found: every other learned range is"
    # Degrees cannot share a bound with fractions and log factors, so they are named apart.
    parts = [_short_phrase(symmetry) for symmetry in still if reading_of(symmetry.unit).symbol]
    plain = [abs(amount_of(s)) for s in still if not reading_of(s.unit).symbol]
    if plain:
        parts.append(f"{'the rest ' if parts else ''}below {_bound_text(max(plain))}")
    return f"{subject} at the noise floor ({', '.join(parts)})."


def _bound_text(value: float) -> str:
    """The next number with one significant digit above `value`: 0.012 gives "0.02"."""
    if value < 1e-3:
        return "0.001"
    step = 10.0 ** math.floor(math.log10(value))
    return f"{(math.floor(value / step + 1e-9) + 1) * step:.1g}"


def _judged_sentences(learned: Learned) -> list[str]:
    """What the verdicts say: a headline, a sentence for each that is found, then the others."""
    verdicts = learned.judged
    by_word: dict[str, list[Symmetry]] = {}
    for symmetry in learned.symmetries:
        word = word_of(symmetry, verdicts) if symmetry.name in verdicts else ""
        by_word.setdefault("found" if word in FOUND_WORDS else word, []).append(symmetry)
    wanted = by_word.get("found", [])
    shown = [symmetry for symmetry in wanted if math.isfinite(amount_of(symmetry))]
    if shown:
        sentences = [f"The labels do not change under {joined(map(_extent_phrase, shown))}."]
    elif wanted:
        sentences = ["A symmetry is found, but its learned range is not a finite number."]
    elif "already built in" in by_word:
        sentences = ["No symmetry was found beyond what the network has built in."]
    else:
        sentences = ["No symmetry was found."]
    sentences += [f"{_judged_phrase(s, verdicts[s.name])}." for s in wanted]
    if built_in := by_word.get("already built in"):
        sentences.append(
            f"Already built in: {_names(built_in)}; the network itself does not react, so that "
            "averaging adds nothing."
        )
    if unclear := by_word.get("cannot tell"):
        them = "it" if len(unclear) == 1 else "them"
        sentences.append(
            f"Cannot tell: {joined(map(_unclear_phrase, unclear))}; the search neither confirms "
            f"nor excludes {them}."
        )
    if absent := by_word.get("absent"):
        alone = len(absent) == len(learned.symmetries) > 1
        named = "all that was tried" if alone else joined(map(_absent_phrase, absent))
        sentences.append(f"Absent: {named}.")
    if unjudged := by_word.get(""):
        sentences.append(f"Not judged: {_names(unjudged)}.")
    return sentences


def _judged_phrase(symmetry: Symmetry, judged: Verdict) -> str:
    """`Rotation: present, ±178° (95 % interval ±170° to ±180°; gain 284 nats, …)`."""
    amount, gain = short_amount(symmetry), nats_text(judged.gain_nats)
    parts = []
    if symmetry.interval:
        parts.append(f"95 % interval {interval_text(symmetry.interval, symmetry.unit)}")
    if gain != MISSING:
        gains = " to ".join(map(nats_text, judged.gain_interval))
        parts.append(f"gain {gain} nats" + (f", 95 % interval {gains}" if gains else ""))
    return (
        f"{title_of(symmetry.name)}: {judged.verdict}"
        + ("" if amount == MISSING else f", {amount}")
        + (f" ({'; '.join(parts)})" if parts else "")
    )


def _unclear_phrase(symmetry: Symmetry) -> str:
    """The name, with the amount that the model has of it where that is not zero."""
    used = f" ({short_amount(symmetry)} in the model)" if _has_amount(symmetry) else ""
    return spoken_name(symmetry.name) + used


def _absent_phrase(symmetry: Symmetry) -> str:
    """`translation along x (at most ±0.03)`: the upper end of its interval, where it is known."""
    ends = [f" (at most {signed_amount(end, symmetry.unit)})" for end in symmetry.interval[1:]]
    return spoken_name(symmetry.name) + "".join(ends)


def _correlation_sentences(learned: Learned) -> list[str]:
    """Pairs of found symmetries whose amounts are drawn with a correlation of ½ or more."""
    names, matrix = learned.correlations.names, learned.correlations.matrix
    found = {s.name for s in learned.symmetries if word_of(s, learned.judged) in FOUND_WORDS}
    phrases = [
        f"{spoken_name(name)} {'with' if value > 0 else 'against'} {spoken_name(other)} "
        f"(correlation {number_text(value)})"
        for i, (name, row) in enumerate(zip(names, matrix, strict=False))
        for other, value in list(zip(names, row, strict=False))[i + 1 :]
        if abs(value) >= STRONG_CORRELATION and {name, other} <= found
    ]
    return [f"Not drawn independently: {joined(phrases)}."] if phrases else []


def _made_with(learned: Learned, truth: Mapping[str, float]) -> tuple[str, ...]:
    """What is known to be in the data, and where the finding differs from it."""
    known = [s for s in learned.symmetries if math.isfinite(number_of(truth.get(s.name)))]
    if not known:
        return ()
    true = [replace(s, low=-truth[s.name], high=truth[s.name]) for s in known]
    present = [_extent_phrase(symmetry) for symmetry in true if symmetry.high > 0]
    made = f"with {joined(present)}" if present else "without any of them"
    sentences = [f"The data were made {made}."]
    if learned.objective in NOT_LEARNED:
        return tuple(sentences)
    words = {s.name: word_of(s, learned.judged) for s in known}
    missed = [
        s
        for s in true
        if reading_word(s) == "found" and words[s.name] not in (*FOUND_WORDS, "already built in")
    ]
    extra = [s for s in true if s.high <= 0 and words[s.name] in FOUND_WORDS]
    if missed:
        sentences.append(f"In the data but not found: {_names(missed)}.")
    if extra:
        sentences.append(f"Found but not put into the data: {_names(extra)}.")
    return tuple(sentences)


# --- the search before the run ------------------------------------------------------------------


def null_words(learned: Learned) -> str:
    """The trained network's null model: class frequencies, or in a regression a constant."""
    return "a constant" if math.isfinite(learned.noise) else "class frequencies alone"


def nothing_learned_sentence(learned: Learned) -> str:
    """That the linearised network predicts no better than a constant, with both densities.

    Where the trained network does better, the search cannot tell, and the sentence says what to do.
    """
    search = learned.search
    density, null = search.log_predictive, search.null_log_predictive
    is_known = math.isfinite(density) and math.isfinite(null)
    is_part = math.isfinite(search.examples) and search.examples != learned.train_examples
    part = f" over the {number_text(search.examples, 0)} examples of the search" if is_part else ""
    if learned.log_evidence > learned.null_log_evidence + LEARNED_NATS:
        values = ""
        if is_known:
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
    if not is_known:
        return f"{begin} does not exceed {other}; {end}"
    value = f"{begin}, {number_text(density, 1)} nats{part},"
    if density <= null:
        return f"{value} does not exceed {other}, {number_text(null, 1)}; {end}"
    return f"{value} exceeds {other}, {number_text(null, 1)}, by less than 3 nats; {end}"


def held_out_trials(own: Searched) -> list[Trial]:
    """The search beside held-out data for one symmetry that was taken, where all is known."""
    if not own.amount > 0:
        return []
    return [
        trial
        for trial in own.beside_held_out
        if math.isfinite(
            trial.amount + trial.log_predictive + trial.log_evidence + trial.test_log_likelihood
        )
    ]


def _at_amount(own: Searched) -> Trial | None:
    """The trial at the learned amount, if it is known."""
    trials = held_out_trials(own)
    return next((t for t in trials if abs(t.amount / own.amount - 1) <= 1e-6), None)


def disagreement(own: Searched) -> tuple[Trial, Trial] | None:
    """The learned amount and the one that held-out data prefer to it against L."""
    learned = _at_amount(own)
    if learned is None:
        return None
    better = [
        trial
        for trial in held_out_trials(own)
        if trial.test_log_likelihood > learned.test_log_likelihood + HELD_OUT_NATS
        and trial.log_predictive < learned.log_predictive - EVIDENCE_NATS
    ]
    return (learned, max(better, key=lambda t: t.test_log_likelihood)) if better else None


def held_out_table(learned: Learned) -> Table | None:
    """The search beside held-out data, up to four rows for each symmetry that was taken.

    Rows that held-out data prefer against L are marked.
    """
    rows: list[list[Cell]] = []
    marked: dict[int, str] = {}
    for name, own in learned.search.symmetries.items():
        trials, pair = held_out_trials(own), disagreement(own)
        for place, trial in enumerate(trials):
            if pair is not None and trial is pair[1]:
                marked[len(rows)] = "large"
            share = trial.amount / own.amount
            times = next((t for s, t in _SHARES.items() if abs(share - s) < 1e-6), "the largest")
            head = [] if place else [Cell(title_of(name), head=True, rows=len(trials))]
            rows.append(
                [
                    *head,
                    Cell(times),
                    number(signed_amount(trial.amount, learned.units.get(name, ""))),
                    number(number_text(trial.log_predictive, 1)),
                    number(number_text(trial.log_evidence, 1)),
                    number(number_text(trial.test_log_likelihood, 3)),
                ]
            )
    titles = ("Transformation", "Times", "Amount", "Log predictive density, nats",
              "Log evidence, nats", "Held-out log density per example")  # fmt: skip
    return Table(titles, rows, marked, "dense") if rows else None


def wrong_evidence(own: Searched) -> tuple[Trial, Trial] | None:
    """The learned amount and the one that the evidence prefers to it against held-out data."""
    learned = _at_amount(own)
    if learned is None:
        return None
    other = max(held_out_trials(own), key=lambda trial: trial.log_evidence)
    is_preferred = other.log_evidence > learned.log_evidence + EVIDENCE_NATS
    is_worse = other.test_log_likelihood < learned.test_log_likelihood - HELD_OUT_NATS
    return (learned, other) if is_preferred and is_worse else None


def disagreement_sentences(learned: Learned) -> list[str]:
    """A sentence for every symmetry on which L, or the evidence, disagrees with held-out data."""
    sentences: list[str] = []
    for name, own in learned.search.symmetries.items():
        unit, spoken = learned.units.get(name, ""), spoken_name(name)
        if pair := disagreement(own):
            here, there = (signed_amount(trial.amount, unit) for trial in pair)
            at_here, at_there = (number_text(trial.test_log_likelihood, 3) for trial in pair)
            lower = number_text(pair[0].log_predictive - pair[1].log_predictive, 1)
            sentences.append(
                f"The search and held-out data disagree on {spoken}: of the linearised network, "
                f"the held-out log density per example is {at_there} at {there} and {at_here} at "
                f"{here}, while the log predictive density of training examples left out is lower "
                f"at {there} by {lower} nats."
            )
        if pair := wrong_evidence(own):
            here, there = (signed_amount(trial.amount, unit) for trial in pair)
            at_here, at_there = (number_text(trial.test_log_likelihood, 3) for trial in pair)
            higher = number_text(pair[1].log_evidence - pair[0].log_evidence, 1)
            sentences.append(
                f"On {spoken} the evidence of the linearised network prefers {there} to the "
                f"learned {here} by {higher} nats, and held-out data do not: their log density per "
                f"example is {at_there} at {there} and {at_here} at {here}."
            )
    return sentences


def trained_sentences(learned: Learned) -> list[str]:
    """What training with rivals of the amounts that were found came to; nothing without rivals.

    Rivals are half of the periods that were found whole, smaller ranges, no symmetry at all, and
    all but one.
    """
    search = learned.search
    rows = [row for row in search.trained if math.isfinite(row.log_evidence)]
    if not rows or rows[0] is not search.trained[0]:
        return []
    kept, (first, *rivals) = search.amounts, rows
    sentences: list[str] = []
    if rivals and _is_half(rivals[0], first):
        half = rivals.pop(0)
        is_needed = kept == first.amounts
        end = "all of it is needed" if is_needed else "no more is needed than half"
        sentences.append(
            f"Trained with half the period, {_changed(half, first, learned)}, the network has a "
            f"log evidence of {number_text(half.log_evidence, 1)} nats, with the whole of it "
            f"{number_text(first.log_evidence, 1)}: {end}."
        )
        first = first if is_needed else half
    ranges = [each for each in rivals if _other_ranges(each, first)]
    if ranges:
        tried = [first, *ranges]
        stays = next((each for each in tried if each.amounts == kept), None)
        stays = stays or max(tried, key=lambda each: each.log_evidence)
        told = joined(
            f"{number_text(each.log_evidence, 1)} with "
            f"{_changed(each, ranges[0] if each is first else first, learned)}"
            for each in tried
        )
        is_needed = stays is first
        end = "less is not enough" if is_needed else f"{_changed(stays, first, learned)} is enough"
        sentences.append(f"Trained on all data, the log evidence in nats is {told}: {end}.")
        first = stays
    for rival in rivals:
        if not any(rival.amounts.values()):
            lost = [spoken_name(n) for n, a in first.amounts.items() if a and not kept.get(n)]
            end = f"{joined(lost)} left out, not confirmed by training" if lost else "confirmed"
            sentences.append(
                "Trained without any symmetry the network has a log evidence of "
                f"{number_text(rival.log_evidence, 1)} nats, with what the search found "
                f"{number_text(first.log_evidence, 1)}: {end}."
            )
    if search.trained_steps > 0:
        sentences.append(
            f"These networks had {number_text(search.trained_steps, 0)} weight steps; the network "
            "of this run was trained after them, with what stayed."
        )
    return sentences


def _other_ranges(rival: Trained, first: Trained) -> dict[str, float]:
    """The amounts of a rival that are neither zero nor those of the first."""
    return {
        name: amount
        for name, amount in rival.amounts.items()
        if math.isfinite(amount) and amount and amount != first.amounts.get(name)
    }


def _is_half(rival: Trained, first: Trained) -> bool:
    other = _other_ranges(rival, first)
    return bool(other) and all(2 * a == first.amounts.get(name) for name, a in other.items())


def _changed(rival: Trained, first: Trained, learned: Learned) -> str:
    """`rotation by up to ±63°`: what a rival has other amounts of."""
    return joined(
        f"{spoken_name(name)} by up to {signed_amount(amount, learned.units.get(name, ''))}"
        for name, amount in _other_ranges(rival, first).items()
    )
