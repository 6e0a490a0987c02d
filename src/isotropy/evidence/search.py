"""Which symmetries there are and how much of each: a search over trials.

Trials (`trials`) give log Z at any amounts. The search goes forwards, one symmetry after the other:

    1. for each candidate, log Z over a coarse grid of its amounts, on top of what was taken before
    2. the candidate with the largest gain is taken, if that is at least `LEAST_GAIN` and twice what
       replicates differ by, and if it is more probable than not that there is more of it than the
       floor (`amounts`); its amount is refined
    3. again with those that are left, until none is worth taking

Two directions of one motion (translation along x and y) are tried together as well: each alone may
be worth nothing. Where several were taken, each amount is refined once more beside the others. What
is not taken is exactly zero. The grid covers the whole range of each candidate, so that a symmetry
that pays only when it is complete is found as well as a small one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isotropy.evidence.amounts import (
    AmountPosterior,
    Profile,
    between,
    coarse_power,
    gain_interval,
    interpolated_peak,
    posterior,
)
from isotropy.evidence.trials import Amounts, Trial, Trials
from isotropy.networks.augmentations import Augmentation, Ranges
from isotropy.networks.mixtures import Mixture
from isotropy.symmetry.actions import Generator

FLOOR = 0.1
"""Half-width, in coordinates, below which there is too little of a symmetry to speak of."""
FLOOR_SHARE = 0.5
"""Share of the largest probability below which an element is too rare to speak of: an average with
less of it is mostly that of the input as it is."""
WHOLE = 0.4
"""Half-width, in coordinates, from which a motion without a period counts as whole."""
WHOLE_SHARE = 0.9
"""Share of the period, or of the largest probability, from which a symmetry is whole."""
LARGEST = 1.0
"""Half-width, in coordinates, up to which a motion without a period is searched: for pictures half
their size, for factors e."""
PERIODIC_GRID = (0.02, 0.05, 0.1, 0.15, 0.2, 0.28, 0.4, 0.6, 0.8, 1.0)
"""Shares of the period."""
OPEN_GRID = (0.05, 0.15, 0.4, 1.0)
PROBABILITY_GRID = (0.2, 0.5, 1.0)
"""Shares of the largest probability."""
AROUND = (0.5, 0.7, 0.85, 1.2, 1.5, 2.2)
"""Times the amount that was found: where its posterior is computed from."""
SAME = 1e-3
"""Share of the largest amount by which two amounts must differ to be told apart."""
LEAST_GAIN = math.log(20)
"""Nats that a symmetry must gain to be taken."""
ERRORS = 2.0
"""And standard deviations between replicates."""
LEAST_ERROR = 0.5
"""Nats: standard deviation between replicates that is assumed at least."""


@dataclass(frozen=True)
class Candidate:
    """A symmetry that may be taken, or several by the same amount; amounts as users read them.

    largest: as much as there can be
    floor, whole: where absent ends and where present begins
    scale: one small step
    """

    names: tuple[str, ...]
    largest: float
    grid: tuple[float, ...]
    floor: float
    whole: float
    scale: float

    @property
    def name(self) -> str:
        """Of a single one."""
        return self.names[0]

    def of(self, amount: float) -> dict[str, float]:
        """The amounts of a trial."""
        return dict.fromkeys(self.names, amount)


@dataclass(frozen=True, eq=False)
class Finding:
    """What the search says of one symmetry.

    profile: log Z over its amounts beside everything else that was taken
    posterior, coarse: density over its amount, as if the model were exact, and allowing for a model
             that is not (`coarse_power`)
    amount:  what was taken; zero if it was not
    gain:    log Z with it minus log Z without it, in nats over all examples of the trials, and its
             95 % interval; at its best amount above zero where it was not taken
    """

    candidate: Candidate
    profile: Profile
    posterior: AmountPosterior
    coarse: AmountPosterior
    amount: float
    gain: float
    gain_interval: tuple[float, float]

    @property
    def probability(self) -> float:
        """That there is more of it than the floor."""
        return self.posterior.above(self.candidate.floor)

    @property
    def interval(self) -> tuple[float, float]:
        """The coarse posterior's, stretched to the amount that was taken: zero where it was not."""
        low, high = self.coarse.interval
        return min(low, self.amount), max(high, self.amount)


@dataclass(frozen=True, eq=False)
class Search:
    """What was found, by name; `log_evidence` of the trial with all that was taken."""

    findings: Mapping[str, Finding]
    log_evidence: float
    examples: int
    trials: int
    seed_error: float

    @property
    def amounts(self) -> dict[str, float]:
        """In reported units, zeros included."""
        return {name: finding.amount for name, finding in self.findings.items()}


def candidates_of(augmentation: Augmentation) -> list[Candidate]:
    """Everything that the augmentation could have, within its bounds."""
    ranges = augmentation.ranges if isinstance(augmentation, Mixture) else augmentation
    found: list[Candidate] = []
    if isinstance(ranges, Ranges):
        bounds = ranges.get_buffer("bounds").tolist()
        pairs = zip(ranges.action.generators, bounds, strict=True)
        found += [_of_generator(generator, bound) for generator, bound in pairs if bound > 0]
    for action in augmentation.finite if isinstance(augmentation, Mixture) else ():
        most = 1.0 if action.is_random else 1 / (1 + len(action.elements))
        for name in action.names:
            assert isinstance(augmentation, Mixture)
            end = min(most, augmentation.caps.get(name, 1.0))
            if end > 0:
                grid = tuple(end * share for share in PROBABILITY_GRID)
                whole = WHOLE_SHARE * most
                found.append(Candidate((name,), end, grid, FLOOR_SHARE * most, whole, end / 2))
    return found


def _of_generator(generator: Generator, bound: float) -> Candidate:
    end = LARGEST if math.isinf(bound) else bound
    shares = OPEN_GRID if generator.period is None else PERIODIC_GRID
    whole = WHOLE if generator.period is None else WHOLE_SHARE * generator.period
    in_units: Callable[[float], float] = generator.in_units
    return Candidate(
        (generator.name,),
        in_units(end),
        tuple(in_units(end * share) for share in shares),
        in_units(FLOOR),
        in_units(whole),
        in_units(FLOOR),
    )


def families_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Motions along several axes, by the same amount: names that differ in `_x`, `_y`, `_z`."""
    stems: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        stem, _, axis = candidate.name.rpartition("_")
        if axis in ("x", "y", "z"):
            stems.setdefault(stem, []).append(candidate)
    return [
        replace(members[0], names=tuple(member.name for member in members))
        for members in stems.values()
        if len(members) > 1 and len({member.largest for member in members}) == 1
    ]


def search(
    trials: Trials,
    candidates: Sequence[Candidate],
    *,
    replicates: int = 3,
    at_least: float = -math.inf,
) -> Search:
    """Find amounts.

    replicates: trials with other copies behind each gain
    at_least:   log evidence that must be reached with a symmetry for it to be taken; what a
                constant prediction reaches, say: below it amounts only smooth noise
    """
    return _Search(trials, candidates, replicates, at_least).run()


class _Search:
    def __init__(
        self,
        trials: Trials,
        candidates: Sequence[Candidate],
        replicates: int,
        at_least: float,
    ) -> None:
        self.trials, self.replicates, self.at_least = trials, max(2, replicates), at_least
        self.singles = {candidate.name: candidate for candidate in candidates}
        self.families = families_of(candidates)
        self.tried: dict[tuple[str, ...], dict[float, None]] = {}
        self.error, self.degrees = LEAST_ERROR, 1

    def run(self) -> Search:
        taken: dict[str, float] = {}
        self._measure_error(taken)
        while (best := self._best(taken)) is not None:
            taken |= best.of(self._refined(best, taken))
        if len(taken) > 1:
            for name in taken:
                taken[name] = self._refined(self.singles[name], taken, taken[name])
        taken = {name: amount for name, amount in taken.items() if amount}
        self._measure_error(taken)
        return Search(
            {name: self._finding(candidate, taken) for name, candidate in self.singles.items()},
            self.trials.at(taken).log_evidence,
            self.trials.examples,
            self.trials.count,
            self.error,
        )

    def _best(self, taken: Amounts) -> Candidate | None:
        """The candidate with the largest gain on top of those taken; None if none is worth it.

        Families are tried where no single one is worth it.
        """
        for candidates in (self.singles.values(), self.families):
            gains: list[tuple[float, Candidate]] = []
            for candidate in candidates:
                if any(name in taken for name in candidate.names):
                    continue
                self._scan(candidate, taken)
                profile = self._profile(candidate, taken)
                likely = posterior(profile, self.error).above(candidate.floor) > 0.5
                enough = max(profile.log_evidence) > self.at_least
                if likely and enough and profile.gain > max(LEAST_GAIN, ERRORS * self.error):
                    gains.append((profile.gain, candidate))
            if gains:
                return max(gains, key=lambda each: each[0])[1]
        return None

    def _scan(self, candidate: Candidate, taken: Amounts) -> None:
        """Trials over the grid."""
        for amount in candidate.grid:
            self._at(candidate, amount, taken)

    def _at(self, candidate: Candidate, amount: float, taken: Amounts) -> Trial:
        tried = self.tried.setdefault(candidate.names, {})
        # Amounts that differ by less than matters are one.
        near = (each for each in tried if abs(each - amount) < SAME * candidate.largest)
        amount = next(near, amount)
        tried[amount] = None
        return self.trials.at({**taken, **candidate.of(amount)})

    def _profile(self, candidate: Candidate, taken: Amounts) -> Profile:
        """log Z at all amounts that were tried beside these others."""
        others = _without(taken, candidate.names)
        rows = {0.0: self.trials.at(others)}
        for amount in self.tried.get(candidate.names, ()):
            known = self.trials.known({**others, **candidate.of(amount)})
            if known is not None:
                rows[amount] = known
        amounts = tuple(sorted(rows))
        return Profile(
            amounts,
            tuple(rows[amount].log_evidence for amount in amounts),
            np.stack([rows[amount].blocks.double().cpu().numpy() for amount in amounts]),
            candidate.largest,
            candidate.scale,
        )

    def _refined(self, candidate: Candidate, taken: Amounts, last: float | None = None) -> float:
        """The best amount: trials half way to the neighbours of the best, and at the peak.

        last: an amount that was best before others were taken, from which to start
        """
        if last is not None:
            for factor in (0.7, 1.0, 1.4):
                self._at(candidate, min(candidate.largest, last * factor), taken)
        for _ in range(2 if last is None else 1):
            profile = self._profile(candidate, taken)
            best = profile.best
            for first, second in ((best - 1, best), (best, best + 1)):
                if first >= 0 and second < len(profile.amounts):
                    near = between(profile, profile.amounts[first], profile.amounts[second])
                    self._at(candidate, near, taken)
        peak = interpolated_peak(self._profile(candidate, taken))
        self._at(candidate, peak, taken)
        profile = self._profile(candidate, taken)
        return profile.amounts[profile.best]

    def _measure_error(self, taken: Amounts) -> None:
        """Standard deviation of log Z between replicates, pooled over models that are compared."""
        squares, degrees = 0.0, 0
        for model in (dict(taken), *(_without(taken, (name,)) for name in taken)):
            values = [self.trials.at(model, r).log_evidence for r in range(self.replicates)]
            if np.isfinite(values).all():
                squares += float(np.var(values)) * len(values)
                degrees += len(values) - 1
        if degrees:
            self.error = max(LEAST_ERROR, (squares / degrees) ** 0.5)
            self.degrees = degrees

    def _finding(self, candidate: Candidate, taken: Amounts) -> Finding:
        others = _without(taken, candidate.names)
        amount = taken.get(candidate.name, 0.0)
        # The amounts of the others may have changed since it was tried.
        if amount:
            for factor in AROUND:
                self._at(candidate, min(candidate.largest, factor * amount), others)
        else:
            self._scan(candidate, others)
        profile = self._profile(candidate, taken)
        best = amount or profile.amounts[1 + int(np.argmax(profile.log_evidence[1:]))]
        count = self.replicates if amount else 1
        pairs = [
            (self.trials.at({**others, candidate.name: best}, r), self.trials.at(others, r))
            for r in range(count)
        ]
        gain, interval = gain_interval(
            [first.log_evidence - second.log_evidence for first, second in pairs],
            np.mean([(first.blocks - second.blocks).tolist() for first, second in pairs], 0),
            self.error,
            self.degrees,
        )
        exact = posterior(profile, self.error)
        coarse = posterior(profile, self.error, power=coarse_power(self.trials.examples))
        return Finding(candidate, profile, exact, coarse, amount, gain, interval)


def _without(amounts: Amounts, names: Sequence[str]) -> dict[str, float]:
    return {name: value for name, value in amounts.items() if name not in names}
