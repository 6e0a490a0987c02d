"""Copies by a random transform: one draw a copy, replayed by its noise; torchvision's own."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch
from torch import Tensor
from user_networks import seeded

from isotropy.checks import CallerError
from isotropy.networks.averaging.baselines import EightBitTransform, RandomCopies, trivial_augment
from isotropy.symmetry.actions.finite import RandomTransform, flip

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
