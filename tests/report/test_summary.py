"""The summary that notebooks show: for every kind of record, escaped, whole, without scripts.

What it says is in `golden/summaries.txt`.
"""

from __future__ import annotations

import math
import re

import pytest
from report_pages import PAGES, Page, assert_no_numbers_leak, nothing_known, result_of, with_markup

from isotropy.report import summary_html

NAMES = (*PAGES, "build", "basis")


@pytest.mark.parametrize("name", NAMES)
def test_is_a_fragment_that_stands_alone(name: str) -> None:
    fragment = summary_html(result_of(name))
    assert fragment.startswith("<div") and fragment.rstrip().endswith("</div>")
    assert "Run folder" in Page(fragment).text
    assert not re.search(r"<html|<body|<script|<link|<style|https?://|class=", fragment)
    assert len(fragment) < 4000 and fragment == summary_html(result_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_escaped_and_missing_numbers_are_dashes(name: str) -> None:
    markup = summary_html(with_markup(result_of(name)))
    assert "<script" not in markup and "alert" in Page(markup).text
    for missing in (None, math.nan):
        assert_no_numbers_leak(Page(summary_html(nothing_known(result_of(name), missing))).text)


def test_a_record_of_another_kind_and_an_empty_one() -> None:
    text = Page(summary_html({"kind": "dance", "seconds": 203.4, "device": "cpu"})).text
    assert text == "A record of isotropy dance Time 3 min 23 s on cpu"
    assert "A record of isotropy" in summary_html({})
    for kind in ("learn", "measure", "relax", "build", "screen", "profile", "basis"):
        assert_no_numbers_leak(Page(summary_html({"kind": kind})).text)
