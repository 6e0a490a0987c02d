"""Tables of the layer-equivariance series follow its records, whichever of them there are."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from layer_records import (
    CONFIG,
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


def test_toy_table_has_published_numbers_and_dashes(tables: ModuleType, tmp_path: Path) -> None:
    rows = [*quadrants(0.98, 0.99, "digit"), *quadrants(0.9, 0.25, "digit-quadrant")]
    table = tables.TABLES["layers-toy"](write_rows(tmp_path, *rows))
    assert cells(table, "digit", "ffc + conv") == [
        "1,234", *["–"] * 3, "98.00 (98.86)", "0.250", "−0.500",
    ]  # fmt: skip
    assert cells(table, "digit", "ffc") == ["–"] * 7
    assert claims(table) == [
        "- Holds: on digit the accuracy of learned ffc + conv is at most 1 point below conv "
        "(98.00 % and 99.00 %, one seed).",
        "- Holds: on digit-quadrant the accuracy of learned ffc + conv is at least 60 points above "
        "conv (90.00 % and 25.00 %, one seed).",
    ]


def test_toy_claims_fail_and_are_not_made_of_one_row(tables: ModuleType, tmp_path: Path) -> None:
    worse = quadrants(0.979, 0.99, "digit")
    one = quadrants(0.84, 0.25, "digit-quadrant")
    table = tables.TABLES["layers-toy"](write_rows(tmp_path / "two", *worse, *one))
    assert [claim.split(":")[0] for claim in claims(table)] == ["- Does not hold"] * 2
    table = tables.TABLES["layers-toy"](write_rows(tmp_path / "one", worse[0], one[1]))
    assert claims(table) == []


def test_cifar10_table_counts_what_is_not_run(tables: ModuleType, tmp_path: Path) -> None:
    results = write_rows(
        tmp_path,
        record("cifar10/original/sconv/map", 0.8, published={"accuracy": 82.53, "nll": 0.604}),
        record("lengthscales/original/sconv/laplace", 0.7, num_parameters=99),
    )
    table = tables.TABLES["layers-cifar10"](results)
    assert cells(table, "fc") == ["133,635,690", "not run", *[""] * 5]
    assert cells(table, "fc + conv")[0] == "133,865,010"
    assert cells(table, "sconv") == [
        "1,234", "0.250 (0.604)", "80.00 (82.53)", "−0.500", "–", "–", "–",
    ]  # fmt: skip
    assert cells(table, "sconv, +ω") == ["99", "–", "–", "–", "0.250", "70.00", "−0.500"]
    assert cells(table, "sfc + sconv, +ω") == ["–"] * 7
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


def test_group_table_has_shares_over_layers(tables: ModuleType, tmp_path: Path) -> None:
    results = write_rows(
        tmp_path, grouped("rotated", [0.9, 0.7], 83), grouped("original", [0.5, 0.0, None], 75)
    )
    table = tables.TABLES["layers-groups"](results)
    found = cells(table, "MNIST, rotated")
    assert found[:7] == ["1,234", *["–"] * 3, "0.250 (0.023)", "50.00 (99.21)", "−0.500"]
    assert found[7:] == ["2 % (1–3)", "18 % (9–27)", "80 % (70–90)", "83 %"]
    assert cells(table, "MNIST, original")[9] == "25 % (0–50)"
    assert cells(table, "CIFAR-10, rotated") == ["–"] * 11
    assert claims(table) == [
        "- Holds: on MNIST the mean share of gconv is larger on rotated than on original data "
        "(80.0 % and 25.0 %; published 83 % and 75 %)."
    ]


def test_a_group_share_that_is_not_larger_is_said(tables: ModuleType, tmp_path: Path) -> None:
    rows = [grouped("rotated", [0.5, 0.5], 83), grouped("original", [0.4, 0.6], 75)]
    (claim,) = claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "both", *rows)))
    assert claim.startswith("- Does not hold: on MNIST the mean share of gconv is larger")
    assert "original data (50.0 % and 50.0 %;" in claim
    other = {**rows[0], "commit": "another"}
    (claim,) = claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "two", other, rows[1])))
    assert claim.startswith("- Not compared: on MNIST")
    assert claims(tables.TABLES["layers-groups"](write_rows(tmp_path / "one", rows[0]))) == []


def test_what_shares_are_made_of_is_said_where_known(tables: ModuleType, tmp_path: Path) -> None:
    rows = [grouped("rotated", [0.5, 0.5], 83), grouped("original", [0.4, 0.6], 75)]
    for row, of_group in zip(rows, (0.9, 0.3), strict=True):
        row["layers"][0]["normalised"] = {"ffc": 0.0, "conv": 0.2, "gconv": of_group}
        row["layers"][1]["normalised"] = {"ffc": 0.0, "conv": 0.1, "gconv": 0.1}
    (claim,) = claims(tables.TABLES["layers-groups"](write_rows(tmp_path, *rows)))
    said = "50 % and 20 % of the parameters of gconv and 15 % and 15 % of the parameters of conv"
    assert claim.endswith(f" The data determine {said}.")


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


def test_forms_of_group_convolution(tables: ModuleType, tmp_path: Path) -> None:
    row = "group-forms/rotated/gconv-full/map"
    results = write_rows(tmp_path, record(row, 0.71, published={"accuracy": 73.7}))
    table = tables.TABLES["layers-forms"](results)
    assert cells(table, "gconv-full", "10") == ["1,234", "71.00 (73.70)", "0.250"]
    assert cells(table, "gconv-separable", "10") == ["–"] * 3
    assert cells(table, "gconv-separable", "13") == ["–"] * 3  # as many parameters


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


def test_how_rows_were_made_is_read_off_them(tables: ModuleType, tmp_path: Path) -> None:
    other = {**CONFIG, "epochs": 60, "augmentation": "flips", "free_precision": 1200.0}
    second = record("toy/digit/ffc/map", config=other, seed=4, commit="0123456789")
    toy = [record("toy/digit/conv/map", commit="abc"), second]
    table = tables.TABLES["layer-equivariance"](write_rows(tmp_path / "toy", *toy))
    own = ["2 of 12", "0 and 4", "600", "16", "flips and none", "1,200", "0123456 and abc", "4"]
    own.append("40 and 60 (1,000)")
    assert cells(table, "Table 1: digits in quadrants") == own
    assert "2 records, seeds 0, 4, NVIDIA H200, 4 s in all, summed over rows." in table
    assert "All schedules are shorter" in table and "JPEG" not in table
    long = record("cifar10/original/conv/map", config={**CONFIG, "epochs": 4000})
    table = tables.TABLES["layer-equivariance"](write_rows(tmp_path / "long", *toy, long))
    assert "shorter" not in table and "This CIFAR-10 was compressed as JPEG once." in table


def test_the_quick_series_is_read_from_its_own_folder(tables: ModuleType, tmp_path: Path) -> None:
    row = "toy/digit/ffc+conv/laplace"
    write_rows(tmp_path, record(row, 0.3))
    assert tables.TABLES["layers-quick"](tmp_path) == NOT_RUN
    (tmp_path / "layer-equivariance").rename(tmp_path / "layer-equivariance-quick")
    table = tables.TABLES["layers-quick"](tmp_path)
    own = ["ffc + conv", "1,234", "30.00", "0.250", "conv, conv"]
    assert cells(table, "digit") == own  # published numbers are of another size


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
