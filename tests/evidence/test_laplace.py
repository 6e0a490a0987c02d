"""The Laplace evidence: exact for linear regression, elsewhere its formula by dense slogdet.

Its values can be subtracted where they are values of the same thing.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest
import torch
from evidence_problems import spread_prior
from network_cases import LIKELIHOODS, NETWORKS, NOISE, assert_equal, library_blocks, mlp
from numerics import central_slopes
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
from isotropy.evidence.laplace import (
    STRUCTURES,
    Batch,
    EvidenceValue,
    GaussianPrior,
    LaplaceEvidence,
    NotFiniteError,
    PassProgress,
)
from isotropy.likelihoods import Categorical, Gaussian, Likelihood


def evidence_of(
    network: nn.Module, likelihood: Likelihood, structure: str = "scalar"
) -> LaplaceEvidence:
    prior = spread_prior(network, KFAC(network).parameter_names, structure, 0.8)
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


@pytest.mark.parametrize("wrong", ["weights", "noise", "precision"])
def test_the_comparison_notices_what_is_off(wrong: str):
    """Away from the best weights, the noise or the precision it is another number."""
    rows, averages, targets = regression(6, 3, 1, 1, 0.5)
    mean = regression_posterior_mean(averages, targets, 0.5, 2.0)
    layer = linear(mean + 0.1 * (wrong == "weights"))
    noise, precision = 0.5 + 0.1 * (wrong == "noise"), 2.0 + 0.2 * (wrong == "precision")
    found = laplace_value(layer, rows, targets, noise, precision)
    exact = regression_log_evidence(averages, targets, 0.5, 2.0)
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(found, exact, "log Z")
    assert wrong != "weights" or float(found) < float(exact) - 1e-2


# --- every network -----------------------------------------------------------------------------


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", ["mlp", "used twice", "frozen first layer", "cnn"])
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


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (2, 4)])
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
    for parameter, gradient in zip(parameters, gradients, strict=True):
        slopes = central_slopes(lambda: evidence.value(fit), parameter)
        torch.testing.assert_close(gradient, slopes, rtol=1e-6, atol=1e-7)


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


# --- differences -------------------------------------------------------------------------------

VALUE = EvidenceValue(
    nats=-120.5, examples=40, curvature="kfac-ggn", samples=8, prior_structure="scalar",
    noise_seed="0/final/3", data="abc",
)  # fmt: skip

OTHER = {
    "examples": 41,
    "curvature": "kfac-ef",
    "samples": 9,
    "prior_structure": "layer",
    "noise_seed": "1/final/3",
    "data": "abd",
    "kind": "elbo",
}


def test_a_difference_of_models_is_a_number():
    better = dataclasses.replace(VALUE, nats=-100.25)
    assert better - VALUE == 20.25 and VALUE - better == -20.25
    assert VALUE - VALUE == 0.0


def test_every_field_has_a_case():
    assert {field.name for field in dataclasses.fields(EvidenceValue)} == {*OTHER, "nats", "error"}


@pytest.mark.parametrize("name", OTHER)
def test_anything_else_that_differs_is_named(name: str):
    other = dataclasses.replace(VALUE, **{name: OTHER[name]})
    words = name.replace("_", " ")
    for left, right in ((VALUE, other), (other, VALUE)):
        with pytest.raises(CallerError, match=f"evidences differ in {words}: ") as refused:
            left - right
        assert repr(OTHER[name]) in str(refused.value)
        assert repr(getattr(VALUE, name)) in str(refused.value)


@pytest.mark.parametrize("other", [1.0, 3, None, "log Z"])
def test_a_bare_number_is_not_comparable(other: object):
    with pytest.raises(TypeError):
        VALUE - other  # type: ignore[operator]
    with pytest.raises(TypeError):
        other - VALUE  # type: ignore[operator]


def test_per_example():
    assert VALUE.per_example == -120.5 / 40


def test_as_a_record():
    record = json.loads(json.dumps(VALUE.as_dict()))
    assert EvidenceValue(**record) == VALUE


# --- lines of progress -------------------------------------------------------------------------


def told(times: list[float], examples: list[int]) -> list[str]:
    clock = iter(times)
    lines: list[str] = []
    progress = PassProgress(lines.append, "pass", sum(examples), clock=lambda: next(clock))
    for each in examples:
        progress.add(each)
    return lines


def test_short_passes_say_nothing():
    assert told([0, 1, 2, 3], [10, 10, 10]) == []


def test_long_passes_tell_how_far_they_are():
    # Asked: is it due, how long did it take, when is the next; then only whether it is due.
    lines = told([0, 6, 6, 6, 12], [10, 10, 20])
    assert lines == ["pass: 10 of 40 examples, 6 s, about 18 s left"]


def test_nobody_is_told_nothing():
    PassProgress(None, "pass", 4).add(4)
