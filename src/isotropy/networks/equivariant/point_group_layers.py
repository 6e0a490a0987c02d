"""Layers of maps on a point group H of the grid, elements in the channels: those `building` uses.

    f(c, h, x)     (batch, C·|H|, X, Y), elements fast         g: f(c, h, x) ↦ f(c, g⁻¹h, g⁻¹x)

so that maps can be added, concatenated along channels and pooled over pixels by code that does not
know of the group. Every layer here takes the place of a plain one and is made like it:

    PointGroupConv2d   y(c', h) = Σ_c (h·θ)(c', c) ⋆ f(c) + b(c')               if it lifts images
                       y(c', h) = Σ_k Σ_c (h·θ_k)(c', c) ⋆ f(c, h k) + b(c')    otherwise
    PerChannel         a norm: statistics and scales over elements and pixels together
    SymmetricPooling   pooling, of which one polyphase component stays
    GroupPooling       z(c, x) = 1/|H| Σ_h f(c, h, h x)
    GroupHead          W z + b, of flattened maps

with (h·θ)(v) = θ(h⁻¹v) (Cohen and Welling 2016, Eq. 10 and 11). `group_pathways` has the circular
ones of relaxed layers, elements slow, with curvature rules. Under g the terms of GroupPooling
change places: z is invariant pixel by pixel, and a head may tell positions apart. Tests are in
tests/networks/test_building.py, with the sums written out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.networks.pathways.small_layers import PolyphaseDownsampling
from isotropy.symmetry.groups.point_groups import PointGroup


class PointGroupConv2d(nn.Module):
    """A convolution of maps (batch, C·|H|, X, Y), elements fast; or of images, if it lifts.

    weight (C', C/groups, n, m) if it lifts, else (C', |H|, C/groups, n, m); bias (C',) or None.

    like:     the plain convolution: kernel, padding, stride, dilation, groups
    channels: C and C', for each element
    factor:   keep one polyphase component of so many pixels a side, in place of the stride; inputs
              choose it where they are maps of the same size, so that a shortcut beside this layer
              keeps the same one
    """

    quotients: Tensor

    def __init__(
        self,
        group: PointGroup,
        like: nn.Conv2d,
        channels: tuple[int, int],
        *,
        lifts: bool,
        factor: int = 1,
    ) -> None:
        super().__init__()
        into, out = channels
        self.group, self.lifts = group, lifts
        self.groups = groups_of(like, into, out)
        self.padding, self.padding_mode = padding_of(like), like.padding_mode
        self.stride = like.stride if factor == 1 else (1, 1)
        self.dilation = like.dilation
        self.downsampling = PolyphaseDownsampling(factor, norm="l2") if factor > 1 else None
        elements = () if lifts else (group.order,)
        sizes = (out, *elements, into // self.groups, *like.kernel_size)
        self.weight = nn.Parameter(like.weight.new_empty(sizes))
        self.bias = None if like.bias is None else nn.Parameter(like.bias.new_empty(out))
        # Row h: the places of the k = h⁻¹h' for every h'.
        quotients = group.product[group.inverse].to(like.weight.device)
        self.register_buffer("quotients", quotients, persistent=False)

    def filters(self) -> Tensor:
        """Filters of a plain convolution, (C'·|H|, C/groups or C/groups·|H|, n, m)."""
        moved = [self.group.act(self.weight, h) for h in range(self.group.order)]
        if self.lifts:
            return torch.stack(moved, 1).flatten(0, 1)
        seen = [each.index_select(1, k) for each, k in zip(moved, self.quotients, strict=True)]
        return torch.stack(seen, 1).transpose(2, 3).flatten(2, 3).flatten(0, 1)

    def forward(self, maps: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.repeat_interleave(self.group.order)
        (high, wide), padded = self.padding, maps
        if self.padding_mode != "zeros":
            padded = functional.pad(maps, (wide, wide, high, high), mode=self.padding_mode)
            high, wide = 0, 0
        found = functional.conv2d(
            padded, self.filters(), bias, self.stride, (high, wide), self.dilation, self.groups
        )
        if self.downsampling is None:
            return found
        alike = not self.lifts and maps.shape[2:] == found.shape[2:]
        return self.downsampling(found, by=maps if alike else found)

    def extra_repr(self) -> str:
        return f"{self.group}, {tuple(self.weight.shape)}, lifts={self.lifts}"


class PerChannel(nn.Module):
    """A layer of maps (batch, C, X, Y) on (batch, C·|H|, X, Y): elements are further rows."""

    def __init__(self, layer: nn.Module, order: int) -> None:
        super().__init__()
        self.layer, self.order = layer, order

    def forward(self, maps: Tensor) -> Tensor:
        rows: Tensor = self.layer(maps.unflatten(1, (-1, self.order)).flatten(2, 3))
        return rows.unflatten(2, (self.order, -1)).flatten(1, 2)


class SymmetricPooling(nn.Module):
    """Pooling at every pixel, of which one polyphase component stays, chosen by the inputs."""

    def __init__(self, pooling: nn.MaxPool2d | nn.AvgPool2d, factor: int) -> None:
        super().__init__()
        self.pooling = copy.deepcopy(pooling)
        self.pooling.stride = 1
        self.downsampling = PolyphaseDownsampling(factor, norm="l2")

    def forward(self, maps: Tensor) -> Tensor:
        found = self.pooling(maps)
        return self.downsampling(found, by=maps if maps.shape == found.shape else found)


class GroupPooling(nn.Module):
    """z(c, x) = 1/|H| Σ_h f(c, h, h x): (batch, C·|H|, X, Y) → (batch, C, X, Y), invariant."""

    def __init__(self, group: PointGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, maps: Tensor) -> Tensor:
        parts = maps.unflatten(1, (-1, self.group.order)).unbind(2)
        back = self.group.inverse.tolist()
        aligned = [self.group.act(part, h) for part, h in zip(parts, back, strict=True)]
        return torch.stack(aligned).mean(0)


class GroupHead(nn.Module):
    """A linear layer on pooled maps: (batch, before + C·|H|·X·Y + after) → (batch, outputs).

    size: (C, X, Y) of the maps that were flattened; before: features in front of them
    """

    def __init__(
        self, linear: nn.Linear, group: PointGroup, size: tuple[int, int, int], before: int
    ) -> None:
        super().__init__()
        self.linear, self.size, self.before = linear, size, before
        self.pooling = GroupPooling(group)

    def forward(self, features: Tensor) -> Tensor:
        channels, height, width = self.size
        order, pixels = self.pooling.group.order, height * width
        wanted = self.linear.in_features + (order - 1) * channels * pixels
        if features.shape[1:] != (wanted,):
            raise CallerError(
                f"head of {order} elements: expected (batch, {wanted}) features, got "
                f"{tuple(features.shape)}; flatten maps with x.flatten(1), which fixes no number"
            )
        maps = features[:, self.before : self.before + channels * order * pixels]
        pooled = self.pooling(maps.unflatten(1, (-1, height, width))).flatten(1)
        front, behind = features[:, : self.before], features[:, self.before + maps.shape[1] :]
        return self.linear(torch.cat([front, pooled, behind], 1))


# --- like the plain ones ----------------------------------------------------------------------


def pair_of(value: Any) -> tuple[int, int]:
    """One number for both axes, or two."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def padding_of(module: nn.Conv2d) -> tuple[int, int]:
    """Pixels above and below, left and right."""
    if not isinstance(module.padding, str):
        return pair_of(module.padding)
    reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    if module.padding == "valid":
        return 0, 0
    if any(each % 2 for each in reach):
        raise CallerError(
            "padding 'same' of an even kernel has no centre; pad by a number of pixels"
        )
    return reach[0] // 2, reach[1] // 2


def polyphase_factor(group: PointGroup, module: Any, size: Sequence[int]) -> int:
    """One where a layer's outputs lie symmetrically on maps (height, width), else its stride.

    module: nn.Conv2d, nn.MaxPool2d or nn.AvgPool2d; raises CallerError where neither can be
    """
    padding = padding_of(module) if isinstance(module, nn.Conv2d) else pair_of(module.padding)
    kernel, stride = pair_of(module.kernel_size), pair_of(module.stride)
    dilation = pair_of(getattr(module, "dilation", 1))
    pairs = (kernel, stride, padding, dilation)
    if group.exchanges_axes and any(across != down for down, across in pairs):
        raise CallerError(
            "expected the same kernel, stride, padding and dilation along both axes, which "
            f"{group} exchanges, got {pairs}"
        )
    places = [
        side + 2 * rim - reach * (length - 1)
        for side, rim, reach, length in zip(size, padding, dilation, kernel, strict=True)
    ]
    moved = [any(abs(h[i][i] - 1) for h in group.matrices) for i in (1, 0)]
    offs = [(n - 1) % s for n, s in zip(places, stride, strict=True)]
    if not any(off and is_moved for off, is_moved in zip(offs, moved, strict=True)):
        return 1
    whole = not any(n % s for n, s in zip(places, stride, strict=True))
    if stride[0] == stride[1] and whole and not getattr(module, "ceil_mode", False):
        return stride[0]
    raise CallerError(
        f"its stride {stride} on maps of {size[0]}×{size[1]} takes pixels that {group} does not "
        "map onto each other; take images of another size, or a stride that divides the maps"
    )


def groups_of(like: nn.Conv2d, into: int, out: int) -> int:
    """Groups of channels of a narrower convolution: one a channel as before, or as many as fit."""
    wanted = into if like.groups == like.in_channels else like.groups
    return math.gcd(wanted, into, out)


@torch.no_grad()
def draw_like(new: Any, old: Any, generator: torch.Generator | None) -> None:
    """Weights of the old spread, relative to 1/√inputs; biases of the old mean and spread."""
    fewer = old.weight[0].numel() / new.weight[0].numel()
    place = "cpu" if generator is None else generator.device

    def drawn(shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, device=place)

    spread = float(old.weight.square().mean().sqrt())
    new.weight.copy_(drawn(new.weight.shape) * spread * fewer**0.5)
    if new.bias is not None:
        spread, mean = float(old.bias.std(unbiased=False)), float(old.bias.mean())
        new.bias.copy_(drawn(new.bias.shape) * spread + mean)


def narrowed(module: nn.Module, narrow: Callable[[int], int]) -> nn.Module:
    """A copy of a layer of channels with fewer of them, and no statistics of maps."""
    found: Any = copy.deepcopy(module)
    for name in ("num_features", "num_channels", "num_parameters"):
        if getattr(found, name, 1) > 1:
            setattr(found, name, narrow(getattr(found, name)))
    for name, own in [*found.named_parameters(), *found.named_buffers()]:
        if own.numel() > 1:
            fewer = own.detach()[: narrow(own.numel())].clone()
            is_weight = isinstance(own, nn.Parameter)
            setattr(found, name, nn.Parameter(fewer, own.requires_grad) if is_weight else fewer)
    if isinstance(found, nn.GroupNorm):
        found.num_groups = math.gcd(found.num_groups, found.num_channels)
    if isinstance(found, nn.BatchNorm2d | nn.InstanceNorm2d):
        found.reset_running_stats()
    return found
