"""The report of `isotropy measure`: how equivariant networks are, and which layer breaks it.

The page says, in this order: the errors in sentences, the key numbers, bars per transformation
with their resampling floors, models beside each other where there are several (accuracy against
error, gaps between data sets, drift), then for each model and data set its tables and, layer by
layer, where the errors come from (Gruver et al. 2023, Figure 4.4), what the numbers mean, and how
to make them again. A record is what `isotropy measure --json` printed; any part may be null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from isotropy.report.measure.figures import (
    accuracy_drawings,
    depth_drawings,
    grouped_bars,
    layer_drawings,
    single_bars,
)
from isotropy.report.measure.tables import (
    FiniteRow,
    LayerRow,
    LocalRow,
    comparison,
    differences,
    exact_rows,
    finite_rows,
    layer_rows,
    local_rows,
)
from isotropy.report.measure.words import (
    SUPERSCRIPTS,
    Row,
    action_name,
    entries_of,
    entry_name,
    error_text,
    layer_text,
    layers_of,
    measure_sentences,
    measured_actions,
    share_text,
    shares_by_kind,
)
from isotropy.report.page import (
    Drawing,
    KeyNumber,
    render,
    settings_groups,
)
from isotropy.report.wording import (
    capital,
    duration_text,
    finite,
    joined,
    known_text,
    mapping_of,
    number_text,
    objects_of,
    percent_text,
    title_of,
)

_LOWERED = str.maketrans(SUPERSCRIPTS, "\N{MINUS SIGN}0123456789")
_METHODS = {
    "forward": "exactly, by forward-mode derivatives",
    "backward": "exactly, by reverse-mode derivatives",
    "probes": "by random probes",
}


@dataclass(frozen=True)
class LayersPart:
    """Where one transformation's error comes from; kinds: shares added up by kind."""

    title: str
    summary: str
    kinds: str
    method: str
    drawings: list[Drawing]
    rows: list[LayerRow]
    rest: str
    remark: str


@dataclass(frozen=True)
class EntryPart:
    """Everything about one model on one data set."""

    title: str
    note: str
    local: list[LocalRow]
    moved: list[FiniteRow]
    exact: list[FiniteRow]
    layers: list[LayersPart]
    remarks: list[str]


def measure_page(record: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    record: as printed by `isotropy measure --json`; config: nested settings beside it
    """
    entries = entries_of(record)
    several = len(entries) > 1
    is_periodic = record.get("interpolation") == "fourier"  # whatever the padding says
    headline, *remarks = map(with_code, measure_sentences(record, brief=True))
    models = list(dict.fromkeys(str(entry.get("model") or "a network") for entry in entries))
    return render(
        "measure.html.j2",
        headline=headline,
        remarks=remarks,
        subject=joined(models) if models else "nothing",
        version=str(record.get("isotropy") or ""),
        key_numbers=key_numbers(record),
        bars=grouped_bars(record) if several else single_bars(record),
        several=several,
        comparison=comparison(record) if several else None,
        scatter=accuracy_drawings(record),
        gaps=differences(record, "gaps"),
        drifts=differences(record, "drifts"),
        staircases=depth_drawings(record) if several else [],
        entries=[_entry_part(entry, record, place) for place, entry in enumerate(entries)],
        on=str(record.get("on") or "outputs"),
        has_floors=any(
            finite(action.get("resampling_floor")) is not None
            for entry in entries
            for action in measured_actions(entry)
        ),
        interpolation=str(record.get("interpolation") or ""),
        beyond="repeated" if is_periodic else str(record.get("padding") or ""),
        settings=settings_groups(
            {"command": "measure", **record},
            config,
            run={
                name: record[name]
                for name in ("on", "interpolation", "padding")
                if record.get(name) and not (is_periodic and name == "padding")
            },
        ),
    )


def with_code(text: str) -> Markup:
    """The text as HTML: code between backticks, powers raised, per cent kept with their number."""
    html = re.sub(
        "`([^`]*)`", r"<code>\1</code>", str(escape(text)).replace(" %", "\N{NO-BREAK SPACE}%")
    )
    return Markup(re.sub(f"[{SUPERSCRIPTS}]+", lambda found: _raised(found.group()), html))


def _raised(digits: str) -> str:
    return f"<sup>{digits.translate(_LOWERED)}</sup>"


def key_numbers(record: Mapping[str, Any]) -> list[KeyNumber]:
    entries = entries_of(record)
    errors = [
        (float(action["error"]), action, entry)
        for entry in entries
        for action in measured_actions(entry)
    ]
    error, action, entry = max(errors, key=lambda each: each[0], default=(None, {}, {}))
    most = f"{action_name(action)}, {entry_name(entry, record)}" if action else "none measured"
    scores = [value for each in entries if (value := finite(each.get("accuracy"))) is not None]
    best = percent_text(max(scores, default=None))
    examples = [finite(each.get("examples")) for each in entries]
    known = [count for count in examples if count is not None]
    names = dict.fromkeys(str(each.get("data_name") or each.get("data") or "") for each in entries)
    return [
        KeyNumber("Largest local error", error_text(error), most),
        KeyNumber(
            "Accuracy" if len(scores) < 2 else "Best accuracy",
            best,
            "of predictions right" if scores else "no class labels",
        ),
        KeyNumber(
            "Examples",
            number_text(max(known, default=None), 0),
            joined(name for name in names if name) if any(names) else "",
        ),
        KeyNumber(
            "Time",
            duration_text(record.get("seconds")),
            f"on {record['device']}" if record.get("device") else "",
        ),
    ]


def _entry_part(entry: Row, record: Mapping[str, Any], place: int) -> EntryPart:
    facts = [
        str(entry.get("data_name") or entry.get("data") or ""),
        known_text(entry.get("examples"), "{} examples"),
        known_text(entry.get("parameters"), "{} parameters"),
        f"{percent_text(entry['accuracy'])} right" if finite(entry.get("accuracy")) else "",
        _output_text(entry),
    ]
    actions = objects_of(entry.get("actions"))
    layers = [
        _layers_part(action, f"layers-{place}-{number}")
        for number, action in enumerate(actions)
        if layers_of(action)
    ]
    without = [action for action in actions if not layers_of(action) and action.get("remark")]
    return EntryPart(
        title=entry_name(entry, record),
        note=", ".join(fact for fact in facts if fact),
        local=local_rows(entry),
        moved=finite_rows(entry),
        exact=exact_rows(entry),
        layers=layers,
        remarks=[
            *map(str, entry.get("remarks") or ()),
            *(f"{capital(action_name(each))}: {each['remark']}" for each in without),
        ],
    )


def _output_text(entry: Row) -> str:
    dimension = finite(entry.get("output_dimension"))
    layout = str(entry.get("output") or "")
    if dimension is None:
        return f"output: {layout}" if layout else ""
    return f"output of {number_text(dimension, 0)} numbers" + (f", {layout}" if layout else "")


def _layers_part(action: Row, key: str) -> LayersPart:
    layers = layers_of(action)
    rows, rest = layer_rows(action)
    most = max(layers, key=lambda layer: finite(layer.get("share")) or 0.0)
    share = finite(most.get("share"))
    return LayersPart(
        title=title_of(str(action.get("name") or "unnamed")),
        summary=f"{share_text(share)} from {layer_text(most).replace('`', '')}" if share else "",
        kinds=shares_by_kind(action),
        method=_method_text(mapping_of(action.get("attribution"))),
        drawings=layer_drawings(action, key),
        rows=rows,
        rest=rest,
        remark=str(action.get("remark") or ""),
    )


def _method_text(attribution: Row) -> str:
    """`exactly, by forward-mode derivatives; contributions add up to the whole to 10⁻⁷`."""
    method = str(attribution.get("method") or "")
    if not method:
        return ""
    text = _METHODS.get(method, method)
    if method == "probes":
        text = known_text(attribution.get("probes"), "by {} random probes") or text
    closure = finite(attribution.get("closure"))
    if closure is not None:
        text += f"; the contributions miss the whole by {error_text(closure)} of its size"
    return text
