"""`isotropy.learn`: train a network and find out which symmetries its data has, and how much.

    result = isotropy.learn(network, (images, labels))
    result.symmetries          [Symmetry('rotation', 'range', -175.0, 175.0, 'degrees'), …]
    result.model               the trained network, averaged over the learned orbit
    result.save("runs/first"); result.report("first.html")

Nothing is printed; progress comes by callback. With `folder=` the run is saved as it goes and an
interrupted one continues with `resume=True`, ending with the numbers of an unbroken run.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checkpoint import (
    AUGMENTATION,
    CHECKPOINT,
    CONFIG,
    REPORT,
    RESULT,
    check_unused,
    load_trainer,
    make_folder,
    read_json,
    save_trainer,
    unwritable,
    write_bytes,
    write_json,
)
from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.readers import load
from isotropy.evidence.schedule import LearnConfig, Objective, resolve, too_short
from isotropy.evidence.sizing import fit_curvature_batch
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.likelihoods import likelihood_named
from isotropy.networks.augmentations import START, Symmetry, UniformRanges
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.specification import NetworkSpecification, specification_of
from isotropy.report.learn_report import learn_page
from isotropy.report.record import SAMPLES_FILE, LearnRecord, save_samples
from isotropy.symmetry.actions import Action
from isotropy.symmetry.image_actions import affine
from isotropy.workflows.illustration import Illustration, illustrate
from isotropy.workflows.provenance import provenance
from isotropy.workflows.same_run import check_same_run, fingerprint

CHECKPOINT_SECONDS = 5.0
"""A run folder's checkpoint is never older than this and one epoch."""


@dataclass(frozen=True)
class LearnProgress:
    """Told after every epoch: the resolved settings, this epoch's row, the latest known scores."""

    config: LearnConfig
    row: EpochRecord
    log_evidence_per_example: float | None
    test_accuracy: float | None


@dataclass(frozen=True)
class LearnResult:
    """What was learned. `record` is the JSON object that the command line prints.

    model averages over the number of copies used for scoring, and is in evaluation mode.
    """

    model: InvariantModel
    symmetries: list[Symmetry]
    log_evidence: float | None
    test_accuracy: float | None
    history: list[dict[str, Any]]
    config: dict[str, Any]
    record: dict[str, Any]
    illustration: Illustration = field(repr=False)
    trainer: Trainer = field(repr=False)

    def save(self, folder: str | Path) -> Path:
        """Write a complete run folder, report included."""
        path = make_folder(Path(folder))
        saved = replace(self, record={**self.record, "run_folder": str(path)})
        write_json(path / CONFIG, saved.config)
        save_trainer(path, saved.trainer, saved.history)
        _write_outcome(path, saved)
        return path

    def report(self, path: str | Path) -> Path:
        """Write the report alone: one self-contained HTML file."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
        write_bytes(path, learn_page(self._learn_record()).encode())
        return path

    def _learn_record(self) -> LearnRecord:
        return LearnRecord(
            result=self.record,
            config=self.config,
            history=self.history,
            truth=self.config.get("truth", {}),
            examples=self.illustration.examples,
            flows=self.illustration.flows,
            image_shape=self.illustration.image_shape,
        )


def learn(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    actions: Action | None = None,
    objective: Objective | None = None,
    config: LearnConfig | None = None,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    started: Callable[[LearnConfig, int], None] | None = None,
    progress: Callable[[LearnProgress], None] | None = None,
    describe: Mapping[str, Any] | None = None,
    network: NetworkSpecification | None = None,
) -> LearnResult:
    """Train `model` and learn the ranges of `actions` from the training data alone.

    model      any nn.Module from (batch, …) to (batch, outputs); a copy is trained
    train      (inputs, targets), a torch Dataset, LabelledData, a Split, or a path to data
    test       the same, only scored; paths and Splits bring their own (or 20 % are held out of a
               path's data), tensors given alone are all used for training
    actions    what may be a symmetry; the affine group's six generators of the paper by default
    objective  laplace (the default) | augerino | fixed | none; overrides the config's
    device     where to run; by default where the model is
    folder     a run folder to write and, with `resume`, to continue; one that holds a run is
               not overwritten
    started    told once, when all is checked: the resolved settings, and how many epochs are done
    progress   told after every epoch
    describe   further entries for the run's config: "data", "truth", "command"
    network    how to rebuild the model from words; kept in the run folder

    Raises CallerError for what the caller can put right, naming a layer without a curvature rule.
    """
    settings = config or LearnConfig()
    if objective is not None:
        settings = replace(settings, objective=objective)
    if folder is not None and not resume:
        check_unused(Path(folder))
    split = _split(train, test, settings.seed)
    place = torch.device(device) if device is not None else _device_of(model)
    resolved = resolve(settings, examples=len(split.train), on_gpu=place.type == "cuda")
    if settings.curvature_batch is None:
        resolved = fit_curvature_batch(resolved, model, split.train.inputs[:1])
    trainer = _trainer(model, split.train, actions or affine(), resolved, place)
    run_config: dict[str, Any] = {
        "schema": 1,
        "objective": resolved.objective,
        "schedule": resolved.as_dict(),
        "network": (network or specification_of(model)).as_dict(),
        "generators": list(trainer.model.augmentation.action.names),
        "data": {
            "name": split.train.name,
            "train_examples": len(split.train),
            "test_examples": None if split.test is None else len(split.test),
            "shape": list(split.train.inputs.shape[1:]),
            "outputs": split.train.num_outputs,
            "classes": None if split.train.classes is None else list(split.train.classes),
            "fingerprint": fingerprint(split.train),
        },
        "truth": {},
        **(describe or {}),
    }
    path = make_folder(Path(folder)) if folder is not None else None
    history: list[dict[str, Any]] = []
    if path is not None and resume and (path / CHECKPOINT).exists():
        before = read_json(path / CONFIG)
        check_same_run(path, before, run_config)
        run_config = before
        history = load_trainer(path, trainer)
    elif path is not None:
        write_json(path / CONFIG, run_config)
        save_trainer(path, trainer, history)
    if started is not None:
        started(resolved, trainer.epoch)
    _run(trainer, split.test, history, path, progress)
    result = _result(trainer, split, history, run_config, path)
    if path is not None:
        save_trainer(path, trainer, history)
        _write_outcome(path, result)
    return result


def _split(train: Any, test: Any, seed: int) -> Split:
    in_memory = not isinstance(train, str | Path)
    return load(train, test, seed=seed, hold_out_fraction=0.0 if in_memory else 0.2)


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _trainer(
    model: nn.Module, train: LabelledData, action: Action, config: LearnConfig, place: torch.device
) -> Trainer:
    network = copy.deepcopy(model).to(place)
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    learned = config.objective in ("laplace", "augerino")
    augmentation = UniformRanges(
        action, start=START if learned else (config.ranges or {}), caps=config.caps, dtype=dtype
    ).to(place)
    if learned or not augmentation.is_identity:
        _check_action(action, train)
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


def _check_action(action: Action, train: LabelledData) -> None:
    """Move one example, so that data on which the generators do not act are named at once."""
    example = train.inputs[:1]
    try:
        action.act(example.new_zeros(1, 1, len(action.generators)), example)
    except CallerError as error:
        raise CallerError(
            f"{train.name}: {', '.join(action.names)} cannot act on it: {error}"
        ) from error


def _run(
    trainer: Trainer,
    test: LabelledData | None,
    history: list[dict[str, Any]],
    folder: Path | None,
    progress: Callable[[LearnProgress], None] | None,
) -> None:
    """Epochs until the schedule ends; appends to `history`, saves and tells as it goes."""
    assert trainer.config.epochs is not None
    scored = None
    if test is not None:
        like = trainer.targets
        scored = (test.inputs.to(trainer.inputs), test.targets.to(like.device, like.dtype))
    saved = time.monotonic()
    while trainer.epoch < trainer.config.epochs:
        row = trainer.run_epoch(scored)
        history.append(row.as_dict())
        if folder is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
            save_trainer(folder, trainer, history)
            saved = time.monotonic()
        if progress is not None:
            progress(
                LearnProgress(
                    trainer.config,
                    row,
                    _latest(history, "log_evidence_per_example"),
                    _latest(history, "test_accuracy"),
                )
            )


def _result(
    trainer: Trainer,
    split: Split,
    history: list[dict[str, Any]],
    config: dict[str, Any],
    folder: Path | None,
) -> LearnResult:
    log_evidence = trainer.final_evidence()
    test_accuracy = _latest(history, "test_accuracy")
    symmetries = trainer.model.symmetries()
    count = len(split.train)
    settings = trainer.config
    record = {
        "schema": 1,
        "command": "learn",
        "seed": settings.seed,
        **provenance(trainer.device),
        "seconds": trainer.seconds,
        "run_folder": None if folder is None else str(folder),
        "data": config["data"]["name"],
        "network": config["network"]["name"],
        "objective": settings.objective,
        "curvature": trainer.evidence.curvature_name,
        "samples": settings.samples,
        "test_samples": settings.test_samples,
        "epochs": settings.epochs,
        "settled": not too_short(settings),
        "train_examples": count,
        "test_examples": None if split.test is None else len(split.test),
        "symmetries": [symmetry.as_dict() for symmetry in symmetries],
        "log_evidence": log_evidence,
        "log_evidence_per_example": None if log_evidence is None else log_evidence / count,
        "test_accuracy": test_accuracy,
        "test_log_likelihood": _latest(history, "test_log_likelihood"),
        "prior_precision": trainer.prior.by_group(),
        "noise": getattr(trainer.likelihood, "noise", None),
    }
    assert settings.test_samples is not None
    trained = trainer.model
    return LearnResult(
        model=InvariantModel(trained.network, trained.augmentation, settings.test_samples).eval(),
        symmetries=symmetries,
        log_evidence=log_evidence,
        test_accuracy=test_accuracy,
        history=history,
        config=config,
        record=record,
        illustration=illustrate(trainer.model.augmentation, trainer.inputs, settings.seed),
        trainer=trainer,
    )


def _write_outcome(path: Path, result: LearnResult) -> None:
    write_json(path / RESULT, result.record)
    write_json(
        path / AUGMENTATION,
        {
            "schema": 1,
            "law": "content moves by exp(Σ a_k G_k), a_k uniform on [low, high], independent",
            "symmetries": result.record["symmetries"],
        },
    )
    shown = result.illustration
    try:
        with tempfile.TemporaryDirectory(dir=path, prefix=".samples-") as beside:
            made = save_samples(
                Path(beside),
                examples=shown.examples,
                flows=shown.flows,
                image_shape=shown.image_shape,
            )
            os.replace(made, path / made.name)
    except OSError as error:
        raise unwritable(path / SAMPLES_FILE, error) from error
    result.report(path / REPORT)


def _latest(history: list[dict[str, Any]], key: str) -> float | None:
    return next((row[key] for row in reversed(history) if row[key] is not None), None)
