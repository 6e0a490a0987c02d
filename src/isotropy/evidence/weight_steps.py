"""One epoch of weight steps: mini-batches of averaged outputs, with the prior as a penalty.

    mean loss + (1/2N) Σ δ‖θ‖²        transformed copies are constants, ranges do not move

unless the ranges follow the training loss (`settings`), when both step together. A batch that
does not fit into memory goes through in parts whose gradients add up (`memory`). On a GPU a step is
one CUDA graph where the network allows it (`captured`); losses are added up there too, so that
nothing waits for the GPU within an epoch.

A step on a GPU as one CUDA graph: launched as a whole, where Python launches kernel by kernel.

A weight step of a small network is a few dozen kernels of some microseconds each, and Python needs
longer to launch one than the GPU to run it. A graph is recorded once and replayed:

    the first calls   as they are, on a stream of their own; what is made on first use is made
    then              recorded: nothing runs, every kernel and address is noted
    afterwards        arguments are copied to the addresses noted, and all is launched at once

What a function reads beside its arguments must stay where it is in memory. `state` lists such
tensors; when one has moved, the graph is recorded anew. Arguments of another shape, such as a last,
smaller batch, and functions that cannot be recorded (those that wait for a number from the GPU) are
called as they are. Python runs only while recording: `can_capture` says for which networks that is
safe to assume.

What objectives train with: their augmentation, the loss over copies, the reward for width.

    loss of the average      −log p(y | Σ_s w_s f(x_s))
    average of the losses    −Σ_s w_s log p(y | f(x_s))        never below the former (Jensen)

Rows are (batch·copies, outputs), copies fastest; losses are means over the batch, in nats.
`settings` says which objective takes which.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kinds import Copies
from isotropy.evidence.priors import GaussianPrior
from isotropy.evidence.settings import RECIPES, LearnConfig, cosine
from isotropy.evidence.streams import stream
from isotropy.kernels.operations import swift_operations
from isotropy.likelihoods import Likelihood
from isotropy.networks.averaging.augmentations import START, Augmentation
from isotropy.networks.averaging.baselines import RandomCopies, SoftplusRanges, trivial_augment
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.symmetry.actions.action import Action, compose
from isotropy.symmetry.actions.finite import FiniteAction

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
                "finite groups use laplace or augerino"
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
