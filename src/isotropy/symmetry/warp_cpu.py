"""Affine resampling on the CPU: a few images at a time, so that the grid stays in the cache.

An affine map's grid is one outer sum per axis, of a term per row and a term per column,

    position[axis, row, column] = (a₀ x[column]) + (a₁ y[row] + a₂)

and it is cheap to make again. So a chunk of images gets its grid in a small buffer that is used
for every chunk, is sampled, and nothing of the grid is kept for the backward pass. There the
chunk's grid is made again, torch's kernel gives the gradient by position, and one product with
(x, y, 1) reduces it to the six numbers of each map before it leaves the cache:

    ∂/∂aᵢ = Σ over pixels of  ∂/∂position · (x, y, 1)ᵢ

The grid's layout is (batch, axis, samples, height, width): torch's vectorised kernel reads the two
planes as they are, while writing or copying pairs (…, 2) costs more than the sampling itself.

Values and first gradients take this road; `torch.func.vmap` folds its axis into the batch.
Derivatives of derivatives and forward mode make the grid whole, in plain operations.
Oracles: loops over pixels, and `torch.nn.functional.affine_grid` with `grid_sample`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

# Positions in one chunk. Measured with 28×28 pixels and 31 samples: a quarter of this costs one
# thread the same and two threads more, since they wait for each other after every operation;
# at four times this memory traffic begins to count.
_CHUNK = 1 << 20

Sampler = tuple[int, int, bool]


def chunked_warp(
    images: Tensor,
    linear: Tensor,
    shift: Tensor,
    centres: tuple[Tensor, Tensor],
    aspect: float,
    sampler: Sampler,
) -> Tensor:
    """Resample images under the affine maps T p = linear p + shift, several of each.

    images (batch, channels, height, width); linear (batch, samples, 2, 2) and shift
    (batch, samples, 2) in isotropic coordinates; centres: x (width,) and y (height,) of the
    output's pixels in these; aspect: from isotropic y to the sampler's; sampler: torch's
    numbers for interpolation and padding, and whether corners are aligned.
    Returns (batch, samples, channels, height, width), contiguous.
    """
    coefficients = torch.cat([linear, shift[..., None]], dim=-1)
    if aspect != 1:
        coefficients = coefficients * coefficients.new_tensor([[1.0], [aspect]])
    result: Tensor = _ChunkedWarp.apply(images, coefficients.transpose(1, 2), *centres, sampler)
    return result


class _ChunkedWarp(torch.autograd.Function):
    """images and coefficients (batch, axis, samples, 3) of (x, y, 1) to the warped images."""

    @staticmethod
    def forward(
        images: Tensor, coefficients: Tensor, x: Tensor, y: Tensor, sampler: Sampler
    ) -> Tensor:
        batch, channels, height, width = images.shape
        shape = (coefficients.shape[2], channels, height, width)
        warped = images.new_empty((batch, *shape))
        for chunk, grid in _grids(coefficients, x, y):
            sampled = torch.grid_sampler_2d(images[chunk], grid, *sampler)
            warped[chunk] = _samples_first(sampled, shape)
        return warped

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.sampler = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        images, coefficients, x, y = ctx.saved_tensors
        needed = ctx.needs_input_grad[:2]
        basis, samples = _monomials(x, y), coefficients.shape[2]
        to_images, to_coefficients = [], []
        grids: Iterable[tuple[slice, Tensor]] = _grids(coefficients, x, y)
        if torch.is_grad_enabled():  # a graph is asked for: operations that have derivatives
            grids = [(slice(None), _whole_grid(coefficients, x, y))]
        for chunk, grid in grids:
            part = _channels_first(cotangent[chunk])
            by_image, by_grid = pull_back(part, images[chunk], grid, ctx.sampler, needed)
            # Batched gradients cannot be written into a buffer: they are put together at the end.
            if needed[0]:
                to_images.append(by_image)
            if needed[1]:
                to_coefficients.append(_reduced(by_grid, basis, samples))
        return (
            torch.cat(to_images) if needed[0] else None,
            torch.cat(to_coefficients).transpose(1, 2) if needed[1] else None,
            *(None, None, None),
        )

    @staticmethod
    def jvp(
        ctx: Any, images_dot: Tensor | None, coefficients_dot: Tensor | None, *_: Any
    ) -> Tensor:
        images, coefficients, x, y = ctx.saved_tensors
        _, channels, height, width = images.shape
        grid = _whole_grid(coefficients, x, y)
        tangent = torch.zeros((), device=images.device, dtype=images.dtype)
        if coefficients_dot is not None:
            grid_dot = _whole_grid(coefficients_dot, x, y)
            # A pixel's value depends on its own position alone: a backward pass of ones gives
            # all slopes, of one channel at a time since the pass adds channels up.
            ones = torch.ones_like(grid[..., 0])[:, None]
            slopes = [
                pull_back(ones, channel, grid, ctx.sampler, (False, True))[1]
                for channel in images.split(1, dim=1)
            ]
            tangent = tangent + torch.stack([(slope * grid_dot).sum(-1) for slope in slopes], dim=1)
        if images_dot is not None:
            tangent = tangent + torch.grid_sampler_2d(images_dot, grid, *ctx.sampler)
        return _samples_first(tangent, (coefficients.shape[2], channels, height, width))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        folded = _folded(info.batch_size, in_dims[:2], inputs[:2])
        warped: Tensor = _ChunkedWarp.apply(*folded, *inputs[2:])
        return warped.unflatten(0, (info.batch_size, -1)), 0


def pull_back(
    cotangent: Tensor, images: Tensor, grid: Tensor, sampler: Sequence[Any], needed: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of torch's `grid_sampler_2d` by images and grid, those that are needed."""
    backward = torch.ops.aten.grid_sampler_2d_backward
    try:
        to_images, to_grid = backward(cotangent, images, grid, *sampler, list(needed))
    except RuntimeError:  # vmap in torch 2.11 cannot leave one of the two out
        to_images, to_grid = backward(cotangent, images, grid, *sampler, [True, True])
    return to_images, to_grid


def _terms(coefficients: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The grid's terms per column (batch, 2, samples, 1, W) and per row (batch, 2, samples, H, 1).

    Rounded like the reference path's, so that both read on the same side of every pixel centre.
    """
    across, down, constant = coefficients[..., None].unbind(-2)
    return (across * x)[..., None, :], (down * y + constant)[..., None]


def _whole_grid(coefficients: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Positions (batch, samples·height, width, 2), for `grid_sampler_2d`."""
    by_column, by_row = _terms(coefficients, x, y)
    return _pairs_last(by_row + by_column)


def _pairs_last(planes: Tensor) -> Tensor:
    """(batch, 2, samples, height, width) as (batch, samples·height, width, 2), not copied."""
    batch, _, samples, height, width = planes.shape
    # reshape and permute: flatten and movedim have no rule for batched forward gradients.
    return planes.reshape(batch, 2, samples * height, width).permute(0, 2, 3, 1)


def _grids(coefficients: Tensor, x: Tensor, y: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the batch and their grids as in `_whole_grid`, each good until the next."""
    batch, _, samples, _ = coefficients.shape
    by_column, by_row = _terms(coefficients, x, y)
    # torch's kernel works on images in parallel, so every thread gets as many.
    threads = torch.get_num_threads()
    fitting = _CHUNK // max(samples * len(x) * len(y), 1)
    length = max(fitting // threads, 1) * threads
    buffer = coefficients.new_empty(min(length, batch), 2, samples, len(y), len(x))
    for start in range(0, max(batch, 1), length):
        chunk = slice(start, min(start + length, batch))
        grid = buffer[: chunk.stop - start]
        torch.add(by_row[chunk], by_column[chunk], out=grid)
        yield chunk, _pairs_last(grid)


def _monomials(x: Tensor, y: Tensor) -> Tensor:
    """(x, y, 1) of every pixel for each axis, zero for the other: (height·width·2, 2·3)."""
    monomials = x.new_zeros(len(y), len(x), 2, 2, 3)
    own = monomials.diagonal(dim1=2, dim2=3)  # (height, width, 3, 2)
    own[:, :, 0] = x[:, None]
    own[:, :, 1] = y[:, None, None]
    own[:, :, 2] = 1
    return monomials.reshape(-1, 6)


def _reduced(by_grid: Tensor, basis: Tensor, samples: int) -> Tensor:
    """Gradients by position (batch, samples·H, W, 2) to those by (batch, samples, 2, 3)."""
    pairs = by_grid.reshape(-1, samples, len(basis))
    return (pairs @ basis).reshape(-1, samples, 2, 3)


def _samples_first(sampled: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(batch, channels, samples·height, width) as (batch, samples, channels, height, width)."""
    samples, channels, height, width = shape
    return sampled.reshape(-1, channels, samples, height, width).transpose(1, 2)


def _channels_first(warped: Tensor) -> Tensor:
    """(batch, samples, channels, height, width) as (batch, channels, samples·height, width)."""
    batch, samples, channels, height, width = warped.shape
    return warped.transpose(1, 2).reshape(batch, channels, samples * height, width)


def _folded(size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with the axis that `vmap` maps over folded into their batch."""
    moved = (
        each.expand(size, *each.shape) if axis is None else each.movedim(axis, 0)
        for each, axis in zip(tensors, in_dims, strict=True)
    )
    return [each.flatten(0, 1) for each in moved]
