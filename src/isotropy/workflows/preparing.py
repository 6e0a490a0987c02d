"""What every workflow does first: read the data, and put a network and its actions together."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checkpoint import (
    CONFIG,
    REPORT,
    RESULT,
    make_folder,
    unwritable,
    write_bytes,
    write_json,
)
from isotropy.checks import CallerError
from isotropy.data.borders import chosen_border
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import load
from isotropy.evidence.baselines import augmentation_for
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import likelihood_named
from isotropy.networks.augmentations import Augmentation
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.mixtures import Mixture
from isotropy.networks.random_copies import RandomCopies
from isotropy.symmetry.actions import Action, Composition
from isotropy.symmetry.finite_actions import FiniteAction
from isotropy.symmetry.image_actions import AffineAction, affine

Actions = Action | FiniteAction | Sequence[Action | FiniteAction]
"""What may be a symmetry: one Action or several, continuous or finite."""


def read_split(train: Any, test: Any, seed: int) -> Split:
    in_memory = not isinstance(train, str | Path)
    return load(train, test, seed=seed, hold_out_fraction=0.0 if in_memory else 0.2)


def border_of(actions: Actions) -> dict[str, Any]:
    """Padding and fill of what resamples images, for a run's config; null where nothing does."""
    parts: list[Action | FiniteAction] = []
    for each in actions if isinstance(actions, Sequence) else [actions]:
        parts += each.actions if isinstance(each, Composition) else [each]
    for part in parts:
        if isinstance(part, AffineAction) and part.interpolation != "fourier":
            return {"padding": part.padding, "fill": part.fill and list(part.fill)}
    return {"padding": None, "fill": None}


def default_actions(train: LabelledData) -> tuple[Actions, tuple[str, ...]]:
    """The paper's six generators, with a padding that follows from the pictures, and notes."""
    if not train.is_images:
        return affine(), ()
    border = chosen_border(train.inputs)
    return affine(padding=border.padding, fill=border.fill), border.notes


def device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def write_run(
    folder: str | Path, config: Mapping[str, Any], record: Mapping[str, Any], page: str
) -> None:
    """A run folder of a command that keeps no checkpoint: settings, result and report."""
    path = make_folder(Path(folder))
    write_json(path / CONFIG, config)
    write_json(path / RESULT, record)
    write_bytes(path / REPORT, page.encode())


def write_page(path: str | Path, page: str) -> Path:
    """A report alone, in a folder that is made if it is not there."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    write_bytes(path, page.encode())
    return path


def make_trainer(
    model: nn.Module,
    train: LabelledData,
    actions: Actions,
    config: LearnConfig,
    place: torch.device,
) -> Trainer:
    network = copy.deepcopy(model).to(place)
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    augmentation = augmentation_for(config, actions, dtype=dtype).to(place)
    if RECIPES[config.objective].learns or not augmentation.is_identity:
        check_actions(augmentation, train)
    assert config.samples is not None
    likelihood = likelihood_named(config.likelihood if train.is_classification else "gaussian").to(
        place
    )
    return Trainer(
        InvariantModel(network, augmentation, config.samples),
        likelihood,
        config,
        train.inputs.to(place, dtype),
        train.targets.to(place) if train.is_classification else train.targets.to(place, dtype),
    )


def check_actions(augmentation: Augmentation, train: LabelledData) -> None:
    """Move one example, so that data on which the actions do not act are named at once."""
    example = train.inputs[:1]
    action = augmentation.action
    try:
        action.act(example.new_zeros(1, 1, action.coordinate_count), example)
    except CallerError as error:
        raise CallerError(
            f"{train.name}: {', '.join(action.names)} cannot act on it: {error}"
        ) from error
    if isinstance(augmentation, RandomCopies):
        augmentation.transform.check(train.inputs)
    for finite in augmentation.finite if isinstance(augmentation, Mixture) else ():
        try:
            finite.check(example)
        except CallerError as error:
            raise CallerError(f"{train.name}: {finite.name} cannot act on it: {error}") from error
