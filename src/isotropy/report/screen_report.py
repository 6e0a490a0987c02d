"""The report of `isotropy screen`: what one plain network asks for, and what to start from.

The page says, in this order: what is wanted, the key numbers, every direction with its gain, the
matrix M of second differences, what a full run would start from, what the numbers mean, and how to
make the screening again. A record is what `isotropy screen --json` printed: its `screening` is
`evidence.screening.Screening.as_dict()`; `units`, by name, say what amounts are in, and without
them amounts are plain numbers. Any part may be missing or null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotropy.report.learn_drawings import matrix_drawing
from isotropy.report.page import KeyNumber, render, settings_groups
from isotropy.report.screening_table import amounts_text, direction_text, screening_rows
from isotropy.report.wording import (
    MISSING,
    capital,
    duration_text,
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
        key_numbers=_key_numbers(result),
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


def _key_numbers(result: Mapping[str, Any]) -> list[KeyNumber]:
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
