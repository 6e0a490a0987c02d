"""Resampling images under affine maps of the plane, differentiable in reverse and forward mode.

    output(p) = image(T p)          p runs over the pixel centres of the output

Coordinates are *isotropic*: x to the right, y down, the origin at the image's centre and
one unit half the image's width in both directions, so that a rotation matrix rotates
pixels also when the image is not square. With `align_corners=True` (the papers') half a
width reaches the centre of the last pixel, (W − 1)/2 pixels; with False its edge, W/2.

Between pixels "bilinear" and "bicubic" are torch's `grid_sampler_2d`, which has no forward-mode
derivative. Ours wraps its value and gradient and adds the tangent: an output pixel depends on the
grid only through its own position (x, y), so that

    tangent = ∂value/∂x · ẋ + ∂value/∂y · ẏ + (the warp of the images' tangent)

with the slopes from torch's own backward pass; forward and reverse mode then agree also at the
pixel centres, where a bilinear interpolant has a kink. Reverse over forward needs torch 2.12;
forward over forward is not to be had, torch drops the outer tangent there without an error.

An affine map's grid is one outer sum per axis, of a term per row and a term per column,

    position[axis, row, column] = (a₀ x[column]) + (a₁ y[row] + a₂)

and is cheap to make again: nothing of it is kept for the backward pass. There torch's kernel gives
the gradient by position, and one product with (x, y, 1) reduces it to the six numbers of each map,
∂/∂aᵢ = Σ over pixels of ∂/∂position · (x, y, 1)ᵢ. On a CPU the images come a few at a time, with a
small buffer for the grids of a chunk, so that they stay in the cache. The grid's layout is (batch,
axis, samples, height, width): torch's vectorised kernel reads the two planes as they are, while
writing or copying pairs (…, 2) costs more than the sampling itself. `torch.func.vmap` folds its
axis into the batch; derivatives of derivatives, forward mode and other devices make the grid whole.

On a GPU the copies come from one Triton kernel without a grid in memory (`warp_triton`;
`kernels.fused` says when).

"fourier" reads the image (H, W) as a periodic function instead, the trigonometric polynomial of
lowest order through its pixels, in plain operations. Along one axis of N pixels its real basis is

    1,  cos(2π k x / N),  sin(2π k x / N)   for 0 < k < N/2 ,   cos(π x)  where N is even

(the Nyquist frequency as a cosine, so that real images stay real), N functions for N pixels, and

    value(x, y) = Σ_kl  φ_k(y) C_kl φ_l(x)          C = A_H · image · A_Wᵀ

with A the analysis matrix, which inverts φ at the pixels. Shifts by whole pixels are rolls, shifts
by less lose nothing: they make a group, up to the Nyquist term. H·W multiplications for each place
and channel.

Oracles: loops over pixels, complex sums, and torch's `affine_grid` with `grid_sample`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_axes, check_choice, shape_text
from isotropy.kernels.fused import fused_module, is_plain

GridInterpolation = Literal["bilinear", "bicubic"]
Interpolation = Literal["bilinear", "bicubic", "fourier"]
GridPadding = Literal["zeros", "border", "reflection"]
Padding = Literal["zeros", "border", "reflection", "mean"]

_MODES: dict[str, int] = {"bilinear": 0, "bicubic": 2}
_PADDINGS: dict[str, int] = {"zeros": 0, "border": 1, "reflection": 2}
INTERPOLATIONS = (*_MODES, "fourier")
GRID_PADDINGS = tuple(_PADDINGS)
PADDINGS = (*GRID_PADDINGS, "mean")
""""mean" is zeros about a colour, which `images` takes off and puts back."""

MOST_NUMBERS = 2**24
"""How many numbers one chunk of places may hold at a time; reverse mode keeps all chunks."""
# Positions in one chunk. Measured with 28×28 pixels and 31 samples: a quarter of this costs one
# thread the same and two threads more, since they wait for each other after every operation;
# at four times this memory traffic begins to count.
_CHUNK = 1 << 20

_FAR = 1e6
"""Half extents: maps whose coefficients are larger, or not finite, read from beyond the border."""

Sampler = tuple[int, int, bool]


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
    if interpolation == "fourier":
        grid = _whole_grid(*_affine(images, linear, shift, align_corners))
        columns, rows = (
            place.flatten(1) * half_extent(length, align_corners) + (length - 1) / 2
            for place, length in zip(grid.unbind(-1), (width, height), strict=True)
        )
        read = fourier_sample(images, columns, rows)
        return _samples_first(read, (samples, channels, height, width))
    fused = fused_module("isotropy.symmetry.actions.warp_triton", images, linear, shift)
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
    sampler = (_MODES[interpolation], _PADDINGS[padding], align_corners)
    affine = _affine(images, linear, shift, align_corners)
    result: Tensor = _Warp.apply(images, *affine, sampler)
    return result


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
    sampler = (_MODES[interpolation], _PADDINGS[padding], align_corners)
    grid = _whole_grid(*_affine(images, linear, shift, align_corners))
    return pull_back(_channels_first(cotangent), images, grid, sampler, [True, False])[0]


def pixel_centres(length: int, unit: float, like: Tensor) -> Tensor:
    """Centres of `length` pixels about the middle, in multiples of `unit` pixels."""
    index = torch.arange(length, device=like.device, dtype=like.dtype)
    return (index - (length - 1) / 2) / unit


def half_extent(length: int, align_corners: bool) -> float:
    """Pixels from the image's middle to where the normalised coordinate is one."""
    return max((length - 1) / 2, 0.5) if align_corners else length / 2


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


# -- a periodic function -----------------------------------------------------------------------


def fourier_sample(
    images: Tensor, columns: Tensor, rows: Tensor, *, most_numbers: int = MOST_NUMBERS
) -> Tensor:
    """The values of periodic images (batch, channels, height, width) at places between pixels.

    columns, rows: (batch, points), in pixels, 0 the centre of the first; any number, periodic
    most_numbers:  bounds the memory; results do not depend on it beyond rounding
    Returns (batch, channels, points).
    """
    batch, channels, height, width = images.shape
    coefficients = _analysis(height, images) @ images @ _analysis(width, images).mT
    stacked = coefficients.flatten(1, 2)  # (batch, channels·height, width)
    step = max(1, most_numbers // max(1, batch * (channels * height + height + width)))
    values = []
    for column, row in zip(columns.split(step, 1), rows.split(step, 1), strict=True):
        along_x = (stacked @ _basis(column, width).mT).unflatten(1, (channels, height))
        values.append((along_x * _basis(row, height).mT[:, None]).sum(2))
    return torch.cat(values, 2)


def _basis(places: Tensor, length: int) -> Tensor:
    """The N functions at places (…), in pixels: (…, N), cosines before sines."""
    # Whole periods are taken off first, for the sake of single precision.
    places = places - length * (places.detach() / length).floor()
    frequency = torch.arange(length // 2 + 1, device=places.device, dtype=places.dtype)
    angle = places[..., None] * (2 * math.pi / length * frequency)
    sines = angle[..., 1 : (length + 1) // 2].sin()
    return torch.cat((angle.cos(), sines), -1)


def _analysis(length: int, like: Tensor) -> Tensor:
    """From the values at N pixels to the coefficients of the N functions, (N, N)."""
    # On the CPU, since not every accelerator has double precision.
    basis = _basis(torch.arange(length, dtype=torch.float64), length)
    # The functions are orthogonal on the pixels; the constant and Nyquist are twice as long.
    return (basis / basis.square().sum(0)).mT.to(like)


# -- by torch's sampler ------------------------------------------------------------------------


def _affine(
    images: Tensor, linear: Tensor, shift: Tensor, align_corners: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The maps as coefficients of (x, y, 1) in the sampler's coordinates (batch, axis, samples, 3),
    and the centres x (width,) and y (height,) of the output's pixels in isotropic ones."""
    height, width = images.shape[2:]
    unit = half_extent(width, align_corners)
    # Isotropic y becomes the sampler's y, whose unit is half the image's height.
    aspect = unit / half_extent(height, align_corners)
    coefficients = torch.cat([linear, shift[..., None]], dim=-1)
    # torch's sampler reads outside its memory at places that are not finite.
    far = min(_FAR, torch.finfo(coefficients.dtype).max / 64)  # half precision ends at 65,504
    coefficients = coefficients.clamp(-far, far).nan_to_num(far)
    if aspect != 1:
        scale = torch.tensor([[1.0], [aspect]], device=linear.device, dtype=linear.dtype)
        coefficients = coefficients * scale
    x, y = pixel_centres(width, unit, linear), pixel_centres(height, unit, linear)
    return coefficients.transpose(1, 2), x, y


class _Warp(torch.autograd.Function):
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
                to_coefficients.append(_reduced(by_grid, x, y, coefficients.shape[2]))
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
        warped: Tensor = _Warp.apply(*folded, *inputs[2:])
        return warped.unflatten(0, (info.batch_size, -1)), 0


def _terms(coefficients: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Terms of the grid per column (batch, 2, samples, 1, W), per row (batch, 2, samples, H, 1)."""
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
    # An exported program has a batch of any size, and does not come in chunks.
    if is_plain() or coefficients.device.type != "cpu":
        yield slice(None), _whole_grid(coefficients, x, y)
        return
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


def _reduced(by_grid: Tensor, x: Tensor, y: Tensor, samples: int) -> Tensor:
    """Gradients by position (batch, samples·H, W, 2) to those by (batch, samples, 2, 3)."""
    if by_grid.is_cuda:  # where a product of matrices may be one in TF32
        pairs = by_grid.reshape(-1, samples, len(y), len(x), 2)
        by_row, by_column = pairs.sum(3), pairs.sum(2)
        moments = (by_column * x[:, None]).sum(2), (by_row * y[:, None]).sum(2), by_row.sum(2)
        return torch.stack(moments, dim=-1)
    # (x, y, 1) of every pixel for each axis, zero for the other: (height·width·2, 2·3).
    monomials = x.new_zeros(len(y), len(x), 2, 2, 3)
    own = monomials.diagonal(dim1=2, dim2=3)  # (height, width, 3, 2)
    own[:, :, 0] = x[:, None]
    own[:, :, 1] = y[:, None, None]
    own[:, :, 2] = 1
    pairs = by_grid.reshape(-1, samples, len(y) * len(x) * 2)
    return (pairs @ monomials.reshape(-1, 6)).reshape(-1, samples, 2, 3)


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
