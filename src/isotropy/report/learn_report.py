"""The report of `isotropy learn`: one record in, one self-contained HTML page out.

The page says, in this order: what was found, the key numbers, every range beside its truth,
how the ranges came about, what the learned transformations do to real images, how evidence
and accuracy went, and how to make the run again. Here the record is turned into the small
objects below, all text and numbers ready to print; the words between them and the looks are
in `templates/`. Nothing on the page depends on the time or place it was written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from isotropy.report.learn_drawings import (
    NO_UNIT,
    curve_drawings,
    example_pictures,
    flow_drawings,
    range_drawings,
    title_of,
)
from isotropy.report.reading import (
    MISSING,
    finding_sentence,
    finding_sentences,
    finite,
    number_text,
    reading_of,
    verdict_of,
)
from isotropy.report.record import LearnRecord

__all__ = ["finding_sentence", "write_learn_report"]

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class KeyNumber:
    """One of the numbers at the top of the page, and a note on how to take it."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class SymmetryRow:
    """A symmetry in the table; bar ends and truth in per cent of the half bar, in [-100, 100]."""

    name: str
    unit: str
    extent: str
    truth: str
    verdict: str
    bar: tuple[float, float] | None
    bar_truth: float | None


def write_learn_report(record: LearnRecord, path: Path) -> Path:
    """Write the report of a record to `path` (a file that ends in .html) and return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(learn_page(record), encoding="utf-8", newline="\n")
    return path


def learn_page(record: LearnRecord) -> str:
    """The report as the text of an HTML page."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result = record.result
    headline, *remarks = finding_sentences(result, record.truth)
    return environment.get_template("learn.html.j2").render(
        headline=headline,
        remarks=remarks,
        data_name=str(result.get("data") or "unnamed data"),
        objective=result.get("objective"),
        has_evidence=finite(result.get("log_evidence")) is not None,
        curvature=result.get("curvature"),
        copies=_known_text(result.get("samples"), "{} "),
        test_copies=_known_text(result.get("test_samples"), " (at test time {})"),
        version=str(result.get("isotropy") or ""),
        key_numbers=key_numbers(result),
        rows=[symmetry_row(symmetry, record.truth) for symmetry in result.get("symmetries") or ()],
        truth_known=bool(record.truth),
        found_from=_per_unit(result, "found"),
        full_at=_per_unit(result, "full_scale"),
        range_drawings=range_drawings(record),
        pictures=example_pictures(record),
        flow_drawings=flow_drawings(record),
        curve_drawings=curve_drawings(record),
        settings=settings_groups(record),
    )


def key_numbers(result: Mapping[str, Any]) -> list[KeyNumber]:
    """Test accuracy, evidence, copies averaged and time, each with what it rests on."""
    accuracy, tested = finite(result.get("test_accuracy")), finite(result.get("test_examples"))
    accuracy_note = "no test data"
    if accuracy is not None:
        accuracy_note = "on test data"
        if tested:
            error = math.sqrt(max(accuracy * (1 - accuracy), 0.0) / tested)
            accuracy_note = f"{tested:,.0f} test examples, standard error {100 * error:.1f} points"
    total = number_text(result.get("log_evidence"), 1)
    evidence_note = "not computed" if total == MISSING else f"{total} in total"
    if total != MISSING and finite(result.get("train_examples")):
        evidence_note += f", {number_text(result.get('train_examples'), 0)} examples"
    device = f"on {result['device']}" if result.get("device") else ""
    return [
        KeyNumber("Test accuracy", _percent_text(accuracy), accuracy_note),
        KeyNumber(
            "Log evidence per example",
            number_text(result.get("log_evidence_per_example"), 3),
            evidence_note,
        ),
        KeyNumber(
            "Copies averaged",
            number_text(result.get("samples"), 0),
            _known_text(result.get("test_samples"), "{} at test time"),
        ),
        KeyNumber(
            "Time",
            duration_text(result.get("seconds")),
            _known_text(result.get("epochs"), "{} epochs ") + device,
        ),
    ]


def symmetry_row(symmetry: Mapping[str, Any], truth: Mapping[str, float]) -> SymmetryRow:
    """One line of the table of symmetries."""
    reading = reading_of(symmetry.get("unit"))
    low, high = finite(symmetry.get("low")), finite(symmetry.get("high"))
    true = finite(truth.get(symmetry["name"]))
    full = max([reading.full_scale, *(abs(value) for value in (low, high, true) if value)])
    ends = (number_text(end, reading.decimals, reading.symbol) for end in (low, high))
    return SymmetryRow(
        name=title_of(symmetry),
        unit=str(symmetry.get("unit") or NO_UNIT),
        extent=" … ".join(ends) if {low, high} != {None} else MISSING,
        truth=MISSING if true is None else f"{'±' if true else ''}{true:g}{reading.symbol}",
        verdict=verdict_of(symmetry),
        bar=None if low is None or high is None else (100 * low / full, 100 * high / full),
        bar_truth=None if true is None else 100 * abs(true) / full,
    )


def settings_groups(record: LearnRecord) -> list[tuple[str, list[tuple[str, str]]]]:
    """(group, [(setting, value), …]): the run itself first, then each part of the config."""
    result = record.result
    run: dict[str, Any] = {
        "command": f"isotropy {result.get('command', 'learn')}",
        **{name: result.get(name) for name in ("seed", "device", "objective", "curvature")},
        "isotropy": result.get("isotropy"),
        **(result.get("versions") or {}),
        "commit": result.get("commit"),
        "run folder": result.get("run_folder"),
    }
    loose = {name: value for name, value in record.config.items() if not isinstance(value, Mapping)}
    if "command" in loose:
        run["command"] = loose.pop("command")
    groups: list[tuple[str, Mapping[str, Any]]] = [("run", run | loose)]
    groups += [(name, value) for name, value in record.config.items() if isinstance(value, Mapping)]
    return [(name, _flat(values)) for name, values in groups if values]


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


def _known_text(count: object, words: str) -> str:
    """`words` with the count in place of {}, or nothing where the count is not known."""
    return "" if finite(count) is None else words.format(number_text(count, 0))


def _percent_text(fraction: float | None) -> str:
    return MISSING if fraction is None else number_text(100 * fraction, 1, " %")


def _per_unit(result: Mapping[str, Any], attribute: str) -> str:
    """A number of each unit's reading: `20°, 0.05 (fraction of image width) and 0.1 (…)`."""
    parts: list[str] = []
    symmetries = result.get("symmetries") or ()
    for unit in dict.fromkeys(str(symmetry.get("unit") or NO_UNIT) for symmetry in symmetries):
        reading = reading_of(unit)
        name = "" if reading.symbol else f" ({unit})"
        parts.append(f"{getattr(reading, attribute):g}{reading.symbol}{name}")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as (dotted name, text)."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", _setting_text(value)))
    return rows


def _setting_text(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple) and all(isinstance(v, str | int | float) for v in value):
        return ", ".join(_setting_text(item) for item in value) or MISSING
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else str(value)
