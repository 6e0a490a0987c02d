"""Optimisers of the weights, warm-up, rates of scalars and averages, against loops written out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training import SIZE, bumps, numbers, run, small_network, trainer
from torch import Tensor, nn

from isotropy.evidence.training import Trainer
from isotropy.evidence.weight_steps import scalars_of
from isotropy.kernels.captured import adam, held_by, set_rate, sgd
from isotropy.networks.zoo.backbones import backbone
from isotropy.networks.zoo.residual_networks import Bias, Scale
from isotropy.records import load_trainer, save_trainer

PLAIN: dict[str, Any] = {"objective": "none", "start": 0.0}
STILL: dict[str, Any] = {**PLAIN, "burn_in": 99}
"""No transformation, and no hyper step."""


def weights(network: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in network.parameters()]


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-12) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


# --- steps written out ----------------------------------------------------------------------------


def rate_written_out(made: Trainer, step: int, steps: int) -> float:
    """Half a cosine over the run, times a line over the warm-up; step from 1."""
    config = made.config
    progress = (step - 1) / (steps * config.epochs)
    fall = (1 + math.cos(math.pi * progress)) / 2
    rate = config.weight_rate_end + (config.weight_rate - config.weight_rate_end) * fall
    return rate * min(1.0, step / max(1, math.ceil(config.warm_up * steps)))


def descended(made: Trainer, epochs: int) -> list[list[Tensor]]:
    """Weights after every step of whole batches: CE + δ‖θ‖²/2N by plain gradient descent."""
    config, network = made.config, small_network()
    images, labels, _ = bumps()
    slow = {id(parameter) for parameter in scalars_of(network)}
    velocity = [torch.zeros_like(parameter) for parameter in network.parameters()]
    found = []
    for step in range(1, epochs + 1):
        loss = nn.functional.cross_entropy(network(images), labels)
        penalty = sum(parameter.square().sum() for parameter in network.parameters())
        total = loss + config.prior_precision * penalty / (2 * len(images))
        gradients = torch.autograd.grad(total, list(network.parameters()))
        rate = rate_written_out(made, step, 1)
        with torch.no_grad():
            for parameter, v, gradient in zip(
                network.parameters(), velocity, gradients, strict=True
            ):
                v.mul_(config.momentum).add_(gradient)
                along = gradient + config.momentum * v if config.nesterov else v
                factor = config.scalar_rate if id(parameter) in slow else 1.0
                parameter.sub_(rate * factor * along)
        found.append(weights(network))
    return found


DESCENTS: dict[str, dict[str, Any]] = {
    "momentum": {},
    "no momentum": {"momentum": 0.0},
    "nesterov": {"nesterov": True},
    "warm-up": {"warm_up": 3.0, "momentum": 0.5},
    "part of an epoch": {"warm_up": 2.5},
}


@pytest.mark.parametrize("settings", DESCENTS.values(), ids=DESCENTS)
def test_sgd_is_descent_written_out(settings: dict[str, Any]):
    made = trainer(**STILL, batch_size=40, optimiser="sgd", weight_rate=0.2, **settings)
    expected = descended(made, 6)
    for step in range(6):
        made.run_epoch()
        assert_same(weights(made.network), expected[step])


def test_adam_warms_up_too():
    """The first steps of Adam are as long as its rate, wherever they go."""
    made = trainer(**STILL, batch_size=40, warm_up=4.0, weight_rate=0.01)
    for step in (1, 2):
        before = weights(made.network)
        made.run_epoch()
        steps = zip(weights(made.network), before, strict=True)
        moved = torch.cat([(after - earlier).flatten() for after, earlier in steps])
        expected = rate_written_out(made, step, 1)
        assert expected == pytest.approx(0.01 * step / 4, rel=0.2)
        assert float(moved.abs().max()) == pytest.approx(expected, rel=0.05 * step)


def test_a_decay_stands_for_the_prior_where_there_is_none():
    for optimiser in ("adam", "sgd"):
        made = trainer("augerino", optimiser=optimiser)
        (group,) = made.optimisers["weights"].param_groups
        assert group["weight_decay"] == made.config.augerino_decay > 0
        made = trainer("evidence", optimiser=optimiser)
        assert made.optimisers["weights"].param_groups[0]["weight_decay"] == 0


# --- single numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("resnet", 17), ("wrn", 32)])
def test_scalars_are_those_of_fixup(name: str, count: int):
    with torch.device("meta"):
        network = backbone(name, (3, 32, 32), 10)
    modules = [module for module in network.modules() if isinstance(module, Bias | Scale)]
    expected = {id(parameter) for module in modules for parameter in module.parameters()}
    found = scalars_of(network)
    assert {id(parameter) for parameter in found} == expected and len(found) == count


def test_other_parameters_of_one_entry_are_no_scalars():
    """A bias of one output belongs to a layer with weights."""
    network = nn.Sequential(nn.Linear(3, 1), nn.PReLU(), nn.Linear(1, 1), nn.Conv2d(1, 1, 1))
    assert [id(parameter) for parameter in scalars_of(network)] == [id(network[1].weight)]


@pytest.mark.parametrize("make", [adam, sgd])
def test_scalars_have_a_rate_of_their_own(make):
    parameters = [nn.Parameter(torch.ones(size)) for size in (2, 1, 3)]
    optimiser = make(parameters, rate=0.5, scalars=[parameters[1]], scalar_factor=0.1)
    assert [group["lr"] for group in optimiser.param_groups] == [0.5, 0.05]
    set_rate(optimiser, 0.2)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    optimiser.step()
    moved = [1 - float(parameter.detach()[0]) for parameter in parameters]
    along = 1.0 if make is adam else 2.0
    assert moved == pytest.approx([0.2 * along, 0.02 * along, 0.2 * along], rel=1e-6)
    one = make(parameters, rate=0.5, scalars=[parameters[1]], scalar_factor=1.0)
    assert len(one.param_groups) == 1


def test_a_run_moves_scalars_more_slowly():
    def moved(scalar_rate: float) -> tuple[Tensor, Tensor]:
        network = nn.Sequential(small_network(), Bias(), Scale()).double()
        made = trainer(**STILL, network=network, batch_size=40, scalar_rate=scalar_rate)
        made.run_epoch()
        assert len(made.optimisers["weights"].param_groups) == (1 if scalar_rate == 1 else 2)
        return network[0][1].weight.detach(), network[2].scale.detach() - 1

    (first, quick), (second, slow) = moved(1.0), moved(0.25)
    assert torch.equal(first, second)
    torch.testing.assert_close(slow, 0.25 * quick, rtol=1e-9, atol=0)
    assert float(quick.abs()) > 1e-3


def test_what_an_optimiser_holds_is_its_momentum():
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))]
    for momentum, count in ((0.9, 2), (0.0, 0)):
        optimiser = sgd(parameters, rate=0.1, momentum=momentum)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        assert len(list(held_by(optimiser))) == count


# --- averages -------------------------------------------------------------------------------------


def averaged(path: list[list[Tensor]], start: list[Tensor], decay: float) -> list[Tensor]:
    """The average after these steps, by hand."""
    found = [each.clone() for each in start]
    for step, current in enumerate(path, 1):
        d = min(decay, (1 + step) / (10 + step))
        found = [d * old + (1 - d) * new for old, new in zip(found, current, strict=True)]
    return found


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_the_network_has_the_average_between_epochs(optimiser: str):
    plain = trainer(**STILL, epochs=4, optimiser=optimiser)
    start, path = weights(plain.network), []
    for epoch in range(1, 5):
        plain.weight_steps.epoch(epoch, lambda _: path.append(weights(plain.network)))
    assert len(path) == 8
    made = trainer(**STILL, epochs=4, optimiser=optimiser, ema_decay=0.5)
    for epoch in range(1, 5):
        made.run_epoch()
        assert_same(weights(made.network), averaged(path[: 2 * epoch], start, 0.5))
        assert_same(list(made.weight_steps.average.state().values()), path[2 * epoch - 1], 0)
    assert not torch.allclose(weights(made.network)[0], path[-1][0], rtol=1e-3)


def test_evidence_and_scores_are_at_the_average():
    made, other = trainer(epochs=3, ema_decay=0.8), trainer(epochs=3)
    run(made)
    other.epoch = made.epoch
    for name, module in made.modules().items():
        other.modules()[name].load_state_dict(module.state_dict())
    assert made.final_evidence().nats == other.final_evidence().nats
    images, labels, _ = bumps(20, seed=1)
    assert made.score(images, labels) == other.score(images, labels)
    with made.weight_steps.average.trained():
        assert made.final_evidence().nats != other.final_evidence().nats
        assert made.score(images, labels) != other.score(images, labels)
    assert made.final_evidence().nats == other.final_evidence().nats


def test_a_step_that_fails_leaves_the_average_in_the_network(monkeypatch: pytest.MonkeyPatch):
    made = trainer(**STILL, ema_decay=0.5)
    made.run_epoch()
    before = weights(made.network)

    def fail(*_: Tensor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(made.weight_steps, "take", fail)
    with pytest.raises(KeyboardInterrupt):
        made.run_epoch()
    assert_same(weights(made.network), before, 0)


def normalised() -> nn.Module:
    """With running statistics, a count of batches, a constant and a frozen layer."""
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(SIZE**2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8),
        nn.Tanh(), nn.Linear(8, 2),
    ).double()  # fmt: skip
    network[4].requires_grad_(False)
    network.register_buffer("constant", torch.tensor([1 / 3, math.pi]).double())
    return network


def test_running_statistics_are_averaged_and_constants_stay():
    torch.manual_seed(0)
    network = normalised()
    made = trainer(network=network, ema_decay=0.9, epochs=3)
    before = {name: each.clone() for name, each in network.state_dict().items()}
    run(made)
    kept = made.weight_steps.average.state()
    assert not torch.equal(kept["2.running_mean"], network[2].running_mean)
    assert not torch.equal(before["2.running_mean"], network[2].running_mean)
    for name in ("constant", "4.weight", "4.bias"):
        assert torch.equal(network.state_dict()[name], before[name])
    assert "4.weight" not in kept and "2.num_batches_tracked" not in kept


# --- interrupted ----------------------------------------------------------------------------------

RESUMED: dict[str, dict[str, Any]] = {
    "sgd": {"optimiser": "sgd"},
    "nesterov": {"optimiser": "sgd", "nesterov": True, "warm_up": 4.0},
    "no momentum": {"optimiser": "sgd", "momentum": 0.0},
    "average": {"ema_decay": 0.9},
    "average of sgd": {"optimiser": "sgd", "ema_decay": 0.9, "prior_steps": 4},
    "scalars": {"scalar_rate": 0.1, "ema_decay": 0.5},
    "ranges by the loss": {"objective": "augerino", "optimiser": "sgd", "ema_decay": 0.9},
}


@pytest.mark.parametrize("settings", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_run_ends_like_an_unbroken_one(
    settings: dict[str, Any], stop: int, tmp_path: Path
):
    def made() -> Trainer:
        torch.manual_seed(0)
        network = nn.Sequential(normalised(), Bias(), Scale()).double()
        return trainer(network=network, epochs=5, prior_structure="tensor", **settings)

    whole, first, second = made(), made(), made()
    expected = run(whole)
    records = [first.run_epoch() for _ in range(stop)]
    save_trainer(tmp_path, first, [record.as_dict() for record in records], {})
    load_trainer(tmp_path, second, {})
    records += [second.run_epoch() for _ in range(5 - stop)]
    assert numbers(records) == numbers(expected)
    for name, module in whole.modules().items():
        for key, tensor in module.state_dict().items():
            assert torch.equal(second.modules()[name].state_dict()[key], tensor), (name, key)
    for key, tensor in whole.weight_steps.state().items():
        assert torch.equal(second.weight_steps.state()[key], tensor), key
    before, after = (each.optimisers["weights"].state_dict()["state"] for each in (whole, second))
    assert before.keys() == after.keys()
    for index, moments in before.items():
        assert all(torch.equal(after[index][key], moment) for key, moment in moments.items())
