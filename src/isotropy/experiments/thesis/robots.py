"""Policies of simulated robots learned by SAC, with the robots' symmetries hard, soft or none.

Rows are robots/ROBOT/MODEL; settings are in `robots.toml`, the models in `control.policies`; those
called -policy leave the value functions plain (Figure A.2). Every seed is a job of its own, so that
`--workers` runs seeds side by side (Finzi 2023, 3.6.1). What is compared is the area under the
curve of evaluation returns, which all evaluations of a seed enter:

    difference   mean over seeds of area(model) − area(mlp), with Student's 95 % interval over
                 pairs of equal seeds; it is significant where the interval leaves zero out

A bootstrap over three pairs would leave zero out whenever all three have one sign, which chance
does one time in four.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import mean, stdev
from typing import Any

import scipy.stats
import torch

from isotropy.data.replay import mujoco_version
from isotropy.data.robots import robot_named
from isotropy.experiments.runner import Job, Series
from isotropy.workflows.controlling import ControlConfig, bootstrap_interval, train_policies

PREFIX = "robots"
COST = {"mlp": 1.0, "emlp": 1.1, "rpp": 1.3, "rpp-trivial": 1.3}
"""Seconds of a step in those of an MLP."""
KEPT = (
    "group", "violation", "steps", "mean_return", "area", "softness", "policy_error",
    "steps_per_second", "seconds",
)  # fmt: skip
"""Entries of a run's record that a row has too."""


def jobs(table: Mapping[str, Any], quick: bool) -> list[Job]:
    """Every robot and model of the table, robot by robot."""
    changed = dict(table["quick"]) if quick else {}
    seeds = tuple(changed.pop("seeds", table["seeds"]))
    models = changed.pop("models", table["models"])
    robots = changed.pop("robots", list(table["robots"]))
    settings = {**table["settings"], "mujoco": table["mujoco"], **changed}
    return [
        Job(
            f"{PREFIX}/{robot}/{name}",
            seeds,
            {
                **settings,
                "robot": robot,
                "name": name,
                **table["variants"].get(name, {"model": name}),
                "symmetry": table["robots"][robot],
            },
            COST.get(name, COST["rpp"]) * robot_named(robot).state_size,
            rank,
        )
        for rank, robot in enumerate(robots)
        for name in models
    ]


def run(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """Train the seeds of one row; the numbers of each."""
    own = job.settings
    version = mujoco_version(own["mujoco"])
    known = {each.name for each in fields(ControlConfig)}
    settings = {name: value for name, value in own.items() if name in known}
    found = []
    for seed in job.seeds:
        config = ControlConfig(**{**settings, "seeds": (seed,)})
        record = train_policies(own["robot"], config=config, device=device).record
        found.append(
            {
                **{name: own[name] for name in ("robot", "symmetry", "critic")},
                "model": own["name"],
                **{name: record[name] for name in KEPT},
                "curve": [[point["steps"], point["mean"]] for point in record["curve"]],
                "mujoco": version,
            }
        )
    return found


# -- what came out -----------------------------------------------------------------------------


def differences(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """Areas of each robot and model less those of mlp, by equal seeds."""
    areas = {(each["robot"], each["model"], each["seed"]): each["area"] for each in records}
    found: dict[tuple[str, str], list[float]] = {}
    for (robot, model, seed), area in areas.items():
        if model != "mlp" and (robot, "mlp", seed) in areas:
            found.setdefault((robot, model), []).append(area - areas[robot, "mlp", seed])
    return found


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is significant first, and then the table."""
    chosen = [each for each in records if each["row"].startswith(f"{PREFIX}/")]
    lines = [difference_line(*key, found) for key, found in differences(chosen).items()]
    for robot in dict.fromkeys(each["robot"] for each in chosen):
        own = [each for each in chosen if each["robot"] == robot]
        lines.append(f"{robot} ({own[0]['symmetry']} symmetry): area, return at the end, steps/s")
        for model in dict.fromkeys(each["model"] for each in own):
            rows = [each for each in own if each["model"] == model]
            area, last = (_spread([row[name] for row in rows]) for name in ("area", "mean_return"))
            speed = mean(row["steps_per_second"] for row in rows)
            lines.append(f"  {model:<12}{area}{last}{speed:8.0f}   {len(rows)} seeds")
    return lines


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of a mean; None of fewer than two."""
    if len(differences) < 2:
        return None
    reach = stdev(differences) / math.sqrt(len(differences))
    reach *= float(scipy.stats.t.ppf(0.975, len(differences) - 1))
    return mean(differences) - reach, mean(differences) + reach


def _spread(values: Sequence[float]) -> str:
    interval = bootstrap_interval(values)
    told = "" if interval is None else f" [{interval[0]:.0f}, {interval[1]:.0f}]"
    return f"{mean(values):8.0f}{told:<14}"


def difference_line(robot: str, model: str, found: Sequence[float]) -> str:
    """How far a model is from mlp, and whether that is significant."""
    interval = paired_interval(found)
    what = f"{robot}: the area of {model} less that of mlp is {mean(found):+.0f}"
    if interval is None:
        return f"{what}, of one seed, which says nothing"
    low, high = interval
    verdict = "significant" if low > 0 or high < 0 else "not significant"
    return f"{what} [{low:.0f}, {high:.0f}], {len(found)} seeds: {verdict}"


SERIES = Series(jobs, run, summary, apart=True)
