"""Resampling images under affine maps of the plane, differentiable in every mode.

    output(p) = image(T p)          p runs over the pixel centres of the output

Coordinates are *isotropic*: x to the right, y down, the origin at the image's centre and
one unit half the image's width in both directions, so that a rotation matrix rotates
pixels also when the image is not square. With `align_corners=True` (the papers') half a
width reaches the centre of the last pixel, (W − 1)/2 pixels; with False its edge, W/2.

torch's `grid_sample` has no forward-mode derivative. Ours wraps its value and gradient
and adds the tangent by hand from the interpolation taps: per axis, an interpolant is a
few neighbouring pixels i with weights w_i(t), so that

    value   = Σ_ij w_i(y) w_j(x) I_ij
    tangent = Σ_ij (w_i′(y) ẏ w_j(x) + w_i(y) w_j′(x) ẋ) I_ij + Σ_ij w_i(y) w_j(x) İ_ij
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_axes, check_choice, shape_text

Interpolation = Literal["bilinear", "bicubic"]
Padding = Literal["zeros", "border", "reflection"]

_MODES: dict[str, int] = {"bilinear": 0, "bicubic": 2}
_PADDINGS: dict[str, int] = {"zeros": 0, "border": 1, "reflection": 2}
_BICUBIC_A = -0.75  # the constant of torch's own bicubic interpolant


def affine_warp(
    images: Tensor,
    linear: Tensor,
    shift: Tensor,
    *,
    interpolation: Interpolation = "bilinear",
    padding: Padding = "zeros",
    align_corners: bool = True,
) -> Tensor:
    """Resample each image under several affine maps T p = linear p + shift.

    images (batch, channels, height, width); linear (batch, samples, 2, 2) and
    shift (batch, samples, 2) in isotropic coordinates.
    Returns (batch, samples, channels, height, width).
    """
    check_axes(
        images,
        ("batch", "channels", "height", "width"),
        what="images",
        advice="add a channel axis with x[:, None]",
    )
    check_choice(interpolation, _MODES, what="interpolation")
    check_choice(padding, _PADDINGS, what="padding")
    batch, channels, height, width = images.shape
    if linear.shape[:1] + linear.shape[2:] != (batch, 2, 2):
        raise CallerError(
            f"linear: expected (batch, samples, 2, 2) with batch = {batch}, got "
            f"{shape_text(linear)}"
        )
    samples = linear.shape[1]
    grid = _sampling_grid(linear, shift, height, width, align_corners)
    # All samples of one image in one tall grid: the image is read where it lies, not copied.
    tall = grid.reshape(batch, samples * height, width, 2)
    warped = grid_sample(
        images, tall, interpolation=interpolation, padding=padding, align_corners=align_corners
    )
    return warped.reshape(batch, channels, samples, height, width).transpose(1, 2)


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
    interpolation: Interpolation = "bilinear",
    padding: Padding = "zeros",
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
        to_images, to_grid = torch.ops.aten.grid_sampler_2d_backward(
            cotangent, images, grid, *ctx.options, needed
        )
        return (to_images if needed[0] else None, to_grid if needed[1] else None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, images_dot: Tensor | None, grid_dot: Tensor | None, *_: Any) -> Tensor:
        images, grid = ctx.saved_tensors
        mode, padding, corners = ctx.options
        height, width = images.shape[2:]
        tangent = torch.zeros((), device=images.device, dtype=images.dtype)
        if grid_dot is not None:
            x_taps = _Taps(grid[..., 0], width, mode, padding, corners)
            y_taps = _Taps(grid[..., 1], height, mode, padding, corners)
            along_x = _gather(images, y_taps.weights, x_taps.slopes, y_taps, x_taps)
            along_y = _gather(images, y_taps.slopes, x_taps.weights, y_taps, x_taps)
            tangent = tangent + along_x * grid_dot[:, None, ..., 0]
            tangent = tangent + along_y * grid_dot[:, None, ..., 1]
        if images_dot is not None:
            tangent = tangent + torch.grid_sampler_2d(images_dot, grid, mode, padding, corners)
        return tangent


class _Taps:
    """Neighbouring pixels along one axis, their weights and the weights' derivatives.

    index, weights, slopes: (taps, batch, rows, columns); slopes are derivatives by the
    normalised coordinate. As in torch, a bilinear position is padded before its taps are
    found, a bicubic tap after, and outside a zero padding weights vanish.
    """

    def __init__(
        self, coordinate: Tensor, length: int, mode: int, padding: int, corners: bool
    ) -> None:
        per_unit = (length - 1) / 2 if corners else length / 2
        position, slope = coordinate * per_unit + (length - 1) / 2, per_unit
        bilinear = mode == _MODES["bilinear"]
        if bilinear:
            position, turn = _pad(position, length, padding, corners)
            slope = per_unit * turn
        first = torch.floor(position)
        t = position - first
        if bilinear:
            offsets: tuple[int, ...] = (0, 1)
            weights, slopes = [1 - t, t], [-torch.ones_like(t), torch.ones_like(t)]
        else:
            offsets = (-1, 0, 1, 2)
            weights = [_bicubic(t - offset)[0] for offset in offsets]
            slopes = [_bicubic(t - offset)[1] for offset in offsets]
        index = torch.stack([first + offset for offset in offsets])
        self.weights, self.slopes = torch.stack(weights), torch.stack(slopes) * slope
        if padding == _PADDINGS["zeros"]:
            inside = (index >= 0) & (index <= length - 1)
            self.weights, self.slopes = self.weights * inside, self.slopes * inside
        elif not bilinear:
            index, _ = _pad(index, length, padding, corners)
        self.index = index.clamp(0, length - 1).round().long()


def _pad(position: Tensor, length: int, padding: int, corners: bool) -> tuple[Tensor, Tensor]:
    """Bring positions back into the image; returns them with the sign of the map (0, ±1)."""
    turn = torch.ones_like(position)
    if padding == _PADDINGS["zeros"]:
        return position, turn
    if padding == _PADDINGS["reflection"]:
        low, high = (0.0, length - 1.0) if corners else (-0.5, length - 0.5)
        span = max(high - low, 1e-12)
        distance = (position - low).abs()
        folds = torch.floor(distance / span)
        remainder = distance - folds * span
        odd = folds % 2 == 1
        turn = torch.where(odd, -1.0, 1.0) * torch.where(position < low, -1.0, 1.0)
        position = low + torch.where(odd, span - remainder, remainder)
    inside = (position > 0) & (position < length - 1)
    return position.clamp(0, length - 1), turn * inside


def _bicubic(distance: Tensor) -> tuple[Tensor, Tensor]:
    """The cubic convolution kernel and its derivative at signed `distance` within [−2, 2]."""
    a = _BICUBIC_A
    x, sign = distance.abs(), distance.sign()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    near_slope = (3 * (a + 2) * x - 2 * (a + 3)) * x
    far_slope = (3 * a * x - 10 * a) * x + 8 * a
    inner = x <= 1
    return torch.where(inner, near, far), sign * torch.where(inner, near_slope, far_slope)


def _gather(
    images: Tensor, y_factors: Tensor, x_factors: Tensor, y_taps: _Taps, x_taps: _Taps
) -> Tensor:
    """Σ_ij y_factors_i x_factors_j I[y_i, x_j]: (batch, channels, rows, columns)."""
    batch, channels, _, width = images.shape
    flat = images.reshape(batch, channels, -1)
    rows, columns = y_factors.shape[2:]
    total = torch.zeros((batch, channels, rows, columns), device=images.device, dtype=images.dtype)
    for y_factor, y_index in zip(y_factors, y_taps.index, strict=True):
        for x_factor, x_index in zip(x_factors, x_taps.index, strict=True):
            index = (y_index * width + x_index).reshape(batch, 1, -1).expand(-1, channels, -1)
            pixel = flat.gather(2, index).reshape(batch, channels, rows, columns)
            total = total + (y_factor * x_factor)[:, None] * pixel
    return total
