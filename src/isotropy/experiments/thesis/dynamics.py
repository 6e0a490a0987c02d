"""Table 2.2 and Figure 2.6: a double spring pendulum learned with and without its symmetry.

Rows are KIND/NETWORK: `HNN/O(2)`, `ODE/MLP`. Settings and published numbers are in `dynamics.toml`.

Training: from the first state of each short piece the network's motion is followed through the
other four; the loss is the mean of squared differences over the piece. Adam with a constant rate,
all 500 pieces in one batch, 2000 epochs; the weights with the least validation loss are kept.

Evaluation, over 30 s from the first states of the test pieces, in float64:

    rollout error     exp mean log e,  e = ‖ẑ − z‖ / (‖ẑ‖ + ‖z‖)  against the true motion, Table 2.2
    momentum error    the same of angular momentum L about z against its start, Figure 2.6

Means are over states and times, each e at least 1e-7 (Finzi 2023, 2.7.2 and A.1.9). The seeds of a
row are trained together (`seed_stack`). Steps are of fixed length: one of fifth order in 0.2 s
stays within 3e-5 of the true motion over a piece, closer than the tolerance 1e-4 of the published
code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.experiments.runner import Job, Series, geometric_means, goal_lines, read_table
from isotropy.experiments.thesis.problems import (
    ACCURATE,
    DURATION,
    STATE,
    STEP,
    PendulumData,
    advance,
    angular_momentum,
    integrate,
    motion,
    pendulum_data,
)
from isotropy.experiments.thesis.seed_stack import Best, SeedStack, seed_records, seeded_network
from isotropy.networks.zoo.backbones import HamiltonianNetwork, NeuralODE
from isotropy.symmetry.groups.representations import Scalar

KINDS = {"HNN": HamiltonianNetwork, "ODE": NeuralODE}
STATE_SIZE = 12
LEAST_ERROR = 1e-7
LOOKS = 200
"""How often at most a run looks at its validation loss."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every kind and network of the table."""
    changed = dict(table["quick"]) if quick else {}
    networks = changed.pop("networks", list(table["networks"]))
    seeds = tuple(changed.pop("seeds", table["seeds"]))
    settings = {**table["settings"], **changed}
    found = []
    for kind in table["kinds"]:
        for network in networks:
            own = {**settings, "kind": kind, "network": network}
            own["group"] = table["networks"][network]
            # A Hamiltonian network is differentiated twice, and an MLP has fewer kernels.
            cost = (3.0 if kind == "HNN" else 1.0) * (4.0 if own["group"] else 1.0)
            found.append(Job(f"{kind}/{network}", seeds, own, cost))
    return found


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row and roll them out; the numbers of each."""
    own = job.settings
    settings = DynamicsSettings(
        epochs=own["epochs"],
        learning_rate=own["learning_rate"],
        within=own["within"],
        duration=own.get("duration", DURATION),
    )
    data, networks = [], []
    for seed in job.seeds:
        generator = torch.Generator().manual_seed(seed)
        data.append(pendulum_data(own["examples"], generator).to(device))
        networks.append(_network(own, seed).to(device))
    found = fit_dynamics(networks, data, settings)
    described = {key: own[key] for key in ("kind", "network", "channels", "examples", "within")}
    return seed_records(described, networks, found)


def _network(own: Mapping[str, Any], seed: int) -> nn.Module:
    energy = own["kind"] == "HNN"
    target, sizes = (Scalar, (STATE_SIZE, 1)) if energy else (STATE, (STATE_SIZE, STATE_SIZE))
    return KINDS[own["kind"]](seeded_network(STATE, target, own["group"], sizes, own, seed))


# -- one run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DynamicsSettings:
    """within: integration steps in 0.2 s of training.

    wind:      ε of the true motion
    penalties: λ of λ‖θ‖² in the loss, by the name of a parameter
    """

    epochs: int = 2000
    learning_rate: float = 3e-3
    within: int = 1
    duration: float = DURATION
    wind: float = 0.0
    penalties: Mapping[str, float] = field(default_factory=dict)

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
    """Train one network a seed, d/dt of states, each on its own data, and roll it out.

    The networks are left with their weights where the validation loss was least.
    """
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
    run.stack.hand_back(networks, run.best.values)
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
        self.step = self.stack.captured(self._step)
        self.look = self.stack.captured(self._look, [self.epoch, *self.best.state()])

    def _loss(self, chunks: Tensor) -> Tensor:
        field, times = self.stack.assembled(), chunks.shape[2]
        found = integrate(field, chunks[:, :, 0], times, STEP, within=self.settings.within)
        return (found.movedim(0, 2) - chunks).square().mean((1, 2, 3))

    def _step(self) -> None:
        loss, penalties = self._loss(self.training), self.settings.penalties
        self.stack.step(loss + self.stack.penalty(penalties) if penalties else loss)

    @torch.no_grad()
    def _look(self) -> None:
        values = {**self.stack.parameters, _EPOCH: self.epoch}
        self.best.offer(self._loss(self.validation), values)

    def results(self, started: float) -> list[DynamicsResult]:
        weights = {name: self.best.values[name].double() for name in self.stack.parameters}
        paths = rollout(self.stack, weights, self.test, self.settings.times)
        field = partial(motion, wind=self.settings.wind)
        truth = integrate(field, self.test, self.settings.times, STEP, within=ACCURATE)
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


# -- what came out -----------------------------------------------------------------------------


def table_of(records: Sequence[Mapping[str, Any]], number: str) -> dict[str, dict[str, float]]:
    """{kind: {network: geometric mean over seeds of this number}}."""
    return geometric_means(records, number, "kind", "network")


def goals(records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What the thesis's table and figure show, and whether these records do."""
    errors, drifts = table_of(records, "rollout_error"), table_of(records, "momentum_error")
    if set(errors) != set(KINDS) or any(
        not {"O(2)", "D6", "D2", "MLP"} <= set(networks) for networks in errors.values()
    ):
        return {}
    hamiltonian, ode = errors["HNN"], errors["ODE"]
    return {
        "O(2) is best among Hamiltonian networks": min(hamiltonian, key=hamiltonian.get) == "O(2)",  # type: ignore[arg-type]
        "O(2) is best among neural ODEs": min(ode, key=ode.get) == "O(2)",  # type: ignore[arg-type]
        "every Hamiltonian network is better than its neural ODE": all(
            hamiltonian[network] < error for network, error in ode.items()
        ),
        "the MLP is worst among Hamiltonian networks": max(hamiltonian, key=hamiltonian.get)  # type: ignore[arg-type]
        == "MLP",
        "D6 conserves angular momentum ten times better than D2": 10 * drifts["HNN"]["D6"]
        < drifts["HNN"]["D2"],
    }


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Both tables, published numbers beside them, and the goals."""
    lines = []
    published = read_table("dynamics")["published"]
    for number in ("rollout_error", "momentum_error"):
        for kind, networks in table_of(records, number).items():
            lines.append(f"{kind}, {number.replace('_', ' ')}, geometric mean over seeds")
            for network, value in networks.items():
                known = published[kind].get(network) if number == "rollout_error" else None
                beside = "" if known is None else f"   published {known:g}"
                lines.append(f"  {network:<8}{value:10.2e}{beside}")
    return lines + goal_lines(goals(records))


SERIES = Series(jobs, run, summary)
