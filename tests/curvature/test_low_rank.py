"""Large factors by their largest eigenvalues: against the exact ones, with the error they state."""

from __future__ import annotations

import pytest
import torch
from network_cases import LIKELIHOODS, assert_equal
from numerics import central_slopes, numbers
from torch import Tensor, nn

import isotropy
from isotropy.curvature import low_rank
from isotropy.curvature.blocks import (
    DenseRoots,
    KroneckerFactors,
    KroneckerRoots,
    all_factors,
    all_spectra,
)
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.curvature.low_rank import LowRankGram, ThinPullback
from isotropy.data.readers import digits
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.evidence.predictive import covariance_root

SCALE, PRECISION = torch.tensor(1.5).double(), torch.tensor(0.7).double()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of more than 10 rows count as large, and 6 eigenvalues of them are kept."""
    monkeypatch.setattr(low_rank, "LARGEST_EXACT", 10)
    monkeypatch.setattr(low_rank, "RANK", 6)


def decaying(rows: int, size: int, seed: int = 0) -> Tensor:
    """A root whose singular values fall off."""
    turn = torch.linalg.qr(numbers(size, size, seed=seed + 1)).Q
    return numbers(rows, size, seed=seed) * torch.exp(-0.4 * torch.arange(size)) @ turn


def test_few_rows_are_exact(small_limits: None):
    root = numbers(2, 5, 12, seed=1)
    found = LowRankGram.of(root)
    assert not found.rest.any()
    assert_equal(found.dense(), root.mT @ root, "factor", 1e-10)


def test_factors_of_middle_size_are_exact(monkeypatch: pytest.MonkeyPatch):
    """Kept by their root while that is thin, written out from then on."""
    monkeypatch.setattr(low_rank, "THIN_FROM", 10)
    parts = [decaying(4, 12, seed=number)[None] for number in range(3)]
    sums = KroneckerRoots(parts[0], numbers(1, 4, 3, seed=9)).factors()
    kept = []
    for part in parts[1:]:
        kept.append(isinstance(sums.inputs, LowRankGram))
        sums = sums + KroneckerRoots(part, numbers(1, 4, 3, seed=9)).factors()
    assert kept == [True, False] and isinstance(sums.inputs, Tensor)
    root = torch.cat(parts, 1)
    assert_equal(sums.inputs, root.mT @ root, "factor", 1e-12)
    thin = KroneckerRoots(parts[0], numbers(1, 4, 3, seed=9)).factors()
    mine = thin.spectrum(4)
    exact = KroneckerFactors(parts[0].mT @ parts[0], thin.outputs).spectrum(4)
    assert_equal(mine.log_determinant(SCALE, PRECISION),
                 exact.log_determinant(SCALE, PRECISION), "log determinant", 1e-10)  # fmt: skip
    rows = numbers(1, 5, 12, seed=8)
    found, wanted = (
        low_rank.times(rows, each.pullback(SCALE, PRECISION)[0]) for each in (mine, exact)
    )
    assert_equal(found, wanted, "pullback", 1e-8)


def test_many_rows_keep_the_trace_and_lie_below(small_limits: None):
    root = decaying(40, 12)[None]
    gram = LowRankGram.of(root[:, :20]) + LowRankGram.of(root[:, 20:])
    exact = (root.mT @ root)[0]
    found = gram.dense()[0]
    assert_equal(found.trace(), exact.trace(), "trace", 1e-10)
    compressed = gram.compressed().root[0]
    below = torch.linalg.eigvalsh(exact - compressed.mT @ compressed)
    assert below.min() > -1e-10 * exact.trace()
    largest = torch.linalg.eigvalsh(exact).flip(0)[:3]
    assert_equal(torch.linalg.eigvalsh(found).flip(0)[:3], largest, "largest", 1e-3)


def spectra(root: Tensor, outputs: Tensor) -> tuple[KroneckerFactors, KroneckerFactors]:
    exact = KroneckerFactors(root.mT @ root, outputs.mT @ outputs)
    found = KroneckerRoots(root, outputs).factors()
    return found, exact


def test_log_determinants_are_within_the_gap(small_limits: None):
    found, exact = spectra(decaying(40, 12)[None], numbers(1, 9, 4, seed=3))
    assert isinstance(found.inputs, LowRankGram) and isinstance(found.outputs, Tensor)
    mine, its = found.spectrum(40), exact.spectrum(40)
    value, true = (each.log_determinant(SCALE, PRECISION) for each in (mine, its))
    gap = mine.log_determinant_gap(SCALE, PRECISION)
    assert 0 <= value - true <= gap
    assert gap < 0.05 * true.abs()
    only = found.spectrum(40, values_only=True).log_determinant(SCALE, PRECISION)
    assert_equal(only, value, "values alone", 1e-12)
    assert not its.log_determinant_gap(SCALE, PRECISION)


def test_pullbacks_are_those_of_the_matrix_that_is_kept(small_limits: None):
    found, _ = spectra(decaying(40, 12)[None], decaying(30, 11, seed=5)[None])
    written_out = KroneckerFactors(found.inputs.dense(), found.outputs.dense())  # type: ignore[union-attr]
    rows = {12: numbers(1, 5, 12, seed=8), 11: numbers(1, 5, 11, seed=8)}
    for mine, its in zip(
        found.spectrum(40).pullback(SCALE, PRECISION),
        written_out.spectrum(40).pullback(SCALE, PRECISION),
        strict=True,
    ):
        assert isinstance(mine, ThinPullback) and isinstance(its, Tensor)
        root = rows[its.shape[-1]]
        assert_equal(low_rank.times(root, mine), root @ its, "pullback", 1e-8)


def test_a_bias_shares_what_its_weight_has(small_limits: None):
    outputs = decaying(30, 11)
    roots = {
        "weight": KroneckerRoots(numbers(1, 30, 3, seed=2), outputs[None]),
        "bias": DenseRoots(outputs, output_of="weight"),
    }
    found = all_spectra(all_factors(roots), 30)
    alone = all_spectra(all_factors({"bias": DenseRoots(outputs)}), 30)
    assert_equal(found["bias"].log_determinant(SCALE, PRECISION),
                 alone["bias"].log_determinant(SCALE, PRECISION), "bias", 1e-10)  # fmt: skip
    (pullback,) = found["bias"].pullback(SCALE, PRECISION)  # type: ignore[union-attr]
    _, of_outputs = found["weight"].pullback(SCALE, PRECISION)  # type: ignore[union-attr]
    both = of_outputs + pullback
    expected = low_rank.times(outputs, of_outputs) + low_rank.times(outputs, pullback)
    assert_equal(low_rank.times(outputs, both), expected, "sum", 1e-12)


def test_the_posterior_covariance_is_that_of_the_matrix_that_is_kept(small_limits: None):
    found, _ = spectra(decaying(40, 12)[None], numbers(1, 9, 4, seed=3))
    root = covariance_root(found.spectrum(40), SCALE, PRECISION)
    rows = numbers(5, 48, seed=4)
    half = root(rows)
    precision = SCALE * found.dense(40)[0] + PRECISION * torch.eye(48).double()
    assert_equal(half @ half.mT, rows @ torch.linalg.inv(precision) @ rows.mT, "covariance", 1e-8)


def test_the_gradient_of_the_evidence(small_limits: None):
    """Few rows, so that nothing is left out: the derivative of the value, by differences."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(12, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    chosen, data = LIKELIHOODS["categorical"], numbers(8, 12, seed=1)
    targets, kfac = chosen.targets(4), KFAC(network)
    prior = GaussianPrior(network, kfac.parameter_names, "tensor", 0.5)
    evidence = LaplaceEvidence(network, chosen.build(), prior, kfac)
    amount = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def batch() -> Batch:
        return Batch(data * (1 + amount * data.cos()), targets, Copies(2))

    fit = evidence.fit([batch()])
    assert evidence.largest_error(fit) == pytest.approx(0, abs=1e-12)
    (found,) = evidence.gradient(fit, [batch()], [amount])
    slope = central_slopes(lambda: evidence.value(evidence.fit([batch()])), amount)
    assert_equal(found, -slope, "gradient", 1e-6)


@pytest.mark.slow
def test_on_the_embedded_digits(monkeypatch: pytest.MonkeyPatch):
    """Evidence within 0.1 %, learned ranges within 2 degrees of those with exact factors."""
    train = digits().train.subset(500, 0)
    config = isotropy.LearnConfig(epochs=8, samples=5, search=False, test_samples=4)
    found = {}
    for limit in (low_rank.LARGEST_EXACT, 400):
        monkeypatch.setattr(low_rank, "LARGEST_EXACT", limit)
        monkeypatch.setattr(low_rank, "RANK", 128)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = nn.Sequential(nn.Flatten(), nn.Linear(784, 50), nn.Tanh(), nn.Linear(50, 10))
        result = isotropy.learn(
            network, train, actions=isotropy.affine(("rotation",)), config=config
        )
        found[limit] = result.record["evidence"], result.symmetries[0].high
    (exact, angle), (mine, other) = found.values()
    assert exact["error"] == 0.0 < mine["error"]
    assert abs(mine["nats"] - exact["nats"]) < 1e-3 * abs(exact["nats"])
    assert abs(other - angle) < 2.0
