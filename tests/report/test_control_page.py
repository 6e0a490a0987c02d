"""The page of `isotropy control`: sentences, drawing, tables, and records with holes."""

from __future__ import annotations

from typing import Any

import numpy as np
from report_pages import Page

from isotropy.report.pages.control import control_page, control_sentences
from isotropy.report.summary import summary_html

RECORD: dict[str, Any] = {
    "schema": 1, "command": "control", "kind": "control", "isotropy": "0.1.0", "device": "cpu",
    "seconds": 812.0, "environment": "Walker2d-v5", "model": "rpp", "group": "legs",
    "elements": 2, "violation": 2e-15,
    "violations": [{"map": "legs", "step": 2e-15, "reward": 0.0}],
    "steps": 2000, "seeds": [0, 1], "mean_return": 412.4, "mean_return_interval": [380.0, 440.0],
    "area": 200.2, "area_interval": [150.0, 250.0],
    "curve": [
        {"steps": 1000, "mean": 100.0, "interval": [90.0, 110.0], "returns": [90.0, 110.0]},
        {"steps": 2000, "mean": 412.4, "interval": [380.0, 440.0], "returns": [380.0, 440.0]},
    ],
    "softness": {"actor.mu": 0.0123, "critic.qf0.0": 0.2}, "policy_error": 0.031,
    "steps_per_second": 40.0, "notes": ["the map <legs> is odd"],
}  # fmt: skip


def test_sentences() -> None:
    assert control_sentences(RECORD) == [
        "Walker2d-v5: policies with a soft symmetry reach a return of 412 after 2,000 steps "
        "(95 % interval 380 to 440), 2 seeds.",
        "The mean action at a mirrored state differs from the mirrored action by 3.1 % of its "
        "size.",
        "The simulation keeps the maps exactly.",
        "The map <legs> is odd.",
    ]
    alone = control_sentences({**RECORD, "seeds": [0], "violation": 0.25, "notes": []})
    assert "One seed says little" in alone[1] and "breaks the maps by 25.0 %" in alone[-1]


def test_page_has_curve_maps_and_layers() -> None:
    page = Page(control_page(RECORD, {"schedule": {"steps": 2000}}))
    assert "Returns over training: from 100 to 412" in page.drawings
    for words in ("actor.mu 1.23 %", "critic.qf0.0 20.00 %", "legs", "95 % interval 150 to 250"):
        assert words in page.text
    assert "<legs>" in page.text  # escaped in the source


def test_a_record_with_holes_is_a_page() -> None:
    empty = Page(control_page({}, {}))
    assert "What the numbers mean" in empty.text and empty.drawings == []
    holes = {**RECORD, "violations": None, "softness": {}, "policy_error": None, "curve": [None]}
    assert "How soft" not in Page(control_page(holes, {})).text


def test_summary_of_a_record() -> None:
    assert "412" in summary_html(RECORD)


def test_an_episode_is_shown_where_it_was_drawn() -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3)).astype(np.uint8)
    assert control_page(RECORD, {}, pictures).count("data:image/png;base64,") == 3
    assert "An episode" not in control_page(RECORD, {})
