"""A pathway: one linear map of feature maps, with a symmetry of its own, of several in one layer.

    y = Σ_p pathway_p(x)        x (batch, C, X, Y)        y (batch, C', X', Y')

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 4 and 11.) A layer is the sum of its pathways
(`pathways.RelaxedLayer`): a convolution, which is equivariant to translations, and others that are
not or to something else. Each has a Gaussian prior; where its variance is zero so is the pathway,
and what is left has its symmetry exactly (Eq. 8). Each kind of pathway lies in a file with the
curvature rules of its parameters: `fully_connected`, `convolution`,
`sparse`, `group_convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError

MapSize = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True)
class LayerShape:
    """Sizes of the maps a layer is between: source (C, X, Y) and target (C', X', Y')."""

    source: MapSize
    target: MapSize

    @property
    def stride(self) -> int:
        """X / X', the same for both axes.

        Raises CallerError where sizes are not multiples, or differently so.
        """
        (_, height, width), (_, rows, columns) = self.source, self.target
        factor = height // max(rows, 1)
        if (rows * factor, columns * factor) != (height, width) or factor < 1:
            raise CallerError(
                f"expected an output size that divides the input size {height}×{width} by one "
                f"whole number, got {rows}×{columns}"
            )
        return factor


class Pathway(nn.Module):
    """One pathway (batch, C, X, Y) → (batch, C', X', Y'); subclasses say how.

    kind:           its name in words, command lines and records
    shape:          what the layer maps between
    reaches_target: whether outputs have the target's size; if not they have the source's, and the
                    layer keeps one polyphase component of them
    weights:        names of the parameters whose curvature says how much the pathway is used; all
                    but biases and what shapes filters
    shaping:        names of the parameters that shape filters and do not scale them
    """

    kind: ClassVar[str]
    weights: Sequence[str]
    shaping: Sequence[str] = ()
    reaches_target: bool

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape

    def scale_(self, factor: float) -> None:
        """Multiply all outputs by `factor`, by changing parameters. Zero leaves a pathway that
        gives zeros and can still learn: some parameter has a gradient."""
        raise NotImplementedError

    @torch.no_grad()
    def zero_(self) -> None:
        """Set all parameters to zero but those that shape filters. Unlike `scale_(0.0)`, which
        some parameter could undo."""
        for name, parameter in self.named_parameters():
            if name not in self.shaping:
                parameter.zero_()

    @torch.no_grad()
    def constant(self) -> Tensor:
        """What the pathway adds whatever the inputs are, its outputs for zeros: (C', X', Y'), or
        (C', X, Y) if it does not reach the target's size."""
        like = next(self.parameters())
        found: Tensor = self(torch.zeros(1, *self.shape.source, dtype=like.dtype).to(like.device))
        return found[0]

    def absorb_(self, means: Tensor) -> bool:
        """Add `means` (C',) to all pixels of the outputs, by changing parameters, if there are any
        for it; whether there are. Pathways that are bound to a symmetry add what it allows."""
        return False

    def plain(self) -> nn.Module:
        """Ordinary layers with the same outputs, without what only learning needs. A copy."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        before, after = ("×".join(map(str, s)) for s in (self.shape.source, self.shape.target))
        return f"{before} → {after}"
