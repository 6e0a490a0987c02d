"""Equivariant regression: seeds trained together are seeds trained alone, and symmetry is kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.experiments.thesis.data_efficiency import (
    RegressionSettings,
    augmentation,
    fit_regression,
)
from isotropy.experiments.thesis.problems import (
    RegressionData,
    random_elements,
    regression_problem,
)
from isotropy.experiments.thesis.seed_stack import Best, SeedStack
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.symmetry.groups.catalogue import O13, O, S, SO13p
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Scalar, V

SETTINGS = RegressionSettings(30, batch_size=12, epochs=4, validation=20, test=25)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data_of(name: str, seed: int, examples: int = 90) -> RegressionData:
    """A problem in float64."""
    made = regression_problem(name, generator(seed), examples)
    names = ("inputs", "targets", "input_scale", "target_mean", "target_scale")
    return replace(made, **{each: getattr(made, each).double() for each in names})


def emlp(seed: int, group: Group, channels: int = 16) -> nn.Module:
    made = EMLP(2 * V, Scalar, group, channels=channels, layers=1, generator=generator(seed))
    return made.double()


def mlp(seed: int, sizes: tuple[int, int] = (10, 1)) -> nn.Module:
    torch.manual_seed(seed)
    return plain_mlp(*sizes, channels=8, layers=1).double()


def numbers(results: list) -> list[tuple[float, float, int]]:
    return [(each.test_error, each.validation_error, each.best_epoch) for each in results]


@pytest.mark.parametrize("make", [mlp, lambda seed: emlp(seed, O(5))], ids=["mlp", "emlp"])
@pytest.mark.parametrize("augmented", [False, True], ids=["plain", "augmented"])
def test_seeds_together_are_seeds_alone(make, augmented: bool) -> None:
    data = [data_of("o5", seed) for seed in (0, 1)]
    moved = None
    if augmented:
        moved = augmentation(data[0], O(5), random_elements(O(5), 40, generator(5)))
    both = fit_regression([make(0), make(1)], data, SETTINGS, [generator(0), generator(1)], moved)
    alone = [
        fit_regression([make(seed)], [data[seed]], SETTINGS, [generator(seed)], moved)[0]
        for seed in (0, 1)
    ]
    for together, by_itself in zip(numbers(both), numbers(alone), strict=True):
        assert together == pytest.approx(by_itself, rel=1e-8)
    assert both[0].test_error != both[1].test_error


def test_an_annealed_rate_falls_to_zero_along_half_a_cosine() -> None:
    data, rates = data_of("o5", 0), []

    def look(_: int, stack: SeedStack) -> None:
        rates.append(stack.optimiser.param_groups[0]["lr"])

    settings = replace(SETTINGS, epochs=4, annealed=True, learning_rate=0.1)
    fit_regression([mlp(0)], [data], settings, [generator(0)], None, look)
    expected = [0.1 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)]
    assert rates == pytest.approx(expected)


def test_an_mlp_is_trained_as_by_hand() -> None:
    """Normalised inputs, outputs taken back, batches of each epoch's order, best validation."""
    data, network = data_of("o5", 0), mlp(0)
    optimiser, own = torch.optim.Adam(network.parameters(), lr=3e-3), generator(3)
    train, last = (data.inputs[:30], data.targets[:30]), (data.inputs[-45:], data.targets[-45:])

    def errors(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs = network(inputs / data.input_scale)
        return (data.target_mean + data.target_scale * outputs - targets).square()

    seen = []
    for epoch in range(1, 5):
        for chosen in torch.randperm(30, generator=own).split(12):
            optimiser.zero_grad()
            errors(train[0][chosen], train[1][chosen]).mean().backward()
            optimiser.step()
        with torch.no_grad():
            held = errors(*last)
        seen.append((float(held[:20].mean()), float(held[20:].mean()), epoch))
    validation, test, epoch = min(seen)
    (found,) = fit_regression([mlp(0)], [data], SETTINGS, [generator(3)])
    assert numbers([found])[0] == pytest.approx((test, validation, epoch), rel=1e-8)


@pytest.mark.parametrize("group", [O(3), SO13p(), S(4)], ids=str)
def test_a_stack_is_its_networks_and_stays_equivariant(group: Group) -> None:
    networks = [
        EMLP(3 * V, V + Scalar, group, channels=24, layers=2, generator=generator(seed)).double()
        for seed in (0, 1)
    ]
    stack = SeedStack(networks, 1e-2)
    inputs = torch.randn(2, 6, 3 * group.dimension, generator=generator(2), dtype=torch.float64)
    alone = torch.stack([net(own) for net, own in zip(networks, inputs, strict=True)])
    torch.testing.assert_close(stack(inputs), alone)
    for _ in range(3):
        stack.step(stack(inputs).square().mean((1, 2)))
    assert not torch.allclose(stack(inputs), alone, rtol=1e-2)
    element = group.sample(1, generator(3), largest=1.0)[0]
    source, target = networks[0].source, networks[0].target
    moved = stack(inputs @ source.element(element).T)
    torch.testing.assert_close(moved, stack(inputs) @ target.element(element).T, atol=1e-9, rtol=0)


def test_a_matrix_moves_within_the_equivariant_ones_at_the_rate() -> None:
    """One step of Adam moves every entry of a multiple of the identity by the rate."""
    layer = EMLP(V, V, O(3), channels=V, layers=1, generator=generator(0)).head.double()
    stack = SeedStack([layer], 1e-2)
    before = layer.weight.detach()
    inputs = torch.eye(3, dtype=torch.float64)[None]
    assert set(stack.parameters) == {"coefficients"}
    stack.step(stack(inputs).sum((1, 2)))
    after = stack(inputs)[0].mT
    torch.testing.assert_close(after, before - 1e-2 * torch.eye(3), rtol=1e-6, atol=1e-8)


class Doubled(nn.Module):
    """A module around an equivariant network, with a parameter of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.factor = inner, nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.factor * self.inner(inputs)


@pytest.mark.parametrize("wrapped", [False, True], ids=["network", "within"])
def test_matrices_assembled_once_give_outputs_and_gradients_of_the_stack(wrapped: bool) -> None:
    networks = [emlp(seed, O(3)) for seed in (0, 1)]
    stack = SeedStack([Doubled(each) if wrapped else each for each in networks], 1e-2)
    inputs = torch.randn(2, 5, 6, generator=generator(1), dtype=torch.float64)
    leaves = list(stack.parameters.values())
    function = stack.assembled()
    for given in (inputs, inputs + 1):
        found, expected = function(given), stack(given)
        torch.testing.assert_close(found, expected)
        slopes = (
            torch.autograd.grad(o.square().sum(), leaves, retain_graph=True)
            for o in (found, expected)
        )
        for by_matrix, by_coefficients in zip(*slopes, strict=True):
            torch.testing.assert_close(by_matrix, by_coefficients)
    others = {name: 2 * each for name, each in stack.parameters.items()}
    assert not torch.allclose(stack.assembled(others)(inputs), stack(inputs))


def test_augmentation_changes_nothing_for_an_equivariant_network() -> None:
    data = data_of("particle", 0)
    moved = augmentation(data, O13(), random_elements(O13(), 30, generator(1)))
    results = []
    for augmented in (None, moved):
        network = EMLP(4 * V, Scalar, O13(), channels=12, layers=1, generator=generator(0))
        # Drawing elements takes numbers from the generator, so one batch of all examples.
        settings = replace(SETTINGS, batch_size=30, epochs=1)
        results += fit_regression([network.double()], [data], settings, [generator(0)], augmented)
    assert numbers(results[:1])[0] == pytest.approx(numbers(results[1:])[0], rel=1e-6)


def test_augmentation_undoes_the_motion_of_the_output() -> None:
    data = data_of("inertia", 0)
    moved = augmentation(data, O(3), random_elements(O(3), 7, generator(1)))
    back = torch.linalg.inv(moved.inputs[:, -3:, -3:])
    expected = torch.einsum("nij,nkl->nikjl", back, back).reshape(7, 9, 9)
    torch.testing.assert_close(moved.outputs, expected)
    identity = torch.eye(5, dtype=torch.float64).expand(7, 5, 5)
    torch.testing.assert_close(moved.inputs[:, :5, :5], identity)


def test_best_keeps_each_seed_where_it_was_best_and_never_a_nan() -> None:
    best = Best({"test": torch.full((3,), math.nan)})
    nan = math.nan
    for validation, test in (
        ([3.0, 1.0, nan], [30.0, 10.0, 0.0]),
        ([2.0, 2.0, nan], [20.0, 20.0, 0.0]),
        ([nan, 1.0, nan], [0.0, 5.0, 0.0]),
    ):
        best.offer(torch.tensor(validation), {"test": torch.tensor(test)})
    assert best.values["test"][:2].tolist() == [20.0, 10.0]
    assert math.isnan(float(best.values["test"][2])) and math.isinf(float(best.validation[2]))


def test_epochs_follow_the_number_of_examples() -> None:
    found = {n: RegressionSettings(n).epochs_in_all for n in (30, 900, 3000, 30_000)}
    assert found == {30: 1000, 900: 1000, 3000: 300, 30_000: 30}


def test_refused() -> None:
    data = data_of("o5", 0)
    with pytest.raises(CallerError, match="expected 1 to 45 training examples, got 46"):
        fit_regression([mlp(0)], [data], replace(SETTINGS, examples=46), [generator(0)])
    with pytest.raises(CallerError, match="for each seed, got 1, 1 and 2"):
        fit_regression([mlp(0)], [data], SETTINGS, [generator(0), generator(1)])
    with pytest.raises(CallerError, match="different shapes"):
        SeedStack([mlp(0), mlp(0, (9, 1))], 1e-3)
    with pytest.raises(CallerError, match="at least one network"):
        SeedStack([], 1e-3)
