"""Claims about relaxed layers: means over seeds, decided only where the seeds can decide."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
from layer_records import CONFIG, ROOT, record

PAIR = ("toy/digit/ffc+conv/laplace", "toy/digit/conv/laplace")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("layer_claims")


def rows_of(*accuracies: tuple[float, ...], **more: Any) -> dict[str, list[dict[str, Any]]]:
    """The two rows, with an accuracy for each seed."""
    return {
        row: [record(row, each, seed=seed, **more) for seed, each in enumerate(own)]
        for row, own in zip(PAIR, accuracies, strict=True)
    }


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((0.90, 0.91, 0.92), (0.80, 0.81, 0.82), "Holds"),
        ((0.80, 0.81, 0.82), (0.90, 0.91, 0.92), "Does not hold"),
        # The standard error of the difference is 0.82 points, its half-width 2.27.
        ((0.90, 0.91, 0.92), (0.88, 0.89, 0.90), "Undecided"),
        ((0.90, 0.91, 0.92), (0.877, 0.887, 0.897), "Holds"),
        ((0.90,), (0.90,), "Holds"),
        ((0.90,), (0.901,), "Does not hold"),
    ],
)
def test_verdicts_by_students_distribution(
    module: ModuleType, first: tuple[float, ...], second: tuple[float, ...], verdict: str
) -> None:
    (claim,) = module.compared(rows_of(first, second), "it is better", PAIR, module.ACCURACY)
    assert claim.verdict == verdict
    assert claim.numbers.endswith("one seed" if len(first) == 1 else "3 seeds each")


def test_numbers_have_their_standard_errors(module: ModuleType) -> None:
    (claim,) = module.compared(
        rows_of((0.90, 0.91, 0.92), (0.5, 0.5, 0.5)), "it is", PAIR, module.ACCURACY
    )
    assert claim.text() == "- Holds: it is (91.00 ± 0.58 % and 50.00 ± 0.00 %, 3 seeds each)."


def test_at_most_half(module: ModuleType) -> None:
    rows = rows_of((0.5,), (0.5,))
    for value, verdict in ((0.4, "Holds"), (0.41, "Does not hold")):
        rows[PAIR[0]][0]["test_nll"], rows[PAIR[1]][0]["test_nll"] = value, 0.8
        (claim,) = module.compared(rows, "half", PAIR, module.NLL, weights=(-1.0, 0.5))
        assert claim.verdict == verdict


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"commit": "0123456789"}, "of commits 0123456 and None"),
        ({"config": {**CONFIG, "epochs": 41}}, "of one commit, None, and two configurations"),
        ({"config": {**CONFIG, "free_precision": 5.0}}, "and two configurations"),
    ],
)
def test_rows_that_were_not_made_alike_are_not_compared(
    module: ModuleType, changed: dict[str, Any], text: str
) -> None:
    rows = rows_of((0.9, 0.9), (0.5, 0.5))
    rows[PAIR[0]][0].update(changed)
    (claim,) = module.compared(rows, "it is", PAIR, module.ACCURACY)
    assert claim.verdict == "Not compared" and text in claim.numbers


def test_seed_objective_and_memory_do_not_make_rows_unlike(module: ModuleType) -> None:
    rows = rows_of((0.9,), (0.5,))
    rows[PAIR[0]][0]["config"] = {**CONFIG, "seed": 7, "objective": "map", "curvature_batch": 3}
    assert module.alike(rows, PAIR)


def test_a_row_that_is_missing_makes_no_claim(module: ModuleType) -> None:
    rows = rows_of((0.9,), (0.5,))
    del rows[PAIR[1]]
    assert module.compared(rows, "it is", PAIR, module.ACCURACY) == []


def test_what_does_not_hold_is_told_first(module: ModuleType) -> None:
    claims = [module.Claim(verdict, verdict, "1") for verdict in reversed(module.VERDICTS)]
    told = [text[2:].split(":")[0] for text in module.told(claims)]
    assert told == ["Does not hold", "Not compared", "Undecided", "Holds"]
