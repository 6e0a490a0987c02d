"""Policies of robots, from the rows in results/robots: for `results_page.py`.

What is significant and what is not comes first. Then one line a robot and model: means over seeds,
with each seed's number beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from equivariant_tables import NOT_RUN, made_with

from isotropy.experiments.runner import ROWS, read_rows, read_table
from isotropy.experiments.thesis import robots

Record = Mapping[str, Any]


def robots_table(results: Path) -> str:
    """Differences to the plain policy, and returns by robot and model."""
    records = read_rows(results / "robots" / ROWS)
    if not records:
        return NOT_RUN
    said = [
        f"- {robots.difference_line(*key, found)}."
        for key, found in robots.differences(records).items()
    ]
    lines = [
        "| robot | model | steps | mean over training | return at the end | policy breaks the maps "
        "by | steps per second |",
        "|---" * 7 + "|",
    ]
    for robot, model in dict.fromkeys((each["robot"], each["model"]) for each in records):
        own = [each for each in records if (each["robot"], each["model"]) == (robot, model)]
        lines.append(_line(robot, model, own))
    parts = ["\n".join(said), "\n".join(lines), made_with(records), not_run(records)]
    return "\n\n".join(part for part in parts if part)


def not_run(records: Sequence[Record]) -> str:
    """Rows of the series without a record: models of a robot, or the robot if it has none."""
    known, left = {each["row"] for each in records}, dict[str, list[str]]()
    started = {each["robot"] for each in records}
    for job in robots.jobs(read_table("robots"), quick=False):
        if job.row not in known:
            left.setdefault(job.settings["robot"], []).append(job.settings["name"])
    told = [
        f"{robot} ({', '.join(models)})" if robot in started else robot
        for robot, models in left.items()
    ]
    return f"Not run: {', '.join(told)}." if told else ""


def _line(robot: str, model: str, records: Sequence[Record]) -> str:
    numbers = [_with_seeds([each[name] for each in records]) for name in ("area", "mean_return")]
    broken = 100 * mean(each["policy_error"] for each in records)
    speed = mean(each["steps_per_second"] for each in records)
    cells = [robot, model, f"{records[0]['steps']:,}", *numbers, f"{broken:.2g} %", f"{speed:.0f}"]
    return f"| {' | '.join(cells)} |"


def _with_seeds(values: Sequence[float]) -> str:
    return f"{mean(values):.0f} ({', '.join(f'{value:.0f}' for value in values)})"


TABLES = {"robots": robots_table}
