"""The bound over the last layer: its parts, its optimum, its gradient, and runs that follow it.

    bound = Σ_n E_q log p(y_n | h_n · w) − KL(q ‖ p) ,    q = Π_c N(w_c; μ_c, L_c L_cᵀ)

against torch.distributions, the log evidence of a Gaussian model, an integral by quadrature, L-BFGS
on the same draws, Adam on fresh ones, and autograd through a solve written out here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from evidence_problems import Brightness
from learn_runs import CONFIG, bar_tensors, small_network
from numerics import numbers, seeded
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import isotropy
from isotropy.checks import CallerError
from isotropy.curvature.kinds import Copies
from isotropy.evidence.elbo import (
    ElboEvidence,
    HeadPredictive,
    check_head_memory,
    divergence,
    head_of,
    inverse_root,
)
from isotropy.evidence.laplace import Batch, EvidenceValue, GaussianPrior
from isotropy.evidence.settings import LearnConfig
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel

INPUTS, FEATURES, CLASSES, COUNT, SAMPLES = 3, 4, 3, 30, 5


@dataclass
class Problem:
    """A bound, a model with learnable half-widths, data, noise of copies, a seed of draws."""

    evidence: ElboEvidence
    model: InvariantModel
    inputs: Tensor
    targets: Tensor
    noise: Tensor

    def batches(self, *sizes: int) -> Iterator[Batch]:
        """All data; draws of outputs do not depend on how it is cut into batches of one size."""
        generator = seeded(7)
        sizes = sizes or (len(self.inputs),)
        parts = (tensor.split(sizes) for tensor in (self.inputs, self.noise, self.targets))
        for inputs, noise, targets in zip(*parts, strict=True):
            rows = self.model.orbit(inputs, noise)
            yield Batch(rows, targets, Copies(noise.shape[1]), generator)

    def features(self) -> Tensor:
        """h (examples, features) by hand; the last one is 1."""
        rows = self.model.orbit(self.inputs, self.noise)
        hidden = self.model.network[0](rows).tanh().unflatten(0, (-1, SAMPLES)).mean(1)
        return torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)

    def draws(self) -> Tensor:
        """ε (2·pairs, examples, outputs), as the bound draws them from the whole batch."""
        shape = (self.evidence.pairs, len(self.inputs), CLASSES)
        drawn = torch.randn(shape, generator=seeded(7), dtype=torch.float64)
        return torch.cat([drawn, -drawn])


def problem(likelihood: Likelihood | None = None, **options: Any) -> Problem:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh(), nn.Linear(FEATURES, CLASSES))
    network.double()
    model = InvariantModel(network, UniformRanges(Brightness(), start=0.4, dtype=torch.float64))
    likelihood = likelihood or Categorical()
    prior = GaussianPrior(network, ("2.weight", "2.bias"), options.pop("structure", "scalar"), 0.7)
    evidence = ElboEvidence(network, likelihood, prior, "2", **{"tolerance": 1e-13, **options})
    inputs = numbers(COUNT, INPUTS, seed=1)
    targets = (inputs @ numbers(INPUTS, CLASSES, seed=2) + numbers(COUNT, CLASSES, seed=3)) / 2
    if isinstance(likelihood, Categorical):
        targets = targets.argmax(1)
    noise = model.noise(COUNT, samples=SAMPLES, generator=seeded(4))
    return Problem(evidence, model, inputs, targets, noise)


def some_posterior() -> tuple[Tensor, Tensor]:
    root = numbers(CLASSES, FEATURES, FEATURES, seed=5).tril()
    return numbers(CLASSES, FEATURES, seed=6), root


def sampled_bound(given: Problem, features: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """The bound written out: logits m ± √v ε of every example, and the divergence."""
    variances = torch.einsum("nk,ckl,nl->nc", features, covariance, features)
    logits = features @ mean.mT + variances.sqrt() * given.draws()
    chosen = logits.log_softmax(-1)[:, torch.arange(COUNT), given.targets]
    precision = float(given.evidence.prior.log_precisions.detach().exp())
    traces = covariance.diagonal(dim1=1, dim2=2).sum() + mean.square().sum()
    determinants = torch.logdet(covariance).sum() + mean.numel() * math.log(precision)
    return chosen.mean(0).sum() - (precision * traces - mean.numel() - determinants) / 2


# --- the parts ----------------------------------------------------------------------------------


def test_the_divergence_is_that_of_torch() -> None:
    mean, root = some_posterior()
    precisions = torch.tensor([0.3, 1.0, 2.0, 5.0], dtype=torch.float64)
    root.diagonal(dim1=1, dim2=2).abs_()
    expected = sum(
        kl_divergence(
            MultivariateNormal(m, scale_tril=r),
            MultivariateNormal(torch.zeros_like(m), precision_matrix=precisions.diag()),
        )
        for m, r in zip(mean, root, strict=True)
    )
    assert torch.allclose(divergence(mean, root, precisions), torch.as_tensor(expected))


def test_an_inverse_root_is_triangular_and_none_where_there_is_none() -> None:
    half = numbers(2, 5, 5, seed=8)
    matrices = half @ half.mT + torch.eye(5, dtype=torch.float64)
    root = inverse_root(matrices)
    assert root is not None and torch.equal(root, root.tril())
    assert torch.allclose(root @ root.mT @ matrices, torch.eye(5, dtype=torch.float64))
    assert inverse_root(-matrices) is None


@pytest.mark.parametrize("structure", ["scalar", "tensor"])
def test_with_gaussian_noise_the_bound_is_the_log_evidence(structure: str) -> None:
    """log N(y_c; 0, σ² I + H P⁻¹ Hᵀ) for every output."""
    given = problem(Gaussian(0.6), structure=structure)
    evidence, features = given.evidence, given.features().detach()
    with torch.no_grad():
        evidence.prior.log_precisions += torch.arange(len(evidence.prior.groups))
    covariance = 0.36 * torch.eye(COUNT) + (features / evidence.precisions()) @ features.mT
    law = MultivariateNormal(torch.zeros(COUNT, dtype=torch.float64), covariance)
    expected = law.log_prob(given.targets.mT).sum()
    given.evidence.likelihood.check_targets(given.targets, given.targets)
    fit = evidence.fit(given.batches(10, 20))
    assert float(evidence.value(fit).detach()) == pytest.approx(float(expected.detach()), rel=1e-8)


def test_prior_and_noise_are_learned_to_the_largest_log_evidence() -> None:
    given = problem(Gaussian(1.0))
    given.evidence.likelihood.check_targets(given.targets, given.targets)
    for _ in range(30):
        fit = given.evidence.solve(given.batches())
    value = given.evidence.value(fit)
    hyper = [given.evidence.prior.log_precisions, given.evidence.likelihood.log_noise]
    assert all(float(slope.abs().max()) < 1e-3 for slope in torch.autograd.grad(value, hyper))
    layer = given.model.network[2]
    assert torch.equal(layer.weight, fit.mean[:, :-1]) and torch.equal(layer.bias, fit.mean[:, -1])


# --- the optimum --------------------------------------------------------------------------------


def test_the_bound_is_below_the_integral_and_near_it() -> None:
    """One feature and two classes: the evidence is an integral over two weights."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Tanh(), nn.Linear(1, 2, bias=False)).double()
    prior = GaussianPrior(network, ("1.weight",), "scalar", 0.5)
    evidence = ElboEvidence(network, Categorical(), prior, "1", pairs=4096)
    inputs = numbers(12, 1, seed=1)
    targets = (inputs[:, 0] + numbers(12, seed=2) > 0).long()
    fit = evidence.fit([Batch(inputs, targets, Copies(1), seeded())])
    grid = torch.linspace(-12, 12, 801, dtype=torch.float64)
    weights = torch.cartesian_prod(grid, grid)
    logits = inputs.tanh() @ weights[:, None]  # (weights, examples, classes) by broadcasting
    chosen = logits.log_softmax(-1)[:, torch.arange(12), targets].sum(1)
    density = -0.25 * weights.square().sum(1) + math.log(0.5 / (2 * math.pi))
    integral = (chosen + density).logsumexp(0) + 2 * math.log(24 / 800)
    assert 0 < float(integral - evidence.value(fit).detach()) < 0.2


def test_the_optimum_is_that_of_lbfgs_on_the_same_draws() -> None:
    given = problem(pairs=64)
    fit = given.evidence.fit(given.batches())
    features = given.features().detach()
    value = float(given.evidence.value(fit))
    written_out = sampled_bound(given, features, fit.mean, fit.root @ fit.root.mT)
    assert value == pytest.approx(float(written_out))
    mean = torch.zeros(CLASSES, FEATURES + 1, dtype=torch.float64, requires_grad=True)
    root = torch.eye(FEATURES + 1, dtype=torch.float64).repeat(CLASSES, 1, 1).requires_grad_()
    exact = {"tolerance_grad": 1e-10, "tolerance_change": 1e-14, "line_search_fn": "strong_wolfe"}
    optimiser = torch.optim.LBFGS([mean, root], max_iter=500, **exact)

    def closure() -> Tensor:
        optimiser.zero_grad()
        lower = root.tril()
        loss = -sampled_bound(given, features, mean, lower @ lower.mT)
        loss.backward()
        return loss

    optimiser.step(closure)
    assert value / COUNT == pytest.approx(-float(closure()) / COUNT, abs=1e-5)


def test_sampled_gradients_end_where_the_solve_does() -> None:
    """The paper's way, by the library's own run: one draw a step, a fixed prior."""
    images, labels = bar_tensors()
    found = {}
    for solver, epochs in (("newton", 3), ("sampled", 150)):
        config = replace(
            CONFIG, objective="none", evidence="elbo", elbo_solver=solver, epochs=epochs,
            weight_rate=0.02,
        )  # fmt: skip
        torch.manual_seed(0)
        network = small_network().requires_grad_(False)
        result = isotropy.learn(network, (images, labels), config=config)
        trainer = result.trainer
        with torch.no_grad():
            trainer.prior.log_precisions.zero_()
        found[solver] = trainer.evidence_value("compared").per_example
    assert found["sampled"] == pytest.approx(found["newton"], abs=1e-2)
    assert found["sampled"] < found["newton"] + 1e-3


# --- the gradient by the ranges -----------------------------------------------------------------


def test_the_gradient_is_that_through_the_solve() -> None:
    """Noise replayed: a solve in one graph, by fixed-point steps, differentiated by the ranges."""
    given = problem(pairs=32)
    fit = given.evidence.fit(given.batches())
    ranges = given.model.augmentation.half_widths
    (found,) = given.evidence.gradient(fit, given.batches(), [ranges])

    def unrolled() -> Tensor:
        """Steps on μ along Σ ∂/∂μ, and on Σ⁻¹ along −2 ∂/∂Σ, each of half the length."""
        features, mean, covariance = given.features(), fit.mean, fit.root @ fit.root.mT
        for _ in range(40):
            point = [each.requires_grad_() for each in (mean, covariance)]
            value = sampled_bound(given, features, *point)
            by_mean, by_covariance = torch.autograd.grad(value, point, create_graph=True)
            mean = mean + 0.5 * (covariance @ by_mean[..., None])[..., 0]
            precision = torch.linalg.inv(covariance) - (by_covariance + by_covariance.mT) / 2
            covariance = torch.linalg.inv(precision)
        return sampled_bound(given, features, mean, covariance)

    value = unrolled()
    assert float(value.detach()) == pytest.approx(float(given.evidence.value(fit)), abs=1e-6)
    (expected,) = torch.autograd.grad(-value, ranges)
    assert float(expected.abs().min()) > 1e-2
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_some_of_the_data_gives_a_share_of_the_gradient() -> None:
    given = problem(Gaussian())
    given.evidence.likelihood.check_targets(given.targets, given.targets)
    fit = given.evidence.fit(given.batches())
    ranges = [given.model.augmentation.half_widths]
    halves = list(given.batches(15, 15))
    parts = [given.evidence.gradient(fit, [half], ranges)[0] for half in halves]
    whole = given.evidence.gradient(fit, given.batches(), ranges)[0]
    assert torch.allclose(sum(parts) / 2, whole)


# --- predictions --------------------------------------------------------------------------------


def test_predictions_have_the_moments_of_drawn_layers() -> None:
    given = problem()
    evidence, model = given.evidence, given.model
    fit = evidence.solve(given.batches())
    predictive = HeadPredictive(evidence, fit, model)
    mean, covariance = predictive.outputs(given.inputs, given.noise)
    outputs = []
    for seed in range(4000):
        evidence.set_head(evidence.posterior.draw(seeded(seed)))
        outputs.append(given.features() @ torch.cat(
            [model.network[2].weight, model.network[2].bias[:, None]], 1).mT)  # fmt: skip
    drawn = torch.stack(outputs).detach()
    spread = covariance.diagonal(dim1=1, dim2=2)
    assert torch.allclose(drawn.mean(0), mean, atol=0.1 * float(spread.max().sqrt()))
    assert torch.allclose(drawn.var(0), spread, rtol=0.12)
    assert torch.equal(covariance, spread.diag_embed())
    assert torch.equal(predictive.means(given.inputs, given.noise), mean)
    with pytest.raises(CallerError, match="another network"):
        HeadPredictive(evidence, fit, InvariantModel(nn.Linear(3, 3), model.augmentation))


# --- refusals -----------------------------------------------------------------------------------


def test_a_last_layer_that_is_not_linear_is_refused() -> None:
    for network in (nn.Sequential(nn.Linear(3, 2), nn.Tanh()), nn.Tanh()):
        with pytest.raises(CallerError, match="last layer is Linear, got one that ends in Tanh"):
            head_of(network, torch.zeros(2, 3))
    assert head_of(nn.Linear(3, 2), torch.zeros(2, 3)) == ""


def test_features_beyond_memory_are_refused() -> None:
    check_head_memory(100, 10, 3, 4, torch.device("cpu"))
    with pytest.raises(CallerError, match=r"1,000,000,000 examples × 100,000 features .* GB"):
        check_head_memory(10**9, 10**5, 10, 4, torch.device("cpu"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"objective": "augerino"}, "evidence elbo: expected an objective with an evidence"),
        ({"bound": "function-space"}, "expected the evidence laplace, got elbo"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CallerError, match=sentence):
        LearnConfig(evidence="elbo", **settings).check()


def test_evidences_of_two_kinds_are_not_subtracted() -> None:
    bound = EvidenceValue(-3.0, 2, "none", 1, "scalar", "0", kind="elbo")
    with pytest.raises(CallerError, match="differ in kind"):
        _ = bound - replace(bound, kind="laplace")
    assert bound - replace(bound, nats=-4.0) == 1.0
