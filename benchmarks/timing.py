"""What benchmarks share: the fastest of several rounds; a report, printed or kept."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

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


def publish(report: Mapping[str, Any], options: argparse.Namespace, table: str) -> None:
    """Print a report as `--json` or as a table, and write it where `--out` says."""
    text = json.dumps(report, indent=2)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text if options.json else table)
