"""Folded networks: filters are the adjoint of the action, outputs those of the averaged model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import isotropy
from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.folding import filter_bank, moved_filters
from isotropy.networks.zoo.specification import parse_network
from isotropy.symmetry.actions.action import Action, Generator
from isotropy.symmetry.actions.finite import flip
from isotropy.symmetry.actions.images import affine, intensity
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences

PICTURE = (1, 12, 12)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def network_of(words: str, shape: tuple[int, ...] = PICTURE) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return parse_network(words).build(shape, 4)


AUGMENTATIONS = {
    "rotation": lambda: UniformRanges(affine(("rotation",)), start=0.7),
    "whole turns": lambda: UniformRanges(affine(("rotation",)), start=math.pi),
    "scale": lambda: UniformRanges(affine(("scale_x", "scale_y")), start=0.4),
    "nothing": lambda: UniformRanges(affine(("rotation",)), start=0.0),
    "a constant border": lambda: UniformRanges(
        affine(("rotation",), padding="mean", fill=(0.3,)), start=0.7
    ),
    "rotation and flips": lambda: augmentation_over(
        [affine(("rotation",)), flip("horizontal")], start=0.5
    ),
    "brightness": lambda: UniformRanges(intensity(("brightness",)), start=0.2),
}
NETWORKS = ("rff:20", "relu:20", "mlp:20")
CASES = [
    *((name, "rff:20", torch.float32) for name in AUGMENTATIONS),
    *(("rotation", words, torch.float32) for words in NETWORKS[1:]),
    ("scale", "relu:20", torch.float32),
    ("rotation", "rff:20", torch.float64),
]


@pytest.mark.parametrize(("augmentation", "words", "dtype"), CASES)
def test_folded_is_the_averaged_model(augmentation, words, dtype):
    model = InvariantModel(network_of(words), AUGMENTATIONS[augmentation](), 8).to(dtype).eval()
    images = drawn(5, *PICTURE, dtype=dtype)
    folded = isotropy.fold(model, 8)
    assert not folded.training
    difference = (folded(images) - model(images)).abs().max()
    assert difference <= TOLERANCE[dtype] * model(images).abs().max()


def test_folded_with_elements_that_are_given():
    model = InvariantModel(network_of("rff:20"), AUGMENTATIONS["rotation"]())
    noise = model.noise(1, samples=3, generator=torch.Generator().manual_seed(2))
    folded, images = isotropy.fold(model, noise=noise), drawn(5, *PICTURE)
    torch.testing.assert_close(folded(images), model(images, noise.expand(5, -1, -1)))
    assert [type(layer).__name__ for layer in folded] == [
        "Flatten", "Linear", "Unflatten", "Cosine", "MeanOverCopies", "Linear"
    ]  # fmt: skip
    assert folded[1].weight.shape == (3 * 20, 144)


def test_filters_are_the_adjoint_of_the_action():
    """Tᵀw by reverse mode of `act` in the data, one element at a time."""
    ranges = UniformRanges(affine(("rotation", "scale_x")), start=0.5, dtype=torch.float64)
    weight = drawn(6, 144, dtype=torch.float64) - 0.5
    noise = ranges.fixed_noise(4)
    filters, offsets = moved_filters(ranges, weight, noise, PICTURE)
    for number, element in enumerate(ranges.coordinates(noise)[0]):
        data = torch.zeros(6, *PICTURE, dtype=torch.float64, requires_grad=True)
        moved = ranges.action.act(element.expand(6, 1, -1), data)[:, 0]
        (adjoint,) = torch.autograd.grad(moved, data, weight.unflatten(1, PICTURE))
        torch.testing.assert_close(filters[number], adjoint.flatten(1))
    assert not offsets.any()


def test_ends_of_a_whole_turn_do_not_coincide():
    """Elements at midpoints: four copies of whole turns are quarter turns of each other."""
    ranges = UniformRanges(affine(("rotation",)), start=math.pi, dtype=torch.float64)
    weight = drawn(1, 144, dtype=torch.float64)
    filters, _ = moved_filters(ranges, weight, ranges.fixed_noise(4), PICTURE)
    pictures = filters.detach().reshape(4, 12, 12)
    for number in range(4):
        following = pictures[(number + 1) % 4]
        turned = [pictures[number].rot90(turns) for turns in (1, -1)]
        assert min(float((each - following).abs().max()) for each in turned) < 1e-10
        assert not torch.allclose(pictures[number], following)


SHAPES = {
    "colours": ((3, 6, 6), lambda: affine(("rotation",))),
    "a sequence": ((1, 20), lambda: sequences(("shift",))),
    "a wide picture": ((1, 4, 9), lambda: affine(("rotation",))),
    "clouds": ((6, 2), lambda: points(2, ("rotation",))),
}


@pytest.mark.parametrize(("shape", "action"), SHAPES.values(), ids=SHAPES)
def test_inputs_of_other_shapes(shape, action):
    model = InvariantModel(network_of("relu:9", shape), UniformRanges(action(), start=0.4)).eval()
    given = {"shape": shape} if shape in ((1, 4, 9), (6, 2)) else {}
    data = drawn(3, *shape)
    torch.testing.assert_close(isotropy.fold(model, 16, **given)(data), model(data))


def test_deeper_networks_and_no_activation():
    rotation = AUGMENTATIONS["rotation"]()
    layers = [nn.Flatten(), nn.Linear(144, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 6)]
    for network in (layers, [*layers, nn.ReLU(), nn.Linear(6, 2), nn.Tanh()], layers[:2]):
        model = InvariantModel(nn.Sequential(*network), rotation).eval()
        folded, images = isotropy.fold(model, 16), drawn(3, *PICTURE)
        torch.testing.assert_close(folded(images), model(images))


def test_folded_is_independent_of_the_model():
    model = InvariantModel(network_of("mlp:5"), AUGMENTATIONS["rotation"](), 4).train()
    folded, images = isotropy.fold(model, 4), drawn(2, *PICTURE)
    before = folded(images).detach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(folded(images), before) and before.any() and model.training


class Gamma(Action):
    """x → x^exp(a), which no matrix does."""

    generators = (Generator("gamma", "log"),)
    grid_axes = 2

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] ** coordinates.exp()[..., None, None]


REFUSED = {
    "no averaging": (
        lambda: network_of("mlp:5"), {}, "expected an InvariantModel, .* got Sequential"
    ),
    "convolutions": (
        lambda: averaged(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(200, 3))), {},
        "begins with a Linear layer or random features on flattened inputs.* got Conv2d",
    ),
    "a norm behind it": (
        lambda: averaged(nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.BatchNorm1d(4))), {},
        "activations and Linear layers behind it, got BatchNorm1d",
    ),
    "nothing": (lambda: averaged(nn.Sequential()), {}, "got Sequential"),
    "an odd number of inputs": (
        lambda: averaged(nn.Sequential(nn.Flatten(), nn.Linear(36 * 2, 4))), {},
        "72 inputs are no square picture of 1 or 3 channels",
    ),
    "another shape": (
        lambda: averaged(network_of("rff:5")), {"shape": (1, 11, 12)}, "expected 144 numbers",
    ),
    "no elements": (lambda: averaged(network_of("rff:5")), {"samples": 0}, "samples: .* got 0"),
    "gamma": (
        lambda: InvariantModel(network_of("rff:5"), UniformRanges(Gamma(), start=0.5)),
        {}, "transformations that are linear in the data",
    ),
}  # fmt: skip


def averaged(network: nn.Module) -> InvariantModel:
    return InvariantModel(network, AUGMENTATIONS["rotation"]())


@pytest.mark.parametrize(("model", "arguments", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_folded(model, arguments, sentence):
    with pytest.raises(CallerError, match=sentence):
        isotropy.fold(model(), **arguments)


def test_a_bank_shows_what_folded_layers_have():
    model = InvariantModel(network_of("rff:20"), AUGMENTATIONS["rotation"](), 7).eval()
    bank = filter_bank(model, PICTURE)
    folded = isotropy.fold(model, 7)[1].weight.reshape(7, 20, *PICTURE)
    torch.testing.assert_close(bank, folded[:, :6].movedim(1, 0))


def test_no_bank_where_there_is_nothing_to_show():
    convolutions = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(200, 3))
    assert filter_bank(averaged(convolutions), PICTURE) is None
    assert filter_bank(averaged(network_of("rff:5")), (1, 5, 5)) is None
    large = (1, 65, 65)
    assert filter_bank(averaged(network_of("rff:5", large)), large) is None
