"""Group convolutions: equivariant to translations and to a point group H of the grid at once.

Maps have an axis of group elements, f(h, c, x), all in the frame of the image: the group acts by
(g·f)(h, c, x) = f(g⁻¹h, c, g⁻¹x) (`groups.point_groups`), translations shift all h alike. With
filters θ_k moved by h, (h·θ)(v) = θ(h⁻¹v), and all axes circular,

    y(h, c', x) = Σ_k Σ_c Σ_v (h·θ_k)(c', c, v) f(h k, c, x + v) + b(c')

commutes with both: (g·f) has f(g⁻¹hk, c, g⁻¹x + g⁻¹v) there, which is what y(g⁻¹h, c', g⁻¹x) sums.
The element k multiplies from the right; h on the other side would not commute with g. Forms
(van der Ouderaa, Immer and van der Wilk 2023, F.3 and Table 7), one or several of these in a row:

    pointwise   k = 1 only                                     C'C·n² + C'
    full        all k                                          |H|·C'C·n² + C'
    separable   k = 1, channel by channel; all k, one pixel    C·n² + C, |H|·C'C + C'
    depthwise   k = 1, channel by channel; all k, one pixel, channel by channel; k = 1, one pixel
                                                               C·n² + C, |H|·C + C, C'C + C'

for C and C' channels an element and n × n pixels a filter; counts are as in Table 7 (the published
139,735 of the depthwise form should be 139,725). The published code turns the |H| copies of the
image instead of the filters, a frame in which translations do not act on all h alike.

A filter is shared by |H| elements and T positions, in whose frame its inputs are patches
a(h, t) = [f(h k, c, x + h u)]_{k,c,u}:

    A = Σ_n Σ_{h,t} a aᵀ       G = 1/(|H|T) Σ_n Σ_d Σ_{h,t} ĝ ĝᵀ       block (1/N) G ⊗ A

and biases have exact blocks. Axes: maps (batch, |H|·C, X, Y), elements slow. Tests write blocks out
densely, one element and one position at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.blocks import KroneckerRoots, Roots
from isotropy.curvature.layer_rules import LayerRule, Use, bias_roots, register_rule
from isotropy.networks.pathways.pathway import (
    LayerShape,
    Pathway,
    check_kernel,
    circular_convolution,
)
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.point_groups import PointGroup

FORMS = ("pointwise", "full", "separable", "depthwise")


class GroupConvolution(nn.Module):
    """y(h) = Σ_k (h·θ_k) ⋆ f(hk) + b, (batch, |H|·C, X, Y) → (batch, |H|·C', X, Y), circular.

    weight (C', C/blocks, n, n), or (C', |H|, C/blocks, n, n) if `mixes`; bias (C',). In this order
    `weight.flatten(1)` is the matrix that multiplies patches.

    channels: C and C', for each element of the group
    kernel:   n, odd
    mixes:    whether outputs at h see inputs at all hk, or at h alone
    blocks:   groups of channels that do not see each other, C for one filter a channel
    """

    products: Tensor
    quotients: Tensor

    def __init__(
        self,
        group: PointGroup,
        channels: tuple[int, int],
        kernel: int,
        *,
        mixes: bool = False,
        blocks: int = 1,
    ) -> None:
        super().__init__()
        into, out = channels
        self.group, self.channels, self.kernel = group, channels, kernel
        self.mixes, self.blocks = mixes, blocks
        elements = (group.order,) if mixes else ()
        self.weight = nn.Parameter(torch.empty(out, *elements, into // blocks, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.zeros_(self.weight)
        # Row h: the places of h k for every k, and those of the k = h⁻¹h' for every h'.
        device = self.weight.device
        quotients = group.product[group.inverse]
        self.register_buffer("products", group.product.to(device), persistent=False)
        self.register_buffer("quotients", quotients.to(device), persistent=False)

    def filters(self) -> Tensor:
        """All filters, in place of a plain convolution's weight.

        (|H|·C', C/blocks, n, n) for |H|·blocks groups; if `mixes`, (blocks·|H|·C'/blocks,
        |H|·C/blocks, n, n) for `blocks` groups of channels ordered as (blocks, H, C/blocks).
        """
        moved = [self.group.act(self.weight, h) for h in range(self.group.order)]
        if not self.mixes:
            return torch.cat(moved)
        # (blocks, C'/blocks, H', C/blocks, n, n) for each h
        parts = [
            each.index_select(1, places).unflatten(0, (self.blocks, -1))
            for each, places in zip(moved, self.quotients, strict=True)
        ]
        return torch.stack(parts, 1).flatten(3, 4).flatten(0, 2)

    def forward(self, maps: Tensor) -> Tensor:
        order, blocks = self.group.order, self.blocks
        bias = self.bias.repeat(order)
        if not self.mixes:
            return functional.conv2d(
                self._padded(maps), self.filters(), bias, groups=order * blocks
            )
        if blocks == 1:
            return functional.conv2d(self._padded(maps), self.filters(), bias)
        maps = _exchanged(maps, order, blocks)
        maps = functional.conv2d(self._padded(maps), self.filters(), groups=blocks)
        return _exchanged(maps, blocks, order) + bias[:, None, None]

    def _padded(self, maps: Tensor) -> Tensor:
        return _padded(maps, self.kernel)

    def dense_filters(self) -> Tensor:
        """The layer as one convolution of all channels, (|H|·C', |H|·C, n, n), with zeros."""
        order, blocks, (into, out) = self.group.order, self.blocks, self.channels
        groups = blocks if self.mixes else order * blocks
        parts = self.filters().unflatten(0, (groups, -1))
        eye = torch.eye(groups, dtype=parts.dtype, device=parts.device)
        written = eye[:, None, :, None, None, None] * parts[:, :, None]
        written = written.flatten(2, 3).flatten(0, 1)
        if not self.mixes:
            return written
        places = _exchanged(torch.arange(order * out)[None, :, None, None], blocks, order)
        sources = _exchanged(torch.arange(order * into)[None, :, None, None], blocks, order)
        return written[places.flatten().to(written.device)][:, sources.flatten().to(written.device)]

    def plain(self) -> nn.Conv2d:
        """The same as an ordinary convolution, with every filter written out. A copy."""
        bias = self.bias.repeat(self.group.order)
        if self.mixes:
            return circular_convolution(self.dense_filters(), bias)
        return circular_convolution(self.filters(), bias, self.group.order * self.blocks)

    def extra_repr(self) -> str:
        into, out = self.channels
        return (
            f"{self.group}, {into} → {out}, kernel={self.kernel}, mixes={self.mixes}, "
            f"blocks={self.blocks}"
        )


class GroupConvolutionRule(LayerRule):
    """`GroupConvolution`: one block for each group of channels, shared over h and positions."""

    parameters = ("weight", "bias")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """A from patches in the frame of the filter, G from gradients at all h and positions."""
        assert isinstance(module, GroupConvolution)
        into = [_patches(module, use.inputs) for use in uses]
        back = [_by_position(module, use.gradient) for use in uses]
        positions = sum(module.group.order * use.inputs[0, 0].numel() for use in uses)
        sums = [use.gradient.unflatten(2, (module.group.order, -1)).sum((2, 4, 5)) for use in uses]
        return {
            "weight": KroneckerRoots(_rows(into), _rows(back) / math.sqrt(positions)),
            "bias": bias_roots(sums),
        }


register_rule(GroupConvolution, GroupConvolutionRule())


def _patches(module: GroupConvolution, maps: Tensor) -> Tensor:
    """What filters meet, f(hk) moved by h⁻¹: (blocks, rows, C/blocks·n²), |H| times if it mixes."""
    group, kernel = module.group, module.kernel
    parts = maps.unflatten(1, (group.order, -1))
    moved = []
    for h, back in enumerate(group.inverse.tolist()):
        seen = parts.index_select(1, module.products[h]) if module.mixes else parts[:, h : h + 1]
        moved.append(group.act(seen, back))
    framed = torch.stack(moved, 1)  # (batch, H, seen, C, X, Y)
    windows = _padded(framed.flatten(1, 3), kernel).unfold(2, kernel, 1).unfold(3, kernel, 1)
    windows = windows.unflatten(1, (*framed.shape[1:3], module.blocks, -1))
    # (batch, H, seen, blocks, C/blocks, X, Y, n, n)
    return windows.permute(3, 0, 1, 5, 6, 2, 4, 7, 8).flatten(5).flatten(1, 4)


def _by_position(module: GroupConvolution, gradient: Tensor) -> Tensor:
    """(directions, batch, |H|·C', X, Y) → (blocks, rows, C'/blocks)."""
    parts = gradient.unflatten(2, (module.group.order, module.blocks, -1))
    return parts.permute(3, 0, 1, 2, 5, 6, 4).flatten(1, 5)


def _rows(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), 1) if len(parts) > 1 else parts[0]


def _padded(maps: Tensor, kernel: int) -> Tensor:
    reach = kernel // 2
    return functional.pad(maps, (reach,) * 4, mode="circular") if reach else maps


def _exchanged(maps: Tensor, slow: int, fast: int) -> Tensor:
    """Channels (slow, fast, rest) → (fast, slow, rest)."""
    return maps.unflatten(1, (slow, fast, -1)).transpose(1, 2).flatten(1, 3)


class GroupConvolutionPathway(Pathway):
    """A group convolution between maps with |H|·C and |H|·C' channels, in one of four forms.

    group:     H, or what `PointGroup.of` makes it of
    form:      pointwise, full, separable or depthwise, see above
    kernel:    height and width of filters, odd
    generator: draws filters, kaiming-uniform for ReLU; those of one pixel that mix elements channel
               by channel start as means, 1/|H|, as published. (So do those that mix channels too
               there, 1/(|H|√C): all outputs are then equal, and one ReLU silences a whole stage.)
               Biases start at 0.

    Outputs have the source's size; the layer keeps one polyphase component where that is not the
    target's.
    """

    kind = "gconv"

    def __init__(
        self,
        shape: LayerShape,
        group: PointGroup | Group | str,
        *,
        form: str = "pointwise",
        kernel: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(shape)
        self.group = PointGroup.of(group)
        self.form = check_choice(form, FORMS, what="form of group convolution")
        _check(shape, self.group, kernel)
        into, out = (size[0] // self.group.order for size in (shape.source, shape.target))
        self.steps = nn.ModuleDict(_steps(self.group, self.form, into, out, kernel))
        for step in self.members():
            if step.mixes and step.kernel == 1 and step.blocks > 1:
                nn.init.constant_(step.weight, 1 / step.group.order)
            else:
                nn.init.kaiming_uniform_(step.weight, nonlinearity="relu", generator=generator)
        self.weights = tuple(f"steps.{name}.weight" for name in self.steps)
        self.scaled = tuple(f"steps.{[*self.steps][-1]}.{each}" for each in ("weight", "bias"))
        self.reaches_target = shape.stride == 1

    def members(self) -> tuple[GroupConvolution, ...]:
        """The convolutions of this form, in order."""
        return tuple(each for each in self.steps.values() if isinstance(each, GroupConvolution))

    def forward(self, maps: Tensor) -> Tensor:
        for step in self.members():
            maps = step(maps)
        return maps

    @torch.no_grad()
    def absorb_(self, means: Tensor) -> bool:
        """Add to the last bias, which copies of a channel share: their mean."""
        self.members()[-1].bias.add_(means.unflatten(0, (self.group.order, -1)).mean(0))
        return True

    def plain(self) -> nn.Module:
        """nn.Conv2d with every moved filter written out: |H| times the parameters, or more where
        elements mix. Two in a row for separable and depthwise forms, whose convolutions of one
        pixel are multiplied."""
        first, *others = self.members()
        found = first.plain()
        if not others:
            return found
        last = others[0].plain() if len(others) == 1 else _composed(*others)
        return nn.Sequential(found, last)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.group}, {self.form}"


def _steps(
    group: PointGroup, form: str, into: int, out: int, kernel: int
) -> dict[str, GroupConvolution]:
    """The convolutions of a form, by name."""
    if form in ("pointwise", "full"):
        mixes = form == "full"
        return {"convolution": GroupConvolution(group, (into, out), kernel, mixes=mixes)}
    spatial = GroupConvolution(group, (into, into), kernel, blocks=into)
    if form == "separable":
        mixing = GroupConvolution(group, (into, out), 1, mixes=True)
        return {"spatial": spatial, "mixing": mixing}
    return {
        "spatial": spatial,
        "mixing": GroupConvolution(group, (into, into), 1, mixes=True, blocks=into),
        "channels": GroupConvolution(group, (into, out), 1),
    }


def _composed(first: GroupConvolution, second: GroupConvolution) -> nn.Conv2d:
    """Two convolutions of one pixel in a row as one."""
    inner, outer = (each.dense_filters()[:, :, 0, 0] for each in (first, second))
    order = first.group.order
    bias = outer @ first.bias.repeat(order) + second.bias.repeat(order)
    return circular_convolution((outer @ inner)[:, :, None, None], bias)


def _check(shape: LayerShape, group: PointGroup, kernel: int) -> None:
    """Raise where the group, the filters and the maps do not fit together."""
    check_kernel(kernel, shape)
    for what, (channels, height, width) in (("source", shape.source), ("target", shape.target)):
        if channels % group.order or channels < 1:
            below = channels // group.order * group.order
            near = f"{below} or {below + group.order}" if below else f"{group.order}"
            raise CallerError(
                f"group convolution over {group}, {what}: expected a multiple of the group's "
                f"{group.order} elements as channels, got {channels}; take {near}, and lift images "
                f"by repeating their channels {group.order} times"
            )
        if group.exchanges_axes and height != width:
            raise CallerError(
                f"group convolution over {group}, {what}: expected square maps, since elements "
                f"exchange the axes, got {height}×{width}; cut or resize the images, or choose "
                "D(2) or one of its subgroups"
            )
