"""What several commands take: options for data, network, Actions and device, and what they ask for.

Options are declared once (`problem_options`, `data_options`, `run_options`); `problem_from` makes
data, network and Actions of them, with defaults that follow from the data. A run folder keeps the
options that its run was started with (`kept_options`), and a run that is continued has them again
(`resumed_run`).
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import click
import torch
from click.core import ParameterSource

from isotropy.checks import CallerError, check_at_least, check_choice
from isotropy.curvature.kfac import FALLBACKS
from isotropy.data.borders import PADDING_CHOICES, chosen_border
from isotropy.data.image_folder import LARGEST_SIDE, WORKING_SIZE, ImageSize
from isotropy.data.labelled import LAYOUTS, LabelledData, Split
from isotropy.data.readers import digits, read
from isotropy.data.tables import TASKS
from isotropy.data.variants import LAWS, vary
from isotropy.evidence.laplace import STRUCTURES
from isotropy.evidence.machine import check_factor_memory, factor_memory
from isotropy.evidence.settings import EVIDENCES, LearnConfig
from isotropy.networks.zoo.backbones import BACKBONES
from isotropy.networks.zoo.specification import (
    AUTO,
    NetworkSpecification,
    default_network,
    fitted,
    parse_network,
)
from isotropy.records import CHECKPOINT, CONFIG, plain, read_json
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.catalogue import actions_named, default_names
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.images import GENERATORS
from isotropy.workflows.loading import load_network
from isotropy.workflows.runs.prepared import border_of
from isotropy.workflows.runs.searching import TRIALS


@dataclass(frozen=True)
class Problem:
    """Data, network and Actions as the options ask for them, defaults chosen from the data.

    image_size: side of the images if it was asked for or may have been chosen; whoever reads the
                data again from the run's record gets them in this size
    notes:      sentences on everything that was decided
    """

    split: Split
    specification: NetworkSpecification
    network: torch.nn.Module
    actions: list[Action | FiniteAction]
    image_size: int | None
    notes: tuple[str, ...]

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
    return with_options((*_RUN, CODE), command)


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Those of `run_options` that have nothing to do with data."""
    return with_options(_RUN[1:], command)


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
        ".npz with x and y, x.npy beside y.npy, a table (csv, csv.gz, parquet), or a folder per "
        "class. Default: the embedded digits.",
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
        "oriented | cnn | convnet | convnet-blur | circular | resnet | vit | mixer | clouds | "
        "FILE.py:factory | timm:NAME | RUN_FOLDER. mlp alone has the paper's 1000, relu and rff "
        "1024; rff:WIDTH:SIGMA also says the deviation of its random features (0.3).",
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
        default="scalar",
        show_default=True,
        help="One prior precision, or one per layer or tensor.",
    ),
)
_RUN = (
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
        split = read(
            options["data"],
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
    if _is_run_folder(text):
        return load_network(Path(text), shape, outputs)
    specification = replace(parse_network(text), select=select)
    return specification, specification.build(shape, outputs)


def fitted_network(
    text: str, data: LabelledData, seed: int, select: str | int | None = None
) -> tuple[NetworkSpecification, torch.nn.Module]:
    """The same for these data, with their statistics where the network takes them."""
    if _is_run_folder(text):
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
    elif specification is None and not _is_run_folder(options["model_text"]):
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
    if curvature:
        notes += (factor_memory(network, curvature).text,)
    return Problem(split, specification, network, actions, image_size, notes)


def built_network(
    specification: NetworkSpecification, data: LabelledData, seed: int
) -> torch.nn.Module:
    """A network for these data, initialised by the seed."""
    torch.manual_seed(seed)
    return specification.build(tuple(data.inputs.shape[1:]), data.num_outputs)


def _is_run_folder(text: str) -> bool:
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


# -- options that a run folder keeps -----------------------------------------------------------

MAY_DIFFER = ("resume", "out", "device", "as_json", "quiet", "verdicts", "calibration", "log")


class Settings(Protocol):
    """A run's settings, which its folder holds."""

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self: ...


AnySettings = TypeVar("AnySettings", bound=Settings)


@dataclass(frozen=True)
class ResumedRun(Generic[AnySettings]):
    """A run folder's options, resolved settings and network."""

    options: dict[str, Any]
    config: AnySettings
    network: NetworkSpecification


@contextmanager
def continuable(command: str, folder: Path) -> Iterator[None]:
    """An interruption says how `isotropy command` goes on from what `folder` holds by then."""
    try:
        yield
    except KeyboardInterrupt:
        advice = "nothing was saved yet"
        if _is_continuable(folder):
            advice = f"continue with: isotropy {command} --resume {shlex.quote(str(folder))}"
        click.echo(f"isotropy: interrupted; {advice}", err=True)
        raise


def _is_continuable(folder: Path) -> bool:
    """Whether a folder holds epochs, or trials of the search before them."""
    return (folder / CHECKPOINT).exists() or (folder / TRIALS).exists()


def kept_options(options: dict[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Options as a run folder keeps them; data is found again from any folder.

    names: data that are called so, and are no path
    """
    kept: dict[str, Any] = plain(options)
    for name in ("data", "test_data", "digits_data"):
        if kept.get(name) and kept[name] not in names:
            kept[name] = os.path.abspath(Path(kept[name]).expanduser())
    return {**kept, "as_json": False, "quiet": False}


def resumed_run(
    context: click.Context,
    folder: Path,
    options: dict[str, Any],
    settings: type[AnySettings],
    names: Collection[str] = (),
) -> ResumedRun[AnySettings]:
    """The run that `folder` holds.

    options: as the command line gave them. What was typed beside --resume must say what the run
    was started with; only the device, what is shown and what comes after training may be another.
    names: as in `kept_options`
    Raises CallerError for a folder that this command did not write, and for a contradiction.
    """
    record = read_json(folder / CONFIG)
    kept, schedule = record.get("request"), record.get("schedule")
    if not isinstance(kept, dict) or not isinstance(schedule, dict) or set(kept) != set(options):
        raise CallerError(
            f"{str(folder)!r} was not written by this version of `isotropy {context.command.name}`"
        )
    if not _is_continuable(folder):
        raise CallerError(f"{str(folder)!r} holds no checkpoint ({CHECKPOINT}); start the run anew")
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    typed = {
        name: value
        for name, value in kept_options(options, names).items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if ".py:" in str(typed.get("model_text")):
        parse_network(typed["model_text"])  # so that its code may run
    for name, value in typed.items():
        if name not in MAY_DIFFER and value != kept[name]:
            what, flag = "model" if name == "model_text" else "run", flags[name]
            raise CallerError(
                f"run folder {str(folder)!r} is of another {what}: it was started with {flag} "
                f"{_words(kept[name])}, not {_words(value)}; leave {flag} out to resume"
            )
    if "out" in typed and Path(typed["out"]).resolve() != folder.resolve():
        raise CallerError(
            f"--out {typed['out']}: a resumed run stays in its folder {str(folder)!r}; leave --out "
            "out to resume"
        )
    shown = {name: options[name] for name in ("as_json", "quiet")}
    asked = {name: typed[name] for name in MAY_DIFFER if name in typed and name != "resume"}
    return ResumedRun(
        {**kept, **asked, **shown, "out": folder},
        settings.from_dict(schedule),
        NetworkSpecification.from_dict(record.get("network"), where=str(folder / CONFIG)),
    )


def _words(value: Any) -> str:
    """An option's value as it is typed."""
    if isinstance(value, dict):
        return " ".join(f"{name}={amount:g}" for name, amount in value.items()) or "nothing"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    return "nothing" if value is None else str(value)
