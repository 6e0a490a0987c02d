"""The autoencoder: standardising, and the loss of pairs against loops over pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.networks.invariant_autoencoder import (
    InvariantAutoencoder,
    best_constant,
    invariance_loss,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def eq_2(distance: float, found: float, size: int) -> float:
    return float((1 / (1 + distance**2 / size) - 1 / (1 + found**2 / size)) ** 2)


def test_loss_of_same_or_not_is_eq_2_with_infinite_distances() -> None:
    first, second = drawn(4, 3), drawn(4, 3, seed=1)
    same, different = [], []
    for i in range(4):
        for j in range(4):
            found = float((first[i] - second[j]).norm())
            (same if i == j else different).append(eq_2(0.0 if i == j else 1e9, found, 3))
    expected = sum(same) / 4 + sum(different) / 12
    assert float(invariance_loss(first, second)) == pytest.approx(expected, rel=1e-12)


def test_loss_of_distances_is_eq_2() -> None:
    first, second, distances = drawn(5, 3), drawn(5, 3, seed=1), drawn(5, seed=2).abs()
    found = (first - second).norm(dim=1)
    expected = [eq_2(float(d), float(f), 3) for d, f in zip(distances, found, strict=True)]
    assert float(invariance_loss(first, second, distances)) == pytest.approx(sum(expected) / 5)


def test_the_best_constant_is_the_lowest_of_all_constants() -> None:
    """Codes of one distance: on a line for triples; any closeness c for same or not."""
    distances = torch.tensor([0.0, 0.0, 1.0, 4.0], dtype=torch.float64)
    zero = torch.zeros(4, 2, dtype=torch.float64)
    values = []
    for step in torch.linspace(0, 4, 401, dtype=torch.float64):
        values.append(float(invariance_loss(zero, zero + step / 2**0.5, distances)))
    assert best_constant(2, distances) == pytest.approx(min(values), rel=1e-3)
    constants = torch.linspace(0, 1, 1001, dtype=torch.float64)
    assert float(((1 - constants) ** 2 + constants**2).min()) == best_constant(2)


def test_samples_are_standardised_by_training_statistics_that_are_saved() -> None:
    samples = 5 + 3 * drawn(50, 2, 3).float()
    samples[:, 0, 0] = 7.0
    model = InvariantAutoencoder((2, 3), 4, 2)
    model.standardise_by(samples)
    standard = model.standardised(samples)
    torch.testing.assert_close(standard.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    expected = torch.tensor([0.0, 1, 1, 1, 1, 1])
    torch.testing.assert_close(standard.std(0, correction=0), expected)
    assert model(samples).shape == (50, 4)
    assert model.codes(standard)[1].shape == (50, 2)
    assert model.reconstruct(samples).shape == samples.shape
    other = InvariantAutoencoder((2, 3), 4, 2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(samples), model(samples))
    with pytest.raises(CallerError, match=r"expected \(2, 3\) for each.*got \(3, 2\)"):
        model(samples.transpose(1, 2))


def test_the_loss_reconstructs_both_samples() -> None:
    model = InvariantAutoencoder((4,)).double()
    first, second = drawn(6, 4), drawn(6, 4, seed=1)
    invariance, reconstruction = model.loss(first, second)
    rebuilt = [(model.reconstruct(each) - each).detach() for each in (first, second)]
    expected = sum(float(each.square().mean()) for each in rebuilt) / 2
    assert reconstruction.item() == pytest.approx(expected)
    assert invariance.item() == pytest.approx(invariance_loss(model(first), model(second)).item())


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_gradients_are_finite_for_equal_constant_and_zero_samples(value: float) -> None:
    model = InvariantAutoencoder((4,))
    samples = torch.full((6, 4), value)
    model.standardise_by(samples)
    invariance, reconstruction = model.loss(*[model.standardised(samples)] * 2)
    (invariance + reconstruction).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_gradcheck_of_the_loss_at_equal_codes() -> None:
    codes = drawn(3, 2)[:1].expand(3, 2).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda both: invariance_loss(both, both.detach()), (codes,))
    distances = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda both: invariance_loss(both, torch.zeros_like(both), distances), (codes,)
    )
