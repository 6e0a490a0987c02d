"""The page and the sentences of profiles, from made-up records."""

from __future__ import annotations

import math
import re

import pytest
from report_pages import (
    CONFIG,
    EVIL,
    Page,
    assert_no_numbers_leak,
    assert_self_contained,
    nothing_known,
    profile_result,
)

from isotropy.report.profile import profile_page, profile_sentences


def test_sentences() -> None:
    assert profile_sentences(profile_result()) == [
        "The evidence is largest at rotation ±91°, by kfac-ggn.",
        "The data were made with rotation ±90°.",
        "kfac-ggn: largest at ±91° (95 % credible: 85° to 97°), 1.1 % from the truth; held-out "
        "likelihood is largest at ±92°, rank correlation 0.98.",
        "diagonal-ggn: largest at ±40° (95 % credible: 34° to 46°), 55.0 % from the truth; "
        "held-out likelihood is largest at ±92°, rank correlation −0.20.",
        "kfac-ef: no profile, since layer 'norm' has no rule; take a fallback.",
    ]


def test_a_truth_of_zero_has_no_distance_in_per_cent() -> None:
    result = {**profile_result(), "truth": 0.0}
    told = profile_sentences(result)
    assert told[1] == "The data were made without rotation."
    assert "from the truth" not in " ".join(told)


def test_a_probability() -> None:
    result = profile_result() | {"generator": "horizontal_flip", "unit": "probability"}
    result["truth"] = 0.5
    result["profiles"] = [{"curvature": "kfac-ggn", "maximum": 0.498, "interval": None}]
    assert profile_sentences(result) == [
        "The evidence is largest at horizontal flip probability ½, by kfac-ggn.",
        "The data were made with horizontal flip probability ½.",
        "kfac-ggn: largest at probability ½, 0.4 % from the truth.",
    ]


def test_page_is_whole() -> None:
    page = profile_page(profile_result(), CONFIG)
    assert_self_contained(page)
    assert page == profile_page(profile_result(), CONFIG), "written twice, the same"
    parsed = Page(page)
    for expected in (
        "kfac-ggn ±91° 85° to 97° 1.1 % ±92° 0.98",
        "diagonal-ggn ±40° 34° to 46° 55.0 % ±92° −0.20",
        "kfac-ef not computed: layer 'norm' has no rule; take a fallback",
        "all other symmetries at zero",
        "86.0 % 1,000 test examples",
        "Refits 18 kfac-ggn and diagonal-ggn",
        "isotropy profile",
    ):
        assert expected in parsed.text, expected
    labels = [
        attributes["aria-label"]
        for tag, attributes in parsed.tags
        if tag == "svg" and attributes.get("role") == "img"
    ]
    assert labels == [
        f"{curvature}: {title} over rotation; nats; largest at {top}"
        for curvature, best in (("kfac-ggn", "±91°"), ("diagonal-ggn", "±40°"))
        for title, top in (
            ("Log evidence per example", best),
            ("Held-out log likelihood per example", "±92°"),
        )
    ]


def test_without_truth() -> None:
    result = {**profile_result(), "truth": None}
    page = profile_page(result, CONFIG)
    assert not re.search("truth", Page(page).text)
    assert 'colspan="4"' in page


def test_without_held_out_data() -> None:
    result = profile_result()
    for profile in result["profiles"][:2]:
        nothing = [None] * len(profile["amounts"])
        profile |= {"test_log_likelihood": nothing, "test_accuracy": nothing}
        profile |= {"held_out_maximum": None, "rank_correlation": None}
    text = Page(profile_page(result, CONFIG)).text
    assert "Best test accuracy – no test data" in text
    assert "Training log likelihood per example nats; there are no held-out data" in text
    assert "kfac-ggn ±91° 85° to 97° 1.1 % – –" in text


def test_when_no_curvature_could_be_computed() -> None:
    result = profile_result()
    result["profiles"] = result["profiles"][2:]
    assert profile_sentences(result)[0] == "No curvature gave a profile of rotation."
    text = Page(profile_page(result, CONFIG)).text
    assert "The profiles" not in text and "Refits 0 none succeeded" in text


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf])
def test_every_number_may_be_missing(missing: float | None) -> None:
    page = profile_page(nothing_known(profile_result(), missing), nothing_known(CONFIG, missing))
    assert_self_contained(page)
    assert 'role="img"' not in page, "nothing to draw"
    assert_no_numbers_leak(Page(page).text)


def test_single_points_may_be_missing() -> None:
    result = profile_result()
    for name in ("log_evidence_per_example", "test_log_likelihood", "test_accuracy"):
        result["profiles"][0][name][3] = None
    assert_self_contained(profile_page(result, CONFIG))


@pytest.mark.parametrize("name", ["profiles", "generator", "unit", "truth", "others", "versions"])
def test_every_part_may_be_null(name: str) -> None:
    result = profile_result()
    result["profiles"] = result["profiles"][:1]
    assert_self_contained(profile_page({**result, name: None}, CONFIG))


@pytest.mark.parametrize(
    "name",
    ["amounts", "log_evidence_per_example", "log_likelihood_per_example", "test_log_likelihood",
     "maximum", "interval", "curvature"],
)  # fmt: skip
def test_every_part_of_a_profile_may_be_null(name: str) -> None:
    result = profile_result()
    result["profiles"] = result["profiles"][:1]
    result["profiles"][0][name] = None
    page = profile_page(result, CONFIG)
    assert_self_contained(page)
    assert_no_numbers_leak(Page(page).text)


def test_a_bare_record() -> None:
    assert profile_sentences({}) == ["No profile of an unnamed symmetry was computed."]
    assert "No profile of an unnamed symmetry was computed." in Page(profile_page({}, {})).text


def test_text_is_escaped() -> None:
    result = {**profile_result(), "data": EVIL, "generator": EVIL, "unit": EVIL, "others": EVIL}
    result["profiles"][0]["curvature"] = EVIL
    result["profiles"][2]["error"] = EVIL
    page = profile_page(result, {EVIL: {EVIL: EVIL}})
    assert "<script" not in page
    assert Page(page).text.count(EVIL) >= 10
