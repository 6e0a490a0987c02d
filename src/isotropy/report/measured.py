"""The record of `measure`: what symmetry trained networks have, as dataclasses that reports read.

How a record becomes these, and what stands for a missing part, is in `record`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isotropy.report.record import Head, read


@dataclass(frozen=True)
class Contribution:
    """One operation of a network: its contribution to an error, and its share of the whole.

    eq_t: its own error under shifts by whole pixels, NaN where there is none
    """

    name: str
    kind: str
    norm: float
    norm_error: float
    share: float
    eq_t: float
    eq_t_error: float
    judged_at: str

    @property
    def text(self) -> str:
        """`features.3` (MaxPool2d), the name in backticks; alone where it is the kind."""
        name = f"`{self.name or 'unnamed'}`"
        return f"{name} ({self.kind})" if self.kind not in ("", self.name) else name


@dataclass(frozen=True)
class Moved:
    """What finite amounts, or single elements (`what`), do to the output.

    inconsistency: the part of predictions that change; decibel: of the metrics of Karras et al.
    """

    name: str
    what: str
    amounts: str
    remark: str
    error: float
    standard_error: float
    resampling_floor: float
    inconsistency: float
    inconsistency_standard_error: float
    decibel: float


@dataclass(frozen=True)
class Attribution:
    """How contributions were computed; closure: by how much they miss the whole, relatively."""

    method: str
    probes: float
    closure: float


@dataclass(frozen=True)
class MeasuredAction:
    """The local error under one transformation, and the operations that it comes from."""

    name: str
    unit: str
    error: float
    standard_error: float
    resampling_floor: float
    remark: str
    attribution: Attribution
    layers: list[Contribution]
    finite: Moved

    @property
    def is_within_floor(self) -> bool:
        """Whether the error is no more than resampling alone makes, up to rounding.

        Standard errors grant nothing: an error that few examples cannot tell from its floor is not
        for that reason as small as its floor.
        """
        return self.resampling_floor > 0 and self.error <= 1.01 * self.resampling_floor

    @property
    def culprit(self) -> Contribution | None:
        """The operation with the largest share; None where there is none above zero."""
        above = [layer for layer in self.layers if layer.share > 0]
        return max(above, key=lambda layer: layer.share, default=None)

    def largest(self, count: int) -> list[int]:
        """Positions of the largest shares by size, or of norms where no share is known."""
        shares = [abs(layer.share) for layer in self.layers]
        if not any(map(math.isfinite, shares)):
            shares = [layer.norm for layer in self.layers]
        above = [index for index, size in enumerate(shares) if size > 0]
        return sorted(above, key=lambda index: -shares[index])[:count]


@dataclass(frozen=True)
class TranslationMetrics:
    """EQ-T and EQ-T frac of Karras et al. (2021); range: the largest shift, of the width."""

    range: float
    eq_t: Moved
    eq_t_frac: Moved


@dataclass(frozen=True)
class MeasuredEntry:
    """One network on one data set."""

    model: str
    data: str
    data_name: str
    examples: float
    parameters: float
    accuracy: float
    output: str
    output_dimension: float
    actions: list[MeasuredAction]
    exact: list[Moved]
    translation_metrics: TranslationMetrics
    remarks: list[str]

    @property
    def measured(self) -> list[MeasuredAction]:
        """The transformations with a local error."""
        return [action for action in self.actions if math.isfinite(action.error)]

    def action(self, name: str) -> MeasuredAction:
        """The row of one transformation; empty where the entry has none."""
        own = (action for action in self.actions if action.name == name)
        return next(own, read(MeasuredAction, {}))


@dataclass(frozen=True)
class Difference:
    """Between the errors on two data sets (a gap, of a model) or of two models (a drift)."""

    model: str
    data: str
    action: str
    from_: str
    to: str
    difference: float
    standard_error: float


@dataclass(frozen=True)
class Measured(Head):
    """`isotropy measure`."""

    on: str
    interpolation: str
    padding: str
    entries: list[MeasuredEntry]
    gaps: list[Difference]
    drifts: list[Difference]

    @property
    def action_names(self) -> list[str]:
        """Names of all transformations with a local error, in order of first appearance."""
        return list(dict.fromkeys(a.name for entry in self.entries for a in entry.measured))

    @property
    def has_several_models(self) -> bool:
        """Whether networks are compared, and not one network on several data sets."""
        return len({entry.model for entry in self.entries}) > 1

    def name_of(self, entry: MeasuredEntry) -> str:
        """The model's label, that of the data where there is one model, or both: `cnn on test`."""
        model, has_several = entry.model or "the model", len({e.data for e in self.entries}) > 1
        if not has_several or not entry.data:
            return model
        return f"{model} on {entry.data}" if self.has_several_models else entry.data
