"""Training of policies in miniature: records, intervals, run folders that go on, bad input."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from isotropy.checks import CallerError
from isotropy.control.groups import SignedGroup
from isotropy.records import read_lines
from isotropy.workflows.controlling import (
    ControlConfig,
    ControlResult,
    Evaluation,
    bootstrap_interval,
    curve_of,
    train_policies,
)

for needed in ("stable_baselines3", "mujoco", "gymnasium"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

TINY = ControlConfig(steps=30, evaluate_every=10, episodes=1, start=10, width=8, batch_size=8)
MIRROR = SignedGroup("mirror", ((1, -2, -3),), ((-1,),))


def test_a_run_tells_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where stable-baselines3 would put a log that nobody asked for.
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path / "log"))
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    result = train_policies("Walker2d-v5", config=replace(TINY, seeds=(0, 3)))
    record = result.record
    assert (record["environment"], record["model"], record["steps"]) == ("Walker2d-v5", "rpp", 30)
    assert record["group"] == "Walker2d-v5 (legs)" and record["violation"] < 1e-12
    assert record["seeds"] == [0, 3] and set(result.agents) == {0, 3}
    assert [point["steps"] for point in record["curve"]] == [10, 20, 30]
    returns = np.array([point["returns"] for point in record["curve"]])
    assert record["area"] == pytest.approx(returns.mean())
    assert record["mean_return"] == pytest.approx(returns[-1].mean())
    assert 0 < record["softness"]["actor.mu"] < 0.1 and 0 < record["policy_error"] < 0.5
    assert not list(tmp_path.iterdir())
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0]) and np.array_equal(before[1], after[1])
    assert before[2] == after[2]


def test_hard_policies_break_nothing_and_plain_ones_do() -> None:
    errors = {
        model: train_policies("Walker2d", config=replace(TINY, model=model)).record["policy_error"]
        for model in ("emlp", "mlp")
    }
    assert errors["emlp"] < 1e-5 and errors["mlp"] > 0.1


def test_equal_seeds_give_equal_numbers() -> None:
    first, second = (train_policies("Walker2d", config=TINY).record for _ in range(2))
    assert first["curve"] == second["curve"]


def test_weak_motors_are_weak_and_said_to_break_the_symmetry() -> None:
    record = train_policies("Walker2d-weak-left", config=TINY).record
    assert record["violation"] > 0.1 and "no symmetry of the simulation" in record["notes"][0]


@pytest.mark.slow
def test_own_maps_of_an_environment_that_cannot_be_set() -> None:
    record = train_policies("Pendulum-v1", group=MIRROR, config=TINY).record
    assert record["violation"] is None and "was not measured" in record["notes"][0]
    plain = train_policies("Pendulum-v1", config=replace(TINY, model="mlp")).record
    assert plain["group"] is None and plain["policy_error"] is None and plain["softness"] == {}


# -- run folders -------------------------------------------------------------------------------


class Stopped(Exception):
    """What ends a run in a test."""


def stop_at(seed: int, steps: int):
    def progress(config: ControlConfig, row: Evaluation) -> None:
        if (row.seed, row.steps) == (seed, steps):
            raise Stopped

    return progress


@pytest.mark.slow
def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    config, folder = replace(TINY, seeds=(0, 1)), tmp_path / "run"
    with pytest.raises(Stopped):
        train_policies(
            "Walker2d", config=config, folder=folder, progress=stop_at(1, 20)
        )  # fmt: skip
    kept = read_lines(folder / "metrics.jsonl")
    assert [(row["seed"], row["steps"]) for row in kept] == [
        (0, 10), (0, 20), (0, 30), (1, 10), (1, 20),
    ]  # fmt: skip
    assert (folder / "seed-1-replay.pkl").exists() and not (folder / "seed-0-replay.pkl").exists()
    result = train_policies("Walker2d", config=config, folder=folder, resume=True)
    rows = read_lines(folder / "metrics.jsonl")
    assert rows[:5] == kept and [rows[5][name] for name in ("seed", "steps")] == [1, 30]
    assert result.agents[1].replay_buffer.pos == 0 and result.agents[1].replay_buffer.full
    assert {each.name for each in folder.iterdir()} == {
        "config.json", "metrics.jsonl", "checkpoint.safetensors", "result.json", "report.html",
        "seed-0.zip", "seed-1.zip",
    }  # fmt: skip
    again = train_policies("Walker2d", config=config, folder=folder, resume=True)
    assert again.record["curve"] == result.record["curve"]
    assert again.record["steps_per_second"] is None
    with pytest.raises(CallerError, match="already holds a run"):
        train_policies("Walker2d", config=config, folder=folder)
    with pytest.raises(CallerError, match="is of another run"):
        train_policies(
            "Walker2d", config=replace(config, model="mlp"), folder=folder, resume=True
        )  # fmt: skip


def test_saved_agents_are_those_of_stable_baselines(tmp_path: Path) -> None:
    from stable_baselines3 import SAC

    result = train_policies("Walker2d", config=TINY, folder=tmp_path / "run")
    assert isinstance(result, ControlResult)
    back = SAC.load(tmp_path / "run" / "seed-0.zip", device="cpu")
    rows = np.random.default_rng(0).normal(size=(5, 17)).astype(np.float32)
    own = result.agents[0].predict(rows, deterministic=True)[0]
    assert np.array_equal(own, back.predict(rows, deterministic=True)[0])


# -- numbers -----------------------------------------------------------------------------------


def test_intervals_of_means() -> None:
    assert bootstrap_interval([3.0]) is None
    low, high = bootstrap_interval([0.0, 1.0]) or []
    assert (low, high) == (0.0, 1.0)
    values = np.random.default_rng(1).normal(5, 1, 400).tolist()
    low, high = bootstrap_interval(values) or []
    # The central limit theorem: mean ± 1.96 s / √n.
    assert high - low == pytest.approx(2 * 1.96 * np.std(values) / 20, rel=0.15)


def test_points_of_the_curve_have_all_seeds() -> None:
    rows = [{"seed": s, "steps": t, "mean_return": float(s + t)} for s in (0, 1) for t in (1, 2)]
    found = curve_of(rows[:3])
    assert [(each["steps"], each["mean"]) for each in found] == [(1, 1.5)]
    assert math.isclose(curve_of(rows)[1]["mean"], 2.5)


# -- bad input ---------------------------------------------------------------------------------

BAD = {
    "no maps": ("Pendulum-v1", {}, {}, "no maps are known that mirror it"),
    "unknown": ("Nobody-v0", {}, {}, "does not make Nobody-v0"),
    "a module that is not there": ("nothing:Env-v0", {}, {}, "No module named .nothing"),
    "discrete": ("CartPole-v1", {"model": "mlp"}, {}, "vectors of numbers, got Discrete"),
    "size": ("Walker2d-v5", {}, {"group": MIRROR}, "expected maps of 17 and 6 numbers"),
    "other size": (
        "Pendulum-v1",
        {},
        {"group": SignedGroup("pair", ((2, 1),), ((1,),))},
        "maps of 3 observed numbers and 1 actions",
    ),
    "seeds": ("Walker2d-v5", {"seeds": (1, 1)}, {}, "expected numbers from 0, each once"),
    "model": ("Walker2d-v5", {"model": "gnn"}, {}, "model"),
    "steps": ("Walker2d-v5", {"steps": 0}, {}, "steps"),
}


@pytest.mark.parametrize(("name", "settings", "given", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_told_in_a_sentence(name, settings, given, words: str) -> None:
    with pytest.raises(CallerError, match=words):
        train_policies(name, config=replace(TINY, **settings), **given)
