"""The page as a reader's browser gets it: whole, self-contained, honest about what is missing."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isotropy.report.learn_report import duration_text, learn_page, write_learn_report
from isotropy.report.record import LearnRecord

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags with their attributes, visible text, and ids; asserts that tags are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


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
    assert not re.search(r"https?://", page)
    assert not re.search(r"<script|<link|@import|url\((?!#)", page)
    for tag, attributes in Page(page).tags:
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/png;base64,", "#")), tag
    assert "default-src 'none'" in page
    assert len(page.encode()) < 1_500_000


def test_identifiers_are_unique_and_references_lead_somewhere(page: str) -> None:
    tags = Page(page).tags
    identifiers = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    references = re.findall(r'(?:url\(|href="|aria-labelledby=")#?([^")]+)', page)
    assert set(references) <= set(identifiers)


def test_every_figure_has_words(page: str) -> None:
    for tag, attributes in Page(page).tags:
        if tag == "img":
            assert attributes.get("alt")
        if tag == "svg" and attributes.get("role") == "img":
            assert attributes.get("aria-label")


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


def test_same_record_same_bytes(record: LearnRecord, tmp_path: Path) -> None:
    first = write_learn_report(record, tmp_path / "deep" / "first.html")
    second = write_learn_report(record, tmp_path / "second.html")
    assert first == tmp_path / "deep" / "first.html"
    assert first.read_bytes() == second.read_bytes()


def test_user_text_is_escaped(record: LearnRecord) -> None:
    evil = "<script>alert('1')</script> & \"$x$\""
    symmetries = [*record.result["symmetries"], {"name": evil, "low": -1.0, "high": 1.0}]
    history = [{**row, "ranges": {**row["ranges"], evil: 1.0}} for row in record.history]
    changed = dataclasses.replace(
        with_result(record, data=evil, symmetries=symmetries, device=evil, curvature=evil),
        config={evil: {evil: evil}, "loose": evil},
        history=history,
    )
    page = learn_page(changed)
    assert "<script" not in page
    assert evil in Page(page).text


NOTHING: dict[str, Any] = {"examples": None, "flows": None, "image_shape": None}


def test_without_samples(record: LearnRecord) -> None:
    parsed = Page(learn_page(dataclasses.replace(record, **NOTHING)))
    assert parsed.count("img") == 0
    assert "What the transformations do" not in parsed.text


def test_examples_without_flows_and_flows_without_shape(record: LearnRecord) -> None:
    assert "Flow" not in Page(learn_page(dataclasses.replace(record, flows=None))).text
    parsed = Page(learn_page(dataclasses.replace(record, examples=None, image_shape=None)))
    assert "Flow" in parsed.text and parsed.count("img") == 0


def test_flows_that_are_not_numbers_are_left_out(record: LearnRecord) -> None:
    assert record.flows is not None
    flows = np.where(np.arange(len(record.flows))[:, None, None, None, None] == 0, np.nan, 1.0)
    page = learn_page(dataclasses.replace(record, flows=record.flows * flows))
    assert page.count("Sampled transformation") == len(record.flows) - 1


def test_without_test_data(record: LearnRecord) -> None:
    history = [{**row, "test_accuracy": None} for row in record.history]
    changed = dataclasses.replace(with_result(record, test_accuracy=None), history=history)
    parsed = Page(learn_page(changed))
    assert "Test accuracy – no test data" in parsed.text


def test_without_truth(record: LearnRecord) -> None:
    text = Page(learn_page(dataclasses.replace(record, truth={}))).text
    assert "Truth" not in text and "The data were made" not in text


def test_without_history(record: LearnRecord) -> None:
    text = Page(learn_page(dataclasses.replace(record, history=[]))).text
    assert "No history of the ranges was kept." in text
    assert "Evidence and accuracy" not in text


def test_one_epoch(record: LearnRecord) -> None:
    Page(learn_page(dataclasses.replace(record, history=record.history[:1])))


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
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_is_explained(record: LearnRecord, objective: str) -> None:
    evidence = record.result["log_evidence"] if objective == "laplace" else None
    parsed = Page(learn_page(with_result(record, objective=objective, log_evidence=evidence)))
    for expected in OBJECTIVES[objective]:
        assert expected in parsed.text
    assert ("noise floor of a few times" in parsed.text) == (objective in ("laplace", "augerino"))


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
