"""A lower bound of the evidence, estimated from one mini-batch: the function-space bound.

The determinant of the Laplace evidence (`laplace`, whole Gauss–Newton matrix) can be taken over
outputs instead of parameters. With one row j for every example and direction of the output
curvature (see `curvature.jacobians`) and P = diag(δ),

    log|H + P| − log|P| = log|I + K| ,      K = Σ_l K_l / δ_l ,      K_l = j_l · j_lᵀ

and leaving out everything between the blocks of a partition of the rows can only make it larger
(Fischer's inequality). A sum over mini-batches b is therefore a lower bound of log Z, and one
mini-batch drawn uniformly an unbiased estimate of it, as is its gradient:

    N/|b| log p(y_b | f̂) − ½ Σ_l δ_l ‖θ_l‖² − ½ N/|b| log|I + K_bb|

The directions of a batch are left together, in one determinant of (batch·directions)² entries: the
bound equals log Z when b is all data.

A batch may also be conditioned on its first examples c, which makes the bound tighter at no cost:
given c, what remains of K (its Schur complement) is split into batches, so that an example counts
with what it adds to c and not with what it adds to nothing. The determinant is then

    log|I + K_cc| + (N − |c|)/|b| (log|I + K_(c∪b)(c∪b)| − log|I + K_cc|)

with a larger variance, because fewer examples stand for all.

Any root of the output curvature gives the same bound. Monte-Carlo directions (`sampled_root`) would
not do: the logarithm of their determinant lies below on average, and the evidence above.

Immer, van der Ouderaa, van der Wilk, Rätsch, Schölkopf (2023), "Stochastic marginal likelihood
gradients using neural tangent kernels". Oracle: tests/oracles/function_space.py.

`BoundSteps` are hyper steps by this bound. One by the evidence itself needs a pass over all data;
the bound has an estimate from a few examples. After every `bound_every` weight steps one such
estimate, from `bound_batch` examples of which the first half is conditioned on, gives the gradients
by precisions, noise and ranges at once, at about the cost of a weight step.

Precisions and noise step from the beginning, ranges after the burn-in. The bound counts whatever
examples share once a batch instead of once, so that the precisions that maximise it are too large
and the network too stiff. With `bound_fits`, precisions and noise follow the evidence of all data
instead, in passes that many epochs apart, and the bound moves the ranges alone.

Draws come from streams named by the number of the weight step: nothing here has a state of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.jacobians import tangent_kernels
from isotropy.evidence.hyper_steps import EvidenceSteps
from isotropy.evidence.laplace import Batch, GaussianPrior, NotFiniteError
from isotropy.evidence.settings import LearnSchedule, stream
from isotropy.evidence.weight_steps import range_rate, tensors_of
from isotropy.kernels.captured import CapturedFunction, can_capture, held_by, set_rate
from isotropy.kernels.fused import is_capturing
from isotropy.likelihoods import Likelihood

if TYPE_CHECKING:
    from isotropy.evidence.training import Trainer


@dataclass(frozen=True)
class BoundEstimate:
    """The parts of an estimate in nats, already scaled to all examples; 0-dimensional, float64.

    log_likelihood   N/|b| log p(y_b | f̂)
    penalty          Σ_l δ_l ‖θ_l‖²
    log_determinant  N/|b| log|I + K_bb|, or what stands for it with conditioning
    """

    log_likelihood: Tensor
    penalty: Tensor
    log_determinant: Tensor

    @property
    def value(self) -> Tensor:
        """The estimate of a lower bound of log Z."""
        return self.log_likelihood - (self.penalty + self.log_determinant) / 2


class FunctionSpaceBound:
    """Lower bound of the evidence by the whole Gauss–Newton matrix, seen from the outputs.

    The parameters that count are those with a prior, `prior.names`.

    >>> bound = FunctionSpaceBound(network, likelihood, prior)
    >>> loss = -bound.estimate(Batch(rows, targets, copies), count=60_000).value
    >>> loss.backward()                 # ranges the rows depend on, precisions, noise
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood, prior: GaussianPrior) -> None:
        self.network = network
        self.likelihood = likelihood
        self.prior = prior

    def estimate(self, batch: Batch, count: int, conditioned: int = 0) -> BoundEstimate:
        """The bound for `count` examples by those of `batch`, its first `conditioned` being c.

        Unbiased if they are drawn uniformly. Differentiable in whatever rows and weights of copies
        depend on, in the prior's precisions and in the likelihood's noise; the network's weights
        are constants.
        """
        size = self._check_size(batch, count)
        if not 0 <= conditioned < size:
            raise CallerError(
                f"bound: expected 0 to {size - 1} examples to condition on, of a batch of {size}, "
                f"got {conditioned}"
            )

        def directions(outputs: Tensor) -> Tensor:
            if not batch.is_checked:
                self.likelihood.check_targets(batch.targets, outputs)
            return self.likelihood.curvature_root(outputs)

        outputs, kernels = tangent_kernels(
            self.network, self.prior.names, batch.rows, batch.copies, directions
        )
        statistic = self.likelihood.statistic(outputs, batch.targets).double()
        precisions, penalty = self._prior_terms()
        first = next(iter(kernels.values()))
        scale = self.likelihood.curvature_scale()  # a number, wherever it is
        kernel = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
        for name, own in kernels.items():
            kernel = kernel + own.double() * (scale / precisions[name])
        batches = (count - conditioned) / (size - conditioned)
        determinant = batches * log_determinant_above_one(kernel)
        if conditioned:  # rows are ordered by direction, then example
            by_example = kernel.unflatten(-1, (-1, size)).unflatten(0, (-1, size))
            given = by_example[:, :conditioned, :, :conditioned].flatten(2).flatten(0, 1)
            of_given = log_determinant_above_one(given)
            determinant = determinant - (batches - 1) * of_given
        return BoundEstimate(
            log_likelihood=count / size * self.likelihood.log_likelihood(statistic, size),
            penalty=penalty,
            log_determinant=determinant,
        )

    @torch.no_grad()
    def value(self, batches: Iterable[Batch]) -> Tensor:
        """The bound itself, over batches that hold every example once; without a graph."""
        parts = [self.estimate(batch, len(batch.targets)) for batch in batches]
        if not parts:
            raise CallerError("bound: expected at least one batch of data, got none")
        fit = torch.stack([part.log_likelihood - part.log_determinant / 2 for part in parts])
        return fit.sum() - parts[0].penalty / 2

    def _check_size(self, batch: Batch, count: int) -> int:
        """Examples of the batch."""
        size = len(batch.targets)
        if not 1 <= size <= count:
            raise CallerError(
                f"bound: expected a batch of 1 to {count} examples, of {count} in all, got {size}; "
                "give as count the number of training examples"
            )
        if len(batch.rows) != size * batch.copies.count:
            raise CallerError(
                f"bound: expected one target for every {batch.copies.count} rows, got "
                f"{len(batch.rows)} rows and {size} targets"
            )
        return size

    def _prior_terms(self) -> tuple[dict[str, Tensor], Tensor]:
        """δ by parameter name and Σ_l δ_l ‖θ_l‖²."""
        weights = {name: self.network.get_parameter(name).detach() for name in self.prior.names}
        norms = {name: weight.double().square().sum() for name, weight in weights.items()}
        sizes = {name: weight.numel() for name, weight in weights.items()}
        precisions = self.prior.precisions_at(norms, sizes)
        penalty = torch.stack([precisions[name] * norms[name] for name in self.prior.names]).sum()
        return precisions, penalty


def log_determinant_above_one(kernel: Tensor) -> Tensor:
    """log|I + K|, K (rows, rows) positive semi-definite, in float64.

    Raises NotFiniteError where it cannot be told; NaN while a CUDA graph is recorded.
    """
    matrix = (kernel + kernel.mT) / 2 + torch.eye(
        kernel.shape[-1], dtype=kernel.dtype, device=kernel.device
    )
    factor, failed = torch.linalg.cholesky_ex(matrix)
    total = 2 * factor.diagonal().log().sum()
    is_bad = (failed != 0) | ~torch.isfinite(total)
    if is_capturing(kernel):
        return torch.where(is_bad, torch.nan, total)
    if bool(is_bad):
        raise NotFiniteError(
            "the tangent kernel of a batch is not finite, or too large to be told from a singular "
            "one in the network's precision; lower the learning rate, rescale the inputs, or use "
            "float64"
        )
    return total


FEW = 5000
"""Up to so many examples all are shuffled; of more, a few are drawn."""


class BoundSteps(EvidenceSteps):
    """The hyper steps of a run by a bound; precisions and noise may follow the evidence."""

    def __init__(self, trainer: Trainer[LearnSchedule]) -> None:
        super().__init__(trainer)
        config = self.config
        self.moves_ranges = False  # by the evidence
        self.model, self.evidence = trainer.model, trainer.evidence
        self.inputs, self.targets = trainer.inputs, trainer.targets
        self.optimisers = trainer.optimisers
        self.size = config.bound_batch
        per_epoch = math.ceil(len(self.inputs) / config.batch_size)
        self._burn_in, self._steps = config.burn_in * per_epoch, config.epochs * per_epoch
        self._learns = trainer.follows_evidence
        self._follows_fits = config.bound_fits > 0
        evidence = self.evidence
        self.bound = FunctionSpaceBound(evidence.network, evidence.likelihood, evidence.prior)
        self._total = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        self._count = 0
        self._captured: CapturedFunction | None = None
        if config.captured and can_capture(evidence.network, self.inputs.device):
            self._captured = CapturedFunction(self._take, self._state)

    def after_step(self, step: int) -> None:
        """A hyper step, if one is due after the run's weight step of this number, from 1."""
        if self.step_due(step):
            self._hyper_step(step, self._moves(step))

    def step_due(self, step: int) -> bool:
        """Whether there is a hyper step after this weight step, from 1."""
        due = step % self.config.bound_every == 0
        return due and (self._moves(step) or not self._follows_fits)

    def _moves(self, step: int) -> bool:
        """Whether ranges move at this step."""
        return self._learns and step > self._burn_in

    def due(self, epoch: int) -> bool:
        """Whether precisions and noise get a pass over all data after this epoch, from 1.

        The first one is at the end of the burn-in, before any range moves.
        """
        fits, first = self.config.bound_fits, max(1, self.config.burn_in)
        return fits > 0 and epoch >= first and (epoch - first) % fits == 0

    def after_epoch(self, trainer: Trainer[Any], loss: float) -> dict[str, Any]:
        return {**super().after_epoch(trainer, loss), "bound": self.mean_estimate()}

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
        moved = self._moved_by_bound()
        for optimiser in moved:
            optimiser.zero_grad(set_to_none=True)
        value = self._estimate(examples, noise, moves).value
        (-value).backward()
        gradients = [
            parameter.grad.sum()
            for optimiser in moved
            for group in optimiser.param_groups
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
        for optimiser in self._moved_by_bound():
            yield from held_by(optimiser)

    def _moved_by_bound(self) -> list[torch.optim.Optimizer]:
        """The optimisers of what has gradients of the bound."""
        return [self.optimisers[n] for n in ("prior", "ranges") if n in self.optimisers]

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
