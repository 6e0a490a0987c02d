"""Epochs reach loggers of any kind, by name and step."""

from __future__ import annotations

import doctest
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from isotropy.checks import CallerError
from isotropy.report import loggers
from isotropy.report.loggers import log_to, numbers_in


@dataclass
class Row:
    epoch: int
    train_loss: float
    test_accuracy: float | None = None
    ranges: dict[str, float] = field(default_factory=lambda: {"rotation": 0.5})
    layers: list[dict[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Progress:
    row: Row


class Lightning:
    def __init__(self) -> None:
        self.told: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.told.append((metrics, step))

    def log(self, *_: Any) -> None:
        raise AssertionError("log_metrics comes first")


class Weights:
    def __init__(self) -> None:
        self.told: list[tuple[dict[str, float], int]] = []

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        self.told.append((metrics, step))


class Writer:
    def __init__(self) -> None:
        self.told: list[tuple[dict[str, float], int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if not self.told or self.told[-1][1] != step:
            self.told.append(({}, step))
        self.told[-1][0][name] = value


@pytest.mark.parametrize("kind", [Lightning, Weights, Writer])
def test_every_kind_of_logger_is_told_the_same(kind: type) -> None:
    logger = kind()
    progress = log_to(logger)
    progress(Progress(Row(1, 2.0)))
    progress("settings", Row(2, 1.5, test_accuracy=0.25))  # as `represent` tells
    assert logger.told == [
        ({"train_loss": 2.0, "ranges/rotation": 0.5}, 1),
        ({"train_loss": 1.5, "test_accuracy": 0.25, "ranges/rotation": 0.5}, 2),
    ]


def test_a_function_is_a_logger_and_layers_have_their_names() -> None:
    told: list[Any] = []
    layers = [{"name": "conv1", "became": "conv", "effective": {"conv": 0.75, "ffc": None}}]
    log_to(lambda metrics, step: told.append((step, metrics)))(Progress(Row(3, 1.0, layers=layers)))
    ((step, metrics),) = told
    assert step == 3 and metrics["layers/conv1/effective/conv"] == 0.75
    assert set(metrics) == {"train_loss", "ranges/rotation", "layers/conv1/effective/conv"}


def test_networks_that_confirm_a_run_have_names_of_their_own() -> None:
    logger = Lightning()
    progress = log_to(logger)
    for epoch in (1, 2, 1, 2, 1):
        progress(Progress(Row(epoch, 1.0)))
    names = [next(iter(metrics)) for metrics, _ in logger.told]
    again = "confirming/train_loss"
    assert names == ["train_loss", "train_loss", again, again, "confirming 2/train_loss"]


def test_only_finite_numbers_are_told() -> None:
    record = {"a": float("nan"), "b": float("inf"), "c": "word", "d": [1.0], "e": 2}
    assert dict(numbers_in(record)) == {"e": 2.0}
    assert doctest.testmod(loggers).failed == 0


def test_what_is_no_logger_is_refused() -> None:
    with pytest.raises(CallerError, match="expected an object with log_metrics.*got int"):
        log_to(3)
