"""Relaxing networks of users."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from user_networks import (
    MODELS,
    OwnConvolution,
    ResNet,
    TwoSizes,
    images,
    layers_of,
    model_of,
    relaxed_names,
    seeded,
    size_of,
    strange_convolutions,
)

from isotropy.checks import CallerError
from isotropy.networks.pathways.relax import relax
from isotropy.networks.pathways.relaxed_layer import RelaxedLayer


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
    with pytest.raises(CallerError, match="expected conv or equivariant among.*got sconv, ffc"):
        relax(model, ("sconv", "ffc"), example=images())
    with pytest.raises(CallerError, match="unknown pathway 'cnv'"):
        relax(model, ("cnv",), example=images())
    with pytest.raises(CallerError, match="none of the pathways ffc, conv uses it"):
        relax(model, example=images(), group="C(4)")
    with pytest.raises(CallerError, match="no layer to relax"):
        relax(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), example=(3, 2, 2))
    with pytest.raises(CallerError, match="shared: .* one size.* got 3×12×12, 3×6×6; .*layers="):
        relax(TwoSizes(), example=(3, 12, 12))
    with pytest.raises(CallerError, match="example: expected a batch of images.*got none"):
        relax(model)
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
