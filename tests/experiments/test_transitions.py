"""Transition models in miniature: rows, units, losses and rollouts written out, and the goals."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.data.replay import Replay
from isotropy.data.robots import ROBOTS
from isotropy.experiments.runner import Job, read_table
from isotropy.experiments.thesis import transitions
from isotropy.experiments.thesis.transitions import (
    TransitionData,
    TransitionSettings,
    fit_transitions,
    goals,
    summary,
    transition_data,
    transition_network,
)

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"channels": 16, "episodes": 2, "test_episodes": 2, "epochs": 1}
SWIMMER = ROBOTS["Swimmer"]
STILL = TransitionSettings(epochs=1, learning_rate=0.0)
needs_mujoco = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mujoco", "gymnasium")),
    reason="the extra rl is not installed",
)


def noise(robot, seed: int, episodes: int = 2, steps: int = 100) -> Replay:
    """States that follow no law."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(episodes, *shape, generator=generator, dtype=torch.float64)

    states = 1 + drawn(steps + 1, robot.state_size)
    return Replay(states, drawn(steps, len(robot.motors)), drawn(steps), "none")


def data_of(robot, seed: int = 0) -> TransitionData:
    training, test = noise(robot, 2 * seed), noise(robot, 2 * seed + 1)
    return transition_data(training, test, robot.symmetry).to(CPU)


def network_of(kind: str, seed: int = 0, robot=SWIMMER) -> nn.Module:
    return transition_network(robot, kind, channels=16, layers=1, seed=seed)


# --- rows ---------------------------------------------------------------------------------------


def test_every_row_of_the_table_is_a_job() -> None:
    table = read_table("transitions")
    found = transitions.jobs(table, quick=False)
    networks = ("mlp", "emlp", "rpp", "rpp-trivial")
    names = {f"transitions/{robot}/{each}" for robot in table["robots"] for each in networks}
    assert {job.row for job in found} == names and len(names) == 20
    assert all(job.seeds == (0, 1, 2) for job in found)
    assert all(job.settings["episodes"] * transitions.EPISODE == 2000 for job in found)
    quick = transitions.jobs(table, quick=True)
    assert {job.row for job in quick} < names and quick[0].seeds == (0,)


@needs_mujoco
@pytest.mark.parametrize("row", ["Walker2d/mlp", "Ant/emlp", "Hopper/rpp", "Ant/rpp-trivial"])
def test_rows_run(row: str) -> None:
    table = read_table("transitions")
    (job,) = (job for job in transitions.jobs(table, False) if job.row == f"transitions/{row}")
    small = Job(job.row, (0, 1), {**job.settings, **TINY})
    first, second = transitions.run(small, CPU)
    robot, network = row.split("/")
    assert first["test_error"] != second["test_error"] and first["mujoco"] == table["mujoco"]
    for record in (first, second):
        assert (record["problem"], record["network"]) == (f"transitions/{robot}", network)
        assert record["symmetry"] == table["robots"][robot]
        assert record["lambda"] == (table["settings"]["free_penalty"] if "rpp" in row else None)
        assert 0 < record["test_error"] == record["errors"]["10"] < record["errors"]["100"] <= 1
        assert (record["equivariance_error"] < 1e-5) == (network == "emlp")


@needs_mujoco
def test_another_version_of_the_simulator_is_refused() -> None:
    table = {**read_table("transitions"), "mujoco": "3.17.0"}
    with pytest.raises(CallerError, match="expected mujoco 3.17.0"):
        transitions.run(transitions.jobs(table, True)[0], CPU)


# --- networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Swimmer", "Ant"])
def test_networks_start_with_the_symmetry_they_are_given(name: str) -> None:
    robot = ROBOTS[name]
    inputs = torch.randn(5, robot.state_size + len(robot.motors), dtype=torch.float64)
    for kind, has_it in (("mlp", False), ("emlp", True), ("rpp", True), ("rpp-trivial", False)):
        network = network_of(kind, robot=robot).double().requires_grad_(False)
        broken = 0.0
        for of_state, of_action in zip(robot.symmetry.states, robot.symmetry.actions, strict=True):
            both = torch.block_diag(of_state, of_action)
            moved, wanted = network(inputs @ both.mT), network(inputs) @ of_state.mT
            broken = max(broken, float((moved - wanted).abs().max()))
        assert (broken < 1e-9) == has_it


def test_the_control_has_the_same_two_matrices() -> None:
    soft, control = network_of("rpp"), network_of("rpp-trivial")
    shapes = [
        {name: each.shape for name, each in network.named_parameters() if ".fc." in name}
        for network in (soft, control)
    ]
    assert shapes[0] == shapes[1] and len(shapes[0]) == 4
    bound = [p.numel() for name, p in control.named_parameters() if "coefficients" in name]
    assert sum(bound) == sum(p.numel() for p in network_of("mlp").parameters())


# --- units, losses, errors ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Walker2d", "Swimmer", "Ant"])
def test_units_commute_with_the_group(name: str) -> None:
    robot = ROBOTS[name]
    training = noise(robot, 0)
    mean, spread, change, action = transition_data(training, training, robot.symmetry).units
    for of_state, of_action in zip(robot.symmetry.states, robot.symmetry.actions, strict=True):
        torch.testing.assert_close(of_state @ mean, mean)
        for unit, matrix in ((spread, of_state), (change, of_state), (action, of_action)):
            torch.testing.assert_close(matrix.abs() @ unit, unit)
    # The mean over the data and all of its mirror images.
    states = training.states.flatten(0, 1)
    images = torch.cat([states @ each.mT for each in robot.symmetry.states])
    torch.testing.assert_close(images.mean(0), mean)
    torch.testing.assert_close((images - mean).square().mean(0).sqrt(), spread)


def test_what_does_not_vary_has_a_unit_of_one() -> None:
    still = noise(SWIMMER, 0)
    still = replace(still, states=torch.zeros_like(still.states))
    assert transition_data(still, still, SWIMMER.symmetry).units[2].tolist() == [1.0] * 8


def test_losses_and_errors_written_out() -> None:
    data, network = data_of(SWIMMER), network_of("rpp-trivial")
    (found,) = fit_transitions([network], [data], STILL, [0])
    mean, spread, change, action = data.units

    def step(state: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
        return state + change * network(torch.cat([(state - mean) / spread, act / action], -1))

    with torch.no_grad():
        after = step(data.states[:, :-1].flatten(0, 1), data.actions.flatten(0, 1))
        off = (after - data.states[:, 1:].flatten(0, 1)) / change
        assert found.training_error == pytest.approx(float(off.abs().mean()), rel=1e-5)
        # −log p = Σ|e|/b, so that δ/2 Σθ² beside it is λ Σθ² beside the mean: 200 × 8 numbers.
        precision = 2 * STILL.free_penalty * 1600 / found.training_error
        assert found.free_precision == {
            name: pytest.approx(precision)
            for name in ("blocks.0.linear", "blocks.0.nonlinearity", "head")
        }
        for steps in (10, 30, 100):
            logs = []
            for states, actions in zip(data.test_states, data.test_actions, strict=True):
                for start in range(0, 100 - steps + 1, steps):
                    state = states[start : start + 1]
                    for time in range(start, start + steps):
                        state = step(state, actions[time : time + 1])
                        a, b = (state[0] - mean) / spread, (states[time + 1] - mean) / spread
                        logs.append(math.log(float((a - b).norm() / (a.norm() + b.norm()))))
            error = math.exp(sum(logs) / len(logs))
            assert found.errors[str(steps)] == pytest.approx(error, rel=1e-4)
        mirror, act = SWIMMER.symmetry.states[1].float(), SWIMMER.symmetry.actions[1].float()
        states, actions = data.test_states[:, :-1].flatten(0, 1), data.test_actions.flatten(0, 1)
        a = (step(states @ mirror.mT, actions @ act.mT) - states @ mirror.mT) / change
        b = ((step(states, actions) - states) / change) @ mirror.mT
        error = ((a - b).norm(dim=-1) / (a.norm(dim=-1) + b.norm(dim=-1))).log().mean().exp()
        assert found.equivariance_error == pytest.approx(float(error), rel=1e-4)


def test_penalties_are_of_free_parameters_and_others() -> None:
    networks = [network_of("rpp"), network_of("rpp", 1)]
    stack = transitions.SeedStack(networks, 0.0)
    settings = TransitionSettings(free_penalty=2.0, penalty=0.25)
    with torch.no_grad():
        for each in stack.parameters.values():
            each.add_(0.1)
    found = stack.penalty(settings.penalties(networks[0]))
    for seed in (0, 1):
        wanted = sum(
            (2.0 if ".fc." in name or "free-gate" in name else 0.25)
            * float(each[seed].detach().square().sum())
            for name, each in stack.parameters.items()
        )
        assert found[seed].item() == pytest.approx(wanted, rel=1e-5)


class Law(nn.Module):
    """x' = x + W (x, u) + b, of which W and b are learned."""

    def __init__(self, robot) -> None:
        super().__init__()
        self.linear = nn.Linear(robot.state_size + len(robot.motors), robot.state_size)
        nn.init.zeros_(self.linear.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs)


def test_a_linear_law_is_found() -> None:
    made = []
    for seed in (0, 1):
        free = noise(SWIMMER, seed)
        law = 0.1 * torch.randn(8, 10, generator=torch.Generator().manual_seed(5))
        states = [free.states[:, 0] - 1]
        for act in free.actions.unbind(1):
            x = states[-1]
            states.append(0.9 * x + torch.cat([x, act], -1) @ law.double().mT * 0.5)
        made.append(replace(free, states=torch.stack(states, 1)))
    data = transition_data(*made, SWIMMER.symmetry).to(CPU)
    settings = TransitionSettings(epochs=60, batch_size=50, learning_rate=0.05)
    (before,) = fit_transitions([Law(SWIMMER)], [data], STILL, [0])
    (after,) = fit_transitions([Law(SWIMMER)], [data], settings, [0])
    assert after.step_error < 0.05 * before.step_error
    assert after.test_error < 0.1 * before.test_error


def test_free_parameters_learn_at_a_tenth_of_the_rate() -> None:
    """Adam's first step has the length of its rate, whatever the gradient."""
    data, network = data_of(SWIMMER), network_of("rpp-trivial")
    settings = TransitionSettings(epochs=1, batch_size=200, learning_rate=0.02, penalty=0.0)
    before = {name: each.detach().clone() for name, each in network.named_parameters()}
    stacks = []
    made = transitions.SeedStack

    def kept(*arguments: Any, **named: Any) -> transitions.SeedStack:
        stacks.append(made(*arguments, **named))
        return stacks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "SeedStack", kept)
        fit_transitions([network], [data], settings, [0])
    (stack,) = stacks
    for name, each in stack.parameters.items():
        if not each.numel():  # contractions, of which there are none
            continue
        moved = (each[0].detach() - before[name]).abs().max().item()
        is_free = ".fc." in name or "free-gate" in name
        assert moved == pytest.approx(0.002 if is_free else 0.02, rel=1e-3)


def test_seeds_together_are_seeds_alone() -> None:
    data = [data_of(SWIMMER, seed) for seed in (0, 1)]
    settings = TransitionSettings(epochs=2, batch_size=50)
    both = fit_transitions([network_of("rpp"), network_of("rpp", 1)], data, settings, [0, 1])
    for seed, together in enumerate(both):
        (alone,) = fit_transitions([network_of("rpp", seed)], [data[seed]], settings, [seed])
        assert together.test_error == pytest.approx(alone.test_error, rel=1e-3)
    with pytest.raises(CallerError, match="got 1, 2 and 1"):
        fit_transitions([network_of("mlp")], data, settings, [0])


@pytest.mark.parametrize("name", ["free_penalty", "penalty"])
def test_negative_penalties_are_refused(name: str) -> None:
    with pytest.raises(CallerError, match=f"{name}: expected at least 0, got -1"):
        TransitionSettings(**{name: -1.0})


# --- what came out ------------------------------------------------------------------------------


def records(rpp: float, control: float) -> list[dict[str, Any]]:
    errors = {"mlp": 0.2, "rpp": rpp, "rpp-trivial": control}
    return [
        {
            "row": f"transitions/Walker2d/{network}",
            **{"robot": "Walker2d", "network": network, "symmetry": "exact"},
            **{"test_error": each, "equivariance_error": 0.1},
            "errors": {"10": each, "30": 2 * each, "100": 3 * each},
        }
        for network, each in errors.items()
    ]


def test_goals_are_met_and_missed() -> None:
    below_mlp, below_control = goals(records(0.17, 0.18))
    assert goals(records(0.17, 0.18)) == {below_mlp: True, below_control: True}
    assert goals(records(0.185, 0.2)) == {below_mlp: False, below_control: True}
    assert goals(records(0.17, 0.175)) == {below_mlp: True, below_control: False}
    assert goals(records(0.17, 0.18)[:2]) == {}
    told = "\n".join(summary([*records(0.17, 0.175), {"row": "inertia/exact"}]))
    assert "MISSED" in told and "met" in told and "17.00" in told and "51.00" in told
