"""`isotropy measure`: what symmetry a trained network really has, and which layer breaks it.

A network is named as elsewhere, with a label of one's own in front if wanted: `after=runs/first`.
That of a run folder has its trained weights; where no data are named, it is measured on the data it
was trained for, divided as it was then, so that what was held out still is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.cli.relax import relax_data
from isotropy.cli.shared.inputs import (
    SELECT,
    action_names,
    data_from,
    data_options,
    device_from,
    fresh_folder,
    network_from,
    run_options,
)
from isotropy.cli.shared.progress import MeasureDisplay, tell
from isotropy.cli.shared.resuming import kept_options
from isotropy.data.borders import chosen_border
from isotropy.data.image_folder import like_images
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import read
from isotropy.data.streams.streamed import held
from isotropy.data.variants import LAWS
from isotropy.networks.zoo.backbones import BACKBONES
from isotropy.networks.zoo.specification import TRAINED
from isotropy.records import CONFIG, check_unused, read_json
from isotropy.report.pages.measure import measure_sentences
from isotropy.workflows.loading import load
from isotropy.workflows.measuring import THESIS_TRANSFORMATIONS, measure, measured_actions
from isotropy.workflows.relaxing import KIND

SPLITS = ("test", "train")
_OF_THE_DATA = (
    "data", "test_data", "target", "target_task", "layout", "variant", "image_size", "subset",
)  # fmt: skip
_TIME_STAMP = re.compile(r"-\d{8}-\d{6}(-\d+)?$")
"""What a run folder's name ends with if the user gave it none."""


def _splits(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in value.split(","))
    if not set(parts) <= set(SPLITS) or len(set(parts)) < len(parts):
        raise click.BadParameter(f"expected test, train or train,test, got {value!r}")
    return parts


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
@SELECT
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
    multiple=True,
    metavar="VARIANT|DATA",
    help=f"Measure on other data as well: the test data in a variant ({', '.join(LAWS)}), or "
    "another data set, brought to the same size and colours. Repeatable.",
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
    names = None if options["generators"] is None else action_names(options, split.train)
    fill = None
    if options["padding"] == "mean" and split.train.is_images:
        fill = chosen_border(split.train.inputs, "mean").fill
    actions = measured_actions(
        shape,
        names,
        interpolation=options["interpolation"],
        padding=options["padding"],
        fill=fill,
        columns=split.train.columns,
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
    display.say(*split.notes)
    for label, each in sets.items():
        name = each.name if isinstance(each, LabelledData) else "its own classes are not used"
        display.say(f"{label}: {name}, {len(each)} examples")
    on = options["on"]
    if on == "auto":  # the same of all data, whether they have labels or not
        on = "probabilities" if split.train.is_classification else "outputs"
    with display:
        result = measure(
            networks,
            sets,
            actions=actions,
            on=on,
            **{
                name: options[name]
                for name in ("select", "layers", "attribution", "probes", "finite",
                             "examples", "batch_size", "seed")
            },
            device=place,
            folder=folder,
            progress=display,
            describe={
                "request": kept_options({**request, "seed": options["seed"]}),
                "command": str(context.find_root().obj),
            },
        )  # fmt: skip
    tell(result.record, measure_sentences(result.record), as_json=options["as_json"])


# -- which networks, on which data -------------------------------------------------------------


@dataclass(frozen=True)
class NamedModel:
    """A network as a user named it: what it is called in tables, and where it comes from."""

    label: str
    text: str

    @property
    def folder(self) -> Path | None:
        """The run folder, or None for a network named in other ways."""
        path = Path(self.text)
        return path if self.text and self.text not in BACKBONES and path.is_dir() else None

    @property
    def is_untrained(self) -> bool:
        """Whether its weights are random: backbones and timm models are built, not loaded."""
        given = self.folder is not None or ".py" in self.text
        return not given and not self.text.endswith(TRAINED)


def named_models(texts: Sequence[str]) -> list[NamedModel]:
    """`mlp:200`, `runs/first`, `after=runs/first`: the label is in front or the name itself."""
    if not texts:
        raise CallerError(
            "--model: expected one or more networks to measure, such as a run folder of `isotropy "
            "learn` or FILE.py:factory, got none"
        )
    models = [_named(text) for text in texts]
    labels = [model.label for model in models]
    for label in labels:
        if labels.count(label) > 1:
            raise CallerError(
                f"--model: two networks are called {label!r}; give one another name, as in "
                f"--model second={models[labels.index(label)].text}"
            )
    return models


def _named(text: str) -> NamedModel:
    label, equals, rest = text.partition("=")
    if equals and label and rest and "/" not in label and not Path(text).exists():
        return NamedModel(label, rest)
    path = Path(text)
    if text and path.is_dir() and text not in BACKBONES:
        return NamedModel(_TIME_STAMP.sub("", path.resolve().name), text)
    if ".py:" in text:
        return NamedModel(text.rpartition(":")[2], text)
    return NamedModel(text, text)


def data_request(
    context: click.Context, options: Mapping[str, Any], models: Sequence[NamedModel]
) -> dict[str, Any]:
    """The options with those of the runs' data where no data were named.

    What was typed counts. Raises CallerError where runs were trained on different data.
    """
    asked = dict(options)
    if asked["data"] is not None or asked["test_data"] is not None:
        return asked
    found: dict[str, Any] | None = None
    source: Path | None = None
    for folder in (model.folder for model in models):
        if folder is None:
            continue
        config = read_json(folder / CONFIG)
        kept = config.get("request")
        if not isinstance(kept, dict) or not set(_OF_THE_DATA) <= set(kept):
            continue  # a run in Python, whose data has no name
        if _is_prepared(config):
            continue
        own = {name: kept[name] for name in _OF_THE_DATA} | _typed(context, options)
        if "train" not in options["splits"]:
            own["subset"] = None  # of training data, which are not looked at
        if own["data"] is not None or own["subset"] is not None:
            own["seed"] = kept.get("seed", options["seed"])  # it divided the data
        if found is not None and own != found:
            different = [name for name in own if own[name] != found.get(name)]
            raise CallerError(
                f"run folders {str(source)!r} and {str(folder)!r} were trained on different data "
                f"({', '.join(sorted(different)).replace('_', ' ')}); name the data to measure on "
                "with --data, --test, --variant, --image-size or --subset"
            )
        found, source = own, folder
    return asked | (found or {})


def _is_prepared(config: Mapping[str, Any]) -> bool:
    """Whether a run is one of relaxed layers whose data `isotropy relax` prepared in its own ways.

    Those of a story are as all others.
    """
    kept = config.get("request")
    return config.get("kind") == KIND and not (isinstance(kept, dict) and "full" in kept)


def measured_split(request: dict[str, Any], models: Sequence[NamedModel]) -> Split:
    """The data that the options name, or those of a run of relaxed layers, prepared as they were.

    Raises CallerError where such a run has no words for its data, or another run has others.
    """
    if request["data"] is not None or request["test_data"] is not None:
        return data_from(request)
    configs = [read_json(model.folder / CONFIG) for model in models if model.folder is not None]
    relaxed = [config.get("request") for config in configs if _is_prepared(config)]
    if not relaxed:
        return data_from(request)
    kept = relaxed[0]
    if not isinstance(kept, dict):
        raise CallerError(
            "--model: the data of a run of relaxed layers in Python have no name; give them with "
            "--data"
        )
    named = (*_OF_THE_DATA, "task", "digits_data")
    if len(relaxed) < len(configs) or any(
        each is None or [each.get(name) for name in named] != [kept.get(name) for name in named]
        for each in relaxed
    ):
        raise CallerError(
            "--model: expected runs that were trained on the same data; name the data to measure "
            "on with --data"
        )
    return relax_data(dict(kept))


def _typed(context: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: options[name]
        for name in _OF_THE_DATA
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def measured_data(request: Mapping[str, Any], split: Split) -> dict[str, LabelledData | Tensor]:
    """The data sets by label: parts of the split, the test data in variants, other data.

    request: the options, whose `splits` and `ood` say which
    Images of other data that have other classes come without their labels.
    """
    if len(set(request["ood"])) < len(request["ood"]):
        raise CallerError(f"--ood: expected other data once each, got {', '.join(request['ood'])}")
    sets: dict[str, LabelledData | Tensor] = {}
    for part in request["splits"]:
        sets[part] = split.train if part == "train" else _test_part(split)
    for other in request["ood"]:
        if other not in LAWS:
            label = Path(other).expanduser().resolve().stem
            sets[f"{label} (other data)" if label in sets else label] = _other_data(other, split)
            continue
        if other == request["variant"]:
            raise CallerError(
                f"--ood {other}: these are the data themselves; choose another variant"
            )
        sets[other] = _test_part(data_from({**request, "variant": other}))
    return sets


def _other_data(place: str, split: Split) -> LabelledData | Tensor:
    """Test data of another set, all of it where it has none, as the network takes them."""
    if not Path(place).expanduser().exists():
        raise CallerError(
            f"--ood: expected a variant ({', '.join(LAWS)}) or data that exist, got {place!r}"
        )
    given = held(read(place, hold_out_fraction=0.0))
    found = given.train if given.test is None else given.test
    shape = tuple(split.train.inputs.shape[1:])
    if len(shape) == 3:
        found = like_images(found, shape)
    elif tuple(found.inputs.shape[1:]) != shape:
        raise CallerError(
            f"--ood {place}: expected inputs of shape {shape}, as the network takes, got "
            f"{tuple(found.inputs.shape[1:])}"
        )
    return found if found.classes == split.train.classes else found.inputs


def _test_part(split: Split) -> LabelledData:
    if split.test is None:
        raise CallerError(
            f"{split.train.name}: there are no test data; give them with --test or measure on "
            "--split train"
        )
    return split.test
