"""Pages as a browser reads them, and records of richer runs: made up, with the real shapes."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "img", "br", "hr", "link", "input"}
EVIL = "<script>alert('1')</script> & \"$x$\""


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

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


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


def assert_no_numbers_leak(text: str) -> None:
    """What is missing is a dash, never the name of a Python or IEEE value."""
    words = set(re.findall(r"[A-Za-z]+", text))
    assert not words & {"nan", "NaN", "inf", "Infinity", "None", "null"}, words


def calibration_scores(shift: float) -> dict[str, Any]:
    """Scores as `Calibration.as_dict()` has them; the first third of the bins is empty."""
    bins = []
    for index in range(15):
        low, high = index / 15, (index + 1) / 15
        count = 0 if index < 5 else 4 * (index - 4) ** 2
        middle = (low + high) / 2
        bins.append(
            {
                "low": low,
                "high": high,
                "count": count,
                "confidence": middle if count else None,
                "accuracy": min(1.0, middle - shift) if count else None,
            }
        )
    return {
        "examples": 500,
        "accuracy": 0.81,
        "log_likelihood": -0.62 - shift,
        "brier_score": 0.27 + shift / 4,
        "expected_calibration_error": abs(shift),
        "bins": bins,
    }


SCREENING: dict[str, Any] = {
    "rows": [
        {
            "direction": "rotation",
            "names": ["rotation"],
            "gain": 0.612,
            "error": 0.004,
            "wanted": True,
            "amounts": {"rotation": 32.4},
        },
        {
            "direction": "scale_x + scale_y",
            "names": ["scale_x", "scale_y"],
            "gain": 0.0213,
            "error": 0.0017,
            "wanted": True,
            "amounts": {"scale_x": 0.141, "scale_y": 0.141},
        },
        {
            "direction": "horizontal_flip",
            "names": ["horizontal_flip"],
            "gain": 0.0004,
            "error": None,
            "wanted": False,
            "amounts": {"horizontal_flip": 0.1},
        },
        {
            "direction": "translation_x",
            "names": ["translation_x"],
            "gain": -0.93,
            "error": None,
            "wanted": False,
            "amounts": {"translation_x": 0.05},
        },
    ],
    "ranking": ["rotation", "scale_x", "scale_y", "horizontal_flip", "translation_x"],
    "wanted": ["rotation", "scale_x", "scale_y"],
    "generators": ["rotation", "scale_x", "scale_y", "translation_x"],
    "matrix": [
        [6.1, 0.2, -0.3, 0.0],
        [0.2, 1.9, 1.4, 0.0],
        [-0.3, 1.4, 2.2, 0.0],
        [0.0, 0.0, 0.0, -3.3],
    ],
    "start": {"rotation": 32.4, "scale_x": 0.141, "scale_y": 0.141},
    "log_evidence": -2310.5,
    "evaluations": 64,
}
UNITS = {
    "rotation": "degrees",
    "scale_x": "log factor",
    "scale_y": "log factor",
    "translation_x": "fraction of image width",
    "horizontal_flip": "probability",
}
PROVENANCE: dict[str, Any] = {
    "isotropy": "0.1.0",
    "seed": 0,
    "device": "cpu",
    "seconds": 203.4,
    "run_folder": "runs/first",
    "data": "embedded digits, rotated",
    "network": "mlp",
    "train_examples": 2000,
    "versions": {"torch": "2.13.0", "python": "3.11"},
    "commit": "abc123",
}


def screen_result() -> dict[str, Any]:
    return copy.deepcopy(
        {
            "schema": 1,
            "command": "screen",
            **PROVENANCE,
            "curvature": "kfac-ggn",
            "units": UNITS,
            "screening": SCREENING,
            "training": {
                "epochs": 30,
                "train_loss": 0.21,
                "train_accuracy": 0.953,
                "log_evidence_per_example": -1.155,
            },
        }
    )


def profile_result() -> dict[str, Any]:
    """Rotation, true ±90°: one curvature close to it, one away from it, one that was refused."""
    amounts = [22.5 * step for step in range(9)]

    def profile(curvature: str, top: float, rank: float) -> dict[str, Any]:
        evidence = [-0.9 - ((amount - top) / 150) ** 2 for amount in amounts]
        return {
            "curvature": curvature,
            "amounts": amounts,
            "log_evidence": [2000 * value for value in evidence],
            "log_evidence_per_example": evidence,
            "log_likelihood_per_example": [-0.1 - amount / 900 for amount in amounts],
            "test_log_likelihood": [-0.5 - ((amount - 92) / 190) ** 2 for amount in amounts],
            "test_accuracy": [0.86 - ((amount - 92) / 400) ** 2 for amount in amounts],
            "maximum": top,
            "interval": [top - 6, top + 6],
            "held_out_maximum": 92.0,
            "rank_correlation": rank,
            "error": None,
        }

    return {
        "schema": 1,
        "command": "profile",
        **copy.deepcopy(PROVENANCE),
        "test_examples": 1000,
        "generator": "rotation",
        "unit": "degrees",
        "truth": 90.0,
        "others": "all other symmetries at zero",
        "profiles": [
            profile("kfac-ggn", 91.0, 0.983),
            profile("diagonal-ggn", 40.5, -0.2),
            {"curvature": "kfac-ef", "error": "layer 'norm' has no rule; take a fallback."},
        ],
    }


CONFIG: dict[str, Any] = {
    "schema": 1,
    "schedule": {"epochs": 30, "batch_size": 1000, "curvature": "kfac-ggn", "start": None},
    "network": {"name": "mlp", "widths": [200]},
}


VERDICTS: dict[str, tuple[str, float, float]] = {
    "rotation": ("present", 0.9999, 283.14),
    "scale_x": ("partial", 0.97, 15.6),
    "scale_y": ("partial", 0.96, 15.6),
    "translation_x": ("already built in", 0.4, 0.3),
    "translation_y": ("already built in", 0.4, 0.3),
    "hyperbolic_rotation": ("cannot tell", 0.44, 0.49),
    "horizontal_flip": ("absent", 0.003, -5.73),
    "vertical_flip": ("present", 0.995, 41.0),
}
INTERVALS = {"rotation": [143.1, 180.0], "vertical_flip": [0.41, 0.5], "horizontal_flip": [0, 0.04]}


def held_out_row(
    amount: float, predictive: float, evidence: float, held_out: float
) -> dict[str, float]:
    """A row of `beside_held_out`."""
    return {
        "amount": amount,
        "log_predictive": predictive,
        "log_evidence": evidence,
        "test_log_likelihood": held_out,
    }


def searched(amount: float, gain: float, *, held_out: bool = True) -> dict[str, Any]:
    """What a search says of one symmetry; without an amount it was not taken."""
    tried = amount or 0.3
    profile = {0.0: -900.0 - gain, 0.5 * tried: -900.0 - gain / 2, tried: -900.0}
    beside = [
        held_out_row(0.0, -900.0 - gain, -960.0 - gain, -1.746),
        held_out_row(0.5 * amount, -925.9, -985.5, -1.450),
        held_out_row(amount, -900.0, -961.3, -1.427),
        held_out_row(1.007 * amount, -901.2, -962.4, -1.426),
    ]
    return {
        "amount": amount,
        "interval": [0.8 * amount, tried],
        "probability": 0.9999 if amount else 0.44,
        "floor": 0.1,
        "whole": 0.0,
        "gain_nats": gain,
        "gain_interval": [gain - 25.0, gain + 25.0],
        "profile": [{"amount": a, "log_predictive": value} for a, value in profile.items()],
        "beside_held_out": beside if amount and held_out else [],
    }


SEARCH: dict[str, Any] = {
    "null_log_predictive": -1144.34,
    "nothing_learned": False,
    "examples": 500,
    "trials": 45,
    "log_predictive": -901.04,
    "seed_error": 4.54,
    "seconds": 111.3,
    "amounts": {name: 0.0 for name in VERDICTS} | {"rotation": 178.74},
    "symmetries": {
        name: searched(178.74 if name == "rotation" else 0.0, gain)
        for name, (_, _, gain) in VERDICTS.items()
    },
}


def richer_changes(ranges: dict[str, float]) -> dict[str, Any]:
    """What a run with verdicts, correlations and a flip adds to a result with these ranges."""
    names = list(ranges)
    matrix = [[1.0 if i == j else 0.03 for j in names] for i in names]
    i, j = names.index("scale_x"), names.index("scale_y")
    matrix[i][j] = matrix[j][i] = 0.97
    return {
        "distribution": "correlated",
        "correlations": {"names": names, "matrix": matrix},
        "verdicts": [
            {
                "name": name,
                "verdict": word,
                "probability": probability,
                "gain": gain / 500,
                "gain_nats": gain,
                "gain_interval": [gain - 25.2, gain + 25.2],
            }
            for name, (word, probability, gain) in VERDICTS.items()
        ],
        "search": copy.deepcopy(SEARCH),
        "null_log_evidence": -4605.17,
        "evidence": {
            "nats": -1272.0,
            "examples": 2000,
            "curvature": "kfac-ggn",
            "samples": 16,
            "prior_structure": "scalar",
            "noise_seed": "0/final",
            "data": "f1e2",
        },
        "fallback": {"features.norm": "LayerNorm"},
        "screening": copy.deepcopy(SCREENING),
        "calibration": {
            "plug-in": calibration_scores(0.09),
            "probit": calibration_scores(0.02),
            "monte-carlo": calibration_scores(-0.01),
        },
    }


GENERATOR_UNITS = {
    "translation_x": "fraction of image width",
    "translation_y": "fraction of image width",
    "rotation": "degrees",
    "scale_x": "log factor",
    "hyperbolic_rotation": "log factor",
}


def result_with(objective: str = "laplace", **half_widths: Any) -> dict[str, Any]:
    """A result whose ranges are 0.012 where not given; a pair gives both ends."""
    symmetries = []
    for name, unit in GENERATOR_UNITS.items():
        given = half_widths.get(name, 0.012)
        low, high = given if isinstance(given, tuple) else (given and -given, given)
        symmetries.append({"name": name, "kind": "range", "low": low, "high": high, "unit": unit})
    return {"objective": objective, "symmetries": symmetries}
