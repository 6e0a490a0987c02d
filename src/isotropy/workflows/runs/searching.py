"""The search before a run, and its confirmation after it: which amounts a run of `learn` has.

Trials (`evidence.search.trials`) train nothing: they say how well the network linearised in its
weights where it starts predicts training examples that are left out. They take at most
`search_examples` of the training data. The run trains with the amounts found; with `refine` it
moves them further along the gradient of the Laplace evidence of all data. What the search says of
each symmetry goes into the run's folder as JSON, from which a resumed run takes it. Until then the
folder keeps the trials, so that a search that was interrupted makes none of them twice.

A linearised network learns no features: averages help it where a trained network needs less, or
none. So trained networks have the last word (`contest`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isotropy.evidence.search.selection import Search, candidates_of, search
from isotropy.evidence.search.trials import Trial, Trials
from isotropy.evidence.settings import LearnConfig, stream
from isotropy.evidence.training import Trainer
from isotropy.evidence.verdict import NOTHING_LEARNED, nothing_learned
from isotropy.records import (
    CONFIG,
    make_folder,
    plain,
    read_json,
    write_json,
)
from isotropy.workflows.runs.kept_rows import KeptRows, made_with
from isotropy.workflows.runs.prepared import SCREENING, Actions, PreparedRun
from isotropy.workflows.runs.same_run import check_same_run

TEST_EXAMPLES = 500
"""Held-out examples that amounts are scored on, at most."""
SECONDS_BETWEEN_REMARKS = 10.0
SLOW_TRIAL = 2.0
"""Seconds of the copies of a trial with one of each example from which on all are estimated."""
TRIALS_A_SYMMETRY = (8, 29)
"""Fewest and most of the runs in results/learning-digits and results/photographs, which had six."""
TRIALS = "trials.jsonl"
"""The file of a run folder that keeps trials while the search goes on."""


def find_amounts(
    run: PreparedRun,
    actions: Actions,
    *,
    replicates: int = 3,
    remark: Callable[[str], None] | None = None,
    kept: KeptTrials | None = None,
) -> dict[str, Any]:
    """Search for amounts before the first epoch of a run; what was found as JSON.

    All densities in it, and the null's, are those of the linearised network, in nats over the
    examples of the search. The null is a constant prediction under the same Gaussian model.
    replicates: trials behind each gain, which differ in the copies drawn
    kept: where trials are kept until the search has ended
    """
    started = time.monotonic()
    trainer, config = run.trainer, run.trainer.config
    count = config.search_examples or trainer.examples
    data = _searched(trainer, count)
    scored = run.scored()
    most = TEST_EXAMPLES if trainer.features is None else min(count, TEST_EXAMPLES)
    test = None if scored is None else _part(*scored, most, 0)
    if remark is not None:
        remark(f"searching for symmetries with trials on {count} examples")
    candidates = candidates_of(trainer.model.augmentation)
    trials = Trials(trainer.network, actions, config, data, test)
    told = None if remark is None else _Teller(remark, len(candidates), trials)

    def tell(trial: Trial) -> None:
        if kept is not None:
            kept.add(trial)
        if told is not None:
            told(trial)

    trials.tell = tell
    if kept is not None:
        trials.recall(kept.before)
        if kept.before and remark is not None:
            remark(f"continuing after {len(kept.before)} trials")
    constant = trials.null_log_predictive
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
    refine = settings.refine
    if refine is None:
        refine = bool(taken) and not keeps_amounts(settings)
    return replace(
        settings,
        start=taken,
        caps={**(settings.caps or {}), **absent},
        refine=refine,
        samples=settings.samples if taken or refine else 1,
    )


def keeps_amounts(settings: LearnConfig) -> bool:
    """Whether amounts stay as a search finds them, and are not moved by gradient afterwards."""
    if settings.refine is not None:
        return not settings.refine
    return settings.distribution == "independent" and settings.bound == "none"


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
        "precision": "bfloat16" if trials.is_bfloat16 else "float32",
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


def _searched(trainer: Trainer[Any], count: int) -> tuple[Tensor, Tensor]:
    """So many examples of the training data; of a stream, the same ones are read."""
    seed = trainer.config.seed
    if trainer.stream is None:
        return _part(trainer.inputs, trainer.targets, count, seed)
    return next(trainer.read([_drawn(trainer.examples, count, seed)]))


def _part(inputs: Tensor, targets: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """So many examples, drawn at random; all of them in their order if there are no more."""
    if count >= len(inputs):
        return inputs, targets
    chosen = _drawn(len(inputs), count, seed).to(inputs.device)
    return inputs[chosen], targets[chosen]


def _drawn(examples: int, count: int, seed: int) -> Tensor:
    """The numbers of so many examples, in their order."""
    if count >= examples:
        return torch.arange(examples)
    return torch.randperm(examples, generator=stream(seed, "search"))[:count].sort().values


class KeptTrials:
    """The trials of a search in a file; arguments as of `KeptRows`."""

    def __init__(self, path: Path, of: Mapping[str, Any], *, resume: bool) -> None:
        self._rows = KeptRows(path, of, resume=resume)
        self.before = [_trial_from(row) for row in self._rows.before]

    def add(self, trial: Trial) -> None:
        """Keep one more."""
        self._rows.add({**vars(trial), "blocks": trial.blocks.tolist()})


def _trial_from(row: Mapping[str, Any]) -> Trial:
    """A trial as a line has it: the densities of one that failed are null there."""
    found, evidence = (
        -math.inf if row[name] is None else row[name] for name in ("log_predictive", "log_evidence")
    )
    blocks = torch.tensor(row["blocks"], dtype=torch.float64)
    return Trial(dict(row["amounts"]), row["replicate"], found, evidence, blocks)


def begin_search(
    run: PreparedRun, folder: Path, *, resume: bool, screening: Mapping[str, Any] | None = None
) -> KeptTrials:
    """The run's folder with its config, and the trials of a search that was interrupted there.

    screening: the record of what the run starts from, kept there as well
    Raises CallerError where the folder holds the search of another run.
    """
    make_folder(folder)
    path = folder / TRIALS
    if resume and path.exists():
        check_same_run(folder, read_json(folder / CONFIG), run.config)
    else:
        write_json(folder / CONFIG, run.config)
        if screening is not None:
            write_json(folder / SCREENING, screening)
    return KeptTrials(path, made_with(run.config, run.trainer.network), resume=resume)


class _Teller:
    """Says what a long search will take once that is known, then a sentence every ten seconds.

    symmetries: how many are searched for
    """

    def __init__(self, remark: Callable[[str], None], symmetries: int, trials: Trials) -> None:
        self.remark, self.symmetries, self.trials = remark, symmetries, trials
        self.count = 0
        self.before = self.said = time.monotonic()

    def __call__(self, trial: Trial) -> None:
        now = time.monotonic()
        seconds, self.before = now - self.before, now
        self.count += 1
        of_copies = self.trials.seconds_of_copies
        if not trial.amounts and of_copies > SLOW_TRIAL:  # it has one copy of each example
            self._estimate(seconds + of_copies * (self.trials.most_copies - 1))
        elif trial.amounts and self.count == 2:
            self._estimate(seconds)
        if self.count == 1 or now - self.said > SECONDS_BETWEEN_REMARKS:
            self.said = now
            amounts = ", ".join(f"{name} {value:.3g}" for name, value in trial.amounts.items())
            self.remark(
                f"searching: trial {self.count}, {amounts or 'no symmetry'}: log predictive "
                f"density {trial.log_predictive:.1f}"
            )

    def _estimate(self, seconds: float) -> None:
        """seconds: of one trial."""
        least, most = (each * self.symmetries * seconds for each in TRIALS_A_SYMMETRY)
        if most > SECONDS_BETWEEN_REMARKS:
            self.remark(
                f"the search will take about {least:.0f} to {most:.0f} s; --no-search goes without"
            )
