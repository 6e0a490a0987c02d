"""Run the rows of an experiment and keep what came out, raw, one JSON file a row and seed.

An experiment is a TOML file beside this one: rows of command-line options with seeds and
published numbers. Each row runs as its own process, exactly the command a user would type, so
that nothing but its options and seed decides its numbers; its JSON result, its history and
where it was made go to `results/EXPERIMENT/ROW-seedN.json`.

    options    command-line options by name, without dashes; a list repeats the option
    settings   fields of `LearnConfig` that have no option of their own; --set FIELD=VALUE
    problems, methods    instead of rows: each method on each problem, row PROBLEM-METHOD

Options and settings at the top of the file hold for every row.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from isotropy.checkpoint import read_json, read_lines, write_json
from isotropy.checks import CallerError, check_choice

TABLES = ("options", "settings")


@dataclass(frozen=True)
class Job:
    """One row with one seed: what to run and where its result goes."""

    row: str
    seed: int
    arguments: tuple[str, ...]
    destination: Path
    settings: Mapping[str, Any]


def experiments() -> dict[str, Path]:
    """The experiments that come with the package, by name (with hyphens)."""
    folder = Path(str(resources.files("isotropy.experiments")))
    return {path.stem.replace("_", "-"): path for path in sorted(folder.glob("*.toml"))}


def read_experiment(name: str) -> dict[str, Any]:
    """An experiment's rows and settings."""
    known = experiments()
    path = known[check_choice(name, known, what="experiment")]
    return with_rows(tomllib.loads(path.read_text(encoding="utf-8")))


def with_rows(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment with every row written out: problems times methods, what holds for all."""
    common = {table: experiment[table] for table in TABLES if table in experiment}
    rows = {name: _joined(common, row) for name, row in experiment.get("rows", {}).items()}
    for problem, on in experiment.get("problems", {}).items():
        for method, how in experiment.get("methods", {}).items():
            rows[f"{problem}-{method}"] = _joined(common, on, how)
    return {**experiment, "rows": rows}


def _joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """One row of several parts, the later above the earlier; tables are joined key by key."""
    row: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            row[key] = {**row.get(key, {}), **value} if key in TABLES else value
    return row


def jobs(
    name: str,
    results: Path,
    *,
    rows: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    data: Mapping[str, Path] | None = None,
) -> Iterator[Job]:
    """The jobs of an experiment, all rows or some; `data` says where its data sets are."""
    experiment = read_experiment(name)
    chosen = rows or tuple(experiment["rows"])
    for row in chosen:
        settings = experiment["rows"][check_choice(row, experiment["rows"], what="row")]
        options = dict(settings.get("options", {}))
        if "data" in settings:
            if settings["data"] not in (data or {}):
                raise CallerError(
                    f"row {row!r} needs the data set {settings['data']}; say where it is with "
                    f"--data {settings['data']}=FOLDER"
                )
            options["data"] = str((data or {})[settings["data"]])
        for seed in seeds or settings.get("seeds", experiment["seeds"]):
            arguments = [experiment["command"], "--seed", str(seed), "--json"]
            for option, value in options.items():
                for each in value if isinstance(value, list) else [value]:
                    arguments += [f"--{option}", str(each)]
            for field, value in settings.get("settings", {}).items():
                written = value if isinstance(value, str) else json.dumps(value)
                arguments += ["--set", f"{field}={written}"]
            destination = results / name / f"{row}-seed{seed}.json"
            yield Job(row, seed, tuple(arguments), destination, settings)


def run_job(job: Job, *, commit: str | None = None) -> dict[str, Any]:
    """Run one job as a process of its own and write its record; returns the record.

    commit: recorded in place of what git says of the source, for copies that know better.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, "-m", "isotropy", *job.arguments, "--out", str(folder)]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if finished.returncode:
            raise CallerError(
                f"row {job.row!r}, seed {job.seed}: `isotropy {' '.join(job.arguments)}` ended "
                f"with status {finished.returncode}"
            )
        result = json.loads(finished.stdout)
        history = read_lines(folder / "metrics.jsonl")
        schedule = read_json(folder / "config.json")["schedule"]
    result["run_folder"] = None
    result["commit"] = commit or result.get("commit")
    record = {
        "row": job.row,
        "arguments": ["isotropy", *_without_paths(job)],
        "published": job.settings.get("published"),
        "truth": job.settings.get("truth", {}),
        "result": result,
        "schedule": schedule,
        "history": history,
    }
    job.destination.parent.mkdir(parents=True, exist_ok=True)
    write_json(job.destination, record)
    return record


def _without_paths(job: Job) -> list[str]:
    """The arguments, with the data set's name in place of where it lies here."""
    arguments = list(job.arguments)
    if "--data" in arguments:
        arguments[arguments.index("--data") + 1] = job.settings["data"]
    return arguments
