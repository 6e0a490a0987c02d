"""The sentences of runs that were judged by refits, and of correlated ones: cases are data."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_pages import GENERATOR_UNITS, result_with

from isotropy.report.reading import correlated_pairs, finding_sentences


def judged(words: dict[str, tuple[Any, ...]], **half_widths: Any) -> dict[str, Any]:
    """A result with verdicts {name: (word, gain, error, group)}; the shorter, the less is known."""
    verdicts = []
    for name, given in words.items():
        word, gain, error, group = (*given, *(None, None, ())[len(given) - 1 :])
        verdicts.append(
            {"name": name, "verdict": word, "gain": gain, "error": error, "group": group}
        )
    return {**result_with(**half_widths), "verdicts": verdicts}


ABSENT = {name: ("absent",) for name in GENERATOR_UNITS}
JUDGED = {
    "present": (
        judged(ABSENT | {"rotation": ("present", 1.0812, 0.0004)}, rotation=178.0),
        (
            "The labels do not change under rotation by up to ±178°.",
            "Rotation: present, ±178° (gain 1.08 ± 0.00 nats per example).",
            "Absent: translation along x, translation along y, scaling along x and "
            "hyperbolic rotation.",
        ),
    ),
    "the verdict counts and not the amount": (
        judged(ABSENT, rotation=178.0),
        ("No symmetry was found.", "Absent: all that was tried."),
    ),
    "a small amount that is wanted": (
        judged(ABSENT | {"scale_x": ("partial", 0.0312, 0.002)}, scale_x=0.04),
        (
            "The labels do not change under scaling along x by factors from 0.96 to 1.04.",
            "Scaling along x: partial, ±0.040 (gain 0.031 ± 0.002 nats per example).",
            "Absent: translation along x, translation along y, rotation and hyperbolic rotation.",
        ),
    ),
    "together": (
        judged({"translation_x": ("present", 0.3, 0.01, ("rotation",))}, translation_x=0.2),
        (
            "The labels do not change under translation along x by up to ±0.20 of the image width.",
            "Translation along x: present, ±0.20 (gain 0.30 ± 0.01 nats per example, together "
            "with rotation).",
            "Not judged: translation along y, rotation, scaling along x and hyperbolic rotation.",
        ),
    ),
    "built in": (
        judged(ABSENT | {"translation_x": ("already built in",)}),
        (
            "No symmetry was found beyond what the network has built in.",
            "Already built in: translation along x; the network itself does not react, so that "
            "averaging adds nothing.",
            "Absent: translation along y, rotation, scaling along x and hyperbolic rotation.",
        ),
    ),
    "cannot tell": (
        judged(ABSENT | {"rotation": ("cannot tell", 0.0071, 0.0064)}, rotation=15.0),
        (
            "No symmetry was found.",
            "Rotation: cannot tell, ±15° (gain 0.0071 ± 0.0064 nats per example).",
            "Absent: translation along x, translation along y, scaling along x and "
            "hyperbolic rotation.",
        ),
    ),
    "a verdict without a word or a number": (
        judged(ABSENT | {"rotation": (None,)}, rotation=None),
        (
            "No symmetry was found.",
            "Rotation: cannot tell.",
            "Absent: translation along x, translation along y, scaling along x and "
            "hyperbolic rotation.",
        ),
    ),
    "wanted, but not a number": (
        judged({"rotation": ("present", 1.0, None)}, rotation=math.nan),
        (
            "A symmetry is wanted, but its learned range is not a finite number.",
            "Rotation: present (gain 1.00 nats per example).",
            "Not judged: translation along x, translation along y, scaling along x and "
            "hyperbolic rotation.",
        ),
    ),
}


@pytest.mark.parametrize("case", JUDGED)
def test_verdicts_in_sentences(case: str) -> None:
    result, expected = JUDGED[case]
    assert finding_sentences(result, {}) == expected


def test_what_is_built_in_is_not_missed_and_what_cannot_be_told_is() -> None:
    truth = {"rotation": 180.0, "translation_x": 0.2}
    words = {"rotation": ("already built in",), "translation_x": ("cannot tell", 0.0, 0.1)}
    told = finding_sentences(judged(ABSENT | words), truth)
    assert told[-1] == "In the data but not found: translation along x."


def test_without_verdicts_the_thresholds_decide() -> None:
    result = result_with(rotation=175.0)
    assert finding_sentences({**result, "verdicts": None}, {}) == finding_sentences(result, {})


def test_a_run_too_short_is_not_judged_either() -> None:
    result = judged(ABSENT | {"rotation": ("present", 1.0, 0.0)}, rotation=90.0)
    assert finding_sentences({**result, "settled": False}, {})[0].startswith("The run was too")


# --- correlations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "width", "expected"),
    [
        (0.97, 0.3, ["scaling along x with hyperbolic rotation (correlation 0.97)"]),
        (-0.5, 0.3, ["scaling along x against hyperbolic rotation (correlation −0.50)"]),
        (0.49, 0.3, []),
        (math.nan, 0.3, []),
        (0.97, 0.01, []),  # at the noise floor a correlation means nothing
    ],
)
def test_strong_correlations_of_found_symmetries_are_told(
    value: float, width: float, expected: list[str]
) -> None:
    names = ["scale_x", "hyperbolic_rotation"]
    result = result_with(scale_x=0.3, hyperbolic_rotation=width)
    result["correlations"] = {"names": names, "matrix": [[1.0, value], [value, 1.0]]}
    told = [s for s in finding_sentences(result, {}) if s.startswith("Not drawn independently")]
    assert told == [f"Not drawn independently: {phrase}." for phrase in expected]
    assert len(correlated_pairs(result)) == len(expected)
