"""`isotropy relax`: which symmetry each layer needs, learned layer by layer from training data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from torch import nn

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import (
    BUDGET,
    SELECT,
    TEST_DATA,
    VARIANT,
    built_network,
    data_from,
    device_from,
    fitted_network,
    fresh_folder,
    run_options,
    settings_given,
    taken,
    with_options,
)
from isotropy.cli.shared.progress import LOG, RelaxDisplay, logging, tell
from isotropy.cli.shared.resuming import continuable, kept_options, resumed_run
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import TASKS, quadrants, standardised
from isotropy.evidence.layers.settings import (
    AUGMENTATIONS,
    FREE_SHARE,
    OBJECTIVES,
    RelaxConfig,
)
from isotropy.networks.pathways.relaxed_layer import (
    DEFAULT_GROUP,
    GROUP_CONVOLUTIONS,
    PATHWAYS,
    check_kinds,
)
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import check_unused
from isotropy.report.pages.relax import score_sentences
from isotropy.workflows.relaxing import RelaxResult, relax_and_learn

IMAGE_SIZE = 32
WIDTH, GROUP_WIDTH = 10, 2
"""Of the paper: two where a group multiplies the channels."""
QUICK: dict[str, Any] = {
    "width": 8, "epochs": 14, "batch_size": 16, "free_precision": 10, "curvature": "kfac-mc",
}  # fmt: skip
"""A run of minutes on two cores; what is typed beside --quick counts."""
NAMES = QUADRANTS, DIGITS = "quadrants", "digits"
"""Data that come with the package."""


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
@TEST_DATA
@click.option(
    "--task",
    type=click.Choice(TASKS),
    help="What to tell of quadrants: the digit, or the digit and where it is.  [default: digit]",
)
@click.option("--digits", "digits_data", help="For quadrants: digits from here, such as all MNIST.")
@VARIANT
@click.option(
    "--image-size",
    type=int,
    help="Images are brought to so many pixels a side; without --model a multiple of 32.  "
    f"[default: {IMAGE_SIZE}; with --model the images' own size]",
)
@click.option(
    "--model",
    "model_text",
    help="A network whose convolutions are relaxed: cnn | resnet | resnet:WIDTH | compact | … | "
    "FILE.py:factory | timm:NAME | RUN_FOLDER of isotropy learn.  [default: the paper's]",
)
@SELECT
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
    help="Channels of the first layer, of the paper's network.  "
    f"[default: {WIDTH}, with a group {GROUP_WIDTH}]",
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
@partial(with_options, BUDGET)
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
    "augmentation",
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
@LOG
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@run_options
@click.pass_context
def relax_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Learn which symmetry each layer of a convolutional network should have.

    Every layer is a sum of pathways: a convolution, and others that are free to depend on where
    things are. The evidence of the training data switches off what is not needed. Writes a run
    folder with a report. `isotropy relax --quick --task digit-quadrant` shows it on digits whose
    place matters.
    """
    before = None
    if resume is not None:
        run = resumed_run(context, resume, options, RelaxConfig, NAMES)
        options, config, before = run.options, run.config, run.network
    else:
        if context.get_parameter_source("width") is not ParameterSource.COMMANDLINE:
            options["width"] = None if options["model_text"] else options["width"]
        options = _completed(options)
        words = [*([options["task"]] if options["task"] else []), "-".join(options["pathways"])]
        options["out"] = options["out"] or fresh_folder("relax", options, *words)
        config = _config_from(options)
        check_unused(Path(options["out"]))
    folder = Path(options["out"])
    with continuable("relax", folder):
        result = _relax(options, config, before, command=str(context.find_root().obj))
    record = result.record
    sentences = [*result.sentences, *score_sentences(record), *record["notes"]]
    tell(record, sentences, as_json=options["as_json"])


def _relax(
    options: dict[str, Any],
    config: RelaxConfig,
    before: NetworkSpecification | None,
    *,
    command: str,
) -> RelaxResult:
    """Everything between the parsed options and the result.

    before: the relaxed network of the run in `options["out"]` that is to be continued
    """
    place = device_from(options["device"])
    split = relax_data(options)
    model = _model(options, split.train, before)
    display = RelaxDisplay(options["pathways"], len(split.train), quiet=options["quiet"])
    display.say(*split.notes)
    what = f"width {options['width']}" if model is None else f"model {model[0].text}"
    display.say(
        f"{split.train.name}: {len(split.train)} examples, pathways "
        f"{', '.join(options['pathways'])}, {what}, objective {config.objective}, {place}"
    )

    def announce(resolved: RelaxConfig, epoch: int) -> None:
        if before is not None:
            display.say(f"continuing after epoch {epoch} of {resolved.epochs}")

    with display:
        return relax_and_learn(
            split,
            pathways=options["pathways"],
            width=options["width"],
            group=options["group"],
            config=config,
            model=model,
            describe={"task": options["task"], "command_line": command},
            device=place,
            hardened=options["harden"],
            folder=options["out"],
            resume=before is not None,
            started=announce,
            progress=logging(display, options),
            remark=display.say,
            request=kept_options(options, NAMES),
        )


def _model(
    options: dict[str, Any], data: LabelledData, before: NetworkSpecification | None
) -> tuple[NetworkSpecification, nn.Module] | None:
    """The network to relax, in words and itself; None for the paper's.

    before: the relaxed network of a run that is continued
    """
    if options["model_text"] is None:
        return None
    if before is None:
        return fitted_network(options["model_text"], data, options["seed"], options["select"])
    where = f"the network of {options['out']}"
    specification = NetworkSpecification.from_dict(before.arguments.get("network"), where=where)
    return specification, built_network(specification, data, options["seed"])


def relax_data(options: dict[str, Any]) -> Split:
    """The data a user named, as images of the size asked for; digits are standardised as MNIST."""
    if options["data"] == QUADRANTS:
        _refuse(options, "test_data", "the test digits are those beside the training digits")
        if options["variant"] != "original":
            raise CallerError(
                f"--variant {options['variant']}: quadrants have no variants; use --data {DIGITS}, "
                "or a path"
            )
        source = digits() if options["digits_data"] is None else read(options["digits_data"])
        split = quadrants(source, options["task"], size=options["image_size"])
        split = standardised(split) if split.train.inputs.shape[1] == 1 else split
        return taken(split, options)
    _refuse(options, "task", f"only --data {QUADRANTS} has tasks")
    _refuse(options, "digits_data", f"only --data {QUADRANTS} takes digits; use --data instead")
    if options["data"] == DIGITS:
        return standardised(data_from({**options, "data": None}))
    return data_from(options, working_size=True)


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
    if found["model_text"] is not None and found["width"] is not None:
        raise CallerError(
            f"--width {found['width']}: it is that of the paper's network; with --model write "
            f"--model resnet:{found['width']}, or leave it out"
        )
    if found["quick"]:
        asked = {name: value for name, value in QUICK.items() if found[name] is None}
        if found["objective"] == "map":  # the baseline has one precision, unless told otherwise
            asked.pop("free_precision", None)
        found |= asked
    if found["image_size"] is None and (found["model_text"] is None or found["data"] == QUADRANTS):
        found["image_size"] = IMAGE_SIZE
    if found["model_text"] is not None:
        found["width"] = None
    elif found["width"] is None:
        found["width"] = GROUP_WIDTH if has_group else WIDTH
    return found


def _config_from(options: dict[str, Any]) -> RelaxConfig:
    """The settings that these options ask for."""
    config = RelaxConfig(**settings_given(RelaxConfig, options))
    config.check()
    return config
