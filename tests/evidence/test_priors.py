"""Gaussian priors: groups, precisions, penalty, and groups that a network declares itself."""

from __future__ import annotations

import math

import pytest
import torch
from network_cases import NETWORKS, mlp
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.evidence.laplace import STRUCTURES, GaussianPrior

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")

GROUPS: dict[str, dict[str, str]] = {
    "scalar": dict.fromkeys(NAMES, "all"),
    "layer": {"0.weight": "0", "0.bias": "0", "2.weight": "2", "2.bias": "2"},
    "tensor": {name: name for name in NAMES},
}


def prior(structure: str = "tensor", precision: float = 1.0) -> GaussianPrior:
    return GaussianPrior(mlp(3, 4, 2), NAMES, structure, precision)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_precisions_follow_the_groups(structure: str):
    made = prior(structure, 2.5)
    assert made.group_of == GROUPS[structure]
    assert made.groups == tuple(dict.fromkeys(GROUPS[structure].values())) == tuple(made.by_group())
    assert all(math.isclose(value, 2.5) for value in made.by_group().values())
    with torch.no_grad():
        made.log_precisions.copy_(torch.arange(len(made.groups)))
    for name, precision in made.precisions().items():
        place = made.groups.index(GROUPS[structure][name])
        assert math.isclose(float(precision.detach()), math.exp(place))
    assert tuple(made.precisions()) == NAMES


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_precision_may_be_set_for_the_groups_of_some_parameters(structure: str):
    made = prior(structure, 2.5)
    made.set_precision(["2.weight"], 1e12)
    chosen = GROUPS[structure]["2.weight"]
    expected = {group: 1e12 if group == chosen else 2.5 for group in made.groups}
    assert made.by_group() == pytest.approx(expected, rel=1e-12)
    made.set_precision({"2.weight", "0.bias"}, 0.5)
    for name in ("2.weight", "0.bias"):
        assert float(made.precisions()[name].detach()) == pytest.approx(0.5, rel=1e-12)
    before = made.by_group()
    made.set_precision((), 7.0)
    assert made.by_group() == before
    assert made.log_precisions.requires_grad and made.log_precisions.grad is None


def test_a_precision_of_nobody_is_refused():
    with pytest.raises(KeyError, match=r"1\.weight"):
        prior().set_precision(["1.weight"], 1.0)


def test_layers_of_one_name_deep_down_are_one_group():
    network = nn.Sequential(mlp(3, 4, 2), nn.Linear(2, 2))
    made = GaussianPrior(network, KFAC(network).parameter_names, "layer")
    assert made.groups == ("0.0", "0.2", "1")


def test_a_network_that_is_one_layer_has_one_layer():
    """Its parameters have no dot in their names, and still belong to one layer."""
    made = GaussianPrior(nn.Linear(3, 2), ("weight", "bias"), "layer")
    assert len(made.groups) == 1


def test_precisions_are_positive_double_and_differentiable():
    made = prior("layer", 1e-3)
    assert made.log_precisions.dtype == torch.float64
    total = sum(made.precisions().values())
    assert isinstance(total, Tensor)
    (gradient,) = torch.autograd.grad(total, made.log_precisions)
    assert torch.allclose(gradient, torch.full((2,), 2e-3, dtype=torch.float64))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_of_the_penalty(structure: str):
    """Added to what is there: a share of the gradient of −log p(θ)."""
    network = mlp(3, 4, 2).double()
    made = GaussianPrior(network, NAMES, structure)
    with torch.no_grad():
        made.log_precisions.copy_(torch.arange(len(made.groups)))
    parameters = dict(network.named_parameters())
    deviations = {n: float(value.detach()) ** -0.5 for n, value in made.precisions().items()}
    zero = torch.zeros((), dtype=torch.float64)
    density = sum(
        torch.distributions.Normal(zero, deviations[n]).log_prob(p).sum()
        for n, p in parameters.items()
    )
    pulls = dict(zip(parameters, torch.autograd.grad(-density, parameters.values()), strict=True))
    before = {name: torch.full_like(p, 0.3) for name, p in parameters.items() if name != "0.bias"}
    for name, gradient in before.items():
        parameters[name].grad = gradient.clone()
    made.add_penalty_gradients(parameters, 0.25)
    for name, parameter in parameters.items():
        expected = before.get(name, zero) + 0.25 * pulls[name]
        assert torch.allclose(parameter.grad, expected, rtol=1e-12), name
    assert made.log_precisions.grad is None


def test_only_named_parameters_are_penalised():
    network = NETWORKS["frozen first layer"].network()
    made = GaussianPrior(network, KFAC(network).parameter_names)
    parameters = dict(network.named_parameters())
    made.add_penalty_gradients(parameters, 1.0)
    for name, parameter in parameters.items():
        assert (parameter.grad is None) == name.startswith("0."), name


class Declares(nn.Sequential):
    """A network that says which parameters share a precision."""

    def __init__(self, groups: dict[str, str]) -> None:
        super().__init__(*mlp(3, 4, 2))
        self.given = groups

    def prior_groups(self) -> dict[str, str]:
        return self.given


@pytest.mark.parametrize("structure", STRUCTURES)
def test_declared_groups_come_first(structure: str):
    declared = {"0.weight": "in", "0.bias": "rest", "2.weight": "out", "2.bias": "rest"}
    made = GaussianPrior(Declares(declared | {"not trained": "x"}), NAMES, structure)
    assert made.group_of == declared
    assert made.groups == ("in", "rest", "out")


def test_a_parameter_without_a_declared_group_is_named():
    network = Declares({"0.weight": "in", "0.bias": "rest", "2.weight": "out"})
    with pytest.raises(CallerError, match=r"prior_groups\(\): .* got none for '2.bias'"):
        GaussianPrior(network, NAMES)


def test_unknown_structure():
    with pytest.raises(
        CallerError, match=r"unknown prior structure 'layers'.*did you mean 'layer'"
    ):
        prior("layers")
