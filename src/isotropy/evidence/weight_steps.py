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

On a GPU a step is one CUDA graph where the network allows it (`CapturedFunction`): a weight step of
a small network is a few dozen kernels of some microseconds each, and Python needs longer to launch
one than the GPU to run it. A graph is recorded once and replayed:

    the first calls   as they are, on a stream of their own; what is made on first use is made
    then              recorded: nothing runs, every kernel and address is noted
    afterwards        arguments are copied to the addresses noted, and all is launched at once

What a function reads beside its arguments must stay where it is in memory. `state` lists such
tensors; when one has moved, the graph is recorded anew. Arguments of another shape, such as a last,
smaller batch, and functions that cannot be recorded (those that wait for a number from the GPU) are
called as they are. Python runs only while recording: `can_capture` says for which networks that is
safe to assume.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kinds import Copies
from isotropy.evidence.machine import fitting_micro_batch
from isotropy.evidence.settings import RECIPES, LearnConfig, LearnSchedule, Schedule, cosine, stream
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

WARM_UP = 3
"""Calls before a function is recorded: libraries choose kernels and optimisers make moments."""


class CapturedFunction:
    """`function(*tensors) -> None` on a CUDA device, replayed as a graph after a few calls.

    state:   tensors that the function reads or writes in place
    failure: why it could not be recorded, if so
    """

    def __init__(
        self, function: Callable[..., None], state: Callable[[], Iterable[Tensor]]
    ) -> None:
        self.function = function
        self.state = state
        self.failure: str | None = None
        self._shapes: list[torch.Size] | None = None
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._arguments: list[Tensor] = []
        self._addresses: list[int] = []

    def __call__(self, *tensors: Tensor) -> None:
        """The function on these tensors."""
        shapes = [tensor.shape for tensor in tensors]
        self._shapes = self._shapes or shapes
        if self.failure is not None or shapes != self._shapes:
            self.function(*tensors)
            return
        if self._graph is None and self._calls < WARM_UP:
            self._calls += 1
            self._aside(*tensors)
            return
        if self._graph is None:
            self._record(*tensors)
        if self._graph is None:
            self.function(*tensors)
            return
        for place, tensor in zip(self._arguments, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()

    def refresh(self) -> None:
        """Forget the graph if anything it reads has moved in memory since it was recorded."""
        if self._graph is not None and self._addresses != self._places():
            self._graph, self._calls = None, 0

    def _places(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self.state()]

    def _aside(self, *tensors: Tensor) -> None:
        """Call on the stream that will record: autograd remembers where a parameter was used."""
        here, aside = torch.cuda.current_stream(), self._own_stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            self.function(*tensors)
        here.wait_stream(aside)

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            # A graph of autograd's that garbage still holds would remember another stream.
            gc.collect()
            self._stream = torch.cuda.Stream()
        return self._stream

    def _record(self, *tensors: Tensor) -> None:
        self._arguments = [tensor.clone() for tensor in tensors]
        stream, graph = self._own_stream(), torch.cuda.CUDAGraph()
        gc.collect()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self.function(*self._arguments)
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.failure = str(error)
            return
        self._graph = graph
        self._addresses = self._places()


def can_capture(network: nn.Module, device: torch.device) -> bool:
    """Whether every forward pass of `network` is sure to launch the same kernels.

    So it is for modules of torch's and of this library; another's may decide in Python, at random
    or by a counter, and a graph would repeat what was decided while it was recorded. Hooks
    would not be called at all.
    """
    if device.type != "cuda":
        return False
    return all(
        type(module).__module__.split(".")[0] in ("torch", "isotropy")
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        for module in network.modules()
    )


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


class WeightSteps:
    """The loop of weight steps of a run.

    optimiser:   of the weights: one of torch's, or one that is used like it
    micro_batch: examples that go through the network together
    """

    purpose = "noise"
    """The stream that draws come from."""
    warm_up = 1
    """Weight steps over which the rate grows to its start."""
    trains = True
    """Whether an epoch has weight steps."""

    def __init__(self, trainer: Trainer[Any], optimiser: Any) -> None:
        config: Schedule = trainer.config
        self.config, self.likelihood, self.network = config, trainer.likelihood, trainer.network
        self.inputs, self.targets, self.device = trainer.inputs, trainer.targets, trainer.device
        self.optimiser = optimiser
        fix_statistics(self.network)  # a single example has none
        self.micro_batch = config.micro_batch or fitting_micro_batch(
            self.network, self.inputs, trainer.model.samples, config.batch_size
        )
        self.network_pass = NetworkPass(
            self.network,
            self.device,
            compiled=config.compiled,
            autocast=config.precision == "bfloat16",
        )
        self._sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._one_step: Callable[[Tensor, Tensor], None] = self._step
        self._captured: CapturedFunction | None = None
        if config.captured and can_capture(self.network, self.device):
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
        config, count = self.config, len(self.inputs)
        order = torch.randperm(count, generator=stream(config.seed, "order", number))
        batches = order.to(self.device).split(config.batch_size)
        draws = stream(config.seed, self.purpose, number, self.device)
        self.begin()
        self._sums.zero_()
        for index, batch in enumerate(batches):
            progress = (number - 1 + index / len(batches)) / config.epochs
            done = (number - 1) * len(batches) + index + 1
            self.set_rates(progress, done)
            self.take(batch, self.draw(len(batch), draws))
            if after_step is not None:
                after_step(done)
        loss, hits = (self._sums / count).tolist()
        return loss, hits if self.targets.ndim == 1 else None

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
        # Gradients of parts of the batch add up to those of the whole.
        for part in range(0, len(batch), self.micro_batch):
            own = batch[part : part + self.micro_batch]
            loss, outputs = self.loss_of(own, noise[part : part + self.micro_batch])
            self._sums[0] += loss.detach() * len(own)
            if len(own) < len(batch):
                loss = loss * (len(own) / len(batch))
            if part == 0:
                loss = self._rewarded(loss)
            loss.backward()
            if self.targets.ndim == 1:
                self._sums[1] += (outputs.detach().argmax(1) == self.targets[own]).sum()
        self._add_penalty()
        self.optimiser.step()

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
        optimiser = adam(
            self.trained(trainer),
            rate=config.weight_rate,
            decay=0.0 if self.recipe.evidence else config.augerino_decay,
        )
        super().__init__(trainer, optimiser)
        if trainer.ranges:
            betas = (min(0.9, config.range_memory), config.range_memory)
            own = adam(trainer.ranges, rate=config.range_rate, betas=betas)
            trainer.optimisers["ranges"] = own
        follows_loss = self.recipe.ranges == "loss"
        self.ranges = trainer.optimisers.get("ranges") if follows_loss else None
        if self.ranges is not None:
            self._captured = None

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
            self.prior.add_penalty_gradients(parameters, 1 / len(self.inputs))

    def held(self) -> Iterator[Tensor]:
        yield from super().held()
        if self.ranges is not None:
            yield from held_by(self.ranges)

    def _state(self) -> Iterator[Tensor]:
        yield from super()._state()
        yield from tensors_of(self.model.augmentation, self.prior)


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


def range_rate(config: LearnSchedule, progress: float) -> float:
    """The ranges' learning rate after this share of their steps."""
    return cosine(config.range_rate, config.range_rate_end, progress)
