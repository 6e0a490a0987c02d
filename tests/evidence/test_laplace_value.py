"""The Laplace evidence: exact for linear regression, elsewhere its formula by dense slogdet."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from network_cases import LIKELIHOODS, NETWORKS, NOISE, assert_equal, library_blocks, mlp
from oracles.dense_evidence import (
    categorical_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_evidence,
    regression_log_evidence,
    regression_posterior_mean,
)
from oracles.dense_ggn import averaged_outputs, dense_ggn, gaussian_curvature, trainable
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, LaplaceEvidence, NotFiniteError
from isotropy.evidence.priors import STRUCTURES, GaussianPrior
from isotropy.likelihoods import Categorical, Gaussian, Likelihood


def evidence_of(
    network: nn.Module, likelihood: Likelihood, structure: str = "scalar"
) -> LaplaceEvidence:
    """An evidence whose groups of parameters all have different precisions."""
    prior = GaussianPrior(network, KFAC(network).parameter_names, structure, precision=0.8)
    with torch.no_grad():
        prior.log_precisions += torch.linspace(0, 1, len(prior.groups), dtype=torch.float64)
    return LaplaceEvidence(network, likelihood, prior)


def batch_of(rows: Tensor, targets: Tensor) -> Batch:
    """All rows as one batch; the number of copies follows from the targets."""
    return Batch(rows, targets, Copies(len(rows) // len(targets)))


def expected_value(
    evidence: LaplaceEvidence, likelihood: str, rows: Tensor, samples: int
) -> Tensor:
    """log Z by the oracles, on the library's blocks (which have their own tests)."""
    kind, network = LIKELIHOODS[likelihood], evidence.network.eval()
    count = len(rows) // samples
    outputs = averaged_outputs(network, trainable(network), rows, samples)
    if likelihood == "categorical":
        log_likelihood = categorical_log_likelihood(outputs, kind.targets(count))
    else:
        log_likelihood = gaussian_log_likelihood(outputs, kind.targets(count), NOISE)
    blocks = library_blocks(network, rows, samples, kind.build())
    precisions = {name: float(d.detach()) for name, d in evidence.prior.precisions().items()}
    return laplace_log_evidence(log_likelihood, blocks, trainable(network), precisions)


# --- linear regression: exact ------------------------------------------------------------------


# examples, features, outputs, samples, noise, precision
REGRESSIONS = [
    (6, 3, 1, 1, 0.5, 2.0),
    (6, 3, 1, 4, 0.5, 2.0),
    (4, 7, 1, 1, 1.3, 0.1),
    (9, 2, 2, 3, 0.2, 0.7),
    (5, 5, 3, 1, 2.0, 10.0),
]


def regression(
    count: int, features: int, outputs: int, samples: int, noise: float, centred: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their averages over samples, and targets."""
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, samples, features, generator=generator, dtype=torch.float64)
    averages = rows.mean(1)
    if centred:
        rows, averages = rows - averages.mean(0), averages - averages.mean(0)
    weights = torch.randn(features, outputs, generator=generator, dtype=torch.float64)
    disturbance = torch.randn(count, outputs, generator=generator, dtype=torch.float64)
    return rows.flatten(0, 1), averages, averages @ weights + noise * disturbance + 0.5


def linear(weights: Tensor, bias: Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(*weights.shape, bias=bias is not None).double()
    with torch.no_grad():
        layer.weight.copy_(weights.T)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def laplace_value(layer: nn.Linear, rows: Tensor, targets: Tensor, noise, precision) -> Tensor:
    prior = GaussianPrior(layer, KFAC(layer).parameter_names, "scalar", precision)
    evidence = LaplaceEvidence(layer, Gaussian(noise), prior)
    return evidence.value(evidence.fit([batch_of(rows, targets)])).detach()


@pytest.mark.parametrize(
    ("count", "features", "outputs", "samples", "noise", "precision"), REGRESSIONS
)
def test_linear_regression_is_exact(count, features, outputs, samples, noise, precision):
    rows, averages, targets = regression(count, features, outputs, samples, noise)
    mean = regression_posterior_mean(averages, targets, noise, precision)
    found = laplace_value(linear(mean), rows, targets, noise, precision)
    exact = regression_log_evidence(averages, targets, noise, precision)
    assert_equal(found, exact, "log evidence")


@pytest.mark.parametrize("centred", [True, False])
def test_a_bias_is_exact_only_without_its_cross_terms(centred: bool):
    """With features that average to zero the block between weight and bias is zero anyway."""
    rows, averages, targets = regression(6, 3, 1, 2, 0.5, centred)
    augmented = torch.cat([averages + 0.0, torch.ones(6, 1).double()], 1)
    mean = regression_posterior_mean(augmented, targets, 0.5, 2.0)
    found = laplace_value(linear(mean[:3], mean[3]), rows, targets, 0.5, 2.0)
    exact = regression_log_evidence(augmented, targets, 0.5, 2.0)
    if centred:
        assert_equal(found, exact, "log evidence")
    else:
        assert float(exact - found) > 1e-3  # dropping blocks makes the determinant larger


def test_away_from_the_best_weights_it_is_not_the_evidence():
    rows, averages, targets = regression(6, 3, 1, 1, 0.5)
    mean = regression_posterior_mean(averages, targets, 0.5, 2.0)
    exact = regression_log_evidence(averages, targets, 0.5, 2.0)
    assert float(laplace_value(linear(mean + 0.1), rows, targets, 0.5, 2.0)) < float(exact) - 1e-2


@pytest.mark.parametrize("wrong", ["noise", "precision"])
def test_the_comparison_notices_other_hyperparameters(wrong: str):
    rows, averages, targets = regression(6, 3, 1, 1, 0.5)
    mean = regression_posterior_mean(averages, targets, 0.5, 2.0)
    exact = regression_log_evidence(averages, targets, 0.5, 2.0)
    noise, precision = (0.6, 2.0) if wrong == "noise" else (0.5, 2.2)
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(laplace_value(linear(mean), rows, targets, noise, precision), exact, "log Z")


# --- every network -----------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "used twice", "frozen first layer", "cnn", "fixup"])
def test_value_is_the_formula(network: str, likelihood: str, structure: str):
    case, kind = NETWORKS[network], LIKELIHOODS[likelihood]
    rows, targets = case.rows(4, 2), kind.targets(4)
    evidence = evidence_of(case.network(), kind.build(), structure)
    fit = evidence.fit([batch_of(rows, targets)])
    assert_equal(evidence.value(fit), expected_value(evidence, likelihood, rows, 2), "log Z")


def test_one_linear_layer_is_the_whole_dense_matrix():
    """No blocks, no factors: the determinant of the full GGN."""
    case, noise = NETWORKS["linear without bias"], 0.7
    rows, targets, network = case.rows(5, 3), LIKELIHOODS["gaussian"].targets(5), case.network()
    evidence = evidence_of(network, Gaussian(noise))
    found = evidence.value(evidence.fit([batch_of(rows, targets)]))
    whole = dense_ggn(network, rows, 3, gaussian_curvature(noise))
    outputs = averaged_outputs(network, trainable(network), rows, 3)
    precision = {"weight": float(evidence.prior.precisions()["weight"].detach())}
    log_likelihood = gaussian_log_likelihood(outputs, targets, noise)
    expected = laplace_log_evidence(
        log_likelihood, {"weight": whole}, trainable(network), precision
    )
    assert_equal(found, expected, "log Z")


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (2, 4), (5, 1), (6,)])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_the_size_of_batches_does_not_matter(network: str, likelihood: str, sizes: tuple[int, ...]):
    case, kind = NETWORKS[network], LIKELIHOODS[likelihood]
    rows, targets = case.rows(6, 2), kind.targets(6)
    evidence = evidence_of(case.network(), kind.build())
    whole = evidence.value(evidence.fit([batch_of(rows, targets)]))
    parts = zip(rows.split([2 * size for size in sizes]), targets.split(sizes), strict=True)
    fit = evidence.fit(itertools.starmap(batch_of, parts))
    assert fit.count == 6
    assert_equal(evidence.value(fit), whole.detach(), "log Z")


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_value_is_differentiable_in_precisions_and_noise(likelihood: str, structure: str):
    case, kind = NETWORKS["mlp"], LIKELIHOODS[likelihood]
    evidence = evidence_of(case.network(), kind.build(), structure)
    fit = evidence.fit([batch_of(case.rows(4, 2), kind.targets(4))])
    parameters = [evidence.prior.log_precisions, *evidence.likelihood.parameters()]
    gradients = torch.autograd.grad(evidence.value(fit), parameters)
    step = 1e-5
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for index in range(parameter.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[index] += sign * step
                    values.append(evidence.value(fit))
                    parameter.view(-1)[index] -= sign * step
            slope = (values[0] - values[1]) / (2 * step)
            assert math.isclose(slope, gradient.view(-1)[index], rel_tol=1e-6, abs_tol=1e-7)


def test_the_best_precision_is_the_fixed_point():
    """At the maximum δ = γ / ‖θ‖² (MacKay), with γ the parameters that the data determines."""
    rows, averages, targets = regression(30, 4, 1, 1, 0.3)
    layer = linear(regression_posterior_mean(averages, targets, 0.3, 1.0))
    prior = GaussianPrior(layer, ("weight",))
    evidence = LaplaceEvidence(layer, Gaussian(0.3), prior)
    fit = evidence.fit([batch_of(rows, targets)])
    optimiser = torch.optim.LBFGS(prior.parameters(), max_iter=100, tolerance_change=0.0)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -evidence.value(fit)
        loss.backward()
        return loss

    optimiser.step(closure)
    effective = evidence.effective_parameters(fit)["weight"]
    assert 0 < effective < 4
    best = float(prior.precisions()["weight"].detach())
    squared_norm = float(layer.weight.detach().square().sum())
    assert math.isclose(best, effective / squared_norm, rel_tol=1e-6)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_effective_parameters_lie_between_none_and_all(likelihood: str):
    case, kind = NETWORKS["cnn"], LIKELIHOODS[likelihood]
    evidence = evidence_of(case.network(), kind.build())
    fit = evidence.fit([batch_of(case.rows(4, 2), kind.targets(4))])
    for name, effective in evidence.effective_parameters(fit).items():
        assert 0 <= effective <= fit.sizes[name]
    assert sum(fit.sizes.values()) == sum(p.numel() for p in evidence.network.parameters())


def test_fit_keeps_no_graph():
    case, kind = NETWORKS["mlp"], LIKELIHOODS["categorical"]
    evidence = evidence_of(case.network(), kind.build())
    fit = evidence.fit([batch_of(case.rows(4, 2).requires_grad_(), kind.targets(4))])
    kept = [fit.statistic, *fit.squared_norms.values()]
    kept += [tensor for s in fit.spectra.values() for tensor in vars(s).values()
             if isinstance(tensor, Tensor)]  # fmt: skip
    assert not any(tensor.requires_grad for tensor in kept)


# --- refused -----------------------------------------------------------------------------------


def test_no_data():
    case = NETWORKS["mlp"]
    evidence = evidence_of(case.network(), Categorical())
    with pytest.raises(CallerError, match="expected at least one batch of data, got none"):
        evidence.fit([])
    fit = evidence.fit([batch_of(case.rows(2, 2), torch.tensor([0, 1]))])
    with pytest.raises(CallerError, match="expected at least one batch of data, got none"):
        evidence.gradient(fit, [], [torch.zeros(1)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_curvature_that_is_not_finite_is_named(bad: float):
    network = mlp(4, 3, 3).double()
    rows = NETWORKS["mlp"].rows(2, 2)
    rows[1, 2] = bad
    evidence = evidence_of(network, Categorical())
    with pytest.raises(NotFiniteError, match=r"curvature of '0.weight' is not finite: .*; lower"):
        evidence.fit([batch_of(rows, torch.tensor([0, 1]))])


def test_targets_that_do_not_fit_the_outputs_are_refused():
    """(examples,) against (examples, 1) would broadcast to all pairs and give a number."""
    layer = nn.Linear(3, 1).double()
    evidence = evidence_of(layer, Gaussian())
    rows = torch.randn(4, 3, dtype=torch.float64)
    with pytest.raises(CallerError, match=r"targets: expected \(examples, 1\)"):
        evidence.fit([batch_of(rows, torch.zeros(4, dtype=torch.float64))])
