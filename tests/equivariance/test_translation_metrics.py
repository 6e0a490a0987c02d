"""EQ-T and EQ-T_frac against translations written out with slices, and what must be zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from isotropy.checks import CallerError
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Tokens
from isotropy.equivariance.subject import Subject
from isotropy.equivariance.translation_metrics import (
    layer_translation_errors,
    translate,
    translation_errors,
)
from isotropy.symmetry.actions.linear import linear_action

IMAGE = Grid((2, 3))


class Compute(nn.Module):
    """A function as a network."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs)


class ByPlace(nn.Module):
    """Multiplies by the column's number: no translation leaves this alone."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps * torch.arange(maps.shape[-1], dtype=maps.dtype)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def filled(network: nn.Module) -> nn.Module:
    """The network in double precision, with weights that are the same every time."""
    network = network.double()
    for number, parameter in enumerate(network.parameters()):
        parameter.data = draw(*parameter.shape, seed=number)
    return network


def smooth(batch: int, size: int, *, wave: float = 1.0) -> Tensor:
    """Images (batch, 1, size, size) of long waves with random phases."""
    phase = torch.rand((batch, 1, 1, 1), generator=seeded(5), dtype=torch.float64)
    place = torch.arange(size, dtype=torch.float64) / size
    return torch.sin(2 * math.pi * wave * (place[:, None] + 2 * place + phase))


def moved_by_slices(image: Tensor, down: int, right: int) -> tuple[Tensor, Tensor]:
    """One map (rows, columns) moved with zeros coming in, and where its content came from."""
    rows, columns = image.shape
    moved, valid = torch.zeros_like(image), torch.zeros(rows, columns, dtype=torch.bool)
    for i in range(rows):
        for j in range(columns):
            if 0 <= i - down < rows and 0 <= j - right < columns:
                moved[i, j], valid[i, j] = image[i - down, j - right], True
    return moved, valid


# --- translating --------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_whole_shifts_are_slices(whole: bool) -> None:
    images = draw(3, 2, 9, 8)
    shifts = torch.tensor([[2.0, -1.0], [0.0, 3.0], [-4.0, 0.0]], dtype=torch.float64)
    moved, valid = translate(images, shifts, whole)
    for example in range(3):
        down, right = (int(each) for each in shifts[example])
        for channel in range(2):
            wanted, kept = moved_by_slices(images[example, channel], down, right)
            torch.testing.assert_close(moved[example, channel], wanted)
            assert torch.equal(valid[example, 0], kept)


def test_shifts_between_pixels_follow_a_smooth_image() -> None:
    size, shifts = 48, torch.tensor([[1.3, -2.6]], dtype=torch.float64)
    moved, valid = translate(smooth(1, size), shifts, False)
    phase = float(torch.rand(1, generator=seeded(5), dtype=torch.float64))
    place = torch.arange(size, dtype=torch.float64)
    down, right = (place[:, None] - 1.3) / size, (place + 2.6) / size
    wanted = torch.sin(2 * math.pi * (down + 2 * right + phase))
    kept = valid[0, 0]
    # The filter reads pixels i − 4 to i + 1 down, i to i + 5 right.
    assert torch.equal(kept.any(1).nonzero()[:, 0], torch.arange(4, 47))
    assert torch.equal(kept.any(0).nonzero()[:, 0], torch.arange(0, 43))
    torch.testing.assert_close(moved[0, 0][kept], wanted[kept], rtol=0, atol=1e-2)
    constant, valid = translate(torch.ones(1, 1, 12, 12), shifts, False)
    torch.testing.assert_close(constant[valid], torch.ones_like(constant[valid]))


# --- of networks --------------------------------------------------------------------------


def test_whole_pixels_against_slices() -> None:
    """T⁻¹ f(T x)(p) = w(p + t) x(p) for a network that multiplies by place."""
    size, images, weight = 16, draw(4, 1, 16, 16), draw(16, 16, seed=1)
    subject = Subject(Compute(lambda data: weight * data))
    found = translation_errors(
        subject, images, IMAGE, whole_pixels=True, samples=1, generator=seeded(3)
    )
    # An eighth of 16 pixels is two of them: five shifts, equally likely.
    drawn = torch.rand((4, 2), generator=seeded(3), dtype=torch.float64)
    errors = []
    for example in range(4):
        down, right = (int(each) for each in (drawn[example] * 5).floor() - 2)
        returned, valid = moved_by_slices(weight, -down, -right)
        difference = (returned - weight) * images[example, 0]
        errors.append(difference[valid].square().mean())
        assert valid.sum() == (size - abs(down)) * (size - abs(right))
    torch.testing.assert_close(found.errors, torch.stack(errors))
    outputs = weight * images
    span = float(outputs.max() - outputs.min())
    mean = float(torch.stack(errors).mean())
    assert found.decibel == pytest.approx(10 * math.log10(span * span / mean))
    assert not found.floors.any()


def test_vectors_have_the_plain_mean_of_squares() -> None:
    images, weight = draw(3, 1, 8, 8), draw(64, 5, seed=1)
    found = translation_errors(
        Subject(Compute(lambda data: data.flatten(1) @ weight)), images, Invariant(),
        whole_pixels=True, samples=1, generator=seeded(3),
    )  # fmt: skip
    drawn = (torch.rand((3, 2), generator=seeded(3), dtype=torch.float64) * 3).floor() - 1
    moved = torch.stack(
        [moved_by_slices(images[i, 0], int(drawn[i, 0]), int(drawn[i, 1]))[0] for i in range(3)]
    )
    wanted = ((moved.flatten(1) - images.flatten(1)) @ weight).square().mean(1)
    torch.testing.assert_close(found.errors, wanted)
    assert found.decibel is None


EQUIVARIANT = {
    "identity": nn.Identity(),
    "pointwise": nn.Sequential(nn.Conv2d(1, 3, 1), nn.GELU()),
    "no padding": nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3)),
    "every second pixel": nn.Conv2d(1, 2, 1, stride=2),
    "pooling": nn.MaxPool2d(2),
    "enlarging": nn.Upsample(scale_factor=2),
    "transposed": nn.ConvTranspose2d(1, 2, 2, stride=2),
}


@pytest.mark.parametrize("network", EQUIVARIANT.values(), ids=EQUIVARIANT)
def test_whole_pixels_are_exact_for_equivariant_networks(network: nn.Module) -> None:
    """Also where the output is coarser: nothing is rounded to its cells."""
    found = translation_errors(
        Subject(filled(network)), draw(4, 1, 24, 24), IMAGE, whole_pixels=True, generator=seeded()
    )
    assert float(found.errors.max()) < 1e-28
    assert found.decibel is None or found.decibel > 250


def test_identity_has_no_error_at_all() -> None:
    images = draw(2, 1, 16, 16)
    found = translation_errors(
        Subject(nn.Identity()), images, IMAGE, whole_pixels=True, generator=seeded()
    )
    assert found.decibel == math.inf
    rough = translation_errors(
        Subject(nn.Identity()), images, IMAGE, whole_pixels=False, generator=seeded()
    )
    torch.testing.assert_close(rough.errors, rough.floors)
    assert float(rough.floors.min()) > 1e-3
    fine = translation_errors(
        Subject(nn.Identity()), smooth(2, 48), IMAGE, whole_pixels=False, generator=seeded()
    )
    assert fine.decibel > rough.decibel + 25


def test_tokens_are_moved_as_their_grid() -> None:
    layout = Tokens(1, (16, 16), tuple(range(1, 257)))

    def tokens(data: Tensor) -> Tensor:
        cells = data.flatten(2).transpose(1, 2)
        return torch.cat((cells[:, :1], cells), 1)

    found = translation_errors(
        Subject(Compute(tokens)), draw(2, 1, 16, 16), layout, whole_pixels=True, generator=seeded()
    )
    assert not found.errors.any()


def test_nothing_to_compare_is_none() -> None:
    def tried(network: nn.Module, size: int, whole: bool) -> object:
        images = draw(2, 1, size, size).float()
        return translation_errors(
            Subject(network), images, IMAGE, whole_pixels=whole, generator=seeded()
        )

    assert tried(nn.Identity(), 7, True) is None, "an eighth of seven pixels is less than one"
    assert tried(nn.Identity(), 8, True) is not None
    assert tried(nn.AvgPool2d(8), 32, True) is None, "no whole cell of the output"
    assert tried(nn.AvgPool2d(8), 32, False) is None, "an output smaller than the filter"


def test_an_output_that_translations_do_not_move_is_refused() -> None:
    layout = Follows(linear_action({"a": [[0.0]]}))
    with pytest.raises(CallerError, match="expected logits, images or a grid of tokens"):
        translation_errors(
            Subject(nn.Identity()), draw(2, 1, 8, 8), layout, whole_pixels=True, generator=seeded()
        )
    with pytest.raises(CallerError, match=r"expected \(batch, channels, height, width\)"):
        translation_errors(
            Subject(nn.Identity()), draw(2, 8, 8), IMAGE, whole_pixels=True, generator=seeded()
        )


# --- layer by layer -----------------------------------------------------------------------


class Network(nn.Module):
    """A layer in place that is called twice, one with a computed weight, and a culprit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 1)
        self.active = nn.Hardswish(inplace=True)
        self.spectral = parametrizations.weight_norm(nn.Conv2d(2, 2, 1))
        self.culprit = ByPlace()
        self.pool = nn.AvgPool2d(2)
        self.whole = nn.AdaptiveAvgPool2d(1)
        self.flat = nn.Flatten()
        self.head = nn.Linear(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.active(self.first(images))
        maps = self.active(self.spectral(maps))
        maps = self.pool(self.culprit(maps))
        return self.head(self.flat(self.whole(maps)))


def test_layers_are_judged_one_by_one_and_left_as_they_were() -> None:
    network, images = filled(Network()).eval(), draw(3, 1, 24, 24)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    outputs = network(images)
    found = layer_translation_errors(
        Subject(network), images, whole_pixels=True, samples=3, generator=seeded()
    )
    assert [(each.name, each.kind) for each in found] == [
        ("first", "Conv2d"), ("active", "Hardswish"), ("spectral", "ParametrizedConv2d"),
        ("active", "Hardswish"), ("culprit", "ByPlace"), ("pool", "AvgPool2d"),
    ]  # fmt: skip
    errors = {each.name: float(each.errors.max()) for each in found}
    assert errors.pop("culprit") > 1e-2
    assert max(errors.values()) < 1e-28
    assert all(not module._forward_hooks for module in network.modules())
    assert all(not module._forward_pre_hooks for module in network.modules())
    assert torch.equal(network(images), outputs)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("network", EQUIVARIANT.values(), ids=EQUIVARIANT)
def test_whole_pixels_are_exact_for_equivariant_layers(network: nn.Module) -> None:
    found = layer_translation_errors(
        Subject(filled(network)), draw(4, 1, 24, 24), whole_pixels=True, samples=5,
        generator=seeded(),
    )  # fmt: skip
    assert found
    assert max(float(each.errors.max()) for each in found) < 1e-28


def test_what_computes_a_weight_is_no_layer() -> None:
    class Halved(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    network = nn.Sequential(nn.Conv2d(1, 2, 9, padding=4))
    parametrize.register_parametrization(network[0], "weight", Halved())
    found = layer_translation_errors(
        Subject(network), draw(2, 1, 24, 24).float(), whole_pixels=True, generator=seeded()
    )
    assert [each.name for each in found] == ["0"]


def test_a_layer_alone_is_a_network_alone() -> None:
    """For one layer the layerwise number is the network's, and √N of it the other one."""
    images, layer = draw(4, 1, 16, 16), filled(nn.Conv2d(1, 2, 3, padding=1))
    settings = {"whole_pixels": False, "samples": 1, "generator": seeded(7)}
    (found,) = layer_translation_errors(Subject(layer), images, **settings)
    settings["generator"] = seeded(7)
    whole = translation_errors(Subject(layer), images, IMAGE, **settings)
    torch.testing.assert_close(found.errors, whole.errors)
    torch.testing.assert_close(found.floors, whole.floors)
    assert found.name == ""
    drawn = torch.rand((4, 2), generator=seeded(7), dtype=torch.float64)
    shifts = (2 * drawn - 1) * 2
    sides = torch.tensor([[kept_there_and_back(float(s), 16) for s in pair] for pair in shifts])
    counts = 2 * sides.prod(1).double()
    torch.testing.assert_close(found.root_errors, whole.errors * counts.sqrt())


def kept_there_and_back(shift: float, length: int) -> int:
    """How many places of a line read nothing from beyond its ends, moved by `shift` and back."""

    def read(place: int, amount: float) -> range:
        first = place - math.floor(amount) - 3
        return range(first, first + 6)

    def inside(places: range) -> bool:
        return places[0] >= 0 and places[-1] < length

    return sum(
        inside(read(place, -shift)) and all(inside(read(j, shift)) for j in read(place, -shift))
        for place in range(length)
    )


def test_maps_too_small_to_compare_are_left_out() -> None:
    network = nn.Sequential(nn.AvgPool2d(4), nn.ReLU())
    assert not layer_translation_errors(
        Subject(network), draw(2, 1, 16, 16), whole_pixels=True, samples=2, generator=seeded()
    )


def test_hooks_are_removed_when_the_network_raises() -> None:
    network = nn.Sequential(nn.ReLU(), nn.Linear(7, 2))
    with pytest.raises(RuntimeError):
        layer_translation_errors(
            Subject(network), torch.ones(2, 1, 16, 16), whole_pixels=True, generator=seeded()
        )
    assert not network[0]._forward_hooks and not network[0]._forward_pre_hooks
