"""Numbers and names as text: what every page and every sentence is made of.

Numbers have a true minus sign and separated thousands, what is missing or not finite is a dash,
and names of generators read as in a sentence. All functions are pure.

Amounts of symmetries in their units: from which size words are used, and how they read.

An amount is a half-width h = (high − low) / 2 or a probability. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "–"
_MINUS = "\N{MINUS SIGN}"

# Names as they read in a sentence; others are read as they are written, without underscores.
_SPOKEN_NAMES = {
    **{f"translation_{axis}": f"translation along {axis}" for axis in "xyz"},
    **{f"rotation_{axis}": f"rotation about {axis}" for axis in "xyz"},
    **{f"scale_{axis}": f"scaling along {axis}" for axis in "xy"},
    **{f"shear_{axis}": f"shear along {axis}" for axis in "xy"},
    **{f"reflection_{axis}": f"reflection along {axis}" for axis in "xyz"},
    **{f"turn_{degrees}": f"turn by {degrees}°" for degrees in (90, 180, 270)},
    "scale": "scaling",
    "aspect": "change of aspect",
    "monte-carlo": "Monte Carlo",
}


def spoken_name(name: str) -> str:
    """`translation_x` as it reads in a sentence: "translation along x"."""
    return _SPOKEN_NAMES.get(name, name.replace("_", " "))


def title_of(name: str) -> str:
    """A name as a heading: "Translation along x"."""
    return capital(spoken_name(name))


def finite(value: object) -> float | None:
    """`value` as a float, or None where it is missing or not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def finite_or_nan(value: object) -> float:
    """`value` as a float, NaN where it is missing or not finite: for drawings."""
    number = finite(value)
    return math.nan if number is None else number


def number_text(value: object, decimals: int = 2, symbol: str = "") -> str:
    """A number with a true minus sign and thousands separated: `−1,234.5`; "–" if not finite."""
    number = finite(value)
    if number is None:
        return MISSING
    text = f"{number:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")  # no negative zero
    return text.replace("-", _MINUS) + symbol


def percent_text(fraction: object, decimals: int = 1) -> str:
    """A fraction in per cent: `81.3 %`."""
    number = finite(fraction)
    return MISSING if number is None else number_text(100 * number, decimals, " %")


def gain_text(gain: object, error: object) -> str:
    """`1.08 ± 0.00`, with more decimals where the gain is small; a dash where there is none."""
    size = abs(finite(gain) or 0.0)
    decimals = 2 if size >= 0.0995 else 3 if size >= 0.00995 else 4
    text = number_text(gain, decimals)
    spread = finite(error)
    if text == MISSING or spread is None:
        return text
    return f"{text} ± {number_text(spread, decimals)}"


def nats_text(nats: object) -> str:
    """A total in nats: none of its decimals from 10 on, one below."""
    return number_text(nats, 0 if abs(finite(nats) or 0.0) >= 9.95 else 1)


def duration_text(seconds: object) -> str:
    """`12.3 s`, `3 min 23 s`, `1 h 05 min`."""
    value = finite(seconds)
    if value is None:
        return MISSING
    if value < 59.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def known_text(count: object, words: str) -> str:
    """`words` with the count in place of {}, or nothing where the count is not known."""
    return "" if finite(count) is None else words.format(number_text(count, 0))


def joined(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    words = list(parts)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def capital(text: str) -> str:
    """The text with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


def mapping_of(value: object) -> Mapping[str, Any]:
    """`value` if it is an object of JSON, else an empty one: records may hold null instead."""
    return value if isinstance(value, Mapping) else {}


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """The objects in a JSON list; none where there is no list."""
    if not isinstance(value, list | tuple):
        return []
    return [each for each in value if isinstance(each, Mapping)]


@dataclass(frozen=True)
class Reading:
    """How amounts in one unit are read.

    found, floor: half-widths (or probabilities), in the unit, from which `reading` uses its words
    full_scale:   amount at which a bar in the report is full
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
    "fraction of length": Reading(found=0.05, floor=0.025, full_scale=0.5, decimals=3),
    "log factor": Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3),
    "tangent": Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3),
    "grey level": Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3),
    "unit length": Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3),
    "probability": Reading(found=0.1, floor=0.05, full_scale=0.5, decimals=3),
}
OTHER_READING = Reading(found=0.1, floor=0.05, full_scale=1.0, decimals=3)


def reading_of(unit: str | None) -> Reading:
    """The thresholds and looks of a unit; `OTHER_READING` for units the table does not hold."""
    return READINGS.get(unit or "", OTHER_READING)


def is_probability(symmetry: Mapping[str, Any]) -> bool:
    """Whether it is an element of a finite group: from zero to a probability, not a range."""
    return symmetry.get("kind") == "probability"


def amount_of(symmetry: Mapping[str, Any]) -> float | None:
    """(high − low) / 2, or the probability, in the symmetry's unit; None if not a number."""
    low, high = finite(symmetry.get("low")), finite(symmetry.get("high"))
    if is_probability(symmetry):
        return high
    return None if low is None or high is None else (high - low) / 2


def short_amount(symmetry: Mapping[str, Any]) -> str:
    """`±178°`, `±0.20`, `probability ½`."""
    amount = amount_of(symmetry)
    assert amount is not None, "only finite amounts are put into words"
    before = "probability " if is_probability(symmetry) else "±"
    return before + amount_text(amount, str(symmetry.get("unit") or ""))


def amount_text(value: float, unit: str) -> str:
    """Two decimals, or for degrees none; one more where small. A probability of a half is "½"."""
    if unit == "probability" and abs(value - 0.5) < 0.005:
        return "½"
    reading = reading_of(unit)
    few = max(reading.decimals - 1, 0)
    decimals = few if abs(value) >= reading.floor or value == 0 else reading.decimals
    return number_text(value, decimals, reading.symbol)


def signed_amount(value: float, unit: str) -> str:
    """`±178°`; zero and a probability are the number alone."""
    if value == 0:
        return "0"
    return ("" if unit == "probability" else "±") + amount_text(value, unit)


def pair_of(value: object) -> tuple[float, float] | None:
    """The two numbers of a JSON list; None where there are not two finite ones."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    low, high = finite(value[0]), finite(value[1])
    return None if low is None or high is None else (low, high)


def interval_text(value: object, unit: str) -> str:
    """`±170° to ±180°`, for a probability `0.41 to ½`; a dash where it is not known."""
    pair = pair_of(value)
    return MISSING if pair is None else " to ".join(signed_amount(end, unit) for end in pair)
