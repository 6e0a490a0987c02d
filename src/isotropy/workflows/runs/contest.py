"""Which amounts a run of `learn` ends with: rivals of what its search found are trained.

A linearised network learns no features: averages help it where a trained network needs less, or
none. So once the run has been trained with what was found, rivals are trained like it, and the
Laplace evidence log Z of the trained networks decides:

    half of every whole period   stays unless the whole leads by log 20: of equally good amounts
                                 the least. A whole period that leads is confirmed, and nothing
                                 else is tried
    smaller ranges               where there are at least twice as many examples as in the search:
                                 with more data, averaging beyond what they contain pays off less.
                                 All ranges shrink by the same factor until log 20 are lost; then
                                 the peak of the evidences is tried. Their density gives the
                                 interval, as in a profile (`amounts`)
    no symmetry at all           if it leads by log 20, the amounts that were found are not
                                 confirmed; what was found without each of its symmetries is
                                 trained too, and the best of these stays

Few weight steps favour small ranges, and no symmetry at all, which are trained sooner. In a run of
fewer than 1,000 a rival must therefore lead by 0.05 nats per example, where log 20 is told above.

The last rival needs one copy of each example and takes little time; the others take as long as the
run (`confirmed`). On many examples that is long, and then the comparison comes first (`compared`):
networks of 2,000 weight steps, of all data too, decide among themselves, and only the run with the
amounts that stay is trained in full. Where the run has a folder, each rival is kept in a folder
below it until this is decided, so that what was interrupted goes on where it was. What was trained,
and what stayed, goes into the record of the search.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.evidence.search.amounts import peak_of
from isotropy.evidence.search.selection import LEAST_GAIN, NEAR
from isotropy.evidence.search.trials import Amounts
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.evidence.verdict import SETTLED_NATS
from isotropy.records import CHECKPOINT, plain
from isotropy.report.wording import spoken_name
from isotropy.workflows.runs.prepared import PreparedRun, in_folder, kept_in
from isotropy.workflows.runs.searching import settings_from

MANY_MORE = 2
"""Times the examples of the search from which on ranges are compared on all data."""
NARROWER = 0.7
"""From one range to the next smaller one."""
ENOUGH_STEPS = 1000
"""Weight steps from which on a network is trained well enough to be compared closely. With 10,000
digits turned by any angle ±90° leads ±180° by 0.006 and 0.008 nats per example after 240 and 480
steps, and is behind by 0.016 after 1,000 (results/profiles)."""
COMPARED_STEPS, COMPARED_BATCH, COMPARED_COPIES = 2000, 250, 6
"""Weight steps of networks that are trained only to be compared, their examples and copies of each,
at most."""
WORTH = 2
"""Times the copies that such a network sees from which on a run is long enough for it."""
NARROWINGS = 3
"""Trainings that smaller ranges take, most often."""
RIVALS = "rivals"
"""The folder of a run folder that holds rivals while they are trained."""


Prepare = Callable[[LearnConfig], PreparedRun]
"""A run before its first epoch, with other settings."""
Train = Callable[[PreparedRun], None]
"""All its epochs."""
Remark = Callable[[str], None]


def confirmed(
    run: PreparedRun,
    settings: LearnConfig,
    prepare: Prepare,
    train: Train,
    remark: Remark | None = None,
) -> PreparedRun:
    """A run that has been trained with what its search found, or the rival that is better.

    settings: those that the search had
    A rival that is better takes the run's folder. One that a run before had begun goes on. Nothing
    is tried where nothing was found or amounts were refined, nor a second time.
    """
    found = run.search
    if found is not None and "trained" in found and run.folder is not None:
        shutil.rmtree(run.folder / RIVALS, ignore_errors=True)  # of one that was stopped here
    if found is None or not _is_open(run):
        return run
    contest = _Contest(found, settings, prepare, train, remark or _silent, run.folder)
    amounts = contest.decide(run)
    return _taken(contest.kept, run, contest, amounts)


def compared(
    run: PreparedRun,
    settings: LearnConfig,
    prepare: Prepare,
    train: Train,
    remark: Remark | None = None,
) -> PreparedRun:
    """A run before its first epoch with the amounts that short trainings on all data prefer.

    settings: those that the search had
    The same run where it is not long enough for this (`compares_first`).
    """
    found = run.search
    if found is None or not compares_first(run):
        return run
    short, tell = shortened(run.trainer), remark or _silent
    contest = _Contest(found, short, prepare, train, tell, run.folder)
    first = contest.begun(found["amounts"])
    steps = weight_steps(first.trainer)
    tell(f"comparing amounts first, by networks of {steps:,} weight steps on all data")
    first.tell_estimate(remark, runs=1 + (1 if halved(found) else NARROWINGS))
    amounts = contest.decide(contest.ended(first))
    stays = prepare(settings_from(settings, {**found, "amounts": amounts}))
    return _taken(stays, run, contest, amounts, trained_steps=steps)


def compares_first(run: PreparedRun) -> bool:
    """Whether a run takes much longer than networks that are trained only to be compared."""
    found, config, examples = run.search, run.trainer.config, run.trainer.examples
    if found is None or run.trainer.epoch or not _is_open(run):
        return False
    few = COMPARED_STEPS * COMPARED_BATCH * min(COMPARED_COPIES, config.samples)
    is_long = config.epochs * examples * config.samples >= WORTH * few
    return is_long and may_narrow(found, run.trainer)


def shortened(trainer: Trainer[Any]) -> LearnConfig:
    """The settings of networks that are trained only to be compared, from those of their run.

    What depends on the length of a run is left open.
    """
    own = trainer.config
    given = LearnConfig(**{each.name: getattr(own, each.name) for each in fields(LearnConfig)})
    batch = min(own.batch_size, COMPARED_BATCH)
    epochs = math.ceil(COMPARED_STEPS / math.ceil(trainer.examples / batch))
    return replace(
        given,
        epochs=epochs, batch_size=batch, samples=min(own.samples, COMPARED_COPIES),
        evaluate_every=epochs, warm_up=own.warm_up * epochs / own.epochs, update_every=1,
        burn_in=None, compiled=None, prior_rate=None, range_rate=None, range_rate_end=None,
    )  # fmt: skip


def _is_open(run: PreparedRun) -> bool:
    """Whether something was found that training has neither confirmed nor is to move."""
    found = run.search
    if found is None or found["nothing_learned"] or "trained" in found:
        return False
    return not run.trainer.config.refine and any(found["amounts"].values())


def _taken(
    stays: PreparedRun, run: PreparedRun, contest: _Contest, amounts: Amounts, **entries: int
) -> PreparedRun:
    """The run that stays, in the folder of the first one, with a record of what was trained."""
    record = plain(with_amounts(contest.found, amounts, contest.trained, contest.intervals))
    record |= {"least_lead": contest.margin, **entries}
    if run.folder is not None:  # interrupted from here on, the one that stays begins again
        (run.folder / CHECKPOINT).unlink(missing_ok=True)
    taken = in_folder(stays, run.folder, screening=run.screening, search=record)
    if run.folder is not None:
        shutil.rmtree(run.folder / RIVALS, ignore_errors=True)
    return taken


def _silent(_: str) -> None:
    pass


class _Contest:
    def __init__(
        self,
        found: Mapping[str, Any],
        settings: LearnConfig,
        prepare: Prepare,
        train: Train,
        remark: Remark,
        folder: Path | None = None,
    ) -> None:
        self.found, self.settings = found, settings
        self.prepare, self.train, self.remark = prepare, train, remark
        self.folder = folder
        self.margin = 0.0
        """Nats by which a rival must lead because the run is short; 0 in long ones."""
        self.trained: list[dict[str, Any]] = []
        self.intervals: dict[str, tuple[float, float]] = {}
        """By trained networks, of ranges that were made smaller."""

    def decide(self, run: PreparedRun) -> Amounts:
        """The amounts that stay; `kept` is then their run."""
        self.kept, amounts = run, self.found["amounts"]
        best, self.margin = self._value(run, amounts), least_lead(run.trainer)
        if half := halved(self.found):
            self.remark(
                "training once more, about as long: with half of what was found whole, to see "
                "whether all of it is needed"
            )
            other = self._run(half)
            value = self._value(other, half)
            if not value >= best + (self.margin or -LEAST_GAIN):
                return amounts
            self.kept, amounts, best = other, half, value
        if may_narrow(self.found, run.trainer):
            amounts, best = self._narrow(amounts, best, run.trainer.examples)
        self.remark("training once more without any symmetry, to see whether it is needed")
        none = dict.fromkeys(amounts, 0.0)
        other = self._run(none)
        value = self._value(other, none)
        if not value > best + max(self.margin, LEAST_GAIN):
            return amounts
        taken = [name for name, amount in amounts.items() if amount]
        self.kept, before, amounts, best = other, amounts, none, value
        for name in taken if len(taken) > 1 else ():
            self.remark(
                f"training once more without {spoken_name(name)}: it did better without any"
            )
            without = {**before, name: 0.0}
            other = self._run(without)
            value = self._value(other, without)
            if value > best:
                self.kept, amounts, best = other, without, value
        return amounts

    def _narrow(self, amounts: Amounts, best: float, examples: int) -> tuple[Amounts, float]:
        """Amounts with all ranges times the factor that trains best, and their log evidence."""
        ranges = ranges_of(self.found, amounts)
        values = {1.0: best}
        if all(2 * amounts[name] == self.found["amounts"][name] for name in ranges):
            values[2.0] = self.trained[0]["log_evidence"]  # whole periods, of which these are half
        factor = 1.0
        while all(NARROWER * factor * amounts[name] > floor for name, floor in ranges.items()):
            smaller = NARROWER * factor
            run, value = self._trained_with(scaled(amounts, ranges, smaller))
            enough = max(values.values()) + (self.margin or -LEAST_GAIN)
            values[smaller] = value
            if not value >= enough:
                break
            self.kept, factor, best = run, smaller, value
        if len(values) < 3 or not all(map(math.isfinite, values.values())):
            return scaled(amounts, ranges, factor), best
        factors = sorted(values)
        peak = peak_of(factors, [values[each] for each in factors], examples=examples)
        if all(abs(peak.maximum - each) > NEAR * each for each in factors):
            run, value = self._trained_with(scaled(amounts, ranges, peak.maximum))
            if value > best + (self.margin if peak.maximum < factor else 0.0):
                self.kept, factor, best = run, peak.maximum, value
        if self.margin and factor == 1.0:  # leads that do not count say nothing of the interval
            return amounts, best
        for name in ranges:
            low, high = (end * factor for end in self.found["symmetries"][name]["interval"])
            inside = [end * amounts[name] for end in peak.interval]
            # Where the density reaches the last factor that was tried, the search says how far.
            low = inside[0] if peak.interval[0] > factors[0] else min(low, inside[0])
            high = inside[1] if peak.interval[1] < factors[-1] else max(high, inside[1])
            self.intervals[name] = (low, high)
        return scaled(amounts, ranges, factor), best

    def _trained_with(self, amounts: Amounts) -> tuple[PreparedRun, float]:
        """A run with other ranges and its log evidence."""
        told = ", ".join(f"{spoken_name(name)} {a:.3g}" for name, a in amounts.items() if a)
        self.remark(
            f"training once more, about as long: with {told}, to see whether this is enough for "
            "all data"
        )
        run = self._run(amounts)
        return run, self._value(run, amounts)

    def begun(self, amounts: Amounts) -> PreparedRun:
        """A run with these amounts, where it was stopped before."""
        run = self.prepare(settings_from(self.settings, {**self.found, "amounts": amounts}))
        if self.folder is None:
            return run
        number = len(self.trained)  # they are tried in the same order every time
        return kept_in(run, self.folder / RIVALS / str(number), resume=True)

    def ended(self, run: PreparedRun) -> PreparedRun:
        """The run after its last epoch."""
        self.train(run)
        run.save()
        return run

    def _run(self, amounts: Amounts) -> PreparedRun:
        return self.ended(self.begun(amounts))

    def _value(self, run: PreparedRun, amounts: Amounts) -> float:
        evidence = run.trainer.final_evidence()
        assert evidence is not None  # searches are for objectives that have one
        self.trained.append({"amounts": dict(amounts), "log_evidence": evidence.nats})
        return evidence.nats


def least_lead(trainer: Trainer[Any]) -> float:
    """Nats by which a rival must lead in a short run; 0.0 in a long one, where log 20 decides."""
    is_long = weight_steps(trainer) >= ENOUGH_STEPS
    return 0.0 if is_long else SETTLED_NATS * trainer.examples


def weight_steps(trainer: Trainer[Any]) -> int:
    """Of all epochs."""
    return trainer.config.epochs * math.ceil(trainer.examples / trainer.config.batch_size)


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


def trainings(found: Mapping[str, Any], trainer: Trainer[Any]) -> int:
    """How many runs as long as the first are likely, the first among them."""
    if "trained" in found:
        return 1
    if halved(found):
        return 2
    return 1 + NARROWINGS * may_narrow(found, trainer)


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
