"""`isotropy reproduce`: run the rows of an experiment and keep their raw results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from isotropy.cli.inputs import device_from
from isotropy.cli.reproduce_series import SERIES, reproduce_series
from isotropy.experiments.runner import experiments, jobs, run_job
from isotropy.experiments.series import SeriesOptions


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
@click.option("--workers", default=1, show_default=True, help="Of a series: processes.")
@click.option("--limit", type=float, help="Of a series: seconds after which no row starts.")
@click.option(
    "--stop", type=float, help="Of a series: seconds after which running rows are given up."
)
@click.option("--quick", is_flag=True, help="Of a series: a minute on a CPU instead of all of it.")
@click.pass_context
def reproduce_command(
    context: click.Context,
    experiment: str | None,
    rows: tuple[str, ...],
    seeds: tuple[int, ...],
    data: dict[str, Path],
    results: Path,
    commit: str | None,
    again: bool,
    as_json: bool,
    device: str,
    workers: int,
    limit: float | None,
    stop: float | None,
    quick: bool,
) -> None:
    """Run the rows of EXPERIMENT; without one, list the experiments there are.

    A row that has a result already is left alone, so an interrupted series can be called again.
    A series (convergence, data-efficiency, dynamics, layer-equivariance) is run in --workers
    processes that stay.
    """
    if experiment is None:
        click.echo("\n".join([*experiments(), *SERIES]))
        return
    if experiment in SERIES:
        series = SeriesOptions(
            device_from(device),
            workers,
            math.inf if limit is None else limit,
            math.inf if stop is None else stop,
            command=str(context.find_root().obj),
            commit=commit,
        )
        reproduce_series(
            experiment, results, series, data=data, rows=rows, seeds=seeds, quick=quick,
            again=again, as_json=as_json,
        )  # fmt: skip
        return
    done: list[dict[str, Any]] = []
    # All jobs are made first: a row that lacks its data is named before anything runs.
    for job in list(jobs(experiment, results, rows=rows, seeds=seeds, data=data)):
        if job.destination.exists() and not again:
            click.echo(f"{job.destination} is there; --again runs it again", err=True)
            continue
        for arguments in [job.first, job.arguments] if job.first else [job.arguments]:
            click.echo(f"{job.row}, seed {job.seed}: isotropy {' '.join(arguments)}", err=True)
        done.append(run_job(job, commit=commit)["result"])
    if not done and not as_json:
        click.echo("nothing to run")
    if as_json:
        click.echo(json.dumps({"schema": 1, "command": "reproduce", "results": done}))
