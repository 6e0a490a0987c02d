"""The report of `isotropy measure`: how equivariant networks are, and which layer breaks it.

A record has one entry per model and data set, and an entry has one row per transformation: the
local equivariance error with its standard error, the resampling floor beside it, the operations
that it comes from, and what finite transformations do. An error that is no larger than its floor is
"no more than resampling alone": at this resolution nothing can be seen of what the network does.

The page says, in this order: the errors in sentences, the key numbers, bars per transformation
with their resampling floors, models beside each other where there are several (accuracy against
error, gaps between data sets, drift), then for each model and data set its tables and, layer by
layer, where the errors come from (Gruver et al. 2023, Figure 4.4), what the numbers mean, and how
to make them again. Its tables and drawings are made in `measure_parts`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from isotropy.report.canvas import Drawing
from isotropy.report.measured import (
    Attribution,
    Difference,
    Measured,
    MeasuredAction,
    MeasuredEntry,
    Moved,
)
from isotropy.report.page import KeyNumber, Table, render_page, settings_groups, time_number
from isotropy.report.pages.measure_parts import (
    accuracy_drawings,
    clearness,
    comparison,
    depth_drawings,
    differences,
    exact_table,
    finite_table,
    grouped_bars,
    layer_drawings,
    layer_table,
    local_table,
    single_bars,
)
from isotropy.report.record import read
from isotropy.report.wording import (
    MISSING,
    SUPERSCRIPTS,
    capital,
    error_text,
    joined,
    known_text,
    number_text,
    percent_text,
    share_text,
    spoken_name,
    title_of,
)

_LOWERED = str.maketrans(SUPERSCRIPTS, "\N{MINUS SIGN}0123456789")
_METHODS = {
    "forward": "exactly, by forward-mode derivatives",
    "backward": "exactly, by reverse-mode derivatives",
    "probes": "by random probes",
}
_MOST_KINDS = 5


# --- sentences ----------------------------------------------------------------------------------


def measure_sentences(result: Mapping[str, Any] | Measured, *, brief: bool = False) -> list[str]:
    """A headline, then for one entry a sentence per transformation, for several one per entry.

    result: as printed by `isotropy measure --json`
    brief:  without what the tables of a page tell: finite amounts, and the entries of several
    """
    measured = read(Measured, result)
    if not measured.entries:
        return ["Nothing was measured."]
    if len(measured.entries) > 1:
        told = [_comparison_headline(measured)]
        if not brief:
            told += [_entry_sentence(entry, measured) for entry in measured.entries]
        return told + _difference_sentences(measured)
    (entry,) = measured.entries
    told = [_headline(entry)]
    told += [action_sentence(action, with_finite=not brief) for action in entry.actions]
    return told + [exact_sentence(row) for row in entry.exact]


def _headline(entry: MeasuredEntry) -> str:
    model, actions = entry.model or "the model", entry.measured
    if not actions:
        return f"No local error of {model} was measured."
    if all(action.is_within_floor for action in actions):
        names = joined(action_name(action) for action in actions)
        return f"As far as resampling can tell, {model} is equivariant to {names}."
    if len(actions) == 1:
        size = error_text(actions[0].error, actions[0].standard_error)
        return f"The error of {model} under {action_name(actions[0])} is {size}."
    first, *_, last = sorted(actions, key=lambda action: action.error)
    return (
        f"The error of {model} is largest under {action_name(last)}, {error_text(last.error)}, "
        f"and smallest under {action_name(first)}, {error_text(first.error)}."
    )


def action_name(row: MeasuredAction | Moved) -> str:
    """The transformation as it reads in a sentence."""
    return spoken_name(row.name or "an unnamed transformation")


def action_sentence(action: MeasuredAction, *, with_finite: bool = True) -> str:
    """`Rotation: error 0.52 ± 0.02; the operation that breaks it most is …, 41 % of it.`

    with_finite: say how many predictions change under finite amounts as well
    """
    parts = []
    if math.isfinite(action.error):
        text = f"error {error_text(action.error, action.standard_error)}"
        if action.is_within_floor:
            text += f", no more than resampling alone ({error_text(action.resampling_floor)})"
        parts.append(text)
        layer = action.culprit
        if layer is not None:
            share = share_text(layer.share)
            parts.append(f"the operation that breaks it most is {layer.text}, {share} of it")
    moved = action.finite
    if math.isfinite(moved.inconsistency) and (with_finite or not parts):
        where = f" {'within' if moved.amounts.startswith('±') else 'by'} {moved.amounts}"
        changed = percent_text(moved.inconsistency)
        parts.append(f"moved{where if moved.amounts else ''}, {changed} of predictions change")
    elif not parts and math.isfinite(moved.error):
        parts.append(f"error {error_text(moved.error, moved.standard_error)} when moved")
    if not parts:
        parts.append((action.remark or "not measured").rstrip("."))
    return f"{capital(action_name(action))}: {'; '.join(parts)}."


def exact_sentence(row: Moved) -> str:
    """`Quarter turns, without resampling: error …; 12.0 % of predictions change.`"""
    name = capital(action_name(row))
    if not math.isfinite(row.error):
        return f"{name}: {(row.remark or 'not measured').rstrip('.')}."
    text = f"error {error_text(row.error, row.standard_error)}"
    if math.isfinite(row.inconsistency):
        text += f"; {percent_text(row.inconsistency)} of predictions change"
    return f"{name}, without resampling: {text}."


def _comparison_headline(measured: Measured) -> str:
    if not measured.has_several_models:
        return _headline(measured.entries[0])
    if not measured.action_names:
        return "No local error was measured."
    name = measured.action_names[0]
    errors = [(entry.action(name).error, entry) for entry in measured.entries]
    known = [pair for pair in errors if math.isfinite(pair[0])]
    low, high = (pick(known, key=lambda pair: pair[0]) for pick in (min, max))
    return (
        f"Under {spoken_name(name)} {measured.name_of(low[1])} has the smallest error, "
        f"{error_text(low[0])}, and {measured.name_of(high[1])} the largest, "
        f"{error_text(high[0])}."
    )


def _entry_sentence(entry: MeasuredEntry, measured: Measured) -> str:
    """`cnn on test (93.0 % right): rotation 0.52 ± 0.02, …; the largest contribution is …`."""
    name, actions = measured.name_of(entry), entry.measured
    if math.isfinite(entry.accuracy):
        name += f" ({percent_text(entry.accuracy)} right)"
    texts = [
        f"{action_name(action)} {error_text(action.error, action.standard_error)}"
        for action in actions
    ]
    text = f"{name}: {', '.join(texts) or 'no local error'}"
    culprits = [layer.text for action in actions if (layer := action.culprit) is not None]
    most = max(dict.fromkeys(culprits), key=culprits.count, default="")
    if 2 * culprits.count(most) > len(culprits):
        often = "" if culprits.count(most) == len(actions) else "mostly "
        text += f"; the largest contribution is {often}from {most}"
    return f"{text}."


def _difference_sentences(measured: Measured) -> list[str]:
    """The clearest gap between data sets, and the clearest drift between models."""
    told = []
    for rows, words in ((measured.gaps, "gap between data sets"), (measured.drifts, "drift")):
        clearest = max(rows, key=clearness, default=None)
        if clearest is not None and clearness(clearest) > 2:
            told.append(f"The clearest {words}: {difference_text(clearest)}.")
        elif clearest is not None:
            told.append(f"No {words} of more than two standard errors.")
    return told


def difference_text(row: Difference) -> str:
    """`the error of cnn under rotation is 0.12 ± 0.02 larger on test than on train`.

    A drift is between models and names its data: `… on test is … smaller for after than for …`.
    """
    size = error_text(abs(row.difference), row.standard_error)
    word = "larger" if row.difference > 0 else "smaller"
    of = f"of {row.model} " if row.model else ""
    on, join = (f" on {row.data}", "for") if row.data else ("", "on")
    return (
        f"the error {of}under {spoken_name(row.action or 'a transformation')}{on} is "
        f"{size} {word} {join} {row.to or MISSING} than {join} {row.from_ or MISSING}"
    )


# --- the page -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayersPart:
    """Where one transformation's error comes from; kinds: shares added up by kind."""

    title: str
    summary: str
    kinds: str
    method: str
    drawings: list[Drawing]
    table: Table
    rest: str
    remark: str


@dataclass(frozen=True)
class EntryPart:
    """Everything about one model on one data set."""

    title: str
    note: str
    local: Table | None
    moved: Table | None
    exact: Table | None
    layers: list[LayersPart]
    remarks: list[str]


def measure_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy measure --json`; config: nested settings beside it
    """
    measured = read(Measured, result)
    entries = measured.entries
    several = len(entries) > 1
    is_periodic = measured.interpolation == "fourier"  # whatever the padding says
    told = ("on", "interpolation") if is_periodic else ("on", "interpolation", "padding")
    return render_page(
        "measure",
        measured,
        [with_code(sentence) for sentence in measure_sentences(measured, brief=True)],
        settings_groups("measure", result, config, told),
        subject=joined(dict.fromkeys(e.model or "a network" for e in entries)) or "nothing",
        key_numbers=key_numbers(measured),
        bars=grouped_bars(measured) if several else single_bars(measured),
        several=several,
        comparison=comparison(measured) if several else None,
        scatter=accuracy_drawings(measured),
        gaps=differences(measured.gaps, "Model"),
        drifts=differences(measured.drifts, "Data"),
        staircases=depth_drawings(measured) if several else [],
        entries=[_entry_part(entry, measured, place) for place, entry in enumerate(entries)],
        on=measured.on or "outputs",
        has_floors=any(
            math.isfinite(action.resampling_floor) for e in entries for action in e.measured
        ),
        interpolation=measured.interpolation,
        beyond="repeated" if is_periodic else measured.padding,
    )


def with_code(text: str) -> Markup:
    """The text as HTML: code between backticks, powers raised, per cent kept with their number."""
    html = re.sub(
        "`([^`]*)`", r"<code>\1</code>", str(escape(text)).replace(" %", "\N{NO-BREAK SPACE}%")
    )
    raised = r"<sup>{}</sup>"
    return Markup(
        re.sub(
            f"[{SUPERSCRIPTS}]+", lambda each: raised.format(each.group().translate(_LOWERED)), html
        )
    )


def key_numbers(measured: Measured) -> list[KeyNumber]:
    """The largest error, the best accuracy, examples, and time."""
    entries = measured.entries
    errors = [(action.error, action, entry) for entry in entries for action in entry.measured]
    largest = max(errors, key=lambda each: each[0], default=None)
    most = "none measured"
    if largest is not None:
        most = f"{action_name(largest[1])}, {measured.name_of(largest[2])}"
    scores = [entry.accuracy for entry in entries if math.isfinite(entry.accuracy)]
    counts = [entry.examples for entry in entries if math.isfinite(entry.examples)]
    names = dict.fromkeys(entry.data_name or entry.data for entry in entries)
    return [
        KeyNumber("Largest local error", error_text(largest[0] if largest else None), most),
        KeyNumber(
            "Accuracy" if len(scores) < 2 else "Best accuracy",
            percent_text(max(scores, default=None)),
            "of predictions right" if scores else "no class labels",
        ),
        KeyNumber(
            "Examples",
            number_text(max(counts, default=None), 0),
            joined(name for name in names if name),
        ),
        time_number(measured),
    ]


def _entry_part(entry: MeasuredEntry, measured: Measured, place: int) -> EntryPart:
    facts = [
        entry.data_name or entry.data,
        known_text(entry.examples, "{} examples"),
        known_text(entry.parameters, "{} parameters"),
        f"{percent_text(entry.accuracy)} right" if entry.accuracy > 0 else "",
        _output_text(entry),
    ]
    layers = [
        _layers_part(action, f"layers-{place}-{number}")
        for number, action in enumerate(entry.actions)
        if action.layers
    ]
    remarks = [
        f"{capital(action_name(action))}: {action.remark}"
        for action in entry.actions
        if action.remark and not action.layers
    ]
    return EntryPart(
        title=measured.name_of(entry),
        note=", ".join(fact for fact in facts if fact),
        local=local_table(entry),
        moved=finite_table(entry),
        exact=exact_table(entry),
        layers=layers,
        remarks=[*entry.remarks, *remarks],
    )


def _output_text(entry: MeasuredEntry) -> str:
    if not math.isfinite(entry.output_dimension):
        return f"output: {entry.output}" if entry.output else ""
    size = f"output of {number_text(entry.output_dimension, 0)} numbers"
    return f"{size}, {entry.output}" if entry.output else size


def _layers_part(action: MeasuredAction, key: str) -> LayersPart:
    table, rest = layer_table(action)
    most = action.culprit
    summary = "" if most is None else f"{share_text(most.share)} from {most.text}".replace("`", "")
    return LayersPart(
        title=title_of(action.name or "unnamed"),
        summary=summary,
        kinds=shares_by_kind(action),
        method=_method_text(action.attribution),
        drawings=layer_drawings(action, key),
        table=table,
        rest=rest,
        remark=action.remark,
    )


def shares_by_kind(action: MeasuredAction) -> str:
    """`ReLU 45 %, MaxPool2d 30 %, …`: shares add up, so those of a kind do; empty without any."""
    totals: dict[str, float] = {}
    for layer in action.layers:
        if math.isfinite(layer.share):
            kind = layer.kind or "unnamed"
            totals[kind] = totals.get(kind, 0.0) + layer.share
    order = sorted((kind for kind in totals if totals[kind]), key=lambda kind: -abs(totals[kind]))
    texts = [f"{kind} {share_text(totals[kind])}" for kind in order[:_MOST_KINDS]]
    if len(order) > _MOST_KINDS:
        rest = sum(totals[kind] for kind in order[_MOST_KINDS:])
        texts.append(f"all others {share_text(rest)}")
    return ", ".join(texts)


def _method_text(attribution: Attribution) -> str:
    """`exactly, by forward-mode derivatives; contributions add up to the whole to 10⁻⁷`."""
    if not attribution.method:
        return ""
    text = _METHODS.get(attribution.method, attribution.method)
    if attribution.method == "probes":
        text = known_text(attribution.probes, "by {} random probes") or text
    if math.isfinite(attribution.closure):
        missed = error_text(attribution.closure)
        text += f"; the contributions miss the whole by {missed} of its size"
    return text
