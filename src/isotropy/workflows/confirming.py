"""What the search found, confirmed by training.

The search predicts with a linearised network, which learns no features: averages help it where a
trained network needs less, or none. Once the run has been trained with what was found, rivals are
trained like it, and the Laplace evidence log Z of the trained networks decides:

    half of every whole period   stays unless the whole leads by log 20: of equally good amounts
                                 the least. A whole period that leads is confirmed, and nothing
                                 else is tried
    no symmetry at all           if it leads by log 20, the amounts that were found are not
                                 confirmed; what was found without each of its symmetries is
                                 trained too, and the best of these stays

The second rival needs one copy of each example and takes little time; the others take as long as
the run. What was trained, and what stayed, goes into the record of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isotropy.checkpoint import CHECKPOINT, plain
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.search import LEAST_GAIN
from isotropy.evidence.trials import Amounts
from isotropy.report.wording import spoken_name
from isotropy.workflows.prepared_run import PreparedRun, in_folder
from isotropy.workflows.searching import settings_from


def confirmed(
    run: PreparedRun,
    settings: LearnConfig,
    prepare: Callable[[LearnConfig], PreparedRun],
    train: Callable[[PreparedRun], None],
    remark: Callable[[str], None] | None = None,
) -> PreparedRun:
    """A run that has been trained with what its search found, or the rival that is better.

    settings: those that the search had
    prepare:  a run before its first epoch, with other settings
    train:    all its epochs
    A rival that is better takes the run's folder. Nothing is tried where nothing was found or
    amounts were refined, nor a second time.
    """
    found = run.search
    if found is None or found["nothing_learned"] or "trained" in found:
        return run
    if run.trainer.config.refine or not any(found["amounts"].values()):
        return run
    contest = _Contest(found, settings, prepare, train, remark or (lambda _: None))
    amounts = contest.decide(run)
    record = plain(with_amounts(found, amounts, contest.trained))
    if run.folder is not None:  # interrupted from here on, the one that stays begins again
        (run.folder / CHECKPOINT).unlink(missing_ok=True)
    return in_folder(contest.kept, run.folder, screening=run.screening, search=record)


class _Contest:
    def __init__(
        self,
        found: Mapping[str, Any],
        settings: LearnConfig,
        prepare: Callable[[LearnConfig], PreparedRun],
        train: Callable[[PreparedRun], None],
        remark: Callable[[str], None],
    ) -> None:
        self.found, self.settings = found, settings
        self.prepare, self.train, self.remark = prepare, train, remark
        self.trained: list[dict[str, Any]] = []

    def decide(self, run: PreparedRun) -> Amounts:
        """The amounts that stay; `kept` is then their run."""
        self.kept, amounts = run, self.found["amounts"]
        best = self._value(run, amounts)
        if half := halved(self.found):
            self.remark(
                "training once more, about as long: with half of what was found whole, to see "
                "whether all of it is needed"
            )
            other = self._run(half)
            value = self._value(other, half)
            if not value >= best - LEAST_GAIN:
                return amounts
            self.kept, amounts, best = other, half, value
        self.remark("training once more without any symmetry, to see whether it is needed")
        none = dict.fromkeys(amounts, 0.0)
        other = self._run(none)
        value = self._value(other, none)
        if not value > best + LEAST_GAIN:
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

    def _run(self, amounts: Amounts) -> PreparedRun:
        run = self.prepare(settings_from(self.settings, {**self.found, "amounts": amounts}))
        self.train(run)
        return run

    def _value(self, run: PreparedRun, amounts: Amounts) -> float:
        evidence = run.trainer.final_evidence()
        assert evidence is not None  # searches are for objectives that have one
        self.trained.append({"amounts": dict(amounts), "log_evidence": evidence.nats})
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


def with_amounts(
    found: Mapping[str, Any], amounts: Amounts, trained: list[dict[str, Any]]
) -> dict[str, Any]:
    """The search's record with the amounts that stay, and what was trained.

    The density of the whole search remains that of what it found.
    """
    symmetries = {
        name: own if amounts[name] == own["amount"] else _with_amount(own, amounts[name])
        for name, own in found["symmetries"].items()
    }
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
