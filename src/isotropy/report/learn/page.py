"""The report of `isotropy learn`: one record in, one self-contained HTML page out.

The page says, in this order: what was found, the key numbers, every amount beside its truth and
verdict, what the search before the run found, how the amounts came about and go together, what
they do to real images, how evidence and accuracy went, whether predictions are as sure as they
should be, and how to make the run again.
Here the record is turned into the small objects below, all text and numbers ready to print; the
words between them and the looks are in `templates/`. What a record does not hold is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotropy.report.learn.drawings import (
    NO_UNIT,
    calibration_drawings,
    correlation_drawing,
    curve_drawings,
    example_pictures,
    flow_drawings,
    range_drawings,
)
from isotropy.report.learn.reading import (
    FOUND_WORDS,
    NOT_LEARNED,
    amount_text,
    finding_sentence,
    finding_sentences,
    is_probability,
    reading_of,
    verdicts_by_name,
    word_of,
)
from isotropy.report.learn.search import (
    held_out_rows,
    is_nothing_learned,
    null_words,
    search_drawings,
    searched_by_name,
)
from isotropy.report.page import KeyNumber, SettingsGroup, flat_settings, render, settings_groups
from isotropy.report.record import LearnRecord
from isotropy.report.screen import screening_rows
from isotropy.report.wording import (
    MISSING,
    duration_text,
    finite,
    interval_text,
    joined,
    known_text,
    mapping_of,
    nats_text,
    number_text,
    pair_of,
    percent_text,
    signed_amount,
    title_of,
)

__all__ = ["finding_sentence", "learn_page"]

_FALLBACK_WORDS = {
    "diagonal": "their curvature is a diagonal",
    "fixed": "their weights count as fixed: the evidence does not price them",
}


@dataclass(frozen=True)
class SymmetryRow:
    """A symmetry in the table; bar ends and truths in per cent of its full scale.

    bar_from: −100 for a range about zero, 0 for a probability; bar ends lie in [bar_from, 100]
    interval, probability, floor, gain: what the verdict rests on; empty where there is none.
              The probability is that of more than the floor.
    """

    name: str
    unit: str
    extent: str
    truth: str
    verdict: str
    found: bool
    interval: str
    probability: str
    floor: str
    gain: str
    bar_from: int
    bar: tuple[float, float] | None
    bar_truths: tuple[float, ...]


@dataclass(frozen=True)
class CalibrationRow:
    """Scores of one way of predicting, as text."""

    name: str
    accuracy: str
    log_likelihood: str
    brier_score: str
    calibration_error: str


def learn_page(record: LearnRecord) -> str:
    """The report as the text of an HTML page."""
    result = record.result
    headline, *remarks = finding_sentences(result, record.truth)
    symmetries = result.get("symmetries") or ()
    units = {symmetry["name"]: str(symmetry.get("unit") or "") for symmetry in symmetries}
    verdicts = verdicts_by_name(result)
    rows = [symmetry_row(symmetry, record.truth, result) for symmetry in symmetries]
    probabilities = [symmetry for symmetry in symmetries if is_probability(symmetry)]
    return render(
        "learn.html.j2",
        headline=headline,
        remarks=remarks,
        data_name=str(result.get("data") or "unnamed data"),
        objective=result.get("objective"),
        learned=result.get("objective") not in NOT_LEARNED,
        has_evidence=finite(result.get("log_evidence")) is not None,
        curvature=result.get("curvature"),
        evidence_words=evidence_words(result),
        copies=known_text(result.get("samples"), "{} "),
        test_copies=known_text(result.get("test_samples"), " (at test time {})"),
        version=str(result.get("isotropy") or ""),
        key_numbers=key_numbers(result),
        rows=rows,
        judged=bool(verdicts),
        has_intervals=any(row.interval for row in rows),
        search=search_facts(result),
        search_drawings=search_drawings(record),
        held_out_rows=held_out_rows(record),
        correlated=result.get("distribution") == "correlated",
        has_ranges=len(probabilities) < len(symmetries),
        has_probabilities=bool(probabilities),
        truth_known=bool(record.truth),
        found_from=_per_unit(symmetries, "found"),
        full_at=_per_unit([s for s in symmetries if not is_probability(s)], "full_scale"),
        range_drawings=range_drawings(record),
        correlation_drawing=correlation_drawing(record),
        pictures=example_pictures(record),
        flow_drawings=flow_drawings(record),
        curve_drawings=curve_drawings(record),
        calibration=calibration_rows(result),
        calibration_examples=_calibration_examples(result),
        calibration_drawings=calibration_drawings(record),
        screening=screening_rows(mapping_of(result.get("screening")), units),
        fallback=fallback_sentence(record),
        settings=learn_settings(record),
    )


def key_numbers(result: Mapping[str, Any]) -> list[KeyNumber]:
    """Test accuracy, evidence beside that of a constant prediction, copies, and time."""
    accuracy, tested = finite(result.get("test_accuracy")), finite(result.get("test_examples"))
    accuracy_note = "no test data"
    if accuracy is not None:
        accuracy_note = "on test data"
        if tested:
            error = math.sqrt(max(accuracy * (1 - accuracy), 0.0) / tested)
            accuracy_note = f"{tested:,.0f} test examples, standard error {100 * error:.1f} points"
    total = number_text(result.get("log_evidence"), 1)
    evidence_note = "not computed" if total == MISSING else f"{total} in total"
    if total != MISSING and finite(result.get("train_examples")):
        evidence_note += f", {number_text(result.get('train_examples'), 0)} examples"
    null = number_text(result.get("null_log_evidence"), 1)
    if total != MISSING and null != MISSING:
        evidence_note += f"; {null_words(result)} {null}"
    device = f"on {result['device']}" if result.get("device") else ""
    return [
        KeyNumber("Test accuracy", percent_text(accuracy), accuracy_note),
        KeyNumber(
            "Log evidence per example",
            number_text(result.get("log_evidence_per_example"), 3),
            evidence_note,
        ),
        KeyNumber(
            "Copies averaged",
            number_text(result.get("samples"), 0),
            known_text(result.get("test_samples"), "{} at test time"),
        ),
        KeyNumber(
            "Time",
            duration_text(result.get("seconds")),
            known_text(result.get("epochs"), "{} epochs ") + device,
        ),
    ]


def search_facts(result: Mapping[str, Any]) -> dict[str, str]:
    """How the search went, as text; empty without one."""
    search = mapping_of(result.get("search"))
    if not search:
        return {}
    return {
        "trials": number_text(search.get("trials"), 0),
        "examples": number_text(search.get("examples"), 0),
        "seconds": duration_text(search.get("seconds")),
        "seed_error": number_text(search.get("seed_error"), 1),
    }


def symmetry_row(
    symmetry: Mapping[str, Any], truth: Mapping[str, float], result: Mapping[str, Any]
) -> SymmetryRow:
    """One line of the table of symmetries; what the verdict rests on only where it claims."""
    verdicts = verdicts_by_name(result)
    reading = reading_of(symmetry.get("unit"))
    one_sided = is_probability(symmetry)
    low, high = finite(symmetry.get("low")), finite(symmetry.get("high"))
    true = finite(truth.get(symmetry["name"]))
    full = max([reading.full_scale, *(abs(value) for value in (low, high, true) if value)])
    unit = str(symmetry.get("unit") or "")
    claims = not is_nothing_learned(result)
    judged = verdicts.get(symmetry["name"], {}) if claims else {}
    searched = searched_by_name(result).get(symmetry["name"], {}) if claims else {}
    interval = interval_text(symmetry.get("interval"), unit) if claims else MISSING
    floor = finite(searched.get("floor"))
    word = word_of(symmetry, verdicts)
    share = None if true is None else 100 * abs(true) / full
    return SymmetryRow(
        name=title_of(str(symmetry["name"])),
        unit=str(symmetry.get("unit") or NO_UNIT),
        extent=_extent_text(symmetry),
        truth=_truth_text(true, symmetry),
        verdict=word,
        found=word in FOUND_WORDS,
        interval="" if interval == MISSING else interval,
        probability=_probability_text(judged.get("probability")),
        floor="" if floor is None else signed_amount(floor, unit),
        gain=_gain_text(judged),
        bar_from=0 if one_sided else -100,
        bar=None if low is None or high is None else (100 * low / full, 100 * high / full),
        bar_truths=() if not share else (share,) if one_sided else (-share, share),
    )


def _gain_text(judged: Mapping[str, Any]) -> str:
    """`283 nats (258 to 309)`; empty where there is none."""
    gain, interval = nats_text(judged.get("gain_nats")), pair_of(judged.get("gain_interval"))
    if gain == MISSING:
        return ""
    return f"{gain} nats" + (f" ({' to '.join(map(nats_text, interval))})" if interval else "")


def _probability_text(value: object) -> str:
    """In whole per cent, and never surer than 99 %."""
    number = finite(value)
    if number is None:
        return ""
    if not 0.01 <= number <= 0.99:
        return "under 1 %" if number < 0.01 else "over 99 %"
    return percent_text(number, 0)


def _extent_text(symmetry: Mapping[str, Any]) -> str:
    """`−177.5° … 177.5°`; a probability alone, and ½ as the whole."""
    reading = reading_of(symmetry.get("unit"))
    low, high = finite(symmetry.get("low")), finite(symmetry.get("high"))
    if low is None and high is None:
        return MISSING
    if low == high == 0:
        return "0"
    if is_probability(symmetry):
        text = amount_text(high, "probability") if high is not None else MISSING
        return "½ (whole)" if text == "½" else number_text(high, reading.decimals)
    return " … ".join(number_text(end, reading.decimals, reading.symbol) for end in (low, high))


def _truth_text(true: float | None, symmetry: Mapping[str, Any]) -> str:
    if true is None:
        return MISSING
    if is_probability(symmetry):
        return "½" if true == 0.5 else f"{true:g}"
    return f"{'±' if true else ''}{true:g}{reading_of(symmetry.get('unit')).symbol}"


def calibration_rows(result: Mapping[str, Any]) -> list[CalibrationRow]:
    """Scores of the predictions on test data, one row per way of predicting."""
    rows: list[CalibrationRow] = []
    for name, given in mapping_of(result.get("calibration")).items():
        scores = mapping_of(given)
        rows.append(
            CalibrationRow(
                title_of(str(name)),
                percent_text(scores.get("accuracy")),
                number_text(scores.get("log_likelihood"), 3),
                number_text(scores.get("brier_score"), 3),
                percent_text(scores.get("expected_calibration_error")),
            )
        )
    return rows


def _calibration_examples(result: Mapping[str, Any]) -> str:
    """How many test examples were scored, where all ways of predicting had the same."""
    scores = mapping_of(result.get("calibration")).values()
    counts = {finite(mapping_of(each).get("examples")) for each in scores}
    return number_text(counts.pop(), 0) + " " if len(counts) == 1 and None not in counts else ""


def evidence_words(result: Mapping[str, Any]) -> str:
    """What the evidence's value depends on besides the model, as a list in a sentence."""
    value = mapping_of(result.get("evidence"))
    told = {
        "the curvature": value.get("curvature"),
        "the number of copies": value.get("samples"),
        "the structure of the prior": value.get("prior_structure"),
        "the draws of the noise": value.get("noise_seed"),
    }
    known = [f"{name} ({text})" for name, text in told.items() if text is not None]
    return joined(known) if known else ""


def fallback_sentence(record: LearnRecord) -> str:
    """Which layers have no curvature rule and what was done about them; empty without any."""
    layers = mapping_of(record.result.get("fallback"))
    if not layers:
        return ""
    names = joined(f"{name} ({kind})" for name, kind in layers.items())
    done = str(mapping_of(record.config.get("schedule")).get("fallback") or "")
    words = _FALLBACK_WORDS.get(done, f"handled by the fallback {done}" if done else "")
    return f"Layers without a curvature rule: {names}{'; ' if words else ''}{words}."


def learn_settings(record: LearnRecord) -> list[SettingsGroup]:
    """The run, what the evidence's value depends on, and each part of the config."""
    result = record.result
    run = {name: result.get(name) for name in ("objective", "curvature", "distribution", "padding")}
    if result.get("distribution") is None:
        del run["distribution"]
    first, *others = settings_groups({"command": "learn", **result}, record.config, run=run)
    evidence = mapping_of(result.get("evidence"))
    between: list[SettingsGroup] = [("evidence", flat_settings(evidence))] if evidence else []
    return [first, *between, *others]


def _per_unit(symmetries: Sequence[Mapping[str, Any]], attribute: str) -> str:
    """A number of each unit's reading: `20°, 0.05 (fraction of image width) and 0.1 (…)`."""
    parts: list[str] = []
    for unit in dict.fromkeys(str(symmetry.get("unit") or NO_UNIT) for symmetry in symmetries):
        reading = reading_of(unit)
        name = "" if reading.symbol else f" ({unit})"
        parts.append(f"{getattr(reading, attribute):g}{reading.symbol}{name}")
    return joined(parts) if parts else ""
