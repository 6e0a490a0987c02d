"""Precision steps that foresee the weights: exact for a linear model, and its fixed points."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, LaplaceEvidence
from isotropy.evidence.layers.steps import MovingMode
from isotropy.evidence.priors import GaussianPrior
from isotropy.likelihoods import Categorical, likelihood_named


def _linear_model(precision: float):
    """A linear network with Gaussian noise at its mode for this precision."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    targets = inputs @ torch.randn(4, 2, generator=generator, dtype=torch.float64) * 0.3
    targets = targets + torch.randn(30, 2, generator=generator, dtype=torch.float64)
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
