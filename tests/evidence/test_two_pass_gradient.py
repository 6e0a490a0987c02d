"""The two-pass gradient against autograd through the whole evidence, and its expectation.

With the same noise in both passes the library's gradient must be that of the evidence written
out in one graph (`evidence_problems`); with fresh noise it must be right on average.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch
from evidence_problems import (
    COUNT,
    IMAGE_NETWORKS,
    SAMPLES,
    Brightness,
    Problem,
    autograd_gradient,
    dense_blocks,
    dense_log_evidence,
    image_problem,
    log_likelihood_of,
    precisions_of,
    problem,
)
from network_cases import LIKELIHOODS, NETWORKS, assert_equal, relative_difference
from oracles.dense_evidence import laplace_log_evidence
from oracles.dense_ggn import average_over_samples, trainable
from torch import Tensor

from isotropy.curvature.blocks import Factors
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, LaplaceFit
from isotropy.likelihoods import Gaussian

TOLERANCE = 1e-8

# --- the same noise in both passes ---------------------------------------------------------------


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", IMAGE_NETWORKS)
def test_replayed_noise_gives_the_gradient_of_the_value(network: str, likelihood: str):
    given = image_problem(network, likelihood)
    fit = given.evidence.fit(given.batches(3, 1))
    value = dense_log_evidence(given)
    assert_equal(given.evidence.value(fit).detach(), value.detach(), "log Z", TOLERANCE)
    (found,) = given.evidence.gradient(fit, given.batches(1, 3), [given.half_widths])
    expected = torch.autograd.grad(-value, given.half_widths)[0]
    assert float(expected.abs().min()) > 1e-5  # all six generators matter
    assert_equal(found, expected, "gradient by the half-widths", TOLERANCE)


VECTOR_NETWORKS = ["linear", "mlp", "used twice", "head used twice", "tokens", "residual",
                   "conv all together", "conv used twice", "scalars", "conv3d all together",
                   "transposed conv all together", "batch norm", "group norm", "norm used twice",
                   "rms norm", "attention, masks", "query, key and value in one",
                   "transformer"]  # fmt: skip


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", VECTOR_NETWORKS)
def test_replayed_noise_for_every_kind_of_layer(network: str, likelihood: str):
    case = NETWORKS[network]
    given = problem(case, likelihood, Brightness(), case.rows(COUNT, 1))
    fit = given.evidence.fit(given.batches())
    (found,) = given.evidence.gradient(fit, given.batches(2, 2), [given.half_widths])
    assert_equal(found, autograd_gradient(given), "gradient", TOLERANCE)


def test_gradient_by_several_tensors():
    """Anything that the rows depend on can be asked for; what they do not depend on gets zero."""
    case = NETWORKS["mlp"]
    given = problem(case, "categorical", Brightness(), case.rows(COUNT, 1))
    shift = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    unrelated = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def shifted() -> Iterator[Batch]:
        for batch in given.batches(2, 2):
            yield batch._replace(rows=batch.rows + shift)

    fit = given.evidence.fit(shifted())
    found = given.evidence.gradient(fit, shifted(), [given.half_widths, shift, unrelated])
    rows = given.model.orbit(given.inputs, given.noise) + shift
    outputs = average_over_samples(given.model.network(rows), SAMPLES)
    value = laplace_log_evidence(
        log_likelihood_of(given, outputs), dense_blocks(given, rows),
        trainable(given.model.network), precisions_of(given),
    )  # fmt: skip
    expected = torch.autograd.grad(-value, [given.half_widths, shift])
    assert_equal(found[0], expected[0], "half-widths", TOLERANCE)
    assert_equal(found[1], expected[1], "shift", TOLERANCE)
    assert torch.equal(found[2], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("network", ["mlp", "cnn", "fixup block"])
def test_the_network_is_left_as_it_was(network: str):
    given = image_problem(network, "categorical")
    fit = given.evidence.fit(given.batches())
    given.evidence.gradient(fit, given.batches(), [given.half_widths])
    for parameter in (*given.model.parameters(), *given.evidence.prior.parameters()):
        assert parameter.requires_grad and parameter.grad is None


def test_the_gradient_is_that_of_the_value_by_finite_differences():
    """No oracle at all: two more evidences a little to each side."""
    given = image_problem("cnn", "categorical", ("rotation", "scale"))
    fit = given.evidence.fit(given.batches())
    (found,) = given.evidence.gradient(fit, given.batches(), [given.half_widths])
    step = 1e-5
    slopes = []
    for index in range(2):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                given.half_widths[index] += sign * step
                values.append(given.evidence.value(given.evidence.fit(given.batches())))
                given.half_widths[index] -= sign * step
        slopes.append(-(values[0] - values[1]) / (2 * step))
    assert_equal(found, torch.stack(slopes).detach(), "finite differences", 1e-5)


# --- other noise in the second pass ---------------------------------------------------------------


SUPPORT = (-0.9, 0.2, 0.7)
"""Noise with three values instead of a continuum, so that its expectation is a finite sum."""


def all_noises(generators: int) -> list[Tensor]:
    """Every draw of (samples, generators) with one value for all generators of a sample."""
    return [
        torch.tensor(draw, dtype=torch.float64)[:, None].expand(-1, generators)
        for draw in itertools.product(SUPPORT, repeat=SAMPLES)
    ]


def expected_factors(given: Problem, draws: list[Tensor]) -> tuple[dict[str, Factors], Tensor]:
    """Expectation of every factor and of the log likelihood, with a graph to the half-widths."""
    parts: dict[str, list[tuple[Tensor, ...]]] = {}
    kinds: dict[str, type[Factors]] = {}
    log_likelihoods = []
    for draw in draws:
        rows = given.model.orbit(given.inputs, draw.expand(COUNT, -1, -1))
        found = given.evidence.curvature.batch(
            rows, Copies(SAMPLES), given.evidence.likelihood, create_graph=True
        )
        log_likelihoods.append(log_likelihood_of(given, found.outputs))
        for name, factors in found.factors().items():
            parts.setdefault(name, []).append(factors.tensors())
            kinds[name] = type(factors)
    means = {
        name: kinds[name](*(torch.stack(kept).mean(0) for kept in zip(*all_parts, strict=True)))
        for name, all_parts in parts.items()
    }
    return means, torch.stack(log_likelihoods).mean()


def fit_on(given: Problem, factors: dict[str, Factors]) -> LaplaceFit:
    """What pass one would leave behind if it had found these factors."""
    base = given.evidence.fit(given.batches())
    with torch.no_grad():
        spectra = {name: block.spectrum(COUNT) for name, block in factors.items()}
    return dataclasses.replace(base, spectra=spectra)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "scalars"])
def test_fresh_noise_is_unbiased(network: str, likelihood: str):
    """Averaged over every possible draw, the second pass gives the gradient of the expectation."""
    case = NETWORKS[network]
    given = problem(case, likelihood, Brightness(), case.rows(COUNT, 1))
    draws = all_noises(2)
    factors, log_likelihood = expected_factors(given, draws)
    fit = fit_on(given, factors)
    gradients = []
    for draw in draws:
        noise = draw.expand(COUNT, -1, -1)
        batches = given.batches(3, 1, noise=noise)
        gradients.append(given.evidence.gradient(fit, batches, [given.half_widths])[0])
    scale = given.evidence.likelihood.curvature_scale().detach()
    blocks = {name: scale * block.dense(COUNT) for name, block in factors.items()}
    value = laplace_log_evidence(
        log_likelihood, blocks, trainable(given.model.network), precisions_of(given)
    )
    expected = torch.autograd.grad(-value, given.half_widths)[0]
    assert_equal(torch.stack(gradients).mean(0), expected, "mean gradient", TOLERANCE)
    # A single draw is something else, so the mean above was over something.
    assert relative_difference(gradients[0], expected) > 1e-2


def test_other_noise_is_not_the_gradient_of_the_value():
    """The equality above needs the replay: with other noise in pass two it fails."""
    given = image_problem("mlp", "categorical")
    fit = given.evidence.fit(given.batches())
    noise = given.model.noise(COUNT, generator=torch.Generator().manual_seed(99))
    (found,) = given.evidence.gradient(fit, given.batches(noise=noise), [given.half_widths])
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(found, autograd_gradient(given), "gradient", TOLERANCE)


def test_detached_curvature_is_noticed():
    """The log likelihood's gradient alone, which is what detached factors would leave."""
    given = image_problem("mlp", "categorical")
    rows = given.model.orbit(given.inputs, given.noise)
    outputs = average_over_samples(given.model.network(rows), SAMPLES)
    (plain,) = torch.autograd.grad(-log_likelihood_of(given, outputs), given.half_widths)
    assert relative_difference(plain, autograd_gradient(given)) > 1e-2


# --- some of the data -----------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [1, 2, 3, 4])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_some_batches_scaled_up_are_unbiased(likelihood: str, chosen: int):
    """Averaged over all choices of so many batches, it is the gradient on all data."""
    given = image_problem("cnn", likelihood)
    fit = given.evidence.fit(given.batches())
    (whole,) = given.evidence.gradient(fit, given.batches(), [given.half_widths])
    choices = list(itertools.combinations(range(COUNT), chosen))
    found = []
    for choice in choices:
        batches = [batch for k, batch in enumerate(given.batches(1, 1, 1, 1)) if k in choice]
        found.append(given.evidence.gradient(fit, batches, [given.half_widths])[0])
    assert_equal(torch.stack(found).mean(0), whole, "mean gradient", TOLERANCE)
    if chosen < COUNT:
        assert relative_difference(found[0], whole) > 1e-3


# --- how it is computed does not matter -----------------------------------------------------------


class DirectionsAtOnce(KFAC):
    """KFAC with a fixed number of directions in each backward pass."""

    count = 1

    def batch(self, *arguments, **options):
        return super().batch(*arguments, **options, directions_at_once=self.count)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "cnn", "fixup block"])
def test_directions_at_once_do_not_matter(network: str, likelihood: str):
    given = image_problem(network, likelihood)
    kfac = DirectionsAtOnce(given.model.network)
    given.evidence.curvature = kfac
    found = []
    for kfac.count in (1, 2, 100):
        fit = given.evidence.fit(given.batches())
        found.append(given.evidence.gradient(fit, given.batches(), [given.half_widths])[0])
    assert_equal(found[1], found[0], "two at once", TOLERANCE)
    assert_equal(found[2], found[0], "all at once", TOLERANCE)


def test_at_zero_range_antithetic_noise_leaves_no_slope():
    """The expected objective is even in every half-width: nothing pulls away from exactly zero."""
    given = image_problem("mlp", "categorical", ("rotation", "scale"))
    noise = given.model.augmentation.noise(
        COUNT, 4, generator=torch.Generator().manual_seed(0), antithetic=True
    )
    slopes = {}
    for width in (0.0, 0.05):
        with torch.no_grad():
            given.half_widths.fill_(width)
        fit = given.evidence.fit(given.batches(noise=noise))
        batches = given.batches(noise=noise)
        slopes[width] = given.evidence.gradient(fit, batches, [given.half_widths])[0].abs()
    assert bool((slopes[0.0] < 1e-9).all())
    assert bool((slopes[0.05] > 1e-4).all())


def test_single_precision_follows_double():
    given = image_problem("cnn", "gaussian")
    fit = given.evidence.fit(given.batches())
    (double,) = given.evidence.gradient(fit, given.batches(), [given.half_widths])
    given.model.float()
    given.inputs, given.noise = given.inputs.float(), given.noise.float()
    given.targets = given.targets.float()
    assert isinstance(given.evidence.likelihood, Gaussian)
    fit = given.evidence.fit(given.batches())
    (single,) = given.evidence.gradient(fit, given.batches(), [given.half_widths])
    assert single.dtype == torch.float32
    assert_equal(single.double(), double, "gradient", 1e-3)
