"""Hyper steps: what moves precisions, noise and ranges while the weights are trained.

`HyperSteps` is all that a `Trainer` knows of them. A kind of hyper steps says after which epochs
one is due (`due`) and takes it (`take`), which gives numbers for the epoch's record; one that has a
state of its own hands it over for checkpoints (`state`), and one that steps between weight steps
has `after_step`.

`EvidenceSteps` follow the Laplace evidence: after a burn-in, every `update_every` epochs, one
evidence pass over all data or over a fresh sample that stands for them, a few steps on log
precisions and noise, then one step on the ranges along the gradient of the evidence (`laplace`).
The objectives `fixed` and `none` have the former alone. Others are in `bound` and
`layers.training`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isotropy.evidence.laplace import LaplaceFit
from isotropy.evidence.settings import LearnSchedule
from isotropy.evidence.weight_steps import range_rate
from isotropy.kernels.captured import set_rate

if TYPE_CHECKING:
    from isotropy.evidence.training import Trainer


class HyperSteps:
    """The hyper steps of one run.

    few:             examples of an evidence pass, if those stand for all; 0: all have one
    keeps_roots:     whether spectra of few are found by their roots (`laplace.fit_of_few`)
    moves_ranges:    whether a hyper step moves ranges by a gradient of the evidence, and from how
    gradient_limit:  many examples at most; 0: all
    closing_passes:  evidence passes over all examples after the last epoch, for the record
    """

    few: int = 0
    keeps_roots: bool = False
    moves_ranges: bool = False
    gradient_limit: int = 0
    closing_passes: int = 0

    @abstractmethod
    def due(self, epoch: int) -> bool:
        """Whether the schedule has a hyper step after this epoch, from 1."""

    @abstractmethod
    def take(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """A hyper step; numbers for the epoch's record, by the names of its fields."""

    def after_step(self, step: int) -> None:
        """Told after each weight step how many there were in the run."""

    def after_epoch(self, trainer: Trainer[Any], loss: float) -> dict[str, Any]:
        """A hyper step if one is due; numbers for the epoch's record.

        loss: the epoch's mean
        """
        return self.take(trainer) if self.due(trainer.epoch) else {}

    def state(self) -> dict[str, Any]:
        """What the next epoch depends on beside modules and optimisers, in JSON."""
        return {}

    def load_state(self, record: Mapping[str, Any]) -> None:
        """Take over what `state` gave; modules and optimisers are loaded by then."""


class EvidenceSteps(HyperSteps):
    """Precisions and noise, then ranges, by the evidence of all data or of a sample of them."""

    def __init__(self, trainer: Trainer[LearnSchedule]) -> None:
        self.config = trainer.config
        self.moves_ranges = trainer.follows_evidence and trainer.config.refine
        few = trainer.config.curvature_examples
        self.few = few if few < trainer.examples else 0
        self.gradient_limit = trainer.config.gradient_batches * trainer.config.batch_size or few

    def due(self, epoch: int) -> bool:
        after = epoch - self.config.burn_in
        return self.config.recipe.evidence and after > 0 and after % self.config.update_every == 0

    def take(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """Log likelihood and evidence are those before the step."""
        evidence, moves = trainer.evidence, self.moves_ranges
        batches = trainer.orbit_batches("factors", limit=self.few)
        fit = evidence.fit(batches, values_only=not moves)
        fit = replace(fit, stands_for=trainer.examples)
        with torch.no_grad():
            found = trainer.likelihood.log_likelihood(fit.statistic, fit.count)
            log_likelihood = fit.share * float(found)
        log_evidence = self._precision_steps(trainer, fit)
        if moves:
            batches = trainer.orbit_batches("ranges", limit=self.gradient_limit, graph=True)
            self._range_step(trainer, evidence.gradient(fit, batches, trainer.ranges))
        return {"log_likelihood": log_likelihood, "log_evidence": log_evidence}

    def _precision_steps(self, trainer: Trainer[Any], fit: LaplaceFit) -> float:
        """A few steps on log precisions and noise; returns the evidence before them."""
        optimiser, before = trainer.optimisers["prior"], float("nan")
        for step in range(self.config.prior_steps):
            optimiser.zero_grad(set_to_none=True)
            value = trainer.evidence.value(fit)
            if step == 0:
                before = float(value.detach())
                trainer.check_finite(before, "log evidence")
            (-value).backward()
            optimiser.step()
        return before

    def _range_step(self, trainer: Trainer[Any], gradients: list[Tensor]) -> None:
        """One step on the ranges along these gradients of −log Z."""
        for parameter, gradient in zip(trainer.ranges, gradients, strict=True):
            trainer.check_finite(float(gradient.sum()), "gradient of the evidence by the ranges")
            parameter.grad = gradient
        start = self.config.burn_in
        progress = (trainer.epoch - start) / max(1, self.config.epochs - start)
        set_rate(trainer.optimisers["ranges"], range_rate(self.config, progress))
        trainer.optimisers["ranges"].step()
        trainer.model.augmentation.project()
