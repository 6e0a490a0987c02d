"""Runs here are about training, stopping and records: the pages of learned runs are not drawn.

Drawing a page takes several times as long as the run of a test. In its place stands what the page
is made of, in words, so that two pages are the same here if their records are. Pages that are drawn
are tested in `tests/report`; a test that wants one here asks for `drawn_pages`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isotropy.workflows import learning
from isotropy.workflows.runs import contest


@pytest.fixture
def drawn_pages() -> None:
    """The page of a learned run is the true one."""


@pytest.fixture(autouse=True)
def _undrawn_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn_pages" not in request.fixturenames:
        monkeypatch.setattr(learning, "learn_page", lambda record: f"<!DOCTYPE html>\n{record!r}")


@pytest.fixture(scope="module")
def short_rivals() -> Iterator[int]:
    """Networks that `learn` trains only to compare amounts take so many weight steps: too few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contest, "LEAST_STEPS", 6)
        yield contest.LEAST_STEPS
