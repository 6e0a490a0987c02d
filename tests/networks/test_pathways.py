"""Pathways by name, and the layer that is their sum."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.networks.pathway import LayerShape
from isotropy.networks.pathways import (
    FREE,
    GROUP_CONVOLUTIONS,
    PATHWAYS,
    PathwayOptions,
    RelaxedLayer,
    check_kinds,
    options_for,
    pathway_named,
)
from isotropy.symmetry.point_groups import PointGroup

SAME = LayerShape((4, 6, 6), (8, 6, 6))
HALVED = LayerShape((4, 6, 6), (8, 3, 3))
OPTIONS = PathwayOptions(group=PointGroup.of("C(4)"))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def maps_of(shape: LayerShape, batch: int = 5) -> Tensor:
    return torch.randn(batch, *shape.source, dtype=torch.float64, generator=seeded(7))


def layer_of(kinds: tuple[str, ...], shape: LayerShape, seed: int = 0) -> RelaxedLayer:
    return RelaxedLayer.new(kinds, shape, OPTIONS, generator=seeded(seed)).double()


def largest_component(maps: Tensor) -> Tensor:
    """Of the four components of each example the one with the largest absolute value."""
    kept = []
    for example in maps.detach():
        parts = [example[:, i::2, j::2] for i in range(2) for j in range(2)]
        kept.append(max(parts, key=lambda part: float(part.abs().max())))
    return torch.stack(kept)


# --- one pathway ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SAME, HALVED], ids=["same", "halved"])
@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_name_gives_a_pathway_of_its_kind(kind, shape):
    pathway = pathway_named(kind, shape, OPTIONS, generator=seeded()).double()
    assert pathway.kind == ("gconv" if kind in GROUP_CONVOLUTIONS else kind)
    outputs = pathway(maps_of(shape))
    size = shape.target if pathway.reaches_target else (shape.target[0], *shape.source[1:])
    assert outputs.shape == (5, *size)
    assert outputs.std() > 0.01
    names = dict(pathway.named_parameters())
    assert set(pathway.weights) <= set(names)
    # What counts is all but biases; without a learned basis there is nothing else.
    assert {name for name in names if "bias" not in name} == set(pathway.weights)


@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_is_drawn_by_its_generator_alone(kind):
    state = torch.get_rng_state()
    first, second, other = (
        pathway_named(kind, SAME, OPTIONS, generator=seeded(seed)).state_dict()
        for seed in (1, 1, 2)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_scales_and_learns_from_zero(kind):
    pathway = pathway_named(kind, SAME, OPTIONS, generator=seeded()).double()
    with torch.no_grad():
        for parameter in pathway.parameters():  # biases too must scale
            parameter.add_(torch.rand(parameter.shape, dtype=torch.float64, generator=seeded(3)))
    maps = maps_of(SAME)
    before = pathway(maps).detach()
    pathway.scale_(0.25)
    assert torch.allclose(pathway(maps), 0.25 * before, rtol=1e-12, atol=1e-12)
    pathway.scale_(0.0)
    outputs = pathway(maps)
    assert not outputs.any()
    (outputs * before).sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in pathway.parameters())


@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_has_plain_layers_with_the_same_outputs(kind):
    pathway = pathway_named(kind, HALVED, OPTIONS, generator=seeded()).double()
    plain, maps = pathway.plain(), maps_of(HALVED)
    assert torch.allclose(plain(maps), pathway(maps), rtol=1e-12, atol=1e-12)
    own = {parameter.data_ptr() for parameter in pathway.parameters()}
    assert not own & {parameter.data_ptr() for parameter in plain.parameters()}


@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_adds_constants_or_says_that_it_does_not(kind):
    """Constants that are equal over the four copies of a channel, which any symmetry allows."""
    pathway = pathway_named(kind, SAME, OPTIONS, generator=seeded()).double()
    with torch.no_grad():
        for parameter in pathway.parameters():
            parameter.add_(torch.rand(parameter.shape, dtype=torch.float64, generator=seeded(3)))
    constants = torch.randn(2, dtype=torch.float64, generator=seeded(4)).repeat(4)
    maps = maps_of(SAME)
    before, saved = pathway(maps).detach(), copy.deepcopy(pathway.state_dict())
    if pathway.absorb_(constants):
        expected = before + constants[:, None, None]
        assert torch.allclose(pathway(maps), expected, rtol=1e-12, atol=1e-12)
    else:
        assert kind in FREE
        assert all(torch.equal(each, saved[name]) for name, each in pathway.state_dict().items())


@pytest.mark.parametrize("kind", [kind for kind in PATHWAYS if kind not in FREE])
def test_a_pathway_that_is_a_constant_can_be_stood_in_for(kind):
    layer, maps = layer_of(("ffc", kind), SAME), maps_of(SAME)
    constant, other = layer.members()["ffc"], layer.members()[kind]
    with torch.no_grad():
        for parameter in constant.parameters():
            parameter.zero_()
        constant.readout.bias.copy_(torch.tensor([3.0, -1.0]).repeat(4))
        constant.spread.weight.fill_(0.25)  # four input channels, each with the same bias
        means = constant(maps).mean((0, 2, 3))
        before = layer(maps)
        constant.scale_(0.0)
        assert (layer(maps) - before).abs().min() > 0.9
        assert other.absorb_(means)
        assert torch.allclose(layer(maps), before, rtol=1e-12, atol=1e-12)


def test_a_group_convolution_needs_a_group():
    with pytest.raises(CallerError, match="needs a group"):
        pathway_named("gconv", SAME)


def test_unknown_pathways_are_refused():
    with pytest.raises(CallerError, match="unknown pathway 'covn'.*'conv'"):
        pathway_named("covn", SAME)
    with pytest.raises(CallerError, match="unknown pathway 'covn'"):
        RelaxedLayer.new(["covn"], SAME)


# --- their sum --------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("conv",), ("ffc", "conv"), ("fc", "ffc", "sfc", "conv")])
def test_a_layer_is_the_sum_of_its_pathways(kinds):
    layer, maps = layer_of(kinds, SAME), maps_of(SAME)
    assert tuple(layer.members()) == kinds
    expected = sum(pathway(maps) for pathway in layer.members().values())
    assert torch.allclose(layer(maps), expected, rtol=1e-12, atol=1e-12)


def test_pathways_that_wait_share_one_polyphase_component():
    layer, maps = layer_of(("conv", "ffc", "sconv", "gconv"), HALVED), maps_of(HALVED, 40)
    parts = {kind: pathway(maps) for kind, pathway in layer.members().items()}
    chosen = largest_component(parts["conv"] + parts["sconv"] + parts["gconv"])
    assert torch.allclose(layer(maps), chosen + parts["ffc"], rtol=1e-12, atol=1e-12)
    # A choice of its own for each would give something else.
    apart = sum(largest_component(parts[kind]) for kind in ("conv", "sconv", "gconv"))
    assert not torch.allclose(layer(maps), apart + parts["ffc"], atol=1e-3)


def test_a_layer_of_pathways_that_reach_their_target_takes_any_sizes():
    shape = LayerShape((2, 7, 5), (3, 4, 2))
    assert layer_of(("fc", "ffc"), shape)(maps_of(shape)).shape == (5, 3, 4, 2)


@pytest.mark.parametrize("free_start", [0.0, 0.3])
def test_in_new_layers_pathways_with_a_symmetry_share_the_variance(free_start: float):
    kinds = ("ffc", "conv", "sconv")
    options = replace(OPTIONS, free_start=free_start)
    layer = RelaxedLayer.new(kinds, SAME, options, generator=seeded(4)).double()
    generator = seeded(4)
    maps = maps_of(SAME)
    for kind in kinds:
        alone = pathway_named(kind, SAME, OPTIONS, generator=generator).double()
        ours, share = layer.members()[kind], free_start if kind == "ffc" else 1.0
        wanted = alone(maps) * share / math.sqrt(2)
        assert torch.allclose(ours(maps), wanted, rtol=1e-6, atol=1e-7)


def test_free_pathways_alone_share_the_variance():
    layer = RelaxedLayer.new(("ffc", "fc"), SAME, generator=seeded(4)).double()
    alone = pathway_named("ffc", SAME, generator=seeded(4)).double()
    maps = maps_of(SAME)
    assert torch.allclose(
        layer.members()["ffc"](maps), alone(maps) / math.sqrt(2), rtol=1e-6, atol=1e-7
    )


def test_where_other_pathways_are_zero_the_layer_is_its_convolution_exactly():
    options = replace(OPTIONS, free_start=1.0)
    layer = RelaxedLayer.new(("fc", "ffc", "conv"), SAME, options, generator=seeded()).double()
    maps = maps_of(SAME)
    members = layer.members()
    assert not torch.equal(layer(maps), members["conv"](maps))
    members["fc"].scale_(0)
    members["ffc"].scale_(0)
    assert torch.equal(layer(maps), members["conv"](maps))
    shifted = layer(maps.roll((2, 1), (2, 3)))
    assert torch.allclose(shifted, layer(maps).roll((2, 1), (2, 3)), rtol=1e-12, atol=1e-12)


def test_layers_are_refused_that_do_not_fit():
    with pytest.raises(CallerError, match="at least one pathway, got none"):
        RelaxedLayer(SAME, {})
    with pytest.raises(CallerError, match="at least one pathway and each once, got none"):
        RelaxedLayer.new([], SAME)
    with pytest.raises(CallerError, match="each once, got conv, conv"):
        RelaxedLayer.new(["conv", "conv"], SAME)
    with pytest.raises(CallerError, match="got the text 'ffc,conv'"):
        check_kinds("ffc,conv")
    with pytest.raises(CallerError, match="pathway ffc: expected one from .*6, 6.*got one from"):
        RelaxedLayer(SAME, {"ffc": pathway_named("ffc", HALVED)})
    with pytest.raises(CallerError, match=r"expected maps \(batch, 4, 6, 6\), got \(5, 4, 5, 6\)"):
        layer_of(("ffc",), SAME)(torch.zeros(5, 4, 5, 6).double())


def test_sizes_that_cannot_be_halved_are_refused():
    with pytest.raises(CallerError, match="divides the input size 7×7"):
        RelaxedLayer.new(["conv"], LayerShape((1, 7, 7), (2, 3, 3)))
    with pytest.raises(CallerError, match="divides the input size 8×6"):
        RelaxedLayer.new(["conv"], LayerShape((1, 8, 6), (2, 4, 2)))


# --- options ----------------------------------------------------------------------------------


def test_options_have_a_group_exactly_if_it_is_used():
    assert options_for(["conv"]).group is None
    assert options_for(["conv"], options=OPTIONS).group is None
    assert options_for(["conv", "gconv-full"]).group == PointGroup.of("C(4)")
    flips = PathwayOptions(group=PointGroup.of("D(1)"), sparsity=0.25)
    assert options_for(["gconv"], options=flips) == flips
    assert options_for(["gconv"], "D(4)", flips) == PathwayOptions(
        group=PointGroup.of("D(4)"), sparsity=0.25
    )
    with pytest.raises(CallerError, match="none of the pathways ffc, conv uses it"):
        options_for(["ffc", "conv"], "C(4)")


# --- shares -----------------------------------------------------------------------------------


def test_shares_are_saved_with_the_weights():
    layer = layer_of(("ffc", "conv"), SAME)
    assert layer.contributions is None
    layer.contributions = {"conv": 0.75, "ffc": 0.25}
    assert layer.contributions == {"ffc": 0.25, "conv": 0.75}
    other = layer_of(("ffc", "conv"), SAME, seed=1)
    other.load_state_dict(layer.state_dict())
    assert other.contributions == {"ffc": 0.25, "conv": 0.75}
    other.contributions = None
    assert other.contributions is None
    assert layer.contributions is not None


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"conv": 1.0}, "each of ffc, conv, got conv"),
        ({"conv": 1.0, "ffc": 0.0, "fc": 0.0}, "got conv, ffc, fc"),
        ({"conv": math.nan, "ffc": 0.0}, "got nan for conv"),
        ({"conv": 1.1, "ffc": -0.1}, "got -0.1 for ffc"),
    ],
)
def test_bad_shares_are_refused(shares, message):
    layer = layer_of(("ffc", "conv"), SAME)
    with pytest.raises(CallerError, match=message):
        layer.contributions = shares
    assert layer.contributions is None
