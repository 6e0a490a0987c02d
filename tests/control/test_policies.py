"""Policies in stable-baselines3: symmetric before and after training, saved, loaded, trained on."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.control import SignedGroup, group_named, softness
from isotropy.control.networks import MODELS

stable_baselines3 = pytest.importorskip(
    "stable_baselines3", reason="stable-baselines3 is not installed"
)
gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")
pytest.importorskip("mujoco", reason="mujoco is not installed")

from isotropy.control.policies import (  # noqa: E402
    SoftPPOPolicy,
    SoftSACPolicy,
    SoftTD3Policy,
)

MIRROR = SignedGroup("mirror", ((1, -2, -3),), ((-1,),))
ALGORITHMS = {
    "SAC": (stable_baselines3.SAC, SoftSACPolicy),
    "TD3": (stable_baselines3.TD3, SoftTD3Policy),
}
THEIR_PREPROCESSING = "stable_baselines3.common.policies.preprocess_obs"
"""It rounds to single precision."""

TINY: dict[str, Any] = {"learning_starts": 20, "buffer_size": 200, "batch_size": 32, "seed": 0}


@pytest.fixture(autouse=True)
def _logs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stable-baselines3 puts its log, which is the folder for temporary files otherwise."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path / "log"))


def agent(name: str, kind: str, model: str, group: Any = None, **changed: Any) -> Any:
    algorithm, policy = ALGORITHMS[kind]
    group = group or (MIRROR if name == "Pendulum-v1" else name)
    own = {"group": group, "model": model, "net_arch": [16, 16], **changed}
    theirs = {"use_sde": own.pop("use_sde")} if "use_sde" in own else {}
    return algorithm(policy, name, policy_kwargs=own, device="cpu", **TINY, **theirs)


def observations(name: str, count: int = 6) -> np.ndarray:
    """Observations that random actions lead to."""
    environment = gymnasium.make(name)
    found = [environment.reset(seed=0)[0]]
    environment.action_space.seed(0)
    while len(found) < count:
        found.append(environment.step(environment.action_space.sample())[0])
    return np.stack(found)


def mirrored(name: str, rows: np.ndarray, element: int) -> np.ndarray:
    """Observations as they look under an element; quaternions by the rotation that they are."""
    group = MIRROR if name == "Pendulum-v1" else group_named(name)
    matrix = group.observation.matrices()[element]
    if group.quaternion is None:
        return rows @ matrix.T
    from scipy.spatial.transform import Rotation

    place = group.quaternion
    turn = Rotation.from_quat(rows[:, place : place + 4], scalar_first=True).as_matrix()
    parts = rows[:, :place], turn.reshape(-1, 9), rows[:, place + 4 : group.observed]
    moved = np.concatenate(parts, 1) @ matrix.T
    back = Rotation.from_matrix(moved[:, place : place + 9].reshape(-1, 3, 3))
    parts = moved[:, :place], back.as_quat(scalar_first=True), moved[:, place + 9 :]
    return np.concatenate([*parts, rows[:, group.observed :]], 1)


def symmetry_error(model: Any, name: str) -> float:
    """The largest of errors of means, spreads and Q, over all elements of the group.

    In double precision, on a copy and without their preprocessing.
    """
    group = MIRROR if name == "Pendulum-v1" else group_named(name)
    rows, policy = observations(name), copy.deepcopy(model.policy).double()
    for part in (policy.actor, policy.critic):
        part.extract_features = lambda given, extractor: extractor(given)
    actions = torch.linspace(-0.9, 0.9, len(rows) * group.action.size).double()
    actions = actions.view(len(rows), -1)

    def outputs(given: np.ndarray, chosen: torch.Tensor) -> list[torch.Tensor]:
        state = torch.from_numpy(given).double()
        if hasattr(policy.actor, "get_action_dist_params"):
            mean, log_std, _ = policy.actor.get_action_dist_params(state)
        else:
            mean, log_std = policy.actor(state), torch.zeros(len(given), group.action.size)
        return [mean, log_std.double(), torch.cat(policy.critic(state, chosen), 1)]

    found = []
    with torch.no_grad():
        before = outputs(rows, actions)
        for element in range(group.order):
            of_action = torch.from_numpy(group.action.matrices()[element])
            after = outputs(mirrored(name, rows, element), actions @ of_action.mT)
            wanted = [before[0] @ of_action.mT, before[1] @ of_action.abs().mT, before[2]]
            found += [float((a - w).abs().max()) for a, w in zip(after, wanted, strict=True)]
    return max(found)


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize(
    "name", ["Walker2d-v5", "Swimmer-v5", "Ant-v5", "Humanoid-v5", "HalfCheetah-v5", "Hopper-v5"]
)
def test_hard_policies_are_symmetric_before_and_after_training(kind: str, name: str) -> None:
    model = agent(name, kind, "emlp")
    assert symmetry_error(model, name) < 1e-6
    before = [each.clone() for each in model.policy.actor.parameters()]
    model.learn(30)
    pairs = zip(model.policy.actor.parameters(), before, strict=True)
    # Motors that change sign have no constant.
    assert all((after - first).abs().max() > 1e-4 for after, first in pairs if len(first))
    assert symmetry_error(model, name) < 1e-6


@pytest.mark.parametrize("name", ["Walker2d-v5", "Ant-v5", "Pendulum-v1"])
def test_soft_policies_begin_symmetric_and_become_soft(name: str) -> None:
    model = agent(name, "SAC", "rpp")
    assert symmetry_error(model, name) < 1e-6
    model.learn(30)
    assert symmetry_error(model, name) > 1e-5
    assert 0 < softness(model.policy.actor)["mu"] < 0.2


def test_plain_models_have_no_symmetry_and_the_trivial_one_learns_without() -> None:
    for kind in ("mlp", "rpp-trivial"):
        assert symmetry_error(agent("Walker2d-v5", "SAC", kind), "Walker2d-v5") > 1e-3


def test_mlp_is_theirs() -> None:
    ours, theirs = (
        stable_baselines3.SAC(policy, "Pendulum-v1", seed=0, policy_kwargs=own, device="cpu")
        for policy, own in ((SoftSACPolicy, {"model": "mlp"}), ("MlpPolicy", {}))
    )
    for own, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_a_plain_critic_beside_a_symmetric_policy() -> None:
    model = agent("Walker2d-v5", "SAC", "emlp", symmetric_critic=False)
    assert softness(model.policy.actor) and not softness(model.policy.critic)


def test_penalty_is_a_weight_decay_of_free_parts_of_the_actor() -> None:
    model = agent("Pendulum-v1", "SAC", "rpp", free_penalty=0.5, free_rate=0.2)
    others, free = model.policy.actor.optimizer.param_groups
    assert (others["weight_decay"], free["weight_decay"]) == (0, pytest.approx(2 * 0.5 * 0.04))
    sizes = {tuple(each.shape) for each in free["params"]}
    assert sizes == {(16, 3), (16, 16), (16,), (1, 16), (1,)}
    known = {id(each) for each in (*others["params"], *free["params"])}
    assert known == {id(each) for each in model.policy.actor.parameters()}
    assert len(model.policy.critic.optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("model", MODELS)
def test_saved_policies_come_back(kind: str, model: str, tmp_path: Path) -> None:
    made = agent("Pendulum-v1", kind, model)
    made.learn(25)
    made.save(tmp_path / "agent")
    back = type(made).load(tmp_path / "agent", env=made.get_env(), device="cpu")
    rows = observations("Pendulum-v1").astype(np.float32)
    assert np.array_equal(*(each.predict(rows, deterministic=True)[0] for each in (made, back)))
    back.learn(5, reset_num_timesteps=False)
    made.policy.save(str(tmp_path / "policy"))
    alone = type(made.policy).load(str(tmp_path / "policy"), device="cpu")
    assert np.array_equal(*(e.predict(rows, deterministic=True)[0] for e in (made, alone)))


def test_policies_of_ant_come_back_with_their_features(tmp_path: Path) -> None:
    made = agent("Ant-v5", "SAC", "emlp")
    made.policy.save(str(tmp_path / "policy"))
    alone = SoftSACPolicy.load(str(tmp_path / "policy"), device="cpu")
    rows = observations("Ant-v5")
    assert np.array_equal(*(e.predict(rows, deterministic=True)[0] for e in (made, alone)))


@pytest.mark.parametrize("model", ["emlp", "rpp"])
def test_ppo_has_the_same_symmetry(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"group": "Walker2d", "model": model, "net_arch": [16, 16]}
    made = stable_baselines3.PPO(
        SoftPPOPolicy, "Walker2d-v5", n_steps=32, batch_size=16, n_epochs=2, seed=0,
        policy_kwargs=own, device="cpu",
    )  # fmt: skip
    group, rows = group_named("Walker2d"), observations("Walker2d-v5")
    of_action = torch.from_numpy(group.action.matrices()[1])

    def error() -> float:
        policy = made.policy.double()  # and back: rounding to single changes nothing
        states = [torch.from_numpy(each) for each in (rows, mirrored("Walker2d-v5", rows, 1))]
        with torch.no_grad(), monkeypatch.context() as patch:
            patch.setattr(THEIR_PREPROCESSING, lambda given, *_, **__: given)
            means = [policy.get_distribution(each).distribution.mean for each in states]
            values = [policy.predict_values(each) for each in states]
            spread = policy.log_std - of_action.abs() @ policy.log_std
        parts = (means[1] - means[0] @ of_action.T, values[1] - values[0], spread)
        made.policy.float()
        return max(float(each.abs().max()) for each in parts)

    assert error() < 1e-6
    made.learn(64)
    assert (error() < 1e-6) is (model == "emlp")
    made.save(tmp_path / "agent")
    back = stable_baselines3.PPO.load(tmp_path / "agent", device="cpu")
    assert np.array_equal(*(each.predict(rows, deterministic=True)[0] for each in (made, back)))


# -- bad input ---------------------------------------------------------------------------------

BAD = {
    "no group": ("Pendulum-v1", {"group": None}, 'or take model="mlp"'),
    "unknown": ("Pendulum-v1", {"group": "Pendulum-v1"}, 'or take model="mlp"'),
    "other size": ("Pendulum-v1", {"group": "Walker2d"}, "maps of 3 observed numbers and 1"),
    "model": ("Pendulum-v1", {"group": MIRROR, "model": "gnn"}, "model"),
    "rate": ("Pendulum-v1", {"group": MIRROR, "free_rate": 0.0}, "free_rate: expected above 0"),
    "large rate": ("Pendulum-v1", {"group": MIRROR, "free_rate": 1e30}, "at most 1000"),
}


@pytest.mark.parametrize(("name", "given", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_told_in_a_sentence(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(CallerError, match=words):
        stable_baselines3.SAC(SoftSACPolicy, name, policy_kwargs=given, device="cpu")


def test_noise_without_symmetry_is_refused() -> None:
    with pytest.raises(CallerError, match="expected use_sde=False"):
        agent("Pendulum-v1", "SAC", "emlp", use_sde=True)


def test_discrete_actions_and_uneven_bounds_are_refused() -> None:
    with pytest.raises(CallerError, match="actions: expected a vector of numbers"):
        stable_baselines3.PPO(SoftPPOPolicy, "CartPole-v1", policy_kwargs={"group": MIRROR})
    space = gymnasium.spaces
    uneven = space.Box(np.array([-1.0], "f4"), np.array([2.0], "f4"))
    with pytest.raises(CallerError, match="leave the largest actions where they are"):
        SoftSACPolicy(space.Box(-1, 1, (3,)), uneven, lambda _: 1e-3, group=MIRROR)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["Pendulum-v1", "Walker2d-v5"])
def test_two_thousand_steps_saved_loaded_and_on(name: str, tmp_path: Path) -> None:
    group = MIRROR if name == "Pendulum-v1" else "Walker2d"
    made = stable_baselines3.SAC(
        SoftSACPolicy, name, learning_starts=500, buffer_size=5000, seed=0, device="cpu",
        policy_kwargs={"group": group, "model": "rpp"},
    )  # fmt: skip
    made.learn(2000)
    made.save(tmp_path / "agent")
    made.save_replay_buffer(tmp_path / "buffer")
    back = stable_baselines3.SAC.load(tmp_path / "agent", env=made.get_env(), device="cpu")
    back.load_replay_buffer(tmp_path / "buffer")
    rows = observations(name)
    assert np.array_equal(*(each.predict(rows, deterministic=True)[0] for each in (made, back)))
    back.learn(100, reset_num_timesteps=False)
    assert back.num_timesteps == 2100 and back.replay_buffer.pos == 2100
    assert all(torch.isfinite(each).all() for each in back.policy.parameters())
    assert 0 < max(softness(back.policy.actor).values()) < 0.9
