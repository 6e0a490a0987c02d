"""The search beside held-out data: where they disagree, what is said, and what the page shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from report_pages import (
    SEARCH,
    Page,
    assert_self_contained,
    held_out_row,
    result_with,
    searched,
)

from isotropy.report.learn.page import learn_page
from isotropy.report.learn.reading import finding_sentences
from isotropy.report.learn.search import (
    EVIDENCE_NATS,
    HELD_OUT_NATS,
    disagreement_sentences,
    held_out_points,
    held_out_rows,
    search_drawings,
    trained_sentences,
)
from isotropy.report.record import LearnRecord


def with_half(predictive: float, held_out: float, evidence: float = 0.0) -> dict[str, Any]:
    """A result in which half of ±100° differs by these from the learned amount."""
    own = searched(100.0, 200.0)
    own["beside_held_out"] = [
        held_out_row(50.0, -900.0 + predictive, -960.0 + evidence, -1.5 + held_out),
        held_out_row(100.0, -900.0, -960.0, -1.5),
    ]
    search = {**SEARCH, "symmetries": {"rotation": own}}
    return {**result_with(rotation=100.0), "search": search}


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
    """Whatever the evidence says."""
    for evidence in (-20.0, 0.0):
        result = with_half(predictive, held_out, evidence)
        assert bool(disagreement_sentences(result)) == expected
        record = LearnRecord(result, {}, (), {})
        assert [row.preferred for row in held_out_rows(record)] == [expected, False]


def test_the_sentence_is_among_the_findings() -> None:
    assert finding_sentences(with_half(-24.9, 0.1), {})[-1] == (
        "The search and held-out data disagree on rotation: of the linearised network, the "
        "held-out log density per example is −1.400 at ±50° and −1.500 at ±100°, while the log "
        "predictive density of training examples left out is lower at ±50° by 24.9 nats."
    )


def after_training(kept: Amounts, *rows: tuple[Amounts, float | None]) -> dict[str, Any]:
    """A result with these amounts, after networks with others had been trained."""
    trained = [{"amounts": amounts, "log_evidence": value} for amounts, value in rows]
    search = {**SEARCH, "amounts": kept, "trained": trained}
    return {**result_with(**kept), "search": search}


Amounts = dict[str, float]
WHOLE: Amounts = {"rotation": 180.0, "scale_x": 0.1}
HALF: Amounts = {"rotation": 90.0, "scale_x": 0.1}
SCALED: Amounts = {"rotation": 0.0, "scale_x": 0.1}
NONE: Amounts = {"rotation": 0.0, "scale_x": 0.0}
HALF_SENTENCE = (
    "Trained with half the period, rotation by up to ±90°, the network has a log evidence of "
    "−1,742.5 nats, with the whole of it −1,767.2: "
)
NONE_SENTENCE = (
    "Trained without any symmetry the network has a log evidence of −1,700.0 nats, with what the "
    "search found −1,742.5: "
)
TRAINED = {
    "a whole period": (WHOLE, [], [HALF_SENTENCE + "all of it is needed."]),
    "half of it": (
        HALF,
        [(NONE, -1700.0)],
        [HALF_SENTENCE + "no more is needed than half.", NONE_SENTENCE + "confirmed."],
    ),
    "none of it": (
        NONE,
        [(NONE, -1700.0)],
        [
            HALF_SENTENCE + "no more is needed than half.",
            NONE_SENTENCE + "rotation and scaling along x left out, not confirmed by training.",
        ],
    ),
    "one of both": (
        SCALED,
        [(NONE, -1700.0), (SCALED, -1699.0)],
        [
            HALF_SENTENCE + "no more is needed than half.",
            NONE_SENTENCE + "rotation left out, not confirmed by training.",
        ],
    ),
}


@pytest.mark.parametrize(("kept", "rows", "sentences"), TRAINED.values(), ids=TRAINED)
def test_what_training_adds_is_said(kept, rows, sentences: list[str]) -> None:
    result = after_training(kept, (WHOLE, -1767.2), (HALF, -1742.5), *rows)
    assert trained_sentences(result) == sentences
    assert set(sentences) <= set(finding_sentences(result, {}))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(WHOLE, -1.0)],
        [(WHOLE, -1.0), (HALF, None)],
        [(WHOLE, None), (HALF, -1.0), (NONE, -2.0)],
    ],
)
def test_without_trained_rivals_nothing_is_said(rows) -> None:
    assert trained_sentences(after_training(WHOLE, *rows)) == []


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
    assert bool(disagreement_sentences(result)) == expected
    assert not any(row.preferred for row in held_out_rows(LearnRecord(result, {}, (), {})))


def test_only_where_the_evidence_is_largest() -> None:
    """At ±200° it is larger still, and there held-out data agree."""
    result = with_half(-10.0, -0.1, 12.34)
    assert finding_sentences(result, {})[-1] == (
        "On rotation the evidence of the linearised network prefers ±50° to the learned ±100° by "
        "12.3 nats, and held-out data do not: their log density per example is −1.600 at ±50° and "
        "−1.500 at ±100°."
    )
    rows = result["search"]["symmetries"]["rotation"]["beside_held_out"]
    rows.append(held_out_row(200.0, -901.0, -960.0 + 20.0, -1.5))
    assert disagreement_sentences(result) == []


NUMBERS = ["amount", "log_predictive", "log_evidence", "test_log_likelihood"]


@pytest.mark.parametrize("missing", NUMBERS)
@pytest.mark.parametrize("half", [(-24.9, 0.1, 0.0), (-24.9, -0.1, 20.0)])
def test_without_the_learned_amount_nothing_is_compared(
    missing: str, half: tuple[float, float, float]
) -> None:
    result = with_half(*half)
    assert len(disagreement_sentences(result)) == 1
    own = result["search"]["symmetries"]["rotation"]
    own["beside_held_out"][1][missing] = None
    assert len(held_out_points(own)) == 1 and disagreement_sentences(result) == []
    assert disagreement_sentences({**result, "search": None}) == []


def test_the_table_has_all_three_numbers(light: LearnRecord) -> None:
    first, *_ = held_out_rows(changed(light, search=with_half(-24.9, 0.1, 7.5)["search"]))
    assert (first.log_predictive, first.log_evidence) == ("−924.9", "−952.5")
    assert first.held_out == "−1.400"


def test_one_profile_each_and_held_out_data_for_what_was_taken(light: LearnRecord) -> None:
    titles = [drawing.title for drawing in search_drawings(light)]
    assert len(titles) == len(SEARCH["symmetries"]) + 1
    assert titles[:2] == ["Rotation", "Rotation, held-out"]
    assert [row.name for row in held_out_rows(light)] == ["Rotation"] * 4


def test_without_held_out_data_there_is_no_table(light: LearnRecord) -> None:
    search = {**SEARCH, "symmetries": {"rotation": searched(178.74, 283.0, held_out=False)}}
    text = Page(learn_page(changed(light, search=search))).text
    assert "What the search found" in text and "beside held-out data" not in text


def test_a_preferred_amount_is_marked(light: LearnRecord) -> None:
    page = learn_page(changed(light, search=with_half(-24.9, 0.1)["search"]))
    assert_self_contained(page)
    assert page.count('<tr class="large">') == 1
    assert "The search and held-out data disagree on rotation" in Page(page).text


def test_where_nothing_was_learned_no_range_is_claimed(light: LearnRecord) -> None:
    verdicts = [
        {**each, "verdict": "cannot tell", "probability": None} for each in light.result["verdicts"]
    ]
    search = {**SEARCH, "nothing_learned": True, "log_predictive": -1150.0}
    record = changed(light, verdicts=verdicts, search=search, log_evidence=-4700.0)
    text = Page(learn_page(record)).text
    assert "the network linearised at its start, −1,150.0 nats" in text
    assert "The labels do not change" not in text and "143° to" not in text.split("Bars are")[0]
    trained = Page(learn_page(changed(record, log_evidence=-1272.0))).text
    assert "The search cannot tell: the network linearised" in trained
    assert "The labels do not change" not in trained


def changed(record: LearnRecord, **changes: Any) -> LearnRecord:
    return dataclasses.replace(record, result={**record.result, **changes})
