"""Robots: every map against the simulation, groups against tables written by hand, refusals."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from isotropy.checks import CallerError
from isotropy.data.replay import Simulator, mujoco_version, replay, violation
from isotropy.data.robots import ROBOTS, RobotMap, robot_named, without_symmetry

needs_mujoco = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mujoco", "gymnasium")),
    reason="the extra rl is not installed",
)
ORDERS = {name: 8 if name == "Ant" else 2 for name in ROBOTS}


def largest(robot) -> float:
    return max(each.step for each in violation(robot))


def with_map(name: str, **changed):
    robot = ROBOTS[name]
    return replace(robot, maps=(replace(robot.maps[-1], **changed),))


# --- the maps against the simulation ------------------------------------------------------------


@needs_mujoco
@pytest.mark.parametrize("name", ["Walker2d", "Swimmer", "Ant"])
def test_exact_symmetries_hold_for_states_and_rewards(name):
    for each in violation(name):
        assert each.step < 1e-9 and each.reward < 1e-9
        assert each.steps == 120 and each.mujoco == mujoco_version()
    assert [each.map for each in violation(name)] == [each.name for each in ROBOTS[name].maps]


@needs_mujoco
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("Humanoid", 0.01, 0.05),
        ("HalfCheetah", 0.2, 0.5),
        ("Hopper", 1.0, 100.0),
        ("Walker2d-weak-left", 0.2, 0.8),
    ],
)
def test_approximate_and_false_symmetries_are_seen(name, least, most):
    assert least < largest(name) < most


@needs_mujoco
def test_published_maps_are_wrong():
    """Swimmer with v_y kept; Ant's legs without the signs of ankles or without the torso's turn."""
    swimmer = dict(ROBOTS["Swimmer"].maps[0].joints)
    del swimmer["slider2"]
    assert largest(with_map("Swimmer", joints=swimmer)) > 0.1
    legs = ROBOTS["Ant"].maps[1]
    unsigned = {name: goal.removeprefix("-") for name, goal in legs.joints.items()}
    assert largest(with_map("Ant", joints=unsigned)) > 0.5
    assert largest(with_map("Ant", body=(1, 2, 3))) > 0.1


# --- the maps against tables --------------------------------------------------------------------


def test_maps_written_out_by_hand():
    walker = ROBOTS["Walker2d"]
    places = [0, 1, 5, 6, 7, 2, 3, 4, 8, 9, 10, 14, 15, 16, 11, 12, 13]
    state = torch.randn(17, dtype=torch.float64).numpy()
    np.testing.assert_array_equal(walker.state_matrix(walker.maps[0]) @ state, state[places])
    action = np.arange(6.0)
    mirrored = walker.action_matrix(walker.maps[0]) @ action
    np.testing.assert_array_equal(mirrored, [3, 4, 5, 0, 1, 2])
    swimmer = ROBOTS["Swimmer"]  # three angles, v_x, v_y, three angular velocities
    signs = np.diag([-1.0, -1, -1, 1, -1, -1, -1, -1])
    np.testing.assert_array_equal(swimmer.state_matrix(swimmer.maps[0]), signs)
    np.testing.assert_array_equal(swimmer.action_matrix(swimmer.maps[0]), -np.eye(2))


def test_mirrored_orientation_is_that_of_the_mirrored_axes():
    ant = ROBOTS["Ant"]
    turn, spin = Rotation.random(random_state=0).as_matrix(), np.array([0.3, -0.7, 1.1])
    state = np.concatenate([[0.5], turn.ravel(), np.zeros(8), [1.0, 2.0, 3.0], spin, np.zeros(8)])
    mirror = np.diag([1.0, -1.0, 1.0])
    found = ant.state_matrix(ant.maps[0]) @ state
    np.testing.assert_allclose(found[1:10].reshape(3, 3), mirror @ turn @ mirror)
    np.testing.assert_allclose(found[18:21], [1.0, -2.0, 3.0])
    np.testing.assert_allclose(found[21:24], [-0.3, -0.7, -1.1])  # spins are axial
    quarter = Rotation.from_euler("z", 90, degrees=True).as_matrix()
    found = ant.state_matrix(ant.maps[1]) @ state
    np.testing.assert_allclose(found[1:10].reshape(3, 3), turn @ quarter.T, atol=1e-12)
    np.testing.assert_allclose(found[21:24], quarter @ spin, atol=1e-12)
    np.testing.assert_allclose(found[18:21], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", ROBOTS)
def test_group_is_closed_and_its_representations_multiply(name):
    robot = ROBOTS[name]
    symmetry = robot.symmetry
    assert len(symmetry.states) == symmetry.group.dimension == ORDERS[name]
    assert symmetry.group.is_permutation and symmetry.state.size == robot.state_size
    both = torch.cat([symmetry.states.flatten(1), symmetry.actions.flatten(1)], 1)
    assert len(both.unique(dim=0)) == ORDERS[name]
    products = torch.einsum("aij,bjk->abik", symmetry.states, symmetry.states).flatten(0, 1)
    distances = torch.cdist(products.flatten(1), symmetry.states.flatten(1))
    assert float(distances.min(1).values.max()) < 1e-9
    # The representations are those of the generators.
    for k, each in enumerate(robot.maps):
        np.testing.assert_array_equal(
            symmetry.state.discrete[k].toarray(), robot.state_matrix(each)
        )
        np.testing.assert_array_equal(
            symmetry.action.discrete[k].toarray(), robot.action_matrix(each)
        )


def test_ant_has_the_group_of_the_square():
    ant = ROBOTS["Ant"]
    mirror, turn = (ant.state_matrix(each) for each in ant.maps)
    one = np.eye(32)
    np.testing.assert_array_equal(np.linalg.matrix_power(turn, 4), one)
    np.testing.assert_array_equal(mirror @ turn @ mirror @ turn, one)
    assert not np.array_equal(np.linalg.matrix_power(turn, 2), one)


def test_control_has_the_trivial_group():
    control = without_symmetry(ROBOTS["Ant"])
    assert control.group.dimension == 1 and not control.group.discrete
    assert (control.state.size, control.action.size) == (32, 8)
    assert torch.equal(control.states, torch.eye(32, dtype=torch.float64)[None])


# --- simulation ---------------------------------------------------------------------------------


@needs_mujoco
@pytest.mark.parametrize("name", ROBOTS)
def test_states_are_observations_with_the_orientation_as_a_matrix(name):
    import gymnasium

    robot = ROBOTS[name]
    own = gymnasium.make(robot.environment, **robot.options)
    observation, _ = own.reset(seed=4)
    simulator = Simulator(robot)
    state = simulator.reset(4)
    if robot.has_free_root:
        turn = Rotation.from_quat(observation[1:5], scalar_first=True).as_matrix().ravel()
        observation = np.concatenate([observation[:1], turn, observation[5:]])
    np.testing.assert_allclose(state, observation, atol=1e-12)
    # There and back: a step of no length.
    positions, velocities = simulator._coordinates(state)
    assert positions[: robot.unobserved].tolist() == [0] * robot.unobserved
    np.testing.assert_allclose(velocities, own.unwrapped.data.qvel, atol=1e-12)


@needs_mujoco
def test_a_first_step_is_that_of_the_environment():
    import gymnasium

    own = gymnasium.make("Swimmer-v5")
    own.reset(seed=3)
    action = np.array([0.3, -0.8])
    observation, reward, *_ = own.step(action)
    simulator = Simulator(ROBOTS["Swimmer"])
    state, gained = simulator.step(simulator.reset(3), action)
    np.testing.assert_allclose(state, observation, atol=1e-9)
    assert gained == pytest.approx(reward, abs=1e-9)


@needs_mujoco
def test_weak_motors_are_those_of_smaller_actions():
    weak, strong = Simulator(ROBOTS["Walker2d-weak-left"]), Simulator(ROBOTS["Walker2d"])
    start, action = strong.reset(0), np.linspace(-1, 1, 6)
    halved = action * np.array([1, 1, 1, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(weak.step(start, action)[0], strong.step(start, halved)[0])


@needs_mujoco
@pytest.mark.parametrize("name", ["Walker2d", "Ant"])
def test_replay_follows_from_its_actions_and_seed(name):
    robot, found = ROBOTS[name], replay(name, 3, 12, seed=5)
    assert found.states.shape == (3, 13, robot.state_size)
    assert found.actions.shape == (3, 12, len(robot.motors)) and found.rewards.shape == (3, 12)
    again, other = replay(robot, 3, 12, seed=5), replay(robot, 3, 12, seed=6)
    assert torch.equal(again.states, found.states) and torch.equal(again.actions, found.actions)
    assert not torch.equal(other.states[:, 0], found.states[:, 0])
    simulator = Simulator(robot)
    for episode, step in ((0, 11), (1, 4), (2, 7)):
        begin, end = found.states[episode, step : step + 2].numpy()
        state, reward = simulator.step(begin, found.actions[episode, step].numpy())
        np.testing.assert_array_equal(state, end)
        assert reward == float(found.rewards[episode, step])


@needs_mujoco
def test_policies_take_turns():
    actions = replay("Humanoid", 3, 40).actions
    assert float(actions.abs().max()) <= 0.4 + 1e-6  # the largest action of this environment
    drawn, held, swung = (each.diff(dim=0) for each in actions)
    assert (drawn != 0).all()
    assert 0.1 < float((held != 0).double().mean()) < 0.5
    assert float(swung.diff(dim=0).abs().mean()) < 0.5 * float(drawn.diff(dim=0).abs().mean())


# --- refusals -----------------------------------------------------------------------------------


@needs_mujoco
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"joints": ROBOTS["Hopper"].joints[:-1]}, "Hopper-v5.*observation of 11 numbers.*of 9"),
        ({"motors": ROBOTS["Hopper"].motors[:-1]}, "Hopper-v5.*action of 3 numbers.*of 2"),
        ({"unobserved": 2}, "Hopper-v5.*observation of 11 numbers.*of 10"),
        ({"joints": (*ROBOTS["Hopper"].joints[:-1], "toe")}, "Hopper-v5: expected joints rootx"),
        ({"environment": "Hopper-v99"}, "does not make Hopper-v99"),
    ],
)
def test_robots_that_are_not_the_environment_are_refused(changed, message):
    with pytest.raises(CallerError, match=message):
        Simulator(replace(ROBOTS["Hopper"], maps=(), **changed))


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("Walker2d", {"joints": {"leg_joint": "foot_joint"}}, "Walker2d-v5, map legs.*go to one"),
        ("Walker2d", {"joints": {"tail": "leg_joint"}}, "unknown name .*'tail'"),
        ("Walker2d", {"joints": {"leg_joint": "-tail"}}, "unknown name .*'tail'"),
        ("Walker2d", {"joints": {"rootx": "rootz", "rootz": "rootx"}}, "goes to the robot's place"),
        ("Ant", {"world": (1, -2, 3)}, "both turns or both mirrorings"),
        ("Ant", {"world": (1, 2, -3), "body": (1, 2, -3)}, "leave the vertical"),
        ("Ant", {"body": (1, 1, 3)}, "expected the axes 1, 2, 3"),
    ],
)
def test_maps_that_are_no_group_are_refused(name, changed, message):
    with pytest.raises(CallerError, match=message):
        with_map(name, **changed).symmetry  # noqa: B018


def test_a_robot_without_maps_has_no_group():
    bare = replace(ROBOTS["Hopper"], maps=())
    with pytest.raises(CallerError, match="Hopper-v5: expected maps that generate a group"):
        bare.symmetry  # noqa: B018
    with pytest.raises(CallerError, match="Hopper-v5: expected maps to measure"):
        violation(bare)


def test_groups_that_are_too_large_are_refused():
    names = tuple(f"j{k}" for k in range(7))
    cycle = RobotMap("cycle", {f"j{k}": f"j{(k + 1) % 7}" for k in range(7)})
    swap = RobotMap("swap", {"j0": "j1", "j1": "j0"})
    robot = replace(ROBOTS["Hopper"], joints=names, motors=names, unobserved=0, maps=(cycle, swap))
    with pytest.raises(CallerError, match="at most 384 elements"):
        robot.symmetry  # noqa: B018


def test_unknown_robots_and_empty_replays_are_refused():
    with pytest.raises(CallerError, match="did you mean 'Walker2d'"):
        robot_named("Walker")
    with pytest.raises(CallerError, match="episodes: expected at least 1"):
        replay("Hopper", 0, 3)
    with pytest.raises(CallerError, match="steps of an episode: expected at least 1"):
        replay("Hopper", 3, 0)


def test_without_mujoco_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", type(sys)("gymnasium"))
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(CallerError, match=r"mujoco is not installed; pip install isotropy\[rl\]"):
        violation("Walker2d")


@needs_mujoco
def test_another_version_than_the_record_is_refused():
    assert mujoco_version(mujoco_version()) == mujoco_version()
    with pytest.raises(CallerError, match="expected mujoco 3.17.0, which the record was made with"):
        mujoco_version("3.17.0")
