"""`isotropy learn-many`: `isotropy learn` for several seeds in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from isotropy.checkpoint import plain
from isotropy.cli.inputs import (
    action_names,
    built_network,
    device_from,
    fresh_folder,
    problem_from,
)
from isotropy.cli.learn import config_from, learn_command, tell
from isotropy.cli.progress import LiveDisplay
from isotropy.cli.resume import kept_options
from isotropy.data.variants import TRUE_RANGES
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.schedule import LearnConfig
from isotropy.networks.specification import NetworkSpecification
from isotropy.workflows.learning import LearnProgress, LearnResult
from isotropy.workflows.learning_many import learn_many, run_folders

TOLD = 10
"""How often in a run there is a line of progress."""


def _seeds(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise click.BadParameter(f"expected different numbers such as 0,1,2, got {text!r}")
    return [int(word) for word in words]


@click.pass_context
def _learn_many(context: click.Context, /, seeds: list[int], **options: Any) -> None:
    """Learn with several seeds together, which a small MLP on a GPU does faster than in turn.

    Options are those of `isotropy learn`. Each seed has a run folder of its own, OUT/seedN, with
    the numbers it would have alone, up to rounding; `isotropy learn --resume OUT/seedN` continues
    one.
    """
    options = {**options, "seed": seeds[0], "screening": None}
    objective = options["objective"] or "laplace"
    options["out"] = Path(options["out"] or fresh_folder("learn-many", options, objective))
    results = _results(options, seeds, command=str(context.find_root().obj))
    if options["as_json"]:
        records = [plain(result.record) for result in results]
        told = {"schema": 1, "command": "learn-many", "results": records}
        click.echo(json.dumps(told, allow_nan=False))
        return
    for seed, result in zip(seeds, results, strict=True):
        click.echo(f"Seed {seed}:")
        tell(result)


def _results(options: dict[str, Any], seeds: list[int], *, command: str) -> list[LearnResult]:
    place, display = device_from(options["device"]), LiveDisplay(quiet=options["quiet"])
    configs = [config_from({**options, "seed": seed}) for seed in seeds]
    folders = dict(zip(seeds, run_folders(options["out"], configs), strict=True))
    curvature = configs[0].curvature if RECIPES[configs[0].objective].evidence else ""
    problems = {
        seed: problem_from({**options, "seed": seed}, curvature=curvature) for seed in seeds
    }
    # Runs that are stacked have one network and one padding: those of the first seed's data.
    shared = problems[seeds[0]]
    first = shared.split
    options["image_size"] = shared.image_size
    networks = {
        seed: (shared.specification, built_network(shared.specification, first.train, seed))
        for seed in seeds
    }
    if shared.specification.kind != "backbone":  # a run folder's weights, or a file's
        networks = {seed: (each.specification, each.network) for seed, each in problems.items()}
    for note in shared.notes:
        display.say(note)
    display.say(f"{first.train.name}: {len(first.train)} examples, {len(seeds)} seeds, {place}")

    def specification(config: LearnConfig) -> NetworkSpecification:
        return networks[config.seed][0]

    def description(config: LearnConfig) -> dict[str, Any]:
        own = {**options, "seed": config.seed, "out": folders[config.seed]}
        return {
            "request": kept_options(own),
            "actions": action_names(options["generators"]),
            **shared.description,
            "truth": TRUE_RANGES[options["variant"]],
            "command": command,
        }

    def progress(run: int, told: LearnProgress) -> None:
        epochs = told.config.epochs or 1
        if run == 0 and told.row.epoch % max(1, epochs // TOLD) == 0:
            display.say(f"epoch {told.row.epoch} of {epochs}, {told.row.seconds:.0f} s a seed")

    return learn_many(
        lambda config: networks[config.seed][1],
        lambda config: problems[config.seed].split,
        configs=configs,
        actions=shared.actions,
        device=place,
        folder=options["out"],
        progress=progress,
        verdicts=options["verdicts"],
        calibrate=options["calibration"],
        network=specification,
        describe=description,
    )


_OWN = click.Option(
    ["--seeds"],
    default="0,1,2",
    show_default=True,
    callback=_seeds,
    help="Comma-separated seeds, one run each.",
)

learn_many_command = click.Command(
    "learn-many",
    callback=_learn_many,
    help=_learn_many.__doc__,
    params=[
        _OWN,
        *(p for p in learn_command.params if p.name not in ("seed", "resume", "screening")),
    ],
)
