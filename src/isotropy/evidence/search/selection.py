"""Which symmetries there are and how much of each: a search over trials.

Trials (`trials`) give L at any amounts: the log density of examples that are left out. The search
goes forwards, one symmetry after the other:

    1. for each candidate, L over a coarse grid of its amounts, on top of what was taken before
    2. the candidate with the largest gain is taken, if that is at least `LEAST_GAIN` and twice what
       replicates differ by, and if it is more probable than not that there is more of it than the
       floor (`amounts`); its amount is refined about the least of the peaks that are as high as the
       highest
    3. again with those that are left, until none is worth taking

Two directions of one motion (translation along x and y) are tried together as well, unless another
symmetry gains more: each alone may be worth little or nothing. Where several were taken, each
amount is refined once more beside the others. What is not taken is exactly zero. Where a symmetry
was not taken that by itself gains about as much as all that were, the search is made again with
that one first, and the better of both is kept.

Grids cover the whole range of each candidate, so that a symmetry that pays only when it is complete
is found as well as a small one. Motions without a period are given up at the first amount that has
lost much: there is no larger one that is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from isotropy.evidence.search.amounts import (
    AmountPosterior,
    Profile,
    between,
    coarse_power,
    gain_interval,
    interpolated_peak,
    least_peak,
    posterior,
)
from isotropy.evidence.search.trials import Amounts, Trial, Trials
from isotropy.networks.averaging.augmentations import Augmentation, Ranges
from isotropy.networks.averaging.mixtures import Mixture
from isotropy.symmetry.actions.action import Generator

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
PERIODIC_GRID = (0.02, 0.05, 0.1, 0.15, 0.2, 0.28, 0.375, 0.5, 0.75, 1.0)
"""Shares of the period. An average over half of it removes every second harmonic, over all of it
every one: L has narrow peaks there."""
OPEN_GRID = (0.05, 0.15, 0.4, 1.0)
PROBABILITY_GRID = (0.2, 0.5, 0.75, 1.0)
"""Shares of the largest probability."""
AROUND = (0.5, 0.7, 0.85, 1.2, 1.5, 2.2)
"""Times the amount that was found: where its posterior is computed from."""
NEAR = 0.1
"""Relative distance to an amount that was tried within which another is not."""
LOST = 5.0
"""Nats of the coarse posterior that must be lost for larger amounts of a motion not to be tried."""
SAME = 1e-3
"""Share of the largest amount by which two amounts must differ to be told apart."""
LEAST_GAIN = math.log(20)
"""Nats that a symmetry must gain to be taken."""
ERRORS = 2.0
"""And standard deviations between replicates."""
PASSED_OVER = 0.8
"""Share of what all symmetries taken gain from which one that was not starts a second search."""
HOPELESS = 10 * LEAST_GAIN
"""Nats that motions of a family must lose at every amount for them not to be tried together."""
LEAST_ERROR = 0.5
"""Nats: standard deviation between replicates that is assumed at least."""

Kind = Literal["periodic", "open", "finite"]


@dataclass(frozen=True)
class Candidate:
    """A symmetry that may be taken, or several by the same amount; amounts as users read them.

    largest: as much as there can be
    floor, whole: where absent ends and where present begins
    scale: one small step
    kind: a motion with a period or an open one, or a finite element and its probability
    """

    names: tuple[str, ...]
    largest: float
    grid: tuple[float, ...]
    floor: float
    whole: float
    scale: float
    kind: Kind = "finite"

    @property
    def name(self) -> str:
        """Of a single one."""
        return self.names[0]

    def of(self, amount: float) -> dict[str, float]:
        """The amounts of a trial."""
        return dict.fromkeys(self.names, amount)


Gain = tuple[float, Candidate]
"""Nats, and what gains them."""


@dataclass(frozen=True, eq=False)
class Finding:
    """What the search says of one symmetry.

    profile: L over its amounts beside everything else that was taken; where it was not taken
             itself, with the amounts that the others had when its grid was scanned last
    posterior, coarse: density over its amount, as if the model were exact, and allowing for a model
             that is not (`coarse_power`)
    amount:  what was taken; zero if it was not
    gain:    L with it minus L without it, in nats over all examples of the trials, and its
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
    """What was found, by name; `log_predictive` of the trial with all that was taken."""

    findings: Mapping[str, Finding]
    log_predictive: float
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
        "open" if generator.period is None else "periodic",
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
    at_least:   L that must be reached with a symmetry for it to be taken; what a
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
        self.beside: dict[tuple[str, ...], dict[str, float]] = {}
        """What was taken when a candidate's grid was scanned last."""
        self.error, self.degrees = LEAST_ERROR, 1

    def run(self) -> Search:
        self._measure_error({})
        gains = self._gains({})
        taken = self._forwards({}, gains)
        other = self._passed_over(gains, taken)
        if other is not None:
            scanned = dict(self.beside)
            second = self._forwards({}, [other])
            if self._value(second) > self._value(taken):
                taken = second
            else:
                self.beside = scanned
        self._measure_error(taken)
        return Search(
            {name: self._finding(candidate, taken) for name, candidate in self.singles.items()},
            self._value(taken),
            self.trials.examples,
            self.trials.count,
            self.error,
        )

    def _value(self, taken: Amounts) -> float:
        return self.trials.at(taken).log_predictive

    def _forwards(self, taken: dict[str, float], gains: Sequence[Gain]) -> dict[str, float]:
        """Take the best of these candidates and go on until none is worth taking."""
        while gains:
            best = max(gains, key=lambda each: each[0])[1]
            taken = taken | best.of(self._refined(best, taken))
            gains = self._gains(taken)
        if len(taken) > 1:
            for name in taken:
                taken[name] = self._refined(self.singles[name], taken, taken[name])
        return {name: amount for name, amount in taken.items() if amount}

    def _gains(self, taken: Amounts) -> list[Gain]:
        """Candidates that are worth taking on top of those taken, with what each gains."""
        gains: list[Gain] = []
        alone: dict[str, float] = {}
        for candidate in (*self.singles.values(), *self.families):
            if any(name in taken for name in candidate.names):
                continue
            if len(candidate.names) > 1 and not _is_promising(candidate, alone, gains):
                continue
            self._scan(candidate, taken)
            profile = self._profile(candidate, taken)
            if len(candidate.names) == 1:
                alone[candidate.name] = max(profile.log_predictive[1:]) - profile.log_predictive[0]
            likely = posterior(profile, self.error).above(candidate.floor) > 0.5
            enough = max(profile.log_predictive) > self.at_least
            if likely and enough and profile.gain > max(LEAST_GAIN, ERRORS * self.error):
                gains.append((profile.gain, candidate))
        return gains

    def _passed_over(self, gains: Sequence[Gain], taken: Amounts) -> Gain | None:
        """What gains about as much by itself as all that was taken, and nothing on top of it."""
        least = PASSED_OVER * (self._value(taken) - self._value({}))
        left = [
            each
            for each in gains
            if each[0] > least and not any(name in taken for name in each[1].names)
        ]
        return max(left, key=lambda each: each[0], default=None)

    def _scan(self, candidate: Candidate, taken: Amounts) -> None:
        """Trials over the grid, up to where a motion without a period has lost much."""
        self.beside[candidate.names] = dict(taken)
        least = self._value(taken) - LOST / coarse_power(self.trials.examples)
        for amount in candidate.grid:
            value = self._at(candidate, amount, taken).log_predictive
            failed = value == -math.inf
            if candidate.kind == "open" and value < least and not failed:
                break

    def _at(self, candidate: Candidate, amount: float, taken: Amounts) -> Trial:
        tried = self.tried.setdefault(candidate.names, {})
        # Amounts that differ by less than matters are one.
        near = (each for each in tried if abs(each - amount) < SAME * candidate.largest)
        amount = next(near, amount)
        tried[amount] = None
        return self.trials.at({**taken, **candidate.of(amount)})

    def _near(self, candidate: Candidate, amount: float, taken: Amounts) -> None:
        """A trial with about this amount, unless there is one."""
        for each in self.tried.get(candidate.names, ()):
            known = self.trials.known({**taken, **candidate.of(each)})
            if known is not None and abs(each - amount) < NEAR * amount:
                return
        self._at(candidate, amount, taken)

    def _profile(self, candidate: Candidate, taken: Amounts) -> Profile:
        """L at all amounts that were tried beside these others."""
        others = _without(taken, candidate.names)
        rows = {0.0: self.trials.at(others)}
        for amount in self.tried.get(candidate.names, ()):
            known = self.trials.known({**others, **candidate.of(amount)})
            if known is not None:
                rows[amount] = known
        amounts = tuple(sorted(rows))
        return Profile(
            amounts,
            tuple(rows[amount].log_predictive for amount in amounts),
            np.stack([rows[amount].blocks.double().cpu().numpy() for amount in amounts]),
            candidate.largest,
            candidate.scale,
        )

    def _refined(self, candidate: Candidate, taken: Amounts, last: float | None = None) -> float:
        """The least amount that is as good as the best (`least_peak`), refined.

        Trials half way to its neighbours, and at the peak between these.

        last: an amount that was best before others were taken, from which to start
        """
        if last is not None:
            for factor in (0.7, 1.0, 1.4):
                self._at(candidate, min(candidate.largest, last * factor), taken)
        for _ in range(2 if last is None else 1):
            profile = self._profile(candidate, taken)
            best = least_peak(profile, self.error)
            for first, second in ((best - 1, best), (best, best + 1)):
                if first >= 0 and second < len(profile.amounts):
                    near = between(profile, profile.amounts[first], profile.amounts[second])
                    self._at(candidate, near, taken)
        profile = self._profile(candidate, taken)
        peak = interpolated_peak(profile, least_peak(profile, self.error))
        self._at(candidate, peak, taken)
        profile = self._profile(candidate, taken)
        return profile.amounts[least_peak(profile, self.error)]

    def _measure_error(self, taken: Amounts) -> None:
        """Standard deviation of L between replicates, pooled over models that are compared."""
        squares, degrees = 0.0, 0
        for model in (dict(taken), *(_without(taken, (name,)) for name in taken)):
            values = [self.trials.at(model, r).log_predictive for r in range(self.replicates)]
            if np.isfinite(values).all():
                squares += float(np.var(values)) * len(values)
                degrees += len(values) - 1
        if degrees:
            self.error = max(LEAST_ERROR, (squares / degrees) ** 0.5)
            self.degrees = degrees

    def _finding(self, candidate: Candidate, taken: Amounts) -> Finding:
        others = _without(taken, candidate.names)
        amount = taken.get(candidate.name, 0.0)
        scanned = self.beside.get(candidate.names, {})
        if amount:  # the amounts of the others may have changed since it was tried
            for factor in AROUND:
                self._near(candidate, min(candidate.largest, factor * amount), others)
        elif scanned.keys() == others.keys():
            others = scanned  # their amounts were refined since, which changes its own gain little
        else:
            self._scan(candidate, others)
        profile = self._profile(candidate, others)
        best = amount or profile.amounts[1 + int(np.argmax(profile.log_predictive[1:]))]
        count = self.replicates if amount else 1
        pairs = [
            (self.trials.at({**others, candidate.name: best}, r), self.trials.at(others, r))
            for r in range(count)
        ]
        gain, interval = gain_interval(
            [first.log_predictive - second.log_predictive for first, second in pairs],
            np.mean([(first.blocks - second.blocks).tolist() for first, second in pairs], 0),
            self.error,
            self.degrees,
        )
        exact = posterior(profile, self.error)
        coarse = posterior(profile, self.error, power=coarse_power(self.trials.examples))
        return Finding(candidate, profile, exact, coarse, amount, gain, interval)


def _is_promising(family: Candidate, alone: Mapping[str, float], gains: Sequence[Gain]) -> bool:
    """Whether motions are worth trying together.

    Not if each by itself loses much, nor if another symmetry gains more than they do one by one:
    they are tried again beside that one.
    alone: what each gains at its best amount above zero
    """
    own = [alone[name] for name in family.names]
    others = (gain for gain, each in gains if not set(each.names) & set(family.names))
    return max(own) >= -HOPELESS and sum(own) >= max(others, default=-math.inf)


def _without(amounts: Amounts, names: Sequence[str]) -> dict[str, float]:
    return {name: value for name, value in amounts.items() if name not in names}
