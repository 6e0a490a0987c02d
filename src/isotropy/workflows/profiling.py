"""`isotropy.profile`: the log evidence over the amount of one symmetry, beside held-out data.

For each curvature kind and each amount the same network, from the same initial weights, is trained
with that amount held fixed, with the same budget and noise; then its evidence and the likelihood of
the test data are computed. Where the two are largest together, the objective that `learn`
maximises can be trusted for this problem; where they are not, it is seen.
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
from isotropy.evidence.search.amounts import default_amounts, peak_of, rank_correlation
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import record_head
from isotropy.report.profile import profile_page
from isotropy.workflows.result import Result
from isotropy.workflows.runs import Actions, Beginning, begin, make_trainer

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
    ).acting(actions)
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
        profiles.append(_read(kind, chosen, rows))
    if all(each["error"] is not None for each in profiles):
        raise CallerError(profiles[0]["error"])
    record = {
        **record_head(
            "profile",
            seed=settings.seed,
            device=begun.place,
            seconds=begun.seconds,
            run_folder=None,
        ),
        "data": split.train.name,
        "network": begun.network.name,
        "train_examples": len(split.train),
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
