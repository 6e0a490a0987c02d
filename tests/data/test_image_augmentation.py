"""Flips and shifts: against padding, cropping and mirroring one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from isotropy.checks import CallerError
from isotropy.data.variants import FlipsAndShifts

GOOD = torch.zeros(20, 3, dtype=torch.int64)


def pictures(batch: int = 20, channels: int = 3, height: int = 7, width: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, channels, height, width, generator=generator, dtype=torch.float64) + 1


def one_at_a_time(images: torch.Tensor, draws: torch.Tensor, pixels: int) -> np.ndarray:
    """Mirror, pad with zeros, cut out a window whose corner is (pixels + dy, pixels + dx)."""
    height, width = images.shape[2:]
    results = []
    for image, (mirrored, down, right) in zip(images.numpy(), draws.tolist(), strict=True):
        if mirrored:
            image = image[:, :, ::-1]
        padded = np.pad(image, ((0, 0), (pixels, pixels), (pixels, pixels)))
        top, left = pixels + down, pixels + right
        results.append(padded[:, top : top + height, left : left + width])
    return np.stack(results)


@pytest.mark.parametrize("pixels", [0, 1, 4, 12])
@pytest.mark.parametrize("flip", [True, False])
def test_moved_as_one_at_a_time(pixels, flip):
    images, law = pictures(), FlipsAndShifts(pixels, flip)
    draws = law.draw(len(images), torch.Generator().manual_seed(pixels))
    moved = law(images, draws)
    np.testing.assert_array_equal(moved.numpy(), one_at_a_time(images, draws, pixels))
    assert moved.dtype == images.dtype and moved.is_contiguous()


def test_every_draw_of_a_small_law():
    """All 2 · 3 · 3 elements, on images that tell every pixel and channel apart."""
    law = FlipsAndShifts(1)
    steps = torch.tensor([-1, 0, 1])
    draws = torch.cartesian_prod(torch.tensor([0, 1]), steps, steps)
    images = torch.arange(1.0, 25).view(1, 2, 3, 4).expand(18, 2, 3, 4)
    moved = law(images, draws)
    np.testing.assert_array_equal(moved.numpy(), one_at_a_time(images, draws, 1))
    assert len({image.numpy().tobytes() for image in moved}) == 18
    right = moved[int((draws == torch.tensor([0, 0, -1])).all(1).nonzero())]
    assert right[0, 0].tolist() == [0, 1, 2, 3]


def test_the_law_of_the_draws():
    law, count = FlipsAndShifts(2), 50_000
    draws = law.draw(count, torch.Generator().manual_seed(0))
    assert draws.shape == (count, 3) and draws.dtype == torch.int64
    assert abs(float(draws[:, 0].double().mean()) - 0.5) < 5 * 0.5 / count**0.5
    for column in (1, 2):
        shares = (draws[:, column] + 2).bincount().double() / count
        assert len(shares) == 5
        assert float((shares - 0.2).abs().max()) < 5 * (0.2 * 0.8 / count) ** 0.5
    assert float(torch.corrcoef(draws.double().T).fill_diagonal_(0).abs().max()) < 0.03


def test_what_is_switched_off_is_not_drawn():
    generator = torch.Generator().manual_seed(0)
    assert not FlipsAndShifts(3, flip=False).draw(500, generator)[:, 0].any()
    assert not FlipsAndShifts(0).draw(500, generator)[:, 1:].any()
    images, law = pictures(), FlipsAndShifts(0, flip=False)
    kept = law(images, law.draw(len(images), generator))
    assert torch.equal(kept, images) and kept.data_ptr() != images.data_ptr()


def test_images_of_a_batch_move_independently():
    image, law = pictures(batch=1).expand(200, 3, 7, 9), FlipsAndShifts(1)
    moved = law(image, law.draw(200, torch.Generator().manual_seed(0)))
    assert len({each.numpy().tobytes() for each in moved}) == 18


def test_recorded_once_and_replayed_with_other_draws():
    """Recorded on tensors without values: looking at one would fail, keeping one would show."""
    images, law = pictures(), FlipsAndShifts(3)
    first, second = law.draw(2 * len(images), torch.Generator().manual_seed(1)).chunk(2)
    recorded = make_fx(lambda pixels, draws: law(pixels, draws), tracing_mode="fake")(images, first)
    for draws in (first, second):
        for batch in (images, 2 * images):
            assert torch.equal(recorded(batch, draws), law(batch, draws))
    assert not torch.equal(law(images, first), law(images, second))


def test_a_function_that_looks_at_its_draws_cannot_be_recorded():
    def looks(images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        return images.flip(3) if bool(draws[0, 0] > 0) else images

    with pytest.raises(RuntimeError, match="data-dependent"):
        make_fx(looks, tracing_mode="fake")(pictures(), GOOD)


def test_gradients_flow_to_the_pixels_that_stay():
    images = pictures(batch=3, channels=1, height=3, width=4).requires_grad_()
    law = FlipsAndShifts(2)
    draws = torch.tensor([[0, 1, 0], [1, 0, -2], [1, -2, 1]])
    assert torch.autograd.gradcheck(lambda pixels: law(pixels, draws), images)


@pytest.mark.parametrize("erased", [1, 2, 3, 20])
def test_a_square_is_erased(erased):
    """Against slices that are set to zero, one image at a time."""
    images, law = pictures(batch=200), FlipsAndShifts(1, erased=erased)
    draws = law.draw(200, torch.Generator().manual_seed(erased))
    expected = one_at_a_time(images, draws[:, :3], 1)
    for image, place in zip(expected, draws[:, 3:].tolist(), strict=True):
        top, left = (p * side // 2**20 - erased // 2 for p, side in zip(place, (7, 9), strict=True))
        image[:, max(0, top) : max(0, top + erased), max(0, left) : max(0, left + erased)] = 0
    np.testing.assert_array_equal(law(images, draws).numpy(), expected)
    centres = {(row * 7 // 2**20, column * 9 // 2**20) for row, column in draws[:, 3:].tolist()}
    assert len(centres) > 50


@pytest.mark.parametrize(
    ("images", "draws", "sentence"),
    [
        (pictures()[:, 0], GOOD, r"images: expected \(batch, channels, .* got \(20, 7, 9\); add"),
        (pictures(), GOOD[:5], r"draws \(batch, 3\) of whole numbers for 20 images, got \(5, 3\)"),
        (pictures(), GOOD[:, :2], r"got \(20, 2\) of torch.int64; take them from draw\(20"),
        (pictures(), GOOD.float(), r"got \(20, 3\) of torch.float32"),
        (pictures().to("meta"), GOOD, r"the device of the images, meta, got cpu; move them"),
    ],
)
def test_what_does_not_fit_is_refused(images, draws, sentence):
    with pytest.raises(CallerError, match=sentence):
        FlipsAndShifts()(images, draws)


def test_draws_of_another_law_are_refused():
    with pytest.raises(CallerError, match=r"expected draws \(batch, 5\) .* got \(20, 3\)"):
        FlipsAndShifts(erased=2)(pictures(), GOOD)


def test_negative_shifts_are_refused():
    with pytest.raises(CallerError, match="largest shift, in pixels: expected at least 0, got -1"):
        FlipsAndShifts(-1)
