"""Orbit sampling on a GPU: `affine_warp` by the kernels of `warp_kernels`, differentiable.

    copies = W(images, maps)          linear in the images

`_Warp` is W, `_Tangent` its derivative along a change of the maps, `_Gradient` the transpose of
that. Each is the derivative of another one:

    W         forward mode   _Tangent + W(tangent of the images)
              reverse mode   _Gradient to the maps; to the images torch's own backward pass, on a
                             grid that is built then
    _Tangent and _Gradient   each the other by what it is linear in (change, cotangent); by images
                             and maps, a second derivative, that of `warp.reference_warp`, where
                             torch has it. Forward mode over either raises NotImplementedError

Under `torch.func.vmap` the new axis joins the batch where the images have it, else the samples, so
that a kernel never sees it. Values are those of the reference path to rounding; where straight
lines have a kink the two may take different sides of it, as rounding has it.

Axes as in `warp_kernels`. Imported by `warp` when there is work for it, since it needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isotropy.symmetry.actions.warp import (
    GridInterpolation,
    GridPadding,
    reference_images_gradient,
    reference_warp,
)
from isotropy.symmetry.actions.warp_kernels import (
    Sampling,
    warp_copies,
    warp_gradient,
    warp_tangent,
)

__all__ = ["fused_warp"]


def fused_warp(
    images: Tensor,
    linear: Tensor,
    shift: Tensor,
    *,
    interpolation: GridInterpolation = "bilinear",
    padding: GridPadding = "zeros",
    align_corners: bool = True,
) -> Tensor:
    """`warp.affine_warp` by one kernel: (batch, samples, channels, height, width), contiguous.

    All three tensors of one type of `fused.DTYPES`, on one CUDA device (or on a CPU where Triton
    interprets); shapes are those that `affine_warp` has checked.
    """
    result: Tensor = _Warp.apply(
        images, linear, shift, Sampling(interpolation, padding, align_corners)
    )
    return result


class _Warp(torch.autograd.Function):
    """images, linear, shift → copies."""

    @staticmethod
    def forward(images: Tensor, linear: Tensor, shift: Tensor, sampling: Sampling) -> Tensor:
        return warp_copies(images, linear, shift, sampling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _remember(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        to_images = to_linear = to_shift = None
        if ctx.needs_input_grad[0]:
            to_images = reference_images_gradient(
                cotangent, *ctx.saved_tensors, **vars(ctx.sampling)
            )
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            to_linear, to_shift = _Gradient.apply(cotangent, *ctx.saved_tensors, ctx.sampling)
        return to_images, to_linear, to_shift, None

    @staticmethod
    def jvp(
        ctx: Any,
        images_dot: Tensor | None,
        linear_dot: Tensor | None,
        shift_dot: Tensor | None,
        _: None,
    ) -> Tensor:
        images, linear, shift = ctx.saved_tensors
        parts = []
        if linear_dot is not None or shift_dot is not None:
            linear_dot = torch.zeros_like(linear) if linear_dot is None else linear_dot
            shift_dot = torch.zeros_like(shift) if shift_dot is None else shift_dot
            parts.append(_Tangent.apply(images, linear, shift, linear_dot, shift_dot, ctx.sampling))
        if images_dot is not None:
            parts.append(_Warp.apply(images_dot, linear, shift, ctx.sampling))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _merged(_Warp, info.batch_size, dims, inputs, images_at=0)


class _Tangent(torch.autograd.Function):
    """images, linear, shift, linear_dot, shift_dot → tangent of the copies."""

    @staticmethod
    def forward(
        images: Tensor,
        linear: Tensor,
        shift: Tensor,
        linear_dot: Tensor,
        shift_dot: Tensor,
        sampling: Sampling,
    ) -> Tensor:
        return warp_tangent(images, linear, shift, linear_dot, shift_dot, sampling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _remember(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        images, linear, shift, linear_dot, shift_dot = ctx.saved_tensors
        sampling, needed = ctx.sampling, ctx.needs_input_grad

        def tangent(images: Tensor, linear: Tensor, shift: Tensor) -> Tensor:
            warp = _reference(images, sampling)
            return torch.func.jvp(warp, (linear, shift), (linear_dot, shift_dot))[1]

        first = _pulled_back(tangent, (images, linear, shift), needed[:3], cotangent)
        second: tuple[Tensor | None, ...] = (None, None)
        if needed[3] or needed[4]:
            second = _Gradient.apply(cotangent, images, linear, shift, sampling)
        return (*first, *second, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _merged(_Tangent, info.batch_size, dims, inputs, images_at=0)


class _Gradient(torch.autograd.Function):
    """cotangent, images, linear, shift → gradients to linear and shift."""

    @staticmethod
    def forward(
        cotangent: Tensor, images: Tensor, linear: Tensor, shift: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        return warp_gradient(cotangent, images, linear, shift, sampling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _remember(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, to_linear: Tensor, to_shift: Tensor) -> tuple[Tensor | None, ...]:
        cotangent, images, linear, shift = ctx.saved_tensors
        sampling, needed = ctx.sampling, ctx.needs_input_grad

        def gradient(images: Tensor, linear: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
            return torch.func.vjp(_reference(images, sampling), linear, shift)[1](cotangent)

        second = _pulled_back(gradient, (images, linear, shift), needed[1:4], (to_linear, to_shift))
        first = None
        if needed[0]:
            first = _Tangent.apply(images, linear, shift, to_linear, to_shift, sampling)
        return (first, *second, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _merged(_Gradient, info.batch_size, dims, inputs, images_at=1)


def _remember(ctx: Any, inputs: tuple[Any, ...]) -> None:
    *tensors, ctx.sampling = inputs
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _reference(images: Tensor, sampling: Sampling) -> Callable[[Tensor, Tensor], Tensor]:
    """The reference path as a function of the maps."""
    return lambda linear, shift: reference_warp(images, linear, shift, **vars(sampling))


def _pulled_back(
    function: Callable[..., Any],
    inputs: tuple[Tensor, ...],
    needed: tuple[bool, ...],
    cotangent: Any,
) -> tuple[Tensor | None, ...]:
    """The gradients of `function` by those inputs that need one."""
    if not any(needed):
        return tuple(None for _ in inputs)

    def of_needed(*given: Tensor) -> Any:
        left = iter(given)
        return function(
            *(next(left) if need else each for each, need in zip(inputs, needed, strict=True))
        )

    chosen = [each for each, need in zip(inputs, needed, strict=True) if need]
    pulled = iter(torch.func.vjp(of_needed, *chosen)[1](cotangent))
    return tuple(next(pulled) if need else None for need in needed)


def _merged(
    function: Any, size: int, dims: tuple[Any, ...], inputs: tuple[Any, ...], *, images_at: int
) -> tuple[Any, Any]:
    """What `function` gives with an axis of `size` merged into the batch or the samples.

    Tensors are (batch, samples, …) but for the images, (batch, …): an axis that these do not have
    must not repeat them.
    """
    *tensors, sampling = inputs
    place = 0 if dims[images_at] is not None else 1

    def merge(tensor: Tensor, dim: int | None) -> Tensor:
        if dim is not None:
            return tensor.movedim(dim, place).flatten(place, place + 1)
        repeated = tensor.unsqueeze(place)
        shape = [*repeated.shape]
        shape[place] = size
        return repeated.expand(shape).flatten(place, place + 1)

    merged = [
        tensor if place == 1 and at == images_at else merge(tensor, dims[at])
        for at, tensor in enumerate(tensors)
    ]
    result = function.apply(*merged, sampling)
    if isinstance(result, tuple):
        return tuple(_split(each, place, size) for each in result), (place,) * len(result)
    return _split(result, place, size), place


def _split(tensor: Tensor, place: int, size: int) -> Tensor:
    return tensor.unflatten(place, (size, tensor.shape[place] // size))
