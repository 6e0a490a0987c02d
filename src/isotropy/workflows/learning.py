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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.data.labelled import LabelledData, Split
from isotropy.data.streams.streamed import StreamedData
from isotropy.evidence.elbo import ElboEvidence, HeadPredictive
from isotropy.evidence.objectives import Objective
from isotropy.evidence.predictive import METHODS, Predictive, calibration
from isotropy.evidence.search.selection import candidates_of
from isotropy.evidence.settings import LearnConfig, LearnSchedule, stream
from isotropy.evidence.training import EpochRecord, Trainer
from isotropy.evidence.verdict import is_settled, judge
from isotropy.kernels.ranks import ranks, shared_by_ranks
from isotropy.networks import batch_statistics
from isotropy.networks.averaging.augmentations import (
    COPIES_SEED,
    Augmentation,
    CorrelatedRanges,
    Symmetry,
)
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import Mixture
from isotropy.networks.folding import filter_bank
from isotropy.networks.frozen import NOTHING, frozen_names
from isotropy.networks.one_output import Select
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import (
    AUGMENTATION,
    alone_in_folder,
    read_json,
    record_head,
    save_trainer,
    unwritable,
    write_json,
)
from isotropy.report.pages.learn import SAMPLES_FILE, LearnRecord, learn_page, save_samples
from isotropy.symmetry.actions.images import AffineAction
from isotropy.symmetry.actions.warp import half_extent, pixel_centres
from isotropy.workflows.runs.contest import compared
from isotropy.workflows.runs.prepared import (
    SEARCH,
    Actions,
    PreparedRun,
    begin,
    in_folder,
    network_notes,
    prepare_run,
)
from isotropy.workflows.runs.result import Result
from isotropy.workflows.runs.searching import (
    TRIALS,
    begin_search,
    find_amounts,
    settings_from,
)

CALIBRATION_EXAMPLES = 500
"""Test examples whose calibration is scored: each needs its own Jacobian."""
IMAGES, COPIES, FLOWS, ARROWS = 6, 8, 3, 9
"""Of pictures in the report: images, copies of each, flow fields, and their arrows a side."""


@dataclass(frozen=True)
class LearnProgress:
    """Told after every epoch: the run's schedule, this epoch's row, the latest known scores."""

    config: LearnSchedule
    row: EpochRecord
    log_evidence_per_example: float | None
    test_accuracy: float | None
    test_rmse: float | None = None


@dataclass(frozen=True)
class Illustration:
    """examples (images, 1 + copies, channels, height, width) in [0, 1], the original first;
    flows (samples, 2, rows, columns, 2): where content is and where it goes, in pixels (x, y);
    filters (stages, filters, elements, channels, height, width): the feature bank, before and after
    a run by the evidence bound."""

    examples: numpy.ndarray | None
    flows: numpy.ndarray | None
    image_shape: tuple[int, int] | None
    filters: numpy.ndarray | None = None


@dataclass(frozen=True, repr=False)
class LearnResult(Result):
    """What was learned.

    model averages over the number of copies used for scoring, and is in evaluation mode.
    """

    SHOWN = ("data", "network", "objective", "log_evidence", "test_accuracy", "test_rmse")

    model: InvariantModel
    symmetries: list[Symmetry]
    log_evidence: float | None
    test_accuracy: float | None
    history: list[dict[str, Any]]
    illustration: Illustration
    trainer: Trainer

    def page(self) -> str:
        return learn_page(
            LearnRecord(
                result=self.record,
                config=self.config,
                history=self.history,
                truth=self.config.get("truth", {}),
                **vars(self.illustration),
            )
        )

    def write_own(self, path: Path) -> None:
        """Weights, ranges, and pictures of transformed inputs."""
        save_trainer(path, self.trainer, self.history, self.config)
        law = self.model.augmentation.law()
        write_json(
            path / AUGMENTATION, {"schema": 1, **law, "symmetries": self.record["symmetries"]}
        )
        try:
            with tempfile.TemporaryDirectory(dir=path, prefix=".samples-") as beside:
                made = save_samples(Path(beside), **vars(self.illustration))
                os.replace(made, path / made.name)
        except OSError as error:
            raise unwritable(path / SAMPLES_FILE, error) from error

    def predictive(self) -> Predictive:
        """Predictions with their uncertainty: the linearised posterior of the trained network.

        With the evidence elbo that of its last layer, which needs no linearisation.
        """
        if self.log_evidence is None:
            raise CallerError(
                "predictive: expected an objective with a prior, got "
                f"{self.trainer.config.objective}, which has none; train with evidence, fixed or "
                "none"
            )
        evidence = self.trainer.evidence
        fit = evidence.fit(self.trainer.orbit_batches("final"))
        if self.trainer.features is not None:  # of which it has seen the last layer alone
            evidence = copy.copy(evidence)
            evidence.network = self.model.network
        kind = HeadPredictive if isinstance(evidence, ElboEvidence) else Predictive
        return kind(evidence, fit, self.model)


@shared_by_ranks
@alone_in_folder
def learn(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    actions: Actions | None = None,
    objective: Objective | None = None,
    config: LearnConfig | None = None,
    freeze: str | None = None,
    select: Select = None,
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
    train      (inputs, targets), a torch Dataset, LabelledData, a Split, or a path to data; what
               takes much memory is read while it is used, as `isotropy.streamed` data are
    test       the same, only scored; paths and Splits bring their own (or 20 % are held out of a
               path's data), tensors given alone are all used for training
    actions    what may be a symmetry; the affine group's six generators of the paper by default
    objective  evidence (the default) or a baseline (`OBJECTIVES`); overrides the config's
    freeze     what is not trained: backbone (all but the last layer), a pattern of parameters'
               names, none; overrides the config's
    select     which of several outputs of the model counts: a key, an attribute, a position or a
               function; by default a tensor as it is, or what is called logits
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
    if freeze is not None:
        settings = replace(settings, freeze=freeze)
    settings.check()
    begun, actions = begin(
        model, train, test, seed=settings.seed, device=device, folder=folder, resume=resume,
        network=network,
    ).selecting(select).acting(actions)  # fmt: skip
    begun = begun.freezing(settings.freeze)
    if settings.recipe.evidence:
        begun.check_function()
    run = prepare_run(begun, settings, actions=actions, describe=describe)
    augmentation = run.trainer.model.augmentation
    if isinstance(augmentation, Mixture) and augmentation.wrapped_parameters:
        # More is learned than amounts, and trials could not follow it.
        settings = replace(settings, search=False)
        run = prepare_run(begun, settings, actions=actions, describe=describe)
    if remark is not None:
        for note in network_notes(run.trainer):
            remark(note)
    asked, found, is_told = settings, None, False
    if run.trainer.config.search:
        found = _kept_search(folder) if resume else None
        if found is None:
            kept = None
            if folder is not None:
                kept = begin_search(run, Path(folder), resume=resume, screening=screening)
            if started is not None:
                started(run.trainer.config, 0)
                is_told = True
            search = partial(
                find_amounts, run, actions, replicates=verdicts, remark=remark, kept=kept
            )
            found = ranks().by_first(search)
        settings = settings_from(settings, found)
        run = prepare_run(begun, settings, actions=actions, describe=describe)
    run = in_folder(run, folder, resume=resume, screening=screening, search=found)
    if folder is not None:
        (Path(folder) / TRIALS).unlink(missing_ok=True)
    if started is not None and not is_told:
        started(run.trainer.config, run.trainer.epoch)
    prepare = partial(prepare_run, begun, actions=actions, describe=describe)
    train = partial(_run, progress=progress)
    began = time.monotonic()
    run = compared(run, asked, prepare, train, remark)
    run.tell_estimate(remark)
    banks, seconds_before = (
        _bank(run.trainer) if run.trainer.epoch == 0 else [],
        run.trainer.seconds,
    )
    train(run)
    run.save()  # before the verdicts, so that they can be interrupted
    result = _outcome(run, verdicts=verdicts, calibrate=calibrate, remark=remark)
    banks += _bank(run.trainer)
    if banks:
        shown = replace(result.illustration, filters=numpy.stack(banks))
        result = replace(result, illustration=shown)
    searched = 0.0 if run.search is None else float(run.search["seconds"])
    result.record["seconds"] = searched + seconds_before + time.monotonic() - began
    return result.kept_in(run.folder)


def _kept_search(folder: str | Path | None) -> dict[str, Any] | None:
    """What the search of an interrupted run had found."""
    path = None if folder is None else Path(folder) / SEARCH
    return read_json(path) if path is not None and path.exists() else None


def _run(run: PreparedRun, progress: Callable[[LearnProgress], None] | None) -> None:
    """Epochs until the schedule ends; appends to the history, saves and tells as it goes."""
    for row in run.epochs():
        if progress is not None:
            progress(_progress_of(run, row))


def _progress_of(run: PreparedRun, row: EpochRecord) -> LearnProgress:
    """What a caller is told after an epoch."""
    return LearnProgress(
        run.trainer.config,
        row,
        _latest(run.history, "log_evidence_per_example"),
        _latest(run.history, "test_accuracy"),
        _latest(run.history, "test_rmse"),
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
    learns = settings.recipe.ranges == "evidence"
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
        "settled": is_settled(history, floors) if learns else True,
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
        "batch_norm": batch_statistics.described(trainer.network),
        "fallback": getattr(trainer.evidence.curvature, "fallen_back", {}),
        "constants": constants_of(trainer),
        "evidence": None if evidence is None else evidence.as_dict(),
        "elbo": trainer.evidence.parts() if settings.evidence == "elbo" else None,
        "log_evidence": log_evidence,
        "null_log_evidence": _constant_log_likelihood(trainer),
        "log_evidence_per_example": None if log_evidence is None else log_evidence / count,
        "test_accuracy": test_accuracy,
        "test_log_likelihood": _latest(history, "test_log_likelihood"),
        "test_rmse": _latest(history, "test_rmse"),
        "class_counts": class_counts(split),
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
        illustration=illustrate(
            trainer.model.augmentation, trainer.inputs, settings.seed, trainer.targets
        ),
        trainer=trainer,
    )


def constants_of(trainer: Trainer) -> dict[str, str]:
    """Layers and parameters that are constants of the evidence, with the reason."""
    asked = trainer.config.freeze != NOTHING
    frozen = dict.fromkeys(frozen_names(trainer.network) if asked else (), "frozen")
    return {**frozen, **getattr(trainer.evidence.curvature, "constants", {})}


def _constant_log_likelihood(trainer: Trainer) -> float:
    """What a constant prediction reaches; where targets are not known, as the sample says."""
    data, targets = trainer.stream, trainer.targets
    if data is not None and data.known_targets is not None:
        targets = data.known_targets
    found = trainer.likelihood.constant_log_likelihood(targets.to(trainer.targets))
    return found if len(targets) == trainer.examples else found * trainer.examples / len(targets)


def class_counts(split: Split) -> dict[str, list[int]] | None:
    """Training and test examples of every class, by its name; None for a regression.

    None also for a stream of examples whose labels are not known before they are read.
    """
    data = split.train
    known = data.known_targets if isinstance(data, StreamedData) else data.targets
    if data.classes is None or known is None:
        return None
    parts = [known] if split.test is None else [known, split.test.targets]
    counts = [each.bincount(minlength=data.num_classes).tolist() for each in parts]
    return {name: [own[i] for own in counts] for i, name in enumerate(data.classes)}


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


def _latest(history: list[dict[str, Any]], key: str) -> float | None:
    return next((row[key] for row in reversed(history) if row.get(key) is not None), None)


# --- pictures of what was learned ---------------------------------------------------------------


@torch.no_grad()
def illustrate(
    augmentation: Augmentation, inputs: Tensor, seed: int, targets: Tensor | None = None
) -> Illustration:
    """Sample the learned augmentation on some images; nothing for data without pixels.

    targets: labels, to show images of different classes; without them the first images are shown
    """
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        return Illustration(None, None, None)
    generator = stream(seed, "illustration", 0, inputs.device)
    chosen = inputs[shown_examples(targets, IMAGES)] if targets is not None else inputs[:IMAGES]
    noise = augmentation.noise(len(chosen), COPIES, generator=generator)
    copies = augmentation(chosen, noise)
    examples = torch.cat([chosen[:, None], copies], 1)
    # One grey scale for all, that of the originals, so that standardised images show too.
    low, high = chosen.min(), chosen.max()
    examples = ((examples - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    height, width = inputs.shape[2:]
    flows = None
    if isinstance(augmentation.action, AffineAction):
        flows = _flows(augmentation, augmentation.action, height, width, generator)
    return Illustration(examples.float().cpu().numpy(), flows, (height, width))


def shown_examples(targets: Tensor, count: int) -> Tensor:
    """Indices (count,) of the first examples of the first classes: of each class one, then two, …

    Of a regression's targets (examples, outputs), the first examples.
    """
    if targets.is_floating_point():
        return torch.arange(min(count, len(targets)), device=targets.device)
    order = targets.argsort(stable=True)
    starts = targets.bincount().cumsum(0).roll(1)
    starts[0] = 0
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - starts[targets[order]]
    classes = len(starts)
    return (rank * classes + targets).argsort(stable=True)[:count]


def _bank(trainer: Trainer) -> list[numpy.ndarray]:
    """The feature bank of a run by the evidence bound, as it is now; none if it has no pictures."""
    shape = trainer.inputs.shape[1:]
    if trainer.config.evidence != "elbo" or len(shape) != 3 or shape[0] not in (1, 3):
        return []
    found = filter_bank(trainer.model, shape)
    return [] if found is None else [found.float().cpu().numpy()]


def _flows(
    augmentation: Augmentation,
    action: AffineAction,
    height: int,
    width: int,
    generator: torch.Generator,
) -> numpy.ndarray:
    noise = augmentation.noise(1, FLOWS, generator=generator)[0]
    linear, shift = action.element(augmentation.coordinates(noise).double())
    unit = half_extent(width, action.align_corners)
    x = pixel_centres(ARROWS, ARROWS / width * unit, linear)
    y = pixel_centres(ARROWS, ARROWS / height * unit, linear)
    start = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # (rows, columns, 2)
    end = torch.einsum("sij,rcj->srci", linear, start) + shift[:, None, None]
    both = torch.stack([start.expand_as(end), end], 1)
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=both.dtype)
    flows: numpy.ndarray = (both.cpu() * unit + centre).numpy()
    return flows
