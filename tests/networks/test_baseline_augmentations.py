"""Augerino's ranges by its formula, law and reward; copies by a random transform, one draw each."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from oracles.augerino_oracle import augerino_transform
from torch import Tensor
from torch.autograd import gradcheck
from user_networks import seeded

from isotropy.checks import CallerError
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.baselines import (
    AUGERINO_GENERATORS,
    LARGEST_WIDTH,
    SMALLEST_START,
    EightBitTransform,
    RandomCopies,
    SoftplusRanges,
    trivial_augment,
)
from isotropy.networks.export.laws import augmentation_from_law
from isotropy.symmetry.actions.finite import RandomTransform, flip
from isotropy.symmetry.actions.images import affine

# The content of an image moves against its grid, and theirs turns the other way.
SIGNS = torch.tensor([-1.0, -1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)


def made(raw: list[float] | None = None, **options: object) -> SoftplusRanges:
    ranges = SoftplusRanges(affine(AUGERINO_GENERATORS), dtype=torch.float64, **options)  # type: ignore[arg-type]
    if raw is not None:
        with torch.no_grad():
            ranges.raw.copy_(torch.tensor(raw, dtype=torch.float64))
    return ranges


def softplus(numbers: object) -> np.ndarray:
    return np.log1p(np.exp(np.asarray(numbers, dtype=float)))


RAW = [0.3, -0.5, 1.1, -2.0, -1.0, -1.5]


def test_copies_are_those_of_the_formula():
    ranges, images = made(RAW), torch.rand(3, 2, 9, 9, generator=seeded(), dtype=torch.float64)
    noise = ranges.noise(3, 4, generator=seeded(1))
    copies = ranges(images, noise)
    width = torch.from_numpy(softplus(RAW))
    for sample in range(4):
        weights = SIGNS * width * noise[:, sample] / 2
        expected = augerino_transform(images, weights)
        torch.testing.assert_close(copies[:, sample], expected, rtol=0, atol=1e-10)
        wrong = augerino_transform(images, 2 * weights)
        assert (copies[:, sample] - wrong).abs().max() > 0.05


def test_the_law_is_uniform_on_half_the_width_to_each_side():
    ranges = made(RAW)
    drawn = ranges.coordinates(ranges.noise(5000, 1, generator=seeded(2)))[:, 0].detach().numpy()
    halves = softplus(RAW) / 2 * np.array([0.1, 0.1, 1, 1, 1, 1])
    for numbers, half in zip(drawn.T, halves, strict=True):
        assert scipy.stats.kstest(numbers, scipy.stats.uniform(-half, 2 * half).cdf).pvalue > 1e-3
        wider = scipy.stats.uniform(-2 * half, 4 * half)
        assert scipy.stats.kstest(numbers, wider.cdf).pvalue < 1e-6
    correlations = np.corrcoef(drawn.T) - np.eye(6)
    assert np.abs(correlations).max() < 0.06


def test_half_of_the_width_is_reported_in_the_units_users_read():
    width = softplus(RAW)
    found = {symmetry.name: symmetry for symmetry in made(RAW).symmetries()}
    assert tuple(found) == AUGERINO_GENERATORS
    assert found["translation_x"].high == pytest.approx(0.1 * width[0] / 2 / 2)
    assert found["rotation"].high == pytest.approx(math.degrees(width[2] / 2))
    assert found["aspect"].high == pytest.approx(width[4] / 2)
    assert all(symmetry.low == -symmetry.high for symmetry in found.values())


def test_a_rotation_beyond_its_period_is_reported_as_it_is():
    found = {symmetry.name: symmetry for symmetry in made([0, 0, 8.0, 0, 0, 0]).symmetries()}
    assert found["rotation"].high == pytest.approx(math.degrees(softplus(8.0) / 2))
    assert found["rotation"].high > 180


def test_learning_starts_at_the_authors_widths_or_at_those_given():
    assert made().widths().tolist() == pytest.approx([math.log(2)] * 6)
    ranges = made(start={"rotation": 45.0, "translation_y": 0.02})
    found = {symmetry.name: symmetry.high for symmetry in ranges.symmetries()}
    assert found["rotation"] == pytest.approx(45.0)
    assert found["translation_y"] == pytest.approx(0.02)
    assert ranges.raw[3].item() == SMALLEST_START and 0 < found["scale"] < 0.004


def test_caps_bound_a_width_when_projected():
    ranges = made(caps={"rotation": 30.0, "scale": 0.0})
    with torch.no_grad():
        ranges.raw.fill_(5.0)
    ranges.project()
    found = {symmetry.name: symmetry.high for symmetry in ranges.symmetries()}
    assert found["rotation"] == pytest.approx(30.0) and found["scale"] == 0.0
    assert found["aspect"] == pytest.approx(softplus(5.0) / 2)
    images = torch.rand(2, 1, 5, 5, dtype=torch.float64)
    ranges(images, ranges.noise(2, 3)).square().sum().backward()
    assert torch.isfinite(ranges.raw.grad).all() and ranges.raw.grad[3] == 0
    for bad in ({"rotation": -1.0}, {"rotation": float("nan")}):
        with pytest.raises(CallerError, match="cap for 'rotation': expected a half-width of at"):
            made(caps=bad)
    with pytest.raises(CallerError, match="unknown generator 'rotatoin'"):
        made(start={"rotatoin": 3.0})


def test_the_reward_is_the_norm_of_the_widths_and_its_gradient():
    ranges = made(RAW)
    width = softplus(RAW)
    assert float(ranges.reward().detach()) == pytest.approx(np.linalg.norm(width))
    (gradient,) = torch.autograd.grad(ranges.reward(), ranges.raw)
    sigmoid = 1 / (1 + np.exp(-np.asarray(RAW)))
    np.testing.assert_allclose(gradient.numpy(), width / np.linalg.norm(width) * sigmoid)

    def of_raw(raw: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(_Reward(ranges), {"ranges.raw": raw})

    assert gradcheck(of_raw, torch.tensor(RAW, dtype=torch.float64, requires_grad=True))


class _Reward(torch.nn.Module):
    def __init__(self, ranges: SoftplusRanges) -> None:
        super().__init__()
        self.ranges = ranges

    def forward(self) -> torch.Tensor:
        return self.ranges.reward()


def test_no_width_is_rewarded_once_one_is_very_wide():
    below, beyond = made([9.9, *RAW[1:]]), made([10.1, *RAW[1:]])
    assert below.widths()[0] < LARGEST_WIDTH <= beyond.widths()[0]
    assert float(below.reward().detach()) > 9
    (gradient,) = torch.autograd.grad(beyond.reward(), beyond.raw)
    assert float(beyond.reward().detach()) == 0 and not gradient.any()


def test_the_law_is_one_of_independent_ranges():
    ranges, images = made(RAW), torch.rand(2, 1, 7, 7, dtype=torch.float64)
    again = augmentation_from_law(ranges.law(), (1, 7, 7)).double()
    assert isinstance(again, UniformRanges)
    noise = ranges.noise(2, 3, generator=seeded(3))
    torch.testing.assert_close(again(images, noise), ranges(images, noise), rtol=0, atol=1e-6)


IMAGES = torch.rand((4, 1, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def brighter(image: Tensor) -> Tensor:
    return image + torch.rand(())


def shift() -> RandomCopies:
    return RandomCopies(RandomTransform(brighter, "brighter", per_example=True))


def test_every_copy_is_a_draw_of_its_own():
    copies = shift()
    moved = copies(IMAGES, copies.noise(4, 50, generator=seeded()))
    amounts = (moved - IMAGES[:, None])[:, :, 0, 0, 0]
    assert moved.shape == (4, 50, 1, 12, 12)
    assert len(set(amounts.flatten().tolist())) == 200
    assert 0.4 < amounts.mean() < 0.6 and amounts.min() >= 0 and amounts.max() < 1


def test_noise_replays_a_copy_whatever_else_is_in_the_batch():
    copies = shift()
    noise = copies.noise(4, 3, generator=seeded(1))
    moved = copies(IMAGES, noise)
    torch.manual_seed(5)
    assert torch.equal(copies(IMAGES, noise), moved)
    assert torch.equal(copies(IMAGES[2:3], noise[2:3, 1:2])[0, 0], moved[2, 1])


def test_draws_leave_torchs_own_generator_alone():
    copies = shift()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    copies(IMAGES, copies.noise(4, 2, generator=seeded()))
    assert torch.equal(torch.rand(2), expected)


def test_it_has_no_amount():
    copies = shift()
    assert copies.learnable() == [] and not copies.is_identity
    (found,) = copies.symmetries()
    assert (found.name, found.kind, found.high) == ("brighter", "probability", 1.0)
    assert copies.coordinates(copies.noise(2, 3)).shape == (2, 3, 0)


@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 1), (4, 2, 2)])
def test_noise_of_another_shape_is_refused(shape: tuple[int, ...]):
    with pytest.raises(CallerError, match=r"noise: expected \(batch, copies, 1\) = \(4, copies"):
        shift()(IMAGES, torch.rand(shape))


def test_a_group_is_refused():
    with pytest.raises(CallerError, match="one element that draws, got 'horizontal_flip' with 1"):
        RandomCopies(flip("horizontal"))


# --- 8-bit images ---------------------------------------------------------------------------------


def test_pixels_are_rounded_to_bytes_and_back():
    seen = []

    def look(pixels: Tensor) -> Tensor:
        seen.append(pixels)
        return 255 - pixels

    data = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=torch.float64).reshape(1, 1, 2, 2)
    copies = RandomCopies(EightBitTransform(look, "negative"))
    moved = copies(data, copies.noise(1, 1))
    assert seen[0].dtype == torch.uint8 and seen[0].flatten().tolist() == [0, 26, 128, 255]
    expected = torch.tensor([255, 229, 127, 0], dtype=torch.float64).reshape(2, 2) / 255
    torch.testing.assert_close(moved[0, 0, 0], expected)


REFUSED = {
    "standardised": (2 * IMAGES - 1, r"values from 0 to 1, .*got -0\.\d+ to 0\.\d+; hand in"),
    "bytes as numbers": (255 * IMAGES, "values from 0 to 1"),
    "not a number": (IMAGES * float("nan"), "got nan to nan"),
    "two channels": (IMAGES.expand(-1, 2, -1, -1), r"\(batch, 1 or 3, height, width\), got \(4, 2"),
    "no channels": (IMAGES[:, 0], r"got \(4, 12, 12\)"),
}


@pytest.mark.parametrize(("data", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_8_bit_image_is_refused(data: Tensor, sentence: str):
    copies = RandomCopies(EightBitTransform(lambda pixels: pixels, "same"))
    with pytest.raises(CallerError, match=sentence):
        copies(data, copies.noise(4, 1))


# --- torchvision ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("torchvision_imports")
@pytest.mark.parametrize("channels", [1, 3])
def test_trivial_augment_moves_images_and_stays_within_bounds(channels: int):
    images = IMAGES.expand(-1, channels, -1, -1)
    copies = RandomCopies(trivial_augment())
    noise = copies.noise(4, 40, generator=seeded(2))
    moved = copies(images, noise)
    assert moved.dtype == images.dtype and moved.min() >= 0 and moved.max() <= 1
    changed = (moved - images[:, None]).abs().amax((2, 3, 4)) > 2 / 255
    assert 0.5 < changed.double().mean() < 1.0  # the identity is one of the operations
    assert len(torch.unique(moved[0].flatten(1), dim=0)) > 20
    assert torch.equal(copies(images, noise), moved)


@pytest.mark.usefixtures("torchvision_imports")
def test_trivial_augment_is_torchvisions():
    """One draw, replayed by hand with torch's own generator at the state the noise gives."""
    from torchvision.transforms import v2

    copies = RandomCopies(trivial_augment())
    images, noise = IMAGES[:1], copies.noise(1, 1, generator=seeded(4))
    chosen = torch.Generator().manual_seed(int(float(noise[0, 0, 0]) * 2**32))
    seed = torch.randint(2**63 - 1, (), generator=chosen).item()
    with torch.random.fork_rng():
        torch.manual_seed(int(seed))
        expected = v2.TrivialAugmentWide()((images[0] * 255).round().to(torch.uint8))
    torch.testing.assert_close(copies(images, noise)[0, 0], expected.double() / 255)


@pytest.mark.parametrize("error", [ModuleNotFoundError, RuntimeError])
def test_a_missing_torchvision_is_named(monkeypatch: pytest.MonkeyPatch, error: type[Exception]):
    true_import = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == "torchvision":
            raise error("torchvision is away")
        return true_import(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(CallerError, match=r"torchvision is away.*isotropy\[vision\]"):
        trivial_augment()
