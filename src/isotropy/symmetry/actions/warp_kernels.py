"""Kernels that resample images under affine maps without a grid in memory, in Triton.

    copy[n, s](p) = image[n](linear[n, s] p + shift[n, s])       p: centres of the pixels

A position is three multiplications away from its pixel and cheaper to work out than to read. A
program takes a tile of one copy, rows of up to 32 neighbouring pixels, and goes through the
channels; it loads the six numbers of the map once.
Positions are in pixels from the image's middle: those of the identity are exact, and there the
straight lines' slope is the one to the right and below.

Three kernels: the copies; their tangent along tangents of the maps (slopes · motion of the
position); the gradient to the maps, which sums for each copy

    Σ cotangent · slope · (x, y, 1)       six numbers, per tile and then over tiles: no atomics,
                                          the same sum in every run

The rules beyond the border and the cubic (a = −3/4) are torch's `grid_sampler_2d`. Half precision
is read and written as it is, and worked on in single precision.

Images are (batch, channels, height, width), maps (batch, samples, 2, 2) and (batch, samples, 2),
copies (batch, samples, channels, height, width), all of one type and on one device; `warp_triton`
makes them differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotropy.kernels.fused import launch
from isotropy.symmetry.actions.warp import GridInterpolation, GridPadding

_PADDINGS: dict[str, int] = {"zeros": 0, "border": 1, "reflection": 2}
# Pixels in a tile: sixteen taps each take more registers than four.
_TILE = {"bilinear": 1024, "bicubic": 256}
_ROW = 32


@dataclass(frozen=True)
class Sampling:
    """How images are read: what `warp.affine_warp` takes by these names."""

    interpolation: GridInterpolation
    padding: GridPadding
    align_corners: bool


def warp_copies(images: Tensor, linear: Tensor, shift: Tensor, sampling: Sampling) -> Tensor:
    """The copies, contiguous."""
    copies = images.new_empty(*linear.shape[:2], *images.shape[1:])
    _run(_warp_kernel, sampling, images, linear, shift, copies)
    return copies


def warp_tangent(
    images: Tensor,
    linear: Tensor,
    shift: Tensor,
    linear_dot: Tensor,
    shift_dot: Tensor,
    sampling: Sampling,
) -> Tensor:
    """How the copies change as their maps do: slopes · (linear_dot p + shift_dot), like copies."""
    tangent = images.new_empty(*linear.shape[:2], *images.shape[1:])
    _run(_tangent_kernel, sampling, images, linear, shift, linear_dot, shift_dot, tangent)
    return tangent


def warp_gradient(
    cotangent: Tensor, images: Tensor, linear: Tensor, shift: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """The gradient of Σ cotangent · copies by the maps: like linear, like shift."""
    tiles = _plan(images.shape, images.dtype, linear.shape[1], sampling).tiles
    dtype = torch.promote_types(images.dtype, torch.float32)
    sums = images.new_empty(*linear.shape[:2], tiles, 6, dtype=dtype)
    if not images.shape[1]:
        sums = sums.zero_()
    _run(_gradient_kernel, sampling, images, linear, shift, cotangent, sums)
    sums = (sums[:, :, 0] if tiles == 1 else sums.sum(2)).to(linear.dtype)
    return sums[..., :4].unflatten(-1, (2, 2)), sums[..., 4:]


@dataclass(frozen=True)
class _Plan:
    """How the kernels run over copies of one size: in which tiles, with which numbers."""

    programs: int
    tiles: int
    sizes: tuple[int, ...]
    constants: dict[str, Any]


def _run(kernel: Any, sampling: Sampling, images: Tensor, *others: Tensor) -> None:
    """Run a kernel on tensors of which the first two are the images and the linear maps."""
    plan = _plan(images.shape, images.dtype, others[0].shape[1], sampling)
    tensors = (each.contiguous() for each in (images, *others))
    launch(kernel, plan.programs, *tensors, *plan.sizes, **plan.constants)


@lru_cache(maxsize=256)
def _plan(shape: torch.Size, dtype: torch.dtype, samples: int, sampling: Sampling) -> _Plan:
    batch, channels, height, width = shape
    row = min(_ROW, triton.next_power_of_2(max(width, 1)))
    rows = min(_TILE[sampling.interpolation] // row, triton.next_power_of_2(max(height, 1)))
    tiles_across = -(-width // row)
    tiles = tiles_across * -(-height // rows)
    return _Plan(
        programs=batch * samples * tiles if channels else 0,
        tiles=tiles,
        sizes=(samples, channels, height, width, tiles, tiles_across),
        constants={
            "ROWS": rows,
            "ROW": row,
            "TAPS": 2 if sampling.interpolation == "bilinear" else 4,
            "PADDING": _PADDINGS[sampling.padding],
            "CORNERS": sampling.align_corners,
            "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32,
            # With several channels what does not depend on them stays in registers meanwhile.
            "num_warps": 4 if channels == 1 else 8,
        },
    )


# --- kernels ------------------------------------------------------------------------------
# A size that is 1 reaches a kernel as a constant: sizes are used in arithmetic alone.


@triton.jit
def _tile_of(
    samples: tl.tensor, height: tl.tensor, width: tl.tensor,
    tiles: tl.tensor, tiles_across: tl.tensor,
    ROWS: tl.constexpr, ROW: tl.constexpr, DTYPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The copy of this program and its image, and of its tile (ROWS, ROW) the pixels' places in a
    channel, which of them exist, and x (1, ROW) and y (ROWS, 1) in pixels from the middle."""
    program = tl.program_id(0)
    copy = program // tiles
    tile = program % tiles
    rows = ((tile // tiles_across) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = ((tile % tiles_across) * ROW + tl.arange(0, ROW))[None, :]
    inside = (rows < height) & (columns < width)
    x = columns.to(DTYPE) - (width - 1) * 0.5
    y = rows.to(DTYPE) - (height - 1) * 0.5
    # Divisions are long in 64 bits, and addresses too large for 32.
    image = (copy // samples).to(tl.int64)
    return copy.to(tl.int64), image, rows * width + columns, inside, x, y


@triton.jit
def _moves(length: tl.tensor, CORNERS: tl.constexpr) -> tl.tensor:
    """1, but 0 along an axis of one pixel whose centre is both of its corners: as torch's grid."""
    return tl.minimum(length - 1, 1) * 1.0 if CORNERS else 1.0


@triton.jit
def _unit(width: tl.tensor, CORNERS: tl.constexpr) -> tl.tensor:
    """`warp.half_extent` of the width."""
    return tl.maximum((width - 1) * 0.5, 0.5) if CORNERS else width * 0.5


@triton.jit
def _moved(
    linear: tl.tensor, shift: tl.tensor, copy: tl.tensor, x: tl.tensor, y: tl.tensor,
    height: tl.tensor, width: tl.tensor, CORNERS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """linear (x, y) + shift in pixels from the middle, as x and y; in the type of x."""
    unit = _unit(width, CORNERS)
    x_moves = _moves(width, CORNERS)
    y_moves = _moves(height, CORNERS)
    xx = tl.load(linear + 4 * copy).to(x.dtype) * x_moves
    xy = tl.load(linear + 4 * copy + 1).to(x.dtype) * x_moves
    yx = tl.load(linear + 4 * copy + 2).to(x.dtype) * y_moves
    yy = tl.load(linear + 4 * copy + 3).to(x.dtype) * y_moves
    right = tl.load(shift + 2 * copy).to(x.dtype) * (x_moves * unit)
    down = tl.load(shift + 2 * copy + 1).to(x.dtype) * (y_moves * unit)
    return xx * x + (xy * y + right), yx * x + (yy * y + down)


@triton.jit
def _padded(
    position: tl.tensor, last: tl.tensor, PADDING: tl.constexpr, CORNERS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Where a position is read along an axis that ends at `last`, and the slope of that.

    The slope is 1, 0 where clipped (also right at the ends), −1 where mirrored.
    """
    slope = tl.full(position.shape, 1.0, position.dtype)
    if PADDING == 2:
        # Mirrored about the outer pixels' centres, or about their edges. One pixel mirrored about
        # its centre is clipped below whatever comes out here.
        low = 0.0 if CORNERS else -0.5
        span = tl.maximum(last, 1.0) if CORNERS else last + 1.0
        away = tl.abs(position - low)
        turns = tl.floor(away / span)
        rest = away - turns * span
        is_odd = turns - 2.0 * tl.floor(turns * 0.5) > 0.5
        slope = tl.where((position < low) != is_odd, -slope, slope)
        position = tl.where(is_odd, span - rest, rest) + low
    if PADDING != 0:
        slope = tl.where((position > 0.0) & (position < last), slope, 0.0)
        position = tl.minimum(tl.maximum(position, 0.0), last)
    return position, slope


@triton.jit
def _weight(share: tl.tensor, TAP: tl.constexpr, TAPS: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The weight of a tap at `share` of the way from one pixel to the next, and its slope.

    Of two taps the hat; of four the cubic with a = −3/4, in the distance from the tap.
    """
    if TAPS == 2:
        slope = tl.full(share.shape, 1.0, share.dtype)
        weight = share
        if TAP == 0:
            slope = -slope
            weight = 1.0 - share
    else:
        distance = share + 1.0 - TAP if TAP < 2 else TAP - 1.0 - share
        if TAP % 3 == 0:
            weight = ((-0.75 * distance + 3.75) * distance - 6.0) * distance + 3.0
            slope = (-2.25 * distance + 7.5) * distance - 6.0
        else:
            weight = (1.25 * distance - 2.25) * distance * distance + 1.0
            slope = (3.75 * distance - 4.5) * distance
        if TAP >= 2:
            slope = -slope
    return weight, slope


@triton.jit
def _tap(
    first: tl.tensor, TAP: tl.constexpr, length: tl.tensor, DTYPE: tl.constexpr,
    TAPS: tl.constexpr, PADDING: tl.constexpr, CORNERS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """How far a tap is from the first along an axis, and whether it is in the image.

    One that is padded by itself may be very far from the first: from the axis' beginning instead.
    """
    index = first + TAP
    steps = TAP
    if TAPS == 4 and PADDING != 0:
        padded, _slope = _padded(index.to(DTYPE), (length - 1) * 1.0, PADDING, CORNERS)
        index = padded.to(tl.int32)
        steps = index
    # What is negative is large without its sign.
    return steps, index.to(tl.uint32, bitcast=True) < length


@triton.jit
def _read(
    image: tl.tensor, x: tl.tensor, y: tl.tensor, inside: tl.tensor,
    height: tl.tensor, width: tl.tensor,
    TAPS: tl.constexpr, PADDING: tl.constexpr, CORNERS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The interpolant at (x, y) in pixels from the middle, and its slopes along x and y.

    What is not used of the three is not computed. As in torch, two taps are those about the
    padded position, while of four each is padded by itself.
    """
    x += (width - 1) * 0.5
    y += (height - 1) * 0.5
    x_slope = tl.full(x.shape, 1.0, x.dtype)
    y_slope = tl.full(y.shape, 1.0, y.dtype)
    if TAPS == 2:
        x, x_slope = _padded(x, (width - 1) * 1.0, PADDING, CORNERS)
        y, y_slope = _padded(y, (height - 1) * 1.0, PADDING, CORNERS)
    # A place infinite, NaN or too far for its number of pixels is read outside, as torch does.
    x_read = tl.where(tl.abs(x) < 1e9, x, -100.0)
    y_read = tl.where(tl.abs(y) < 1e9, y, -100.0)
    left = tl.floor(x_read)
    top = tl.floor(y_read)
    x_share = (x_read if TAPS == 2 else x) - left
    y_share = (y_read if TAPS == 2 else y) - top
    # Converting numbers is slow: once for all taps.
    first_column = left.to(tl.int32) - (TAPS // 2 - 1)
    first_row = top.to(tl.int32) - (TAPS // 2 - 1)
    start = image
    if TAPS == 2 or PADDING == 0:
        start = image + (first_row * width + first_column)
    value = tl.zeros_like(x)
    along = tl.zeros_like(x)
    down = tl.zeros_like(x)
    for i in tl.static_range(TAPS):
        rows, has_row = _tap(first_row, i, height, x.dtype, TAPS, PADDING, CORNERS)
        line = tl.zeros_like(x)
        line_slope = tl.zeros_like(x)
        for j in tl.static_range(TAPS):
            columns, has_column = _tap(first_column, j, width, x.dtype, TAPS, PADDING, CORNERS)
            here = inside & has_row & has_column
            pixel = tl.load(start + rows * width + columns, mask=here, other=0.0).to(x.dtype)
            x_weight, x_change = _weight(x_share, j, TAPS)
            line += x_weight * pixel
            line_slope += x_change * pixel
        y_weight, y_change = _weight(y_share, i, TAPS)
        value += y_weight * line
        along += y_weight * line_slope
        down += y_change * line
    return value, along * x_slope, down * y_slope


@triton.jit
def _warp_kernel(
    images: tl.tensor, linear: tl.tensor, shift: tl.tensor, copies: tl.tensor,
    samples: tl.tensor, channels: tl.tensor, height: tl.tensor, width: tl.tensor,
    tiles: tl.tensor, tiles_across: tl.tensor,
    ROWS: tl.constexpr, ROW: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr,
    CORNERS: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    copy, image, places, inside, x, y = _tile_of(
        samples, height, width, tiles, tiles_across, ROWS, ROW, DTYPE
    )
    x_moved, y_moved = _moved(linear, shift, copy, x, y, height, width, CORNERS)
    for channel in range(channels):
        source = images + (image * channels + channel) * height * width
        value, _along, _down = _read(
            source, x_moved, y_moved, inside, height, width, TAPS, PADDING, CORNERS
        )
        target = copies + (copy * channels + channel) * height * width
        tl.store(target + places, value.to(copies.dtype.element_ty), mask=inside)


@triton.jit
def _tangent_kernel(
    images: tl.tensor, linear: tl.tensor, shift: tl.tensor,
    linear_dot: tl.tensor, shift_dot: tl.tensor, tangents: tl.tensor,
    samples: tl.tensor, channels: tl.tensor, height: tl.tensor, width: tl.tensor,
    tiles: tl.tensor, tiles_across: tl.tensor,
    ROWS: tl.constexpr, ROW: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr,
    CORNERS: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    copy, image, places, inside, x, y = _tile_of(
        samples, height, width, tiles, tiles_across, ROWS, ROW, DTYPE
    )
    x_moved, y_moved = _moved(linear, shift, copy, x, y, height, width, CORNERS)
    x_dot, y_dot = _moved(linear_dot, shift_dot, copy, x, y, height, width, CORNERS)
    for channel in range(channels):
        source = images + (image * channels + channel) * height * width
        _value, along, down = _read(
            source, x_moved, y_moved, inside, height, width, TAPS, PADDING, CORNERS
        )
        tangent = along * x_dot + down * y_dot
        target = tangents + (copy * channels + channel) * height * width
        tl.store(target + places, tangent.to(tangents.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_kernel(
    images: tl.tensor, linear: tl.tensor, shift: tl.tensor, cotangents: tl.tensor, sums: tl.tensor,
    samples: tl.tensor, channels: tl.tensor, height: tl.tensor, width: tl.tensor,
    tiles: tl.tensor, tiles_across: tl.tensor,
    ROWS: tl.constexpr, ROW: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr,
    CORNERS: tl.constexpr, DTYPE: tl.constexpr,
) -> None:  # fmt: skip
    copy, image, places, inside, x, y = _tile_of(
        samples, height, width, tiles, tiles_across, ROWS, ROW, DTYPE
    )
    x_moved, y_moved = _moved(linear, shift, copy, x, y, height, width, CORNERS)
    to_x = tl.zeros_like(x_moved)
    to_y = tl.zeros_like(y_moved)
    for channel in range(channels):
        source = images + (image * channels + channel) * height * width
        _value, along, down = _read(
            source, x_moved, y_moved, inside, height, width, TAPS, PADDING, CORNERS
        )
        given = cotangents + (copy * channels + channel) * height * width
        cotangent = tl.load(given + places, mask=inside, other=0.0).to(DTYPE)
        to_x += cotangent * along
        to_y += cotangent * down
    to_x *= _moves(width, CORNERS)
    to_y *= _moves(height, CORNERS)
    unit = _unit(width, CORNERS)
    # Columns first: their sums are what both x and 1 are multiplied with.
    x_columns = tl.sum(to_x, axis=0)[None, :]
    y_columns = tl.sum(to_y, axis=0)[None, :]
    target = sums + 6 * tl.program_id(0).to(tl.int64)
    tl.store(target, tl.sum(tl.sum(x_columns * x, axis=1), axis=0))
    tl.store(target + 1, tl.sum(tl.sum(to_x * y, axis=1), axis=0))
    tl.store(target + 2, tl.sum(tl.sum(y_columns * x, axis=1), axis=0))
    tl.store(target + 3, tl.sum(tl.sum(to_y * y, axis=1), axis=0))
    tl.store(target + 4, tl.sum(tl.sum(x_columns, axis=1), axis=0) * unit)
    tl.store(target + 5, tl.sum(tl.sum(y_columns, axis=1), axis=0) * unit)
