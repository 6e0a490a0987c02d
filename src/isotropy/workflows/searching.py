"""The search before a run: which amounts it starts from, and what is kept of the search.

Trials (`evidence.trials`) train nothing: they say how well the network linearised in its weights
where it starts predicts training examples that are left out. They take at most `search_examples` of
the training data. The run trains with the amounts found, and then confirms them (`confirming`);
with `refine` it moves them further along the gradient of the Laplace evidence of all data. What the
search says of each symmetry goes into the run's folder as JSON, from which a resumed run takes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isotropy.checkpoint import plain
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.search import Search, candidates_of, search
from isotropy.evidence.streams import stream
from isotropy.evidence.trials import Trial, Trials
from isotropy.evidence.verdict import NOTHING_LEARNED, nothing_learned
from isotropy.workflows.prepared_run import PreparedRun
from isotropy.workflows.preparing import Actions

TEST_EXAMPLES = 500
"""Held-out examples that amounts are scored on, at most."""
SECONDS_BETWEEN_REMARKS = 10.0


def find_amounts(
    run: PreparedRun,
    actions: Actions,
    *,
    replicates: int = 3,
    remark: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Search for amounts before the first epoch of a run; what was found as JSON.

    All densities in it, and the null's, are those of the linearised network, in nats over the
    examples of the search. The null is a constant prediction under the same Gaussian model.
    replicates: trials behind each gain, which differ in the copies drawn
    """
    started = time.monotonic()
    trainer, config = run.trainer, run.trainer.config
    count = config.search_examples or len(trainer.inputs)
    data = _part(trainer.inputs, trainer.targets, count, config.seed)
    scored = run.scored()
    test = None if scored is None else _part(*scored, TEST_EXAMPLES, 0)
    if remark is not None:
        remark(f"searching for symmetries with trials on {count} examples")
    trials = Trials(trainer.network, actions, config, data, test, _teller(remark))
    constant = trials.null_log_predictive
    candidates = candidates_of(trainer.model.augmentation)
    least = constant + NOTHING_LEARNED
    found = search(trials, candidates, replicates=replicates, at_least=least)
    record: dict[str, Any] = plain(
        {
            "null_log_predictive": constant,
            "nothing_learned": nothing_learned(found.log_predictive, constant),
            **_record(found, trials),
            "seconds": time.monotonic() - started,
        }
    )  # as a resumed run reads it: the density of a trial that failed is null
    return record


def settings_from(settings: LearnConfig, found: Mapping[str, Any]) -> LearnConfig:
    """The settings of the run that follows: what was found as its start, the rest held at zero.

    Amounts stay as they were found. Correlations are not searched for, and a bound is an objective
    of its own: these refine amounts by gradient. Without any symmetry one copy of an example is
    enough.
    """
    amounts = {} if found["nothing_learned"] else dict(found["amounts"])
    taken = {name: amount for name, amount in amounts.items() if amount}
    absent = {name: 0.0 for name in found["amounts"] if name not in taken}
    complete = settings.distribution == "independent" and settings.bound == "none"
    refine = not complete and bool(taken) if settings.refine is None else settings.refine
    return replace(
        settings,
        start=taken,
        caps={**(settings.caps or {}), **absent},
        refine=refine,
        samples=settings.samples if taken or refine else 1,
    )


def _record(found: Search, trials: Trials) -> dict[str, Any]:
    symmetries = {}
    for name, finding in found.findings.items():
        symmetries[name] = {
            "amount": finding.amount,
            "interval": list(finding.interval),
            "kind": finding.candidate.kind,
            "probability": finding.probability,
            "floor": finding.candidate.floor,
            "whole": finding.candidate.whole,
            "gain_nats": finding.gain,
            "gain_interval": list(finding.gain_interval),
            "profile": [
                {"amount": amount, "log_predictive": value}
                for amount, value in zip(
                    finding.profile.amounts, finding.profile.log_predictive, strict=True
                )
            ],
            "beside_held_out": _beside_held_out(name, found, trials) if finding.amount else [],
        }
    return {
        "examples": found.examples,
        "trials": trials.count,
        "log_predictive": found.log_predictive,
        "seed_error": found.seed_error,
        "amounts": found.amounts,
        "symmetries": symmetries,
    }


def _beside_held_out(name: str, found: Search, trials: Trials) -> list[dict[str, float | None]]:
    """L, log Z and held-out log density at 0, ½, 1 and 2 times the amount; none without test data.

    All are of the linearised network, the held-out log density as a mean over examples. Twice the
    amount is cut to as much as there can be. Of a whole period there is a quarter as well, since
    half of it may be what stays.
    """
    if trials.test is None:
        return []
    finding = found.findings[name]
    rows: list[dict[str, float | None]] = []
    last = -1.0
    own = finding.candidate
    is_whole = own.kind == "periodic" and finding.amount >= own.whole
    for factor in (0.0, *([0.25] if is_whole else []), 0.5, 1.0, 2.0):
        amount = min(factor * finding.amount, own.largest)
        if amount <= last:
            continue
        last, amounts = amount, {**found.amounts, name: amount}
        rows.append(
            {
                "amount": amount,
                "log_predictive": trials.at(amounts).log_predictive,
                "log_evidence": trials.at(amounts).log_evidence,
                "test_log_likelihood": trials.held_out(amounts),
            }
        )
    return rows


def _part(inputs: Tensor, targets: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """So many examples, drawn at random; all of them in their order if there are no more."""
    if count >= len(inputs):
        return inputs, targets
    order = torch.randperm(len(inputs), generator=stream(seed, "search"))[:count]
    chosen = order.sort().values.to(inputs.device)
    return inputs[chosen], targets[chosen]


def _teller(remark: Callable[[str], None] | None) -> Callable[[Trial], None] | None:
    """A sentence every ten seconds."""
    if remark is None:
        return None
    told = [0, time.monotonic()]

    def tell(trial: Trial) -> None:
        told[0] += 1
        if told[0] == 1 or time.monotonic() - told[1] > SECONDS_BETWEEN_REMARKS:
            told[1] = time.monotonic()
            amounts = ", ".join(f"{name} {value:.3g}" for name, value in trial.amounts.items())
            remark(
                f"searching: trial {told[0]}, {amounts or 'no symmetry'}: log predictive density "
                f"{trial.log_predictive:.1f}"
            )

    return tell
