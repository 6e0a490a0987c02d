"""The report of `isotropy learn`: one record in, one self-contained HTML page out.

The page says, in this order: what was found, the key numbers, every amount beside its truth and
verdict, what the search before the run found, how the amounts came about and go together, what
they do to real images, how evidence and accuracy went, whether predictions are as sure as they
should be, and how to make the run again. What a record does not hold is left out rather than shown
empty. Axes are shared where numbers may be compared: panels of one unit have one value axis, all
panels have one epoch axis.

What the pictures are made of is kept in samples.npz of a run folder, each where it is known:

    examples     (images, 1 + copies, channels, height, width)   in [0, 1]; index 0 = original
    flows        (samples, 2, rows, columns, 2)   [:, 0] where points start, [:, 1] where their
                 content moves to; (x right, y down) in pixels from the upper left corner
    image_shape  (height, width) in pixels
    filters      (1 or 2, filters, elements, channels, height, width)   the feature bank, before
                 the run where it is known, and after it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.checks import CallerError
from isotropy.report.canvas import Drawing
from isotropy.report.figures import (
    Curve,
    CurvePanel,
    ProfilePanel,
    RangePanel,
    curve_drawings,
    flow_drawings,
    matrix_drawing,
    profile_figure,
    range_figure,
    reliability_drawings,
)
from isotropy.report.page import (
    KeyNumber,
    SettingsGroup,
    Table,
    evidence_number,
    flat_settings,
    named,
    number,
    picture_uri,
    render_page,
    settings_groups,
    time_number,
)
from isotropy.report.pages.findings import (
    FOUND_WORDS,
    NOT_LEARNED,
    finding_sentences,
    held_out_table,
    held_out_trials,
    null_words,
    word_of,
)
from isotropy.report.pages.scores import (
    calibration_examples,
    calibration_table,
    class_table,
    score_number,
    score_panel,
)
from isotropy.report.pages.screen import screening_rows
from isotropy.report.record import Epoch, Learned, Symmetry, number_of, read
from isotropy.report.wording import (
    MISSING,
    amount_text,
    duration_text,
    interval_text,
    is_probability,
    joined,
    known_text,
    nats_text,
    number_text,
    percent_text,
    reading_of,
    signed_amount,
    title_of,
)

SAMPLES_FILE = "samples.npz"

EXAMPLE_ROWS, EXAMPLE_COPIES = 8, 8
NO_UNIT = "no unit"
_EXAMPLE_AXES = ("images", "1 + copies", "channels", "height", "width")
_FLOW_AXES = ("samples", "2", "rows", "columns", "2")
_FALLBACK_WORDS = {
    "diagonal": "their curvature is a diagonal",
    "fixed": "their weights count as fixed: the evidence does not price them",
}


@dataclass(frozen=True)
class LearnRecord:
    """A finished run: its result, its settings, its history, and samples to look at.

    result:   as printed by `isotropy learn --json`
    config:   nested JSON settings (data, network, schedule, …), without the truth
    history:  one JSON object per epoch
    truth:    true half-width by symmetry name, in its unit; empty when unknown
    examples, flows, image_shape, filters: as in the module's docstring; None when not kept

    Raises CallerError where an array has the wrong axes.
    """

    result: Mapping[str, Any]
    config: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    truth: Mapping[str, float]
    examples: np.ndarray | None = None
    flows: np.ndarray | None = None
    image_shape: tuple[int, int] | None = None
    filters: np.ndarray | None = None

    def __post_init__(self) -> None:
        _check_samples(self.examples, self.flows)

    @cached_property
    def learned(self) -> Learned:
        """The result, typed."""
        return read(Learned, self.result)

    @cached_property
    def epochs(self) -> list[Epoch]:
        """The history, typed."""
        return [read(Epoch, row) for row in self.history]


def save_samples(
    run_folder: Path,
    *,
    examples: np.ndarray | None = None,
    flows: np.ndarray | None = None,
    image_shape: tuple[int, int] | None = None,
    filters: np.ndarray | None = None,
) -> Path:
    """Write `samples.npz` into a run folder and return its path; what is None is left out."""
    _check_samples(examples, flows)
    given = {
        "examples": (examples, np.float32),
        "flows": (flows, np.float32),
        "image_shape": (image_shape, np.int64),
        "filters": (filters, np.float32),
    }
    arrays = {
        name: np.asarray(value, dtype=dtype)
        for name, (value, dtype) in given.items()
        if value is not None
    }
    path = Path(run_folder) / SAMPLES_FILE
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def _check_samples(examples: np.ndarray | None, flows: np.ndarray | None) -> None:
    for what, axes, array in (
        ("examples", _EXAMPLE_AXES, examples), ("flows", _FLOW_AXES, flows)
    ):  # fmt: skip
        if array is None:
            continue
        fits = array.ndim == len(axes) and all(
            size == int(axis) if axis.isdigit() else size > 0
            for size, axis in zip(array.shape, axes, strict=True)
        )
        if not fits:
            came = ", ".join(str(size) for size in array.shape)
            raise CallerError(f"{what}: expected ({', '.join(axes)}), none empty, got ({came})")


# --- the page -----------------------------------------------------------------------------------


def learn_page(record: LearnRecord) -> str:
    """The report as the text of an HTML page."""
    learned = record.learned
    rows = [symmetry_row(symmetry, record) for symmetry in learned.symmetries]
    ranges = [symmetry for symmetry in learned.symmetries if not is_probability(symmetry)]
    return render_page(
        "learn",
        learned,
        finding_sentences(learned, record.truth),
        learn_settings(record),
        data_name=learned.data or "unnamed data",
        objective=learned.objective,
        learned=learned.objective not in NOT_LEARNED,
        has_evidence=math.isfinite(learned.log_evidence),
        evidence_name=learned.evidence_name,
        bound=bound_table(learned),
        banks=bank_pictures(record),
        curvature=learned.curvature,
        evidence_words=evidence_words(learned),
        copies=known_text(learned.samples, "{} "),
        test_copies=known_text(learned.test_samples, " (at test time {})"),
        key_numbers=key_numbers(learned),
        rows=rows,
        judged=bool(learned.verdicts),
        has_intervals=any(row.interval for row in rows),
        search=search_facts(record),
        search_drawings=search_drawings(record),
        held_out_table=held_out_table(learned),
        correlated=learned.distribution == "correlated",
        has_ranges=bool(ranges),
        has_probabilities=len(ranges) < len(learned.symmetries),
        truth_known=bool(record.truth),
        found_from=_per_unit(learned.symmetries, "found"),
        full_at=_per_unit(ranges, "full_scale"),
        range_drawings=range_drawings(record),
        correlation_drawing=matrix_drawing(
            learned.correlations.names,
            learned.correlations.matrix,
            key="correlations",
            title="Correlation of amounts",
            note="from −1 to 1; the columns are numbered like the rows",
            largest=1.0,
        ),
        pictures=example_pictures(record),
        flow_drawings=flow_drawings(record.flows, record.image_shape),
        curve_drawings=curve_drawings(curve_panels(record)),
        calibration=calibration_table(learned),
        calibration_examples=calibration_examples(learned),
        classes=class_table(learned),
        score_name="error" if math.isfinite(learned.test_rmse) else "accuracy",
        calibration_drawings=reliability_drawings(learned.calibration),
        screening=screening_rows(learned.screening, learned.units),
        fallback=fallback_sentence(record),
    )


def key_numbers(learned: Learned) -> list[KeyNumber]:
    """The score on test data, evidence beside that of a constant prediction, copies, and time."""
    evidence_note = "{} in total" + known_text(learned.train_examples, ", {} examples")
    if math.isfinite(learned.null_log_evidence):
        evidence_note += f"; {null_words(learned)} {number_text(learned.null_log_evidence, 1)}"
    return [
        score_number(learned),
        evidence_number(
            learned.log_evidence_per_example,
            learned.log_evidence,
            evidence_note,
            learned.evidence_name,
        ),
        KeyNumber(
            "Copies averaged",
            number_text(learned.samples, 0),
            known_text(learned.test_samples, "{} at test time"),
        ),
        time_number(learned, known_text(learned.epochs, "{} epochs ")),
    ]


def search_facts(record: LearnRecord) -> dict[str, str]:
    """How the search went, as text; empty without one."""
    search = record.learned.search
    if not record.result.get("search"):
        return {}
    return {
        "trials": number_text(search.trials, 0),
        "examples": number_text(search.examples, 0),
        "seconds": duration_text(search.seconds),
        "seed_error": number_text(search.seed_error, 1),
    }


# --- the table of symmetries --------------------------------------------------------------------


@dataclass(frozen=True)
class SymmetryRow:
    """A symmetry in the table; bar ends and truths in per cent of its full scale.

    bar_from: −100 for a range about zero, 0 for a probability; bar ends lie in [bar_from, 100]
    interval, probability, floor, gain: what the verdict rests on; empty where there is none.
              The probability is that of more than the floor.
    """

    name: str
    unit: str
    extent: str
    truth: str
    verdict: str
    found: bool
    interval: str
    probability: str
    floor: str
    gain: str
    bar_from: int
    bar: tuple[float, float] | None
    bar_truths: tuple[float, ...]


def symmetry_row(symmetry: Symmetry, record: LearnRecord) -> SymmetryRow:
    """One line of the table of symmetries; what the verdict rests on only where it claims."""
    learned, name, unit = record.learned, symmetry.name, symmetry.unit
    low, high, true = symmetry.low, symmetry.high, number_of(record.truth.get(name))
    known = [abs(value) for value in (low, high, true) if math.isfinite(value)]
    full = max([reading_of(unit).full_scale, *known])
    share = 100 * abs(true) / full if math.isfinite(true) else 0.0
    one_sided = is_probability(symmetry)
    claims = not learned.search.nothing_learned
    judged = learned.judged.get(name) if claims else None
    searched = learned.search.symmetries.get(name) if claims else None
    has_floor = searched is not None and math.isfinite(searched.floor)
    word = word_of(symmetry, learned.judged)
    gain = ""
    if judged is not None and math.isfinite(judged.gain_nats):
        gains = " to ".join(map(nats_text, judged.gain_interval))
        gain = f"{nats_text(judged.gain_nats)} nats" + (f" ({gains})" if gains else "")
    return SymmetryRow(
        name=title_of(name),
        unit=unit or NO_UNIT,
        extent=_extent_text(symmetry),
        truth=_truth_text(true, symmetry),
        verdict=word,
        found=word in FOUND_WORDS,
        interval=interval_text(symmetry.interval, unit) if claims and symmetry.interval else "",
        probability="" if judged is None else _probability_text(judged.probability),
        floor=signed_amount(searched.floor, unit) if searched is not None and has_floor else "",
        gain=gain,
        bar_from=0 if one_sided else -100,
        bar=(100 * low / full, 100 * high / full) if math.isfinite(low + high) else None,
        bar_truths=() if not share else (share,) if one_sided else (-share, share),
    )


def _probability_text(probability: float) -> str:
    """In whole per cent, and never surer than 99 %."""
    if not math.isfinite(probability):
        return ""
    if not 0.01 <= probability <= 0.99:
        return "under 1 %" if probability < 0.01 else "over 99 %"
    return percent_text(probability, 0)


def _extent_text(symmetry: Symmetry) -> str:
    """`−177.5° … 177.5°`; a probability alone, and ½ as the whole."""
    reading, low, high = reading_of(symmetry.unit), symmetry.low, symmetry.high
    if not math.isfinite(low) and not math.isfinite(high):
        return MISSING
    if low == high == 0:
        return "0"
    if is_probability(symmetry):
        is_whole = amount_text(high, "probability") == "½"
        return "½ (whole)" if is_whole else number_text(high, reading.decimals)
    return " … ".join(number_text(end, reading.decimals, reading.symbol) for end in (low, high))


def _truth_text(true: float, symmetry: Symmetry) -> str:
    if not math.isfinite(true):
        return MISSING
    if is_probability(symmetry):
        return "½" if true == 0.5 else f"{true:g}"
    return f"{'±' if true else ''}{true:g}{reading_of(symmetry.unit).symbol}"


def _per_unit(symmetries: Sequence[Symmetry], attribute: str) -> str:
    """A number of each unit's reading: `20°, 0.05 (fraction of image width) and 0.1 (…)`."""
    parts: list[str] = []
    for unit in dict.fromkeys(symmetry.unit or NO_UNIT for symmetry in symmetries):
        reading = reading_of(unit)
        name = "" if reading.symbol else f" ({unit})"
        parts.append(f"{getattr(reading, attribute):g}{reading.symbol}{name}")
    return joined(parts)


# --- the search before the run ------------------------------------------------------------------


def search_drawings(record: LearnRecord) -> list[Drawing]:
    """L over the amounts of each symmetry, relative to none of it, and its held-out profile.

    Panels of one unit share the axis of amounts. All densities are of the linearised network.
    """
    learned = record.learned
    searched, units = learned.search.symmetries, learned.units
    spans: dict[str, float] = {}
    for name, own in searched.items():
        amounts = [trial.amount for trial in own.profile if math.isfinite(trial.amount)]
        spans[units.get(name, "")] = max([spans.get(units.get(name, ""), 0.0), *amounts])
    drawings: list[Drawing] = []
    for index, (name, own) in enumerate(searched.items()):
        unit, title = units.get(name, ""), title_of(name)
        trials = [trial for trial in own.profile if math.isfinite(trial.amount)]
        zero = next((trial.log_predictive for trial in trials if trial.amount == 0), math.nan)
        gains = {
            trial.amount: gain
            for trial in trials
            if math.isfinite(gain := trial.log_predictive - zero)
        }
        if not gains:
            continue
        best = max(gains, key=lambda amount: gains[amount])
        panel = ProfilePanel(
            amounts=list(gains),
            values=list(gains.values()),
            span=(0.0, spans[unit]),
            maximum=own.amount or math.nan,
            interval=own.interval,
            truth=number_of(record.truth.get(name)),
            symbol=reading_of(unit).symbol,
            small=True,
        )
        label = (
            f"{title}: log predictive density over its amount, largest at "
            f"{signed_amount(best, unit)} with {number_text(gains[best], 1)} nats above none"
        )
        note = f"{unit or NO_UNIT}; 95 % interval {interval_text(own.interval, unit)}"
        svg = profile_figure(panel, key=f"search-{index}", label=label)
        drawings.append(Drawing(title, note, svg))
        beside = held_out_trials(own)
        if beside:
            values = [trial.test_log_likelihood for trial in beside]
            panel = replace(
                panel, amounts=[trial.amount for trial in beside], values=values, interval=()
            )
            ends = ", ".join(
                f"{number_text(t.test_log_likelihood, 3)} at {signed_amount(t.amount, unit)}"
                for t in beside
            )
            label = f"{title}: held-out log density per example, {ends}"
            svg = profile_figure(panel, key=f"search-{index}-held-out", label=label)
            drawings.append(Drawing(f"{title}, held-out", "log density per example", svg))
    return drawings


# --- the course of the run, and what it came to -------------------------------------------------


def range_drawings(record: LearnRecord) -> list[Drawing]:
    """The course of each range over the epochs, against the truth where it is known.

    A range that was zero throughout has no course.
    """
    symmetries = record.learned.symmetries
    epochs = [row.epoch for row in record.epochs]
    courses = {
        each.name: [row.ranges.get(each.name, math.nan) for row in record.epochs]
        for each in symmetries
    }
    drawings: list[Drawing] = []
    for index, symmetry in enumerate(symmetries):
        name, reading = symmetry.name, reading_of(symmetry.unit)
        known = [value for value in courses[name] if math.isfinite(value)]
        if not any(known):
            continue
        alike = [other.name for other in symmetries if other.unit == symmetry.unit]
        heights = [value for other in alike for value in courses[other] if math.isfinite(value)]
        heights += [record.truth[other] for other in alike if other in record.truth]
        panel = RangePanel(
            curve=Curve(epochs, courses[name]),
            truth=number_of(record.truth.get(name)),
            found=reading.found,
            top=1.06 * max([1.5 * reading.found, *heights]),
            symbol=reading.symbol,
        )
        first, last = (
            number_text(v, reading.decimals, reading.symbol) for v in (known[0], known[-1])
        )
        what = "probability" if is_probability(symmetry) else "half-width"
        label = f"{title_of(name)}: {what} from {first} to {last} over the epochs"
        if math.isfinite(panel.truth):
            label += f"; truth {panel.truth:g}{reading.symbol}"
        svg = range_figure(panel, key=f"range-{index}", label=label)
        drawings.append(Drawing(title_of(name), symmetry.unit or NO_UNIT, svg))
    return drawings


def curve_panels(record: LearnRecord) -> list[CurvePanel]:
    """Evidence (or, where there is none, the training loss) and test scores over epochs."""
    rows, examples = record.epochs, record.learned.train_examples or math.nan
    epochs = [row.epoch for row in rows]
    evidences = [row.log_evidence_per_example for row in rows]
    fits = [row.log_likelihood * (1 / examples) for row in rows]
    first = CurvePanel(
        f"Log {record.learned.evidence_name} per example",
        "nats; with the log likelihood it trades against",
        [Curve(epochs, evidences, "evidence"), Curve(epochs, fits, "likelihood", main=False)],
    )
    if not any(map(math.isfinite, evidences)):
        losses = Curve(epochs, [row.train_loss for row in rows], "loss")
        first = CurvePanel("Training loss", "per example; no evidence was computed", [losses])
    return [first, score_panel(rows)]


def example_pictures(record: LearnRecord) -> list[list[str]]:
    """Rows of picture URIs: the original first, then sampled copies."""
    if record.examples is None:
        return []
    shown = record.examples[:EXAMPLE_ROWS, : 1 + EXAMPLE_COPIES]
    return [[picture_uri(image) for image in row] for row in shown]


def bank_pictures(record: LearnRecord) -> dict[str, list[list[str]]]:
    """Picture URIs of filters under elements, one row a filter, before and after the run."""
    if record.filters is None:
        return {}
    largest = np.abs(record.filters).max(axis=(2, 3, 4, 5), keepdims=True)
    shown = 0.5 + record.filters / (2 * np.maximum(largest, 1e-12))  # zero is grey
    stages = ("Before", "After")[-len(shown) :]
    rows = [[[picture_uri(image) for image in row] for row in stage] for stage in shown]
    return dict(zip(stages, rows, strict=True))


def bound_table(learned: Learned) -> Table | None:
    """The evidence bound and its parts; None for other evidences."""
    if learned.evidence_name == "evidence":
        return None
    parts = {
        "Log evidence bound": learned.log_evidence_per_example,
        "Expected log likelihood": learned.elbo.get("expected_log_likelihood", math.nan),
        "KL divergence from the prior": learned.elbo.get("kl", math.nan),
    }
    rows = [
        [named(name, "nats per example"), number(number_text(v, 3))] for name, v in parts.items()
    ]
    variance = learned.elbo.get("prior_variance", math.nan)
    rows.append(
        [
            named("Prior variance α", "of each weight of the last layer"),
            number(number_text(variance, 2)),
        ]
    )
    return Table(("Part", "Value"), rows, style="short")


# --- what the numbers depend on -----------------------------------------------------------------


def evidence_words(learned: Learned) -> str:
    """What the evidence's value depends on besides the model, as a list in a sentence."""
    told = {
        "curvature": "the curvature",
        "samples": "the number of copies",
        "prior_structure": "the structure of the prior",
        "noise_seed": "the draws of the noise",
    }
    given = {words: learned.evidence.get(key) for key, words in told.items()}
    return joined(f"{words} ({text})" for words, text in given.items() if text)


def fallback_sentence(record: LearnRecord) -> str:
    """Which layers have no curvature rule and what was done about them; empty without any."""
    layers = record.learned.fallback
    if not layers:
        return ""
    names = joined(f"{name} ({kind})" for name, kind in layers.items())
    done = str((record.config.get("schedule") or {}).get("fallback") or "")
    words = _FALLBACK_WORDS.get(done, f"handled by the fallback {done}" if done else "")
    return f"Layers without a curvature rule: {names}{'; ' if words else ''}{words}."


def learn_settings(record: LearnRecord) -> list[SettingsGroup]:
    """The run, what the evidence's value depends on, and each part of the config."""
    told = ("objective", "curvature", "distribution", "padding")
    first, *others = settings_groups("learn", record.result, record.config, told)
    evidence = record.result.get("evidence")
    between: list[SettingsGroup] = [("evidence", flat_settings(evidence))] if evidence else []
    return [first, *between, *others]
