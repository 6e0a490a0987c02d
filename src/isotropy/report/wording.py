"""Numbers and names as text: what every page and every sentence is made of.

Numbers have a true minus sign and separated thousands, what is missing or not finite is a dash,
and names of generators read as in a sentence. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
