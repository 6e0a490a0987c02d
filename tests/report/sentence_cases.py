"""Cases of what commands say: records, made up, whose sentences are in `golden/sentences.txt`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from report_pages import result_of

from isotropy.report.pages.findings import finding_sentences
from isotropy.report.pages.measure import measure_sentences
from isotropy.report.pages.profile import profile_sentences
from isotropy.report.pages.relax import relax_sentences, score_sentences
from isotropy.report.pages.screen import screen_sentences

UNITS = {
    "translation_x": "fraction of image width",
    "translation_y": "fraction of image width",
    "rotation": "degrees",
    "scale_x": "log factor",
    "hyperbolic_rotation": "log factor",
}
ZERO = dict.fromkeys(UNITS, 0.0)


# --- learn ----------------------------------------------------------------------------------------


def learned(objective: str = "laplace", **half_widths: Any) -> dict[str, Any]:
    """A result whose ranges are 0.012 where not given; a pair gives both ends."""
    symmetries = []
    for name, unit in UNITS.items():
        given = half_widths.get(name, 0.012)
        low, high = given if isinstance(given, tuple) else (given and -given, given)
        symmetries.append({"name": name, "kind": "range", "low": low, "high": high, "unit": unit})
    return {"objective": objective, "symmetries": symmetries}


def flip(probability: float | None) -> dict[str, Any]:
    """One element of a finite group, `horizontal_flip`."""
    own = {"name": "horizontal_flip", "kind": "probability", "unit": "probability", "low": 0.0}
    return {"objective": "laplace", "symmetries": [{**own, "high": probability}]}


def judged(words: dict[str, tuple[Any, ...]], **half_widths: Any) -> dict[str, Any]:
    """A result with verdicts {name: (word, gain, its interval, interval of the amount)}.

    What is left out at the end is not known; ranges that are not given are zero.
    """
    result = learned(**(ZERO | half_widths))
    verdicts = []
    for name, given in words.items():
        word, gain, gains, interval = (*given, *(None, None, None)[len(given) - 1 :])
        own = {"verdict": word, "probability": 0.5, "gain_nats": gain, "gain_interval": gains}
        verdicts.append({"name": name, **own})
        next(s for s in result["symmetries"] if s["name"] == name)["interval"] = interval
    return {**result, "verdicts": verdicts}


ABSENT = {name: ("absent",) for name in UNITS}
ROTATION = ("present", 283.6, [262.1, 305.9], [170.2, 180.0])
FOUND = judged(ABSENT | {"rotation": ROTATION}, rotation=178.0)


def nothing_learned(density: float | None, **changes: Any) -> dict[str, Any]:
    search = {"nothing_learned": True, "log_predictive": density, "null_log_predictive": -277.3}
    told = judged({name: ("cannot tell", 12.0) for name in UNITS})
    return {**told, "search": {**search, "examples": 500}, "train_examples": 500, **changes}


TRAINED = {"log_evidence": -200.0, "null_log_evidence": -230.0}


def with_half(predictive: float, held_out: float, evidence: float = 0.0) -> dict[str, Any]:
    """A result in which half of ±100° differs by these from the learned amount."""
    names = ("amount", "log_predictive", "log_evidence", "test_log_likelihood")
    rows = [
        dict(zip(names, row, strict=True))
        for row in [
            (50.0, -900.0 + predictive, -960.0 + evidence, -1.5 + held_out),
            (100.0, -900.0, -960.0, -1.5),
        ]
    ]
    own = {"amount": 100.0, "interval": [80.0, 120.0], "beside_held_out": rows, "profile": rows}
    return {**learned(rotation=100.0), "search": {"symmetries": {"rotation": own}}}


Amounts = dict[str, float]
WHOLE: Amounts = {"rotation": 180.0, "scale_x": 0.1}
HALF: Amounts = {"rotation": 90.0, "scale_x": 0.1}
SCALED: Amounts = {"rotation": 0.0, "scale_x": 0.1}
NONE: Amounts = {"rotation": 0.0, "scale_x": 0.0}


def after_training(
    kept: Amounts, *rows: tuple[Amounts, float | None], **entries: float
) -> dict[str, Any]:
    """A result with these amounts, after networks with others had been trained."""
    trained = [{"amounts": amounts, "log_evidence": value} for amounts, value in rows]
    search = {"amounts": kept, "trained": trained, **entries}
    return {**learned(**kept), "search": search}


RIVALS = ((WHOLE, -1767.2), (HALF, -1742.5))
NARROWER: Amounts = {"rotation": 63.0, "scale_x": 0.07}
NARROWEST: Amounts = {"rotation": 44.1, "scale_x": 0.049}
NARROWED = ((NARROWER, -1720.0), (NARROWEST, -1790.1), (NONE, -1900.0))


def correlated(value: float, width: float = 0.3) -> dict[str, Any]:
    """Two scalings drawn with this correlation, the second of this half-width."""
    names = ["scale_x", "hyperbolic_rotation"]
    matrix = [[1.0, value], [value, 1.0]]
    own = {"correlations": {"names": names, "matrix": matrix}}
    return {**learned(scale_x=0.3, hyperbolic_rotation=width), **own}


LEARN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one found": (learned(rotation=175.0), {}),
    "found and known": (learned(rotation=175.0), ZERO | {"rotation": 180.0}),
    "a truth that is not known": (learned(rotation=175.0), {"rotation": None, "scale_x": math.nan}),
    "partial": (learned(rotation=88.4, translation_x=0.003), {"rotation": 90.0}),
    "several found": (learned(rotation=88.0, translation_x=0.12, scale_x=0.25), {}),
    "asymmetric": (learned(rotation=(-10.0, 90.0)), {}),
    "nothing found": (learned(rotation=2.14), ZERO),
    "missed": (learned(rotation=2.14), ZERO | {"rotation": 45.0}),
    "too small to call": (learned(rotation=15.0), {}),
    "found too much": (learned(rotation=90.0), ZERO),
    "one is not a number": (learned(rotation=None), {}),
    "none is a number": (learned(**dict.fromkeys(UNITS, math.nan)), {}),
    "zeros beside one found": (learned(**(ZERO | {"rotation": 175.0})), {}),
    "all zero": (learned(**ZERO), {}),
    "objective none": (learned("none", **ZERO), {"rotation": 180.0}),
    "objective fixed": (learned("fixed", **(ZERO | {"rotation": 90.0})), {}),
    "objective fixed at zero": (learned("fixed", **ZERO), {}),
    "averaged losses": (learned("averaged-losses", **ZERO, ), {"rotation": 180.0}),
    "trivial augment": ({"objective": "trivial-augment", "symmetries": []}, {}),
    "nothing tried": ({"symmetries": []}, {}),
    "still moving": ({**learned(rotation=90.0), "settled": False}, {"rotation": 180.0}),
    "a whole flip": (flip(0.4987), {}),
    "a part of a flip": (flip(0.31), {}),
    "a small flip": (flip(0.07), {}),
    "a flip at the noise floor": (flip(0.012), {"horizontal_flip": 0.5}),
    "a flip that is not a number": (flip(None), {}),
    "present": (FOUND, {}),
    "present, but not in the data": (FOUND, ZERO),
    "present, still moving": ({**FOUND, "settled": False}, {}),
    "the verdict counts and not the amount": (judged(ABSENT, rotation=178.0), ZERO),
    "a small amount": (
        judged(ABSENT | {"scale_x": ("partial", 8.04, [-0.3, 16.4], [0.0, 0.2])}, scale_x=0.04), {}
    ),
    "only some judged": (judged({"translation_x": ("present", 30.0)}, translation_x=0.2), {}),
    "built in, and not missed": (
        judged(ABSENT | {"rotation": ("already built in",), "scale_x": ("cannot tell", 0.0)}),
        {"rotation": 180.0, "scale_x": 0.2},
    ),
    "cannot tell": (
        judged(
            ABSENT
            | dict.fromkeys(("scale_x", "hyperbolic_rotation"), ("cannot tell", 0.5, [-80, 80]))
            | {"translation_x": ("absent", -5.7, [-61, 50], [0.0, 0.034])}
        ),
        {},
    ),
    "cannot tell, but taken": (
        judged(ABSENT | {"rotation": ("cannot tell", 3.5, [-2.0, 9.0])}, rotation=15.0), {}
    ),
    "a verdict without a word or a number": (judged({"rotation": (None,)}, rotation=None), {}),
    "found, but not a number": (judged({"rotation": ("present", 1.0)}, rotation=math.nan), {}),
    "nothing learned": (nothing_learned(-278.5), {"rotation": 180.0}),
    "hardly anything learned, on a part": (nothing_learned(-276.0, train_examples=2000), {}),
    "nothing learned, numbers missing": (nothing_learned(None), {}),
    "only the trained network learned": (nothing_learned(-278.5, **TRAINED), {}),
    "only the trained network learned, on a part": (
        nothing_learned(-278.5, **TRAINED, train_examples=2000), {}
    ),
    "only the trained network learned, numbers missing": (nothing_learned(None, **TRAINED), {}),
    "the trained network learned hardly anything": (
        nothing_learned(-278.5, log_evidence=-228.0, null_log_evidence=-230.0), {}
    ),
    "held-out data disagree": (with_half(-24.9, 0.1), {}),
    "the evidence disagrees": (with_half(-10.0, -0.1, 12.34), {}),
    "a whole period is needed": (after_training(WHOLE, (WHOLE, -1767.2), (HALF, -2090.6)), {}),
    "half of it is needed": (after_training(HALF, *RIVALS, (NONE, -1700.0)), {}),
    "none of it is needed": (after_training(NONE, *RIVALS, (NONE, -1700.0)), {}),
    "one of both is needed": (
        after_training(SCALED, *RIVALS, (NONE, -1700.0), (SCALED, -1699.0)), {}
    ),
    "less of it is enough": (after_training(NARROWER, (HALF, -1742.5), *NARROWED), {}),
    "less of half of it is enough": (after_training(NARROWER, *RIVALS, *NARROWED), {}),
    "less of it is not enough": (
        after_training(HALF, (HALF, -1700.0), (NARROWER, -1720.0), (NONE, -1900.0)), {}
    ),
    "less of it is enough, none of it is better": (
        after_training(NONE, (HALF, -1742.5), *NARROWED[:2], (NONE, -1600.0)), {}
    ),
    "compared before the run": (
        after_training(NARROWER, (HALF, -1742.5), *NARROWED, trained_steps=2160.0), {}
    ),
    "no rival was trained": (after_training(WHOLE, (WHOLE, None), (HALF, -1.0)), {}),
    "drawn together": (correlated(0.97), {}),
    "drawn against each other": (correlated(-0.5), {}),
}  # fmt: skip


# --- measure --------------------------------------------------------------------------------------


def measured(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The stored record with these changes to its one entry, one entry each."""
    (own,) = result_of("measure")["entries"]
    return {"entries": [{**own, **each} for each in entries or ({},)], **changes}


def action(**changes: Any) -> dict[str, Any]:
    """The stored rotation with changes."""
    return {**result_of("measure")["entries"][0]["actions"][0], **changes}


MEASURE: dict[str, dict[str, Any]] = {
    "one network": result_of("measure"),
    "several networks": result_of("compare"),
    "several networks on one data set": measured({"model": "mlp"}, {"model": "cnn"}),
    "one network on several data sets": measured({"data": "train"}, {"data": "test"}),
    "no clear difference": {**result_of("compare"), "drifts": [], "gaps": [
        {"model": "cnn", "action": "rotation", "from": "a", "to": "b", "difference": 0.1,
         "standard_error": 0.06}]},
    "one transformation": measured({"actions": [action()], "exact": []}),
    "within the floor": measured({"actions": [action(resampling_floor=0.52)], "exact": []}),
    "moved alone": measured({"exact": [], "actions": [
        {"name": "horizontal_flip", "finite": {"error": 0.25, "standard_error": 0.05}},
        {"name": "scale"}, {"name": "scale", "remark": "No grid."}]}),
    "not square": measured({"exact": [{"name": "quarter turns", "remark": "not square."}]}),
    "nothing measured": {},
    "nothing measured of one": {"entries": [{}]},
    "nothing measured of several": {"entries": [{"model": "a"}, {"model": "b"}]},
}  # fmt: skip


# --- relax ----------------------------------------------------------------------------------------


def relaxed(*became: str | None, **changes: Any) -> dict[str, Any]:
    """A record whose layers became these, in order."""
    shares = {"conv": 0.8, "ffc": 0.2}
    layers = [
        {"name": f"stage{place}", "became": each, "effective": shares}
        for place, each in enumerate(became, start=1)
    ]
    return {"pathways": ["ffc", "conv"], "objective": "laplace", "layers": layers, **changes}


def without_step(epochs: int, burn_in: int, every: int, **changes: Any) -> dict[str, Any]:
    config = {"epochs": epochs, "burn_in": burn_in, "update_every": every}
    return relaxed(None, None, hyper_steps=0, config=config, **changes)


SMALLER = {"num_parameters": 100, "test_accuracy": 0.9612}
RELAX: dict[str, dict[str, Any]] = {
    "stored": result_of("relax"),
    "all": relaxed("conv", "conv"),
    "one layer": relaxed("ffc"),
    "a sum among others": relaxed("conv", "conv", "conv + ffc"),
    "all sums": relaxed("conv + ffc", "ffc + conv"),
    "same symmetry": relaxed("conv", "sconv"),
    "groups": relaxed("gconv", "gconv", "conv"),
    "most first": relaxed("ffc", "conv", "conv", "gconv"),
    "bias maps": relaxed("conv + bias map", "conv", "conv", "ffc + bias map", "conv + bias map"),
    "all with bias maps": relaxed("gconv + bias map", "gconv + bias map"),
    "a sum with a bias map": relaxed("conv + ffc + bias map", "conv + ffc"),
    "off": relaxed("conv", "off"),
    "own kind": relaxed("mine", "mine"),
    "one not known": relaxed("", "conv"),
    "none known": relaxed(None, None),
    "no layers": {},
    "no choice": relaxed("conv", pathways=["conv"]),
    "by MAP": relaxed("conv + bias map", "ffc", objective="map"),
    "burn-in too long": without_step(5, 9, 1),
    "steps too seldom": without_step(5, 0, 9),
    "loss too high": without_step(5, 1, 1, train_loss=2.25),
    "nothing hardened": relaxed("conv", num_parameters=100, hardened=SMALLER),
    "hardened, not scored": relaxed("conv", num_parameters=440, hardened={"num_parameters": 100}),
}


# --- screen, profile ------------------------------------------------------------------------------


def screened(*rows: int, **changes: Any) -> dict[str, Any]:
    """The stored screening with these of its rows."""
    result = result_of("screen", **changes)
    result["screening"]["rows"] = [result["screening"]["rows"][row] for row in rows]
    return result


def profiled(**changes: Any) -> dict[str, Any]:
    """The stored profile with these changes to its first curvature alone."""
    result = result_of("profile")
    return {**result, "profiles": [{**result["profiles"][0], **changes}]}


SCREEN = {
    "all": result_of("screen"),
    "nothing wanted": screened(2, 3, units=None),
    "without units": screened(0, units=None),
    "nothing screened": {},
}
PROFILE = {
    "all": result_of("profile"),
    "truth of zero": {**profiled(), "truth": 0.0},
    "a probability": {
        **profiled(maximum=0.498, interval=None),
        "unit": "probability",
        "truth": 0.5,
    },
    "no held-out data": profiled(held_out_maximum=None, rank_correlation=None),
    "none computed": {**profiled(), "profiles": [{"curvature": "kfac", "error": "no rule."}]},
    "no profile": {},
}
CASES: dict[str, tuple[Callable[..., Sequence[str]], tuple[Any, ...]]] = {
    **{f"learn: {name}": (finding_sentences, case) for name, case in LEARN.items()},
    **{f"measure: {name}": (measure_sentences, (case,)) for name, case in MEASURE.items()},
    **{f"relax: {name}": (relax_sentences, (case,)) for name, case in RELAX.items()},
    "relax: scores": (score_sentences, (result_of("relax"),)),
    **{f"screen: {name}": (screen_sentences, (case,)) for name, case in SCREEN.items()},
    **{f"profile: {name}": (profile_sentences, (case,)) for name, case in PROFILE.items()},
}
"""Function and arguments by name."""
