"""Kill -9 at random moments: `python tests/trust/soak.py --kills 100`, or `make soak`.

Every command that trains or writes is run once unbroken, and then again and again killed at random
moments of its time and called anew, as a user would: a run that has a checkpoint or trials is
resumed, another is started again. The results must be equal bit for bit, but for times and places.
Checkpoints are written after every epoch, so that many kills fall into a write. Agents of robots
go on in a new episode, so that their numbers differ; that all evaluations are there must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from children import Signal, keep_report, run
from fuzz import data_files
from safetensors.torch import load_file

SMALL = ["--device", "cpu", "--quiet", "--json"]
BARS = ["--data", "bars.npz", *SMALL]
REPRODUCE = ["reproduce", "convergence", "--quick", "--results", "run", "--json"]
DIFFER = ("seconds", "run_folder", "commit", "command", "command_line")
"""Entries of records that are not the same twice."""


@dataclass(frozen=True)
class Work:
    """What is run, and how it goes on; `resumed` is empty where it is called as it was.

    exact: whether a broken run ends with the bits of a whole one
    """

    words: list[str]
    resumed: list[str]
    place: str = "run"
    exact: bool = True


WORKS = {
    "learn": Work(
        ["learn", *BARS, "--model", "mlp:5", "--generators", "rotation,scale", "--epochs", "8",
         "--out", "run", "--verdicts", "0", "--no-search"],
        ["learn", "--resume", "run", "--json"],
    ),
    "verdicts": Work(
        ["learn", *BARS, "--model", "mlp:5", "--generators", "horizontal_flip", "--epochs", "4",
         "--out", "run", "--verdicts", "2", "--search"],
        ["learn", "--resume", "run", "--json"],
    ),
    "relax": Work(
        ["relax", *BARS, "--epochs", "3", "--out", "run"], ["relax", "--resume", "run", "--json"]
    ),
    "represent": Work(
        ["represent", "--data", "pairs.npz", "--steps", "300", "--out", "run", "--json"],
        ["represent", "--resume", "run", "--json"],
    ),
    "build": Work(["build", *BARS, "--model", "compact", "--group", "C(4)", "--out", "run"], []),
    "reproduce": Work(REPRODUCE, REPRODUCE),
    "certify": Work(["certify", "--model", "mlp:2", "--out", "run", *SMALL], []),
    "control": Work(
        ["control", "--model", "rpp", "--steps", "300", "--start", "50", "--width", "16",
         "--batch-size", "16", "--episodes", "1", "--evaluate-every", "60", "--seeds", "0-1",
         "--out", "run", *SMALL],
        ["control", "--resume", "run", "--json"],
        exact=False,
    ),
}  # fmt: skip


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in DIFFER}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def outcome(folder: Path) -> dict[str, Any]:
    """All that a finished run left, by file: JSON without times, bits of tensors."""
    found: dict[str, Any] = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = without_times(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            lines = path.read_text().splitlines()
            found[name] = [without_times(json.loads(line)) for line in lines]
        elif path.suffix == ".safetensors":
            tensors = load_file(path)
            found[name] = {key: each.numpy().tobytes() for key, each in tensors.items()}
        elif path.suffix == ".part" or path.name == ".lock":
            continue  # what a kill leaves beside a file is nobody's
        elif path.suffix != ".html":
            found[name] = path.read_bytes()
    return found


def evaluations(folder: Path) -> dict[str, Any]:
    """Which files a run left, and what was evaluated after how many steps."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [(row["seed"], row["steps"]) for row in map(json.loads, lines)]
    names = sorted(path.name for path in folder.iterdir() if path.suffix != ".part")
    return {"rows": rows, "files": [name for name in names if name != ".lock"]}


def left_by(work: Work, folder: Path) -> dict[str, Any]:
    """What must be the same of two runs."""
    return outcome(folder / work.place) if work.exact else evaluations(folder / work.place)


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Where two outcomes are not the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one | other:
            yield from differences(one.get(key), other.get(key), f"{place}/{key}")
    elif one != other:
        yield place


def fresh(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for files in data_files().values():
        for name, content in files.items():
            if name.endswith(".npz"):
                (folder / name).write_bytes(content)
    return folder


def can_go_on(place: Path, work: Work) -> bool:
    kept = ("checkpoint.safetensors", "trials.jsonl", "rows.jsonl")
    return bool(work.resumed) and any(any(place.rglob(name)) for name in kept)


def broken_run(work: Work, folder: Path, seconds: float, draw: random.Random) -> int:
    """Killed up to three times, then left alone; how many kills hit it."""
    kills = 0
    place = folder / work.place
    for attempt in range(4):
        words = work.words
        if can_go_on(place, work):
            words = work.resumed
        elif place.exists() and work.words[0] != "reproduce":
            shutil.rmtree(place)
        moment = Signal(signal.SIGKILL, draw.uniform(0.02, seconds)) if attempt < 3 else None
        ended = run(words, folder, sent=moment)
        kills += ended.status == -signal.SIGKILL
        if ended.status == 0:
            return kills
        if ended.status != -signal.SIGKILL:
            raise AssertionError(f"status {ended.status}: {ended.last_line}")
    raise AssertionError("never ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(WORKS), action="append")
    parser.add_argument("--json", type=Path, help="a file for the counts")
    given = parser.parse_args()
    started = time.monotonic()
    works = {name: WORKS[name] for name in given.only or WORKS}
    failures = []
    hit = dict.fromkeys(works, 0)
    with tempfile.TemporaryDirectory() as scratch:
        whole, seconds = {}, {}
        for name, work in works.items():
            folder = fresh(Path(scratch) / "work")
            ended = run(work.words, folder)
            if ended.status != 0:
                sys.exit(f"{name} does not run: {ended.last_line}")
            whole[name], seconds[name] = left_by(work, folder), ended.seconds
            print(f"{name}: {ended.seconds:.1f} s unbroken", flush=True)
            shutil.rmtree(folder)
        number = 0
        while sum(hit.values()) < given.kills:
            name, seed = list(works)[number % len(works)], given.seed + number
            number += 1
            folder = fresh(Path(scratch) / "work")  # the same: run folders name their data
            try:
                hit[name] += broken_run(works[name], folder, seconds[name], random.Random(seed))
                found = left_by(works[name], folder)
                differing = sorted(differences(whole[name], found))
                assert not differing, f"{', '.join(differing[:5])} differ"
            except AssertionError as problem:
                failures.append(f"{name}, seed {seed}: {problem}")
                print(failures[-1], flush=True)
            shutil.rmtree(folder)
    told = ", ".join(f"{name} {count}" for name, count in hit.items())
    print(f"{sum(hit.values())} kills ({told}) in {number} runs, {len(failures)} differ or failed")
    numbers = {
        "kills": hit,
        "runs": number,
        "first_seed": given.seed,
        "failures": failures,
        "not_bit_for_bit": [name for name, work in works.items() if not work.exact],
        "seconds": time.monotonic() - started,
    }
    keep_report(given.json, "soak", numbers)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
