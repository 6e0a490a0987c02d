"""Pages, summaries and sentences say what the golden files have; see `golden_files`."""

from __future__ import annotations

import pytest
from golden_files import FILES, GOLDEN
from report_pages import Outline


@pytest.mark.parametrize("name", FILES)
def test_says_what_it_said(name: str) -> None:
    expected = (GOLDEN / name).read_text(encoding="utf-8")
    assert FILES[name]() == expected, "if this was meant: python tests/report/golden_files.py"


def test_an_outline_has_all_that_a_page_says() -> None:
    page = (
        '<h2>Head</h2><table><tr class="large"><th>a<small>note</small></th><td>1.5</td></tr>'
        '</table><svg class="bar"><rect class="extent" x="2" width="3"/></svg><svg role="img" '
        'aria-label="a line"><text>inside</text></svg><p>end<img alt="copy 1"></p>'
    )
    assert Outline(page).text.splitlines() == [
        "## Head", "large| a / note | 1.5 | [extent 2 3]", "[drawing] a line", "end [copy 1]"
    ]  # fmt: skip
