"""EQ-T and EQ-T_frac against translations written out with slices, and what must be zero."""

from __future__ import annotations

import math

import pytest
import torch
from measured_networks import Between, Compute, built, draw, filled, seeded
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from isotropy.checks import CallerError
from isotropy.equivariance.contributions import Sweep
from isotropy.equivariance.layouts import Follows, Grid, Invariant, Tokens
from isotropy.equivariance.operations import watch
from isotropy.equivariance.subject import Subject, differentiable_forward
from isotropy.equivariance.translation_metrics import (
    LayerTranslations,
    translate,
    translation_errors,
)
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.linear import linear_action

IMAGE = Grid((2, 3))


def by_place(maps: Tensor) -> Tensor:
    """Multiplied by the column's number: no translation leaves this alone."""
    return maps * torch.arange(maps.shape[-1], dtype=maps.dtype)


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


def layer_errors(network: nn.Module, images: Tensor, samples: int = 3) -> dict[str, Tensor]:
    """EQ-T by the names of operations, (batch,) each, from a sweep over the network."""
    found = LayerTranslations(seeded(), samples=samples)
    shift = affine(("translation_x",))
    sweep = Sweep(shift, torch.eye(1, dtype=images.dtype), len(images), observe=found)
    with torch.no_grad(), differentiable_forward(), watch(network, sweep):
        sweep.start(images)
        network(images)
    return {name: torch.cat(errors) for name, errors in found.errors.items()}


def errors_by_slices(layers: nn.Sequential, images: Tensor, samples: int) -> list[Tensor]:
    """The same of a chain of layers, one map at a time, with shifts drawn in the same order."""
    generator, found = seeded(), []
    for layer in layers:
        result = layer(images).detach()
        stride = images.shape[2] // result.shape[2]
        most = images.shape[2] // stride // 8
        errors = torch.zeros(len(images), dtype=images.dtype)
        for _ in range(samples):
            drawn = torch.rand((len(images), 2), generator=generator, dtype=torch.float64)
            steps = (drawn * (2 * most + 1)).floor() - most
            for example, (down, right) in enumerate(steps.int().tolist()):
                moved = [
                    moved_by_slices(m, stride * down, stride * right)[0] for m in images[example]
                ]
                after = layer(torch.stack(moved)[None]).detach()[0]
                back = [moved_by_slices(each, -down, -right) for each in after]
                squares = [
                    (there - before)[valid].square()
                    for (there, valid), before in zip(back, result[example], strict=True)
                ]
                errors[example] += torch.cat(squares).mean() / samples
        found.append(errors)
        images = result
    return found


def test_layers_against_slices() -> None:
    network = filled(
        nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.GELU(), Compute(by_place), nn.MaxPool2d(2),
            nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(3, stride=1, padding=1),
        )
    )  # fmt: skip
    images = draw(3, 1, 16, 16)
    found = layer_errors(network, images, samples=2)
    assert list(found) == [str(number) for number in range(6)]
    for errors, wanted in zip(found.values(), errors_by_slices(network, images, 2), strict=True):
        torch.testing.assert_close(errors, wanted, rtol=1e-9, atol=1e-25)
    assert float(found["1"].max()) == 0 and float(found["2"].min()) > 1e-2
    assert float(found["0"].max()) > 1e-3, "zeros come in at the border"


class Network(nn.Module):
    """A layer in place that is called twice, one with a computed weight, and a culprit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 1)
        self.active = nn.Hardswish(inplace=True)
        self.spectral = parametrizations.weight_norm(nn.Conv2d(2, 2, 1))
        self.culprit = Compute(by_place)
        self.pool = nn.AvgPool2d(2)
        self.whole = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.active(self.first(images))
        maps = self.active(self.spectral(maps))
        maps = self.pool(self.culprit(maps))
        return self.head(self.whole(maps).flatten(1))


def test_layers_are_judged_one_by_one_and_left_as_they_were() -> None:
    network, images = filled(Network()).eval(), draw(3, 1, 24, 24)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    outputs = network(images)
    found = layer_errors(network, images)
    names = ["first", "active", "spectral: conv2d", "active (2)", "culprit", "pool"]
    assert list(found) == names
    assert float(found.pop("culprit").max()) > 1e-2
    assert max(float(errors.max()) for errors in found.values()) < 1e-28
    assert torch.equal(network(images), outputs)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("network", EQUIVARIANT.values(), ids=EQUIVARIANT)
def test_whole_pixels_are_exact_for_equivariant_layers(network: nn.Module) -> None:
    layers = nn.Sequential(nn.Conv2d(1, 1, 1), network)
    found = layer_errors(filled(layers), draw(4, 1, 24, 24))
    assert found and max(float(errors.max()) for errors in found.values()) < 1e-28


def test_functions_of_several_maps_and_tokens() -> None:
    """Both terms of a sum are moved; tokens move as their grid, a place of its own does not."""
    place = draw(64, 2, seed=9)

    def compute(images: Tensor, patches: nn.Module, mix: nn.Module) -> Tensor:
        tokens = patches(images * images).flatten(2).transpose(1, 2)
        return (mix(tokens) + tokens + place).mean(1)

    network = Between(compute, filled(nn.Conv2d(1, 2, 2, stride=2)), filled(nn.Linear(2, 2)))
    found = layer_errors(network, draw(3, 1, 16, 16), samples=1)
    assert list(found) == ["mul", "layers.0", "layers.1", "add", "add (2)"]
    drawn = [torch.rand((3, 2), generator=(g := seeded()), dtype=torch.float64)]
    drawn += [torch.rand((3, 2), generator=g, dtype=torch.float64) for _ in range(4)]
    steps = (drawn[-1] * 3).floor() - 1  # an eighth of 8 × 8 tokens is one of them
    grid = place.T.unflatten(1, (8, 8))
    for example, (down, right) in enumerate(steps.int().tolist()):
        squares = []
        for channel in grid:
            back, valid = moved_by_slices(channel, -down, -right)
            squares.append((back - channel)[valid].square())
        torch.testing.assert_close(found["add (2)"][example], torch.cat(squares).mean())
    assert float(found.pop("add (2)").max()) > 1e-2
    assert max(float(errors.max()) for errors in found.values()) < 1e-28


@pytest.mark.parametrize("name", ["resnet", "channels last", "u-net"])
def test_elementwise_layers_of_every_network_are_exact(name: str) -> None:
    """Also of grids on other axes, and of layers that work in place."""
    network, images = built(name)
    elementwise = {
        row: float(errors.max())
        for row, errors in layer_errors(network, images).items()
        if any(kind in row for kind in ("relu", "gelu", "norm", "add"))
    }
    assert elementwise and max(elementwise.values()) < 1e-25, elementwise


def test_what_reads_a_mask_is_left_out() -> None:
    """x · (x > 0) follows every shift, but the mask of the unmoved x does not."""

    def bent(x: Tensor, layer: nn.Module) -> Tensor:
        mask = ~(x <= 0)
        return (layer(x) * mask + x * mask.to(x.dtype) + torch.relu(x)).mean((2, 3))

    found = layer_errors(Between(bent, nn.Conv2d(1, 1, 1)), draw(2, 1, 16, 16))
    assert list(found) == ["layers.0", "add", "relu", "add (2)"]
    assert max(float(errors.max()) for errors in found.values()) < 1e-28


def test_what_has_nothing_to_compare_is_left_out() -> None:
    coarse = nn.Sequential(nn.AvgPool2d(4), nn.ReLU())
    assert not layer_errors(coarse, draw(2, 1, 16, 16)), "no whole cell within an eighth"
    flat = nn.Sequential(nn.Flatten(), nn.Linear(256, 3)).double()
    assert not layer_errors(flat, draw(2, 1, 16, 16)), "no grid"
    upright = nn.Sequential(nn.Identity(), nn.ReLU(), nn.Flatten(2))
    assert list(layer_errors(upright, draw(2, 1, 16, 16))) == ["1"], "moving about is exact"
