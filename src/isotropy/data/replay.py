"""Robots in their simulator: replay data of simple policies, and how much a step breaks a map.

    violation = rms ‖s(g x, g u) − g s(x, u)‖ / rms ‖s(x, u) − x‖

of one step s, over states that a random policy visits: zero for a symmetry of the simulation.

`robots` has the maps g and says what a state is. gymnasium and mujoco are the extra `rl`, and are
imported where a robot is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least
from isotropy.data.robots import Robot, robot_named


def _simulators() -> tuple[ModuleType, ModuleType]:
    try:
        return import_module("gymnasium"), import_module("mujoco")
    except ImportError as error:
        raise CallerError(
            "simulated robots need gymnasium and mujoco, and "
            f"{error.name or 'one of them'} is not installed; pip install isotropy[rl]"
        ) from error


def mujoco_version(expected: str | None = None) -> str:
    """The installed version. Raises CallerError where it is not the expected one: trajectories
    differ between versions, so that numbers of two are not compared."""
    found = str(_simulators()[1].__version__)
    if expected is not None and found != expected:
        raise CallerError(
            f"expected mujoco {expected}, which the record was made with, got {found}; "
            f"trajectories differ between versions: pip install mujoco=={expected}, or make the "
            "record anew"
        )
    return found


def made_environment(name: str, options: Mapping[str, Any]) -> Any:
    """An environment of gymnasium. Raises CallerError where it has none of that name.

    "MODULE:NAME" imports a module that registers the environment, whose errors are no others.
    """
    gymnasium = _simulators()[0]
    try:
        return gymnasium.make(name, **options)
    except Exception as error:
        raise CallerError(
            f"gymnasium {gymnasium.__version__} does not make {name}: {error}"
        ) from error


def robot_of(environment: str) -> Robot | None:
    """An environment of mujoco as a robot without maps, its joints read from the model.

    None where it is not of mujoco, or observes anything but positions, the first of them left out
    or not, and then velocities.
    """
    made = made_environment(environment, {})
    own, observation = made.unwrapped, made.reset(seed=0)[0]
    if not (hasattr(own, "model") and hasattr(own, "set_state")) or own.model.nq != own.model.nv:
        return None
    unobserved = own.model.nq + own.model.nv - np.size(observation)
    if not 0 <= unobserved < own.model.nq:
        return None
    coordinates = np.concatenate([own.data.qpos[unobserved:], own.data.qvel])
    if not np.allclose(coordinates, observation):
        return None
    model = own.model
    joints = tuple(model.joint(k).name for k in range(model.njnt))
    motors = tuple(model.joint(int(k)).name for k in model.actuator_trnid[:, 0])
    return Robot(environment, joints, motors, unobserved, ())


class Simulator:
    """One step of a robot as a function of its state.

    Contact solvers begin where the last step ended. Here every step begins anew, so that it
    depends on state and action alone.
    """

    def __init__(self, robot: Robot) -> None:
        self._mujoco = _simulators()[1]
        self.robot = robot
        self._own: Any = made_environment(robot.environment, robot.options).unwrapped
        self._check_sizes()
        self._strength = np.array([robot.strength.get(name, 1.0) for name in robot.motors])
        self.largest_action = self._own.action_space.high.astype(np.float64)

    def _check_sizes(self) -> None:
        robot, model = self.robot, self._own.model
        environment = robot.environment
        sizes = (
            ("an observation", robot.observation_size, self._own.observation_space.shape[0]),
            ("an action", len(robot.motors), self._own.action_space.shape[0]),
        )
        for what, own, found in sizes:
            if own != found:
                raise CallerError(
                    f"{environment}: expected maps of {what} of {found} numbers, got maps of "
                    f"{own}; "
                    "name every joint and motor of the environment's version"
                )
        names = [model.joint(k).name for k in range(model.njnt)][int(robot.has_free_root) :]
        motors = [model.joint(int(k)).name for k in model.actuator_trnid[:, 0]]
        for what, ours, theirs in (
            ("joints", robot.joints, names),
            ("motors", robot.motors, motors),
        ):
            if list(ours) != theirs:
                raise CallerError(
                    f"{environment}: expected {what} {', '.join(theirs)}, got {', '.join(ours)}"
                )

    def reset(self, seed: int) -> np.ndarray:
        """A state at which the environment starts."""
        self._own.reset(seed=seed)
        return self._state()

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float]:
        """The next state and the reward, from a state (size,) at x = y = 0 and an action."""
        positions, velocities = self._coordinates(state)
        self._mujoco.mj_resetData(self._own.model, self._own.data)
        self._own.set_state(positions, velocities)
        reward = self._own.step(action * self._strength)[1]
        return self._state(), float(reward)

    def _state(self) -> np.ndarray:
        positions, velocities = self._own.data.qpos, self._own.data.qvel
        if not self.robot.has_free_root:
            return np.concatenate([positions[self.robot.unobserved :], velocities])
        matrix = np.empty(9)
        quaternion = positions[3:7] / np.linalg.norm(positions[3:7])
        self._mujoco.mju_quat2Mat(matrix, quaternion)
        return np.concatenate(
            [positions[self.robot.unobserved : 3], matrix, positions[7:], velocities]
        )

    def _coordinates(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        split = len(state) - self._own.model.nv
        place = np.zeros(self.robot.unobserved)
        if not self.robot.has_free_root:
            return np.concatenate([place, state[:split]]), state[split:]
        height = 3 - self.robot.unobserved
        quaternion = np.empty(4)
        self._mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(state[height : height + 9]))
        parts = [place, state[:height], quaternion, state[height + 9 : split]]
        return np.concatenate(parts), state[split:]


# -- replay data -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Replay:
    """What a robot did.

    states:  (episodes, steps + 1, size), float64; actions: (episodes, steps, motors)
    rewards: (episodes, steps)
    mujoco:  the version that simulated it
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    mujoco: str


def replay(robot: Robot | str, episodes: int, steps: int, *, seed: int = 0) -> Replay:
    """Episodes of simple policies, of equal length: falling down ends none.

    Policies take turns, and all are mirrored as often as not: actions that are drawn anew at every
    step, actions that are held for 2 to 10 steps, and swinging motors, each with an amplitude, a
    phase and a period (5 to 40 steps) of its own.
    """
    robot = robot_named(robot) if isinstance(robot, str) else robot
    check_at_least(episodes, 1, what="episodes")
    check_at_least(steps, 1, what="steps of an episode")
    simulator, draws = Simulator(robot), np.random.default_rng(seed)
    policies = (_random_actions, _held_actions, _swinging_actions)
    states, actions, rewards = [], [], []
    for episode in range(episodes):
        drawn = policies[episode % len(policies)](draws, steps, len(robot.motors))
        drawn = drawn * simulator.largest_action
        found = [simulator.reset(int(draws.integers(2**31)))]
        gained = []
        for action in drawn:
            state, reward = simulator.step(found[-1], action)
            found.append(state)
            gained.append(reward)
        states.append(np.stack(found))
        actions.append(drawn)
        rewards.append(np.array(gained))
    return Replay(_stacked(states), _stacked(actions), _stacked(rewards), mujoco_version())


def _stacked(episodes: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(episodes))


def _random_actions(draws: np.random.Generator, steps: int, motors: int) -> np.ndarray:
    return draws.uniform(-1, 1, (steps, motors))


def _held_actions(draws: np.random.Generator, steps: int, motors: int) -> np.ndarray:
    lengths = draws.integers(2, 11, steps)
    return np.repeat(draws.uniform(-1, 1, (steps, motors)), lengths, axis=0)[:steps]


def _swinging_actions(draws: np.random.Generator, steps: int, motors: int) -> np.ndarray:
    amplitudes, phases = draws.uniform(0, 1, motors), draws.uniform(0, 2 * np.pi, motors)
    periods = np.exp(draws.uniform(np.log(5), np.log(40), motors))
    return amplitudes * np.sin(2 * np.pi * np.arange(steps)[:, None] / periods + phases)


# -- how well a map is kept --------------------------------------------------------------------


@dataclass(frozen=True)
class Violation:
    """How much one step breaks a map; see the module.

    step:   of states, in units of a step's change
    reward: of rewards, in units of their root mean square
    """

    map: str
    step: float
    reward: float
    steps: int
    mujoco: str


Matrices = tuple[str, np.ndarray, np.ndarray]
"""A map by its name and its matrices of states and of actions."""


def violation(
    robot: Robot | str,
    *,
    matrices: Sequence[Matrices] | None = None,
    episodes: int = 3,
    steps: int = 40,
    seed: int = 0,
) -> list[Violation]:
    """How much the simulation breaks each of a robot's maps, over states of `replay`.

    matrices: other maps in place of the robot's

    Raises CallerError for maps of another size than the observation or that are no group, for a
    robot without maps, and without mujoco.
    """
    robot = robot_named(robot) if isinstance(robot, str) else robot
    if matrices is None:
        matrices = [
            (each.name, robot.state_matrix(each), robot.action_matrix(each)) for each in robot.maps
        ]
    if not matrices:
        raise CallerError(f"{robot.environment}: expected maps to measure, got none")
    visited, simulator = replay(robot, episodes, steps, seed=seed), Simulator(robot)
    before, after = (
        each.flatten(0, 1).numpy() for each in (visited.states[:, :-1], visited.states[:, 1:])
    )
    actions, rewards = visited.actions.flatten(0, 1).numpy(), visited.rewards.flatten().numpy()
    change, gain = _rms(after - before), _rms(rewards)
    found = []
    for name, of_state, of_action in matrices:
        pairs = zip(before @ of_state.T, actions @ of_action.T, strict=True)
        mirrored = [simulator.step(state, action) for state, action in pairs]
        step = _rms(np.stack([state for state, _ in mirrored]) - after @ of_state.T) / change
        reward = _rms(np.array([own for _, own in mirrored]) - rewards) / gain
        found.append(Violation(name, step, reward, len(before), visited.mujoco))
    return found


def _rms(rows: np.ndarray) -> float:
    return float(np.sqrt(np.square(rows).sum() / len(rows)))
