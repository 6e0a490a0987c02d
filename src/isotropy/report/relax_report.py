"""The report of `isotropy relax`: what each layer became, and what that rests on.

The page says, in this order: what the layers became, in words; the key numbers; a bar per layer
with the share of each pathway (Figure 3 of van der Ouderaa, Immer and van der Wilk 2023); the
numbers behind it (their Table 4); how the shares, evidence and accuracy went over the epochs; what
is left after hardening; what the numbers mean; and how to make the run again. A record is what
`isotropy relax --json` prints; any part may be null, and what it does not hold is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from isotropy.report.figures import Curve, curves_figure
from isotropy.report.measure_words import error_text
from isotropy.report.page import Drawing, KeyNumber, SettingsGroup, render, settings_groups
from isotropy.report.relax_figures import LayerBar, Paint, course_figure, layers_figure, paints
from isotropy.report.relax_words import (
    UNKNOWN,
    chose,
    hardened_sentence,
    kinds_of,
    layer_name,
    layers_of,
    part_text,
    pathways_in_use,
    relax_sentences,
    shares_text,
)
from isotropy.report.wording import (
    MISSING,
    duration_text,
    finite,
    finite_or_nan,
    known_text,
    mapping_of,
    number_text,
    objects_of,
    percent_text,
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class PathwayRow:
    """One pathway of a layer in the table; in_use: whether the layer became it."""

    kind: str
    parameters: str
    prior_precision: str
    weight_norm: str
    normalised: str
    relative: str
    contribution: str
    in_use: bool


@dataclass(frozen=True)
class LayerPart:
    """One layer in the table: as many lines as it has pathways."""

    name: str
    became: str
    pathways: list[PathwayRow]


def relax_page(record: Row) -> str:
    """The report as the text of an HTML page.

    record: as printed by `isotropy relax --json`
    """
    headline, *remarks = relax_sentences(record)
    data = mapping_of(record.get("data"))
    notes = [*_texts(data.get("notes")), *_texts(record.get("notes"))]
    colours: dict[str, Paint] = paints(kinds_of(record))
    return render(
        "relax.html.j2",
        headline=headline,
        remarks=[each.replace(" %", "\N{NO-BREAK SPACE}%") for each in remarks],
        notes=notes,
        data_name=str(data.get("name") or "unnamed data"),
        version=str(record.get("isotropy") or ""),
        objective=record.get("objective"),
        has_evidence=finite(record.get("log_evidence")) is not None,
        chose=chose(record),
        hyper_steps=record.get("hyper_steps"),
        group=str(record.get("group") or ""),
        key_numbers=_key_numbers(record),
        colours=colours,
        layers_drawing=layers_drawing(record),
        parts_of_layers=layer_parts(record),
        precisions=precision_rows(record),
        course_drawings=course_drawings(record),
        curve_drawings=curve_drawings(record),
        hardened=hardened_sentence(record),
        command=str(record.get("command_line") or ""),
        settings=_settings(record),
    )


def _key_numbers(record: Row) -> list[KeyNumber]:
    total = number_text(record.get("log_evidence"), 1)
    hardened = mapping_of(record.get("hardened"))
    left = known_text(hardened.get("num_parameters"), "{} when hardened")
    width = finite(record.get("width"))
    epochs = known_text(len(objects_of(record.get("epochs"))) or None, "{} epochs ")
    tested = known_text(record.get("test_examples"), "{} test examples") or "on test data"
    if finite(record.get("test_nll")) is not None:
        tested += f"; negative log likelihood {number_text(record.get('test_nll'), 3)}"
    return [
        KeyNumber(
            "Test accuracy",
            percent_text(record.get("test_accuracy")),
            "no test data" if finite(record.get("test_accuracy")) is None else tested,
        ),
        KeyNumber(
            "Log evidence per example",
            number_text(record.get("log_evidence_per_example"), 3),
            "not computed" if total == MISSING else f"{total} nats in total",
        ),
        KeyNumber(
            "Parameters",
            number_text(record.get("num_parameters"), 0),
            left or ("" if width is None else f"width {width:g}"),
        ),
        KeyNumber(
            "Time",
            duration_text(record.get("seconds")),
            epochs + (f"on {record['device']}" if record.get("device") else ""),
        ),
    ]


def layers_drawing(record: Row) -> Drawing | None:
    """Figure 3: a bar per layer; None where no share is known."""
    kinds = kinds_of(record)
    bars = [
        LayerBar(
            layer_name(layer),
            {kind: finite_or_nan(mapping_of(layer.get("effective")).get(kind)) for kind in kinds},
            " + ".join(pathways_in_use(layer)) or UNKNOWN,
        )
        for layer in layers_of(record)
    ]
    if not any(share > 0 for bar in bars for share in bar.shares.values()):
        return None
    told = "; ".join(f"{layer_name(layer)} {shares_text(layer)}" for layer in layers_of(record))
    svg = layers_figure(
        bars, kinds, key="layers", label=f"Relative effective parameters, layer by layer: {told}"
    )
    note = "relative effective number of parameters, and what each layer became"
    return Drawing("Pathways, from inputs to outputs", note, Markup(svg), width=660)


def layer_parts(record: Row) -> list[LayerPart]:
    """Table 4: one line per layer and pathway."""
    return [_layer_part(layer, kinds_of(record)) for layer in layers_of(record)]


def _layer_part(layer: Row, kinds: Sequence[str]) -> LayerPart:
    in_use = pathways_in_use(layer)
    columns = {
        name: mapping_of(layer.get(name))
        for name in ("parameters", "prior_precision", "weight_norm", "normalised", "effective",
                     "contribution")
    }  # fmt: skip
    own = [kind for kind in kinds if any(kind in column for column in columns.values())]
    return LayerPart(
        name=layer_name(layer),
        became=" + ".join(in_use) or MISSING,
        pathways=[
            PathwayRow(
                kind=kind,
                parameters=number_text(columns["parameters"].get(kind), 0),
                prior_precision=error_text(columns["prior_precision"].get(kind)),
                weight_norm=error_text(columns["weight_norm"].get(kind)),
                normalised=error_text(columns["normalised"].get(kind)),
                relative=part_text(columns["effective"].get(kind)),
                contribution=part_text(columns["contribution"].get(kind)),
                in_use=kind in in_use,
            )
            for kind in own or kinds
        ],
    )


def precision_rows(record: Row) -> list[tuple[str, str, str]]:
    """(layer, tensor, prior precision) of every tensor of every layer."""
    return [
        (layer_name(layer), str(tensor), error_text(value))
        for layer in layers_of(record)
        for tensor, value in mapping_of(layer.get("precisions")).items()
    ]


def course_drawings(record: Row) -> list[Drawing]:
    """Each layer's shares over the epochs, where at least two epochs know them."""
    kinds = kinds_of(record)
    rows = objects_of(record.get("epochs"))
    known = [epoch for row in rows if (epoch := finite(row.get("epoch"))) is not None]
    drawings: list[Drawing] = []
    for place, layer in enumerate(layers_of(record)):
        name = layer_name(layer)
        points = [point for row in rows if (point := _shares_at(row, name, kinds)) is not None]
        if len(points) < 2 or len(kinds) < 2:
            continue
        shares = {kind: [share[kind] for _, share in points] for kind in kinds}
        ends = ", ".join(
            f"{kind} from {part_text(values[0])} to {part_text(values[-1])}"
            for kind, values in shares.items()
        )
        svg = course_figure(
            [epoch for epoch, _ in points],
            shares,
            last_epoch=max(known),
            key=f"course-{place}",
            label=f"{name} over the epochs: {ends}",
        )
        became = " + ".join(pathways_in_use(layer))
        drawings.append(Drawing(name, became and f"became {became}", Markup(svg)))
    return drawings


def _shares_at(row: Row, name: str, kinds: Sequence[str]) -> tuple[float, dict[str, float]] | None:
    """Epoch and shares of one layer; None where a share is missing."""
    epoch = finite(row.get("epoch"))
    layer = next((each for each in objects_of(row.get("layers")) if layer_name(each) == name), {})
    found = {kind: finite(mapping_of(layer.get("effective")).get(kind)) for kind in kinds}
    shares = {kind: share for kind, share in found.items() if share is not None}
    return None if epoch is None or len(shares) < len(kinds) else (epoch, shares)


def curve_drawings(record: Row) -> list[Drawing]:
    """Evidence, accuracy and losses over the epochs; without an evidence the other two."""
    rows = objects_of(record.get("epochs"))
    epochs = _column(rows, "epoch")
    examples = finite(record.get("train_examples"))
    candidates = [
        ("Log evidence per example" if examples else "Log evidence", "nats",
         [Curve(epochs, _column(rows, "log_evidence", 1 / (examples or 1)), "evidence")], False),
        ("Accuracy", "per cent of examples",
         [Curve(epochs, _column(rows, "test_accuracy", 100), "test"),
          Curve(epochs, _column(rows, "train_accuracy", 100), "training", main=False)], True),
        ("Negative log likelihood", "nats per example",
         [Curve(epochs, _column(rows, "test_nll"), "test"),
          Curve(epochs, _column(rows, "train_loss"), "training", main=False)], False),
    ]  # fmt: skip
    drawings: list[Drawing] = []
    for place, (title, note, curves, percent) in enumerate(candidates):
        known = [curve for curve in curves if any(map(math.isfinite, curve.values))]
        if not known or not any(map(math.isfinite, epochs)):
            continue
        ends = ", ".join(f"{curve.label} ends at {_last_text(curve, percent)}" for curve in known)
        svg = curves_figure(
            known, percent=percent, key=f"curve-{place}", label=f"{title} over the epochs: {ends}"
        )
        drawings.append(Drawing(title, note, Markup(svg)))
    return drawings


def _texts(values: object) -> list[str]:
    """Sentences of a record, each with its full stop."""
    texts = [str(each) for each in values] if isinstance(values, list | tuple) else []
    return [f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in texts if text]


def _column(rows: Sequence[Row], name: str, factor: float = 1.0) -> list[float]:
    return [factor * finite_or_nan(row.get(name)) for row in rows]


def _last_text(curve: Curve, percent: bool) -> str:
    last = [value for value in curve.values if math.isfinite(value)][-1]
    return number_text(last, 1, " %") if percent else number_text(last, 3)


def _settings(record: Row) -> list[SettingsGroup]:
    told = {
        name: record.get(name) for name in ("objective", "curvature", "pathways", "width", "group")
    }
    # The notes on the data are sentences, which the page has above.
    data = {
        "name": mapping_of(record.get("data")).get("name"),
        **{name: record.get(name) for name in ("task", "train_examples", "test_examples")},
    }
    groups: dict[str, Any] = {
        "data": {name: value for name, value in data.items() if value is not None},
        "schedule": mapping_of(record.get("config")),
    }
    known = {name: value for name, value in groups.items() if value}
    return settings_groups({**record, "command": "relax"}, known, run=told)
