"""A run before its first epoch: settings resolved, trainer built, run folder begun or read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from isotropy.checkpoint import (
    CHECKPOINT,
    CONFIG,
    Resumable,
    load_trainer,
    make_folder,
    read_json,
    save_trainer,
    write_json,
)
from isotropy.data.labelled import Split
from isotropy.evidence.factor_memory import check_factor_memory
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.schedule import LearnConfig, resolve
from isotropy.evidence.sizing import fit_curvature_batch
from isotropy.evidence.training import Trainer
from isotropy.networks.specification import NetworkSpecification, specification_of
from isotropy.workflows.preparing import Actions, border_of, device_of, make_trainer
from isotropy.workflows.same_run import check_same_run, fingerprint

SCREENING = "screening.json"
"""The file of a run folder that keeps the screening the run started from."""
SEARCH = "search.json"
"""The same of its search."""

AnyTrainer = TypeVar("AnyTrainer", bound=Resumable)


@dataclass(frozen=True)
class KeptRun(Generic[AnyTrainer]):
    """All that a run needs to go on.

    config: what its folder records; history: its epochs so far; folder: None if nothing is kept
    """

    trainer: AnyTrainer
    split: Split
    config: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    folder: Path | None = None

    def save(self) -> None:
        """Write the checkpoint, where there is a folder."""
        if self.folder is not None:
            save_trainer(self.folder, self.trainer, self.history)

    def scored(self) -> tuple[Tensor, Tensor] | None:
        """Test inputs and targets as the trainer scores them; None without test data."""
        test, like = self.split.test, self.trainer.targets
        if test is None:
            return None
        return test.inputs.to(self.trainer.inputs), test.targets.to(like.device, like.dtype)

    def epochs(self, seconds: float) -> Iterator[Any]:
        """Rows of the epochs that are left, each run when asked for and then in the history.

        seconds: a checkpoint that is older is written anew after the epoch
        """
        trainer, scored, saved = self.trainer, self.scored(), time.monotonic()
        while trainer.epoch < trainer.config.epochs:
            row = trainer.run_epoch(scored)
            self.history.append(row.as_dict())
            if time.monotonic() - saved > seconds:
                self.save()
                saved = time.monotonic()
            yield row


@dataclass(frozen=True)
class PreparedRun(KeptRun[Trainer]):
    """A run of `isotropy.learn`, with the records of what it starts from."""

    screening: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None


def prepare_run(
    model: nn.Module,
    split: Split,
    settings: LearnConfig,
    *,
    actions: Actions,
    device: str | torch.device | None = None,
    network: NetworkSpecification | None = None,
    describe: Mapping[str, Any] | None = None,
) -> PreparedRun:
    """A run that keeps nothing yet; arguments as in `isotropy.learn`."""
    place = torch.device(device) if device is not None else device_of(model)
    resolved = resolve(settings, examples=len(split.train), on_gpu=place.type == "cuda")
    if RECIPES[settings.objective].evidence:
        check_factor_memory(model, settings.curvature, place)
    if settings.curvature_batch is None:
        resolved = fit_curvature_batch(resolved, model, split.train.inputs[:1], place)
    trainer = make_trainer(model, split.train, actions, resolved, place)
    config: dict[str, Any] = {
        "schema": 1,
        "objective": resolved.objective,
        "schedule": resolved.as_dict(),
        "network": (network or specification_of(model)).as_dict(),
        "generators": [symmetry.name for symmetry in trainer.model.symmetries()],
        "data": {
            "name": split.train.name,
            "train_examples": len(split.train),
            "test_examples": None if split.test is None else len(split.test),
            "shape": list(split.train.inputs.shape[1:]),
            "outputs": split.train.num_outputs,
            "classes": None if split.train.classes is None else list(split.train.classes),
            "fingerprint": fingerprint(split.train),
        },
        **border_of(actions),
        "notes": list(split.notes),
        "truth": {},
        **(describe or {}),
    }
    return PreparedRun(trainer, split, config)


def in_folder(
    run: PreparedRun,
    folder: str | Path | None,
    *,
    resume: bool = False,
    screening: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> PreparedRun:
    """The run kept in a folder, begun there, or with `resume` continued from what it holds.

    screening, search: the records of what the run starts from
    """
    if folder is None:
        return replace(run, screening=screening, search=search)
    path = Path(folder)
    if resume:
        screening = read_json(path / SCREENING) if (path / SCREENING).exists() else screening
        search = read_json(path / SEARCH) if (path / SEARCH).exists() else search
    run = replace(run, screening=screening, search=search)
    records = {SCREENING: screening, SEARCH: search}
    return kept_in(run, path, resume=resume, records=records)


Run = TypeVar("Run", bound=KeptRun[Any])


def kept_in(
    run: Run,
    path: Path,
    *,
    resume: bool,
    records: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> Run:
    """The run begun in the folder `path`, or with `resume` continued if that holds a checkpoint.

    records: further files of the folder, by name; null ones are not written
    Raises CallerError where the folder holds another run.
    """
    make_folder(path)
    if resume and (path / CHECKPOINT).exists():
        config = read_json(path / CONFIG)
        check_same_run(path, config, run.config)
        history = load_trainer(path, run.trainer)
        return replace(run, config=config, history=history, folder=path)
    for name, record in {CONFIG: run.config, **(records or {})}.items():
        if record is not None:
            write_json(path / name, record)
    save_trainer(path, run.trainer, run.history)
    return replace(run, folder=path)
