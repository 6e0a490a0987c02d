"""Relaxing networks of users, and hardening what was learned."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from test_pathways import largest_component
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.networks.bias_map import BiasMap
from isotropy.networks.convolutional_pathways import ConvolutionPathway
from isotropy.networks.fully_connected_pathways import FactoredPathway
from isotropy.networks.hardening import harden, kept_pathways
from isotropy.networks.pathway import LayerShape
from isotropy.networks.pathways import RelaxedLayer, options_for
from isotropy.networks.polyphase import PolyphaseDownsampling
from isotropy.networks.relaxed_cnn import relaxed_cnn
from isotropy.networks.relaxing import relax


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(channels: int = 3, size: int = 12, batch: int = 4) -> Tensor:
    return torch.randn(batch, channels, size, size, dtype=torch.float64, generator=seeded(5))


# --- networks as users write them -------------------------------------------------------------


class Block(nn.Module):
    """A residual block, with a strided first convolution and a projection beside it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride))

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.conv2(torch.relu(self.bn1(self.conv1(maps))))
        return torch.relu(inner + self.shortcut(maps))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
        self.blocks = nn.ModuleList([Block(4, 4, 1), Block(4, 8, 2)])
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images).relu()
        for block in self.blocks:
            maps = block(maps)
        return self.head(maps.mean((2, 3)))


class OwnConvolution(nn.Conv2d):
    """A subclass, which may do anything."""


class Odd(nn.Module):
    """All that there is besides ordinary convolutions, and one convolution under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.again = self.twice
        self.own = OwnConvolution(4, 4, 3, padding=1)
        self.back = nn.ConvTranspose2d(4, 4, 2, 2)
        self.along = nn.Conv1d(4, 4, 3, padding=1)
        self.squeeze = nn.Conv2d(4, 4, 1)
        self.unused = nn.Conv2d(4, 4, 3)
        self.normal = torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.again(self.twice(self.first(images)).relu()).relu()
        maps = self.normal(self.back(self.own(maps)))
        maps = maps + self.along(maps.flatten(2)).view_as(maps)
        means = maps.mean((2, 3), keepdim=True)
        return self.head(self.squeeze(means).flatten(1))


class TwoSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.shared = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.shared(self.first(images))
        return self.shared(nn.functional.max_pool2d(maps, 2)).mean((2, 3))


def strange_convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, (5, 3), stride=(2, 1), padding=(2, 0), padding_mode="reflect"),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, dilation=2, padding="same", groups=2),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2, groups=6, bias=False),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def small_sequence() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


MODELS = {
    "sequence": small_sequence,
    "resnet": ResNet,
    "odd": Odd,
    "strange": strange_convolutions,
    "one layer": lambda: nn.Conv2d(3, 4, 3),
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    model(images())  # lazy layers are made
    return model


def relaxed_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, RelaxedLayer)]


def layers_of(model: nn.Module) -> dict[str, RelaxedLayer]:
    return {name: m for name, m in model.named_modules() if isinstance(m, RelaxedLayer)}


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def disturb(model: nn.Module) -> None:
    """Parameters as if something had been learned: no pathway is zero any more."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, dtype=parameter.dtype, generator=seeded(9))
            parameter.add_(0.1 * noise)


# --- relax ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pathways", [("ffc", "conv"), ("conv", "fc", "ffc", "sfc")])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_exactly_those_of_the_model(name, pathways):
    model = model_of(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    relaxed = relax(model, pathways, example=images(), generator=seeded())
    assert relaxed_names(relaxed)
    assert torch.equal(relaxed(images()), model(images()))
    assert size_of(relaxed) > size_of(model)
    # The model itself is what it was.
    assert not relaxed_names(model)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", MODELS)
def test_every_new_pathway_learns_from_the_start(name):
    relaxed = relax(model_of(name), example=images(), generator=seeded())
    relaxed(images()).square().sum().backward()
    for layer in layers_of(relaxed).values():
        members = layer.members()
        assert members["ffc"].spread.weight.grad.any()
        assert members["conv"].convolution.weight.grad.any()


def test_the_pathway_is_the_very_convolution_with_its_settings():
    model = strange_convolutions().double()
    model(images())
    relaxed = relax(model, example=images())
    assert relaxed_names(relaxed) == ["0", "2", "4"]
    for name, layer in layers_of(relaxed).items():
        ours, theirs = layer.members()["conv"].convolution, model.get_submodule(name)
        assert type(ours) is nn.Conv2d
        assert str(ours) == str(theirs)
        assert torch.equal(ours.weight, theirs.weight)
        assert ours.weight.data_ptr() != theirs.weight.data_ptr()
    assert layers_of(relaxed)["0"].shape.source == (3, 12, 12)
    assert layers_of(relaxed)["0"].shape.target == (4, 6, 10)


def test_a_residual_network_is_relaxed_throughout():
    relaxed = relax(model_of("resnet"), example=(3, 12, 12))
    assert relaxed_names(relaxed) == [
        "stem",
        "blocks.0.conv1",
        "blocks.0.conv2",
        "blocks.1.conv1",
        "blocks.1.conv2",
        "blocks.1.shortcut.0",
    ]
    assert layers_of(relaxed)["blocks.1.shortcut.0"].shape.target == (8, 6, 6)


def test_other_layers_are_left_alone():
    model = model_of("odd")
    relaxed = relax(model, example=images())
    # One pixel (squeeze), not called (unused) and other types stay as they are.
    assert relaxed_names(relaxed) == ["first", "twice"]
    assert type(relaxed.own) is OwnConvolution
    assert type(relaxed.squeeze) is type(relaxed.unused) is nn.Conv2d


def test_a_convolution_under_two_names_becomes_one_layer_under_both():
    relaxed = relax(model_of("odd"), example=images())
    assert isinstance(relaxed.twice, RelaxedLayer)
    assert relaxed.again is relaxed.twice
    assert relaxed_names(relax(model_of("odd"), example=images(), layers=["again"])) == ["twice"]


class Unusual(nn.Module):
    """Convolutions that are called as layers seldom are, and one that is not called at all."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = nn.Conv2d(3, 3, 3, padding=1)
        self.keyword = nn.Conv2d(3, 3, 3, padding=1)
        self.single = nn.Conv2d(3, 3, 3, padding=1)
        self.borrowed = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.keyword(input=self.usual(images))
        maps = torch.stack([self.single(each) for each in maps])
        return nn.functional.conv2d(maps, self.borrowed.weight)


def test_convolutions_that_are_not_called_with_a_batch_are_left_alone():
    model = Unusual().double()
    relaxed = relax(model, example=images())
    assert relaxed_names(relaxed) == ["usual"]
    assert torch.equal(relaxed(images()), model(images()))


def test_weights_that_two_convolutions_share_stay_shared():
    model = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))).double()
    model[1].weight = model[0].weight
    first, second = (
        layer.members()["conv"].convolution for layer in relax(model, example=images())
    )
    assert first.weight is second.weight is not model[0].weight


def test_modes_statistics_and_frozen_weights_stay():
    model = ResNet().double().train()
    model.blocks[1].eval()
    model.stem.requires_grad_(False)
    model.blocks[0].bn1.running_mean.fill_(0.3)
    relaxed = relax(model, example=images())
    for name, module in model.named_modules():
        assert relaxed.get_submodule(name).training == module.training
    assert torch.equal(relaxed.blocks[0].bn1.running_mean, model.blocks[0].bn1.running_mean)
    members = relaxed.stem.members()
    assert not members["conv"].convolution.weight.requires_grad
    assert members["ffc"].spread.weight.requires_grad


def test_new_pathways_have_the_dtype_of_the_convolution_and_their_own_draws():
    model = model_of("sequence")
    assert {p.dtype for p in relax(model, example=images()).parameters()} == {torch.float64}
    half = relax(copy.deepcopy(model).float(), example=(3, 12, 12))
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    state = torch.get_rng_state()
    first, second = (relax(model, example=images(), generator=seeded(1)) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_layers_may_be_chosen():
    model = model_of("odd")
    assert relaxed_names(relax(model, example=images(), layers=["squeeze", "first"])) == [
        "first",
        "squeeze",
    ]


def test_group_convolutions_join_where_channels_allow():
    model = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model = model.double()
    relaxed = relax(model, ("conv", "gconv"), example=(4, 12, 12), layers=["0"], group="D(2)")
    assert torch.equal(relaxed(images(4)), model(images(4)))
    assert relaxed[0].members()["gconv"].group.order == 4
    with pytest.raises(CallerError, match="layer 0: .*multiple of the group's 8 elements"):
        relax(model, ("conv", "gconv"), example=(4, 12, 12), group="D(4)")
    # 6×6 → 4×4 without padding is no down-sampling.
    with pytest.raises(CallerError, match="layer 2: .*6×6.*got 4×4"):
        relax(model, ("conv", "sconv"), example=(4, 12, 12))


def test_relaxing_twice_finds_nothing_to_do():
    relaxed = relax(model_of("sequence"), example=images())
    with pytest.raises(CallerError, match="no layer to relax"):
        relax(relaxed, example=images())
    with pytest.raises(CallerError, match="belongs to a relaxed layer already"):
        relax(relaxed, example=images(), layers=["0.pathways.conv.convolution"])


def test_relax_refuses_what_it_cannot_keep():
    model = model_of("sequence")
    with pytest.raises(CallerError, match="expected conv among the pathways.*got sconv, ffc"):
        relax(model, ("sconv", "ffc"), example=images())
    with pytest.raises(CallerError, match="unknown pathway 'cnv'"):
        relax(model, ("cnv",), example=images())
    with pytest.raises(CallerError, match="none of the pathways ffc, conv uses it"):
        relax(model, example=images(), group="C(4)")
    with pytest.raises(CallerError, match="no layer to relax"):
        relax(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), example=(3, 2, 2))
    with pytest.raises(CallerError, match=r"layer shared .*sizes \(3×12×12, 3×6×6\).*layers="):
        relax(TwoSizes(), example=(3, 12, 12))
    assert relaxed_names(relax(TwoSizes(), example=(3, 12, 12), layers=["first"])) == ["first"]


def test_relax_refuses_layers_it_does_not_know():
    model = model_of("odd")
    for name, message in (
        ("fisrt", "unknown layer 'fisrt'.*did you mean 'first'"),
        ("own", "layer own: expected a plain nn.Conv2d, got a OwnConvolution"),
        ("back", "got a ConvTranspose2d"),
        ("normal", "got a ParametrizedConv2d"),
        ("unused", "layer unused: the example does not call it"),
    ):
        with pytest.raises(CallerError, match=message):
            relax(model, example=images(), layers=[name])
    with pytest.raises(CallerError, match="at least one name, got none"):
        relax(model, example=images(), layers=[])


def test_relax_refuses_examples_that_are_none():
    model = model_of("sequence")
    with pytest.raises(CallerError, match=r"got \(3, 12, 12\).*x\[None\]"):
        relax(model, example=images()[0])
    with pytest.raises(CallerError, match=r"example: .*got \(4, 3, 12, 12\)"):
        relax(model, example=(4, 3, 12, 12))
    with pytest.raises(CallerError, match=r"cannot be run on inputs \(1, 5, 12, 12\)"):
        relax(model, example=(5, 12, 12))


def test_relax_says_the_size_before_it_allocates():
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))
    with pytest.raises(
        CallerError, match=r"would take 3061\.4 GB, .* fc of layer 1; expected at most 2"
    ):
        relax(model, ("fc", "conv"), example=(3, 224, 224))
    with pytest.raises(CallerError, match=r"would take .* sfc of layer 1"):  # its bases
        relax(model, ("sfc", "conv"), example=(3, 224, 224))
    # (3·16 + 16·16)·2·224² weights of ffc are 122 MB.
    relaxed = relax(model, ("ffc", "conv"), example=(3, 224, 224))
    assert relaxed_names(relaxed) == ["0", "1"]


# --- harden -----------------------------------------------------------------------------------


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


def test_plain_layers_are_those_of_torch():
    shape = LayerShape((4, 6, 6), (8, 3, 3))
    layer = RelaxedLayer.new(("fc", "conv"), shape)
    hardened = harden(layer, {"": {"fc": 1.0, "conv": 0.0}})
    assert [type(m) for m in hardened] == [nn.Flatten, nn.Linear, nn.Unflatten]


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
