"""What benchmarks share: the fastest of several rounds, peaks of memory, goals, and a report.

A report is one JSON object about one device. It has `benchmark`, what `provenance` says, the
numbers, and `goals`: a list in which every claim stands beside what was measured (`goal`). Written
into a folder it is called after the benchmark and the device, so that results of several machines
lie side by side.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

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


def peaks(tasks: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, int]:
    """Bytes that a GPU had allocated at most during each task, data and weights among them.

    Each runs once, and should not have run before: what a recorded graph keeps is allocated while
    it is recorded, and not seen when it is replayed.
    """
    found = {}
    for name, task in tasks.items():
        _synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        task()
        _synchronise(device)
        found[name] = torch.cuda.max_memory_allocated(device)
    return found


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def goal(
    what: str, measured: float, wanted: float, *, at: Literal["most", "least"], unit: str
) -> dict[str, Any]:
    """One claim with what was measured: at most, or at least, so many of a unit."""
    met = measured <= wanted if at == "most" else measured >= wanted  # a NaN meets nothing
    return {
        "what": what,
        "unit": unit,
        "measured": measured,
        "at": at,
        "goal": wanted,
        "met": bool(met),
    }


def goal_lines(report: Mapping[str, Any]) -> list[str]:
    """Goals as lines of a table."""
    return [
        f"  {'met   ' if each['met'] else 'MISSED'} {each['what']}: {each['measured']:.3g} "
        f"{each['unit']}, wanted at {each['at']} {each['goal']:g}"
        for each in report["goals"]
    ]


def options_of(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--out", type=Path, help="also write the JSON here: a file, or a folder to name one in"
    )
    parser.add_argument("--commit", help="recorded for a copy of the source without its history")
    return parser


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`, by default the GPU if there is one."""
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(best))


def publish(report: Mapping[str, Any], options: argparse.Namespace, table: str) -> None:
    """Print a report as `--json` or as a table, and write it where `--out` says."""
    if getattr(options, "commit", None):
        report = {**report, "commit": options.commit}
    text = json.dumps(report, indent=2)
    if options.out:
        path = options.out if options.out.suffix else options.out / file_name(report)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    print(text if options.json else table)


def file_name(report: Mapping[str, Any]) -> str:
    """`evidence-nvidia-h200.json`, `evidence-x86-64-2-threads.json`."""
    device = report["device_name"]
    if "cuda" not in report["device"]:
        device += f" {report['threads']} threads"
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return f"{report['benchmark']}-{slug}.json"
