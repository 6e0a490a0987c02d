"""The CPU's road through the warp: whatever the chunks, what torch's whole grid gives."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from oracles.affine_oracle import resample
from torch.nn import functional

from isotropy.kernels.fused import reference_path
from isotropy.symmetry.actions import warp as warp_cpu
from isotropy.symmetry.actions.warp import affine_warp

MODES = [
    {"interpolation": interpolation, "padding": padding, "align_corners": corners}
    for interpolation, padding, corners in itertools.product(
        ("bilinear", "bicubic"), ("zeros", "border", "reflection"), (True, False)
    )
]
every_mode = pytest.mark.parametrize(
    "options", MODES, ids=lambda m: ", ".join(map(str, m.values()))
)
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
        monkeypatch.setattr(warp_cpu, "_CHUNK", length * positions)

    return use


def gradients(warp, inputs, cotangent, **options):
    leaves = [each.clone().requires_grad_() for each in inputs]
    return torch.autograd.grad(warp(*leaves, **options), leaves, cotangent)


# --- values -------------------------------------------------------------------------------


@every_mode
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


@every_mode
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
    monkeypatch.setattr(warp_cpu, "_CHUNK", 3 * 3 * 6 * 7)
    _, linear, shift = cases()
    coefficients = torch.cat([linear, shift[..., None]], dim=-1).transpose(1, 2)
    chunks = warp_cpu._grids(coefficients, torch.zeros(7).double(), torch.zeros(6).double())
    assert [chunk for chunk, _ in chunks] == [slice(0, 2), slice(2, 4), slice(4, 5)]


@pytest.mark.parametrize("options", MODES[:1] + MODES[-1:], ids=["first", "last"])
def test_several_chunks_equal_the_oracle(options, in_chunks_of):
    in_chunks_of(2)
    images, linear, shift = cases()
    warped = affine_warp(images, linear, shift, **options)
    for n, s in itertools.product(range(5), range(3)):
        right = resample(images[n].numpy(), linear[n, s].numpy(), shift[n, s].numpy(), **options)
        torch.testing.assert_close(warped[n, s], torch.from_numpy(right), rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
def test_single_precision_at_the_size_of_use(channels):
    """28×28 pixels, 31 samples of each image, in several chunks of the size that is used."""
    images, linear, shift = cases(100, 31, channels, (28, 28), dtype=torch.float32)
    assert 2 * warp_cpu._CHUNK < 100 * 31 * 28 * 28
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


# --- derivatives --------------------------------------------------------------------------


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


def test_forward_and_reverse_mode_agree(in_chunks_of):
    in_chunks_of(2)
    inputs = cases()
    direction = tuple(torch.cos(each) for each in inputs)
    warped, tangent = torch.func.jvp(affine_warp, inputs, direction)
    cotangent = torch.sin(3 * warped)
    pulled = gradients(affine_warp, inputs, cotangent)
    reverse = sum((g * v).sum() for g, v in zip(pulled, direction, strict=True))
    torch.testing.assert_close((tangent * cotangent).sum(), reverse)


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
