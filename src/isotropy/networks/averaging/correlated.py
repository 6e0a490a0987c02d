"""Ranges with a covariance: uniform noise mixed by a matrix on the Lie algebra.

    a = L ε,   ε_j ~ U[−1, 1] independent         Cov(a) = L Lᵀ / 3

Independent ranges are the diagonal L. A common factor of two generators (content that grows by the
same factor along x and y) is one column with two equal entries, which independent ranges can
only wrap in a square; Immer et al. (2022), Section 5.4, name this as their limitation.

Many L have one covariance, and parallel columns would add up to a noise that is no longer uniform.
After every step L is therefore brought to its principal axes, orthogonal columns with the same
L Lᵀ (`principal_axes`); what remains free is the order and the signs of columns. What is reported
does not depend on these: the half-width Σ_j |L_kj| of each generator, which is the largest
coordinate that occurs, and the correlations of L Lᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice, shape_text
from isotropy.networks.averaging.augmentations import (
    START,
    Ranges,
    action_records,
    generator_records,
    range_bounds,
)
from isotropy.symmetry.actions.action import Action

ALIKE = 0.95
"""Neighbouring lengths of axes with at least this quotient count as equal."""


class CorrelatedRanges(Ranges):
    """Correlated uniform ranges over the generators of an action.

    factor: the learnable matrix L (generators, generators), in coordinates.
    start:  a number for the diagonal, half-widths by name in reported units, or L itself.
    caps:   largest half-width by generator name, in reported units.
    """

    def __init__(
        self,
        action: Action,
        *,
        start: float | Mapping[str, float] | Tensor = START,
        caps: Mapping[str, float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        repeated = [g.name for g in action.generators if g.multiplicity > 1]
        if repeated:
            raise CallerError(
                f"correlated ranges: {repeated[0]!r} stands for many equal coordinates and has no "
                "single correlation; use independent ranges for it"
            )
        self.action = action
        for name in caps or {}:
            check_choice(name, action.names, what="generator")
        self.factor = nn.Parameter(self._start(start).to(dtype))
        self.register_buffer("bounds", range_bounds(action, caps or {}).to(dtype))
        self._keep_bounds()

    bounds: Tensor

    def _start(self, start: float | Mapping[str, float] | Tensor) -> Tensor:
        size = len(self.action.generators)
        if isinstance(start, Tensor):
            if start.shape != (size, size):
                raise CallerError(
                    f"start: expected (generators, generators) = ({size}, {size}), got "
                    f"{shape_text(start)}"
                )
            return start.detach().clone()
        if not isinstance(start, Mapping):
            return start * torch.eye(size, dtype=torch.float64)
        for name in start:
            check_choice(name, self.action.names, what="generator")
        widths = [g.from_units(start.get(g.name, 0.0)) for g in self.action.generators]
        return torch.diag(torch.tensor(widths, dtype=torch.float64))

    @property
    def half_widths(self) -> Tensor:
        """Σ_j |L_kj| (generators,), in coordinates."""
        return self.factor.abs().sum(1)

    @torch.no_grad()
    def correlations(self) -> Tensor:
        """Correlation matrix of the coordinates; zero where a range is exactly zero."""
        covariance = (self.factor @ self.factor.mT).double()
        deviation = covariance.diagonal().sqrt()
        scale = torch.where(deviation > 0, 1 / deviation, 0.0)
        return scale[:, None] * covariance * scale

    def learnable(self) -> list[nn.Parameter]:
        return [self.factor]

    @torch.no_grad()
    def project(self) -> None:
        """Orthogonal columns with the same covariance, and half-widths within their bounds."""
        self.factor.copy_(principal_axes(self.factor))
        self._keep_bounds()

    @torch.no_grad()
    def _keep_bounds(self) -> None:
        self.factor.mul_((self.bounds / self.half_widths).clamp(max=1.0).nan_to_num(1.0)[:, None])

    def coordinates(self, noise: Tensor) -> Tensor:
        return noise @ self.factor.mT

    def reach(self) -> Tensor:
        return self.half_widths

    def law(self) -> dict[str, Any]:
        return {
            "kind": "correlated",
            "law": "content moves by exp(Σ a_k G_k), a = L ε, ε_j uniform on [−1, 1], independent",
            "generators": generator_records(self.action),
            "actions": action_records(self.action),
            "factor": self.factor.detach().tolist(),
            "correlations": self.correlations().tolist(),
        }


def principal_axes(factor: Tensor) -> Tensor:
    """L with orthogonal columns and the same L Lᵀ, as near to L as can be.

    Of all matrices with one covariance this is the one in which every direction has a noise of its
    own: parallel columns would add up to something that is no longer uniform. Axes of (nearly)
    equal length may be turned among themselves at will; they are left as L has them.
    """
    left, values, right = torch.linalg.svd(factor.double())  # L = U S Vᵀ
    axes = left * values
    columns = _matching(right)
    result = torch.empty_like(axes)
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and values[end] >= ALIKE * values[end - 1]:
            continue
        own = columns[start:end]
        turn, _, back = torch.linalg.svd(right[start:end][:, own])
        result[:, own] = axes[:, start:end] @ (turn @ back)
        start = end
    return result.to(factor.dtype)


def _matching(right: Tensor) -> Tensor:
    """For each axis the column of L that it makes up most, each column taken once."""
    remaining = right.abs().clone()
    columns = torch.zeros(len(right), dtype=torch.long, device=right.device)
    for _ in range(len(right)):
        axis, column = divmod(int(remaining.argmax()), len(right))
        columns[axis] = column
        remaining[axis, :] = -1
        remaining[:, column] = -1
    return columns
