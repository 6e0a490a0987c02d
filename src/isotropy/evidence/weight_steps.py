"""One epoch of weight steps: mini-batches, their gradients, a step of the optimiser.

`WeightSteps` is the loop. A batch that does not fit into memory goes through in parts whose
gradients add up (`machine`); losses are added up on the device, so that nothing waits for a GPU
within an epoch. What is drawn for a batch, its loss and the optimiser are exchangeable;
`OrbitSteps` are those of averaged outputs with the prior as a penalty:

    mean loss + (1/2N) Σ δ‖θ‖²        transformed copies are constants, ranges do not move

unless the ranges follow the training loss (`settings`), when both step together. The loss is one of

    loss of the average      −log p(y | Σ_s w_s f(x_s))
    average of the losses    −Σ_s w_s log p(y | f(x_s))        never below the former (Jensen)

Rows are (batch·copies, outputs), copies fastest; losses are means over the batch, in nats.

On a GPU a step is one CUDA graph where the network allows it (`kernels.captured`).

Weights may be averaged over steps (`AveragedWeights`): the network then has the average whenever no
epoch runs, so that hyper steps, scores and checkpoints are at the average.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from isotropy.checks import CallerError
from isotropy.curvature.kinds import Copies
from isotropy.evidence.machine import fitting_micro_batch
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.settings import LearnConfig, LearnSchedule, Schedule, cosine, stream
from isotropy.kernels.captured import CapturedFunction, adam, can_capture, held_by, set_rate, sgd
from isotropy.kernels.compiled import NetworkPass
from isotropy.likelihoods import Likelihood
from isotropy.networks.averaging.augmentations import START, Augmentation
from isotropy.networks.averaging.baselines import RandomCopies, SoftplusRanges, trivial_augment
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.batch_statistics import (
    fix_statistics,
    running_statistics,
    use_batch_statistics,
)
from isotropy.symmetry.actions.action import Action, compose
from isotropy.symmetry.actions.finite import FiniteAction

if TYPE_CHECKING:
    from isotropy.evidence.training import Trainer

TRAINED = "trained/"
"""Before the names of weights in a checkpoint whose network has their average."""


def augmentation_for(
    config: LearnConfig,
    actions: Action | FiniteAction | Sequence[Action | FiniteAction],
    *,
    dtype: torch.dtype = torch.float32,
) -> Augmentation:
    """The augmentation that a run with these settings trains with.

    trivial-augment has no use for the actions. augerino-original takes continuous ones only, and
    is the authors' own with `affine(AUGERINO_GENERATORS)`.
    """
    if config.objective == "trivial-augment":
        return RandomCopies(trivial_augment(), dtype=dtype)
    if config.objective == "augerino-original":
        given = list(actions) if isinstance(actions, Sequence) else [actions]
        continuous = [action for action in given if isinstance(action, Action)]
        if len(continuous) < len(given):
            other = next(action for action in given if not isinstance(action, Action))
            name = other.name if isinstance(other, FiniteAction) else type(other).__name__
            raise CallerError(
                f"objective augerino-original: expected Actions with ranges, got {name!r}; for "
                "finite groups use evidence or augerino"
            )
        return SoftplusRanges(
            compose(*continuous), start=config.start, caps=config.caps, dtype=dtype
        )
    learned = RECIPES[config.objective].learns
    return augmentation_over(
        actions,
        distribution=config.distribution,
        start=(config.start or START) if learned else (config.ranges or {}),
        caps=config.caps,
        dtype=dtype,
    )


def average_of_losses(
    likelihood: Likelihood, rows: Tensor, targets: Tensor, copies: Copies
) -> Tensor:
    """Σ_s w_s · mean over the batch of −log p(y | f(x_s)), for rows (batch·copies, outputs)."""
    if copies.weights is None:
        return likelihood.training_loss(rows, targets.repeat_interleave(copies.count, 0))
    split = copies.split(rows)
    losses = [likelihood.training_loss(split[:, s], targets) for s in range(copies.count)]
    return torch.stack(losses) @ copies.weights.to(rows.dtype)


def reward_for_width(augmentation: Augmentation) -> Tensor:
    """What is paid for width: ‖η‖₂ over all that is learned, or ‖w‖₂ of `SoftplusRanges`.

    The gradient of the norm is taken as 0 at 0.
    """
    if isinstance(augmentation, SoftplusRanges):
        return augmentation.reward()
    everything = torch.cat([parameter.flatten() for parameter in augmentation.learnable()])
    squared = everything.square().sum()
    return torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)


def scalars_of(network: nn.Module) -> list[nn.Parameter]:
    """Parameters of modules that have nothing but single numbers, as Fixup's biases and scales."""
    found: list[nn.Parameter] = []
    for module in network.modules():
        own = list(module.parameters(recurse=False))
        if all(parameter.ndim <= 1 and parameter.numel() == 1 for parameter in own):
            found += own
    return found


class AveragedWeights:
    """The exponential moving average of a network's weights and running statistics.

        average ← d · average + (1 − d) · weights        d = min(decay, (1 + t) / (10 + t))

    after weight step t. Early steps count for less than `decay` would have it, so that the average
    forgets where the weights began. The network holds one of the two and this object the other.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        named = network.state_dict(keep_vars=True)
        self._held = {name: each for name, each in named.items() if _changes(each)}
        self._kept = {name: each.detach().clone() for name, each in self._held.items()}

    @contextmanager
    def trained(self) -> Iterator[None]:
        """The network has the trained weights inside, and the average before and after."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after the run's step of this number, from 1; inside `trained`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        held = [each.detach() for each in self._held.values()]
        get_ema_multi_avg_fn(decay)(list(self._kept.values()), held, step)

    def state(self) -> dict[str, Tensor]:
        """The trained weights by name, while the network has the average."""
        return dict(self._kept)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        for name, kept in self._kept.items():
            kept.copy_(tensors[name])

    @torch.no_grad()
    def _exchange(self) -> None:
        """In place: graphs and optimisers know where weights are in memory."""
        for name, held in self._held.items():
            before = held.detach().clone()
            held.copy_(self._kept[name])
            self._kept[name].copy_(before)


def _changes(tensor: Any) -> bool:
    """Whether weight steps can change a part of a network's state."""
    if isinstance(tensor, nn.Parameter):
        return tensor.requires_grad
    return isinstance(tensor, Tensor) and tensor.is_floating_point()


class WeightSteps:
    """The loop of weight steps of a run.

    optimiser:   of the weights: one of torch's, or one that is used like it
    micro_batch: examples that go through the network together
    average:     of the weights over steps, which the network has between epochs
    """

    purpose = "noise"
    """The stream that draws come from."""
    warm_up = 1
    """Weight steps over which the rate grows to its start."""
    trains = True
    """Whether an epoch has weight steps."""
    average: AveragedWeights | None = None

    def __init__(self, trainer: Trainer[Any], optimiser: Any) -> None:
        config: Schedule = trainer.config
        self.config, self.likelihood, self.network = config, trainer.likelihood, trainer.network
        self.inputs, self.targets, self.device = trainer.inputs, trainer.targets, trainer.device
        self.examples, self._read = trainer.examples, trainer.read
        self.is_streamed = trainer.stream is not None
        self.optimiser = optimiser
        fix_statistics(self.network)  # a single example has none
        self.ranks = trainer.ranks
        fitting = config.micro_batch or fitting_micro_batch(
            self.network, self.inputs, trainer.model.samples, config.batch_size
        )
        self.micro_batch = self.ranks.told(fitting)
        self._used: list[bool] | None = None
        self.network_pass = NetworkPass(
            self.network,
            self.device,
            compiled=config.compiled,
            autocast=config.precision == "bfloat16",
        )
        self._sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._one_step: Callable[[Tensor, Tensor], None] = self._step
        self._captured: CapturedFunction | None = None
        can_be = can_capture(self.network, self.device) and not self.ranks.are_many
        can_be &= not self.is_streamed  # a graph reads its examples from one place
        if config.captured and can_be:
            self._captured = CapturedFunction(self._step, self._state)

    @abstractmethod
    def draw(self, examples: int, generator: torch.Generator) -> Tensor:
        """What a step on so many examples draws, (examples, …)."""

    @abstractmethod
    def loss_of(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of the examples with these numbers and draws, and their outputs."""

    def set_rates(self, progress: float, step: int) -> None:
        """Learning rates after this share of the run, for the run's weight step of this number."""
        rate = cosine(self.config.weight_rate, self.config.weight_rate_end, progress)
        set_rate(self.optimiser, rate * min(1.0, step / self.warm_up))

    def epoch(
        self, number: int, after_step: Callable[[int], None] | None = None
    ) -> tuple[float, float | None]:
        """All weight steps of one epoch; mean loss, and accuracy for class labels.

        after_step: told after each how many there have been in the run
        """
        config, count = self.config, self.examples
        order = torch.randperm(count, generator=stream(config.seed, "order", number))
        steps = math.ceil(count / config.batch_size)
        draws = stream(config.seed, self.purpose, number, self.device)
        self.begin()
        self._sums.zero_()
        averaging = nullcontext() if self.average is None else self.average.trained()
        with averaging, closing(self._batches(order)) as batches:
            for index, batch in enumerate(batches):
                progress = (number - 1 + index / steps) / config.epochs
                done = (number - 1) * steps + index + 1
                self.set_rates(progress, done)
                self.take(batch, self.draw(len(batch), draws))
                if self.average is not None:
                    self.average.update(done)
                if after_step is not None:
                    after_step(done)
        self.ranks.add_([self._sums])
        self._average_statistics()
        loss, hits = (self._sums / count).tolist()
        return loss, hits if self.targets.ndim == 1 else None

    def _batches(self, order: Tensor) -> Generator[Tensor, None, None]:
        """The batches of an epoch, as places in `inputs` and `targets`.

        Of a stream, these are the rows of the batch that was read last, and no more than this
        rank's parts of it; the rows of others have no place.
        """
        size = self.config.batch_size
        if not self.is_streamed:
            yield from parts_of(order.to(self.device), size)
            return
        sample = self.inputs, self.targets
        mine = (
            torch.cat([batch[:0], *(batch[part] for part in self._own_parts(len(batch)))])
            for batch in parts_of(order, size)
        )
        try:
            for batch, rows in zip(parts_of(order, size), self._read(mine), strict=True):
                self.inputs, self.targets = rows
                places, done = torch.full((len(batch),), -1, device=self.device), 0
                for part in self._own_parts(len(batch)):
                    count = len(places[part])
                    places[part] = torch.arange(done, done + count, device=self.device)
                    done += count
                yield places
        finally:
            self.inputs, self.targets = sample

    def _own_parts(self, count: int) -> Iterator[slice]:
        """This rank's parts of a batch of so many examples, each small enough for memory."""
        size = min(self.micro_batch, math.ceil(count / self.ranks.count))
        for index, start in enumerate(range(0, count, size)):
            if self.ranks.is_mine(index):
                yield slice(start, start + size)

    def state(self) -> dict[str, Tensor]:
        """What the next epoch depends on beside the network and the optimiser, between epochs."""
        own = {} if self.average is None else self.average.state()
        return {TRAINED + name: tensor for name, tensor in own.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, which may be among others."""
        if self.average is not None:
            own = {k.removeprefix(TRAINED): v for k, v in tensors.items() if k.startswith(TRAINED)}
            self.average.load_state(own)

    def begin(self) -> None:
        """Put the network into its mode, and choose how steps are taken."""
        self.set_mode()
        self._one_step = self._whole_step()

    def take(self, batch: Tensor, noise: Tensor) -> None:
        """One step on the examples with these numbers and draws, as `begin` chose."""
        with self.network_pass.searching():
            self._one_step(batch, noise)

    def set_mode(self) -> None:
        """The network as it is trained: BatchNorm normalises by the statistics of the rows."""
        use_batch_statistics(self.network)

    def outputs_of(self, rows: Tensor) -> Tensor:
        """The network's outputs; a single row has no statistics, and running ones are used."""
        if len(rows) > 1:
            return self.network_pass(rows)
        with running_statistics(self.network):
            return self.network_pass(rows)

    def _whole_step(self) -> Callable[[Tensor, Tensor], None]:
        """A step as it is or as a graph."""
        if self._captured is None:
            return self._step
        self._captured.refresh()
        return self._captured

    def _step(self, batch: Tensor, noise: Tensor) -> None:
        """One weight step on the examples with these numbers; adds to the epoch's sums."""
        self.optimiser.zero_grad(set_to_none=True)
        # Gradients of parts of the batch add up to those of the whole, over ranks too.
        for part in self._own_parts(len(batch)):
            own = batch[part]
            loss, outputs = self.loss_of(own, noise[part])
            self._sums[0] += loss.detach() * len(own)
            if len(own) < len(batch):
                loss = loss * (len(own) / len(batch))
            if part.start == 0:
                loss = self._rewarded(loss)
            loss.backward()
            if self.targets.ndim == 1:
                self._sums[1] += (outputs.detach().argmax(1) == self.targets[own]).sum()
        self._add_over_ranks()
        self._add_penalty()
        self.optimiser.step()

    def _add_over_ranks(self) -> None:
        """Gradients of all ranks' parts; a rank whose share was empty has none of its own."""
        if not self.ranks.are_many:
            return
        trained = self.stepped()
        if self._used is None:  # by any rank: what no pass uses keeps no gradient
            has = torch.tensor([each.grad is not None for each in trained], device=self.device)
            counts = has.to(torch.float64)
            self.ranks.add_([counts])
            self._used = (counts > 0).tolist()
        used = [each for each, is_used in zip(trained, self._used, strict=True) if is_used]
        for each in used:
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        self.ranks.add_([each.grad for each in used if each.grad is not None])

    def stepped(self) -> list[Tensor]:
        """What optimisers of these steps change."""
        return [each for group in self.optimiser.param_groups for each in group["params"]]

    def _average_statistics(self) -> None:
        """Running statistics of ranks, whose parts had statistics of their own."""
        if self.ranks.are_many:
            held = [each for each in self.network.buffers() if each.is_floating_point()]
            self.ranks.add_(held)
            for each in held:
                each /= self.ranks.count

    def _rewarded(self, loss: Tensor) -> Tensor:
        """The loss with what a batch has besides, once."""
        return loss

    def _add_penalty(self) -> None:
        """Add what gradients have besides those of the loss."""

    def _state(self) -> Iterator[Tensor]:
        """What a captured step reads beside its arguments."""
        yield from (self.inputs, self.targets, self._sums)
        yield from tensors_of(self.network, self.likelihood)
        yield from self.held()

    def held(self) -> Iterator[Tensor]:
        """Rates and moments of the optimisers that steps use."""
        return held_by(self.optimiser)


class OrbitSteps(WeightSteps):
    """Weight steps on averaged outputs, with the prior as a penalty.

    Also makes the optimiser of the ranges. ranges: the same, where they follow the training loss
    """

    config: LearnSchedule

    def __init__(self, trainer: Trainer[LearnSchedule]) -> None:
        config = trainer.config
        self.model, self.prior, self.recipe = trainer.model, trainer.prior, trainer.recipe
        super().__init__(trainer, self._optimiser(trainer))
        steps_per_epoch = math.ceil(trainer.examples / config.batch_size)
        self.warm_up = max(1, math.ceil(config.warm_up * steps_per_epoch))
        if config.ema_decay:
            self.average = AveragedWeights(trainer.network, config.ema_decay)
        if trainer.ranges:
            betas = (min(0.9, config.range_memory), config.range_memory)
            own = adam(trainer.ranges, rate=config.range_rate, betas=betas)
            trainer.optimisers["ranges"] = own
        follows_loss = self.recipe.ranges == "loss"
        self.ranges = trainer.optimisers.get("ranges") if follows_loss else None
        if self.ranges is not None:
            self._captured = None

    def _optimiser(self, trainer: Trainer[LearnSchedule]) -> torch.optim.Optimizer:
        """The optimiser of the weights that the settings name."""
        config = trainer.config
        choice: dict[str, Any] = {
            "rate": config.weight_rate,
            "decay": 0.0 if self.recipe.evidence else config.augerino_decay,
            "scalars": scalars_of(trainer.network),
            "scalar_factor": config.scalar_rate,
        }
        if config.optimiser == "adam":
            return adam(self.trained(trainer), **choice)
        choice |= {"momentum": config.momentum, "nesterov": config.nesterov}
        return sgd(self.trained(trainer), **choice)

    def trained(self, trainer: Trainer[LearnSchedule]) -> list[nn.Parameter]:
        """What the steps change, the ranges apart."""
        return [p for p in trainer.network.parameters() if p.requires_grad]

    def draw(self, examples: int, generator: torch.Generator) -> Tensor:
        return self.model.noise(examples, generator=generator)

    def set_rates(self, progress: float, step: int) -> None:
        super().set_rates(progress, step)
        if self.ranges is not None:
            set_rate(self.ranges, range_rate(self.config, progress))

    def loss_of(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of some examples with their noise, and their averaged outputs."""
        with torch.set_grad_enabled(self.recipe.ranges == "loss"):
            rows = self.model.orbit(self.inputs[examples], noise)
            copies = self.model.augmentation.copies(noise.shape[1])
        moved, targets = self.outputs_of(rows), self.targets[examples]
        outputs = copies.mean(moved)
        if self.recipe.averaged == "losses":
            return average_of_losses(self.likelihood, moved, targets, copies), outputs
        return self.likelihood.training_loss(outputs, targets), outputs

    def stepped(self) -> list[Tensor]:
        own = [] if self.ranges is None else self.ranges.param_groups
        return [*super().stepped(), *(each for group in own for each in group["params"])]

    def _whole_step(self) -> Callable[[Tensor, Tensor], None]:
        """As it is where nothing is moved: there are no copies to make."""
        return self._step if self.model.augmentation.is_identity else super()._whole_step()

    def _step(self, batch: Tensor, noise: Tensor) -> None:
        if self.ranges is not None:
            self.ranges.zero_grad(set_to_none=True)
        super()._step(batch, noise)
        if self.ranges is not None:
            self.ranges.step()
            self.model.augmentation.project()

    def _rewarded(self, loss: Tensor) -> Tensor:
        if self.recipe.ranges != "loss":
            return loss
        return loss - self.config.augerino_weight * reward_for_width(self.model.augmentation)

    def _add_penalty(self) -> None:
        if self.recipe.evidence:
            parameters = dict(self.network.named_parameters())
            self.prior.add_penalty_gradients(parameters, 1 / self.examples)

    def held(self) -> Iterator[Tensor]:
        yield from super().held()
        if self.ranges is not None:
            yield from held_by(self.ranges)

    def _state(self) -> Iterator[Tensor]:
        yield from super()._state()
        yield from tensors_of(self.model.augmentation, self.prior)


class FeatureSteps(OrbitSteps):
    """Weight steps on the last layer alone, on features that are averaged over copies already."""

    def __init__(self, trainer: Trainer[LearnSchedule]) -> None:
        assert trainer.features is not None
        self.features = trainer.features
        super().__init__(trainer)
        self._captured = None

    def draw(self, examples: int, generator: torch.Generator) -> Tensor:
        """Nothing: the copies are those of the features."""
        return torch.zeros(examples, 0, device=self.device)

    def set_mode(self) -> None:
        """The frozen layers are in evaluation mode where they are called."""

    def loss_of(self, examples: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.features.head(self.features.now()[examples])
        return self.likelihood.training_loss(outputs, self.targets[examples]), outputs


def parts_of(numbers: Tensor, size: int) -> Iterator[Tensor]:
    """`numbers.split(size)`, each made when it is asked for: of many there would be many."""
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def tensors_of(*modules: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()


def range_rate(config: LearnSchedule, progress: float) -> float:
    """The ranges' learning rate after this share of their steps."""
    return cosine(config.range_rate, config.range_rate_end, progress)
