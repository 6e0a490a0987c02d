"""What values at some amounts of a symmetry say about the amount: its density, peak and interval.

    p(η | data) ∝ exp L(η),     η uniform on [0, largest]

In a search (`density` and below) L is the log density of examples that are left out
(`kernel_evidence`), known at a few amounts and interpolated between them (Akima's piecewise cubics,
modified so that they do not overshoot) in t = log(η + scale),  where profiles are smoothest. It has
errors:

    copies  trials (`trials`) with other copies of the examples differ, by a standard deviation σ
    data    another sample of as many examples; parts of the data are drawn anew with replacement
            (bootstrap), each with its share in L

The density is the mean over such draws. It gives the probability that there is more of the symmetry
than the floor below which it is called absent; the interval of highest density is of a coarser one
(`coarse_power`). η uniform on its whole range is what makes "absent" more than the lack of a gain:
L(η) → L(0) as η → 0, and most amounts are not small. L in place of a log evidence makes this a
pseudo-posterior: Gelfand and Dey (1994), "Bayesian model choice: asymptotics and exact
calculations".

In a profile (`peak_of`) L is log Z, each amount with its own refit. Its maximum is that of the
parabola through the largest value and the neighbours, within the amounts that were tried. The
density has this parabola between the neighbours and straight lines between all other amounts. The
interval is of the same coarser density as in a search: the evidence is an approximation, and every
refit ends in another optimum, so N examples do not count as N. Held-out likelihood and Spearman's
rank correlation stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import Akima1DInterpolator
from scipy.stats import spearmanr
from scipy.stats import t as student
from torch import Tensor

from isotropy.checks import CallerError

GRID = 1001
DRAWS = 200
CREDIBLE = 0.95
COARSE = 2.0
"""N examples count as about so many times √N in an interval."""

PEAK_ERRORS = 2.0
"""Standard errors within which a lower peak counts as high as the highest."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """L at some amounts of one symmetry, everything else held fixed.

    amounts      (points,) increasing, the first is zero
    log_predictive (points,) in nats, over all examples
    blocks       (points, blocks) first-order shares of parts of the data
    largest      the largest amount there can be
    scale        an amount of the size of one step: where the spacing of t turns logarithmic
    """

    amounts: tuple[float, ...]
    log_predictive: tuple[float, ...]
    blocks: Array
    largest: float
    scale: float

    def __post_init__(self) -> None:
        increasing = all(a < b for a, b in zip(self.amounts, self.amounts[1:], strict=False))
        if len(self.amounts) < 2 or self.amounts[0] != 0 or not increasing:
            raise CallerError(
                f"profile: expected increasing amounts from zero on, got {list(self.amounts)}"
            )

    @property
    def best(self) -> int:
        """The number of the amount with the largest L."""
        return int(np.argmax(self.log_predictive))

    @property
    def gain(self) -> float:
        """L at its best minus L at zero, in nats."""
        return float(max(self.log_predictive) - self.log_predictive[0])


@dataclass(frozen=True)
class AmountPosterior:
    """p(η | data) on an even grid over [0, largest]."""

    grid: Array
    density: Array

    def above(self, floor: float) -> float:
        """The probability of more than `floor`."""
        return float(self.density[self.grid > floor].sum())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % of highest density, from its lowest to its highest amount."""
        return highest_density(self.grid, self.density)


def highest_density(grid: Array, density: Array) -> tuple[float, float]:
    """Ends of the `CREDIBLE` part of a density (its values sum to one) where it is highest."""
    order = np.argsort(density)[::-1]
    needed = int(np.searchsorted(np.cumsum(density[order]), CREDIBLE)) + 1
    inside = grid[order[:needed]]
    return float(inside.min()), float(inside.max())


def posterior(
    profile: Profile, seed_error: float, *, power: float = 1.0, seed: int = 0
) -> AmountPosterior:
    """The density over amounts.

    seed_error: standard deviation of L between replicates
    power:      of the likelihood, see `coarse_power`
    """
    grid = np.linspace(0.0, profile.largest, GRID)
    values = np.array(profile.log_predictive)
    random = np.random.default_rng(seed)
    count = profile.blocks.shape[1]
    density = np.zeros(GRID)
    for _ in range(DRAWS):
        weights = random.multinomial(count, np.full(count, 1 / count)) - 1.0
        drawn = values + profile.blocks @ weights
        drawn = drawn + seed_error * random.standard_normal(len(values))
        density += _normalised(power * _interpolated(profile, drawn, grid))
    return AmountPosterior(grid, density / DRAWS)


def coarse_power(examples: int) -> float:
    """Power of the likelihood for a model that is not exact: 1/(1 + √N/α), α = `COARSE`.

    No model is exact, and with many examples an exact model's interval would be narrower than what
    the model is wrong by. Conditioning on data *near* those that were seen gives, to first order, a
    power 1/(1 + N/a) of the likelihood with which N examples count as at most a. Here a = α√N: with
    a constant a intervals of 1,000 examples were too wide (docs/results.md, calibration).
    Miller and Dunson (2019), "Robust Bayesian inference via coarsening".
    """
    return 1 / (1 + examples**0.5 / COARSE)


def interpolated_peak(profile: Profile, about: int) -> float:
    """The amount at which the interpolated profile is largest between the neighbours of a point."""
    known = np.flatnonzero(np.isfinite(profile.log_predictive)).tolist()
    place = known.index(about)
    first, last = known[max(place - 1, 0)], known[min(place + 1, len(known) - 1)]
    grid = np.linspace(profile.amounts[first], profile.amounts[last], GRID)
    values = _interpolated(profile, np.array(profile.log_predictive), grid)
    return float(grid[int(np.argmax(values))])


def least_peak(profile: Profile, seed_error: float) -> int:
    """The number of the least amount that predicts as well as the best one.

    Of the peaks of L it is the first that the best does not exceed by more than `PEAK_ERRORS`
    standard errors of their difference, over parts of the data and draws of copies, and with a
    valley before the best that is deeper than draws of copies make it. Averages over ±90° and ±180°
    can predict equally well, and then data show the less of both only.
    Breiman, Friedman, Olshen, Stone (1984), "Classification and regression trees", 3.4.3: the rule
    of one standard error.
    """
    values, best = np.array(profile.log_predictive), profile.best
    by_copies = 2 * seed_error**2
    for index in range(1, best):
        before, own, after = values[index - 1 : index + 2]
        between_both = values[index:best]
        valley = min(between_both[np.isfinite(between_both)], default=own)  # failed trials are none
        is_peak = np.isfinite(own) and own >= before and own >= after
        if not is_peak or own - valley < PEAK_ERRORS * by_copies**0.5:
            continue
        lead = profile.blocks[best] - profile.blocks[index]
        error = (_jackknife_variance(lead) + by_copies) ** 0.5
        if values[best] - own <= PEAK_ERRORS * error:
            return index
    return best


def between(profile: Profile, first: float, second: float) -> float:
    """The amount half way between two, in t."""
    low, high = np.log(np.array([first, second]) + profile.scale)
    return float(np.exp((low + high) / 2) - profile.scale)


def _interpolated(profile: Profile, values: Array, grid: Array) -> Array:
    points = np.log(np.array(profile.amounts) + profile.scale)
    # A trial that failed is a point that is not there.
    known = np.isfinite(values)
    points, values = points[known], values[known]
    where = np.log(grid + profile.scale)
    if len(points) < 2:
        return np.full(len(grid), values[0] if len(values) else 0.0)
    inner: Array = np.interp(where, points, values)
    if len(points) > 2:
        inner = Akima1DInterpolator(points, values, method="makima", extrapolate=True)(where)
    # Beyond the last point L goes on falling, if it fell: there the scan was stopped.
    slope = min(0.0, float((values[-1] - values[-2]) / (points[-1] - points[-2])))
    return np.where(where > points[-1], values[-1] + slope * (where - points[-1]), inner)


def _normalised(values: Array) -> Array:
    density = np.exp(values - values.max())
    result: Array = density / density.sum()
    return result


def _jackknife_variance(by_block: Array) -> float:
    """Of a sum over parts of the data, B/(B − 1) Σ_b (d_b − mean d)²."""
    parts = len(by_block)
    return parts / max(parts - 1, 1) * float(((by_block - by_block.mean()) ** 2).sum())


def gain_interval(
    gains: Sequence[float], by_block: Array, seed_error: float, seed_degrees: int
) -> tuple[float, tuple[float, float]]:
    """Mean and 95 % interval of a gain in nats, over draws of copies and over data.

        variance = 2 σ²/R  (replicates)  +  B/(B − 1) Σ_b (d_b − mean d)²  (delete-a-part jackknife)

    with Student's quantile at the degrees of freedom of Welch and Satterthwaite.
    gains      (replicates,) differences of L, each with its own copies
    by_block   (blocks,) their first-order shares by parts of the data
    seed_error σ, standard deviation of one L between replicates
    seed_degrees  degrees of freedom that σ was estimated with
    """
    count, parts = len(gains), len(by_block)
    by_seed = 2 * seed_error**2 / count
    by_data = _jackknife_variance(by_block)
    total = by_seed + by_data
    mean = float(np.mean(gains))
    degrees = total**2 / (by_seed**2 / max(seed_degrees, 1) + by_data**2 / max(parts - 1, 1))
    reach = float(student.ppf((1 + CREDIBLE) / 2, degrees)) * total**0.5
    return mean, (mean - reach, mean + reach)


PEAK_GRID = 4001


@dataclass(frozen=True)
class Peak:
    """Where a profile is largest, and the credible interval; in the unit of the amounts."""

    maximum: float
    interval: tuple[float, float]


def peak_of(amounts: Sequence[float], log_evidence: Sequence[float], *, examples: int = 0) -> Peak:
    """The peak of log evidences in nats (not per example) over increasing amounts.

    examples: N of the interval's power 1/(1 + √N/2), see `coarse_power`; with 0 the interval is
              that of an exact model, for a maximum inside about ±1.96 / √(−∂² log Z/∂η²)
    """
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
    grid = torch.linspace(float(where[0]), float(where[-1]), PEAK_GRID, dtype=torch.float64)
    levels = torch.from_numpy(np.interp(grid, where, values))
    top = float(where[best])
    if bend < 0:  # else largest at an end, with no bend to speak of
        top = float((-slope / (2 * bend)).clamp(where[middle - 1], where[middle + 1]))
        inside = (grid >= where[middle - 1]) & (grid <= where[middle + 1])
        levels = torch.where(inside, bend * grid**2 + slope * grid + level, levels)
    density = (coarse_power(examples) * levels).softmax(0)
    return Peak(top, highest_density(grid.numpy(), density.numpy()))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's ρ: the correlation of ranks, equal values sharing theirs; None if undefined."""
    if len(first) != len(second) or len(first) < 3:
        return None
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(spearmanr(first, second).statistic)


def _parabola(where: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients (second, first, zeroth) of the parabola through three points."""
    solution = torch.linalg.solve(
        torch.stack([where**2, where, torch.ones(3).to(where)], 1), values
    )
    return solution[0], solution[1], solution[2]


def default_amounts(largest: float, count: int = 9) -> list[float]:
    """From nothing to `largest` in equal steps."""
    if count < 3 or not (largest > 0 and math.isfinite(largest)):
        raise CallerError(
            f"amounts: expected three or more up to a number above 0, got {count} up to {largest}"
        )
    return [largest * step / (count - 1) for step in range(count)]
