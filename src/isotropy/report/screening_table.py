"""A screening as rows of text and bars: for its own page, and for a run that started from one.

Rows come in the order of the climb. Gains are nats per example on top of the rows above, with their
standard error where there is one. Bars share one axis from `BELOW_ZERO` of its length below zero: a
loss is shown as one, but a large loss must not make the gains invisible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.report.reading import amount_text
from isotropy.report.wording import (
    MISSING,
    capital,
    finite,
    gain_text,
    objects_of,
    spoken_name,
)

BELOW_ZERO = 0.25
"""Length of the axis below zero, of that above it, when something loses."""


@dataclass(frozen=True)
class GainBar:
    """Ends of the bar, of its error and the place of zero, in per cent of the axis."""

    zero: float
    low: float
    high: float
    error: tuple[float, float] | None


@dataclass(frozen=True)
class ScreeningRow:
    """One row, ready to print: `Scaling along x + scaling along y`, `0.31 ± 0.01`, `±0.28`."""

    direction: str
    gain: str
    amounts: str
    wanted: bool
    bar: GainBar | None


def screening_rows(screening: Mapping[str, Any], units: Mapping[str, str]) -> list[ScreeningRow]:
    """Rows of `Screening.as_dict()`; units by name, plain numbers where unknown."""
    rows = objects_of(screening.get("rows"))
    return [
        ScreeningRow(
            direction=capital(direction_text(row)),
            gain=gain_text(row.get("gain"), row.get("error")),
            amounts=amounts_text(row.get("amounts"), units),
            wanted=bool(row.get("wanted")),
            bar=bar,
        )
        for row, bar in zip(rows, gain_bars(rows), strict=True)
    ]


def gain_bars(rows: list[Mapping[str, Any]]) -> list[GainBar | None]:
    """A bar for each row with a finite gain, all on one axis."""
    gains = [(finite(row.get("gain")), finite(row.get("error")) or 0.0) for row in rows]
    known = [(gain, error) for gain, error in gains if gain is not None]
    top = max([gain + error for gain, error in known if gain > 0], default=0.0) or 1.0
    bottom = -BELOW_ZERO * top if any(gain < 0 for gain, _ in known) else 0.0

    def place(value: float) -> float:
        return 100 * (min(max(value, bottom), top) - bottom) / (top - bottom)

    zero = place(0.0)
    return [
        None
        if gain is None
        else GainBar(
            zero,
            min(zero, place(gain)),
            max(zero, place(gain)),
            (place(gain - error), place(gain + error)) if error else None,
        )
        for gain, error in gains
    ]


def direction_text(row: Mapping[str, Any]) -> str:
    """`scale_x + scale_y` with its names as they are spoken."""
    names = {str(name) for name in row.get("names") or ()}
    words = str(row.get("direction") or "").split(" ")
    if names <= set(words):
        return " ".join(spoken_name(word) if word in names else word for word in words)
    return str(row.get("direction") or MISSING)


def amounts_text(amounts: object, units: Mapping[str, str]) -> str:
    """`±0.28`, for several `±0.28 each`, or by name where they differ."""
    if not isinstance(amounts, Mapping) or not amounts:
        return MISSING
    texts = {}
    for name, value in amounts.items():
        number, unit = finite(value), units.get(name, "")
        before = "probability " if unit == "probability" else "±"
        texts[str(name)] = MISSING if number is None else before + amount_text(number, unit)
    if len(set(texts.values())) == 1 and len({units.get(name) for name in texts}) == 1:
        return next(iter(texts.values())) + (" each" if len(texts) > 1 else "")
    return ", ".join(f"{spoken_name(name)} {text}" for name, text in texts.items())
