"""One epoch of weight steps: mini-batches of averaged outputs, with the prior as a penalty.

    mean loss + (1/2N) Σ δ‖θ‖²        transformed copies are constants, ranges do not move

unless the ranges follow the training loss (`objectives`), when both step together. A batch that
does not fit into memory goes through in parts whose gradients add up (`memory`). On a GPU a step is
one CUDA graph where the network allows it (`captured`); losses are added up there too, so that
nothing waits for the GPU within an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from isotropy.curvature.swift_operations import swift_operations
from isotropy.evidence.baselines import average_of_losses, reward_for_width
from isotropy.evidence.captured import CapturedFunction, can_capture
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.schedule import LearnConfig, cosine
from isotropy.evidence.streams import stream
from isotropy.likelihoods import Likelihood
from isotropy.networks.invariant_model import InvariantModel

AfterStep = Callable[[int, float], None]
"""Told after each weight step: how many there have been in the run, and the share of it done."""


class WeightSteps:
    """The weight steps of a run; config is resolved, inputs and targets lie on the model's device.

    micro_batch: examples that go through the network together
    ranges:      their optimiser; used where they follow the training loss
    """

    def __init__(
        self,
        model: InvariantModel,
        likelihood: Likelihood,
        prior: GaussianPrior,
        config: LearnConfig,
        data: tuple[Tensor, Tensor],
        micro_batch: int,
        ranges: torch.optim.Optimizer | None,
    ) -> None:
        self.model, self.network = model, model.network
        self.likelihood, self.prior, self.config = likelihood, prior, config
        self.inputs, self.targets = data
        self.device = self.inputs.device
        self.micro_batch = micro_batch
        self.recipe = RECIPES[config.objective]
        decay = 0.0 if self.recipe.evidence else config.augerino_decay
        self.optimiser = adam(
            [p for p in self.network.parameters() if p.requires_grad],
            rate=config.weight_rate,
            decay=decay,
        )
        self.ranges = ranges if self.recipe.ranges == "loss" else None
        self._sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._captured: CapturedFunction | None = None
        may_capture = can_capture(self.network, self.device)
        if config.captured and may_capture and self.ranges is None:
            self._captured = CapturedFunction(self._step, self._state)

    def epoch(self, number: int, after_step: AfterStep | None = None) -> tuple[float, float | None]:
        """All weight steps of one epoch; mean loss, and accuracy for class labels."""
        config, count = self.config, len(self.inputs)
        assert config.batch_size is not None and config.epochs is not None
        order = torch.randperm(count, generator=stream(config.seed, "order", number))
        batches = order.to(self.device).split(config.batch_size)
        noise_stream = stream(config.seed, "noise", number, self.device)
        fix_statistics(self.network)
        step = self._whole_step()
        self._sums.zero_()
        for index, batch in enumerate(batches):
            progress = (number - 1 + index / len(batches)) / config.epochs
            set_rate(self.optimiser, cosine(config.weight_rate, config.weight_rate_end, progress))
            if self.ranges is not None:
                set_rate(self.ranges, range_rate(config, progress))
            step(batch, self.model.noise(len(batch), generator=noise_stream))
            if after_step is not None:
                after_step((number - 1) * len(batches) + index + 1, progress)
        loss, hits = (self._sums / count).tolist()
        return loss, hits if self.targets.ndim == 1 else None

    def _whole_step(self) -> Callable[[Tensor, Tensor], None]:
        """A step as it is or as a graph; where nothing is moved there are no copies to make."""
        if self._captured is None or self.model.augmentation.is_identity:
            return self._step
        self._captured.refresh()
        return self._captured

    def _step(self, batch: Tensor, noise: Tensor) -> None:
        """One weight step on the examples with these numbers; adds to the epoch's sums."""
        self.optimiser.zero_grad(set_to_none=True)
        if self.ranges is not None:
            self.ranges.zero_grad(set_to_none=True)
        # Gradients of parts of the batch add up to those of the whole.
        for part in range(0, len(batch), self.micro_batch):
            own = batch[part : part + self.micro_batch]
            with swift_operations(self.device):
                loss, outputs = self.loss_of(own, noise[part : part + self.micro_batch])
            self._sums[0] += loss.detach() * len(own)
            if len(own) < len(batch):
                loss = loss * (len(own) / len(batch))
            if part == 0 and self.recipe.ranges == "loss":
                reward = reward_for_width(self.model.augmentation)
                loss = loss - self.config.augerino_weight * reward
            loss.backward()
            if self.targets.ndim == 1:
                self._sums[1] += (outputs.detach().argmax(1) == self.targets[own]).sum()
        if self.recipe.evidence:
            parameters = dict(self.network.named_parameters())
            self.prior.add_penalty_gradients(parameters, 1 / len(self.inputs))
        self.optimiser.step()
        if self.ranges is not None:
            self.ranges.step()
            self.model.augmentation.project()

    def loss_of(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of some examples with their noise, and their averaged outputs."""
        with torch.set_grad_enabled(self.recipe.ranges == "loss"):
            rows = self.model.orbit(self.inputs[examples], noise)
            copies = self.model.augmentation.copies(noise.shape[1])
        moved, targets = self.network(rows), self.targets[examples]
        outputs = copies.mean(moved)
        if self.recipe.averaged == "losses":
            return average_of_losses(self.likelihood, moved, targets, copies), outputs
        return self.likelihood.training_loss(outputs, targets), outputs

    def _state(self) -> Iterator[Tensor]:
        """What a captured step reads beside its arguments."""
        yield from (self.inputs, self.targets, self._sums)
        yield from tensors_of(self.model, self.prior, self.likelihood)
        yield from held_by(self.optimiser)


def tensors_of(*modules: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()


def held_by(optimiser: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The rates and moments that an optimiser keeps on a GPU."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            yield group["lr"]
    for moments in optimiser.state.values():
        yield from moments.values()


def fix_statistics(network: nn.Module) -> None:
    """Put every BatchNorm into evaluation mode: its statistics are constants of the model.

    With statistics of the batch a prediction would depend on its neighbours, and weights in front
    would have no posterior mode.
    """
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def adam(
    parameters: list[nn.Parameter],
    *,
    rate: float,
    decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Adam:
    """Adam; on a GPU in one kernel, with its rate there too, so that a graph can hold it."""
    device = parameters[0].device
    on_gpu = all(parameter.is_cuda for parameter in parameters)
    return torch.optim.Adam(
        parameters,
        lr=torch.tensor(rate, device=device) if on_gpu else rate,
        betas=betas,
        weight_decay=decay,
        fused=on_gpu or None,
        capturable=on_gpu,
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next steps."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def range_rate(config: LearnConfig, progress: float) -> float:
    """The ranges' learning rate after this share of their steps."""
    assert config.range_rate is not None and config.range_rate_end is not None
    return cosine(config.range_rate, config.range_rate_end, progress)
