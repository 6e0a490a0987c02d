"""`--seeds 0-9`: the same command once a seed, side by side, and what the seeds agree on.

Each seed is a command of its own in a process of its own, `isotropy learn … --seed N --out
OUT/seed-N`, run by the project's runner or by Ray. Called again with the same folder, seeds that
have a result are left alone and those that were cut off are resumed. OUT/seeds.json holds all.
"""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click
import torch

from isotropy._version import __version__
from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import with_options
from isotropy.experiments.runner import ENGINES, Job, RunOptions, run_jobs
from isotropy.records import CHECKPOINT, RESULT, make_folder, read_json, write_json
from isotropy.report.wording import percent_text, signed_amount

SUMMARY = "seeds.json"
MOST_SEEDS = 1000
LARGEST_SEED, DIGITS = 2**31 - 1, 11
"""numpy's generator, which stable-baselines3 seeds, takes 32 bits."""
VALUED = ("--seeds", "--engine", "--workers", "--ray-address", "--gpus-per-run", "--out", "--seed")
FLAGS = ("--json", "--quiet")

_ENGINE = (
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="local",
        show_default=True,
        help="What runs side by side: processes of this machine, or Ray.",
    ),
    click.option("--workers", type=int, default=1, show_default=True, help="Runs at once."),
    click.option("--ray-address", help="An existing cluster of Ray, such as auto."),
    click.option("--gpus-per-run", type=float, default=0.0, help="Share of a GPU, by Ray."),
)
ENGINE_NAMES = ("engine", "workers", "ray_address", "gpus_per_run")
"""Of these options, as `RunOptions` has them."""


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """What runs many runs, and how many at once."""
    return with_options(_ENGINE, command)


def seeds_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that can be run for several seeds."""
    several = click.option("--seeds", help="Several runs, such as 0-4 or 0,2,3; not --seed.")
    return with_options((several, *_ENGINE), command)


def seeds_from(text: str) -> tuple[int, ...]:
    """Seeds in words: "0-4", "7" or "0,2,5-6"."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise CallerError(f"--seeds: expected numbers such as 0-4 or 0,2,3, got {text!r}")
        ends = [int(each) if len(each) < DIGITS else 10**DIGITS for each in (first, last or first)]
        if len(found) + ends[1] - ends[0] >= MOST_SEEDS or max(ends) > LARGEST_SEED:
            raise CallerError(
                f"--seeds: expected at most {MOST_SEEDS:,} numbers below 2^31, got {text!r}"
            )
        found += range(ends[0], ends[1] + 1)
    if not found or len(set(found)) < len(found):
        raise CallerError(f"--seeds: expected some numbers, each once, got {text!r}")
    return tuple(found)


def run_seeds(command: str, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The command, as it was typed, for each seed; what came out together.

    Raises CallerError where a seed failed; the others are kept.
    """
    started, seeds = time.monotonic(), seeds_from(options["seeds"])
    own = {"words": _without_seeds(command), "folder": str(make_folder(folder).resolve())}
    jobs = [Job("learn", (seed,), own) for seed in seeds]
    found: dict[int, dict[str, Any]] = {}

    def keep(job: Job, records: list[dict[str, Any]]) -> None:
        found[job.seeds[0]] = records[0]

    how = RunOptions(torch.device("cpu"), **{name: options[name] for name in ENGINE_NAMES})

    def say(line: str) -> None:
        if not options["quiet"]:
            click.echo(line, err=True)

    if run_jobs(one_seed, jobs, keep, how, say):
        lost = ", ".join(str(seed) for seed in seeds if seed not in found)
        raise CallerError(f"--seeds: no result of seed {lost}; the others are in {str(folder)!r}")
    records = [found[seed] for seed in seeds]
    record = {
        "schema": 1,
        "command": "learn",
        "isotropy": __version__,
        "seeds": list(seeds),
        "seconds": time.monotonic() - started,
        "run_folder": str(folder),
        **agreement(records),
        "results": records,
    }
    write_json(folder / SUMMARY, record)
    return record


def _without_seeds(command: str) -> list[str]:
    """The words of a command after its name, without what every seed has its own of."""
    kept, words = [], iter(shlex.split(command)[2:])
    for word in words:
        if word in VALUED:
            next(words, None)
        elif word not in FLAGS and word.partition("=")[0] not in VALUED:
            kept.append(word)
    return kept


def one_seed(job: Job, device: torch.device) -> list[dict[str, Any]]:
    """The record of one seed: kept, resumed, or new."""
    del device  # the command's own option says where
    (seed,) = job.seeds
    folder = Path(job.settings["folder"]) / f"seed-{seed}"
    if (folder / RESULT).exists():
        return [read_json(folder / RESULT)]
    words = [*job.settings["words"], "--seed", str(seed), "--out", str(folder)]
    if (folder / CHECKPOINT).exists():
        words = ["--resume", str(folder)]
    ended = subprocess.run(
        [sys.executable, "-m", "isotropy", "learn", *words, "--json", "--quiet"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no reason"])[-1]
        raise CallerError(f"seed {seed}: {last.removeprefix('isotropy: ')}")
    record: dict[str, Any] = json.loads(ended.stdout)
    return [record]


def agreement(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and deviations over seeds: amounts of symmetries, how often each verdict, scores."""
    symmetries = []
    for place, first in enumerate(records[0]["symmetries"]):
        amounts = [each["symmetries"][place]["high"] for each in records]
        judged = [verdict for each in records for verdict in each["verdicts"] or ()]
        told = [each["verdict"] for each in judged if each["name"] == first["name"]]
        symmetries.append(
            {
                "name": first["name"],
                "unit": first["unit"],
                "amounts": amounts,
                **_spread(amounts),
                "verdicts": dict(Counter(told).most_common()),
            }
        )
    scores = {}
    for name in ("test_accuracy", "test_rmse", "test_log_likelihood", "log_evidence_per_example"):
        values = [each[name] for each in records if each.get(name) is not None]
        scores[name] = _spread(values) if len(values) == len(records) else None
    return {"symmetries": symmetries, **scores}


def _spread(values: Sequence[float]) -> dict[str, float]:
    deviation = stdev(values) if len(values) > 1 else math.nan
    return {"mean": mean(values), "deviation": deviation}


def agreement_sentences(record: Mapping[str, Any]) -> list[str]:
    """What seeds agree on, in words."""
    seeds = record["seeds"]
    lines = [f"{len(seeds)} seeds of {record['results'][0]['data']}."]
    for each in record["symmetries"]:
        told = ", ".join(f"{word} in {count}" for word, count in each["verdicts"].items())
        own = ", ".join(signed_amount(value, each["unit"]) for value in each["amounts"])
        lines.append(f"{each['name']}: {own}{'; ' * bool(told)}{told}.")
    if record["test_accuracy"] is not None:
        found = record["test_accuracy"]
        lines.append(
            f"Test accuracy {percent_text(found['mean'])}, standard deviation over seeds "
            f"{percent_text(found['deviation'])}."
        )
    return lines
