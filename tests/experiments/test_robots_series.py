"""Policies of robots in miniature: rows, what a row holds, and what is said to be significant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isotropy.checks import CallerError
from isotropy.experiments.runner import Job, read_table
from isotropy.experiments.thesis import robots

TINY: dict[str, Any] = {
    "steps": 20, "evaluate_every": 10, "episodes": 1, "start": 5, "width": 8, "batch_size": 8,
}  # fmt: skip


def record(model: str, seed: int, area: float) -> dict[str, Any]:
    return {
        "row": f"robots/Walker2d/{model}", "robot": "Walker2d", "model": model, "seed": seed,
        "symmetry": "exact", "area": area, "mean_return": 2 * area, "steps_per_second": 40.0,
    }  # fmt: skip


def test_every_row_of_the_table_is_a_job() -> None:
    table = read_table("robots")
    found = robots.jobs(table, quick=False)
    assert [job.row for job in found[:3]] == [
        f"robots/Walker2d/{model}" for model in ("mlp", "emlp", "rpp")
    ]
    assert len(found) == len(table["robots"]) * len(table["models"])
    critics = {job.settings["name"]: job.settings["critic"] for job in found}
    assert critics["emlp"] == "same" and critics["emlp-policy"] == "mlp"
    assert [job.rank for job in found] == sorted(job.rank for job in found)
    assert all(job.seeds == (0, 1, 2) and job.settings["steps"] == 50_000 for job in found)
    quick = robots.jobs(table, quick=True)
    assert {job.row for job in quick} <= {job.row for job in found} and quick[0].seeds == (0,)
    assert robots.SERIES.apart


def test_a_row_runs() -> None:
    for needed in ("stable_baselines3", "mujoco", "gymnasium"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    table = read_table("robots")
    job = robots.jobs(table, quick=True)[1]
    (found,) = robots.run(Job(job.row, (0,), {**job.settings, **TINY}), torch.device("cpu"))
    assert [steps for steps, _ in found["curve"]] == [10, 20]
    assert found["model"] == "emlp" and found["policy_error"] < 1e-5 and found["violation"] < 1e-12
    with pytest.raises(CallerError, match="expected mujoco 0.0"):
        robots.run(Job(job.row, (0,), {**job.settings, "mujoco": "0.0"}), torch.device("cpu"))
    plain_critic = next(job for job in robots.jobs(table, False) if job.row.endswith("-policy"))
    own = {**plain_critic.settings, **TINY}
    (found,) = robots.run(Job(plain_critic.row, (0,), own), torch.device("cpu"))
    assert (found["model"], found["critic"]) == ("emlp-policy", "mlp")
    assert not any("critic" in name for name in found["softness"])


def test_differences_are_of_equal_seeds() -> None:
    records = [record("mlp", 0, 10.0), record("rpp", 0, 15.0), record("rpp", 1, 99.0)]
    assert robots.differences(records) == {("Walker2d", "rpp"): [5.0]}


def test_summary_says_what_is_significant_first() -> None:
    plain = [record("mlp", seed, 100.0 + seed) for seed in range(3)]
    better = [record("rpp", seed, 150.0 + 2 * seed) for seed in range(3)]
    alike = [record("emlp", seed, 100.0 + 20 * (seed - 1)) for seed in range(3)]
    first, second, head, *rows = robots.summary([*plain, *better, *alike])
    assert first.startswith("Walker2d: the area of rpp less that of mlp is +51")
    assert first.endswith("3 seeds: significant") and second.endswith("not significant")
    assert head.startswith("Walker2d (exact symmetry)") and len(rows) == 3
    assert robots.summary([plain[0], better[0]])[0].endswith("of one seed, which says nothing")
