"""The report of `isotropy certify`: sentences, tables and drawings from a record."""

from __future__ import annotations

from typing import Any

import pytest

from isotropy.report.pages.certify import (
    Certified,
    certify_page,
    certify_sentences,
    dimension_drawings,
)
from isotropy.report.record import read
from isotropy.report.summary import summary_html

ROWS = [
    {"dimension": d, "beta": beta, "width": 0, "seed": 0, "step": 0.5, "weights": 3.0 * d,
     "train_error": 0.5 - d / 1000, "bound": 0.6 - d / 2000 + beta / 100}
    for d in (100, 200, 300)
    for beta in (1.0, 2.0)
]  # fmt: skip
RECORD: dict[str, Any] = {
    "command": "certify", "isotropy": "1", "device": "cpu", "seconds": 12.0, "data": "digits",
    "network": "compact:12", "num_weights": 21044, "bound": 0.46, "train_error": 0.2, "n": 2000,
    "delta": 0.05, "kind": "compression", "dimension": 300,
    "bits": {"grid": 7.0, "step": 3.0, "scale": 4.0, "weights": 900.0, "symmetries": 3.3,
             "total": 917.3},
    "message_bits": 901, "bounds": {"occam": 0.46, "hoeffding": 0.5}, "test_error": None,
    "grid_entries": 128, "symmetry_text": "C(4)", "trained": ROWS,
    "plain": {"bound": 0.64, "train_error": 0.3, "bits": 940.0},
}  # fmt: skip


def test_the_bound_comes_first_and_the_symmetry_is_valued() -> None:
    first, *rest = certify_sentences(RECORD)
    assert first == (
        "With 95 % confidence the compressed network errs on at most 46.0 % of new data."
    )
    assert "It errs on 20.0 % of 2,000 training examples" in rest[0]
    assert "917 bits" in rest[0]
    assert "lowers the bound by 18.0 points: without it the bound is 64.0 %." in " ".join(rest)
    worse = {**RECORD, "plain": {**RECORD["plain"], "bound": 0.4}}
    assert "raises the bound by 6.0 points" in " ".join(certify_sentences(worse))


@pytest.mark.parametrize("kind", ["compression", "transfer", "data-dependent", "held-out"])
def test_the_page_says_what_the_certificate_rests_on(kind: str) -> None:
    page = certify_page({**RECORD, "kind": kind}, {"grid": {"dimensions": [100, 200, 300]}})
    told = certify_sentences({**RECORD, "kind": kind})[-1]
    assert page.count(told) >= 1
    for words in ("What the symmetry is worth", "The account", "Other inequalities", "Hoeffding",
                  "917.3", "901 bits"):  # fmt: skip
        assert words in page


def test_dimensions_are_drawn_by_their_best_entries() -> None:
    bound, bits = dimension_drawings(read(Certified, RECORD).trained)
    assert "100: 56.0, 200: 51.0, 300: 46.0" in bound.svg
    assert "100: 300.0, 200: 600.0, 300: 900.0" in bits.svg
    assert dimension_drawings(read(Certified, {**RECORD, "trained": ROWS[:2]}).trained) == []


def test_an_empty_record_still_has_a_page() -> None:
    assert "The account" in certify_page({}, {})


def test_notebooks_show_the_bound() -> None:
    shown = summary_html(RECORD)
    assert "at most 46.0\N{NO-BREAK SPACE}% of new data" in shown and "Training error" in shown
