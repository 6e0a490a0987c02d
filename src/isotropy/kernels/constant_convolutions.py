"""Convolutions with a constant weight: linear maps whose derivatives are linear maps.

    y = L x + b,     its gradient  Lᵀ g,     the gradient of that  L h

torch's derivative of a convolution's derivative serves weights that are differentiated, too. With a
constant weight one convolution each way is all there is, for every direction of the output
curvature. On a CPU two cases have a faster form: a kernel that covers the whole image is a matrix,
and at stride one Lᵀ is itself a convolution, by the kernel turned round.

Axes: images (rows, channels, *space) in one, two or three dimensions. Oracle: torch's own values
and derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isotropy.kernels.kept_slopes import needs_own_derivative

_CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (
    functional.conv1d,
    functional.conv2d,
    functional.conv3d,
)
_TRANSPOSED: tuple[Callable[..., Tensor], ...] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


@dataclass(frozen=True, eq=False)
class _Convolution:
    """L from images of `space` to maps, and Lᵀ back; weight (maps, channels/groups, *kernel)."""

    weight: Tensor
    space: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.weight.shape[2:])

    @cached_property
    def is_matrix(self) -> bool:
        """Whether the kernel covers the whole image, once."""
        return self.groups == 1 and not any(self.padding) and self.kernel == self.space

    @cached_property
    def turned(self) -> Tensor | None:
        """The kernel of Lᵀ as a convolution; None where L skips positions, or on a GPU."""
        if self.weight.is_cuda or self.groups > 1 or any(step > 1 for step in self.stride):
            return None
        if any(margin < 0 for margin in self.margins):
            return None
        return self.weight.transpose(0, 1).flip(*range(2, self.weight.ndim)).contiguous()

    @cached_property
    def margins(self) -> tuple[int, ...]:
        """Padding of the convolution by `turned`."""
        sides = zip(self.kernel, self.dilation, self.padding, strict=True)
        return tuple(dilation * (size - 1) - padding for size, dilation, padding in sides)

    def forward(self, images: Tensor, bias: Tensor | None) -> Tensor:
        """L x + b."""
        if self.is_matrix:
            rows = functional.linear(images.flatten(1), self.weight.flatten(1), bias)
            return rows.reshape(*rows.shape, *(1 for _ in self.space))
        convolution = _CONVOLUTIONS[len(self.space) - 1]
        return convolution(
            images, self.weight, bias, self.stride, self.padding, self.dilation, self.groups
        )

    def transposed(self, maps: Tensor, bias: Tensor | None) -> Tensor:
        """Lᵀ g + b."""
        if self.is_matrix and bias is None:
            rows = maps.flatten(1) @ self.weight.flatten(1)
            return rows.unflatten(1, self.weight.shape[1:])
        dimension = len(self.space) - 1
        if self.turned is not None:
            convolution = _CONVOLUTIONS[dimension]
            return convolution(maps, self.turned, bias, 1, self.margins, self.dilation)
        rim = [
            size - ((count - 1) * step + dilation * (reach - 1) + 1 - 2 * padding)
            for size, count, step, dilation, reach, padding in zip(
                self.space, maps.shape[2:], self.stride, self.dilation, self.kernel, self.padding,
                strict=True,
            )
        ]  # fmt: skip
        arguments = (self.stride, self.padding, rim, self.groups, self.dilation)
        return _TRANSPOSED[dimension](maps, self.weight, bias, *arguments)


class _Apply(torch.autograd.Function):
    """L x + b or Lᵀ x + b; the derivative is the other one, without b."""

    @staticmethod
    def forward(inputs: Tensor, bias: Tensor | None, to: _Convolution, back: bool) -> Tensor:
        return to.transposed(inputs, bias) if back else to.forward(inputs, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.to, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        found: Tensor = _Apply.apply(gradient, None, ctx.to, not ctx.back)
        return found, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        inputs: Tensor,
        bias: Tensor | None,
        to: _Convolution,
        back: bool,
    ) -> tuple[Tensor, int]:
        """All directions as rows of one call."""
        assert in_dims[0] is not None
        rows = inputs.movedim(in_dims[0], 0).flatten(0, 1)
        return _Apply.apply(rows, bias, to, back).unflatten(0, (info.batch_size, -1)), 0


def _is_constant(tensor: Tensor | None) -> bool:
    return tensor is None or not tensor.requires_grad


def _each_axis(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    many = (value,) if isinstance(value, int) else tuple(value)
    return many * dimensions if len(many) == 1 else many


def convolution(dimensions: int) -> Callable[..., Tensor]:
    """`functional.conv1d`, `conv2d` or `conv3d`, for weights that are constants."""
    plain = _CONVOLUTIONS[dimensions - 1]

    def convolve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor:
        steps, reach = _each_axis(stride, dimensions), _each_axis(dilation, dimensions)
        sides = _sides(padding, weight, reach)
        if sides is None or not _serves(input, weight, bias, dimensions):
            return plain(input, weight, bias, stride, padding, dilation, groups)
        space = tuple(input.shape[2:])
        to = _Convolution(weight, space, steps, sides, reach, groups)
        found: Tensor = _Apply.apply(input, bias, to, False)
        return found

    return convolve


def transposed_convolution(dimensions: int) -> Callable[..., Tensor]:
    """`functional.conv_transpose1d`, `2d` or `3d`, for weights that are constants."""
    plain = _TRANSPOSED[dimensions - 1]

    def convolve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        dilation: int | Sequence[int] = 1,
    ) -> Tensor:
        if not _serves(input, weight, bias, dimensions):
            return plain(input, weight, bias, stride, padding, output_padding, groups, dilation)
        steps, reach, sides, rims = (
            _each_axis(value, dimensions) for value in (stride, dilation, padding, output_padding)
        )
        if any(rim >= step for rim, step in zip(rims, steps, strict=True)):
            # The rim is then no remainder of a division, and Lᵀ of no convolution.
            return plain(input, weight, bias, stride, padding, output_padding, groups, dilation)
        space = tuple(
            (count - 1) * step - 2 * side + far * (size - 1) + rim + 1
            for count, step, side, far, size, rim in zip(
                input.shape[2:], steps, sides, reach, weight.shape[2:], rims, strict=True
            )
        )
        to = _Convolution(weight, space, steps, sides, reach, groups)
        found: Tensor = _Apply.apply(input, bias, to, True)
        return found

    return convolve


def _serves(input: Tensor, weight: Tensor, bias: Tensor | None, dimensions: int) -> bool:
    """Whether there is a derivative to be taken, and by the input alone."""
    return (
        needs_own_derivative(input)
        and input.ndim == dimensions + 2
        and input.dtype == weight.dtype
        and _is_constant(weight)
        and _is_constant(bias)
    )


def _sides(
    padding: int | Sequence[int] | str, weight: Tensor, dilation: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Zeros on either side of each axis; None where the two sides differ."""
    kernel = weight.shape[2:]
    if not isinstance(padding, str):
        return _each_axis(padding, len(kernel))
    if padding == "valid":
        return tuple(0 for _ in kernel)
    both = [far * (size - 1) for far, size in zip(dilation, kernel, strict=True)]
    if padding != "same" or any(total % 2 for total in both):
        return None
    return tuple(total // 2 for total in both)
