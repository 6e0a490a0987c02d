"""Stored records, the pages made of them, and pages as a browser reads them.

`golden/NAME.json` has a made-up record with the real shape for each command, and what its page is
made of besides: {"result", "config"} and for `learn` its "history" and "truth".
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.report.pages.learn import LearnRecord, learn_page
from isotropy.report.pages.measure import measure_page
from isotropy.report.pages.profile import profile_page
from isotropy.report.pages.relax import relax_page
from isotropy.report.pages.represent import represent_page
from isotropy.report.pages.screen import screen_page

GOLDEN = Path(__file__).parent / "golden"
VOID = {"meta", "img", "br", "hr", "link", "input"}
EVIL = "<script>alert('1')</script> & \"$x$\""
Stored = dict[str, Any]


def stored(name: str) -> Stored:
    """What `golden/NAME.json` holds; a copy of one's own."""
    found: Stored = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return found


def result_of(name: str, **changes: Any) -> dict[str, Any]:
    """The record alone, with changes on its first level."""
    return {**stored(name)["result"], **changes}


def learn_record(
    given: Stored | None = None, *, samples: bool = True, **changes: Any
) -> LearnRecord:
    """The stored run, with pictures and flows of turns about the centre of a 28 × 28 image."""
    given = stored("learn") if given is None else given
    pictures: dict[str, Any] = {}
    if samples:
        generator = np.random.default_rng(0)
        grid = np.stack(np.meshgrid(np.linspace(0, 27, 7), np.linspace(0, 27, 7)), axis=-1)
        angles = generator.uniform(-3, 3, 2)
        turns = [np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]) for a in angles]
        pictures = {
            "examples": generator.random((2, 3, 1, 14, 14)),
            "flows": np.stack([[grid, (grid - 13.5) @ turn.T + 13.5] for turn in turns]),
            "image_shape": (28, 28),
        }
    return LearnRecord(
        {**(given["result"] or {}), **changes}, given["config"] or {}, given["history"] or (),
        given["truth"] or {}, **pictures,
    )  # fmt: skip


def bound_record(**changes: Any) -> LearnRecord:
    """The stored run as if it had been learned by the evidence bound, with its feature bank."""
    given = stored("learn")
    parts = ("search", "verdicts", "screening", "calibration", "correlations", "fallback")
    given["result"] |= dict.fromkeys(parts) | {"objective": "laplace", "distribution": None}
    given["result"]["evidence"] |= {"kind": "elbo", "curvature": None}
    given["result"]["elbo"] = {
        "expected_log_likelihood": -0.212, "kl": 0.424371, "prior_variance": 71.8
    }  # fmt: skip
    bank = np.random.default_rng(1).normal(size=(2, 2, 3, 1, 8, 8))
    return replace(learn_record(given, samples=False, **changes), filters=bank)


def _of_result_and_config(page: Callable[..., str]) -> Callable[[Stored], str]:
    return lambda given: page(given["result"] or {}, given["config"] or {})


PAGES: dict[str, Callable[[Stored], str]] = {
    "learn": lambda given: learn_page(learn_record(given, samples=False)),
    "measure": _of_result_and_config(measure_page),
    "compare": _of_result_and_config(measure_page),
    "relax": lambda given: relax_page(given["result"] or {}),
    "represent": _of_result_and_config(represent_page),
    "screen": _of_result_and_config(screen_page),
    "profile": _of_result_and_config(profile_page),
}
"""The page of what is stored under each name."""


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

    @property
    def drawings(self) -> list[str]:
        """What readers who cannot see the drawings are told."""
        return [
            attributes["aria-label"] or ""
            for tag, attributes in self.tags
            if tag == "svg" and attributes.get("role") == "img"
        ]


BLOCKS = set("title h1 h2 h3 p li dt dd tr summary figcaption div".split())


class Outline(Page):
    """What a page says, line by line: texts, rows of tables, bars in them, and words of drawings.

    What lies inside a drawing is left out: it depends on the version of matplotlib.
    """

    def __init__(self, page: str) -> None:
        self.lines = [""]
        super().__init__(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        given = dict(attrs)
        if tag in BLOCKS:
            marks = {"h1": "# ", "h2": "## ", "h3": "### ", "tr": f"{given.get('class') or ''}| "}
            self.lines.append(marks.get(tag, ""))
        elif tag == "svg" and given.get("role") == "img":
            self.lines.append(f"[drawing] {given['aria-label']}")
        elif tag == "img":
            self.lines[-1] += f" [{given['alt']}]"
        elif tag in ("small", "br"):
            self.lines[-1] += " / "

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_startendtag(tag, attrs)
        given = dict(attrs)
        if tag in ("rect", "line") and given.get("class") in ("extent", "faint", "true", "error"):
            ends = " ".join(str(given[key]) for key in ("x", "width", "x1", "x2") if key in given)
            self.lines[-1] += f" [{given['class']} {ends}]"

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        if tag in ("td", "th"):
            self.lines[-1] += " | "

    def handle_data(self, data: str) -> None:
        if not {"style", "svg"} & set(self.open):
            self.lines[-1] += data

    @property
    def text(self) -> str:
        lines = (" ".join(line.split()) for line in self.lines)
        return "\n".join(line for line in lines if line.strip("| ")) + "\n"


def assert_self_contained(page: str) -> None:
    """Nothing is loaded, nothing runs, ids are unique and lead somewhere, drawings have words."""
    assert not re.search(r"https?://", page), "an address"
    assert not re.search(r"<script|<link|@import|url\((?!#)", page), "something loaded or run"
    assert "default-src 'none'" in page
    assert len(page.encode()) < 1_500_000
    tags = Page(page).tags
    for tag, attributes in tags:
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/png;base64,", "#")), tag
        if tag == "img":
            assert attributes.get("alt"), "a picture without words"
        if tag == "svg" and attributes.get("role") == "img":
            assert attributes.get("aria-label"), "a drawing without words"
    identifiers = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers)), "an id twice"
    references = re.findall(r'(?:url\(|href="|aria-labelledby=")#?([^")]+)', page)
    assert set(references) <= set(identifiers), "a reference to nowhere"


def nothing_known(value: Any, missing: float | None) -> Any:
    """A copy of a JSON record in which every number is missing; truth values stay."""
    if isinstance(value, dict):
        return {name: nothing_known(each, missing) for name, each in value.items()}
    if isinstance(value, list):
        return [nothing_known(each, missing) for each in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return missing if is_number else copy.deepcopy(value)


def with_markup(value: Any) -> Any:
    """A copy in which every name and text is markup, but for words that have a meaning."""
    meant = {
        "command",
        "kind",
        "objective",
        "unit",
        "method",
        "interpolation",
        "verdict",
        "direction",
    }
    if isinstance(value, dict):
        return {
            name if name in FIELDS else name + EVIL: each if name in meant else with_markup(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [with_markup(each) for each in value]
    return value + EVIL if isinstance(value, str) else value


def _names(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_names, value.values()))
    return set().union(*map(_names, value)) if isinstance(value, list) else set()


FIELDS = set().union(*(_names(stored(name)["result"]) for name in PAGES), _names(stored("learn")))
"""Keys of records; those of dictionaries by name among them are left as they are too."""


def assert_no_numbers_leak(text: str) -> None:
    """What is missing is a dash, never the name of a Python or IEEE value."""
    words = set(re.findall(r"[A-Za-z]+", text))
    assert not words & {"nan", "NaN", "inf", "Infinity", "None", "null"}, words
