"""Hyper steps between weight steps, each from one estimate of a lower bound of the evidence.

A hyper step by the evidence itself needs a pass over all data. The function-space bound
(`stochastic`) has an unbiased estimate from a few examples. After every `bound_every` weight steps
one such estimate, from `bound_batch` examples of which the first half is conditioned on, gives the
gradients by precisions, noise and ranges at once, at about the cost of a weight step.

Precisions and noise step from the beginning, ranges after the burn-in. The bound counts whatever
examples share once a batch instead of once, so that the precisions that maximise it are too large
and the network too stiff. With `bound_fits`, precisions and noise follow the evidence of all data
instead, in passes that many epochs apart, and the bound moves the ranges alone.

Draws come from streams named by the number of the weight step: nothing here has a state of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from isotropy.evidence.captured import CapturedFunction, can_capture
from isotropy.evidence.laplace import Batch, LaplaceEvidence, NotFiniteError
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.stochastic import BoundEstimate, FunctionSpaceBound
from isotropy.evidence.streams import stream
from isotropy.evidence.weight_steps import held_by, range_rate, set_rate, tensors_of
from isotropy.networks.invariant_model import InvariantModel

FEW = 5000
"""Up to so many examples all are shuffled; of more, a few are drawn."""


class BoundSteps:
    """The hyper steps of a run by a bound; config is resolved and names one.

    evidence: whose network, likelihood and prior the bound has
    data: inputs (examples, …) and targets on the model's device
    optimisers: "prior", and "ranges" where there are any
    """

    def __init__(
        self,
        config: LearnConfig,
        model: InvariantModel,
        evidence: LaplaceEvidence,
        data: tuple[Tensor, Tensor],
        optimisers: dict[str, torch.optim.Optimizer],
    ) -> None:
        assert config.bound_batch and config.batch_size and config.epochs
        assert config.burn_in is not None and config.bound_fits is not None
        self.config, self.model, self.evidence = config, model, evidence
        self.inputs, self.targets = data
        self.optimisers = optimisers
        self.size = config.bound_batch
        per_epoch = math.ceil(len(self.inputs) / config.batch_size)
        self._burn_in, self._steps = config.burn_in * per_epoch, config.epochs * per_epoch
        self._learns = RECIPES[config.objective].ranges == "evidence" and "ranges" in optimisers
        self._follows_fits = config.bound_fits > 0
        self.bound = FunctionSpaceBound(evidence.network, evidence.likelihood, evidence.prior)
        self._total = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        self._count = 0
        self._captured: CapturedFunction | None = None
        if config.captured and can_capture(evidence.network, self.inputs.device):
            self._captured = CapturedFunction(self._take, self._state)

    def after_step(self, step: int, progress: float) -> None:
        """A hyper step, if one is due after the run's weight step of this number, from 1."""
        del progress
        if self.step_due(step):
            self._hyper_step(step, self._moves(step))

    def step_due(self, step: int) -> bool:
        """Whether there is a hyper step after this weight step, from 1."""
        due = step % self.config.bound_every == 0
        return due and (self._moves(step) or not self._follows_fits)

    def _moves(self, step: int) -> bool:
        """Whether ranges move at this step."""
        return self._learns and step > self._burn_in

    def fit_due(self, epoch: int) -> bool:
        """Whether precisions and noise get a pass over all data after this epoch, from 1.

        The first one is at the end of the burn-in, before any range moves.
        """
        fits, first = self.config.bound_fits or 0, max(1, self.config.burn_in or 0)
        return fits > 0 and epoch >= first and (epoch - first) % fits == 0

    def mean_estimate(self) -> float | None:
        """Mean of the estimates since this was last asked, in nats; None without a step."""
        if not self._count:
            return None
        mean = float(self._total) / self._count
        self._check(mean)
        self._total.zero_()
        self._count = 0
        return mean

    def estimate(self, step: int, graph: bool) -> BoundEstimate:
        """The bound from the examples and the noise of this step; graph: to the ranges too."""
        return self._estimate(*self._drawn(step), graph)

    def _drawn(self, step: int) -> tuple[Tensor, Tensor]:
        """Numbers of the examples of this step, and their noise."""
        seed, device = self.config.seed, self.inputs.device
        order = stream(seed, "bound order", step)
        examples = distinct(len(self.inputs), self.size, order).to(device)
        noise_stream = stream(seed, "bound", step, device)
        return examples, self.model.noise(len(examples), generator=noise_stream)

    def _estimate(self, examples: Tensor, noise: Tensor, graph: bool) -> BoundEstimate:
        with torch.set_grad_enabled(graph):
            rows = self.model.orbit(self.inputs[examples], noise)
            copies = self.model.augmentation.copies(noise.shape[1])
        batch = Batch(rows, self.targets[examples], copies, is_checked=True)
        return self.bound.estimate(batch, len(self.inputs), len(examples) // 2)

    def _hyper_step(self, step: int, moves: bool) -> None:
        if moves:
            done = (step - self._burn_in) / max(1, self._steps - self._burn_in)
            set_rate(self.optimisers["ranges"], range_rate(self.config, done))
        self._count += 1
        if moves and self._captured is not None:
            self._captured.refresh()
            self._captured(*self._drawn(step))
        else:
            self._take(*self._drawn(step), moves=moves, step=step)

    def _take(
        self, examples: Tensor, noise: Tensor, moves: bool = True, step: int | None = None
    ) -> None:
        """One step on what the bound moves; adds to the sum of estimates, where NaN stays."""
        for name in ("prior", "ranges"):
            if name in self.optimisers:
                self.optimisers[name].zero_grad(set_to_none=True)
        value = self._estimate(examples, noise, moves).value
        (-value).backward()
        gradients = [
            parameter.grad.sum()
            for name in ("prior", "ranges")
            if name in self.optimisers
            for group in self.optimisers[name].param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        seen = torch.stack([value.detach(), *(gradient.to(value) for gradient in gradients)])
        self._total += torch.where(torch.isfinite(seen).all(), value.detach(), torch.nan)
        if not self._total.is_cuda:  # elsewhere one would wait for it; see `mean_estimate`
            self._check(float(self._total), step)
        if not self._follows_fits:
            self.optimisers["prior"].step()
        if moves:
            self.optimisers["ranges"].step()
            self.model.augmentation.project()

    def _state(self) -> Iterator[Tensor]:
        """What a captured step reads beside its arguments."""
        yield from (self.inputs, self.targets, self._total)
        yield from tensors_of(self.model, self.evidence.prior, self.evidence.likelihood)
        for name in ("prior", "ranges"):
            if name in self.optimisers:
                yield from held_by(self.optimisers[name])

    def _check(self, value: float, step: int | None = None) -> None:
        if not math.isfinite(value):
            where = "in this epoch" if step is None else f"at weight step {step}"
            raise NotFiniteError(
                f"the bound of the evidence or its gradient became not finite {where}; the last "
                "good state is kept; try a lower weight rate, or rescale inputs that are far from "
                "unit size"
            )


def distinct(count: int, size: int, generator: torch.Generator) -> Tensor:
    """`size` of the numbers below `count`, each as likely, none twice."""
    if count <= FEW:
        return torch.randperm(count, generator=generator)[:size]
    # Rarely is any drawn twice, and then all are drawn again.
    while True:
        drawn = torch.randint(count, (size,), generator=generator)
        if len(drawn.unique()) == size:
            return drawn
