"""Weights and the precision of every pathway learned in one run: layer-wise equivariance.

An epoch takes one weight step per mini-batch on  mean loss + (1/2N) Σ_l δ_l ‖θ_l‖², one precision
δ_l a parameter tensor (`steps`). With the objective `laplace`, once the network has begun
to learn, every few epochs one pass over the data gives the curvature, and some steps of Adam on
log δ follow the Laplace evidence (van der Ouderaa, Immer and van der Wilk 2023, Eq. 9), foreseeing
how the weights will follow (`steps`). A pathway that the data does not need shrinks; in the
second half of a run those that the evidence is better without are set to zero (`switching_off`).
With `map` precisions stay as they are.

Only weight steps see augmented images, never the evidence. As in `training`, a saved and resumed
run ends with the numbers of an unbroken one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies, kind_named
from isotropy.evidence.laplace import Batch, LaplaceEvidence, LaplaceFit, NotFiniteError
from isotropy.evidence.layers.settings import AUGMENTATIONS, RelaxConfig
from isotropy.evidence.layers.steps import MovingMode, ProximalAdam
from isotropy.evidence.layers.structure import (
    LayerStructure,
    free_parameters,
    layer_structures,
    note_contributions,
)
from isotropy.evidence.layers.switching_off import OFF_PRECISION, switch_off
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.scoring import Scores, plain_scores
from isotropy.evidence.settings import cosine, multiplying_in
from isotropy.evidence.streams import stream
from isotropy.evidence.weight_steps import CapturedFunction, can_capture
from isotropy.kernels.operations import swift_operations
from isotropy.likelihoods import Likelihood

WARM_UP = 200
"""Weight steps over which the rate grows to its start: Adam's first ones are all of one size, and
large ones leave a network of rectified layers at zero for good."""
HAS_LEARNED = 0.7
"""Share of the loss of chance below which a classifier has begun to learn. Before, the best
precisions are those that switch everything off."""
SETTLED = 0.5
"""Part of the epochs after which pathways may be switched off: before, those that have not begun to
learn would be."""
CONTRIBUTING = 1000
"""Training examples from which contributions of pathways are measured."""


@dataclass(frozen=True)
class LayerEpoch:
    """What is known after an epoch; None where it was not computed then."""

    epoch: int
    train_loss: float
    train_accuracy: float | None
    log_evidence: float | None
    test_accuracy: float | None
    test_nll: float | None
    seconds: float
    layers: list[dict[str, Any]] | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class LayerTrainer:
    """One run: `run_epoch` until `epoch == config.epochs`, then `structures`.

    network: with or without relaxed layers, on the device of inputs (examples, …) and targets
    config:  resolved (no None)
    """

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        config: RelaxConfig,
        inputs: Tensor,
        targets: Tensor,
    ) -> None:
        self.network, self.likelihood, self.config = network, likelihood, config
        self.inputs, self.targets = inputs, targets
        self.device = inputs.device
        curvature = KFAC(network, kind_named(config.curvature))
        self.prior = GaussianPrior(
            network, curvature.parameter_names, "tensor", config.prior_precision
        ).to(self.device)
        if config.objective == "laplace":
            assert config.free_precision is not None
            free = set(free_parameters(network)) & set(curvature.parameter_names)
            self.prior.set_precision(free, config.free_precision)
        self.evidence = LaplaceEvidence(network, likelihood, self.prior, curvature)
        self.hyper = torch.optim.Adam(
            [self.prior.log_precisions, *likelihood.parameters()], lr=config.prior_rate
        )
        named = {n: p for n, p in network.named_parameters() if p.requires_grad}
        self._names = list(named)
        assert config.weight_rate is not None
        self.off: dict[tuple[str, str], list[str]] = {}
        self.optimiser = ProximalAdam(list(named.values()), rate=config.weight_rate)
        self.optimisers = {"prior": self.hyper, "weights": self.optimiser}
        self._write_decays()
        self.augmentation = AUGMENTATIONS[config.augmentation]
        self._sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._step = self._plain_step
        if config.captured and can_capture(network, self.device):
            self._step = CapturedFunction(self._plain_step, self._state)  # type: ignore[assignment]
        # A regression that explains nothing has its noise to say so.
        self.has_learned = targets.ndim > 1
        self._chance = 0.0 if self.has_learned else math.log(int(targets.max()) + 1)
        self.epoch = 0
        self.seconds = 0.0

    # -- what a checkpoint holds -----------------------------------------------------------

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network, "prior": self.prior, "likelihood": self.likelihood}

    def own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        off = [[layer, kind, names] for (layer, kind), names in self.off.items()]
        return {}, {"off": off, "has_learned": self.has_learned}

    def load_own_state(self, _: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        self.off = {(layer, kind): list(names) for layer, kind, names in record["off"]}
        self.has_learned = bool(record["has_learned"])
        self._write_decays()

    # -- one epoch -------------------------------------------------------------------------

    def run_epoch(self, test: tuple[Tensor, Tensor] | None = None) -> LayerEpoch:
        """One pass of weight steps, a hyper step and scores on `test` when due."""
        assert self.config.precision is not None
        with multiplying_in(self.config.precision, self.device):
            return self._run_epoch(test)

    def _run_epoch(self, test: tuple[Tensor, Tensor] | None) -> LayerEpoch:
        config = self.config
        assert config.evaluate_every is not None and config.epochs is not None
        started = time.perf_counter()
        self.epoch += 1
        loss, accuracy = self._weight_steps()
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"the training loss is {loss} in epoch {self.epoch}; lower the weight rate "
                f"({config.weight_rate})"
            )
        evidence, layers = None, None
        self.has_learned |= loss < HAS_LEARNED * self._chance
        if self._hyper_step_due():
            fit = self.fit_for_steps()
            evidence = self._precision_steps(fit)
            if self.epoch >= SETTLED * config.epochs:
                self._switch_off(fit)
            layers = [{"name": s.name, "effective": s.relative} for s in self._structures(fit)]
        due = self.epoch == config.epochs or self.epoch % config.evaluate_every == 0
        scores = self.score(*test) if test is not None and due else None
        self.seconds += time.perf_counter() - started
        return LayerEpoch(
            epoch=self.epoch,
            train_loss=loss,
            train_accuracy=accuracy,
            log_evidence=evidence,
            test_accuracy=None if scores is None else scores.accuracy,
            test_nll=None if scores is None else -scores.log_likelihood,
            seconds=self.seconds,
            layers=layers,
        )

    def _weight_steps(self) -> tuple[float, float | None]:
        config, count = self.config, len(self.inputs)
        assert config.batch_size is not None and config.epochs is not None
        assert config.weight_rate is not None
        order = torch.randperm(count, generator=stream(config.seed, "order", self.epoch))
        batches = order.to(self.device).split(config.batch_size)
        draws = stream(config.seed, "augmentation", self.epoch, self.device)
        if isinstance(self._step, CapturedFunction):
            self._step.refresh()
        self._sums.zero_()
        self.network.train()
        for index, batch in enumerate(batches):
            progress = (self.epoch - 1 + index / len(batches)) / config.epochs
            rate = cosine(config.weight_rate, config.weight_rate_end, progress)
            done = (self.epoch - 1) * len(batches) + index + 1
            self.optimiser.rate.fill_(rate * min(1.0, done / WARM_UP))
            if self.augmentation is None:
                self._step(batch)
            else:
                self._step(batch, self.augmentation.draw(len(batch), draws))
        loss, hits = (self._sums / count).tolist()
        return loss, hits if self.targets.ndim == 1 else None

    def _plain_step(self, batch: Tensor, draws: Tensor | None = None) -> None:
        """One weight step on the examples with these numbers; adds to the epoch's sums."""
        images, targets = self.inputs[batch], self.targets[batch]
        if draws is not None and self.augmentation is not None:
            images = self.augmentation(images, draws)
        self.optimiser.zero_grad()
        with swift_operations(self.device):
            outputs = self.network(images)
        loss = self.likelihood.training_loss(outputs, targets)
        loss.backward()
        self._sums[0] += loss.detach() * len(batch)
        if self.targets.ndim == 1:
            self._sums[1] += (outputs.detach().argmax(1) == targets).sum()
        self.optimiser.step()

    def _state(self) -> Iterator[Tensor]:
        """What a captured step reads beside its arguments."""
        yield from (self.inputs, self.targets, self._sums)
        yield from self.network.parameters()
        yield from self.network.buffers()
        yield from self.optimiser.state()

    # -- the evidence ----------------------------------------------------------------------

    def _hyper_step_due(self) -> bool:
        config = self.config
        assert config.burn_in is not None and config.update_every is not None
        after = self.epoch - config.burn_in
        due = after >= 0 and after % config.update_every == 0
        return config.objective == "laplace" and self.has_learned and due

    def batches(self, limit: int | None = None) -> Iterator[Batch]:
        """Training data for an evidence pass: all of it in order, or so many drawn at random."""
        config, count = self.config, len(self.inputs)
        assert config.curvature_batch is not None
        chosen = torch.arange(count)
        if limit and limit < count:
            order = stream(config.seed, "curvature", self.epoch)
            chosen = torch.randperm(count, generator=order)[:limit]
        labels = stream(config.seed, "labels", self.epoch, self.device)
        for part in chosen.to(self.device).split(config.curvature_batch):
            yield Batch(self.inputs[part], self.targets[part], Copies(1), labels, is_checked=True)

    def fit(self) -> LaplaceFit:
        """Curvature and likelihood of the weights as they are: all data, eigenvalues alone."""
        return self.evidence.fit(self.batches(), values_only=True)

    def fit_for_steps(self) -> LaplaceFit:
        """The same with eigenvectors, and of some examples that stand for all if so configured."""
        limit = self.config.curvature_examples
        if not limit or limit >= len(self.inputs):
            return self.evidence.fit(self.batches())
        found = self.evidence.fit_of_few(self.batches(limit))
        return replace(found, stands_for=len(self.inputs))

    def _precision_steps(self, fit: LaplaceFit) -> float:
        """Some steps on log precisions (and noise); returns the evidence before them."""
        config, moving = self.config, MovingMode(self.evidence, fit)
        assert config.epochs is not None and config.burn_in is not None
        progress = (self.epoch - config.burn_in) / max(1, config.epochs - config.burn_in)
        for group in self.hyper.param_groups:
            group["lr"] = cosine(config.prior_rate, config.prior_rate_end, progress)
        noise = list(self.likelihood.parameters())
        with torch.no_grad():
            before = float(self.evidence.value(fit))
        if not math.isfinite(before):
            raise NotFiniteError(
                f"the log evidence is {before} in epoch {self.epoch}; lower the weight rate"
            )
        for _ in range(config.prior_steps):
            self.hyper.zero_grad(set_to_none=True)
            (moving.loss() / len(self.inputs)).backward()
            if noise:
                value = self.evidence.value(fit) / len(self.inputs)
                for parameter, gradient in zip(
                    noise, torch.autograd.grad(value, noise), strict=True
                ):
                    parameter.grad = -gradient
            self.hyper.step()
        self._write_decays()
        return before

    def _switch_off(self, fit: LaplaceFit) -> None:
        """Set to zero, and keep there, pathways that the evidence is better without."""
        limit = self.config.curvature_examples or CONTRIBUTING
        order = stream(self.config.seed, "switching off", self.epoch)
        chosen = torch.randperm(len(self.inputs), generator=order)[:limit].to(self.device)
        self.off |= switch_off(
            self.evidence, fit, self.inputs[chosen], self.targets[chosen], self.off
        )
        self._write_decays()

    @torch.no_grad()
    def _write_decays(self) -> None:
        """δ/N of each parameter to the optimiser; zero for those without a prior."""
        self.prior.set_precision(
            {name for names in self.off.values() for name in names}, OFF_PRECISION
        )
        precisions = self.prior.precisions()
        zero = self.prior.log_precisions.new_zeros(())
        rows = [precisions.get(name, zero) for name in self._names]
        self.optimiser.decays.copy_(torch.stack(rows) / len(self.inputs))

    def structures(self) -> tuple[list[LayerStructure], float]:
        """What every relaxed layer has become, and log Z in nats.

        Notes on the layers what their pathways contribute, from some training examples.
        """
        assert self.config.precision is not None
        with multiplying_in(self.config.precision, self.device):
            note_contributions(self.network, self.inputs[:CONTRIBUTING])
            fit = self.fit()
            found = self._structures(fit)
        with torch.no_grad():
            return found, float(self.evidence.value(fit))

    @torch.no_grad()
    def _structures(self, fit: LaplaceFit) -> list[LayerStructure]:
        return layer_structures(self.network, self.evidence, fit)

    def score(self, inputs: Tensor, targets: Tensor) -> Scores:
        """Accuracy and mean log likelihood of the network as it is."""
        return plain_scores(self.network, self.likelihood, inputs, targets)
