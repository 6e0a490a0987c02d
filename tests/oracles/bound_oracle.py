"""Bounds in decimal arithmetic of 60 digits, and the law of a level by its formula.

Only the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

DIGITS = 60
HALVINGS = 150


def kl(error: Decimal, rate: Decimal) -> Decimal:
    """kl(error ‖ rate), with 0 ln 0 = 0; rate strictly between 0 and 1."""
    total = Decimal(0)
    if error > 0:
        total += error * (error / rate).ln()
    if error < 1:
        total += (1 - error) * ((1 - error) / (1 - rate)).ln()
    return total


def kl_inverse(errors: int, n: int, nats: Decimal) -> float:
    """The r ≥ errors/n with kl(errors/n ‖ r) = nats/n."""
    with localcontext() as context:
        context.prec = DIGITS
        error = Decimal(errors) / Decimal(n)
        if errors == n:
            return 1.0
        return _crossing(lambda rate: kl(error, rate) <= nats / n, error)


def binomial_inverse(errors: int, n: int, nats: Decimal) -> float:
    """The r with P(Binomial(n, r) ≤ errors) = exp(−nats)."""
    with localcontext() as context:
        context.prec = DIGITS
        if errors == n:
            return 1.0
        least = (-nats).exp()
        ways = [Decimal(1)]
        for i in range(errors):
            ways.append(ways[-1] * (n - i) / (i + 1))

        def reached(rate: Decimal) -> bool:
            odds = rate / (1 - rate)
            tail = Decimal(0)
            for each in reversed(ways):  # Horner's scheme in the odds
                tail = tail * odds + each
            return tail * (1 - rate) ** n >= least

        return _crossing(reached, Decimal(0))


def nats(bits: float, delta: float) -> Decimal:
    """bits · ln 2 + ln 1/δ, of the binary numbers that were given."""
    with localcontext() as context:
        context.prec = DIGITS
        return Decimal(bits) * Decimal(2).ln() - Decimal(delta).ln()


def catoni(errors: int, n: int, bits: float, delta: float, points: int = 4000) -> float:
    """Theorem A.3 with the right sign, the least over λ on an even grid of ln λ: no refinement."""
    alpha, least = 1 + 1e-4, 1.0
    complexity = bits * math.log(2) + math.log(1 / delta)
    for i in range(1, points):
        rate = math.exp(i / points * (math.log(n) + 6))
        union = 2 * math.log(math.log(alpha**2 * rate) / math.log(alpha))
        inside = errors / n + alpha / rate * (complexity + union)
        value = (1 - math.exp(-rate / n * inside)) / (1 - math.exp(-rate / n))
        least = min(least, value)
    return least


def level_frequencies(shape: str, scale: float, units: int) -> list[int]:
    """⌊units · w_k / Z⌋ for k = 1, 2, … while it is not zero, every w_k by an exponential."""
    with localcontext() as context:
        context.prec = 80
        exact = Decimal(scale)

        def weight(k: int) -> Decimal:
            power = Decimal(k * k) / (2 * exact * exact) if shape == "gaussian" else k / exact
            return (-power).exp()

        weights = []
        while not weights or weights[-1] > Decimal(10) ** -40:
            weights.append(weight(len(weights)))
        total = weights[0] + 2 * sum(weights[1:])
        found = [int(units * each / total) for each in weights[1:]]
        return [each for each in found if each]


def _crossing(holds: Callable[[Decimal], bool], low: Decimal) -> float:
    high = Decimal(1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return float(high)
