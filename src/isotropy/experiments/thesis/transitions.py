"""Table 3.3: transition models of simulated robots, with their symmetries as a prior.

Rows are transitions/ROBOT/NETWORK; settings and published numbers are in `transitions.toml`.

    x̂' = x + s ⊙ f((x − m) / d, u / c)        loss = mean |x̂' − x'| / s + λ_b Σ free² + λ_e Σ other²

of states x and actions u (`data.robots`), with f one of

    mlp          linear layers with x σ(x) between them, without a penalty
    emlp         an EMLP of the robot's group, hidden layers of its regular representation
    rpp          that, relaxed: each layer beside a free one that starts at zero
    rpp-trivial  the same two matrices with the trivial group: what rpp gains without a symmetry

(Finzi 2023, 3.6.2 and A.2: two hidden layers of 256, σ² = 10⁶ and 3, so that λ_e = 10⁻⁶ and λ_b =
⅓. Here λ_b = 10⁻²: with ⅓ the free part of a walker with weak motors stays too small.) Means m and
spreads d, s, c are over the training data and the robot's group, so that they commute with it; all
networks get the same. Adam, the rate falling to zero as a half cosine, and for free parameters a
tenth of it: Adam takes steps of the length of its rate, and a free part that a penalty keeps near
zero would be noise of that size. The published models learn from 50,000 transitions of a trained
agent; here 2,000 of simple policies do.

The mean of N examples of D numbers is the log likelihood of a Laplace distribution of scale b over
−ND/b, so that λ is a prior precision δ = 2 λ N D / b; b is the mean training error.

    test error           exp mean log e,  e = ‖x̂ − x‖ / (‖x̂‖ + ‖x‖) in units of d from m, over all
                         times of rollouts of 10 steps (30, 100) that begin anew every 10 (30, 100)
    equivariance error   the same of changes s⁻¹(f(g x, g u) − x) and g f(x, u), over elements g
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least
from isotropy.data.replay import Replay, mujoco_version, replay
from isotropy.data.robots import Robot, RobotSymmetry, robot_named, without_symmetry
from isotropy.evidence.layers.structure import free_parameters, relaxed_layers
from isotropy.experiments.runner import Job, Series, geometric_means, goal_lines, read_table
from isotropy.experiments.thesis.dynamics import relative_error
from isotropy.experiments.thesis.seed_stack import SeedStack, seed_records
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.networks.pathways.relax import relax
from isotropy.symmetry.groups.representations import Scalar, V

PREFIX = "transitions"
NETWORKS = ("mlp", "emlp", "rpp", "rpp-trivial")
COST = {"mlp": 1.0, "emlp": 2.0, "rpp": 3.0, "rpp-trivial": 2.5}
"""Seconds of a step in those of an MLP."""
EPISODE = 100
HORIZONS = (10, 30, 100)
SMALLEST = 1e-6
"""Of a unit: what does not vary is left as it is."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every robot and network of the table."""
    changed = dict(table["quick"]) if quick else {}
    seeds = tuple(changed.pop("seeds", table["seeds"]))
    robots = changed.pop("robots", list(table["robots"]))
    settings = {**table["settings"], "mujoco": table["mujoco"], **changed}
    found = []
    for robot in robots:
        for network in table["networks"]:
            own = {**settings, "robot": robot, "network": network}
            own["symmetry"] = table["robots"][robot]
            size = robot_named(robot).state_size
            found.append(Job(f"{PREFIX}/{robot}/{network}", seeds, own, COST[network] * size))
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row; the numbers of each."""
    own = job.settings
    version = mujoco_version(own["mujoco"])
    settings = TransitionSettings(
        **{each.name: own[each.name] for each in fields(TransitionSettings)}
    )
    robot = robot_named(own["robot"])
    data, networks = [], []
    for seed in job.seeds:
        made = _data(own["robot"], own["episodes"], own["test_episodes"], seed)
        data.append(made.to(device))
        networks.append(
            transition_network(
                robot, own["network"], channels=own["channels"], layers=own["layers"], seed=seed
            ).to(device)
        )
    found = fit_transitions(networks, data, settings, job.seeds)
    is_soft = own["network"].startswith("rpp")
    described = {
        "problem": f"{PREFIX}/{own['robot']}",
        **{key: own[key] for key in ("robot", "symmetry", "network", "channels", "episodes")},
        "lambda": own["free_penalty"] if is_soft else None,
        "lambda_equivariant": own["penalty"] if is_soft else None,
        "mujoco": version,
    }
    return seed_records(described, networks, found)


def transition_network(
    robot: Robot, kind: str, *, channels: int, layers: int, seed: int
) -> nn.Module:
    """f on (batch, state + action) → (batch, state); see the module."""
    if kind == "mlp":
        torch.manual_seed(seed)
        sizes = robot.state_size + len(robot.motors), robot.state_size
        return plain_mlp(*sizes, channels=channels, layers=layers)
    is_trivial = kind == "rpp-trivial"
    symmetry = without_symmetry(robot) if is_trivial else robot.symmetry
    order = symmetry.group.dimension
    hidden = (channels * Scalar if is_trivial else channels // order * V)(symmetry.group)
    generator = torch.Generator().manual_seed(seed)
    network = EMLP(
        symmetry.state + symmetry.action,
        symmetry.state,
        channels=hidden,
        layers=layers,
        generator=generator,
    )
    return network if kind == "emlp" else relax(network, generator=generator)


# -- data --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TransitionData:
    """Of one seed; axes as in `Replay`.

    units: m, d, s (size,) and c (motors,), in this order
    of_states, of_actions: the group's elements but the identity, (elements, size, size)
    """

    states: Tensor
    actions: Tensor
    test_states: Tensor
    test_actions: Tensor
    units: tuple[Tensor, Tensor, Tensor, Tensor]
    of_states: Tensor
    of_actions: Tensor

    def to(self, device: torch.device) -> TransitionData:
        """In single precision on a device."""
        parts = {name: value for name, value in vars(self).items() if name != "units"}
        moved = {name: value.to(device, torch.float32) for name, value in parts.items()}
        mean, spread, change, action = (each.to(device, torch.float32) for each in self.units)
        return TransitionData(**moved, units=(mean, spread, change, action))


def transition_data(training: Replay, test: Replay, symmetry: RobotSymmetry) -> TransitionData:
    """Training and test data with units that commute with the symmetry."""
    states, changes = training.states.flatten(0, 1), training.states.diff(dim=1).flatten(0, 1)
    mean = (symmetry.states @ states.mean(0)).mean(0)
    units = (
        mean,
        _spread(states - mean, symmetry.states),
        _spread(changes, symmetry.states),
        _spread(training.actions.flatten(0, 1), symmetry.actions),
    )
    return TransitionData(
        training.states,
        training.actions,
        test.states,
        test.actions,
        units,
        symmetry.states[1:],
        symmetry.actions[1:],
    )


def _spread(rows: Tensor, elements: Tensor) -> Tensor:
    """Root mean square of each coordinate, over rows and elements; 1 where there is nothing."""
    found = (elements.square() @ rows.square().mean(0)).mean(0).sqrt()
    return torch.where(found > SMALLEST, found, torch.ones_like(found))


@lru_cache(maxsize=16)
def _data(name: str, episodes: int, test_episodes: int, seed: int) -> TransitionData:
    robot = robot_named(name)
    training = replay(robot, episodes, EPISODE, seed=2 * seed)
    test = replay(robot, test_episodes, EPISODE, seed=2 * seed + 1)
    return transition_data(training, test, robot.symmetry)


# -- one run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransitionSettings:
    """free_penalty, penalty: λ_b of free parameters and λ_e of the others, of relaxed networks.

    free_rate: factor of the learning rate of free parameters
    """

    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 8e-3
    free_penalty: float = 1e-2
    penalty: float = 1e-6
    free_rate: float = 0.1

    def __post_init__(self) -> None:
        check_at_least(self.free_penalty, 0, what="free_penalty")
        check_at_least(self.penalty, 0, what="penalty")

    def penalties(self, network: nn.Module) -> dict[str, float]:
        """λ by the name of a parameter; none without relaxed layers."""
        free, names = free_parameters(network), dict(network.named_parameters())
        if not relaxed_layers(network):
            return {}
        return {name: self.free_penalty if name in free else self.penalty for name in names}


@dataclass(frozen=True)
class TransitionResult:
    """Of one seed. test_error: of rollouts of 10 steps; errors: by their length.

    training_error, step_error: mean |x̂' − x'| / s of training and of test transitions
    free_precision: δ of what is free in each relaxed layer; see the module
    """

    test_error: float
    errors: dict[str, float]
    equivariance_error: float
    training_error: float
    step_error: float
    free_precision: dict[str, float]
    epochs: int
    seconds: float


def fit_transitions(
    networks: Sequence[nn.Module],
    data: Sequence[TransitionData],
    settings: TransitionSettings,
    seeds: Sequence[int],
) -> list[TransitionResult]:
    """Train one network a seed, each on its own data in an order of its own, and roll it out."""
    if not len(networks) == len(data) == len(seeds):
        raise CallerError(
            f"expected a network, data and a seed for each, got {len(networks)}, {len(data)} and "
            f"{len(seeds)}"
        )
    started = time.perf_counter()
    stack = SeedStack(
        networks,
        settings.learning_rate,
        slower=free_parameters(networks[0]),
        slower_rate=settings.free_rate * settings.learning_rate,
    )
    model = _Model(stack, data)
    before, actions, after = model.transitions(model.states, model.actions)
    count = before.shape[1]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    penalties = settings.penalties(networks[0])
    steps = settings.epochs * -(-count // settings.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stack.optimiser, steps)
    for _ in range(settings.epochs):
        orders = torch.stack([torch.randperm(count, generator=each) for each in generators])
        for chosen in orders.to(before.device).split(settings.batch_size, 1):
            losses = model.losses(*(_taken(each, chosen) for each in (before, actions, after)))
            stack.step(losses + stack.penalty(penalties) if penalties else losses)
            schedule.step()
    return model.results(settings, started)


def _taken(rows: Tensor, chosen: Tensor) -> Tensor:
    """Rows (seeds, batch, …) of (seeds, count, …)."""
    return rows[torch.arange(len(rows), device=rows.device)[:, None], chosen]


class _Model:
    """x̂' of a stack of networks, (seeds, …, size)."""

    def __init__(self, stack: SeedStack, data: Sequence[TransitionData]) -> None:
        self.stack = stack
        self.states, self.actions, self.test_states, self.test_actions = (
            torch.stack([getattr(each, name) for each in data])
            for name in ("states", "actions", "test_states", "test_actions")
        )
        self.of_states, self.of_actions = data[0].of_states, data[0].of_actions
        # (seeds, 1, size)
        self.mean, self.spread, self.change, self.action = (
            torch.stack(each)[:, None] for each in zip(*(each.units for each in data), strict=True)
        )

    def __call__(self, states: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([(states - self.mean) / self.spread, actions / self.action], -1)
        return states + self.change * self.stack(inputs)

    @staticmethod
    def transitions(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(seeds, transitions, …) of (seeds, episodes, times, …)."""
        before, after = states[:, :, :-1].flatten(1, 2), states[:, :, 1:].flatten(1, 2)
        return before, actions.flatten(1, 2), after

    def losses(self, before: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        """Mean |x̂' − x'| / s, (seeds)."""
        return ((self(before, actions) - after) / self.change).abs().mean((1, 2))

    @torch.no_grad()
    def rollout_errors(self, steps: int) -> Tensor:
        """Log errors (steps, seeds, rollouts) of rollouts that begin every `steps` steps."""
        starts = torch.arange(0, self.test_actions.shape[2] - steps + 1, steps)
        state = self.test_states[:, :, starts].flatten(1, 2)
        found = []
        for step in range(steps):
            state = self(state, self.test_actions[:, :, starts + step].flatten(1, 2))
            truth = self.test_states[:, :, starts + step + 1].flatten(1, 2)
            found.append(relative_error(*((x - self.mean) / self.spread for x in (state, truth))))
        return torch.stack(found).log()

    @torch.no_grad()
    def equivariance_errors(self) -> Tensor:
        """Log errors (elements, seeds, transitions)."""
        states, actions, _ = self.transitions(self.test_states, self.test_actions)
        change = (self(states, actions) - states) / self.change
        found = []
        for of_state, of_action in zip(self.of_states, self.of_actions, strict=True):
            moved = states @ of_state.mT
            other = (self(moved, actions @ of_action.mT) - moved) / self.change
            found.append(relative_error(other, change @ of_state.mT))
        return torch.stack(found).log()

    @torch.no_grad()
    def results(self, settings: TransitionSettings, started: float) -> list[TransitionResult]:
        errors = {
            str(steps): self.rollout_errors(steps).mean((0, 2)).exp().tolist() for steps in HORIZONS
        }
        equivariance = self.equivariance_errors().mean((0, 2)).exp().tolist()
        training, step = (
            self.losses(*self.transitions(*each)).tolist()
            for each in ((self.states, self.actions), (self.test_states, self.test_actions))
        )
        numbers = self.states[0, :, 1:].numel()
        seconds = time.perf_counter() - started
        return [
            TransitionResult(
                test_error=errors[str(HORIZONS[0])][seed],
                errors={steps: each[seed] for steps, each in errors.items()},
                equivariance_error=equivariance[seed],
                training_error=training[seed],
                step_error=step[seed],
                free_precision={
                    name: 2 * settings.free_penalty * numbers / training[seed]
                    for name in relaxed_layers(self.stack.network)
                },
                epochs=settings.epochs,
                seconds=seconds,
            )
            for seed in range(self.stack.seeds)
        ]


# -- what came out -----------------------------------------------------------------------------


GAINS = ("Walker2d", "Walker2d-weak-left", "Swimmer")
"""Robots on which rpp should beat mlp and its control."""


def goals(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What rollouts of 10 steps should show, where these records have the networks for it."""
    found = {}
    for robot, errors in geometric_means(records, "test_error", "robot", "network").items():
        if robot in GAINS and {"mlp", "rpp", "rpp-trivial"} <= set(errors):
            found[f"{robot}: rpp at least 10 % below mlp"] = errors["rpp"] <= 0.9 * errors["mlp"]
            found[f"{robot}: rpp at least 4 % below rpp-trivial"] = (
                errors["rpp"] <= 0.96 * errors["rpp-trivial"]
            )
    return found


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table, published numbers beside it, and the goals."""
    chosen = [each for each in records if each["row"].startswith(f"{PREFIX}/")]
    spread = [
        {**each, "steps": steps, "error": error}
        for each in chosen
        for steps, error in each["errors"].items()
    ]
    published = read_table("transitions")["published"]
    broken = geometric_means(chosen, "equivariance_error", "robot", "network")
    heading = ", ".join(f"{steps} steps" for steps in HORIZONS)
    lines = []
    for robot, networks in geometric_means(spread, "error", "robot", "network", "steps").items():
        symmetry = next(each["symmetry"] for each in chosen if each["robot"] == robot)
        lines.append(f"{robot} ({symmetry} symmetry), percent: {heading}, equivariance error")
        for network, errors in networks.items():
            numbers = "".join(f"{100 * error:9.2f}" for error in errors.values())
            known = published.get(robot, {}).get(network, {})
            beside = f"   published {', '.join(f'{each:g}' for each in known.values())}"
            lines.append(
                f"  {network:<12}{numbers}{100 * broken[robot][network]:9.2g}"
                f"{beside if known else ''}"
            )
    return lines + goal_lines(goals(chosen))


SERIES = Series(jobs, run, summary)
