"""How long a run will take and how much memory, before it starts.

Every part of a run is tried once or twice on a few examples, and multiplied:

    weight step    forward and backward of one batch, × batches × epochs
    factors        a pass over two batches minus one over one, × batches; what is left of the one,
                   the eigenvalues of the factors, once a hyper step. Where the first pass is slow
                   it is the only one, and its batch and its eigenvalues are timed apart. Once
                   more where a record is of a pass over all examples (`closing_passes`)
    gradient       one batch with a graph to the ranges, × batches
    bound          one estimate and its gradient, × hyper steps by a bound; factors × its passes
    scoring        the forward passes of the test data, about a third of a weight step's
    features       where the last layer alone is trained: one forward pass, × copies, and thrice
                   that where ranges move; all else is little

On a GPU whole weight steps are taken, so that the network is compiled and the step recorded as it
will be, and put back; memory is what they and the passes took. On a CPU no step is taken, and
memory follows from what autograd keeps of one example (`machine`). Either
way the trainer ends as it was, and random streams are the run's own, which are named and not
shared. On a machine that others use too the estimate is theirs as much as ours.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.bound import BoundSteps
from isotropy.evidence.laplace import Batch, LaplaceFit
from isotropy.evidence.machine import factor_memory, gradient_bytes, step_bytes
from isotropy.evidence.training import Trainer
from isotropy.evidence.weight_steps import tensors_of
from isotropy.kernels.captured import WARM_UP
from isotropy.kernels.precision import multiplying_in
from isotropy.networks.averaging.averaged_features import AveragedFeatures, averaged
from isotropy.networks.batch_statistics import fix_statistics

FORWARD_SHARE = 1 / 3
FORWARD_AND_BACK = 3
"""Times a forward pass that a gradient by the inputs takes."""
STEPS_TIMED = 3
SLOW = 3.0
"""Seconds from which a first try on a CPU counts: what makes it slower than others is no more."""


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
    config, count = trainer.config, trainer.examples
    epochs = config.epochs - trainer.epoch
    if trainer.features is not None:
        return _by_features(trainer, trainer.features, test_examples)
    step, step_memory = _weight_step(trainer)
    steps = math.ceil(count / config.batch_size) if trainer.weight_steps.trains else 0
    weight_steps = step * steps * epochs
    evidence = memory = 0.0
    if isinstance(trainer.hyper, BoundSteps):
        evidence, memory = _by_bound(trainer, trainer.hyper)
    else:
        evidence, memory = _by_passes(trainer)
    per_copy = step / (min(config.batch_size, count) * trainer.model.samples)
    scores = max(1, epochs // config.evaluate_every) if test_examples else 0
    scoring = FORWARD_SHARE * per_copy * test_examples * max(1, config.test_samples) * scores
    return Estimate(weight_steps, evidence, scoring, max(step_memory, memory))


def _by_passes(trainer: Trainer) -> tuple[float, float]:
    """Seconds of the hyper steps that are left and of the passes after them; bytes on a GPU."""
    config, hyper, count = trainer.config, trainer.hyper, trainer.examples
    updates = sum(map(hyper.due, range(trainer.epoch + 1, config.epochs + 1)))
    if not updates + hyper.closing_passes:
        return 0.0, 0.0

    def batches(examples: int) -> int:
        return math.ceil(examples / config.curvature_batch)

    factors, spectra, gradient, memory = _evidence_batches(trainer)
    gradients = batches(min(hyper.gradient_limit or count, count))
    seconds = updates * (factors * batches(hyper.few or count) + spectra + gradient * gradients)
    return seconds + hyper.closing_passes * (factors * batches(count) + spectra), memory


def _by_features(trainer: Trainer, features: AveragedFeatures, test_examples: int) -> Estimate:
    """Where the last layer alone is trained nothing takes long but the passes to its features."""
    config, some = trainer.config, features.examples_at_once
    inputs = trainer.inputs[:some]
    noise = trainer.model.noise(len(inputs), generator=torch.Generator(trainer.device))

    def once() -> None:
        averaged(trainer.network, features.name, trainer.model.augmentation, [(inputs, noise)])

    once()
    seconds, memory = _timed(trainer.device, once)
    per_copy = seconds / (len(inputs) * trainer.model.samples)
    moves = trainer.hyper.moves_ranges
    passes = config.epochs - trainer.epoch if moves else 0 if features.is_known else 1
    copies = passes * len(trainer.inputs) * trainer.model.samples
    limit = trainer.hyper.gradient_limit or len(trainer.inputs)
    gradients = FORWARD_AND_BACK * limit * trainer.model.samples * passes if moves else 0
    scores = max(1, (config.epochs - trainer.epoch) // config.evaluate_every)
    tested = test_examples * max(1, config.test_samples) * scores
    return Estimate(per_copy * copies, per_copy * gradients, per_copy * tested, memory)


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
        seconds, _ = _tried(trainer.device, once)
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
    several = trainer.examples > trainer.config.curvature_batch
    fits: list[LaplaceFit] = []
    of_batches: list[float] = []

    def factors(batches: int) -> None:
        taken = itertools.islice(trainer.orbit_batches("estimate"), batches)
        clocked = _clocked(taken, of_batches)
        if trainer.hyper.keeps_roots:
            evidence.fit_of_few(clocked)
        else:
            fits[:] = [evidence.fit(clocked, values_only=not trainer.hyper.moves_ranges)]

    one, bytes_of_factors = _tried(place, lambda: factors(1))
    if place.type == "cpu" and one > SLOW:
        per_batch = of_batches[0]
    else:
        two = _timed(place, lambda: factors(2))[0] if several else 2 * one
        per_batch = min(one, max(two - one, one / 10))
    gradient = bytes_of_gradient = 0.0
    if trainer.hyper.moves_ranges:
        fit = fits[0] if fits else evidence.fit(_first(trainer))

        def gradients() -> None:
            evidence.gradient(fit, _first(trainer, graph=True), trainer.ranges)

        if place.type == "cuda":
            gradients()  # kernels are compiled and chosen the first time
        gradient, bytes_of_gradient = _timed(place, gradients)
        bytes_of_gradient = bytes_of_gradient or _gradient_bytes(trainer)
    return per_batch, one - per_batch, gradient, max(bytes_of_factors, bytes_of_gradient)


def _gradient_bytes(trainer: Trainer) -> float:
    """Of an evidence pass with a graph and of its factors, where nobody measures them."""
    curvature, one = trainer.evidence.curvature, trainer.inputs[:1]
    if not isinstance(curvature, KFAC):
        return 0.0
    rows = one.expand(trainer.model.samples, *one.shape[1:]).clone()
    examples = min(trainer.config.curvature_batch, len(trainer.inputs))
    factors = factor_memory(trainer.network, trainer.config.curvature).total
    with evaluation_mode(trainer.network):
        return float(factors + examples * gradient_bytes(curvature, rows))


def _first(trainer: Trainer, *, graph: bool = False) -> Iterator[Batch]:
    return itertools.islice(trainer.orbit_batches("estimate", graph=graph), 1)


def _clocked(batches: Iterable[Batch], seconds: list[float]) -> Iterator[Batch]:
    """The batches; what was done with each takes so many seconds."""
    for batch in batches:
        started = time.perf_counter()
        yield batch
        seconds.append(time.perf_counter() - started)


def _by_bound(trainer: Trainer, steps: BoundSteps) -> tuple[float, float]:
    """Seconds of the hyper steps by a bound that are left, with their passes; bytes on a GPU."""
    config, count = trainer.config, len(trainer.inputs)
    inputs = [trainer.prior.log_precisions, *trainer.likelihood.parameters(), *trainer.ranges]

    def once() -> None:
        value = steps.estimate(0, graph=True).value
        torch.autograd.grad(value, inputs, allow_unused=True)

    seconds, memory = _tried(trainer.device, once)
    per_epoch = math.ceil(count / config.batch_size)
    due = range(trainer.epoch * per_epoch + 1, config.epochs * per_epoch + 1)
    total = seconds * sum(steps.step_due(step) for step in due)
    fits = sum(map(steps.due, range(trainer.epoch + 1, config.epochs + 1)))
    if fits:
        factors, spectra, _, more = _evidence_batches(trainer)
        total += fits * (factors * math.ceil(count / config.curvature_batch) + spectra)
        memory = max(memory, more)
    return total, memory


def _tried(device: torch.device, task: Callable[[], None]) -> tuple[float, float]:
    """`_timed` the second time, as the first is slower than others; once where it is slow."""
    started = time.perf_counter()
    task()
    seconds = time.perf_counter() - started
    return (seconds, 0.0) if device.type == "cpu" and seconds > SLOW else _timed(device, task)


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
