"""The tables of `isotropy measure` as rows of text: errors, layers, models beside each other.

Per entry there are local errors, finite ones, and the transformations that need no resampling.
Layers keep the order of the network; of a long network only the largest are listed, and a line
says what the rest adds up to (shares do add up, norms do not). Several entries make one table of
models by transformations; differences between data sets or models another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.report.measure.words import (
    Row,
    action_names_of,
    action_of,
    culprit,
    entries_of,
    error_text,
    is_clear,
    is_within_floor,
    largest_layers,
    layers_of,
    measured_actions,
    share_text,
)
from isotropy.report.wording import (
    MISSING,
    finite,
    mapping_of,
    number_text,
    objects_of,
    percent_text,
    title_of,
)

MOST_LAYERS = 40
"""Rows of a table of layers; what is smaller is added up."""
HIGHLIGHTED = 3


@dataclass(frozen=True)
class LocalRow:
    """A transformation's local error; unit: what one coordinate is."""

    name: str
    unit: str
    error: str
    floor: str
    is_within_floor: bool
    culprit: str
    kind: str
    share: str


@dataclass(frozen=True)
class FiniteRow:
    """What happens when inputs are moved by a finite amount."""

    name: str
    amounts: str
    error: str
    floor: str
    changed: str


@dataclass(frozen=True)
class LayerRow:
    """One operation: its place in the network and its contribution."""

    number: int
    name: str
    kind: str
    norm: str
    share: str
    eq_t: str
    judged_at: str
    is_large: bool


@dataclass(frozen=True)
class Comparison:
    """Models by transformations: titles of the columns, and rows of (model, data, …, errors)."""

    titles: list[str]
    rows: list[tuple[list[str], list[str]]]


@dataclass(frozen=True)
class Differences:
    """Differences to − from, by transformation: (row name, [(text, whether clear), …])."""

    title: str
    titles: list[str]
    rows: list[tuple[str, list[tuple[str, bool]]]]


def local_rows(entry: Row) -> list[LocalRow]:
    """A row for each transformation with a local error."""
    rows = []
    for action in measured_actions(entry):
        layer = culprit(action) or {}
        rows.append(
            LocalRow(
                name=title_of(str(action.get("name") or "unnamed")),
                unit=str(action.get("unit") or ""),
                error=error_text(action.get("error"), action.get("standard_error")),
                floor=error_text(action.get("resampling_floor")),
                is_within_floor=is_within_floor(action),
                culprit=str(layer.get("name") or ""),
                kind=str(layer.get("kind") or ""),
                share=share_text(layer.get("share")) if layer else MISSING,
            )
        )
    return rows


def finite_rows(entry: Row) -> list[FiniteRow]:
    """A row for each transformation made in finite amounts, and shifts as Karras et al. do."""
    rows = []
    for action in objects_of(entry.get("actions")):
        moved = mapping_of(action.get("finite"))
        if moved:
            rows.append(
                FiniteRow(
                    name=title_of(str(action.get("name") or "unnamed")),
                    amounts=str(moved.get("amounts") or MISSING),
                    error=error_text(moved.get("error"), moved.get("standard_error")),
                    floor=error_text(moved.get("resampling_floor")),
                    changed=_changed(moved),
                )
            )
    return rows + _translation_rows(entry)


def exact_rows(entry: Row) -> list[FiniteRow]:
    """What needs no resampling: quarter turns, whole pixels, elements of finite actions."""
    return [
        FiniteRow(
            name=title_of(str(row.get("name") or "unnamed")),
            amounts="; ".join(str(row[key]) for key in ("what", "remark") if row.get(key))
            or MISSING,
            error=error_text(row.get("error"), row.get("standard_error")),
            floor="",
            changed=_changed(row),
        )
        for row in objects_of(entry.get("exact"))
    ]


def _translation_rows(entry: Row) -> list[FiniteRow]:
    """The metrics of Karras et al. (2021), in their decibels as well."""
    metrics = mapping_of(entry.get("translation_metrics"))
    reach = finite(metrics.get("range"))
    within = f", within {percent_text(reach)} of the width" if reach is not None else ""
    rows = []
    for key, name, what in (
        ("eq_t", "EQ-T", "whole pixels"),
        ("eq_t_frac", "EQ-T frac", "fractions of a pixel"),
    ):
        metric = mapping_of(metrics.get(key))
        if metric:
            decibel = number_text(metric.get("decibel"), 1, " dB")
            text = error_text(metric.get("error"), metric.get("standard_error"))
            rows.append(
                FiniteRow(
                    name=name,
                    amounts=what + within,
                    error=text if decibel == MISSING else f"{text}, {decibel}",
                    floor=error_text(metric.get("resampling_floor")),
                    changed=MISSING,
                )
            )
    return rows


def _changed(row: Row) -> str:
    share, spread = finite(row.get("inconsistency")), row.get("inconsistency_standard_error")
    text = percent_text(share)
    if share is None or finite(spread) is None:
        return text
    return f"{number_text(100 * share, 1)} ± {percent_text(spread)}"


def layer_rows(action: Row) -> tuple[list[LayerRow], str]:
    """The largest operations in the order of the network, and what the others add up to."""
    layers = layers_of(action)
    large = set(largest_layers(action, HIGHLIGHTED))
    shown = set(_shown(layers))
    rows = [
        LayerRow(
            number=index + 1,
            name=str(layer.get("name") or "unnamed"),
            kind=str(layer.get("kind") or ""),
            norm=error_text(layer.get("norm"), layer.get("norm_error")),
            share=share_text(layer.get("share")),
            eq_t=""
            if layer.get("eq_t") is None
            else error_text(layer["eq_t"], layer.get("eq_t_error")),
            judged_at=str(layer.get("judged_at") or ""),
            is_large=index in large,
        )
        for index, layer in enumerate(layers)
        if index in shown
    ]
    rest = [layer for index, layer in enumerate(layers) if index not in shown]
    if not rest:
        return rows, ""
    share = sum(finite(layer.get("share")) or 0.0 for layer in rest)
    return rows, (
        f"{len(rest)} smaller operations are not listed; their shares add up to "
        f"{share_text(share)}. The run folder's result.json has them all."
    )


def _shown(layers: list[Row]) -> list[int]:
    """Positions of the rows to list: all of a short network, else the largest."""
    if len(layers) <= MOST_LAYERS:
        return list(range(len(layers)))
    whole = sum(finite(layer.get("norm")) or 0.0 for layer in layers) or 1.0
    sizes = [
        max(abs(finite(layer.get("share")) or 0.0), (finite(layer.get("norm")) or 0.0) / whole)
        for layer in layers
    ]
    return sorted(range(len(layers)), key=lambda index: -sizes[index])[:MOST_LAYERS]


def comparison(record: Mapping[str, Any]) -> Comparison:
    """Models and data sets by transformations, with size and accuracy."""
    names = action_names_of(record)
    rows = []
    for entry in entries_of(record):
        head = [str(entry.get(key) or MISSING) for key in ("model", "data")]
        facts = [number_text(entry.get("parameters"), 0), percent_text(entry.get("accuracy"))]
        actions = [action_of(entry, name) for name in names]
        errors = [error_text(each.get("error"), each.get("standard_error")) for each in actions]
        rows.append((head, facts + errors))
    return Comparison(["Parameters", "Accuracy", *map(title_of, names)], rows)


def differences(record: Mapping[str, Any], key: str) -> list[Differences]:
    """The gaps or drifts of a record, a table for each pair of data sets or models."""
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in objects_of(record.get(key)):
        pair = (str(row.get("from") or MISSING), str(row.get("to") or MISSING))
        pairs.setdefault(pair, []).append(row)
    tables = []
    for (start, end), rows in pairs.items():
        names = list(dict.fromkeys(str(row.get("action")) for row in rows))
        heads = list(dict.fromkeys(_row_name(row) for row in rows))
        cells = {(_row_name(row), str(row.get("action"))): _difference(row) for row in rows}
        tables.append(
            Differences(
                title=f"From {start} to {end}",
                titles=[title_of(name) for name in names],
                rows=[
                    (head, [cells.get((head, name), (MISSING, False)) for name in names])
                    for head in heads
                ],
            )
        )
    return tables


def _row_name(row: Row) -> str:
    """The model of a gap, the data of a drift."""
    return str(row.get("model") or row.get("data") or MISSING)


def _difference(row: Row) -> tuple[str, bool]:
    text = error_text(row.get("difference"), row.get("standard_error"))
    return ("+" + text if (finite(row.get("difference")) or 0) > 0 else text), is_clear(row)
