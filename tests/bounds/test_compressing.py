"""The grid that may be trained, training to short messages, and the count of errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from isotropy.bounds.coding import Prior
from isotropy.bounds.compressing import (
    LARGEST_LEVEL_RATE,
    LEVEL_WALK,
    Compressed,
    Entry,
    Grid,
    Problem,
    Schedule,
    after_fixed_layers,
    bounded_loss,
    compress,
    count_errors,
    fitting,
    suggested,
    train_fully,
)
from isotropy.bounds.inequalities import occam
from isotropy.bounds.subspace import Subspace, projector
from isotropy.checks import CallerError
from isotropy.data.variants import FlipsAndShifts


def two_classes(count: int = 200) -> tuple[Tensor, Tensor]:
    """Points on both sides of a line, (count, 4)."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs @ torch.tensor([1.0, -2.0, 0.5, 0.0]) > 0).long()


def linear() -> nn.Module:
    network = nn.Linear(4, 2)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    return network


def compressed(
    beta: float = 1.0, epochs: int = 20, steps: tuple[float, ...] = (0.25, 0.5, 1.0)
) -> Compressed:
    inputs, targets = two_classes()
    subspace = Subspace(linear(), projector("dense", 10, 6, 0))
    problem = Problem(inputs, targets, Prior(), 5.0, 0.05)
    entry = Entry(6, beta, 0, 0)
    (found,) = compress(subspace, problem, [entry], steps, Schedule(epochs, 20))
    return found


def test_training_finds_a_short_description_that_fits() -> None:
    found = compressed()
    assert found.errors <= 20
    assert found.levels.dtype == torch.int64
    assert found.levels.any()
    assert found.weights == Prior().bits(found.levels, found.scale)
    assert found.bound == occam(found.errors, 200, 5.0 + found.weights, 0.05) < 0.4


def test_the_bounded_loss_lies_between_cross_entropy_and_the_error_of_a_draw() -> None:
    outputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(20) % 4
    right = outputs.softmax(1)[torch.arange(20), targets]
    torch.testing.assert_close(bounded_loss(outputs, targets, 1.0), 1 - right.mean())
    torch.testing.assert_close(bounded_loss(outputs, targets, 0.5), (2 - 2 * right.sqrt()).mean())
    entropy = nn.functional.cross_entropy(outputs, targets)
    torch.testing.assert_close(bounded_loss(outputs, targets, 1e-9), entropy)


def test_a_larger_weight_of_the_code_length_gives_a_shorter_message() -> None:
    assert compressed(beta=200.0).weights < compressed(beta=0.0).weights


def test_training_repeats_itself() -> None:
    one, other = compressed(epochs=4), compressed(epochs=4)
    assert one.levels.equal(other.levels)
    assert one.as_dict() == other.as_dict()


def test_the_step_is_the_declared_one_nearest_to_the_coordinates() -> None:
    assert compressed(epochs=4, steps=(1e-6, 0.5, 1e6)).step == 0.5


def test_every_weight_of_the_length_and_every_step_goes_its_own_way() -> None:
    inputs, targets = two_classes()
    subspace = Subspace(linear(), projector("dense", 10, 6, 0))
    problem = Problem(inputs, targets, Prior(), 5.0, 0.05)
    schedule = Schedule(4, 20, steps_tried=2)
    epochs: list[int] = []
    entries = [Entry(6, beta, 0, 0) for beta in (0.5, 2.0)]
    found = list(compress(subspace, problem, entries, (0.5, 1.0), schedule, epochs.append))
    assert sorted({(each.entry.beta, each.step) for each in found}) == [
        (0.5, 0.5), (0.5, 1.0), (2.0, 0.5), (2.0, 1.0)
    ]  # fmt: skip
    assert sum(epochs) == schedule.total(4) == 3 * 1 + 1 + 4 * 3


@pytest.mark.parametrize(("examples", "epochs", "batch"), [(2000, 60, 100), (60000, 36, 256)])
def test_the_schedule_follows_the_number_of_examples(
    examples: int, epochs: int, batch: int
) -> None:
    assert Schedule.of(examples) == Schedule(epochs, batch)
    assert Schedule.of(examples, epochs=3, batch_size=7) == Schedule(3, 7)
    assert Schedule.of(examples, epochs=3, batch_size=10**30) == Schedule(3, examples)


# --- the grid -------------------------------------------------------------------------------------


def test_the_choices_of_a_grid_are_its_entries() -> None:
    grid = Grid((5, 10), (1.0, 2.0), (1.0,), (4, 8), (0, 1, 2))
    assert grid.choices == len(grid.entries()) == 12
    assert len(set(grid.entries())) == 12


@pytest.mark.parametrize("name", ["dimensions", "steps", "betas", "widths", "seeds"])
def test_only_what_was_declared_can_be_trained(name: str) -> None:
    declared = Grid()
    declared.check_within(declared)
    with pytest.raises(CallerError, match=f"7 is not among the {name} of the declared grid"):
        Grid(**{name: (7,)}).check_within(declared)


@pytest.mark.parametrize(
    "values", [{"dimensions": ()}, {"steps": (1.0, 1.0)}, {"steps": (0.0,)}, {"betas": (-1.0,)}]
)
def test_grids_that_make_no_sense_are_refused(values: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(CallerError, match="of the grid: expected"):
        Grid(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("examples", "dimension"), [(2000, 150), (60000, 700), (10, 50)])
def test_what_is_suggested_follows_the_number_of_examples(examples: int, dimension: int) -> None:
    found = suggested(Grid(), examples)
    found.check_within(Grid())
    assert found.dimensions == (dimension,)
    assert len(found.entries()) == (1 if examples > 5000 else 4)


def test_trials_are_choices_too() -> None:
    grid = Grid((5, 10), seeds=(0,), betas=(1.0,), trials=8)
    assert grid.choices == 16
    assert Grid.from_dict(grid.as_dict()) == grid
    with pytest.raises(CallerError, match="trials of the grid: expected at least 1, got 0"):
        Grid(trials=0)


def test_dimensions_beyond_the_network_are_left_out() -> None:
    assert fitting(Grid(dimensions=(5, 50)), 20).dimensions == (5,)
    with pytest.raises(CallerError, match="the network has 3 weights"):
        fitting(Grid(dimensions=(5, 50)), 3)


# --- counting -------------------------------------------------------------------------------------


def test_errors_are_counted_strictly() -> None:
    outputs = torch.tensor(
        [[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [math.nan, 0.0, 0.0], [0.0, 0.0, 3.0]]
    )
    assert count_errors(nn.Identity(), outputs, torch.tensor([0, 0, 0, 1])) == 3
    assert count_errors(nn.Identity(), outputs[:1], torch.tensor([0])) == 0


def test_all_weights_of_a_start_are_trained() -> None:
    inputs, targets = two_classes()
    network = linear()
    problem = Problem(inputs, targets, Prior(), 0.0, 0.05)
    train_fully(network, problem, Schedule(20, 20, rate=0.1), seed=0)
    assert count_errors(network, inputs, targets) <= 4


# --- speed ----------------------------------------------------------------------------------------


def large_inputs(speeds: tuple[float, ...]) -> Compressed:
    """Inputs a thousand times as large, for which the usual rate is far too fast."""
    inputs, targets = two_classes()
    subspace = Subspace(linear(), projector("dense", 10, 6, 0))
    problem = Problem(1000 * inputs, targets, Prior(), 5.0, 0.05)
    schedule = Schedule(20, 20, rate=3.0, speeds=speeds)
    (found,) = compress(subspace, problem, [Entry(6, 1.0, 0, 0)], (0.01, 0.1, 1.0), schedule)
    return found


def test_the_speed_with_the_least_loss_is_taken() -> None:
    chosen = large_inputs((1.0, 0.3, 0.01))
    assert chosen.levels.equal(large_inputs((0.01,)).levels)
    assert not chosen.levels.equal(large_inputs((1.0,)).levels)


def test_trying_speeds_changes_nothing_else() -> None:
    inputs, targets = two_classes()
    problem = Problem(inputs, targets, Prior(), 5.0, 0.05)
    found = []
    for speeds in ((1.0,), (1.0, 1e-6)):
        subspace = Subspace(linear(), projector("dense", 10, 6, 0))
        schedule = Schedule(8, 20, speeds=speeds)
        found += compress(subspace, problem, [Entry(6, 1.0, 0, 0)], (0.5,), schedule)
    assert found[0].levels.equal(found[1].levels)


def test_noise_moves_levels_by_no_more_than_allowed() -> None:
    """Adam with gradients that are noise alone and a rate falling to zero by a cosine."""
    schedule = Schedule(20, 10, real_share=0.2)
    steps = 16 * 100
    rate = schedule.rate_of_levels(1000)
    assert rate == pytest.approx(2 * LEVEL_WALK / math.sqrt(steps))
    levels = nn.Parameter(torch.zeros(2000))
    optimiser = torch.optim.Adam([levels], rate)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        levels.grad = torch.randn(2000, generator=generator)
        optimiser.step()
    assert 0.8 * LEVEL_WALK < float(levels.detach().std()) < 1.5 * LEVEL_WALK


def test_the_rate_of_levels_can_be_given_and_is_limited() -> None:
    assert Schedule(10, 10, level_rate=0.02).rate_of_levels(1000) == 0.02
    assert Schedule(2, 10).rate_of_levels(10) == LARGEST_LEVEL_RATE


def test_a_start_on_moved_photographs_has_its_own_recipe() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(60) % 2
    inputs = 0.3 * torch.randn(60, 1, 8, 8, generator=generator)
    inputs[:, :, 2:6, 2:6] += targets[:, None, None, None].float()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    problem = Problem(inputs, targets, Prior(), 0.0, 0.05)
    schedule = Schedule(20, 20, rate=0.01)
    train_fully(network, problem, schedule, seed=0, moved=FlipsAndShifts(pixels=1))
    assert count_errors(network, inputs, targets) <= 6
    with torch.no_grad():
        # Labels are smoothed by 0.1, so no probability is near one.
        least = network(inputs).softmax(1).amin(1)
    assert float(least.mean()) > 0.02


# --- layers without weights -----------------------------------------------------------------------


class Halved(nn.Module):
    """A layer without weights that counts its passes."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        Halved.calls += 1
        return inputs / 2


class Whole(nn.Module):
    """A network that is not a plain sequence, so that all of it is computed in every pass."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


def found_with(network: nn.Module) -> tuple[Compressed, int]:
    """What is found, and how often `Halved` was computed."""
    Halved.calls = 0
    subspace = Subspace(network, projector("dense", 10, 6, 0))
    problem = Problem(*two_classes(), Prior(), 5.0, 0.05)
    (found,) = compress(subspace, problem, [Entry(6, 1.0, 0, 0)], (0.5, 1.0), Schedule(4, 20))
    return found, Halved.calls


def test_first_layers_without_weights_are_computed_once() -> None:
    layers = nn.Sequential(Halved(), nn.Flatten(), linear())
    found, calls = found_with(layers)
    other, all_calls = found_with(Whole(layers))
    assert calls == 2  # one example to see its size, then all
    assert all_calls > 40
    assert found.levels.equal(other.levels)
    assert found.as_dict() == other.as_dict()


def test_coordinates_that_were_set_are_where_training_begins() -> None:
    subspace = Subspace(nn.Sequential(Halved(), linear()), projector("dense", 10, 6, 0))
    subspace.coordinates.data.fill_(3.0)
    network, _ = after_fixed_layers(subspace.module, Problem(*two_classes(), Prior(), 5.0, 0.05))
    assert network is not subspace.module
    assert subspace.of(network).coordinates.equal(subspace.coordinates)


def test_a_start_is_trained_in_place_behind_fixed_layers() -> None:
    layers, beside = (nn.Sequential(Halved(), linear()) for _ in range(2))
    problem = Problem(*two_classes(), Prior(), 0.0, 0.05)
    Halved.calls = 0
    train_fully(layers, problem, Schedule(3, 20, rate=0.01), seed=0)
    assert Halved.calls == 2
    train_fully(Whole(beside), problem, Schedule(3, 20, rate=0.01), seed=0)
    assert layers[1].weight.any()
    assert layers[1].weight.equal(beside[1].weight)


@pytest.mark.parametrize("why", ["copies", "memory", "weights", "kind"])
def test_layers_are_left_in_place_where_they_cannot_be_taken_out(why: str) -> None:
    network: nn.Module = nn.Sequential(Halved(), linear())
    problem = Problem(*two_classes(), Prior(), 0.0, 0.05)
    if why == "copies":
        problem = replace(problem, predict=lambda own, inputs: own(inputs.flip(1)))
    elif why == "memory":
        network = nn.Sequential(nn.ConstantPad1d(1, 0.0), nn.Linear(6, 2))
    elif why == "weights":
        network = nn.Sequential(linear(), nn.ReLU())
    else:
        network = Whole(network)
    assert after_fixed_layers(network, problem) == (network, problem)
