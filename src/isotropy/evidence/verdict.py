"""A verdict per symmetry, from refits with and without it.

    gain = (log Z(refit with) − log Z(refit without)) / N       same start, budget and noise

in nats per example, averaged over a few seeds, with its standard error over them. The verdicts:

    present           the evidence wants it, and all of it: the whole period, probability ½, or
                      for a motion without an end a range of at least `WHOLE`
    partial           the evidence wants it, but less
    absent            the evidence does not want it, or is no better with it
    already built in  the network does not react to it, nor would it with other weights (they are
                      shuffled to see that); or it does not and averaging gains nothing
    cannot tell       the gain is not larger than its error, nor small enough to call absent

Symmetries that stand in for each other (each is missed only when the other is gone as well) have
no gain alone. Those that were learned but have none are therefore switched off together too,
and their common gain is given to each, named as a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.refitting import RefitPlan, plan_for, refit, refit_evidence
from isotropy.evidence.streams import stream
from isotropy.evidence.training import Trainer
from isotropy.evidence.values import EvidenceValue
from isotropy.networks.augmentations import Augmentation, Symmetry
from isotropy.networks.mixtures import Mixture

VerdictWord = Literal["present", "partial", "absent", "already built in", "cannot tell"]

FLOOR = 0.1
"""Half-width, in coordinates, below which a range is where absent symmetries come to rest."""
FLOOR_PROBABILITY = 0.05
WHOLE = 0.4
"""Half-width, in coordinates, from which a motion without a period counts as present."""
WHOLE_SHARE = 0.9
"""Share of the period, or of the largest probability, from which a symmetry is whole."""
LEAST_GAIN = 5e-3
"""Nats per example: a gain below this is of no consequence."""
BUILT_IN = 0.05
"""Reaction below which a network is said not to react."""
SHUFFLES = 3
PROBE = 0.15
"""Coordinate at which a network's reaction is measured: two pixels on an image of 28."""


@dataclass(frozen=True)
class Verdict:
    """What is concluded of one symmetry.

    gain, error: nats per example by refits, None where none was needed
    reaction:    how much less than its inputs a network's outputs change under it (one: as much);
                 squared changes, each relative to those between examples
    shuffled:    the same with every parameter's entries in random order: what the architecture
                 does, whatever it has learned
    group:       the symmetries switched off together with it, where that decided
    """

    name: str
    verdict: VerdictWord
    gain: float | None
    error: float | None
    reaction: float
    shuffled: float
    group: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Gain:
    """A difference of evidences per example: its mean over seeds and the error of that."""

    mean: float
    error: float

    @property
    def is_certain(self) -> bool:
        """More than two standard errors above what is of no consequence."""
        return self.mean > LEAST_GAIN and self.mean > 2 * self.error

    @property
    def is_negligible(self) -> bool:
        """Surely below what matters, or negative."""
        return self.mean + 2 * self.error < 2 * LEAST_GAIN


def judge(
    trainer: Trainer,
    *,
    plan: RefitPlan | None = None,
    repeats: int = 2,
    progress: Callable[[str], None] | None = None,
) -> list[Verdict]:
    """A verdict for every symmetry of a trained run. The trainer is left as it was.

    repeats: seeds of the refits, at least two for a standard error.
    """
    return _Judge(trainer, plan or plan_for(trainer), max(2, repeats), progress).verdicts()


class _Judge:
    def __init__(
        self,
        trainer: Trainer,
        plan: RefitPlan,
        repeats: int,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.trainer, self.plan = trainer, plan
        self.augmentation = trainer.model.augmentation
        self.seeds = [trainer.config.seed + 1_000_003 * (i + 1) for i in range(repeats)]
        self.tell = progress or (lambda _: None)
        self._with: list[EvidenceValue] | None = None

    def verdicts(self) -> list[Verdict]:
        symmetries = self.augmentation.symmetries()
        learned = [s for s in symmetries if amount_of(s, self.augmentation) >= _floor(s)]
        gains = {s.name: self.gain([s.name]) for s in learned}
        doubtful = [s.name for s in learned if not gains[s.name].is_certain]
        together = self.gain(doubtful) if len(doubtful) > 1 else None
        found = []
        for symmetry in symmetries:
            reaction, shuffled = self.reaction(symmetry), self.shuffled_reaction(symmetry)
            gain = gains.get(symmetry.name)
            group: tuple[str, ...] = ()
            if together is not None and together.is_certain and symmetry.name in doubtful:
                gain, group = together, tuple(n for n in doubtful if n != symmetry.name)
            found.append(
                Verdict(
                    symmetry.name,
                    word_for(gain, reaction, shuffled, is_whole(symmetry, self.augmentation)),
                    None if gain is None else gain.mean,
                    None if gain is None else gain.error,
                    reaction,
                    shuffled,
                    group,
                )
            )
        return found

    def gain(self, names: Sequence[str]) -> Gain:
        """What the evidence loses when `names` are switched off and the rest refitted."""
        if self._with is None:
            self.tell("refitting with everything that was learned")
            self._with = [self._evidence([], seed) for seed in self.seeds]
        self.tell(f"refitting without {', '.join(names)}")
        without = [self._evidence(names, seed) for seed in self.seeds]
        differences = torch.tensor(
            [(a - b) / a.examples for a, b in zip(self._with, without, strict=True)],
            dtype=torch.float64,
        )
        return Gain(
            float(differences.mean()), float(differences.std()) / math.sqrt(len(differences))
        )

    def _evidence(self, names: Sequence[str], seed: int) -> EvidenceValue:
        again = refit(self.trainer, self.augmentation.switched_off(names), self.plan, seed=seed)
        return refit_evidence(again, self.trainer.model.samples)

    def reaction(self, symmetry: Symmetry) -> float:
        """How the network as it stands reacts, relative to its inputs (see `_reaction`)."""
        return self._reaction(symmetry, dict(self.trainer.network.named_parameters()))

    def shuffled_reaction(self, symmetry: Symmetry) -> float:
        """The same with shuffled weights, which keep their sizes and lose what they learned."""
        found = []
        for number in range(SHUFFLES):
            generator = stream(self.trainer.config.seed, "shuffled", number)
            shuffled = {}
            for name, parameter in self.trainer.network.named_parameters():
                order = torch.randperm(parameter.numel(), generator=generator)
                entries = parameter.detach().flatten()[order.to(parameter.device)]
                shuffled[name] = entries.view_as(parameter)
            found.append(self._reaction(symmetry, shuffled))
        return sum(found) / SHUFFLES

    @torch.no_grad()
    def _reaction(
        self, symmetry: Symmetry, weights: Mapping[str, Tensor], examples: int = 200
    ) -> float:
        """Change of outputs over change of inputs under ±`PROBE`, or under the finite element.

        E‖f(g x) − f(x)‖² / E‖f(x) − f(x′)‖²   over   E‖g x − x‖² / E‖x − x′‖²
        """
        network = self.trainer.network
        inputs = self.trainer.inputs[:examples]
        moved = self._moved(symmetry, inputs)
        with evaluation_mode(network):
            plain = functional_call(network, dict(weights), (inputs,))
            outputs = [functional_call(network, dict(weights), (each,)) for each in moved]
        return _relative_change(outputs, plain) / max(_relative_change(moved, inputs), 1e-12)

    def _moved(self, symmetry: Symmetry, inputs: Tensor) -> list[Tensor]:
        if symmetry.kind == "probability":
            assert isinstance(self.augmentation, Mixture)
            finite = next(f for f in self.augmentation.finite if symmetry.name in f.names)
            generator = stream(self.trainer.config.seed, "reaction")
            return [finite.move(finite.names.index(symmetry.name), inputs, generator=generator)]
        action = self.augmentation.action
        moved = []
        for sign in (1, -1):
            parts = [
                inputs.new_full((g.multiplicity,), sign * PROBE * (g.name == symmetry.name))
                for g in action.generators
            ]
            coordinates = torch.cat(parts).expand(len(inputs), 1, -1)
            moved.append(action.act(coordinates, inputs)[:, 0])
        return moved


def _relative_change(moved: Sequence[Tensor], plain: Tensor) -> float:
    """Mean squared change, relative to that from one example to the next."""
    change = torch.stack([(each - plain).square().mean() for each in moved]).mean()
    spread = (plain - plain.roll(1, 0)).square().mean()
    return float(change / spread.clamp_min(torch.finfo(spread.dtype).tiny))


def word_for(gain: Gain | None, reaction: float, shuffled: float, whole: bool) -> VerdictWord:
    """The verdict that follows; gain None: the range rests at the floor."""
    if max(reaction, shuffled) < BUILT_IN:
        return "already built in"
    if gain is not None and gain.is_certain:
        return "present" if whole else "partial"
    if reaction < BUILT_IN:
        return "already built in"
    if gain is None or gain.is_negligible:
        return "absent"
    return "cannot tell"


def amount_of(symmetry: Symmetry, augmentation: Augmentation) -> float:
    """Half-width in coordinates, or the probability."""
    if symmetry.kind == "probability":
        return symmetry.high
    generators = {g.name: g for g in augmentation.action.generators}
    return generators[symmetry.name].from_units(symmetry.high)


def is_whole(symmetry: Symmetry, augmentation: Augmentation) -> bool:
    """Whether all there can be of a symmetry was learned."""
    amount = amount_of(symmetry, augmentation)
    if symmetry.kind == "probability":
        return amount >= WHOLE_SHARE * _largest_probability(symmetry.name, augmentation)
    period = {g.name: g.period for g in augmentation.action.generators}[symmetry.name]
    return amount >= (WHOLE if period is None else WHOLE_SHARE * period)


def _largest_probability(name: str, augmentation: Augmentation) -> float:
    assert isinstance(augmentation, Mixture)
    action = next(each for each in augmentation.finite if name in each.names)
    return 1.0 if action.is_random else 1 / (1 + len(action.elements))


def _floor(symmetry: Symmetry) -> float:
    return FLOOR_PROBABILITY if symmetry.kind == "probability" else FLOOR
