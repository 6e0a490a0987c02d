"""The report of `isotropy screen`: what one plain network asks for, and what to start from.

The page says, in this order: what is wanted, the key numbers, every direction with its gain, the
matrix M of second differences, what a full run would start from, what the numbers mean, and how to
make the screening again. A record is what `isotropy screen --json` printed: its `screening` is
`evidence.screening.Screening.as_dict()`; `units`, by name, say what amounts are in, and without
them amounts are plain numbers. Any part may be missing or null.

A screening as rows of text and bars: for its own page, and for a run that started from one.

Rows come in the order of the climb. Gains are nats per example on top of the rows above, with their
standard error where there is one. Bars share one axis from `BELOW_ZERO` of its length below zero: a
loss is shown as one, but a large loss must not make the gains invisible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.report.learn.drawings import matrix_drawing
from isotropy.report.learn.reading import amount_text
from isotropy.report.page import KeyNumber, render, settings_groups
from isotropy.report.wording import (
    MISSING,
    capital,
    duration_text,
    finite,
    gain_text,
    joined,
    known_text,
    mapping_of,
    number_text,
    objects_of,
    percent_text,
    spoken_name,
    title_of,
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


def screen_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy screen --json`; config: nested settings beside it
    """
    screening, units = mapping_of(result.get("screening")), _units(result)
    headline, *remarks = screen_sentences(result)
    start = mapping_of(screening.get("start"))
    return render(
        "screen.html.j2",
        headline=headline,
        remarks=remarks,
        data_name=str(result.get("data") or "unnamed data"),
        version=str(result.get("isotropy") or ""),
        key_numbers=key_numbers(result),
        rows=screening_rows(screening, units),
        matrix=matrix_drawing(
            screening.get("generators"),
            screening.get("matrix"),
            key="matrix",
            title="Matrix of second differences",
            note="nats per example and squared coordinate; the columns are numbered like the rows",
        ),
        start=[
            (title_of(str(name)), units.get(str(name), ""), amounts_text({name: amount}, units))
            for name, amount in start.items()
        ],
        curvature=result.get("curvature"),
        settings=settings_groups(
            {"command": "screen", **result},
            config,
            run={name: result[name] for name in ("network", "curvature") if result.get(name)},
        ),
    )


def screen_sentences(result: Mapping[str, Any]) -> list[str]:
    """What was found: the headline, the gain of each direction wanted, the others, the start."""
    screening, units = mapping_of(result.get("screening")), _units(result)
    rows = objects_of(screening.get("rows"))
    if not rows:
        return ["No transformation was screened."]
    wanted = [row for row in rows if row.get("wanted")]
    others = [row for row in rows if not row.get("wanted")]
    if not wanted:
        sentences = ["The plain network asks for nothing: no gain is larger than its error."]
    else:
        sentences = [f"The plain network asks for {', then '.join(map(direction_text, wanted))}."]
    for row in wanted:
        gain = gain_text(row.get("gain"), row.get("error"))
        amounts = amounts_text(row.get("amounts"), units)
        at = "" if amounts == MISSING else f" at {amounts}"
        sentences.append(
            f"{capital(direction_text(row))}: gain {gain} nats per example{at}"
            f"{', on top of the above' if row is not wanted[0] else ''}."
        )
    if others and wanted:
        sentences.append(f"Not asked for: {joined(map(direction_text, others))}.")
    start = mapping_of(screening.get("start"))
    if start:
        amounts = joined(
            f"{spoken_name(str(name))} {amounts_text({name: amount}, units)}"
            for name, amount in start.items()
        )
        sentences.append(f"A full run would start from {amounts}, and is the judge.")
    return sentences


def key_numbers(result: Mapping[str, Any]) -> list[KeyNumber]:
    training = mapping_of(result.get("training"))
    examples = known_text(result.get("train_examples"), "{} training examples")
    total = number_text(mapping_of(result.get("screening")).get("log_evidence"), 1)
    evaluations = mapping_of(result.get("screening")).get("evaluations")
    device = f"on {result['device']}" if result.get("device") else ""
    return [
        KeyNumber("Training accuracy", percent_text(training.get("train_accuracy")), examples),
        KeyNumber(
            "Log evidence per example",
            number_text(training.get("log_evidence_per_example"), 3),
            "not computed" if total == MISSING else f"{total} in total, without any symmetry",
        ),
        KeyNumber("Evidences computed", number_text(evaluations, 0), "of one trained network"),
        KeyNumber(
            "Time",
            duration_text(result.get("seconds")),
            known_text(training.get("epochs"), "{} epochs ") + device,
        ),
    ]


def _units(result: Mapping[str, Any]) -> dict[str, str]:
    units = mapping_of(result.get("units"))
    return {str(name): str(unit) for name, unit in units.items() if unit is not None}
