"""The steps of a run whose evidence is a bound over the last layer (`elbo`).

With the solver `newton` every epoch ends with a solve, which sets the last layer to the posterior's
mean and learns prior and noise, and then a step of the ranges along the gradient of the bound. The
copies are the same in all epochs, so that the bound is one function of the ranges.
Layers below, where they can be trained, have weight steps in between, each under one draw of the
last layer; where they cannot, there are none.

With `sampled`, the paper's own way, there is no solve: μ, the Cholesky factors, the layers below
and the ranges follow Adam on

    −mean log p(y | H w) + KL(q ‖ p)/N ,    w ~ q  one draw a weight step

and the prior stays as it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isotropy.curvature.recording import full_name
from isotropy.evidence.elbo import (
    ITERATIONS,
    ElboEvidence,
    check_head_memory,
    divergence,
    head_of,
)
from isotropy.evidence.hyper_steps import EvidenceSteps
from isotropy.evidence.laplace import GaussianPrior
from isotropy.evidence.settings import LearnSchedule, stream
from isotropy.evidence.weight_steps import OrbitSteps

if TYPE_CHECKING:
    from isotropy.evidence.training import Trainer

AGAIN = 3
"""Iterations of a solve after a step of the ranges: the next epoch goes on where it ended."""


def head_evidence(trainer: Trainer[LearnSchedule]) -> ElboEvidence:
    """The bound of a trainer's network, with a prior on its last layer alone."""
    config, network, place = trainer.config, trainer.network, trainer.device
    head = head_of(network, trainer.inputs[:2])
    own = dict(network.get_submodule(head).named_parameters())
    names = tuple(full_name(head, name) for name in own)
    outputs, features = own["weight"].shape
    item = own["weight"].element_size()
    check_head_memory(len(trainer.inputs), features + len(own) - 1, outputs, item, place)
    prior = GaussianPrior(network, names, config.prior_structure, config.prior_precision)
    return ElboEvidence(
        network, trainer.likelihood, prior.to(place), head, solver=config.elbo_solver
    )


class DrawnHeadSteps(OrbitSteps):
    """Weight steps on the layers below the last, under a draw of the last; none if all are fixed.

    trains: whether there is anything to train
    """

    def __init__(self, trainer: Trainer[LearnSchedule]) -> None:
        self.evidence: ElboEvidence = trainer.evidence
        self.trains = bool(self._below(trainer))
        self._draws: torch.Generator | None = None
        self._start: Callable[[], Any] = lambda: self.evidence.solve(trainer.orbit_batches("start"))
        super().__init__(trainer)

    def _below(self, trainer: Trainer[LearnSchedule]) -> list[nn.Parameter]:
        head = {id(parameter) for parameter in self.evidence.layer.parameters()}
        every = OrbitSteps.trained(self, trainer)
        return [parameter for parameter in every if id(parameter) not in head]

    def trained(self, trainer: Trainer[LearnSchedule]) -> list[nn.Parameter]:
        # An optimiser wants parameters, of which it moves none without a step.
        return self._below(trainer) or list(self.evidence.layer.parameters())

    def epoch(
        self, number: int, after_step: Callable[[int], None] | None = None
    ) -> tuple[float, float | None]:
        """As any other; where nothing is trained, loss and accuracy are those of the solve."""
        if not self.trains:
            return 0.0, None
        if number == 1:
            self._start()
        self._draws = stream(self.config.seed, "head", number, self.device)
        return super().epoch(number, after_step)

    def take(self, batch: Tensor, noise: Tensor) -> None:
        """A step with the last layer drawn; it is μ again afterwards."""
        posterior = self.evidence.posterior
        with torch.no_grad():
            self.evidence.set_head(posterior.draw(self._draws))
        super().take(batch, noise)
        self.evidence.set_head(posterior.mean)

    def _add_penalty(self) -> None:
        """None: the layers below have no prior."""


class SampledSteps(DrawnHeadSteps):
    """Weight steps on posterior, layers below and ranges together, with one draw of the head."""

    def __init__(self, trainer: Trainer[LearnSchedule]) -> None:
        super().__init__(trainer)
        self.trains, self._start = True, lambda: None
        if self.recipe.ranges == "evidence":
            self.ranges = trainer.optimisers.get("ranges")
        self._captured = None

    def trained(self, trainer: Trainer[LearnSchedule]) -> list[nn.Parameter]:
        return [*self.evidence.posterior.parameters(), *self._below(trainer)]

    def take(self, batch: Tensor, noise: Tensor) -> None:
        OrbitSteps.take(self, batch, noise)

    def loss_of(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss under one draw, and the outputs of that draw."""
        with torch.set_grad_enabled(self.ranges is not None):
            rows = self.model.orbit(self.inputs[examples], noise)
            copies = self.model.augmentation.copies(noise.shape[1])
        entered: list[Tensor] = []
        handle = self.evidence.layer.register_forward_pre_hook(
            lambda _, arguments: entered.append(arguments[0])
        )
        try:
            self.network(rows)
        finally:
            handle.remove()
        features = self.evidence.with_bias(copies.mean(entered[-1]))
        outputs = features @ self.evidence.posterior.draw(self._draws).to(features.dtype).mT
        return self.likelihood.training_loss(outputs, self.targets[examples]), outputs

    def _rewarded(self, loss: Tensor) -> Tensor:
        posterior, precisions = self.evidence.posterior, self.evidence.precisions().detach()
        price = divergence(posterior.mean, posterior.root.tril(), precisions)
        return loss + (price / len(self.inputs)).to(loss.dtype)


def head_steps(trainer: Trainer[LearnSchedule]) -> DrawnHeadSteps:
    """The weight steps of the solver that the settings name."""
    sampled = trainer.config.elbo_solver == "sampled"
    return SampledSteps(trainer) if sampled else DrawnHeadSteps(trainer)


class ElboSteps(EvidenceSteps):
    """A solve after every epoch, and a step of the ranges where one is due."""

    def __init__(self, trainer: Trainer[LearnSchedule]) -> None:
        super().__init__(trainer)
        self.moves_ranges &= trainer.config.elbo_solver == "newton"

    def due(self, epoch: int) -> bool:
        return True

    def take(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """Log likelihood (expected under q), bound and loss are those before the step."""
        evidence: ElboEvidence = trainer.evidence
        again = self.moves_ranges and trainer.epoch > 1
        # The same copies in all epochs: q of others is no optimum for these, nor its gradient.
        batches = trainer.orbit_batches("factors", of_epoch=0)
        fit = evidence.solve(batches, AGAIN if again else ITERATIONS)
        with torch.no_grad():
            log_likelihood = float(trainer.likelihood.log_likelihood(fit.statistic, fit.count))
            log_evidence = float(evidence.value(fit))
        trainer.check_finite(log_evidence, "evidence bound")
        if self.moves_ranges and super().due(trainer.epoch):
            limit = self.gradient_limit
            batches = trainer.orbit_batches("factors", limit=limit, graph=True, of_epoch=0)
            self._range_step(trainer, evidence.gradient(fit, batches, trainer.ranges))
        found: dict[str, Any] = {"log_likelihood": log_likelihood, "log_evidence": log_evidence}
        if not trainer.weight_steps.trains:
            found |= {"train_loss": fit.loss, "train_accuracy": fit.accuracy}
        return found
