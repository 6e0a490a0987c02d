"""The report of `isotropy story`: what is said first, and that all parts are there."""

from __future__ import annotations

from typing import Any

from isotropy.report.pages.story import NETWORKS, story_page, story_sentences
from isotropy.report.summary import summary_html

ROTATION = {"name": "rotation", "kind": "range", "unit": "degrees", "low": -180.0, "high": 180.0,
            "interval": [176.0, 180.0]}  # fmt: skip


def network(name: str, error: float, bound: float | None, elements: float) -> dict[str, Any]:
    claim = {"bound": bound, "train_error": 0.2, "test_error": 0.25, "n": 2000, "dimension": 150,
             "bits": 500.0, "num_weights": 7000}  # fmt: skip
    return {
        "name": name, "num_parameters": 7186, "test_error": error, "test_standard_error": 0.01,
        "log_evidence": None, "seconds": 3.0,
        "lie_derivatives": [{"name": "rotation", "unit": "radian", "error": 0.1,
                             "standard_error": 0.01}],
        "elements": {"name": "C(4)", "error": elements, "standard_error": elements / 10},
        "certified": None if bound is None else claim,
    }  # fmt: skip


ERRORS = {"plain": (0.3, 0.8, 0.01), "augmented": (0.25, None, 0.01),
          "averaged": (0.2, None, 0.001), "built": (0.15, 0.6, 1e-15),
          "relaxed": (0.2, 0.7, 1e-4)}  # fmt: skip
RECORD: dict[str, Any] = {
    "command": "story", "isotropy": "1", "device": "cpu", "seconds": 300.0, "data": "digits",
    "train_examples": 2000, "test_examples": 1000, "network": "turnable:6", "epochs": 20,
    "found": [ROTATION], "symmetries": [ROTATION], "delta": 0.05,
    "finding": ["The labels do not change under rotation by any angle.", "Rotation: present."],
    "verdicts": [{"name": "rotation", "verdict": "present", "probability": 1.0, "gain_nats": 900.0,
                  "gain_interval": [800.0, 1000.0]}],
    "group": "C(4)", "group_from": "found", "built": {"sentence": "C(4) is built in exactly."},
    "networks": [network(name, *ERRORS[name]) for name in NETWORKS],
    "steps": [{"name": "learned", "folder": "runs/s/learned", "seconds": 60.0},
              {"name": "certified-built", "folder": "runs/s/certified-built", "seconds": 60.0}],
}  # fmt: skip


def test_the_story_in_a_sentence_comes_first() -> None:
    first, *rest = story_sentences(RECORD)
    assert first == (
        "The labels do not change under rotation by any angle; with C(4) built in, the network "
        "errs on 15.0 % of the test images, without it on 30.0 %."
    )
    assert "C(4) is built in exactly." in rest
    assert rest[-1].endswith("plain 80.0 %, built 60.0 % and relaxed 70.0 %.")


def test_a_symmetry_that_costs_accuracy_is_told() -> None:
    networks = [network(name, *ERRORS[name]) for name in NETWORKS]
    networks[3]["test_error"] = 0.4
    worse = story_sentences({**RECORD, "networks": networks, "group_from": "given"})
    assert "The built network errs more than the plain one" in " ".join(worse)
    assert "C(4) was asked for, whatever was found." in " ".join(worse)
    networks[3]["test_error"] = 0.3
    same = story_sentences({**RECORD, "networks": networks})
    assert "differ by less than two standard errors" in " ".join(same)


def test_without_a_group_or_a_finding_nothing_is_claimed() -> None:
    partial = {**ROTATION, "low": -60.0, "high": 60.0}
    few = [network(name, *ERRORS[name]) for name in NETWORKS[:3]]
    none = {"group": None, "group_from": "nothing", "built": None, "networks": few}
    told = story_sentences({**RECORD, **none, "found": [partial]})
    assert "No group of the grid is justified by rotation ±60°" in " ".join(told)
    nothing = {**RECORD, **none, "found": [], "networks": few[:1],
               "finding": ["No symmetry was found."]}  # fmt: skip
    assert story_sentences(nothing) == [
        "No symmetry was found: the plain network is all that is justified."
    ]
    for record in (nothing, {**RECORD, **none, "found": [partial]}):
        assert "What it buys" in story_page(record, {})


def test_the_page_has_every_part_and_summary() -> None:
    page = story_page(RECORD, {"schedule": {"epochs": 20}})
    for words in ("What was learned", "The networks", "What the trained networks really have",
                  "What it buys", "How to read this", "The steps", "Elements of C(4)",
                  "isotropy verify runs/s/certified-built",
                  "isotropy measure --model runs/s/learned", "±176° to ±180°"):  # fmt: skip
        assert words in page, words
    for name in NETWORKS:
        assert f">{name}<" in page
    assert "<script" not in page and "nan" not in page.lower().replace("nanosecond", "")
    assert "15.0 %" in summary_html(RECORD)
