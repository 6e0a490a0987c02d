"""A series of short runs in a few worker processes, each finished row kept at once.

Runs of seconds would spend their time starting processes, were each a command of its own as in
`runner`. Here workers stay: each takes the next row from a queue, by rank and then longest first,
and what it found goes as lines of JSON to `results/EXPERIMENT/rows.jsonl`, one a seed, as soon as
it is there. A series that is cut off keeps its rows, and called again it runs those that are
missing. A row and seed has one record: a new one takes the place of the old.

A series is a TOML file beside this one with `series = "NAME"` in it (titles, seeds, settings,
published numbers) and a module that turns it into jobs and runs one (`Series`).
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import queue
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from isotropy.checks import CallerError
from isotropy.records import plain, provenance

ROWS = "rows.jsonl"
WAIT = 0.2
"""Seconds between looks at workers that may have died."""


@dataclass(frozen=True)
class SeriesJob:
    """One row with all of its seeds.

    cost: in any unit, to run the longest first
    rank: rows of a lower one are run before
    """

    row: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    cost: float = 0.0
    rank: int = 0


@dataclass(frozen=True)
class Series:
    """How a series is made of its table, run, and summed up.

    jobs:    of the table (and whether quick), all of them
    run:     one job on a device; a dictionary for each of its seeds
    summary: lines of text about records, goals among them
    apart:   whether the seeds of a row are jobs of their own, and do not gain by being together
    """

    jobs: Callable[[Mapping[str, Any], bool], list[SeriesJob]]
    run: Callable[[SeriesJob, torch.device], list[dict[str, Any]]]
    summary: Callable[[Sequence[Mapping[str, Any]]], list[str]]
    apart: bool = False


@dataclass(frozen=True)
class SeriesOptions:
    """How a series is run, and what is recorded.

    limit: seconds after which no row starts
    stop:  seconds after which rows that are still running are given up
    """

    device: torch.device
    workers: int = 1
    limit: float = math.inf
    stop: float = math.inf
    command: str = ""
    commit: str | None = None


def read_table(name: str) -> dict[str, Any]:
    """The TOML file of a series."""
    file = resources.files("isotropy.experiments") / f"{name.replace('-', '_')}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The records, in order; none if there is no file.

    Raises CallerError for two records of one row and seed: which of them counts is not to be
    guessed.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.strip()]
    known: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        other = known.setdefault((record["row"], record["seed"]), record)
        if other is not record:
            commits = " and ".join(str(each.get("commit")) for each in (other, record))
            raise CallerError(
                f"{path}: expected one record of row {record['row']} with seed {record['seed']}, "
                f"got two, of commits {commits}; remove the one that is superseded"
            )
    return records


def keep(path: Path, new: Sequence[Mapping[str, Any]], *, fresh: bool = False) -> None:
    """Write records to the file, in place of those of the same rows and seeds, or of all."""
    taken = {(record["row"], record["seed"]) for record in new}
    known = [] if fresh else read_rows(path)
    old = [each for each in known if (each["row"], each["seed"]) not in taken]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    lines = (json.dumps(plain(record)) + "\n" for record in [*old, *new])
    beside.write_text("".join(lines), encoding="utf-8")
    os.replace(beside, path)


def missing(jobs: Iterable[SeriesJob], records: Iterable[Mapping[str, Any]]) -> list[SeriesJob]:
    """The jobs, less the seeds that have a record."""
    known = {(record["row"], record["seed"]) for record in records}
    left = []
    for job in jobs:
        seeds = tuple(seed for seed in job.seeds if (job.row, seed) not in known)
        if seeds:
            left.append(replace(job, seeds=seeds))
    return left


def one_seed_each(jobs: Iterable[SeriesJob]) -> list[SeriesJob]:
    """A job for each seed of each row."""
    return [replace(job, seeds=(seed,)) for job in jobs for seed in job.seeds]


def run_series(
    run: Callable[[SeriesJob, torch.device], list[dict[str, Any]]],
    jobs: Sequence[SeriesJob],
    path: Path,
    options: SeriesOptions,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Run the jobs, write a line to `path` for each seed, and return the new records.

    Raises CallerError at the end, naming them, if rows failed; the others are kept.
    """
    waiting = sorted(jobs, key=lambda job: (job.rank, -job.cost))
    started = time.time()
    records: list[dict[str, Any]] = []
    failed: list[str] = []
    in_common = {"command": options.command, **provenance(options.device)}
    if options.commit:
        in_common["commit"] = options.commit
    done = 0
    for job, found, problem in _results(run, waiting, options, started):
        done += 1
        if problem:
            failed.append(job.row)
            tell(f"{job.row} failed: {problem}")
            continue
        new = [
            {"row": job.row, "seed": seed, **numbers, **in_common}
            for seed, numbers in zip(job.seeds, found, strict=True)
        ]
        keep(path, new)
        records += new
        seeds = ", ".join(map(str, job.seeds))
        tell(
            f"{done}/{len(waiting)} {job.row}, seed {seeds}: {new[0].get('seconds', 0.0):.1f} s, "
            f"after {time.time() - started:.0f} s"
        )
    if done < len(waiting):
        tell(f"the time limit left {len(waiting) - done} rows; call again for them")
    if failed:
        raise CallerError(f"{len(failed)} rows failed: {', '.join(failed)}")
    return records


Found = tuple[SeriesJob, list[dict[str, Any]], str]


def _results(
    run: Callable[[SeriesJob, torch.device], list[dict[str, Any]]],
    jobs: Sequence[SeriesJob],
    options: SeriesOptions,
    started: float,
) -> Iterable[Found]:
    """Every job that was started and ended in time, with what it found or why it did not."""
    if options.workers < 1:
        raise CallerError(f"expected at least 1 worker, got {options.workers}")
    count = min(options.workers, len(jobs))
    latest = started + min(options.limit, options.stop)
    if count == 0 or (count == 1 and math.isinf(options.stop)):  # another process can be stopped
        for job in jobs:
            if time.time() >= latest:
                return
            yield _attempt(run, job, options.device)
        return
    context = multiprocessing.get_context("spawn")  # a fork cannot use CUDA
    todo, results = context.Queue(), context.Queue()
    for job in jobs:
        todo.put(job)
    for _ in range(count):
        todo.put(None)
    workers = [
        context.Process(
            target=_work, args=(run, str(options.device), latest, todo, results), daemon=True
        )
        for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    ended = 0
    while ended < count:
        try:
            found = results.get(timeout=WAIT)
        except queue.Empty:
            if time.time() >= started + options.stop:
                todo.cancel_join_thread()  # nobody is left to take what it holds
                for worker in workers:
                    worker.kill()
                break
            if not any(worker.is_alive() for worker in workers) and results.empty():
                raise CallerError(
                    "all workers ended before their rows; see what they wrote"
                ) from None
            continue
        if found is None:
            ended += 1
        else:
            yield found
    for worker in workers:
        worker.join()


def _work(run: Any, device: str, latest: float, todo: Any, results: Any) -> None:
    """A worker: rows until there are none, or it is too late to start one."""
    torch.set_num_threads(1)
    while (job := todo.get()) is not None and time.time() < latest:
        results.put(_attempt(run, job, torch.device(device)))
    results.put(None)


def _attempt(run: Any, job: SeriesJob, device: torch.device) -> Found:
    try:
        return job, run(job, device), ""
    except Exception as error:  # one row must not end the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            job,
            [],
            f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})",
        )
