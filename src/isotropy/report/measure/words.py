"""How the numbers of `isotropy measure` are put into words: errors, shares, and the sentences.

A record has one entry per model and data set, and an entry has one row per transformation: the
local equivariance error with its standard error, the resampling floor beside it, the layers that
it comes from, and what finite transformations do. An error is read against its floor:

    error ≤ floor    "no more than resampling alone": at this resolution nothing can be seen of
                     what the network itself does

All functions are pure and take what `isotropy measure --json` printed; any part may be null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isotropy.report.wording import (
    MISSING,
    capital,
    finite,
    joined,
    mapping_of,
    number_text,
    objects_of,
    percent_text,
    spoken_name,
)

SUPERSCRIPTS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_SIGNIFICANT = 3
_JUST_ABOVE = 1.01

Row = Mapping[str, Any]


def error_text(value: object, spread: object = None) -> str:
    """`0.523 ± 0.021`, `(1.23 ± 0.04) × 10⁻⁶`: three digits, however small; a dash for none."""
    number, error = finite(value), finite(spread)
    if number is None:
        return MISSING
    size = abs(number) or abs(error or 0.0)
    power = math.floor(math.log10(size)) if size else 0
    is_plain = size == 0 or -3 <= power < 5
    unit = 1.0 if is_plain else 10.0**power
    decimals = 0 if size == 0 else max(0, _SIGNIFICANT - 1 - (power if is_plain else 0))
    text = number_text(number / unit, decimals)
    if error is not None:
        text += f" ± {number_text(error / unit, decimals)}"
    if is_plain:
        return text
    return f"{f'({text})' if error is not None else text} × {power_text(power)}"


def power_text(power: int) -> str:
    """`10⁻⁶`."""
    return "10" + str(power).translate(str.maketrans("-0123456789", SUPERSCRIPTS))


def share_text(value: object) -> str:
    """A share in whole per cent, with a decimal where it is small: `41 %`, `0.3 %`, `−12 %`."""
    number = finite(value)
    if number is None:
        return MISSING
    return percent_text(number, 0 if abs(number) >= 0.0995 or number == 0 else 1)


def entries_of(record: Mapping[str, Any]) -> list[Row]:
    """One entry per model and data set."""
    return objects_of(record.get("entries"))


def entry_name(entry: Row, record: Mapping[str, Any]) -> str:
    """The model's label, that of the data where there is one model, or both: `cnn on test`."""
    model, data = str(entry.get("model") or "the model"), str(entry.get("data") or "")
    several = len({each.get("data") for each in entries_of(record)}) > 1
    if not several or not data:
        return model
    return f"{model} on {data}" if has_several_models(record) else data


def has_several_models(record: Mapping[str, Any]) -> bool:
    """Whether networks are compared, and not one network on several data sets."""
    return len({each.get("model") for each in entries_of(record)}) > 1


def action_name(action: Row) -> str:
    """The transformation as it reads in a sentence."""
    return spoken_name(str(action.get("name") or "an unnamed transformation"))


def action_names_of(record: Mapping[str, Any]) -> list[str]:
    """Names of all transformations with a local error, in order of first appearance."""
    names: dict[str, None] = {}
    for entry in entries_of(record):
        for action in measured_actions(entry):
            names.setdefault(str(action.get("name")), None)
    return list(names)


def action_of(entry: Row, name: str) -> Row:
    """The row of one transformation; empty where the entry has none."""
    found = (each for each in objects_of(entry.get("actions")) if str(each.get("name")) == name)
    return next(found, {})


def measured_actions(entry: Row) -> list[Row]:
    """The transformations with a local error."""
    return [
        each for each in objects_of(entry.get("actions")) if finite(each.get("error")) is not None
    ]


def is_within_floor(action: Row) -> bool:
    """Whether the error is no more than resampling alone makes, up to rounding.

    Standard errors grant nothing: an error that few examples cannot tell from its floor is not
    for that reason as small as its floor.
    """
    error, floor = finite(action.get("error")), finite(action.get("resampling_floor"))
    return error is not None and bool(floor) and error <= _JUST_ABOVE * (floor or 0.0)


def layers_of(action: Row) -> list[Row]:
    """The rows of the layerwise attribution, in the order of the network."""
    return objects_of(action.get("layers"))


def culprit(action: Row) -> Row | None:
    """The layer with the largest share; None where there is none above zero."""
    shares = [(finite(layer.get("share")) or 0.0, layer) for layer in layers_of(action)]
    share, layer = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    return layer if share > 0 else None


def largest_layers(action: Row, count: int) -> list[int]:
    """Positions of the largest shares by size, or of the largest norms where no share is known."""
    layers = layers_of(action)
    by = "share" if any(finite(layer.get("share")) is not None for layer in layers) else "norm"
    sizes = [abs(finite(layer.get(by)) or 0.0) for layer in layers]
    order = sorted(range(len(layers)), key=lambda index: -sizes[index])
    return [index for index in order[:count] if sizes[index] > 0]


def layer_text(layer: Row) -> str:
    """`features.3` (MaxPool2d); the kind alone where it is the name."""
    name, kind = str(layer.get("name") or "unnamed"), str(layer.get("kind") or "")
    return f"`{name}` ({kind})" if kind and kind != name else f"`{name}`"


def shares_by_kind(action: Row, most: int = 5) -> str:
    """`ReLU 45 %, MaxPool2d 30 %, …`: shares add up, so those of a kind do; empty without any."""
    totals: dict[str, float] = {}
    for layer in layers_of(action):
        share = finite(layer.get("share"))
        if share is not None:
            kind = str(layer.get("kind") or "unnamed")
            totals[kind] = totals.get(kind, 0.0) + share
    order = sorted((kind for kind in totals if totals[kind]), key=lambda kind: -abs(totals[kind]))
    texts = [f"{kind} {share_text(totals[kind])}" for kind in order[:most]]
    if len(order) > most:
        texts.append(f"all others {share_text(sum(totals[kind] for kind in order[most:]))}")
    return ", ".join(texts)


def action_sentence(action: Row, *, with_finite: bool = True) -> str:
    """`Rotation: error 0.52 ± 0.02; the operation that breaks it most is …, 41 % of it.`

    with_finite: say how many predictions change under finite amounts as well
    """
    parts = []
    if finite(action.get("error")) is not None:
        text = f"error {error_text(action.get('error'), action.get('standard_error'))}"
        if is_within_floor(action):
            text += (
                f", no more than resampling alone ({error_text(action.get('resampling_floor'))})"
            )
        parts.append(text)
        layer = culprit(action)
        if layer is not None:
            parts.append(
                f"the operation that breaks it most is {layer_text(layer)}, "
                f"{share_text(layer.get('share'))} of it"
            )
    change = mapping_of(action.get("finite"))
    changed = finite(change.get("inconsistency"))
    if changed is not None and (with_finite or not parts):
        amounts = str(change.get("amounts") or "")
        where = f" within {amounts}" if amounts.startswith("±") else f" by {amounts}"
        parts.append(
            f"moved{where if amounts else ''}, {percent_text(changed)} of predictions change"
        )
    elif not parts and finite(change.get("error")) is not None:
        spread = change.get("standard_error")
        parts.append(f"error {error_text(change.get('error'), spread)} when moved")
    if not parts:
        parts.append(str(action.get("remark") or "not measured").rstrip("."))
    return f"{capital(action_name(action))}: {'; '.join(parts)}."


def exact_sentence(row: Row) -> str:
    """`Quarter turns, without resampling: error …; 12.0 % of predictions change.`"""
    name = capital(spoken_name(str(row.get("name") or "an unnamed transformation")))
    if finite(row.get("error")) is None:
        return f"{name}: {str(row.get('remark') or 'not measured').rstrip('.')}."
    text = f"error {error_text(row.get('error'), row.get('standard_error'))}"
    if finite(row.get("inconsistency")) is not None:
        text += f"; {percent_text(row.get('inconsistency'))} of predictions change"
    return f"{name}, without resampling: {text}."


def measure_sentences(record: Mapping[str, Any], *, brief: bool = False) -> list[str]:
    """A headline, then for one entry a sentence per transformation, for several one per entry.

    brief: without what the tables of a page tell: finite amounts, and the entries of several
    """
    entries = entries_of(record)
    if not entries:
        return ["Nothing was measured."]
    if len(entries) > 1:
        told = [_comparison_headline(record)]
        if not brief:
            told += [_entry_sentence(entry, record) for entry in entries]
        return told + _difference_sentences(record)
    entry = entries[0]
    told = [_headline(entry)]
    actions = objects_of(entry.get("actions"))
    told += [action_sentence(action, with_finite=not brief) for action in actions]
    return told + [exact_sentence(row) for row in objects_of(entry.get("exact"))]


def _headline(entry: Row) -> str:
    model, actions = str(entry.get("model") or "the model"), measured_actions(entry)
    if not actions:
        return f"No local error of {model} was measured."
    if all(map(is_within_floor, actions)):
        names = joined(action_name(action) for action in actions)
        return f"As far as resampling can tell, {model} is equivariant to {names}."
    if len(actions) == 1:
        size = error_text(actions[0]["error"], actions[0].get("standard_error"))
        return f"The error of {model} under {action_name(actions[0])} is {size}."
    order = sorted(actions, key=lambda action: float(action["error"]))
    last, first = order[-1], order[0]
    return (
        f"The error of {model} is largest under {action_name(last)}, {error_text(last['error'])}, "
        f"and smallest under {action_name(first)}, {error_text(first['error'])}."
    )


def _comparison_headline(record: Mapping[str, Any]) -> str:
    if not has_several_models(record):
        return _headline(entries_of(record)[0])
    names = action_names_of(record)
    if not names:
        return "No local error was measured."
    with_error = [
        (float(action["error"]), entry)
        for entry in entries_of(record)
        if finite((action := action_of(entry, names[0])).get("error")) is not None
    ]
    low, high = (pick(with_error, key=lambda pair: pair[0]) for pick in (min, max))
    return (
        f"Under {spoken_name(names[0])} {entry_name(low[1], record)} has the smallest error, "
        f"{error_text(low[0])}, and {entry_name(high[1], record)} the largest, "
        f"{error_text(high[0])}."
    )


def _entry_sentence(entry: Row, record: Mapping[str, Any]) -> str:
    """`cnn on test (93.0 % right): rotation 0.52 ± 0.02, …; the largest contribution is …`."""
    accuracy = finite(entry.get("accuracy"))
    name = entry_name(entry, record)
    if accuracy is not None:
        name += f" ({percent_text(accuracy)} right)"
    actions = measured_actions(entry)
    texts = [
        f"{action_name(action)} {error_text(action.get('error'), action.get('standard_error'))}"
        for action in actions
    ]
    text = f"{name}: {', '.join(texts) or 'no local error'}"
    found = [layer_text(layer) for action in actions if (layer := culprit(action)) is not None]
    most = max(dict.fromkeys(found), key=found.count, default="")
    if 2 * found.count(most) > len(found):
        often = "" if found.count(most) == len(actions) else "mostly "
        text += f"; the largest contribution is {often}from {most}"
    return f"{text}."


def _difference_sentences(record: Mapping[str, Any]) -> list[str]:
    """The clearest gap between data sets, and the clearest drift between models."""
    told = []
    for key, words in (("gaps", "gap between data sets"), ("drifts", "drift")):
        rows = objects_of(record.get(key))
        clear = [row for row in rows if is_clear(row)]
        if clear:
            row = max(clear, key=lambda each: abs(_ratio(each)))
            told.append(f"The clearest {words}: {difference_text(row)}.")
        elif rows:
            told.append(f"No {words} of more than two standard errors.")
    return told


def is_clear(row: Row) -> bool:
    """Whether a difference is more than two of its standard errors."""
    return abs(_ratio(row)) > 2


def _ratio(row: Row) -> float:
    difference, spread = finite(row.get("difference")), finite(row.get("standard_error"))
    if not difference or spread is None:
        return 0.0
    return difference / spread if spread else math.copysign(math.inf, difference)


def difference_text(row: Row) -> str:
    """`the error of cnn under rotation is 0.12 ± 0.02 larger on test than on train`.

    A drift is between models and names its data: `… on test is … smaller for after than for …`.
    """
    difference = finite(row.get("difference")) or 0.0
    size = error_text(abs(difference), row.get("standard_error"))
    word = "larger" if difference > 0 else "smaller"
    of = f"of {row['model']} " if row.get("model") else ""
    on, join = (f" on {row['data']}", "for") if row.get("data") else ("", "on")
    return (
        f"the error {of}under {spoken_name(str(row.get('action') or 'a transformation'))}{on} is "
        f"{size} {word} {join} {row.get('to') or MISSING} than {join} {row.get('from') or MISSING}"
    )


def spread_is_large(values: Sequence[float]) -> bool:
    """Whether positive values differ so much that only a logarithmic axis shows them all."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return bool(positive) and max(positive) > 30 * min(positive)
