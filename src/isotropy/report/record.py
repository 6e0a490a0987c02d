"""The records of the commands as dataclasses, and the one place where JSON becomes these.

A record is what a command's `--json` prints and its run folder keeps. Fields have the names of
the JSON keys, and only what a report reads is here. A record may be of an older version, or of a
run in which something was not computed, so that any part may be missing, null, or not finite.
`read` gives such a part an empty value, once, and reports need not ask again:

    float              NaN                       str, list, dict    empty
    bool               False, or its default     a dataclass        one with empty fields
    tuple[float, ...]  an interval: two finite numbers, else ()
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from isotropy.report.wording import finite

Interval = tuple[float, ...]
"""(low, high), or () where it is not known."""
T = TypeVar("T")


# --- reading ------------------------------------------------------------------------------------


def read(kind: type[T], value: object) -> T:
    """A JSON object as the dataclass `kind`, what is missing as empty values; see above."""
    if isinstance(value, kind):
        return value
    given = value if isinstance(value, Mapping) else {}
    own: Any = kind
    values = {}
    for each in fields(own):
        part = given.get(each.name.removesuffix("_"))  # a field `from_` has the key `from`
        keeps_default = part is None and each.default is not MISSING
        values[each.name] = each.default if keeps_default else _value(_hints(own)[each.name], part)
    return kind(**values)


_hints = cache(get_type_hints)


def _value(hint: Any, value: object) -> Any:
    """`value` as a `hint`, or what is empty of that type."""
    if hint is float:
        return number_of(value)
    if hint is str:
        return "" if value is None else str(value)
    if hint is bool:
        return value is True
    if is_dataclass(hint):
        return read(hint, value)  # type: ignore[arg-type]
    inner = get_args(hint)
    if get_origin(hint) is dict:
        given = value if isinstance(value, Mapping) else {}
        return {str(name): _value(inner[1], each) for name, each in given.items()}
    items = list(value) if isinstance(value, list | tuple) else []
    if get_origin(hint) is tuple:
        ends = tuple(number_of(each) for each in items)
        return ends if len(ends) == 2 and all(map(math.isfinite, ends)) else ()
    if is_dataclass(inner[0]):
        items = [each for each in items if isinstance(each, Mapping)]
    return [_value(inner[0], each) for each in items]


def number_of(value: object) -> float:
    """`value` as a float, NaN where it is missing or not a finite number."""
    number = finite(value)
    return math.nan if number is None else number


@dataclass(frozen=True)
class Head:
    """What every record begins with: the version it was made by, where, and how long it took."""

    isotropy: str
    device: str
    seconds: float


# --- learn --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Symmetry:
    """A transformation and how much of it was learned: between low and high, in its unit."""

    name: str
    kind: str
    unit: str
    low: float
    high: float
    interval: Interval


@dataclass(frozen=True)
class Verdict:
    """What is said of a symmetry; gain: of the log predictive density, in nats."""

    name: str
    verdict: str
    probability: float
    gain_nats: float
    gain_interval: Interval


@dataclass(frozen=True)
class Trial:
    """The linearised network at one amount; log densities in nats, that of tests per example."""

    amount: float
    log_predictive: float
    log_evidence: float
    test_log_likelihood: float


@dataclass(frozen=True)
class Searched:
    """What the search says of one symmetry; beside_held_out: at 0, ½, 1 and 2 times its amount."""

    amount: float
    interval: Interval
    floor: float
    profile: list[Trial]
    beside_held_out: list[Trial]


@dataclass(frozen=True)
class Trained:
    """A network trained with these amounts, its log evidence in nats, and its test score."""

    amounts: dict[str, float]
    log_evidence: float
    test_log_likelihood: float


@dataclass(frozen=True)
class Search:
    """The search before a run; densities in nats over its examples. trials: NaN without one.

    trained_steps: weight steps of the networks in `trained` that were only compared; else NaN
    """

    trials: float
    examples: float
    seconds: float
    seed_error: float
    nothing_learned: bool
    log_predictive: float
    null_log_predictive: float
    amounts: dict[str, float]
    symmetries: dict[str, Searched]
    trained: list[Trained]
    trained_steps: float


@dataclass(frozen=True)
class Correlations:
    """The matrix (names, names) of correlations between amounts."""

    names: list[str]
    matrix: list[list[float]]


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions with a confidence in (low, high]: how many, how sure, how right."""

    low: float
    high: float
    count: float
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class CalibrationScores:
    """Scores on test data of one way of predicting."""

    examples: float
    accuracy: float
    log_likelihood: float
    brier_score: float
    expected_calibration_error: float
    bins: list[CalibrationBin]


@dataclass(frozen=True)
class ScreenedDirection:
    """One direction of a screening: its gain in nats per example, and the best amounts tried."""

    direction: str
    names: list[str]
    gain: float
    error: float
    wanted: bool
    amounts: dict[str, float]


@dataclass(frozen=True)
class Screening:
    """Directions in the order of the climb, the matrix of second differences, and a start."""

    rows: list[ScreenedDirection]
    generators: list[str]
    matrix: list[list[float]]
    start: dict[str, float]
    log_evidence: float
    evaluations: float


@dataclass(frozen=True)
class Learned(Head):
    """`isotropy learn`."""

    data: str
    objective: str
    curvature: str
    distribution: str
    epochs: float
    samples: float
    test_samples: float
    train_examples: float
    test_examples: float
    test_accuracy: float
    test_rmse: float
    test_log_likelihood: float
    class_counts: dict[str, list[float]]
    log_evidence: float
    log_evidence_per_example: float
    null_log_evidence: float
    noise: float
    symmetries: list[Symmetry]
    verdicts: list[Verdict]
    search: Search
    correlations: Correlations
    calibration: dict[str, CalibrationScores]
    screening: Screening
    fallback: dict[str, str]
    evidence: dict[str, str]
    elbo: dict[str, float]
    settled: bool = True

    @property
    def evidence_name(self) -> str:
        """What the evidence is called: its logarithm, or a lower bound of that."""
        return "evidence bound" if self.evidence.get("kind") == "elbo" else "evidence"

    @property
    def units(self) -> dict[str, str]:
        """Units by name."""
        return {symmetry.name: symmetry.unit for symmetry in self.symmetries}

    @property
    def judged(self) -> dict[str, Verdict]:
        """Verdicts by name; empty where the run was not judged."""
        return {verdict.name: verdict for verdict in self.verdicts}


# --- screen and profile -------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainTraining:
    """The network that a screening asks."""

    epochs: float
    train_accuracy: float
    log_evidence_per_example: float


@dataclass(frozen=True)
class Screened(Head):
    """`isotropy screen`."""

    data: str
    curvature: str
    train_examples: float
    training: PlainTraining
    units: dict[str, str]
    screening: Screening


@dataclass(frozen=True)
class CurvatureProfile:
    """The evidence over amounts by one kind of curvature; error: why there is none."""

    curvature: str
    error: str
    amounts: list[float]
    log_evidence_per_example: list[float]
    log_likelihood_per_example: list[float]
    test_log_likelihood: list[float]
    test_accuracy: list[float]
    maximum: float
    interval: Interval
    held_out_maximum: float
    rank_correlation: float


@dataclass(frozen=True)
class Profiled(Head):
    """`isotropy profile`; truth: the amount that the data were made with."""

    data: str
    test_examples: float
    generator: str
    unit: str
    truth: float
    others: str
    profiles: list[CurvatureProfile]


# --- relax --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RelaxedLayer:
    """What a layer became ("conv", "conv + ffc", …), and numbers by kind of pathway.

    effective: shares in the layer's relative effective number of parameters
    precisions: by tensor
    """

    name: str
    became: str
    effective: dict[str, float]
    normalised: dict[str, float]
    parameters: dict[str, float]
    prior_precision: dict[str, float]
    weight_norm: dict[str, float]
    contribution: dict[str, float]
    precisions: dict[str, float]


@dataclass(frozen=True)
class Epoch:
    """One epoch of `learn` or `relax`, log_likelihood and log_evidence sums over examples;
    ranges: half-widths or probabilities by name."""

    epoch: float
    train_loss: float
    train_accuracy: float
    test_accuracy: float
    test_rmse: float
    test_nll: float
    log_likelihood: float
    log_evidence: float
    log_evidence_per_example: float
    ranges: dict[str, float]
    layers: list[RelaxedLayer]


@dataclass(frozen=True)
class NamedData:
    """The data of a run, with sentences on how they were read."""

    name: str
    notes: list[str]


@dataclass(frozen=True)
class RelaxSchedule:
    """Settings that say why no step on the prior precisions was taken."""

    epochs: float
    burn_in: float
    update_every: float


@dataclass(frozen=True)
class Hardened:
    """The network without the pathways that were switched off."""

    num_parameters: float
    test_accuracy: float


@dataclass(frozen=True)
class Relaxed(Head):
    """`isotropy relax`; hyper_steps: steps on the prior precisions."""

    command_line: str
    data: NamedData
    train_examples: float
    test_examples: float
    pathways: list[str]
    width: float
    group: str
    objective: str
    config: RelaxSchedule
    hyper_steps: float
    num_parameters: float
    train_loss: float
    test_accuracy: float
    test_nll: float
    log_evidence: float
    log_evidence_per_example: float
    layers: list[RelaxedLayer]
    epochs: list[Epoch]
    hardened: Hardened
    notes: list[str]


# --- build and basis ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Built(Head):
    """`isotropy.build`; sentence: what was done, and why."""

    how: str
    exact: bool
    sentence: str
    num_parameters: float
    plain_parameters: float


@dataclass(frozen=True)
class Solved(Head):
    """`isotropy basis`; residual: the largest violation of a constraint."""

    group: str
    representation: str
    rank: float
    size: float
    method: str
    residual: float
