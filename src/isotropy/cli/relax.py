"""`isotropy relax`: which symmetry each layer needs, learned layer by layer from training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from isotropy.checkpoint import check_unused, make_folder, plain
from isotropy.checks import CallerError, check_at_least
from isotropy.cli.inputs import data_from, device_from, fresh_folder, run_options
from isotropy.cli.relax_display import RelaxDisplay
from isotropy.data.embedded import digits
from isotropy.data.labelled import Split
from isotropy.data.quadrants import TASKS, quadrants, standardised
from isotropy.data.readers import load
from isotropy.data.variants import LAWS
from isotropy.evidence.layer_schedule import (
    AUGMENTATIONS,
    FREE_SHARE,
    OBJECTIVES,
    RelaxConfig,
)
from isotropy.networks.pathways import DEFAULT_GROUP, GROUP_CONVOLUTIONS, PATHWAYS, check_kinds
from isotropy.report.relax_words import relax_sentences, score_sentences
from isotropy.workflows.relaxing import RelaxProgress, relax_and_learn

IMAGE_SIZE = 32
WIDTH, GROUP_WIDTH = 10, 2
"""Of the paper: two where a group multiplies the channels."""
QUICK: dict[str, Any] = {
    "width": 8, "epochs": 14, "batch_size": 16, "free_precision": 10, "curvature": "kfac-mc",
}  # fmt: skip
"""A run of minutes on two cores; what is typed beside --quick counts."""
QUADRANTS, DIGITS = "quadrants", "digits"


def _kinds(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(","))


@click.command("relax")
@click.option(
    "--data",
    default=QUADRANTS,
    show_default=True,
    help="quadrants (digits in one of four places), digits (those that come with the package), or "
    "images: IDX files or their folder, CIFAR-10 binary batches, .npz with x and y, a folder per "
    "class.",
)
@click.option(
    "--test",
    "test_data",
    help="Test data, only scored. Default: what comes with the data, else 20 % held out.",
)
@click.option(
    "--task",
    type=click.Choice(TASKS),
    help="What to tell of quadrants: the digit, or the digit and where it is.  [default: digit]",
)
@click.option("--digits", "digits_data", help="For quadrants: digits from here, such as all MNIST.")
@click.option(
    "--variant",
    type=click.Choice(tuple(LAWS)),
    default="original",
    show_default=True,
    help="Transform every image once, at random, before anything else.",
)
@click.option(
    "--image-size",
    type=int,
    default=IMAGE_SIZE,
    show_default=True,
    help="Images are brought to so many pixels a side, a multiple of 32.",
)
@click.option(
    "--pathways",
    default="ffc,conv",
    show_default=True,
    callback=_kinds,
    help=f"What each layer is a sum of, comma-separated: {', '.join(PATHWAYS)}.",
)
@click.option(
    "--width",
    type=click.IntRange(1),
    help=f"Channels of the first layer.  [default: {WIDTH}, with a group {GROUP_WIDTH}]",
)
@click.option(
    "--group",
    help=f"Of group convolutions: a group that acts on the grid.  [default: {DEFAULT_GROUP}]",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="laplace",
    show_default=True,
    help="Learn prior precisions by the evidence, or leave them fixed.",
)
@click.option("--epochs", type=int, help="Passes over the training data.")
@click.option("--batch-size", type=int, help="Examples a weight step.")
@click.option(
    "--curvature-batch", type=int, help="Examples at once in an evidence pass; sets its memory."
)
@click.option(
    "--curvature", help="Kronecker-factored: kfac-ggn, kfac-mc or kfac-ef.  [default: kfac-ggn]"
)
@click.option(
    "--free-precision",
    type=float,
    help="Prior precision that fully connected pathways start at; higher asks more of the data "
    f"before symmetry is given up.  [default: {FREE_SHARE:g} of the number of examples]",
)
@click.option(
    "--augment",
    type=click.Choice(tuple(AUGMENTATIONS)),
    default="none",
    show_default=True,
    help="Images in weight steps: cropped after a rim of 4 pixels; flips mirrors them too.",
)
@click.option("--harden", is_flag=True, help="Score the network without switched-off pathways too.")
@click.option(
    "--quick",
    is_flag=True,
    help="A small run: " + ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in QUICK.items()) + ".",
)
@run_options
@click.pass_context
def relax_command(context: click.Context, /, **options: Any) -> None:
    """Learn which symmetry each layer of a convolutional network should have.

    Every layer is a sum of pathways: a convolution, and others that are free to depend on where
    things are. The evidence of the training data switches off what is not needed. Writes a run
    folder with a report. `isotropy relax --quick --task digit-quadrant` shows it on digits whose
    place matters.
    """
    options = _completed(options)
    place = device_from(options["device"])
    words = [*([options["task"]] if options["task"] else []), "-".join(options["pathways"])]
    folder = Path(options["out"] or fresh_folder("relax", options, *words))
    check_unused(folder)
    config = _config_from(options)
    split = relax_data(options)
    display = RelaxDisplay(options["pathways"], len(split.train), quiet=options["quiet"])
    for note in split.notes:
        display.say(note)
    kinds = ", ".join(options["pathways"])
    display.say(
        f"{split.train.name}: {len(split.train)} examples, pathways {kinds}, width "
        f"{options['width']}, objective {config.objective}, {place}"
    )

    def tell(progress: RelaxProgress) -> None:
        # All is checked by now: a folder that cannot be written is told before the long part.
        make_folder(folder)
        display(progress)

    try:
        with display:
            result = relax_and_learn(
                split,
                pathways=options["pathways"],
                width=options["width"],
                group=options["group"],
                config=config,
                device=place,
                hardened=options["harden"],
                progress=tell,
                describe={
                    "task": options["task"],
                    "command_line": str(context.find_root().obj),
                    "run_folder": str(folder),
                },
            )
    except KeyboardInterrupt:
        click.echo("isotropy: interrupted; nothing was saved", err=True)
        raise
    result.save(folder)
    if options["as_json"]:
        click.echo(json.dumps(plain(result.record), allow_nan=False))
        return
    said = [*relax_sentences(result.record), *score_sentences(result.record)]
    for sentence in [*said, *result.record["notes"]]:
        click.echo(sentence)
    click.echo(f"Report: {folder / 'report.html'}")


def relax_data(options: dict[str, Any]) -> Split:
    """The data a user named, as images of the size asked for; digits are standardised as MNIST."""
    if options["data"] == QUADRANTS:
        _refuse(options, "test_data", "the test digits are those beside the training digits")
        if options["variant"] != "original":
            raise CallerError(
                f"--variant {options['variant']}: quadrants have no variants; use --data {DIGITS}, "
                "or a path"
            )
        source = digits() if options["digits_data"] is None else load(options["digits_data"])
        split = quadrants(source, options["task"], size=options["image_size"])
        split = standardised(split) if split.train.inputs.shape[1] == 1 else split
        if options["subset"] is None:
            return split
        check_at_least(options["subset"], 2, what="--subset")
        train = split.train.subset(options["subset"], options["seed"])
        return Split(train, split.test, split.notes)
    _refuse(options, "task", f"only --data {QUADRANTS} has tasks")
    _refuse(options, "digits_data", f"only --data {QUADRANTS} takes digits; use --data instead")
    if options["data"] == DIGITS:
        return standardised(data_from({**options, "data": None}))
    return data_from(options)


def _refuse(options: dict[str, Any], name: str, why: str) -> None:
    if options[name] is not None:
        flag = {"test_data": "--test", "digits_data": "--digits", "task": "--task"}[name]
        raise CallerError(f"{flag} {options[name]}: {why}")


def _completed(options: dict[str, Any]) -> dict[str, Any]:
    """Options with everything filled in that depends on another; pathways are known ones."""
    check_kinds(options["pathways"])
    found = dict(options)
    if found["data"] == QUADRANTS and found["task"] is None:
        found["task"] = TASKS[0]
    has_group = any(kind in GROUP_CONVOLUTIONS for kind in found["pathways"])
    if has_group and found["group"] is None:
        found["group"] = DEFAULT_GROUP
    if found["quick"]:
        found |= {name: value for name, value in QUICK.items() if found[name] is None}
    if found["width"] is None:
        found["width"] = GROUP_WIDTH if has_group else WIDTH
    return found


def _config_from(options: dict[str, Any]) -> RelaxConfig:
    """The settings that these options ask for."""
    names = (
        "objective", "epochs", "batch_size", "curvature_batch", "curvature", "free_precision",
        "seed",
    )  # fmt: skip
    given = {name: options[name] for name in names if options[name] is not None}
    config = RelaxConfig(**given, augmentation=options["augment"])
    config.check()
    return config
