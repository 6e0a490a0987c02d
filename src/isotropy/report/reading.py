"""How the numbers of a record are read: thresholds, units, and the sentences made of them.

A learned range is read by its half-width h in its unit, against one table (`READINGS`):

    h ≥ found            "found"               the labels do not change under it
    floor ≤ h < found    "too small to call"
    h < floor            "at the noise floor"  where absent symmetries come to rest
    h not finite         "not a number"

The thresholds are conventions, not tests: they say which words are used, and every number is
shown beside its word. All functions are pure and take what `isotropy learn --json` printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MISSING = "–"
_MINUS = "\N{MINUS SIGN}"

Verdict = Literal["found", "too small to call", "at the noise floor", "not a number"]


@dataclass(frozen=True)
class Reading:
    """How ranges in one unit are read.

    found, floor: half-widths, in the unit, from which the words above are used
    full_scale:   half-width at which a bar in the report is full
    decimals:     digits after the point in tables
    symbol:       what follows a number directly, such as the degree sign
    """

    found: float
    floor: float
    full_scale: float
    decimals: int
    symbol: str = ""


READINGS: dict[str, Reading] = {
    "degrees": Reading(found=20.0, floor=10.0, full_scale=180.0, decimals=1, symbol="°"),
    "fraction of image width": Reading(found=0.05, floor=0.025, full_scale=0.5, decimals=3),
    "log factor": Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3),
    "tangent": Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3),
}
OTHER_READING = Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3)

# Names as they read in a sentence; others are read as they are written, without underscores.
_SPOKEN_NAMES = {
    "translation_x": "translation along x",
    "translation_y": "translation along y",
    "scale_x": "scaling along x",
    "scale_y": "scaling along y",
    "scale": "scaling",
    "shear_x": "shear along x",
    "shear_y": "shear along y",
}


def reading_of(unit: str | None) -> Reading:
    """The thresholds and looks of a unit; `OTHER_READING` for units the table does not hold."""
    return READINGS.get(unit or "", OTHER_READING)


def spoken_name(name: str) -> str:
    """`translation_x` as it reads in a sentence: "translation along x"."""
    return _SPOKEN_NAMES.get(name, name.replace("_", " "))


def finite(value: object) -> float | None:
    """`value` as a float, or None where it is missing or not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def number_text(value: object, decimals: int = 2, symbol: str = "") -> str:
    """A number with a true minus sign and thousands separated: `−1,234.5`; "–" if not finite."""
    number = finite(value)
    if number is None:
        return MISSING
    text = f"{number:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")  # no negative zero
    return text.replace("-", _MINUS) + symbol


def half_width(symmetry: Mapping[str, Any]) -> float | None:
    """(high − low) / 2 in the symmetry's unit, or None where an end is not a number."""
    low, high = finite(symmetry.get("low")), finite(symmetry.get("high"))
    return None if low is None or high is None else (high - low) / 2


def verdict_of(symmetry: Mapping[str, Any]) -> Verdict:
    """The word for one symmetry's learned range; see the module's table."""
    width = half_width(symmetry)
    reading = reading_of(symmetry.get("unit"))
    if width is None:
        return "not a number"
    if width >= reading.found:
        return "found"
    return "too small to call" if width >= reading.floor else "at the noise floor"


def finding_sentence(result: Mapping[str, Any], truth: Mapping[str, float]) -> str:
    """What a run found, in one to a few plain sentences; see `finding_sentences`."""
    return " ".join(finding_sentences(result, truth))


def finding_sentences(result: Mapping[str, Any], truth: Mapping[str, float]) -> tuple[str, ...]:
    """The headline, then what else there is to say.

    result: as printed by `isotropy learn --json`: its `symmetries`, `objective` and `settled`
            (false for a run too short for its ranges to settle) are read
    truth:  true half-widths by name, in the symmetry's unit; empty when unknown
    """
    symmetries = result.get("symmetries") or []
    if not symmetries:
        return ("No transformation was tried.",)
    objective = result.get("objective")
    if objective == "none":
        return ("Nothing was learned: every range was fixed at zero.", *_made_with(result, truth))
    if objective == "fixed":
        return (_given_sentence(symmetries), *_made_with(result, truth))
    found = _with_verdict(symmetries, "found")
    unclear = _with_verdict(symmetries, "too small to call")
    still = _with_verdict(symmetries, "at the noise floor")
    broken = _with_verdict(symmetries, "not a number")
    sentences: list[str] = []
    if result.get("settled") is False:
        return (
            "The run was too short for the ranges to settle, so nothing can be said yet: "
            f"{_join(_short_phrase(s) for s in symmetries if half_width(s) is not None)}.",
            *_made_with({**result, "objective": None}, truth)[:1],
        )
    if found:
        phrases = _join(_extent_phrase(symmetry) for symmetry in found)
        sentences.append(f"The labels do not change under {phrases}.")
    elif len(broken) == len(symmetries):
        sentences.append("Nothing can be said: no learned range is a finite number.")
        broken = []
    else:
        sentences.append("No symmetry was found.")
    if unclear:
        sentences.append(f"Too small to call: {_join(_short_phrase(s) for s in unclear)}.")
    if broken:
        names = _join(spoken_name(str(symmetry["name"])) for symmetry in broken)
        sentences.append(f"The learned range of {names} is not a finite number.")
    if still:
        sentences.append(_still_sentence(still, found=bool(found), alone=still == list(symmetries)))
    return (*sentences, *_made_with(result, truth))


def _with_verdict(
    symmetries: Sequence[Mapping[str, Any]], verdict: Verdict
) -> list[Mapping[str, Any]]:
    return [symmetry for symmetry in symmetries if verdict_of(symmetry) == verdict]


def _still_sentence(still: Sequence[Mapping[str, Any]], *, found: bool, alone: bool) -> str:
    """Say that ranges are at the noise floor, and how large they are.

    found: whether another range was found; alone: whether there is no other range at all
    """
    if len(still) == 1:
        return f"{_capital(_short_phrase(still[0]))} is at the noise floor."
    subject = "Every learned range is" if alone else "Every other learned range is"
    if found:
        subject = "No other transformation was found: every other learned range is"
    # Degrees cannot share a bound with fractions and log factors, so they are named apart.
    marked = [s for s in still if reading_of(s.get("unit")).symbol]
    plain = [s for s in still if not reading_of(s.get("unit")).symbol]
    parts = [_short_phrase(symmetry) for symmetry in marked]
    if plain:
        bound = _bound_text(max(abs(half_width(symmetry) or 0.0) for symmetry in plain))
        parts.append(f"the rest below {bound}" if parts else f"below {bound}")
    return f"{subject} at the noise floor ({', '.join(parts)})."


def _given_sentence(symmetries: Sequence[Mapping[str, Any]]) -> str:
    given = [symmetry for symmetry in symmetries if half_width(symmetry)]
    if not given:
        return "The ranges were given, not learned: all are zero."
    phrases = _join(_extent_phrase(symmetry) for symmetry in given)
    return f"The ranges were given, not learned: {phrases}."


def _made_with(result: Mapping[str, Any], truth: Mapping[str, float]) -> tuple[str, ...]:
    """What is known to be in the data, and where the finding differs from it."""
    known = [s for s in result.get("symmetries") or [] if s["name"] in truth]
    if not known:
        return ()
    true = [s | {"low": -truth[s["name"]], "high": truth[s["name"]]} for s in map(dict, known)]
    present = [symmetry for symmetry in true if symmetry["high"] > 0]
    if present:
        sentences = [f"The data were made with {_join(_extent_phrase(s) for s in present)}."]
    else:
        sentences = ["The data were made without any of them."]
    if result.get("objective") in ("none", "fixed"):
        return tuple(sentences)
    found = {s["name"] for s in known if verdict_of(s) == "found"}
    missed = [s["name"] for s in true if verdict_of(s) == "found" and s["name"] not in found]
    extra = [s["name"] for s in true if s["high"] <= 0 and s["name"] in found]
    if missed:
        sentences.append(f"In the data but not found: {_join(map(spoken_name, missed))}.")
    if extra:
        sentences.append(f"Found but not put into the data: {_join(map(spoken_name, extra))}.")
    return tuple(sentences)


def _extent_phrase(symmetry: Mapping[str, Any]) -> str:
    """`rotation by up to ±175°`, `scaling along x by factors from 0.78 to 1.28`, …"""
    name, unit = spoken_name(str(symmetry["name"])), str(symmetry.get("unit") or "")
    low, high = float(symmetry["low"]), float(symmetry["high"])
    if unit == "log factor":
        return f"{name} by factors from {math.exp(low):.2f} to {math.exp(high):.2f}"
    if unit == "degrees" and high - low >= 360:
        return f"{name} by any angle"
    after = (
        f" of the {unit.removeprefix('fraction of ')}" if unit.startswith("fraction of ") else ""
    )
    if abs(low + high) <= 0.02 * (high - low):
        return f"{name} by up to {_half_width_text(symmetry)}{after}"
    return f"{name} from {_value_text(low, unit)} to {_value_text(high, unit)}{after}"


def _short_phrase(symmetry: Mapping[str, Any]) -> str:
    return f"{spoken_name(str(symmetry['name']))} {_half_width_text(symmetry)}"


def _half_width_text(symmetry: Mapping[str, Any]) -> str:
    width = half_width(symmetry)
    assert width is not None, "only finite ranges are put into words"
    return "±" + _value_text(width, str(symmetry.get("unit") or ""))


def _value_text(value: float, unit: str) -> str:
    """Two decimals, or for degrees none; one more where the value is small."""
    reading = reading_of(unit)
    few = max(reading.decimals - 1, 0)
    decimals = few if abs(value) >= reading.floor or value == 0 else reading.decimals
    return number_text(value, decimals, reading.symbol)


def _bound_text(value: float) -> str:
    """The next number with one significant digit above `value`: 0.012 gives "0.02"."""
    if value < 1e-3:
        return "0.001"
    step = 10.0 ** math.floor(math.log10(value))
    return f"{(math.floor(value / step + 1e-9) + 1) * step:.1g}"


def _join(parts: Iterable[str]) -> str:
    words = list(parts)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
