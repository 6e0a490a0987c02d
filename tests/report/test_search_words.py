"""Evidence beside held-out data: when the two disagree, what is said, and what the page shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from report_pages import SEARCH, Page, assert_self_contained, result_with, searched

from isotropy.report.learn_report import learn_page
from isotropy.report.reading import finding_sentences
from isotropy.report.record import LearnRecord
from isotropy.report.search_drawings import held_out_rows, search_drawings
from isotropy.report.search_words import (
    EVIDENCE_NATS,
    HELD_OUT_NATS,
    disagreement_sentences,
    held_out_points,
)


def with_half(evidence: float, held_out: float) -> dict[str, Any]:
    """A result in which half of ±100° differs by these from the learned amount."""
    own = searched(100.0, 200.0)
    own["beside_held_out"] = [
        {"amount": 50.0, "log_evidence": -900.0 + evidence, "test_log_likelihood": -1.5 + held_out},
        {"amount": 100.0, "log_evidence": -900.0, "test_log_likelihood": -1.5},
    ]
    search = {**SEARCH, "symmetries": {"rotation": own}}
    return {**result_with(rotation=100.0), "search": search}


@pytest.mark.parametrize(
    ("evidence", "held_out", "expected"),
    [
        (-EVIDENCE_NATS - 0.1, HELD_OUT_NATS + 0.001, True),
        (-EVIDENCE_NATS + 0.1, HELD_OUT_NATS + 0.001, False),
        (-EVIDENCE_NATS - 0.1, HELD_OUT_NATS - 0.001, False),
        (-200.0, -0.3, False),
        (5.0, 0.3, False),
    ],
)
def test_both_must_differ(evidence: float, held_out: float, expected: bool) -> None:
    result = with_half(evidence, held_out)
    assert bool(disagreement_sentences(result)) == expected
    record = LearnRecord(result, {}, (), {})
    assert [row.preferred for row in held_out_rows(record)] == [expected, False]


def test_the_sentence_is_among_the_findings() -> None:
    assert finding_sentences(with_half(-24.9, 0.1), {})[-1] == (
        "Evidence and held-out data disagree on rotation: of the linearised network, the held-out "
        "log density per example is −1.400 at ±50° and −1.500 at ±100°, while the log evidence at "
        "±50° is lower by 24.9 nats."
    )


@pytest.mark.parametrize("missing", ["amount", "log_evidence", "test_log_likelihood"])
def test_without_the_learned_amount_nothing_is_compared(missing: str) -> None:
    result = with_half(-24.9, 0.1)
    own = result["search"]["symmetries"]["rotation"]
    own["beside_held_out"][1][missing] = None
    assert len(held_out_points(own)) == 1 and disagreement_sentences(result) == []
    assert disagreement_sentences({**result, "search": None}) == []


def test_one_profile_each_and_held_out_data_for_what_was_taken(light: LearnRecord) -> None:
    titles = [drawing.title for drawing in search_drawings(light)]
    assert len(titles) == len(SEARCH["symmetries"]) + 1
    assert titles[:2] == ["Rotation", "Rotation, held-out"]
    assert [row.name for row in held_out_rows(light)] == ["Rotation"] * 4


def test_without_held_out_data_there_is_no_table(light: LearnRecord) -> None:
    search = {**SEARCH, "symmetries": {"rotation": searched(178.74, 283.0, held_out=False)}}
    text = Page(learn_page(changed(light, search=search))).text
    assert "What the search found" in text and "Evidence beside held-out data" not in text


def test_a_preferred_amount_is_marked(light: LearnRecord) -> None:
    page = learn_page(changed(light, search=with_half(-24.9, 0.1)["search"]))
    assert_self_contained(page)
    assert page.count('<tr class="large">') == 1
    assert "Evidence and held-out data disagree on rotation" in Page(page).text


def test_where_nothing_was_learned_no_range_is_claimed(light: LearnRecord) -> None:
    verdicts = [
        {**each, "verdict": "cannot tell", "probability": None} for each in light.result["verdicts"]
    ]
    search = {**SEARCH, "nothing_learned": True, "log_evidence": -1150.0}
    record = changed(light, verdicts=verdicts, search=search, log_evidence=-4700.0)
    text = Page(learn_page(record)).text
    assert "the network linearised at its start, −1,150.0 nats" in text
    assert "The labels do not change" not in text and "143° to" not in text.split("Bars are")[0]
    trained = Page(learn_page(changed(record, log_evidence=-1272.0))).text
    assert "The search cannot tell: the network linearised" in trained
    assert "The labels do not change" not in trained


def changed(record: LearnRecord, **changes: Any) -> LearnRecord:
    return dataclasses.replace(record, result={**record.result, **changes})
