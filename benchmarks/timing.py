"""Timing on machines that are not quiet: several rounds, the fastest of each, device in step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch


def fastest(
    tasks: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, float]:
    """Seconds of each task: the least over rounds that run all tasks in turn.

    Taking turns lets a disturbance fall on all tasks alike; the least is what the machine can do.
    """
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds + 1):  # the first round warms up, and counts if it was fastest
        for name, task in tasks.items():
            _synchronise(device)
            started = time.perf_counter()
            task()
            _synchronise(device)
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
