"""A score test at no symmetry: which generators one trained plain network asks for.

The evidence is even in every range, so its slope at zero vanishes and its second derivative there
decides. With the weights and precisions of one plain network held fixed, and the same antithetic
noise ε for all (odd orders then cancel exactly),

    D(u, h) = log Z(a = h u ε) − log Z(0)  ≈  ½ h² uᵀ M u        per example, u a unit direction

is measured by second differences. M is a matrix on the Lie algebra: an entry between two generators
that is large beside theirs says that they are wanted together (content that grows along x
*and* y). Averaging over any small motion blurs a little and is welcome for it, so a positive
curvature alone means little. The screening therefore climbs: it takes the direction and amount
of the largest gain, asks again for what is left on top of it, and stops when nothing gains any
more. What is wanted for itself remains; what only stood in for it does not.

Directions are measured in an orthonormal basis: a coordinate is divided by the norm of its
generator's matrix, so that a turn and a stretch move content equally far. Elements of finite
actions are rays in their probability, and must also gain over mixing in, with the same
probability, the outputs for another example: averaging with anything shrinks outputs, which an
overconfident network gains by. Nothing is trained here, and full runs remain the judge.

Every evidence is computed once. A mapping that keeps them (`known`) lets a screening that was
stopped go on where it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from isotropy.checks import check_at_least
from isotropy.evidence.laplace import Batch, LaplaceEvidence
from isotropy.evidence.settings import stream
from isotropy.networks.averaging.augmentations import Augmentation, CorrelatedRanges
from isotropy.networks.averaging.mixtures import Mixture
from isotropy.symmetry.actions.action import Generator

AMOUNTS = (0.1, 0.2, 0.4, 0.8)
"""Steps along a direction, in units of its basis; a range's bound cuts a step short."""
PROBABILITIES = (0.1, 0.25, 0.5)
MATRIX_STEP = 0.2
SAMPLES = 8
TOGETHER = 0.25
"""Two generators make a direction if M between them is this large beside their own entries."""
LEAST_GAIN = 1e-3
"""Nats per example below which nothing is called wanted."""


@dataclass(frozen=True)
class Direction:
    """Something that may be wanted: shares of generators, or one finite element.

    loadings: by name, in the orthonormal basis (squares add up to one), or {element: 1}.
    """

    loadings: dict[str, float]
    finite: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The generators with a share in it, the largest first."""
        return tuple(sorted(self.loadings, key=lambda name: -abs(self.loadings[name])))

    @property
    def text(self) -> str:
        """In words: `rotation`, or `scale_x + scale_y`."""
        sign = math.copysign(1.0, self.loadings[self.names[0]])
        words = [f"{'+' if self.loadings[n] * sign > 0 else '−'} {n}" for n in self.names]
        return " ".join(words).removeprefix("+ ")


@dataclass(frozen=True)
class ScreenRow:
    """One step of the climb, or what was left when it ended.

    gain, error: nats per example gained on top of the rows above, averaged over draws of the
    noise, and the standard error of it (one draw and None in a row that is not wanted)
    amounts: half-width (or probability) by name in reported units
    """

    direction: str
    names: tuple[str, ...]
    gain: float
    error: float | None
    wanted: bool
    amounts: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Screening:
    """What was found: rows in the order of importance, the matrix M, and a state to start from.

    matrix: M by generator, in coordinates, nats per example
    start: half-widths and probabilities of what is wanted, by name in reported units
    factor: the same as a matrix L, where the ranges are correlated
    evaluations: evidences that were computed
    """

    rows: tuple[ScreenRow, ...]
    names: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]
    start: dict[str, float]
    factor: tuple[tuple[float, ...], ...] | None
    log_evidence: float
    evaluations: int

    @property
    def ranking(self) -> list[str]:
        """Generators and elements, the most wanted first."""
        return list(dict.fromkeys(name for row in self.rows for name in row.names))

    @property
    def wanted(self) -> list[str]:
        """The names in rows that are wanted."""
        return list(dict.fromkeys(name for row in self.rows if row.wanted for name in row.names))

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": [row.as_dict() for row in self.rows],
            "ranking": self.ranking,
            "wanted": self.wanted,
            "generators": list(self.names),
            "matrix": [list(row) for row in self.matrix],
            "start": self.start,
            "log_evidence": self.log_evidence,
            "evaluations": self.evaluations,
        }


def screen(
    evidence: LaplaceEvidence,
    augmentation: Augmentation,
    inputs: Tensor,
    targets: Tensor,
    *,
    seed: int = 0,
    batch_size: int = 125,
    repeats: int = 3,
    progress: Callable[[str], None] | None = None,
    known: MutableMapping[str, float] | None = None,
) -> Screening:
    """Score what `augmentation` offers for the plain network that `evidence` is of.

    augmentation: correlated ranges (or independent ones, without directions), alone or in a
    mixture; its parameters are left as they are. inputs, targets: the training data.
    repeats: draws of the noise behind each standard error.
    known: evidences per example by what they are of, from a screening of the same network that was
    stopped; all that are computed are added to it.
    """
    check_at_least(repeats, 2, what="repeats")
    climb = _Climb(evidence, augmentation, inputs, targets, seed, batch_size, progress)
    climb.known = {} if known is None else known
    return climb.run(repeats)


@dataclass(frozen=True)
class _Found:
    gain: float
    amount: float
    direction: Direction


class _Climb:
    """The state of a screening: what has been taken so far, and how to ask for more."""

    def __init__(
        self,
        evidence: LaplaceEvidence,
        augmentation: Augmentation,
        inputs: Tensor,
        targets: Tensor,
        seed: int,
        batch_size: int,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.evidence, self.augmentation = evidence, augmentation
        self.inputs, self.targets = inputs, targets
        self.seed, self.batch_size = seed, batch_size
        self.tell = progress or (lambda _: None)
        self.ranges = augmentation.ranges if isinstance(augmentation, Mixture) else augmentation
        self.generators = augmentation.action.generators
        self.scale = {generator.name: 1 / _norm(generator) for generator in self.generators}
        self.elements: dict[str, tuple[int, int]] = {}
        if isinstance(augmentation, Mixture):
            for number, action in enumerate(augmentation.finite):
                self.elements |= {name: (number, i) for i, name in enumerate(action.names)}
        self.taken: list[_Found] = []
        self.known: MutableMapping[str, float] = {}

    def run(self, repeats: int) -> Screening:
        saved = {name: value.clone() for name, value in self.augmentation.state_dict().items()}
        try:
            plain = self._value([])
            matrix = self._matrix(plain)
            rows = self._climb(self._candidates(matrix), plain, repeats)
            self._set(self.taken)
            reported = self.augmentation.symmetries()
            start = {s.name: s.high for s in reported if s.high > 0}
            factor = self.ranges.factor if isinstance(self.ranges, CorrelatedRanges) else None
            columns = None if factor is None else tuple(map(tuple, factor.tolist()))
        finally:
            self.augmentation.load_state_dict(saved)
        return Screening(
            rows=tuple(rows),
            names=tuple(generator.name for generator in self.generators),
            matrix=tuple(tuple(row) for row in matrix.tolist()),
            start=start,
            factor=columns,
            log_evidence=plain * len(self.inputs),
            evaluations=len(self.known),
        )

    def _climb(self, candidates: list[Direction], plain: float, repeats: int) -> list[ScreenRow]:
        rows: list[ScreenRow] = []
        current = plain
        while candidates:
            found = sorted((self._best(c, current) for c in candidates), key=lambda f: -f.gain)
            best, error = self._over_draws(found[0], repeats)
            if best.gain < max(LEAST_GAIN, 2 * error):
                rest = [self._row(each, None, wanted=False) for each in found]
                return rows + _new_names_only(rest, rows)
            rows.append(self._row(best, error, wanted=True))
            self.tell(f"{best.direction.text}: {best.gain:+.4f} nats per example")
            self.taken.append(best)
            current = self._value(self.taken)
            names = {name for row in rows for name in row.names}
            candidates = [c for c in candidates if not names & set(c.names)]
        return rows

    def _candidates(self, matrix: Tensor) -> list[Direction]:
        """Every generator and element alone, and pairs of generators that are wanted together."""
        names = [generator.name for generator in self.generators]
        found = [Direction({name: 1.0}) for name in names]
        found += [Direction({name: 1.0}, finite=True) for name in self.elements]
        own = matrix.diagonal()
        for i, j in itertools.combinations(range(len(names)), 2):
            beside = float((own[i] * own[j]).clamp_min(0).sqrt())
            if own[i] > 0 and abs(float(matrix[i, j])) > TOGETHER * beside:
                sign = math.copysign(1.0, float(matrix[i, j]))
                share = 1 / math.sqrt(2)
                found.append(Direction({names[i]: share, names[j]: sign * share}))
        return found

    def _matrix(self, plain: float) -> Tensor:
        """M (generators, generators), in coordinates, by second differences.

        Diagonal: along each generator. Off it: half the difference between the sum and the
        difference of two generators, where both are wanted alone (else zero, not measured).
        """
        size = len(self.generators)
        matrix = torch.zeros(size, size, dtype=torch.float64)
        if not isinstance(self.ranges, CorrelatedRanges):
            return matrix  # without correlations there is nothing wanted together
        names = [generator.name for generator in self.generators]

        def gain(loadings: dict[str, float]) -> float:
            step = _Found(0.0, MATRIX_STEP, Direction(loadings))
            return self._value([step]) - plain

        for i, name in enumerate(names):
            matrix[i, i] = gain({name: 1.0})
        share = 1 / math.sqrt(2)
        for i, j in itertools.combinations(range(size), 2):
            if matrix[i, i] > 0 and matrix[j, j] > 0:
                both = gain({names[i]: share, names[j]: share})
                against = gain({names[i]: share, names[j]: -share})
                matrix[i, j] = matrix[j, i] = (both - against) / 2
        self.tell("the matrix of second differences is known")
        scale = torch.tensor([self.scale[name] for name in names], dtype=torch.float64)
        return 2 * matrix / (MATRIX_STEP**2 * scale[:, None] * scale)

    def _best(self, direction: Direction, current: float) -> _Found:
        """The amount along a direction with the largest gain on top of what is taken."""
        best = _Found(-math.inf, 0.0, direction)
        for amount in PROBABILITIES if direction.finite else AMOUNTS:
            step = _Found(0.0, amount, direction)
            base = current
            if direction.finite:
                base = max(base, self._value([*self.taken, step], null=True))
            gain = self._value([*self.taken, step]) - base
            if gain > best.gain:
                best = _Found(gain, amount, direction)
            elif gain < best.gain - 10 * LEAST_GAIN:
                break  # past the top
        return best

    def _over_draws(self, found: _Found, repeats: int) -> tuple[_Found, float]:
        """The same with its gain averaged over draws of the noise, and the standard error of it."""
        gains = torch.zeros(repeats, dtype=torch.float64)
        for draw in range(repeats):
            base = self._value(self.taken, draw)
            if found.direction.finite:
                base = max(base, self._value([*self.taken, found], draw, null=True))
            gains[draw] = self._value([*self.taken, found], draw) - base
        averaged = _Found(float(gains.mean()), found.amount, found.direction)
        return averaged, float(gains.std()) / math.sqrt(repeats)

    @torch.no_grad()
    def _set(self, taken: list[_Found]) -> None:
        """Bring the augmentation to the directions and amounts taken, each with its own noise."""
        for parameter in self.augmentation.learnable():
            parameter.zero_()
        place = {generator.name: i for i, generator in enumerate(self.generators)}
        column = 0
        for step in taken:
            direction = step.direction
            if direction.finite:
                ((name, _),) = direction.loadings.items()
                number, index = self.elements[name]
                assert isinstance(self.augmentation, Mixture)
                self.augmentation.probabilities[number][index] = step.amount
                continue
            for name, share in direction.loadings.items():
                amount = step.amount * share * self.scale[name]
                if isinstance(self.ranges, CorrelatedRanges):
                    self.ranges.factor[place[name], column] = amount
                else:
                    self.ranges.learnable()[0][place[name]] = amount
            column += 1
        self.augmentation.project()

    def _value(self, taken: list[_Found], draw: int = 0, *, null: bool = False) -> float:
        """log Z per example at the directions taken, with the noise of this draw.

        null: the last of them is a finite element and moves each example to its neighbour.
        """
        key = _key(taken, draw, null)
        if key not in self.known:
            self.known[key] = self._computed(taken, draw, null)
        return self.known[key]

    def _computed(self, taken: list[_Found], draw: int, null: bool) -> float:
        self._set(taken)
        element = self.elements[taken[-1].direction.names[0]] if null else None
        with torch.no_grad():
            value = self.evidence.value(self.evidence.fit(self._batches(draw, element)))
        return float(value) / len(self.inputs)

    def _batches(self, draw: int, null: tuple[int, int] | None = None) -> Iterator[Batch]:
        device = self.inputs.device
        noise_stream = stream(self.seed, "screening", draw, device)
        label_stream = stream(self.seed, "screening labels", draw, device)
        augmentation = self.augmentation
        for inputs, targets in zip(
            self.inputs.split(self.batch_size), self.targets.split(self.batch_size), strict=True
        ):
            noise = augmentation.noise(
                len(inputs), SAMPLES, generator=noise_stream, antithetic=True
            )
            moved = augmentation(inputs, noise)
            if null is not None:
                assert isinstance(augmentation, Mixture)
                under = augmentation.under_element(*null, noise.shape[1]).to(moved.device)
                moved = torch.where(
                    under.view(1, -1, *[1] * (moved.ndim - 2)), moved.roll(1, 0), moved
                )
            rows = moved.flatten(0, 1)
            yield Batch(rows, targets, augmentation.copies(noise.shape[1]), label_stream)

    def _row(self, found: _Found, error: float | None, *, wanted: bool) -> ScreenRow:
        direction = found.direction
        self._set([found])
        reached = {each.name: each.high for each in self.augmentation.symmetries()}
        amounts = {name: reached[name] for name in direction.loadings}
        return ScreenRow(direction.text, direction.names, found.gain, error, wanted, amounts)


def _key(taken: list[_Found], draw: int, null: bool) -> str:
    """What an evidence is of, in words: `rotation × 0.2, draw 0`."""
    steps = [f"{_loadings(step.direction)} × {step.amount!r}" for step in taken]
    return f"{', '.join(steps) or 'nothing'}, draw {draw}{', another example' if null else ''}"


def _loadings(direction: Direction) -> str:
    return " ".join(f"{share:+.6g} {name}" for name, share in direction.loadings.items())


def _new_names_only(rest: list[ScreenRow], before: list[ScreenRow]) -> list[ScreenRow]:
    """Rows that say something of a name not mentioned above them."""
    seen = {name for row in before for name in row.names}
    kept = []
    for row in rest:
        if set(row.names) - seen:
            kept.append(row)
            seen |= set(row.names)
    return kept


def _norm(generator: Generator) -> float:
    """The Frobenius norm of the generator's matrix; one for those without."""
    matrix = getattr(generator, "matrix", None)
    if not matrix:
        return 1.0
    return float(torch.tensor(matrix, dtype=torch.float64).norm()) or 1.0
