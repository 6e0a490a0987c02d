"""`isotropy build`: a network that has a symmetry exactly, from one that a user has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import (
    SELECT,
    data_from,
    data_options,
    device_from,
    fresh_folder,
    network_from,
    run_options,
)
from isotropy.cli.shared.progress import tell
from isotropy.networks.building import WIDTHS
from isotropy.records import CONFIG, check_unused, read_json
from isotropy.workflows.building import build


@click.command("build")
@click.option(
    "--model",
    "model_text",
    required=True,
    help="compact | cnn | convnet | … | FILE.py:factory | timm:NAME | RUN_FOLDER.",
)
@SELECT
@click.option(
    "--symmetries",
    type=click.Path(path_type=Path),
    help="A run folder of `isotropy learn`: what was found there is built in.",
)
@click.option("--group", help="A group that acts on the grid, such as C(4) or D(1).")
@click.option(
    "--width",
    type=click.Choice(WIDTHS),
    default=WIDTHS[0],
    show_default=True,
    help="Of group convolutions: as many parameters as the network has, or its channels for each "
    "element.",
)
@data_options
@run_options
def build_command(**options: Any) -> None:
    """Make a network that has a symmetry exactly, from the network you have.

    Convolutions become group convolutions where the group acts on the grid of pixels; otherwise
    outputs are averaged over transformed copies. Data are read for the shape of an input and the
    number of outputs alone, from a run folder where none are named. Writes a run folder, which
    other commands take as --model; weights are new and are to be trained.
    """
    if (options["symmetries"] is None) == (options["group"] is None):
        raise CallerError("expected one of --symmetries RUN and --group GROUP")
    word = "".join(filter(str.isalnum, options["group"] or "learned"))
    folder = options["out"] or fresh_folder("build", options, word)
    check_unused(Path(folder), can_go_on=False)
    place = device_from(options["device"])
    shape, outputs = _sizes(options)
    specification, network = network_from(
        options["model_text"], shape, outputs, options["seed"], options["select"]
    )
    generator = torch.Generator().manual_seed(options["seed"])
    result = build(
        network.to(place),
        options["symmetries"],
        group=options["group"],
        example=shape,
        width=options["width"],
        generator=generator,
    )
    record = result.named(specification).kept_in(folder).record
    tell(record, [result.sentence], as_json=options["as_json"], last=f"Run folder: {folder}")


def _sizes(options: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape of an input and number of outputs: of the data named, or of a run's."""
    runs = [options["model_text"], options["symmetries"]]
    folders = [Path(each) for each in runs if each is not None and Path(each).is_dir()]
    if options["data"] is None and folders:
        config = read_json(folders[0] / CONFIG)
        sizes = config.get("data", config)
        return tuple(sizes["shape"]), int(sizes["outputs"])
    train = data_from(options, working_size=True).train
    return tuple(train.inputs.shape[1:]), train.num_outputs
