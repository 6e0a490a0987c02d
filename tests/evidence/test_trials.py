"""Trials: gradients against Jacobians, the coding of targets, what is off, what they find."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from network_cases import assert_equal
from planar_problems import CONFIG, Stretch, Turn, by_angle, by_radius, mirror, mlp, points
from scipy.stats import multivariate_normal, norm
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.jacobians import tangent_kernels
from isotropy.curvature.kinds import Copies
from isotropy.evidence.search import trials as room
from isotropy.evidence.search.kernel_evidence import fit_kernel
from isotropy.evidence.search.trials import (
    BLOCKS,
    COPIES,
    EXAMPLES_AT_ONCE,
    LEAST_NOISE,
    ROWS_AT_ONCE,
    Coding,
    Trials,
    gradients_for,
    is_linear,
    kernel_of,
    linear_gradients,
    output_gradients,
    scaled_copy,
)
from isotropy.evidence.settings import stream
from isotropy.symmetry.actions.finite import PointPermutation, quarter_turns

EXAMPLES = 40
MANY = COPIES[1]
Labels = Callable[[Tensor], Tensor]


def made(network: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return network().double()


def kernel_at(trials: Trials, amounts: dict[str, float]) -> Tensor:
    return (own := trials._gradients(amounts, 0, trials.inputs)) @ own.mT


def trials_of(
    actions=None,
    *,
    labels: Labels = by_radius,
    outputs: int = 2,
    examples: int = EXAMPLES,
    held_out: int = 0,
    tell=None,
    **changes,
) -> Trials:
    """Of a small network on points of the plane; changes: of the run's settings."""
    config = replace(CONFIG, **changes).resolved(examples=examples, on_gpu=False)
    inputs, others = points(examples), points(held_out, seed=1)
    given = [Turn(), mirror(0)] if actions is None else actions
    test = (others, labels(others)) if held_out else None
    return Trials(made(lambda: mlp(outputs)), given, config, (inputs, labels(inputs)), test, tell)


def rows_of(trials: Trials, amounts: dict[str, float]) -> tuple[Tensor, Copies]:
    """Copies of all examples as a trial draws them."""
    augmentation = trials._augmentation(amounts)
    samples = trials.copies(augmentation, amounts)
    generator = stream(trials.config.seed, "trial")
    rows = []
    for some in trials.inputs.split(EXAMPLES_AT_ONCE):
        noise = augmentation.noise(len(some), samples, generator=generator)
        rows.append(augmentation(some, noise).detach().flatten(0, 1))
    weights = augmentation.copies(samples).weights
    return torch.cat(rows), Copies(samples, None if weights is None else weights.detach())


def gradients_by_jacrev(
    network: nn.Module, rows: Tensor, copies: Copies, direction: Tensor
) -> Tensor:
    """∂ r·f̂/∂θ (examples, trainable parameters) of the network in its evaluation mode."""
    network = copy.deepcopy(network).eval()
    parameters = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}

    def outputs(given: dict[str, Tensor]) -> Tensor:
        found = functional_call(network, given, (rows,)) @ direction
        each = found.reshape(-1, copies.count)
        return each.mean(1) if copies.weights is None else each @ copies.weights.to(rows)

    jacobian = jacrev(outputs)(parameters)
    return torch.cat([jacobian[name].flatten(1) for name in parameters], 1)


# --- one trial ------------------------------------------------------------------------------------


def test_each_trial_is_made_once() -> None:
    told = []
    trials = trials_of(tell=told.append)
    assert trials.known({"turn": 90.0}) is None and trials.count == 0
    first = trials.at({"turn": 90.0})
    assert trials.at({"mirror_x": 0.0, "turn": 90}) is first
    assert trials.known({"turn": 90.0, "mirror_x": 0.0}) is first
    other = trials.at({"turn": 90.0}, 1)
    assert told == [first, other] and trials.count == 2
    assert first.amounts == {"turn": 90.0} and (first.replicate, other.replicate) == (0, 1)
    assert trials.examples == EXAMPLES


def test_trials_are_the_same_again_and_replicates_differ() -> None:
    amounts = {"turn": 60.0, "mirror_x": 0.5}
    first, again = trials_of().at(amounts), trials_of().at(amounts)
    assert first.log_predictive == again.log_predictive and torch.equal(first.blocks, again.blocks)
    assert first.log_evidence == again.log_evidence and first.blocks.shape == (BLOCKS,)
    assert float(first.blocks.sum()) == pytest.approx(first.log_predictive, rel=1e-12)
    assert float(first.blocks.std()) > 0 and math.isfinite(first.log_evidence)
    other, seed = trials_of().at(amounts, 1), trials_of(seed=1).at(amounts)
    assert len({first.log_predictive, other.log_predictive, seed.log_predictive}) == 3


@pytest.mark.parametrize(
    ("amounts", "count"), [({}, 1), ({"mirror_x": 0.5}, 1), ({"turn": 60.0}, 2)]
)
def test_replicates_are_one_trial_where_nothing_is_drawn(
    amounts: dict[str, float], count: int
) -> None:
    trials = trials_of()
    other, first = trials.at(amounts, 1), trials.at(amounts, 0)
    assert (other is first) is (count == 1) and trials.count == count
    assert trials.known(amounts) is first and first.replicate == 0
    assert (other.log_predictive == first.log_predictive) is (count == 1)


def test_the_network_and_the_generator_are_left_as_they_were() -> None:
    trials = trials_of(held_out=10)
    network = trials.network.train()
    network[1].eval()
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, drawn = copy.deepcopy(network), torch.get_rng_state()
    trials.at({"turn": 60.0, "mirror_x": 0.3})
    trials.held_out({"turn": 60.0})
    for own, kept in zip(network.parameters(), before.parameters(), strict=True):
        assert torch.equal(own, kept)
        assert own.grad is not None and torch.equal(own.grad, torch.ones_like(own))
    modes = [module.training for module in network.modules()]
    assert modes == [module.training for module in before.modules()]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_amounts_where_the_network_is_not_finite() -> None:
    trials = trials_of(Stretch(), examples=9, held_out=5)
    amounts = {"stretch_x": 1e5}  # a factor beyond what float64 holds
    found = trials.at(amounts)
    assert found.log_predictive == found.log_evidence == -math.inf
    assert torch.equal(found.blocks, torch.zeros(9))
    assert math.isnan(trials.held_out(amounts))
    assert math.isfinite(trials.at({}).log_predictive)


@pytest.mark.parametrize("examples", [1, 19, 20, 41])
def test_no_part_of_the_data_is_empty(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are sums over examples: those of ones are their sizes."""

    def ones(kernel: Tensor, targets: Tensor, least_noise: float):
        fit = fit_kernel(kernel, torch.linspace(-1, 1, len(kernel))[:, None], 0.1)
        return replace(fit, densities=torch.ones_like(fit.densities))

    monkeypatch.setattr(room, "fit_kernel", ones)
    sizes = trials_of(examples=examples).at({}).blocks
    assert len(sizes) == min(BLOCKS, examples) and float(sizes.sum()) == examples
    assert float(sizes.min()) >= 1 and float(sizes.max() - sizes.min()) <= 1


def test_nothing_depends_on_the_settings_of_training() -> None:
    amounts = {"turn": 60.0, "mirror_x": 0.5}
    expected = trials_of().at(amounts).log_predictive
    for changes in (
        {"samples": 2}, {"samples": 40}, {"epochs": 3}, {"batch_size": 7}, {"weight_rate": 0.9},
        {"curvature": "diagonal-ggn"}, {"bound": "function-space"},
    ):  # fmt: skip
        assert trials_of(**changes).at(amounts).log_predictive == expected, changes


# --- what is off ----------------------------------------------------------------------------------


def test_at_zero_it_is_the_plain_network() -> None:
    trials = trials_of()
    plain = gradients_by_jacrev(trials.network, trials.inputs, Copies(1), trials.direction)
    assert_equal(kernel_at(trials, {}), plain @ plain.T, "kernel")
    found = trials.at({}).log_predictive
    for actions in (Turn(), [Turn(), mirror(0), mirror(1)], [mirror(1), Stretch()]):
        assert trials_of(actions).at({}).log_predictive == pytest.approx(found, rel=1e-9)


OFF = {
    "nothing": ({}, 1),
    "a range": ({"turn": 90.0}, MANY),
    "one element": ({"mirror_x": 0.5}, 2),
    "both elements": ({"mirror_x": 0.5, "mirror_y": 0.2}, 4),
    "a range and an element": ({"turn": 20.0, "mirror_y": 0.5}, MANY),
}


@pytest.mark.parametrize(("amounts", "copies"), OFF.values(), ids=OFF)
def test_what_is_left_out_is_exactly_off(amounts: dict[str, float], copies: int) -> None:
    trials = trials_of([Turn(), mirror(0), mirror(1)])
    augmentation = trials._augmentation(amounts)
    found = {symmetry.name: symmetry.high for symmetry in augmentation.symmetries()}
    assert found == pytest.approx({"turn": 0.0, "mirror_x": 0.0, "mirror_y": 0.0, **amounts})
    assert trials.copies(augmentation, amounts) == copies
    assert augmentation.noise(3, copies).shape[:2] == (3, copies)


def test_a_random_element_is_drawn_as_often_as_a_range() -> None:
    trials = trials_of([Turn(), PointPermutation()])
    for amounts, copies in (({"point_permutation": 0.5}, MANY), ({}, 1)):
        assert trials.copies(trials._augmentation(amounts), amounts) == copies


def test_some_elements_of_several() -> None:
    trials = trials_of([Turn(), quarter_turns()])
    amounts = {"turn_90": 0.2, "turn_180": 0.3}
    augmentation = trials._augmentation(amounts)
    expected = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    assert_equal(augmentation.element_probabilities().detach(), expected, "probabilities")
    assert trials.copies(augmentation, amounts) == 3
    both = {"turn": 30.0, **amounts}
    assert trials.copies(trials._augmentation(both), both) == math.ceil(MANY / 3) * 3


NUMBERS = {
    "few weights": (1500, None, None, 64),
    "many weights": (1500, 20, None, 32),
    "other layers": (300, None, output_gradients, 32),
    "more examples than rows": (100_000, None, None, 16),
}


@pytest.mark.parametrize(("examples", "most", "gradients", "copies"), NUMBERS.values(), ids=NUMBERS)
def test_as_many_copies_as_can_be_afforded(
    monkeypatch, examples: int, most: int | None, gradients, copies: int
) -> None:
    monkeypatch.setattr(room, "MOST_WEIGHTS", most or room.MOST_WEIGHTS)
    trials = trials_of()
    trials.inputs = torch.zeros(examples, 2)
    trials.gradients = gradients or trials.gradients
    amounts = {"turn": 90.0}
    assert trials.copies(trials._augmentation(amounts), amounts) == copies


# --- the kernel -----------------------------------------------------------------------------------


class Spare(nn.Linear):
    """With a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.unused = nn.Parameter(torch.ones(3))


class Linears(nn.Module):
    """Linear layers, and how points (rows, 2) go through them."""

    def __init__(self, forward: Callable[..., Tensor], *layers: nn.Linear) -> None:
        super().__init__()
        self.layers, self.through = nn.ModuleList(layers), forward

    def forward(self, inputs: Tensor) -> Tensor:
        return self.through(inputs, *self.layers)


def tied() -> nn.Module:
    """Two layers that have one weight, each with its own bias."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    return Linears(lambda x, a, b, c: c(b(a(x).tanh()).tanh()), first, second, nn.Linear(2, 3))


def frozen(*names: str) -> nn.Module:
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    for name in names:
        network.get_parameter(name).requires_grad_(False)
    return network


def tokens(x: Tensor) -> Tensor:
    """Points as (rows, positions, features)."""
    return torch.stack([x, x.flip(1), x.square(), x * x.flip(1)], 1)


LINEAR_NETWORKS = {
    "mlp": lambda: mlp(3),
    "no bias": lambda: nn.Sequential(
        nn.Linear(2, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)
    ),
    "one layer called twice": lambda: Linears(
        lambda x, a, b: b(a(a(x).tanh()).tanh()), nn.Linear(2, 2), nn.Linear(2, 3)
    ),
    "tied weights": tied,
    "a frozen layer": lambda: frozen("0.weight", "0.bias"),
    "a frozen head": lambda: frozen("2.weight", "2.bias"),
    "a frozen weight": lambda: frozen("0.weight"),
    "positions": lambda: Linears(
        lambda x, a, b: b(a(tokens(x)).tanh().mean(1)), nn.Linear(2, 5), nn.Linear(5, 3)
    ),
    "positions behind the last layer": lambda: Linears(
        lambda x, a, b: b(a(tokens(x)).tanh()).mean(1), nn.Linear(2, 5), nn.Linear(5, 3)
    ),
    "a layer that is not called": lambda: Linears(
        lambda x, a, _: a(x), nn.Linear(2, 3), nn.Linear(2, 3)
    ),
    "a layer that no output depends on": lambda: Linears(
        lambda x, a, b: a(x) + 0 * b(x).detach(), nn.Linear(2, 3), nn.Linear(2, 3)
    ),
    "in place": lambda: nn.Sequential(nn.Linear(2, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
    "an output changed in place": lambda: Linears(
        lambda x, a, b: b(a(x).relu_()), nn.Linear(2, 4), nn.Linear(4, 3)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
}
NETWORKS = {
    "a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 4, 2, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(12, 3),
    ),
    "normalised": lambda: nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
    "an unused parameter": Spare,
    **LINEAR_NETWORKS,
}  # fmt: skip
DIRECTION = torch.tensor([0.6, -0.8, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("weights", [None, (0.5, 0.2, 0.3)], ids=["equal", "weighted"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_average(name: str, weights: tuple[float, ...] | None) -> None:
    """By autograd, and of Linear layers in one pass; by every weight, by some, or by one alone."""
    network, rows = made(NETWORKS[name]), points(12)
    copies = Copies(3, None if weights is None else torch.tensor(weights, dtype=torch.float64))
    expected = gradients_by_jacrev(network, rows, copies, DIRECTION)
    last = expected.shape[1] - 1
    is_linear_here = name in LINEAR_NETWORKS
    assert is_linear(network) is is_linear_here
    fastest = linear_gradients if is_linear_here else output_gradients
    assert gradients_for(network, rows[:2], DIRECTION) is fastest
    for way in {output_gradients, fastest}:
        with torch.no_grad():
            found = way(network, rows, copies, DIRECTION)
        assert_equal(found, expected, name)
        assert not found.requires_grad and all(p.grad is None for p in network.parameters())
        for chosen in (torch.arange(0, last, 2), torch.tensor([1, last]), torch.tensor([last])):
            some = way(network, rows, copies, DIRECTION, chosen)
            np.testing.assert_allclose(some.numpy(), expected[:, chosen].numpy(), atol=1e-12)


WRONG = {
    "a weight used by itself": lambda: Linears(
        lambda x, a, b: b(a(functional.linear(x, a.weight.T)).tanh()),
        nn.Linear(2, 2),
        nn.Linear(2, 3),
    ),
    "a bias used by itself": lambda: Linears(lambda x, a: a(x) + a.bias, nn.Linear(2, 3)),
    "examples that change each other": lambda: Linears(
        lambda x, a: a(x - x.mean(0)).tanh(), nn.Linear(2, 3)
    ),
}
NOT_RECORDED = {
    "positions in the batch": lambda: Linears(
        lambda x, a: a(x.reshape(-1, 1)).reshape(len(x), -1), nn.Linear(1, 3)
    ),
    "no layer is called": lambda: Linears(
        lambda x, a: functional.linear(x, a.weight), nn.Linear(2, 3)
    ),
}


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_calls_that_cannot_be_recorded_are_left_to_autograd(name: str) -> None:
    network = made(NOT_RECORDED[name])
    assert is_linear(network)
    with torch.no_grad():
        direction = torch.ones(network(points(1)).shape[1], dtype=torch.float64)
    assert gradients_for(network, points(2), direction) is output_gradients


@pytest.mark.parametrize("name", WRONG)
def test_where_linear_layers_are_not_all(name: str) -> None:
    """Gradients in one pass would be wrong, which two inputs tell; autograd's are right."""
    network, rows, copies = made(WRONG[name]), points(12), Copies(1)
    assert is_linear(network)
    expected = torch.cat(
        [gradients_by_jacrev(network, row[None], copies, DIRECTION) for row in rows]
    )
    found = linear_gradients(network, rows, copies, DIRECTION)
    assert float((found - expected).norm()) > 0.01 * float(expected.norm())
    chosen = gradients_for(network, rows[:2], DIRECTION)
    assert chosen is output_gradients
    assert_equal(chosen(network, rows, copies, DIRECTION), expected, name)


def test_trials_by_autograd_are_the_same() -> None:
    trials, other = trials_of(), trials_of()
    assert trials.gradients is linear_gradients
    other.gradients = output_gradients
    amounts = {"turn": 60.0, "mirror_x": 0.3}
    found, expected = other.at(amounts), trials.at(amounts)
    assert found.log_predictive == pytest.approx(expected.log_predictive, rel=1e-9)


ROWS = (1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("examples", ROWS)
def test_inner_products_of_all_pairs(examples: int, dtype: torch.dtype) -> None:
    rows = torch.randn(examples, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    found, expected = kernel_of(rows), rows.numpy() @ rows.numpy().T
    assert found.dtype == torch.float64
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "amounts", [{"turn": 60.0}, {"mirror_x": 0.3}, {"turn": 9, "mirror_x": 0.5}]
)
def test_the_kernel_is_the_sum_over_parameters(amounts: dict[str, float]) -> None:
    trials = trials_of(outputs=3)
    rows, copies = rows_of(trials, amounts)
    names = [name for name, _ in trials.network.named_parameters()]
    _, kernels = tangent_kernels(
        trials.network, names, rows, copies,
        lambda outputs: trials.direction.expand(1, *outputs.shape),
    )  # fmt: skip
    expected = torch.stack(list(kernels.values())).sum(0)
    assert_equal(kernel_at(trials, amounts), expected, "kernel", 1e-9)
    fit = fit_kernel(expected, trials.targets, trials.least_noise)
    covariance = fit.noise * (np.eye(EXAMPLES) + fit.ratio * expected.numpy())
    # log p(y_n | others) = log p(all) − log p(others)
    found, every = 0.0, multivariate_normal(cov=covariance)
    for rest in (np.delete(np.arange(EXAMPLES), n) for n in range(EXAMPLES)):
        others = multivariate_normal(cov=covariance[np.ix_(rest, rest)])
        for column in trials.targets.T.numpy():
            found += every.logpdf(column) - others.logpdf(column[rest])
    assert trials.at(amounts).log_predictive == pytest.approx(found, rel=1e-6)
    assert trials.at(amounts).log_evidence == pytest.approx(fit.log_evidence, rel=1e-6)


def test_the_direction_is_a_sign_for_each_output() -> None:
    trials = trials_of(outputs=4, labels=by_angle)
    assert trials.direction.abs().tolist() == [0.5] * 4 and trials.direction.dtype == torch.float64
    assert torch.equal(trials.direction, trials_of(outputs=4, samples=3).direction)


def test_float32_gives_the_same() -> None:
    trials = trials_of()
    data = (trials.inputs.float(), by_radius(trials.inputs))
    single = Trials(copy.deepcopy(trials.network).float(), Turn(), trials.config, data)
    assert single.at({}).log_predictive == pytest.approx(trials.at({}).log_predictive, rel=1e-4)


def test_of_many_weights_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients by these alone, the same in all trials; frozen ones are never among them."""
    every = trials_of()
    gradients = every._gradients({}, 0, every.inputs)
    monkeypatch.setattr(room, "MOST_WEIGHTS", 25)
    some = trials_of()
    assert some.chosen is not None and len(set(some.chosen.tolist())) == 25
    assert torch.equal(some._gradients({}, 0, some.inputs), gradients[:, some.chosen])
    assert not torch.equal(some.chosen, trials_of(seed=1).chosen)
    assert every.chosen is None and math.isfinite(some.at({"turn": 60.0}).log_predictive)
    network = made(lambda: mlp(2))
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(CallerError, match="at least one trainable parameter, got none"):
        Trials(network, Turn(), every.config, (every.inputs, by_radius(every.inputs)))


# --- the network that is linearised ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "a convolution", "normalised"])
def test_outputs_of_layers_have_variance_one(name: str) -> None:
    network, inputs = made(NETWORKS[name]), points(50)
    before = copy.deepcopy(network.state_dict())
    scaled = scaled_copy(network, inputs)
    spreads = []
    for layer in scaled.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d):
            layer.register_forward_hook(lambda _, __, y: spreads.append(float(y.std(correction=0))))
    with torch.no_grad():
        scaled.eval()(inputs)
    assert spreads == pytest.approx([1.0] * len(spreads)) and len(spreads) == 2
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_a_tied_weight_is_scaled_once_and_a_computed_one_stays() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).double()
    network[1].weight = network[0].weight
    with torch.no_grad():
        spread = network[0](points(50)).std(correction=0)
    scaled = scaled_copy(network, points(50))
    assert_equal(scaled[0].weight.detach(), network[0].weight.detach() / spread, "tied", 1e-12)
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3).double())
    before = computed(points(5)).detach()
    assert_equal(scaled_copy(computed, points(50))(points(5)).detach(), before, "computed", 1e-12)


def test_layers_without_variance_stay_and_shared_ones_are_scaled_once() -> None:
    layer, last = nn.Linear(2, 2), nn.Linear(2, 3)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    network = nn.Sequential(layer, nn.Tanh(), layer, last).double()
    scaled = scaled_copy(network, points(50))
    assert torch.equal(scaled[3].weight, last.weight)
    first = network[0](points(50)).detach().std(correction=0)
    assert_equal(scaled[0].weight.detach(), layer.weight.detach() / first, "once", 1e-12)


# --- how targets are coded ------------------------------------------------------------------------

LABELS = torch.tensor([0, 2, 1, 2, 2, 0, 4])
OTHERS = torch.tensor([3, 0, 1, 2, 4])
UNSEEN = 3


def test_classes_are_equally_far_apart() -> None:
    coding = Coding(LABELS, 5)
    columns = coding(LABELS)
    assert columns.shape == (len(LABELS), 4) and columns.dtype == torch.float64
    assert_equal(columns.mean(0) + 1, torch.ones(4, dtype=torch.float64), "means")
    codes = coding(torch.arange(5))
    squares = torch.cdist(codes, codes).square()
    assert_equal(squares, 2 * (1 - torch.eye(5, dtype=torch.float64)), "distances", 1e-12)


def test_numbers_have_variance_one() -> None:
    targets = torch.stack([torch.arange(7.0) ** 2, 3 - torch.arange(7.0)], 1)
    coding = Coding(targets, 2)
    columns, given = coding(targets).numpy(), targets.numpy()
    np.testing.assert_allclose(columns, (given - given.mean(0)) / given.std(0), atol=1e-6)
    np.testing.assert_allclose(columns.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(columns.var(0), 1)
    constant = torch.ones(4)
    assert torch.equal(Coding(constant, 1)(constant), torch.zeros(4, 1))
    assert Coding(targets[:, 0], 1)(targets[:, 0]).shape == (7, 1)
    assert Coding(targets.reshape(7, 2, 1), 2)(targets.reshape(7, 2, 1)).shape == (7, 2)


def test_others_are_coded_as_the_training_data_are() -> None:
    targets, others = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0, 5.0])
    expected = (others.numpy() - 3) / np.std([1.0, 2.0, 6.0])
    np.testing.assert_allclose(Coding(targets, 1)(others)[:, 0], expected)
    coding = Coding(LABELS, 5)
    by_class = {int(c): row for c, row in zip(LABELS, coding(LABELS), strict=True)}
    found = coding(OTHERS)
    for label, row in zip(OTHERS.tolist(), found, strict=True):
        assert label == UNSEEN or torch.equal(row, by_class[label])
    assert bool(found.isfinite().all())
    assert float(found.mean(0).abs().max()) > 0.05, "their own mean is another"


# --- what they find -------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [by_radius, by_angle])
def test_a_constant_prediction(labels: Labels) -> None:
    """The density of targets that have nothing but their variance."""
    trials = trials_of(labels=labels, outputs=4)
    targets = trials.targets.numpy()
    expected = norm.logpdf(targets, 0, np.sqrt((targets**2).mean())).sum()
    assert trials.null_log_predictive == pytest.approx(expected, rel=1e-12)
    assert trials.least_noise == pytest.approx(LEAST_NOISE * (targets**2).mean(), rel=1e-12)
    assert trials.at({}).log_predictive > trials.null_log_predictive


def test_held_out_data_are_only_scored() -> None:
    """By p(y* | y), and L does not know of them."""
    trials = trials_of(held_out=20)
    amounts = {"mirror_x": 0.5}
    assert trials.at(amounts).log_predictive == trials_of().at(amounts).log_predictive
    inputs, labels = trials.test
    fit = fit_kernel(kernel_at(trials, amounts), trials.targets, trials.least_noise)
    own, others = (trials._gradients(amounts, 0, each) for each in (trials.inputs, inputs))
    codes, lengths = trials.coding(labels), (others * others).sum(1)
    expected = fit.log_density(others @ own.mT, lengths, codes)
    assert trials.held_out(amounts) == pytest.approx(expected, rel=1e-12)
    assert trials.count == 1


PROBLEMS = {
    "labels by radius": (by_radius, 2, True),
    "labels by angle": (by_angle, 4, False),
    "the radius": (lambda inputs: inputs.norm(dim=1), 1, True),
    "two powers of it": (lambda inputs: inputs.norm(dim=1)[:, None] ** torch.arange(1, 3), 2, True),
    "the first coordinate": (lambda inputs: inputs[:, 0], 1, False),
}


@pytest.mark.parametrize(("labels", "outputs", "turns"), PROBLEMS.values(), ids=PROBLEMS)
def test_turns_are_worth_something_where_targets_do_not_change(
    labels: Labels, outputs: int, turns: bool
) -> None:
    """To examples left out and to held-out data."""
    trials = trials_of(Turn(), labels=labels, outputs=outputs, held_out=100)
    whole = {"turn": 180.0}
    gain = trials.at(whole).log_predictive - trials.at({}).log_predictive
    scores = trials.held_out({}), trials.held_out(whole)
    assert all(map(math.isfinite, scores))
    assert (gain > math.log(20), gain < -math.log(20)) == (turns, not turns)
    assert (scores[1] > scores[0]) is turns
