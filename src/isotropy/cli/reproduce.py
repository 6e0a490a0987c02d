"""`isotropy reproduce`: run the rows of an experiment that are missing, and keep their raw results.

Of a series the records of all rows are summed up with its goals; of rows that are command lines
each leaves a JSON file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from isotropy.checks import check_choice
from isotropy.cli.shared.inputs import device_from
from isotropy.cli.shared.seeds import ENGINE_NAMES, engine_options
from isotropy.experiments import (
    calibration,
    commands,
    layer_equivariance,
    lila_tables,
    representations,
    story,
)
from isotropy.experiments.runner import (
    ROWS,
    RunOptions,
    missing,
    one_seed_each,
    read_rows,
    read_table,
    run_jobs,
    run_series,
)
from isotropy.experiments.thesis import (
    bases,
    certificates,
    data_efficiency,
    dynamics,
    measured_networks,
    robots,
    rotated_mnist,
    soft_symmetry,
    transitions,
)
from isotropy.records import plain

SERIES = {
    "calibration": calibration.SERIES,
    "certificates": certificates.SERIES,
    "convergence": bases.SERIES,
    "data-efficiency": data_efficiency.SERIES,
    "dynamics": dynamics.SERIES,
    "layer-equivariance": layer_equivariance.SERIES,
    "lila-tables": lila_tables.SERIES,
    "measured-networks": measured_networks.SERIES,
    "representations": representations.SERIES,
    "robots": robots.SERIES,
    "rotated-mnist": rotated_mnist.SERIES,
    "soft-symmetry": soft_symmetry.SERIES,
    "story": story.SERIES,
    "transitions": transitions.SERIES,
}


HOW = ("limit", "stop", "commit", *ENGINE_NAMES)
"""Options that say how rows are run."""
UNFINISHED = "unfinished"
"""Where rows that were cut off leave what they go on from, beside the records."""


def _places(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Path]:
    places = {}
    for value in values:
        name, separator, folder = value.partition("=")
        if not separator:
            raise click.BadParameter(f"expected NAME=FOLDER, got {value!r}")
        places[name] = Path(folder)
    return places


@click.command("reproduce")
@click.argument("experiment", required=False)
@click.option("--row", "rows", multiple=True, help="Only this row; repeatable.")
@click.option("--seed", "seeds", multiple=True, type=int, help="Only this seed; repeatable.")
@click.option(
    "--data",
    callback=_places,
    multiple=True,
    metavar="NAME=FOLDER",
    help="Where a data set is, such as MNIST=~/data/MNIST; repeatable.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Where the raw JSON goes.",
)
@click.option("--commit", help="Commit to record in place of what git says here.")
@click.option("--again", is_flag=True, help="Run rows that have a result already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.option("--device", default="auto", show_default=True, help="Of a series: auto, cpu or cuda.")
@click.option("--limit", type=float, default=math.inf, help="Seconds after which no row starts.")
@click.option(
    "--stop", type=float, default=math.inf, help="Seconds after which running rows are given up."
)
@engine_options
@click.option("--quick", is_flag=True, help="Of a series: a minute on a CPU instead of all of it.")
@click.pass_context
def reproduce_command(
    context: click.Context, /, experiment: str | None, as_json: bool, **options: Any
) -> None:
    """Run the rows of EXPERIMENT; without one, list the experiments there are.

    A row that has a result already is left alone, so an interrupted experiment can be called again.
    """
    if experiment is None:
        click.echo("\n".join([*commands.experiments(), *SERIES]))
        return
    how = RunOptions(
        device_from(options["device"]),
        **{name: options[name] for name in HOW},
        command=str(context.find_root().obj),
    )
    run = _run_series if experiment in SERIES else _run_commands
    records, lines, failed = run(experiment, options, how)
    if as_json:
        told = {"schema": 1, "command": "reproduce", "results": records}
        click.echo(json.dumps(plain(told), allow_nan=False))
    else:
        click.echo("\n".join(lines) or "nothing to run")
    if failed:
        raise click.ClickException(f"{len(failed)} rows failed: {', '.join(failed)}")


Outcome = tuple[list[dict[str, Any]], list[str], list[str]]
"""Records, lines that tell of them, and rows that failed."""


def _run_series(name: str, options: Mapping[str, Any], how: RunOptions) -> Outcome:
    """Run what is missing; all records there are, and what they show together."""
    series, rows, seeds = SERIES[name], options["rows"], options["seeds"]
    jobs = series.jobs(read_table(name), options["quick"])
    for row in rows:
        check_choice(row, [job.row for job in jobs], what="row")
    folders = {known: str(folder.expanduser()) for known, folder in options["data"].items()}
    path = options["results"] / (f"{name}-quick" if options["quick"] else name) / ROWS
    further: dict[str, Any] = {"unfinished": str(path.parent / UNFINISHED)}
    further |= {"places": folders} if folders else {}
    chosen = [
        replace(job, seeds=tuple(seeds) or job.seeds, settings={**job.settings, **further})
        for job in jobs
        if not rows or job.row in rows
    ]
    if series.apart:
        chosen = one_seed_each(chosen)
    left = missing(chosen, [] if options["again"] else read_rows(path))
    failed = run_series(series.run, left, path, how, _say)
    records = read_rows(path)
    return records, series.summary(records), failed


def _run_commands(name: str, options: Mapping[str, Any], how: RunOptions) -> Outcome:
    """Run what is missing; the results that are new."""
    folder = options["results"] / name
    chosen = {key: options[key] for key in ("rows", "seeds", "data")}
    left, results = [], []
    # All jobs are made first: a row that lacks its data is named before anything runs.
    for job in list(commands.jobs(name, **chosen)):
        place = commands.destination(job, folder)
        if place.exists() and not options["again"]:
            _say(f"{place} is there; --again runs it again")
            continue
        left.append(job)
        _say(f"{job.row}, seed {job.seeds[0]}: isotropy {' '.join(job.arguments)}")

    def keep(job: commands.CommandJob, found: list[dict[str, Any]]) -> None:
        place = commands.destination(job, folder)
        commands.keep_record(place, found[0], how.commit)
        results.append((place, found[0]["result"]))

    failed = run_jobs(commands.run, left, keep, how, _say)
    return [result for _, result in results], [str(place) for place, _ in results], failed


def _say(line: str) -> None:
    click.echo(line, err=True)
