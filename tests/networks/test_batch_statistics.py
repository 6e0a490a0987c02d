"""Batch normalisation: batch statistics in weight steps, running ones everywhere else."""

from __future__ import annotations

import pytest
import torch
from numerics import numbers
from torch import nn
from torch.nn import functional

import isotropy
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.batch_statistics import (
    described,
    find_first_statistics,
    fix_statistics,
    sentence,
    use_batch_statistics,
)


def network(**options: object) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU(), nn.Flatten(),
            nn.Linear(36 * 4, 2),
        ).double()  # fmt: skip


def images(count: int) -> torch.Tensor:
    return 3 + 5 * numbers(count, 1, 8, 8, seed=2)


def test_first_statistics_are_the_mean_over_batches():
    net, data = network(), images(130)
    assert find_first_statistics(net, data) == ["1"]
    # Oracle: by hand, batch by batch, with the unbiased variance that torch keeps.
    seen = [functional.conv2d(part, net[0].weight, net[0].bias) for part in data.tensor_split(2)]
    rows = [part.movedim(1, -1).flatten(0, -2) for part in seen]
    torch.testing.assert_close(net[1].running_mean, sum(r.mean(0) for r in rows) / 2)
    torch.testing.assert_close(net[1].running_var, sum(r.var(0) for r in rows) / 2)
    # The outputs of the normalisation are near mean 0 and variance 1 from the start.
    net.eval()
    normalised = net[1](torch.cat(seen))
    assert normalised.mean((0, 2, 3)).abs().max() < 0.05
    assert (normalised.var((0, 2, 3)) - 1).abs().max() < 0.05


def test_first_statistics_leave_everything_else_alone():
    net, data = network(momentum=0.3), images(9)
    net.train()
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    state = torch.get_rng_state()
    find_first_statistics(net, data)
    assert torch.equal(state, torch.get_rng_state())
    assert net[1].momentum == 0.3 and all(module.training for module in net.modules())
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, weights[name])
    known = net[1].running_mean.clone()
    assert find_first_statistics(net, data + 1) == []  # a layer that has seen a batch keeps it
    assert torch.equal(net[1].running_mean, known)


def test_one_example_and_frozen_layers_change_nothing():
    net = network()
    assert find_first_statistics(net, images(1)) == []
    net[1].weight.requires_grad_(False)
    assert find_first_statistics(net, images(9)) == []
    use_batch_statistics(net)
    assert not net[1].training


def test_modes():
    net = network().eval()
    use_batch_statistics(net)
    assert net[1].training and not net[0].training
    fix_statistics(net)
    assert not net[1].training


def test_sentences():
    assert described(nn.Linear(2, 2)) is None and sentence(nn.Linear(2, 2)) is None
    net = network()
    assert described(net) == {
        "layers": 1, "held": [], "training": "batch statistics",
        "evaluation": "running statistics",
    }  # fmt: skip
    assert "1 layer)" in sentence(net) and "running statistics" in sentence(net)
    net[1].weight.requires_grad_(False)
    assert "frozen" in sentence(net)


@pytest.fixture(scope="module")
def learned() -> isotropy.LearnResult:
    net = network()
    data, labels = images(40), torch.arange(40) % 2
    data[labels == 1] += 4.0
    config = LearnConfig(epochs=2, samples=2, test_samples=2, search=False, batch_size=13,
                         curvature_batch=10)  # fmt: skip
    return isotropy.learn(net, (data, labels), actions=isotropy.affine(("rotation",)),
                          config=config)  # fmt: skip


def test_learn_moves_running_statistics_and_says_so(learned: isotropy.LearnResult):
    trained = learned.trainer.network[1]
    start = network()
    find_first_statistics(start, learned.trainer.inputs)
    assert int(trained.num_batches_tracked) == 1 + 2 * 4  # the first pass, and eight steps
    assert not torch.equal(trained.running_mean, start[1].running_mean)
    assert learned.record["batch_norm"]["training"] == "batch statistics"
    assert any("batch normalisation (1 layer)" in note for note in learned.record["notes"])


def test_weights_in_front_count_by_their_direction(learned: isotropy.LearnResult):
    assert set(learned.trainer.prior.scale_invariant) == {"0"}


def test_the_evidence_uses_running_statistics(learned: isotropy.LearnResult):
    """One example alone has the same outputs as among others."""
    trainer = learned.trainer
    (batch, *_) = trainer.orbit_batches("final")
    together = trainer.evidence.curvature.batch(batch.rows, batch.copies, trainer.likelihood)
    alone = trainer.evidence.curvature.batch(batch.rows[:2], batch.copies, trainer.likelihood)
    torch.testing.assert_close(together.outputs[:1], alone.outputs)


def test_a_step_on_one_row_uses_running_statistics():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    data, labels = images(5), torch.arange(5) % 2
    config = LearnConfig(epochs=1, samples=1, test_samples=1, search=False, batch_size=2,
                         objective="none")  # fmt: skip
    result = isotropy.learn(net, (data, labels), config=config)
    assert int(result.trainer.network[2].num_batches_tracked) == 1 + 2
