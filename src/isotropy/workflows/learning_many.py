"""`isotropy.learn_many`: several runs of one small network in one process.

    configs = [LearnConfig(seed=seed) for seed in range(5)]
    results = isotropy.learn_many(network, (images, labels), configs=configs)
    [result.symmetries for result in results]

Runs may differ in seed, rates, ranges, objective (laplace, fixed, none) and in data of the same
shape; network, samples and schedule they have in common, and share every kernel launch
(`evidence.stacked`). Each ends as if it had been run by `isotropy.learn` alone, up to rounding.
There is no search for amounts before the runs: what it leaves out differs from seed to seed, and
with it the copies, which the runs of a stack have in common.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.checkpoint import check_unused
from isotropy.checks import CallerError
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.stacked import StackedTrainer, check_stackable
from isotropy.evidence.training import EpochRecord
from isotropy.networks.specification import NetworkSpecification
from isotropy.workflows import learning
from isotropy.workflows.learning import (
    LearnProgress,
    LearnResult,
    outcome,
    progress_of,
    write_outcome,
)
from isotropy.workflows.prepared_run import PreparedRun, in_folder, prepare_run
from isotropy.workflows.preparing import Actions, read_split


def learn_many(
    model: nn.Module | Callable[[LearnConfig], nn.Module],
    train: Any,
    test: Any = None,
    *,
    configs: Sequence[LearnConfig],
    actions: Actions | None = None,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[int, LearnProgress], None] | None = None,
    verdicts: int = 0,
    calibrate: bool = False,
    network: Callable[[LearnConfig], NetworkSpecification] | None = None,
    describe: Callable[[LearnConfig], Mapping[str, Any]] | None = None,
) -> list[LearnResult]:
    """One result for each of `configs`, as `isotropy.learn` would give it with `search=False`.

    model      a network, of which every run trains a copy, or a function that makes one from a
               run's config, for weights that differ from seed to seed
    train      as in `learn`, or a function that gives such data from a run's config
    test       likewise
    folder     holds one run folder a run, `seed0`, `seed1`, …, or `run0`, … if seeds repeat; with
               `resume` they are continued
    progress   told after every epoch: the number of the run, and what `learn` tells
    network    from a run's config, how to rebuild its model from words
    describe   from a run's config, further entries for its folder
    actions, device, verdicts, calibrate: as in `learn`

    Raises CallerError for what `learn` refuses, and for runs that cannot be stacked, naming what
    they do not have in common.
    """
    if not configs:
        raise CallerError("learn_many: expected at least one config, got none")
    configs = [replace(config, search=False) for config in configs]
    folders = run_folders(folder, configs)
    for path in folders:
        if path is not None and not resume:
            check_unused(path)
    prepared = [
        prepare_run(
            _given(model, config),
            read_split(_given(train, config), _given(test, config), config.seed),
            config,
            actions=actions,
            device=device,
            network=_given(network, config),
            describe=_given(describe, config),
        )
        for config in configs
    ]
    check_stackable([run.trainer for run in prepared])  # before anything is written
    runs = [
        in_folder(run, path, resume=resume) for run, path in zip(prepared, folders, strict=True)
    ]
    _run(runs, progress)
    for run in runs:  # before the verdicts, so that they can be interrupted
        run.save()
    results = []
    for run in runs:
        begun = time.monotonic()
        result = outcome(run, verdicts=verdicts, calibrate=calibrate)
        result.record["seconds"] = run.trainer.seconds + time.monotonic() - begun
        write_outcome(run, result)
        results.append(result)
    return results


def run_folders(folder: str | Path | None, configs: Sequence[LearnConfig]) -> list[Path | None]:
    """Where each run goes: below `folder`, named by its seed, or by its number if seeds repeat."""
    if folder is None:
        return [None for _ in configs]
    seeds = [config.seed for config in configs]
    distinct = len(set(seeds)) == len(seeds)
    names = [f"seed{seed}" if distinct else f"run{run}" for run, seed in enumerate(seeds)]
    return [Path(folder) / name for name in names]


def _run(
    runs: Sequence[PreparedRun], progress: Callable[[int, LearnProgress], None] | None
) -> None:
    """Epochs of all runs until their schedule ends; histories, checkpoints, progress."""
    scored = [run.scored() for run in runs]
    # A stack that was interrupted while it saved has runs that are some epochs behind.
    furthest = max(run.trainer.epoch for run in runs)
    for number, (run, test) in enumerate(zip(runs, scored, strict=True)):
        while run.trainer.epoch < furthest:
            _tell(number, run, run.trainer.run_epoch(test), progress)
    stack = StackedTrainer([run.trainer for run in runs])
    saved = time.monotonic()
    while stack.epoch < stack.epochs:
        rows = stack.run_epoch(scored)
        for number, (run, row) in enumerate(zip(runs, rows, strict=True)):
            _tell(number, run, row, progress)
        if time.monotonic() - saved > learning.CHECKPOINT_SECONDS:
            for run in runs:
                run.save()
            saved = time.monotonic()


def _tell(
    number: int,
    run: PreparedRun,
    row: EpochRecord,
    progress: Callable[[int, LearnProgress], None] | None,
) -> None:
    run.history.append(row.as_dict())
    if progress is not None:
        progress(number, progress_of(run, row))


def _given(value: Any, config: LearnConfig) -> Any:
    """What was given for all runs, or what a function makes for this one."""
    is_function = callable(value) and not isinstance(value, nn.Module)
    return value(config) if is_function else value
