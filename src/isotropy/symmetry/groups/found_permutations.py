"""Permutations that turn one sample of an entity into another, found from pairs of samples.

Each pair (x, y) shows one entity twice, and y is x with its coordinates in another order, times a
positive factor, plus noise:

    y[p[i]] = s x[i] + noise,   s > 0                        p one of a few unknown permutations

Sorting both gives the permutation of a pair where there is no noise; with noise neighbours in the
order change places. The correlation of a pair under p does not depend on s,

    c(p) = Σ_i x̂[i] ŷ[p[i]],    x̂ = (x − mean x) / ‖x − mean x‖                 (−1 ≤ c ≤ 1)

and all pairs together correct the order:

1. Propose. The sorted order of a pair, most frequent first, is a guess p. The pairs with the
   largest c(p) vote: p becomes the assignment that maximises Σ_pairs c(p), until it stays.
2. Settle. Every pair goes to the permutation with the largest c, and each permutation is fitted
   again to its pairs. One that is left with too few pairs, or whose pairs are explained about as
   well by another one, is removed, and one that almost explains many further pairs: another
   relation than a permutation does that.

A permutation counts if more pairs support it than chance explains. Chance is the probability that
an unrelated pair (x of one pair, y of another) has a correlation this large. The binomial tail,
times d! for all permutations that could have been proposed, has to be below SIGNIFICANCE. If no
permutation counts, nothing is found: then pairs are no permutations of each other, or no
permutation occurs often enough.

The four distortions of Zhang and Arodz (2021), "Learning invariance in deep neural networks",
section 5, are of this kind. Index lists are those of `Group`: coordinate i goes to place p[i].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln
from scipy.stats import beta, binom

from isotropy.checks import CallerError

LEAST_CORRELATION = 0.9
"""Below this a pair is not explained by a permutation, whatever the noise of others."""
ALMOST = 0.8
"""Few pairs lie between this and LEAST_CORRELATION where a permutation is real: each pair is either
explained or not."""
SIGNIFICANCE = 1e-3
LEAST_SUPPORT = 3
VOTERS = 8
"""Pairs that correct a first guess."""
FAILURES = 200
"""Guesses in a row without a new permutation after which none are made."""
LARGEST_GROUP = 10_000
"""Elements beyond which a group that the permutations generate is not written out."""

Permutation = tuple[int, ...]


@dataclass(frozen=True)
class FoundPermutations:
    """What `find_permutations` found.

    permutations: index lists, coordinate i goes to place p[i]; most support first
    support:      pairs that each permutation explains best
    is_group:     whether the permutations are a group: closed under composition, which for a
                  finite set includes identity and inverses
    generators:   a small set that generates the permutations; none for the identity alone
    group_size:   elements of the group that they generate; None beyond LARGEST_GROUP
    dimension:    d
    pairs:        pairs that could be used: neither sample is constant
    error:        median over explained pairs of min_s ‖y − s P x‖ / ‖y‖, both centred
    factors:      s at the 5 % and the 95 % quantile of explained pairs
    """

    permutations: list[list[int]]
    support: list[int]
    is_group: bool
    generators: list[list[int]]
    group_size: int | None
    dimension: int
    pairs: int
    error: float | None
    factors: tuple[float, float] | None

    @property
    def explained(self) -> float:
        """The share of pairs that a permutation explains."""
        return sum(self.support) / self.pairs

    def check_found(self) -> FoundPermutations:
        """Itself; raises CallerError where nothing was found."""
        if not self.permutations:
            raise CallerError(f"expected permutations that generate a group, got none; {self}")
        return self

    def __str__(self) -> str:
        if not self.permutations:
            return (
                f"none of {self.pairs} pairs is explained by a permutation that others share: the "
                "pairs are no permutations of each other, or there are too many permutations"
            )
        count = len(self.permutations)
        told = f"{count} permutation{'s' if count > 1 else ''} of {self.dimension} coordinates"
        told += f" explain {100 * self.explained:.3g} % of {self.pairs} pairs"
        if self.error is not None and self.factors is not None:
            low, high = self.factors
            told += f" with a relative error of {self.error:.2g}, factors {low:.3g} to {high:.3g}"
        if self.is_group:
            by = " and ".join(map(cycles, self.generators)) or "the identity"
            return f"{told}; they are a group, generated by {by}"
        size = f"{self.group_size}" if self.group_size else f"more than {LARGEST_GROUP}"
        return f"{told}; they are not a group, the group that they generate has {size} elements"


def find_permutations(x: Any, y: Any) -> FoundPermutations:
    """The permutations that turn x (pairs, d) into y (pairs, d), up to a positive factor a pair.

    x, y: tensors or arrays; rows with the same index show the same entity
    Two thousand pairs of d = 20 take about a second. The result is deterministic. `Group(name,
    discrete=found)` and `matrix_elements(found)` take it.

    Raises CallerError for other shapes, fewer than 3 coordinates, NaN and infinities, and fewer
    than LEAST_SUPPORT pairs whose samples are not constant.
    """
    pairs = _Pairs(*_checked(x, y))
    found: list[Permutation] = []
    support: list[int] = []
    while new := _proposed(pairs, found):
        settled = _settled(pairs, [*found, *new])
        more = pairs.support(settled)
        if sum(more) <= sum(support):
            break
        found, support = settled, more
    ranked = sorted(zip(found, support, strict=True), key=lambda each: (-each[1], each[0]))
    found = [each for each, _ in ranked]
    generators, group_size = generating_set(found)
    correlations, factors = pairs.explained_by(found)
    return FoundPermutations(
        permutations=[list(each) for each in found],
        support=[count for _, count in ranked],
        is_group=bool(found) and group_size == len(found),
        generators=[list(each) for each in generators],
        group_size=group_size if found else None,
        dimension=pairs.x.shape[1],
        pairs=len(pairs.x),
        error=float(np.median(_sine(correlations))) if found else None,
        factors=tuple(np.quantile(factors, [0.05, 0.95]).tolist()) if found else None,
    )


def _checked(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    arrays = []
    for name, given in (("x", x), ("y", y)):
        given = given.detach().cpu().numpy() if hasattr(given, "detach") else np.asarray(given)
        if given.ndim != 2 or given.shape[1] < 3 or given.dtype.kind not in "biuf":
            raise CallerError(
                f"{name}: expected numbers (pairs, d) with d ≥ 3, got shape {given.shape} of "
                f"{given.dtype}; flatten further axes"
            )
        if not np.isfinite(given).all():
            raise CallerError(f"{name}: expected finite numbers, got a NaN or an infinity")
        arrays.append(given.astype(np.float64))
    first, second = arrays
    if first.shape != second.shape:
        raise CallerError(
            f"expected x and y of one shape, a row a pair, got {first.shape} and {second.shape}"
        )
    varies = (np.ptp(first, axis=1) > 0) & (np.ptp(second, axis=1) > 0)
    if varies.sum() < LEAST_SUPPORT:
        raise CallerError(
            f"expected at least {LEAST_SUPPORT} pairs whose samples are not constant, got "
            f"{int(varies.sum())}; a constant sample looks the same in any order"
        )
    return first[varies], second[varies]


class _Pairs:
    """x̂ and ŷ (pairs, d), and what chance explains of them."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        centred = [each - each.mean(1, keepdims=True) for each in (x, y)]
        norms = [np.linalg.norm(each, axis=1) for each in centred]
        self.x, self.y = (each / norm[:, None] for each, norm in zip(centred, norms, strict=True))
        self.ratio = norms[1] / norms[0]

    def correlations(self, found: Sequence[Permutation]) -> np.ndarray:
        """c (pairs, permutations)."""
        each = [np.einsum("nd,nd->n", self.x, self.y[:, list(p)]) for p in found]
        return np.stack(each, 1) if each else np.zeros((len(self.x), 0))

    def best(self, found: Sequence[Permutation]) -> tuple[np.ndarray, np.ndarray]:
        """For each pair the permutation with the largest c, −1 where none explains it, and c."""
        if not found:
            return np.full(len(self.x), -1), np.zeros(len(self.x))
        correlations = self.correlations(found)
        chosen, largest = correlations.argmax(1), correlations.max(1)
        return np.where(largest >= least_correlation(largest), chosen, -1), largest

    def support(self, found: Sequence[Permutation]) -> list[int]:
        """How many pairs each permutation explains best."""
        chosen, _ = self.best(found)
        counts: list[int] = np.bincount(chosen[chosen >= 0], minlength=len(found)).tolist()
        return counts

    def explained_by(self, found: Sequence[Permutation]) -> tuple[np.ndarray, np.ndarray]:
        """c and s = c ‖y‖ / ‖x‖ of the pairs that are explained."""
        chosen, largest = self.best(found)
        kept = chosen >= 0
        return largest[kept], (largest * self.ratio)[kept]

    def is_significant(self, permutation: Permutation, support: int, least: float) -> bool:
        """Whether `support` pairs with c ≥ `least` are more than chance explains.

        Chance is the share of unrelated pairs, but at least the probability for normal vectors,
        which says how rare it is where no unrelated pair reaches `least`.
        """
        if support < LEAST_SUPPORT:
            return False
        count, d = self.x.shape
        few = min(count, 500)
        across = self.x[:few] @ self.y[:few, list(permutation)].T
        unrelated = (across >= least).sum() - (np.diagonal(across) >= least).sum()
        # (1 + c) / 2 of two random directions in d − 1 dimensions has this beta distribution.
        normal = beta.sf((1 + least) / 2, (d - 2) / 2, (d - 2) / 2)
        chance = min(max(float(normal), unrelated / (few * (few - 1))), 1.0)
        tail = float(binom.logsf(support - 1, count, chance))
        return tail + float(gammaln(d + 1)) < math.log(SIGNIFICANCE)


def least_correlation(correlations: np.ndarray) -> float:
    """From which c on pairs are explained: ten times the median of 1 − c of those above 0.9."""
    above = correlations[correlations >= LEAST_CORRELATION]
    if not len(above):
        return LEAST_CORRELATION
    return max(LEAST_CORRELATION, 1 - 10 * float(np.median(1 - above)) - 1e-9)


def _sine(correlations: np.ndarray) -> np.ndarray:
    """√(1 − c²), the relative error that the best factor leaves."""
    return np.sqrt(np.clip(1 - correlations**2, 0, None))


def _fitted(x: np.ndarray, y: np.ndarray) -> Permutation:
    """The permutation with the largest sum of c over the pairs given."""
    _, places = linear_sum_assignment(x.T @ y, maximize=True)
    return tuple(places.tolist())


def _proposed(pairs: _Pairs, found: Sequence[Permutation]) -> list[Permutation]:
    """New permutations from the pairs that those found so far do not explain."""
    chosen, _ = pairs.best(found)
    alive = chosen < 0
    orders = np.empty(pairs.x.shape, np.int64)
    np.put_along_axis(orders, pairs.x.argsort(1), pairs.y.argsort(1), 1)
    _, where, votes = np.unique(orders, axis=0, return_inverse=True, return_counts=True)
    new: dict[Permutation, None] = {}
    failures = 0
    for seed in np.argsort(-votes[where.ravel()], kind="stable"):
        if not alive[seed]:
            continue
        if failures == FAILURES:
            break
        proposed = _corrected(pairs.x[alive], pairs.y[alive], tuple(orders[seed].tolist()))
        correlations = pairs.correlations([proposed])[:, 0]
        least = least_correlation(correlations[alive])
        voters = alive & (correlations >= least)
        alive[seed] = False
        failures += 1
        if pairs.is_significant(proposed, int(voters.sum()), least):
            new[proposed] = None
            alive &= ~voters
            failures = 0
    return list(new)


def _corrected(x: np.ndarray, y: np.ndarray, guess: Permutation) -> Permutation:
    """A guess, fitted to the pairs that it explains best until it stays."""
    for _ in range(20):
        correlations = np.einsum("nd,nd->n", x, y[:, list(guess)])
        voters = np.flatnonzero(correlations >= LEAST_CORRELATION)
        if len(voters) < VOTERS:
            voters = np.argsort(-correlations)[:VOTERS]
        fitted = _fitted(x[voters], y[voters])
        if fitted == guess:
            break
        guess = fitted
    return guess


def _settled(pairs: _Pairs, found: Sequence[Permutation]) -> list[Permutation]:
    """Permutations that agree with the pairs they explain best, without those that are not needed.

    One that is not needed goes at a time, the least supported first.
    """
    found = list(dict.fromkeys(found))
    for _ in range(20):
        chosen, _ = pairs.best(found)
        fitted = [
            _fitted(pairs.x[chosen == k], pairs.y[chosen == k]) if (chosen == k).any() else p
            for k, p in enumerate(found)
        ]
        same, found = fitted == found, list(dict.fromkeys(fitted))
        if same:
            break
    while found:
        correlations = pairs.correlations(found)
        chosen, largest = pairs.best(found)
        chosen_at_all = correlations.argmax(1)
        least = least_correlation(largest)
        noise = np.median(1 - largest[chosen >= 0]) if (chosen >= 0).any() else 0.0
        support = pairs.support(found)
        for k in np.argsort(support, kind="stable"):
            own = chosen == k
            others = np.delete(correlations[own], k, 1)
            replaceable = others.size > 0 and np.median(1 - others.max(1)) < 5 * noise + 1e-9
            almost = (chosen_at_all == k) & (largest >= ALMOST) & (largest < LEAST_CORRELATION)
            no_gap = 2 * almost.sum() > support[k]
            significant = pairs.is_significant(found[k], support[k], least)
            if replaceable or no_gap or not significant:
                del found[k]
                break
        else:
            break
    return found


# -- groups of permutations --------------------------------------------------------------------


def generated(generators: Iterable[Permutation], largest: int) -> set[Permutation] | None:
    """All products of the generators; None if there are more than `largest`."""
    steps = [tuple(each) for each in generators]
    if not steps:
        return set()
    identity = tuple(range(len(steps[0])))
    elements, newest = {identity}, [identity]
    while newest:
        products = {tuple(s[i] for i in each) for each in newest for s in steps}
        newest = list(products - elements)
        elements.update(newest)
        if len(elements) > largest:
            return None
    return elements


def generating_set(permutations: Sequence[Permutation]) -> tuple[list[Permutation], int | None]:
    """Few of the permutations that generate all of them, and the size of what they generate.

    Each is the one that enlarges the group most, and of these one that moves few coordinates.
    Where the group has more than LARGEST_GROUP elements all permutations are returned, and None.
    """
    whole = generated(permutations, LARGEST_GROUP)
    if whole is None:
        return list(permutations), None
    chosen: list[Permutation] = []
    reached = generated([tuple(range(len(permutations[0])))], 1) if permutations else set()
    assert reached is not None
    while not reached >= set(permutations):
        larger = {
            each: generated([*chosen, each], LARGEST_GROUP) or set()
            for each in permutations
            if each not in reached
        }
        best = min(larger, key=lambda each: (-len(larger[each]), _moved(each), each))
        chosen.append(best)
        reached = larger[best]
    return chosen, len(whole)


def _moved(permutation: Permutation) -> int:
    return sum(place != i for i, place in enumerate(permutation))


def cycles(permutation: Sequence[int]) -> str:
    """`(0 1 2)(3 4)`: coordinate 0 goes to place 1, and so on; `()` for the identity."""
    seen: set[int] = set()
    told = ""
    for start in range(len(permutation)):
        cycle = []
        at = start
        while at not in seen:
            seen.add(at)
            cycle.append(str(at))
            at = permutation[at]
        if len(cycle) > 1:
            told += f"({' '.join(cycle)})"
    return told or "()"
