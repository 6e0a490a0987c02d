"""KFAC of several networks at once against `KFAC.batch` of each alone, for every network case."""

from __future__ import annotations

import pytest
import torch
from network_cases import LIKELIHOODS, NETWORKS, assert_equal, mlp
from torch import Tensor, nn

from isotropy.curvature.batches import BatchCurvature
from isotropy.curvature.copies import Copies
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import KINDS
from isotropy.curvature.run_axis import of_run, stack_runs
from isotropy.curvature.stacked_kfac import StackedKFAC

RUNS, COUNT = 2, 3


def networks(name: str) -> list[nn.Module]:
    """The same architecture with other parameters, and other statistics, in every run."""
    made = [NETWORKS[name].network().eval() for _ in range(RUNS)]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in (*made[1].parameters(), *made[1].buffers()):
            if tensor.is_floating_point():
                drawn = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
                tensor.add_(0.3 * drawn)
    return made


def weighted(copies: int) -> list[Copies]:
    drawn = torch.rand(RUNS, copies, generator=torch.Generator().manual_seed(6)).double()
    return [Copies(copies, own / own.sum()) for own in drawn]


def both(
    name: str,
    kind: str = "kfac-ggn",
    likelihood: str = "categorical",
    copies: list[Copies] | None = None,
    create_graph: bool = False,
    directions_at_once: int | None = None,
) -> tuple[Tensor, BatchCurvature, list[BatchCurvature]]:
    """The rows, the stack, and each run alone."""
    copies = copies or [Copies(2)] * RUNS
    curvatures = [KFAC(network, KINDS[kind]) for network in networks(name)]
    rows = NETWORKS[name].rows(RUNS * COUNT, copies[0].count).unflatten(0, (RUNS, -1))
    rows.requires_grad_(create_graph)
    chosen = [LIKELIHOODS[likelihood].build() for _ in range(RUNS)]
    targets = LIKELIHOODS[likelihood].targets(RUNS * COUNT).unflatten(0, (RUNS, -1))
    stacked = StackedKFAC(curvatures, rows[0, :1].detach())
    found = stacked.batch(
        stacked.state(),
        rows,
        stack_runs(copies),
        chosen,
        targets,
        generators=[torch.Generator().manual_seed(run) for run in range(RUNS)],
        create_graph=create_graph,
        directions_at_once=directions_at_once,
    )
    alone = [
        curvature.batch(
            rows[run],
            copies[run],
            chosen[run],
            targets[run],
            generator=torch.Generator().manual_seed(run),
            create_graph=create_graph,
        )
        for run, curvature in enumerate(curvatures)
    ]
    return rows, found, alone


def check_equal(found: BatchCurvature, alone: list[BatchCurvature]) -> None:
    for run, expected in enumerate(alone):
        own = of_run(found, run)
        assert_equal(own.outputs, expected.outputs, "outputs")
        factors = expected.factors()
        assert list(own.factors()) == list(factors)
        for name, block in own.factors().items():
            for got, wanted in zip(block.tensors(), factors[name].tensors(), strict=True):
                assert_equal(got, wanted, f"run {run}, {name}")


def probe(curvature: BatchCurvature) -> Tensor:
    """A number that depends on every factor."""
    blocks = curvature.factors().values()
    return torch.stack([t.square().sum() for block in blocks for t in block.tensors()]).sum()


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_and_their_gradients_are_those_of_each_network_alone(name: str) -> None:
    rows, found, alone = both(name, create_graph=True)
    check_equal(found, alone)
    (expected,) = torch.autograd.grad(torch.stack([probe(own) for own in alone]).sum(), rows)
    stack = torch.stack([probe(of_run(found, run)) for run in range(RUNS)]).sum()
    (got,) = torch.autograd.grad(stack, rows)
    assert_equal(got, expected, f"{name}: gradient by the rows")


@pytest.mark.parametrize("name", ["mlp", "cnn", "mlp, activation last"])
@pytest.mark.parametrize("kind", ["kfac-ggn", "kfac-mc", "kfac-ef"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_fisher_and_likelihood(name: str, kind: str, likelihood: str) -> None:
    _, found, alone = both(name, kind, likelihood)
    check_equal(found, alone)
    assert not any(t.requires_grad for root in found.roots.values() for t in root.tensors())


@pytest.mark.parametrize("name", ["mlp", "cnn", "batch norm"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_weighted_copies_and_directions_at_once(name: str, at_once: int) -> None:
    _, found, alone = both(name, copies=weighted(3), directions_at_once=at_once)
    check_equal(found, alone)


def test_runs_do_not_mix() -> None:
    """With the runs exchanged, blocks are no longer those of each network: the check can fail."""
    _, found, alone = both("mlp")
    with pytest.raises(AssertionError, match="outputs"):
        check_equal(found, alone[::-1])


def test_networks_are_left_as_they_were() -> None:
    network = mlp(4, 3, 3).double().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    stacked = StackedKFAC([KFAC(network)], torch.zeros(1, 4, dtype=torch.float64))
    likelihood = LIKELIHOODS["categorical"].build()
    rows = torch.ones(1, 2, 4, dtype=torch.float64)
    targets = torch.zeros(1, 2, dtype=torch.int64)
    stacked.batch(stacked.state(), rows, Copies(1), [likelihood], targets)
    assert network.training
    assert all(torch.equal(network.state_dict()[name], old) for name, old in before.items())
    assert not any(module._forward_hooks for module in network.modules())


def test_what_is_supported() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.gain

    assert StackedKFAC.supports(KFAC(mlp(4, 3)))
    assert not StackedKFAC.supports(
        KFAC(nn.Sequential(Odd(), nn.Linear(4, 3)), fallback="diagonal")
    )
    assert not StackedKFAC.supports(object())
