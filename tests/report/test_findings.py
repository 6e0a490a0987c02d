"""When a run of `isotropy learn` is said to have found something, and what its page shows of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from report_pages import Page, learn_record, result_of
from sentence_cases import FOUND, correlated, learned, with_half

from isotropy.report.pages.findings import (
    EVIDENCE_NATS,
    HELD_OUT_NATS,
    disagreement_sentences,
    finding_sentences,
    found_names,
    held_out_table,
    held_out_trials,
    reading_word,
    trained_sentences,
)
from isotropy.report.pages.learn import (
    LearnRecord,
    fallback_sentence,
    learn_page,
    search_drawings,
)
from isotropy.report.record import Learned, Symmetry, read
from isotropy.report.wording import READINGS, reading_of


def page_of(**changes: Any) -> Page:
    """The stored run with changes, without what takes long to draw."""
    record = learn_record(samples=False, **changes)
    return Page(learn_page(dataclasses.replace(record, history=())))


@pytest.mark.parametrize("unit", [*READINGS, "furlong", ""])
def test_words_change_at_the_thresholds(unit: str) -> None:
    reading = reading_of(unit)

    def word(width: float) -> str:
        return reading_word(Symmetry("any", "range", unit, -width, width, ()))

    assert 0 < reading.floor < reading.found < reading.full_scale
    assert word(reading.found) == "found"
    assert word(0.999 * reading.found) == "too small to call"
    assert word(0.999 * reading.floor) == "at the noise floor"
    assert word(0.0) == "zero"
    assert word(math.nan) == "not a number"


def test_what_was_found_by_name() -> None:
    assert found_names(FOUND) == ["rotation"]
    assert found_names({**FOUND, "verdicts": None}) == ["rotation"]
    assert found_names(learned(rotation=2.0)) == []
    absent = [{"name": "rotation", "verdict": "absent"}]
    assert found_names({**learned(rotation=175.0), "verdicts": absent}) == []


def test_without_verdicts_the_thresholds_decide() -> None:
    result = learned(rotation=175.0)
    assert finding_sentences({**result, "verdicts": None}, {}) == finding_sentences(result, {})


# --- the search beside held-out data --------------------------------------------------------------


def marked_rows(result: dict[str, Any]) -> list[int]:
    table = held_out_table(read(Learned, result))
    return [] if table is None else list(table.marked)


@pytest.mark.parametrize(
    ("predictive", "held_out", "expected"),
    [
        (-EVIDENCE_NATS - 0.1, HELD_OUT_NATS + 0.001, True),
        (-EVIDENCE_NATS + 0.1, HELD_OUT_NATS + 0.001, False),
        (-EVIDENCE_NATS - 0.1, HELD_OUT_NATS - 0.001, False),
        (-200.0, -0.3, False),
        (5.0, 0.3, False),
    ],
)
def test_both_must_differ(predictive: float, held_out: float, expected: bool) -> None:
    """Whatever the evidence says; the row that held-out data prefer is marked."""
    for evidence in (-20.0, 0.0):
        result = with_half(predictive, held_out, evidence)
        assert bool(disagreement_sentences(read(Learned, result))) == expected
        assert marked_rows(result) == ([0] if expected else [])


@pytest.mark.parametrize(
    ("evidence", "held_out", "expected"),
    [
        (EVIDENCE_NATS + 0.1, -HELD_OUT_NATS - 0.001, True),
        (EVIDENCE_NATS - 0.1, -HELD_OUT_NATS - 0.001, False),
        (EVIDENCE_NATS + 0.1, -HELD_OUT_NATS + 0.001, False),
        (200.0, 0.3, False),
        (-5.0, -0.3, False),
    ],
)
def test_evidence_against_held_out_data(evidence: float, held_out: float, expected: bool) -> None:
    """Its row is not marked: held-out data do not prefer it."""
    result = with_half(-10.0 if held_out < 0 else 0.0, held_out, evidence)
    assert bool(disagreement_sentences(read(Learned, result))) == expected
    assert marked_rows(result) == []


def test_only_where_the_evidence_is_largest() -> None:
    """At ±200° it is larger still, and there held-out data agree."""
    result = with_half(-10.0, -0.1, 12.34)
    rows = result["search"]["symmetries"]["rotation"]["beside_held_out"]
    rows.append({**rows[1], "amount": 200.0, "log_evidence": -940.0})
    assert disagreement_sentences(read(Learned, result)) == []


@pytest.mark.parametrize(
    "missing", ["amount", "log_predictive", "log_evidence", "test_log_likelihood"]
)
@pytest.mark.parametrize("half", [(-24.9, 0.1, 0.0), (-24.9, -0.1, 20.0)])
def test_without_the_learned_amount_nothing_is_compared(
    missing: str, half: tuple[float, float, float]
) -> None:
    result = with_half(*half)
    assert len(disagreement_sentences(read(Learned, result))) == 1
    result["search"]["symmetries"]["rotation"]["beside_held_out"][1][missing] = None
    known = read(Learned, result)
    assert len(held_out_trials(known.search.symmetries["rotation"])) == 1
    assert disagreement_sentences(known) == trained_sentences(known) == []


def test_one_profile_each_and_held_out_data_for_what_was_taken() -> None:
    titles = [drawing.title for drawing in search_drawings(learn_record(samples=False))]
    assert len(titles) == len(result_of("learn")["search"]["symmetries"]) + 1
    assert titles[:2] == ["Rotation", "Rotation, held-out"]


def test_where_nothing_was_learned_no_range_is_claimed() -> None:
    search = {**result_of("learn")["search"], "nothing_learned": True, "log_predictive": -1150.0}
    for evidence, begin in ((-4700.0, "Nothing was learned by the search"),
                            (-1272.0, "The search cannot tell")):  # fmt: skip
        text = page_of(search=search, log_evidence=evidence).text
        assert begin in text and "The labels do not change" not in text
        assert "143° to" not in text.split("Bars are")[0]


@pytest.mark.parametrize(
    ("value", "width", "told"),
    [(0.97, 0.3, True), (-0.5, 0.3, True), (0.49, 0.3, False), (math.nan, 0.3, False),
     (0.97, 0.01, False)],
)  # fmt: skip
def test_strong_correlations_of_found_symmetries_are_told(
    value: float, width: float, told: bool
) -> None:
    """At the noise floor a correlation means nothing."""
    sentences = finding_sentences(correlated(value, width), {})
    assert any(each.startswith("Not drawn independently") for each in sentences) is told


# --- the page -------------------------------------------------------------------------------------


OBJECTIVES = {
    "laplace": ("Learned range", "log evidence is the logarithm"),
    "augerino": ("Learned range", "Augerino"),
    "fixed": ("The ranges were given", "stayed as they were"),
    "none": ("Nothing was learned", "without any transformation"),
    "averaged-losses": ("The ranges were given", "the likelihood of no single prediction"),
    "augerino-original": ("Learned range", "as it was published"),
    "trivial-augment": ("TrivialAugment drew at random", "a fixed list"),
}
UNSEARCHED: dict[str, Any] = {"verdicts": None, "search": None, "calibration": None}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_is_explained(objective: str) -> None:
    evidence = -1272.7 if objective == "laplace" else None
    text = page_of(**UNSEARCHED, objective=objective, log_evidence=evidence).text
    for expected in OBJECTIVES[objective]:
        assert expected in text
    assert ("noise floor of a few times" in text) == (
        objective.split("-")[0] in ("laplace", "augerino")
    )


def test_what_was_not_computed_is_left_out() -> None:
    bare = {**result_of("learn"), **UNSEARCHED}
    bare |= {"correlations": None, "screening": None, "fallback": {}, "evidence": None}
    bare["symmetries"] = [s for s in bare["symmetries"] if s["kind"] == "range"]
    record = LearnRecord(bare, {}, (), {})
    text = Page(learn_page(record)).text
    assert "Reading" in text and "No history of the ranges was kept." in text
    for part in ("Verdict", "Truth", "What the search found", "Probability", "Reliability",
                 "How the amounts go together", "The screening it", "curvature rule",
                 "A probability", "This value depends on", "What the transformations do",
                 "Evidence and accuracy"):  # fmt: skip
        assert part not in text, part


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ("fixed", "; their weights count as fixed: the evidence does not price them."),
        ("other", "; handled by the fallback other."),
        (None, "."),
    ],
)
def test_each_fallback_is_explained(done: str | None, expected: str) -> None:
    record = learn_record(samples=False)
    changed = dataclasses.replace(record, config={"schedule": {"fallback": done}})
    names = "Layers without a curvature rule: features.norm (LayerNorm)"
    assert fallback_sentence(changed) == names + expected


def test_flows_that_are_not_numbers_are_left_out() -> None:
    record = learn_record()
    assert record.flows is not None
    first = np.arange(len(record.flows))[:, None, None, None, None] == 0
    flows = np.where(first, np.nan, record.flows)
    changed = dataclasses.replace(record, flows=flows, image_shape=None, history=())
    assert learn_page(changed).count("Sampled transformation") == len(flows) - 1


def test_large_noise_images_stay_within_the_size() -> None:
    noise = np.random.default_rng(0).random((12, 12, 3, 224, 224), dtype=np.float32)
    record = dataclasses.replace(learn_record(), examples=noise)
    assert len(learn_page(record).encode()) < 1_500_000
