"""Whether predicted probabilities are as often right as they say.

For probabilities p_n over classes and true classes y_n, with confidence max_c p_nc and B bins of
equal width over [0, 1], the b-th being ((b − 1)/B, b/B]:

    accuracy                     (1/N) Σ_n [argmax p_n = y_n]
    log likelihood               (1/N) Σ_n log p_n,y_n                       in nats, at most 0
    Brier score                  (1/N) Σ_n Σ_c (p_nc − [c = y_n])²           between 0 and 2
    expected calibration error   Σ_b (|B_b|/N) |accuracy(B_b) − confidence(B_b)|

(Brier 1950; Guo et al. 2017.) The first three score each prediction, log likelihood and Brier
score properly: no probabilities do better on average than the true ones. The last one asks only
whether confidence is justified on average within a bin, depends on the bins, and is biased upwards
for few examples; a constant guess can have it zero. Axes: probabilities (examples, classes).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isotropy.checks import CallerError, check_at_least, check_axes, check_finite, shape_text

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class CalibrationBin:
    """One bar of a reliability diagram: predictions with a confidence in (low, high].

    confidence, accuracy: means over the bin's `count` predictions; None in an empty one.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """Scores of probabilistic predictions (formulas above), and the bins from low to high."""

    examples: int
    accuracy: float
    log_likelihood: float
    brier_score: float
    expected_calibration_error: float
    bins: tuple[CalibrationBin, ...]

    def as_dict(self) -> dict[str, Any]:
        """For records: plain numbers, lists and dictionaries."""
        return {**asdict(self), "bins": [asdict(each) for each in self.bins]}


@torch.no_grad()
def calibration(probabilities: Tensor, targets: Tensor, bins: int = 15) -> Calibration:
    """Scores of probabilities (examples, classes) against class labels (examples,).

    The log likelihood is −∞ if a true class was given probability zero. Raises CallerError for
    rows that are no probabilities and labels that are no classes. Oracle: cases by hand,
    tests/evidence/test_calibration.py.
    """
    _check(probabilities, targets)
    check_at_least(bins, 1, what="bins")
    p, targets = probabilities.double(), targets.long()
    true = functional.one_hot(targets, p.shape[1]).to(p)
    confidence, predicted = p.max(1)
    hits = (predicted == targets).to(p)
    edges = torch.linspace(0, 1, bins + 1, dtype=p.dtype, device=p.device)
    # Inner edges only: what rounding puts outside [0, 1] belongs to the first or the last bin.
    index = torch.bucketize(confidence, edges[1:-1])
    counts = torch.bincount(index, minlength=bins)
    in_bins = torch.stack([confidence, hits], 1)
    sums = p.new_zeros(bins, 2).index_add_(0, index, in_bins)
    error = (sums[:, 0] - sums[:, 1]).abs().sum() / len(p)
    return Calibration(
        examples=len(p),
        accuracy=float(hits.mean()),
        log_likelihood=float(p.gather(1, targets[:, None]).log().mean()),
        brier_score=float((p - true).square().sum(1).mean()),
        expected_calibration_error=float(error),
        bins=tuple(
            CalibrationBin(
                low=float(edges[b]),
                high=float(edges[b + 1]),
                count=count,
                confidence=float(sums[b, 0]) / count if count else None,
                accuracy=float(sums[b, 1]) / count if count else None,
            )
            for b, count in enumerate(counts.tolist())
        ),
    )


def _check(probabilities: Tensor, targets: Tensor) -> None:
    check_axes(probabilities, ("examples", "classes"), what="probabilities")
    if not probabilities.is_floating_point() or not len(probabilities):
        raise CallerError(
            f"probabilities: expected numbers for at least one example, got {probabilities.dtype} "
            f"{shape_text(probabilities)}"
        )
    check_finite(probabilities, what="probabilities")
    sums = probabilities.double().sum(1)
    if float(probabilities.min()) < 0 or float((sums - 1).abs().max()) > _SUM_TOLERANCE:
        raise CallerError(
            "probabilities: expected rows of numbers from 0 that sum to 1, got the smallest "
            f"{float(probabilities.min()):.4g} and sums from {float(sums.min()):.4g} to "
            f"{float(sums.max()):.4g}; take softmax(-1) of logits first"
        )
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if not whole or targets.shape != probabilities.shape[:1]:
        raise CallerError(
            f"targets: expected whole-number class labels ({len(probabilities)},), got "
            f"{targets.dtype} {shape_text(targets)}"
        )
    classes, low, high = probabilities.shape[1], int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise CallerError(
            f"labels: expected 0 to {classes - 1} for {classes} columns of probabilities, got "
            f"{low} to {high}"
        )
