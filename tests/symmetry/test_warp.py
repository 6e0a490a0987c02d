"""Resampling: against loops over pixels and taps and torch's own functions, in every mode of
differentiation, in every direction and layout, whatever the chunks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.affine_oracle import resample
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.kernels.fused import reference_path
from isotropy.symmetry.actions import warp
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


# --- derivatives --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_places_that_are_not_finite_are_beyond_the_border(value, dtype):
    """torch's sampler would read memory that is not its own."""
    images = draw(2, 1, 8, 8, dtype=dtype)
    linear, shift = (each.to(dtype).requires_grad_() for each in identity(2))
    with torch.no_grad():
        shift[1] = min(value, torch.finfo(dtype).max) if value < math.inf else value
    warped = affine_warp(images, linear, shift)
    assert not warped[1].any()
    # Places of pixels are rounded, and neighbours come in with the rest: an absolute tolerance.
    torch.testing.assert_close(warped[0, 0], images[0], rtol=0, atol=20 * torch.finfo(dtype).eps)
    warped.sum().backward()
    assert linear.grad.isfinite().all()


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


# --- in chunks, on a CPU ------------------------------------------------------------------

# Images in a chunk, of five: each alone, a last one that is shorter, all at once.
CHUNKS = (1, 2, 3, 5, 8)


def cases(batch=5, samples=3, channels=2, size=(6, 7), *, spread=0.4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)

    images = draw(batch, channels, *size)
    linear = torch.eye(2, dtype=dtype) + spread * (draw(batch, samples, 2, 2) - 0.5)
    return images, linear, 2 * spread * (draw(batch, samples, 2) - 0.5)


def by_torch(images, linear, shift, interpolation="bilinear", padding="zeros", align_corners=True):
    """Every image repeated, every grid made whole, as torch's own functions would have it."""
    (batch, channels, height, width), samples = images.shape, linear.shape[1]
    # affine_grid's unit is half the height along y, and half the width along x.
    ratio = (width - 1) / (height - 1) if align_corners else width / height
    flip = torch.tensor([[1.0, 1 / ratio], [ratio, 1.0]], dtype=linear.dtype)
    moved = shift * torch.tensor([1.0, ratio], dtype=shift.dtype)
    matrices = torch.cat([linear * flip, moved[..., None]], dim=-1).flatten(0, 1)
    repeated = images[:, None].expand(-1, samples, -1, -1, -1).flatten(0, 1)
    shape = (batch * samples, channels, height, width)
    grid = functional.affine_grid(matrices, shape, align_corners=align_corners)
    warped = functional.grid_sample(
        repeated, grid, mode=interpolation, padding_mode=padding, align_corners=align_corners
    )
    return warped.unflatten(0, (batch, samples))


@pytest.fixture
def in_chunks_of(monkeypatch):
    """Sets how many images of `cases()` make a chunk."""

    def use(length, *, positions=3 * 6 * 7):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        monkeypatch.setattr(warp, "_CHUNK", length * positions)

    return use


def gradients(move, inputs, cotangent, **options):
    leaves = [each.clone().requires_grad_() for each in inputs]
    return torch.autograd.grad(move(*leaves, **options), leaves, cotangent)


@every_option
@pytest.mark.parametrize("length", CHUNKS)
def test_values_and_gradients_equal_torch(options, length, in_chunks_of):
    in_chunks_of(length)
    inputs = cases()
    warped = affine_warp(*inputs, **options)
    assert warped.is_contiguous()
    torch.testing.assert_close(warped, by_torch(*inputs, **options), rtol=0, atol=1e-12)
    cotangent = torch.randn(warped.shape, generator=torch.Generator().manual_seed(4)).double()
    ours = gradients(affine_warp, inputs, cotangent, **options)
    torchs = gradients(by_torch, inputs, cotangent, **options)
    torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-10)


@every_option
def test_the_whole_grid_gives_the_same(options):
    """In every mode of differentiation, as where a program is exported."""
    inputs = cases(batch=2)
    direction = tuple(torch.cos(each) for each in inputs)
    chunks = torch.func.jvp(lambda *given: affine_warp(*given, **options), inputs, direction)
    slopes = gradients(affine_warp, inputs, chunks[0], **options)
    with reference_path():
        whole = torch.func.jvp(lambda *given: affine_warp(*given, **options), inputs, direction)
        torch.testing.assert_close(whole, chunks)
        torch.testing.assert_close(gradients(affine_warp, inputs, whole[0], **options), slopes)


def test_chunks_are_as_long_as_said(in_chunks_of, monkeypatch):
    """Else the tests of chunks would all see one: what the sampler is given is counted."""
    seen = []
    sampler = torch.grid_sampler_2d
    monkeypatch.setattr(
        torch,
        "grid_sampler_2d",
        lambda images, *rest: seen.append(len(images)) or sampler(images, *rest),
    )
    for length in CHUNKS:
        in_chunks_of(length)
        affine_warp(*cases())
    assert seen == [1, 1, 1, 1, 1, 2, 2, 1, 3, 2, 5, 5]


def test_every_thread_gets_as_many_images(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(warp, "_CHUNK", 3 * 3 * 6 * 7)
    _, linear, shift = cases()
    coefficients = torch.cat([linear, shift[..., None]], dim=-1).transpose(1, 2)
    chunks = warp._grids(coefficients, torch.zeros(7).double(), torch.zeros(6).double())
    assert [chunk for chunk, _ in chunks] == [slice(0, 2), slice(2, 4), slice(4, 5)]


@pytest.mark.parametrize("channels", [1, 3])
def test_single_precision_at_the_size_of_use(channels):
    """28×28 pixels, 31 samples of each image, in several chunks of the size that is used."""
    images, linear, shift = cases(100, 31, channels, (28, 28), dtype=torch.float32)
    assert 2 * warp._CHUNK < 100 * 31 * 28 * 28
    warped = affine_warp(images, linear, shift)
    torch.testing.assert_close(warped, by_torch(images, linear, shift), rtol=0, atol=1e-5)


def test_single_precision_gradients_on_a_slope():
    """A plane's interpolant is the plane, without kinks: read at T p, it is slope · T p.

    Its gradient by the linear part is slope ⊗ p, by the shift the slope, summed over pixels. (On
    images with kinks two roundings of one position may read on different sides of one.)
    """
    _, linear, shift = cases(50, 31, 1, (28, 28), dtype=torch.float32)
    linear, shift = 0.5 * linear, 0.2 * shift  # all is read inside the image
    place, slope = torch.linspace(-1, 1, 28), torch.tensor([0.7, -0.4])
    places = torch.stack(torch.meshgrid(place, place, indexing="xy"), dim=-1)  # (28, 28, (x, y))
    images = (places @ slope).expand(50, 1, 28, 28)
    cotangent = torch.cos(torch.arange(50 * 31 * 28 * 28)).reshape(50, 31, 1, 28, 28)
    _, by_linear, by_shift = gradients(affine_warp, (images, linear, shift), cotangent)
    moments = torch.einsum("nshw,hwj->nsj", cotangent[:, :, 0], places)
    right = slope[:, None] * moments[:, :, None, :]
    torch.testing.assert_close(by_linear, right, rtol=0, atol=2e-4)
    right = slope * cotangent.sum((2, 3, 4))[..., None]
    torch.testing.assert_close(by_shift, right, rtol=0, atol=2e-4)


@pytest.mark.parametrize("size", [(1, 5), (5, 1), (1, 1)], ids=str)
def test_thin_images_at_the_identity(size):
    images = cases(size=size)[0]
    linear, shift = torch.eye(2).double().expand(5, 2, 2, 2), torch.zeros(5, 2, 2).double()
    warped = affine_warp(images, linear, shift)
    torch.testing.assert_close(warped, images[:, None].expand_as(warped), rtol=0, atol=1e-12)


def test_an_empty_batch():
    inputs = cases(batch=0)
    warped = affine_warp(*inputs)
    assert warped.shape == (0, 3, 2, 6, 7)
    found = gradients(affine_warp, inputs, torch.zeros_like(warped))
    assert [each.shape for each in found] == [each.shape for each in inputs]


@pytest.mark.parametrize("which", range(3), ids=["images", "linear", "shift"])
def test_one_input_alone(which, in_chunks_of):
    """What is not needed is left out, and what is comes out the same."""
    in_chunks_of(2)
    inputs = list(cases())
    together = gradients(affine_warp, inputs, torch.ones(5, 3, 2, 6, 7).double())[which]
    inputs[which].requires_grad_()
    affine_warp(*inputs).sum().backward()
    torch.testing.assert_close(inputs[which].grad, together)


def test_the_grid_is_not_kept():
    images, linear, shift = cases(channels=1)
    linear.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        warped = affine_warp(images, linear, shift)
    assert kept and sum(map(math.prod, kept)) < warped.numel()


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12),
    reason="torch's sampler has no second derivative before 2.12",
)
def test_second_derivatives(in_chunks_of):
    in_chunks_of(1)
    inputs = [each.requires_grad_() for each in cases(2, 2, 1, (3, 4))]
    assert torch.autograd.gradgradcheck(affine_warp, inputs, atol=1e-5)


def test_batched_gradients(in_chunks_of):
    """Many cotangents at once equal one after the other."""
    in_chunks_of(2)
    inputs = [each.requires_grad_() for each in cases()]
    warped = affine_warp(*inputs)
    many = torch.stack([torch.cos(k * warped.detach()) for k in range(1, 4)])
    together = torch.autograd.grad(warped, inputs, many, is_grads_batched=True, retain_graph=True)
    for k, one in enumerate(many):
        alone = torch.autograd.grad(warped, inputs, one, retain_graph=True)
        torch.testing.assert_close([each[k] for each in together], list(alone))


@pytest.mark.parametrize("in_dims", [(0, None, None), (None, 1, 0), (2, 0, None), (1, 1, 1)])
def test_vmap_over_any_axis_of_any_input(in_dims, in_chunks_of):
    in_chunks_of(2)
    factors = torch.linspace(0.5, 1, 4, dtype=torch.float64)
    mapped = [
        each if axis is None else torch.stack([each * f for f in factors], dim=axis)
        for each, axis in zip(cases(), in_dims, strict=True)
    ]
    together = torch.func.vmap(affine_warp, in_dims=in_dims)(*mapped)
    for k in range(4):
        one = [
            each if axis is None else each.select(axis, k)
            for each, axis in zip(mapped, in_dims, strict=True)
        ]
        torch.testing.assert_close(together[k], affine_warp(*one))


def test_vmap_in_vmap_and_gradients_through_it():
    images, linear, shift = cases()
    factors = torch.linspace(0.5, 1, 2, dtype=torch.float64)

    def total(factor, image, linear, shift):
        warped = affine_warp(image[None], factor * linear[None], shift[None])
        return torch.sin(warped).sum()

    slope = torch.func.vmap(torch.func.grad(total), in_dims=(None, 0, 0, 0))
    together = torch.func.vmap(slope, in_dims=(0, None, None, None))(factors, images, linear, shift)
    for k, n in itertools.product(range(2), range(5)):
        factor = factors[k].clone().requires_grad_()
        (alone,) = torch.autograd.grad(total(factor, images[n], linear[n], shift[n]), factor)
        torch.testing.assert_close(together[k, n], alone)


def test_an_exported_program_takes_any_batch():
    class Warp(torch.nn.Module):
        def forward(self, images, linear, shift):
            return affine_warp(images, linear, shift)

    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Warp(), cases(), dynamic_shapes=[{0: batch}] * 3)
    larger = cases(batch=9)
    torch.testing.assert_close(program.module()(*larger), affine_warp(*larger))


# --- layout, type, device -----------------------------------------------------------------


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
