"""`isotropy.learn`: train a network and find out which symmetries its data has, and how much.

    result = isotropy.learn(network, (images, labels))
    result.symmetries          [Symmetry('rotation', 'range', -175.0, 175.0, 'degrees'), …]
    result.model               the trained network, averaged over the learned orbit
    result.save("runs/first"); result.report("first.html")

Nothing is printed; progress comes by callback. With `folder=` the run is saved as it goes and an
interrupted one continues with `resume=True`, ending with the numbers of an unbroken run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, Split
from isotropy.evidence.predictive import METHODS, Predictive, calibration
from isotropy.evidence.search.selection import candidates_of
from isotropy.evidence.settings import LearnConfig, LearnSchedule, Objective, stream
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.evidence.verdict import is_settled, judge
from isotropy.networks.averaging.augmentations import (
    COPIES_SEED,
    Augmentation,
    CorrelatedRanges,
    Symmetry,
)
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import (
    AUGMENTATION,
    CONFIG,
    REPORT,
    RESULT,
    check_unused,
    make_folder,
    read_json,
    record_head,
    save_trainer,
    unwritable,
    write_json,
)
from isotropy.report.learn import SAMPLES_FILE, LearnRecord, learn_page, save_samples
from isotropy.workflows.illustration import Illustration, illustrate
from isotropy.workflows.runs import (
    SEARCH,
    Actions,
    PreparedRun,
    default_actions,
    in_folder,
    prepare_run,
    read_split,
    write_page,
)
from isotropy.workflows.searching import confirmed, find_amounts, halved, settings_from

CALIBRATION_EXAMPLES = 500
"""Test examples whose calibration is scored: each needs its own Jacobian."""

CHECKPOINT_SECONDS = 5.0
"""A run folder's checkpoint is never older than this and one epoch."""


@dataclass(frozen=True)
class LearnProgress:
    """Told after every epoch: the run's schedule, this epoch's row, the latest known scores."""

    config: LearnSchedule
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
        return write_page(path, learn_page(self._learn_record()))

    def predictive(self) -> Predictive:
        """Predictions with their uncertainty: the linearised posterior of the trained network."""
        if self.log_evidence is None:
            raise CallerError(
                "predictive: expected an objective with a prior, got "
                f"{self.trainer.config.objective}, which has none; train with laplace, fixed or "
                "none"
            )
        evidence = self.trainer.evidence
        return Predictive(evidence, evidence.fit(self.trainer.orbit_batches("final")), self.model)

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
    actions: Actions | None = None,
    objective: Objective | None = None,
    config: LearnConfig | None = None,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    started: Callable[[LearnSchedule, int], None] | None = None,
    progress: Callable[[LearnProgress], None] | None = None,
    describe: Mapping[str, Any] | None = None,
    network: NetworkSpecification | None = None,
    verdicts: int = 3,
    calibrate: bool = False,
    remark: Callable[[str], None] | None = None,
    screening: Mapping[str, Any] | None = None,
) -> LearnResult:
    """Train `model` and learn the ranges of `actions` from the training data alone.

    model      any nn.Module from (batch, …) to (batch, outputs); a copy is trained
    train      (inputs, targets), a torch Dataset, LabelledData, a Split, or a path to data
    test       the same, only scored; paths and Splits bring their own (or 20 % are held out of a
               path's data), tensors given alone are all used for training
    actions    what may be a symmetry; the affine group's six generators of the paper by default
    objective  laplace (the default) or a baseline (`OBJECTIVES`); overrides the config's
    device     where to run; by default where the model is
    folder     a run folder to write and, with `resume`, to continue; one that holds a run is
               not overwritten
    started    told once, when all is checked: the run's schedule, and how many epochs are done
    progress   told after every epoch
    describe   further entries for the run's config: "data", "truth", "command"
    network    how to rebuild the model from words; kept in the run folder
    verdicts   trials behind each gain of the search, with other copies each, at least 2; 0 gives no
               verdicts
    calibrate  score the posterior predictive's calibration on the test data
    remark     told sentences: what the run will take, what goes on after the last epoch
    screening  the record of a screening that the run starts from; kept in the result

    Raises CallerError for what the caller can put right, naming a layer without a curvature rule.
    """
    settings = config or LearnConfig()
    if objective is not None:
        settings = replace(settings, objective=objective)
    if folder is not None and not resume:
        check_unused(Path(folder))
    split = read_split(train, test, settings.seed)
    if actions is None:
        actions, notes = default_actions(split.train)
        split = replace(split, notes=(*split.notes, *notes))
    options: dict[str, Any] = {
        "actions": actions, "device": device, "network": network, "describe": describe
    }  # fmt: skip
    run = prepare_run(model, split, settings, **options)
    augmentation = run.trainer.model.augmentation
    if isinstance(augmentation, Mixture) and augmentation.wrapped_parameters:
        # More is learned than amounts, and trials could not follow it.
        settings = replace(settings, search=False)
        run = prepare_run(model, split, settings, **options)
    asked, found, is_told = settings, None, False
    if run.trainer.config.search:
        found = _kept_search(folder) if resume else None
        if found is None:
            if folder is not None:
                make_folder(Path(folder))
            if started is not None:
                started(run.trainer.config, 0)
                is_told = True
            found = find_amounts(run, actions, replicates=verdicts, remark=remark)
        settings = settings_from(settings, found)
        run = prepare_run(model, split, settings, **options)
    run = in_folder(run, folder, resume=resume, screening=screening, search=found)
    trainer = run.trainer
    if started is not None and not is_told:
        started(trainer.config, trainer.epoch)
    # A whole period is trained a second time, by half, to see whether all of it is needed.
    run.tell_estimate(remark, runs=2 if found is not None and halved(found) else 1)
    begun, seconds_before = time.monotonic(), trainer.seconds
    _run(run, progress)
    run.save()  # before the verdicts, so that they can be interrupted
    run = confirmed(
        run,
        asked,
        lambda other: prepare_run(model, split, other, **options),
        lambda other: _run(other, progress),
        remark,
    )
    result = _outcome(run, verdicts=verdicts, calibrate=calibrate, remark=remark)
    searched = 0.0 if run.search is None else float(run.search["seconds"])
    result.record["seconds"] = searched + seconds_before + time.monotonic() - begun
    if run.folder is not None:
        _write_outcome(run.folder, result)
    return result


def _kept_search(folder: str | Path | None) -> dict[str, Any] | None:
    """What the search of an interrupted run had found."""
    path = None if folder is None else Path(folder) / SEARCH
    return read_json(path) if path is not None and path.exists() else None


def _run(run: PreparedRun, progress: Callable[[LearnProgress], None] | None) -> None:
    """Epochs until the schedule ends; appends to the history, saves and tells as it goes."""
    for row in run.epochs(CHECKPOINT_SECONDS):
        if progress is not None:
            progress(_progress_of(run, row))


def _progress_of(run: PreparedRun, row: EpochRecord) -> LearnProgress:
    """What a caller is told after an epoch."""
    return LearnProgress(
        run.trainer.config,
        row,
        _latest(run.history, "log_evidence_per_example"),
        _latest(run.history, "test_accuracy"),
    )


def _outcome(
    run: PreparedRun,
    *,
    verdicts: int,
    calibrate: bool,
    remark: Callable[[str], None] | None,
) -> LearnResult:
    """The result of a run that has ended, with verdicts and calibration where they are wanted.

    Verdicts need a search.
    """
    trainer, test = run.trainer, run.split.test
    result = _result(trainer, run.split, run.history, run.config, run.folder)
    extras: dict[str, Any] = {"screening": run.screening, "search": run.search}
    if run.search is not None:
        searched = run.search["symmetries"]
        for symmetry in result.record["symmetries"]:
            symmetry["interval"] = searched.get(symmetry["name"], {}).get("interval")
        if verdicts:
            extras["verdicts"] = [each.as_dict() for each in judge(trainer, run.search)]
    if calibrate and test is not None:
        if remark is not None:
            remark("scoring the posterior predictive")
        extras["calibration"] = calibration_of(result, test)
    result.record.update(extras)
    return result


def _result(
    trainer: Trainer,
    split: Split,
    history: list[dict[str, Any]],
    config: dict[str, Any],
    folder: Path | None,
) -> LearnResult:
    evidence = trainer.final_evidence()
    if evidence is not None:
        evidence = replace(evidence, data=config["data"]["fingerprint"])
    log_evidence = None if evidence is None else evidence.nats
    test_accuracy = _latest(history, "test_accuracy")
    symmetries = trainer.model.symmetries()
    count = len(split.train)
    settings = trainer.config
    floors = {each.name: each.floor for each in candidates_of(trainer.model.augmentation)}
    record = {
        **record_head(
            "learn",
            seed=settings.seed,
            device=trainer.device,
            seconds=trainer.seconds,
            run_folder=folder,
        ),
        "data": config["data"]["name"],
        "network": config["network"]["name"],
        "objective": settings.objective,
        "curvature": trainer.evidence.curvature_name,
        "samples": settings.samples,
        "test_samples": settings.test_samples,
        "test_seed": COPIES_SEED,
        "epochs": settings.epochs,
        "settled": is_settled(history, floors) if settings.objective == "laplace" else True,
        "train_examples": count,
        "test_examples": None if split.test is None else len(split.test),
        "distribution": settings.distribution,
        "padding": config.get("padding"),
        "notes": config.get("notes", []),
        "symmetries": [{**symmetry.as_dict(), "interval": None} for symmetry in symmetries],
        "correlations": _correlations(trainer.model.augmentation),
        "verdicts": None,
        "search": None,
        "screening": None,
        "calibration": None,
        "weight_steps": trainer.weight_steps.network_pass.described(),
        "fallback": getattr(trainer.evidence.curvature, "fallen_back", {}),
        "evidence": None if evidence is None else evidence.as_dict(),
        "log_evidence": log_evidence,
        "null_log_evidence": trainer.likelihood.constant_log_likelihood(trainer.targets),
        "log_evidence_per_example": None if log_evidence is None else log_evidence / count,
        "test_accuracy": test_accuracy,
        "test_log_likelihood": _latest(history, "test_log_likelihood"),
        "own_test_accuracy": _latest(history, "own_test_accuracy"),
        "own_test_log_likelihood": _latest(history, "own_test_log_likelihood"),
        "prior_precision": trainer.prior.by_group(),
        "noise": getattr(trainer.likelihood, "noise", None),
    }
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


def _correlations(augmentation: Augmentation) -> dict[str, Any] | None:
    """Names and correlation matrix of correlated ranges, alone or in a mixture."""
    ranges = augmentation.ranges if isinstance(augmentation, Mixture) else augmentation
    if not isinstance(ranges, CorrelatedRanges):
        return None
    return {"names": list(ranges.action.names), "matrix": ranges.correlations().tolist()}


def calibration_of(result: LearnResult, test: LabelledData) -> dict[str, Any] | None:
    """Calibration on test data of plain, probit and sampled predictions; None for regression."""
    if not test.is_classification or result.log_evidence is None:
        return None
    predictive = result.predictive()
    trainer = result.trainer
    chosen = slice(0, CALIBRATION_EXAMPLES)
    inputs = test.inputs[chosen].to(trainer.inputs)
    targets = test.targets[chosen].to(inputs.device)
    found: dict[str, Any] = {}
    for method in METHODS:
        # The same noise for all three, so that they differ in nothing but the method.
        generator = stream(trainer.config.seed, "calibration", 0, inputs.device)
        noise = result.model.noise(len(inputs), generator=generator)
        probabilities = predictive.probabilities(inputs, noise, method, generator=generator)
        found[method] = calibration(probabilities, targets).as_dict()
    return found


def _write_outcome(path: Path, result: LearnResult) -> None:
    """Result, ranges, pictures and report into a run folder."""
    write_json(path / RESULT, result.record)
    write_json(
        path / AUGMENTATION,
        {
            "schema": 1,
            **result.model.augmentation.law(),
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
