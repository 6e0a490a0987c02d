"""Reading a profile: where the log evidence is largest, how surely, and whether data agree.

A profile is log Z(η) at some amounts η of one symmetry, each with its own refit. Around its largest
value it is read by the parabola through that point and its neighbours:

    maximum    of the parabola, within the amounts that were tried
    interval   95 % of  p(η | data) ∝ exp log Z(η),  flat prior, on the same parabola: for a maximum
               inside about ±1.96 / √(−∂² log Z/∂η²), at an end cut off there; on straight lines
               where the profile rises to an end without a bend

The interval is that of the model's own uncertainty; it does not know that the evidence is an
approximation. For that there is held-out likelihood beside it, and Spearman's rank correlation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.evidence.search.amounts import highest_density

GRID = 4001


@dataclass(frozen=True)
class Peak:
    """Where a profile is largest, and the credible interval; in the unit of the amounts."""

    maximum: float
    interval: tuple[float, float]


def peak_of(amounts: Sequence[float], log_evidence: Sequence[float]) -> Peak:
    """The peak of log evidences in nats (not per example) over increasing amounts."""
    where = torch.tensor(amounts, dtype=torch.float64)
    values = torch.tensor(log_evidence, dtype=torch.float64)
    if len(where) != len(values) or len(where) < 3 or not bool((where.diff() > 0).all()):
        raise CallerError(
            f"profile: expected three or more increasing amounts with a value each, got "
            f"{len(where)} amounts and {len(values)} values"
        )
    if not bool(torch.isfinite(values).all()):
        raise CallerError("profile: expected finite log evidences, got one that is not")
    best = int(values.argmax())
    middle = min(max(best, 1), len(where) - 2)
    near = slice(middle - 1, middle + 2)
    bend, slope, level = _parabola(where[near], values[near])
    grid = torch.linspace(float(where[0]), float(where[-1]), GRID, dtype=torch.float64)
    if bend < 0:
        top = float((-slope / (2 * bend)).clamp(where[middle - 1], where[middle + 1]))
        density = (bend * grid**2 + slope * grid + level).softmax(0)
    else:  # largest at an end, with no bend to speak of: straight lines between the points
        top = float(where[best])
        density = _straight(where, values, grid).softmax(0)
    return Peak(top, highest_density(grid.numpy(), density.numpy()))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's ρ: the correlation of ranks, equal values sharing theirs; None if undefined."""
    if len(first) != len(second) or len(first) < 3:
        return None
    ranks = torch.stack([_ranks(first), _ranks(second)])
    if bool((ranks.std(1) == 0).any()):
        return None
    return float(torch.corrcoef(ranks)[0, 1])


def _parabola(where: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients (second, first, zeroth) of the parabola through three points."""
    solution = torch.linalg.solve(
        torch.stack([where**2, where, torch.ones(3).to(where)], 1), values
    )
    return solution[0], solution[1], solution[2]


def _straight(where: Tensor, values: Tensor, grid: Tensor) -> Tensor:
    """Linear interpolation of the values on a grid."""
    right = torch.searchsorted(where, grid).clamp(1, len(where) - 1)
    share = (grid - where[right - 1]) / (where[right] - where[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])


def _ranks(values: Sequence[float]) -> Tensor:
    numbers = torch.tensor(values, dtype=torch.float64)
    below = (numbers[:, None] > numbers).double().sum(1)
    equal = (numbers[:, None] == numbers).double().sum(1)
    return below + (equal + 1) / 2


def default_amounts(largest: float, count: int = 9) -> list[float]:
    """From nothing to `largest` in equal steps."""
    if count < 3 or not (largest > 0 and math.isfinite(largest)):
        raise CallerError(
            f"amounts: expected three or more up to a number above 0, got {count} up to {largest}"
        )
    return [largest * step / (count - 1) for step in range(count)]
