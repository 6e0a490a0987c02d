"""Profiles of the log evidence: their peak, its interval, and agreement in rank."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from isotropy.checks import CallerError
from isotropy.evidence.search.amounts import GRID, default_amounts, peak_of, rank_correlation

NORMAL = stats.norm.ppf(0.975)  # 1.96: half of the interval of a Gaussian, in deviations


def parabola(amounts: list[float], top: float, deviation: float, level: float = -900.0):
    return [level - (amount - top) ** 2 / (2 * deviation**2) for amount in amounts]


# --- the peak ---------------------------------------------------------------------------------


@given(st.floats(1.0, 9.0), st.floats(0.05, 0.4), st.floats(-1e4, 1e4))
def test_parabola_inside(top: float, deviation: float, level: float) -> None:
    """log Z of a Gaussian posterior: its mean, and ±1.96 deviations within a step of the grid."""
    amounts = [0.0, 0.5, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0]  # not equally spaced
    found = peak_of(amounts, parabola(amounts, top, deviation, level))
    step = 10.0 / (GRID - 1)
    assert found.maximum == pytest.approx(top, abs=1e-4)
    low, high = found.interval
    assert low == pytest.approx(max(0.0, top - NORMAL * deviation), abs=2 * step)
    assert high == pytest.approx(min(10.0, top + NORMAL * deviation), abs=2 * step)


@pytest.mark.parametrize(("top", "expected"), [(-3.0, 0.0), (0.0, 0.0), (10.0, 10.0), (13, 10.0)])
def test_parabola_at_an_end(top: float, expected: float) -> None:
    """Its top lies at the end of what was tried or beyond; the interval is that of the rest."""
    amounts = [0.0, 2.5, 5.0, 7.5, 10.0]
    deviation = 1.0  # beyond the neighbours of the end, on straight lines, next to nothing is left
    found = peak_of(amounts, parabola(amounts, top, deviation))
    assert found.maximum == pytest.approx(expected, abs=1e-9)
    whole = stats.truncnorm((0 - top) / deviation, (10 - top) / deviation, top, deviation)
    low, high = found.interval
    if expected == 0.0:
        assert low == 0.0 and high == pytest.approx(whole.ppf(0.95), abs=0.01)
    else:
        assert high == 10.0 and low == pytest.approx(whole.ppf(0.05), abs=0.01)


@given(st.floats(4.5, 5.5), st.sampled_from([100, 400, 900]))
def test_examples_widen_the_interval(top: float, examples: int) -> None:
    """The power 1/(1 + √N/2) of a Gaussian has √(1 + √N/2) times its deviation."""
    amounts, deviation = [0.0, 1.0, 5.0, 9.0, 10.0], 0.3
    found = peak_of(amounts, parabola(amounts, top, deviation), examples=examples)
    assert found.maximum == peak_of(amounts, parabola(amounts, top, deviation)).maximum
    reach = NORMAL * deviation * (1 + examples**0.5 / 2) ** 0.5
    assert found.interval == pytest.approx((top - reach, top + reach), abs=0.02)


def test_far_amounts_count_as_they_were_found() -> None:
    """A profile that is flat below its peak has an interval down to there."""
    amounts = [0.0, 45.0, 90.0, 120.0, 150.0, 180.0]
    flat, steep = [-600, -140, -15, -12, -2, 0], [-600, -400, -300, -200, -2, 0]
    low = peak_of(amounts, flat, examples=1500).interval[0]
    assert low < 95
    assert peak_of(amounts, steep, examples=1500).interval[0] > 130


@pytest.mark.parametrize("slope", [2.0, -2.0])
def test_straight_line(slope: float) -> None:
    """An exponential density: 95 % lie within log(20)/|slope| of the higher end, cut to 0 … 10."""
    amounts = [0.0, 4.0, 7.0, 10.0]
    found = peak_of(amounts, [slope * amount for amount in amounts])
    end = 10.0 if slope > 0 else 0.0
    assert found.maximum == end
    share = 1 - math.exp(-10 * abs(slope))
    reach = -math.log(1 - 0.95 * share) / abs(slope)
    other = end - math.copysign(reach, slope)
    assert found.interval == pytest.approx((min(end, other), max(end, other)), abs=0.006)


def test_a_profile_that_bends_upwards_to_its_end() -> None:
    """Read on straight lines, where the parabola through the last points has no top."""
    found = peak_of([0.0, 1.0, 2.0, 3.0], [0.0, 0.1, 0.5, 3.0])
    assert found.maximum == 3.0
    assert found.interval[1] == 3.0 and 0.0 < found.interval[0] < 2.5


def test_a_flat_profile_says_nothing() -> None:
    found = peak_of([0.0, 1.0, 2.0], [5.0, 5.0, 5.0])
    assert found.interval[1] - found.interval[0] >= 0.95 * 2.0 - 2e-3


MISTAKES = {
    "two points": ([0.0, 1.0], [1.0, 2.0], "three or more"),
    "lengths": ([0.0, 1.0, 2.0], [1.0, 2.0], "3 amounts and 2 values"),
    "not increasing": ([0.0, 2.0, 1.0], [1.0, 2.0, 3.0], "increasing"),
    "one twice": ([0.0, 1.0, 1.0], [1.0, 2.0, 3.0], "increasing"),
    "not finite": ([0.0, 1.0, 2.0], [1.0, math.nan, 3.0], "expected finite"),
    "infinite": ([0.0, 1.0, 2.0], [1.0, -math.inf, 3.0], "expected finite"),
}


@pytest.mark.parametrize(("amounts", "values", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_sentences(amounts, values, sentence) -> None:
    with pytest.raises(CallerError, match=sentence):
        peak_of(amounts, values)


# --- ranks ------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=12))
def test_rank_correlation_with_ties(pairs: list[tuple[int, int]]) -> None:
    first, second = ([float(value) for value in column] for column in zip(*pairs, strict=True))
    found = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_rank_correlation_of_monotone_values() -> None:
    values = [0.1, 0.2, 0.7, 5.0]
    assert rank_correlation(values, [math.exp(v) for v in values]) == pytest.approx(1.0)
    assert rank_correlation(values, [-v for v in values]) == pytest.approx(-1.0)


@pytest.mark.parametrize("given_", [([1.0, 2.0], [2.0, 1.0]), ([1.0, 2.0, 3.0], [1.0, 2.0])])
def test_rank_correlation_of_too_little(given_) -> None:
    assert rank_correlation(*given_) is None


# --- amounts ----------------------------------------------------------------------------------


def test_default_amounts() -> None:
    assert default_amounts(180.0, 5) == [0.0, 45.0, 90.0, 135.0, 180.0]
    assert len(default_amounts(1.0)) == 9


@pytest.mark.parametrize(("largest", "count"), [(180.0, 2), (0.0, 5), (-1.0, 5), (math.inf, 5)])
def test_amounts_that_make_no_profile(largest: float, count: int) -> None:
    with pytest.raises(CallerError, match="three or more up to a number above 0"):
        default_amounts(largest, count)
