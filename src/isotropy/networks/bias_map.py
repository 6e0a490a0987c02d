"""A bias of its own for every channel and pixel: what is left of a pathway that hears nothing.

    y(c, x) = x(c, x) + b(c, x)          (batch, C, X, Y) → the same

Pathways are affine. One whose weights are gone can still add a constant, and where that differs
from place to place it tells later layers where things are. Hardening keeps it as this layer, with
C·X·Y numbers; or C, if the constant is the same everywhere. Its curvature rule is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, shape_text
from isotropy.curvature.copies import Copies
from isotropy.curvature.kronecker import DenseRoots, KroneckerRoots, Roots
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
