"""Max-pooling over windows that lie side by side on a GPU, by the kernels below.

    _Largest   z → y and the winners of the windows
    _Scatter   g → a gradient by z, or its sum over copies        linear, and transposes of
    _Gather    z → the numbers that are at the winners            each other

The winners are constants, so that the derivatives of any order are these. Where z is a layer's
output with a shift that all copies have in common (`shifts`), the gradient by that is summed over
copies as it is scattered, and no gradient of all copies is written.

Under `torch.func.vmap` directions are an axis in front, and the winners are not repeated for them.
Imported by `max_pooling` when there is work for it, since it needs Triton.
Axes: images (rows, channels, height, width), rows batch·copies with copies fastest.

Largest values of windows that lie side by side, and moving numbers to and from them, in Triton.

    largest   y_p = z_{w(p)}                      and the winner w(p), its number in the window
    scatter   for each pixel Σ_s g_{s,p} where it won in copy s, zero where it never did
    gather    for each window and copy the number at the pixel that won: the transpose of scatter

A pixel lies in one window, so that each number of a gradient is written once, with no zeros filled
in before and nothing added in memory: the same sum in every run. Winners are one byte each, and
are shared by all directions of a gradient, which are an axis in front.

The first of equal numbers wins, and the last that is not a number, as in torch.

Axes: windows (…, maps, rows, columns), images (…, maps, height, width), contiguous; with copies the
windows' axis of maps is batch·copies·channels and the images' is batch·channels.
`pooling` makes them differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotropy.kernels.fused import launch

MOST_PIXELS = 255
"""Of a window: more have no number in a byte."""
_BLOCK = 1024


@dataclass(frozen=True)
class Grid:
    """Windows (down × across pixels) on images (height × width).

    channels, copies: what the axis of maps is made of, (batch, copies, channels).
    """

    height: int
    width: int
    down: int
    across: int
    channels: int
    copies: int = 1

    @property
    def rows(self) -> int:
        return self.height // self.down

    @property
    def columns(self) -> int:
        return self.width // self.across

    def constants(self) -> dict[str, Any]:
        """What the kernels are compiled for."""
        return {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "DOWN": self.down,
            "ACROSS": self.across,
        }


def largest(images: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Values and winners (…, rows, columns) of images (…, height, width)."""
    shape = (*images.shape[:-2], grid.rows, grid.columns)
    values = images.new_empty(shape)
    winners = images.new_empty(shape, dtype=torch.uint8)
    count = values.numel()
    launch(
        _largest_kernel, -(-count // _BLOCK), images.contiguous(), values, winners, count,
        BLOCK=_BLOCK, **grid.constants(),
    )  # fmt: skip
    return values, winners


def scatter(gradient: Tensor, winners: Tensor, grid: Grid) -> Tensor:
    """(directions, batch·copies·channels, rows, columns) → (directions, batch·channels, …)."""
    maps = winners.numel() // (grid.rows * grid.columns) // grid.copies
    images = gradient.new_empty(len(gradient), maps, grid.height, grid.width)
    row = triton.next_power_of_2(grid.across)
    window = triton.next_power_of_2(grid.down * row)
    block = max(_BLOCK // window, 1)
    count = maps * -(-grid.height // grid.down) * -(-grid.width // grid.across)
    blocks = -(-count // block)
    launch(
        _scatter_kernel, blocks * len(gradient),
        gradient.contiguous(), winners.contiguous(), images, count, blocks,
        winners.numel(), maps * grid.height * grid.width, grid.channels, grid.copies,
        BLOCK=block, ROW=row, WINDOW=window, **grid.constants(),
    )  # fmt: skip
    return images


def gather(images: Tensor, winners: Tensor, grid: Grid) -> Tensor:
    """(directions, batch·channels, height, width) → (directions, batch·copies·channels, …)."""
    count = winners.numel()
    maps = count // (grid.rows * grid.columns)
    found = images.new_empty(len(images), maps, grid.rows, grid.columns)
    blocks = -(-count // _BLOCK)
    launch(
        _gather_kernel, blocks * len(images),
        images.contiguous(), winners.contiguous(), found, count, blocks,
        maps // grid.copies * grid.height * grid.width, grid.channels, grid.copies,
        BLOCK=_BLOCK, **grid.constants(),
    )  # fmt: skip
    return found


# --- kernels ------------------------------------------------------------------------------


@triton.jit
def _places(
    block: tl.tensor, SIZE: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Numbers of a block within all numbers, the maps (of SIZE) they are in, and where there."""
    start = tl.cast(block, tl.int64) * BLOCK
    each = tl.arange(0, BLOCK)
    local = (start % SIZE).to(tl.int32) + each
    return start + each, (start // SIZE).to(tl.int32) + local // SIZE, local % SIZE


@triton.jit
def _load(numbers: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Numbers, half precision as single."""
    loaded = tl.load(numbers, mask=inside, other=0.0)
    if loaded.dtype != tl.float64:
        loaded = loaded.to(tl.float32)
    return loaded


@triton.jit
def _largest_kernel(
    images: tl.tensor, values: tl.tensor, winners: tl.tensor, count: tl.tensor,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    COLUMNS: tl.constexpr = WIDTH // ACROSS
    number, plane, place = _places(tl.program_id(0), HEIGHT // DOWN * COLUMNS, BLOCK)
    inside = number < count
    corner = place // COLUMNS * (DOWN * WIDTH) + place % COLUMNS * ACROSS
    window = images + plane.to(tl.int64) * (HEIGHT * WIDTH) + corner
    winner = tl.zeros([BLOCK], tl.int32)
    if ACROSS == 2:  # neighbours by one load
        pair = window[:, None] + tl.arange(0, 2)[None, :]
        best, right = tl.split(_load(pair, inside[:, None]))
        best, winner = _better(best, winner, right, 1)
        for row in tl.static_range(1, DOWN):
            left, right = tl.split(_load(pair + row * WIDTH, inside[:, None]))
            best, winner = _better(best, winner, left, 2 * row)
            best, winner = _better(best, winner, right, 2 * row + 1)
    else:
        best = _load(window, inside)
        for pixel in tl.static_range(1, DOWN * ACROSS):
            other = _load(window + (pixel // ACROSS * WIDTH + pixel % ACROSS), inside)
            best, winner = _better(best, winner, other, pixel)
    tl.store(values + number, best.to(values.dtype.element_ty), mask=inside)
    tl.store(winners + number, winner.to(tl.uint8), mask=inside)


@triton.jit
def _better(
    best: tl.tensor, winner: tl.tensor, other: tl.tensor, pixel: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The largest so far and its number, with one more pixel."""
    wins = (other > best) | (other != other)
    return tl.where(wins, other, best), tl.where(wins, pixel, winner)


@triton.jit
def _scatter_kernel(
    gradient: tl.tensor, winners: tl.tensor, images: tl.tensor,
    count: tl.tensor, blocks: tl.tensor, windows: tl.tensor, pixels: tl.tensor,
    channels: tl.tensor, copies: tl.tensor,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    BLOCK: tl.constexpr, ROW: tl.constexpr, WINDOW: tl.constexpr,
) -> None:  # fmt: skip
    # count: windows of the images with those that the rim cuts, which nothing wins in and where
    # zeros are written; windows: whole ones of all copies; a tile is BLOCK windows of WINDOW
    # pixels in rows of ROW, both rounded up to powers of two
    ROWS: tl.constexpr = HEIGHT // DOWN
    COLUMNS: tl.constexpr = WIDTH // ACROSS
    ALL_ROWS: tl.constexpr = (HEIGHT + DOWN - 1) // DOWN
    ALL_COLUMNS: tl.constexpr = (WIDTH + ACROSS - 1) // ACROSS
    direction = (tl.program_id(0) // blocks).to(tl.int64)
    number, plane, place = _places(tl.program_id(0) % blocks, ALL_ROWS * ALL_COLUMNS, BLOCK)
    row, column = place // ALL_COLUMNS, place % ALL_COLUMNS
    inside = number < count
    whole = inside & (row < ROWS) & (column < COLUMNS)
    # Map (batch, channels) of the images, in its first copy (batch, copies, channels).
    first = plane // channels * (copies * channels) + plane % channels
    window = first.to(tl.int64) * (ROWS * COLUMNS) + row * COLUMNS + column
    numbers = gradient + direction * windows + window
    winning = winners + window
    down, across = tl.arange(0, WINDOW) // ROW, tl.arange(0, WINDOW) % ROW
    own = tl.where((down < DOWN) & (across < ACROSS), down * ACROSS + across, -1)
    if images.dtype.element_ty == tl.float64:
        total = tl.zeros([BLOCK, WINDOW], tl.float64)
    else:
        total = tl.zeros([BLOCK, WINDOW], tl.float32)
    for _ in range(copies):
        winner = tl.load(winning, mask=whole, other=255).to(tl.int32)
        won = winner[:, None] == own[None, :]
        total += tl.where(won, _load(numbers, whole)[:, None], 0.0)
        numbers += channels * (ROWS * COLUMNS)
        winning += channels * (ROWS * COLUMNS)
    y, x = row[:, None] * DOWN + down[None, :], column[:, None] * ACROSS + across[None, :]
    # Only what can be outside is asked for: neighbours are then written together.
    exists = inside[:, None]
    if ACROSS != ROW or DOWN * ROW != WINDOW:
        exists = exists & (own >= 0)[None, :]
    if ALL_ROWS != ROWS or ALL_COLUMNS != COLUMNS:
        exists = exists & (y < HEIGHT) & (x < WIDTH)
    image = images + direction * pixels + plane.to(tl.int64) * (HEIGHT * WIDTH)
    kind = images.dtype.element_ty
    tl.store(image[:, None] + (y * WIDTH + x), total.to(kind), mask=exists)


@triton.jit
def _gather_kernel(
    images: tl.tensor, winners: tl.tensor, found: tl.tensor,
    count: tl.tensor, blocks: tl.tensor, pixels: tl.tensor, channels: tl.tensor,
    copies: tl.tensor,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    # count: windows a direction, pixels: a direction
    COLUMNS: tl.constexpr = WIDTH // ACROSS
    direction = (tl.program_id(0) // blocks).to(tl.int64)
    number, plane, place = _places(tl.program_id(0) % blocks, HEIGHT // DOWN * COLUMNS, BLOCK)
    inside = number < count
    winner = tl.load(winners + number, mask=inside, other=0).to(tl.int32)
    y = place // COLUMNS * DOWN + winner // ACROSS
    x = place % COLUMNS * ACROSS + winner % ACROSS
    image = plane // (copies * channels) * channels + plane % channels
    pixel = image.to(tl.int64) * (HEIGHT * WIDTH) + y * WIDTH + x
    value = tl.load(images + direction * pixels + pixel, mask=inside, other=0.0)
    tl.store(found + direction * count + number, value, mask=inside)


__all__ = ["can_pool", "pool"]


def can_pool(images: Tensor, down: int, across: int) -> bool:
    """Whether windows of this size have winners that a byte can name, and there are any."""
    return down * across <= MOST_PIXELS and images.shape[2] >= down and images.shape[3] >= across


def pool(images: Tensor, down: int, across: int, shift: Tensor | None = None) -> Tensor:
    """`functional.max_pool2d(images, (down, across))`, for images (rows, channels, height, width).

    shift (batch, channels, height, width): a zero that is to get the gradient summed over copies.
    """
    channels, height, width = images.shape[1:]
    grid = Grid(height, width, down, across, channels)
    values: Tensor
    values, winners = _Largest.apply(images, grid)
    if shift is not None:
        values = _Shifted.apply(
            values, shift, winners, replace(grid, copies=_copies(images, shift))
        )
    return values


def _copies(images: Tensor, shift: Tensor) -> int:
    return len(images) // len(shift) if len(shift) else 1


class _Largest(torch.autograd.Function):
    """images → values, winners."""

    @staticmethod
    def forward(images: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        return largest(images, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.grid = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        found: Tensor = _Scatter.apply(gradient, winners, ctx.grid)
        return found, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], images: Tensor, grid: Grid) -> tuple[Any, Any]:
        return _Largest.apply(images.movedim(dims[0], 0), grid), (0, 0)


class _Shifted(torch.autograd.Function):
    """Values of images + shift, the same shift for all copies; it is zero."""

    @staticmethod
    def forward(values: Tensor, shift: Tensor, winners: Tensor, grid: Grid) -> Tensor:
        return values.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, winners, ctx.grid = inputs
        ctx.save_for_backward(winners)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (winners,) = ctx.saved_tensors
        summed = None
        if ctx.needs_input_grad[1]:
            summed = _Scatter.apply(gradient, winners, ctx.grid)
        return gradient if ctx.needs_input_grad[0] else None, summed, None, None


class _Moved(torch.autograd.Function):
    """Between windows and pixels; the winners (rows, …) are shared by axes in front of the rows."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, winners, ctx.grid = inputs
        ctx.save_for_backward(winners)

    @classmethod
    def _mapped(
        cls, size: int, dims: tuple[Any, ...], given: Tensor, winners: Tensor, grid: Grid
    ) -> tuple[Tensor, int]:
        if dims[1] is None:
            return cls.apply(given.movedim(dims[0], 0), winners, grid), 0
        # Other winners for each: they are rows beside those of the others.
        at = given.ndim - winners.ndim + (1 if dims[0] is None else 0)
        given = given.unsqueeze(at) if dims[0] is None else given.movedim(dims[0], at)
        shape = list(given.shape)
        shape[at] = size
        found = cls.apply(given.expand(shape), winners.movedim(dims[1], 0), grid)
        return found, at


class _Scatter(_Moved):
    """gradient (…, *winners' axes), winners → (…, batch, channels, height, width)."""

    @staticmethod
    def forward(gradient: Tensor, winners: Tensor, grid: Grid) -> Tensor:
        ahead = gradient.shape[: gradient.ndim - winners.ndim]
        maps = winners.shape[:-2].numel()
        found = scatter(gradient.reshape(ahead.numel(), maps, *winners.shape[-2:]), winners, grid)
        leading = (*winners.shape[:-4], winners.shape[-4] // grid.copies, grid.channels)
        return found.reshape(*ahead, *leading, grid.height, grid.width)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        found: Tensor = _Gather.apply(gradient, *ctx.saved_tensors, ctx.grid)
        return found, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _Scatter._mapped(info.batch_size, dims, *inputs)


class _Gather(_Moved):
    """images (…, batch, channels, height, width), winners → (…, *winners' axes)."""

    @staticmethod
    def forward(images: Tensor, winners: Tensor, grid: Grid) -> Tensor:
        ahead = images.shape[: images.ndim - winners.ndim]
        maps = winners.shape[:-2].numel() // grid.copies
        found = gather(images.reshape(ahead.numel(), maps, grid.height, grid.width), winners, grid)
        return found.reshape(*ahead, *winners.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        found: Tensor = _Scatter.apply(gradient, *ctx.saved_tensors, ctx.grid)
        return found, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        return _Gather._mapped(info.batch_size, dims, *inputs)
