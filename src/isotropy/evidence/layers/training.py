"""Layer-wise equivariance: the precision of every pathway, learned with the weights.

What a run of relaxed layers has of its own in the training loop (`evidence.training`). Weight steps
are on  mean loss + (1/2N) Σ_l δ_l ‖θ_l‖², one precision δ_l a parameter tensor, which a proximal
step of Adam takes in. With the objective `laplace`, once the network has begun to learn, every few
epochs one pass over the data gives the curvature, and some steps of Adam on log δ follow the
Laplace evidence (van der Ouderaa, Immer and van der Wilk 2023, Eq. 9), foreseeing how the weights
will follow. A pathway that the data does not need shrinks; in the second half of a run those that
the evidence is better without are set to zero. (All three are in `pruning`.) With `map` precisions
stay as they are, that of free pathways too. Only weight steps see augmented images, never the
evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isotropy.evidence.hyper_steps import HyperSteps
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceFit
from isotropy.evidence.layers.pruning import OFF_PRECISION, MovingMode, ProximalAdam, switch_off
from isotropy.evidence.layers.settings import AUGMENTATIONS, RelaxSchedule
from isotropy.evidence.layers.structure import (
    LayerStructure,
    free_parameters,
    layer_structures,
    note_contributions,
    relaxed_layers,
)
from isotropy.evidence.predictive import Scores
from isotropy.evidence.settings import cosine, stream
from isotropy.evidence.weight_steps import WeightSteps
from isotropy.kernels.captured import set_rate
from isotropy.kernels.precision import multiplying_in
from isotropy.networks.averaging.augmentations import Augmentation, Symmetry

if TYPE_CHECKING:
    from isotropy.evidence.training import Trainer

WARM_UP = 200
"""Weight steps over which the rate grows to its start: Adam's first ones are all of one size, and
large ones leave a network of rectified layers at zero for good."""
HAS_LEARNED = 0.7
"""Share of the loss of chance below which a classifier has begun to learn. Before, the best
precisions are those that switch everything off."""
SETTLED = 0.5
"""Part of the epochs after which pathways may be switched off: before, those that have not begun to
learn would be."""
FOLLOWED = 0.25
"""Part of the epochs with hyper steps after which the same: weights follow precisions."""
CONTRIBUTING = 1000
"""Training examples from which contributions of pathways are measured."""


@dataclass(frozen=True, kw_only=True)
class LayerEpoch:
    """What is known after an epoch; None where it was not computed then."""

    epoch: int
    train_loss: float
    train_accuracy: float | None
    log_evidence: float | None = None
    test_accuracy: float | None
    test_nll: float | None
    seconds: float
    layers: list[dict[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, _: Trainer[Any], scores: Scores | None, __: None, **numbers: Any) -> LayerEpoch:
        """The record of an epoch; numbers: those of weight and hyper steps."""
        return cls(
            **numbers,
            test_accuracy=None if scores is None else scores.accuracy,
            test_nll=None if scores is None else -scores.log_likelihood,
        )


class Untransformed(Augmentation):
    """One copy of each example, as it is: what a network alone is averaged over."""

    @property
    def is_identity(self) -> bool:
        return True

    def noise(
        self,
        batch: int,
        samples: int,
        *,
        generator: torch.Generator | None = None,
        antithetic: bool = False,
    ) -> Tensor:
        """(batch, 1, 0): nothing is drawn."""
        return torch.zeros(batch, 1, 0)

    def forward(self, data: Tensor, noise: Tensor) -> Tensor:
        return data[:, None]

    def coordinates(self, noise: Tensor) -> Tensor:
        return noise

    def learnable(self) -> list[nn.Parameter]:
        return []

    def project(self) -> None:
        """There is nothing to bring back."""

    def symmetries(self) -> list[Symmetry]:
        return []

    def law(self) -> dict[str, Any]:
        return {}


def pathway_prior(
    config: RelaxSchedule, network: nn.Module, names: tuple[str, ...], _: Tensor
) -> GaussianPrior:
    """One precision a tensor; free pathways beside others have, or start at, one of their own."""
    prior = GaussianPrior(network, names, "tensor", config.prior_precision)
    prior.set_precision(set(free_parameters(network)) & set(names), config.free_precision)
    return prior


class ProximalSteps(WeightSteps):
    """Weight steps of a relaxed network: images may be augmented, the prior is in the optimiser."""

    purpose, warm_up = "augmentation", WARM_UP
    optimiser: ProximalAdam

    def __init__(self, trainer: Trainer[RelaxSchedule]) -> None:
        named = {n: p for n, p in trainer.network.named_parameters() if p.requires_grad}
        self.names = list(named)
        self.augmentation = AUGMENTATIONS[trainer.config.augmentation]
        optimiser = ProximalAdam(list(named.values()), rate=trainer.config.weight_rate)
        super().__init__(trainer, optimiser)

    def draw(self, examples: int, generator: torch.Generator) -> Tensor:
        if self.augmentation is None:
            return torch.empty(examples, 0, device=self.device)
        return self.augmentation.draw(examples, generator)

    def set_mode(self) -> None:
        self.network.train()

    def loss_of(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        images = self.inputs[examples]
        if self.augmentation is not None:
            images = self.augmentation(images, noise)
        outputs = self.outputs_of(images)
        return self.likelihood.training_loss(outputs, self.targets[examples]), outputs

    def held(self) -> Iterator[Tensor]:
        return self.optimiser.state()

    @torch.no_grad()
    def write_decays(self, prior: GaussianPrior) -> None:
        """δ/N of each parameter to the optimiser; zero for those without a prior."""
        precisions, zero = prior.precisions(), prior.log_precisions.new_zeros(())
        rows = [precisions.get(name, zero) for name in self.names]
        self.optimiser.decays.copy_(torch.stack(rows) / len(self.inputs))


class PathwaySteps(HyperSteps):
    """Steps on the precisions of pathways, and which of these are off.

    off: names of parameters by layer and kind of pathway
    """

    closing_passes = 1  # `structures`, also where priors are fixed

    def __init__(self, trainer: Trainer[RelaxSchedule]) -> None:
        assert isinstance(trainer.weight_steps, ProximalSteps)
        self.config, self.weight_steps = trainer.config, trainer.weight_steps
        self.prior = trainer.prior
        limit = trainer.config.curvature_examples
        self.few = limit if limit < len(trainer.inputs) else 0
        self.keeps_roots = self.few > 0
        self.off: dict[tuple[str, str], list[str]] = {}
        # A regression that explains nothing has its noise to say so.
        self.has_learned = trainer.targets.ndim > 1
        self._chance = 0.0 if self.has_learned else math.log(int(trainer.targets.max()) + 1)
        self.write_decays()

    def state(self) -> dict[str, Any]:
        off = [[layer, kind, names] for (layer, kind), names in self.off.items()]
        return {"off": off, "has_learned": self.has_learned}

    def load_state(self, record: Mapping[str, Any]) -> None:
        self.off = {(layer, kind): list(names) for layer, kind, names in record["off"]}
        self.has_learned = bool(record["has_learned"])
        self.write_decays()

    def write_decays(self) -> None:
        """Precisions to the weights' optimiser, with those of what is off where they belong."""
        off = {name for names in self.off.values() for name in names}
        self.prior.set_precision(off, OFF_PRECISION)
        self.weight_steps.write_decays(self.prior)

    def due(self, epoch: int) -> bool:
        after = epoch - self.config.burn_in
        due = after >= 0 and after % self.config.update_every == 0
        return due and self.config.objective == "laplace"

    def after_epoch(self, trainer: Trainer[Any], loss: float) -> dict[str, Any]:
        """None before the network has begun to learn."""
        self.has_learned |= loss < HAS_LEARNED * self._chance
        return super().after_epoch(trainer, loss) if self.has_learned else {}

    def take(self, trainer: Trainer[Any]) -> dict[str, Any]:
        """The evidence is that before the step; shares of pathways are those after it.

        What a free pathway has of the symmetry goes to the equivariant one first. Both fit it
        alike, and training brings it there slowly: where priors let it, the evidence would take
        it for a need of the free one.
        """
        for layer in relaxed_layers(trainer.network).values():
            layer.gather_()
        fit = self.fit(trainer)
        log_evidence = self._precision_steps(trainer, fit)
        epochs, burn_in = self.config.epochs, self.config.burn_in
        if trainer.epoch >= max(SETTLED * epochs, burn_in + FOLLOWED * (epochs - burn_in)):
            self._switch_off(trainer, fit)
        trainer.ranks.agree_(list(trainer.network.parameters()))
        with torch.no_grad():
            found = layer_structures(trainer.network, trainer.evidence, fit)
        layers = [{"name": layer.name, "effective": layer.relative} for layer in found]
        return {"log_evidence": log_evidence, "layers": layers}

    def fit(self, trainer: Trainer[Any]) -> LaplaceFit:
        """Curvature with eigenvectors; of some examples that stand for all, if so configured."""
        if not self.few:
            return trainer.evidence.fit(pathway_batches(trainer))
        found = trainer.evidence.fit_of_few(pathway_batches(trainer, self.few))
        return replace(found, stands_for=len(trainer.inputs))

    def _precision_steps(self, trainer: Trainer[Any], fit: LaplaceFit) -> float:
        """Some steps on log precisions (and noise); returns the evidence before them."""
        config, evidence, optimiser = self.config, trainer.evidence, trainer.optimisers["prior"]
        moving, count = MovingMode(evidence, fit), len(trainer.inputs)
        progress = (trainer.epoch - config.burn_in) / max(1, config.epochs - config.burn_in)
        set_rate(optimiser, cosine(config.prior_rate, config.prior_rate_end, progress))
        noise = list(trainer.likelihood.parameters())
        with torch.no_grad():
            before = float(evidence.value(fit))
        trainer.check_finite(before, "log evidence")
        for _ in range(config.prior_steps):
            optimiser.zero_grad(set_to_none=True)
            (moving.loss() / count).backward()
            if noise:
                gradients = torch.autograd.grad(evidence.value(fit) / count, noise)
                for parameter, gradient in zip(noise, gradients, strict=True):
                    parameter.grad = -gradient
            optimiser.step()
        self.write_decays()
        return before

    def _switch_off(self, trainer: Trainer[Any], fit: LaplaceFit) -> None:
        """Set to zero, and keep there, pathways that the evidence is better without."""
        inputs, targets = trainer.inputs, trainer.targets
        limit = self.config.curvature_examples or CONTRIBUTING
        order = stream(self.config.seed, "switching off", trainer.epoch)
        chosen = torch.randperm(len(inputs), generator=order)[:limit].to(trainer.device)
        found = switch_off(trainer.evidence, fit, inputs[chosen], targets[chosen], self.off)
        self.off |= trainer.ranks.told(found)
        self.write_decays()


def pathway_batches(trainer: Trainer[Any], limit: int = 0) -> Iterator[Batch]:
    """Training data for an evidence pass: all of it in order, or so many drawn at random."""
    return trainer.orbit_batches("evidence", limit=limit, order="curvature", labels="labels")


def structures(trainer: Trainer[Any]) -> tuple[list[LayerStructure], float]:
    """What every relaxed layer has become, and log Z in nats, from all data.

    Notes on the layers what their pathways contribute, from some training examples.
    """
    with multiplying_in(trainer.config.precision, trainer.device), torch.no_grad():
        note_contributions(trainer.network, trainer.inputs[:CONTRIBUTING])
        fit = trainer.evidence.fit(pathway_batches(trainer), values_only=True)
        found = layer_structures(trainer.network, trainer.evidence, fit)
        return found, float(trainer.evidence.value(fit))
