"""How many examples an evidence pass holds: less for large maps, and never another result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence import machine as sizing
from isotropy.evidence.laplace import Batch, LaplaceEvidence
from isotropy.evidence.machine import CACHE_BYTES, GPU_BYTES, JACOBIAN_BYTES, fit_curvature_batch
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.settings import LearnConfig, resolve
from isotropy.likelihoods import Categorical
from isotropy.networks.zoo.backbones import cnn, mlp

SHAPE = (1, 28, 28)


def sized(network: nn.Module, samples: int = 16) -> int:
    config = resolve(LearnConfig(samples=samples), examples=2000, on_gpu=False)
    batch = fit_curvature_batch(config, network, torch.zeros(1, *SHAPE)).curvature_batch
    assert batch is not None
    return batch


def test_one_hidden_layer_is_served_by_shortcuts() -> None:
    network = mlp(SHAPE, 10)
    assert KFAC(network).widest_map(torch.zeros(1, *SHAPE)) == 0
    assert sized(network) == 125


def test_large_maps_lower_the_batch() -> None:
    network = cnn(SHAPE, 10)
    widest = 6 * 24 * 24
    assert KFAC(network).widest_map(torch.zeros(1, *SHAPE)) == widest
    assert sized(network) == int(CACHE_BYTES / (widest * 16 * 4)) < 125
    assert sized(network, samples=1000) == 4


def test_a_gpu_holds_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a pass is launched batch by batch, and the larger the better."""
    config = resolve(LearnConfig(samples=31), examples=60_000, on_gpu=True)
    place, example = torch.device("cuda"), torch.zeros(1, *SHAPE)

    def batch(network: nn.Module, free: float) -> int | None:
        monkeypatch.setattr(sizing, "free_bytes", lambda _: int(free))
        return fit_curvature_batch(config, network, example, place).curvature_batch

    assert batch(mlp(SHAPE, 10), 100e9) == 4000
    assert 1000 < (batch(mlp(SHAPE, 10), 2e9) or 0) < 2000
    large, small = batch(cnn(SHAPE, 10), 100e9), batch(cnn(SHAPE, 10), 2e9)
    assert large is not None and small is not None
    assert 400 < large < 2000 and small == pytest.approx(large * 1e9 / GPU_BYTES, abs=1)


def test_a_network_that_does_not_fit_is_left_to_the_trainer() -> None:
    assert sized(nn.Sequential(nn.Flatten(), nn.Linear(5, 2))) == 125


@pytest.mark.parametrize("structure", ("diagonal", "full", "last-layer"))
def test_gradients_of_every_example_must_fit(structure: str) -> None:
    """Other kinds than kfac hold one gradient an example and direction."""
    network = mlp(SHAPE, 10, hidden=100)
    config = resolve(LearnConfig(curvature=structure), examples=2000, on_gpu=False)
    found = fit_curvature_batch(config, network, torch.zeros(1, *SHAPE)).curvature_batch
    numbers = 784 * 100 + 100 + 100 * 10 + 10
    assert found == int(JACOBIAN_BYTES / (40 * numbers * 4)) < 125
    small = mlp((4,), 3, hidden=5)
    assert fit_curvature_batch(config, small, torch.zeros(1, 4)).curvature_batch == 125


@pytest.mark.parametrize("batch", (1, 3, 8))
def test_the_evidence_does_not_depend_on_it(batch: int) -> None:
    torch.manual_seed(0)
    network = cnn(SHAPE, 3).double()
    kfac = KFAC(network)
    prior = GaussianPrior(network, kfac.parameter_names)
    evidence = LaplaceEvidence(network, Categorical(), prior, kfac)
    rows, labels = torch.rand(16, *SHAPE, dtype=torch.float64), torch.arange(8) % 3
    parts = [
        Batch(some, targets, Copies(2))
        for some, targets in zip(rows.split(2 * batch), labels.split(batch), strict=True)
    ]
    whole = evidence.value(evidence.fit([Batch(rows, labels, Copies(2))]))
    torch.testing.assert_close(evidence.value(evidence.fit(parts)), whole, rtol=1e-10, atol=0)
