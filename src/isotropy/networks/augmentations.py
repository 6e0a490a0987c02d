"""Distributions over group elements whose amount can be learned: independent uniform ranges.

    coordinates  a_k = η_k ε_k,   ε_k ~ U[−1, 1] independent per example, sample and generator

so generator k ranges over [−|η_k|, |η_k|], in the action's own coordinates; only |η_k| means
anything, and η = 0 is exactly the identity. Because ε is symmetric, every objective averaged
over it is even in η_k and has no slope at 0. Learning therefore starts at a small value
(`START`), from which it leaves also in float64 and with antithetic noise.

A rotation's range is bounded by its period and any range by the caller's caps. The bound is put
on the parameter after each step (`project`), not inside the forward pass, where it would
cut off the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice
from isotropy.symmetry.actions import Action

START = 0.05
"""Half-width every learnable range starts from, in coordinates (radians, half widths, logs)."""


@dataclass(frozen=True)
class Symmetry:
    """What was learned of one generator, in the unit users read."""

    name: str
    kind: str
    low: float
    high: float
    unit: str

    def as_dict(self) -> dict[str, str | float]:
        return {
            "name": self.name,
            "kind": self.kind,
            "low": self.low,
            "high": self.high,
            "unit": self.unit,
        }


class UniformRanges(nn.Module):
    """Independent uniform ranges over the generators of an action.

    half_widths: the learnable parameter η (generators,), in coordinates.
    start:  one number in coordinates for all, or half-widths by name in reported units.
    caps:   largest half-width by generator name, in reported units (degrees, …).
    """

    def __init__(
        self,
        action: Action,
        *,
        start: float | Mapping[str, float] = START,
        caps: Mapping[str, float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.action = action
        given = start if isinstance(start, Mapping) else {}
        for name in (*given, *(caps or {})):
            check_choice(name, action.names, what="generator")
        widths = [
            generator.from_units(given.get(generator.name, 0.0))
            if isinstance(start, Mapping)
            else start
            for generator in action.generators
        ]
        self.half_widths = nn.Parameter(torch.tensor(widths, dtype=dtype))
        self.register_buffer("bounds", self._bounds(caps or {}, dtype))
        self.project()

    bounds: Tensor

    def _bounds(self, caps: Mapping[str, float], dtype: torch.dtype) -> Tensor:
        bounds = []
        for generator in self.action.generators:
            bound = float("inf") if generator.period is None else generator.period
            if generator.name in caps:
                cap = caps[generator.name]
                if not cap >= 0:
                    raise CallerError(
                        f"cap for {generator.name!r}: expected a half-width of at least 0 "
                        f"{generator.unit}, got {cap}"
                    )
                bound = min(bound, generator.from_units(cap))
            bounds.append(bound)
        return torch.tensor(bounds, dtype=dtype)

    @torch.no_grad()
    def project(self) -> None:
        """Bring the half-widths back within their bounds; call after each optimiser step."""
        self.half_widths.clamp_(-self.bounds, self.bounds)

    @property
    def is_identity(self) -> bool:
        """True when every range is exactly zero, so that nothing is transformed."""
        return not bool(self.half_widths.detach().any())

    def noise(
        self,
        batch: int,
        samples: int,
        *,
        generator: torch.Generator | None = None,
        antithetic: bool = False,
    ) -> Tensor:
        """ε (batch, samples, generators), uniform on [−1, 1].

        antithetic: the second half of the samples is minus the first (`samples` even), which
        removes all odd orders in η from the average.
        """
        count = samples
        if antithetic:
            if samples % 2:
                raise CallerError(f"antithetic noise: expected even samples, got {samples}")
            count = samples // 2
        like = self.half_widths
        uniform = torch.rand(
            (batch, count, len(self.action.generators)),
            generator=generator,
            device=like.device,
            dtype=like.dtype,
        )
        epsilon = 2 * uniform - 1
        return torch.cat([epsilon, -epsilon], 1) if antithetic else epsilon

    def forward(self, data: Tensor, noise: Tensor) -> Tensor:
        """Transformed copies (batch, samples, …) of data (batch, …) for given noise."""
        self.action.check_coordinates(noise, data)
        learning = torch.is_grad_enabled() and self.half_widths.requires_grad
        if not learning and self.is_identity:
            return data[:, None].expand(-1, noise.shape[1], *data.shape[1:])
        return self.action.act(noise * self.half_widths, data)

    def symmetries(self) -> list[Symmetry]:
        """The ranges as reported: low = −|η|, high = |η| in each generator's unit."""
        widths = self.half_widths.detach().abs().tolist()
        found = []
        for generator, width in zip(self.action.generators, widths, strict=True):
            # Rounded to float32, π is a little more than π.
            reach = generator.in_units(min(width, generator.period or width))
            found.append(Symmetry(generator.name, "range", -reach, reach, generator.unit))
        return found
