"""`isotropy reproduce` of a series: rows in worker processes, and a summary with its goals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from isotropy.checkpoint import plain
from isotropy.checks import CallerError, check_choice
from isotropy.experiments import (
    calibration,
    convergence,
    data_efficiency,
    dynamics,
    layer_equivariance,
)
from isotropy.experiments.series import (
    ROWS,
    SeriesOptions,
    missing,
    one_seed_each,
    read_rows,
    read_table,
    run_series,
)

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
