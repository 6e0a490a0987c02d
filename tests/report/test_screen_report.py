"""The page and the sentences of a screening, from made-up records."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_pages import (
    CONFIG,
    EVIL,
    Page,
    assert_no_numbers_leak,
    assert_self_contained,
    nothing_known,
    screen_result,
)

from isotropy.report.screen import amounts_text, gain_bars, screen_page, screen_sentences


def test_sentences() -> None:
    assert screen_sentences(screen_result()) == [
        "The plain network asks for rotation, then scaling along x + scaling along y.",
        "Rotation: gain 0.61 ± 0.00 nats per example at ±32°.",
        "Scaling along x + scaling along y: gain 0.021 ± 0.002 nats per example at ±0.14 each, "
        "on top of the above.",
        "Not asked for: horizontal flip and translation along x.",
        "A full run would start from rotation ±32°, scaling along x ±0.14 and "
        "scaling along y ±0.14, and is the judge.",
    ]


def test_opposite_directions_keep_their_sign() -> None:
    result = screen_result()
    row = {**result["screening"]["rows"][1], "direction": "scale_x − scale_y"}
    result["screening"]["rows"] = [row]
    assert screen_sentences(result)[0].endswith("asks for scaling along x − scaling along y.")


def test_nothing_is_wanted() -> None:
    result = screen_result()
    result["screening"]["rows"] = result["screening"]["rows"][2:]
    result["screening"]["start"] = {}
    assert screen_sentences(result) == [
        "The plain network asks for nothing: no gain is larger than its error."
    ]
    assert "From a trace of everything: nothing was wanted." in Page(screen_page(result, {})).text


def test_page_is_whole() -> None:
    page = screen_page(screen_result(), CONFIG)
    assert_self_contained(page)
    assert page == screen_page(screen_result(), CONFIG), "written twice, the same"
    text = Page(page).text
    for expected in (
        "95.3 %",
        "−1.155",
        "−2,310.5 in total",
        "64 of one trained network",
        "Rotation 0.61 ± 0.00",
        "probability 0.10",
        "Matrix of second differences",
        "−3.30",
        "Rotation degrees ±32°",
        "with curvature kfac-ggn",
        "isotropy screen",
        "batch_size 1000",
        "abc123",
    ):
        assert expected in text, expected
    assert text.count("wanted no") == 0 and page.count('class="verdict found"') == 2


def test_units_are_optional() -> None:
    result = {**screen_result(), "units": None}
    assert "at ±32.40." in screen_sentences(result)[1]
    assert_self_contained(screen_page(result, CONFIG))


def rows(*gains: float | None, error: float | None = None) -> list[dict[str, Any]]:
    return [{"gain": gain, "error": error} for gain in gains]


def test_bars_share_one_axis() -> None:
    first, second = gain_bars(rows(0.8, 0.2, error=0.2))
    assert first is not None and second is not None
    assert (first.zero, first.low, first.high) == (0.0, 0.0, pytest.approx(80.0))
    assert first.error == pytest.approx((60.0, 100.0))
    assert (second.low, second.high) == (0.0, pytest.approx(20.0))


def test_a_large_loss_does_not_hide_the_gains() -> None:
    gain, loss, small = gain_bars(rows(1.0, -50.0, -0.125))
    assert gain is not None and loss is not None and small is not None
    assert gain.zero == loss.zero == pytest.approx(20.0)
    assert (gain.low, gain.high) == (pytest.approx(20.0), pytest.approx(100.0))
    assert (loss.low, loss.high) == (0.0, pytest.approx(20.0)), "cut off at the end of the axis"
    assert (small.low, small.high) == (pytest.approx(10.0), pytest.approx(20.0))


def test_only_losses_and_no_number_at_all() -> None:
    loss, nothing = gain_bars(rows(-0.5, None))
    assert nothing is None and loss is not None
    assert loss.low < loss.high == loss.zero
    assert gain_bars([]) == []


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ({"rotation": 32.4}, "±32°"),
        ({"horizontal_flip": 0.5}, "probability ½"),
        ({"scale_x": 0.1, "scale_y": 0.3}, "scaling along x ±0.10, scaling along y ±0.30"),
        ({"scale_x": 0.1, "scale_y": 0.1}, "±0.10 each"),
        ({"scale_x": 0.1, "own": 0.1}, "scaling along x ±0.10, own ±0.10"),
        ({"rotation": None}, "–"),
        ({}, "–"),
        (None, "–"),
    ],
)
def test_amounts_text(amounts: dict[str, float] | None, expected: str) -> None:
    units = {
        "rotation": "degrees",
        "scale_x": "log factor",
        "scale_y": "log factor",
        "horizontal_flip": "probability",
    }
    assert amounts_text(amounts, units) == expected


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf])
def test_every_number_may_be_missing(missing: float | None) -> None:
    page = screen_page(nothing_known(screen_result(), missing), nothing_known(CONFIG, missing))
    assert_self_contained(page)
    assert_no_numbers_leak(Page(page).text)


@pytest.mark.parametrize("name", ["screening", "training", "units", "data", "versions"])
def test_every_part_may_be_null(name: str) -> None:
    assert_self_contained(screen_page({**screen_result(), name: None}, CONFIG))


def test_a_bare_record() -> None:
    assert screen_sentences({}) == ["No transformation was screened."]
    assert "No transformation was screened." in Page(screen_page({}, {})).text


@pytest.mark.parametrize("matrix", [[[1.0]], [[1.0, 2.0]] * 4, "none", [None] * 4])
def test_a_matrix_that_does_not_fit_is_left_out(matrix: object) -> None:
    result = screen_result()
    result["screening"]["matrix"] = matrix
    assert "What is wanted together" not in Page(screen_page(result, CONFIG)).text


def test_text_is_escaped() -> None:
    result = {**screen_result(), "data": EVIL, "curvature": EVIL, "device": EVIL}
    screening = result["screening"]
    screening["rows"][0] |= {"direction": EVIL, "names": [EVIL], "amounts": {EVIL: 1.0}}
    screening["generators"][0] = EVIL
    screening["start"] = {EVIL: 1.0}
    page = screen_page(result, {EVIL: {EVIL: EVIL}})
    assert "<script" not in page
    assert Page(page).text.count(EVIL) >= 8
