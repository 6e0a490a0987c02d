"""What stands in for torch's operations while weights are trained on a GPU: kernels for small ones.

    conv2d       few channels, or a kernel that covers its image      `small_convolutions`
    max_pool2d   windows that lie side by side                        `pooling`
    pad          maps that are continued periodically                 `circular_padding`

torch's own are made for many channels and for windows that overlap. Values and derivatives are the
same up to rounding, and everything else stays torch's. On a CPU and on the reference path (`fused`)
nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isotropy.curvature.circular_padding import CIRCULAR
from isotropy.curvature.max_pooling import windows_side_by_side
from isotropy.curvature.plain_operations import StandIns, Stands
from isotropy.curvature.small_convolutions import is_small, small_convolution
from isotropy.fused import fused_module, is_plain


def swift_operations(device: torch.device) -> AbstractContextManager[Any]:
    """Within this context operations on `device` are by the faster kernel, where there is one."""
    if device.type != "cuda" or is_plain():
        return nullcontext()
    return StandIns(SWIFT)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str) or not is_small(input, weight, stride, padding, dilation, groups):
        return functional.conv2d(input, weight, bias, stride, padding, dilation, groups)
    return small_convolution(input, weight, bias, stride, padding)


def _max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    size = windows_side_by_side(kernel_size, stride, padding, dilation, ceil_mode)
    kernels = None
    if size is not None and input.ndim == 4 and not return_indices:
        kernels = fused_module("isotropy.curvature.pooling", input)
    if size is None or kernels is None or not kernels.can_pool(input, *size):
        plain: Any = functional.max_pool2d
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return kernels.pool(input, *size)


SWIFT: Stands = {
    **CIRCULAR,
    functional.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
}
