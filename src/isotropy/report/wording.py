"""Numbers, names and amounts as text: what every page and every sentence is made of.

Numbers have a true minus sign and separated thousands, what is missing or not finite is a dash,
and names of generators read as in a sentence. An amount of a symmetry is a half-width
h = (high − low) / 2 or a probability; `READINGS` says for each unit how amounts look, and from
which size words are used. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

MISSING = "–"
_MINUS = "\N{MINUS SIGN}"
SUPERSCRIPTS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"

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


def error_text(value: object, spread: object = None) -> str:
    """`0.523 ± 0.021`, `(1.23 ± 0.04) × 10⁻⁶`: three digits, however small; a dash for none."""
    number, error = finite(value), finite(spread)
    if number is None:
        return MISSING
    size = abs(number) or abs(error or 0.0)
    power = math.floor(math.log10(size)) if size else 0
    is_plain = size == 0 or -3 <= power < 5
    unit = 1.0 if is_plain else 10.0**power
    decimals = 0 if size == 0 else max(0, 3 - 1 - (power if is_plain else 0))
    text = number_text(number / unit, decimals)
    if error is not None:
        text += f" ± {number_text(error / unit, decimals)}"
    if is_plain:
        return text
    return f"{f'({text})' if error is not None else text} × {power_text(power)}"


def power_text(power: int) -> str:
    """`10⁻⁶`."""
    return "10" + str(power).translate(str.maketrans("-0123456789", SUPERSCRIPTS))


def share_text(value: object) -> str:
    """A share in whole per cent, with a decimal where it is small: `41 %`, `0.3 %`, `−12 %`."""
    number = finite(value)
    if number is None:
        return MISSING
    return percent_text(number, 0 if abs(number) >= 0.0995 or number == 0 else 1)


def part_text(share: object) -> str:
    """A part of one in per cent; what is nearly nothing or nearly all is said to be so.

    >>> [part_text(share) for share in (0.9999998, 0.41, 1e-7, 0.0)]
    ['> 99.9 %', '41.0 %', '< 0.1 %', '0.0 %']
    """
    number = finite(share)
    if number is None:
        return MISSING
    if 0 < number < 0.0005:
        return "< 0.1 %"
    if 0.9995 < number < 1:
        return "> 99.9 %"
    return percent_text(number)


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
    """`a, b and c`; empty of nothing."""
    *before, last = list(parts) or [""]
    return f"{', '.join(before)} and {last}" if before else last


def shortened(text: str, most: int) -> str:
    """The text, cut and ended by `…` where it is longer than `most` letters."""
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"


def capital(text: str) -> str:
    """The text with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


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


def reading_of(unit: str) -> Reading:
    """The thresholds and looks of a unit; `OTHER_READING` for units the table does not hold."""
    return READINGS.get(unit, OTHER_READING)


class Amount(Protocol):
    """What has an amount: a symmetry of a record, or of a network."""

    @property
    def kind(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def is_probability(symmetry: Amount) -> bool:
    """Whether it is an element of a finite group: from zero to a probability, not a range."""
    return symmetry.kind == "probability"


def amount_of(symmetry: Amount) -> float:
    """(high − low) / 2, or the probability, in the symmetry's unit; NaN if not known."""
    return symmetry.high if is_probability(symmetry) else (symmetry.high - symmetry.low) / 2


def short_amount(symmetry: Amount) -> str:
    """`±178°`, `±0.20`, `probability ½`; a dash where it is not known."""
    return worded_amount(amount_of(symmetry), symmetry.unit)


def worded_amount(value: float, unit: str) -> str:
    """`±178°`, or `probability ½`; a dash where there is no number."""
    if not math.isfinite(value):
        return MISSING
    return ("probability " if unit == "probability" else "±") + amount_text(value, unit)


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


def interval_text(interval: tuple[float, ...], unit: str) -> str:
    """`±170° to ±180°`, for a probability `0.41 to ½`; a dash where it is not known."""
    return " to ".join(signed_amount(end, unit) for end in interval) or MISSING
