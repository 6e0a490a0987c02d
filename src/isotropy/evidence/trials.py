"""Trials: short runs from scratch with the amounts of all symmetries held fixed.

Learning amounts and weights together follows one path, and on few examples the path ends early:
weights that have come to fit small motions leave no gradient towards larger ones. A trial has no
path. It trains the same network from the same start with given amounts and returns the evidence
that is reached, so that

    log Z(η)      η the amounts of all symmetries

can be compared at any two points. All trials of one replicate share the order of batches and the
noise, and differ in nothing but η. They have at least `LEAST_SAMPLES` copies in all, however few
the run itself has, so that what is found does not depend on that number, and as many with a finite
element as without it: more copies alone would be worth something. The evidence at the end is
computed with twice as many.

Where it can be afforded log Z is that of the whole Gauss–Newton matrix, by the kernel of all
outputs (`stochastic`). Kronecker factors of an averaged network are means over copies,

    mean of a_s ⊗ g_s   is taken for   (mean of a_s) ⊗ (mean of g_s)

and with wide motions, where inputs a_s and slopes g_s of the first layer change together, most of
the curvature is lost: log Z then favours width that held-out data does not. The precisions still
come from the run's own curvature.

The same examples in `BLOCKS` parts give the first-order share of each part in log Z (the
derivative by the weight of its examples; weights and precisions are at their optimum), from which
differences of evidences get an error over data (`Trial.blocks`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from isotropy.curvature.kinds import DEFAULT_KIND
from isotropy.curvature.recording import evaluation_mode
from isotropy.curvature.tangent_kernel import is_two_layers
from isotropy.evidence.baselines import augmentation_for
from isotropy.evidence.laplace import NotFiniteError
from isotropy.evidence.schedule import LearnConfig, default_batch
from isotropy.evidence.scoring import score
from isotropy.evidence.stochastic import FunctionSpaceBound, Splitting
from isotropy.evidence.streams import stream
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import likelihood_named
from isotropy.networks.augmentations import Augmentation
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.mixtures import Mixture
from isotropy.symmetry.actions import Action
from isotropy.symmetry.finite_actions import FiniteAction

LEAST_SAMPLES = 16
STEPS = 300
"""Weight steps of a trial, with small batches and a rate that suits them (`RATES`)."""
LEAST_EPOCHS = 10
LEAST_BATCH = 16
RATES = (1.0, 3.0, 6.0)
"""Times the run's learning rate: one of them is taken for all trials. Weights that are not at their
optimum yet favour no symmetry, where they get there sooner."""
LOST = 0.1
"""Share of log Z that a higher rate may cost without any symmetry."""
HYPER_STEPS = 8
"""Evidence passes of a trial, each followed by several steps on the precisions."""
BLOCKS = 20
TEST_COPIES = 31
MOST_ROWS = 1500
"""Outputs of all examples up to which one determinant is taken of all; else one a direction, which
gives a bound that is a little lower."""
MOST_ENTRIES = 3e7
"""Gradients of all outputs by all parameters that are kept at once."""

Amounts = Mapping[str, float]
"""Half-widths and probabilities by name, in the units that users read; what is left out is zero."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One trial: its amounts, log Z in nats over all its examples, and parts of it.

    blocks: (BLOCKS,) first-order shares of parts of the data, see the module; fewer where there
            are fewer examples
    test_log_likelihood: mean over held-out examples, in nats; None without any
    """

    amounts: dict[str, float]
    replicate: int
    log_evidence: float
    blocks: Tensor
    test_log_likelihood: float | None


class Trials:
    """Trials of one network on one data set; each is run once and remembered.

    network: as it is before training; it is not changed
    config:  resolved settings of the run that the trials are for
    data, test: inputs and targets on the network's device; test is only scored
    """

    def __init__(
        self,
        network: nn.Module,
        actions: Action | FiniteAction | Sequence[Action | FiniteAction],
        config: LearnConfig,
        data: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor] | None = None,
        tell: Callable[[Trial], None] | None = None,
    ) -> None:
        self.network, self.actions, self.data, self.test = network, actions, data, test
        self.config = trial_config(config, len(data[0]))
        self.tell = tell or (lambda _: None)
        self._done: dict[tuple[tuple[tuple[str, float], ...], int], Trial] = {}
        self._has_rate = False

    @property
    def examples(self) -> int:
        """How many examples a trial trains on."""
        return len(self.data[0])

    @property
    def count(self) -> int:
        """How many trials were run."""
        return len(self._done)

    def at(self, amounts: Amounts, replicate: int = 0) -> Trial:
        """The trial with these amounts; replicates differ in their batches and noise."""
        if not self._has_rate:
            self._choose_rate()
        key = (_key(amounts), replicate)
        if key not in self._done:
            self._done[key] = self._run(dict(key[0]), replicate)
            self.tell(self._done[key])
        return self._done[key]

    def known(self, amounts: Amounts) -> Trial | None:
        """The trial with these amounts if it was run."""
        return self._done.get((_key(amounts), 0))

    def _choose_rate(self) -> None:
        """The largest rate with which not much less is learned than with others, by log Z.

        Without any symmetry; averages over copies have less noise and bear a higher rate still.
        """
        self._has_rate = True
        tried = []
        for factor in RATES:
            config = replace(self.config, weight_rate=factor * self.config.weight_rate)
            tried.append((self._run({}, 0, config), config))
        best = max(trial.log_evidence for trial, _ in tried)
        least = best - LOST * abs(best)  # -inf if none could be trained: then the run's own rate
        chosen, self.config = next(
            (each for each in reversed(tried) if each[0].log_evidence >= least > -math.inf),
            tried[0],
        )
        self._done[_key({}), 0] = chosen
        self.tell(chosen)

    def _run(
        self, amounts: dict[str, float], replicate: int, config: LearnConfig | None = None
    ) -> Trial:
        seed = self.config.seed + 1_000_003 * replicate
        trainer = self._trainer(amounts, config, seed)
        try:
            while trainer.epoch < (trainer.config.epochs or 0):
                trainer.run_epoch()
            if trainer.model.samples > 1:
                trainer.model.samples *= 2
            log_evidence, blocks = self._evidence(trainer)
        except NotFiniteError:  # amounts that no network can be trained with
            return Trial(amounts, replicate, -math.inf, torch.zeros(self._blocks), None)
        held_out = None
        if self.test is not None:
            held_out = score(
                trainer.model, trainer.likelihood, *self.test, copies=TEST_COPIES, seed=seed
            ).log_likelihood
        return Trial(amounts, replicate, log_evidence, blocks, held_out)

    def _trainer(
        self, amounts: dict[str, float], config: LearnConfig | None = None, seed: int = 0
    ) -> Trainer:
        inputs, targets = self.data
        off = {name: 0.0 for name in self._names() if name not in amounts}
        config = replace(
            config or self.config, ranges={**off, **amounts}, caps=off, seed=seed
        )
        augmentation = augmentation_for(config, self.actions, dtype=inputs.dtype).to(inputs.device)
        assert config.samples is not None
        elements = augmentation.elements if isinstance(augmentation, Mixture) else 1
        each = math.ceil(config.samples / elements) if _draws(augmentation, amounts) else 1
        samples = each * elements
        kind = config.likelihood if targets.ndim == 1 else "gaussian"
        return Trainer(
            InvariantModel(copy.deepcopy(self.network), augmentation, samples),
            likelihood_named(kind).to(inputs.device),
            config,
            inputs,
            targets,
        )

    def _names(self) -> list[str]:
        given = self.actions if isinstance(self.actions, Sequence) else [self.actions]
        return [name for action in given for name in action.names]

    @property
    def _blocks(self) -> int:
        """Parts of the data, none of them empty."""
        return min(BLOCKS, self.examples)

    def _evidence(self, trainer: Trainer) -> tuple[float, Tensor]:
        """log Z, and its shares by parts of the data, which are the same in all trials."""
        evidence = trainer.evidence
        order = torch.randperm(self.examples, generator=stream(self.config.seed, "blocks"))
        parts = order.to(trainer.device).tensor_split(self._blocks)
        splitting = self._splitting(trainer)
        if splitting is None:
            with torch.no_grad():
                fit = evidence.fit(trainer.orbit_batches("trial"))
                value = float(evidence.value(fit))
            return value, evidence.shares(fit, trainer.orbit_of(parts, "trial blocks"))
        whole = FunctionSpaceBound(
            trainer.network, trainer.likelihood, evidence.prior, splitting=splitting
        )
        everything = torch.arange(self.examples, device=trainer.device)
        (batch,) = trainer.orbit_of([everything], "trial")
        found, shares = whole.value_and_shares(batch, parts)
        if not bool(torch.isfinite(found)):
            raise NotFiniteError("the evidence of a trial is not finite")
        return float(found), shares

    def _splitting(self, trainer: Trainer) -> Splitting | None:
        """How the whole matrix is taken: in one piece, by direction, or not at all.

        Not where the run has a curvature of its own, or where gradients of every example are too
        many to be kept.
        """
        if self.config.curvature != DEFAULT_KIND or self.config.fallback != "refuse":
            return None
        with torch.no_grad(), evaluation_mode(trainer.network):
            outputs = trainer.network(self.data[0][:1]).shape[-1]
        directions = max(1, outputs - 1) if self.data[1].ndim == 1 else outputs
        rows = self.examples * directions
        if not is_two_layers(trainer.network):
            entries = sum(parameter.numel() for parameter in trainer.network.parameters())
            if rows * entries > MOST_ENTRIES:
                return None
        return "joint" if rows <= MOST_ROWS else "each"


def _draws(augmentation: Augmentation, amounts: Amounts) -> bool:
    """Whether copies differ from draw to draw: finite elements alone need one copy each."""
    if not isinstance(augmentation, Mixture):
        return not augmentation.is_identity
    random = (name for each in augmentation.finite if each.is_random for name in each.names)
    moves = bool(augmentation.action.generators) and not augmentation.ranges.is_identity
    return moves or any(name in amounts for name in random)


def _key(amounts: Amounts) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((name, float(value)) for name, value in amounts.items() if value))


def trial_config(config: LearnConfig, examples: int) -> LearnConfig:
    """The settings of a trial, from the resolved ones of a run."""
    assert config.epochs is not None and config.samples is not None
    batch = max(LEAST_BATCH, min(default_batch(examples), config.batch_size or examples) // 2)
    steps = math.ceil(examples / batch)
    epochs = min(config.epochs, max(LEAST_EPOCHS, math.ceil(STEPS / steps)))
    burn_in = min(10, epochs // 6)
    every = math.ceil((epochs - burn_in) / HYPER_STEPS)
    return replace(
        config,
        objective="fixed",
        ranges=None,
        start=None,
        caps=None,
        bound="none",
        bound_fits=0,
        samples=max(LEAST_SAMPLES, config.samples),
        epochs=epochs,
        batch_size=batch,
        burn_in=burn_in,
        update_every=every,
        prior_rate=0.15,
        prior_steps=5,
        evaluate_every=epochs,
    )
