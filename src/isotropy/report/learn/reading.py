"""How the numbers of a record are read: verdicts, thresholds, and the sentences of them.

A run that was judged has a verdict per symmetry, from the search before it:

    present, partial     the labels do not change under it: all of it, or as much as was learned
    already built in     the architecture does not react to it, so that averaging adds nothing
    absent, cannot tell

Where nothing was learned by the search, no symmetry is claimed (`search`). Otherwise a
learned amount h (half-width or probability) is read in its unit against `READINGS`:

    h ≥ found            "found"               the labels do not change under it
    floor ≤ h < found    "too small to call"
    0 < h < floor        "at the noise floor"  where ranges that are moved by noise come to rest
    h = 0                "zero"                not taken by the search, or held there
    h not finite         "not a number"

The thresholds are conventions, not tests: they say which words are used, and every number is
shown beside its word. All functions are pure and take what `isotropy learn --json` printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from isotropy.report.learn.search import (
    disagreement_sentences,
    is_nothing_learned,
    nothing_learned_sentence,
    trained_sentences,
)
from isotropy.report.wording import (
    MISSING,
    OTHER_READING,
    READINGS,
    Reading,
    amount_of,
    amount_text,
    capital,
    finite,
    gain_text,
    interval_text,
    is_probability,
    joined,
    mapping_of,
    nats_text,
    number_text,
    objects_of,
    pair_of,
    reading_of,
    short_amount,
    signed_amount,
    spoken_name,
    title_of,
)

__all__ = [
    "MISSING", "NOT_LEARNED", "OTHER_READING", "READINGS", "Reading", "amount_of", "amount_text",
    "correlated_pairs", "finding_sentence", "finding_sentences", "finite", "gain_text",
    "is_probability", "number_text", "reading_of", "short_amount", "spoken_name", "verdict_of",
    "verdicts_by_name", "word_of",
]  # fmt: skip

ReadingWord = Literal["found", "too small to call", "at the noise floor", "zero", "not a number"]

FOUND_WORDS = ("found", "present", "partial")
"""Words of readings and verdicts by which the labels do not change under a symmetry."""
NOT_LEARNED = ("none", "fixed", "averaged-losses", "trivial-augment")
"""Objectives that choose no amount: there is nothing to be found."""
STRONG_CORRELATION = 0.5


def verdict_of(symmetry: Mapping[str, Any]) -> ReadingWord:
    """The word for one symmetry's learned amount; see the module's table."""
    amount = amount_of(symmetry)
    reading = reading_of(symmetry.get("unit"))
    if amount is None:
        return "not a number"
    if amount == 0:
        return "zero"
    if amount >= reading.found:
        return "found"
    return "too small to call" if amount >= reading.floor else "at the noise floor"


def verdicts_by_name(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The verdicts, where the run was judged; otherwise empty."""
    return {str(each.get("name")): each for each in objects_of(result.get("verdicts"))}


def word_of(symmetry: Mapping[str, Any], verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    """The verdict, or where there is none the reading of the amount."""
    judged = verdicts.get(str(symmetry["name"]))
    return verdict_of(symmetry) if judged is None else str(judged.get("verdict") or "cannot tell")


def finding_sentence(result: Mapping[str, Any], truth: Mapping[str, float]) -> str:
    """What a run found, in one to a few plain sentences; see `finding_sentences`."""
    return " ".join(finding_sentences(result, truth))


def finding_sentences(result: Mapping[str, Any], truth: Mapping[str, float]) -> tuple[str, ...]:
    """The headline, then what else there is to say.

    result: as printed by `isotropy learn --json`: its `symmetries`, `objective`, `verdicts`,
            `search`, `correlations` and `settled` (false where ranges or evidence still moved at
            the end of the run) are read
    truth:  true half-widths (or probabilities) by name, in the symmetry's unit; may be empty
    """
    symmetries = result.get("symmetries") or []
    objective = result.get("objective")
    known_truth = {name: value for name, value in truth.items() if finite(value) is not None}
    made_with = _made_with(result, known_truth)
    if objective == "trivial-augment":
        return (
            "Nothing was learned: every copy was changed by one transformation that "
            "TrivialAugment drew at random.",
            *made_with,
        )
    if not symmetries:
        return ("No transformation was tried.",)
    if objective == "none":
        return ("Nothing was learned: every range was fixed at zero.", *made_with)
    if objective == "fixed":
        return (_given_sentence(symmetries), *made_with)
    if objective == "averaged-losses":
        how = "Losses were averaged over the copies, not outputs: ordinary augmentation."
        return (_given_sentence(symmetries), how, *made_with)
    if is_nothing_learned(result):
        return (nothing_learned_sentence(result), *made_with[:1])
    verdicts = verdicts_by_name(result)
    moving = () if result.get("settled") is not False else (_moving_sentence(symmetries),)
    if moving and not verdicts:
        # Without a search the amounts rest on this run alone, and nothing can be said yet.
        return (*moving, *made_with[:1])
    told = _judged_sentences(symmetries, verdicts) if verdicts else _read_sentences(symmetries)
    return (
        *told,
        *trained_sentences(result),
        *moving,
        *disagreement_sentences(result),
        *_correlation_sentences(result),
        *made_with,
    )


def _moving_sentence(symmetries: Sequence[Mapping[str, Any]]) -> str:
    """That the run did not settle, with the amounts it has come to."""
    known = [_short_phrase(symmetry) for symmetry in symmetries if amount_of(symmetry)]
    shown = f" (now {joined(known)})" if known else ""
    return (
        "The run has not settled: the ranges or the evidence still moved over the last quarter of "
        f"its epochs{shown}; give it more epochs."
    )


def _read_sentences(symmetries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What amounts alone say, by the thresholds."""
    found = _with_word(symmetries, "found")
    unclear = _with_word(symmetries, "too small to call")
    still = _with_word(symmetries, "at the noise floor")
    zero = _with_word(symmetries, "zero")
    broken = _with_word(symmetries, "not a number")
    sentences: list[str] = []
    if found:
        sentences.append(f"The labels do not change under {joined(map(_extent_phrase, found))}.")
    elif len(broken) == len(symmetries):
        return ["Nothing can be said: no learned range is a finite number."]
    else:
        sentences.append("No symmetry was found.")
    if unclear:
        sentences.append(f"Too small to call: {joined(map(_short_phrase, unclear))}.")
    if broken:
        sentences.append(f"The learned range of {_names(broken)} is not a finite number.")
    if still:
        alone = len(still) == len(symmetries)
        sentences.append(_still_sentence(still, found=bool(found), alone=alone))
    if zero:
        every = len(zero) == len(symmetries) > 1
        sentences.append(f"Exactly zero: {'all that was tried' if every else _names(zero)}.")
    return sentences


def _judged_sentences(
    symmetries: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What the verdicts say: a headline, a sentence for each that is found, then the others."""
    by_word: dict[str, list[Mapping[str, Any]]] = {}
    for symmetry in symmetries:
        judged = symmetry["name"] in verdicts
        by_word.setdefault(word_of(symmetry, verdicts) if judged else "", []).append(symmetry)
    wanted = [s for s in symmetries if s["name"] in verdicts and _is_found(s, verdicts)]
    shown = [symmetry for symmetry in wanted if amount_of(symmetry) is not None]
    if shown:
        sentences = [f"The labels do not change under {joined(map(_extent_phrase, shown))}."]
    elif wanted:
        sentences = ["A symmetry is found, but its learned range is not a finite number."]
    elif "already built in" in by_word:
        sentences = ["No symmetry was found beyond what the network has built in."]
    else:
        sentences = ["No symmetry was found."]
    sentences += [f"{_judged_phrase(s, verdicts[s['name']])}." for s in wanted]
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
        alone = len(absent) == len(symmetries) > 1
        named = "all that was tried" if alone else joined(map(_absent_phrase, absent))
        sentences.append(f"Absent: {named}.")
    if unjudged := by_word.get(""):
        sentences.append(f"Not judged: {_names(unjudged)}.")
    return sentences


def _judged_phrase(symmetry: Mapping[str, Any], judged: Mapping[str, Any]) -> str:
    """`Rotation: present, ±178° (95 % interval ±170° to ±180°; gain 284 nats, …)`."""
    amount = "" if amount_of(symmetry) is None else f", {short_amount(symmetry)}"
    interval = interval_text(symmetry.get("interval"), str(symmetry.get("unit") or ""))
    gain, gains = nats_text(judged.get("gain_nats")), pair_of(judged.get("gain_interval"))
    parts = [] if interval == MISSING else [f"95 % interval {interval}"]
    if gain != MISSING:
        spread = "" if gains is None else f", 95 % interval {' to '.join(map(nats_text, gains))}"
        parts.append(f"gain {gain} nats{spread}")
    after = f" ({'; '.join(parts)})" if parts else ""
    name = str(symmetry["name"])
    return f"{title_of(name)}: {word_of(symmetry, {name: judged})}{amount}{after}"


def _unclear_phrase(symmetry: Mapping[str, Any]) -> str:
    """The name, with the amount that the model has of it where that is not zero."""
    used = f" ({short_amount(symmetry)} in the model)" if amount_of(symmetry) else ""
    return spoken_name(str(symmetry["name"])) + used


def _absent_phrase(symmetry: Mapping[str, Any]) -> str:
    """`translation along x (at most ±0.03)`: the upper end of its interval, where it is known."""
    interval, unit = pair_of(symmetry.get("interval")), str(symmetry.get("unit") or "")
    most = "" if interval is None else f" (at most {signed_amount(interval[1], unit)})"
    return spoken_name(str(symmetry["name"])) + most


def correlated_pairs(result: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Pairs of found symmetries whose amounts are drawn with a correlation of ½ or more."""
    correlations = mapping_of(result.get("correlations"))
    names, matrix = correlations.get("names") or [], correlations.get("matrix") or []
    verdicts = verdicts_by_name(result)
    symmetries = result.get("symmetries") or []
    found = {s["name"] for s in symmetries if _is_found(s, verdicts)}
    pairs: list[tuple[str, str, float]] = []
    for i, (name, row) in enumerate(zip(names, matrix, strict=False)):
        for other, value in list(zip(names, row, strict=False))[i + 1 :]:
            number = finite(value)
            if number is not None and abs(number) >= STRONG_CORRELATION and {name, other} <= found:
                pairs.append((name, other, number))
    return pairs


def _correlation_sentences(result: Mapping[str, Any]) -> list[str]:
    phrases = [
        f"{spoken_name(name)} {'with' if value > 0 else 'against'} {spoken_name(other)} "
        f"(correlation {number_text(value)})"
        for name, other, value in correlated_pairs(result)
    ]
    return [f"Not drawn independently: {joined(phrases)}."] if phrases else []


def _is_found(symmetry: Mapping[str, Any], verdicts: Mapping[str, Mapping[str, Any]]) -> bool:
    return word_of(symmetry, verdicts) in FOUND_WORDS


def _with_word(
    symmetries: Sequence[Mapping[str, Any]], word: ReadingWord
) -> list[Mapping[str, Any]]:
    return [symmetry for symmetry in symmetries if verdict_of(symmetry) == word]


def _names(symmetries: Sequence[Mapping[str, Any]]) -> str:
    return joined(spoken_name(str(symmetry["name"])) for symmetry in symmetries)


def _still_sentence(still: Sequence[Mapping[str, Any]], *, found: bool, alone: bool) -> str:
    """Say that ranges are at the noise floor, and how large they are.

    found: whether another range was found; alone: whether there is no other range at all
    """
    if len(still) == 1:
        return f"{capital(_short_phrase(still[0]))} is at the noise floor."
    subject = "Every learned range is" if alone else "Every other learned range is"
    if found:
        subject = "No other transformation was found: every other learned range is"
    # Degrees cannot share a bound with fractions and log factors, so they are named apart.
    marked = [s for s in still if reading_of(s.get("unit")).symbol]
    plain = [s for s in still if not reading_of(s.get("unit")).symbol]
    parts = [_short_phrase(symmetry) for symmetry in marked]
    if plain:
        bound = _bound_text(max(abs(amount_of(symmetry) or 0.0) for symmetry in plain))
        parts.append(f"the rest below {bound}" if parts else f"below {bound}")
    return f"{subject} at the noise floor ({', '.join(parts)})."


def _given_sentence(symmetries: Sequence[Mapping[str, Any]]) -> str:
    given = [symmetry for symmetry in symmetries if amount_of(symmetry)]
    if not given:
        return "The ranges were given, not learned: all are zero."
    return f"The ranges were given, not learned: {joined(map(_extent_phrase, given))}."


def _made_with(result: Mapping[str, Any], truth: Mapping[str, float]) -> tuple[str, ...]:
    """What is known to be in the data, and where the finding differs from it."""
    known = [dict(s) for s in result.get("symmetries") or [] if s["name"] in truth]
    if not known:
        return ()
    true = [s | {"low": -truth[s["name"]], "high": truth[s["name"]]} for s in known]
    present = [symmetry for symmetry in true if symmetry["high"] > 0]
    if present:
        sentences = [f"The data were made with {joined(map(_extent_phrase, present))}."]
    else:
        sentences = ["The data were made without any of them."]
    if result.get("objective") in NOT_LEARNED:
        return tuple(sentences)
    verdicts = verdicts_by_name(result)
    words = {s["name"]: word_of(s, verdicts) for s in known}
    found = {name for name, word in words.items() if word in FOUND_WORDS}
    had = found | {name for name, word in words.items() if word == "already built in"}
    missed = [s for s in true if verdict_of(s) == "found" and s["name"] not in had]
    extra = [s for s in true if s["high"] <= 0 and s["name"] in found]
    if missed:
        sentences.append(f"In the data but not found: {_names(missed)}.")
    if extra:
        sentences.append(f"Found but not put into the data: {_names(extra)}.")
    return tuple(sentences)


def _extent_phrase(symmetry: Mapping[str, Any]) -> str:
    """`rotation by up to ±175°`, `scaling along x by factors from 0.78 to 1.28`, …"""
    name, unit = spoken_name(str(symmetry["name"])), str(symmetry.get("unit") or "")
    low, high = float(symmetry.get("low") or 0.0), float(symmetry["high"])
    if is_probability(symmetry):
        # An involution at ½ is the whole symmetry and needs no number.
        text = short_amount(symmetry)
        return name if text == "probability ½" else f"{name} with {text}"
    if unit == "log factor":
        return f"{name} by factors from {math.exp(low):.2f} to {math.exp(high):.2f}"
    if unit == "degrees" and high - low >= 360:
        return f"{name} by any angle"
    after = (
        f" of the {unit.removeprefix('fraction of ')}" if unit.startswith("fraction of ") else ""
    )
    if abs(low + high) <= 0.02 * (high - low):
        return f"{name} by up to {short_amount(symmetry)}{after}"
    return f"{name} from {amount_text(low, unit)} to {amount_text(high, unit)}{after}"


def _short_phrase(symmetry: Mapping[str, Any]) -> str:
    return f"{spoken_name(str(symmetry['name']))} {short_amount(symmetry)}"


def _bound_text(value: float) -> str:
    """The next number with one significant digit above `value`: 0.012 gives "0.02"."""
    if value < 1e-3:
        return "0.001"
    step = 10.0 ** math.floor(math.log10(value))
    return f"{(math.floor(value / step + 1e-9) + 1) * step:.1g}"
