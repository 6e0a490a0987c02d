"""Figure 2.5: how many examples an equivariant network needs, and an MLP, and an augmented one.

Rows are PROBLEM/NETWORK/N: `inertia/EMLP-O(3)/1000`, `o5/MLP/30`, `particle/MLP-Aug/300`. Settings
are in `data_efficiency.toml`. A run trains on N examples and reports the test error.

    ŷ = mean + scale · f(x / scale of inputs)        loss: mean of (ŷ − y)² over batch and outputs

Adam with a constant rate; min(900,000 / N, 1000) epochs of batches of 500. Validation and test
errors are taken at the end of epochs, and the test error where the validation error is least is the
result (Finzi 2023, A.1.9). With augmentation each example of each step is moved by a random element
of the group, ŷ = ρ_out(g)⁻¹ f(ρ_in(g) x), in training only. The seeds of a row are trained together
(`seed_stack`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.evidence.settings import cosine
from isotropy.experiments.runner import Job, Series, geometric_means
from isotropy.experiments.thesis.problems import (
    LARGEST_TRAINING,
    TEST,
    VALIDATION,
    RegressionData,
    random_elements,
    regression_problem,
)
from isotropy.experiments.thesis.seed_stack import Best, SeedStack, seed_records, seeded_network
from isotropy.kernels.captured import set_rate
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group

MLP, AUGMENTED = "MLP", "MLP-Aug"
COST = {MLP: 1.0, AUGMENTED: 1.3}
"""Seconds of a step in those of an MLP; equivariant ones cost EQUIVARIANT."""
EQUIVARIANT = 6.0
EXAMPLES_SEEN, MOST_EPOCHS = 900_000, 1000
LOOKS = 100
"""How often at most a run looks at its validation error."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every problem, network and size of the table."""
    changed = table["quick"] if quick else {}
    settings = {**table["settings"], **changed}
    seeds, sizes = (changed.get(name, table[name]) for name in ("seeds", "sizes"))
    found = []
    for problem, about in table["problems"].items():
        groups = about["groups"][-1:] if quick else about["groups"]
        for network in (*(f"EMLP-{group}" for group in groups), MLP, AUGMENTED):
            for size in sizes:
                own = {**settings, "problem": problem, "network": network, "examples": size}
                own["group"] = network.removeprefix("EMLP-")
                if network in COST:
                    own["group"] = about["augmented"] if network == AUGMENTED else None
                steps = _settings(own).epochs_in_all * -(-size // own["batch_size"])
                cost = steps * COST.get(network, EQUIVARIANT)
                found.append(Job(f"{problem}/{network}/{size}", tuple(seeds), own, cost))
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row; the numbers of each."""
    own = job.settings
    settings = _settings(own)
    # As many examples for every N, so that held-out data and scales are the same for all.
    examples = LARGEST_TRAINING + settings.validation + settings.test
    data, networks, generators = [], [], []
    for seed in job.seeds:
        generator = torch.Generator().manual_seed(seed)
        data.append(on_device(regression_problem(own["problem"], generator, examples), device))
        made = data[-1]
        group = None if own["network"] in COST else own["group"]
        sizes = made.inputs.shape[1], made.targets.shape[1]
        network = seeded_network(made.source, made.target, group, sizes, own, seed)
        networks.append(network.to(device))
        generators.append(torch.Generator(device).manual_seed(seed))
    moved = None
    if own["network"] == AUGMENTED:
        augmenting = group_named(own["group"])
        drawn = torch.Generator().manual_seed(job.seeds[0])
        elements = random_elements(augmenting, own["elements"], drawn)
        moved = augmentation(data[0], augmenting, elements.to(device))
    found = fit_regression(networks, data, settings, generators, moved)
    described = {key: own[key] for key in ("problem", "network", "examples", "channels")}
    return seed_records(described, networks, found)


def _settings(own: Mapping[str, Any]) -> RegressionSettings:
    return RegressionSettings(
        examples=own["examples"],
        batch_size=own["batch_size"],
        learning_rate=own["learning_rate"],
        epochs=own.get("epochs"),
        validation=own.get("validation", VALIDATION),
        test=own.get("test", TEST),
    )


def on_device(data: RegressionData, device: torch.device) -> RegressionData:
    """The same data there."""
    names = ("inputs", "targets", "input_scale", "target_mean", "target_scale")
    return replace(data, **{name: getattr(data, name).to(device) for name in names})


# -- one run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegressionSettings:
    """examples: N, the first of each seed's data; epochs: None for the rule above.

    validation, test: examples at the end of the data, test last
    penalties:        λ of λ‖θ‖² in the loss, by the name of a parameter
    annealed:         the rate falls to zero along half a cosine, epoch by epoch
    """

    examples: int
    batch_size: int = 500
    learning_rate: float = 3e-3
    epochs: int | None = None
    validation: int = VALIDATION
    test: int = TEST
    penalties: Mapping[str, float] = field(default_factory=dict)
    annealed: bool = False

    @property
    def epochs_in_all(self) -> int:
        """Epochs that a run makes."""
        if self.epochs is not None:
            return self.epochs
        return max(1, min(EXAMPLES_SEEN // self.examples, MOST_EPOCHS))


@dataclass(frozen=True)
class RegressionResult:
    """Of one seed. Errors are means of squares in the targets' unit; NaN where training failed.

    best_epoch: where the validation error was least; seconds: of all seeds together
    """

    test_error: float
    validation_error: float
    best_epoch: int
    epochs: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Augmentation:
    """Elements of a group as they act on inputs and, inverted, on outputs.

    inputs (elements, source size, source size); outputs (elements, target size, target size)
    """

    inputs: Tensor
    outputs: Tensor


def augmentation(data: RegressionData, group: Group, elements: Tensor) -> Augmentation:
    """The augmentation of this problem by elements (count, d, d) of the group."""
    source = data.source(group).element(elements)
    target = torch.linalg.inv(data.target(group).element(elements))
    return Augmentation(source.to(data.inputs), target.to(data.inputs))


def fit_regression(
    networks: Sequence[nn.Module],
    data: Sequence[RegressionData],
    settings: RegressionSettings,
    generators: Sequence[torch.Generator],
    augmented: Augmentation | None = None,
    looked: Callable[[int, SeedStack], None] | None = None,
) -> list[RegressionResult]:
    """Train one network a seed, each on its own data with its own generator (on their device).

    looked: called with the epoch and the stack whenever the validation error is taken
    The networks are left with their weights where the validation error was least.
    """
    if not len(networks) == len(data) == len(generators):
        raise CallerError(
            f"expected a network, data and a generator for each seed, got {len(networks)}, "
            f"{len(data)} and {len(generators)}"
        )
    started = time.perf_counter()
    run = _Run(networks, data, settings, augmented)
    epochs, batch = settings.epochs_in_all, min(settings.batch_size, settings.examples)
    every = -(-epochs // LOOKS)
    for epoch in range(1, epochs + 1):
        if settings.annealed:
            rate = cosine(settings.learning_rate, 0.0, (epoch - 1) / epochs)
            set_rate(run.stack.optimiser, rate)
        orders = torch.stack([_order(settings.examples, each) for each in generators])
        for chosen in orders.split(batch, 1):
            if augmented is None:
                run.step(chosen)
                continue
            count = len(augmented.inputs)
            drawn = [_integers(count, chosen.shape[1], each) for each in generators]
            run.step(chosen, torch.stack(drawn))
        if epoch % every == 0 or epoch == epochs:
            run.epoch.fill_(epoch)
            run.look()
            if looked is not None:
                looked(epoch, run.stack)
    run.stack.hand_back(networks, run.best.values)
    return run.results(epochs, started)


class _Run:
    """Data on the device, the stack of networks, and its two recorded functions."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        data: Sequence[RegressionData],
        settings: RegressionSettings,
        augmented: Augmentation | None,
    ) -> None:
        kept = settings.validation + settings.test
        available = min(len(each.inputs) for each in data) - kept
        if not 1 <= settings.examples <= available:
            raise CallerError(
                f"expected 1 to {available} training examples, got {settings.examples}; {kept} are "
                "kept for validation and test"
            )
        self.stack = SeedStack(networks, settings.learning_rate)
        self.augmented = augmented
        self.validation = settings.validation
        self.penalties = settings.penalties
        self.scales = [
            torch.stack([getattr(each, name) for each in data])[:, None]
            for name in ("input_scale", "target_mean", "target_scale")
        ]
        first, last = settings.examples, -kept
        self.inputs = torch.stack([each.inputs[:first] for each in data])
        self.targets = torch.stack([each.targets[:first] for each in data])
        self.held_out = torch.stack([each.inputs[last:] for each in data])
        self.held_out_targets = torch.stack([each.targets[last:] for each in data])
        device, seeds = self.inputs.device, len(data)
        self.epoch = self.inputs.new_zeros(seeds)
        nothing = torch.full_like(self.epoch, torch.nan)
        self.best = Best({_TEST: nothing, _EPOCH: self.epoch, **self.stack.parameters})
        self.rows = torch.arange(seeds, device=device)[:, None]
        self.step = self.stack.captured(self._step)
        self.look = self.stack.captured(self._look, [self.epoch, *self.best.state()])

    def predict(self, inputs: Tensor) -> Tensor:
        """ŷ (seeds, batch, target size)."""
        input_scale, mean, scale = self.scales
        return mean + scale * self.stack(inputs / input_scale)

    def _step(self, chosen: Tensor, drawn: Tensor | None = None) -> None:
        """One step on examples `chosen` (seeds, batch), moved by elements `drawn`."""
        inputs, targets = self.inputs[self.rows, chosen], self.targets[self.rows, chosen]
        if drawn is None:
            predicted = self.predict(inputs)
        else:
            assert self.augmented is not None
            moved = torch.einsum("sbij,sbj->sbi", self.augmented.inputs[drawn], inputs)
            back = self.augmented.outputs[drawn]
            predicted = torch.einsum("sbij,sbj->sbi", back, self.predict(moved))
        losses = (predicted - targets).square().mean((1, 2))
        self.stack.step(losses + self.stack.penalty(self.penalties) if self.penalties else losses)

    @torch.no_grad()
    def _look(self) -> None:
        squares = (self.predict(self.held_out) - self.held_out_targets).square().mean(2)
        validation, test = squares[:, : self.validation], squares[:, self.validation :]
        values = {**self.stack.parameters, _TEST: test.mean(1), _EPOCH: self.epoch}
        self.best.offer(validation.mean(1), values)

    def results(self, epochs: int, started: float) -> list[RegressionResult]:
        tests, found = self.best.values[_TEST].tolist(), self.best.validation.tolist()
        where = self.best.values[_EPOCH].tolist()
        seconds = time.perf_counter() - started
        return [
            RegressionResult(tests[i], found[i], round(where[i]), epochs, seconds)
            for i in range(self.stack.seeds)
        ]


_TEST, _EPOCH = "test error", "epoch reached"
"""Beside names of parameters, none of which has a space."""


def _order(examples: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(examples, generator=generator, device=generator.device)


def _integers(below: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(below, (count,), generator=generator, device=generator.device)


# -- what came out -----------------------------------------------------------------------------


def mean_errors(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[int, float]]]:
    """{problem: {network: {N: geometric mean of test errors over seeds}}}, failed ones left out."""
    in_order = sorted(records, key=lambda record: record["examples"])
    return geometric_means(in_order, "test_error", "problem", "network", "examples")


def comparisons(
    records: Sequence[Mapping[str, Any]], rivals: Sequence[str] = (MLP, AUGMENTED)
) -> Iterator[tuple[str, str, int, float]]:
    """(problem, rival, N, the rival's error over the best equivariant network's), N ≥ 100."""
    for problem, networks in mean_errors(records).items():
        equivariant = [errors for name, errors in networks.items() if name.startswith("EMLP")]
        for rival in rivals:
            for size, error in networks.get(rival, {}).items():
                own = [errors[size] for errors in equivariant if size in errors]
                if own and size >= 100:
                    yield problem, rival, size, error / min(own)


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of errors, and the two goals."""
    lines = []
    for problem, networks in mean_errors(records).items():
        sizes = sorted({size for errors in networks.values() for size in errors})
        lines.append(f"{problem:<18}" + "".join(f"{size:>10}" for size in sizes))
        for network, errors in networks.items():
            cells = (f"{errors[size]:10.2e}" if size in errors else " " * 10 for size in sizes)
            lines.append(f"  {network:<16}" + "".join(cells))
    found = list(comparisons(records))
    if found:
        problem, rival, size, least = min(found, key=lambda each: each[3])
        lines.append(
            f"the best EMLP is better by {least:.2g} at least for N ≥ 100 ({problem}, {rival}, "
            f"N = {size})"
        )
    at_thousand = {p: ratio for p, rival, size, ratio in found if rival == MLP and size == 1000}
    if at_thousand:
        told = ", ".join(f"{problem} {ratio:.3g}" for problem, ratio in at_thousand.items())
        lines.append(f"the MLP's error over the best EMLP's at N = 1000: {told}")
    return lines


SERIES = Series(jobs, run, summary)
