"""Pathways are switched off where the evidence without them is higher, and stay so in training.

Images are stripes along one axis or the other, at any phase, with one half a little brighter: the
first is for a convolution to see, the second, on periodic maps, for a fully connected pathway only.
Networks that tell either, or both, are written down and not trained.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from network_cases import LIKELIHOODS, NOISE, assert_equal
from numerics import numbers, seeded
from oracles.dense_evidence import (
    categorical_log_likelihood,
    gaussian_log_likelihood,
    laplace_log_evidence,
    log_determinant_terms,
)
from oracles.dense_ggn import OutputCurvature, dense_ggn_blocks
from oracles.dense_kfac import dense_kfac
from oracles.pathway_oracle import dense_factored_kfac
from test_layer_training import _network as new_network
from test_layer_training import _stripes as stripes
from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence, LaplaceFit
from isotropy.evidence.layers import pruning
from isotropy.evidence.layers import structure as layer_structure
from isotropy.evidence.layers import training as layer_training
from isotropy.evidence.layers.pruning import switch_off, volumes
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.layers.training import structures
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical, Likelihood
from isotropy.networks.pathways.harden import harden
from isotropy.networks.pathways.pathway import ConvolutionPathway, LayerShape
from isotropy.networks.pathways.relaxed_layer import PathwayOptions, RelaxedLayer, options_for

SIZE, CHANNELS = 4, 5
SHAPE = LayerShape((1, SIZE, SIZE), (CHANNELS, SIZE, SIZE))
FFC, CONV = ("layer", "ffc"), ("layer", "conv")
READOUT, SPREAD = "layer.pathways.ffc.readout", "layer.pathways.ffc.spread"
CONVOLUTION = "layer.pathways.conv.convolution"
OF_FFC = [f"{READOUT}.weight", f"{READOUT}.bias", f"{SPREAD}.weight", f"{SPREAD}.bias"]
OF_CONV = [f"{CONVOLUTION}.weight", f"{CONVOLUTION}.bias"]


def followed_by_head(layer: nn.Module, classes: int) -> nn.Sequential:
    parts = OrderedDict(layer=layer, relu=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(parts | OrderedDict(flat=nn.Flatten(), head=nn.Linear(CHANNELS, classes)))


def filled(network: nn.Module, size: float, seed: int = 1) -> None:
    """Every parameter drawn at random, none of them zero."""
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(size * numbers(*parameter.shape, seed=seed + number))


def evidence_of(
    network: nn.Module, likelihood: Likelihood | None = None, precision: float = 1.0
) -> LaplaceEvidence:
    curvature = KFAC(network)
    prior = GaussianPrior(network, curvature.parameter_names, "tensor", precision)
    return LaplaceEvidence(network, likelihood or Categorical(), prior, curvature)


def set_precision(evidence: LaplaceEvidence, name: str, precision: float) -> None:
    with torch.no_grad():
        number = evidence.prior.groups.index(name)
        evidence.prior.log_precisions[number] = torch.tensor(precision, dtype=torch.float64).log()


def fit_of(evidence: LaplaceEvidence, inputs: Tensor, targets: Tensor) -> LaplaceFit:
    return evidence.fit([Batch(inputs, targets, Copies(1))])


@torch.no_grad()
def complexities(evidence: LaplaceEvidence, fit: LaplaceFit) -> dict[str, float]:
    """What every tensor costs: its volume, and what its prior charges for the weights."""
    precisions, norms = evidence.precisions(fit), fit.squared_norms
    found = volumes(evidence, fit)
    return {name: left + float(precisions[name] * norms[name]) / 2 for name, left in found.items()}


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def changed(network: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Parameters that are not, bit by bit, what they were."""
    return {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}


# --- the charge of a pathway ----------------------------------------------------------------------


@dataclass
class Problem:
    """A sequence of layers as a model with an evidence, and data."""

    evidence: LaplaceEvidence
    inputs: Tensor
    targets: Tensor

    @property
    def network(self) -> nn.Sequential:
        assert isinstance(self.evidence.network, nn.Sequential)
        return self.evidence.network


@dataclass
class Random(Problem):
    """A random network, and targets that it would give itself: each pathway explains something."""

    curvature: OutputCurvature

    def log_likelihood(self, outputs: Tensor) -> Tensor:
        if isinstance(self.evidence.likelihood, Categorical):
            return categorical_log_likelihood(outputs, self.targets)
        return gaussian_log_likelihood(outputs, self.targets, NOISE)

    def blocks(self) -> dict[str, Tensor]:
        """H of every tensor by the formulas written out, (groups, p, p) or (p, p)."""
        network, rows, curvature = self.network.eval(), self.inputs, self.curvature
        found = dense_ggn_blocks(network, rows, 1, curvature)  # of biases it is this one
        factored = dense_factored_kfac(network, READOUT, SPREAD, rows, 1, curvature)
        found[f"{READOUT}.weight"] = factored["readout"]
        found[f"{SPREAD}.weight"] = factored["spread"]
        for layer in (CONVOLUTION, "head"):
            found[f"{layer}.weight"] = dense_kfac(network, layer, rows, 1, curvature)["weight"]
        return {name: block.detach() for name, block in found.items()}

    def precisions(self) -> dict[str, float]:
        return {name: float(d.detach()) for name, d in self.evidence.prior.precisions().items()}


def random_problem(likelihood: str, count: int = 10) -> Random:
    network = followed_by_head(RelaxedLayer.new(("ffc", "conv"), SHAPE), 3).double()
    filled(network, 0.7)
    inputs, kind = numbers(count, *SHAPE.source), LIKELIHOODS[likelihood]
    with torch.no_grad():
        network.head.weight.mul_(3)
        network.get_submodule(CONVOLUTION).weight.mul_(2)  # the other one is tried first
        network.head.bias.sub_(network(inputs).mean(0))
        outputs = network(inputs)
    targets = outputs.argmax(1) if likelihood == "categorical" else outputs
    evidence = evidence_of(network, kind.build(), 0.4)
    evidence.likelihood.check_targets(targets, outputs)  # which `fit_of_few` leaves to its caller
    with torch.no_grad():
        groups = len(evidence.prior.groups)
        evidence.prior.log_precisions += torch.linspace(0, 2, groups, dtype=torch.float64)
    return Random(evidence, inputs, targets, kind.curvature)


FITS: dict[str, Callable[[LaplaceEvidence, list[Batch]], LaplaceFit]] = {
    "fit": lambda evidence, data: evidence.fit(data),
    "eigenvalues alone": lambda evidence, data: evidence.fit(data, values_only=True),
    "few": lambda evidence, data: evidence.fit_of_few(data),
    "standing for more": lambda evidence, data: replace(evidence.fit(data), stands_for=50),
}


@pytest.mark.parametrize("fitted", FITS.values(), ids=FITS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_charge_of_each_tensor_is_that_of_its_dense_block(likelihood: str, fitted) -> None:
    """And all of them are what the evidence takes off."""
    problem = random_problem(likelihood)
    evidence, weights = problem.evidence, weights_of(problem.network)
    fit = fitted(evidence, [Batch(problem.inputs, problem.targets, Copies(1))])
    share = (fit.stands_for or fit.count) / fit.count
    found, precisions = complexities(evidence, fit), problem.precisions()
    blocks = problem.blocks()
    assert found.keys() == blocks.keys()
    for name, block in blocks.items():
        penalty = precisions[name] * float(weights[name].square().sum())
        sharpness = float(log_determinant_terms({name: share * block}, precisions))
        assert sharpness > 0
        assert found[name] == pytest.approx((penalty + sharpness) / 2, rel=1e-9), name
    with torch.no_grad():
        explained = share * float(problem.log_likelihood(problem.network(problem.inputs)))
        taken_off = explained - float(evidence.value(fit))
    assert sum(found.values()) == pytest.approx(taken_off, rel=1e-10)


# --- the decision ---------------------------------------------------------------------------------


def gain_without_ffc(problem: Random, blocks: dict[str, Tensor], stands_for: int) -> float:
    """log Z without the pathway minus log Z with it, both written out; other blocks are as they
    are, and the convolution's bias holds what the pathway added on average."""
    share, network = stands_for / len(problem.inputs), problem.network
    weights, precisions = weights_of(network), problem.precisions()
    blocks = {name: share * block for name, block in blocks.items()}
    left = {name: block for name, block in blocks.items() if name not in OF_FFC}
    with torch.no_grad():
        members = network.layer.members()
        constants = members["ffc"](problem.inputs).mean((0, 2, 3))
        maps = members["conv"](problem.inputs) + constants[:, None, None]
        without = network.head(maps.relu().mean((2, 3)))
        given = (problem.log_likelihood(outputs) for outputs in (network(problem.inputs), without))
        whole, less = (share * each for each in given)
    weights[f"{CONVOLUTION}.bias"] = weights[f"{CONVOLUTION}.bias"] + constants
    after = laplace_log_evidence(less, left, weights, precisions)
    weights = weights_of(network)
    return float(after - laplace_log_evidence(whole, blocks, weights, precisions))


def most_examples_without_ffc(problem: Random) -> int:
    """The number of examples up to which the evidence is better without the pathway."""
    blocks, fewest, most = problem.blocks(), 1, 10**6
    assert gain_without_ffc(problem, blocks, fewest) > 0 > gain_without_ffc(problem, blocks, most)
    while most - fewest > 1:
        middle = (fewest + most) // 2
        if gain_without_ffc(problem, blocks, middle) > 0:
            fewest = middle
        else:
            most = middle
    return fewest


@pytest.mark.parametrize("few", [False, True], ids=["fit", "fit of few"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_decision_is_the_sign_of_the_difference_of_evidences(
    likelihood: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more examples there are the more a pathway may cost: one more, and it stays."""
    monkeypatch.setattr(pruning, "LOST", math.inf)
    problem = random_problem(likelihood)
    evidence = problem.evidence
    fewest = most_examples_without_ffc(problem)
    most = fewest + 1
    data = [Batch(problem.inputs, problem.targets, Copies(1))]
    fit = evidence.fit_of_few(data) if few else evidence.fit(data)
    before = weights_of(problem.network)
    inputs, targets = problem.inputs, problem.targets
    assert switch_off(evidence, replace(fit, stands_for=most), inputs, targets) == {}
    assert not changed(problem.network, before)
    assert switch_off(evidence, replace(fit, stands_for=fewest), inputs, targets) == {FFC: OF_FFC}
    assert f"{SPREAD}.weight" in changed(problem.network, before)


def images_of(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 1, SIZE, SIZE); along which axis the stripes change; which half is brighter."""
    generator = seeded(seed)
    axes, halves, phases = (torch.randint(2, (count,), generator=generator) for _ in range(3))
    waves = (-1.0) ** (torch.arange(SIZE)[None] + phases[:, None])
    images = waves[:, None, :].expand(count, SIZE, SIZE)
    images = torch.where(axes[:, None, None] == 0, images, images.mT).double()
    right = torch.arange(SIZE) >= SIZE // 2
    images = images + 0.5 * (right[None, None] == halves[:, None, None].bool())
    return images[:, None] + 0.05 * numbers(count, 1, SIZE, SIZE, seed=seed + 1), axes, halves


@dataclass
class Written(Problem):
    """A network whose convolution sees axes (channels 0 and 1) and whose factored pathway sees
    halves (2 and 3), and data. Nothing is in channel 4."""

    def accuracy(self) -> float:
        with torch.no_grad():
            return float((self.network(self.inputs).argmax(1) == self.targets).double().mean())

    def switched_off(self, **options: object) -> dict[tuple[str, str], list[str]]:
        fit = fit_of(self.evidence, self.inputs, self.targets)
        return switch_off(self.evidence, fit, self.inputs, self.targets, **options)  # type: ignore[arg-type]

    def set_up(self, *knows: str) -> None:
        """Write down what the network `knows`, axes or halves; the rest is small and random."""
        network, gain = self.network, 10.0
        filled(network, 0.01)
        with torch.no_grad():
            if "axes" in knows:
                weight = network.get_parameter(f"{CONVOLUTION}.weight")
                weight[:2, 0, 1, 1] += 1.0
                weight[0, 0, 1, 2] -= 1.0
                weight[1, 0, 2, 1] -= 1.0
            if "halves" in knows:
                left = (torch.arange(SIZE) < SIZE // 2).double().expand(SIZE, SIZE).flatten()
                network.get_parameter(f"{READOUT}.weight")[0, 2] += left / 8
                network.get_parameter(f"{READOUT}.weight")[0, 3] += (1 - left) / 8
                network.get_parameter(f"{SPREAD}.weight")[2:4] += 1.0
            for label, row in enumerate(network.head.weight):
                axis, half = divmod(label, 2) if len(knows) > 1 else (label, label)
                if "axes" in knows:
                    row[axis] += gain
                if "halves" in knows:
                    row[2 + half] += gain


def written(*knows: str, layer: RelaxedLayer | None = None, count: int = 120) -> Written:
    """Labels are what the network knows: axes, halves, or both at once."""
    inputs, axes, halves = images_of(count)
    classes = 2 ** len(knows)
    layer = layer or RelaxedLayer.new(("ffc", "conv"), SHAPE, generator=seeded())
    network = followed_by_head(layer, classes).double()
    labels = {"axes": axes, "halves": halves}
    targets = 2 * axes + halves if len(knows) > 1 else labels[knows[0]]
    problem = Written(evidence_of(network), inputs, targets)
    problem.set_up(*knows)
    assert problem.accuracy() == 1
    return problem


def test_a_factored_pathway_goes_where_position_does_not_matter() -> None:
    problem = written("axes")
    network, before = problem.network, weights_of(problem.network)
    with torch.no_grad():
        constants = network.layer.members()["ffc"](problem.inputs).mean((0, 2, 3))
    assert problem.switched_off() == {FFC: OF_FFC}
    assert not network.layer.members()["ffc"](problem.inputs).any()
    bias = f"{CONVOLUTION}.bias"
    assert_equal(network.get_parameter(bias).detach() - before[bias], constants, "constants")
    assert changed(network, before) <= {bias, *OF_FFC}
    assert problem.accuracy() == 1


@pytest.mark.parametrize("knows", [("halves",), ("axes", "halves")], ids=len)
def test_what_stays_is_the_same_bit_by_bit(knows: tuple[str, ...]) -> None:
    """What the data needs; and a convolution beside a pathway of less symmetry, even where position
    is all that matters, and the evidence would do without it."""
    problem = written(*knows)
    before = weights_of(problem.network)
    assert problem.switched_off() == {}
    assert not changed(problem.network, before)


def test_what_takes_away_much_at_once_stays_however_large_its_charge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = written("axes", "halves")
    problem.evidence.prior.log_precisions.data.fill_(5.0)
    network, inputs, targets = problem.network, problem.inputs, problem.targets
    with torch.no_grad():
        members = network.layer.members()
        constants = members["ffc"](inputs).mean((0, 2, 3))
        maps = (members["conv"](inputs) + constants[:, None, None]).relu().mean((2, 3))
        rows = network(inputs), network.head(maps)
    less, more = (float(categorical_log_likelihood(each, targets)) / 120 for each in rows[::-1])
    assert more - less > 0.5
    before = weights_of(network)
    assert problem.switched_off() == {} and not changed(network, before)
    monkeypatch.setattr(pruning, "LOST", more - less - 1e-9)
    assert problem.switched_off() == {} and not changed(network, before)
    monkeypatch.setattr(pruning, "LOST", more - less + 1e-9)
    assert problem.switched_off() == {FFC: OF_FFC}


def test_each_is_weighed_against_what_is_left_after_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two pathways that each cost a little more than they explain, but less than both together; a
    third, the largest, writes to a channel that nothing reads, and stays."""
    monkeypatch.setattr(pruning, "LOST", math.inf)
    layer = RelaxedLayer.new(("ffc", "conv", "sconv"), SHAPE, generator=seeded())
    problem = written("axes", "halves", layer=layer)
    evidence, network = problem.evidence, problem.network

    def log_likelihood() -> float:
        with torch.no_grad():
            return float(categorical_log_likelihood(network(problem.inputs), problem.targets))

    with torch.no_grad():
        network.head.weight[:, 4] = 0.0
        for parameter in (*layer.members()["sconv"].parameters(), *network.head.parameters()):
            parameter.masked_fill_(parameter.abs() < 0.1, 0.0)
        layer.members()["sconv"].convolution.values[4] = 100.0
    before, found = weights_of(network), [log_likelihood()]
    for kind in ("ffc", "conv"):
        with torch.no_grad():
            constants = layer.members()[kind](problem.inputs).mean((0, 2, 3))
            layer.members()[kind].scale_(0.0)
            layer.members()["conv" if kind == "ffc" else "sconv"].absorb_(constants)
        found.append(log_likelihood())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(before[name])
    lost = {"ffc": found[0] - found[1], "conv": found[1] - found[2]}
    for kind, name in (("ffc", f"{SPREAD}.weight"), ("conv", f"{CONVOLUTION}.weight")):
        squares = float(before[name].square().sum())
        set_precision(evidence, name, 2 * 1.1 * lost[kind] / squares)
    fit = fit_of(evidence, problem.inputs, problem.targets)
    charges = complexities(evidence, fit)
    costs = [sum(charges[name] for name in names) for names in (OF_FFC, OF_CONV)]
    # By more than a nat: the charge for the biases that take constants is less.
    assert costs[0] > lost["ffc"] + 1
    assert lost["conv"] + 1 < costs[1] < lost["conv"] + lost["ffc"] - 1
    assert list(problem.switched_off()) == [FFC, CONV]


@pytest.mark.parametrize(
    ("small", "large", "goes"),
    [
        ("ffc", "conv", ["ffc"]),
        ("conv", "ffc", ["ffc"]),  # the small one has the symmetry
        ("conv", "sconv", ["conv"]),
        ("sconv", "conv", ["sconv"]),
        ("sfc", "fc", ["sfc"]),
        ("fc", "sfc", ["fc"]),
        ("conv", "gconv", ["conv"]),
        ("gconv", "conv", ["conv"]),
        ("gconv-full", "gconv", ["gconv-full"]),
        ("gconv-separable", "ffc", ["ffc"]),
    ],
)
def test_one_of_two_stays_the_larger_of_those_with_the_most_symmetry(
    small: str, large: str, goes: list[str]
) -> None:
    """Labels without any rule: nothing explains anything."""
    shape = LayerShape((4, SIZE, SIZE), (4, SIZE, SIZE))
    kinds = tuple(sorted((small, large)))
    layer = RelaxedLayer.new(kinds, shape, options_for(kinds), generator=seeded())
    network = nn.Sequential(OrderedDict(layer=layer, relu=nn.ReLU(), flat=nn.Flatten()))
    network.append(nn.Linear(4 * SIZE**2, 2))
    network.double()
    filled(network, 0.1)
    layer.members()[small].scale_(1e-3)
    inputs, targets = numbers(30, *shape.source), torch.randint(2, (30,), generator=seeded(3))
    evidence = evidence_of(network, precision=30.0)
    fit = fit_of(evidence, inputs, targets)
    assert [kind for _, kind in switch_off(evidence, fit, inputs, targets)] == goes
    (stays,) = set(kinds) - set(goes)
    assert layer.members()[stays](inputs).any()
    off = [("layer", kind) for kind in goes]
    assert switch_off(evidence, fit_of(evidence, inputs, targets), inputs, targets, off) == {}


def test_several_layers_and_pathways() -> None:
    """Three pathways in each of two layers, one nested; one of each is left."""
    kinds = ("ffc", "conv", "sconv")
    first = RelaxedLayer.new(kinds, LayerShape((1, SIZE, SIZE), (2, SIZE, SIZE)))
    second = RelaxedLayer.new(kinds, LayerShape((2, SIZE, SIZE), (CHANNELS, SIZE, SIZE)))
    network = followed_by_head(nn.Sequential(first, nn.Tanh(), second), 2).double()
    filled(network, 0.1)
    inputs = images_of(20)[0]
    targets = torch.randint(2, (20,), generator=seeded(3))
    evidence = evidence_of(network)
    off = [("layer.0", "conv")]
    first.members()["conv"].scale_(0.0)
    found = switch_off(evidence, fit_of(evidence, inputs, targets), inputs, targets, off)
    assert [name for name, _ in found].count("layer.0") == 1
    assert [name for name, _ in found].count("layer.2") == 2
    assert not set(found) & set(off)
    for (name, kind), own in found.items():
        pathway = network.get_submodule(f"{name}.pathways.{kind}")
        assert own == [f"{name}.pathways.{kind}.{each}" for each, _ in pathway.named_parameters()]
    left = {"layer.0": set(kinds) - {"conv"}, "layer.2": set(kinds)}
    for name, kind in found:
        left[name].remove(kind)
    assert all(len(each) == 1 for each in left.values())


def test_a_layer_that_is_the_network_and_a_layer_of_one_pathway() -> None:
    shape = LayerShape((1, SIZE, SIZE), (2, 1, 1))

    class Classifier(RelaxedLayer):
        """A relaxed layer whose one pixel of output is the answer."""

        def forward(self, maps: Tensor) -> Tensor:
            return super().forward(maps).flatten(1)

    whole = Classifier(shape, dict(RelaxedLayer.new(("fc", "ffc"), shape).members())).double()
    alone = Classifier(shape, dict(RelaxedLayer.new(("ffc",), shape).members())).double()
    inputs, targets = images_of(20)[0], torch.randint(2, (20,), generator=seeded(3))
    for network, expected in ((whole, 1), (alone, 0)):
        filled(network, 0.01)
        evidence = evidence_of(network)
        found = switch_off(evidence, fit_of(evidence, inputs, targets), inputs, targets)
        assert len(found) == expected
        for (name, kind), own in found.items():
            assert name == "" and own
            assert all(each.startswith(f"pathways.{kind}.") for each in own)


# --- constants ------------------------------------------------------------------------------------


def lifted(bias: bool = True, parts: int = 1) -> Written:
    """Bright or dark? A convolution, in equal parts, turns signs, a ReLU follows, and what is left
    to see is owed to the constant that the other pathway adds."""
    members = dict(RelaxedLayer.new(("ffc",), SHAPE).members())
    for number in range(parts):
        convolution = nn.Conv2d(1, CHANNELS, 3, padding=1, padding_mode="circular", bias=bias)
        members[f"conv{number or ''}"] = ConvolutionPathway(SHAPE, convolution)
    network = followed_by_head(RelaxedLayer(SHAPE, members), 2).double()
    labels = torch.randint(2, (100,), generator=seeded())
    inputs = (1.5 - labels)[:, None, None, None] + 0.05 * numbers(100, *SHAPE.source)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        for each in network.layer.members().values():
            if isinstance(each, ConvolutionPathway):
                each.convolution.weight[:, 0, 1, 1] = -1 / parts
        network.get_parameter(f"{READOUT}.bias").fill_(2.0)
        network.get_parameter(f"{SPREAD}.weight").fill_(1.0)
        network.head.weight.copy_(torch.tensor([[-2.0], [2.0]]).expand(2, CHANNELS))
        network.head.bias.copy_(torch.tensor([2.0, -2.0]) * CHANNELS)
    problem = Written(evidence_of(network), inputs, labels)
    assert problem.accuracy() == 1
    return problem


@pytest.mark.parametrize("parts", [1, 2])
def test_constants_go_to_the_bias_of_one_other_pathway(parts: int) -> None:
    problem = lifted(parts=parts)
    network, inputs = problem.network, problem.inputs
    set_precision(problem.evidence, f"{CONVOLUTION}.bias", 1e-6)
    fit = replace(fit_of(problem.evidence, inputs, problem.targets), stands_for=100_000)
    with torch.no_grad():
        before = network(inputs)
        assert switch_off(problem.evidence, fit, inputs, problem.targets) == {FFC: OF_FFC}
        assert_equal(network(inputs), before, "outputs", 1e-12)
        found = {name: p for name, p in network.layer.named_parameters() if name.endswith("n.bias")}
        assert len(found) == parts
        for name, bias in found.items():
            constant = 2.0 if ".conv." in name else 0.0
            assert_equal(bias, torch.full_like(bias, constant), name, 1e-12)


def test_a_pathway_whose_constants_nobody_can_take_stays_for_them() -> None:
    problem = lifted(bias=False)
    before = weights_of(problem.network)
    assert problem.switched_off() == {}
    assert not changed(problem.network, before)


def test_rows_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of unequal length give what one gives."""
    together, apart = written("axes"), written("axes")
    assert len(apart.inputs) % 7
    expected = together.switched_off()
    monkeypatch.setattr(layer_structure, "ROWS", 7)
    assert apart.switched_off() == expected == {FFC: OF_FFC}
    for name, parameter in together.network.named_parameters():
        assert_equal(apart.network.get_parameter(name), parameter, name, 1e-12)


def test_modes_and_hooks_of_the_network_stay() -> None:
    """Dropout is off while likelihoods are compared, so that nothing is drawn, and on again."""
    problem = written("axes", "halves")
    network = problem.network
    network.relu = nn.Sequential(nn.ReLU(), nn.Dropout(0.9))
    network.train()
    network.pool.eval()
    modes, draws = [module.training for module in network.modules()], torch.get_rng_state()
    assert problem.switched_off() == {}
    assert torch.equal(torch.get_rng_state(), draws)
    assert [module.training for module in network.modules()] == modes
    assert not any(module._forward_hooks for module in network.modules())


class Twice(nn.Module):
    """One layer, applied to its own outputs, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = RelaxedLayer.new(("ffc", "conv"), LayerShape((2, 4, 4), (2, 4, 4)))
        self.head = nn.Linear(2, 2)

    def forward(self, maps: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(maps).tanh()).tanh().mean((2, 3)))


def test_constants_of_a_layer_that_is_called_twice() -> None:
    network = Twice().double()
    filled(network, 0.3)
    with torch.no_grad():
        for name, parameter in network.layer.members()["ffc"].named_parameters():
            parameter.fill_({"readout.bias": 0.5, "spread.weight": 0.5}.get(name, 0.0))
    inputs = numbers(20, 2, 4, 4)
    evidence = evidence_of(network)
    with torch.no_grad():
        before = network(inputs)
        targets = before.argmax(1)
    found = switch_off(evidence, fit_of(evidence, inputs, targets), inputs, targets)
    assert list(found) == [FFC]
    assert_equal(network(inputs).detach(), before, "outputs", 1e-12)


# --- in training ----------------------------------------------------------------------------------

EPOCHS = 40


def trainer_of(network: nn.Module, **settings: object) -> Trainer:
    """On 200 images of stripes anywhere: what is not a convolution is not needed."""
    config = RelaxConfig(
        **{"epochs": EPOCHS, "batch_size": 20, "weight_rate": 0.05, "burn_in": 2,
           "update_every": 1, **settings}  # type: ignore[arg-type]
    )  # fmt: skip
    images, labels = stripes(200, 0)
    return Trainer(
        network, Categorical(), config.resolved(examples=200, on_gpu=False), images, labels
    )


@dataclass
class Run:
    """A trainer at its end, and what was off after every epoch."""

    trainer: Trainer
    off: list[dict[tuple[str, str], list[str]]]


@pytest.fixture(scope="module")
def run() -> Run:
    trainer, off = trainer_of(new_network()), []
    for _ in range(EPOCHS):
        trainer.run_epoch()
        off.append(dict(trainer.hyper.off))
    return Run(trainer, off)


def test_nothing_is_switched_off_before_half_of_the_epochs(run: Run) -> None:
    half = EPOCHS // 2
    assert run.trainer.hyper.has_learned
    assert run.off[: half - 1] == [{}] * (half - 1)
    assert run.off[half - 1 :] == [{FFC: OF_FFC}] * (half + 1)


def test_the_epoch_is_what_they_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run, settled sooner."""
    monkeypatch.setattr(layer_training, "SETTLED", 0.4)
    trainer = trainer_of(new_network())
    for _ in range(2 * EPOCHS // 5):
        assert trainer.hyper.off == {}
        trainer.run_epoch()
    assert trainer.hyper.off == {FFC: OF_FFC}


def test_with_map_nothing_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_training, "SETTLED", 0.0)
    trainer = trainer_of(new_network(), objective="map", epochs=12)
    for _ in range(12):
        trainer.run_epoch()
    assert trainer.hyper.has_learned and trainer.hyper.off == {}


def test_what_is_off_stays_off(run: Run) -> None:
    trainer = run.trainer
    precisions = trainer.prior.by_group()
    for name in OF_FFC:
        assert 1e11 <= precisions[name] < float("inf")
    assert all(precisions[name] < 1e9 for name in precisions if name not in OF_FFC)
    steps = trainer.weight_steps
    decays = dict(zip(steps.names, steps.optimiser.decays.tolist(), strict=True))
    assert all(decays[name] == pytest.approx(precisions[name] / 200) for name in precisions)
    images, _ = stripes(100, 1)
    members = trainer.network.layer.members()
    with torch.no_grad():
        of_ffc, of_conv = (members[kind](images).norm() for kind in ("ffc", "conv"))
    assert float(of_ffc) < 1e-6 * float(of_conv)
    (layer,), evidence = structures(trainer)
    assert layer.became == "conv" and layer.pathways["ffc"].relative < 1e-6
    assert -50 < evidence < 0
    assert all(bool(torch.isfinite(each).all()) for each in trainer.network.parameters())


def test_hardening_takes_out_what_is_off(run: Run) -> None:
    network = copy.deepcopy(run.trainer.network).eval()
    structures(run.trainer)
    network.layer.contributions = run.trainer.network.layer.contributions
    plain = harden(network)
    assert type(plain.layer) is nn.Conv2d
    images, labels = stripes(100, 1)
    with torch.no_grad():
        assert float((plain(images) - network(images)).abs().max()) < 1e-5
        assert float((plain(images).argmax(1) == labels).float().mean()) > 0.95


def test_sparse_pathways_that_learn_their_lengthscales_go_and_stay_finite() -> None:
    network = new_network()
    options = PathwayOptions(learns_lengthscale=True, learns_anchors=True)
    network.layer = RelaxedLayer.new(
        ("sfc", "sconv", "conv"), network.layer.shape, options, generator=seeded()
    )
    trainer = trainer_of(network, epochs=24, update_every=2)
    for _ in range(24):
        trainer.run_epoch()
    assert ("layer", "sfc") in trainer.hyper.off
    assert not any(
        name.endswith("readout.lengthscale") for name in trainer.hyper.off["layer", "sfc"]
    )
    assert all(bool(torch.isfinite(each).all()) for each in network.parameters())
    images, _ = stripes(100, 1)
    with torch.no_grad():
        parts = {kind: float(each(images).norm()) for kind, each in network.layer.members().items()}
    for _, kind in trainer.hyper.off:
        assert parts[kind] < 1e-6 * max(parts.values())
    precisions, (_, evidence) = trainer.prior.by_group(), structures(trainer)
    off = [name for names in trainer.hyper.off.values() for name in names]
    assert all(1e11 <= precisions[name] < float("inf") for name in off)
    assert -200 < evidence < 0


def test_a_run_may_end_with_switching_off() -> None:
    trainer = trainer_of(new_network(), burn_in=EPOCHS)
    for _ in range(EPOCHS):
        row = trainer.run_epoch()
    assert trainer.hyper.off == {FFC: OF_FFC} and row.log_evidence is not None
    _, evidence = structures(trainer)
    assert evidence > row.log_evidence - 1
