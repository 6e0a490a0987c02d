"""Several runs in lockstep, as if each had run alone: one process for a row of seeds.

Runs of a small network leave a GPU idle between tiny kernels. Runs that have the network, the
shapes and the schedule in common, and differ in seed, rates, ranges or data of the same shape, can
share every kernel launch: their weight steps (`stacked_steps`) and evidence passes
(`stacked_evidence`) are made on stacks of tensors, (runs, …). Each run draws from its own streams.

After every epoch each `Trainer` holds its own weights, ranges, precisions, optimiser moments and
epoch, the numbers it would hold by itself up to rounding: it can be scored, saved, judged and
continued alone. Where the evidence passes of a kind of curvature cannot be stacked, runs make
theirs one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError, shape_text
from isotropy.curvature.run_axis import over_runs, stack_runs
from isotropy.curvature.stacked_kfac import state_of
from isotropy.evidence.precision import multiplying_in
from isotropy.evidence.stacked_evidence import StackedHyperSteps
from isotropy.evidence.stacked_steps import StackedWeightSteps
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.evidence.weight_steps import fix_statistics

Test = tuple[Tensor, Tensor]

IN_COMMON = ("samples", "epochs", "batch_size", "curvature_batch", "micro_batch", "burn_in",
             "update_every", "gradient_batches", "prior_steps", "prior_structure",
             "precision", "bound")  # fmt: skip
"""Settings that runs of one stack must share; all others may differ."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""How closely a stacked network must reproduce each run's own, relative to its largest output."""


class StackedTrainer:
    """Runs `trainers` together: `run_epoch` until `epoch == epochs`.

    >>> stack = StackedTrainer([make_trainer(seed) for seed in range(5)])
    >>> while stack.epoch < stack.epochs:
    ...     rows = stack.run_epoch()

    Raises CallerError for runs that cannot be stacked, naming what they do not have in common.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        check_stackable(trainers)
        self.trainers = tuple(trainers)
        self.weight_steps = StackedWeightSteps(trainers)
        self._hyper = [
            StackedHyperSteps(group)
            for group in _groups(trainers)
            if StackedHyperSteps.supports(group)
        ]
        stacked = {id(trainer) for steps in self._hyper for trainer in steps.trainers}
        self._alone = [trainer for trainer in trainers if id(trainer) not in stacked]

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.trainers[0].epoch

    @property
    def epochs(self) -> int:
        """Epochs in all."""
        epochs = self.trainers[0].config.epochs
        assert epochs is not None
        return epochs

    def run_epoch(self, tests: Sequence[Test | None] | None = None) -> list[EpochRecord]:
        """An epoch of every run, a hyper step when due, scores on each run's test data when due."""
        first, count = self.trainers[0], len(self.trainers)
        tests = [None] * count if tests is None else tests
        assert first.config.precision is not None
        with multiplying_in(first.config.precision, first.device):
            started = time.perf_counter()
            for trainer in self.trainers:
                trainer.epoch += 1
            trained = self.weight_steps.epoch(self.epoch)
            for trainer, (loss, _) in zip(self.trainers, trained, strict=True):
                trainer._check_finite(loss, "training loss")
            hyper = self.hyper_step() if first._hyper_step_due() else {}
            each = (time.perf_counter() - started) / count
            records = []
            for trainer, means, test in zip(self.trainers, trained, tests, strict=True):
                trainer.seconds += each
                found = hyper.get(id(trainer), (None, None))
                records.append(trainer.end_epoch(means, found, test))
        return records

    def hyper_step(self) -> dict[int, tuple[float, float]]:
        """A hyper step of every run; log likelihood and evidence before it, by the run's id."""
        found = {id(trainer): trainer._hyper_step() for trainer in self._alone}
        for steps in self._hyper:
            found |= zip(map(id, steps.trainers), steps.step(), strict=True)
        return found


def _groups(trainers: Sequence[Trainer]) -> list[list[Trainer]]:
    """Runs whose hyper steps are alike: those that learn ranges, and those that do not."""
    learning = [trainer for trainer in trainers if trainer.recipe.ranges == "evidence"]
    others = [trainer for trainer in trainers if trainer.recipe.ranges != "evidence"]
    return [group for group in (learning, others) if group]


def check_stackable(trainers: Sequence[Trainer]) -> None:
    """Raise CallerError unless these runs can share their kernel launches."""
    if not trainers:
        raise CallerError("stacked runs: expected at least one, got none")
    if len({id(trainer) for trainer in trainers}) < len(trainers):
        raise CallerError("stacked runs: expected different trainers, got one of them twice")
    first = trainers[0]
    for trainer in trainers:
        _check_recipe(trainer, first)
        for name in IN_COMMON:
            _same(getattr(trainer.config, name, None), getattr(first.config, name, None), name)
        _same(trainer.epoch, first.epoch, "epochs done")
        _same(str(trainer.device), str(first.device), "device")
        _same(type(trainer.likelihood).__name__, type(first.likelihood).__name__, "likelihood")
        _same(shape_text(trainer.inputs), shape_text(first.inputs), "shape of the inputs")
        _same(shape_text(trainer.targets), shape_text(first.targets), "shape of the targets")
        _same(trainer.inputs.dtype, first.inputs.dtype, "dtype of the inputs")
        _same(_layout(trainer.network), _layout(first.network), "network's parameters")
        _same(trainer.prior.group_of, first.prior.group_of, "groups of the prior")
        _same(trainer.prior.scale_invariant, first.prior.scale_invariant, "scale-invariant layers")
    _check_outputs(trainers)


def _check_recipe(trainer: Trainer, first: Trainer) -> None:
    objective, recipe = trainer.config.objective, trainer.recipe
    if recipe.ranges in ("loss", "transform"):
        raise CallerError(
            f"stacked runs: expected objectives that move no ranges in weight steps, such as "
            f"laplace, fixed or none, got {objective}; run it by itself"
        )
    if trainer.config.bound != "none":
        raise CallerError(
            f"stacked runs: expected hyper steps between epochs, got the bound "
            f"{trainer.config.bound}, which steps within; run it by itself"
        )
    kinds = [(own.recipe.evidence, own.recipe.averaged) for own in (trainer, first)]
    if kinds[0] != kinds[1]:
        raise CallerError(
            f"stacked runs: expected objectives with one training loss, got {objective} beside "
            f"{first.config.objective}; stack them apart"
        )


def _same(here: Any, there: Any, what: str) -> None:
    if here != there:
        raise CallerError(
            f"stacked runs: expected the same {what.replace('_', ' ')} in all of them, got "
            f"{there} and {here}; make them equal, or run them one by one"
        )


def _layout(network: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype, bool]]:
    return {
        name: (tuple(parameter.shape), parameter.dtype, parameter.requires_grad)
        for name, parameter in network.named_parameters()
    }


@torch.no_grad()
def _check_outputs(trainers: Sequence[Trainer]) -> None:
    """Run two examples of each run stacked and alone, so that no difference between networks hides.

    Whatever is random, such as dropout in training, is refused by `vmap`.
    """
    network = trainers[0].network
    for trainer in trainers:
        fix_statistics(trainer.network)
    inputs = torch.stack([trainer.inputs[:2] for trainer in trainers])
    state = stack_runs([state_of(trainer.network) for trainer in trainers])
    with multiplying_in("float32", trainers[0].device):
        try:
            stacked = over_runs(lambda own, x: functional_call(network, own, (x,)), state, inputs)
        except RuntimeError as error:
            raise CallerError(
                f"the network cannot be stacked: {error}; run its seeds one by one"
            ) from error
        alone = torch.stack([trainer.network(trainer.inputs[:2]) for trainer in trainers])
    tolerance = TOLERANCE.get(alone.dtype, 1e-2) * float(alone.abs().max().clamp_min(1e-6))
    worst = (stacked - alone).flatten(1).abs().max(1).values
    for run, distance in enumerate(worst.tolist()):
        if not distance <= tolerance:
            raise CallerError(
                f"stacked runs: expected networks of one architecture, got in run {run} outputs "
                f"that differ by {distance:.2g} from those of the first run's network with its "
                "weights; run it by itself"
            )
