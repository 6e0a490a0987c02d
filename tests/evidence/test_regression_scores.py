"""Errors and log likelihoods of regressions, in the units of standardised and of own targets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from isotropy.evidence.predictive import Scores, plain_scores, score
from isotropy.likelihoods import Categorical, Gaussian
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.symmetry.actions.catalogue import actions_named

DEVIATIONS, NOISE = (3.0, 0.5), 0.7


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor, Gaussian]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    likelihood = Gaussian(NOISE)
    network = nn.Linear(4, 2).double()
    likelihood.check_targets(targets, network(inputs))
    return network, inputs, targets, likelihood


@pytest.mark.parametrize("averaged", [False, True])
def test_scores_by_numpy(averaged: bool) -> None:
    network, inputs, targets, likelihood = problem()
    if averaged:
        own = augmentation_over(actions_named(["scale"], (4,)), dtype=torch.float64)
        for parameter in own.learnable():
            parameter.data.zero_()  # all copies are the example itself
        model = InvariantModel(network, own, samples=3)
        found = score(model, likelihood, inputs, targets, copies=3)
    else:
        found = plain_scores(network, likelihood, inputs, targets)
    outputs = network(inputs).detach().numpy()
    errors = (outputs - targets.numpy()) * DEVIATIONS
    scaled = found.in_units(DEVIATIONS)
    assert scaled.accuracy is None
    assert scaled.squared_errors == pytest.approx((errors**2).mean(0), rel=1e-6)
    assert scaled.rmse == pytest.approx(math.sqrt((errors**2).mean()), rel=1e-6)
    density = stats.norm.logpdf(errors, scale=NOISE * np.array(DEVIATIONS)).sum(1).mean()
    assert scaled.log_likelihood == pytest.approx(density, rel=1e-6)
    assert found.in_units(None) is found


def test_classes_have_no_error() -> None:
    network, inputs, _, _ = problem()
    found = plain_scores(network, Categorical(), inputs, torch.arange(30) % 2)
    assert found.rmse is None and found.in_units(DEVIATIONS) is found
    assert isinstance(found, Scores) and 0 <= found.accuracy <= 1
