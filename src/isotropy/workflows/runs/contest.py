"""Which amounts a run of `learn` has: rivals of what its search found are trained on all data.

A linearised network learns no features: averages help it where a trained network needs less, or
none. So small trainings of the network come before the run, one at each of a few amounts, and their
Laplace evidence log Z decides:

    smaller ranges       where there are at least twice as many examples as in the search: with more
                         data, averaging beyond what they contain pays off less. All ranges shrink
                         by the same factor until log 20 are lost; then the peak of the evidences
                         is tried. Their density, and that of no symmetry, gives the interval, as
                         in a profile (`amounts`)
    half of every        where there are fewer examples, which cannot tell more; the half stays
    whole period         unless the whole leads by log 20: of equally good amounts the least
    no symmetry at all   if it leads by log 20, the amounts that were found are not confirmed; what
                         was found without each of its symmetries is trained too, and the best of
                         these stays

All have at least 1,600 weight steps: the more a network is averaged over, the longer it takes to
train, so that few steps favour small ranges, whatever the data contain. Few examples a step and few
copies of each make them cheap (`shortened`). Then the run is trained once, with what stays.

Where the run has a folder, each rival is kept in a folder below it until this is decided, so that
what was interrupted goes on where it was. What was trained, and what stayed, goes into the record
of the search.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from isotropy.evidence.search.amounts import Peak, peak_of
from isotropy.evidence.search.selection import LEAST_GAIN, NEAR
from isotropy.evidence.search.trials import Amounts
from isotropy.evidence.settings import LEAST_STEPS, PRIOR_STEPS, LearnConfig, default_batch
from isotropy.evidence.training import Trainer
from isotropy.records import CHECKPOINT, plain
from isotropy.report.wording import spoken_name
from isotropy.workflows.runs.prepared import PreparedRun, in_folder, kept_in
from isotropy.workflows.runs.searching import settings_from

MANY_MORE = 2
"""Times the examples of the search from which on ranges are compared on all data."""
NARROWER = 0.7
"""From one range to the next smaller one."""
NARROWINGS = 3
"""Trainings that smaller ranges take, most often."""
LARGEST_BATCH, COPIES = 250, 6
"""Examples of a weight step of networks that are compared, and copies of each, at most."""
RIVALS = "rivals"
"""The folder of a run folder that holds rivals while they are trained."""


Prepare = Callable[[LearnConfig], PreparedRun]
"""A run before its first epoch, with other settings."""
Train = Callable[[PreparedRun], None]
"""All its epochs."""
Remark = Callable[[str], None]


def compared(
    run: PreparedRun,
    settings: LearnConfig,
    prepare: Prepare,
    train: Train,
    remark: Remark | None = None,
) -> PreparedRun:
    """A run before its first epoch with the amounts that networks trained on all data prefer.

    settings: those that the search had
    The same run where nothing was found, amounts are moved by gradient, or this was decided before.
    """
    found = run.search
    if found is None or not _is_open(run):
        return run
    contest = _Contest(run, prepare, train, remark)
    amounts = contest.decide()
    record = with_amounts(found, amounts, contest.trained, contest.intervals(amounts))
    record = plain({**record, "trained_steps": weight_steps(contest.short, run.trainer.examples)})
    stays = prepare(settings_from(settings, {**found, "amounts": amounts}))
    if run.folder is not None:  # interrupted from here on, the one that stays begins again
        (run.folder / CHECKPOINT).unlink(missing_ok=True)
    stays = in_folder(stays, run.folder, screening=run.screening, search=record)
    if run.folder is not None:
        shutil.rmtree(run.folder / RIVALS, ignore_errors=True)
    return stays


def _is_open(run: PreparedRun) -> bool:
    """Whether something was found that training has neither decided on nor is to move."""
    found, trainer = run.search, run.trainer
    if found is None or found["nothing_learned"] or "trained" in found:
        return False
    return not trainer.epoch and not trainer.config.refine and any(found["amounts"].values())


def shortened(trainer: Trainer[Any]) -> LearnConfig:
    """The settings of networks that are trained only to be compared, from those of their run.

    `LEAST_STEPS` weight steps, also where the run has fewer. What depends on the length of a run is
    left open.
    """
    own, examples = trainer.config, trainer.examples
    given = LearnConfig(**{each.name: getattr(own, each.name) for each in fields(LearnConfig)})
    batch = min(own.batch_size, LARGEST_BATCH, default_batch(examples, own.epochs))
    epochs = math.ceil(LEAST_STEPS / math.ceil(examples / batch))
    return replace(
        given,
        epochs=epochs, batch_size=batch, samples=min(own.samples, COPIES), evaluate_every=epochs,
        warm_up=own.warm_up * epochs / own.epochs, update_every=max(1, epochs // PRIOR_STEPS),
        burn_in=None, compiled=None, prior_rate=None, prior_steps=None, range_rate=None,
        range_rate_end=None,
    )  # fmt: skip


def weight_steps(config: LearnConfig, examples: int) -> int:
    """Of all epochs."""
    assert config.epochs is not None and config.batch_size is not None
    return config.epochs * math.ceil(examples / config.batch_size)


class _Contest:
    """Rivals, trained one after the other.

    trained: of each, amounts, log evidence in nats, and log likelihood per test example, if there
             are any; it decides nothing
    narrowed: log evidence by the factor of all ranges, where these were made smaller
    """

    def __init__(
        self, run: PreparedRun, prepare: Prepare, train: Train, remark: Remark | None
    ) -> None:
        assert run.search is not None
        self.run, self.found = run, run.search
        self.prepare, self.train, self.remark = prepare, train, remark
        self.short = shortened(run.trainer)
        self.trained: list[dict[str, Any]] = []
        self.narrowed: dict[float, float] = {}

    def decide(self) -> Amounts:
        """The amounts that stay."""
        found: Amounts = self.found["amounts"]
        half, narrows = halved(self.found), may_narrow(self.found, self.run.trainer)
        steps = weight_steps(self.short, self.run.trainer.examples)
        self._say(f"comparing amounts by networks of {steps:,} weight steps on all data")
        likely = 1 + (NARROWINGS if narrows else bool(half))
        amounts, best = found, self._value(found, told=likely)
        if narrows:
            amounts, best = self._narrow(amounts, best)
        elif half:
            self._say("comparing: half of what was found whole, to see whether all is needed")
            value = self._value(half)
            if value >= best - LEAST_GAIN:
                amounts, best = half, value
        return self._without(amounts, best)

    def _without(self, amounts: Amounts, best: float) -> Amounts:
        """The amounts, unless none at all do better, or without one of them."""
        self._say("comparing: no symmetry, to see whether any is needed")
        none = dict.fromkeys(amounts, 0.0)
        value = self._value(none)
        if not value > best + LEAST_GAIN:
            return amounts
        taken = [name for name, amount in amounts.items() if amount]
        stays, best = none, value
        for name in taken if len(taken) > 1 else ():
            self._say(f"comparing: without {spoken_name(name)}, since none at all did better")
            without = {**amounts, name: 0.0}
            value = self._value(without)
            if value > best:
                stays, best = without, value
        return stays

    def _narrow(self, amounts: Amounts, best: float) -> tuple[Amounts, float]:
        """Amounts with all ranges times the factor that trains best, and their log evidence."""
        ranges = ranges_of(self.found, amounts)
        factor, values = 1.0, {1.0: best}
        while all(NARROWER * factor * amounts[name] > floor for name, floor in ranges.items()):
            smaller = NARROWER * factor
            value = self._value_with(scaled(amounts, ranges, smaller))
            enough = max(values.values()) - LEAST_GAIN
            values[smaller] = value
            if not value >= enough:
                break
            factor, best = smaller, value
        if len(values) < 3 or not all(map(math.isfinite, values.values())):
            return scaled(amounts, ranges, factor), best
        self.narrowed = dict(values)
        peak = self._peak(values)
        if all(abs(peak.maximum - each) > NEAR * each for each in values):
            value = self._value_with(scaled(amounts, ranges, peak.maximum))
            if value > best:
                factor, best = peak.maximum, value
        return scaled(amounts, ranges, factor), best

    def intervals(self, amounts: Amounts) -> dict[str, tuple[float, float]]:
        """Of ranges that were made smaller: those of the density over their common factor.

        No symmetry at all is their factor 0, unless finite elements are among the amounts. Where
        the density reaches the last factor, the search says how far.
        amounts: those that stay
        """
        found: Amounts = self.found["amounts"]
        ranges, values = ranges_of(self.found, amounts), dict(self.narrowed)
        if not values:
            return {}
        if ranges.keys() == {name for name, amount in found.items() if amount}:
            (none,) = (x["log_evidence"] for x in self.trained if not any(x["amounts"].values()))
            if math.isfinite(none):
                values[0.0] = none
        peak, least = self._peak(values).interval, min(values)
        intervals = {}
        for name in ranges:
            factor = amounts[name] / found[name]
            low, high = (end * factor for end in self.found["symmetries"][name]["interval"])
            inside = [end * found[name] for end in peak]
            low = inside[0] if peak[0] > least or not least else min(low, inside[0])
            high = inside[1] if peak[1] < 1.0 else max(high, inside[1])
            intervals[name] = (low, high)
        return intervals

    def _peak(self, values: Mapping[float, float]) -> Peak:
        """Of log evidences by factor."""
        factors = sorted(values)
        return peak_of(
            factors, [values[each] for each in factors], examples=self.run.trainer.examples
        )

    def _value_with(self, amounts: Amounts) -> float:
        """The log evidence with other ranges."""
        ranges = ", ".join(f"{spoken_name(name)} {a:.3g}" for name, a in amounts.items() if a)
        self._say(f"comparing: {ranges}, to see whether this is enough for all data")
        return self._value(amounts)

    def _say(self, sentence: str) -> None:
        if self.remark is not None:
            self.remark(sentence)

    def _value(self, amounts: Amounts, told: int = 0) -> float:
        """The log evidence of a network trained with these amounts, where it was stopped before.

        told: of how many trainings the time is estimated first, with 0 none
        """
        run = self.prepare(settings_from(self.short, {**self.found, "amounts": amounts}))
        if self.run.folder is not None:
            number = len(self.trained)  # they are tried in the same order every time
            run = kept_in(run, self.run.folder / RIVALS / str(number), resume=True)
        if told:
            run.tell_estimate(self.remark, runs=told)
        self.train(run)
        run.save()
        evidence = run.trainer.final_evidence()
        assert evidence is not None  # searches are for objectives that have one
        scored = run.history[-1].get("test_log_likelihood") if run.history else None
        self.trained.append(
            {
                "amounts": dict(amounts),
                "log_evidence": evidence.nats,
                "test_log_likelihood": scored,
            }
        )
        return evidence.nats


def halved(found: Mapping[str, Any]) -> dict[str, float]:
    """The amounts that were found, with half of every period that was found whole; else empty."""
    own = found["symmetries"]
    whole = [
        name
        for name, amount in found["amounts"].items()
        if own[name]["kind"] == "periodic" and amount >= own[name]["whole"]
    ]
    if not whole:
        return {}
    return {n: a / 2 if n in whole else a for n, a in found["amounts"].items()}


def may_narrow(found: Mapping[str, Any], trainer: Trainer[Any]) -> bool:
    """Whether ranges are compared on all data: there are many more than the search had.

    Not where the last layer alone is trained, which a trial does not linearise.
    """
    many = trainer.examples >= MANY_MORE * found["examples"]
    return many and trainer.features is None and bool(ranges_of(found, found["amounts"]))


def ranges_of(found: Mapping[str, Any], amounts: Amounts) -> dict[str, float]:
    """Floors of the motions that there are any of, by name; no finite elements."""
    own = found["symmetries"]
    return {n: own[n]["floor"] for n, a in amounts.items() if a and own[n]["kind"] != "finite"}


def scaled(amounts: Amounts, ranges: Collection[str], factor: float) -> dict[str, float]:
    """Amounts with these ranges times a factor."""
    return {name: a * factor if name in ranges else a for name, a in amounts.items()}


def with_amounts(
    found: Mapping[str, Any],
    amounts: Amounts,
    trained: list[dict[str, Any]],
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """The search's record with the amounts that stay, and what was trained.

    The density of the whole search remains that of what it found.
    intervals: by trained networks, in place of the search's
    """
    symmetries = {}
    for name, own in found["symmetries"].items():
        interval = (intervals or {}).get(name) if amounts[name] else None
        if interval is not None:
            own = {**own, "interval": list(interval)}
        is_same = amounts[name] == own["amount"]
        symmetries[name] = own if is_same else _with_amount(own, amounts[name])
    return {**found, "amounts": dict(amounts), "symmetries": symmetries, "trained": trained}


def _with_amount(own: Mapping[str, Any], amount: float) -> dict[str, Any]:
    """The record of a symmetry with another amount, and its gain there by the profile.

    With none of it, its gain is still that of the amount that was found.
    """
    low, high = own["interval"]
    changed = {**own, "amount": amount, "interval": [min(low, amount), max(high, amount)]}
    if not amount:
        return changed
    known = [row for row in own["profile"] if row["log_predictive"] is not None]
    there, here = np.interp(
        [amount, own["amount"]],
        [row["amount"] for row in known],
        [row["log_predictive"] for row in known],
    )
    change = float(there - here)
    return {
        **changed,
        "gain_nats": own["gain_nats"] + change,
        "gain_interval": [each + change for each in own["gain_interval"]],
    }
