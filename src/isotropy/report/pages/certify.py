"""The report of `isotropy certify`: the bound, what was paid for it, and what a symmetry is worth.

The page says, in this order: the bound in words, the key numbers, bound and training error and bits
over the dimension of the subspace (Figure 5.1b of the thesis), every part of the account, what
other inequalities make of the same numbers, the same network without the symmetry where that was
certified too, and what a certificate says and does not say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotropy.report.canvas import Drawing
from isotropy.report.figures import ProfilePanel, profile_figure
from isotropy.report.page import (
    KeyNumber,
    Table,
    named,
    number,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.record import Head, read
from isotropy.report.wording import known_text, number_text, percent_text

ABOUT = {
    "compression": "Nothing but the message comes from the data: the start is drawn by a seed.",
    "transfer": "The network starts from weights that were trained on other data.",
    "data-dependent": "The network starts from weights that were trained on a part of the data. "
    "That part is not counted. Most of what the network knows is in the start, so that the bound "
    "says little about why it generalises.",
    "held-out": "The network is its start, counted on data that it has not seen: this is a test "
    "set bound.",
}
"""What each kind of certificate rests on."""
PARTS = {
    "grid": "choice among the entries of the declared grid and the trials before it",
    "step": "choice among the declared step sizes",
    "scale": "choice of the prior's shape and among its declared scales",
    "weights": "levels of the coordinates",
    "symmetries": "what the outputs are averaged over",
    "total": "−log₂ of the prior probability",
}
INEQUALITIES = {
    "occam": "Occam, kl inverted",
    "occam-binomial": "Occam, binomial tail",
    "maurer": "Maurer",
    "catoni": "Catoni (A.3)",
    "hoeffding": "Hoeffding",
    "finite-class": "finite class (5.1)",
    "mcallester": "McAllester (5.2)",
}


@dataclass(frozen=True)
class TrainedEntry:
    """One network that was trained, and what it was worth."""

    dimension: float
    beta: float
    width: float
    seed: float
    step: float
    weights: float
    train_error: float
    bound: float


@dataclass(frozen=True)
class PlainBound:
    """The same network and grid without the symmetry, or with it."""

    bound: float
    train_error: float
    bits: float


@dataclass(frozen=True)
class Certified(Head):
    """`isotropy certify`."""

    data: str
    network: str
    num_weights: float
    bound: float
    train_error: float
    n: float
    delta: float
    kind: str
    dimension: float
    bits: dict[str, float]
    message_bits: float
    bounds: dict[str, float]
    test_error: float
    grid_entries: float
    symmetry_text: str
    plain: PlainBound
    trained: list[TrainedEntry]


def certify_page(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy certify --json`; config: nested settings beside it
    """
    told = read(Certified, result)
    return render_page(
        "certify",
        told,
        certify_sentences(told),
        settings_groups("certify", result, config, ("data", "network", "file")),
        data_name=told.data or "unnamed data",
        key_numbers=key_numbers(told),
        drawings=dimension_drawings(told.trained),
        trained=_trained_table(told.trained) if len(told.trained) > 1 else None,
        account=_account_table(told.bits),
        message=number_text(told.message_bits, 0),
        inequalities=_inequality_table(told),
        comparison=_comparison_table(told),
        about=ABOUT.get(told.kind, ""),
        confidence=percent_text(1 - told.delta, 0),
    )


def certify_sentences(result: Mapping[str, Any] | Certified) -> list[str]:
    """The bound, then what it rests on."""
    told = read(Certified, result)
    confidence, error = percent_text(1 - told.delta, 0), percent_text(told.bound)
    sentences = [
        f"With {confidence} confidence the compressed network errs on at most {error} of new data.",
        f"It errs on {percent_text(told.train_error)} of {number_text(told.n, 0)} training "
        f"examples and is described by {number_text(told.bits.get('total'), 0)} bits: "
        f"{number_text(told.dimension, 0)} coordinates of a subspace of its "
        f"{number_text(told.num_weights, 0)} weights.",
    ]
    if told.symmetry_text:
        sentences.append(f"Its outputs are averaged over {told.symmetry_text}.")
    if math.isfinite(told.plain.bound):
        better = told.plain.bound - told.bound
        word = "lowers" if better > 0 else "raises"
        sentences.append(
            f"The symmetry {word} the bound by {number_text(100 * abs(better), 1)} points: without "
            f"it the bound is {percent_text(told.plain.bound)}."
        )
    if told.kind in ABOUT:
        sentences.append(ABOUT[told.kind])
    return sentences


def key_numbers(told: Certified) -> list[KeyNumber]:
    """Bound, training error, bits, test error, time."""
    has_test = math.isfinite(told.test_error)
    return [
        KeyNumber("Error on new data", percent_text(told.bound), f"at most, δ = {told.delta:g}"),
        KeyNumber("Training error", percent_text(told.train_error), known_text(told.n, "of {}")),
        KeyNumber(
            "Bits",
            number_text(told.bits.get("total"), 0),
            known_text(told.message_bits, "of these {} in the message"),
        ),
        KeyNumber("Test error", percent_text(told.test_error), "" if has_test else "no test data"),
        time_number(told),
    ]


def dimension_drawings(trained: Sequence[TrainedEntry]) -> list[Drawing]:
    """Bound with training error, and bits, over the dimension: the best entry of each."""
    best: dict[float, TrainedEntry] = {}
    for each in trained:
        if math.isfinite(each.dimension) and math.isfinite(each.bound):
            kept = best.get(each.dimension)
            best[each.dimension] = each if kept is None or each.bound < kept.bound else kept
    if len(best) < 2:
        return []
    rows = [best[d] for d in sorted(best)]
    amounts = [each.dimension for each in rows]
    span = (amounts[0], amounts[-1])
    least = min(rows, key=lambda each: each.bound).dimension
    bounds, errors = ([100 * getattr(e, name) for e in rows] for name in ("bound", "train_error"))
    panels = [
        ("Bound", "per cent; the quiet line is the training error", bounds, errors),
        ("Bits of the levels", "over the dimension of the subspace", [e.weights for e in rows], []),
    ]
    drawings = []
    for index, (title, note, values, beside) in enumerate(panels):
        panel = ProfilePanel(amounts, values, span, beside, maximum=least)
        label = f"{title} over the dimension: " + ", ".join(
            f"{d:g}: {value:.1f}" for d, value in zip(amounts, values, strict=True)
        )
        drawings.append(Drawing(title, note, profile_figure(panel, key=f"d-{index}", label=label)))
    return drawings


def _trained_table(trained: Sequence[TrainedEntry]) -> Table:
    rows = [
        [
            named(number_text(each.dimension, 0)),
            number(f"{each.beta:g}"),
            number(number_text(each.width, 0) if each.width else ""),
            number(number_text(each.seed, 0)),
            number(f"{each.step:.3g}"),
            number(number_text(each.weights, 0)),
            number(percent_text(each.train_error)),
            number(percent_text(each.bound)),
        ]
        for each in sorted(trained, key=lambda each: each.bound)
    ]
    titles = ("d", "β", "Width", "Seed", "Step", "Bits", "Training error", "Bound")
    return Table(titles, rows, {0: "large"}, "dense")


def _account_table(bits: Mapping[str, float]) -> Table:
    rows = [
        [named(name), named(words), number(number_text(bits.get(name), 1))]
        for name, words in PARTS.items()
        if bits.get(name) or name == "total"
    ]
    return Table(("Part", "Pays for", "Bits"), rows, {len(rows) - 1: "large"}, "short")


def _inequality_table(told: Certified) -> Table:
    rows = [
        [named(INEQUALITIES.get(name, name)), number(percent_text(bound, 2))]
        for name, bound in sorted(told.bounds.items(), key=lambda item: item[1])
    ]
    return Table(("Inequality", "Bound"), rows, style="short")


def _comparison_table(told: Certified) -> Table | None:
    if not math.isfinite(told.plain.bound):
        return None
    bits = told.bits.get("total", math.nan)
    averaged = PlainBound(told.bound, told.train_error, bits)
    rows = [
        [named(name), number(percent_text(each.train_error)), number(number_text(each.bits, 0)),
         number(percent_text(each.bound))]
        for name, each in ((f"averaged over {told.symmetry_text}", averaged), ("plain", told.plain))
    ]  # fmt: skip
    return Table(("Network", "Training error", "Bits", "Bound"), rows, style="short")
