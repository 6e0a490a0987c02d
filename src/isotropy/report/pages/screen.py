"""The report of `isotropy screen`: what one plain network asks for, and what to start from.

The page says, in this order: what is wanted, the key numbers, every direction with its gain, the
matrix M of second differences, what a full run would start from, what the numbers mean, and how to
make the screening again. Its rows are also on the page of a run that started from a screening: they
come in the order of the climb, gains in nats per example on top of the rows above. Bars share one
axis from `BELOW_ZERO` of its length below zero: a loss is shown as one, but a large loss must not
make the gains invisible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotropy.report.figures import matrix_drawing
from isotropy.report.page import (
    KeyNumber,
    Table,
    evidence_number,
    named,
    number,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.record import Screened, ScreenedDirection, Screening, read
from isotropy.report.wording import (
    MISSING,
    capital,
    gain_text,
    joined,
    known_text,
    number_text,
    percent_text,
    spoken_name,
    title_of,
    worded_amount,
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


def screening_rows(screening: Screening, units: Mapping[str, str]) -> list[ScreeningRow]:
    """Rows of a screening; units by name, plain numbers where unknown."""
    return [
        ScreeningRow(
            direction=capital(direction_text(row)),
            gain=gain_text(row.gain, row.error),
            amounts=amounts_text(row.amounts, units),
            wanted=row.wanted,
            bar=bar,
        )
        for row, bar in zip(screening.rows, gain_bars(screening.rows), strict=True)
    ]


def gain_bars(rows: Sequence[ScreenedDirection]) -> list[GainBar | None]:
    """A bar for each row with a known gain, all on one axis."""
    gains = [(row.gain, row.error if math.isfinite(row.error) else 0.0) for row in rows]
    top = max([gain + error for gain, error in gains if gain > 0], default=0.0) or 1.0
    bottom = -BELOW_ZERO * top if any(gain < 0 for gain, _ in gains) else 0.0

    def place(value: float) -> float:
        return 100 * (min(max(value, bottom), top) - bottom) / (top - bottom)

    zero = place(0.0)
    return [
        GainBar(
            zero,
            min(zero, place(gain)),
            max(zero, place(gain)),
            (place(gain - error), place(gain + error)) if error else None,
        )
        if math.isfinite(gain)
        else None
        for gain, error in gains
    ]


def direction_text(row: ScreenedDirection) -> str:
    """`scale_x + scale_y` with its names as they are spoken."""
    words = row.direction.split(" ")
    if set(row.names) <= set(words):
        return " ".join(spoken_name(word) if word in row.names else word for word in words)
    return row.direction or MISSING


def amounts_text(amounts: Mapping[str, float], units: Mapping[str, str]) -> str:
    """`±0.28`, for several `±0.28 each`, or by name where they differ; a dash for none."""
    if not amounts:
        return MISSING
    texts = {name: worded_amount(value, units.get(name, "")) for name, value in amounts.items()}
    if len(set(texts.values())) == 1 and len({units.get(name) for name in texts}) == 1:
        return next(iter(texts.values())) + (" each" if len(texts) > 1 else "")
    return ", ".join(f"{spoken_name(name)} {text}" for name, text in texts.items())


def screen_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy screen --json`; config: nested settings beside it
    """
    screened = read(Screened, result)
    screening, units = screened.screening, screened.units
    start = [
        [named(title_of(name), units.get(name, "")), number(amounts_text({name: amount}, units))]
        for name, amount in screening.start.items()
    ]
    return render_page(
        "screen",
        screened,
        screen_sentences(screened),
        settings_groups("screen", result, config, ("network", "curvature")),
        data_name=screened.data or "unnamed data",
        key_numbers=key_numbers(screened),
        rows=screening_rows(screening, units),
        matrix=matrix_drawing(
            screening.generators,
            screening.matrix,
            key="matrix",
            title="Matrix of second differences",
            note="nats per example and squared coordinate; the columns are numbered like the rows",
        ),
        start=Table(("Transformation", "Amount"), start, style="short") if start else None,
        curvature=screened.curvature,
    )


def screen_sentences(result: Mapping[str, Any] | Screened) -> list[str]:
    """What was found: the headline, the gain of each direction wanted, the others, the start."""
    screened = read(Screened, result)
    screening, units = screened.screening, screened.units
    wanted = [row for row in screening.rows if row.wanted]
    others = [row for row in screening.rows if not row.wanted]
    if not screening.rows:
        return ["No transformation was screened."]
    if not wanted:
        sentences = ["The plain network asks for nothing: no gain is larger than its error."]
    else:
        sentences = [f"The plain network asks for {', then '.join(map(direction_text, wanted))}."]
    for row in wanted:
        amounts = amounts_text(row.amounts, units)
        at = "" if amounts == MISSING else f" at {amounts}"
        sentences.append(
            f"{capital(direction_text(row))}: gain {gain_text(row.gain, row.error)} nats per "
            f"example{at}{', on top of the above' if row is not wanted[0] else ''}."
        )
    if others and wanted:
        sentences.append(f"Not asked for: {joined(map(direction_text, others))}.")
    if screening.start:
        starts = joined(
            f"{spoken_name(name)} {amounts_text({name: amount}, units)}"
            for name, amount in screening.start.items()
        )
        sentences.append(f"A full run would start from {starts}, and is the judge.")
    return sentences


def key_numbers(screened: Screened) -> list[KeyNumber]:
    """Training accuracy, evidence without any symmetry, how many were computed, and time."""
    training, screening = screened.training, screened.screening
    return [
        KeyNumber(
            "Training accuracy",
            percent_text(training.train_accuracy),
            known_text(screened.train_examples, "{} training examples"),
        ),
        evidence_number(
            training.log_evidence_per_example,
            screening.log_evidence,
            "{} in total, without any symmetry",
        ),
        KeyNumber(
            "Evidences computed", number_text(screening.evaluations, 0), "of one trained network"
        ),
        time_number(screened, known_text(training.epochs, "{} epochs ")),
    ]
