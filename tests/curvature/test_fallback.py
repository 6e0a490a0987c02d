"""Layers without a curvature rule: refused by name, given exact diagonal blocks, or left out."""

from __future__ import annotations

import pytest
import torch
from network_cases import LIKELIHOODS, NOISE, assert_equal
from oracles.dense_fisher import (
    drawn_targets,
    empirical_curvature,
    sampled_curvature,
    sandwich,
    weighted_jacobian,
    weighted_kfac,
    weighted_outputs,
)
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.blocks import DiagonalFactors, DiagonalRoots
from isotropy.curvature.copies import Copies
from isotropy.curvature.kfac import FALLBACKS, KFAC, Fallback
from isotropy.curvature.kinds import FISHERS, KINDS
from isotropy.evidence.laplace import Batch, LaplaceEvidence
from isotropy.evidence.priors import GaussianPrior

COUNT = 4
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


class Curve(nn.Module):
    """tanh with a slope and a height of its own for each feature; there is no rule for it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.slope = nn.Parameter(1 + torch.rand(features, generator=generator))
        self.height = nn.Parameter(1 + torch.rand(features, generator=generator))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.height * (self.slope * inputs).tanh()


def curved() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), Curve(3), nn.Linear(3, 3)).double()


def rows() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3 * COUNT, 4, generator=generator, dtype=torch.float64)


LINEAR = ("0.weight", "0.bias", "2.weight", "2.bias")
OWN = ("1.slope", "1.height")


def test_refuse_names_the_layer_and_the_ways_out():
    with pytest.raises(CallerError) as refused:
        KFAC(curved())
    sentence = str(refused.value)
    assert "layer '1' of type Curve has no curvature rule" in sentence
    for advice in (
        "isotropy.curvature.layer_rules.register_rule",
        "diagonal or fixed",
        "requires_grad_(False)",
        "Linear",
    ):
        assert advice in sentence


def test_a_network_that_is_the_layer_is_named_too():
    with pytest.raises(CallerError, match=r"layer '\(the network itself\)' of type Curve"):
        KFAC(Curve(3))


@pytest.mark.parametrize("fisher", FISHERS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_diagonal_is_exact_for_the_layer_and_kfac_for_the_rest(likelihood: str, fisher: str):
    network, kind = curved(), LIKELIHOODS[likelihood]
    targets, noise = kind.targets(COUNT), None if likelihood == "categorical" else NOISE
    chosen = KINDS[f"kfac-{fisher}"]
    kfac = KFAC(network, chosen, "diagonal")
    assert kfac.parameter_names == tuple(name for name, _ in network.named_parameters())
    assert kfac.fallen_back == {"1": "Curve"}
    found = kfac.batch(
        rows(),
        Copies(3, WEIGHTS),
        kind.build(),
        targets,
        generator=torch.Generator().manual_seed(5),
    ).factors()
    assert set(found) == {*LINEAR, *OWN}
    outputs = weighted_outputs(network, rows(), WEIGHTS)
    drawn = drawn_targets(outputs, noise, torch.Generator().manual_seed(5))
    output_curvature = {
        "ggn": lambda: kind.curvature(outputs),
        "mc": lambda: sampled_curvature(outputs, drawn, noise),
        "ef": lambda: empirical_curvature(outputs, targets, noise),
    }[fisher]()
    scale = chosen.scale(kind.build()).detach()
    for name in OWN:
        assert isinstance(found[name], DiagonalFactors)
        exact = sandwich(weighted_jacobian(network, (name,), rows(), WEIGHTS), output_curvature)
        assert_equal(scale * found[name].dense(COUNT)[0], torch.diag(exact.diagonal()), name)
    for layer in ("0", "2"):
        written_out = weighted_kfac(network, layer, rows(), WEIGHTS, output_curvature)
        for name, block in written_out.items():
            assert_equal(scale * found[f"{layer}.{name}"].dense(COUNT)[0], block, name)


def test_fixed_has_no_block_and_no_prior():
    network = curved()
    kfac = KFAC(network, fallback="fixed")
    assert kfac.parameter_names == LINEAR and kfac.fallen_back == {"1": "Curve"}
    likelihood = LIKELIHOODS["categorical"]
    batch = Batch(rows(), likelihood.targets(COUNT), Copies(3))
    assert set(kfac.batch(rows(), Copies(3), likelihood.build()).roots) == set(LINEAR)
    prior = GaussianPrior(network, kfac.parameter_names)
    evidence = LaplaceEvidence(network, likelihood.build(), prior, kfac)
    assert set(evidence.fit([batch]).sizes) == set(LINEAR) == set(prior.precisions())
    # What is left are constants: the same evidence as with the layer frozen.
    frozen = curved()
    frozen[1].requires_grad_(False)
    other = LaplaceEvidence(frozen, likelihood.build(), GaussianPrior(frozen, LINEAR))
    assert_equal(
        evidence.value(evidence.fit([batch])).detach(),
        other.value(other.fit([batch])).detach(),
        "log Z",
    )


@pytest.mark.parametrize("fallback", FALLBACKS)
def test_where_every_layer_has_a_rule_nothing_falls_back(fallback: Fallback):
    frozen = curved()
    frozen[1].requires_grad_(False)
    kfac = KFAC(frozen, fallback=fallback)
    assert kfac.fallen_back == {} and kfac.parameter_names == LINEAR


@pytest.mark.parametrize("create_graph", [False, True])
def test_diagonal_blocks_keep_a_graph_only_when_asked_for(create_graph: bool):
    given = rows().requires_grad_()
    likelihood = LIKELIHOODS["categorical"].build()
    kfac = KFAC(curved(), fallback="diagonal")
    root = kfac.batch(given, Copies(3), likelihood, create_graph=create_graph).roots["1.slope"]
    assert isinstance(root, DiagonalRoots) and root.rows.requires_grad is create_graph


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_gradient_of_the_evidence_goes_through_diagonal_blocks(likelihood: str):
    """By finite differences of the value, with the rows moved along one direction."""
    network, kind = curved(), LIKELIHOODS[likelihood]
    kfac = KFAC(network, fallback="diagonal")
    chosen, targets = kind.build(), kind.targets(COUNT)
    chosen.check_targets(targets, torch.zeros(1, 3))
    prior = GaussianPrior(network, kfac.parameter_names, "tensor", 0.5)
    evidence = LaplaceEvidence(network, chosen, prior, kfac)
    amount = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def batch(amount: Tensor) -> Batch:
        return Batch(rows() * (1 + amount * rows().cos()), targets, Copies(3, WEIGHTS))

    fit = evidence.fit([batch(amount)])
    (found,) = evidence.gradient(fit, [batch(amount)], [amount])
    step = 1e-5
    values = [
        evidence.value(evidence.fit([batch(amount.detach() + sign * step)])).detach()
        for sign in (1, -1)
    ]
    assert_equal(found, -(values[0] - values[1]) / (2 * step), "gradient", 1e-6)


def test_unknown_fallback():
    with pytest.raises(CallerError, match="unknown fallback 'diagnal'.*did you mean 'diagonal'"):
        KFAC(curved(), fallback="diagnal")  # type: ignore[arg-type]


class Tied(nn.Module):
    """An embedding without a rule whose table is also the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Curve(3)
        self.head = nn.Linear(3, 3, bias=False)
        self.table.slope = self.head.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs)


@pytest.mark.parametrize("fallback", ["diagonal", "fixed"])
def test_a_parameter_shared_with_a_layer_that_falls_back_is_named(fallback: Fallback):
    with pytest.raises(CallerError, match="is shared by the layers 'table' and 'head'"):
        KFAC(Tied(), fallback=fallback)
