"""Means over copies of a function and its slope: torch's own, however many examples at a time."""

from __future__ import annotations

import pytest
import torch
from network_cases import assert_equal
from torch import Tensor, nn

from isotropy.curvature import copy_means
from isotropy.curvature.activations import GELU, RELU, SIGMOID, SILU, TANH, Activation
from isotropy.curvature.copies import Copies
from isotropy.curvature.copy_means import means_over_copies
from isotropy.curvature.kfac import KFAC
from isotropy.likelihoods import Categorical

EXACTLY = 1e-12
ACTIVATIONS = {"tanh": TANH, "relu": RELU, "sigmoid": SIGMOID, "silu": SILU, "gelu": GELU}
COPIES, EXAMPLES, FEATURES = 3, 5, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_torch(inputs: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    values = activation.value(inputs)
    (slopes,) = torch.autograd.grad(
        values, inputs, torch.ones_like(values), create_graph=True, retain_graph=True
    )
    return values.reshape(-1, COPIES, FEATURES).mean(1), slopes.reshape(-1, COPIES, FEATURES).mean(
        1
    )


@pytest.mark.parametrize("chunk", [1, 2 * COPIES * FEATURES, 10_000])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradient(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_means, "CHUNK", chunk)
    inputs = 2 * drawn(EXAMPLES * COPIES, FEATURES).requires_grad_()
    activation = ACTIVATIONS[name]
    found = means_over_copies(inputs, activation.value(inputs), activation, COPIES)
    expected = by_torch(inputs, ACTIVATIONS[name])
    weights = drawn(2, EXAMPLES, FEATURES, seed=1)
    slopes = []
    for means in (found, expected):
        total = (means[0] * weights[0]).sum() + (means[1] * weights[1]).sum()
        slopes.append(torch.autograd.grad(total, inputs)[0])
    for ours, theirs in zip((*found, slopes[0]), (*expected, slopes[1]), strict=True):
        assert_equal(ours, theirs, name, EXACTLY)


@pytest.mark.parametrize("kind", [nn.Tanh, nn.ReLU, nn.GELU, nn.Softplus])
def test_curvature_is_that_of_equal_weights_given(kind: type[nn.Module]) -> None:
    """Equal weights written out take the general path; blocks and gradients are the same."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, FEATURES), kind(), nn.Linear(FEATURES, 2)).double()
    rows = drawn(EXAMPLES * COPIES, 3).requires_grad_()
    equal = torch.full((COPIES,), 1 / COPIES, dtype=torch.float64)
    results = []
    for copies in (Copies(COPIES), Copies(COPIES, equal)):
        batch = KFAC(network).batch(rows, copies, Categorical(), create_graph=True)
        blocks = [factor for block in batch.factors().values() for factor in block.tensors()]
        size = sum(factor.pow(2).sum() for factor in blocks)
        results.append([*blocks, *torch.autograd.grad(size, rows)])
    for ours, general in zip(*results, strict=True):
        assert_equal(ours, general, kind.__name__, EXACTLY)
