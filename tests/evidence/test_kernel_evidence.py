"""Evidence of a Gaussian process: dense normal densities, scipy's search, scikit-learn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal, norm

from isotropy.evidence.kernel_evidence import KernelFit, constant_log_evidence, fit_kernel
from isotropy.evidence.laplace import NotFiniteError

Array = NDArray[np.float64]

EXAMPLES, OTHERS = 25, 9
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


def best_log_evidence(kernel: Array, targets: Array, least_noise: float = 1e-9) -> float:
    """The largest over both parameters, from several starts."""

    def loss(logs: Array) -> float:
        return -dense_log_evidence(kernel, targets, *np.exp(logs))

    bounds = [(-12.0, 12.0), (math.log(least_noise), 12.0)]
    starts = [(log_ratio, max(-1.0, bounds[1][0])) for log_ratio in (-4.0, 0.0, 4.0)]
    found = [minimize(loss, start, method="Nelder-Mead", bounds=bounds) for start in starts]
    return -min(float(each.fun) for each in found)


# --- log Z ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("least_noise", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_density_of_all_targets(case: str, least_noise: float) -> None:
    given = problem(case)
    fit = given.fit(least_noise)
    expected = dense_log_evidence(given.kernel, given.targets, fit.ratio, fit.noise)
    assert fit.log_evidence == pytest.approx(expected, rel=1e-9)
    assert fit.shares.shape == (EXAMPLES,) and fit.shares.dtype == torch.float64


@pytest.mark.parametrize("case", CASES)
def test_no_other_scale_and_noise_does_better(case: str) -> None:
    given = problem(case)
    kernel, targets, fit = given.kernel, given.targets, given.fit()
    for ratio in fit.ratio * np.logspace(-3, 3, 25):
        for noise in fit.noise * np.logspace(-2, 2, 25):
            assert dense_log_evidence(kernel, targets, ratio, noise) < fit.log_evidence + 1e-8
    assert fit.log_evidence == pytest.approx(best_log_evidence(kernel, targets), abs=1e-5)


@pytest.mark.parametrize("case", ["smooth", "one output", "much noise"])
def test_it_is_that_of_scikit_learn(case: str) -> None:
    gaussian_process = pytest.importorskip("sklearn.gaussian_process")
    kernels = gaussian_process.kernels
    given = problem(case)
    wide = (1e-4, 1e4)
    model = gaussian_process.GaussianProcessRegressor(
        kernels.ConstantKernel(1.0, wide) * kernels.RBF(LENGTH, "fixed")
        + kernels.WhiteKernel(0.1, wide),
        alpha=0.0,
        n_restarts_optimizer=2,
        random_state=0,
    ).fit(given.inputs, given.targets)
    fit = given.fit()
    assert fit.log_evidence == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-6)
    scale, noise = np.exp(model.kernel_.theta)
    assert (fit.noise, fit.ratio) == pytest.approx((noise, scale / noise), rel=1e-2)
    mean, deviation = (
        each.reshape(OTHERS, -1) for each in model.predict(given.other_inputs, return_std=True)
    )
    expected = norm.logpdf(given.other_targets, mean, deviation).sum(1).mean()
    assert given.log_density(fit) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("share", [2.0, 10.0])
@pytest.mark.parametrize("case", CASES)
def test_noise_is_never_below_the_least(case: str, share: float) -> None:
    """share: the least noise, of the best."""
    given = problem(case)
    free = given.fit()
    bound = given.fit(share * free.noise)
    assert bound.noise >= share * free.noise and bound.log_evidence < free.log_evidence
    expected = best_log_evidence(given.kernel, given.targets, share * free.noise)
    assert bound.log_evidence == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_least_noise_below_the_best_changes_nothing(case: str) -> None:
    given = problem(case)
    free = given.fit()
    bound = given.fit(0.5 * free.noise)
    assert bound.log_evidence == pytest.approx(free.log_evidence, rel=1e-12)
    assert (bound.noise, bound.ratio) == pytest.approx((free.noise, free.ratio), rel=1e-3)


@pytest.mark.parametrize("least_noise", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_the_size_of_the_kernel_changes_the_ratio_alone(case: str, least_noise: float) -> None:
    given = problem(case)
    factor = 2.0**10
    fit, scaled = given.fit(least_noise), fit_of(factor * given.kernel, given.targets, least_noise)
    assert scaled.log_evidence == pytest.approx(fit.log_evidence, rel=1e-12)
    assert scaled.noise == pytest.approx(fit.noise, rel=1e-9)
    assert scaled.ratio == pytest.approx(fit.ratio / factor, rel=1e-9)
    torch.testing.assert_close(scaled.shares, fit.shares, rtol=1e-9, atol=1e-9)
    # μ = k α: weights shrink as the ratio does
    torch.testing.assert_close(factor * scaled.weights, fit.weights, rtol=1e-9, atol=1e-9)
    found = given.log_density(scaled, factor)
    assert found == pytest.approx(given.log_density(fit), rel=1e-9)


def test_it_is_computed_in_float64() -> None:
    """A kernel in float32 gives what it gives in float64; rounding has made it asymmetric."""
    given = problem("smooth")
    single = torch.tensor(given.kernel).float()
    single[0, 1] *= 1 + 1e-6
    fit = fit_kernel(single, torch.tensor(given.targets).float())
    assert fit.weights.dtype == torch.float64
    assert fit.log_evidence == pytest.approx(given.fit().log_evidence, abs=1e-3)


def test_without_a_kernel_it_is_a_constant() -> None:
    targets = problem("much noise").targets
    found = constant_log_evidence(torch.tensor(targets))
    deviation = np.sqrt((targets**2).mean())
    assert found == pytest.approx(norm.logpdf(targets, 0, deviation).sum(), rel=1e-12)
    assert found == pytest.approx(
        dense_log_evidence(np.zeros((EXAMPLES, EXAMPLES)), targets, 1.0, deviation**2), rel=1e-12
    )


def test_targets_that_the_kernel_cannot_explain_leave_the_constant() -> None:
    """The best ratio is zero, which the smallest that is tried comes close to."""
    kernel = np.eye(EXAMPLES)
    kernel[1:, 1:] = 0
    targets = np.random.default_rng(0).standard_normal((EXAMPLES, 1))
    targets[0] = 0
    found = fit_of(kernel, targets).log_evidence
    assert found == pytest.approx(constant_log_evidence(torch.tensor(targets)), abs=1e-3)


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
    with pytest.raises(NotFiniteError, match="25 examples .* expected a finite number above zero"):
        fit_of(spoil(given.kernel), given.targets)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("value", [0.0, 1e-12])
def test_targets_that_do_not_vary_are_refused(value: float, noise: float) -> None:
    """But for rounding; a constant explains them without end."""
    targets = torch.full((EXAMPLES, 2), value, dtype=torch.float64)
    assert constant_log_evidence(targets) == np.inf
    with pytest.raises(NotFiniteError, match="nothing to learn"):
        fit_kernel(torch.eye(EXAMPLES), targets, noise)


# --- shares ---------------------------------------------------------------------------------------


def weighted_log_evidence(
    kernel: Array, targets: Array, ratio: float, noise: float, weights: Array
) -> float:
    """log ∫ N(f | 0, s K) Π_n N(y_n | f_n, σ²)^w_n df.

    N(y | f, σ²)^w = c N(y | f, σ²/w) with c = (2πσ²)^(−w/2) (2πσ²/w)^(1/2).
    """
    covariance = noise * (ratio * kernel + np.diag(1 / weights))
    log_c = -weights / 2 * np.log(2 * np.pi * noise) + np.log(2 * np.pi * noise / weights) / 2
    densities = (multivariate_normal.logpdf(column, cov=covariance) for column in targets.T)
    return float(sum(densities) + targets.shape[1] * log_c.sum())


@pytest.mark.parametrize("weight", [0.4, 1.0, 3.0])
def test_weights_by_an_integral(weight: float) -> None:
    """The oracle below for one example, by quadrature."""
    scale, noise, target = 1.7, 0.6, 0.9

    def integrand(f: float) -> float:
        likelihood = norm.pdf(target, f, math.sqrt(noise)) ** weight
        return float(norm.pdf(f, 0, math.sqrt(scale)) * likelihood)

    expected = math.log(quad(integrand, -12, 12, epsabs=1e-12)[0])
    found = weighted_log_evidence(
        np.eye(1), np.array([[target]]), scale / noise, noise, np.array([weight])
    )
    assert found == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("least_noise", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("case", CASES)
def test_shares_are_derivatives_by_the_weights_of_examples(case: str, least_noise: float) -> None:
    given = problem(case)
    fit = given.fit(least_noise)

    def log_z(weights: Array) -> float:
        return weighted_log_evidence(given.kernel, given.targets, fit.ratio, fit.noise, weights)

    ones, step = np.ones(EXAMPLES), 1e-4
    assert log_z(ones) == pytest.approx(fit.log_evidence, rel=1e-9)
    slopes = [
        (log_z(ones + step * unit) - log_z(ones - step * unit)) / (2 * step)
        for unit in np.eye(EXAMPLES)
    ]
    np.testing.assert_allclose(fit.shares.numpy(), slopes, rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize("case", CASES)
def test_weights_predict_the_mean(case: str) -> None:
    given = problem(case)
    fit = given.fit()
    covariance = np.eye(EXAMPLES) + fit.ratio * given.kernel
    expected = fit.ratio * given.between @ np.linalg.solve(covariance, given.targets)
    found = torch.tensor(given.between) @ fit.weights
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-10)
