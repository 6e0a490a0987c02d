"""`isotropy reproduce`: run the rows of an experiment and keep their raw results.

`isotropy reproduce` of a series: rows in worker processes, and a summary with its goals.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from isotropy.checks import CallerError, check_choice
from isotropy.cli.inputs import device_from
from isotropy.experiments import (
    calibration,
    convergence,
    data_efficiency,
    dynamics,
    layer_equivariance,
)
from isotropy.experiments.runner import experiments, jobs, run_job
from isotropy.experiments.series import (
    ROWS,
    SeriesOptions,
    missing,
    one_seed_each,
    read_rows,
    read_table,
    run_series,
)
from isotropy.records import plain

SERIES = {
    "calibration": calibration.SERIES,
    "convergence": convergence.SERIES,
    "data-efficiency": data_efficiency.SERIES,
    "dynamics": dynamics.SERIES,
    "layer-equivariance": layer_equivariance.SERIES,
}


def reproduce_series(
    name: str,
    results: Path,
    options: SeriesOptions,
    *,
    data: dict[str, Path],
    rows: tuple[str, ...],
    seeds: tuple[int, ...],
    quick: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Run what is missing, keep it, and tell what all records together show."""
    series = SERIES[name]
    jobs = series.jobs(read_table(name), quick)
    for row in rows:
        check_choice(row, [job.row for job in jobs], what="row")
    folders = {known: str(folder.expanduser()) for known, folder in data.items()}
    places = {"places": folders} if folders else {}
    chosen = [
        replace(job, seeds=tuple(seeds) or job.seeds, settings={**job.settings, **places})
        for job in jobs
        if not rows or job.row in rows
    ]
    if series.apart:
        chosen = one_seed_each(chosen)
    folder = results / (f"{name}-quick" if quick else name)
    path = folder / ROWS
    before = [] if again else read_rows(path)
    failure = None
    try:
        run_series(
            series.run,
            missing(chosen, before),
            path,
            options,
            lambda line: click.echo(line, err=True),
        )
    except CallerError as error:  # rows that did not fail are still told
        failure = error
    records = read_rows(path)
    if as_json:
        told = {"schema": 1, "command": "reproduce", "results": records}
        click.echo(json.dumps(plain(told), allow_nan=False))
    else:
        click.echo("\n".join(series.summary(records)) or "nothing to run")
    if failure is not None:
        raise click.ClickException(str(failure))


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
