"""Predictions of examples left out: conditioned on all others, scipy's search, scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal, norm

from isotropy.evidence.laplace import NotFiniteError
from isotropy.evidence.search.kernel_evidence import KernelFit, constant_log_predictive, fit_kernel

Array = NDArray[np.float64]

EXAMPLES, OTHERS = 16, 5
LENGTH = 0.8


def smooth(first: Array, second: Array) -> Array:
    return np.exp(-cdist(first, second, "sqeuclidean") / (2 * LENGTH**2))


def linear(first: Array, second: Array) -> Array:
    """Of rank two, so that most eigenvalues are zero."""
    return 40 * first @ second.T


KERNELS = {"smooth": smooth, "linear": linear}
CASES = {
    "smooth": ("smooth", 0.3, 2),
    "one output": ("smooth", 0.3, 1),
    "much noise": ("smooth", 1.0, 3),
    "low rank": ("linear", 1.0, 2),
}


@dataclass(frozen=True)
class Problem:
    """Inputs, kernel and centred targets of examples; of others, the kernel to them and its own."""

    inputs: Array
    kernel: Array
    targets: Array
    between: Array
    own: Array
    other_inputs: Array
    other_targets: Array

    def fit(self, least_noise: float = 0.0) -> KernelFit:
        return fit_of(self.kernel, self.targets, least_noise)

    def log_density(self, fit: KernelFit, size: float = 1.0) -> float:
        """Of the others, where the kernel is `size` times as large."""
        given = (size * self.between, size * self.own, self.other_targets)
        return fit.log_density(*map(torch.tensor, given))


def problem(case: str) -> Problem:
    name, noise, outputs = CASES[case]
    random = np.random.default_rng(0)
    inputs = random.uniform(-1.5, 1.5, (EXAMPLES + OTHERS, 2))
    whole = KERNELS[name](inputs, inputs)
    values, vectors = np.linalg.eigh(whole)
    root = vectors * np.sqrt(values.clip(0))
    targets = root @ random.standard_normal((len(root), outputs))
    targets = targets + noise * random.standard_normal(targets.shape)
    targets = targets - targets[:EXAMPLES].mean(0)
    return Problem(
        inputs[:EXAMPLES],
        whole[:EXAMPLES, :EXAMPLES],
        targets[:EXAMPLES],
        whole[EXAMPLES:, :EXAMPLES],
        whole.diagonal()[EXAMPLES:],
        inputs[EXAMPLES:],
        targets[EXAMPLES:],
    )


def fit_of(kernel: Array, targets: Array, least_noise: float = 0.0) -> KernelFit:
    return fit_kernel(torch.tensor(kernel), torch.tensor(targets), least_noise)


def dense_log_evidence(kernel: Array, targets: Array, ratio: float, noise: float) -> float:
    covariance = noise * (np.eye(len(kernel)) + ratio * kernel)
    return float(sum(multivariate_normal.logpdf(column, cov=covariance) for column in targets.T))


def left_out(kernel: Array, targets: Array, ratio: float, noise: float) -> Array:
    """log p(y_n | all others) (examples,): the normal density conditioned on each one's others."""
    covariance = noise * (np.eye(len(kernel)) + ratio * kernel)
    found = []
    for n in range(len(kernel)):
        rest = np.delete(np.arange(len(kernel)), n)
        slopes = np.linalg.solve(covariance[np.ix_(rest, rest)], covariance[rest, n])
        deviation = np.sqrt(covariance[n, n] - slopes @ covariance[rest, n])
        found.append(norm.logpdf(targets[n], slopes @ targets[rest], deviation).sum())
    return np.array(found)


def left_out_sum(kernel: Array, targets: Array, ratio: float, noise: float) -> float:
    return float(left_out(kernel, targets, ratio, noise).sum())


Criterion = Callable[[Array, Array, float, float], float]


def best_of(
    criterion: Criterion, kernel: Array, targets: Array, least_noise: float = 1e-9
) -> float:
    """The largest over both parameters, from several starts."""

    def loss(logs: Array) -> float:
        return -criterion(kernel, targets, *np.exp(logs))

    bounds = [(-12.0, 12.0), (math.log(least_noise), 12.0)]
    starts = [(log_ratio, max(-1.0, bounds[1][0])) for log_ratio in (-3.0, 3.0)]
    found = [minimize(loss, start, method="Nelder-Mead", bounds=bounds) for start in starts]
    return -min(float(each.fun) for each in found)


# --- examples that are left out -------------------------------------------------------------------


@pytest.mark.parametrize("least_noise", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("case", CASES)
def test_each_example_is_predicted_from_all_others(case: str, least_noise: float) -> None:
    given = problem(case)
    fit = given.fit(least_noise)
    expected = left_out(given.kernel, given.targets, fit.ratio, fit.noise)
    assert fit.densities.shape == (EXAMPLES,) and fit.densities.dtype == torch.float64
    np.testing.assert_allclose(fit.densities.numpy(), expected, rtol=1e-8, atol=1e-8)
    assert fit.log_predictive == pytest.approx(expected.sum(), rel=1e-9)
    assert fit.log_predictive == pytest.approx(float(fit.densities.sum()), rel=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_no_other_scale_and_noise_does_better(case: str) -> None:
    given = problem(case)
    kernel, targets, fit = given.kernel, given.targets, given.fit()
    for ratio in fit.ratio * np.logspace(-3, 3, 7):
        for noise in fit.noise * np.logspace(-2, 2, 5):
            assert left_out_sum(kernel, targets, ratio, noise) < fit.log_predictive + 1e-5
    expected = best_of(left_out_sum, kernel, targets)
    assert fit.log_predictive == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("case", "share"), [("smooth", 2.0), ("much noise", 10.0), ("low rank", 2.0)]
)
def test_noise_is_never_below_the_least(case: str, share: float) -> None:
    """share: the least noise, of the best."""
    given = problem(case)
    free = given.fit()
    bound = given.fit(share * free.noise)
    assert bound.noise >= share * free.noise and bound.log_predictive < free.log_predictive
    expected = best_of(left_out_sum, given.kernel, given.targets, share * free.noise)
    assert bound.log_predictive == pytest.approx(expected, abs=1e-4)
    below = given.fit(0.5 * free.noise)
    assert below.log_predictive == pytest.approx(free.log_predictive, rel=1e-12)
    assert (below.noise, below.ratio) == pytest.approx((free.noise, free.ratio), rel=1e-3)


@pytest.mark.parametrize("least_noise", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_the_size_of_the_kernel_changes_the_ratio_alone(case: str, least_noise: float) -> None:
    given = problem(case)
    factor = 2.0**10
    fit, scaled = given.fit(least_noise), fit_of(factor * given.kernel, given.targets, least_noise)
    assert scaled.log_predictive == pytest.approx(fit.log_predictive, rel=1e-12)
    assert scaled.log_evidence == pytest.approx(fit.log_evidence, rel=1e-12)
    assert scaled.noise == pytest.approx(fit.noise, rel=1e-9)
    assert scaled.ratio == pytest.approx(fit.ratio / factor, rel=1e-9)
    torch.testing.assert_close(scaled.densities, fit.densities, rtol=1e-9, atol=1e-9)
    # μ = k α: weights shrink as the ratio does
    torch.testing.assert_close(factor * scaled.weights, fit.weights, rtol=1e-9, atol=1e-9)
    found = given.log_density(scaled, factor)
    assert found == pytest.approx(given.log_density(fit), rel=1e-9)


def test_it_is_computed_in_float64() -> None:
    """A kernel in float32 gives what it gives in float64; rounding has made it asymmetric."""
    given = problem("smooth")
    single = torch.tensor(given.kernel).float()
    single[0, 1] *= 1 + 1e-6
    fit, expected = fit_kernel(single, torch.tensor(given.targets).float()), given.fit()
    assert fit.weights.dtype == torch.float64
    assert fit.log_predictive == pytest.approx(expected.log_predictive, abs=1e-3)
    assert fit.log_evidence == pytest.approx(expected.log_evidence, abs=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_gives_the_same() -> None:
    given = problem("smooth")
    fit = fit_kernel(torch.tensor(given.kernel).cuda(), torch.tensor(given.targets).cuda())
    assert fit.densities.is_cuda
    assert fit.log_predictive == pytest.approx(given.fit().log_predictive, rel=1e-9)


def test_without_a_kernel_it_is_a_constant() -> None:
    targets = problem("much noise").targets
    found = constant_log_predictive(torch.tensor(targets))
    deviation = np.sqrt((targets**2).mean())
    assert found == pytest.approx(norm.logpdf(targets, 0, deviation).sum(), rel=1e-12)
    nothing = np.zeros((EXAMPLES, EXAMPLES))
    for criterion in (left_out_sum, dense_log_evidence):
        assert found == pytest.approx(criterion(nothing, targets, 1.0, deviation**2), rel=1e-12)


def test_targets_that_the_kernel_cannot_explain_leave_the_constant() -> None:
    """The best ratio is zero, which the smallest that is tried comes close to."""
    kernel = np.eye(EXAMPLES)
    kernel[1:, 1:] = 0
    targets = np.random.default_rng(0).standard_normal((EXAMPLES, 1))
    targets[0] = 0
    fit, constant = fit_of(kernel, targets), constant_log_predictive(torch.tensor(targets))
    assert fit.ratio < 1e-3
    assert (fit.log_predictive, fit.log_evidence) == pytest.approx((constant, constant), abs=1e-3)


BAD = {
    "zero": lambda kernel: 0 * kernel,
    "a NaN": lambda kernel: np.where(np.eye(EXAMPLES) > 0, np.nan, kernel),
    "a NaN beside the diagonal": lambda kernel: np.where(kernel < kernel.max(), np.nan, kernel),
    "infinite": lambda kernel: np.inf * kernel,
    "one infinite entry": lambda kernel: np.where(kernel == kernel.min(), np.inf, kernel),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_kernels_that_say_nothing_are_refused(spoil) -> None:
    given = problem("smooth")
    with pytest.raises(NotFiniteError, match="16 examples .* expected a finite number above zero"):
        fit_of(spoil(given.kernel), given.targets)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("value", [0.0, 1e-12])
def test_targets_that_do_not_vary_are_refused(value: float, noise: float) -> None:
    """But for rounding; a constant explains them without end."""
    targets = torch.full((EXAMPLES, 2), value, dtype=torch.float64)
    assert constant_log_predictive(targets) == np.inf
    with pytest.raises(NotFiniteError, match="nothing to learn"):
        fit_kernel(torch.eye(EXAMPLES), targets, noise)


# --- log Z ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 2.0])
@pytest.mark.parametrize("case", CASES)
def test_the_evidence_is_the_largest_density_of_all_targets(case: str, share: float) -> None:
    """At a scale and noise of its own; share: the least noise, of that of examples left out."""
    given = problem(case)
    least = share * given.fit().noise
    fit = given.fit(least)
    expected = best_of(dense_log_evidence, given.kernel, given.targets, least or 1e-9)
    assert fit.log_evidence == pytest.approx(expected, abs=1e-4)
    at_others = dense_log_evidence(given.kernel, given.targets, fit.ratio, fit.noise)
    assert at_others < fit.log_evidence + 1e-5


@pytest.mark.parametrize("case", ["smooth", "one output", "much noise"])
def test_it_is_that_of_scikit_learn(case: str) -> None:
    gaussian_process = pytest.importorskip("sklearn.gaussian_process")
    kernels = gaussian_process.kernels
    given, wide = problem(case), (1e-4, 1e4)
    model = gaussian_process.GaussianProcessRegressor(
        kernels.ConstantKernel(1.0, wide) * kernels.RBF(LENGTH, "fixed")
        + kernels.WhiteKernel(0.1, wide),
        alpha=0.0,
        n_restarts_optimizer=2,
        random_state=0,
    ).fit(given.inputs, given.targets)
    expected = model.log_marginal_likelihood_value_
    assert given.fit().log_evidence == pytest.approx(expected, abs=1e-4)


def test_it_may_prefer_another_kernel() -> None:
    """One feature that says most, or thirty that say all: these pay once there are examples enough.

    log Z counts the first examples as well, which thirty weights are not known from.
    """
    random = np.random.default_rng(0)
    features = random.standard_normal((560, 30))
    weights = np.append(1.0, np.full(29, 0.2 / math.sqrt(29)))
    targets = (features @ weights + 0.05 * random.standard_normal(560))[:, None]
    targets = targets - targets[:60].mean()
    fits, scores = [], []
    for used in (features, features[:, :1]):
        own, others = used[:60], used[60:]
        fits.append(fit_of(own @ own.T, targets[:60]))
        given = (others @ own.T, (others**2).sum(1), targets[60:])
        scores.append(fits[-1].log_density(*map(torch.tensor, given)))
    every, one = fits
    assert every.log_predictive > one.log_predictive + 10
    assert every.log_evidence < one.log_evidence - 10
    assert scores[0] > scores[1] + 0.1, "examples left out tell which predicts others better"


# --- other examples -------------------------------------------------------------------------------


@pytest.mark.parametrize("least_noise", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_density_of_other_examples(case: str, least_noise: float) -> None:
    """p(y* | y) = p(y, y*) / p(y), each of the others by itself."""
    given = problem(case)
    kernel, targets, fit = given.kernel, given.targets, given.fit(least_noise)
    alone = dense_log_evidence(kernel, targets, fit.ratio, fit.noise)
    expected = []
    for row, own, target in zip(given.between, given.own, given.other_targets, strict=True):
        both = np.block([[kernel, row[:, None]], [row[None], np.array([[own]])]])
        joint = dense_log_evidence(both, np.vstack([targets, target]), fit.ratio, fit.noise)
        expected.append(joint - alone)
    assert given.log_density(fit) == pytest.approx(np.mean(expected), rel=1e-8)
