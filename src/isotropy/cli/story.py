"""`isotropy story`: learn the symmetry of data, build it in, measure it, certify what it buys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import (
    data_from,
    data_options,
    device_from,
    fresh_folder,
    run_options,
    settings_given,
)
from isotropy.cli.shared.progress import StoryDisplay, tell
from isotropy.cli.shared.resuming import continuable, kept_options, resumed_run
from isotropy.data.image_folder import WORKING_SIZE
from isotropy.data.variants import TRUE_RANGES
from isotropy.records import check_unused
from isotropy.workflows.story import StoryConfig, story
from isotropy.workflows.story_steps import FULL, QUICK

DIGITS_VARIANT = "rotated"
"""Of the embedded digits, where no variant was asked for."""


@click.command("story")
@click.option(
    "--quick", is_flag=True, help="Two minutes on a CPU, to see what a story is; says less."
)
@click.option(
    "--full", is_flag=True, help="A wider network and more epochs, for MNIST (--data) on a GPU."
)
@click.option(
    "--model",
    "model",
    help="turnable:6 | turnable:16 | convnet | …: one that build and relax can convert.",
)
@click.option(
    "--generators",
    help="Candidates for a symmetry, separated by commas.  [default: rotation, translations and "
    "horizontal_flip]",
)
@click.option("--group", help="Build this group in, such as C(4), whatever is found.")
@click.option("--epochs", type=int, help="Of every network.  [default: 20]")
@data_options
@run_options
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@click.pass_context
def story_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Learn which symmetry images have, build it in, measure and certify the networks.

    Runs learn, build, relax, measure and certify with one network and one budget, and writes one
    run folder with one report; each step is a run folder in it. Without --data the embedded digits
    are rotated first (--variant original leaves them as they are).
    """
    if resume is not None:
        run = resumed_run(context, resume, options, StoryConfig)
        options, config = run.options, run.config
    else:
        typed = context.get_parameter_source("variant") is ParameterSource.COMMANDLINE
        if options["data"] is None and not typed:
            options["variant"] = DIGITS_VARIANT
        if options["quick"] and options["full"]:
            raise CallerError("expected one of --quick and --full, got both")
        budget = QUICK if options["quick"] else FULL if options["full"] else {}
        config = StoryConfig(**{**budget, **settings_given(StoryConfig, options)})
        words = ["quick"] if options["quick"] else []
        options["out"] = Path(options["out"] or fresh_folder("story", options, *words))
        check_unused(options["out"])
    folder = Path(options["out"])
    with continuable("story", folder):
        split = data_from(options, working_size=True)
        sides = set(split.train.inputs.shape[2:])
        if options["image_size"] is None and sides == {WORKING_SIZE}:
            options["image_size"] = WORKING_SIZE  # which may have been chosen
        with StoryDisplay(quiet=options["quiet"]) as display:
            display.say(*split.notes)
            result = story(
                split,
                config=config,
                device=device_from(options["device"]),
                folder=folder,
                resume=resume is not None,
                progress=display,
                describe={
                    "request": kept_options(options),
                    "truth": TRUE_RANGES[options["variant"]],
                    "command": str(context.find_root().obj),
                },
            )
    tell(result.record, result.record["sentences"], as_json=options["as_json"])
