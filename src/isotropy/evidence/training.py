"""Weights and hyperparameters learned in one run: the training loop.

An epoch takes one weight step per mini-batch on  mean loss + (1/2N) Σ δ‖θ‖²  with the
transformed copies as constants. After a burn-in, every `update_every` epochs, a hyper step:
one evidence pass, a few steps on log precisions and noise, then one step on the ranges
along the evidence gradient (`laplace`). With `augerino` the ranges follow the training loss
with a reward for width instead,  CE − w‖η‖₂  and a fixed weight decay; with `fixed` and `none` only
the precisions are learned. `objectives` has the table of these and of the baselines.

The loop draws from named streams (`streams`) and keeps no other state than parameters, optimiser
moments and the epoch, so that a saved and resumed run ends with the numbers of an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.choice import make_curvature
from isotropy.curvature.kinds import kind_named
from isotropy.curvature.recording import evaluation_mode
from isotropy.curvature.scale_invariance import scale_invariant_layers
from isotropy.evidence.baselines import average_of_losses, reward_for_width
from isotropy.evidence.laplace import Batch, LaplaceEvidence, NotFiniteError
from isotropy.evidence.memory import fitting_micro_batch
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.schedule import LearnConfig, cosine
from isotropy.evidence.scoring import Scores, score
from isotropy.evidence.streams import stream
from isotropy.evidence.values import EvidenceValue
from isotropy.likelihoods import Likelihood
from isotropy.networks.invariant_model import InvariantModel


@dataclass(frozen=True)
class EpochRecord:
    """What is known after an epoch; None where it was not computed then.

    own_test_…: scores by the objective's own rule, where it has one (`objectives`)
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trainer:
    """One run: `run_epoch` until `epoch == config.epochs`, then `final_evidence`.

    inputs (examples, …) and targets lie on the model's device; config is resolved (no None).
    """

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
        trainable = [p for p in self.network.parameters() if p.requires_grad]
        decay = 0.0 if self.recipe.evidence else config.augerino_decay
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "weights": torch.optim.Adam(trainable, lr=config.weight_rate, weight_decay=decay),
            "prior": torch.optim.Adam(
                [self.prior.log_precisions, *likelihood.parameters()],
                lr=_number(config.prior_rate),
            ),
        }
        if self.ranges:
            self.optimisers["ranges"] = torch.optim.Adam(
                self.ranges, lr=_number(config.range_rate), betas=(0.9, config.range_memory)
            )
        self.micro_batch = config.micro_batch or fitting_micro_batch(
            self.network, inputs, model.samples, _whole(config.batch_size)
        )
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

    # -- one epoch -------------------------------------------------------------------------

    def run_epoch(self, test: tuple[Tensor, Tensor] | None = None) -> EpochRecord:
        """One pass of weight steps, a hyper step when due, and scores on `test` when due."""
        started = time.perf_counter()
        self.epoch += 1
        loss, correct = self._weight_steps()
        log_likelihood, log_evidence = None, None
        if self._hyper_step_due():
            log_likelihood, log_evidence = self._hyper_step()
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
        )

    def _hyper_step_due(self) -> bool:
        after = self.epoch - _whole(self.config.burn_in)
        return self.recipe.evidence and after > 0 and after % self.config.update_every == 0

    def _weight_steps(self) -> tuple[float, float | None]:
        config, count = self.config, len(self.inputs)
        follows_loss = self.recipe.ranges == "loss"
        order = torch.randperm(count, generator=stream(config.seed, "order", self.epoch))
        batches = order.to(self.device).split(_whole(config.batch_size))
        noise_stream = stream(config.seed, "noise", self.epoch, self.device)
        fix_statistics(self.network)
        weights, ranges = self.optimisers["weights"], self.optimisers.get("ranges")
        losses: list[Tensor] = []
        hits: list[Tensor] = []
        for index, batch in enumerate(batches):
            progress = (self.epoch - 1 + index / len(batches)) / _whole(config.epochs)
            _set_rate(weights, cosine(config.weight_rate, config.weight_rate_end, progress))
            noise = self.model.noise(len(batch), generator=noise_stream)
            for optimiser in (weights, ranges):
                if optimiser is not None:
                    optimiser.zero_grad(set_to_none=True)
            # Gradients of parts of the batch add up to those of the whole.
            for part in range(0, len(batch), self.micro_batch):
                own = batch[part : part + self.micro_batch]
                targets = self.targets[own]
                loss, outputs = self.loss_of(own, noise[part : part + self.micro_batch])
                losses.append(loss.detach() * len(own))
                if len(own) < len(batch):
                    loss = loss * (len(own) / len(batch))
                if part == 0:
                    loss = self._with_penalties(loss)
                loss.backward()
                if targets.ndim == 1:
                    hits.append((outputs.detach().argmax(1) == targets).sum())
            weights.step()
            if follows_loss and ranges is not None:
                _set_rate(ranges, self._range_rate(progress))
                ranges.step()
                self.model.augmentation.project()
        mean_loss = float(torch.stack(losses).sum()) / count
        self._check_finite(mean_loss, "training loss")
        accuracy = float(torch.stack(hits).sum()) / count if hits else None
        return mean_loss, accuracy

    def loss_of(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of some examples with their noise, and their averaged outputs."""
        with torch.set_grad_enabled(self.recipe.ranges == "loss"):
            rows = self.model.orbit(self.inputs[examples], noise)
            copies = self.model.augmentation.copies(noise.shape[1])
        targets, moved = self.targets[examples], self.network(rows)
        outputs = copies.mean(moved)
        if self.recipe.averaged == "losses":
            return average_of_losses(self.likelihood, moved, targets, copies), outputs
        return self.likelihood.training_loss(outputs, targets), outputs

    def _with_penalties(self, loss: Tensor) -> Tensor:
        """The loss with what does not depend on the batch: the prior, the reward for width."""
        if self.recipe.evidence:
            penalty = self.prior.penalty(dict(self.network.named_parameters()))
            loss = loss + penalty / len(self.inputs)
        if self.recipe.ranges == "loss":
            weight = self.config.augerino_weight
            loss = loss - weight * reward_for_width(self.model.augmentation)
        return loss

    # -- the evidence ----------------------------------------------------------------------

    def orbit_batches(
        self, purpose: str, *, limit: int = 0, graph: bool = False
    ) -> Iterator[Batch]:
        """Batches for an evidence pass, in the epoch's own order and noise for this purpose.

        limit: at most so many examples, drawn at random (0: all data in order).
        """
        seed, size = self.config.seed, _whole(self.config.curvature_batch)
        order = torch.arange(len(self.inputs))
        if limit:
            order = torch.randperm(
                len(self.inputs), generator=stream(seed, purpose + " order", self.epoch)
            )[:limit]
        noise_stream = stream(seed, purpose, self.epoch, self.device)
        label_stream = stream(seed, purpose + " labels", self.epoch, self.device)
        for batch in order.to(self.device).split(size):
            noise = self.model.noise(len(batch), generator=noise_stream)
            with torch.set_grad_enabled(graph):
                rows = self.model.orbit(self.inputs[batch], noise)
                copies = self.model.augmentation.copies(noise.shape[1])
            yield Batch(rows, self.targets[batch], copies, label_stream)

    def _hyper_step(self) -> tuple[float, float]:
        """Precisions and noise, then ranges; returns log likelihood and evidence before."""
        config = self.config
        fit = self.evidence.fit(self.orbit_batches("factors"))
        with torch.no_grad():
            log_likelihood = float(self.likelihood.log_likelihood(fit.statistic, fit.count))
        prior = self.optimisers["prior"]
        start = _whole(config.burn_in)
        progress = (self.epoch - start) / max(1, _whole(config.epochs) - start)
        before: Tensor | None = None
        for _ in range(_whole(config.prior_steps)):
            prior.zero_grad(set_to_none=True)
            value = self.evidence.value(fit)
            before = value.detach() if before is None else before
            (-value).backward()
            prior.step()
        assert before is not None
        self._check_finite(float(before), "log evidence")
        if self.recipe.ranges == "evidence":
            batches = self.orbit_batches(
                "ranges",
                limit=_whole(config.gradient_batches) * _whole(config.batch_size),
                graph=True,
            )
            gradients = self.evidence.gradient(fit, batches, self.ranges)
            for parameter, gradient in zip(self.ranges, gradients, strict=True):
                self._check_finite(float(gradient.sum()), "gradient of the evidence by the ranges")
                parameter.grad = gradient
            ranges = self.optimisers["ranges"]
            _set_rate(ranges, self._range_rate(progress))
            ranges.step()
            self.model.augmentation.project()
        return log_likelihood, float(before)

    def final_evidence(self) -> EvidenceValue | None:
        """log Z of the model as it stands (None for objectives that have no prior)."""
        return self.evidence_value("final") if self.recipe.evidence else None

    @torch.no_grad()
    def evidence_value(self, purpose: str) -> EvidenceValue:
        """log Z with the noise of this purpose and epoch, and what it depends on."""
        value = self.evidence.value(self.evidence.fit(self.orbit_batches(purpose)))
        return EvidenceValue(
            nats=float(value),
            examples=len(self.inputs),
            curvature=self.evidence.curvature_name,
            samples=self.model.samples,
            prior_structure=self.prior.structure,
            noise_seed=f"{self.config.seed}/{purpose}/{self.epoch}",
        )

    def _range_rate(self, progress: float) -> float:
        return cosine(
            _number(self.config.range_rate), _number(self.config.range_rate_end), progress
        )

    def _check_finite(self, value: float, what: str) -> None:
        if not torch.isfinite(torch.tensor(value)):
            raise NotFiniteError(
                f"the {what} became {value} in epoch {self.epoch}; the last good state is kept; "
                "try a lower weight rate, or rescale inputs that are far from unit size"
            )

    # -- scoring ---------------------------------------------------------------------------

    def score(self, inputs: Tensor, targets: Tensor) -> Scores:
        """Averaged predictions with the same noise every time, `test_samples` copies each."""
        copies = _whole(self.config.test_samples)
        seed = self.config.seed
        return score(self.model, self.likelihood, inputs, targets, copies=copies, seed=seed)

    def own_score(self, inputs: Tensor, targets: Tensor) -> Scores | None:
        """Scores as the objective itself predicts; None where that is how all are scored."""
        own, seed = self.recipe.own, self.config.seed
        if own is None:
            return None
        return score(
            self.model,
            self.likelihood,
            inputs,
            targets,
            copies=own.copies,
            seed=seed,
            combination=own.combination,
        )


def fix_statistics(network: nn.Module) -> None:
    """Put every BatchNorm into evaluation mode: its statistics are constants of the model.

    With statistics of the batch a prediction would depend on its neighbours, and weights in front
    would have no posterior mode.
    """
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def _whole(value: int | None) -> int:
    assert value is not None, "the configuration must be resolved first"
    return value


def _number(value: float | None) -> float:
    assert value is not None, "the configuration must be resolved first"
    return value
