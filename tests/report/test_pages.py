"""Every page: whole, self-contained, the same twice, honest about what is missing, escaped."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from report_pages import (
    EVIL,
    PAGES,
    Page,
    Stored,
    assert_no_numbers_leak,
    assert_self_contained,
    nothing_known,
    stored,
    with_markup,
)


@pytest.fixture(scope="module", params=PAGES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def page(name: str) -> str:
    return PAGES[name](stored(name))


def test_is_self_contained_and_the_same_twice(name: str, page: str) -> None:
    assert_self_contained(page)
    assert page == PAGES[name](stored(name))
    parsed = Page(page)
    assert sum(tag == "h1" for tag, _ in parsed.tags) == 1
    sections = re.findall(r'<section aria-labelledby="(\w+)">\s*<h2 id="(\w+)">', page)
    assert sections and all(label == heading for label, heading in sections)
    assert "How it was made" in parsed.text and "0.1.0" in parsed.text
    assert not re.search(r"#0[1-6]a[1-6]e[1-6]", page), "a colour that does not follow the page"


@pytest.mark.parametrize("missing", [None, math.nan, -math.inf])
def test_every_number_may_be_missing(name: str, missing: float | None) -> None:
    page = PAGES[name](nothing_known(stored(name), missing))
    assert_self_contained(page)
    assert_no_numbers_leak(Page(page).text)
    drawn = [label for label in Page(page).drawings if not label.startswith(("Matrix", "Correl"))]
    assert drawn == [], "nothing to draw"


def parts_of(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every part of a JSON record; of lists the first item stands for all."""
    for key, each in value.items() if isinstance(value, dict) else list(enumerate(value))[:1]:
        yield (*place, key)
        if isinstance(each, dict | list):
            yield from parts_of(each, (*place, key))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawings are made, and left out: to write them as SVG takes most of the time."""
    monkeypatch.setattr("isotropy.report.canvas.svg_of", lambda figure, *, key, label: "<svg/>")


def small(name: str) -> Stored:
    """What is stored, with little to draw."""
    given = stored(name)
    result = given["result"]
    if name in ("measure", "compare"):
        result["entries"] = result["entries"][:2]
        result["versions"] = {}
        for entry in result["entries"]:
            entry["actions"] = entry["actions"][:1]
            entry["actions"][0]["layers"] = entry["actions"][0]["layers"][:1]
    elif name == "learn":
        result["symmetries"], given["history"] = result["symmetries"][2:3], given["history"][-1:]
        result |= {"search": None, "verdicts": None, "screening": None}
        result |= {"calibration": {"probit": result["calibration"]["probit"]}, "correlations": None}
    elif name == "relax":
        result["layers"], result["epochs"] = result["layers"][:1], result["epochs"][:1]
    elif name == "profile":
        result["profiles"] = result["profiles"][:1]
    return given


def with_null(given: Stored, place: tuple[Any, ...]) -> Stored:
    changed = copy.deepcopy(given)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = None
    return changed


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_every_part_may_be_null(name: str) -> None:
    given = small(name)
    for place in parts_of(given):
        if len(place) > 1 and (place[0] != "result" or place[1] in ("versions", "evidence")):
            continue
        if name == "compare" and len(place) > 3:  # the page of one network has these
            continue
        text = PAGES[name](with_null(given, place))
        Page(text)
        assert_no_numbers_leak(Page(text).text)


@pytest.mark.usefixtures("undrawn")
def test_what_the_search_says_may_be_null() -> None:
    given = stored("learn")
    result = given["result"]
    kept = {"rotation": result["search"]["symmetries"]["rotation"]}
    given = {
        "result": {
            "symmetries": result["symmetries"][2:3],
            "verdicts": result["verdicts"][:1],
            "search": {**result["search"], "symmetries": kept, "amounts": None},
            "correlations": {"names": ["a"], "matrix": [[0.5]]},
        },
        **{"config": {}, "history": [], "truth": {}},
    }
    for place in parts_of(given):
        assert_no_numbers_leak(Page(PAGES["learn"](with_null(given, place))).text)


def test_text_is_escaped(name: str) -> None:
    given = stored(name)
    page = PAGES[name]({**given, "result": with_markup(given["result"]), "config": {EVIL: EVIL}})
    assert "<script" not in page
    assert Page(page).text.count(EVIL) >= 8


def test_a_bare_record(name: str) -> None:
    page = PAGES[name]({"result": {}, "config": {}, "history": [], "truth": {}})
    assert_self_contained(page)
    assert_no_numbers_leak(Page(page).text)


# --- the checks themselves ------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["<p>left open", "<b><i>crossed</b></i>", "never opened</p>"])
def test_the_parser_refuses_bad_pages(bad: str) -> None:
    with pytest.raises(AssertionError):
        Page(bad)


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


@pytest.mark.parametrize("leak", ["nan", "None of it, None", "a null"])
def test_the_check_of_numbers_refuses(leak: str) -> None:
    with pytest.raises(AssertionError):
        assert_no_numbers_leak(leak)


# --- looks ----------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance."""
    levels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_have_the_same_variables_and_enough_contrast(page: str) -> None:
    light = re.search(r":root \{(.*?)\}", page, re.S)
    dark = re.search(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}", page, re.S)
    assert light and dark
    schemes = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", each[1])) for each in (light, dark)]
    assert schemes[0].keys() == schemes[1].keys()
    used = set(re.findall(r"var\(--([a-z]+)\)", page)) - {"sans", "serif", "mono"}
    assert used <= schemes[0].keys()
    for scheme in schemes:
        for name in ("ink", "muted", "accent", "truth"):
            for behind in ("paper", "band"):
                pair = sorted((luminance(scheme[name]), luminance(scheme[behind])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, behind)
