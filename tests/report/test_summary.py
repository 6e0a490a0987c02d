"""The summary that notebooks show: for every kind of record, escaped, whole, without scripts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from measure_records import comparison_record, measure_record
from relax_records import relax_record
from report_pages import (
    EVIL,
    PROVENANCE,
    Page,
    assert_no_numbers_leak,
    nothing_known,
    profile_result,
    result_with,
    screen_result,
)

from isotropy.report import summary_html

BUILD: dict[str, Any] = {
    **PROVENANCE,
    "command": "build",
    "kind": "build",
    "how": "group convolutions",
    "exact": True,
    "sentence": "Turns by 90° are built in by group convolutions of C(4).",
    "num_parameters": 4012,
    "plain_parameters": 3999,
}
BASIS: dict[str, Any] = {
    **PROVENANCE,
    "command": "basis",
    "group": "SO(3)",
    "representation": "V >> V",
    "rank": 1,
    "size": 9,
    "method": "invariants",
    "residual": 3.1e-16,
}
RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "learn": ({**PROVENANCE, "command": "learn", **result_with(rotation=175.0)},
              "The labels do not change under rotation by up to ±175°."),
    "measure": (measure_record(), "0.523"),
    "measure of several": (comparison_record(), "has the smallest error"),
    "relax": (relax_record(), "Of 8 layers 7 became convolutions and 1 became fully connected."),
    "build": (BUILD, "Turns by 90° are built in by group convolutions of C(4)."),
    "screen": (screen_result(), "The plain network asks for rotation"),
    "profile": (profile_result(), "The evidence is largest at rotation ±91°"),
    "basis": (BASIS, "V >> V of SO(3): rank 1"),
    "another kind": ({**PROVENANCE, "kind": "dance"}, "A record of isotropy dance"),
}  # fmt: skip


def with_evil_texts(value: Any) -> Any:
    """A copy whose texts, other than the words that say what it is, end in markup."""
    if isinstance(value, dict):
        kept = ("kind", "command", "objective", "became", "unit")
        return {k: v if k in kept else with_evil_texts(v) for k, v in value.items()}
    if isinstance(value, list):
        return [with_evil_texts(each) for each in value]
    return value + EVIL if isinstance(value, str) else value


@pytest.mark.parametrize("name", RECORDS)
def test_every_kind_tells_its_finding_time_and_folder(name: str) -> None:
    record, told = RECORDS[name]
    fragment = summary_html(record)
    text = Page(fragment).text
    assert told in text
    assert "3 min 23 s" in text and "runs/first" in text
    assert not re.search(r"<html|<body|<script|<link|https?://|class=", fragment)
    assert fragment == summary_html(record)


@pytest.mark.parametrize("name", RECORDS)
def test_texts_are_escaped_and_missing_numbers_are_dashes(name: str) -> None:
    record, _ = RECORDS[name]
    evil = summary_html(with_evil_texts(record))
    assert "<script" not in evil and "alert" in Page(evil).text
    assert_no_numbers_leak(Page(summary_html(nothing_known(record, None))).text)


def test_an_empty_record_has_a_summary() -> None:
    assert "A record of isotropy" in summary_html({})
    for kind in ("learn", "measure", "relax", "build", "screen", "profile", "basis"):
        assert_no_numbers_leak(Page(summary_html({"kind": kind})).text)
