"""Max-pooling over windows that lie side by side on a GPU, by the kernels of `pooling_kernels`.

    _Largest   z → y and the winners of the windows
    _Scatter   g → a gradient by z, or its sum over copies        linear, and transposes of
    _Gather    z → the numbers that are at the winners            each other

The winners are constants, so that the derivatives of any order are these. Where z is a layer's
output with a shift that all copies have in common (`shifts`), the gradient by that is summed over
copies as it is scattered, and no gradient of all copies is written.

Under `torch.func.vmap` directions are an axis in front, and the winners are not repeated for them.
Imported by `max_pooling` when there is work for it, since it needs Triton.
Axes: images (rows, channels, height, width), rows batch·copies with copies fastest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isotropy.curvature.pooling_kernels import MOST_PIXELS, Grid, gather, largest, scatter

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
