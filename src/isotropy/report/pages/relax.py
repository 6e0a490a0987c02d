"""The report of `isotropy relax`: what each layer became, and what that rests on.

The page says, in this order: what the layers became, in words; the key numbers; a bar per layer
with the share of each pathway (Figure 3 of van der Ouderaa, Immer and van der Wilk 2023); the
numbers behind it (their Table 4); how the shares, evidence and accuracy went over the epochs; what
is left after hardening; what the numbers mean; and how to make the run again.

A record has one object per layer: `became` names the pathways that are in use ("conv",
"conv + ffc", or "off" where none is) and a bias map if there is one ("conv + bias map"),
`effective` is the share of each in the layer's relative effective number of parameters (their
App. D.2). A kind of pathway has the same colour everywhere (`paints`): convolutions that of the
page, full connections its opposite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from isotropy.report.canvas import (
    ACCENT,
    COLOUR_VARIABLES,
    INK,
    LETTER_WIDTH,
    MUTED,
    TRUTH,
    Drawing,
    canvas,
    name_rows,
    set_epoch_axis,
    set_value_axis,
)
from isotropy.report.figures import Curve, CurvePanel, accuracy_panel, curve_drawings
from isotropy.report.page import (
    Cell,
    KeyNumber,
    SettingsGroup,
    Table,
    evidence_number,
    named,
    number,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.record import Epoch, Relaxed, RelaxedLayer, read
from isotropy.report.wording import (
    MISSING,
    capital,
    error_text,
    joined,
    known_text,
    number_text,
    part_text,
    percent_text,
    shortened,
)

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
    "equivariant": ("equivariant", "equivariant"),
    "gate": ("an equivariant gate", "equivariant gates"),
    "free-gate": ("a free gate", "free gates"),
    "off": (SWITCHED_OFF, SWITCHED_OFF),
}
_ROW = 27
# Colours of the families, and how much paler each further pathway of a family is drawn.
_FAMILIES = {
    **dict.fromkeys(("conv", "sconv", "equivariant", "gate"), ACCENT),
    **dict.fromkeys(("fc", "ffc", "sfc", "free-gate"), TRUTH),
}
_PALENESS = (1.0, 0.55, 0.3, 0.15)


# --- what layers became, in words ---------------------------------------------------------------


def layer_name(layer: RelaxedLayer) -> str:
    """The layer's name in its network."""
    return layer.name or "unnamed"


def kinds_of(relaxed: Relaxed) -> list[str]:
    """Pathways by kind, as they were asked for; where that is not known, as layers have them."""
    return relaxed.pathways or list(
        dict.fromkeys(k for each in relaxed.layers for k in each.effective)
    )


def pathways_in_use(layer: RelaxedLayer) -> list[str]:
    """What a layer became, in parts: two of "conv + ffc"; none where it is not known."""
    return [part.strip() for part in layer.became.split("+") if part.strip()]


def became_words(layer: RelaxedLayer) -> tuple[str, str]:
    """What a layer became, in words for one layer and for several."""
    kinds = [kind for kind in pathways_in_use(layer) if kind != BIAS_MAP]
    if not kinds:
        return UNKNOWN, UNKNOWN
    if len(kinds) > 1:
        return MIXED, "sums of pathways"
    one, several = WORDS.get(kinds[0], (kinds[0], kinds[0]))
    if BIAS_MAP in pathways_in_use(layer):
        return f"{one} with a {BIAS_MAP}", f"{several} with {BIAS_MAP}s"
    return one, several


def shares_text(layer: RelaxedLayer) -> str:
    """`conv 62.0 %, ffc 38.0 %`, the largest first; empty where no share is known."""
    shares = [(share, kind) for kind, share in layer.effective.items() if math.isfinite(share)]
    ordered = sorted(shares, key=lambda each: -each[0])
    return ", ".join(f"{kind} {part_text(share)}" for share, kind in ordered)


def relax_sentences(result: Mapping[str, Any] | Relaxed) -> list[str]:
    """What the layers became, the exceptions by name, what a bias map is if one has it, and what
    hardening left; in this order."""
    relaxed = read(Relaxed, result)
    sentences = [headline(relaxed)]
    if chose(relaxed):
        sentences += _exceptions(relaxed.layers)
        if any(BIAS_MAP in pathways_in_use(layer) for layer in relaxed.layers):
            sentences.append(BIAS_MAP_MEANING)
    hardened = hardened_sentence(relaxed)
    return [*sentences, hardened] if hardened else sentences


def headline(relaxed: Relaxed) -> str:
    """`Of 8 layers 7 became convolutions and 1 became fully connected.`"""
    layers, kinds = relaxed.layers, kinds_of(relaxed)
    if not layers:
        return "No layer has pathways."
    several = len(layers) > 1
    every = f"All {len(layers)} layers" if several else "The one layer"
    unknown = f"What {every[0].lower()}{every[1:]} became is not known"
    if len(kinds) == 1:
        have = "have" if several else "has"
        return f"{every} {have} one pathway, {kinds[0]}: there was nothing to choose."
    if relaxed.objective == "map":
        keep, what = "keep" if several else "keeps", joined(kinds) or "their pathways"
        return f"{every} {keep} {what}: training by MAP does not choose between pathways."
    if relaxed.hyper_steps == 0:
        return f"{unknown}: no step on prior precisions was taken, {_why_untaken(relaxed)}"
    groups = _groups(layers)
    if list(groups) == [UNKNOWN]:
        return f"{unknown}."
    if len(groups) == 1:
        return f"{every} {_became(*groups.popitem())}."
    parts = [f"{len(members)} {_became(words, members)}" for words, members in groups.items()]
    return f"Of {len(layers)} layers {joined(parts)}."


def hardened_sentence(relaxed: Relaxed) -> str:
    """What is left without the pathways that were switched off; empty where it was not tried."""
    before, after = relaxed.num_parameters, relaxed.hardened.num_parameters
    if not math.isfinite(after):
        return ""
    if before == after:
        return (
            f"Hardened: no pathway was switched off, all {number_text(after, 0)} parameters stay."
        )
    text = f"Hardened: {number_text(after, 0)} of {number_text(before, 0)} parameters are left"
    if before > 0 and after > 0:
        text += f", {number_text(before / after, 1)} times fewer"
    accuracy, own = relaxed.hardened.test_accuracy, relaxed.test_accuracy
    if math.isfinite(accuracy + own):
        text += f"; test accuracy {percent_text(accuracy, 2)}, before {percent_text(own, 2)}"
    return text + "."


def score_sentences(result: Mapping[str, Any]) -> list[str]:
    """Accuracy, likelihood and evidence, for the end of a run on the command line."""
    relaxed = read(Relaxed, result)
    sentences = []
    if math.isfinite(relaxed.test_accuracy):
        text = f"Test accuracy {percent_text(relaxed.test_accuracy)}"
        if math.isfinite(relaxed.test_nll):
            text += f", negative log likelihood {number_text(relaxed.test_nll, 3)} nats per example"
        sentences.append(f"{text}.")
    if math.isfinite(relaxed.log_evidence):
        sentences.append(
            f"Log evidence {number_text(relaxed.log_evidence, 1)} nats, "
            f"{number_text(relaxed.log_evidence_per_example, 3)} per example."
        )
    return sentences


def chose(relaxed: Relaxed) -> bool:
    """Whether the run could choose between pathways at all, and took a step to do so."""
    could = relaxed.objective != "map" and len(kinds_of(relaxed)) > 1
    return could and relaxed.hyper_steps != 0


def _why_untaken(relaxed: Relaxed) -> str:
    """Why there was no hyper step, and what to do."""
    config = relaxed.config
    epochs, burn_in, every = config.epochs, config.burn_in, config.update_every
    if 0 < epochs < burn_in:
        return (
            f"since the burn-in of {burn_in:g} epochs is longer than the run of {epochs:g}. Set "
            f"burn_in to less than {epochs:g}, or train for more epochs."
        )
    if 0 < epochs < every and burn_in == 0:
        return (
            f"since update_every is {every:g} and the run has {epochs:g} epochs. Set update_every "
            f"to less than {epochs:g}, or train for more epochs."
        )
    end = ""
    if math.isfinite(relaxed.train_loss):
        end = f" (it ended at {number_text(relaxed.train_loss, 3)} nats per example)"
    return (
        f"since the training loss had not fallen far enough below that of guessing when one was "
        f"due{end}. Train for more epochs, or with a higher weight rate."
    )


def _groups(layers: Sequence[RelaxedLayer]) -> dict[str, list[RelaxedLayer]]:
    """Layers by what they became, the most frequent first, what is not known last."""
    groups: dict[str, list[RelaxedLayer]] = {}
    for layer in layers:
        groups.setdefault(became_words(layer)[0], []).append(layer)
    ordered = sorted(groups.items(), key=lambda each: (each[0] == UNKNOWN, -len(each[1])))
    return dict(ordered)


def _became(words: str, members: Sequence[RelaxedLayer]) -> str:
    if words == UNKNOWN:
        return "became something that is not known"
    several = len(members) > 1
    if words == SWITCHED_OFF:
        return f"{'are' if several else 'is'} {SWITCHED_OFF}"
    return f"{'stayed' if words == MIXED else 'became'} {became_words(members[0])[several]}"


def _exceptions(layers: Sequence[RelaxedLayer]) -> list[str]:
    """The layers by name that are not what most are, and the shares of mixed ones."""
    sentences = []
    for place, (words, members) in enumerate(_groups(layers).items()):
        if words == UNKNOWN or (place == 0 and words != MIXED):
            continue
        names = [layer_name(layer) for layer in members]
        if words == MIXED:
            told = zip(names, map(shares_text, members), strict=True)
            names = [f"{name} ({shares})" if shares else name for name, shares in told]
        sentences.append(f"{capital(words)}: {joined(names)}.")
    return sentences


# --- the page -----------------------------------------------------------------------------------


def relax_page(result: Mapping[str, Any]) -> str:
    """The report as the text of an HTML page.

    result: as printed by `isotropy relax --json`
    """
    relaxed = read(Relaxed, result)
    notes = [f"{capital(note).rstrip('.')}." for note in [*relaxed.data.notes, *relaxed.notes]]
    return render_page(
        "relax",
        relaxed,
        [each.replace(" %", "\N{NO-BREAK SPACE}%") for each in relax_sentences(relaxed)],
        _settings(result),
        notes=notes,
        data_name=relaxed.data.name or "unnamed data",
        objective=relaxed.objective,
        has_evidence=math.isfinite(relaxed.log_evidence),
        chose=chose(relaxed),
        hyper_steps=relaxed.hyper_steps,
        group=relaxed.group,
        key_numbers=key_numbers(relaxed),
        colours=paints(kinds_of(relaxed)),
        layers_drawing=layers_drawing(relaxed),
        layer_table=layer_table(relaxed),
        precision_table=precision_table(relaxed),
        course_drawings=course_drawings(relaxed),
        curve_drawings=curve_drawings(curve_panels(relaxed)),
        hardened=hardened_sentence(relaxed),
        command_line=relaxed.command_line,
    )


def key_numbers(relaxed: Relaxed) -> list[KeyNumber]:
    """Test accuracy, evidence, parameters, and time."""
    left = known_text(relaxed.hardened.num_parameters, "{} when hardened")
    if not left and math.isfinite(relaxed.width):
        left = f"width {relaxed.width:g}"
    tested = "no test data"
    if math.isfinite(relaxed.test_accuracy):
        tested = known_text(relaxed.test_examples, "{} test examples") or "on test data"
        if math.isfinite(relaxed.test_nll):
            tested += f"; negative log likelihood {number_text(relaxed.test_nll, 3)}"
    return [
        KeyNumber("Test accuracy", percent_text(relaxed.test_accuracy), tested),
        evidence_number(relaxed.log_evidence_per_example, relaxed.log_evidence, "{} nats in total"),
        KeyNumber("Parameters", number_text(relaxed.num_parameters, 0), left),
        time_number(relaxed, known_text(len(relaxed.epochs) or None, "{} epochs ")),
    ]


def layer_table(relaxed: Relaxed) -> Table | None:
    """Table 4: one line per layer and pathway, those that are not in use faint."""
    rows: list[list[Cell]] = []
    marked: dict[int, str] = {}
    for layer in relaxed.layers:
        in_use = pathways_in_use(layer)
        columns = [
            (layer.parameters, lambda value: number_text(value, 0)),
            (layer.prior_precision, error_text),
            (layer.weight_norm, error_text),
            (layer.normalised, error_text),
            (layer.effective, part_text),
            (layer.contribution, part_text),
        ]
        kinds = kinds_of(relaxed)
        kinds = [kind for kind in kinds if any(kind in each for each, _ in columns)] or kinds
        for place, kind in enumerate(kinds):
            if kind not in in_use:
                marked[len(rows)] = "faint"
            became = " + ".join(in_use) or MISSING
            head = [
                Cell(layer_name(layer), head=True, rows=len(kinds)),
                Cell(became, style="verdict found", rows=len(kinds)),
            ]
            numbers = [number(text(values.get(kind))) for values, text in columns]
            rows.append([*([] if place else head), Cell(kind), *numbers])
    titles = ("Layer", "Became", "Pathway", "Parameters", "Prior precision", "Weight norm, squared",
              "Normalised effective", "Relative effective", "Contribution")  # fmt: skip
    return Table(titles, rows, marked, "dense") if rows else None


def precision_table(relaxed: Relaxed) -> Table | None:
    """The prior precision of every tensor of every layer."""
    rows = [
        [
            named(layer_name(layer)),
            Cell(Markup("<code>{}</code>").format(tensor)),
            number(error_text(value)),
        ]
        for layer in relaxed.layers
        for tensor, value in layer.precisions.items()
    ]
    return Table(("Layer", "Tensor", "Prior precision"), rows, style="dense") if rows else None


def curve_panels(relaxed: Relaxed) -> list[CurvePanel]:
    """Evidence, accuracy and losses over the epochs."""
    rows, examples = relaxed.epochs, relaxed.train_examples
    epochs, per = [row.epoch for row in rows], examples if examples > 0 else 1
    evidences = [row.log_evidence * (1 / per) for row in rows]
    title = "Log evidence per example" if examples > 0 else "Log evidence"
    losses = [
        Curve(epochs, [row.test_nll for row in rows], "test"),
        Curve(epochs, [row.train_loss for row in rows], "training", main=False),
    ]
    return [
        CurvePanel(title, "nats", [Curve(epochs, evidences, "evidence")]),
        accuracy_panel(rows),
        CurvePanel("Negative log likelihood", "nats per example", losses),
    ]


def _settings(result: Mapping[str, Any]) -> list[SettingsGroup]:
    told = ("objective", "curvature", "pathways", "width", "group")
    # The notes on the data are sentences, which the page has above.
    data = {"name": (result.get("data") or {}).get("name")}
    data |= {name: result.get(name) for name in ("task", "train_examples", "test_examples")}
    groups = {
        "data": {name: value for name, value in data.items() if value is not None},
        "schedule": result.get("config") or {},
    }
    known = {name: value for name, value in groups.items() if value}
    return settings_groups("relax", result, known, told)


# --- drawings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paint:
    """How a kind of pathway is drawn: a sentinel colour of `canvas`, and its opacity."""

    colour: str
    opacity: float

    @property
    def variable(self) -> str:
        """The colour as the page writes it."""
        return COLOUR_VARIABLES[self.colour]


def paints(kinds: Sequence[str]) -> dict[str, Paint]:
    """A paint for each kind; group convolutions and unknown kinds are grey."""
    used: dict[str, int] = {}
    found = {}
    for kind in kinds:
        colour = _FAMILIES.get(kind, MUTED)
        place = used.get(colour, 0)
        used[colour] = place + 1
        found[kind] = Paint(colour, _PALENESS[min(place, len(_PALENESS) - 1)])
    return found


def layers_drawing(relaxed: Relaxed) -> Drawing | None:
    """Figure 3 with the shares of Table 4 in it: a bar per layer, from inputs (top) to outputs,
    divided among its pathways; None where no share is known."""
    layers, kinds = relaxed.layers, kinds_of(relaxed)
    if not any(layer.effective.get(kind, math.nan) > 0 for layer in layers for kind in kinds):
        return None
    told = "; ".join(f"{layer_name(layer)} {shares_text(layer)}" for layer in layers)
    label = f"Relative effective parameters, layer by layer: {told}"
    colours = paints(kinds)
    width, left, right = 660, 130, 120
    height = _ROW * (len(layers) + 1.2) + 38
    with canvas(width, height, left=left, right=right, key="layers", label=label) as drawn:
        axes = drawn.axes
        name_rows(axes, [layer_name(layer) for layer in layers], left)
        for place, layer in enumerate(layers):
            edge = 0.0
            for kind, paint in colours.items():
                share = 100 * layer.effective.get(kind, math.nan)
                if not share > 0:
                    continue
                axes.barh(
                    place, share, left=edge, height=0.66, color=paint.colour,
                    alpha=paint.opacity, linewidth=0,
                )  # fmt: skip
                edge += share
            became = " + ".join(pathways_in_use(layer)) or UNKNOWN
            axes.annotate(
                shortened(became, int(right / LETTER_WIDTH) - 1), (1, place),
                xycoords=("axes fraction", "data"), xytext=(10, 0), textcoords="offset points",
                va="center", color=INK, annotation_clip=False,
            )  # fmt: skip
        for text, height_at in (("input", -0.95), ("output", len(layers) - 0.05)):
            axes.annotate(
                text, (0, height_at), xycoords=("axes fraction", "data"), xytext=(-7, 0),
                textcoords="offset points", ha="right", va="center", color=MUTED,
                annotation_clip=False,
            )  # fmt: skip
        axes.set_xlim(0, 100)
        axes.set_ylim(len(layers) + 0.3, -1.3)
        set_value_axis(axes, "%", horizontal=True)
    note = "relative effective number of parameters, and what each layer became"
    return Drawing("Pathways, from inputs to outputs", note, drawn.svg, width=660)


def course_drawings(relaxed: Relaxed) -> list[Drawing]:
    """Each layer's shares over the epochs, where at least two epochs know them."""
    kinds, every = kinds_of(relaxed), [row.epoch for row in relaxed.epochs]
    drawings: list[Drawing] = []
    for place, layer in enumerate(relaxed.layers):
        name = layer_name(layer)
        courses = [(row.epoch, _shares_at(row, name, kinds)) for row in relaxed.epochs]
        points = [point for point in courses if point[1] and math.isfinite(sum(point[1], point[0]))]
        if len(points) < 2 or len(kinds) < 2:
            continue
        epochs = [epoch for epoch, _ in points]
        shares = dict(zip(kinds, zip(*(each for _, each in points), strict=True), strict=True))
        ends = ", ".join(
            f"{kind} from {part_text(values[0])} to {part_text(values[-1])}"
            for kind, values in shares.items()
        )
        label = f"{name} over the epochs: {ends}"
        with canvas(300, 150, left=42, key=f"course-{place}", label=label) as drawn:
            lower = [0.0] * len(epochs)
            for kind, paint in paints(kinds).items():
                upper = [low + 100 * value for low, value in zip(lower, shares[kind], strict=True)]
                drawn.axes.fill_between(
                    epochs, lower, upper, color=paint.colour, alpha=paint.opacity, linewidth=0
                )
                lower = upper
            set_epoch_axis(drawn.axes, [*epochs, max(filter(math.isfinite, every))])
            drawn.axes.set_ylim(0, 100)
            set_value_axis(drawn.axes, "%", most_ticks=2)
        became = " + ".join(pathways_in_use(layer))
        drawings.append(Drawing(name, became and f"became {became}", drawn.svg))
    return drawings


def _shares_at(row: Epoch, name: str, kinds: Sequence[str]) -> list[float]:
    """Shares of one layer's pathways, NaN where one is missing; empty without the layer."""
    layer = next((each for each in row.layers if layer_name(each) == name), None)
    return [] if layer is None else [layer.effective.get(kind, math.nan) for kind in kinds]
