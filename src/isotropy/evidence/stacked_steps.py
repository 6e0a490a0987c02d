"""Weight steps of several runs at once: one set of kernel launches for all of them.

A step of a small network is dozens of launches of tiny kernels, and K runs one after the other
launch K times as many. Here parameters are stacked, (runs, …), each run has the orbit rows, order
and noise that it would have alone, and

    Σ_k [ mean loss_k + (1/2N) Σ δ_k‖θ_k‖² ]

is differentiated by the whole stack: run k's gradient is that of its own loss. The loss is that
of `weight_steps`, applied to every run together (`run_axis`).

Axes: examples (runs, batch), noise (runs, batch, copies, numbers), rows (runs, batch·copies, …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isotropy.curvature.copies import Copies
from isotropy.curvature.run_axis import over_runs, stack_runs, with_state
from isotropy.evidence.captured import CapturedFunction, can_capture
from isotropy.evidence.memory import fitting_micro_batch
from isotropy.evidence.schedule import cosine
from isotropy.evidence.stacked_adam import StackedAdam
from isotropy.evidence.streams import stream
from isotropy.evidence.weight_steps import fix_statistics
from isotropy.networks.augmentations import Augmentation, Ranges
from isotropy.symmetry.actions import Action, Composition

if TYPE_CHECKING:
    from isotropy.evidence.training import Trainer


class StackedWeightSteps:
    """The weight steps of runs that `stacked.check_stackable` has accepted."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = tuple(trainers)
        first = trainers[0]
        self.config, self.device = first.config, first.device
        self.count = len(first.inputs)
        self.adam = StackedAdam([trainer.optimisers["weights"] for trainer in trainers])
        self.orbits = Orbits([trainer.model.augmentation for trainer in trainers])
        self._parts = nn.ModuleDict(modules_of(first))
        trainable = {id(parameter) for parameter in self.adam.parameters[0]}
        named = dict(self._parts.named_parameters())
        self._trained = [name for name, p in named.items() if id(p) in trainable]
        self._shared = {
            what: all(torch.equal(getattr(own, what), getattr(first, what)) for own in trainers)
            for what in ("inputs", "targets")
        }
        self._sums = torch.zeros(len(trainers), 2, dtype=torch.float64, device=self.device)
        assert self.config.batch_size is not None
        self.micro_batch = self.config.micro_batch or fitting_micro_batch(
            first.network,
            first.inputs,
            first.model.samples * len(trainers),
            self.config.batch_size,
        )
        self._captured: CapturedFunction | None = None
        wanted = all(trainer.config.captured for trainer in trainers)
        if wanted and can_capture(first.network, self.device):
            self._captured = CapturedFunction(self._step, self._state)

    def epoch(self, number: int) -> list[tuple[float, float | None]]:
        """All weight steps of one epoch; each run's mean loss, and accuracy for class labels."""
        assert self.config.batch_size is not None
        orders, noise_streams = [], []
        for trainer in self.trainers:
            fix_statistics(trainer.network)
            seed = trainer.config.seed
            orders.append(torch.randperm(self.count, generator=stream(seed, "order", number)))
            noise_streams.append(stream(seed, "noise", number, self.device))
        batches = torch.stack(orders).to(self.device).split(self.config.batch_size, 1)
        self.adam.gather()
        self._sums.zero_()
        step = self._whole_step()
        shares = [index / len(batches) for index in range(len(batches))]
        # On the device before the first step: nothing is sent there within the epoch.
        rates = self.adam.columns([self._rates(number, done) for done in shares])
        for batch, own_rates in zip(batches, rates, strict=True):
            self.adam.rates.copy_(own_rates)
            noise = [
                trainer.model.noise(batch.shape[1], generator=own)
                for trainer, own in zip(self.trainers, noise_streams, strict=True)
            ]
            step(batch, torch.stack(noise))
        self.adam.scatter()
        sums = (self._sums / self.count).tolist()
        has_labels = self.trainers[0].targets.ndim == 1
        return [(loss, hits if has_labels else None) for loss, hits in sums]

    def _rates(self, number: int, done: float) -> list[float]:
        configs = [trainer.config for trainer in self.trainers]
        assert self.config.epochs is not None
        progress = (number - 1 + done) / self.config.epochs
        return [cosine(c.weight_rate, c.weight_rate_end, progress) for c in configs]

    def _whole_step(self) -> Callable[[Tensor, Tensor], None]:
        self.orbits.look()
        if self._captured is None or self.orbits.still:
            return self._step
        self._captured.refresh()
        return self._captured

    def _step(self, batch: Tensor, noise: Tensor) -> None:
        """One weight step of every run; adds to the epoch's sums."""
        gradient: Tensor | None = None
        size = batch.shape[1]
        for part in range(0, size, self.micro_batch):
            chosen = slice(part, part + self.micro_batch)
            share = self._gradient(batch[:, chosen], noise[:, chosen], size, first=part == 0)
            gradient = share if gradient is None else gradient + share
        assert gradient is not None
        self.adam.step(gradient)

    def _gradient(self, batch: Tensor, noise: Tensor, size: int, *, first: bool) -> Tensor:
        """(runs, numbers): what these examples add to the gradient of a batch of `size`.

        first: the penalties, which do not depend on the examples, are counted here
        """
        with torch.no_grad():
            rows, copies = self.orbits(self._chosen("inputs", batch), noise)
        targets = self._chosen("targets", batch)
        steps, own = self.trainers[0].weight_steps, batch.shape[1]

        def losses(rows: Tensor, copies: Copies, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            loss, outputs = steps.loss_on(rows, copies, targets)
            total = loss * (own / size) if own < size else loss
            return total + steps.penalty() if first else total, loss, outputs

        def of_run(state: dict[str, Tensor], *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return with_state(self._parts, state, losses, *given)

        total, loss, outputs = over_runs(of_run, self.stacked_state(), rows, copies, targets)
        self._sums[:, 0] += loss.detach() * own
        if targets.ndim == 2:
            self._sums[:, 1] += (outputs.detach().argmax(2) == targets).sum(1)
        (gradient,) = torch.autograd.grad(total.sum(), self.adam.values)
        return gradient

    def stacked_state(self) -> dict[str, Tensor]:
        """What `loss_on` and the penalties read: weights in training, all else as constants."""
        weights = dict(zip(self._trained, self.adam.views(), strict=True))
        others = [
            {name: t for name, t in self._tensors(trainer) if name not in weights}
            for trainer in self.trainers
        ]
        return {**weights, **stack_runs(others)}

    def _tensors(self, trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
        for room, module in modules_of(trainer).items():
            for name, parameter in module.named_parameters():
                yield f"{room}.{name}", parameter.detach()
            for name, buffer in module.named_buffers():
                yield f"{room}.{name}", buffer

    def _chosen(self, what: str, batch: Tensor) -> Tensor:
        """Inputs or targets of these examples, (runs, batch, …)."""
        data: list[Tensor] = [getattr(trainer, what) for trainer in self.trainers]
        if self._shared[what]:
            return data[0][batch]
        return torch.stack([own[chosen] for own, chosen in zip(data, batch, strict=True)])

    def _state(self) -> Iterator[Tensor]:
        """What a captured step reads beside its arguments."""
        yield from (self._sums, *self.adam.state())
        for trainer in self.trainers:
            yield from (trainer.inputs, trainer.targets)
            yield from (tensor for _, tensor in self._tensors(trainer))
            yield from trainer.model.augmentation.parameters()
            yield from trainer.model.augmentation.buffers()


class Orbits:
    """Transformed copies for every run: by one call of the action, where all have the same."""

    def __init__(self, augmentations: Sequence[Augmentation]) -> None:
        self.augmentations = tuple(augmentations)
        first = augmentations[0]
        self._together = isinstance(first, Ranges) and all(
            type(own) is type(first) and same_action(own.action, first.action)
            for own in augmentations
        )
        self.still = False

    def look(self) -> None:
        """See whether anything is moved at all; on a GPU one waits for the answer."""
        self.still = all(augmentation.is_identity for augmentation in self.augmentations)

    def __call__(self, data: Tensor, noise: Tensor) -> tuple[Tensor, Copies]:
        """Rows (runs, batch·copies, …) and a stack of `Copies`."""
        count = noise.shape[2]
        copies = stack_runs([augmentation.copies(count) for augmentation in self.augmentations])
        if self.still:
            rows = data[:, :, None].expand(-1, -1, count, *data.shape[2:])
        elif self._together:
            first = self.augmentations[0]

            def coordinates(state: Mapping[str, Tensor], noise: Tensor) -> Tensor:
                return with_state(first, state, first.coordinates, noise)

            state = stack_runs([dict(own.named_parameters()) for own in self.augmentations])
            moves = over_runs(coordinates, state, noise)
            moved = first.action.act(moves.flatten(0, 1), data.flatten(0, 1))
            rows = moved.unflatten(0, data.shape[:2])
        else:
            each = zip(self.augmentations, data, noise, strict=True)
            rows = torch.stack([augmentation(own, draws) for augmentation, own, draws in each])
        return rows.flatten(1, 2), copies


def modules_of(trainer: Trainer) -> dict[str, nn.Module]:
    """What a training loss reads, by name."""
    return {
        "network": trainer.network,
        "likelihood": trainer.likelihood,
        "prior": trainer.prior,
    }


def same_action(one: Action, other: Action) -> bool:
    """Whether two Actions are sure to move data alike."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Composition) and isinstance(other, Composition):
        if len(one.actions) != len(other.actions):
            return False
        return all(same_action(*pair) for pair in zip(one.actions, other.actions, strict=True))
    if not type(one).__module__.startswith("isotropy."):
        return False  # who knows what another's Action depends on
    mine, theirs = ({n: v for n, v in vars(a).items() if n[0] != "_"} for a in (one, other))
    return mine.keys() == theirs.keys() and all(
        isinstance(value, bool | int | float | str | tuple | None) and value == theirs[name]
        for name, value in mine.items()
    )
