"""Hardening what was learned: plain layers, and nothing lost but what is said."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from test_pathways import largest_component
from torch import Tensor, nn
from user_networks import disturb, images, layers_of, model_of, seeded, size_of

from isotropy.checks import CallerError
from isotropy.networks.equivariant.point_group_layers import PolyphaseDownsampling
from isotropy.networks.pathways.fully_connected import FactoredPathway
from isotropy.networks.pathways.harden import harden, kept_pathways
from isotropy.networks.pathways.pathway import BiasMap, ConvolutionPathway, LayerShape
from isotropy.networks.pathways.relax import relax, relaxed_cnn
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer, options_for


def learned(kinds: tuple[str, ...] = ("ffc", "conv")) -> nn.Module:
    relaxed = relax(model_of("resnet"), kinds, example=images(), generator=seeded())
    disturb(relaxed)
    return relaxed


def without(layer: RelaxedLayer, removed: set[str], maps: Tensor) -> Tensor:
    """What a layer gives without what these pathways make of their inputs; they still add what they
    give for zeros. Of the sum of those that wait the component is chosen here."""
    waiting, reaching = [], []
    for kind, pathway in layer.members().items():
        outputs = pathway(maps).detach()
        if kind in removed:
            outputs = outputs - (outputs - pathway(torch.zeros_like(maps)).detach())
        (reaching if outputs.shape[1:] == layer.shape.target else waiting).append(outputs)
    if waiting:
        reaching.append(largest_component(sum(waiting)))
    return sum(reaching)


class Without(nn.Module):
    """In place of a layer of a network: `without` of it."""

    def __init__(self, layer: RelaxedLayer, removed: set[str]) -> None:
        super().__init__()
        self.layer, self.removed = layer, removed

    def forward(self, maps: Tensor) -> Tensor:
        return without(self.layer, self.removed, maps)


def strict_form(model: nn.Module, removed: dict[str, set[str]]) -> nn.Module:
    """A copy of a network without these pathways of these layers."""
    strict = copy.deepcopy(model)
    for name, layer in layers_of(model).items():
        if name in removed:
            strict.set_submodule(name, Without(layer, removed[name]))
    return strict


def types(module: nn.Module) -> list[type]:
    """Of the layers in a row, or of one."""
    return [type(m) for m in module] if isinstance(module, nn.Sequential) else [type(module)]


def test_hardened_layers_are_the_pathways_that_are_left():
    relaxed = learned()
    shares = [(0.0, 1.0), (0.005, 0.995), (0.6, 0.4), (1.0, 0.0), (0.01, 0.99), (0.0099, 0.9901)]
    for layer, (ffc, conv) in zip(layers_of(relaxed).values(), shares, strict=True):
        layer.contributions = {"ffc": ffc, "conv": conv}
    hardened = harden(relaxed)
    block, last = hardened.blocks
    with_constants = [nn.Conv2d, BiasMap]
    assert types(hardened.stem) == types(block.conv1) == types(last.shortcut[0]) == with_constants
    assert hardened.stem[0].padding_mode == "circular"
    assert hardened.stem[1].bias.shape == (4, 12, 12)
    assert list(block.conv2.members()) == list(last.conv2.members()) == ["ffc", "conv"]
    assert type(last.conv1) is FactoredPathway  # its convolution has no bias
    assert size_of(hardened) < size_of(relaxed)

    strict = strict_form(
        relaxed,
        {
            "stem": {"ffc"},
            "blocks.0.conv1": {"ffc"},
            "blocks.1.conv1": {"conv"},
            "blocks.1.shortcut.0": {"ffc"},
        },
    )
    assert (hardened(images()) - strict(images())).abs().max() < 1e-12
    assert (hardened(images()) - relaxed(images())).abs().max() > 1e-3


def test_pathways_without_constants_leave_no_bias_map():
    relaxed = learned()
    for layer in layers_of(relaxed).values():
        ffc = layer.members()["ffc"]
        ffc.readout.bias.data.zero_()
        ffc.spread.bias.data.zero_()
    hardened = harden(relaxed, {name: {"ffc": 0, "conv": 1} for name in layers_of(relaxed)})
    assert str(hardened) == str(model_of("resnet"))
    strict = strict_form(relaxed, {name: {"ffc"} for name in layers_of(relaxed)})
    assert (hardened(images()) - strict(images())).abs().max() < 1e-12


def test_a_pathway_that_is_a_constant_is_kept_whole():
    """Where things are is told by a pathway that hears nothing: hardening changes no output."""
    relaxed = learned()
    for layer in layers_of(relaxed).values():
        layer.members()["ffc"].readout.weight.data.zero_()
    hardened = harden(relaxed, {name: {"ffc": 0, "conv": 1} for name in layers_of(relaxed)})
    assert (hardened(images()) - relaxed(images())).abs().max() < 1e-12
    assert size_of(hardened) < size_of(relaxed)
    bare = learned()
    for layer in layers_of(bare).values():
        layer.members()["ffc"].zero_()
    assert (hardened(images()) - bare(images())).abs().max() > 1e-3


def test_hardening_is_a_copy_and_does_nothing_twice():
    relaxed = learned()
    before, size = relaxed(images()), size_of(relaxed)
    for index, layer in enumerate(layers_of(relaxed).values()):
        layer.contributions = {"ffc": 0.5, "conv": 0.5} if index else {"ffc": 0.0, "conv": 1.0}
    hardened = harden(relaxed)
    again = harden(hardened)
    assert torch.equal(again(images()), hardened(images()))
    assert size_of(again) == size_of(hardened) < size
    disturb(hardened)
    assert torch.equal(relaxed(images()), before)


@pytest.mark.parametrize("constants", [True, False], ids=["with constants", "without"])
def test_a_strided_convolution_brings_its_down_sampling(constants):
    network = relaxed_cnn((1, 32, 32), 3, width=1, generator=seeded()).double()
    disturb(network)
    for layer in layers_of(network).values():
        if not constants:
            layer.members()["ffc"].zero_()
    names = list(layers_of(network))
    hardened = harden(network, {name: {"ffc": 0.0, "conv": 1.0} for name in names})
    assert not layers_of(hardened)
    after = [BiasMap] if constants else []
    assert types(hardened.stage1) == [nn.Conv2d, *after]
    assert types(hardened.stage2) == [nn.Conv2d, PolyphaseDownsampling, *after]
    strict = strict_form(network, {name: {"ffc"} for name in names})
    inputs = images(1, 32)
    assert (hardened(inputs) - strict(inputs)).abs().max() < 1e-12
    # Constants that differ from place to place are all that knows about places.
    moved = (hardened(inputs.roll((3, 9), (2, 3))) - hardened(inputs)).abs().max()
    assert moved > 1e-3 if constants else moved < 1e-10
    assert 3 * size_of(hardened) < size_of(network)


KINDS = ("fc", "ffc", "sfc", "conv", "sconv", "gconv", "gconv-full", "gconv-depthwise")
SAME = LayerShape((4, 6, 6), (8, 6, 6))
HALVED = LayerShape((4, 6, 6), (8, 3, 3))


def disturbed_layer(kinds: tuple[str, ...], shape: LayerShape) -> RelaxedLayer:
    layer = RelaxedLayer.new(kinds, shape, options_for(kinds), generator=seeded()).double()
    disturb(layer)
    return layer


@pytest.mark.parametrize("shape", [SAME, HALVED], ids=["same", "halved"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pathway_can_be_what_is_left(kind, shape):
    layer = disturbed_layer(KINDS, shape)
    hardened = harden(layer, {"": {each: float(each == kind) for each in KINDS}})
    assert not layers_of(hardened)
    inputs = images(4, 6)
    expected = without(layer, set(KINDS) - {kind}, inputs)
    assert (hardened(inputs) - expected).abs().max() < 1e-12
    assert size_of(hardened) < size_of(layer)


@pytest.mark.parametrize("shape", [SAME, HALVED], ids=["same", "halved"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pathway_can_be_what_goes(kind, shape):
    """The others stay a layer, and what one of them takes into its bias is no map of its own."""
    layer = disturbed_layer(KINDS, shape)
    hardened = harden(layer, {"": {each: float(each != kind) for each in KINDS}})
    reaches = shape is SAME or kind in ("fc", "ffc", "sfc")
    assert types(hardened) == [RelaxedLayer, *[BiasMap] * reaches]
    inputs = images(4, 6)
    assert (hardened(inputs) - without(layer, {kind}, inputs)).abs().max() < 1e-12
    assert (hardened(inputs) - layer(inputs)).abs().max() > 1e-3


def test_several_that_wait_still_share_their_choice():
    layer = disturbed_layer(("ffc", "conv", "sconv"), HALVED)
    hardened = harden(layer, {"": {"ffc": 0.0, "conv": 0.25, "sconv": 0.75}})
    assert types(hardened) == [RelaxedLayer, BiasMap]
    assert hardened[0].contributions == pytest.approx(
        {"conv": 0.25 / math.hypot(0.25, 0.75), "sconv": 0.75 / math.hypot(0.25, 0.75)}
    )
    expected = without(layer, {"ffc"}, images(4, 6))
    assert (hardened(images(4, 6)) - expected).abs().max() < 1e-12


def components(maps: Tensor) -> Tensor:
    """The four components of every example, (batch, 4, C, X/2, Y/2)."""
    return torch.stack([maps[:, :, i::2, j::2] for i in range(2) for j in range(2)], 1)


def test_a_choice_is_made_anew_with_the_constants_of_what_is_gone():
    """The one that goes has a large bias, and the choice is that of the sum with it."""
    layer = disturbed_layer(("conv", "sconv"), HALVED)
    gone, inputs = layer.members()["sconv"], images(4, 6, batch=40)
    gone.convolution.bias.data.mul_(20)
    hardened = harden(layer, {"": {"conv": 1.0, "sconv": 0.0}})
    assert types(hardened) == [nn.Conv2d, BiasMap, PolyphaseDownsampling]
    assert hardened[1].bias.shape == (8, 1, 1)
    left = layer.members()["conv"](inputs).detach()
    bias = gone.convolution.bias.detach()[:, None, None]
    expected = largest_component(left + bias)
    assert (hardened(inputs) - expected).abs().max() < 1e-12
    # Chosen without the bias, or as the whole layer chose, it would be something else.
    assert (largest_component(left) + bias - expected).abs().max() > 0.1
    whole = components(left + gone(inputs).detach()).abs().amax((2, 3, 4)).argmax(1)
    as_before = components(left + bias)[torch.arange(40), whole]
    assert (as_before - expected).abs().max() > 0.1


def test_a_waiting_pathway_goes_where_nothing_waits_any_more():
    """Its constant is the same at all pixels, so that it is added without a choice."""
    layer = disturbed_layer(("ffc", "conv"), HALVED)
    hardened = harden(layer, {"": {"ffc": 1.0, "conv": 0.0}})
    assert types(hardened) == [FactoredPathway, BiasMap]
    bias = layer.members()["conv"].convolution.bias.detach()
    assert (hardened[1].bias.detach()[:, 0, 0] - bias).abs().max() < 1e-15
    inputs = images(4, 6)
    expected = layer.members()["ffc"](inputs) + bias[:, None, None]
    assert (hardened(inputs) - expected).abs().max() < 1e-12


def test_constants_go_to_all_that_can_take_them_and_the_rest_behind():
    """A group convolution takes what is equal over copies, a convolution without bias nothing."""
    layer = disturbed_layer(("ffc", "gconv", "sconv"), HALVED)
    bare = nn.Conv2d(4, 8, 3, padding=1, bias=False).double()
    members = {"conv": ConvolutionPathway(HALVED, bare), **layer.members()}
    gone, inputs = layer.members()["sconv"], images(4, 6)
    bias = gone.convolution.bias.detach().clone()
    for kept, taken in (
        (("conv", "ffc", "sconv2"), bias),
        (("conv", "gconv"), bias.unflatten(0, (4, 2)).mean(0).repeat(4)),
        (("gconv", "sconv2"), bias),
        (("conv", "ffc"), torch.zeros(8, dtype=torch.float64)),
    ):
        own = {**members, "sconv2": copy.deepcopy(gone)}
        whole = RelaxedLayer(HALVED, {kind: own[kind] for kind in (*kept, "sconv")})
        hardened = harden(whole, {"": {kind: float(kind != "sconv") for kind in whole.members()}})
        all_taken = torch.equal(taken, bias)
        assert types(hardened) == [RelaxedLayer, *[BiasMap] * (not all_taken)]
        parts = {kind: own[kind](inputs).detach() for kind in kept}
        reaching = parts.pop("ffc", 0)
        chosen = largest_component(sum(parts.values()) + taken[:, None, None])
        expected = chosen + (bias - taken)[:, None, None] + reaching
        assert (hardened(inputs) - expected).abs().max() < 1e-12, kept


def test_hardened_networks_are_saved_and_loaded():
    relaxed = learned()
    shares = {name: {"ffc": 0.0, "conv": 1.0} for name in layers_of(relaxed)}
    hardened, other = harden(relaxed, shares), harden(relaxed, shares)
    disturb(other)
    assert not torch.equal(other(images()), hardened(images()))
    other.load_state_dict(hardened.state_dict())
    assert torch.equal(other(images()), hardened(images()))


def test_the_largest_stays_where_all_are_below():
    assert kept_pathways({"ffc": 0.4, "conv": 0.6}, 0.7) == ["conv"]
    assert kept_pathways({"ffc": 0.4, "conv": 0.6}, 0.4) == ["ffc", "conv"]
    assert kept_pathways({"ffc": 0.0, "conv": 0.0}) == ["ffc"]
    layer = RelaxedLayer.new(("ffc", "conv"), LayerShape((1, 4, 4), (1, 4, 4)))
    kept = harden(layer, {"": {"ffc": 0.0, "conv": 0.0}}, below=0)
    assert isinstance(kept, RelaxedLayer) and len(kept.members()) == 2
    relaxed = learned()
    shares = {name: {"ffc": 0.6, "conv": 0.4} for name in layers_of(relaxed)}
    hardened = harden(relaxed, shares, below=0.9)
    assert types(hardened.stem) == [FactoredPathway, BiasMap]


def test_modes_stay_and_shared_layers_stay_one():
    relaxed = relax(model_of("odd"), example=images()).train()
    hardened = harden(relaxed, {n: {"ffc": 0.0, "conv": 1.0} for n in layers_of(relaxed)})
    assert hardened.again is hardened.twice
    assert type(hardened.again) is nn.Conv2d
    assert hardened.twice.training
    assert not harden(
        relaxed.eval(), {n: {"ffc": 0, "conv": 1} for n in layers_of(relaxed)}
    ).training


def test_relaxing_and_hardening_without_learning_give_the_model_back():
    model = model_of("resnet")
    relaxed = relax(model, example=images())
    hardened = harden(relaxed, {n: {"ffc": 0.0, "conv": 1.0} for n in layers_of(relaxed)})
    assert str(hardened) == str(model)
    assert hardened.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(hardened(images()), model(images()))


def test_shares_survive_saving():
    relaxed = learned()
    for layer in layers_of(relaxed).values():
        layer.contributions = {"ffc": 0.0, "conv": 1.0}
    loaded = learned()
    loaded.load_state_dict(relaxed.state_dict())
    assert str(harden(loaded)) == str(harden(relaxed))
    assert not layers_of(harden(loaded))


def test_harden_refuses_what_it_cannot_know():
    relaxed = learned()
    with pytest.raises(CallerError, match="layer stem: nothing says.*learn first.*contributions="):
        harden(relaxed)
    with pytest.raises(CallerError, match="expected a model with relaxed layers, got none"):
        harden(model_of("resnet"))
    shares = {name: {"ffc": 0.0, "conv": 1.0} for name in layers_of(relaxed)}
    with pytest.raises(CallerError, match="unknown relaxed layer 'stm'.*'stem'"):
        harden(relaxed, {**shares, "stm": shares["stem"]})
    with pytest.raises(CallerError, match=r"layer blocks\.0\.conv1: nothing says"):
        harden(relaxed, {"stem": shares["stem"]})
    with pytest.raises(CallerError, match="contributions of stem: expected one number for each"):
        harden(relaxed, {**shares, "stem": {"conv": 1.0}})
    with pytest.raises(CallerError, match="got nan for ffc"):
        harden(relaxed, {**shares, "stem": {"conv": 1.0, "ffc": math.nan}})
    with pytest.raises(CallerError, match="below: expected a share between 0 and 1, got nan"):
        harden(relaxed, shares, below=math.nan)


def test_a_hardened_network_takes_other_sizes() -> None:
    """Constants of what was taken out are resampled."""
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1))
    generator = torch.Generator().manual_seed(0)
    relaxed = relax(network, example=(1, 8, 8), pathways=("conv", "fc"), generator=generator)
    with torch.no_grad():
        for parameter in relaxed.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    layers = [name for name, each in relaxed.named_modules() if isinstance(each, RelaxedLayer)]
    plain = harden(relaxed, {name: {"conv": 1.0, "fc": 0.0} for name in layers})
    assert any(isinstance(each, BiasMap) and each.bias[0].numel() > 1 for each in plain.modules())
    assert plain(torch.randn(2, 1, 8, 8)).shape == (2, 2, 8, 8)
    assert plain(torch.randn(2, 1, 12, 10)).shape == (2, 2, 12, 10)
