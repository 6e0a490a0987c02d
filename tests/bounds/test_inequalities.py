"""Bounds: closed forms, decimal arithmetic, monotone, and true as often as they claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from oracles import bound_oracle
from scipy.stats import beta

from isotropy.bounds import inequalities
from isotropy.bounds.inequalities import ALL, kl_inverse, occam, occam_binomial
from isotropy.checks import CallerError

CASES = [
    (0, 10, 0.0, 0.05),
    (0, 60_000, 3000.5, 0.05),
    (1, 1, 2.0, 0.05),
    (3, 40, 7.25, 0.01),
    (500, 1000, 1.0, 0.5),
    (999, 1000, 20.0, 0.05),
    (3000, 60_000, 2500.0, 0.05),
    (5000, 10_000, 10.0, 1e-6),
]
every_bound = pytest.mark.parametrize("bound", ALL.values(), ids=list(ALL))


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("errors", "n", "bits", "delta"), CASES)
def test_occam_and_binomial_against_decimal_arithmetic(
    errors: int, n: int, bits: float, delta: float
) -> None:
    nats = bound_oracle.nats(bits, delta)
    for value, exact in (
        (occam(errors, n, bits, delta), bound_oracle.kl_inverse(errors, n, nats)),
        (occam_binomial(errors, n, bits, delta), bound_oracle.binomial_inverse(errors, n, nats)),
    ):
        assert value == pytest.approx(exact, rel=1e-11)
        assert value >= exact or value == 1.0, "rounded to the wrong side"


@pytest.mark.parametrize("budget", [0.0, 1e-12, 1e-6, 0.01, 0.7, 5.0, 40.0])
def test_kl_inverse_without_errors_is_an_exponential(budget: float) -> None:
    assert kl_inverse(0.0, budget) == pytest.approx(-math.expm1(-budget), rel=1e-12, abs=1e-15)
    assert kl_inverse(1.0, budget) == 1.0


def test_half_of_the_data_wrong_has_a_closed_form() -> None:
    """kl(½ ‖ r) = −½ ln(4 r (1 − r)), so that r = (1 + √(1 − e^(−2 budget)))/2."""
    for budget in (1e-4, 0.03, 0.9):
        expected = (1 + math.sqrt(-math.expm1(-2 * budget))) / 2
        assert kl_inverse(0.5, budget) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(("errors", "n"), [(0, 20), (3, 40), (200, 10_000)])
def test_held_out_data_give_clopper_and_pearson(errors: int, n: int) -> None:
    for candidates in (1, 6):
        expected = beta.ppf(1 - 0.05 / candidates, errors + 1, n - errors)
        bound = inequalities.test_set(errors, n, 0.05, candidates)
        assert bound == pytest.approx(expected, rel=1e-10)


def test_no_errors_on_held_out_data_is_a_root() -> None:
    assert inequalities.test_set(0, 100, 0.05) == pytest.approx(1 - 0.05**0.01, rel=1e-9)
    assert inequalities.test_set(5, 5, 0.05) == 1.0


@pytest.mark.parametrize(("errors", "n", "bits", "delta"), CASES)
def test_catoni_against_a_plain_grid(errors: int, n: int, bits: float, delta: float) -> None:
    plain = bound_oracle.catoni(errors, n, bits, delta)
    assert plain - 1e-4 * plain <= inequalities.catoni(errors, n, bits, delta) <= plain + 1e-12


def test_formulas_of_the_thesis() -> None:
    """Equations 5.1 and 5.2 with log|H| = KL = 10 ln 2."""
    nats = 10 * math.log(2)
    root = math.sqrt((nats + math.log(20)) / 400)
    assert inequalities.hoeffding(20, 200, 10.0, 0.05) == pytest.approx(0.1 + root)
    assert inequalities.finite_class(20, 200, 9.2, 0.05) == pytest.approx(0.1 + root)
    root = math.sqrt((nats + math.log(200 / 0.05) + 2) / 399)
    assert inequalities.mcallester(20, 200, 10.0, 0.05) == pytest.approx(0.1 + root)
    union = bound_oracle.nats(10.0, 0.05 / (2 * math.sqrt(200)))
    assert inequalities.maurer(20, 200, 10.0, 0.05) == pytest.approx(
        bound_oracle.kl_inverse(20, 200, union)
    )
    assert inequalities.maurer(0, 7, 0.0, 0.05) == 1.0


def test_the_printed_account_of_mnist() -> None:
    """Table A.18, MNIST: 0.38 KB and 3.5 to 4.3 % of errors give 11.6 % by Catoni's bound."""
    length = 0.38 * 8192
    bits = length + 2 * math.log2(length) + math.log2(720) - 2
    low, high = (inequalities.catoni(errors, 60_000, bits, 0.05) for errors in (2100, 2580))
    assert low <= 0.116 <= high


# --- order ------------------------------------------------------------------------------------


@every_bound
def test_monotone(bound: Callable[[int, int, float, float], float]) -> None:
    """Increasing in errors and bits, decreasing in n at a fixed rate and in δ."""
    rows = {
        "errors": [bound(errors, 400, 30.0, 0.05) for errors in range(0, 401, 20)],
        "bits": [bound(40, 400, bits, 0.05) for bits in np.linspace(0, 200, 15)],
        "n": [bound(n // 10, n, 30.0, 0.05) for n in (6400, 1600, 400, 100, 20)],
        "delta": [bound(40, 400, 30.0, delta) for delta in (0.9, 0.5, 0.05, 1e-3, 1e-9)],
    }
    for name, values in rows.items():
        assert all(before <= after for before, after in pairwise(values)), name
        assert values[0] < values[-1], name
        assert values[0] >= 0 and values[-1] <= 1


@pytest.mark.parametrize(("errors", "n", "bits", "delta"), CASES)
def test_occam_is_the_tightest_but_for_the_tail_itself(
    errors: int, n: int, bits: float, delta: float
) -> None:
    values = {name: bound(errors, n, bits, delta) + 1e-12 for name, bound in ALL.items()}
    assert occam_binomial(errors, n, bits, delta) <= min(values.values())
    del values["occam-binomial"]
    assert occam(errors, n, bits, delta) <= min(values.values())


# --- draws ------------------------------------------------------------------------------------

N, DELTA, DRAWS = 60, 0.05, 1000
BITS = np.array([1.0, 3.0, 4.0, 6.0, 9.0, 12.0])
MEMBERS = np.array([1, 1, 2, 4, 32, 256])
assert (MEMBERS * 2.0**-BITS).sum() <= 1


def violations(bound: Callable[[int, int, float, float], float], charged: np.ndarray) -> float:
    """Share of draws in which the network that a learner takes exceeds its bound.

    Every network errs with a probability of its own, independent of the others. The learner takes
    the one whose bound is lowest, which is the choice that most often breaks it.
    """
    table = np.array(
        [[bound(errors, N, bits, DELTA) for errors in range(N + 1)] for bits in charged]
    )
    draw = np.random.default_rng(0)
    group = np.repeat(np.arange(len(BITS)), MEMBERS)
    risks = draw.uniform(0.2, 0.45, len(group))
    errors = draw.binomial(N, risks, (DRAWS, len(group)))
    bounds = table[group, errors]
    taken = bounds.argmin(1)
    return float((risks[taken] > bounds[np.arange(DRAWS), taken]).mean())


@every_bound
def test_violated_in_at_most_five_of_a_hundred_draws(
    bound: Callable[[int, int, float, float], float],
) -> None:
    assert violations(bound, BITS) <= DELTA


def test_a_choice_that_is_not_charged_violates_the_bound() -> None:
    assert violations(occam, np.zeros_like(BITS)) > 4 * DELTA


def test_held_out_data_that_choose_must_pay_for_the_candidates() -> None:
    draw = np.random.default_rng(1)
    errors = draw.binomial(N, 0.3, (DRAWS, 20)).min(1)

    def share(candidates: int) -> float:
        table = [inequalities.test_set(e, N, DELTA, candidates) for e in range(N + 1)]
        return float(np.mean([table[each] < 0.3 for each in errors]))

    assert share(20) <= DELTA < share(1)


# --- refusals ---------------------------------------------------------------------------------


@every_bound
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((1, 10, 5.0, 0.0), "delta: expected a probability"),
        ((1, 10, 5.0, 1.0), "delta"),
        ((1, 10, 5.0, math.nan), "delta"),
        ((11, 10, 5.0, 0.05), "errors: expected between 0 and n = 10, got 11"),
        ((-1, 10, 5.0, 0.05), "errors"),
        ((0, 0, 5.0, 0.05), "n, the number of examples"),
        ((1, 10, -1.0, 0.05), "bits: expected at least 0"),
        ((1, 10, math.nan, 0.05), "bits"),
    ],
)
def test_refusals(
    bound: Callable[[int, int, float, float], float],
    arguments: tuple[int, int, float, float],
    match: str,
) -> None:
    with pytest.raises(CallerError, match=match):
        bound(*arguments)


def test_refusals_of_the_inverse_and_of_held_out_data() -> None:
    with pytest.raises(CallerError, match="error: expected a number in"):
        kl_inverse(1.5, 1.0)
    with pytest.raises(CallerError, match="budget"):
        kl_inverse(0.5, -1.0)
    with pytest.raises(CallerError, match="candidates"):
        inequalities.test_set(1, 10, 0.05, 0)
