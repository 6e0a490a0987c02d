"""Kernels for convolutions with few channels, in Triton: value and both gradients as products.

With few channels a convolution does little arithmetic on much memory, and what counts is how often
a pixel is fetched. One program takes POSITIONS places of the output, each a strip of STRIP rows in
one column, and multiplies two matrices that are never in memory:

    out[(map, t), place] = Σ_k  W[(map, t), k] · pixel[k, place]       k = (channel, r, j)
    W[(map, t), (channel, r, j)] = weight[map, channel, r − step·t, j], zero outside the kernel

A strip shares what its rows have in common: it reads step·(STRIP − 1) + kernel rows, where by
itself each would read as many as the kernel has. Neighbouring threads are neighbouring columns, and
what distinguishes the k is known as the program is compiled.

The gradient to the images is the same kernel, on the gradient with zeros between its pixels
(`SPREAD`, the stride) and with the kernel turned round. The gradient to the weight is the product
of the same pixels and the gradient over all places: each program adds up its share, and the shares
are added in a fixed order, so that there are no atomics and the same sum in every run.

`precision` is how float32 is multiplied: as it is ("ieee"), in TF32 ("rounded" to it, or "tf32",
cut off to it) or in three products of TF32 ("tf32x3"); float64 is as it is. Images are (batch,
channels, height, width), weights (maps, channels, rows, columns). `small_convolutions` makes them
differentiable.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotropy.kernels.fused import launch
from isotropy.kernels.small_convolutions import (
    Geometry,
    Pair,
    Tiles,
    output_size,
    value_plan,
    weight_plan,
)


def convolve(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    *,
    precision: str = "ieee",
    tiles: Tiles | None = None,
) -> Tensor:
    """The convolution of images (n, channels, h, w): (n, maps, h', w')."""
    size, kernel = _space(images), _space(weight)
    to = output_size(size, kernel, stride, padding)
    geometry = Geometry(size, to, kernel, stride, (1, 1), padding)
    return _convolved(images, weight, bias, geometry, False, precision, tiles)


def convolve_to_images(
    gradient: Tensor,
    weight: Tensor,
    images_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    *,
    precision: str = "ieee",
    tiles: Tiles | None = None,
) -> Tensor:
    """The gradient to the images, from the one to the output (n, maps, h', w')."""
    kernel, to = _space(weight), (images_shape[2], images_shape[3])
    margins = kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1]
    geometry = Geometry(_space(gradient), to, kernel, (1, 1), stride, margins)
    return _convolved(gradient, weight, None, geometry, True, precision, tiles)


def convolve_to_weight(
    images: Tensor,
    gradient: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    *,
    precision: str = "ieee",
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients to weight (maps, channels, *kernel) and bias (maps,)."""
    channels, maps = images.shape[1], gradient.shape[1]
    geometry = Geometry(_space(images), _space(gradient), kernel, stride, (1, 1), padding)
    exact = images.dtype == torch.float64
    plan = weight_plan(
        geometry, len(images), channels, maps, "double" if exact else precision, tiles
    )
    shares = images.new_empty(plan.programs, plan.rows, plan.columns)
    bias_shares = images.new_empty(plan.programs, plan.columns)
    launch(
        _weight_kernel, plan.programs, images.contiguous(), gradient.contiguous(),
        shares, bias_shares, len(images), plan.steps, **plan.constants,
    )  # fmt: skip
    strip, reach = plan.strip, geometry.reach(plan.strip)
    sums = shares.sum(0)[: channels * reach * kernel[1], : maps * strip]
    sums = sums.reshape(channels, reach, kernel[1], maps, strip)
    # The row i of the kernel met the row t of a strip at i + step·t.
    starts = range(0, strip * stride[0], stride[0])
    found = sum(sums[:, at : at + kernel[0], :, :, t] for t, at in enumerate(starts))
    assert isinstance(found, Tensor)
    bias = bias_shares.sum(0)[: maps * strip].reshape(maps, strip).sum(1)
    return found.permute(3, 0, 1, 2).contiguous(), bias


def _space(tensor: Tensor) -> Pair:
    return tensor.shape[2], tensor.shape[3]


def _convolved(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    is_back: bool,
    precision: str,
    tiles: Tiles | None,
) -> Tensor:
    """The convolution by `weight`, or by its transpose turned round."""
    count, channels = source.shape[:2]
    maps = weight.shape[1 if is_back else 0]
    precision = "double" if source.dtype == torch.float64 else precision
    plan = value_plan(geometry, count, channels, maps, precision, tiles)
    target = source.new_empty(count, maps, *geometry.to)
    launch(
        _convolve_kernel, plan.programs, source.contiguous(), weight.contiguous(),
        weight if bias is None else bias.contiguous(), target, count,
        BACK=is_back, HAS_BIAS=bias is not None, **plan.constants,
    )  # fmt: skip
    return target


# --- kernels ------------------------------------------------------------------------------
# All sizes but the number of images are constants: a network has few, and divisions are by them.


@triton.jit
def _nearest(values: tl.tensor) -> tl.tensor:
    """The nearest numbers of 11 bits; matrix units cut off, which makes all products too small."""
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r, r", [values], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _product(
    left: tl.tensor, right: tl.tensor, total: tl.tensor, PRECISION: tl.constexpr
) -> tl.tensor:
    """total + left · right."""
    if PRECISION == "double":
        total += tl.sum(left[:, :, None] * right[None, :, :], axis=1)
    elif PRECISION == "rounded":
        total = tl.dot(_nearest(left), _nearest(right), total, input_precision="tf32")
    else:
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


@triton.jit
def _place(
    places: tl.tensor, TO_WIDTH: tl.constexpr, STRIPS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Image, strip and column of places, that are counted by column, strip and image."""
    image = places // (STRIPS * TO_WIDTH)
    rest = places % (STRIPS * TO_WIDTH)
    # Images may lie further apart than 32 bits count.
    return image.to(tl.int64), rest // TO_WIDTH, rest % TO_WIDTH


@triton.jit
def _pixels(
    source: tl.tensor, image: tl.tensor, strip: tl.tensor, column: tl.tensor, k: tl.tensor,
    GROUP: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    REACH: tl.constexpr, KERNEL_COLUMNS: tl.constexpr, STRIP: tl.constexpr, STEP: tl.constexpr,
    STEP_ACROSS: tl.constexpr, SPREAD: tl.constexpr, SPREAD_ACROSS: tl.constexpr,
    PADDING: tl.constexpr, PADDING_ACROSS: tl.constexpr, CHECKED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """pixel[k, place] of the source with its margins and what is between its pixels: zeros."""
    channel = (k // (REACH * KERNEL_COLUMNS))[:, None]
    down = ((k // KERNEL_COLUMNS) % REACH)[:, None]
    across = (k % KERNEL_COLUMNS)[:, None]
    top = (strip * (STRIP * STEP) - PADDING)[None, :]
    left = (column * STEP_ACROSS - PADDING_ACROSS)[None, :]
    first = source + (image * (CHANNELS * HEIGHT * WIDTH))[None, :]
    here = (k < GROUP * REACH * KERNEL_COLUMNS)[:, None]
    if SPREAD == 1 and SPREAD_ACROSS == 1:
        # A pointer to each place and a constant for each k.
        first = first + (top * WIDTH + left)
        offset = channel * (HEIGHT * WIDTH) + down * WIDTH + across
        if CHECKED:
            # What is negative is large without its sign.
            here = here & ((top + down).to(tl.uint32, bitcast=True) < HEIGHT)
            here = here & ((left + across).to(tl.uint32, bitcast=True) < WIDTH)
    else:
        row = top + down
        place = left + across
        here = here & (row >= 0) & (row < HEIGHT * SPREAD) & (row % SPREAD == 0)
        here = here & (place >= 0) & (place < WIDTH * SPREAD_ACROSS) & (place % SPREAD_ACROSS == 0)
        offset = channel * (HEIGHT * WIDTH) + (row // SPREAD) * WIDTH + place // SPREAD_ACROSS
    return tl.load(first + offset, mask=here, other=0.0)


@triton.jit
def _convolve_kernel(
    source: tl.tensor, weight: tl.tensor, bias: tl.tensor, target: tl.tensor, count: tl.tensor,
    BACK: tl.constexpr, HAS_BIAS: tl.constexpr,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    MAPS: tl.constexpr, TO_HEIGHT: tl.constexpr, TO_WIDTH: tl.constexpr,
    KERNEL_ROWS: tl.constexpr, KERNEL_COLUMNS: tl.constexpr,
    STEP: tl.constexpr, STEP_ACROSS: tl.constexpr,
    SPREAD: tl.constexpr, SPREAD_ACROSS: tl.constexpr,
    PADDING: tl.constexpr, PADDING_ACROSS: tl.constexpr,
    STRIP: tl.constexpr, STRIPS: tl.constexpr, REACH: tl.constexpr, CHECKED: tl.constexpr,
    ROWS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, POSITIONS: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    places = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    inside = places < count * (STRIPS * TO_WIDTH)
    # A place beyond the last is read like the last, and not written.
    places = tl.minimum(places, count * (STRIPS * TO_WIDTH) - 1)
    image, strip, column = _place(places, TO_WIDTH, STRIPS)
    rows = tl.arange(0, ROWS)
    map_ = (rows // STRIP)[:, None]
    line = (rows % STRIP)[:, None]
    total = tl.zeros((ROWS, POSITIONS), target.dtype.element_ty)
    for group in range(GROUPS):
        channels = source + group * (GROUP * HEIGHT * WIDTH)
        for chunk in tl.static_range(CHUNKS):
            k = chunk * CHUNK + tl.arange(0, CHUNK)
            channel = (group * GROUP + k // (REACH * KERNEL_COLUMNS))[None, :]
            i = ((k // KERNEL_COLUMNS) % REACH)[None, :] - line * STEP
            j = (k % KERNEL_COLUMNS)[None, :]
            used = (k < GROUP * REACH * KERNEL_COLUMNS)[None, :] & (map_ < MAPS)
            used = used & (i >= 0) & (i < KERNEL_ROWS)
            entry = (map_ * CHANNELS + channel) * (KERNEL_ROWS * KERNEL_COLUMNS)
            entry += i * KERNEL_COLUMNS + j
            if BACK:
                entry = (channel * MAPS + map_ + 1) * (KERNEL_ROWS * KERNEL_COLUMNS) - 1
                entry -= i * KERNEL_COLUMNS + j
            weights = tl.load(weight + entry, mask=used, other=0.0)
            pixels = _pixels(
                channels, image, strip, column, k, GROUP, CHANNELS, HEIGHT, WIDTH, REACH,
                KERNEL_COLUMNS, STRIP, STEP, STEP_ACROSS, SPREAD, SPREAD_ACROSS,
                PADDING, PADDING_ACROSS, CHECKED,
            )  # fmt: skip
            total = _product(weights, pixels, total, PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + map_, mask=map_ < MAPS, other=0.0)
    row = strip[None, :] * STRIP + line
    first = target + (image * (MAPS * TO_HEIGHT * TO_WIDTH))[None, :]
    offset = map_ * (TO_HEIGHT * TO_WIDTH) + row * TO_WIDTH + column[None, :]
    here = inside[None, :] & (map_ < MAPS) & (row < TO_HEIGHT)
    tl.store(first + offset, total, mask=here)


@triton.jit
def _weight_kernel(
    source: tl.tensor, gradient: tl.tensor, shares: tl.tensor, bias_shares: tl.tensor,
    count: tl.tensor, steps: tl.tensor,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    MAPS: tl.constexpr, TO_HEIGHT: tl.constexpr, TO_WIDTH: tl.constexpr,
    KERNEL_ROWS: tl.constexpr, KERNEL_COLUMNS: tl.constexpr,
    STEP: tl.constexpr, STEP_ACROSS: tl.constexpr,
    SPREAD: tl.constexpr, SPREAD_ACROSS: tl.constexpr,
    PADDING: tl.constexpr, PADDING_ACROSS: tl.constexpr,
    STRIP: tl.constexpr, STRIPS: tl.constexpr, REACH: tl.constexpr, CHECKED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    k = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    map_ = (columns // STRIP)[:, None]
    line = (columns % STRIP)[:, None]
    total = tl.zeros((ROWS, COLUMNS), shares.dtype.element_ty)
    bias = tl.zeros((COLUMNS, POSITIONS), shares.dtype.element_ty)
    start = tl.program_id(0) * steps
    for step in range(steps):
        places = (start + step) * POSITIONS + tl.arange(0, POSITIONS)
        inside = places < count * (STRIPS * TO_WIDTH)
        places = tl.minimum(places, count * (STRIPS * TO_WIDTH) - 1)
        image, strip, column = _place(places, TO_WIDTH, STRIPS)
        pixels = _pixels(
            source, image, strip, column, k, CHANNELS, CHANNELS, HEIGHT, WIDTH, REACH,
            KERNEL_COLUMNS, STRIP, STEP, STEP_ACROSS, SPREAD, SPREAD_ACROSS,
            PADDING, PADDING_ACROSS, CHECKED,
        )  # fmt: skip
        row = strip[None, :] * STRIP + line
        first = gradient + (image * (MAPS * TO_HEIGHT * TO_WIDTH))[None, :]
        offset = map_ * (TO_HEIGHT * TO_WIDTH) + row * TO_WIDTH + column[None, :]
        here = inside[None, :] & (map_ < MAPS) & (row < TO_HEIGHT)
        gradients = tl.load(first + offset, mask=here, other=0.0)
        bias += gradients
        total = _product(pixels, tl.trans(gradients), total, PRECISION)
    share = tl.program_id(0).to(tl.int64)
    entry = k[:, None] * COLUMNS + columns[None, :]
    tl.store(shares + share * (ROWS * COLUMNS) + entry, total)
    tl.store(bias_shares + share * COLUMNS + columns, tl.sum(bias, axis=1))
