"""Slopes of sampled signals, and velocities of images for every way to resample them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from action_cases import draw
from torch import Tensor

from isotropy.symmetry.actions.action import Action, band_limited_slope, neighbour_slope
from isotropy.symmetry.actions.images import GENERATORS, affine
from isotropy.symmetry.actions.sequences import sequences

EXTENSIONS = ("zeros", "edge", "mirror", "circular")
every_extension = pytest.mark.parametrize("extension", EXTENSIONS)
BEFORE = {"zeros": None, "edge": 0, "mirror": 1, "circular": -1}
AFTER = {"zeros": None, "edge": -1, "mirror": -2, "circular": 0}


@every_extension
@pytest.mark.parametrize("length", [2, 3, 8])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_differences_of_neighbours(extension, length, axis):
    data = draw(3, 4, length).movedim(2, axis)
    values = list(data.unbind(axis))
    zero = torch.zeros_like(values[0])
    before, after = (
        zero if index is None else values[index] for index in (BEFORE[extension], AFTER[extension])
    )
    longer = [before, *values, after]
    wanted = [longer[i + 2] - longer[i] for i in range(length)]
    given = neighbour_slope(data, axis, extension)
    torch.testing.assert_close(given, torch.stack(wanted, axis), rtol=0, atol=0)


@every_extension
@pytest.mark.parametrize("slope", [neighbour_slope, band_limited_slope])
def test_one_sample_has_no_slope(extension, slope):
    assert float(slope(draw(2, 1, 3), 1, extension).abs().max()) == 0


def waves(length: int, extension: str) -> tuple[Tensor, Tensor]:
    """Every wave that the extension keeps, and its slope: (waves, length) both."""
    place = torch.arange(length, dtype=torch.float64)
    values, slopes = [], []
    for k in range(length if extension != "circular" else length // 2 + 1):
        if extension == "circular":
            rate, phases = 2 * math.pi * k / length, (0.0, math.pi / 2)
        elif extension == "mirror":
            rate, phases = math.pi * k / (length - 1), (0.0,)
        else:
            rate, phases = math.pi * k / length, (math.pi * k / (2 * length),)
        for phase in phases:
            # Nyquist can be told from its mirror image at the samples by no slope but zero.
            nyquist = math.isclose(rate, math.pi)
            values.append(torch.cos(rate * place + phase))
            slopes.append(-rate * torch.sin(rate * place + phase) * (not nyquist))
    return torch.stack(values), torch.stack(slopes)


@every_extension
@pytest.mark.parametrize("length", [2, 5, 8, 33])
def test_slopes_of_waves_are_exact(extension, length):
    """The waves span all signals, so this is the whole map."""
    values, slopes = waves(length, extension)
    assert torch.linalg.matrix_rank(values) == length
    given = band_limited_slope(values, 1, extension)
    torch.testing.assert_close(given, slopes, rtol=0, atol=1e-11)
    turned = band_limited_slope(values.mT[None], 1, extension)
    torch.testing.assert_close(turned[0].mT, slopes, rtol=0, atol=1e-11)


def test_half_precision_is_transformed_in_single():
    data = draw(2, 16).to(torch.bfloat16)
    given = band_limited_slope(data, 1, "edge")
    assert given.dtype == torch.bfloat16
    wanted = band_limited_slope(data.float(), 1, "edge")
    torch.testing.assert_close(given.float(), wanted, rtol=1e-2, atol=1e-2)


# --- images -------------------------------------------------------------------------------

WAYS = list(
    itertools.product(("bilinear", "bicubic"), ("zeros", "border", "reflection"), (True, False))
)
every_way = pytest.mark.parametrize(("interpolation", "padding", "align_corners"), WAYS)


@every_way
@pytest.mark.parametrize("size", [(5, 6), (7, 4), (1, 5), (5, 1), (2, 2), (1, 1)], ids=str)
def test_velocity_of_images_is_the_central_derivative(interpolation, padding, align_corners, size):
    action = affine(
        tuple(GENERATORS),
        interpolation=interpolation, padding=padding, align_corners=align_corners,
    )  # fmt: skip
    images, step = draw(2, 3, *size), 1e-6
    direction = draw(2, len(GENERATORS), seed=1) - 0.4
    coordinates = step * direction[:, None]
    there, back = action.act(coordinates, images), action.act(-coordinates, images)
    wanted = ((there - back) / (2 * step))[:, 0]
    velocity = action.velocity(direction, images)
    # Both sides of a pixel differ by terms of the step squared, which halves do not cancel.
    assert (velocity - wanted).abs().max() < 2e-5 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("align_corners", [True, False])
def test_bicubic_velocity_is_the_smooth_derivative(align_corners):
    """The cubic has a slope at the pixels, which forward mode knows too."""
    for padding in ("border", "reflection", "zeros"):
        action = affine(interpolation="bicubic", padding=padding, align_corners=align_corners)
        direction, images = draw(2, 6, seed=1) - 0.4, draw(2, 3, 8, 7)
        torch.testing.assert_close(
            action.velocity(direction, images), Action.velocity(action, direction, images)
        )


def test_content_moves_as_the_generator_says():
    """A ramp that rises to the right sinks everywhere when the content moves right."""
    ramp = torch.arange(9, dtype=torch.float64).expand(1, 1, 7, 9)
    one = torch.ones(1, dtype=torch.float64)
    moved = affine(("translation_x",), padding="border").velocity(one, ramp)
    torch.testing.assert_close(moved[..., 1:-1], torch.full((1, 1, 7, 7), -4.0).double())
    grown = affine(("scale",), padding="border").velocity(one, ramp)
    torch.testing.assert_close(grown[..., 1:-1], -(ramp - 4.0)[..., 1:-1])
    still = affine(("translation_y", "scale_y")).velocity(torch.ones(2).double(), ramp)
    torch.testing.assert_close(still[:, :, 1:-1], torch.zeros(1, 1, 5, 9).double())


def test_channels_last_stays_so():
    images = draw(2, 8, 5, 6)
    last = images.to(memory_format=torch.channels_last)
    action, direction = affine(padding="reflection"), draw(6, seed=1)
    given = action.velocity(direction, last)
    assert given.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(given, action.velocity(direction, images))


@pytest.mark.parametrize(
    ("options", "extension"),
    [
        ({"padding": "zeros"}, "edge"),
        ({"padding": "border"}, "edge"),
        ({"padding": "reflection"}, "mirror"),
        ({"padding": "reflection", "align_corners": False}, "edge"),
        ({"interpolation": "fourier"}, "circular"),
    ],
)
def test_ideal_velocity_of_a_wave(options, extension):
    """A rotation of f(row) g(column), whose slopes are known: ẋ = y, ẏ = −x as seen from above."""
    height, width = 6, 9
    columns, column_slopes = waves(width, extension)
    rows, row_slopes = waves(height, extension)
    action = affine(("rotation",), **options)
    x = torch.arange(width).double() - (width - 1) / 2
    y = (torch.arange(height).double() - (height - 1) / 2)[:, None]
    for f, g in ((2, 3), (1, 0), (0, 4)):
        image = rows[f][:, None] * columns[g]
        wanted = -(
            rows[f][:, None] * column_slopes[g] * y - row_slopes[f][:, None] * columns[g] * x
        )
        given = action.ideal_velocity(torch.ones(1).double(), image[None, None])
        torch.testing.assert_close(given[0, 0], wanted, rtol=0, atol=1e-10)


def test_ideal_velocity_of_a_sequence():
    for boundary, extension in (("circular", "circular"), ("zeros", "edge")):
        values, slopes = waves(11, extension)
        action = sequences(boundary=boundary)
        u = (torch.arange(11).double() - 5) / 5.5
        direction = torch.tensor([0.3, -0.7, 0.2], dtype=torch.float64)
        wanted = -(0.3 - 0.7 * u) * slopes * 5.5 + 0.2 * values
        given = action.ideal_velocity(direction, values[None])
        torch.testing.assert_close(given[0], wanted, rtol=0, atol=1e-11)


def test_the_error_of_interpolation_vanishes():
    """Straight lines come close to the ideal with the square of the pixels' size."""
    errors = []
    for size in (17, 33, 65):
        place = torch.linspace(-1, 1, size, dtype=torch.float64)
        image = torch.exp(-((place[:, None] - 0.1) ** 2 + place**2) / 0.05)[None, None]
        action, one = affine(("rotation",)), torch.ones(1, dtype=torch.float64)
        ideal = action.ideal_velocity(one, image)
        errors.append(float((action.velocity(one, image) - ideal).norm() / ideal.norm()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.2)
