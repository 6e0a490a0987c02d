"""The epochs of a run for the loggers that people have: Lightning, Weights & Biases, TensorBoard.

    isotropy.learn(network, data, progress=isotropy.log_to(logger))

A logger is told the numbers of each epoch by name, with the epoch as the step. Names are those of
metrics.jsonl, with a slash before what is inside: `ranges/rotation`, `layers/conv1/effective/conv`.
Nothing is imported: a logger is known by its method.

| method | loggers |
|---|---|
| `log_metrics(metrics, step)` | Lightning's |
| `add_scalar(name, value, step)` | `SummaryWriter` of TensorBoard |
| `log(metrics, step=step)` | a run of Weights & Biases, or its module |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isotropy.checks import CallerError

Hand = Callable[[dict[str, float], int], Any]
"""Takes numbers by name, and the step that they are of."""


def log_to(logger: Any) -> EpochLog:
    """A `progress=` for `learn`, `learn_layers` and `represent` that tells a logger every epoch.

    logger: an object with `log_metrics`, `add_scalar` or `log`, or a function of (metrics, step)
    Raises CallerError for anything else.
    """
    return EpochLog(_hand(logger))


@dataclass(eq=False)
class EpochLog:
    """Hands every epoch on. Networks that are trained after the run to confirm it begin at epoch 1
    again; their names start with `confirming/`, the next one's with `confirming 2/`."""

    hand: Hand
    last: int = 0
    again: int = 0

    def __call__(self, *told: Any) -> None:
        """Told after an epoch; its row is the last argument, or in it."""
        row = getattr(told[-1], "row", told[-1]).as_dict()
        epoch = int(row.pop("epoch"))
        self.again += epoch <= self.last
        self.last = epoch
        number = "" if self.again < 2 else f" {self.again}"
        before = f"confirming{number}/" if self.again else ""
        self.hand({f"{before}{name}": value for name, value in numbers_in(row)}, epoch)


def numbers_in(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Finite numbers of a record by path; parts of a list are called by their `name`.

    >>> dict(numbers_in({"loss": 1, "ranges": {"rotation": 0.5}, "noise": None, "kind": "a"}))
    {'loss': 1.0, 'ranges/rotation': 0.5}
    """
    for name, value in record.items():
        if isinstance(value, list):
            value = {
                str(each.get("name", place)): each
                for place, each in enumerate(value)
                if isinstance(each, Mapping)
            }
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in numbers_in(value))
        elif isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def _hand(logger: Any) -> Hand:
    if callable(method := getattr(logger, "log_metrics", None)):
        return lambda metrics, step: method(metrics, step)
    if callable(scalar := getattr(logger, "add_scalar", None)):

        def one_by_one(metrics: dict[str, float], step: int) -> None:
            for name, value in metrics.items():
                scalar(name, value, step)

        return one_by_one
    if callable(log := getattr(logger, "log", None)):
        return lambda metrics, step: log(metrics, step=step)
    if callable(logger):
        return lambda metrics, step: logger(metrics, step)
    raise CallerError(
        "logger: expected an object with log_metrics(metrics, step), add_scalar(name, value, step) "
        f"or log(metrics, step=…), or a function of (metrics, step), got {type(logger).__name__}"
    )
