"""Resampling images under affine maps of the plane, differentiable in reverse and forward mode.

    output(p) = image(T p)          p runs over the pixel centres of the output

Coordinates are *isotropic*: x to the right, y down, the origin at the image's centre and
one unit half the image's width in both directions, so that a rotation matrix rotates
pixels also when the image is not square. With `align_corners=True` (the papers') half a
width reaches the centre of the last pixel, (W − 1)/2 pixels; with False its edge, W/2.

torch's `grid_sample` has no forward-mode derivative. Ours wraps its value and gradient and adds
the tangent: an output pixel depends on the grid only through its own position (x, y), so that

    tangent = ∂value/∂x · ẋ + ∂value/∂y · ẏ + (the warp of the images' tangent)

with the slopes from torch's own backward pass; forward and reverse mode then agree also at the
pixel centres, where a bilinear interpolant has a kink. Reverse over forward needs torch 2.12;
forward over forward is not to be had, torch drops the outer tangent there without an error.

"fourier" reads the image as a periodic function instead (`fourier_warp`), in plain operations.

On a CPU the copies come in chunks that share one grid (`warp_cpu`), on a GPU from one Triton kernel
without a grid in memory (`warp_triton`; `fused` says when). What this file computes itself is the
reference for both, and what there is everywhere else.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_axes, check_choice, shape_text
from isotropy.fused import fused_module, is_plain
from isotropy.symmetry.fourier_warp import fourier_sample
from isotropy.symmetry.warp_cpu import chunked_warp, pull_back

GridInterpolation = Literal["bilinear", "bicubic"]
Interpolation = Literal["bilinear", "bicubic", "fourier"]
GridPadding = Literal["zeros", "border", "reflection"]
Padding = Literal["zeros", "border", "reflection", "mean"]

_MODES: dict[str, int] = {"bilinear": 0, "bicubic": 2}
_PADDINGS: dict[str, int] = {"zeros": 0, "border": 1, "reflection": 2}
INTERPOLATIONS = (*_MODES, "fourier")
GRID_PADDINGS = tuple(_PADDINGS)
PADDINGS = (*GRID_PADDINGS, "mean")
""""mean" is zeros about a colour, which `image_actions` takes off and puts back."""


def affine_warp(
    images: Tensor,
    linear: Tensor,
    shift: Tensor,
    *,
    interpolation: Interpolation = "bilinear",
    padding: GridPadding = "zeros",
    align_corners: bool = True,
) -> Tensor:
    """Resample each image under several affine maps T p = linear p + shift.

    images (batch, channels, height, width); linear (batch, samples, 2, 2) and
    shift (batch, samples, 2) in isotropic coordinates.
    Returns (batch, samples, channels, height, width).

    interpolation: "fourier" is periodic in the image's height and width, and uses no padding
    """
    check_axes(
        images,
        ("batch", "channels", "height", "width"),
        what="images",
        advice="add a channel axis with x[:, None]",
    )
    check_choice(interpolation, INTERPOLATIONS, what="interpolation")
    check_choice(padding, GRID_PADDINGS, what="padding")
    batch, channels, height, width = images.shape
    if linear.shape[:1] + linear.shape[2:] != (batch, 2, 2):
        raise CallerError(
            f"linear: expected (batch, samples, 2, 2) with batch = {batch}, got "
            f"{shape_text(linear)}"
        )
    samples = linear.shape[1]
    if shift.shape != (batch, samples, 2):
        raise CallerError(
            f"shift: expected (batch, samples, 2) = ({batch}, {samples}, 2), got "
            f"{shape_text(shift)}"
        )
    # An exported program has a batch of any size, and does not come in chunks.
    if images.device.type == "cpu" and interpolation != "fourier" and not is_plain():
        unit = half_extent(width, align_corners)
        centres = (pixel_centres(width, unit, linear), pixel_centres(height, unit, linear))
        aspect = unit / half_extent(height, align_corners)
        sampler = (_MODES[interpolation], _PADDINGS[padding], align_corners)
        return chunked_warp(images, linear, shift, centres, aspect, sampler)
    if interpolation == "fourier":
        grid = _sampling_grid(linear, shift, height, width, align_corners)
        columns, rows = (
            place.flatten(1) * half_extent(length, align_corners) + (length - 1) / 2
            for place, length in zip(grid.unbind(-1), (width, height), strict=True)
        )
        read = fourier_sample(images, columns, rows)
        return read.reshape(batch, channels, samples, height, width).transpose(1, 2)
    fused = fused_module("isotropy.symmetry.warp_triton", images, linear, shift)
    warp = reference_warp if fused is None else fused.fused_warp
    result: Tensor = warp(
        images,
        linear,
        shift,
        interpolation=interpolation,
        padding=padding,
        align_corners=align_corners,
    )
    return result


def reference_warp(
    images: Tensor,
    linear: Tensor,
    shift: Tensor,
    *,
    interpolation: GridInterpolation,
    padding: GridPadding,
    align_corners: bool,
) -> Tensor:
    """`affine_warp` by torch's `grid_sampler_2d`, on any device; shapes are not checked."""
    batch, channels, height, width = images.shape
    samples = linear.shape[1]
    warped = grid_sample(
        images,
        _tall_grid(images, linear, shift, align_corners),
        interpolation=interpolation,
        padding=padding,
        align_corners=align_corners,
    )
    return warped.reshape(batch, channels, samples, height, width).transpose(1, 2)


def reference_images_gradient(
    cotangent: Tensor,
    images: Tensor,
    linear: Tensor,
    shift: Tensor,
    *,
    interpolation: GridInterpolation,
    padding: GridPadding,
    align_corners: bool,
) -> Tensor:
    """The gradient of Σ cotangent · `reference_warp` by the images, like them."""
    grid = _tall_grid(images, linear, shift, align_corners)
    tall = cotangent.transpose(1, 2).flatten(2, 3)  # (batch, channels, samples·height, width)
    options = [_MODES[interpolation], _PADDINGS[padding], align_corners]
    return pull_back(tall, images, grid, options, [True, False])[0]


def _tall_grid(images: Tensor, linear: Tensor, shift: Tensor, align_corners: bool) -> Tensor:
    """All samples of one image in one grid: the image is read where it lies, not copied."""
    height, width = images.shape[2:]
    return _sampling_grid(linear, shift, height, width, align_corners).flatten(1, 2)


def pixel_centres(length: int, unit: float, like: Tensor) -> Tensor:
    """Centres of `length` pixels about the middle, in multiples of `unit` pixels."""
    index = torch.arange(length, device=like.device, dtype=like.dtype)
    return (index - (length - 1) / 2) / unit


def half_extent(length: int, align_corners: bool) -> float:
    """Pixels from the image's middle to where the normalised coordinate is one."""
    return max((length - 1) / 2, 0.5) if align_corners else length / 2


def _sampling_grid(
    linear: Tensor, shift: Tensor, height: int, width: int, align_corners: bool
) -> Tensor:
    """Where each output pixel reads, in grid_sample's coordinates: (batch, samples, H, W, 2)."""
    unit = half_extent(width, align_corners)
    x = pixel_centres(width, unit, linear)
    y = pixel_centres(height, unit, linear)
    # Isotropic y becomes grid_sample's y, whose unit is half the image's height.
    aspect = unit / half_extent(height, align_corners)
    scale = torch.tensor([1.0, aspect], device=linear.device, dtype=linear.dtype)
    linear = linear * scale[:, None]
    along_rows = linear[..., 0, None] * x  # (batch, samples, 2, width)
    along_columns = linear[..., 1, None] * y + (shift * scale)[..., None]
    grid = along_columns[..., :, None] + along_rows[..., None, :]  # (batch, samples, 2, H, W)
    return grid.movedim(2, -1)


def grid_sample(
    images: Tensor,
    grid: Tensor,
    *,
    interpolation: GridInterpolation = "bilinear",
    padding: GridPadding = "zeros",
    align_corners: bool = True,
) -> Tensor:
    """`torch.nn.functional.grid_sample` with a forward-mode derivative.

    images (batch, channels, height, width), grid (batch, rows, columns, 2) in [−1, 1].
    """
    options = (_MODES[interpolation], _PADDINGS[padding], align_corners)
    result: Tensor = _GridSample.apply(images, grid, *options)
    return result


class _GridSample(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
        return torch.grid_sampler_2d(images, grid, mode, padding, corners)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, grid, *ctx.options = inputs
        ctx.save_for_backward(images, grid)
        ctx.save_for_forward(images, grid)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        images, grid = ctx.saved_tensors
        needed = list(ctx.needs_input_grad[:2])
        to_images, to_grid = pull_back(cotangent, images, grid, ctx.options, needed)
        return (to_images if needed[0] else None, to_grid if needed[1] else None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, images_dot: Tensor | None, grid_dot: Tensor | None, *_: Any) -> Tensor:
        images, grid = ctx.saved_tensors
        tangent = torch.zeros((), device=images.device, dtype=images.dtype)
        if grid_dot is not None:
            batch, channels = images.shape[:2]
            # The value at a pixel depends on that pixel's position alone, so one backward pass of
            # ones gives all slopes (batch·channels, rows, columns, 2); channels must not mix.
            single = images.flatten(0, 1)[:, None]
            repeated = grid[:, None].expand(-1, channels, -1, -1, -1).flatten(0, 1)
            ones = torch.ones_like(repeated[..., 0])[:, None]
            slopes = pull_back(ones, single, repeated, ctx.options, [False, True])[1]
            slopes = slopes.unflatten(0, (batch, channels))
            tangent = tangent + (slopes * grid_dot[:, None]).sum(-1)
        if images_dot is not None:
            tangent = tangent + torch.grid_sampler_2d(images_dot, grid, *ctx.options)
        return tangent
