"""Layers without weights that pathways need: fewer pixels, and a bias for every channel and pixel.

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
maximum or a saturated activation.

**A bias map**, y(c, x) = x(c, x) + b(c, x), is what is left of a pathway that hears nothing.
Pathways are affine. One whose weights are gone can still add a constant, and where that differs
from place to place it tells later layers where things are. Hardening keeps it as this layer, with
C·X·Y numbers; or C, if the constant is the same everywhere. Its curvature rule is beside it.

Axes: maps (batch, channels, height, width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_axes, check_choice, shape_text
from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule

NOTHING = 1e-6
"""Largest entry up to which a constant counts as none, and differences as equality."""


class BiasMap(nn.Module):
    """Adds `bias` (C, X, Y), or (C, 1, 1), to maps (batch, C, X, Y)."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        if bias.ndim != 3:
            raise CallerError(
                f"bias map: expected (channels, height, width), got {shape_text(bias)}"
            )
        self.bias = nn.Parameter(bias.detach().clone())

    @classmethod
    def of(cls, constant: Tensor) -> BiasMap | None:
        """The map of a constant (C, X, Y), of one pixel if all are equal; None if it is zero."""
        means = constant.mean((1, 2), keepdim=True)
        if constant.abs().max() <= NOTHING:
            return None
        return cls(means if varying_part(constant).abs().max() <= NOTHING else constant)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.bias

    def extra_repr(self) -> str:
        return "×".join(map(str, self.bias.shape))


def varying_part(constant: Tensor) -> Tensor:
    """A constant (C, X, Y) without the mean of each channel: what differs from place to place."""
    return constant - constant.mean((1, 2), keepdim=True)


class _BiasMapRule(LayerRule):
    """With a bias for every pixel G ⊗ I, G = (1/T) Σ_n Σ_t ĝ ĝᵀ over the T pixels: that is a
    linear layer on inputs which say the place, whose A is N times the identity. With one for all
    the exact block of gradients summed over pixels."""

    parameters = ("bias",)

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        return inputs.new_zeros(())  # the gradient alone says everything

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        assert isinstance(module, BiasMap)
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient).flatten(3)
        if module.bias[0].numel() == 1:
            return {"bias": DenseRoots(total.sum(-1).flatten(0, 1))}
        _, batch, _, places = total.shape
        every = math.sqrt(batch) * torch.eye(places, dtype=total.dtype, device=total.device)
        rows = total.mT.flatten(0, 2) / math.sqrt(places)
        return {"bias": KroneckerRoots(every[None], rows[None])}


register_rule(BiasMap, _BiasMapRule())


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
