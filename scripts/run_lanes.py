"""Run rows of several experiments at once on one machine, in lanes, until a time is up.

    python scripts/run_lanes.py PLAN.toml --seconds 600 --data MNIST=data/MNIST
    python scripts/run_lanes.py --take lanes

A plan is a list of lanes, and a lane a list of arguments of `isotropy reproduce`, one call after
the other. Lanes run at the same time, since rows of small networks leave a GPU idle most of the
time; what keeps it busy belongs into one or two lanes (`gpu_lanes.toml`). Rows arrive in `--out`,
one file an experiment, every few seconds, and stay there: the same call goes on where it was, also
on another machine that was given this folder. Each lane writes into a folder of its own below it,
because two processes may not write one file.

`--take` puts rows of such a folder in place of those in results/, and names rows whose seeds are
then of several commits.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isotropy.checks import CallerError
from isotropy.experiments.runner import ROWS, keep, read_rows

LANE = ".lane-"
POLL = 5.0
"""Seconds between two looks at what has arrived."""
STARTING = 20.0
"""Seconds before the end after which nothing is started."""
SERVER = "nvidia-cuda-mps-control"
"""Lets kernels of several processes run on a GPU at once, where it is installed."""

Lanes = list[list[list[str]]]
"""For each lane its calls, for each call its arguments."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("plan", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=Path("lanes"))
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--commit", help="to record in place of what git says here")
    parser.add_argument("--take", type=Path, metavar="FOLDER")
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    if (options.plan is None) == (options.take is None):
        parser.error("expected a plan, or --take FOLDER, and not both")
    if options.take is not None:
        print("\n".join(take(options.take, options.results)))
        return
    common = [part for each in options.data for part in ("--data", each)]
    common += ["--commit", options.commit] if options.commit else []
    end = time.monotonic() + options.seconds
    with shared_gpu():
        run(read_plan(options.plan), options.out, common, end)
    print("\n".join(arrived(options.out)))


def read_plan(path: Path) -> Lanes:
    """The calls of each lane."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    lanes = [[shlex.split(call) for call in lane["calls"]] for lane in table.get("lanes", ())]
    if not lanes or not all(all(lane) and lane for lane in lanes):
        raise CallerError(f"{path}: expected [[lanes]], each with calls = ['EXPERIMENT …', …]")
    return lanes


def run(lanes: Lanes, out: Path, common: Sequence[str], end: float) -> None:
    """All lanes at once, until `end` on the monotonic clock."""
    folders = [out / f"{LANE}{number}" for number in range(len(lanes))]
    with ThreadPoolExecutor(len(lanes)) as pool:
        running = [
            pool.submit(run_lane, lane, out, folder, common, end)
            for lane, folder in zip(lanes, folders, strict=True)
        ]
        while wait(running, POLL).not_done:
            gather(folders, out)
    gather(folders, out)
    for lane in running:
        lane.result()


def run_lane(
    calls: list[list[str]], out: Path, folder: Path, common: Sequence[str], end: float
) -> None:
    """The calls of a lane, one after the other; rows that have arrived before are not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    for experiment, *arguments in calls:
        left = end - time.monotonic()
        if left < STARTING:
            return
        for path in out.glob(f"[!.]*/{ROWS}"):
            keep(folder / path.parent.name / ROWS, read_rows(path))
        own = ["--results", str(folder), "--stop", f"{left - STARTING / 2:.0f}"]
        command = ["reproduce", experiment, *arguments, *common, *own]
        began = time.monotonic()
        # One thread, since lanes share the cores; what a call prints goes into a file of its lane.
        with (folder / "log").open("a", encoding="utf-8") as log:
            ended = subprocess.run(
                [sys.executable, "-m", "isotropy", *command],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                check=False,
            )
        how = "" if ended.returncode == 0 else f", exit status {ended.returncode}: {folder / 'log'}"
        call = shlex.join([experiment, *arguments])
        print(f"{folder.name}: {call}: {time.monotonic() - began:.0f} s{how}", flush=True)


def gather(folders: Sequence[Path], out: Path) -> None:
    """Put what lanes have found so far together."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for folder in folders:
        for path in folder.glob(f"*/{ROWS}"):
            found[path.parent.name] += read_rows(path)
    for experiment, records in found.items():
        unique = {(each["row"], each["seed"]): each for each in records}
        keep(out / experiment / ROWS, list(unique.values()))


def arrived(out: Path) -> list[str]:
    """How many rows of each experiment there are."""
    paths = sorted(out.glob(f"[!.]*/{ROWS}"))
    return [f"{path.parent.name}: {len(read_rows(path))} rows" for path in paths]


def take(folder: Path, results: Path) -> list[str]:
    """Put rows in place of those of results/; a line for each experiment."""
    told = []
    for path in sorted(folder.glob(f"[!.]*/{ROWS}")):
        experiment, records = path.parent.name, read_rows(path)
        keep(results / experiment / ROWS, records)
        rows = {each["row"] for each in records}
        commits = defaultdict(set)
        for each in read_rows(results / experiment / ROWS):
            commits[each["row"]].add(each.get("commit"))
        mixed = sorted(row for row in rows if len(commits[row]) > 1)
        end = f"; of several commits: {', '.join(mixed)}" if mixed else ""
        told.append(f"{experiment}: {len(records)} records of {len(rows)} rows{end}")
    if not told:
        raise CallerError(f"{folder}: expected EXPERIMENT/{ROWS}, found none")
    return told


@contextmanager
def shared_gpu() -> Iterator[None]:
    """NVIDIA's server for several processes, where there is one."""
    try:
        subprocess.run([SERVER, "-d"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield
        return
    try:
        yield
    finally:
        subprocess.run([SERVER], input=b"quit\n", check=False, capture_output=True)


if __name__ == "__main__":
    main()
