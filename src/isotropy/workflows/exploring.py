"""What can be asked before a run of `isotropy.learn`: which symmetries, and how much of one.

    found = isotropy.screen(network, (images, labels))
    found.screening.ranking        ['rotation', 'hyperbolic_rotation', …]
    found.start                    half-widths to start `isotropy.learn` from

`isotropy.screen` trains a copy of the network without any symmetry, a fraction of a full run, and
asks its evidence which symmetries are worth one (`evidence.screening`). With `folder=` its epochs
and evidences are kept as it goes, and an interrupted one continues with `resume=True`.

    found = isotropy.profile(network, (images, labels), test, generator="rotation")
    found.record["profiles"]       the log evidence over amounts, by curvature kind

`isotropy.profile` puts the log evidence beside held-out data. For each curvature kind and each
amount of one symmetry the same network, from the same initial weights, is trained with that amount
held fixed, with the same budget and noise; then its evidence and the likelihood of the test data
are computed. Where the two are largest together, the objective that `learn` maximises can be
trusted for this problem; where they are not, it is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.kinds import kind_named
from isotropy.evidence.screening import Screening
from isotropy.evidence.screening import screen as climb
from isotropy.evidence.search.amounts import default_amounts, peak_of, rank_correlation
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.averaging.augmentations import START
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.one_output import Select
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import alone_in_folder, record_head
from isotropy.report.pages.profile import profile_page
from isotropy.report.pages.screen import screen_page
from isotropy.workflows.runs.kept_rows import KeptRows, KeptValues, made_with
from isotropy.workflows.runs.prepared import (
    Actions,
    Beginning,
    PreparedRun,
    begin,
    check_actions,
    kept_in,
    make_trainer,
    prepare_run,
)
from isotropy.workflows.runs.result import Result

EPOCHS = 30
"""Epochs of the plain network: enough to fit the training data."""
KIND = "screen"
"""What the config of a screening's folder says that it is."""
EVIDENCES = "evidences.jsonl"
"""The file of a screening's folder that keeps the evidences computed so far."""
SCREENED = "screening"
"""The folder of a run folder that holds the screening before the run, until that has ended."""
FAINT = 0.02
"""Probability from which a finite element that was not wanted starts all the same."""


@dataclass(frozen=True, repr=False)
class ScreenResult(Result):
    """What was found, and half-widths to start a run from."""

    SHOWN = ("data", "network")

    screening: Screening
    start: dict[str, float]

    def page(self) -> str:
        return screen_page(self.record, self.config)


@alone_in_folder
def screen(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    actions: Actions | None = None,
    config: LearnConfig | None = None,
    select: Select = None,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[str], None] | None = None,
    describe: Mapping[str, Any] | None = None,
    network: NetworkSpecification | None = None,
) -> ScreenResult:
    """Rank what may be a symmetry by what a plain network's evidence gains from a little of it.

    Arguments as for `learn`; progress is told sentences. `epochs` of the config are those of the
    plain network (30 by default). With `resume` what the folder holds is not computed again.
    """
    settings = config or LearnConfig()
    epochs = settings.epochs or EPOCHS
    settings = replace(settings, objective="none", evidence="laplace", epochs=epochs, start=None)
    begun, actions = begin(
        model, train, test, seed=settings.seed, device=device, folder=folder, resume=resume,
        network=network,
    ).held().selecting(select).acting(actions)  # fmt: skip
    begun = begun.freezing(settings.freeze)
    # The climb passes through the whole network.
    settings = replace(settings, freeze="none")
    described = {**(describe or {}), "kind": KIND}
    run = prepare_run(begun, settings, actions=actions, describe=described)
    run = replace(run, split=replace(begun.split, test=None))  # nothing is scored
    trainer, split = run.trainer, run.split
    augmentation = augmentation_over(
        actions,
        distribution=_distribution(actions),
        caps=settings.caps,
        dtype=trainer.inputs.dtype,
    ).to(begun.place)
    check_actions(augmentation, split.train)
    tell = progress or (lambda _: None)
    if folder is not None:
        run = kept_in(run, Path(folder), resume=resume)
    seconds_before = trainer.seconds
    for row in run.epochs():
        if row.epoch % 10 == 0:
            tell(f"plain network: epoch {row.epoch} of {trainer.config.epochs}")
    run.save()
    screening = climb(
        trainer.evidence,
        augmentation,
        trainer.inputs,
        trainer.targets,
        seed=settings.seed,
        batch_size=trainer.config.curvature_batch,
        progress=tell,
        known=_known(run, tell, resume=resume),
    )
    last = run.history[-1]
    record = {
        **_record_head("screen", begun, settings),
        "curvature": trainer.evidence.curvature_name,
        "training": {
            "epochs": trainer.config.epochs,
            "train_loss": last["train_loss"],
            "train_accuracy": last["train_accuracy"],
            "log_evidence_per_example": screening.log_evidence / len(split.train),
        },
        "units": {symmetry.name: symmetry.unit for symmetry in augmentation.symmetries()},
        "screening": screening.as_dict(),
    }
    faint = {
        symmetry.name: FAINT
        if symmetry.kind == "probability"
        else {g.name: g for g in augmentation.action.generators}[symmetry.name].in_units(START)
        for symmetry in augmentation.symmetries()
    }
    start = {name: max(amount, screening.start.get(name, 0.0)) for name, amount in faint.items()}
    record["seconds"] += seconds_before
    return ScreenResult(screening, start, record=record, config=run.config).kept_in(folder)


def _known(run: PreparedRun, tell: Callable[[str], None], *, resume: bool) -> KeptValues | None:
    """The evidences that the run's folder keeps; None without a folder."""
    if run.folder is None:
        return None
    of = made_with(run.config, run.trainer.network)
    known = KeptValues(KeptRows(run.folder / EVIDENCES, of, resume=resume))
    if known:
        tell(f"continuing after {len(known)} evidences")
    return known


def _distribution(actions: Actions) -> str:
    """Correlated where generators can be, so that pairs wanted together are seen."""
    generators = augmentation_over(actions).action.generators
    return "independent" if any(g.multiplicity > 1 for g in generators) else "correlated"


DEFAULT_CURVATURES = ("kfac-ggn", "kfac-ef", "diagonal-ggn", "last-layer-ggn")


@dataclass(frozen=True, repr=False)
class ProfileResult(Result):
    """The log evidence at each amount, by curvature kind, in `record["profiles"]`."""

    SHOWN = ("data", "network", "generator")

    def page(self) -> str:
        return profile_page(self.record, self.config)


def profile(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    generator: str,
    amounts: Sequence[float] | None = None,
    curvatures: Sequence[str] = DEFAULT_CURVATURES,
    actions: Actions | None = None,
    config: LearnConfig | None = None,
    select: Select = None,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    truth: float | None = None,
    progress: Callable[[str, float, Mapping[str, Any]], None] | None = None,
    describe: Mapping[str, Any] | None = None,
    network: NetworkSpecification | None = None,
) -> ProfileResult:
    """Profile the log evidence over the amount of `generator`, the other generators at zero.

    amounts     half-widths (or probabilities) in reported units; nine up to the period by default
    curvatures  kinds by name, where the config's evidence is laplace; each has its own refits,
                since precisions follow its evidence
    progress    told after every refit: curvature, amount, what was measured
    Other arguments as for `learn`. A kind that cannot be computed for this network is recorded
    with its error, and the others go on; if none can, the first error is raised.
    """
    settings = replace(config or LearnConfig(), objective="fixed", ranges={generator: 1.0})
    by_elbo = settings.evidence == "elbo"  # which has no curvature
    kinds = list(dict.fromkeys(kind_named(name).name for name in curvatures))
    kinds = ["elbo"] if by_elbo else kinds
    if not kinds:
        raise CallerError("curvatures: expected one or more kinds, got none")
    begun, actions = begin(
        model, train, test, seed=settings.seed, device=device, folder=folder, network=network
    ).held().selecting(select).acting(actions)  # fmt: skip
    begun = begun.freezing(settings.freeze)
    split = begun.split
    unit, chosen = _amounts(actions, generator, amounts)
    profiles = []
    for kind in kinds:
        try:
            rows = []
            for amount in chosen:
                own = replace(settings, ranges={generator: amount})
                own = own if by_elbo else replace(own, curvature=kind)
                rows.append(_refit(begun, actions, own))
                if progress is not None:
                    progress(kind, amount, rows[-1])
        except CallerError as error:
            profiles.append({"curvature": kind, "error": str(error)})
            continue
        profiles.append(_read(kind, chosen, rows, len(split.train)))
    if all(each["error"] is not None for each in profiles):
        raise CallerError(profiles[0]["error"])
    record = {
        **_record_head("profile", begun, settings),
        "test_examples": None if split.test is None else len(split.test),
        "generator": generator,
        "unit": unit,
        "truth": truth,
        "others": "all other symmetries at zero",
        "profiles": profiles,
    }
    return ProfileResult(record=record, config=begun.config(settings, describe)).kept_in(folder)


def _amounts(
    actions: Actions, generator: str, amounts: Sequence[float] | None
) -> tuple[str, list[float]]:
    """The generator's unit, and increasing amounts."""
    augmentation = augmentation_over(actions)
    units = {symmetry.name: symmetry.unit for symmetry in augmentation.symmetries()}
    check_choice(generator, units, what="generator")
    if amounts is None:
        periods = {g.name: g for g in augmentation.action.generators}
        if generator not in periods:  # a probability
            return units[generator], default_amounts(0.5)
        found = periods[generator]
        return units[generator], default_amounts(found.in_units(found.period or 1.0))
    chosen = sorted(set(float(amount) for amount in amounts))
    if len(chosen) < 3 or not all(0 <= amount < math.inf for amount in chosen):
        raise CallerError(
            f"amounts: expected three or more different ones of at least 0, got {list(amounts)}"
        )
    return units[generator], chosen


def _refit(begun: Beginning, actions: Actions, settings: LearnConfig) -> dict[str, Any]:
    """Train anew with the amounts of these settings; evidence and held-out scores."""
    split, resolved = begun.split, begun.resolved(settings)
    trainer = make_trainer(begun.model, split.train, actions, resolved, begun.place)
    for _ in range(resolved.epochs):
        last = trainer.run_epoch()
    evidence = trainer.evidence_value("profile")
    row = {
        "log_evidence": evidence.nats,
        "log_evidence_per_example": evidence.per_example,
        "log_likelihood_per_example": -last.train_loss,
        "test_log_likelihood": None,
        "test_accuracy": None,
        "evidence": evidence.as_dict(),
    }
    if split.test is not None:
        like = trainer.targets
        scores = trainer.score(
            split.test.inputs.to(trainer.inputs), split.test.targets.to(like.device, like.dtype)
        )
        row |= {"test_log_likelihood": scores.log_likelihood, "test_accuracy": scores.accuracy}
    return row


def _read(
    kind: str, amounts: list[float], rows: list[dict[str, Any]], examples: int
) -> dict[str, Any]:
    """One curvature's profile with its peak and its agreement with held-out data."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    peak = peak_of(amounts, columns["log_evidence"], examples=examples)
    held_out = columns["test_log_likelihood"]
    known = all(value is not None for value in held_out)
    return {
        "curvature": kind,
        "amounts": amounts,
        **columns,
        "maximum": peak.maximum,
        "interval": list(peak.interval),
        "held_out_maximum": peak_of(amounts, held_out).maximum if known else None,
        "rank_correlation": rank_correlation(columns["log_evidence"], held_out) if known else None,
        "error": None,
    }


def _record_head(command: str, begun: Beginning, settings: LearnConfig) -> dict[str, Any]:
    """What the records of both commands begin with."""
    return {
        **record_head(command, seed=settings.seed, device=begun.place, seconds=begun.seconds),
        "data": begun.split.train.name,
        "network": begun.network.name,
        "train_examples": len(begun.split.train),
    }
