"""`isotropy.profile`: the log evidence over the amount of one symmetry, beside held-out data.

For each curvature kind and each amount the same network, from the same initial weights, is trained
with that amount held fixed, with the same budget and noise; then its evidence and the likelihood of
the test data are computed. Where the two are largest together, the objective that `learn`
maximises can be trusted for this problem; where they are not, it is seen.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.kinds import kind_named
from isotropy.data.labelled import Split
from isotropy.evidence.machine import fit_curvature_batch
from isotropy.evidence.search.amounts import default_amounts, peak_of, rank_correlation
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.zoo.specification import NetworkSpecification, specification_of
from isotropy.records import (
    check_unused,
    record_head,
    write_bytes,
)
from isotropy.report.profile import profile_page
from isotropy.workflows.runs import (
    Actions,
    default_actions,
    device_of,
    make_trainer,
    read_split,
    write_run,
)

DEFAULT_CURVATURES = ("kfac-ggn", "kfac-ef", "diagonal-ggn", "last-layer-ggn")


@dataclass(frozen=True)
class ProfileResult:
    """The record that the command line prints, and its page."""

    record: dict[str, Any]
    config: dict[str, Any]

    def report(self, path: str | Path) -> Path:
        """Write the report: one self-contained HTML file."""
        write_bytes(Path(path), profile_page(self.record, self.config).encode())
        return Path(path)


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
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    truth: float | None = None,
    progress: Callable[[str, float, Mapping[str, Any]], None] | None = None,
    describe: Mapping[str, Any] | None = None,
    network: NetworkSpecification | None = None,
) -> ProfileResult:
    """Profile the log evidence over the amount of `generator`, the other generators at zero.

    amounts     half-widths (or probabilities) in reported units; nine up to the period by default
    curvatures  kinds by name; each has its own refits, since precisions follow its evidence
    progress    told after every refit: curvature, amount, what was measured
    Other arguments as for `learn`. A kind that cannot be computed for this network is recorded
    with its error, and the others go on; if none can, the first error is raised.
    """
    settings = replace(config or LearnConfig(), objective="fixed", ranges={generator: 1.0})
    kinds = list(dict.fromkeys(kind_named(name).name for name in curvatures))
    if not kinds:
        raise CallerError("curvatures: expected one or more kinds, got none")
    if folder is not None:
        check_unused(Path(folder))
    split = read_split(train, test, settings.seed)
    place = torch.device(device) if device is not None else device_of(model)
    actions = default_actions(split.train)[0] if actions is None else actions
    unit, chosen = _amounts(actions, generator, amounts)
    started = time.monotonic()
    profiles = []
    for kind in kinds:
        try:
            rows = [
                _refit(model, split, actions, settings, kind, generator, amount, place, progress)
                for amount in chosen
            ]
        except CallerError as error:
            profiles.append({"curvature": kind, "error": str(error)})
            continue
        profiles.append(_read(kind, chosen, rows))
    if all(each["error"] is not None for each in profiles):
        raise CallerError(profiles[0]["error"])
    record = {
        **record_head(
            "profile",
            seed=settings.seed,
            device=place,
            seconds=time.monotonic() - started,
            run_folder=folder,
        ),
        "data": split.train.name,
        "network": (network or specification_of(model)).name,
        "train_examples": len(split.train),
        "test_examples": None if split.test is None else len(split.test),
        "generator": generator,
        "unit": unit,
        "truth": truth,
        "others": "all other symmetries at zero",
        "profiles": profiles,
    }
    run_config = {
        "schema": 1,
        "schedule": settings.as_dict(),
        "network": (network or specification_of(model)).as_dict(),
        **(describe or {}),
    }
    result = ProfileResult(record, run_config)
    if folder is not None:
        write_run(folder, run_config, record, profile_page(record, run_config))
    return result


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


def _refit(
    model: nn.Module,
    split: Split,
    actions: Actions,
    settings: LearnConfig,
    kind: str,
    generator: str,
    amount: float,
    place: torch.device,
    progress: Callable[[str, float, Mapping[str, Any]], None] | None,
) -> dict[str, Any]:
    config = replace(settings, curvature=kind, ranges={generator: amount})
    resolved = config.resolved(examples=len(split.train), on_gpu=place.type == "cuda")
    if settings.curvature_batch is None:
        resolved = fit_curvature_batch(resolved, model, split.train.inputs[:1], place)
    trainer: Trainer = make_trainer(copy.deepcopy(model), split.train, actions, resolved, place)
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
    if progress is not None:
        progress(kind, amount, row)
    return row


def _read(kind: str, amounts: list[float], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One curvature's profile with its peak and its agreement with held-out data."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    peak = peak_of(amounts, columns["log_evidence"])
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
