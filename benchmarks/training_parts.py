"""The parts of a run that cost time, each as one call on a `Trainer`.

    epoch      a pass of weight steps
    factors    a pass over all data: curvature, eigendecompositions, value of the evidence
    gradient   the ranges' gradient over all data, from the factors of the last fit
    full       both, added up: the exact evidence and its exact gradient

Nothing here imports the library, so that the same parts can be called on any version of it. The
trainer's burn-in must be longer than the benchmark, so that `run_epoch` takes weight steps alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Context = Callable[[], AbstractContextManager[Any]]


class TrainingParts:
    """The parts of one trainer, each within a fresh `context`."""

    def __init__(self, trainer: Any, context: Context = nullcontext) -> None:
        self.trainer = trainer
        self.context = context
        ranges = trainer.ranges
        self.ranges = ranges if isinstance(ranges, list) else [ranges]
        self.fit: Any = None

    def tasks(self) -> dict[str, Callable[[], object]]:
        """All parts by name, but "full", which `with_full` adds."""
        return {"epoch": self.epoch, "factors": self.factors, "gradient": self.gradient}

    def epoch(self) -> None:
        with self.context():
            row = self.trainer.run_epoch()
        assert row.log_evidence is None, "the epoch took a hyper step too"

    def factors(self) -> float:
        with self.context():
            self.fit = self.trainer.evidence.fit(self.trainer.orbit_batches("factors"))
            return float(self.trainer.evidence.value(self.fit).detach())

    def gradient(self) -> list[Any]:
        with self.context():
            batches = self.trainer.orbit_batches("ranges", graph=True)
            found: list[Any] = self.trainer.evidence.gradient(self._fitted(), batches, self.ranges)
            return found

    def _fitted(self) -> Any:
        if self.fit is None:
            self.factors()
        return self.fit


def with_full(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by part, with those of factors and gradient together after them."""
    found = {}
    for part, each in seconds.items():
        found[part] = each
        if part == "gradient":
            found["full"] = seconds["factors"] + each
    return found
