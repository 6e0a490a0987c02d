"""Densities over amounts: against closed forms and dense integrals, their coverage, gains."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from isotropy.checks import CallerError
from isotropy.evidence.search import amounts as room
from isotropy.evidence.search.amounts import (
    Profile,
    between,
    coarse_power,
    gain_interval,
    interpolated_peak,
    least_peak,
    posterior,
)

LARGEST, SCALE, BLOCKS = 180.0, 6.0, 20
GRID_STEP = LARGEST / (room.GRID - 1)


def profile_of(amounts, values, *, largest: float = LARGEST, blocks=None) -> Profile:
    given = np.zeros((len(amounts), BLOCKS)) if blocks is None else np.asarray(blocks, float)
    return Profile(tuple(map(float, amounts)), tuple(map(float, values)), given, largest, SCALE)


def in_t(amount):
    return np.log(np.asarray(amount, float) + SCALE)


@pytest.fixture
def one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without errors all draws are the same."""
    monkeypatch.setattr(room, "DRAWS", 1)


# --- the density without errors -------------------------------------------------------------------


def straight_above(floor: float, slope: float) -> float:
    """P(η > floor) of a density ∝ (η + scale)^slope on [0, largest], in closed form."""
    low, middle, high = ((x + SCALE) ** (slope + 1) / (slope + 1) for x in (0.0, floor, LARGEST))
    return (high - middle) / (high - low)


@pytest.mark.parametrize("points", [(0, 180), (0, 9, 27, 72, 180)])
@pytest.mark.parametrize("slope", [-3.0, -0.5, 0.0, 0.7, 4.0])
def test_profiles_straight_in_t_in_closed_form(one_draw, points, slope: float) -> None:
    found = posterior(profile_of(points, slope * in_t(points)), 0.0)
    assert found.density.sum() == pytest.approx(1.0)
    for floor in (0.0, 6.0, 50.0, 170.0):
        # A sum over a grid in place of the integral: off by a step of the density at most.
        tolerance = 2 * float(found.density.max())
        assert found.above(floor) == pytest.approx(straight_above(floor, slope), abs=tolerance)
    if slope:
        end = LARGEST if slope > 0 else 0.0
        profile = profile_of(points, slope * in_t(points))
        assert interpolated_peak(profile, profile.best) == pytest.approx(end)


PARABOLAS = {"in the middle": (40.0, 0.25), "small": (10.0, 0.4), "at the end": (180.0, 0.3)}


@pytest.mark.parametrize(("peak", "width"), PARABOLAS.values(), ids=PARABOLAS)
def test_parabolas_in_t_by_a_dense_integral(one_draw, peak: float, width: float) -> None:
    def criterion(amount):
        return 7.0 - ((in_t(amount) - in_t(peak)) / width) ** 2 / 2

    points = np.exp(np.linspace(in_t(0), in_t(LARGEST), 24)) - SCALE
    points[0], points[-1] = 0.0, LARGEST
    found = posterior(profile_of(points, criterion(points)), 0.0)
    dense = np.linspace(0, LARGEST, 400_001)
    weight = np.exp(criterion(dense))
    weight /= weight.sum()
    for floor in (2.0, 6.0, peak / 2, 0.9 * peak, 1.1 * peak):
        assert found.above(floor) == pytest.approx(weight[dense > floor].sum(), abs=0.01)
    order = np.argsort(weight)[::-1]
    inside = dense[order[: np.searchsorted(np.cumsum(weight[order]), 0.95) + 1]]
    span = inside.max() - inside.min()
    assert found.interval == pytest.approx((inside.min(), inside.max()), abs=0.04 * span)
    profile = profile_of(points, criterion(points))
    top = interpolated_peak(profile, profile.best)
    assert top == pytest.approx(peak, abs=0.04 * span)


def test_floors_outside(one_draw) -> None:
    found = posterior(profile_of((0, 180), (0, 1)), 0.0)
    assert found.above(-1.0) == pytest.approx(1.0)
    assert found.above(LARGEST) == 0.0


@pytest.mark.parametrize("examples", [1, 30, 1000])
def test_a_coarse_interval_is_that_of_fewer_examples(one_draw, examples: int) -> None:
    """A normal density of width w has w/√power, and N examples count as fewer than α√N."""
    power, most = coarse_power(examples), room.COARSE * examples**0.5
    assert power * examples == pytest.approx(1 / (1 / examples + 1 / most))
    points, width = np.arange(0.0, 181.0, 3.0), 4.0
    given = profile_of(points, -(((points - 90) / width) ** 2) / 2)
    low, high = posterior(given, 0.0, power=power).interval
    expected = min(2 * 1.96 * width / power**0.5, LARGEST)
    assert high - low == pytest.approx(expected, rel=0.03)


def test_beyond_the_last_amount_that_was_tried_nothing_rises(one_draw) -> None:
    """A profile that was given up at 60 still rising has its peak there, and is flat from there."""
    profile = profile_of((0, 9, 27, 60), 2 * in_t((0, 9, 27, 60)))
    assert interpolated_peak(profile, profile.best) == pytest.approx(60.0, abs=GRID_STEP)
    found = posterior(profile, 0.0)
    beyond = found.density[found.grid > 60]
    assert beyond == pytest.approx(np.full(len(beyond), beyond[0]))


STOPPED = {
    # Amounts and L, and the last two that are known.
    "two points": ((0, 60), (0.0, -5.0), (0, 1)),
    "three points": ((0, 9, 60), (0.0, -1.0, -7.0), (1, 2)),
    "falls all along": ((0, 9, 27, 60), (0.0, -1.0, -3.0, -8.0), (2, 3)),
    "rises and falls": ((0, 9, 27, 60), (0.0, 4.0, 5.0, 2.0), (2, 3)),
    "falls and rises": ((0, 9, 27, 60), (0.0, -4.0, -5.0, -2.0), (2, 3)),
    "the last one failed": ((0, 9, 27, 60), (0.0, -1.0, -3.0, -math.inf), (1, 2)),
    "one of two failed": ((0, 27, 60), (0.0, -3.0, -math.inf), (0, 1)),
}


@pytest.mark.parametrize(("points", "values", "known"), STOPPED.values(), ids=STOPPED)
def test_beyond_the_last_amount_what_fell_goes_on_falling(one_draw, points, values, known) -> None:
    """With the last slope in t; what rose at last is flat."""
    found = posterior(profile_of(points, values), 0.0)
    before, last = known
    slope = (values[last] - values[before]) / (in_t(points[last]) - in_t(points[before]))
    grid = found.grid[found.grid > points[last]]
    expected = values[last] + min(0.0, slope) * (in_t(grid) - in_t(points[last])) - values[0]
    beyond = np.log(found.density[-len(grid) :] / found.density[0])
    np.testing.assert_allclose(beyond, expected, rtol=1e-9)


@pytest.mark.parametrize("values", [(1.0, -math.inf), (-math.inf, 2.0, -math.inf)], ids=len)
def test_one_amount_alone_says_nothing(one_draw, values: tuple[float, ...]) -> None:
    found = posterior(profile_of((0, 27, 60)[: len(values)], values), 0.0)
    np.testing.assert_allclose(found.density, 1 / room.GRID)


# --- its errors -----------------------------------------------------------------------------------


def over_slopes(value: float, error: float, floor: float) -> float:
    """E[P(η > floor)] where L at the end is normal, by Gauss and Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    slopes = (value + error * nodes) / (in_t(LARGEST) - in_t(0))
    return float(sum(w * straight_above(floor, k) for w, k in zip(weights, slopes, strict=True))
                 / weights.sum())  # fmt: skip


MANY = 4000
# The standard error of a mean of so many numbers between 0 and 1, times four.
MONTE_CARLO = 4 * 0.5 / MANY**0.5


@pytest.mark.parametrize("value", [-20.0, 20.0])
def test_errors_over_seeds(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Each end has an error of its own: √2 σ on the difference."""
    monkeypatch.setattr(room, "DRAWS", MANY)
    found = posterior(profile_of((0, 180), (0, value)), 15.0)
    expected = over_slopes(value, 15.0 * 2**0.5, 30.0)
    assert found.above(30.0) == pytest.approx(expected, abs=MONTE_CARLO)
    for wrong in (0.0, 15.0, 30.0):
        assert abs(expected - over_slopes(value, wrong, 30.0)) > MONTE_CARLO


@pytest.mark.parametrize("value", [-20.0, 20.0])
def test_errors_over_data(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """The bootstrap of shares d_b has the variance Σ (d_b − mean)²."""
    monkeypatch.setattr(room, "DRAWS", MANY)
    shares = 5.0 + 5.0 * np.random.default_rng(1).standard_normal(BLOCKS)
    blocks = np.stack([np.zeros(BLOCKS), shares])
    found = posterior(profile_of((0, 180), (0, value), blocks=blocks), 0.0)
    error = float(((shares - shares.mean()) ** 2).sum() ** 0.5)
    expected = over_slopes(value, error, 30.0)
    assert found.above(30.0) == pytest.approx(expected, abs=MONTE_CARLO)
    for wrong in (0.0, error / 2, 2 * error):
        assert abs(expected - over_slopes(value, wrong, 30.0)) > MONTE_CARLO


def test_what_all_parts_share_is_no_error() -> None:
    blocks = np.stack([np.zeros(BLOCKS), np.full(BLOCKS, 3.0)])
    found = posterior(profile_of((0, 180), (0, 4.0), blocks=blocks), 0.0)
    plain = posterior(profile_of((0, 180), (0, 4.0)), 0.0)
    np.testing.assert_allclose(found.density, plain.density, rtol=1e-9)


def test_draws_follow_their_seed() -> None:
    profile = profile_of((0, 60, 180), (0, 3, 1))
    first, again, other = (posterior(profile, 2.0, seed=seed).density for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


FAILED = {"in the middle": 2, "at the end": 4}


@pytest.mark.parametrize("failed", FAILED.values(), ids=FAILED)
def test_failed_trials_are_not_there(one_draw, failed: int) -> None:
    points, values = [0, 9, 27, 72, 180], [0.0, 1.0, 3.0, 2.0, 1.5]
    with_it = profile_of(points, [-math.inf if n == failed else v for n, v in enumerate(values)])
    without = profile_of(*([x for n, x in enumerate(each) if n != failed]
                           for each in (points, values)))  # fmt: skip
    found, expected = posterior(with_it, 0.0), posterior(without, 0.0)
    assert np.isfinite(found.density).all()
    np.testing.assert_array_equal(found.density, expected.density)
    assert interpolated_peak(with_it, with_it.best) == interpolated_peak(without, without.best)
    assert with_it.gain == without.gain == 3.0 - (failed == 2) * 1.0


# --- profiles -------------------------------------------------------------------------------------


def test_best_and_gain() -> None:
    profile = profile_of((0, 9, 27), (-3.0, -1.0, -2.0))
    assert profile.best == 1 and profile.gain == 2.0
    assert profile_of((0, 9), (1.0, 0.0)).gain == 0.0


def test_between_is_half_way_in_t() -> None:
    profile = profile_of((0, 180), (0, 0))
    assert between(profile, 0.0, 180.0) == pytest.approx((6 * 186) ** 0.5 - 6)
    assert in_t(between(profile, 9.0, 27.0)) == pytest.approx((in_t(9) + in_t(27)) / 2)


@pytest.mark.parametrize("amounts", [(), (0,), (1, 2), (0, 5, 5), (0, 9, 3)])
def test_refused(amounts) -> None:
    with pytest.raises(CallerError, match="profile: expected increasing amounts from zero on"):
        profile_of(amounts, [0.0] * len(amounts))


# --- gains ----------------------------------------------------------------------------------------


def test_gain_interval_written_out() -> None:
    gains, error = [3.0, 5.0, 7.0], 0.8
    shares = np.random.default_rng(2).standard_normal(BLOCKS)
    by_seed = 2 * 0.8**2 / 3
    by_data = 20 * np.var(shares, ddof=1)
    degrees = (by_seed + by_data) ** 2 / (by_seed**2 / 4 + by_data**2 / 19)
    reach = student.ppf(0.975, degrees) * (by_seed + by_data) ** 0.5
    mean, interval = gain_interval(gains, shares, error, 4)
    assert mean == pytest.approx(5.0)
    assert interval == pytest.approx((5.0 - reach, 5.0 + reach))


@pytest.mark.parametrize(("degrees", "factor"), [(1, 12.706), (2, 4.303), (4, 2.776)])
@pytest.mark.parametrize("count", [1, 3])
def test_few_seeds_have_students_quantiles(count: int, degrees: int, factor: float) -> None:
    """Where parts of the data agree, degrees of freedom are those of the error over seeds."""
    mean, (low, high) = gain_interval([2.0] * count, np.full(BLOCKS, 0.1), 1.0, degrees)
    assert mean == 2.0 and high - mean == pytest.approx(mean - low)
    assert high - mean == pytest.approx(factor * (2 / count) ** 0.5, rel=1e-3)


# --- the least of several peaks -------------------------------------------------------------------

TWO_PEAKS = (0, 45, 90, 135, 180)


def with_lead(lead: float, spread: float, valley: float = 30.0) -> Profile:
    """Peaks at 90 and 180, the second higher by `lead`; half of the parts say more, half less."""
    values = [0.0, 50.0, 100.0, 100.0 - valley, 100.0 + lead]
    halves = np.resize([1.0, -1.0], 20)
    blocks = np.array(values)[:, None] / 20 + np.array([0, 0, 0, 0, spread])[:, None] * halves
    return Profile(TWO_PEAKS, tuple(values), blocks, LARGEST, SCALE)


LEADS = {
    # A spread s of 20 parts has the standard error s · √(20 · 20/19) = 4.588 s.
    "within the error": (with_lead(9.0, 1.0), 0.0, 2),
    "beyond it": (with_lead(9.3, 1.0), 0.0, 4),
    "by the copies alone": (with_lead(2.8, 0.0), 1.0, 2),
    "beyond these": (with_lead(2.9, 0.0), 1.0, 4),
    "a shallow valley": (with_lead(9.0, 1.0, valley=2.8), 1.0, 4),
    "the first is the best": (with_lead(-1.0, 1.0), 0.0, 2),
}


@pytest.mark.parametrize(("profile", "seed_error", "expected"), LEADS.values(), ids=LEADS)
def test_the_least_peak(profile: Profile, seed_error: float, expected: int) -> None:
    assert least_peak(profile, seed_error) == expected


def test_a_failed_trial_is_no_valley() -> None:
    profile = with_lead(9.0, 1.0)
    failed = (*profile.log_predictive[:3], -math.inf, profile.log_predictive[4])
    assert least_peak(replace(profile, log_predictive=failed), 1.0) == 4


def test_no_symmetry_is_no_peak() -> None:
    blocks = np.zeros((3, 20))
    assert (
        least_peak(Profile((0, 9, 180), (1.0, 0.5, 1.0 + 1e-9), blocks, LARGEST, SCALE), 5.0) == 2
    )
    assert least_peak(Profile((0, 9, 180), (1.0, 0.5, 0.9), blocks, LARGEST, SCALE), 5.0) == 0
