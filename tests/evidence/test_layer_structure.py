"""What relaxed layers have become: contributions of what hears the inputs, and bias maps."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest
import torch
from numerics import numbers
from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.evidence.layers import structure as layer_structure
from isotropy.evidence.layers.structure import (
    LayerStructure,
    PathwayUse,
    became,
    layer_structures,
    note_contributions,
)
from isotropy.likelihoods import Categorical
from isotropy.networks.pathways.pathway import LayerShape
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer, options_for

SAME = LayerShape((2, 4, 4), (4, 4, 4))
HALVED = LayerShape((4, 4, 4), (4, 2, 2))


def network_of(*layers: RelaxedLayer) -> nn.Sequential:
    """These, from one to the next, and a head; every parameter drawn at random."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number, layer in enumerate(layers):
        parts[f"layer{number}"], parts[f"tanh{number}"] = layer, nn.Tanh()
    parts |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(4, 2))
    network = nn.Sequential(parts).double()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(0.3 * numbers(*parameter.shape, seed=number + 1))
    return network


def two_layers() -> nn.Sequential:
    """Maps of one size, then of half of it; of the second three pathways wait, and one does not."""
    kinds = ("ffc", "conv", "sconv", "gconv")
    second = RelaxedLayer.new(kinds, HALVED, options_for(kinds))
    return network_of(RelaxedLayer.new(("ffc", "conv"), SAME), second)


def root_mean_square(maps: Tensor) -> float:
    return float(maps.detach().square().mean().sqrt())


def linear_sizes(layer: RelaxedLayer, maps: Tensor) -> dict[str, float]:
    """Of what each pathway makes of its inputs: outputs less those for zeros."""
    nothing = torch.zeros_like(maps)
    return {kind: root_mean_square(p(maps) - p(nothing)) for kind, p in layer.members().items()}


def maps_into(network: nn.Sequential, inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"layer0": inputs, "layer1": network[:2](inputs)}


# --- contributions --------------------------------------------------------------------------------


def test_contributions_and_bias_maps_are_as_defined() -> None:
    network, inputs = two_layers(), numbers(7, *SAME.source)
    layers = {name: network.get_submodule(name) for name in ("layer0", "layer1")}
    assert all(layer.contributions is layer.bias_map is None for layer in layers.values())
    note_contributions(network, inputs)
    for name, maps in maps_into(network, inputs).items():
        layer = layers[name]
        sizes = linear_sizes(layer, maps)
        whole = sum(size**2 for size in sizes.values()) ** 0.5
        wanted = {kind: size / whole for kind, size in sizes.items()}
        assert layer.contributions == pytest.approx(wanted, rel=1e-12)
        assert sum(share**2 for share in layer.contributions.values()) == pytest.approx(1)
        # Pathways that wait have constants without places, so that only one has any here.
        added = layer.members()["ffc"](torch.zeros(1, *layer.shape.source).double())[0]
        places = torch.stack([channel - channel.mean() for channel in added])
        assert root_mean_square(places) > 0.01
        assert layer.bias_map == pytest.approx(root_mean_square(places) / whole, rel=1e-12)


def test_constants_do_not_count_as_contributions() -> None:
    """One of another size for every place, behind which nothing hears anything else."""
    network, inputs = network_of(RelaxedLayer.new(("ffc", "conv"), SAME)), numbers(6, *SAME.source)
    layer = network.layer0
    note_contributions(network, inputs)
    before, map_before = layer.contributions, layer.bias_map
    with torch.no_grad():
        layer.members()["conv"].convolution.bias.add_(30.0)
    note_contributions(network, inputs)
    assert layer.contributions == pytest.approx(before, rel=1e-10)
    assert layer.bias_map == pytest.approx(map_before, rel=1e-10), "the same at all places"
    with torch.no_grad():
        layer.members()["ffc"].spread.bias.add_(30 * numbers(16, seed=9))
    note_contributions(network, inputs)
    assert layer.contributions == pytest.approx(before, rel=1e-10)
    assert layer.bias_map > 10 * map_before


def test_constants_of_several_pathways_may_cancel() -> None:
    layer = RelaxedLayer.new(("fc", "ffc"), SAME)
    network, inputs = network_of(layer), numbers(6, *SAME.source)
    with torch.no_grad():
        layer.members()["fc"].linear.bias.copy_(-layer.members()["ffc"].constant().flatten())
    note_contributions(network, inputs)
    assert layer.bias_map == pytest.approx(0, abs=1e-12)


def test_where_all_wait_there_is_no_map() -> None:
    network = network_of(RelaxedLayer.new(("conv", "sconv"), HALVED))
    note_contributions(network, numbers(5, *HALVED.source))
    assert network.layer0.bias_map == 0
    assert min(network.layer0.contributions.values()) > 0.1


def test_a_layer_that_hears_nothing() -> None:
    """There is nothing to divide by: contributions are zero, and the map has its own size."""
    network = network_of(RelaxedLayer.new(("ffc", "conv"), SAME))
    members = network.layer0.members()
    members["conv"].zero_()
    with torch.no_grad():
        members["ffc"].readout.weight.zero_()
    note_contributions(network, numbers(5, *SAME.source))
    assert network.layer0.contributions == {"ffc": 0.0, "conv": 0.0}
    added = members["ffc"].constant()
    places = added - added.mean((1, 2), keepdim=True)
    assert network.layer0.bias_map == pytest.approx(root_mean_square(places))


def test_examples_count_alike_however_they_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two, two and one, of which the last is much larger."""
    network, inputs = two_layers(), numbers(5, *SAME.source)
    inputs[-1] *= 30
    note_contributions(network, inputs)
    layers = (network.layer0, network.layer1)
    expected = [(layer.contributions, layer.bias_map) for layer in layers]
    monkeypatch.setattr(layer_structure, "ROWS", 2)
    note_contributions(network, inputs)
    for layer, (contributions, bias_map) in zip(layers, expected, strict=True):
        assert layer.contributions == pytest.approx(contributions, rel=1e-12)
        assert layer.bias_map == pytest.approx(bias_map, rel=1e-12)


def test_noting_leaves_the_network_as_it_was() -> None:
    network, inputs = two_layers(), numbers(4, *SAME.source)
    network.train()
    network.pool.eval()
    before = [parameter.detach().clone() for parameter in network.parameters()]
    modes = [module.training for module in network.modules()]
    note_contributions(network, inputs)
    assert [module.training for module in network.modules()] == modes
    assert not any(module._forward_hooks for module in network.modules())
    pairs = zip(network.parameters(), before, strict=True)
    assert all(torch.equal(one, other) and one.grad is None for one, other in pairs)


def test_notes_are_saved_with_the_weights() -> None:
    network, other = two_layers(), two_layers()
    note_contributions(network, numbers(4, *SAME.source))
    other.load_state_dict(network.state_dict())
    assert other.layer1.bias_map == network.layer1.bias_map > 0
    assert other.layer1.contributions == network.layer1.contributions
    other.layer1.bias_map = None
    assert other.layer1.bias_map is None is not other.layer0.bias_map


# --- what a layer became --------------------------------------------------------------------------


def test_a_bias_map_is_said_from_a_tenth_on() -> None:
    relative, contributions = {"ffc": 0.0, "conv": 1.0}, {"ffc": 0.01, "conv": 0.99}
    assert became(relative, contributions, 0.0999) == "conv"
    assert became(relative, contributions, 0.1) == "conv + bias map"
    assert became(relative, {"ffc": 0.6, "conv": 0.8}, 3.0) == "conv + ffc + bias map"
    assert became({"ffc": 0.0, "conv": 0.0}, contributions, 3.0) == "off"


def use(contribution: float | None, relative: float) -> PathwayUse:
    return PathwayUse(
        parameters=10,
        effective=5.0,
        normalised=0.5,
        relative=relative,
        prior_precision=1.0,
        weight_norm=2.0,
        precisions={"weight": 1.0},
        contribution=contribution,
    )


@pytest.mark.parametrize(
    ("bias_map", "words"), [(None, "conv"), (0.05, "conv"), (0.5, "conv + bias map")]
)
def test_structures_have_the_map_in_words_and_in_records(
    bias_map: float | None, words: str
) -> None:
    layer = LayerStructure("first", {"ffc": use(None, 0.01), "conv": use(1.0, 0.99)}, bias_map)
    assert layer.became == words
    record = layer.as_dict()
    assert record["became"] == words and record["bias_map"] == bias_map
    assert json.loads(json.dumps(record)) == record


def test_structures_of_a_network_have_what_was_noted() -> None:
    network, inputs = two_layers(), numbers(6, *SAME.source)
    names = KFAC(network).parameter_names
    prior = GaussianPrior(network, names, "tensor", 1.0)
    evidence = LaplaceEvidence(network, Categorical(), prior, KFAC(network))
    fit = evidence.fit([Batch(inputs, torch.arange(6) % 2, Copies(1))])
    with torch.no_grad():
        unknown = layer_structures(network, evidence, fit)
        assert [layer.bias_map for layer in unknown] == [None, None]
        note_contributions(network, inputs)
        found = layer_structures(network, evidence, fit)
    for layer in found:
        module = network.get_submodule(layer.name)
        assert layer.bias_map == layer.as_dict()["bias_map"] == module.bias_map > 0
        assert layer.as_dict()["contribution"] == module.contributions
