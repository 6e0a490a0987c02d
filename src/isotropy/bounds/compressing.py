"""Networks that are trained to have a short description: error and code length in one loss.

The weights are θ₀ + P w (`subspace`). Training has two parts. First w is real-valued,

    loss = cross entropy = mean of −ln p,       p: probability of the right class

then w = Δ q with integer levels q = round(w/Δ), through which gradients pass unchanged
(straight-through), and the length of their code is part of the loss:

    loss = mean of (1 − pᵃ)/a + β (ln 2 / n) · bits(q | s),      s = root mean square of q

The bound counts errors. 1 − p (a = 1) is the error of a class drawn by the network, and −ln p is
the limit a → 0 (Zhang & Sabuncu 2018). With a = 0.7 examples that a short description cannot fit
have little weight.

How fast networks can be trained differs. The rate of the first part is tried at full speed, a third
and a tenth of it, for a few epochs, and the speed with the least (1 − pᵃ)/a is used. Levels have
one scale for all networks, and the rate of the second part follows from the number of steps T: the
noise of Adam moves a level by about rate √T / 2 (a random walk whose step falls to zero), which
costs bits, so that rate = 2 LEVEL_WALK / √T. (The account charges for what the message says. How
it was found is free.)

Rounding begins with what is near a level already: |w/Δ − q| ≤ 0.6 t at a share t of the second
part. The other coordinates make up for it while they still can.

With cross entropy β = 1 weighs a nat of description like a nat of log likelihood. A larger β gives
shorter messages. The scale s is that of
the prior (`coding.Prior.soft_bits`); where it is best, its own derivative vanishes, and so it is
treated as a constant.

**The grid.** What may be chosen with the data at hand is declared before: dimensions d, steps Δ,
weights β, widths and seeds. An entry that is not declared is refused, because the account charges
for the choice among the declared ones only. Trained can be all of it or a part. A part costs the
same, since the data could have led to any other.

(The thesis, section 5.4.2, trains a codebook of levels and charges for it; the code length is not
in its loss.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.bounds.coding import Prior
from isotropy.bounds.inequalities import occam, occam_binomial
from isotropy.bounds.subspace import Subspace
from isotropy.checks import CallerError, check_at_least
from isotropy.data.variants import FlipsAndShifts
from isotropy.kernels.captured import CapturedFunction, adamw, can_capture, set_rate
from isotropy.kernels.compiled import NetworkPass

Predict = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
"""Outputs (batch, classes) of a network, a function of inputs, at inputs (batch, …)."""
LEVELS_PER_DEVIATION = 1.0
"""The step is chosen so that the levels of the trained coordinates have about this deviation."""
POWER = 0.7
"""a, of the loss (1 − pᵃ)/a."""
SPEEDS = (1.0, 0.3, 0.1)
"""Shares of the rates that are tried. With normalisation layers the first is often too fast."""
PILOT = 0.15
"""Epochs with which a speed is tried, as a share of those with real-valued coordinates."""
LEVEL_WALK, LARGEST_LEVEL_RATE = 1.5, 0.1
"""How far the noise of training may move a level, in levels; the rate of a few steps."""
REACH = 0.6
"""How far from a level coordinates are rounded at the end of training; ½ is all of them."""
LABEL_SMOOTHING, WEIGHT_DECAY, WARM_UP = 0.1, 0.05, 0.1
"""Of a start that is trained on moved photographs; the last as a share of the steps."""
MANY = 5000
"""Examples from which on one seed is trained."""
CHUNK = 2000
"""Examples that are counted at once."""


def plainly(network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """The outputs of the network itself."""
    return network(inputs)


# --- the grid -------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Entry:
    """One choice of the grid. width is 0 where the network has none to choose."""

    dimension: int
    beta: float
    width: int
    seed: int


@dataclass(frozen=True)
class Grid:
    """Everything that may be chosen with the data at hand.

    dimensions: d, of the subspace; 0 leaves the network at its start
    steps:      Δ, in units of w
    betas:      β, the weight of the code length
    widths:     of the network; (0,) where it has none to choose
    seeds:      of the start and of the projector
    trials:     how many settings outside the grid (networks, rates, epochs) were compared on these
                data before; 1 if none were
    """

    dimensions: tuple[int, ...] = (50, 100, 150, 200, 300, 450, 700, 1000)
    steps: tuple[float, ...] = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
    betas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    widths: tuple[int, ...] = (0,)
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    trials: int = 1

    def __post_init__(self) -> None:
        check_at_least(self.trials, 1, what="trials of the grid")
        for name, values in self.lists().items():
            if not values or len(set(values)) < len(values):
                raise CallerError(f"{name} of the grid: expected different values, got {values}")
            least = "above 0" if name == "steps" else "of at least 0"
            if any(not (value > 0 or (value == 0 and name != "steps")) for value in values):
                raise CallerError(f"{name} of the grid: expected numbers {least}, got {values}")

    def lists(self) -> dict[str, tuple[Any, ...]]:
        """What is declared, by name."""
        return {name: values for name, values in vars(self).items() if name != "trials"}

    @property
    def choices(self) -> int:
        """Entries times trials; steps have their own part in the account."""
        return len(self.entries()) * self.trials

    def entries(self) -> list[Entry]:
        """All of them."""
        parts = self.dimensions, self.betas, self.widths, self.seeds
        return [Entry(*each) for each in itertools.product(*parts)]

    def check_within(self, declared: Grid) -> None:
        """Raise CallerError unless everything here was declared."""
        for name, values in self.lists().items():
            known = getattr(declared, name)
            for value in values:
                if value not in known:
                    raise CallerError(
                        f"{value:g} is not among the {name} of the declared grid "
                        f"({', '.join(f'{each:g}' for each in known)}); only what was declared can "
                        "be trained, because the certificate charges for that choice"
                    )

    def as_dict(self) -> dict[str, Any]:
        lists = {name: list(values) for name, values in self.lists().items()}
        return {**lists, "trials": self.trials}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `as_dict` gave."""
        lists = {name: tuple(values) for name, values in record.items() if name != "trials"}
        return cls(**lists, trials=record["trials"])


def suggested(declared: Grid, examples: int) -> Grid:
    """The part of a grid that is worth training for so many examples on a small machine.

    d is about 4.9 n^0.45: 150 for 2,000 and 700 for 60,000 examples. Of the other values the one
    nearest to β = 1, the first width and all steps. Bounds of different seeds differ (32 to 38 % on
    2,000 digits), so all seeds of few examples are tried, of many the first.
    """
    wanted = 4.9 * examples**0.45

    def near(values: Sequence[Any], value: float) -> tuple[Any, ...]:
        positive = [each for each in values if each > 0] or list(values)
        return (min(positive, key=lambda each: abs(math.log((each or 1) / value))),)

    return Grid(
        near(declared.dimensions, wanted),
        declared.steps,
        near(declared.betas, 1.0),
        declared.widths[:1],
        declared.seeds if examples < MANY else declared.seeds[:1],
    )


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    epochs:         passes over the data, of both parts together
    real_share:     of the epochs, with real-valued coordinates
    rate:           of Adam on w, in the first part, at full speed
    level_rate:     of Adam on w/Δ, in the second; None: by the number of steps
    steps_tried:    how many step sizes are tried, those next to the one that suits w
    speeds:         of which one is chosen
    """

    epochs: int
    batch_size: int
    real_share: float = 0.2
    rate: float = 0.3
    level_rate: float | None = None
    steps_tried: int = 1
    speeds: tuple[float, ...] = SPEEDS

    def __post_init__(self) -> None:
        check_at_least(self.epochs, 1, what="epochs")
        check_at_least(self.batch_size, 1, what="batch_size")
        check_at_least(self.steps_tried, 1, what="steps_tried")

    @property
    def real_epochs(self) -> int:
        """Epochs of the first part."""
        return max(1, round(self.real_share * self.epochs))

    @property
    def pilot_epochs(self) -> int:
        """Epochs with which each speed is tried; none where there is one speed."""
        return max(1, round(PILOT * self.real_epochs)) if len(self.speeds) > 1 else 0

    def total(self, ways: int) -> int:
        """Epochs of all, where the second part goes so many ways."""
        rest = ways * (self.epochs - self.real_epochs)
        return len(self.speeds) * self.pilot_epochs + self.real_epochs + rest

    def at(self, speed: float) -> Schedule:
        """With this speed alone."""
        return replace(self, rate=speed * self.rate, speeds=(1.0,))

    def rate_of_levels(self, examples: int) -> float:
        """Of the second part, at its start."""
        if self.level_rate is not None:
            return self.level_rate
        steps = (self.epochs - self.real_epochs) * math.ceil(examples / self.batch_size)
        return min(LARGEST_LEVEL_RATE, 2 * LEVEL_WALK / math.sqrt(max(1, steps)))

    @classmethod
    def of(
        cls, examples: int, *, epochs: int | None = None, batch_size: int | None = None
    ) -> Schedule:
        """About 15 n^0.575 steps: 60 epochs of 2,000 examples, 36 of 60,000."""
        batch = min(batch_size or min(256, max(16, examples // 20)), max(1, examples))
        return cls(epochs or max(1, round(15.2 * examples**0.575 * batch / examples)), batch)


@dataclass(frozen=True)
class Compressed:
    """A network in its short form, and what it is worth.

    levels:  q, int64 (dimension,)
    weights: bits of the levels
    errors:  on the training data, counted in the precision of training
    """

    entry: Entry
    step: float
    scale: float
    levels: Tensor
    weights: float
    errors: int
    bound: float

    def as_dict(self) -> dict[str, Any]:
        """Numbers for the record of a run."""
        own = {name: getattr(self, name) for name in ("step", "scale", "weights", "errors")}
        return {**asdict(self.entry), **own, "bound": self.bound}


@dataclass(frozen=True)
class Problem:
    """What is trained on, and how outputs are made of a network's.

    other_bits: of the account, beside the levels
    """

    inputs: Tensor
    targets: Tensor
    prior: Prior
    other_bits: float
    delta: float
    predict: Predict = plainly


def compress(
    subspace: Subspace,
    problem: Problem,
    entries: Sequence[Entry],
    steps: Sequence[float],
    schedule: Schedule,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Compressed]:
    """Short forms of one network, for entries that differ in β alone.

    The coordinates are trained once as real numbers, from those of the subspace, which are zero if
    nobody set them. From there every β and step goes its own way.
    progress: is told after every epoch how many there were
    """
    seed = entries[0].seed
    generator = torch.Generator().manual_seed(seed)
    network, problem = after_fixed_layers(subspace.module, problem)
    if network is not subspace.module:
        subspace = subspace.of(network)
    descent = _Descent(
        problem,
        schedule.batch_size,
        generator,
        tell=progress or (lambda _: None),
        captured=can_capture(subspace.module, problem.inputs.device),
    )
    subspace.module.eval()

    def outputs(at: Tensor, inputs: Tensor) -> Tensor:
        return problem.predict(lambda x: subspace(x, at), inputs)

    def real_valued(at: Tensor, inputs: Tensor, targets: Tensor, _: Tensor) -> Tensor:
        return functional.cross_entropy(outputs(at, inputs), targets)

    def bounded(at: Tensor, inputs: Tensor, targets: Tensor, _: Tensor) -> Tensor:
        return bounded_loss(outputs(at, inputs), targets)

    start, real = subspace.coordinates.detach(), schedule.real_epochs
    examples = len(problem.targets)
    if start.numel():
        schedule = schedule.at(_best_speed(descent, real_valued, bounded, start, schedule))
    # The rate does not fall to zero: the second part goes on from here.
    generator.manual_seed(seed)
    coordinates = descent.minimised(real_valued, start, (schedule.rate, 0.3 * schedule.rate), real)
    for entry in entries:
        for step in _nearest(steps, coordinates, schedule.steps_tried):
            generator.manual_seed(seed + 1)
            loss = _quantised(problem, outputs, step, entry.beta)
            rates, rest = (schedule.rate_of_levels(examples), 0.0), schedule.epochs - real
            found = descent.minimised(loss, coordinates / step, rates, rest)
            yield _valued(subspace, problem, entry, step, found.round().long().cpu())


@torch.no_grad()
def after_fixed_layers(network: nn.Module, problem: Problem) -> tuple[nn.Module, Problem]:
    """A network without its first layers, and the problem with these applied to all inputs.

    A sequence of layers may begin with some that have no weights, such as the edges of `oriented`.
    Training would compute the same numbers in every pass. What is returned shares its layers with
    the network. Both are as they were if there are no such layers, if what these give takes more
    memory than the inputs, or if inputs are changed before (an average over copies does).
    """
    layers = list(network.children()) if type(network) is nn.Sequential else []
    first = list(itertools.takewhile(lambda each: not list(each.parameters()), layers))
    if not first or problem.predict is not plainly:
        return network, problem
    early = nn.Sequential(*first).eval()
    one = problem.inputs[:1]
    shown = early(one)
    if len(shown) != 1 or shown.numel() > one.numel():
        return network, problem
    applied = torch.cat([early(part) for part in problem.inputs.split(CHUNK)])
    identities = [nn.Identity() for _ in first]
    rest = nn.Sequential(*identities, *layers[len(first) :])
    return rest.train(network.training), replace(problem, inputs=applied)


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of coordinates, inputs, targets, and the share of all steps that is done, ()."""


def _best_speed(
    descent: _Descent, loss: Loss, compared: Loss, start: Tensor, schedule: Schedule
) -> float:
    """The speed after whose first epochs of falling `loss` the other is least."""
    if len(schedule.speeds) == 1:
        return schedule.speeds[0]
    losses = {}
    for speed in schedule.speeds:
        rates = speed * schedule.rate, 0.3 * speed * schedule.rate
        descent.generator.manual_seed(0)
        reached = descent.minimised(loss, start, rates, schedule.pilot_epochs)
        losses[speed] = descent.mean(compared, reached)
    return min(
        losses, key=lambda speed: losses[speed] if losses[speed] == losses[speed] else math.inf
    )


def _quantised(
    problem: Problem, outputs: Callable[[Tensor, Tensor], Tensor], step: float, beta: float
) -> Loss:
    """The loss of w/Δ, whose rounded values are the levels."""
    prior = problem.prior
    weight = beta * math.log(2) / len(problem.targets)

    def loss(at: Tensor, inputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        rest = (at.round() - at).detach()
        levels = at + torch.where(rest.abs() <= REACH * share, rest, 0.0)
        size = levels.detach()
        spread = size.square().mean().sqrt() if prior.shape == "gaussian" else size.abs().mean()
        spread = spread.clamp(min=min(prior.scales), max=max(prior.scales))
        fit = bounded_loss(outputs(levels * step, inputs), targets)
        return fit + weight * prior.soft_bits(levels, spread)

    return loss


def bounded_loss(outputs: Tensor, targets: Tensor, power: float = POWER) -> Tensor:
    """The mean of (1 − pᵃ)/a, p the probability of the right class: between 0 and 1/a."""
    logs = outputs.log_softmax(1).gather(1, targets[:, None])
    return -torch.expm1(power * logs).mean() / power


@dataclass(frozen=True)
class _Descent:
    """Adam over shuffled batches, its rate falling by a cosine.

    tell:     is told after every epoch how many there were
    captured: whether a step may be one CUDA graph (`kernels.captured`)
    moved:    how images are mirrored and shifted in every step
    warm_up:  share of the steps over which the rate grows to its first value
    """

    problem: Problem
    batch_size: int
    generator: torch.Generator
    tell: Callable[[int], None] = lambda _: None
    captured: bool = False
    moved: FlipsAndShifts | None = None
    warm_up: float = 0.0

    def minimised(
        self, loss: Loss, start: Tensor, rates: tuple[float, float], epochs: int
    ) -> Tensor:
        """Coordinates with a small loss, from `start`; `rates` are the first and the last."""
        at = nn.Parameter(start.detach().clone())
        if at.numel():
            self.descend([at], lambda x, y, share: loss(at, x, y, share), rates, epochs)
        return at.detach()

    @torch.no_grad()
    def mean(self, loss: Loss, at: Tensor) -> float:
        """The loss of all examples, with coordinates that are done."""
        done = torch.ones((), dtype=torch.float64, device=at.device)
        both = self.problem.inputs.split(CHUNK), self.problem.targets.split(CHUNK)
        parts = [loss(at, x, y, done) * len(y) for x, y in zip(*both, strict=True)]
        return float(torch.stack(parts).sum()) / len(self.problem.targets)

    def descend(
        self,
        weights: Sequence[nn.Parameter],
        loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        rates: tuple[float, float],
        epochs: int,
        decay: float = 0.0,
    ) -> None:
        """Change the weights in place; `loss` is of inputs, targets and the share done.

        decay: of matrices and kernels, apart from the gradient
        """
        optimiser = adamw(list(weights), rate=rates[0], decay=decay)

        def step(inputs: Tensor, targets: Tensor, share: Tensor) -> None:
            optimiser.zero_grad()
            loss(inputs, targets, share).backward()
            optimiser.step()

        take = CapturedFunction(step, lambda: weights) if self.captured else step
        for inputs, targets, share, rate in self.batches(rates, epochs):
            set_rate(optimiser, rate)
            take(inputs, targets, share)

    def batches(
        self, rates: tuple[float, float], epochs: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, float]]:
        """Inputs, targets, the share of all steps that is done, and the rate."""
        first, last = rates
        inputs, targets = self.problem.inputs, self.problem.targets
        share = torch.zeros((), dtype=torch.float64, device=targets.device)
        total, done = epochs * math.ceil(len(targets) / self.batch_size), 0
        for _ in range(epochs):
            order = torch.randperm(len(targets), generator=self.generator).to(targets.device)
            for batch in order.split(self.batch_size):
                falling = 0.5 * (1 + math.cos(math.pi * done / total))
                rate = last + (first - last) * falling
                rate *= min(1.0, (done + 1) / max(1.0, self.warm_up * total))
                share.fill_(done / total)
                own = inputs[batch]
                if self.moved is not None:
                    drawn = self.moved.draw(len(batch), self.generator)
                    own = self.moved(own, drawn.to(own.device))
                yield own, targets[batch], share, rate
                done += 1
            self.tell(1)


def _nearest(steps: Sequence[float], coordinates: Tensor, count: int) -> list[float]:
    """The steps that suit the coordinates best, the first one most."""
    if not coordinates.numel():
        return [steps[0]]
    wanted = float(coordinates.square().mean().sqrt()) / LEVELS_PER_DEVIATION
    return sorted(steps, key=lambda step: abs(math.log(step / max(wanted, 1e-9))))[:count]


def _valued(
    subspace: Subspace, problem: Problem, entry: Entry, step: float, levels: Tensor
) -> Compressed:
    prior = problem.prior
    scale = prior.best_scale(levels)
    weights = prior.bits(levels, scale)
    network = subspace.decoded(levels, step)
    errors = count_errors(network, problem.inputs, problem.targets, problem.predict)
    bits = problem.other_bits + weights
    bound = bound_of(len(levels), errors, len(problem.targets), bits, problem.delta)
    return Compressed(entry, step, scale, levels, weights, errors, bound)


def bound_of(dimension: int, errors: int, n: int, bits: float, delta: float) -> float:
    """Occam's bound; the binomial tail for a network that the data did not change."""
    return (occam if dimension else occam_binomial)(errors, n, bits, delta)


@torch.no_grad()
def count_errors(
    network: nn.Module, inputs: Tensor, targets: Tensor, predict: Predict = plainly
) -> int:
    """Examples whose class does not have strictly the largest output; NaN is an error.

    In evaluation mode, on the data as they are. A tie is an error, so that every device counts
    alike.
    """
    network.eval()
    right = torch.zeros((), dtype=torch.int64, device=targets.device)
    for part, labels in zip(inputs.split(CHUNK), targets.split(CHUNK), strict=True):
        outputs = predict(network, part)
        own = outputs.gather(1, labels[:, None])
        others = outputs.scatter(1, labels[:, None], -math.inf).amax(1, keepdim=True)
        right += (own > others).sum()
    return len(targets) - int(right)


def train_fully(
    network: nn.Module,
    problem: Problem,
    schedule: Schedule,
    *,
    seed: int,
    moved: FlipsAndShifts | None = None,
) -> None:
    """Train all weights of a network in place: the start of a certificate on other examples.

    moved: how images are mirrored and shifted in every step. With it the recipe is that of residual
        networks on photographs: weight decay, smoothed labels, a rate that grows first, and on a
        GPU a compiled network with products in bfloat16
    """
    network.eval()
    place, photographs = problem.inputs.device, moved is not None
    if not photographs:
        network, problem = after_fixed_layers(network, problem)
    on_gpu = photographs and place.type == "cuda"
    forward = NetworkPass(network, place, compiled=on_gpu, autocast=on_gpu)
    smoothing = LABEL_SMOOTHING if photographs else 0.0

    def loss(inputs: Tensor, targets: Tensor, _: Tensor) -> Tensor:
        outputs = problem.predict(forward, inputs)
        return functional.cross_entropy(outputs, targets, label_smoothing=smoothing)

    descent = _Descent(
        problem,
        schedule.batch_size,
        torch.Generator().manual_seed(seed),
        captured=can_capture(network, place),
        moved=moved,
        warm_up=WARM_UP if photographs else 0.0,
    )
    weights = [each for each in network.parameters() if each.requires_grad]
    decay = WEIGHT_DECAY if photographs else 0.0
    with forward.searching():
        descent.descend(weights, loss, (schedule.rate, 0.0), schedule.epochs, decay)


def fitting(trained: Grid, weights: int) -> Grid:
    """The trained part without dimensions that a network of so many weights does not have."""
    possible = tuple(each for each in trained.dimensions if each <= weights)
    if not possible:
        raise CallerError(
            f"dimensions: the network has {weights} weights, and the smallest dimension to be "
            f"trained is {min(trained.dimensions)}; declare smaller ones or take a larger network"
        )
    return replace(trained, dimensions=possible)
