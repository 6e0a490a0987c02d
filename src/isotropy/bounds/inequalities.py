"""The most that a network can err on new data, from its errors on n independent examples.

A certificate is of one network h, which a prior P, fixed before the data, gives ln 1/P(h) =
bits · ln 2 nats. R̂ = errors / n is counted on the data, R is the error on new data, and with
probability at least 1 − δ over the data, for all h at once,

    kl(R̂ ‖ R) ≤ (ln 1/P(h) + ln 1/δ) / n        (Occam: Chernoff's inequality, a union over h)

with kl(q ‖ r) = q ln(q/r) + (1 − q) ln((1 − q)/(1 − r)). `occam` is the largest such R.
`occam_binomial` uses the binomial tail itself instead of Chernoff's bound of it, and is a little
tighter. `test_set` is for held-out data: the same tail, with the number of candidates among which
the data chose in the place of 1/P(h).

The others are for comparison. Their posterior is a point, KL(Q ‖ P) = ln 1/P(h). They are those of
the thesis, equations 5.1 and 5.2 and theorem A.3, and Maurer's (arXiv:cs/0411099, theorem 5).
Every function takes `errors` of `n` examples, the `bits` −log₂ P(h) and `delta`, and returns a
number in [0, 1]; 1 is vacuous. They are increasing in errors and bits and decreasing in n (at a
fixed rate of errors) and delta.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from isotropy.checks import CallerError, check_at_least

CATONI_RATIO = 1 + 1e-4
"""α of theorem A.3: the bound holds for all λ = αʲ at once, and between them at the cost of α."""

ROUNDING = 4 * sys.float_info.epsilon
"""Added to what is solved in floating point, so that the bound is on the safe side."""


def kl_divergence(error: float, rate: float) -> float:
    """kl(error ‖ rate) of two Bernoulli laws, in nats, for error ≤ rate."""
    above = rate - error
    total = 0.0
    if error > 0:
        total -= error * math.log1p(above / error)
    if error < 1:
        rest = above / (1 - error)
        total -= (1 - error) * math.log1p(-rest) if rest < 1 else -math.inf
    return max(0.0, total)


def kl_inverse(error: float, budget: float) -> float:
    """The largest r with kl(error ‖ r) ≤ budget, rounded up.

    Solved by bisection. For error = 0 it is 1 − exp(−budget).
    """
    if not 0 <= error <= 1:
        raise CallerError(f"error: expected a number in [0, 1], got {error:g}")
    check_at_least(budget, 0, what="budget")
    return _largest(lambda rate: kl_divergence(error, rate) <= budget, error)


def occam(errors: int, n: int, bits: float, delta: float) -> float:
    """kl(R̂ ‖ R) ≤ (bits ln 2 + ln 1/δ)/n, solved for R: the bound that a certificate states."""
    return kl_inverse(_rate(errors, n), _nats(bits, delta) / n)


def occam_binomial(errors: int, n: int, bits: float, delta: float) -> float:
    """The largest R with P(Binomial(n, R) ≤ errors) ≥ δ · 2^(−bits): at most `occam`."""
    _rate(errors, n)
    return _binomial_inverse(errors, n, _nats(bits, delta))


def test_set(errors: int, n: int, delta: float, candidates: int = 1) -> float:
    """Held-out data: the largest R with P(Binomial(n, R) ≤ errors) ≥ δ / candidates.

    `candidates` counts the networks among which the held-out data chose; it is 1 if they chose
    nothing. (Langford, "Tutorial on practical prediction theory for classification", 2005.)
    """
    check_at_least(candidates, 1, what="candidates")
    return occam_binomial(errors, n, math.log2(candidates), delta)


def hoeffding(errors: int, n: int, bits: float, delta: float) -> float:
    """R̂ + √((bits ln 2 + ln 1/δ) / 2n): `occam` with 2 (R − R̂)² ≤ kl(R̂ ‖ R)."""
    return min(1.0, _rate(errors, n) + math.sqrt(_nats(bits, delta) / (2 * n)))


def finite_class(errors: int, n: int, bits: float, delta: float) -> float:
    """Equation 5.1: R̂ + √((ln|H| + ln 1/δ) / 2n), |H| = 2^⌈bits⌉.

    A finite class gives every member the same probability, and a code of one length whole bits.
    """
    _nats(bits, delta)
    return hoeffding(errors, n, math.ceil(bits), delta)


def mcallester(errors: int, n: int, bits: float, delta: float) -> float:
    """Equation 5.2: R̂ + √((KL + ln(n/δ) + 2) / (2n − 1))."""
    error, nats = _rate(errors, n), _nats(bits, delta)
    return min(1.0, error + math.sqrt((nats + math.log(n) + 2) / (2 * n - 1)))


def maurer(errors: int, n: int, bits: float, delta: float) -> float:
    """kl(R̂ ‖ R) ≤ (KL + ln(2√n/δ))/n, solved for R; proved for n ≥ 8."""
    error, nats = _rate(errors, n), _nats(bits, delta)
    return kl_inverse(error, (nats + math.log(2 * math.sqrt(n))) / n) if n >= 8 else 1.0


def catoni(errors: int, n: int, bits: float, delta: float) -> float:
    """Theorem A.3, the smallest over λ > 1 of

        Φ⁻¹(R̂ + (α/λ) (KL + ln 1/δ + 2 ln(ln(α²λ)/ln α))),  Φ⁻¹(x) = (1 − e^(−γx))/(1 − e^(−γ))

    with γ = λ/n. The thesis prints Φ⁻¹ with +γ, which makes the infimum 0. Every λ gives a valid
    bound, so that a grid of λ with refinement around its best entry needs no convexity.
    """
    error, nats = _rate(errors, n), _nats(bits, delta)
    ratio = math.log(CATONI_RATIO)

    def bound(log_rate: np.ndarray) -> np.ndarray:
        rate = np.exp(log_rate)
        penalty = CATONI_RATIO / rate * (nats + 2 * np.log(2 + log_rate / ratio))
        gamma = rate / n
        return np.expm1(-gamma * (error + penalty)) / np.expm1(-gamma)

    low, high = 1e-9, math.log(n) + 8
    for _ in range(4):
        grid = np.linspace(low, high, 257)
        values = bound(grid)
        best = int(values.argmin())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 256)])
    return min(1.0, float(values[best]))


ALL: dict[str, Callable[[int, int, float, float], float]] = {
    "occam": occam,
    "occam-binomial": occam_binomial,
    "maurer": maurer,
    "catoni": catoni,
    "hoeffding": hoeffding,
    "finite-class": finite_class,
    "mcallester": mcallester,
}
"""Every inequality for a network that was chosen by the data it is counted on, by name."""


def _rate(errors: int, n: int) -> float:
    check_at_least(n, 1, what="n, the number of examples")
    if not 0 <= errors <= n:
        raise CallerError(f"errors: expected between 0 and n = {n}, got {errors}")
    return errors / n


def _nats(bits: float, delta: float) -> float:
    """ln 1/P(h) + ln 1/δ."""
    check_at_least(bits, 0, what="bits")
    if not 0 < delta < 1:
        raise CallerError(f"delta: expected a probability between 0 and 1, got {delta:g}")
    return bits * math.log(2) - math.log(delta)


def _binomial_inverse(errors: int, n: int, nats: float) -> float:
    """The largest r with ln P(Binomial(n, r) ≤ errors) ≥ −nats, rounded up."""
    if errors == n:
        return 1.0
    count = np.arange(errors + 1, dtype=np.float64)
    # Less what the logarithms below, of up to n ln n, lose to rounding.
    least = -nats - ROUNDING * (4 * n * math.log(n + 1) + nats)
    choices = gammaln(n + 1) - gammaln(count + 1) - gammaln(n - count + 1)

    def reached(rate: float) -> bool:
        if not 0 < rate < 1:
            return rate <= 0
        terms = choices + count * math.log(rate) + (n - count) * math.log1p(-rate)
        largest = float(terms.max())
        return largest + math.log(float(np.exp(terms - largest).sum())) >= least

    return _largest(reached, 0.0)


def _largest(holds: Callable[[float], bool], low: float) -> float:
    """The end of the interval [low, …] within [0, 1] where `holds`, by bisection, rounded up."""
    high = 1.0
    if holds(high):
        return high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return min(1.0, high + ROUNDING)
        if holds(middle):
            low = middle
        else:
            high = middle
