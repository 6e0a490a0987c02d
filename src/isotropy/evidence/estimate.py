"""How long a run will take and how much memory, before it starts.

Every part of a run is tried once or twice on a few examples, and multiplied:

    weight step    forward and backward of one batch, × batches × epochs
    factors        a pass over two batches minus one over one, × batches; what is left of the one,
                   the eigenvalues of the factors, once a hyper step
    gradient       one batch with a graph to the ranges, × batches
    bound          one estimate and its gradient, × hyper steps by a bound; factors × its passes
    scoring        the forward passes of the test data, about a third of a weight step's

On a GPU whole weight steps are taken, so that the network is compiled and the step recorded as it
will be, and put back; memory is what they and the passes took. On a CPU no step is taken. Either
way the trainer ends as it was, and random streams are the run's own, which are named and not
shared. On a machine that others use too the estimate is theirs as much as ours.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.evidence.bound import BoundSteps
from isotropy.evidence.machine import step_bytes
from isotropy.evidence.settings import multiplying_in
from isotropy.evidence.training import Trainer
from isotropy.evidence.weight_steps import WARM_UP, tensors_of
from isotropy.networks.batch_statistics import fix_statistics

FORWARD_SHARE = 1 / 3
STEPS_TIMED = 3


@dataclass(frozen=True)
class Estimate:
    """Seconds of a whole run by part, and bytes of its largest part."""

    weight_steps: float
    evidence: float
    scoring: float
    memory: float

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.weight_steps + self.evidence + self.scoring

    def of_runs(self, count: int) -> Estimate:
        """Of so many runs of this kind, one after the other."""
        return Estimate(
            count * self.weight_steps, count * self.evidence, count * self.scoring, self.memory
        )

    @property
    def text(self) -> str:
        """`about 2 min and 0.4 GB`."""
        return f"about {_duration(self.seconds)} and {max(self.memory / 1e9, 0.01):.2g} GB"


def estimate_run(trainer: Trainer, test_examples: int = 0) -> Estimate:
    """Try every part of the run that `trainer` is about to make."""
    with multiplying_in(trainer.config.precision, trainer.device):
        return _estimated(trainer, test_examples)


def _estimated(trainer: Trainer, test_examples: int) -> Estimate:
    config, count = trainer.config, len(trainer.inputs)
    epochs = config.epochs - trainer.epoch
    step, step_memory = _weight_step(trainer)
    steps = math.ceil(count / config.batch_size) if trainer.weight_steps.trains else 0
    weight_steps = step * steps * epochs
    evidence = memory = 0.0
    if isinstance(trainer.hyper, BoundSteps):
        evidence, memory = _by_bound(trainer, trainer.hyper)
    elif updates := sum(map(trainer.hyper.due, range(trainer.epoch + 1, config.epochs + 1))):
        factors, spectra, gradient, memory = _evidence_batches(trainer)
        passes = math.ceil((trainer.hyper.few or count) / config.curvature_batch)
        limit = trainer.hyper.gradient_limit or count
        gradients = math.ceil(min(limit, count) / config.curvature_batch)
        evidence = updates * (factors * passes + spectra + gradient * gradients)
    per_copy = step / (min(config.batch_size, count) * trainer.model.samples)
    scores = max(1, epochs // config.evaluate_every) if test_examples else 0
    scoring = FORWARD_SHARE * per_copy * test_examples * max(1, config.test_samples) * scores
    return Estimate(weight_steps, evidence, scoring, max(step_memory, memory))


def _weight_step(trainer: Trainer) -> tuple[float, float]:
    """Seconds and bytes of one weight step; the trainer is as it was afterwards."""
    steps, size = trainer.weight_steps, min(trainer.config.batch_size, len(trainer.inputs))
    batch = torch.arange(size, device=trainer.device)
    noise = trainer.weight_steps.draw(size, torch.Generator(trainer.device).manual_seed(0))
    fix_statistics(trainer.network)
    if trainer.device.type == "cuda":
        return _whole_step(trainer, batch, noise)

    def once() -> None:
        for part in range(0, size, steps.micro_batch):
            own = slice(part, part + steps.micro_batch)
            loss, _ = steps.loss_of(batch[own], noise[own])
            loss.backward()
        for parameter in (*trainer.network.parameters(), *trainer.ranges):
            parameter.grad = None

    with torch.random.fork_rng(devices=[]):
        once()  # the first time is slower than all others
        seconds, _ = _timed(trainer.device, once)
    held = min(size, steps.micro_batch)
    return seconds, step_bytes(trainer.network, trainer.inputs, trainer.model.samples, held)


def _whole_step(trainer: Trainer, batch: Tensor, noise: Tensor) -> tuple[float, float]:
    """`_weight_step` on a GPU, by steps as the run takes them."""

    def several(count: int) -> None:
        for _ in range(count):
            trainer.weight_steps.take(batch, noise)

    trainer.weight_steps.begin()
    with _put_back(trainer), torch.random.fork_rng(devices=[trainer.device]):
        # What a recorded step keeps is allocated while it is recorded.
        _, memory = _timed(trainer.device, lambda: several(WARM_UP + 1))
        seconds, _ = _timed(trainer.device, lambda: several(STEPS_TIMED))
    return seconds / STEPS_TIMED, memory


@contextmanager
def _put_back(trainer: Trainer) -> Iterator[None]:
    """Every tensor that steps change has its value again afterwards, where it is in memory."""
    modules = tensors_of(trainer.model, trainer.prior, trainer.likelihood)
    held = trainer.weight_steps.held
    kept = [(tensor, tensor.detach().clone()) for tensor in (*modules, *held())]
    known = {id(tensor) for tensor, _ in kept}
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)
            for tensor in held():
                if id(tensor) not in known:  # moments of a first step
                    tensor.zero_()
        for parameter in trainer.model.parameters():
            parameter.grad = None


def _evidence_batches(trainer: Trainer) -> tuple[float, float, float, float]:
    """Seconds of factors a batch, of their spectra, of a gradient a batch; bytes on a GPU."""
    evidence, place = trainer.evidence, trainer.device
    several = len(trainer.inputs) > trainer.config.curvature_batch

    def factors(batches: int) -> None:
        taken = itertools.islice(trainer.orbit_batches("estimate"), batches)
        if trainer.hyper.few:
            evidence.fit_of_few(taken)
        else:
            evidence.fit(taken, values_only=not trainer.hyper.moves_ranges)

    factors(1)
    one, bytes_of_factors = _timed(place, lambda: factors(1))
    two = _timed(place, lambda: factors(2))[0] if several else 2 * one
    per_batch = min(one, max(two - one, one / 10))
    gradient = bytes_of_gradient = 0.0
    if trainer.hyper.moves_ranges:
        fit = evidence.fit(itertools.islice(trainer.orbit_batches("estimate"), 1))

        def gradients() -> None:
            batches = itertools.islice(trainer.orbit_batches("estimate", graph=True), 1)
            evidence.gradient(fit, batches, trainer.ranges)

        if place.type == "cuda":
            gradients()  # kernels are compiled and chosen the first time
        gradient, bytes_of_gradient = _timed(place, gradients)
    return per_batch, one - per_batch, gradient, max(bytes_of_factors, bytes_of_gradient)


def _by_bound(trainer: Trainer, steps: BoundSteps) -> tuple[float, float]:
    """Seconds of the hyper steps by a bound that are left, with their passes; bytes on a GPU."""
    config, count = trainer.config, len(trainer.inputs)
    inputs = [trainer.prior.log_precisions, *trainer.likelihood.parameters(), *trainer.ranges]

    def once() -> None:
        value = steps.estimate(0, graph=True).value
        torch.autograd.grad(value, inputs, allow_unused=True)

    once()
    seconds, memory = _timed(trainer.device, once)
    per_epoch = math.ceil(count / config.batch_size)
    due = range(trainer.epoch * per_epoch + 1, config.epochs * per_epoch + 1)
    total = seconds * sum(steps.step_due(step) for step in due)
    fits = sum(map(steps.due, range(trainer.epoch + 1, config.epochs + 1)))
    if fits:
        factors, spectra, _, more = _evidence_batches(trainer)
        total += fits * (factors * math.ceil(count / config.curvature_batch) + spectra)
        memory = max(memory, more)
    return total, memory


def _timed(device: torch.device, task: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a task, and on a GPU the bytes it took at most."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    task()
    if on_gpu:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    return seconds, float(torch.cuda.max_memory_allocated(device)) if on_gpu else 0.0


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
