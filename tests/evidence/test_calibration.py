"""Scores of probabilities against cases by hand, and their bounds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.evidence.predictive import calibration


def test_by_hand() -> None:
    probabilities = torch.tensor(
        [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.9, 0.1, 0.0]], dtype=torch.float64
    )
    found = calibration(probabilities, torch.tensor([0, 2, 2, 0]), bins=2)
    assert found.examples == 4
    assert found.accuracy == pytest.approx(3 / 4)
    assert found.log_likelihood == pytest.approx(
        (math.log(0.7) + math.log(0.1) + math.log(0.4) + math.log(0.9)) / 4
    )
    brier = (0.09 + 0.04 + 0.01) + (0.01 + 0.64 + 0.81) + (0.09 + 0.09 + 0.36) + (0.01 + 0.01)
    assert found.brier_score == pytest.approx(brier / 4)
    # Below a half: one prediction, right, confidence 0.4. Above: 2 of 3 right, confidence 0.8.
    low, high = found.bins
    assert (low.low, low.high, low.count) == (0.0, 0.5, 1)
    assert (high.low, high.high, high.count) == (0.5, 1.0, 3)
    assert (low.confidence, low.accuracy) == pytest.approx((0.4, 1.0))
    assert (high.confidence, high.accuracy) == pytest.approx((0.8, 2 / 3))
    assert found.expected_calibration_error == pytest.approx(0.25 * 0.6 + 0.75 * (0.8 - 2 / 3))


def with_confidence(confidence: float, right: int, count: int) -> tuple[Tensor, Tensor]:
    """Two classes, class 0 predicted with this confidence, and right so many times."""
    p = torch.tensor([confidence, 1 - confidence], dtype=torch.float64).expand(count, 2)
    return p, (torch.arange(count) >= right).long()


def test_perfectly_calibrated_predictions() -> None:
    parts = [with_confidence(k / 20, k, 20) for k in range(11, 21)]
    probabilities, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    for bins in (1, 4, 15):
        found = calibration(probabilities, targets, bins)
        assert found.expected_calibration_error == pytest.approx(0, abs=1e-12)
    wrong = calibration(*with_confidence(0.9, 12, 20))
    assert wrong.expected_calibration_error == pytest.approx(0.9 - 12 / 20)


def test_bins_are_closed_above() -> None:
    """A confidence on an edge belongs to the bin below it."""
    for bins, confidence, expected in [(4, 0.5, 1), (4, 0.75, 2), (4, 1.0, 3), (10, 0.6, 5)]:
        found = calibration(*with_confidence(confidence, 1, 1), bins=bins)
        assert [each.count for each in found.bins].index(1) == expected
    with pytest.raises(CallerError, match="bins: expected at least 1, got 0"):
        calibration(*with_confidence(0.9, 1, 1), bins=0)
    assert [each.confidence for each in calibration(*with_confidence(0.9, 1, 1), bins=2).bins] == [
        None,
        0.9,
    ]


def test_certain_predictions() -> None:
    certain = torch.eye(3)
    right = calibration(certain, torch.arange(3))
    assert (right.accuracy, right.log_likelihood, right.brier_score) == (1.0, 0.0, 0.0)
    assert right.expected_calibration_error == 0.0
    wrong = calibration(certain, (torch.arange(3) + 1) % 3)
    assert (wrong.accuracy, wrong.log_likelihood, wrong.brier_score) == (0.0, -math.inf, 2.0)
    assert wrong.expected_calibration_error == 1.0


@given(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(2, 6),
    st.integers(1, 20),
    st.floats(0, 9),
)
def test_bounds_and_bins(seed: int, count: int, classes: int, bins: int, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(count, classes, generator=generator)
    targets = torch.randint(classes, (count,), generator=generator)
    found = calibration(logits.softmax(-1), targets, bins)
    assert 0 <= found.expected_calibration_error <= 1 and 0 <= found.brier_score <= 2
    assert found.log_likelihood <= 1e-6 and 0 <= found.accuracy <= 1
    assert found.log_likelihood == pytest.approx(
        -float(torch.nn.functional.cross_entropy(logits.double(), targets)), rel=1e-4, abs=1e-5
    )
    assert sum(each.count for each in found.bins) == count
    filled = [each for each in found.bins if each.count]
    assert all(each.low < each.confidence <= each.high + 1e-6 for each in filled)
    mean = np.average([each.accuracy for each in filled], weights=[b.count for b in filled])
    assert mean == pytest.approx(found.accuracy)
    # One bin averages over all; finer ones can only find more.
    overall = abs(float(logits.softmax(-1).amax(1).double().mean()) - found.accuracy)
    assert found.expected_calibration_error >= overall - 1e-9
    assert [b.low for b in found.bins[1:]] == [b.high for b in found.bins[:-1]]
    assert (found.bins[0].low, found.bins[-1].high) == (0.0, 1.0)


def test_record_is_plain_json() -> None:
    found = calibration(torch.full((4, 2), 0.5), torch.tensor([0, 1, 0, 1], dtype=torch.int32))
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
    assert found.as_dict()["bins"][7]["count"] == 4


GOOD = torch.full((3, 2), 0.5)
LABELS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("probabilities", "targets", "message"),
    [
        (GOOD[0], LABELS, r"expected \(examples, classes\), got \(2\)"),
        (GOOD[:0], LABELS[:0], "at least one example"),
        (GOOD.log(), LABELS, r"sum to 1, got the smallest -0.6931 .* softmax\(-1\)"),
        (1.1 * GOOD, LABELS, "sums from 1.1 to 1.1"),
        (GOOD * math.nan, LABELS, "expected finite numbers"),
        (GOOD.long(), LABELS, "got torch.int64"),
        (GOOD, LABELS[:2], r"class labels \(3,\), got torch.int64 \(2\)"),
        (GOOD, LABELS.float(), "got torch.float32"),
        (GOOD, LABELS + 1, "expected 0 to 1 for 2 columns of probabilities, got 1 to 2"),
        (GOOD, LABELS - 1, "got -1 to 0"),
    ],
)
def test_mistakes_are_named(probabilities: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        calibration(probabilities, targets)
