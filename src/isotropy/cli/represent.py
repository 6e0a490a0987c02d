"""`isotropy represent`: a code that ignores a distortion nobody can name, from pairs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import numpy as np

from isotropy.checks import CallerError
from isotropy.cli.shared.inputs import (
    device_from,
    fresh_folder,
    output_options,
    settings_given,
)
from isotropy.cli.shared.progress import LOG, RepresentDisplay, logging, tell
from isotropy.cli.shared.resuming import continuable, kept_options, resumed_run
from isotropy.data.pairs import DEMOS, DIGITS, demo_data, read_arrays
from isotropy.networks.invariant_autoencoder import InvariantAutoencoder
from isotropy.networks.rich_layer import NETWORKS, RICH
from isotropy.records import CONFIG, check_unused, read_json, write_bytes
from isotropy.workflows.loading import load
from isotropy.workflows.representing import RepresentConfig, RepresentResult, represent

DEMO_STEPS = {"shift-scale": 8000, DIGITS: 1000}
"""Of demos that need more or fewer steps than the default."""
WITH_DISTANCES = {"steps": 8000, "batch_size": 256}
"""Of demos whose distances are told: a pair says less than one compared with all others."""
CODES = "codes.npz"


@click.command("represent")
@click.option(
    "--data", help=".npz with x and entity (or x, other and distance), or CSV with a header."
)
@click.option("--entity", help="Column of a CSV file that says the entity.  [default: entity]")
@click.option(
    "--demo",
    type=click.Choice(DEMOS),
    help="Vectors under a distortion of the paper, or turned digits.",
)
@click.option("--size", type=click.IntRange(4), help="Features of a demo's vectors.  [default: 10]")
@click.option(
    "--distances", "with_distances", is_flag=True, help="Demo: tell true distances instead."
)
@click.option(
    "--encode",
    type=click.Path(path_type=Path),
    metavar="RUN_FOLDER",
    help=f"Write codes of --data by this run to --out.  [default: RUN_FOLDER/{CODES}]",
)
@click.option("--network", type=click.Choice(NETWORKS), default=RICH, show_default=True)
@click.option("--layers", type=int, help="Of encoder and decoder.  [default: 2, standard ones 4]")
@click.option("--invariant", type=int, help="Numbers of the invariant code.  [default: features]")
@click.option("--varying", type=int, help="Numbers of the varying code.  [default: features]")
@click.option("--steps", type=int, help="Training steps.  [default: 4000; of some demos another]")
@click.option("--batch-size", type=int, help="Pairs a step.  [default: 128]")
@click.option("--rate", type=float, help="Of Adam at the start.  [default: 0.01]")
@LOG
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@output_options
@click.pass_context
def represent_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Learn a code that ignores an unknown distortion and tells entities apart.

    Data are samples of which one knows only that some show the same entity. A fifth of the entities
    is held out, and measures are of these. Writes a run folder with a report.
    """
    if options["encode"] is not None:
        record = _encode(options)
        written = f"Codes of {record['samples']} samples: {record['codes']}"
        tell(record, [], as_json=options["as_json"], last=written)
        return
    if resume is not None:
        run = resumed_run(context, resume, options, RepresentConfig)
        options, config = run.options, run.config
    else:
        if (options["data"] is None) == (options["demo"] is None):
            raise CallerError("expected one of --data FILE and --demo NAME")
        vectors = options["size"] is not None or options["with_distances"]
        if vectors and options["demo"] in (None, DIGITS):
            raise CallerError(
                "--size and --distances: expected a demo with vectors; leave them out"
            )
        budget: dict[str, Any] = {"steps": DEMO_STEPS.get(options["demo"])}
        budget |= WITH_DISTANCES if options["with_distances"] else {}
        options |= {name: budget[name] for name in budget if options[name] is None}
        config = RepresentConfig(**settings_given(RepresentConfig, options))
        named = {**options, "data": options["data"] or options["demo"], "variant": config.network}
        options["out"] = options["out"] or fresh_folder("represent", named)
        check_unused(Path(options["out"]))
    with continuable("represent", Path(options["out"])):
        result = _represent(options, config, resume is not None)
    tell(result.record, result.sentences, as_json=options["as_json"])


def _represent(options: dict[str, Any], config: RepresentConfig, resume: bool) -> RepresentResult:
    """Everything between the parsed options and the result."""
    display = RepresentDisplay(quiet=options["quiet"])
    data, classes = options["data"], None
    if options["demo"] is not None:
        told = options["with_distances"]
        data, classes = demo_data(
            options["demo"], options["size"] or 10, options["seed"], distances=told
        )
        display.say(*data.notes)
    with display:
        return represent(
            data,
            options["entity"],
            classes=classes,
            config=config,
            device=device_from(options["device"]),
            folder=options["out"],
            resume=resume,
            progress=logging(display, options),
            describe={"request": kept_options(options)},
        )


def _encode(options: dict[str, Any]) -> dict[str, Any]:
    """Write codes of the samples of a file; the record of what was written."""
    if options["data"] is None:
        raise CallerError("--encode RUN_FOLDER: expected samples to encode, got none; add --data")
    model = load(options["encode"])
    if not isinstance(model, InvariantAutoencoder):
        raise CallerError(f"{options['encode']}: expected a run folder of `isotropy represent`")
    asked = read_json(options["encode"] / CONFIG).get("request") or {}
    arrays = read_arrays(options["data"], options["entity"], asked.get("entity") or "entity")
    try:
        invariant, varying = model.encode(arrays["x"])
    except CallerError as error:
        raise CallerError(f"{options['data']}: {error}") from None
    path = options["out"] or options["encode"] / CODES
    named = {"entity": arrays["entity"]} if "entity" in arrays else {}
    file = io.BytesIO()
    np.savez_compressed(file, invariant=invariant.numpy(), varying=varying.numpy(), **named)
    write_bytes(path, file.getvalue())
    return {"schema": 1, "command": "represent", "codes": str(path), "samples": len(invariant)}
