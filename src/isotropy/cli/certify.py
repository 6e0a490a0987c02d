"""`isotropy certify` and `isotropy verify`: the most a network errs on new data, and the check."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from isotropy.bounds.certificate import CERTIFICATE
from isotropy.bounds.compressing import Grid, suggested
from isotropy.checks import CallerError, check_choice
from isotropy.cli.shared.inputs import data_options, device_from, fresh_folder, run_options, taken
from isotropy.cli.shared.progress import LiveDisplay, tell
from isotropy.data.labelled import Split
from isotropy.data.readers import digits, read
from isotropy.data.variants import vary
from isotropy.networks.zoo.specification import AUTO, NetworkSpecification, parse_network
from isotropy.records import check_unused, read_json
from isotropy.report.pages.certify import certify_sentences
from isotropy.workflows.certifying import (
    CertifyConfig,
    CertifyProgress,
    certify,
    verify,
)
from isotropy.workflows.loading import load_network

GREY, COLOUR, OTHERS = "oriented:32", "pooled:32", "mlp:32"
"""The networks of --model auto: of images of one channel, of other images, of other data."""
LEAST_SIDE = 8
"""Of images that the first two take."""
TRIALS = "trials"
PARTS = {each.name.removesuffix("s"): each.name for each in fields(Grid) if each.name != TRIALS}
"""Lists of a grid as they are typed: dimension, step, beta, width, seed."""


def _grid(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any]:
    """`dimension=50,100 beta=1,2 trials=8` as fields of `Grid`."""
    found: dict[str, Any] = {}
    for part in (text or "").split():
        name, _, values = part.partition("=")
        kind = float if name in ("step", "beta") else int
        try:
            numbers = tuple(kind(each) for each in values.split(","))
        except ValueError as error:
            raise click.BadParameter(f"expected NAME=NUMBER,NUMBER,…, got {part!r}") from error
        if name == TRIALS:
            found[name] = numbers[0]
        else:
            found[PARTS[check_choice(name, PARTS, what="part of the grid")]] = numbers
    return found


@click.command("certify")
@click.option(
    "--model",
    "model_text",
    help="oriented:32 | pooled:32 | mlp:32 | cnn | … | FILE.py:factory | RUN_FOLDER of `isotropy "
    f"build`. Default: {GREY} for images of one channel, {COLOUR} for others, {OTHERS} otherwise.",
)
@click.option(
    "--start",
    type=click.Path(path_type=Path),
    help="A run folder: begin at its weights, which were trained on other data or with --subset on "
    "a part of these, which is then left out.",
)
@click.option(
    "--start-data",
    help="Data that the start was trained on, or others like them, none of which are counted: they "
    "shape the subspace too, which lowers the bound.",
)
@click.option(
    "--left-out",
    type=float,
    default=0.0,
    help="Share of the examples on which the start is trained first; they are not counted.",
)
@click.option(
    "--augment",
    is_flag=True,
    help="Mirror, shift and partly erase images while the start is trained.",
)
@click.option(
    "--symmetries",
    type=click.Path(path_type=Path),
    help="A run folder of `isotropy learn`: average over what was found, in 8 bits an amount.",
)
@click.option("--group", help="Average over a group of the grid, such as C(4).")
@click.option("--compare", is_flag=True, help="Certify without the symmetry too.")
@click.option("--delta", type=float, default=0.05, show_default=True, help="1 − confidence.")
@click.option(
    "--grid",
    callback=_grid,
    help='Declare what may be chosen: "dimension=50,100,200 step=1,2 beta=1,2 seed=0,1 '
    'width=8,16"; trials=8 says that eight other settings were compared on these data before.',
)
@click.option(
    "--train",
    callback=_grid,
    help="Train this part of the grid, in the same words. What it leaves open suits the number of "
    "examples: one dimension, β near 1, one seed of many examples.",
)
@click.option("--whole-grid", is_flag=True, help="Train every entry of the grid.")
@click.option(
    "--projector",
    default="kronecker-product",
    show_default=True,
    help="dense | kronecker-product | kronecker-sum | film, or a sum such as "
    "film+kronecker-product.",
)
@click.option("--epochs", type=int, help="Passes over the training data for each entry.")
@click.option("--batch-size", type=int, help="Examples a step.")
@data_options
@run_options
def certify_command(**options: Any) -> None:
    """Certify the most that a network errs on new data, with no data held out.

    A network like the given one is trained to a short description. Its errors on the training data
    and the length of that description bound its error on new data. Writes a run folder with
    certificate.json, which `isotropy verify` checks.
    """
    folder = options["out"] or fresh_folder("certify", options)
    check_unused(Path(folder), can_go_on=False)
    split = _data(options)
    settings = _settings(options, len(split.train))
    model = None if options["start"] is not None else _model(options, split)
    if options["symmetries"] is not None and options["group"] is not None:
        raise CallerError("expected one of --symmetries and --group, got both")
    with LiveDisplay(quiet=options["quiet"]) as display:
        display.say(*split.notes)
        result = certify(
            model,
            split,
            config=settings,
            symmetry=options["symmetries"] or options["group"],
            start=_start(options),
            device=device_from(options["device"]),
            folder=folder,
            describe={"request": {name: options[name] for name in ("variant", "subset", "seed")}},
            progress=_teller(display),
        )
    tell(result.record, certify_sentences(result.record), as_json=options["as_json"])


def _start(options: Mapping[str, Any]) -> Any:
    """The run folder to begin at, with the data that stretch the subspace if there are any."""
    if options["start_data"] is None:
        return options["start"]
    if options["start"] is None:
        raise CallerError("--start-data: expected --start RUN beside it, got none")
    split = read(options["start_data"], image_size=options["image_size"], hold_out_fraction=0.0)
    return options["start"], split.train


def _teller(display: LiveDisplay) -> Any:
    """Says how far it is, ten times in a run."""
    last = -1

    def say(progress: CertifyProgress) -> None:
        nonlocal last
        tenth = 10 * progress.epoch // max(progress.epochs, 1)
        if tenth > last:
            last = tenth
            best = "" if progress.bound is None else f", best bound {100 * progress.bound:.1f} %"
            display.say(f"epoch {progress.epoch} of {progress.epochs}{best}")

    return say


def _data(options: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> Split:
    """The data a user named; nothing is held out of them.

    request: variant, subset and seed of a certificate, where the user did not say others; of a
    story the size of images too, and the share that it held out to score its networks
    """
    own = {"hold_out": 0.0, **options, **(request or {})}
    if own["data"] is None:
        split = digits()
    else:
        split = read(
            own["data"],
            own["test_data"],
            image_size=own["image_size"],
            seed=own["seed"],
            hold_out_fraction=own["hold_out"],
        )
    return taken(vary(split, own["variant"]), own)


def _settings(options: Mapping[str, Any], examples: int) -> CertifyConfig:
    seed = options["seed"]
    seeds = {"seeds": tuple(range(seed, seed + len(Grid().seeds)))}
    declared = Grid(**{**seeds, **options["grid"]})
    chosen, train = options["train"], declared if options["whole_grid"] else None
    if chosen and train is None:
        train = replace(suggested(declared, examples), **chosen)
    own = {
        name: options[name]
        for name in ("delta", "projector", "epochs", "batch_size", "left_out", "augment")
    }
    own["stretch"] = options["start_data"] is not None
    return CertifyConfig(grid=declared, train=train, compare=options["compare"], seed=seed, **own)


def _model(options: Mapping[str, Any], split: Split) -> NetworkSpecification:
    text = options["model_text"]
    if text in (None, AUTO):
        channels, *sides = split.train.inputs.shape[1:]
        large = split.train.is_images and min(sides) >= LEAST_SIDE
        text = OTHERS if not large else GREY if channels == 1 else COLOUR
    if Path(text).is_dir():
        shape = tuple(split.train.inputs.shape[1:])
        return load_network(Path(text), shape, split.train.num_outputs)[0]
    return parse_network(text)


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@data_options
@run_options
@click.pass_context
def verify_command(context: click.Context, /, file: Path, **options: Any) -> None:
    """Check a certificate: decode its network and count the errors on the data again.

    Exit status 1 and a reason where it does not hold. Variant, subset and seed of the data are
    those of the certificate, unless others are given.
    """
    path = file / CERTIFICATE if file.is_dir() else file
    request = read_json(path).get("data", {}).get("request") or {}
    typed = {
        name: options[name]
        for name in request
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    split = _data(options, {**request, **typed})
    result = verify(path, split, device=device_from(options["device"]))
    record = result.record
    words = "The certificate holds." if result.valid else f"Not valid: {result.reason}."
    told = [] if not result.valid else [f"Error on new data at most {100 * record['bound']:.2f} %."]
    tell(record, told, as_json=options["as_json"], last=words)
    if not result.valid:
        sys.exit(1)
