"""The report of `isotropy relax`: what each layer became, and what that rests on.

The page says, in this order: what the layers became, in words; the key numbers; a bar per layer
with the share of each pathway (Figure 3 of van der Ouderaa, Immer and van der Wilk 2023); the
numbers behind it (their Table 4); how the shares, evidence and accuracy went over the epochs; what
is left after hardening; what the numbers mean; and how to make the run again. A record is what
`isotropy relax --json` prints; any part may be null, and what it does not hold is left out.

What layers became, in words: the sentences of `isotropy relax` and its report.

A record has one object per layer: `became` names the pathways that are in use ("conv",
"conv + ffc", or "off" where none is) and a bias map if there is one ("conv + bias map"),
`effective` is the share of each in the layer's relative effective number of parameters (van der
Ouderaa, Immer and van der Wilk 2023, App. D.2). All functions are pure, and any part of a record
may be null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from isotropy.report.figures import Curve, curves_figure
from isotropy.report.measure.words import error_text
from isotropy.report.page import Drawing, KeyNumber, SettingsGroup, render, settings_groups
from isotropy.report.relax.figures import LayerBar, Paint, course_figure, layers_figure, paints
from isotropy.report.wording import (
    MISSING,
    duration_text,
    finite,
    finite_or_nan,
    joined,
    known_text,
    mapping_of,
    number_text,
    objects_of,
    percent_text,
)

Row = Mapping[str, Any]

MIXED = "a sum of pathways"
BIAS_MAP = "bias map"
BIAS_MAP_MEANING = (
    "A bias map is a constant with a value of its own at every place: it takes nothing from the "
    "inputs, and tells the next layers where things are."
)
SWITCHED_OFF = "switched off"
UNKNOWN = "not known"

# One layer, several layers; pathways with the same symmetry go by the same words.
_CONNECTED = ("fully connected", "fully connected")
_CONVOLUTION = ("a convolution", "convolutions")
_GROUP = ("a group convolution", "group convolutions")
WORDS: dict[str, tuple[str, str]] = {
    "fc": _CONNECTED,
    "ffc": _CONNECTED,
    "sfc": _CONNECTED,
    "conv": _CONVOLUTION,
    "sconv": _CONVOLUTION,
    "gconv": _GROUP,
    "gconv-full": _GROUP,
    "gconv-separable": _GROUP,
    "gconv-depthwise": _GROUP,
    "off": (SWITCHED_OFF, SWITCHED_OFF),
}


def layers_of(record: Row) -> list[Row]:
    """The layers with pathways, from inputs to outputs."""
    return objects_of(record.get("layers"))


def layer_name(layer: Row) -> str:
    """The layer's name in its network."""
    return str(layer.get("name") or "unnamed")


def kinds_of(record: Row) -> list[str]:
    """Pathways by kind, as they were asked for; where that is not known, as layers have them."""
    asked = record.get("pathways")
    if isinstance(asked, list | tuple) and asked:
        return [str(kind) for kind in asked]
    found = [kind for layer in layers_of(record) for kind in mapping_of(layer.get("effective"))]
    return list(dict.fromkeys(map(str, found)))


def pathways_in_use(layer: Row) -> list[str]:
    """What a layer became, in parts: two of "conv + ffc"; none where it is not known."""
    return [part.strip() for part in str(layer.get("became") or "").split("+") if part.strip()]


def became_words(layer: Row) -> tuple[str, str]:
    """What a layer became, in words for one layer and for several."""
    kinds = [kind for kind in pathways_in_use(layer) if kind != BIAS_MAP]
    if not kinds:
        return UNKNOWN, UNKNOWN
    if len(kinds) > 1:
        return MIXED, "sums of pathways"
    one, several = WORDS.get(kinds[0], (kinds[0], kinds[0]))
    if has_bias_map(layer):
        return f"{one} with a {BIAS_MAP}", f"{several} with {BIAS_MAP}s"
    return one, several


def has_bias_map(layer: Row) -> bool:
    """Whether what a layer became has one."""
    return BIAS_MAP in pathways_in_use(layer)


def part_text(share: object) -> str:
    """A part of one in per cent; what is nearly nothing or nearly all is said to be so.

    >>> [part_text(share) for share in (0.9999998, 0.41, 1e-7, 0.0)]
    ['> 99.9 %', '41.0 %', '< 0.1 %', '0.0 %']
    """
    number = finite(share)
    if number is None:
        return MISSING
    if 0 < number < 0.0005:
        return "< 0.1 %"
    if 0.9995 < number < 1:
        return "> 99.9 %"
    return percent_text(number)


def shares_text(layer: Row) -> str:
    """`conv 62.0 %, ffc 38.0 %`, the largest first; empty where no share is known."""
    shares = {
        str(kind): number
        for kind, share in mapping_of(layer.get("effective")).items()
        if (number := finite(share)) is not None
    }
    ordered = sorted(shares.items(), key=lambda each: -each[1])
    return ", ".join(f"{kind} {part_text(share)}" for kind, share in ordered)


def relax_sentences(record: Row) -> list[str]:
    """What the layers became, the exceptions by name, what a bias map is if one has it, and what
    hardening left; in this order."""
    sentences = [headline(record), *_exceptions(record)]
    if chose(record) and any(map(has_bias_map, layers_of(record))):
        sentences.append(BIAS_MAP_MEANING)
    hardened = hardened_sentence(record)
    return [*sentences, hardened] if hardened else sentences


def headline(record: Row) -> str:
    """`Of 8 layers 7 became convolutions and 1 became fully connected.`"""
    layers, kinds = layers_of(record), kinds_of(record)
    if not layers:
        return "No layer has pathways."
    every = f"All {len(layers)} layers" if len(layers) > 1 else "The one layer"
    if len(kinds) == 1:
        have = "have" if len(layers) > 1 else "has"
        return f"{every} {have} one pathway, {kinds[0]}: there was nothing to choose."
    if record.get("objective") == "map":
        keep = "keep" if len(layers) > 1 else "keeps"
        what = joined(kinds) if kinds else "their pathways"
        return f"{every} {keep} {what}: training by MAP does not choose between pathways."
    if record.get("hyper_steps") == 0:
        return (
            f"What {every[0].lower()}{every[1:]} became is not known: no step on prior precisions "
            f"was taken, {_why_untaken(record)}"
        )
    groups = _groups(layers)
    if len(groups) == 1:
        ((words, members),) = groups.items()
        if words == UNKNOWN:
            return f"What {every[0].lower()}{every[1:]} became is not known."
        return f"{every} {_became(words, members)}."
    parts = [f"{len(members)} {_became(words, members)}" for words, members in groups.items()]
    return f"Of {len(layers)} layers {joined(parts)}."


def hardened_sentence(record: Row) -> str:
    """What is left without the pathways that were switched off; empty where it was not tried."""
    hardened = mapping_of(record.get("hardened"))
    if not hardened:
        return ""
    before, after = finite(record.get("num_parameters")), finite(hardened.get("num_parameters"))
    if before is not None and before == after:
        return (
            f"Hardened: no pathway was switched off, all {number_text(after, 0)} parameters stay."
        )
    text = f"Hardened: {number_text(after, 0)} of {number_text(before, 0)} parameters are left"
    if before and after:
        text += f", {number_text(before / after, 1)} times fewer"
    accuracy, own = finite(hardened.get("test_accuracy")), finite(record.get("test_accuracy"))
    if accuracy is not None and own is not None:
        text += f"; test accuracy {percent_text(accuracy, 2)}, before {percent_text(own, 2)}"
    return text + "."


def score_sentences(record: Row) -> list[str]:
    """Accuracy, likelihood and evidence, for the end of a run on the command line."""
    sentences = []
    accuracy, loss = finite(record.get("test_accuracy")), finite(record.get("test_nll"))
    if accuracy is not None:
        text = f"Test accuracy {percent_text(accuracy)}"
        if loss is not None:
            text += f", negative log likelihood {number_text(loss, 3)} nats per example"
        sentences.append(f"{text}.")
    if finite(record.get("log_evidence")) is not None:
        sentences.append(
            f"Log evidence {number_text(record.get('log_evidence'), 1)} nats, "
            f"{number_text(record.get('log_evidence_per_example'), 3)} per example."
        )
    return sentences


def chose(record: Row) -> bool:
    """Whether the run could choose between pathways at all, and took a step to do so."""
    could = record.get("objective") != "map" and len(kinds_of(record)) > 1
    return could and record.get("hyper_steps") != 0


def _why_untaken(record: Row) -> str:
    """Why there was no hyper step, and what to do."""
    names = ("epochs", "burn_in", "update_every")
    config = mapping_of(record.get("config"))
    epochs, burn_in, every = (finite(config.get(name)) for name in names)
    if epochs and burn_in is not None and burn_in > epochs:
        return (
            f"since the burn-in of {burn_in:g} epochs is longer than the run of {epochs:g}. Set "
            f"burn_in to less than {epochs:g}, or train for more epochs."
        )
    if epochs and burn_in == 0 and every and every > epochs:
        return (
            f"since update_every is {every:g} and the run has {epochs:g} epochs. Set update_every "
            f"to less than {epochs:g}, or train for more epochs."
        )
    loss = finite(record.get("train_loss"))
    end = "" if loss is None else f" (it ended at {number_text(loss, 3)} nats per example)"
    return (
        f"since the training loss had not fallen far enough below that of guessing when one was "
        f"due{end}. Train for more epochs, or with a higher weight rate."
    )


def _groups(layers: Sequence[Row]) -> dict[str, list[Row]]:
    """Layers by what they became, the most frequent first, what is not known last."""
    groups: dict[str, list[Row]] = {}
    for layer in layers:
        groups.setdefault(became_words(layer)[0], []).append(layer)
    ordered = sorted(groups.items(), key=lambda each: (each[0] == UNKNOWN, -len(each[1])))
    return dict(ordered)


def _became(words: str, members: Sequence[Row]) -> str:
    if words == UNKNOWN:
        return "became something that is not known"
    several = len(members) > 1
    if words == SWITCHED_OFF:
        return f"{'are' if several else 'is'} {SWITCHED_OFF}"
    return f"{'stayed' if words == MIXED else 'became'} {became_words(members[0])[several]}"


def _exceptions(record: Row) -> list[str]:
    """The layers by name that are not what most are, and the shares of mixed ones."""
    if not chose(record):
        return []
    sentences = []
    for place, (words, members) in enumerate(_groups(layers_of(record)).items()):
        if words == UNKNOWN or (place == 0 and words != MIXED):
            continue
        names = [layer_name(layer) for layer in members]
        if words == MIXED:
            told = zip(names, map(shares_text, members), strict=True)
            names = [f"{name} ({shares})" if shares else name for name, shares in told]
        sentences.append(f"{words[0].upper()}{words[1:]}: {joined(names)}.")
    return sentences


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
        key_numbers=key_numbers(record),
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


def key_numbers(record: Row) -> list[KeyNumber]:
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
