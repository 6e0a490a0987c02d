"""Copies with weights: their average, and KFAC by (Σ w g) ⊗ (Σ w a)."""

from __future__ import annotations

import pytest
import torch
from network_cases import LIKELIHOODS, NETWORKS, NORMS, assert_equal, relative_difference
from oracles.dense_fisher import sandwich, weighted_average, weighted_jacobian, weighted_outputs
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Likelihood

COUNT = 3
WEIGHTS = torch.tensor([0.5, 0.125, 0.375], dtype=torch.float64)
EIGHTHS = (4, 1, 3)


def blocks(
    network: nn.Module, rows: Tensor, copies: Copies, likelihood: Likelihood
) -> dict[str, Tensor]:
    factors = KFAC(network).batch(rows, copies, likelihood).factors()
    scale = likelihood.curvature_scale().detach()
    return {name: scale * block.dense(COUNT) for name, block in factors.items()}


def repeated(rows: Tensor) -> Tensor:
    """Eight equal copies in place of three weighted ones: the same average."""
    parts = rows.unflatten(0, (-1, 3))
    return parts.repeat_interleave(torch.tensor(EIGHTHS), 1).flatten(0, 1)


# --- the average --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_the_mean_is_weighted_copy_by_copy(shape: tuple[int, ...]):
    rows = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).double()
    assert_equal(Copies(3, WEIGHTS).mean(rows), weighted_average(rows, WEIGHTS), "weighted")
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert_equal(Copies(3).mean(rows), weighted_average(rows, third), "equal")
    assert Copies(3).split(rows).shape == (2, 3, *shape)


def test_the_mean_is_differentiable_in_rows_and_weights():
    rows = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = [rows.requires_grad_(), WEIGHTS.clone().requires_grad_()]
    assert torch.autograd.gradcheck(lambda r, w: Copies(3, w).mean(r), inputs)
    assert torch.autograd.gradgradcheck(lambda r, w: Copies(3, w).mean(r), inputs)


def test_the_mean_keeps_single_precision():
    assert Copies(3, WEIGHTS).mean(torch.ones(3, 2)).dtype == torch.float32


@pytest.mark.parametrize("weights", [torch.ones(2), torch.ones(3, 1), torch.ones(())])
def test_one_weight_a_copy(weights: Tensor):
    with pytest.raises(CallerError, match=r"weights of copies: expected \(3,\), one a copy, got"):
        Copies(3, weights)


# --- KFAC ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_weights_of_eighths_are_eight_equal_copies(network: str, likelihood: str):
    """In every layer: a copy of weight k/8 is the same as k copies of weight ⅛."""
    case, kind = NETWORKS[network], LIKELIHOODS[likelihood]
    built, rows = case.network(), case.rows(COUNT, 3)
    found = blocks(built, rows, Copies(3, WEIGHTS), kind.build())
    expected = blocks(built, repeated(rows), Copies(8), kind.build())
    assert found.keys() == expected.keys()
    for name, block in expected.items():
        assert_equal(found[name], block, name)


@pytest.mark.parametrize("network", ["mlp", "tokens", "cnn", "scalars", *NORMS, "transformer"])
def test_equal_weights_are_no_weights(network: str):
    case, kind = NETWORKS[network], LIKELIHOODS["categorical"]
    built, rows = case.network(), case.rows(COUNT, 4)
    equal = Copies(4, torch.full((4,), 0.25, dtype=torch.float64))
    found = blocks(built, rows, equal, kind.build())
    for name, block in blocks(built, rows, Copies(4), kind.build()).items():
        assert_equal(found[name], block, name)


def test_one_linear_layer_is_exact():
    """With Gaussian likelihood, whatever the copies and their weights."""
    case, kind = NETWORKS["linear"], LIKELIHOODS["gaussian"]
    built, rows = case.network(), 5 * case.rows(COUNT, 3)
    outputs = weighted_outputs(built, rows, WEIGHTS)
    found = blocks(built, rows, Copies(3, WEIGHTS), kind.build())
    assert set(found) == {"0.weight", "0.bias"}
    for name, block in found.items():
        jacobian = weighted_jacobian(built, (name,), rows, WEIGHTS)
        assert_equal(block[0], sandwich(jacobian, kind.curvature(outputs)), name)


def test_a_copy_without_weight_does_not_count():
    case, kind = NETWORKS["mlp"], LIKELIHOODS["categorical"]
    built, rows = case.network(), case.rows(COUNT, 3)
    weights = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
    first = blocks(built, rows, Copies(3, weights), kind.build())
    rows[2::3] += 10.0
    other = blocks(built, rows, Copies(3, weights), kind.build())
    for name, block in first.items():
        assert_equal(other[name], block, name)


def test_other_weights_are_noticed():
    case, kind = NETWORKS["mlp"], LIKELIHOODS["categorical"]
    built, rows = case.network(), case.rows(COUNT, 3)
    found = blocks(built, rows, Copies(3, WEIGHTS.flip(0)), kind.build())
    right = blocks(built, repeated(rows), Copies(8), kind.build())
    assert all(relative_difference(found[name], right[name]) > 1e-2 for name in right)
