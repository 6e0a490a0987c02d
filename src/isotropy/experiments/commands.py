"""Experiments whose rows are command lines: what came out is kept raw, a JSON file a row and seed.

The table has rows of command-line options with seeds and published numbers. Each row runs as its
own process, exactly the command a user would type, so that nothing but its options and seed decides
its numbers; its JSON result, its history and where it was made go to
`results/EXPERIMENT/ROW-seedN.json`.

    options    command-line options by name, without dashes; a list repeats the option
    settings   fields of `LearnConfig` that have no option of their own; --set FIELD=VALUE
    problems, methods    instead of rows: each method on each problem, row PROBLEM-METHOD

Options and settings at the top of the file hold for every row. Data are named by `data`, and the
caller says where they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from isotropy.checks import CallerError, check_choice
from isotropy.experiments.runner import Job, read_table
from isotropy.records import CONFIG, METRICS, read_json, read_lines, write_json

TABLES = ("options", "settings")


@dataclass(frozen=True)
class CommandJob(Job):
    """One row with one seed: the command line."""

    arguments: tuple[str, ...] = ()


def experiments() -> dict[str, Path]:
    """The experiments of commands that come with the package, by name (with hyphens).

    Tables with `series` in them belong to a `Series`.
    """
    folder = Path(str(resources.files("isotropy.experiments")))
    return {
        path.stem.replace("_", "-"): path
        for path in sorted(folder.glob("*.toml"))
        if "series" not in tomllib.loads(path.read_text(encoding="utf-8"))
    }


def read_experiment(name: str) -> dict[str, Any]:
    """An experiment's rows and settings."""
    return with_rows(read_table(check_choice(name, experiments(), what="experiment")))


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
    *,
    rows: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    data: Mapping[str, Path] | None = None,
) -> Iterator[CommandJob]:
    """The jobs of an experiment, all rows or some; `data` says where its data sets are."""
    experiment = read_experiment(name)
    chosen = rows or tuple(experiment["rows"])
    for row in chosen:
        settings = experiment["rows"][check_choice(row, experiment["rows"], what="row")]
        place: dict[str, str] = {}
        if "data" in settings:
            if settings["data"] not in (data or {}):
                raise CallerError(
                    f"row {row!r} needs the data set {settings['data']}; say where it is with "
                    f"--data {settings['data']}=FOLDER"
                )
            place = {"data": str((data or {})[settings["data"]])}
        for seed in seeds or settings.get("seeds", experiment["seeds"]):
            yield CommandJob(
                row,
                (seed,),
                settings,
                arguments=_words(experiment["command"], seed, settings, place),
            )


def _words(
    command: str, seed: int, settings: Mapping[str, Any], further: Mapping[str, str]
) -> tuple[str, ...]:
    """A command line: the command, its seed, options and `further` ones, then settings."""
    words = [command, "--seed", str(seed), "--json"]
    for option, value in {**settings.get("options", {}), **further}.items():
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{option}", str(each)]
    for field, value in settings.get("settings", {}).items():
        written = value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"{field}={written}"]
    return tuple(words)


def destination(job: CommandJob, folder: Path) -> Path:
    """Where the record of a job goes, in the folder of its experiment."""
    return folder / f"{job.row}-seed{job.seeds[0]}.json"


def run(job: CommandJob, device: torch.device) -> list[dict[str, Any]]:
    """Run one job as a process of its own; its record. Where it runs is said by its options."""
    with tempfile.TemporaryDirectory() as scratch:
        ran = _run(job, Path(scratch) / "run")
    return [
        {
            "row": job.row,
            "arguments": _without_paths(job),
            "published": job.settings.get("published"),
            "truth": job.settings.get("truth", {}),
            **ran,
        }
    ]


def keep_record(path: Path, record: dict[str, Any], commit: str | None) -> None:
    """Write a record; commit: in place of what git says of the source, for copies that know."""
    record["result"]["commit"] = commit or record["result"].get("commit")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def _run(job: CommandJob, folder: Path) -> dict[str, Any]:
    """Run the command into a folder; its result, and what the folder tells of the way.

    It has as many threads as this process: one, where several rows run at once.
    """
    command = [sys.executable, "-m", "isotropy", *job.arguments, "--out", str(folder)]
    own = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=own)
    if finished.returncode:
        raise CallerError(
            f"row {job.row!r}, seed {job.seeds[0]}: `isotropy {' '.join(job.arguments)}` ended "
            f"with status {finished.returncode}"
        )
    result = json.loads(finished.stdout)
    result["run_folder"] = None
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    return {
        "result": result,
        "schedule": config.get("schedule"),
        "history": read_lines(folder / METRICS),
    }


def _without_paths(job: CommandJob) -> list[str]:
    """The command line, with the data set's name in place of where it lies here."""
    words = ["isotropy", *job.arguments]
    if "--data" in words and "data" in job.settings:
        words[words.index("--data") + 1] = job.settings["data"]
    return words
