"""`isotropy.story`: from data to a certified network, every verb in one run folder.

    result = isotropy.story("pictures/", folder="runs/story")
    result.sentence              what was found, what was built, and what it is worth
    result.networks              a dictionary each: test error, measured errors, certified error

    RUN/learned                  learn: which symmetry the data have
    RUN/plain                    one network without symmetry
    RUN/augmented, RUN/averaged  the same on transformed images, and averaged over them
    RUN/built, RUN/relaxed       the same with a group built in, hard and soft
    RUN/measured                 measure: what the trained networks really have
    RUN/certified-…              certify: the most that networks like these err on new data

`learn` takes the network that suits the data (`default_network`). All others have one architecture,
one number of epochs, one batch size and one learning rate, and see the same training data; test
data are only scored. Every subfolder is a run folder of its verb.
A story that was interrupted goes on with the first step that has not ended.

What is built follows from what was found (`group_of`): quarter turns where images may be turned by
nearly any angle, mirrors and turns of the grid that were found themselves. A part of a circle, or
translations and scalings, are no group of the grid. Then the averaged network is what can be built,
and nothing is built hard or soft. With `group=` a group is built whatever was found.

A certificate is about a network of the same architecture that is trained to a short message in a
random subspace, not about the networks that were trained with all weights. That of `relaxed` has
the group-convolution pathway and the free one, which starts at zero, in one subspace. Where the
group follows from the data its choice is paid for: it is one of the ten groups of a square.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.data.labelled import Split
from isotropy.data.readers import read
from isotropy.data.streams.streamed import held
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import (
    CONFIG,
    alone_in_folder,
    check_unused,
    make_folder,
    read_json,
    record_head,
    write_json,
)
from isotropy.report.pages.story import story_page, story_sentences
from isotropy.workflows.runs.result import Result
from isotropy.workflows.runs.same_run import check_same_run, fingerprint
from isotropy.workflows.story_steps import HELD_OUT, Steps, StoryConfig, StoryProgress

__all__ = ["StoryConfig", "StoryProgress", "StoryResult", "story"]

KIND = "story"


@dataclass(frozen=True, repr=False)
class StoryResult(Result):
    """What was found, built, measured and certified; `models` holds the trained networks."""

    SHOWN = ("data", "sentence", "group")

    models: dict[str, nn.Module]

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        return str(self.record["sentence"])

    @property
    def networks(self) -> list[dict[str, Any]]:
        """Of every network what was scored, measured and certified."""
        found: list[dict[str, Any]] = self.record["networks"]
        return found

    def page(self) -> str:
        return story_page(self.record, self.config)


@alone_in_folder
def story(
    train: Any,
    test: Any = None,
    *,
    config: StoryConfig | None = None,
    device: str | torch.device | None = None,
    folder: str | Path,
    resume: bool = False,
    progress: Callable[[StoryProgress], None] | None = None,
    describe: Mapping[str, Any] | None = None,
) -> StoryResult:
    """Learn which symmetry the data have, build it in, measure and certify the networks.

    train     images with classes: (images, labels), a Dataset, LabelledData, a Split, or a path
    test      the same, only scored; paths and Splits bring their own
    config    settings; a small budget for a CPU by default
    device    where to run; by default the CPU
    folder    the run folder; each step has a run folder of its own in it
    resume    go on with what the folder holds
    progress  told what goes on
    describe  further entries for the configs of the story and its runs: "request", "command"

    Raises CallerError for data that are not images with classes.
    """
    settings = config or StoryConfig()
    settings.check()
    path = Path(folder)
    if not resume:
        check_unused(path)
    split = held(read(train, test, seed=settings.seed, hold_out_fraction=HELD_OUT))
    _check_data(split)
    told = _config(settings, split, describe)
    if resume and (path / CONFIG).exists():
        check_same_run(path, read_json(path / CONFIG), told)
    make_folder(path)
    write_json(path / CONFIG, told)
    place = torch.device("cpu" if device is None else device)
    work = Steps(settings, split, path, place, progress, dict(describe or {}))
    started = time.monotonic()
    record, models = work.told()
    seconds = sum(each["seconds"] for each in record["steps"])
    head = record_head(KIND, seed=settings.seed, device=place, seconds=seconds)
    record = {**head, **record, "elapsed": time.monotonic() - started}
    record["sentences"] = story_sentences(record)
    record["sentence"] = record["sentences"][0]
    return StoryResult(models, record=record, config=told).kept_in(path)


def _check_data(split: Split) -> None:
    train = split.train
    if not train.is_images:
        shape = tuple(train.inputs.shape[1:])
        raise CallerError(
            f"{train.name}: expected images (channels, height, width) for a story, got examples of "
            f"shape {shape}; use `isotropy learn`, and for vectors `isotropy basis` and EMLP"
        )
    if not train.is_classification:
        raise CallerError(
            f"{train.name}: expected classes for a story, got a regression; use `isotropy learn`, "
            "`isotropy build` and `isotropy measure` (a certificate counts errors of classes)"
        )


def _config(
    settings: StoryConfig, split: Split, describe: Mapping[str, Any] | None
) -> dict[str, Any]:
    train = split.train
    return {
        "schema": 1,
        "kind": KIND,
        "data": {
            "name": train.name, "shape": list(train.inputs.shape[1:]),
            "outputs": train.num_outputs, "fingerprint": fingerprint(train),
        },
        "network": parse_network(settings.model).as_dict(),
        "schedule": settings.as_dict(),
        "notes": list(split.notes),
        **(describe or {}),
    }  # fmt: skip
