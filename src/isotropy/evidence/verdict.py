"""A verdict per symmetry, from the search and from what the network itself does.

The search (`search`) leaves a density over the amount of each symmetry and the probability p that
there is more of it than a floor, by how the linearised network predicts (`trials`).

The verdicts:

    present           taken (and more than the floor is left of it where the run refined amounts), p
                      ≥ 95 %, the 95 % interval of its gain is above zero, and what was found is all
                      there can be: the whole period, probability ½, or for a motion without an end
                      a range of at least `WHOLE`
    partial           the same, but less of it
    absent            p ≤ 5 %
    already built in  not taken, and the network does not react to it, nor would it with other
                      weights (they are shuffled to see that): its architecture has it
    cannot tell       anything else; and every symmetry where the search learned nothing at all

The search learned nothing where examples that are left out are not predicted better than by a
constant under the same Gaussian model (`Trials.null_log_predictive`), by more than log 20: then
amounts say only how noise is smoothed, and none is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.settings import stream
from isotropy.evidence.training import Trainer
from isotropy.networks.averaging.augmentations import Augmentation, Symmetry
from isotropy.networks.averaging.mixtures import Mixture

VerdictWord = Literal["present", "partial", "absent", "already built in", "cannot tell"]

SURE = 0.95
NOTHING_LEARNED = math.log(20)
"""Nats by which predictions must exceed those of a constant."""
BUILT_IN = 0.05
"""Reaction below which a network is said not to react."""
SETTLED_NATS = 0.05
"""Nats per example by which the evidence of a settled run may still change."""
SHUFFLES = 3
PROBE = 0.15
"""Coordinate at which a network's reaction is measured: two pixels on an image of 28."""


@dataclass(frozen=True)
class Verdict:
    """What is concluded of one symmetry.

    probability:   that there is more of it than the floor; None where the search learned nothing
    gain:          what predictions of examples left out gain by it, nats per example
    gain_nats:     the same in total, over the examples of the search
    gain_interval: its 95 % interval, in nats, over draws of copies and data
    Gains are of the linearised network, and None where it is finite at no amount.
    """

    name: str
    verdict: VerdictWord
    probability: float | None
    gain: float | None
    gain_nats: float | None
    gain_interval: tuple[float | None, float | None]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def nothing_learned(log_predictive: float, constant: float) -> bool:
    """Whether a constant prediction does as well; both in nats over the same examples."""
    return not log_predictive > constant + NOTHING_LEARNED


def word_for(probability: float, *, gains: bool, whole: bool, built_in: bool) -> VerdictWord:
    """The verdict that follows.

    gains:    taken by the search, with a gain whose interval is above zero. Where L is flat
              most amounts are large, and so is p: that alone claims nothing
    built_in: by the architecture, whatever the weights are
    """
    if gains and probability >= SURE:
        return "present" if whole else "partial"
    if built_in:
        return "already built in"
    return "absent" if probability <= 1 - SURE else "cannot tell"


def judge(trainer: Trainer, found: Mapping[str, Any]) -> list[Verdict]:
    """A verdict for every symmetry of a trained run, from what its search left behind.

    found: as `workflows.searching` keeps it: `examples`, `nothing_learned`, and by name in
    `symmetries` the amount, the probability, the gain, the floor, and the amount from which it is
    whole. What was taken and whether it is whole is seen from the run's own amounts
    """
    return [
        _verdict(trainer, symmetry, found["symmetries"][symmetry.name], found)
        for symmetry in trainer.model.symmetries()
        if symmetry.name in found["symmetries"]
    ]


def _verdict(
    trainer: Trainer, symmetry: Symmetry, own: Mapping[str, Any], found: Mapping[str, Any]
) -> Verdict:
    gain, (low, high) = own["gain_nats"], own["gain_interval"]
    learned = not found["nothing_learned"]
    taken = own["amount"] > 0 and symmetry.high >= own["floor"]  # a run on more data may leave it
    gains = taken and low is not None and low > 0
    is_claimed = gains and own["probability"] >= SURE
    word = word_for(
        own["probability"],
        gains=gains,
        whole=symmetry.high >= own["whole"],
        built_in=not is_claimed and is_built_in(trainer, symmetry),
    )
    return Verdict(
        symmetry.name,
        word if learned else "cannot tell",
        own["probability"] if learned else None,
        None if gain is None else gain / found["examples"],
        gain,
        (low, high),
    )


def is_settled(history: Sequence[Mapping[str, Any]], floors: Mapping[str, float]) -> bool:
    """Whether amounts and evidence stood still over the last quarter of the epochs.

    An amount may move by a tenth of itself or by half of its floor (where a symmetry is too small
    to speak of), the log evidence by 0.05 nats per example. NaN is not settled.
    history: a row an epoch, with `ranges` by name and `log_evidence_per_example`, which may be None
    """
    if not history:
        return False
    last, before = history[-1], history[(3 * len(history)) // 4 - (len(history) >= 4)]
    for name, floor in floors.items():
        now, then = abs(last["ranges"][name]), abs(before["ranges"][name])
        if not abs(now - then) <= max(0.1 * now, floor / 2):
            return False
    found = [row["log_evidence_per_example"] for row in history[(3 * len(history)) // 4 :]]
    known = [value for value in found if value is not None]
    if not all(map(math.isfinite, known)):
        return False
    return not known or max(known) - min(known) <= SETTLED_NATS


def is_built_in(trainer: Trainer, symmetry: Symmetry) -> bool:
    """Whether the network does not react to a symmetry, with its weights nor with shuffled ones.

    Shuffled weights keep their sizes and lose what they learned: what is left is the architecture.
    """
    weights = dict(trainer.network.named_parameters())
    if not _reaction(trainer, symmetry, weights) < BUILT_IN:
        return False
    for number in range(SHUFFLES):
        generator = stream(trainer.config.seed, "shuffled", number)
        shuffled = {}
        for name, parameter in weights.items():
            order = torch.randperm(parameter.numel(), generator=generator)
            entries = parameter.detach().flatten()[order.to(parameter.device)]
            shuffled[name] = entries.view_as(parameter)
        if not _reaction(trainer, symmetry, shuffled) < BUILT_IN:
            return False
    return True


@torch.no_grad()
def _reaction(
    trainer: Trainer, symmetry: Symmetry, weights: Mapping[str, Tensor], examples: int = 200
) -> float:
    """Change of outputs over change of inputs under ±`PROBE`, or under the finite element.

    E‖f(g x) − f(x)‖² / E‖f(x) − f(x′)‖²   over   E‖g x − x‖² / E‖x − x′‖²
    """
    network, inputs = trainer.network, trainer.inputs[:examples]
    moved = _moved(trainer.model.augmentation, symmetry, inputs, trainer.config.seed)
    with evaluation_mode(network):
        plain = functional_call(network, dict(weights), (inputs,))
        outputs = [functional_call(network, dict(weights), (each,)) for each in moved]
    return _relative_change(outputs, plain) / max(_relative_change(moved, inputs), 1e-12)


def _moved(
    augmentation: Augmentation, symmetry: Symmetry, inputs: Tensor, seed: int
) -> list[Tensor]:
    if symmetry.kind == "probability":
        assert isinstance(augmentation, Mixture)
        finite = next(f for f in augmentation.finite if symmetry.name in f.names)
        index = finite.names.index(symmetry.name)
        return [finite.move(index, inputs, generator=stream(seed, "reaction"))]
    action = augmentation.action
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
