"""Layers of maps on a point group H of the grid, elements in the channels: those `building` uses.

    f(c, h, x)     (batch, C·|H|, X, Y), elements fast         g: f(c, h, x) ↦ f(c, g⁻¹h, g⁻¹x)

so that maps can be added, concatenated along channels and pooled over pixels by code that does not
know of the group. Every layer here takes the place of a plain one and is made like it:

    PointGroupConv2d   y(c', h) = Σ_c (h·θ)(c', c) ⋆ f(c) + b(c')               if it lifts images
                       y(c', h) = Σ_k Σ_c (h·θ_k)(c', c) ⋆ f(c, h k) + b(c')    otherwise
    PerChannel         a norm: statistics and scales over elements and pixels together
    Downsampled        a layer at every pixel, of which one polyphase component stays (below)
    GroupPooling       z(c, x) = 1/|H| Σ_h f(c, h, h x)
    GroupHead          W z + b, of flattened maps

with (h·θ)(v) = θ(h⁻¹v) (Cohen and Welling 2016, Eq. 10 and 11). Under g the terms of GroupPooling
change places: z is invariant pixel by pixel, and a head may tell positions apart.
`pathways.group_convolution` has the circular convolutions of relaxed layers, elements slow.

**Polyphase down-sampling** has fewer pixels without losing equivariance to single-pixel shifts. A
map splits into f² components, one for each place in a cell of f × f pixels; of these the one with
the largest value stays,

    v_r(x, y) = v(f x + r₁, f y + r₂)        kept: r = argmax_r max_{c,x,y} |v_r(c, x, y)|

A circular shift of the map permutes the components and shifts them, and so do turns and reflections
of maps whose size is a multiple of f, so that the same content is kept wherever it lies (Chaman and
Dokmanić 2021; van der Ouderaa, Immer and van der Wilk 2023, F.2, with the l∞ norm). The choice is
made for each example alone, over all of its channels; the published code makes one choice for a
whole batch, by the largest signed value. With the l2 norm, Σ v_r² in place of max |v_r| (Chaman and
Dokmanić's own choice), components do not tie where values repeat, as they do after an overlapping
maximum or a saturated activation. The strides of relaxed layers are made so, too.

**Curvature.** A filter is shared by |H| elements and T positions. At h and x its inputs are the
patch at x with its pixels and elements moved by h⁻¹, a(h, x) = [f(c, h k, x + h u)]_{k,c,u}, and

    A = Σ_n Σ_{h,x} a aᵀ       G = 1/(|H|T) Σ_n Σ_d Σ_{h,x} ĝ ĝᵀ       block (1/N) G ⊗ A

for each of its groups of channels. Biases have exact blocks; norms and heads have the rules of the
layers inside. Tests write the sums and the blocks out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_axes, check_choice
from isotropy.curvature.blocks import KroneckerRoots, Roots
from isotropy.curvature.layer_rules import LayerRule, Use, bias_roots, register_rule
from isotropy.symmetry.groups.point_groups import PointGroup


class PointGroupConv2d(nn.Module):
    """A convolution of maps (batch, C·|H|, X, Y), elements fast; or of images, if it lifts.

    weight (C', C/groups, n, m) if it lifts, else (C', |H|, C/groups, n, m); bias (C',) or None.

    like:     the plain convolution: kernel, padding, stride, dilation, groups
    channels: C and C', for each element
    """

    products: Tensor
    quotients: Tensor

    def __init__(
        self, group: PointGroup, like: nn.Conv2d, channels: tuple[int, int], *, lifts: bool
    ) -> None:
        super().__init__()
        into, out = channels
        self.group, self.lifts = group, lifts
        self.groups = groups_of(like, into, out)
        self.padding, self.padding_mode = padding_of(like), like.padding_mode
        self.stride: tuple[int, ...] = like.stride
        self.dilation = like.dilation
        elements = () if lifts else (group.order,)
        sizes = (out, *elements, into // self.groups, *like.kernel_size)
        self.weight = nn.Parameter(like.weight.new_empty(sizes))
        self.bias = None if like.bias is None else nn.Parameter(like.bias.new_empty(out))
        # Row h: the places of h k for every k, and those of the k = h⁻¹h' for every h'.
        for name, places in (
            ("products", group.product),
            ("quotients", group.product[group.inverse]),
        ):
            self.register_buffer(name, places.to(like.weight.device), persistent=False)

    def filters(self) -> Tensor:
        """Filters of a plain convolution, (C'·|H|, C/groups or C/groups·|H|, n, m)."""
        moved = [self.group.act(self.weight, h) for h in range(self.group.order)]
        if self.lifts:
            return torch.stack(moved, 1).flatten(0, 1)
        seen = [each.index_select(1, k) for each, k in zip(moved, self.quotients, strict=True)]
        return torch.stack(seen, 1).transpose(2, 3).flatten(2, 3).flatten(0, 1)

    def forward(self, maps: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.repeat_interleave(self.group.order)
        padding = self.padding
        if self.padding_mode != "zeros":
            maps, padding = self._padded(maps), (0, 0)
        return functional.conv2d(
            maps, self.filters(), bias, self.stride, padding, self.dilation, self.groups
        )

    def patches(self, maps: Tensor) -> Tensor:
        """a(h, x), what a filter meets: (batch, groups, |H|, T, inputs), as `weight[0].flatten()`.

        inputs: [|H| ·] C/groups · n · m
        """
        windows = self._padded(maps)
        for axis, (stride, dilation) in enumerate(zip(self.stride, self.dilation, strict=True), 2):
            reach = dilation * (self.weight.shape[axis - 4] - 1) + 1
            windows = windows.unfold(axis, reach, stride)[..., ::dilation]
        elements = 1 if self.lifts else self.group.order
        # (batch, groups, C/groups, elements, X, Y, n, m), the positions in front of the elements
        parts = windows.unflatten(1, (self.groups, -1, elements)).permute(0, 1, 4, 5, 3, 2, 6, 7)
        moved = [
            self.group.act(parts if self.lifts else parts.index_select(4, self.products[h]), back)
            for h, back in enumerate(self.group.inverse.tolist())
        ]
        return torch.stack(moved, 2).flatten(5).flatten(3, 4)

    def _padded(self, maps: Tensor) -> Tensor:
        high, wide = self.padding
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(maps, (wide, wide, high, high), mode=mode)

    def extra_repr(self) -> str:
        return f"{self.group}, {tuple(self.weight.shape)}, lifts={self.lifts}"


class PointGroupConvRule(LayerRule):
    """`PointGroupConv2d`: one block for each group of channels, shared over h and positions."""

    parameters = ("weight", "bias")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """Gradients are (directions, batch, C'·|H|, X, Y)."""
        assert isinstance(module, PointGroupConv2d)
        order, groups = module.group.order, module.groups
        into = [module.patches(use.inputs).transpose(0, 1).flatten(1, 3) for use in uses]
        back = [use.gradient.flatten(3).unflatten(2, (groups, -1, order)) for use in uses]
        positions = sum(part[0, 0, 0, 0].numel() for part in back)
        rows = [part.permute(2, 0, 1, 4, 5, 3).flatten(1, 4) for part in back]
        weight = KroneckerRoots(torch.cat(into, 1), torch.cat(rows, 1) / math.sqrt(positions))
        if module.bias is None:
            return {"weight": weight}
        return {"weight": weight, "bias": bias_roots([b.sum((4, 5)).flatten(2) for b in back])}


register_rule(PointGroupConv2d, PointGroupConvRule())


class PerChannel(nn.Module):
    """A layer of maps (batch, C, X, Y) on (batch, C·|H|, X, Y): elements are further rows."""

    def __init__(self, layer: nn.Module, order: int) -> None:
        super().__init__()
        self.layer, self.order = layer, order

    def forward(self, maps: Tensor) -> Tensor:
        rows: Tensor = self.layer(maps.unflatten(1, (-1, self.order)).flatten(2, 3))
        return rows.unflatten(2, (self.order, -1)).flatten(1, 2)


Norm = Literal["max", "l2"]


class PolyphaseDownsampling(nn.Module):
    """Keeps the polyphase component with the largest norm; of equal ones the first.

    (batch, channels, X, Y) → (batch, channels, X/factor, Y/factor). Differentiable in the values
    that are kept; the choice is a constant of the derivative.

    factor: f, the pixels a side that one is kept of
    size:   (X, Y), if known, so that sizes that are not multiples of f are refused at once
    norm:   max takes the largest |value|, l2 the largest sum of squares
    """

    def __init__(
        self, factor: int, size: tuple[int, int] | None = None, *, norm: Norm = "max"
    ) -> None:
        super().__init__()
        if factor < 1:
            raise CallerError(f"polyphase factor: expected at least 1, got {factor}")
        self.factor = factor
        self.norm = check_choice(norm, ("max", "l2"), what="norm")
        if size is not None:
            self._check(*size)

    def _check(self, height: int, width: int) -> None:
        if height % self.factor or width % self.factor:
            parity = "even sizes" if self.factor == 2 else f"multiples of {self.factor}"
            raise CallerError(
                f"polyphase down-sampling by {self.factor}: expected maps of {parity}, got "
                f"{height}×{width}; pad or resize the images, so that every size that is divided "
                f"can be, or use stride 1 here"
            )

    def forward(self, maps: Tensor, by: Tensor | None = None) -> Tensor:
        """by: maps of the same height and width that choose; `maps` themselves if None."""
        check_axes(maps, ("batch", "channels", "height", "width"), what="maps")
        height, width = maps.shape[-2:]
        self._check(height, width)
        if self.factor == 1:
            return maps
        places = self._places((maps if by is None else by).detach())
        return (
            maps.flatten(2)
            .gather(2, places.expand(-1, maps.shape[1], -1))
            .unflatten(2, (height // self.factor, width // self.factor))
        )

    def _places(self, maps: Tensor) -> Tensor:
        """Which pixels are kept, (batch, 1, pixels), as places in the flattened map."""
        factor, (height, width) = self.factor, maps.shape[-2:]
        if self.norm == "max":
            cells = maps.abs().amax(1).unflatten(2, (-1, factor)).unflatten(1, (-1, factor))
            norms = cells.amax((1, 3))
        else:  # in double precision: the order of summation must not decide
            cells = maps.double().square().sum(1)
            norms = cells.unflatten(2, (-1, factor)).unflatten(1, (-1, factor)).sum((1, 3))
        chosen = norms.flatten(1).argmax(1)  # (batch,), r₁ slow
        first = torch.div(chosen, factor, rounding_mode="floor") * width + chosen % factor
        rows = torch.arange(0, height, factor, device=maps.device) * width
        columns = torch.arange(0, width, factor, device=maps.device)
        corners = (rows[:, None] + columns).flatten()
        return first[:, None, None] + corners

    def extra_repr(self) -> str:
        return f"factor={self.factor}"


class Downsampled(nn.Module):
    """A convolution or pooling at every pixel, of which one polyphase component stays.

    layer:  its stride becomes one
    factor: the pixels a side that one is kept of, in place of the stride

    Inputs choose the component where they are maps of the same size, so that a shortcut beside this
    layer keeps the same one; else outputs do.
    """

    def __init__(self, layer: PointGroupConv2d | nn.MaxPool2d | nn.AvgPool2d, factor: int) -> None:
        super().__init__()
        self.layer: nn.Module = layer
        layer.stride = (1, 1)
        self.sees_images = isinstance(layer, PointGroupConv2d) and layer.lifts
        self.downsampling = PolyphaseDownsampling(factor, norm="l2")

    def forward(self, maps: Tensor) -> Tensor:
        found = self.layer(maps)
        alike = not self.sees_images and maps.shape[2:] == found.shape[2:]
        return self.downsampling(found, by=maps if alike else found)


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
