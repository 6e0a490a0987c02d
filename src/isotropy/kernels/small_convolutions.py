"""Convolutions with few channels on a GPU: value and gradients by kernels of their own.

    value(x, w)      (n, maps, h', w')      y = w ∗ x
    to_images(g, w)  (n, channels, h, w)    ⟨g, w ∗ x⟩ = ⟨to_images(g, w), x⟩
    to_weight(x, g)  (maps, channels, …)    ⟨g, w ∗ x⟩ = ⟨to_weight(x, g), w⟩

Each is linear in both of its arguments, and the derivative of each by either is one of the other
two: three functions are closed under differentiation, any number of times. The bias goes with the
value, its gradient with that of the weight.

cuDNN's kernels are made for many channels; with few they take ten times what reading and writing
the images takes. A kernel that covers its whole image is a matrix, and left to `torch.mm`.

Under `torch.func.vmap` a new axis of the images, or of the gradient, is folded into their batch;
where the weight has one as well, each of its entries is taken by itself.

Axes: images (n, channels, height, width), weight (maps, channels, rows, columns). Oracle: torch's
own values and derivatives.

How the kernels of small convolutions cut up their work: geometry, strips, tiles.

    place    STRIP rows of the output in one column of one image
    k        (channel, row, column) of what a place reads: step·(STRIP − 1) + kernel rows

A longer strip reads fewer pixels for each row, and wastes more of a product whose sides are powers
of two, or the last strip of an image. The strip is chosen by what is fetched in all. Numbers only:
nothing here needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from isotropy.kernels.fused import imported, is_plain

Pair = tuple[int, int]

# Rows of a product on matrix units; strips fill them.
_LEAST = 16
_WIDEST = 32
# Warps of the weight's gradient: fixed, so that its sum does not depend on the device.
_WARPS = 4096
# How many k are written out in a program: the longer, the fewer are computed, and the longer it
# takes to compile.
_UNROLLED = {"tf32": 256, "ieee": 128, "double": 64}


@dataclass(frozen=True)
class Tiles:
    """How much a program takes: `positions` places at once, by so many warps.

    chunk: of the k at once, chosen by how many there are where it is 0
    stages: how many tiles are on their way from memory in a loop
    strip: rows of the output in a place, chosen by what is fetched where it is 0
    """

    positions: int
    warps: int
    chunk: int = 0
    stages: int = 1
    strip: int = 0


_VALUE_TILES = Tiles(positions=64, warps=2)
_WEIGHT_TILES = Tiles(positions=32, warps=1)
# Plain sums have all products of a tile in registers.
_DOUBLE_TILES = Tiles(positions=32, warps=4, chunk=16)
_DOUBLE_WEIGHT_TILES = Tiles(positions=16, warps=8)


def output_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    """Height and width of what a convolution leaves of `size`."""
    height, width = (
        (size[axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1)
    )
    return height, width


@dataclass(frozen=True)
class Geometry:
    """A convolution in space: from `size`, spread and with margins, to `to`."""

    size: Pair
    to: Pair
    kernel: Pair
    step: Pair
    spread: Pair
    padding: Pair

    def reach(self, strip: int) -> int:
        """Rows that a strip reads."""
        return (strip - 1) * self.step[0] + self.kernel[0]

    def strips(self, strip: int) -> int:
        """How many strips of this length an image has."""
        return -(-self.to[0] // strip)

    def inner(self, strip: int, channels: int) -> int:
        """How many k there are."""
        return channels * self.reach(strip) * self.kernel[1]

    def is_checked(self, strip: int) -> bool:
        """Whether a place may be read that is not there."""
        lengths = self.strips(strip) * strip, self.to[1]
        last = [
            (length - 1) * step + kernel - padding
            for length, step, kernel, padding in zip(
                lengths, self.step, self.kernel, self.padding, strict=True
            )
        ]
        beyond = any(end > length for end, length in zip(last, self.size, strict=True))
        return beyond or max(self.padding) > 0 or max(self.spread) > 1

    def constants(self, strip: int, channels: int, maps: int, tiles: Tiles) -> dict[str, Any]:
        """What both kernels are told."""
        return {
            "CHANNELS": channels, "HEIGHT": self.size[0], "WIDTH": self.size[1],
            "MAPS": maps, "TO_HEIGHT": self.to[0], "TO_WIDTH": self.to[1],
            "KERNEL_ROWS": self.kernel[0], "KERNEL_COLUMNS": self.kernel[1],
            "STEP": self.step[0], "STEP_ACROSS": self.step[1],
            "SPREAD": self.spread[0], "SPREAD_ACROSS": self.spread[1],
            "PADDING": self.padding[0], "PADDING_ACROSS": self.padding[1],
            "STRIP": strip, "STRIPS": self.strips(strip), "REACH": self.reach(strip),
            "CHECKED": self.is_checked(strip), "POSITIONS": tiles.positions,
            "num_warps": tiles.warps, "num_stages": tiles.stages,
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How a kernel runs: in how many programs of how many tiles, with which numbers."""

    programs: int
    steps: int
    strip: int
    rows: int
    columns: int
    constants: dict[str, Any]


def _padded(size: int) -> int:
    return max(_LEAST, 1 << (size - 1).bit_length())


@lru_cache(maxsize=256)
def value_plan(
    geometry: Geometry, count: int, channels: int, maps: int, precision: str, tiles: Tiles | None
) -> Plan:
    tiles = tiles or (_DOUBLE_TILES if precision == "double" else _VALUE_TILES)

    unrolled = _UNROLLED.get(precision, _UNROLLED["tf32"])

    def group(strip: int) -> int:
        """Channels at once; for the others the program runs through the same code again."""
        fitting = (size for size in range(1, channels + 1) if channels % size == 0)
        return max(each for each in fitting if each == 1 or geometry.inner(strip, each) <= unrolled)

    def cost(strip: int) -> int:
        """Pixels that are fetched for one column of an image."""
        each = group(strip)
        return geometry.strips(strip) * (channels // each) * -(-geometry.inner(strip, each) // 32)

    longest = max(1, min(geometry.to[0], _LEAST // maps))
    strip = tiles.strip or min(range(1, longest + 1), key=cost)
    each = group(strip)
    rows, inner = _padded(maps * strip), geometry.inner(strip, each)
    # Without matrix units both factors of a chunk are in registers. Longer chunks than these are
    # slower, and in full float32 compiled wrongly (Triton 3.6, sm_90: numbers never written).
    chunk = min(tiles.chunk or 32, 16 if precision == "ieee" else 32)
    constants = geometry.constants(strip, channels, maps, tiles)
    constants |= {"GROUP": each, "GROUPS": channels // each}
    constants |= {"ROWS": rows, "CHUNK": chunk, "CHUNKS": -(-inner // chunk)}
    places = count * geometry.strips(strip) * geometry.to[1]
    programs = -(-places // tiles.positions)
    return Plan(programs, 1, strip, rows, 0, constants | {"PRECISION": precision})


@lru_cache(maxsize=256)
def weight_plan(
    geometry: Geometry, count: int, channels: int, maps: int, precision: str, tiles: Tiles | None
) -> Plan:
    tiles = tiles or (_DOUBLE_WEIGHT_TILES if precision == "double" else _WEIGHT_TILES)

    def sizes(strip: int) -> Pair:
        return _padded(geometry.inner(strip, channels)), _padded(maps * strip)

    def cost(strip: int) -> int:
        """Numbers that are fetched for one column of an image, and products on matrix units."""
        rows, columns = sizes(strip)
        return geometry.strips(strip) * (rows + columns + rows * columns // 16)

    longest = max(1, min(geometry.to[0], _WIDEST // maps))
    strip = tiles.strip or min(range(1, longest + 1), key=cost)
    rows, columns = sizes(strip)
    if rows > 64 and tiles is _WEIGHT_TILES:
        tiles = replace(tiles, warps=4 if rows <= 128 else 8)
    constants = geometry.constants(strip, channels, maps, tiles)
    constants |= {"ROWS": rows, "COLUMNS": columns, "PRECISION": precision}
    pieces = -(-count * geometry.strips(strip) * geometry.to[1] // tiles.positions)
    steps = max(1, -(-pieces * tiles.warps // _WARPS))
    return Plan(-(-pieces // steps), steps, strip, rows, columns, constants)


__all__ = ["covers_input", "is_small", "small_convolution"]

_DTYPES = (torch.float32, torch.float64)
# Beyond these cuDNN's kernels, which share more, are the better ones.
_MOST_MAPS = 32
_MOST_INPUTS = 256
# Places are counted in 32 bits.
_MOST_PLACES = 2**31 - 2**16

_Sides = int | Sequence[int]


def is_small(
    images: Tensor,
    weight: Tensor,
    stride: _Sides = 1,
    padding: _Sides | str = 0,
    dilation: _Sides = 1,
    groups: int = 1,
) -> bool:
    """Whether `small_convolution` is the better choice: two axes, float32 on a GPU, few channels.

    Or a kernel that covers its whole image, of any size. Not within an export, a
    compilation or a transform of torch.func.
    """
    if not (images.is_cuda and weight.is_cuda and images.dtype == weight.dtype == torch.float32):
        return False
    if images.ndim != 4 or weight.ndim != 4 or groups != 1:
        return False
    if _pair(dilation) != (1, 1) or _pair(stride) != (1, 1):
        return False
    if is_plain() or torch.is_autocast_enabled("cuda"):
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    if isinstance(padding, str):
        return False
    if covers_input(images, weight, padding):
        return True
    maps, inputs = weight.shape[0], weight[0].numel()
    return (
        maps <= _MOST_MAPS
        and inputs <= _MOST_INPUTS
        and images.numel() < _MOST_PLACES
        and _shape(images, weight, stride, padding).has_output
        and _kernels() is not None
    )


def covers_input(images: Tensor, weight: Tensor, padding: _Sides) -> bool:
    """Whether the kernel is as large as the image with its margins: the output is one pixel."""
    sides = zip(images.shape[2:], _pair(padding), weight.shape[2:], strict=True)
    return all(length + 2 * margin == size for length, margin, size in sides)


def small_convolution(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Sides = 1,
    padding: _Sides = 0,
) -> Tensor:
    """`functional.conv2d`, differentiable any number of times by images, weight and bias.

    float32 in TF32 where `torch.backends.cudnn.allow_tf32` says so (as a matrix: where that of
    matrices does), or float64. Other types, and devices without Triton, are left to torch.
    """
    if covers_input(images, weight, padding):
        return _as_matrix(images, weight, bias, _pair(padding))
    shape = _shape(images, weight, stride, padding)
    is_served = images.dtype == weight.dtype and images.dtype in _DTYPES
    if not (is_served and shape.has_output and _kernels() is not None):
        return functional.conv2d(images, weight, bias, shape.stride, shape.padding)
    found: Tensor = _Value.apply(images, weight, bias, shape)
    return found


def transposed_convolution(
    maps: Tensor, weight: Tensor, size: Sequence[int], stride: _Sides, padding: _Sides
) -> Tensor:
    """The gradient of `small_convolution` by images (n, channels, *size), where its own is `maps`.

    A constant of autograd: what is differentiable calls it from within.
    """
    height, width = size
    shape = _Shape((height, width), _pair(weight.shape[2:]), _pair(stride), _pair(padding))
    return shape.to_images(maps, weight)


def _as_matrix(
    images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
) -> Tensor:
    # Of the kernel only what lies on the image: the rest meets zeros.
    for axis, margin in zip((2, 3), padding, strict=True):
        weight = weight.narrow(axis, margin, images.shape[axis])
    return functional.linear(images.flatten(1), weight.flatten(1), bias)[:, :, None, None]


def _kernels() -> ModuleType | None:
    """The kernels, or None where Triton is missing."""
    return imported("isotropy.kernels.convolution_kernels")


def _pair(value: _Sides) -> tuple[int, int]:
    first, last = (value, value) if isinstance(value, int) else (value[0], value[-1])
    return int(first), int(last)


@dataclass(frozen=True)
class _Shape:
    """What a convolution is apart from its numbers."""

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def has_output(self) -> bool:
        """Whether the kernel fits into the image with its margins, and is one."""
        sides = zip(self.size, self.padding, self.kernel, strict=True)
        return all(length + 2 * margin >= size > 0 for length, margin, size in sides)

    def value(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found: Tensor = _module().convolve(
            images, weight, bias, self.stride, self.padding, precision=_precision(images)
        )
        return found

    def to_images(self, gradient: Tensor, weight: Tensor) -> Tensor:
        shape = len(gradient), weight.shape[1], *self.size
        found: Tensor = _module().convolve_to_images(
            gradient, weight, shape, self.stride, self.padding, precision=_precision(gradient)
        )
        return found

    def to_weight(self, images: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _module().convolve_to_weight(
            images, gradient, self.kernel, self.stride, self.padding, precision=_precision(images)
        )
        return found


def _shape(images: Tensor, weight: Tensor, stride: _Sides, padding: _Sides) -> _Shape:
    height, width = images.shape[-2:]
    rows, columns = weight.shape[-2:]
    return _Shape((height, width), (rows, columns), _pair(stride), _pair(padding))


def _module() -> ModuleType:
    module = _kernels()
    assert module is not None
    return module


def _precision(tensor: Tensor) -> str:
    """How exactly the kernels multiply: as the caller lets cuDNN do it."""
    return "rounded" if tensor.is_cuda and torch.backends.cudnn.allow_tf32 else "ieee"


# --- the three functions ------------------------------------------------------------------


class _Bilinear(torch.autograd.Function):
    """What the three have in common: two tensors, perhaps a third, and a shape; what they keep."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        first, second, *_, ctx.shape = inputs
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)


class _Value(_Bilinear):
    """images, weight, bias or None → w ∗ x + bias."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, bias: Tensor | None, shape: _Shape) -> Tensor:
        return shape.value(images, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        images, weight = ctx.saved_tensors
        to_images = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_images = _ToImages.apply(gradient, weight, ctx.shape)
        if ctx.needs_input_grad[1]:
            to_weight, to_bias = _ToWeight.apply(images, gradient, ctx.shape)
        elif ctx.needs_input_grad[2]:
            to_bias = gradient.sum((0, 2, 3))
        return to_images, to_weight, to_bias if ctx.needs_input_grad[2] else None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        images, weight = ctx.saved_tensors
        images_dot, weight_dot, bias_dot, _ = tangents
        shape: _Shape = ctx.shape
        changes = []
        if images_dot is not None:
            changes.append(_Value.apply(images_dot, weight, None, ctx.shape))
        if weight_dot is not None:
            changes.append(_Value.apply(images, weight_dot, None, ctx.shape))
        if bias_dot is not None:
            pixels = output_size(shape.size, shape.kernel, shape.stride, shape.padding)
            changes.append(bias_dot[:, None, None].expand(len(images), -1, *pixels))
        return _total(changes)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        if dims[0] is not None and dims[1] is None and dims[2] is None:
            return _folded(_Value, info.batch_size, dims[0], *inputs), 0
        return _one_by_one(_Value, info.batch_size, dims, inputs), 0


class _ToImages(_Bilinear):
    """gradient, weight → the gradient to the images."""

    @staticmethod
    def forward(gradient: Tensor, weight: Tensor, shape: _Shape) -> Tensor:
        return shape.to_images(gradient, weight)

    @staticmethod
    def backward(ctx: Any, images: Tensor) -> Any:
        gradient, weight = ctx.saved_tensors
        to_gradient = to_weight = None
        if ctx.needs_input_grad[0]:
            to_gradient = _Value.apply(images, weight, None, ctx.shape)
        if ctx.needs_input_grad[1]:
            to_weight, _ = _ToWeight.apply(images, gradient, ctx.shape)
        return to_gradient, to_weight, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        gradient, weight = ctx.saved_tensors
        changes = []
        if tangents[0] is not None:
            changes.append(_ToImages.apply(tangents[0], weight, ctx.shape))
        if tangents[1] is not None:
            changes.append(_ToImages.apply(gradient, tangents[1], ctx.shape))
        return _total(changes)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        if dims[0] is not None and dims[1] is None:
            return _folded(_ToImages, info.batch_size, dims[0], *inputs), 0
        return _one_by_one(_ToImages, info.batch_size, dims, inputs), 0


class _ToWeight(_Bilinear):
    """images, gradient → the gradients to weight and bias."""

    @staticmethod
    def forward(images: Tensor, gradient: Tensor, shape: _Shape) -> tuple[Tensor, Tensor]:
        return shape.to_weight(images, gradient)

    @staticmethod
    def backward(ctx: Any, weight: Tensor, bias: Tensor) -> Any:
        images, gradient = ctx.saved_tensors
        to_images = to_gradient = None
        if ctx.needs_input_grad[0]:
            to_images = _ToImages.apply(gradient, weight, ctx.shape)
        if ctx.needs_input_grad[1]:
            to_gradient = _Value.apply(images, weight, bias, ctx.shape)
        return to_images, to_gradient, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        images, gradient = ctx.saved_tensors
        weight: list[Tensor] = []
        bias = gradient.new_zeros(gradient.shape[1])
        if tangents[0] is not None:
            weight.append(_ToWeight.apply(tangents[0], gradient, ctx.shape)[0])
        if tangents[1] is not None:
            change, bias = _ToWeight.apply(images, tangents[1], ctx.shape)
            weight.append(change)
        return _total(weight), bias

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _one_by_one(_ToWeight, info.batch_size, dims, inputs), (0, 0)


def _total(changes: list[Tensor]) -> Tensor:
    total = changes[0]
    for change in changes[1:]:
        total = total + change
    return total


def _folded(function: Any, size: int, dim: int, batched: Tensor, *others: Any) -> Any:
    """`function` with the new axis in the batch of its first argument."""
    rows = batched.movedim(dim, 0)
    return function.apply(rows.flatten(0, 1), *others).unflatten(0, (size, rows.shape[1]))


def _one_by_one(function: Any, size: int, dims: tuple[Any, ...], inputs: tuple[Any, ...]) -> Any:
    """`function` of each entry of the new axis, which is the first of the result."""
    found = [
        function.apply(
            *(
                each if dim is None else each.select(dim, index)
                for each, dim in zip(inputs, dims, strict=True)
            )
        )
        for index in range(size)
    ]
    if isinstance(found[0], tuple):
        return tuple(torch.stack(each) for each in zip(*found, strict=True))
    return torch.stack(found)
