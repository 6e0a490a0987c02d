"""Resampling: against loops over pixels and taps, in every mode of differentiation, in every
direction and layout."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.affine_oracle import resample

from isotropy.checks import CallerError
from isotropy.symmetry.actions.warp import affine_warp

INTERPOLATIONS = ("bilinear", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
OPTIONS = {
    f"{interpolation}, {padding}, {'corners' if corners else 'edges'}": {
        "interpolation": interpolation,
        "padding": padding,
        "align_corners": corners,
    }
    for interpolation, padding, corners in itertools.product(
        INTERPOLATIONS, PADDINGS, (True, False)
    )
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-5}

every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)


def maps(batch: int, samples: int, *, spread: float = 0.6, seed: int = 1):
    """Random affine maps about the identity, far enough to read outside of the image."""
    linear = torch.eye(2, dtype=torch.float64) + spread * (
        draw(batch, samples, 2, 2, seed=seed) - 0.5
    )
    return linear, 2 * spread * (draw(batch, samples, 2, seed=seed + 1) - 0.5)


def turned(angle: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The map that reads so that content turns counter-clockwise as seen (y points down)."""
    c, s = math.cos(angle), math.sin(angle)
    linear = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return linear[None, None], torch.zeros(1, 1, 2, dtype=torch.float64)


def moved(x: float, y: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The map that reads so that content moves by x to the right and y down, in half widths."""
    shift = torch.tensor([-x, -y], dtype=torch.float64)
    return torch.eye(2, dtype=torch.float64)[None, None], shift[None, None]


def identity(batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    linear = torch.eye(2, dtype=torch.float64).expand(batch, 1, 2, 2)
    return linear.clone(), torch.zeros(batch, 1, 2, dtype=torch.float64)


# --- values -------------------------------------------------------------------------------


@every_option
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [(5, 5), (4, 7), (6, 3)], ids=str)
def test_equals_the_oracle(options, size, dtype):
    images = draw(2, 2, *size, dtype=dtype)
    linear, shift = maps(2, 3)
    warped = affine_warp(images, linear.to(dtype), shift.to(dtype), **options)
    assert warped.shape == (2, 3, 2, *size) and warped.dtype == dtype
    for n, s in itertools.product(range(2), range(3)):
        right = resample(
            images[n].double().numpy(), linear[n, s].numpy(), shift[n, s].numpy(), **options
        )
        error = np.abs(warped[n, s].double().numpy() - right).max()
        assert error <= TOLERANCE[dtype], (n, s)


@every_option
def test_far_outside_of_the_image(options):
    images, (linear, _) = draw(1, 1, 4, 5), maps(1, 1)
    shift = torch.tensor([[[5.3, -7.7]]], dtype=torch.float64)
    warped = affine_warp(images, linear, shift, **options)
    right = resample(images[0].numpy(), linear[0, 0].numpy(), shift[0, 0].numpy(), **options)
    np.testing.assert_allclose(warped[0, 0].numpy(), right, atol=1e-11)


@every_option
@pytest.mark.parametrize("size", [(5, 5), (6, 6), (5, 9), (28, 28)], ids=str)
def test_identity_returns_the_image(options, size):
    images = draw(2, 1, *size)
    torch.testing.assert_close(
        affine_warp(images, *identity(2), **options)[:, 0], images, rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("turns", [-1, 1, 2, 3])
@pytest.mark.parametrize("size", [5, 6])
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_quarter_turns_are_rot90(interpolation, align_corners, size, turns):
    images = draw(1, 2, size, size)
    warped = affine_warp(
        images,
        *turned(turns * math.pi / 2),
        interpolation=interpolation,
        align_corners=align_corners,
    )
    torch.testing.assert_close(warped[:, 0], torch.rot90(images, turns, (2, 3)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("size", [(5, 9), (9, 5)], ids=str)
def test_a_long_image_is_turned_not_squeezed(size, interpolation, align_corners):
    """Pixels turn about the middle; what falls off the short side is lost, what enters is zero."""
    image = draw(1, 1, *size)
    height, width = size
    square = (
        ..., slice(height // 2 - 2, height // 2 + 3), slice(width // 2 - 2, width // 2 + 3),
    )  # fmt: skip
    wanted = torch.zeros_like(image)
    wanted[square] = torch.rot90(image[square], 1, (2, 3))
    warped = affine_warp(
        image, *turned(math.pi / 2), interpolation=interpolation, align_corners=align_corners
    )
    torch.testing.assert_close(warped[:, 0], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@given(right=st.integers(-4, 4), down=st.integers(-4, 4))
def test_whole_pixels_shift_with_zeros(interpolation, align_corners, right, down):
    height, width = 5, 7
    image = draw(1, 1, height, width)
    wanted = torch.zeros_like(image)
    rows = range(max(0, down), min(height, height + down))
    columns = range(max(0, right), min(width, width + right))
    for row, column in itertools.product(rows, columns):
        wanted[0, 0, row, column] = image[0, 0, row - down, column - right]
    # The unit is half the width in both directions.
    unit = (width - 1) / 2 if align_corners else width / 2
    warped = affine_warp(
        image,
        *moved(right / unit, down / unit),
        interpolation=interpolation,
        align_corners=align_corners,
    )
    torch.testing.assert_close(warped[:, 0], wanted, rtol=0, atol=1e-12)


@every_option
@given(weight=st.floats(-3, 3))
def test_linear_in_the_image(options, weight):
    first, second, (linear, shift) = draw(1, 1, 4, 5), draw(1, 1, 4, 5, seed=5), maps(1, 2)
    together = affine_warp(first + weight * second, linear, shift, **options)
    apart = [affine_warp(each, linear, shift, **options) for each in (first, second)]
    torch.testing.assert_close(together, apart[0] + weight * apart[1], rtol=0, atol=1e-12)


# --- derivatives --------------------------------------------------------------------------


@every_option
def test_gradients_in_both_modes(options):
    images, (linear, shift) = draw(2, 1, 3, 4), maps(2, 2)
    leaves = [each.requires_grad_() for each in (images, linear, shift)]
    assert torch.autograd.gradcheck(
        lambda *inputs: affine_warp(*inputs, **options),
        leaves,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        atol=1e-6,
    )


def directional(images, linear, shift, direction, options):
    """The forward-mode derivative along changes of image, linear part and shift."""
    _, tangent = torch.func.jvp(
        lambda *inputs: affine_warp(*inputs, **options), (images, linear, shift), direction
    )
    return tangent


def differences(images, linear, shift, direction, options, step):
    ahead, behind = (
        affine_warp(
            *(x + sign * step * d for x, d in zip((images, linear, shift), direction, strict=True)),
            **options,
        )
        for sign in (1, -1)
    )
    return (ahead - behind) / (2 * step)


@pytest.mark.parametrize("place", ["identity", "anywhere"])
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding", PADDINGS)
def test_bicubic_tangent_equals_central_differences(padding, align_corners, place):
    options = {"interpolation": "bicubic", "padding": padding, "align_corners": align_corners}
    images = draw(1, 2, 6, 7)
    linear, shift = identity() if place == "identity" else maps(1, 1)
    direction = tuple(draw(*each.shape, seed=9) - 0.5 for each in (images, linear, shift))
    tangent = directional(images, linear, shift, direction, options)
    # The kernel's second derivative jumps at whole pixels: the difference is first order there.
    central = differences(images, linear, shift, direction, options, 1e-8)
    assert (tangent - central).abs().max() < 1e-6


def test_bilinear_has_a_kink_at_the_identity():
    """What bicubic is for: the one-sided derivatives of the hat are far apart."""
    options = {"interpolation": "bilinear"}
    images, (linear, shift) = draw(1, 1, 7, 7), identity()
    direction = (torch.zeros_like(images), torch.zeros_like(linear), torch.ones_like(shift))
    tangent = directional(images, linear, shift, direction, options)
    central = differences(images, linear, shift, direction, options, 1e-6)
    assert (tangent - central).abs().max() > 0.1


@every_option
@pytest.mark.parametrize("size", [(5, 5), (7, 7), (5, 9), (12, 12)], ids=str)
def test_both_modes_agree_at_the_identity(options, size):
    """⟨w, J v⟩ = ⟨Jᵀ w, v⟩, also where the interpolant has a kink: both take the same side of it.

    The identity is where learning starts, and there every pixel sits on a kink.
    """
    images, (linear, shift) = draw(2, 2, *size), identity(2)
    direction = (draw(*images.shape, seed=5) - 0.5, linear.new_ones(linear.shape), shift + 0.3)
    tangent = directional(images, linear, shift, direction, options)
    _, pullback = torch.func.vjp(
        lambda *inputs: affine_warp(*inputs, **options), images, linear, shift
    )
    cotangent = draw(*tangent.shape, seed=6) - 0.5
    pulled = pullback(cotangent)
    backward = sum((g * v).sum() for g, v in zip(pulled, direction, strict=True))
    torch.testing.assert_close((tangent * cotangent).sum(), backward, rtol=1e-10, atol=1e-10)


@every_option
def test_vmap_and_jacobians(options):
    images, (linear, shift) = draw(3, 1, 4, 4), maps(3, 2)

    def one(image, linear, shift):
        return affine_warp(image[None], linear[None], shift[None], **options)[0]

    together = affine_warp(images, linear, shift, **options)
    torch.testing.assert_close(torch.func.vmap(one)(images, linear, shift), together)
    forward = torch.func.vmap(torch.func.jacfwd(one, argnums=(1, 2)))(images, linear, shift)
    reverse = torch.func.vmap(torch.func.jacrev(one, argnums=(1, 2)))(images, linear, shift)
    torch.testing.assert_close(forward, reverse)
    # One image under a bundle of maps: only some inputs carry the mapped axis.
    bundle = torch.func.vmap(one, in_dims=(None, 0, 0))(images[0], linear, shift)
    torch.testing.assert_close(bundle[0], together[0])


# --- layout, type, device -----------------------------------------------------------------


@every_option
def test_samples_of_one_image_lie_together(options):
    images, (linear, shift) = draw(3, 2, 4, 5), maps(3, 2)
    flat = affine_warp(images, linear, shift, **options).flatten(0, 1)
    for n, s in itertools.product(range(3), range(2)):
        alone = affine_warp(
            images[n : n + 1], linear[n : n + 1, s : s + 1], shift[n : n + 1, s : s + 1], **options
        )
        torch.testing.assert_close(flat[2 * n + s], alone[0, 0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_type_and_device_follow_the_input(device, dtype):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    images = draw(2, 1, 4, 4, dtype=dtype).to(device)
    linear, shift = (each.to(device, dtype) for each in maps(2, 3))
    warped = affine_warp(images, linear, shift)
    assert warped.dtype == dtype and warped.device.type == device


def test_the_input_is_left_alone():
    images, (linear, shift) = draw(1, 1, 4, 4), maps(1, 1)
    copies = [each.clone() for each in (images, linear, shift)]
    affine_warp(images, linear, shift)[:] = 7
    for each, copy in zip((images, linear, shift), copies, strict=True):
        assert torch.equal(each, copy)


LINEAR, SHIFT, IMAGES = torch.zeros(2, 3, 2, 2), torch.zeros(2, 3, 2), torch.zeros(2, 1, 4, 4)
REFUSED = {
    "no channel axis": (
        (torch.zeros(2, 4, 4), LINEAR, SHIFT), {},
        r"images: expected \(batch, channels, height, width\), got \(2, 4, 4\); add a channel axis",
    ),
    "no sample axis": ((IMAGES, LINEAR[:, 0], SHIFT), {}, r"linear: expected .* got \(2, 2, 2\)"),
    "other batch": ((IMAGES, LINEAR[:1], SHIFT), {}, "linear: expected .* batch = 2, got"),
    "three rows": ((IMAGES, torch.zeros(2, 3, 3, 3), SHIFT), {}, "linear: expected"),
    "shift without samples": ((IMAGES, LINEAR, torch.zeros(3, 2)), {}, "shift: expected"),
    "shift of another batch": ((IMAGES, LINEAR, SHIFT[:1]), {}, "shift: expected"),
    "shift in three dimensions": ((IMAGES, LINEAR, torch.zeros(2, 3, 1)), {}, "shift: expected"),
    "unknown interpolation": (
        (IMAGES, LINEAR, SHIFT), {"interpolation": "bilinaer"},
        "unknown interpolation 'bilinaer': .*did you mean 'bilinear'",
    ),
    "unknown padding": (
        (IMAGES, LINEAR, SHIFT), {"padding": "mirror"},
        "unknown padding 'mirror': expected one of zeros, border, reflection",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "options", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(inputs, options, sentence):
    with pytest.raises(CallerError, match=sentence):
        affine_warp(*inputs, **options)
