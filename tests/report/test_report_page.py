"""The page as a reader's browser gets it: whole, self-contained, honest about what is missing."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from report_pages import (
    EVIL,
    Page,
    assert_no_numbers_leak,
    assert_self_contained,
    nothing_known,
    searched,
)

from isotropy.report.learn.page import fallback_sentence, learn_page
from isotropy.report.record import LearnRecord
from isotropy.report.wording import duration_text


def with_result(record: LearnRecord, **changes: Any) -> LearnRecord:
    return dataclasses.replace(record, result={**record.result, **changes})


@pytest.mark.parametrize("bad", ["<p>left open", "<b><i>crossed</b></i>", "never opened</p>"])
def test_the_parser_refuses_bad_pages(bad: str) -> None:
    with pytest.raises(AssertionError):
        Page(bad)


@pytest.fixture(scope="module")
def page(record: LearnRecord) -> str:
    return learn_page(record)


def test_well_formed_and_whole(page: str, record: LearnRecord) -> None:
    parsed = Page(page)
    assert parsed.count("h1") == 1
    assert "The labels do not change under rotation by up to ±177°." in parsed.text
    for name in ("Rotation", "Translation along x", "Translation along y", "Scaling along x",
                 "Scaling along y", "Hyperbolic rotation"):  # fmt: skip
        assert parsed.text.count(name) >= 2, "in the table and above its panel"
    assert record.examples is not None and record.flows is not None
    assert parsed.count("img") == record.examples.shape[0] * record.examples.shape[1]
    for expected in ("81.3 %", "−0.636", "3 min 23 s", "standard error 1.2 points", "kfac-ggn",
                     "range_learning_rate", "2.13.0", "abc123", "±180°"):  # fmt: skip
        assert expected in parsed.text


def test_self_contained(page: str) -> None:
    assert_self_contained(page)


BAD_PAGES = {
    "an address": "<p>http://example.org</p>",
    "a script": "<script></script>",
    "a picture from elsewhere": '<img src="picture.png" alt="a picture">',
    "a picture without words": '<img src="data:image/png;base64,AA">',
    "a drawing without words": '<svg role="img"></svg>',
    "an id twice": '<p id="a"></p><p id="a"></p>',
    "a reference to nowhere": '<section aria-labelledby="nowhere"></section>',
}


@pytest.mark.parametrize("bad", BAD_PAGES)
def test_the_check_of_pages_refuses(bad: str) -> None:
    policy = "<p>default-src 'none'</p>"
    assert_self_contained(policy)
    with pytest.raises(AssertionError):
        assert_self_contained(policy + BAD_PAGES[bad])


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance."""
    levels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_have_the_same_variables_and_enough_contrast(page: str) -> None:
    light = re.search(r":root \{(.*?)\}", page, re.S)
    dark = re.search(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", page, re.S)
    assert light and dark
    schemes = variables(light.group(1)), variables(dark.group(1))
    assert schemes[0].keys() == schemes[1].keys()
    used = set(re.findall(r"var\(--([a-z]+)\)", page)) - {"sans", "serif", "mono"}
    assert used <= schemes[0].keys()
    for scheme in schemes:
        for name in ("ink", "muted", "accent", "truth"):
            for behind in ("paper", "band"):
                pair = sorted((luminance(scheme[name]), luminance(scheme[behind])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, behind)


def test_same_record_same_page(record: LearnRecord) -> None:
    assert learn_page(record) == learn_page(record)


def test_user_text_is_escaped(record: LearnRecord) -> None:
    symmetries = [*record.result["symmetries"], {"name": EVIL, "low": -1.0, "high": 1.0}]
    history = [{**row, "ranges": {**row["ranges"], EVIL: 1.0}} for row in record.history]
    changed = dataclasses.replace(
        with_result(record, data=EVIL, symmetries=symmetries, device=EVIL, curvature=EVIL),
        config={EVIL: {EVIL: EVIL}, "loose": EVIL},
        history=history,
    )
    page = learn_page(changed)
    assert "<script" not in page
    assert EVIL in Page(page).text


NOTHING: dict[str, Any] = {"examples": None, "flows": None, "image_shape": None}


def test_without_samples(record: LearnRecord) -> None:
    parsed = Page(learn_page(dataclasses.replace(record, **NOTHING)))
    assert parsed.count("img") == 0
    assert "What the transformations do" not in parsed.text


def test_examples_without_flows_and_flows_without_shape(record: LearnRecord) -> None:
    assert "Flow" not in Page(learn_page(dataclasses.replace(record, flows=None, history=()))).text
    parsed = Page(
        learn_page(dataclasses.replace(record, examples=None, image_shape=None, history=()))
    )
    assert "Flow" in parsed.text and parsed.count("img") == 0


def test_flows_that_are_not_numbers_are_left_out(record: LearnRecord) -> None:
    assert record.flows is not None
    flows = np.where(np.arange(len(record.flows))[:, None, None, None, None] == 0, np.nan, 1.0)
    page = learn_page(dataclasses.replace(record, flows=record.flows * flows))
    assert page.count("Sampled transformation") == len(record.flows) - 1


def test_without_test_data(record: LearnRecord) -> None:
    history = [{**row, "test_accuracy": None} for row in record.history]
    changed = dataclasses.replace(
        with_result(record, test_accuracy=None), history=history, flows=None
    )
    parsed = Page(learn_page(changed))
    assert "Test accuracy – no test data" in parsed.text


def test_without_truth(record: LearnRecord) -> None:
    text = Page(learn_page(dataclasses.replace(record, truth={}, flows=None))).text
    assert "Truth" not in text and "The data were made" not in text


def test_without_history(record: LearnRecord) -> None:
    text = Page(learn_page(dataclasses.replace(record, history=[]))).text
    assert "No history of the ranges was kept." in text
    assert "Evidence and accuracy" not in text


def test_one_epoch(record: LearnRecord) -> None:
    Page(learn_page(dataclasses.replace(record, history=record.history[:1], flows=None)))


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_every_number_may_be_missing(record: LearnRecord, missing: float | None) -> None:
    result = {
        name: missing if isinstance(value, int | float) else value
        for name, value in record.result.items()
    }
    result["symmetries"] = [
        {**symmetry, "low": missing, "high": missing} for symmetry in record.result["symmetries"]
    ]
    history = [
        {name: missing for name in row} | {"ranges": None, "epoch": row["epoch"]}
        for row in record.history
    ]
    parsed = Page(learn_page(dataclasses.replace(record, result=result, history=history)))
    assert "Nothing can be said: no learned range is a finite number." in parsed.text
    assert "nan" not in parsed.text.lower().split() and "None" not in parsed.text


def test_a_bare_record() -> None:
    assert "No transformation was tried." in Page(learn_page(LearnRecord({}, {}, (), {}))).text


OBJECTIVES = {
    "laplace": ("Learned range", "log evidence is the logarithm"),
    "augerino": ("Learned range", "Augerino"),
    "fixed": ("The ranges were given", "stayed as they were"),
    "none": ("Nothing was learned", "without any transformation"),
    "averaged-losses": ("The ranges were given", "the likelihood of no single prediction"),
    "augerino-original": ("Learned range", "as it was published"),
    "trivial-augment": ("TrivialAugment drew at random", "a fixed list"),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_is_explained(record: LearnRecord, objective: str) -> None:
    evidence = record.result["log_evidence"] if objective == "laplace" else None
    record = dataclasses.replace(record, flows=None, history=())
    parsed = Page(learn_page(with_result(record, objective=objective, log_evidence=evidence)))
    for expected in OBJECTIVES[objective]:
        assert expected in parsed.text
    assert ("noise floor of a few times" in parsed.text) == (
        objective in ("laplace", "augerino", "augerino-original")
    )


def test_without_symmetries_and_evidence(record: LearnRecord) -> None:
    """A run of TrivialAugment may have neither."""
    bare = with_result(
        record, objective="trivial-augment", symmetries=[], log_evidence=None,
        log_evidence_per_example=None, curvature=None,
    )  # fmt: skip
    text = Page(learn_page(dataclasses.replace(bare, history=[], truth={}))).text
    assert "Log evidence per example – not computed" in text
    assert "How the ranges came about" not in text and "average over" not in text


# --- what a judged, correlated run adds -----------------------------------------------------------


@pytest.fixture(scope="module")
def richer_page(richer: LearnRecord) -> str:
    return learn_page(richer)


def test_richer_page_is_whole(richer_page: str) -> None:
    assert_self_contained(richer_page)
    text = Page(richer_page).text
    for expected in (
        "Verdict",
        "Rotation: present, ±177° (95 % interval ±143° to ±180°; gain 283 nats, 95 % interval 258 "
        "to 308).",
        "±143° to ±180° present gain 283 nats (258 to 308) over 99 % of more than ±0.1°",
        "partial gain 16 nats (−9.6 to 41) 97 %",
        "already built in",
        "cannot tell gain 0.5 nats (−25 to 26) 44 % of more than ±0.10",
        "95 % interval 0 to 0.040 absent gain −5.7 nats (−31 to 19) under 1 %",
        "class frequencies alone −4,605.2",
        "45 trials on 500 examples took 1 min 51 s",
        "it is of the linearised network",
        "All columns are of the linearised network",
        "Log predictive density, nats Log evidence, nats Held-out log density per example",
        "The search beside held-out data",
        "Rotation none 0 −1,183.1 −1,243.1 −1.746 ½ ±89° −925.9 −985.5 −1.450 1, learned ±179° "
        "−900.0 −961.3 −1.427 the largest ±180° −901.2 −962.4 −1.426",
        "a standard deviation of 4.5 nats",
        "exactly zero",
        "½ (whole)",
        "and a probability of ½",
        "Correlation of amounts",
        "Not drawn independently: scaling along x with scaling along y (correlation 0.97).",
        "Scores on 500 test examples.",
        "Plug-in 81.0 % −0.710 0.293 9.0 %",
        "Monte Carlo 81.0 %",
        "Layers without a curvature rule: features.norm (LayerNorm); their curvature is a "
        "diagonal.",
        "The screening it started from",
        "Scaling along x + scaling along y 0.021 ± 0.002",
        "the number of copies (16), the structure of the prior (scalar) and the draws of the "
        "noise (0/final)",
        "noise_seed 0/final",
    ):
        assert expected in text, expected
    assert "Reading" not in text and "thresholds under the table" not in text


def test_a_probability_has_a_bar_from_zero_and_one_mark(richer_page: str) -> None:
    bars = re.findall(r'<svg class="bar" viewBox="(-?\d+) 0 (\d+) 14".*?</svg>', richer_page, re.S)
    table = bars[:8]
    assert table == [("-101", "202")] * 6 + [("-1", "102")] * 2
    last = richer_page.split('<svg class="bar"')[8].split("</svg>")[0]
    assert 'x="0.00" y="4" width="99.74"' in last
    assert last.count('class="true" x1="100.00"') == last.count('class="true"') == 1


def test_without_the_additions_their_parts_are_left_out(page: str) -> None:
    text = Page(page).text
    assert "Reading" in text and "thresholds under the table" in text
    for part in ("Verdict", "What the search found", "95 % interval", "Probability",
                 "How the amounts go together", "Reliability", "The screening it",
                 "curvature rule", "A probability", "This value depends on"):  # fmt: skip
        assert part not in text, part


ADDITIONS = (
    "distribution", "correlations", "verdicts", "search", "evidence", "fallback", "screening",
    "calibration",
)  # fmt: skip


@pytest.mark.parametrize("name", ADDITIONS)
def test_each_addition_may_be_null(light: LearnRecord, name: str) -> None:
    assert_self_contained(learn_page(with_result(light, **{name: None})))


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf])
def test_every_number_of_the_additions_may_be_missing(
    light: LearnRecord, missing: float | None
) -> None:
    result = nothing_known(dict(light.result), missing)
    text = Page(learn_page(dataclasses.replace(light, result=result))).text
    assert_no_numbers_leak(text)


def test_text_of_the_additions_is_escaped(light: LearnRecord) -> None:
    row = {**light.result["screening"]["rows"][0], "direction": EVIL, "names": [EVIL]}
    changed = with_result(
        light,
        correlations={"names": [EVIL, "rotation"], "matrix": [[1.0, 0.9], [0.9, 1.0]]},
        verdicts=[{"name": "rotation", "verdict": EVIL}],
        search={"symmetries": {EVIL: searched(1.0, 20.0)}},
        evidence={"curvature": EVIL, EVIL: EVIL},
        fallback={EVIL: EVIL},
        screening={"rows": [row]},
        calibration={EVIL: light.result["calibration"]["probit"]},
        distribution=EVIL,
    )
    page = learn_page(changed)
    assert "<script" not in page
    assert Page(page).text.count(EVIL) >= 10


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ("fixed", "; their weights count as fixed: the evidence does not price them."),
        ("other", "; handled by the fallback other."),
        (None, "."),
    ],
)
def test_each_fallback_is_explained(light: LearnRecord, done: str | None, expected: str) -> None:
    changed = dataclasses.replace(light, config={"schedule": {"fallback": done}})
    names = "Layers without a curvature rule: features.norm (LayerNorm)"
    assert fallback_sentence(changed) == names + expected
    assert fallback_sentence(with_result(changed, fallback={})) == ""


def test_large_noise_images_stay_within_the_size(record: LearnRecord) -> None:
    noise = np.random.default_rng(0).random((12, 12, 3, 224, 224), dtype=np.float32)
    assert len(learn_page(dataclasses.replace(record, examples=noise)).encode()) < 1_500_000


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(12.34, "12.3 s"), (59.97, "1 min 00 s"), (203.4, "3 min 23 s"), (3900, "1 h 05 min"),
     (None, "–")],
)  # fmt: skip
def test_duration_text(seconds: float | None, expected: str) -> None:
    assert duration_text(seconds) == expected
