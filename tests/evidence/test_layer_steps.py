"""Steps of relaxed layers: precisions that foresee the weights, Adam with a proximal prior."""

from __future__ import annotations

import pytest
import torch
from numerics import numbers
from torch import nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.evidence.layers.pruning import MovingMode, ProximalAdam
from isotropy.likelihoods import Categorical, likelihood_named


def _linear_model(precision: float):
    """A linear network with Gaussian noise at its mode for this precision."""
    inputs = numbers(30, 4)
    targets = inputs @ numbers(4, 2, seed=1) * 0.3 + numbers(30, 2, seed=2)
    network = nn.Linear(4, 2, bias=False).double()
    likelihood = likelihood_named("gaussian").double()
    prior = GaussianPrior(network, ("weight",), "tensor", precision)
    evidence = LaplaceEvidence(network, likelihood, prior, KFAC(network))
    return network, evidence, inputs, targets


def _to_mode(network, evidence, inputs, targets, precision: float) -> None:
    scale = float(evidence.curvature.kind.scale(evidence.likelihood).detach())
    gram = scale * inputs.T @ inputs + precision * torch.eye(4, dtype=torch.float64)
    with torch.no_grad():
        network.weight.copy_(torch.linalg.solve(gram, scale * inputs.T @ targets).T)


def _fit(evidence, inputs, targets, **options):
    return evidence.fit([Batch(inputs, targets, Copies(1))], **options)


def test_for_a_linear_model_it_is_the_evidence_with_weights_refitted() -> None:
    network, evidence, inputs, targets = _linear_model(2.0)
    _to_mode(network, evidence, inputs, targets, 2.0)
    fit = _fit(evidence, inputs, targets)
    moving, start = MovingMode(evidence, fit), float(evidence.value(fit))
    first = float(moving.loss())
    for precision in (0.01, 0.5, 30.0, 1e5):
        with torch.no_grad():
            evidence.prior.log_precisions.fill_(torch.tensor(precision).log())
        foreseen = first - float(moving.loss())
        _to_mode(network, evidence, inputs, targets, precision)
        refitted = float(evidence.value(_fit(evidence, inputs, targets))) - start
        assert foreseen == pytest.approx(refitted, rel=1e-6, abs=1e-8)


def test_its_slope_at_the_start_is_that_of_the_evidence() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    names = tuple(name for name, _ in network.named_parameters())
    prior = GaussianPrior(network, names, "tensor", 0.8)
    evidence = LaplaceEvidence(network, Categorical(), prior)
    inputs = torch.randn(20, 5, dtype=torch.float64)
    fit = _fit(evidence, inputs, torch.randint(3, (20,)))
    (ours,) = torch.autograd.grad(MovingMode(evidence, fit).loss(), prior.log_precisions)
    (theirs,) = torch.autograd.grad(-evidence.value(fit), prior.log_precisions)
    torch.testing.assert_close(ours, theirs)


def test_eigenvalues_alone_are_refused() -> None:
    _, evidence, inputs, targets = _linear_model(1.0)
    fit = _fit(evidence, inputs, targets, values_only=True)
    with pytest.raises(CallerError, match="eigenvectors"):
        MovingMode(evidence, fit)


# --- Adam with a proximal prior ----------------------------------------------------------------


def _problem() -> tuple[nn.Parameter, torch.Tensor, torch.Tensor]:
    return nn.Parameter(numbers(5, seed=2)), numbers(12, 5), numbers(12, seed=1)


def _step(optimiser: ProximalAdam, weight: nn.Parameter, matrix, wanted) -> None:
    optimiser.zero_grad()
    (0.5 * (matrix @ weight - wanted).square().mean()).backward()
    optimiser.step()


def test_without_a_prior_it_is_torchs_adam():
    weight, matrix, wanted = _problem()
    twin = nn.Parameter(weight.detach().clone())
    ours = ProximalAdam([weight], rate=0.01)
    theirs = torch.optim.Adam([twin], lr=0.01)
    for _ in range(20):
        _step(ours, weight, matrix, wanted)
        theirs.zero_grad()
        (0.5 * (matrix @ twin - wanted).square().mean()).backward()
        theirs.step()
    torch.testing.assert_close(weight, twin, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("decay", [0.1, 10.0])
def test_it_rests_where_loss_and_prior_balance(decay):
    weight, matrix, wanted = _problem()
    optimiser = ProximalAdam([weight], rate=0.05)
    optimiser.decays.fill_(decay)
    for step in range(1500):
        optimiser.rate.fill_(0.05 * 0.5 ** (step / 100))
        _step(optimiser, weight, matrix, wanted)
    gram = matrix.T @ matrix / 12 + decay * torch.eye(5, dtype=torch.float64)
    exact = torch.linalg.solve(gram, matrix.T @ wanted / 12)
    torch.testing.assert_close(weight.detach(), exact, rtol=1e-4, atol=1e-6)


def test_no_precision_is_too_high():
    weight = nn.Parameter(torch.randn(50, generator=torch.Generator().manual_seed(1)))
    optimiser = ProximalAdam([weight], rate=0.01)
    optimiser.decays.fill_(1e9)
    for _ in range(50):
        optimiser.zero_grad()
        (weight - 1).square().sum().backward()
        optimiser.step()
        assert torch.isfinite(weight).all()
    assert weight.abs().max() < 1e-6


def test_a_parameter_without_a_gradient_only_decays():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimiser = ProximalAdam([used, unused], rate=0.01)
    optimiser.decays.copy_(torch.tensor([0.0, 1.0]))
    used.sum().backward()
    optimiser.step()
    assert (used < 1).all() and (unused.abs() < 1e-3).all()


def test_a_state_that_is_taken_over_goes_on_as_if_nothing_had_happened() -> None:
    def optimiser(start: float) -> ProximalAdam:
        return ProximalAdam([nn.Parameter(torch.full((2,), start))], rate=0.1)

    def steps(steps: ProximalAdam, count: int) -> None:
        for _ in range(count):
            steps.parameters[0].grad = 1 - steps.parameters[0].detach()
            steps.step()

    one, other = optimiser(3.0), optimiser(0.0)
    steps(one, 3)
    addresses = [each.data_ptr() for each in other.state()]
    other.load_state_dict(one.state_dict())
    other.parameters[0].data.copy_(one.parameters[0])
    assert [each.data_ptr() for each in other.state()] == addresses
    steps(one, 2)
    steps(other, 2)
    assert torch.equal(one.parameters[0], other.parameters[0])
    assert all(torch.equal(a, b) for a, b in zip(one.state(), other.state(), strict=True))
