"""Weights and hyperparameters learned in one run: the training loop.

An epoch takes one weight step per mini-batch on  mean loss + (1/2N) Σ δ‖θ‖²  with the
transformed copies as constants. After a burn-in, every `update_every` epochs, a hyper step:
one evidence pass, a few steps on log precisions and noise, then one step on the ranges
along the evidence gradient (`laplace`). With `augerino` the ranges follow the training loss
with a reward for width instead,  CE − w‖η‖₂  and a fixed weight decay; with `fixed` and `none` only
the precisions are learned. `settings` has the table of these and of the baselines.

The loop draws from named streams (`streams`) and keeps no other state than parameters, optimiser
moments and the epoch, so that a saved and resumed run ends with the numbers of an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import make_curvature
from isotropy.curvature.kinds import kind_named
from isotropy.curvature.recording import evaluation_mode
from isotropy.curvature.scale_invariance import scale_invariant_layers
from isotropy.evidence.bound import BoundSteps
from isotropy.evidence.laplace import (
    Batch,
    EvidenceValue,
    LaplaceEvidence,
    LaplaceFit,
    NotFiniteError,
    PassProgress,
)
from isotropy.evidence.machine import fitting_micro_batch
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.scoring import Scores, score
from isotropy.evidence.settings import RECIPES, LearnConfig, multiplying_in
from isotropy.evidence.streams import stream
from isotropy.evidence.weight_steps import WeightSteps, adam, range_rate, set_rate
from isotropy.likelihoods import Likelihood
from isotropy.networks.averaging.invariant_model import InvariantModel


@dataclass(frozen=True)
class EpochRecord:
    """What is known after an epoch; None where it was not computed then.

    own_test_…: scores by the objective's own rule, where it has one (`settings`)
    bound:      mean of the epoch's estimates of a lower bound of the evidence, in nats, where hyper
                steps follow one (`bound`); weights and ranges moved between them
    """

    epoch: int
    train_loss: float
    train_accuracy: float | None
    log_likelihood: float | None
    log_evidence: float | None
    log_evidence_per_example: float | None
    ranges: dict[str, float]
    prior_precision: dict[str, float]
    noise: float | None
    test_accuracy: float | None
    test_log_likelihood: float | None
    seconds: float
    own_test_accuracy: float | None = None
    own_test_log_likelihood: float | None = None
    bound: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trainer:
    """One run: `run_epoch` until `epoch == config.epochs`, then `final_evidence`.

    inputs (examples, …) and targets lie on the model's device; config is resolved (no None).
    remark: told how far an evidence pass is that takes long; may be set at any time
    """

    remark: Callable[[str], None] | None = None

    def __init__(
        self,
        model: InvariantModel,
        likelihood: Likelihood,
        config: LearnConfig,
        inputs: Tensor,
        targets: Tensor,
    ) -> None:
        self.model = model
        self.network = model.network
        self.likelihood = likelihood
        self.config = config
        self.recipe = RECIPES[config.objective]
        self.inputs, self.targets = inputs, targets
        self.device = inputs.device
        self._check_outputs()
        curvature = make_curvature(
            self.network, kind_named(config.curvature), config.fallback, inputs[:2]
        )
        layers = {name.rpartition(".")[0] for name in curvature.parameter_names}
        self.prior = GaussianPrior(
            self.network,
            curvature.parameter_names,
            config.prior_structure,
            config.prior_precision,
            scale_invariant=sorted(scale_invariant_layers(self.network, layers, inputs[:4])),
        ).to(self.device)
        self.evidence = LaplaceEvidence(self.network, likelihood, self.prior, curvature)
        self.ranges = model.augmentation.learnable()
        for parameter in self.ranges:
            parameter.requires_grad_(self.recipe.learns)
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "prior": adam(
                [self.prior.log_precisions, *likelihood.parameters()],
                rate=_number(config.prior_rate),
            ),
        }
        if self.ranges:
            self.optimisers["ranges"] = adam(
                self.ranges,
                rate=_number(config.range_rate),
                betas=(0.9, _number(config.range_memory)),
            )
        self.weight_steps = WeightSteps(
            model,
            likelihood,
            self.prior,
            config,
            (inputs, targets),
            micro_batch=config.micro_batch
            or fitting_micro_batch(self.network, inputs, model.samples, _whole(config.batch_size)),
            ranges=self.optimisers.get("ranges"),
        )
        self.optimisers["weights"] = self.weight_steps.optimiser
        self.bound_steps: BoundSteps | None = None
        if config.bound != "none":
            data = (inputs, targets)
            self.bound_steps = BoundSteps(config, model, self.evidence, data, self.optimisers)
        self.epoch = 0
        self.seconds = 0.0

    def _check_outputs(self) -> None:
        """Run a few examples, so that a network that does not fit the data is named at once."""
        with torch.no_grad(), evaluation_mode(self.network):
            try:
                outputs = self.network(self.inputs[:2])
            except RuntimeError as error:
                shape = tuple(self.inputs.shape[1:])
                raise CallerError(
                    f"the network does not accept inputs of shape {shape}: {error}"
                ) from error
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            came = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise CallerError(f"network outputs: expected (batch, outputs), got {came}")
        self.likelihood.check_targets(self.targets, outputs)

    # -- what a checkpoint holds -----------------------------------------------------------

    def modules(self) -> dict[str, nn.Module]:
        return {
            "network": self.network,
            "augmentation": self.model.augmentation,
            "prior": self.prior,
            "likelihood": self.likelihood,
        }

    def own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {}

    def load_own_state(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Modules, optimisers and the epoch are all there is."""

    # -- one epoch -------------------------------------------------------------------------

    def run_epoch(self, test: tuple[Tensor, Tensor] | None = None) -> EpochRecord:
        """One pass of weight steps, a hyper step when due, and scores on `test` when due."""
        with multiplying_in(_word(self.config.precision), self.device):
            return self._run_epoch(test)

    def _run_epoch(self, test: tuple[Tensor, Tensor] | None) -> EpochRecord:
        started = time.perf_counter()
        self.epoch += 1
        by_bound = self.bound_steps
        after_step = None if by_bound is None else by_bound.after_step
        loss, correct = self.weight_steps.epoch(self.epoch, after_step)
        self._check_finite(loss, "training loss")
        log_likelihood, log_evidence = (
            self._hyper_step() if self._hyper_step_due() else (None, None)
        )
        last = self.epoch == self.config.epochs
        due = last or self.epoch % _whole(self.config.evaluate_every) == 0
        scores = self.score(*test) if test is not None and due else None
        own = self.own_score(*test) if test is not None and due else None
        count = len(self.inputs)
        self.seconds += time.perf_counter() - started
        return EpochRecord(
            epoch=self.epoch,
            train_loss=loss,
            train_accuracy=correct,
            log_likelihood=log_likelihood,
            log_evidence=log_evidence,
            log_evidence_per_example=None if log_evidence is None else log_evidence / count,
            ranges={s.name: s.high for s in self.model.symmetries()},
            prior_precision=self.prior.by_group(),
            noise=getattr(self.likelihood, "noise", None),
            test_accuracy=None if scores is None else scores.accuracy,
            test_log_likelihood=None if scores is None else scores.log_likelihood,
            seconds=self.seconds,
            own_test_accuracy=None if own is None else own.accuracy,
            own_test_log_likelihood=None if own is None else own.log_likelihood,
            bound=None if self.bound_steps is None else self.bound_steps.mean_estimate(),
        )

    def _hyper_step_due(self) -> bool:
        if self.bound_steps is not None:
            return self.bound_steps.fit_due(self.epoch)
        after = self.epoch - _whole(self.config.burn_in)
        return self.recipe.evidence and after > 0 and after % self.config.update_every == 0

    # -- the evidence ----------------------------------------------------------------------

    def orbit_batches(
        self, purpose: str, *, limit: int = 0, graph: bool = False
    ) -> Iterator[Batch]:
        """Batches for an evidence pass, in the epoch's own order and noise for this purpose.

        limit: at most so many examples, drawn at random (0: all data in order).
        graph: whether rows can be differentiated by the ranges
        """
        seed, order = self.config.seed, torch.arange(len(self.inputs))
        if limit:
            generator = stream(seed, purpose + " order", self.epoch)
            order = torch.randperm(len(self.inputs), generator=generator)[:limit]
        noise_stream = stream(seed, purpose, self.epoch, self.device)
        label_stream = stream(seed, purpose + " labels", self.epoch, self.device)
        told = PassProgress(self.remark, f"evidence pass ({purpose})", len(order))
        for batch in order.to(self.device).split(_whole(self.config.curvature_batch)):
            told.add(len(batch))
            noise = self.model.noise(len(batch), generator=noise_stream)
            with torch.set_grad_enabled(graph):
                rows = self.model.orbit(self.inputs[batch], noise)
                copies = self.model.augmentation.copies(noise.shape[1])
            yield Batch(rows, self.targets[batch], copies, label_stream, is_checked=True)

    def _hyper_step(self) -> tuple[float, float]:
        """Precisions and noise, then ranges; returns log likelihood and evidence before.

        Where a bound moves the ranges they are left alone.
        """
        learns = self.recipe.ranges == "evidence" and bool(self.ranges) and not self.bound_steps
        learns = learns and self.config.refine is not False
        fit = self.evidence.fit(self.orbit_batches("factors"), values_only=not learns)
        with torch.no_grad():
            log_likelihood = float(self.likelihood.log_likelihood(fit.statistic, fit.count))
        log_evidence = self._precision_steps(fit)
        if learns:
            limit = _whole(self.config.gradient_batches) * _whole(self.config.batch_size)
            batches = self.orbit_batches("ranges", limit=limit, graph=True)
            self._range_step(self.evidence.gradient(fit, batches, self.ranges))
        return log_likelihood, log_evidence

    def _precision_steps(self, fit: LaplaceFit) -> float:
        """A few steps on log precisions and noise; returns the evidence before them."""
        optimiser, before = self.optimisers["prior"], float("nan")
        for step in range(_whole(self.config.prior_steps)):
            optimiser.zero_grad(set_to_none=True)
            value = self.evidence.value(fit)
            if step == 0:
                before = float(value.detach())
                self._check_finite(before, "log evidence")
            (-value).backward()
            optimiser.step()
        return before

    def _range_step(self, gradients: list[Tensor]) -> None:
        """One step on the ranges along these gradients of −log Z."""
        for parameter, gradient in zip(self.ranges, gradients, strict=True):
            self._check_finite(float(gradient.sum()), "gradient of the evidence by the ranges")
            parameter.grad = gradient
        start = _whole(self.config.burn_in)
        progress = (self.epoch - start) / max(1, _whole(self.config.epochs) - start)
        set_rate(self.optimisers["ranges"], range_rate(self.config, progress))
        self.optimisers["ranges"].step()
        self.model.augmentation.project()

    def final_evidence(self) -> EvidenceValue | None:
        """log Z of the model as it stands (None for objectives that have no prior)."""
        return self.evidence_value("final") if self.recipe.evidence else None

    @torch.no_grad()
    def evidence_value(self, purpose: str) -> EvidenceValue:
        """log Z with the noise of this purpose and epoch, and what it depends on."""
        with multiplying_in(_word(self.config.precision), self.device):
            value = self.evidence.value(self.evidence.fit(self.orbit_batches(purpose)))
        return EvidenceValue(
            nats=float(value),
            examples=len(self.inputs),
            curvature=self.evidence.curvature_name,
            samples=self.model.samples,
            prior_structure=self.prior.structure,
            noise_seed=f"{self.config.seed}/{purpose}/{self.epoch}",
        )

    def _check_finite(self, value: float, what: str) -> None:
        if not torch.isfinite(torch.tensor(value)):
            raise NotFiniteError(
                f"the {what} became {value} in epoch {self.epoch}; the last good state is kept; "
                "try a lower weight rate, or rescale inputs that are far from unit size"
            )

    # -- scoring ---------------------------------------------------------------------------

    def score(self, inputs: Tensor, targets: Tensor) -> Scores:
        """Averaged predictions over the same `test_samples` copies every time."""
        copies = _whole(self.config.test_samples)
        return score(self.model, self.likelihood, inputs, targets, copies=copies)

    def own_score(self, inputs: Tensor, targets: Tensor) -> Scores | None:
        """Scores as the objective itself predicts; None where that is how all are scored."""
        own = self.recipe.own
        if own is None:
            return None
        return score(
            self.model,
            self.likelihood,
            inputs,
            targets,
            copies=own.copies,
            combination=own.combination,
        )


def _whole(value: int | None) -> int:
    assert value is not None, "the configuration must be resolved first"
    return value


def _word(value: str | None) -> str:
    assert value is not None, "the configuration must be resolved first"
    return value


def _number(value: float | None) -> float:
    assert value is not None, "the configuration must be resolved first"
    return value
