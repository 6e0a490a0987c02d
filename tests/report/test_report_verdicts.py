"""The sentences of runs that were judged, of runs that learned nothing, and of correlated ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_pages import GENERATOR_UNITS, SEARCH, result_with

from isotropy.report.learn.reading import correlated_pairs, finding_sentences


def judged(words: dict[str, tuple[Any, ...]], **half_widths: Any) -> dict[str, Any]:
    """A result with verdicts {name: (word, gain, its interval, interval of the amount)}.

    What is left out at the end is not known; ranges that are not given are zero.
    """
    result = result_with(**(dict.fromkeys(GENERATOR_UNITS, 0.0) | half_widths))
    verdicts = []
    for name, given in words.items():
        word, gain, gains, interval = (*given, *(None, None, None)[len(given) - 1 :])
        per_example = None if gain is None else gain / 500
        verdicts.append(
            {
                "name": name,
                "verdict": word,
                "probability": 0.5,
                "gain": per_example,
                "gain_nats": gain,
                "gain_interval": gains,
            }
        )
        next(s for s in result["symmetries"] if s["name"] == name)["interval"] = interval
    return {**result, "verdicts": verdicts}


ABSENT = {name: ("absent",) for name in GENERATOR_UNITS}
ROTATION = ("present", 283.6, [262.1, 305.9], [170.2, 180.0])
JUDGED = {
    "present": (
        judged(ABSENT | {"rotation": ROTATION}, rotation=178.0),
        (
            "The labels do not change under rotation by up to ±178°.",
            "Rotation: present, ±178° (95 % interval ±170° to ±180°; gain 284 nats, 95 % interval "
            "262 to 306).",
            "Absent: translation along x, translation along y, scaling along x and "
            "hyperbolic rotation.",
        ),
    ),
    "the verdict counts and not the amount": (
        judged(ABSENT, rotation=178.0),
        ("No symmetry was found.", "Absent: all that was tried."),
    ),
    "a small amount": (
        judged(ABSENT | {"scale_x": ("partial", 8.04, [-0.3, 16.4], [0.0, 0.2])}, scale_x=0.04),
        (
            "The labels do not change under scaling along x by factors from 0.96 to 1.04.",
            "Scaling along x: partial, ±0.040 (95 % interval 0 to ±0.20; gain 8.0 nats, 95 % "
            "interval −0.3 to 16).",
            "Absent: translation along x, translation along y, rotation and hyperbolic rotation.",
        ),
    ),
    "only some judged": (
        judged({"translation_x": ("present", 30.0)}, translation_x=0.2),
        (
            "The labels do not change under translation along x by up to ±0.20 of the image width.",
            "Translation along x: present, ±0.20 (gain 30 nats).",
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
        judged(
            ABSENT
            | dict.fromkeys(("scale_x", "hyperbolic_rotation"), ("cannot tell", 0.5, [-80, 80]))
            | {"translation_x": ("absent", -5.7, [-61, 50], [0.0, 0.034])}
        ),
        (
            "No symmetry was found.",
            "Cannot tell: scaling along x and hyperbolic rotation; the search neither confirms "
            "nor excludes them.",
            "Absent: translation along x (at most ±0.03), translation along y and rotation.",
        ),
    ),
    "cannot tell, but taken": (
        judged(ABSENT | {"rotation": ("cannot tell", 3.5, [-2.0, 9.0])}, rotation=15.0),
        (
            "No symmetry was found.",
            "Cannot tell: rotation (±15° in the model); the search neither confirms nor "
            "excludes it.",
            "Absent: translation along x, translation along y, scaling along x and "
            "hyperbolic rotation.",
        ),
    ),
    "a verdict without a word or a number": (
        judged(ABSENT | {"rotation": (None,)}, rotation=None),
        (
            "No symmetry was found.",
            "Cannot tell: rotation; the search neither confirms nor excludes it.",
            "Absent: translation along x, translation along y, scaling along x and "
            "hyperbolic rotation.",
        ),
    ),
    "found, but not a number": (
        judged({"rotation": ("present", 1.0, None)}, rotation=math.nan),
        (
            "A symmetry is found, but its learned range is not a finite number.",
            "Rotation: present (gain 1.0 nats).",
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
    words = {"rotation": ("already built in",), "translation_x": ("cannot tell", 0.0)}
    told = finding_sentences(judged(ABSENT | words), truth)
    assert told[-1] == "In the data but not found: translation along x."


def test_truths_and_amounts_of_zero() -> None:
    zeros = dict.fromkeys(GENERATOR_UNITS, 0.0)
    found = judged(ABSENT | {"rotation": ROTATION}, rotation=178.0)
    assert finding_sentences(found, zeros)[-2:] == (
        "The data were made without any of them.",
        "Found but not put into the data: rotation.",
    )
    told = finding_sentences(judged(ABSENT), zeros)
    assert told[-1] == "The data were made without any of them."
    assert "±0.00" not in " ".join(told)


def test_without_verdicts_the_thresholds_decide() -> None:
    result = result_with(rotation=175.0)
    assert finding_sentences({**result, "verdicts": None}, {}) == finding_sentences(result, {})


def test_a_run_that_still_moves_keeps_its_verdicts_and_says_so() -> None:
    result = judged(ABSENT | {"rotation": ROTATION}, rotation=178.0)
    told = finding_sentences({**result, "settled": False}, {})
    assert told[:-1] == finding_sentences(result, {})
    assert told[-1] == (
        "The run has not settled: the ranges or the evidence still moved over the last quarter of "
        "its epochs (now rotation ±178°); give it more epochs."
    )


# --- nothing learned ------------------------------------------------------------------------------


def nothing(searched: float | None, **changes: Any) -> dict[str, Any]:
    search = {
        **SEARCH,
        "nothing_learned": True,
        "log_predictive": searched,
        "null_log_predictive": -277.3,
    }
    told = judged({name: ("cannot tell", 12.0) for name in GENERATOR_UNITS})
    return {**told, "search": search, "train_examples": 500, **changes}


NOTHING = (
    "Nothing was learned by the search: the log predictive density of the network linearised at "
    "its start"
)
CANNOT_TELL = (
    "The search cannot tell: the network linearised at its start predicts no better than a constant"
)
TRAINED = {"log_evidence": -200.0, "null_log_evidence": -230.0}
NOTHING_LEARNED = {
    "below": (
        nothing(-278.5),
        f"{NOTHING}, −278.5 nats, does not exceed that of a constant, −277.3; no "
        "symmetry is claimed.",
    ),
    "hardly above, in a regression, on a part": (
        nothing(-276.0, noise=0.3, train_examples=2000),
        f"{NOTHING}, −276.0 nats over the 500 examples of the search, exceeds that of a constant, "
        "−277.3, by less than 3 nats; no symmetry is claimed.",
    ),
    "numbers missing": (
        nothing(None),
        f"{NOTHING} does not exceed that of a constant; no symmetry is claimed.",
    ),
    "the trained network learned": (
        nothing(-278.5, **TRAINED),
        f"{CANNOT_TELL} (log predictive density −278.5 nats, of a constant −277.3), although the "
        "trained network does, so no symmetry is claimed; give more examples, or learn amounts by "
        "gradient with --no-search.",
    ),
    "the trained network learned, on a part": (
        nothing(-278.5, **TRAINED, train_examples=2000),
        f"{CANNOT_TELL} (log predictive density −278.5 nats, of a constant −277.3 over the 500 "
        "examples of the search), although the trained network does, so no symmetry is claimed; "
        "let the search take more examples (--set search_examples=N), or learn amounts by gradient "
        "with --no-search.",
    ),
    "the trained network learned, numbers missing": (
        nothing(None, **TRAINED),
        f"{CANNOT_TELL}, although the trained network does, so no symmetry is claimed; give more "
        "examples, or learn amounts by gradient with --no-search.",
    ),
    "the trained network learned hardly anything": (
        nothing(-278.5, log_evidence=-228.0, null_log_evidence=-230.0),
        f"{NOTHING}, −278.5 nats, does not exceed that of a constant, −277.3; no symmetry is "
        "claimed.",
    ),
}


@pytest.mark.parametrize("case", NOTHING_LEARNED)
def test_nothing_learned_claims_nothing(case: str) -> None:
    result, expected = NOTHING_LEARNED[case]
    assert finding_sentences(result, {}) == (expected,)
    assert finding_sentences({**result, "settled": False}, {"rotation": 180.0}) == (
        expected,
        "The data were made with rotation by any angle.",
    )


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
