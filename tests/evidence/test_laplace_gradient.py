"""The two-pass gradient against autograd through the whole evidence, and its expectation.

With the same noise in both passes the library's gradient must be that of the evidence written
out in one graph (`evidence_problems`); with fresh noise it must be right on average. So for every
kind of curvature, with H written out by `oracles.dense_fisher`, by what the rows depend on and by
the weights of the copies:

    log Z = log p(y | f̂) − ½ [ Σ δ_i θ_i² + log|H + diag(δ)| − Σ log δ_i ]
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch
from curvature_problems import CurvatureProblem, label_generator
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
    spread_prior,
)
from network_cases import LIKELIHOODS, NETWORKS, NOISE, assert_equal, relative_difference
from numerics import central_slopes
from oracles.dense_evidence import (
    categorical_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_evidence,
)
from oracles.dense_ggn import average_over_samples, trainable
from torch import Tensor

from isotropy.curvature.blocks import JOINT, Factors
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import KINDS, Copies
from isotropy.evidence.laplace import Batch, LaplaceEvidence, LaplaceFit
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
    for parameter in (*given.model.parameters(), *given.evidence.prior.parameters()):
        assert parameter.requires_grad and parameter.grad is None


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", IMAGE_NETWORKS)
def test_examples_stand_for_others_like_them(network: str, likelihood: str):
    """A fit of n that stands for 3 n is the fit of each example three times, and its gradient."""
    given = image_problem(network, likelihood)
    few = dataclasses.replace(given.evidence.fit(given.batches()), stands_for=3 * COUNT)
    (found,) = given.evidence.gradient(few, given.batches(1, 3), [given.half_widths])
    thrice = dataclasses.replace(
        given,
        inputs=given.inputs.repeat(3, 1, 1, 1),
        targets=torch.cat([given.targets] * 3),
        noise=torch.cat([given.noise] * 3),
    )
    value = dense_log_evidence(thrice)
    expected = torch.autograd.grad(-value, given.half_widths)[0]
    assert_equal(given.evidence.value(few).detach(), value.detach(), "log Z", TOLERANCE)
    assert_equal(found, expected, "gradient by the half-widths", TOLERANCE)


VECTOR_NETWORKS = ["linear", "mlp", "used twice", "head used twice", "tokens",
                   "residual", "random features",
                   "conv all together", "conv used twice", "scalars", "conv3d all together",
                   "transposed conv all together", "batch norm", "group norm", "norm used twice",
                   "rms norm", "attention, masks", "query, key and value in one",
                   "transformer"]  # fmt: skip


@pytest.mark.parametrize(
    ("network", "likelihood"),
    [*((name, "categorical") for name in VECTOR_NETWORKS), ("tokens", "gaussian")],
)
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


def test_the_gradient_is_that_of_the_value_by_finite_differences():
    """No oracle at all: two more evidences a little to each side."""
    given = image_problem("cnn", "categorical", ("rotation", "scale"))
    fit = given.evidence.fit(given.batches())
    (found,) = given.evidence.gradient(fit, given.batches(), [given.half_widths])
    slopes = central_slopes(
        lambda: given.evidence.value(given.evidence.fit(given.batches())), given.half_widths
    )
    assert_equal(found, -slopes, "finite differences", 1e-5)


# --- other noise in the second pass ---------------------------------------------------------------


SUPPORT = (-0.9, 0.7)
"""Noise with two values instead of a continuum, so that its expectation is a finite sum."""


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


@pytest.mark.parametrize("chosen", [1, 3])
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
    assert relative_difference(found[0], whole) > 1e-3


# --- how it is computed does not matter -----------------------------------------------------------


class DirectionsAtOnce(KFAC):
    """KFAC with a fixed number of directions in each backward pass."""

    count = 1

    def batch(self, *arguments, **options):
        return super().batch(*arguments, **options, directions_at_once=self.count)


@pytest.mark.parametrize("network", ["mlp", "cnn", "fixup block"])
def test_directions_at_once_do_not_matter(network: str):
    given = image_problem(network, "categorical")
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


# --- every kind of curvature, and weights of copies --------------------------------------------


class EvidenceProblem(CurvatureProblem):
    """A curvature problem whose rows depend on `widths` and whose copies have learnable weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = self.rows.shape
        generator = torch.Generator().manual_seed(8)
        self.base = self.rows.clone()
        self.moves = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.widths = torch.tensor([0.3, 0.1, 0.5, 0.2], dtype=torch.float64, requires_grad=True)
        self.chances = self.weights[1:].clone().requires_grad_()
        self.likelihood.check_targets(self.targets, torch.zeros(1, 3))
        self.prior = spread_prior(self.network, self.curvature.parameter_names, "tensor", 0.5)
        self.evidence = LaplaceEvidence(self.network, self.likelihood, self.prior, self.curvature)

    @property
    def learnable(self) -> list[Tensor]:
        return [self.widths, self.chances][: min(2, self.copies.count)]

    def shares(self) -> Tensor:
        """Weights of the copies, which add up to one: the first has what the others leave."""
        return torch.cat([1 - self.chances.sum(0, keepdim=True), self.chances])

    def moved(self, part: slice = slice(None)) -> Tensor:
        return self.base[part] + self.widths * self.moves[part]

    def batches(self, *sizes: int, weighted: bool = True) -> Iterator[Batch]:
        """With labels drawn from one generator, so that every pass draws the same."""
        generator = label_generator()
        count = self.copies.count
        sizes = sizes or (self.count,)
        ends = list(itertools.accumulate(sizes))
        for size, end in zip(sizes, ends, strict=True):
            rows = self.moved(slice(count * (end - size), count * end))
            copies = Copies(count, self.shares() if weighted else None)
            yield Batch(rows, self.targets[end - size : end], copies, generator)

    def dense_log_evidence(self) -> Tensor:
        """log Z in one graph from widths and chances."""
        rows, shares = self.moved(), self.shares()
        outputs = average_over_samples(self.network(rows), shares)
        log_likelihood = (
            categorical_log_likelihood(outputs, self.targets)
            if self.noise is None
            else gaussian_log_likelihood(outputs, self.targets, NOISE)
        )
        matrix = self.expected_matrix(rows, shares)
        parameters = dict(self.network.named_parameters())
        names, precisions = self.expected_names(), self.prior.precisions()
        theta = torch.cat([parameters[name].detach().flatten() for name in names])
        delta = torch.cat([precisions[n].detach().expand(parameters[n].numel()) for n in names])
        sign, log_determinant = torch.linalg.slogdet(matrix + torch.diag(delta))
        assert float(sign.detach()) == 1
        complexity = (delta * theta.square()).sum() + log_determinant - delta.log().sum()
        return log_likelihood - complexity / 2


@pytest.mark.parametrize("copies", ["one", "three, weighted"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_the_dense_evidence(
    kind: str, likelihood: str, copies: str
):
    given = EvidenceProblem(kind, likelihood, copies)
    fit = given.evidence.fit(given.batches(3, 1))
    expected = given.dense_log_evidence()
    assert_equal(given.evidence.value(fit).detach(), expected.detach(), "log Z", TOLERANCE)
    found = given.evidence.gradient(fit, given.batches(1, 3), given.learnable)
    wanted = torch.autograd.grad(-expected, given.learnable)
    names = ("widths", "chances")[: len(found)]
    for name, mine, theirs in zip(names, found, wanted, strict=True):
        assert_equal(mine, theirs, f"gradient by the {name}", TOLERANCE)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.fisher != "mc"])
def test_gradients_of_every_kind_by_finite_differences(kind: str):
    given = EvidenceProblem(kind, "categorical", "three, weighted")
    fit = given.evidence.fit(given.batches())
    found = given.evidence.gradient(fit, given.batches(), given.learnable)
    for tensor, gradient in zip(given.learnable, found, strict=True):
        slopes = central_slopes(
            lambda: given.evidence.value(given.evidence.fit(given.batches())), tensor
        )
        assert_equal(gradient, -slopes, "slopes", 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_nothing_depends_on_them(kind: str):
    given = EvidenceProblem(kind, "categorical", "three")
    fit = given.evidence.fit(given.batches(weighted=False))
    weighted = given.evidence.fit(given.batches())
    assert_equal(given.evidence.value(fit), given.evidence.value(weighted).detach(), "log Z")
    by_widths, by_chances = given.evidence.gradient(
        fit, given.batches(weighted=False), given.learnable
    )
    same, _ = given.evidence.gradient(weighted, given.batches(), given.learnable)
    assert_equal(by_widths, same, "gradient by the widths", TOLERANCE)
    assert torch.equal(by_chances, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_other_targets_are_another_evidence(kind: str):
    """Of the empirical Fisher in its curvature, of all kinds in the likelihood."""
    given = EvidenceProblem(kind, "gaussian", "three")
    before = given.evidence.fit(given.batches())
    given.targets = given.targets + 1.0
    after = given.evidence.fit(given.batches())
    same = all(
        torch.equal(mine, theirs)
        for name, spectrum in before.spectra.items()
        for mine, theirs in zip(_tensors(spectrum), _tensors(after.spectra[name]), strict=True)
    )
    assert same is (KINDS[kind].fisher != "ef")
    assert relative_difference(after.statistic, before.statistic) > 1e-2


def _tensors(spectrum: object) -> list[Tensor]:
    return [value for value in vars(spectrum).values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_differentiable_in_precisions_and_noise(kind: str, likelihood: str):
    given = EvidenceProblem(kind, likelihood, "three, weighted")
    fit = given.evidence.fit(given.batches())
    parameters = [given.prior.log_precisions, *given.likelihood.parameters()]
    gradients = torch.autograd.grad(given.evidence.value(fit), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        slopes = central_slopes(lambda: given.evidence.value(fit), parameter)
        torch.testing.assert_close(gradient, slopes, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_effective_parameters_lie_between_none_and_all(kind: str):
    given = EvidenceProblem(kind, "categorical", "three")
    fit = given.evidence.fit(given.batches())
    found = given.evidence.effective_parameters(fit)
    joint = KINDS[kind].structure in ("full", "last-layer")
    assert set(found) == ({JOINT} if joint else set(given.expected_names()))
    assert 0 < sum(found.values()) < sum(fit.sizes.values())
    assert given.evidence.curvature_name == kind
