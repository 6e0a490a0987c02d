"""The rows of an experiment, run one after another or in a few worker processes.

An experiment is a TOML file beside this one: titles, settings, seeds, published numbers. A `Series`
turns it into jobs, runs one and sums up; `commands` makes jobs of rows that are command lines.
Workers stay, since runs of seconds would spend their time starting processes: each takes the next
job, by rank and then longest first. What a job found is kept as soon as it is there, of a series as
lines of JSON in `results/EXPERIMENT/rows.jsonl`, one a seed. An experiment that is cut off keeps
its rows, and called again it runs those that are missing. A row and seed has one record: a new one
takes the place of the old.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from importlib import import_module, resources
from math import exp, log
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

import torch

from isotropy.checks import CallerError, check_choice
from isotropy.records import provenance, read_lines, write_lines

ROWS = "rows.jsonl"


@dataclass(frozen=True)
class Job:
    """One row with all of its seeds.

    cost: in any unit, to run the longest first
    rank: rows of a lower one are run before
    """

    row: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    cost: float = 0.0
    rank: int = 0


AnyJob = TypeVar("AnyJob", bound=Job)
Record = Mapping[str, Any]
Run = Callable[[Any, torch.device], list[dict[str, Any]]]
"""Runs one job on a device; a dictionary for each of its seeds."""


@dataclass(frozen=True)
class Series:
    """How a series is made of its table, run, and summed up.

    jobs:    of the table (and whether quick), all of them
    run:     one job
    summary: lines of text about records, goals among them
    apart:   whether the seeds of a row are jobs of their own, and do not gain by being together
    """

    jobs: Callable[[Mapping[str, Any], bool], list[Job]]
    run: Run
    summary: Callable[[Sequence[Record]], list[str]]
    apart: bool = False


@dataclass(frozen=True)
class RunOptions:
    """How jobs are run, and what is recorded.

    limit: seconds after which no job starts
    stop:  seconds after which jobs that are still running are given up
    engine: what runs jobs, of `ENGINES`; a cluster of Ray by its address, or one of its own with so
    many workers, and the share of a GPU that a job has there
    """

    device: torch.device
    workers: int = 1
    limit: float = math.inf
    stop: float = math.inf
    command: str = ""
    commit: str | None = None
    engine: str = "local"
    ray_address: str | None = None
    gpus_per_run: float = 0.0


def read_table(name: str) -> dict[str, Any]:
    """The TOML file of an experiment, by its name with hyphens."""
    file = resources.files("isotropy.experiments") / f"{name.replace('-', '_')}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


# -- records -----------------------------------------------------------------------------------


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The records, in order; none if there is no file.

    Raises CallerError for two records of one row and seed: which of them counts is not to be
    guessed.
    """
    records = read_lines(path)
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


def keep(path: Path, new: Sequence[Record], *, fresh: bool = False) -> None:
    """Write records to the file, in place of those of the same rows and seeds, or of all."""
    taken = {(record["row"], record["seed"]) for record in new}
    known = [] if fresh else read_rows(path)
    old = [each for each in known if (each["row"], each["seed"]) not in taken]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, [*old, *new])


def missing(jobs: Iterable[AnyJob], records: Iterable[Record]) -> list[AnyJob]:
    """The jobs, less the seeds that have a record."""
    known = {(record["row"], record["seed"]) for record in records}
    left = []
    for job in jobs:
        seeds = tuple(seed for seed in job.seeds if (job.row, seed) not in known)
        if seeds:
            left.append(replace(job, seeds=seeds))
    return left


def one_seed_each(jobs: Iterable[AnyJob]) -> list[AnyJob]:
    """A job for each seed of each row."""
    return [replace(job, seeds=(seed,)) for job in jobs for seed in job.seeds]


def geometric_means(records: Iterable[Record], number: str, *keys: str) -> dict[Any, Any]:
    """{first key: {second key: … geometric mean of this number}}; zero, null and NaN left out."""
    grouped: dict[Any, Any] = {}
    for record in records:
        if record[number]:
            inner = grouped
            for key in keys[:-1]:
                inner = inner.setdefault(record[key], {})
            inner.setdefault(record[keys[-1]], []).append(record[number])

    def means(inner: Any) -> Any:
        if isinstance(inner, list):
            return exp(mean(map(log, inner)))
        return {key: means(each) for key, each in inner.items()}

    found: dict[Any, Any] = means(grouped)
    return found


def goal_lines(goals: Mapping[str, bool]) -> list[str]:
    """A line of a summary for each goal."""
    return [f"  {'met   ' if met else 'MISSED'} {what}" for what, met in goals.items()]


# -- running -----------------------------------------------------------------------------------


def run_series(
    run: Run, jobs: Sequence[Job], path: Path, options: RunOptions, tell: Callable[[str], None]
) -> list[str]:
    """Run the jobs and write a line to `path` for each seed; the rows that failed."""
    in_common = {"command": options.command, **provenance(options.device)}
    if options.commit:
        in_common["commit"] = options.commit

    def keep_rows(job: Job, found: list[dict[str, Any]]) -> None:
        each = zip(job.seeds, found, strict=True)
        keep(path, [{"row": job.row, "seed": seed, **own, **in_common} for seed, own in each])

    return run_jobs(run, jobs, keep_rows, options, tell)


def run_jobs(
    run: Run,
    jobs: Sequence[AnyJob],
    kept: Callable[[AnyJob, list[dict[str, Any]]], None],
    options: RunOptions,
    tell: Callable[[str], None],
) -> list[str]:
    """Run the jobs and have what each found kept; the rows that failed, none of which is kept."""
    waiting = sorted(jobs, key=lambda job: (job.rank, -job.cost))
    started, done = time.time(), 0
    failed: list[str] = []
    for job, found, problem, seconds in _results(run, waiting, options, started):
        done += 1
        if problem:
            failed.append(job.row)
            tell(f"{job.row} failed: {problem}")
            continue
        kept(job, found)
        seeds = ", ".join(map(str, job.seeds))
        tell(
            f"{done}/{len(waiting)} {job.row}, seed {seeds}: {seconds:.1f} s, after "
            f"{time.time() - started:.0f} s"
        )
    if done < len(waiting):
        tell(f"the time limit left {len(waiting) - done} rows; call again for them")
    return failed


Found = tuple[Any, list[dict[str, Any]], str, float]
"""A job, what it found, why it found nothing, and the seconds that it took."""


def _results(run: Run, jobs: Sequence[Job], options: RunOptions, started: float) -> Iterator[Found]:
    """Every job that was started and ended in time."""
    if options.workers < 1:
        raise CallerError(f"expected at least 1 worker, got {options.workers}")
    check_choice(options.engine, ENGINES, what="engine")
    if options.engine == "ray":
        yield from _by_ray(run, jobs, options, started)
        return
    count = min(options.workers, len(jobs))
    latest = started + min(options.limit, options.stop)
    if count == 0 or (count == 1 and math.isinf(options.stop)):  # another process can be stopped
        attempts = (_attempt(run, job, options.device, latest) for job in jobs)
        yield from (found for found in attempts if found is not None)
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # a fork cannot use CUDA
    pool = ProcessPoolExecutor(count, context, _prepare_worker)
    left: float | None = started + options.stop - time.time()
    left = None if left is None or left > threading.TIMEOUT_MAX / 2 else left
    try:
        running = [pool.submit(_attempt, run, job, options.device, latest) for job in jobs]
        for attempt in as_completed(running, left):
            if (found := attempt.result()) is not None:
                yield found
    except TimeoutError:
        _kill_all_but(others)
    except BrokenProcessPool as error:
        raise CallerError("a worker ended before its row; see what it wrote") from error
    except BaseException:  # an interruption does not wait for rows that are running
        _kill_all_but(others)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


ENGINES = ("local", "ray")
RETRIES = 3
"""Times that Ray runs a job again whose worker was lost."""


def _by_ray(run: Run, jobs: Sequence[Job], options: RunOptions, started: float) -> Iterator[Found]:
    """`_results` by tasks of Ray, each with a core and a share of a GPU."""
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise CallerError(
            "the engine ray needs Ray, which is not installed; pip install isotropy[distributed], "
            "or use --engine local"
        ) from error
    ours = not ray.is_initialized()
    if ours:
        new = {"num_cpus": options.workers, "include_dashboard": False}
        where = {"address": options.ray_address} if options.ray_address else new
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **where)
        except Exception as error:  # whatever keeps it from starting is not ours
            raise CallerError(
                f"Ray does not start, or the cluster does not answer: {error}; see --ray-address, "
                "or use --engine local"
            ) from error
    try:
        wanted = {"num_cpus": 1, "num_gpus": options.gpus_per_run, "max_retries": RETRIES}
        task = ray.remote(**wanted)(_attempt_on_one_thread)
        latest = started + min(options.limit, options.stop)
        running = [task.remote(run, job, options.device, latest) for job in jobs]
        while running:
            left = started + options.stop - time.time()
            done, running = ray.wait(running, timeout=None if math.isinf(left) else max(0, left))
            if not done:
                return
            for found in map(ray.get, done):
                if found is not None:
                    yield found
    finally:
        if ours:
            ray.shutdown()


def _attempt_on_one_thread(run: Run, job: Job, device: torch.device, latest: float) -> Found | None:
    torch.set_num_threads(1)
    return _attempt(run, job, device, latest)


def _kill_all_but(others: Collection[BaseProcess]) -> None:
    for worker in set(multiprocessing.active_children()) - set(others):
        worker.kill()


def _prepare_worker() -> None:
    """One thread for each worker, which ends when the process that started it does."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _attempt(run: Run, job: Job, device: torch.device, latest: float) -> Found | None:
    """Run a job, unless it is too late to start; one that fails must not end the others."""
    started = time.time()
    if started >= latest:
        return None
    found: list[dict[str, Any]] = []
    problem = ""
    try:
        found = run(job, device)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        problem = f"{type(error).__name__}: {error} ({place})"
    return job, found, problem, time.time() - started
