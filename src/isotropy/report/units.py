"""Amounts of symmetries in their units: from which size words are used, and how they read.

An amount is a half-width h = (high − low) / 2 or a probability. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotropy.report.wording import MISSING, finite, number_text


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
