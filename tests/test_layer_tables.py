"""Tables of the layer-equivariance series follow its records, whichever of them there are.

What they show of the records in results/ is compared with the page by tests/test_docs.py; here are
claims at the edge of what holds, and rows that are missing.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from layer_records import (
    LEARNED,
    NOT_RUN,
    ROOT,
    cells,
    claims,
    grouped,
    learned_layers,
    record,
    write_rows,
)


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")


@pytest.fixture
def tables() -> ModuleType:
    return importlib.import_module("layer_tables")


@pytest.fixture
def figures() -> ModuleType:
    return importlib.import_module("layer_figures")


# -- whichever rows there are ------------------------------------------------------------------


def test_nothing_run_is_said(tables: ModuleType, figures: ModuleType, tmp_path: Path) -> None:
    assert {make(tmp_path) for make in tables.TABLES.values()} == {NOT_RUN}
    assert figures.figure_link(tmp_path) == NOT_RUN


def every_row() -> list[str]:
    return list(importlib.import_module("layer_rows").planned_rows())


def test_any_row_alone_makes_every_table(
    tables: ModuleType, figures: ModuleType, tmp_path: Path
) -> None:
    shown = set()
    for number, row in enumerate(every_row()):
        results = write_rows(tmp_path / str(number), record(row))
        made = {name: make(results) for name, make in tables.TABLES.items()}
        known = {name for name, table in made.items() if table != NOT_RUN}
        assert {"layer-equivariance", "layers-fails"} <= known and 3 <= len(known) <= 4, row
        shown |= known
        for name, table in made.items():
            lines = [line for line in table.splitlines() if line.startswith("|")]
            assert len({line.count("|") for line in lines}) <= 1, name  # as many cells in each
        figures.figure_link(results)
    # Hardened networks are those of records that say so, the quick series is in its own folder.
    assert shown == set(tables.TABLES) - {"layers-hardened", "layers-quick"}


def test_rows_of_another_series_are_left_out(tables: ModuleType, tmp_path: Path) -> None:
    results = write_rows(tmp_path, record("toy/digit/conv+sconv/map"))
    assert {make(results) for make in tables.TABLES.values()} == {NOT_RUN}


def test_seeds_are_averaged_and_a_number_that_is_none_is_a_dash(
    tables: ModuleType, tmp_path: Path
) -> None:
    results = write_rows(
        tmp_path,
        record("toy/digit/conv/map", 0.9),
        record("toy/digit/conv/map", 0.8, seed=1, test_nll=0.75),
        record("toy/digit/conv/laplace", 0.9, published={"accuracy": 99.23}),
        record("toy/digit/conv/laplace", None, seed=1, test_nll=None),
    )
    table = tables.TABLES["layers-toy"](results)
    assert cells(table, "digit", "conv") == [
        "1,234", "85.00 ± 5.00", "0.500 ± 0.250", "−0.500 ± 0.000", "– (99.23)", "–",
        "−0.500 ± 0.000",
    ]  # fmt: skip


# -- Tables 1 and 2 ----------------------------------------------------------------------------


def quadrants(learned: float, strict: float, problem: str) -> list[dict[str, Any]]:
    return [
        record(f"toy/{problem}/ffc+conv/laplace", learned, published={"accuracy": 98.86}),
        record(f"toy/{problem}/conv/laplace", strict),
    ]


def test_toy_claims_fail_and_are_not_made_of_one_row(tables: ModuleType, tmp_path: Path) -> None:
    worse = quadrants(0.979, 0.99, "digit")
    one = quadrants(0.84, 0.25, "digit-quadrant")
    table = tables.TABLES["layers-toy"](write_rows(tmp_path / "two", *worse, *one))
    assert [claim.split(":")[0] for claim in claims(table)] == ["- Does not hold"] * 2
    table = tables.TABLES["layers-toy"](write_rows(tmp_path / "one", worse[0], one[1]))
    assert claims(table) == []


@pytest.mark.parametrize(
    ("learned", "fails"),
    [
        ((0.835, 0.40, -0.5), []),
        ((0.834, 0.41, -0.5), ["at most 1.5 points below conv", "at most half"]),
        ((0.80, 0.1, -0.5), ["at most 1.5 points below", "accuracy of learned ffc + conv is n"]),
        ((0.835, 0.40, -0.51), ["log evidence per example of learned ffc + conv is not below"]),
    ],
)
def test_cifar10_claims(
    tables: ModuleType, tmp_path: Path, learned: tuple[float, float, float], fails: list[str]
) -> None:
    accuracy, nll, evidence = learned
    results = write_rows(
        tmp_path,
        record("cifar10/original/conv/laplace", 0.85),
        record(LEARNED, accuracy, test_nll=nll, log_evidence_per_example=evidence),
        record(LEARNED.replace("laplace", "map"), 0.81, test_nll=0.8),
    )
    table = tables.TABLES["layers-cifar10"](results)
    found = claims(table)
    wrong = ["- Does not hold"] * len(fails)
    assert [claim.split(":")[0] for claim in found] == [*wrong, *["- Holds"] * (4 - len(fails))]
    assert all(any(words in claim for claim in found[: len(fails)]) for words in fails)
    assert f"({100 * accuracy:.2f} % and 85.00 %, one seed)" in table


# -- Tables 3 and 4 ----------------------------------------------------------------------------


def test_a_group_share_that_is_not_larger_is_said(tables: ModuleType, tmp_path: Path) -> None:
    rows = [grouped("rotated", [0.5, 0.5], 83), grouped("original", [0.4, 0.6], 75)]
    (claim,) = claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "both", *rows)))
    assert claim.startswith("- Does not hold: on MNIST the mean share of gconv is larger")
    assert "original data (50.0 % and 50.0 %;" in claim
    other = {**rows[0], "commit": "another"}
    (claim,) = claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "two", other, rows[1])))
    assert claim.startswith("- Not compared: on MNIST")
    assert claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "one", rows[0]))) == []


@pytest.mark.parametrize(
    ("shares", "holds", "count"),
    [
        ((0.99999, 0.95, 0.5), "Holds", "2 of 3"),
        ((0.99999, 0.5), "Does not hold", "1 of 2"),
        ((0.99999, None, None), "Does not hold", "1 of 3"),
    ],
)
def test_layers_of_the_learned_network(
    tables: ModuleType, tmp_path: Path, shares: tuple[float | None, ...], holds: str, count: str
) -> None:
    results = write_rows(tmp_path, record(LEARNED, layers=learned_layers(*shares)))
    table = tables.TABLES["layers-became"](results)
    assert cells(table, "stage1") == [
        "conv", "< 0.1 %", "> 99.9 %", "0.0123", "1", "3.59e+06", "0.0751", "0", "–",
    ]  # fmt: skip
    said = f"in most layers for CIFAR-10 the share of conv is over 90 % (in {count})."
    assert claims(table) == [f"- {holds}: {said}"]


# -- Table 7, hardening, how it was made -------------------------------------------------------


@pytest.mark.parametrize(
    ("accuracy", "parameters", "holds"),
    [
        (0.838, 400, ["Holds"]),
        (0.8379, 400, ["Does not hold"]),
        (0.838, 401, ["Does not hold"]),
    ],
)
def test_hardened_rows(
    tables: ModuleType, tmp_path: Path, accuracy: float, parameters: int, holds: list[str]
) -> None:
    hardened = {"test_accuracy": accuracy, "num_parameters": parameters, "test_nll": 0.1}
    results = write_rows(
        tmp_path,
        record("cifar10/original/conv/laplace"),
        record(LEARNED, 0.84, hardened=hardened, num_parameters=1200),
        record("toy/digit/ffc+conv/map", 0.9, hardened={**hardened, "test_accuracy": None}),
    )
    table = tables.TABLES["layers-hardened"](results)
    own = cells(table, f"`{LEARNED}`, seed 0")
    assert own == ["84.00 %", f"{100 * accuracy:.2f} %", "1,200", str(parameters), "3.0"]
    assert cells(table, "`toy/digit/ffc+conv/map`, seed 0")[:2] == ["90.00 %", "–"]
    assert "conv/laplace` | 50" not in table
    assert table.index("`toy/") < table.index("`cifar10/")  # as in the series, not in the file
    assert [claim[2:].split(":")[0] for claim in claims(table)] == holds


def test_a_sentence_for_a_problem_whose_three_rows_are_there(
    tables: ModuleType, tmp_path: Path
) -> None:
    rows = [
        record("cifar10/original/ffc+conv/laplace", 0.75),
        record("cifar10/original/ffc+conv/map", 0.641),
        record("cifar10/original/conv/laplace", 0.732),
        record("toy/digit/ffc+conv/laplace", 0.99),
    ]
    (sentence,) = tables.layers_in_short(write_rows(tmp_path / "some", *rows))
    assert sentence.startswith("CIFAR-10 without augmentation: test accuracy of relaxed layers")
    assert "75.00 % with learned" in sentence and "64.10 % with fixed" in sentence
    assert sentence.endswith("of convolutions 73.20 % (one seed, 40 epochs).")
    rows += [record(each["row"], 0.5, seed=1) for each in rows[:3]]
    rows[0]["commit"] = "another"
    (sentence,) = tables.layers_in_short(write_rows(tmp_path / "unlike", *rows))
    assert "62.50 ± 12.50 % with" in sentence
    assert sentence.endswith("(2 seeds, 40 epochs, not all made alike).")
    assert tables.layers_in_short(tmp_path / "none") == []


def test_what_fails_comes_first_with_rows_that_were_not_run(
    tables: ModuleType, tmp_path: Path
) -> None:
    rows = [*quadrants(0.9, 0.99, "digit"), *quadrants(0.9, 0.25, "digit-quadrant")]
    table = tables.TABLES["layers-fails"](write_rows(tmp_path / "some", *rows))
    failed, left = claims(table)
    assert failed.startswith("- Does not hold: on digit the accuracy")
    assert left.startswith("- Not run: `toy/digit/conv/map`, ") and "ffc+conv/laplace`" in left
    assert "toy/digit/ffc+conv/laplace" not in left
    assert table.endswith("1 of 2 claims hold.")
    every = [record(row, layers=[]) for row in every_row()]
    table = tables.TABLES["layers-fails"](write_rows(tmp_path / "every", *every))
    assert "Not run" not in table


def test_hardening_is_judged_by_the_worst_seed(tables: ModuleType, tmp_path: Path) -> None:
    hardened = {"test_accuracy": 0.84, "num_parameters": 300, "test_nll": 0.1}
    good = record(LEARNED, 0.84, hardened=hardened, num_parameters=1200)
    bad = {**good, "seed": 1, "hardened": {**hardened, "num_parameters": 600}}
    (claim,) = claims(tables.TABLES["layers-hardened"](write_rows(tmp_path, good, bad)))
    assert claim.startswith("- Does not hold") and "2.0 times, the worst of 2 seeds" in claim
