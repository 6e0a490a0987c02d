"""Weights in front of a normalisation: the evidence sees their direction and not their length."""

from __future__ import annotations

import pytest
import torch
from evidence_problems import spread_prior
from network_cases import LIKELIHOODS, NETWORKS, assert_equal
from numerics import central_slopes
from torch import Tensor, nn

from isotropy.curvature.kfac import make_curvature
from isotropy.curvature.kinds import KINDS, Copies
from isotropy.curvature.scale_invariance import scale_invariant_layers
from isotropy.evidence.laplace import STRUCTURES, Batch, GaussianPrior, LaplaceEvidence
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.symmetry.actions.images import intensity

COUNT, SAMPLES = 5, 3


def normed(factor: float = 1.0, norm: str = "layer norm") -> nn.Sequential:
    """Linear, norm, tanh, head; the first layer's parameters multiplied by `factor`.

    The small number that the norm adds to a variance is made so small that it does not count.
    """
    network = NETWORKS[norm].network()
    assert isinstance(network, nn.Sequential)
    network[1].eps = 1e-14
    with torch.no_grad():
        for parameter in network[0].parameters():
            parameter.mul_(factor)
    return network


def evidence_of(
    network: nn.Module,
    kind: str,
    likelihood: str,
    structure: str = "scalar",
    free: tuple[str, ...] = ("0",),
    norm: str = "layer norm",
) -> tuple[LaplaceEvidence, Batch]:
    case, chosen = NETWORKS[norm], LIKELIHOODS[likelihood]
    rows, targets = case.rows(COUNT, SAMPLES), chosen.targets(COUNT)
    curvature = make_curvature(network, KINDS[kind], "refuse", rows[:2])
    names = curvature.parameter_names
    prior = spread_prior(network, names, structure, 0.7, scale_invariant=free)
    built = chosen.build()
    built.check_targets(targets, torch.zeros(1, 3))
    evidence = LaplaceEvidence(network, built, prior, curvature)
    return evidence, Batch(rows, targets, Copies(SAMPLES))


def value(
    network: nn.Module, kind: str, likelihood: str = "categorical", **options: object
) -> Tensor:
    evidence, batch = evidence_of(network, kind, likelihood, **options)  # type: ignore[arg-type]
    return evidence.value(evidence.fit([batch])).detach()


ALL = ("kfac-ggn", "kfac-ef", "diagonal-ggn", "full-ggn", "full-ef")


@pytest.mark.parametrize(("factor", "likelihood"), [(3.0, "categorical"), (0.1, "gaussian")])
@pytest.mark.parametrize("kind", ALL)
def test_the_length_does_not_matter(kind: str, factor: float, likelihood: str):
    assert_equal(
        value(normed(factor), kind, likelihood), value(normed(), kind, likelihood), "log Z", 1e-9
    )


OTHERS = [
    *(("scalar", norm) for norm in ("layer norm on tokens", "rms norm", "group norm")),
    *((structure, "layer norm") for structure in STRUCTURES),
]


@pytest.mark.parametrize(("structure", "norm"), OTHERS)
def test_the_length_does_not_matter_for_other_norms_and_structures(structure: str, norm: str):
    values = [
        value(normed(factor, norm), "kfac-ggn", norm=norm, structure=structure)
        for factor in (1.0, 3.0)
    ]
    assert_equal(values[1], values[0], "log Z", 1e-8)


def test_a_layer_that_is_not_declared_is_noticed():
    values = [value(normed(factor), "kfac-ggn", free=()) for factor in (1.0, 3.0)]
    assert abs(float(values[1] - values[0])) > 0.1


def test_the_direction_matters():
    other = normed()
    with torch.no_grad():
        other[0].weight[0] *= -1
    assert abs(float(value(other, "kfac-ggn") - value(normed(), "kfac-ggn"))) > 1e-3


def test_the_precision_is_that_of_the_shell():
    """P/‖θ‖² over weight and bias together; the other layers have the prior's."""
    network = normed(3.0)
    evidence, batch = evidence_of(network, "kfac-ggn", "categorical")
    found = evidence.precisions(evidence.fit([batch]))
    numbers = torch.cat([p.detach().flatten() for p in network[0].parameters()])
    expected = len(numbers) / float(numbers.square().sum())
    own = {"0.weight", "0.bias"}
    for name, precision in found.items():
        assert float(precision.detach()) == pytest.approx(expected if name in own else 0.7)


def test_the_prior_has_no_say_in_the_length():
    """The gradient by a precision of their own group is zero, and others' is not."""
    evidence, batch = evidence_of(normed(), "kfac-ggn", "categorical", "layer")
    total = evidence.value(evidence.fit([batch]))
    (gradient,) = torch.autograd.grad(total, evidence.prior.log_precisions)
    by_group = dict(zip(evidence.prior.groups, gradient.tolist(), strict=True))
    assert by_group.pop("0") == 0.0
    assert by_group and all(abs(slope) > 1e-6 for slope in by_group.values())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_penalty_ignores_them(structure: str):
    network = normed()
    evidence, _ = evidence_of(network, "kfac-ggn", "categorical", structure)
    parameters = dict(network.named_parameters())
    evidence.prior.add_penalty_gradients(parameters, 1.0)
    assert parameters["0.weight"].grad is None and parameters["0.bias"].grad is None
    assert float(parameters["4.weight"].grad.abs().max()) > 0


def test_a_prior_with_nothing_to_penalise():
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4, elementwise_affine=False)).double()
    prior = GaussianPrior(network, ("0.weight", "0.bias"), scale_invariant=("0",))
    prior.add_penalty_gradients(dict(network.named_parameters()), 1.0)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_gradient_is_that_of_the_value():
    """Of the rows, by finite differences; precisions on the shell do not depend on them."""
    evidence, batch = evidence_of(normed(), "kfac-ggn", "categorical")
    amount = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)

    def moved() -> Batch:
        return batch._replace(rows=batch.rows + amount * batch.rows.square())

    (found,) = evidence.gradient(evidence.fit([moved()]), [moved()], [amount])
    slope = central_slopes(lambda: evidence.value(evidence.fit([moved()])), amount, 1e-6)
    assert_equal(found, -slope, "gradient", 1e-5)


def test_the_trainer_finds_them():
    case = NETWORKS["layer norm"]
    network = case.network()
    assert scale_invariant_layers(network, ("0", "1", "4"), case.rows(4, 1)) == {"0"}
    config = LearnConfig(epochs=2, samples=2, burn_in=0, prior_structure="layer").resolved(
        examples=8, on_gpu=False
    )
    model = InvariantModel(network, UniformRanges(intensity(), dtype=torch.float64), 2)
    targets = torch.arange(8) % 3
    made = Trainer(model, Categorical(), config, case.rows(8, 1), targets)
    assert made.prior.scale_invariant == {"0": ("0.weight", "0.bias")}
    first, second = made.run_epoch(), made.run_epoch()
    assert first.prior_precision["0"] == second.prior_precision["0"] == 1.0
    assert second.prior_precision["4"] != first.prior_precision["4"] != 1.0
