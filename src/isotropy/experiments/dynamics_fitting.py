"""Learn a motion from short pieces of it, then follow it for long: the double spring pendulum.

Training: from the first state of each piece the network's motion is followed through the other
four; the loss is the mean of squared differences over the piece. Adam with a constant rate, all 500
pieces in one batch, 2000 epochs; the weights with the least validation loss are kept.

Evaluation, over 30 s from the first states of the test pieces, in float64:

    rollout error     exp mean log e,  e = ‖ẑ − z‖ / (‖ẑ‖ + ‖z‖)  against the true motion, Table 2.2
    momentum error    the same of angular momentum L about z against its start, Figure 2.6

Means are over states and times, each e at least 1e-7 (Finzi 2023, 2.7.2 and A.1.9). Seeds are
trained together (`seed_stack`). Steps are of fixed length: one of fifth order in 0.2 s stays within
3e-5 of the true motion over a piece, closer than the tolerance 1e-4 of the published code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.experiments.pendulum import (
    ACCURATE,
    DURATION,
    STEP,
    PendulumData,
    advance,
    angular_momentum,
    integrate,
    motion,
)
from isotropy.experiments.seed_stack import Best, SeedStack

LEAST_ERROR = 1e-7
LOOKS = 200
"""How often at most a run looks at its validation loss."""


@dataclass(frozen=True)
class DynamicsSettings:
    """within: integration steps in 0.2 s of training; None for torchdiffeq with `tolerance`."""

    epochs: int = 2000
    learning_rate: float = 3e-3
    within: int | None = 1
    tolerance: float = 1e-4
    duration: float = DURATION

    @property
    def times(self) -> int:
        """States of a rollout."""
        return round(self.duration / STEP)


@dataclass(frozen=True)
class DynamicsResult:
    """Of one seed. error_by_time, momentum_by_time: geometric means over test states, (times)."""

    rollout_error: float
    momentum_error: float
    validation_loss: float
    best_epoch: int
    epochs: int
    seconds: float
    error_by_time: list[float]
    momentum_by_time: list[float]


def fit_dynamics(
    networks: Sequence[nn.Module], data: Sequence[PendulumData], settings: DynamicsSettings
) -> list[DynamicsResult]:
    """Train one network a seed, d/dt of states, each on its own data, and roll it out."""
    if len(networks) != len(data):
        raise CallerError(
            f"expected data for each network, got {len(networks)} networks and {len(data)} data"
        )
    started = time.perf_counter()
    run = _Run(networks, data, settings)
    every = -(-settings.epochs // LOOKS)
    for epoch in range(1, settings.epochs + 1):
        run.step()
        if epoch % every == 0 or epoch == settings.epochs:
            run.epoch.fill_(epoch)
            run.look()
    return run.results(started)


class _Run:
    def __init__(
        self,
        networks: Sequence[nn.Module],
        data: Sequence[PendulumData],
        settings: DynamicsSettings,
    ) -> None:
        self.settings = settings
        self.stack = SeedStack(networks, settings.learning_rate)
        first = next(iter(self.stack.parameters.values()))
        # (seeds, examples, times, state)
        self.training = torch.stack([each.training for each in data]).to(first)
        self.validation = torch.stack([each.validation for each in data]).to(first)
        self.test = torch.stack([each.test[:, 0] for each in data])
        self.epoch = first.new_zeros(len(data))
        self.best = Best({_EPOCH: self.epoch, **self.stack.parameters})
        adaptive = settings.within is None  # waits for a number from the device at every step
        self.step = self._step if adaptive else self.stack.captured(self._step)
        shown = [self.epoch, *self.best.state()]
        self.look = self._look if adaptive else self.stack.captured(self._look, shown)

    def _loss(self, chunks: Tensor) -> Tensor:
        found = integrate(
            self.stack.assembled(), chunks[:, :, 0], chunks.shape[2], STEP,
            within=self.settings.within, tolerance=self.settings.tolerance,
        )  # fmt: skip
        return (found.movedim(0, 2) - chunks).square().mean((1, 2, 3))

    def _step(self) -> None:
        self.stack.step(self._loss(self.training))

    @torch.no_grad()
    def _look(self) -> None:
        values = {**self.stack.parameters, _EPOCH: self.epoch}
        self.best.offer(self._loss(self.validation), values)

    def results(self, started: float) -> list[DynamicsResult]:
        weights = {name: self.best.values[name].double() for name in self.stack.parameters}
        paths = rollout(self.stack, weights, self.test, self.settings.times)
        truth = integrate(motion, self.test, self.settings.times, STEP, within=ACCURATE)
        errors = relative_error(paths, truth)
        momenta = angular_momentum(paths)[..., None]
        drifts = relative_error(momenta, momenta[:1])
        losses, epochs = self.best.validation.tolist(), self.best.values[_EPOCH].tolist()
        seconds = time.perf_counter() - started
        return [
            DynamicsResult(
                rollout_error=float(errors[:, seed].log().mean().exp()),
                momentum_error=float(drifts[1:, seed].log().mean().exp()),
                validation_loss=losses[seed],
                best_epoch=round(epochs[seed]),
                epochs=self.settings.epochs,
                seconds=seconds,
                error_by_time=errors[:, seed].log().mean(1).exp().tolist(),
                momentum_by_time=drifts[:, seed].log().mean(1).exp().tolist(),
            )
            for seed in range(self.stack.seeds)
        ]


_EPOCH = "epoch reached"
"""Beside names of parameters, none of which has a space."""


@torch.no_grad()
def rollout(stack: SeedStack, weights: Mapping[str, Tensor], start: Tensor, times: int) -> Tensor:
    """States (times, seeds, examples, size) every STEP from `start` (seeds, examples, size).

    weights: the stack's parameters, in the dtype of `start`; the network's buffers follow it
    """
    stack.to(start.dtype)
    field = stack.assembled(weights)
    state = start.clone()

    def onwards() -> None:
        state.copy_(advance(field, state, STEP, ACCURATE))

    recorded = stack.captured(onwards, [state])
    states = [start]
    for _ in range(times - 1):
        recorded()
        states.append(state.clone())
    return torch.stack(states)


def relative_error(predicted: Tensor, truth: Tensor) -> Tensor:
    """‖a − b‖ / (‖a‖ + ‖b‖) over the last axis, at least 1e-7; 1 where a state is not finite."""
    difference = (predicted - truth).norm(dim=-1)
    found = difference / (predicted.norm(dim=-1) + truth.norm(dim=-1))
    return found.nan_to_num(nan=1.0, posinf=1.0).clamp(min=LEAST_ERROR)
