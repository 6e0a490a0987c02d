"""Trigonometric interpolation against complex sums, rolls and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from action_cases import draw
from oracles.fourier_oracle import trigonometric

from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.symmetry.actions.images import GENERATORS, affine
from isotropy.symmetry.actions.warp import affine_warp, fourier_sample

SIZES = [(5, 7), (6, 8), (4, 9), (1, 6), (2, 2), (5, 1), (1, 1)]
every_size = pytest.mark.parametrize("size", SIZES, ids=str)


@every_size
def test_values_between_pixels(size):
    images = draw(2, 3, *size)
    columns, rows = 40 * draw(2, 11, seed=1) - 20, 40 * draw(2, 11, seed=2) - 20
    given = fourier_sample(images, columns, rows)
    for n in range(2):
        for channel in range(3):
            wanted = trigonometric(images[n, channel].numpy(), columns[n].numpy(), rows[n].numpy())
            torch.testing.assert_close(
                given[n, channel], torch.from_numpy(wanted), rtol=0, atol=1e-12
            )


def test_few_places_at_a_time():
    images, columns, rows = draw(2, 3, 5, 6), 9 * draw(2, 13, seed=1), 9 * draw(2, 13, seed=2)
    wanted = fourier_sample(images, columns, rows)
    for most in (1, 200, 400):
        given = fourier_sample(images, columns, rows, most_numbers=most)
        torch.testing.assert_close(given, wanted, rtol=0, atol=1e-14)


@every_size
@pytest.mark.parametrize(("right", "down"), [(1, 0), (0, 1), (3, -2), (-11, 17)])
def test_whole_pixels_are_rolled(size, right, down):
    action, images = (
        affine(("translation_x", "translation_y"), interpolation="fourier"),
        draw(2, 3, *size),
    )
    moved = torch.tensor([right, down], dtype=torch.float64) / (size[1] / 2)
    given = action.act(moved.expand(2, 1, 2), images)[:, 0]
    torch.testing.assert_close(given, images.roll((down, right), (2, 3)), rtol=0, atol=1e-12)


def test_corners_of_pixels_when_asked():
    """With align_corners the unit is (W − 1)/2 pixels; the period stays W."""
    action = affine(("translation_x",), interpolation="fourier", align_corners=True)
    images = draw(1, 1, 4, 9)
    given = action.act(torch.full((1, 1, 1), 2 / 4, dtype=torch.float64), images)[:, 0]
    torch.testing.assert_close(given, images.roll(2, 3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(5, 7), (7, 7)], ids=str)
def test_shifts_are_exactly_a_group(size):
    """Where there is no Nyquist frequency, shifts by parts of a pixel compose without an error."""
    action = affine(("translation_x", "translation_y"), interpolation="fourier")
    images, one, other = draw(2, 2, *size), draw(2, 1, 2, seed=1), draw(2, 1, 2, seed=2)
    twice = action.act(other, action.act(one, images)[:, 0])
    torch.testing.assert_close(twice, action.act(one + other, images), rtol=0, atol=1e-12)


def test_a_shift_means_the_same_on_a_coarser_map():
    """Shifting and then leaving out every other pixel is the same in the other order."""
    action = affine(("translation_x", "translation_y"), interpolation="fourier")
    place = 2 * math.pi * torch.arange(16, dtype=torch.float64) / 16
    waves = (1 + torch.cos(2 * place) + torch.sin(3 * place))[:, None] * torch.cos(place - 0.4)
    images = waves[None, None]
    amount = torch.tensor([[[0.31, -0.17]]], dtype=torch.float64)
    fine = action.act(amount, images)[:, 0, :, ::2, ::2]
    torch.testing.assert_close(action.act(amount, images[..., ::2, ::2])[:, 0], fine)
    direction = amount[0, 0]
    torch.testing.assert_close(
        action.velocity(direction, images[..., ::2, ::2]),
        action.velocity(direction, images)[..., ::2, ::2],
    )


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("size", [(6, 8), (5, 7)], ids=str)
def test_velocity_equals_differences_and_sums(name, size):
    action, images = affine((name,), interpolation="fourier"), draw(1, 1, *size)
    direction, step = torch.ones(1, dtype=torch.float64), 1e-5
    velocity = action.velocity(direction, images)
    there, back = (
        action.act(torch.full((1, 1, 1), sign * step, dtype=torch.float64), images)[:, 0]
        for sign in (1, -1)
    )
    difference = (there - back) / (2 * step)
    assert (velocity - difference).norm() < 1e-6 * difference.norm()
    # −∇v·(B p + b), with slopes of the complex sums at the pixels.
    row, column = torch.meshgrid(*(torch.arange(n).double() for n in size), indexing="ij")
    x, y = column - (size[1] - 1) / 2, row - (size[0] - 1) / 2
    matrix, unit = GENERATORS[name].matrix, size[1] / 2
    wanted = torch.zeros(size, dtype=torch.float64)
    for (across, down, shift), order in zip(matrix, ((1, 0), (0, 1)), strict=True):
        slope = trigonometric(
            images[0, 0].numpy(), column.flatten().numpy(), row.flatten().numpy(), order
        )
        flow = across * x + down * y + shift * unit
        wanted -= torch.from_numpy(slope).reshape(size) * flow
    torch.testing.assert_close(velocity[0, 0], wanted, rtol=0, atol=1e-11)


def test_derivatives_of_the_warp():
    images = draw(2, 2, 4, 5).requires_grad_()
    linear = (torch.eye(2).double() + 0.3 * draw(2, 2, 2, 2, seed=1)).requires_grad_()
    shift = draw(2, 2, 2, seed=2).requires_grad_()

    def warp(*inputs):
        return affine_warp(*inputs, interpolation="fourier", align_corners=False)

    inputs = (images, linear, shift)
    assert torch.autograd.gradcheck(warp, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(warp, inputs, fast_mode=True)


def test_padding_is_of_no_use():
    images, amount = draw(2, 1, 4, 5), draw(2, 1, 6, seed=1)
    one, *others = (
        affine(interpolation="fourier", padding=padding).act(amount, images)
        for padding in ("zeros", "border", "reflection")
    )
    for other in others:
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_single_precision_far_away():
    """Whole periods are taken off before anything is multiplied."""
    action, images = affine(("translation_x",), interpolation="fourier"), draw(1, 1, 3, 64)
    given = action.act(torch.full((1, 1, 1), 2.0 * 64), images.float())[:, 0]
    torch.testing.assert_close(given, images.float(), rtol=0, atol=1e-5)


def test_corners_by_default():
    assert affine().align_corners is True
    assert affine(interpolation="bicubic", align_corners=False).align_corners is False
    assert affine(interpolation="fourier").align_corners is False
    assert affine(interpolation="fourier", align_corners=True).align_corners is True


def test_a_law_repeats_it():
    ranges = UniformRanges(affine(("rotation",), interpolation="fourier"))
    assert ranges.law()["actions"] == [
        {
            "generators": ["rotation"], "interpolation": "fourier", "padding": "zeros",
            "align_corners": False,
        }
    ]  # fmt: skip
