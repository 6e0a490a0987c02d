"""Ranges as Augerino's authors parameterise them: a positive width for every generator.

    w_k = softplus(r_k),   a_k = c_k w_k u_k,   u_k ~ U[−½, ½]

The width w is that of the whole interval, so generator k ranges over ±c_k w_k / 2 in the action's
coordinates. The factor c is 0.1 for translations and 1 for all others: widths of one size then
move content by distances of one size. The raw parameter r starts at zero, w = ln 2.

Two things differ from `UniformRanges`. A softplus is never zero, so the identity is approached and
not reached; and r has a slope everywhere, so learning may start anywhere. A rotation is not bounded
by its period, and is reported as wide as it is. What keeps widths from growing without end is that
they are no longer rewarded once one of them reaches `LARGEST_WIDTH`.

Benton et al. 2020 (Augerino), Equation 9, and the authors' code. Noise is (batch, samples,
coordinates), uniform on [−1, 1] as everywhere here, u = ε / 2. Tested against the formula written
out, and the law by its moments, in tests/networks/test_softplus_ranges.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_choice
from isotropy.networks.augmentations import (
    Ranges,
    Symmetry,
    action_records,
    generator_records,
)
from isotropy.symmetry.actions import Action

AUGERINO_GENERATORS = (
    "translation_x",
    "translation_y",
    "rotation",
    "scale",
    "aspect",
    "hyperbolic_rotation",
)
"""The generators of the authors' code, in its order."""

AUGERINO_FACTORS = {"translation_x": 0.1, "translation_y": 0.1}
"""What the authors' code multiplies generators by; others by one."""

SMALLEST_START = -5.0
"""The raw parameter of a range that starts next to nothing, w = 0.0067, and still has a slope."""

LARGEST_WIDTH = 10.0
"""A width from which on no width is rewarded any more."""


class SoftplusRanges(Ranges):
    """Independent uniform ranges of width softplus(raw) over the generators of an action.

    raw:      the learnable parameter r (generators,).
    start:    half-widths by name in reported units; those not named start at `SMALLEST_START`,
              which is next to nothing. By default r = 0 for all.
    caps:     largest half-width by generator name, in reported units.
    factors:  c by generator name; others have 1.
    """

    def __init__(
        self,
        action: Action,
        *,
        start: Mapping[str, float] | None = None,
        caps: Mapping[str, float] | None = None,
        factors: Mapping[str, float] = AUGERINO_FACTORS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.action = action
        for name in (*(start or {}), *(caps or {})):
            check_choice(name, action.names, what="generator")
        generators = action.generators
        scales = torch.tensor([factors.get(each.name, 1.0) for each in generators], dtype=dtype)
        # From a reported half-width to the width of the whole interval.
        units = torch.tensor([2 * each.from_units(1.0) for each in generators], dtype=dtype)
        units = units / scales
        raw = torch.zeros(len(generators), dtype=dtype)
        if start is not None:
            given = torch.tensor([start.get(name, 0.0) for name in action.names], dtype=dtype)
            raw = _raw(given * units).clamp(min=SMALLEST_START)
        for name, cap in (caps or {}).items():
            if not cap >= 0:
                raise CallerError(
                    f"cap for {name!r}: expected a half-width of at least 0, got {cap}"
                )
        most = torch.tensor([(caps or {}).get(n, float("inf")) for n in action.names], dtype=dtype)
        self.raw = nn.Parameter(raw)
        self.register_buffer("bounds", _raw(most * units))
        self.register_buffer("scales", scales, persistent=False)
        counts = torch.tensor([each.multiplicity for each in generators])
        self.register_buffer("counts", counts, persistent=False)
        self.project()

    bounds: Tensor
    scales: Tensor
    counts: Tensor

    def widths(self) -> Tensor:
        """w = softplus(r) (generators,), positive; differentiable."""
        return functional.softplus(self.raw)

    def reward(self) -> Tensor:
        """‖w‖₂, or zero once a width has reached `LARGEST_WIDTH`."""
        widths = self.widths()
        return widths.norm() * bool((widths < LARGEST_WIDTH).all())

    def reach(self) -> Tensor:
        """c w / 2 (generators,), in the action's coordinates."""
        return self.widths() * self.scales / 2

    def learnable(self) -> list[nn.Parameter]:
        return [self.raw]

    @torch.no_grad()
    def project(self) -> None:
        self.raw.copy_(self.raw.minimum(self.bounds))

    def coordinates(self, noise: Tensor) -> Tensor:
        return noise * self.reach().repeat_interleave(self.counts)

    def symmetries(self) -> list[Symmetry]:
        """Widths as they are: a rotation has no bound here, as in the authors' code."""
        found = []
        halves = self.reach().detach().tolist()
        for generator, half in zip(self.action.generators, halves, strict=True):
            reach = generator.in_units(half)
            found.append(Symmetry(generator.name, "range", -reach, reach, generator.unit))
        return found

    def law(self) -> dict[str, Any]:
        halves = self.reach().detach().tolist()
        # The distribution is that of independent ranges; only the parameterisation differs.
        return {
            "kind": "independent",
            "law": "content moves by exp(Σ a_k G_k), a_k uniform on [low, high], independent",
            "generators": generator_records(self.action),
            "actions": action_records(self.action),
            "half_widths": halves,
            "noise_factors": halves,
        }


def _raw(widths: Tensor) -> Tensor:
    """r with softplus(r) = w:  r = w + log(1 − e^−w); −∞ for a width of zero."""
    return widths + torch.log(-torch.expm1(-widths))
