"""`isotropy learn`: which transformations leave the answer unchanged, and how much of each."""

from __future__ import annotations

import json
import math
import shlex
import time
from pathlib import Path
from typing import Any

import click
import torch

from isotropy.checkpoint import CHECKPOINT, CONFIG, load_module, load_tensors, plain, read_json
from isotropy.checks import CallerError, check_at_least, check_choice
from isotropy.cli.progress import LearnDisplay
from isotropy.cli.resume import kept_options, resumed_run
from isotropy.data.embedded import digits
from isotropy.data.labelled import Split
from isotropy.data.readers import load
from isotropy.data.variants import LAWS, TRUE_RANGES, vary
from isotropy.evidence.priors import STRUCTURES
from isotropy.evidence.schedule import OBJECTIVES, LearnConfig, too_short
from isotropy.networks.backbones import BACKBONES
from isotropy.networks.specification import NetworkSpecification, parse_network
from isotropy.report.reading import finding_sentences, number_text
from isotropy.symmetry.image_actions import GENERATORS, LILA_GENERATORS, AffineAction, affine
from isotropy.workflows.learning import LearnResult, learn

DEFAULT_MODEL = "mlp:200"


def _amounts(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    amounts = {}
    for value in values:
        name, _, number = value.partition("=")
        try:
            amount = float(number)
        except ValueError as error:
            raise click.BadParameter(f"expected NAME=NUMBER, got {value!r}") from error
        if not (amount >= 0 and math.isfinite(amount)):
            raise click.BadParameter(f"expected a half-width of at least 0, got {value!r}")
        try:
            amounts[check_choice(name, GENERATORS, what="generator")] = amount
        except CallerError as error:
            raise click.BadParameter(str(error)) from error
    return amounts


@click.command("learn")
@click.option(
    "--data",
    help="Training data: IDX files or their folder, CIFAR-10 binary batches, "
    ".npz with x and y, or a folder per class. Default: the embedded digits.",
)
@click.option(
    "--test",
    "test_data",
    help="Test data, only scored. Default: what comes with the data, else 20 % held out.",
)
@click.option(
    "--variant",
    type=click.Choice(tuple(LAWS)),
    default="original",
    show_default=True,
    help="Transform every image once, at random, before anything else.",
)
@click.option("--image-size", type=int, help="Resize all images to this many pixels a side.")
@click.option(
    "--model",
    "model_text",
    help="mlp | mlp:WIDTH | cnn | resnet | FILE.py:factory | "
    f"timm:NAME | RUN_FOLDER. Default: {DEFAULT_MODEL}; mlp alone has the paper's 1000.",
)
@click.option("--objective", type=click.Choice(OBJECTIVES), help="Default: laplace.")
@click.option("--generators", help="Comma-separated generators. Default: the paper's six.")
@click.option(
    "--range",
    "ranges",
    multiple=True,
    callback=_amounts,
    metavar="NAME=AMOUNT",
    help="For --objective fixed: a half-width in reported units; repeatable.",
)
@click.option(
    "--cap",
    "caps",
    multiple=True,
    callback=_amounts,
    metavar="NAME=AMOUNT",
    help="Largest half-width that may be learned, in reported units; repeatable.",
)
@click.option("--samples", type=int, help="Transformed copies averaged per image.")
@click.option("--test-samples", type=int, help="Copies averaged when predicting.")
@click.option("--epochs", type=int, help="Passes over the training data.")
@click.option("--batch-size", type=int, help="Examples a weight step.")
@click.option(
    "--curvature-batch", type=int, help="Examples at once in an evidence pass; sets its memory."
)
@click.option(
    "--prior",
    "prior_structure",
    type=click.Choice(STRUCTURES),
    default="scalar",
    show_default=True,
    help="One prior precision, or one per layer or tensor.",
)
@click.option("--subset", type=int, help="Train on so many examples, drawn by the seed.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto | cpu | cuda | cuda:N")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder. Default: runs/…")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
@click.pass_context
def learn_command(context: click.Context, /, resume: Path | None, **options: Any) -> None:
    """Learn which transformations leave the labels unchanged, and how much of each.

    Trains a network and, from the same training data alone, the ranges of its augmentation.
    Writes a run folder with a report. `isotropy learn --variant rotated` shows it on the
    embedded digits.
    """
    network = None
    if resume is not None:
        run = resumed_run(context, resume, options)
        options, config, network = run.options, run.config, run.network
    else:
        if options["model_text"] is None:
            options["model_text"] = DEFAULT_MODEL
        options["out"] = options["out"] or _fresh_folder(options)
        config = _config(options)
    folder = Path(options["out"])
    try:
        result = _learn(options, config, network, command=str(context.find_root().obj))
    except KeyboardInterrupt:
        advice = "nothing was saved yet"
        if (folder / CHECKPOINT).exists():
            advice = f"continue with: isotropy learn --resume {shlex.quote(str(folder))}"
        click.echo(f"isotropy: interrupted; {advice}", err=True)
        raise
    if options["as_json"]:
        click.echo(json.dumps(plain(result.record), allow_nan=False))
    else:
        _tell(result)


def _config(options: dict[str, Any]) -> LearnConfig:
    config = LearnConfig(
        **{
            name: options[name]
            for name in ("samples", "test_samples", "epochs", "batch_size", "curvature_batch",
                         "prior_structure", "seed")
        },
        objective=options["objective"] or "laplace",
        ranges=options["ranges"] or None,
        caps=options["caps"] or None,
    )  # fmt: skip
    config.check()
    return config


def _learn(
    options: dict[str, Any],
    config: LearnConfig,
    resumed: NetworkSpecification | None,
    *,
    command: str,
) -> LearnResult:
    """Everything between the parsed options and the result.

    resumed: the network of the run in `options["out"]` that is to be continued.
    """
    place = _device(options["device"])
    split = _data(options)
    shape, outputs = tuple(split.train.inputs.shape[1:]), split.train.num_outputs
    if resumed is None:
        specification, network = _network(options["model_text"], shape, outputs, config.seed)
    else:
        specification, network = resumed, resumed.build(shape, outputs)
    action = _action(options["generators"])
    truth = TRUE_RANGES[options["variant"]]
    display = LearnDisplay(action.generators, truth, quiet=options["quiet"])

    def announce(resolved: LearnConfig, epoch: int) -> None:
        for note in split.notes:
            display.say(note)
        display.say(
            f"{split.train.name}: {len(split.train)} examples, model {specification.text}, "
            f"objective {resolved.objective}, {resolved.samples} samples, {resolved.epochs} epochs "
            f"of batches of {resolved.batch_size}, {place}"
        )
        if too_short(resolved):
            display.say(
                f"{resolved.epochs} epochs are too few for the ranges to settle; read them as a "
                "trend"
            )
        if resumed is not None:
            display.say(f"continuing after epoch {epoch} of {resolved.epochs}")

    with display:
        return learn(
            network,
            split,
            actions=action,
            config=config,
            device=place,
            folder=options["out"],
            resume=resumed is not None,
            started=announce,
            progress=display,
            network=specification,
            describe={"request": kept_options(options), "truth": truth, "command": command},
        )


def _data(options: dict[str, Any]) -> Split:
    if options["data"] is None:
        if options["test_data"] is not None:
            raise CallerError("--test needs --data: the embedded digits bring their own test set")
        split = digits()
        if options["image_size"] is not None:
            split = load(split, image_size=options["image_size"])
    else:
        split = load(
            options["data"],
            options["test_data"],
            image_size=options["image_size"],
            seed=options["seed"],
        )
    split = vary(split, options["variant"])
    if options["subset"] is not None:
        check_at_least(options["subset"], 2, what="--subset")
        train = split.train.subset(options["subset"], options["seed"])
        split = Split(train, split.test, split.notes)
    return split


def _network(
    text: str, shape: tuple[int, ...], outputs: int, seed: int
) -> tuple[NetworkSpecification, torch.nn.Module]:
    """The network a user named: a specification, or a run folder with its trained weights."""
    torch.manual_seed(seed)
    folder = Path(text)
    if text and text not in BACKBONES and folder.is_dir():
        config = folder / CONFIG
        specification = NetworkSpecification.from_dict(
            read_json(config).get("network"), where=str(config)
        )
        network = specification.build(shape, outputs)
        tensors, _ = load_tensors(folder / CHECKPOINT)
        load_module(folder, network, tensors, "network")
        return specification, network
    specification = parse_network(text)
    return specification, specification.build(shape, outputs)


def _action(generators: str | None) -> AffineAction:
    names = LILA_GENERATORS if generators is None else tuple(generators.split(","))
    return affine(tuple(name.strip() for name in names))


def _device(text: str) -> torch.device:
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = text.partition(":")
    if text != "cpu" and (kind != "cuda" or (":" in text and not number.isdecimal())):
        raise CallerError(f"unknown device {text!r}: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise CallerError(
            f"device {text!r}: this machine shows {torch.cuda.device_count()} CUDA devices; use "
            "--device cpu"
        )
    return torch.device(text)


def _fresh_folder(options: dict[str, Any]) -> Path:
    source = "digits" if options["data"] is None else Path(options["data"]).stem
    name = f"learn-{source}-{options['variant']}-{options['objective'] or 'laplace'}"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = wanted = Path("runs") / f"{name}-{options['seed']}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _tell(result: LearnResult) -> None:
    """What was learned, in words, on standard output."""
    record = result.record
    for sentence in finding_sentences(record, result.config.get("truth", {})):
        click.echo(sentence)
    accuracy = record["test_accuracy"]
    if accuracy is not None:
        click.echo(f"Test accuracy {100 * accuracy:.1f} % on {record['test_examples']} examples.")
    if record["log_evidence"] is not None:
        click.echo(
            f"Log evidence {number_text(record['log_evidence'], 1)} nats, "
            f"{number_text(record['log_evidence_per_example'], 3)} per example."
        )
    click.echo(f"Report: {Path(record['run_folder']) / 'report.html'}")
