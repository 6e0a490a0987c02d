"""What several commands take: options for data, network, Actions and device, and what they ask for.

Options are declared once (`problem_options`, `data_options`, `run_options`); `problem_from` makes
data, network and Actions of them, with defaults that follow from the data.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
import torch

from isotropy.checks import CallerError, check_at_least, check_choice
from isotropy.curvature.kfac import FALLBACKS
from isotropy.data.borders import PADDING_CHOICES, chosen_border
from isotropy.data.image_folder import LARGEST_SIDE, WORKING_SIZE, ImageSize
from isotropy.data.labelled import LAYOUTS, LabelledData, Split
from isotropy.data.readers import digits, read
from isotropy.data.streams.streamed import streamed
from isotropy.data.tables import TASKS
from isotropy.data.variants import LAWS, vary
from isotropy.evidence.laplace import STRUCTURES
from isotropy.evidence.machine import LONG_SECONDS, check_factor_memory, factor_memory
from isotropy.evidence.settings import EVIDENCES, LearnConfig
from isotropy.networks.zoo.backbones import BACKBONES
from isotropy.networks.zoo.specification import (
    AUTO,
    NetworkSpecification,
    default_network,
    fitted,
    parse_network,
)
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.catalogue import actions_named, default_names
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.images import GENERATORS
from isotropy.workflows.loading import load_network
from isotropy.workflows.runs.prepared import border_of


@dataclass(frozen=True)
class Problem:
    """Data, network and Actions as the options ask for them, defaults chosen from the data.

    image_size: side of the images if it was asked for or may have been chosen; whoever reads the
                data again from the run's record gets them in this size
    notes:      sentences on everything that was decided, and on what the curvature takes
    is_slow:    whether the curvature takes long, so that the notes are said before all else
    """

    split: Split
    specification: NetworkSpecification
    network: torch.nn.Module
    actions: list[Action | FiniteAction]
    image_size: int | None
    notes: tuple[str, ...]
    is_slow: bool = False

    @property
    def description(self) -> dict[str, Any]:
        """What a run's config keeps of the choices: notes, padding and fill."""
        return {"notes": list(self.notes), **border_of(self.actions)}


def problem_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which problem: data, network, Actions, budget, device, output."""
    return data_options(with_options(_LEARNING, run_options(command)))


def data_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which data."""
    return with_options(_DATA, command)


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every command has: seed, device, output, and code that may run."""
    return with_options((*RUN, CODE), command)


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Those of `run_options` that have nothing to do with data."""
    return with_options(RUN[1:], command)


def with_options(
    options: Sequence[Callable[..., Any]], command: Callable[..., None]
) -> Callable[..., None]:
    """The command with these options, listed in their order."""
    for option in reversed(options):
        command = option(command)
    return command


TEST_DATA = click.option(
    "--test",
    "test_data",
    help="Test data, only scored. Default: what comes with the data, else 20 % held out.",
)
TABLE = (
    click.option(
        "--target",
        help="Of a table: the column of targets, by name or number. Default: the last.",
    ),
    click.option(
        "--task",
        "target_task",
        type=click.Choice(TASKS),
        default="auto",
        show_default=True,
        help="Of a table: whether targets are classes or numbers; auto: as their values say.",
    ),
    click.option(
        "--layout",
        type=click.Choice(LAYOUTS),
        default="auto",
        show_default=True,
        help="What arrays of three axes are; auto: grey images.",
    ),
)
VARIANT = click.option(
    "--variant",
    type=click.Choice(tuple(LAWS)),
    default="original",
    show_default=True,
    help="Transform every image once, at random, before anything else.",
)


def _select(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    return int(value) if value is not None and value.lstrip("-").isdecimal() else value


SELECT = click.option(
    "--select",
    callback=_select,
    help="Which of several outputs of the network counts: a key, an attribute or a position.",
)
EVIDENCE = click.option(
    "--evidence",
    type=click.Choice(EVIDENCES),
    default="laplace",
    show_default=True,
    help="Of all weights by their curvature, or a lower bound by a posterior of the last layer.",
)
BUDGET = (
    click.option("--epochs", type=int, help="Passes over the training data."),
    click.option("--batch-size", type=int, help="Examples a weight step."),
    click.option(
        "--curvature-batch", type=int, help="Examples at once in an evidence pass; sets its memory."
    ),
)
_DATA = (
    click.option(
        "--data",
        help="Training data: IDX files or their folder, CIFAR-10 binary batches, "
        ".npz with x and y, x.npy beside y.npy, a table (csv, csv.gz, parquet), tar shards "
        "(shard-{000..009}.tar), or a folder per class. Default: the embedded digits.",
    ),
    TEST_DATA,
    *TABLE,
    VARIANT,
    click.option(
        "--image-size",
        type=int,
        help="Resize all images to this many pixels a side. Default where a network is trained: "
        f"{WORKING_SIZE} for images of more than {LARGEST_SIDE}, else their own size.",
    ),
)
_LEARNING = (
    click.option(
        "--model",
        "model_text",
        default=AUTO,
        show_default=True,
        help="auto (from the data, and says which) | mlp | mlp:WIDTH | relu | rff | compact | "
        "oriented | pooled | turnable | cnn | convnet | convnet-blur | circular | resnet | "
        "wrn:16-4 | vit | mixer | clouds | FILE.py:factory | timm:NAME | RUN_FOLDER. mlp alone has "
        "the paper's 1000, relu and rff 1024; rff:WIDTH:SIGMA also says the deviation of its "
        "random features "
        "(0.3).",
    ),
    SELECT,
    click.option(
        "--generators",
        help="Comma-separated generators and finite actions, such as rotation,horizontal_flip. "
        "Of tables: scale, scale:A, sign:A, permute:A:B of columns A, B by name or number. "
        "Default: the paper's six on images; others by the kind of data.",
    ),
    click.option(
        "--padding",
        type=click.Choice(PADDING_CHOICES),
        default="auto",
        show_default=True,
        help="What is beyond the border of moved images; auto: zeros where the edges of the data "
        "are near zero, else border.",
    ),
    click.option("--samples", type=int, help="Transformed copies averaged per image."),
    click.option("--test-samples", type=int, help="Copies averaged when predicting."),
    *BUDGET,
    click.option(
        "--fallback",
        type=click.Choice(FALLBACKS),
        default="diagonal",
        show_default=True,
        help="For parameters without a curvature rule: diagonal blocks, fixed in the evidence, or "
        "no run.",
    ),
    click.option(
        "--prior",
        "prior_structure",
        type=click.Choice(STRUCTURES),
        help="One prior precision, or one per layer or tensor. Default: scalar; tensor for "
        "convolutions with sgd.",
    ),
)
RUN = (
    click.option("--subset", type=int, help="Take so many training examples, drawn by the seed."),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
    click.option("--device", default="auto", show_default=True, help="auto | cpu | cuda | cuda:N"),
    click.option("--out", type=click.Path(path_type=Path), help="Run folder. Default: runs/…"),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
    ),
    click.option("--quiet", is_flag=True, help="No progress on standard error."),
)


def _named_code(_: click.Context, __: click.Parameter, values: Sequence[str]) -> None:
    """Read the files that the caller names, so that run folders may build networks of them."""
    for value in values:
        if ".py:" not in value:
            raise click.BadParameter(f"expected FILE.py:factory, got {value!r}")
        parse_network(value)


CODE = click.option(
    "--code",
    multiple=True,
    metavar="FILE.py:factory",
    callback=_named_code,
    expose_value=False,
    help="Code that a run folder or certificate may run: it names the network, you the file.",
)


def fresh_folder(command: str, options: dict[str, Any], *words: str) -> Path:
    """A run folder that does not exist yet, named after what is run."""
    source = "digits" if options["data"] is None else Path(options["data"]).name.partition(".")[0]
    name = "-".join([command, source, options["variant"], *words])
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = wanted = Path("runs") / f"{name}-{options['seed']}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def amounts_from(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """NAME=NUMBER options as a dictionary; names are checked where the Actions are known."""
    amounts = {}
    for value in values:
        name, _, number = value.partition("=")
        try:
            amount = float(number)
        except ValueError as error:
            raise click.BadParameter(f"expected NAME=NUMBER, got {value!r}") from error
        if not (amount >= 0 and math.isfinite(amount)):
            raise click.BadParameter(f"expected a half-width of at least 0, got {value!r}")
        amounts[name] = amount
    return amounts


def data_from(options: dict[str, Any], *, working_size: bool = False) -> Split:
    """The data a user named, in the variant asked for.

    working_size: whether large images are made smaller if no size was asked for
    """
    size: ImageSize = options["image_size"]
    if size is None and working_size:
        size = "auto"
    if options["data"] is None:
        if options["test_data"] is not None:
            raise CallerError("--test needs --data: the embedded digits bring their own test set")
        split = digits()
        if options["image_size"] is not None:
            split = read(split, image_size=options["image_size"])
    else:
        source: Any = options["data"]
        if options.get("stream"):
            source = streamed(source, image_size=size, layout=options.get("layout", "auto"))
        split = read(
            source,
            options["test_data"],
            image_size=size,
            seed=options["seed"],
            target=options.get("target"),
            task=options.get("target_task", "auto"),
            layout=options.get("layout", "auto"),
        )
    return taken(vary(split, options["variant"]), options)


def taken(split: Split, options: dict[str, Any]) -> Split:
    """The data with as many training examples as --subset says."""
    if options["subset"] is None:
        return split
    check_at_least(options["subset"], 2, what="--subset")
    return replace(split, train=split.train.subset(options["subset"], options["seed"]))


def settings_given(config: type, options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a class of settings that the options of the same names set."""
    names = [field.name for field in fields(config) if field.name in options]
    return {name: options[name] for name in names if options[name] not in (None, {})}


def network_from(
    text: str,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    select: str | int | None = None,
) -> tuple[NetworkSpecification, torch.nn.Module]:
    """The network a user named: a specification, or a run folder with its trained weights."""
    torch.manual_seed(seed)
    if is_run_folder(text):
        return load_network(Path(text), shape, outputs)
    specification = replace(parse_network(text), select=select)
    return specification, specification.build(shape, outputs)


def fitted_network(
    text: str, data: LabelledData, seed: int, select: str | int | None = None
) -> tuple[NetworkSpecification, torch.nn.Module]:
    """The same for these data, with their statistics where the network takes them."""
    if is_run_folder(text):
        return network_from(text, tuple(data.inputs.shape[1:]), data.num_outputs, seed)
    specification = replace(fitted(parse_network(text), data.inputs), select=select)
    return specification, built_network(specification, data, seed)


def problem_from(
    options: dict[str, Any], resumed: NetworkSpecification | None = None, *, curvature: str
) -> Problem:
    """Data, network and Actions; what was left to be chosen is chosen from the data.

    resumed: the network of a run that is continued. curvature: what its memory is checked for,
    from shapes alone, before the network is built; "" checks nothing
    """
    split = data_from(options, working_size=True)
    data, names = split.train, action_names(options, split.train)
    shape, outputs = tuple(data.inputs.shape[1:]), data.num_outputs
    image_size = options["image_size"]
    if image_size is None and data.is_images and set(shape[1:]) == {WORKING_SIZE}:
        image_size = WORKING_SIZE
    notes = split.notes
    actions, more = actions_from(options, data)
    specification = resumed
    if specification is None and options["model_text"] == AUTO:
        choice = default_network(data.inputs, names)
        specification, notes = choice.specification, (*notes, choice.reason)
    elif specification is None and not is_run_folder(options["model_text"]):
        specification = fitted(parse_network(options["model_text"]), data.inputs)
        specification = replace(specification, select=options["select"])
    notes += more
    if specification is None:
        specification, network = network_from(
            options["model_text"], shape, outputs, options["seed"]
        )
    else:
        if curvature and specification.kind == "backbone":
            with torch.device("meta"):
                shapes = specification.build(shape, outputs)
            check_factor_memory(shapes, curvature, device_from(options["device"]))
        network = built_network(specification, data, options["seed"])
    is_slow = False
    if curvature:
        memory = factor_memory(network, curvature)
        notes, is_slow = (*notes, memory.text), memory.seconds >= LONG_SECONDS
    return Problem(split, specification, network, actions, image_size, notes, is_slow)


def built_network(
    specification: NetworkSpecification, data: LabelledData, seed: int
) -> torch.nn.Module:
    """A network for these data, initialised by the seed."""
    torch.manual_seed(seed)
    return specification.build(tuple(data.inputs.shape[1:]), data.num_outputs)


def is_run_folder(text: str) -> bool:
    """Whether a model is given by the folder of a run."""
    return bool(text) and text not in BACKBONES and Path(text).is_dir()


def actions_from(
    options: dict[str, Any], data: LabelledData
) -> tuple[list[Action | FiniteAction], tuple[str, ...]]:
    """The Actions a user named, or `default_names` of these data, and notes."""
    names, shape = action_names(options, data), tuple(data.inputs.shape[1:])
    if not data.is_images or not set(names) & set(GENERATORS):
        return actions_named(names, shape, columns=data.columns), ()
    border = chosen_border(data.inputs, options["padding"])
    return actions_named(names, shape, padding=border.padding, fill=border.fill), border.notes


def action_names(options: Mapping[str, Any], data: LabelledData) -> list[str]:
    """The names a user listed, or those that go with these data."""
    generators = options["generators"]
    if generators is None:
        return list(default_names(data.inputs.shape[1:]))
    return [name.strip() for name in generators.split(",")]


def device_from(text: str) -> torch.device:
    """The device a user named; auto takes CUDA where there is one."""
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


KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "float": (float,),
    "Mapping": (dict,),
}
"""What a field's annotation begins with, and what its value must be; all others are words."""


def settings_from(texts: Iterable[str]) -> dict[str, Any]:
    """Values by field of `LearnConfig`; a field written twice has its last value.

    >>> settings_from(["augerino_weight=1", "curvature=kfac-ef"])
    {'augerino_weight': 1.0, 'curvature': 'kfac-ef'}

    Raises CallerError for an unknown field and a value of another kind. Whether the value makes
    sense is for `LearnConfig.check` to say.
    """
    annotations = {field.name: str(field.type) for field in fields(LearnConfig)}
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, written = text.partition("=")
        if not separator:
            raise CallerError(f"setting: expected FIELD=VALUE, got {text!r}")
        annotation = annotations[check_choice(name, annotations, what="setting")]
        kinds = next((KINDS[key] for key in KINDS if annotation.startswith(key)), (str,))
        value: Any = written if kinds == (str,) else _read(written)
        if kinds == (float,) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kinds) or isinstance(value, bool) != (kinds == (bool,)):
            wanted = {
                int: "a whole number",
                bool: "true or false",
                float: "a number",
                dict: "a JSON object",
            }[kinds[0]]
            raise CallerError(f"setting {name}: expected {wanted}, got {written!r}")
        found[name] = value
    return found


def _read(written: str) -> Any:
    try:
        return json.loads(written)
    except ValueError:
        return written
