"""`isotropy measure`: what symmetry a trained network really has, and which layer breaks it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isotropy.cli.inputs import (
    action_names,
    data_options,
    device_from,
    fresh_folder,
    network_from,
    run_options,
)
from isotropy.cli.measure_inputs import (
    data_request,
    measured_data,
    measured_split,
    named_models,
)
from isotropy.cli.progress import LiveDisplay
from isotropy.cli.resume import kept_options
from isotropy.data.borders import chosen_border
from isotropy.data.variants import LAWS
from isotropy.records import check_unused, plain
from isotropy.report.measure import measure_sentences
from isotropy.workflows.loading import load
from isotropy.workflows.measuring import THESIS_TRANSFORMATIONS, measure, measured_actions

SPLITS = ("test", "train")


def _splits(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in value.split(","))
    if not set(parts) <= set(SPLITS) or len(set(parts)) < len(parts):
        raise click.BadParameter(f"expected test, train or train,test, got {value!r}")
    return parts


class MeasureDisplay(LiveDisplay):
    """What is being measured: a bar on a terminal, lines elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.last = ""

    def __call__(self, text: str, done: int, total: int) -> None:
        if self.is_interactive:
            row = Table.grid(padding=(0, 2))
            row.add_row(
                Text(text),
                ProgressBar(total=max(total, 1), completed=done, width=30),
                Text(f"{done}/{total}", style="dim"),
            )
            self.live.update(row)
        elif text != self.last:
            self.say(f"measuring {text}")
        self.last = text


@click.command("measure")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[NAME=]MODEL",
    help="The network: RUN_FOLDER (what it trained, averaged after `learn`) | FILE.py:factory | "
    "timm:NAME:pretrained | mlp, cnn, … | mlp:WIDTH. Repeatable; networks called before and after "
    "give the drift.",
)
@data_options
@click.option(
    "--split",
    "splits",
    default="test",
    show_default=True,
    callback=_splits,
    help="Which part of the data: test, train, or train,test for the gap between them.",
)
@click.option(
    "--ood",
    type=click.Choice(tuple(LAWS)),
    help="Measure on the test data in this variant as well.",
)
@click.option(
    "--examples",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Examples measured of each data set, drawn by the seed.",
)
@click.option(
    "--generators",
    help="Comma-separated generators and finite actions, such as rotation,horizontal_flip. "
    f"Default on images: {','.join(THESIS_TRANSFORMATIONS)}.",
)
@click.option(
    "--on",
    type=click.Choice(("auto", "probabilities", "outputs")),
    default="auto",
    show_default=True,
    help="What is compared; auto: probabilities where there are classes.",
)
@click.option(
    "--interpolation",
    type=click.Choice(("bilinear", "bicubic", "fourier")),
    default="bilinear",
    show_default=True,
    help="How images are resampled.",
)
@click.option(
    "--padding",
    type=click.Choice(("reflection", "zeros", "border", "mean")),
    default="reflection",
    show_default=True,
    help="What is beyond the border of an image; mean: the training data's mean colour. fourier "
    "repeats the image instead.",
)
@click.option("--layers/--no-layers", default=True, help="Whether to go layer by layer.")
@click.option(
    "--attribution",
    type=click.Choice(("auto", "forward", "backward", "probes")),
    default="auto",
    show_default=True,
    help="How contributions of layers are computed: exactly, or by random probes.",
)
@click.option(
    "--probes",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Random probes, where there are any.",
)
@click.option(
    "--finite/--no-finite", default=True, help="Whether to measure finite transformations too."
)
@click.option("--batch-size", type=click.IntRange(1), help="Examples at once; sets the memory.")
@run_options
@click.pass_context
def measure_command(context: click.Context, /, **options: Any) -> None:
    """Measure how equivariant trained networks are, and which layer breaks it.

    For every transformation the local equivariance error (the Lie derivative of the network), what
    resampling alone would make of it, each layer's part in it, and what finite transformations do.
    Writes a run folder with a report.
    """
    models = named_models(options["models"])
    request = data_request(context, options, models)
    place = device_from(options["device"])
    words = [re.sub(r"\W+", "-", model.label).strip("-") for model in models[:1]]
    folder = options["out"] or fresh_folder(
        "measure", {**request, "seed": options["seed"]}, *filter(None, words)
    )
    request["out"] = folder
    check_unused(Path(folder))
    display = MeasureDisplay(quiet=options["quiet"])
    split = measured_split(request, models)
    shape, outputs = tuple(split.train.inputs.shape[1:]), split.train.num_outputs
    sets = measured_data(request, split)
    names = None if options["generators"] is None else action_names(options["generators"])
    fill = None
    if options["padding"] == "mean" and split.train.is_images:
        fill = chosen_border(split.train.inputs, "mean").fill
    actions = measured_actions(
        shape,
        names,
        interpolation=options["interpolation"],
        padding=options["padding"],
        fill=fill,
    )
    networks = {}
    for model in models:
        if model.folder is not None:
            network = load(model.folder)
        else:
            _, network = network_from(model.text, shape, outputs, options["seed"])
        networks[model.label] = network.eval()
        if model.is_untrained:
            display.say(f"{model.label}: not trained, its weights are random")
    for note in split.notes:
        display.say(note)
    for label, data in sets.items():
        display.say(f"{label}: {data.name}, {len(data)} examples")
    with display:
        result = measure(
            networks,
            sets,
            actions=actions,
            **{
                name: options[name]
                for name in ("on", "layers", "attribution", "probes", "finite", "examples",
                             "batch_size", "seed")
            },
            device=place,
            folder=folder,
            progress=display,
            describe={
                "request": kept_options({**request, "seed": options["seed"]}),
                "command": str(context.find_root().obj),
            },
        )  # fmt: skip
    if options["as_json"]:
        click.echo(json.dumps(plain(result.record), allow_nan=False))
        return
    for sentence in measure_sentences(result.record):
        click.echo(sentence)
    click.echo(f"Report: {Path(folder) / 'report.html'}")
