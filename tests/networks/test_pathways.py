"""Pathways by name, and the layer that is their sum."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from network_cases import assert_equal, library_blocks
from torch import Tensor
from user_networks import seeded

from isotropy.checks import CallerError
from isotropy.likelihoods import Categorical
from isotropy.networks.pathways.pathway import LayerShape, Pathway
from isotropy.networks.pathways.relaxed_layer import (
    FREE,
    GROUP_CONVOLUTIONS,
    PATHWAYS,
    PathwayOptions,
    RelaxedLayer,
    check_kinds,
    options_for,
    pathway_named,
    symmetry_rank,
)
from isotropy.symmetry.groups.point_groups import PointGroup

SAME = LayerShape((4, 6, 6), (8, 6, 6))
HALVED = LayerShape((4, 6, 6), (8, 3, 3))
OPTIONS = PathwayOptions(group=PointGroup.of("C(4)"))
LEARNED_BASIS = replace(OPTIONS, learns_lengthscale=True, learns_anchors=True)
every_basis = pytest.mark.parametrize(
    "options", [OPTIONS, LEARNED_BASIS], ids=["fixed", "learned basis"]
)


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
    assert pathway.reaches_target == (shape is SAME or kind in FREE)
    size = shape.target if pathway.reaches_target else (shape.target[0], *shape.source[1:])
    assert outputs.shape == (5, *size)
    assert outputs.std() > 0.01
    assert f"4×6×6 → {'×'.join(map(str, shape.target))}" in repr(pathway)
    with torch.device("meta"):
        assert all(each.is_meta for each in pathway_named(kind, shape, OPTIONS).parameters())
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


@every_basis
@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_has_plain_layers_with_the_same_outputs(kind, options):
    pathway = filled_pathway(kind, HALVED, options)
    plain, maps = pathway.plain(), maps_of(HALVED)
    assert torch.allclose(plain(maps), pathway(maps), rtol=1e-12, atol=1e-12)
    own = {parameter.data_ptr() for parameter in pathway.parameters()}
    assert not own & {parameter.data_ptr() for parameter in plain.parameters()}
    if kind not in ("ffc", "sfc"):
        assert all(type(module).__module__.startswith("torch.nn") for module in plain.modules())


@every_basis
@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_is_saved_and_rounded(kind, options):
    pathway, maps = filled_pathway(kind, SAME, options), maps_of(SAME)
    other = pathway_named(kind, SAME, options, generator=seeded(1)).double()
    assert not torch.allclose(other(maps), pathway(maps), rtol=0.1)
    other.load_state_dict(pathway.state_dict())
    expected = pathway(maps).detach()
    assert torch.equal(other(maps), expected)
    rounded = other.float()(maps.float())
    assert rounded.dtype == torch.float32
    assert torch.allclose(rounded.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pass_can_be_mapped_over_maps_and_weights(kind):
    pathway, maps = filled_pathway(kind, SAME), maps_of(SAME, 6).unflatten(0, (3, 2))
    together = torch.func.vmap(pathway)(maps)
    assert torch.allclose(together, torch.stack([pathway(each) for each in maps]), atol=1e-12)
    parameters = {n: torch.stack([p, 2 * p]).detach() for n, p in pathway.named_parameters()}

    def outputs(values):
        return torch.func.functional_call(pathway, values, (maps[0],))

    together = torch.func.vmap(outputs)(parameters)
    singly = [outputs({n: p[each] for n, p in parameters.items()}) for each in range(2)]
    assert torch.allclose(together, torch.stack(singly), rtol=1e-10, atol=1e-10)


@every_basis
@pytest.mark.parametrize("kind", PATHWAYS)
def test_curvature_of_all_directions_together_or_one_by_one(kind, options):
    """With a graph to the inputs, and in a network that down-samples."""
    small = LayerShape((4, 4, 4), (4, 2, 2))  # blocks are written out
    layer = RelaxedLayer(small, {kind: filled_pathway(kind, small, options)})
    head = torch.nn.Linear(16, 3).double()
    network = torch.nn.Sequential(layer, torch.nn.Tanh(), torch.nn.Flatten(), head)
    rows = maps_of(small, 2).mul(0.1).requires_grad_()
    one, many = (
        library_blocks(network, rows, 1, Categorical(), directions_at_once=count, create_graph=True)
        for count in (1, 3)
    )
    left_out = {name for name, _ in network.named_parameters()} - set(one)
    assert all(name.endswith("anchors") for name in left_out)
    for name, block in one.items():
        assert_equal(many[name], block, name)
    (gradient,) = torch.autograd.grad(sum(block.sum() for block in many.values()), rows)
    assert gradient.isfinite().all() and gradient.abs().max() > 0


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


SHAPING = {
    f"{part}.{name}": kind
    for kind, parts in {"sfc": ("readout", "spread"), "sconv": ("convolution",)}.items()
    for part in parts
    for name in ("anchors", "lengthscale")
}
"""Parameters that shape filters, if a basis is learned, and the pathways they are of."""


def filled_pathway(kind: str, shape: LayerShape, options: PathwayOptions = OPTIONS) -> Pathway:
    """No parameter is zero, and no two are equal."""
    pathway = pathway_named(kind, shape, options, generator=seeded()).double()
    with torch.no_grad():
        for number, parameter in enumerate(pathway.parameters()):
            noise = torch.rand(parameter.shape, dtype=torch.float64, generator=seeded(3 + number))
            parameter.add_(0.1 + noise)
    return pathway


@pytest.mark.parametrize("shape", [SAME, HALVED], ids=["same", "halved"])
@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_is_its_constant_and_a_linear_part(kind, shape):
    pathway, maps = filled_pathway(kind, shape), maps_of(shape)
    constant = pathway.constant()
    size = shape.target if pathway.reaches_target else (shape.target[0], *shape.source[1:])
    assert constant.shape == size and not constant.requires_grad
    assert constant.abs().min() > 0.01
    linear = pathway(maps).detach() - constant
    assert torch.allclose(pathway(-2 * maps) - constant, -2 * linear, rtol=1e-12, atol=1e-10)
    assert torch.allclose(pathway(maps + maps[0]) - constant, linear + linear[0], atol=1e-10)
    if kind not in FREE:  # a symmetry allows no place that differs from others
        assert torch.allclose(constant, constant[:, :1, :1].expand_as(constant), atol=1e-12)


@pytest.mark.parametrize("kind", PATHWAYS)
def test_constants_have_the_type_of_the_parameters(kind):
    pathway = pathway_named(kind, SAME, OPTIONS)
    assert pathway.constant().dtype == torch.float32
    assert not pathway.constant().any(), "biases start at zero"
    assert pathway.double().constant().dtype == torch.float64


def test_a_constant_is_that_of_its_biases():
    """Written out for the factored pathway: z = b2, y(c', x) = Σ_c θ1(c', c, x) b2(c') + b1(x)."""
    pathway = filled_pathway("ffc", HALVED)
    weight, bias = pathway.spread.weight.detach(), pathway.spread.bias.detach()
    by_hand = (weight.sum(1) * pathway.readout.bias.detach()[:, None] + bias).view(8, 3, 3)
    assert torch.allclose(pathway.constant(), by_hand, rtol=1e-12)
    assert (by_hand - by_hand.mean((1, 2), keepdim=True)).abs().max() > 0.1


@every_basis
@pytest.mark.parametrize("kind", PATHWAYS)
def test_every_pathway_can_be_set_to_zero_for_good(kind, options):
    """All but what shapes filters is zero, and while it is no shape brings anything back."""
    pathway, maps = filled_pathway(kind, SAME, options), maps_of(SAME)
    names = dict(pathway.named_parameters())
    shaping = {name for name in names if SHAPING.get(name) == kind}
    assert bool(shaping) == (options is LEARNED_BASIS and kind in SHAPING.values())
    before = {name: parameter.detach().clone() for name, parameter in names.items()}
    pathway.zero_()
    assert not shaping & set(pathway.weights)
    assert not any(parameter.any() for name, parameter in names.items() if name not in shaping)
    assert all(torch.equal(names[name], before[name]) for name in shaping)
    outputs = pathway(maps)
    assert not outputs.any() and not pathway.constant().any()
    (outputs * maps_of(LayerShape(SAME.target, SAME.target))).sum().backward()
    for name in shaping:
        assert not names[name].grad.any(), "nothing asks for another shape"
        names[name].data.add_(0.1)
    assert not pathway(maps).any()


@pytest.mark.parametrize("kind", ["ffc", "sfc", "gconv-separable", "gconv-depthwise"])
def test_of_a_product_no_factor_comes_back_from_zero(kind):
    """As one does after `scale_(0.0)`, which leaves the others: the loss has a gradient of it."""
    pathway, maps = filled_pathway(kind, SAME), maps_of(SAME)
    targets = maps_of(LayerShape(SAME.target, SAME.target))
    names, found = dict(pathway.named_parameters()), []
    for stop in (lambda: pathway.scale_(0.0), pathway.zero_):
        stop()
        pathway.zero_grad()
        (pathway(maps) * targets).sum().backward()
        found.append(any(bool(names[name].grad.any()) for name in pathway.weights))
    assert found == [True, False]


@pytest.mark.parametrize("kind", PATHWAYS)
def test_symmetries_are_ranked(kind):
    """From 1 on pathways commute with shifts, and below they do not."""
    pathway, maps = filled_pathway(kind, SAME), maps_of(SAME)
    shifted = pathway(maps.roll((2, 1), (2, 3))) - pathway(maps).roll((2, 1), (2, 3))
    assert (symmetry_rank(kind) >= 1) == bool(shifted.abs().max() < 1e-10)
    assert (symmetry_rank(kind) == 2) == (kind in GROUP_CONVOLUTIONS)


def test_a_group_convolution_needs_a_group():
    with pytest.raises(CallerError, match="needs a group"):
        pathway_named("gconv", SAME)


@pytest.mark.parametrize(
    ("kernel", "words"), [(2, "odd"), (0, "odd"), (-1, "odd"), (5, "at most 3 on maps of 1×1")]
)
@pytest.mark.parametrize("kind", ["conv", "sconv", "gconv"])
def test_kernels_that_are_refused(kind, kernel, words):
    size = 1 if kernel == 5 else 4
    shape = LayerShape((4, size, size), (8, size, size))
    with pytest.raises(CallerError, match=words):
        pathway_named(kind, shape, replace(OPTIONS, kernel=kernel))


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
