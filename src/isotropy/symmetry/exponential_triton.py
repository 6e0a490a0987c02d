"""The affine exponential on a GPU: `affine_exponential` by one kernel, differentiable.

    _Exponential     forward mode   _Tangent          reverse mode   _Gradient
    _Tangent and _Gradient          each the other's transpose by what it is linear in

By B and b they are second derivatives, which `torch.linalg.matrix_exp` gives, in double precision,
from larger matrices: exp [[M, N], [0, M]] has exp M on its diagonal, and above it the derivative of
exp at M along N. So with A = [[B, b], [0, 0]] and M = [[A, E], [0, A]] the derivative of exp at A
along E is a corner of exp M, and another doubling differentiates that, any number of times: these
are plain operations.

Under `torch.func.vmap` the new axis is one more leading axis. Imported by `affine_exponential` when
there is work for it, since it needs Triton.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isotropy.symmetry.exponential_kernels import (
    exponential_gradient,
    exponential_tangent,
    exponential_values,
)

__all__ = ["fused_exponential"]


def fused_exponential(block: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
    """`affine_exponential` by one kernel, for (…, 2, 2) and (…, 2) of one type of `fused.DTYPES`.

    On one CUDA device, or on a CPU where Triton interprets. Both results are contiguous.
    """
    if block.shape[:-2] != translation.shape[:-1]:
        leading = torch.broadcast_shapes(block.shape[:-2], translation.shape[:-1])
        block, translation = block.expand(*leading, 2, 2), translation.expand(*leading, 2)
    linear, shift = _Exponential.apply(block, translation)
    return linear, shift


class _Exponential(torch.autograd.Function):
    """block, translation → linear, shift."""

    @staticmethod
    def forward(block: Tensor, translation: Tensor) -> tuple[Tensor, Tensor]:
        return exponential_values(block, translation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _remember(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, to_linear: Tensor, to_shift: Tensor) -> Any:
        return _Gradient.apply(*ctx.saved_tensors, to_linear, to_shift)

    @staticmethod
    def jvp(ctx: Any, block_dot: Tensor | None, translation_dot: Tensor | None) -> Any:
        block, translation = ctx.saved_tensors
        return _Tangent.apply(
            block, translation, _given(block_dot, block), _given(translation_dot, translation)
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _leading(_Exponential, info.batch_size, dims, inputs)


class _Derivative(torch.autograd.Function):
    """B, b, and two tensors like them that are pushed forward or pulled back → two like them."""

    is_gradient: bool

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _remember(ctx, inputs)

    @classmethod
    def _backward(cls, ctx: Any, to_first: Tensor, to_second: Tensor) -> tuple[Tensor | None, ...]:
        block, translation, first, second = ctx.saved_tensors
        to_block = to_translation = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            to_block, to_translation = _pulled_back(
                block, translation, (first, second), (to_first, to_second), cls.is_gradient
            )
        back: tuple[Tensor | None, ...] = (None, None)
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            transpose = _Tangent if cls.is_gradient else _Gradient
            back = transpose.apply(block, translation, to_first, to_second)
        return to_block, to_translation, *back

    @classmethod
    def _jvp(cls, ctx: Any, *tangents: Tensor | None) -> Any:
        block, translation, first, second = ctx.saved_tensors
        block_dot, translation_dot = _given(tangents[0], block), _given(tangents[1], translation)
        above = _above(first, second, cls.is_gradient)
        algebra, algebra_dot = _algebra(block, translation), _algebra(block_dot, translation_dot)
        big, big_dot = _doubled(algebra, above), _doubled(algebra_dot, torch.zeros_like(above))
        moved = _read_off(_corner(_derivative(big, big_dot)), cls.is_gradient, block.dtype)
        if tangents[2] is None and tangents[3] is None:
            return moved
        changed = cls.apply(
            block, translation, _given(tangents[2], first), _given(tangents[3], second)
        )
        return tuple(one + other for one, other in zip(moved, changed, strict=True))


class _Tangent(_Derivative):
    """block, translation, their tangents → tangents of linear and shift."""

    is_gradient = False

    @staticmethod
    def forward(
        block: Tensor, translation: Tensor, block_dot: Tensor, translation_dot: Tensor
    ) -> tuple[Tensor, Tensor]:
        return exponential_tangent(block, translation, block_dot, translation_dot)

    @staticmethod
    def backward(ctx: Any, to_first: Tensor, to_second: Tensor) -> Any:
        return _Tangent._backward(ctx, to_first, to_second)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        return _Tangent._jvp(ctx, *tangents)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _leading(_Tangent, info.batch_size, dims, inputs)


class _Gradient(_Derivative):
    """block, translation, cotangents of linear and shift → gradients to block and translation."""

    is_gradient = True

    @staticmethod
    def forward(
        block: Tensor, translation: Tensor, to_linear: Tensor, to_shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        return exponential_gradient(block, translation, to_linear, to_shift)

    @staticmethod
    def backward(ctx: Any, to_first: Tensor, to_second: Tensor) -> Any:
        return _Gradient._backward(ctx, to_first, to_second)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        return _Gradient._jvp(ctx, *tangents)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _leading(_Gradient, info.batch_size, dims, inputs)


def _remember(ctx: Any, inputs: tuple[Any, ...]) -> None:
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)


def _given(tangent: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tangent is None else tangent


def _leading(
    function: Any, size: int, dims: tuple[Any, ...], inputs: tuple[Tensor, ...]
) -> tuple[Any, Any]:
    """What `function` gives with an axis of `size` in front of the leading ones."""
    moved = [
        each.expand(size, *each.shape) if dim is None else each.movedim(dim, 0)
        for each, dim in zip(inputs, dims, strict=True)
    ]
    return function.apply(*moved), (0, 0)


# --- second derivatives -------------------------------------------------------------------


def _algebra(block: Tensor, translation: Tensor) -> Tensor:
    """[[B, b], [0, 0]] in double precision."""
    upper = torch.cat((block, translation[..., None]), -1).double()
    return torch.cat((upper, torch.zeros_like(upper[..., :1, :])), -2)


def _above(first: Tensor, second: Tensor, is_gradient: bool) -> Tensor:
    """Along what exp is differentiated: [[E, e], [0, 0]], or the transpose of a cotangent."""
    matrix = _algebra(first, second)
    return matrix.mT if is_gradient else matrix


def _read_off(matrix: Tensor, is_gradient: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What of that derivative is the tangent, or the gradient."""
    matrix = (matrix.mT if is_gradient else matrix).to(dtype)
    return matrix[..., :2, :2], matrix[..., :2, 2]


def _doubled(diagonal: Tensor, above: Tensor) -> Tensor:
    """[[M, N], [0, M]]."""
    upper = torch.cat((diagonal, above), -1)
    return torch.cat((upper, torch.cat((torch.zeros_like(diagonal), diagonal), -1)), -2)


def _corner(matrix: Tensor) -> Tensor:
    """N of [[M, N], [·, ·]]."""
    half = matrix.shape[-1] // 2
    return matrix[..., :half, half:]


def _derivative(at: Tensor, along: Tensor) -> Tensor:
    """The derivative of the matrix exponential."""
    return _corner(torch.linalg.matrix_exp(_doubled(at, along)))


def _pulled_back(
    block: Tensor,
    translation: Tensor,
    along: tuple[Tensor, Tensor],
    cotangents: tuple[Tensor, Tensor],
    is_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient by B and b of ⟨cotangents, a tangent or gradient along `along`⟩.

    With M = [[A, E], [0, A]] and the cotangent C of its corner, exp's derivative at M along
    [[0, 0], [Cᵀ, 0]] is the transpose of the gradient by M, in which A stands twice.
    """
    big = _doubled(_algebra(block, translation), _above(*along, is_gradient))
    transposed = _above(*cotangents, not is_gradient)
    nothing = torch.zeros_like(transposed)
    below = torch.cat((torch.cat((nothing, nothing), -1), torch.cat((transposed, nothing), -1)), -2)
    to_big = _derivative(big, below).mT
    to_algebra = to_big[..., :3, :3] + to_big[..., 3:, 3:]
    return _read_off(to_algebra, False, block.dtype)
