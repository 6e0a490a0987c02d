"""Tables of measured networks and of rotated MNIST follow their records."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from measuring_records import measured_record, rotated_record

ROOT = Path(__file__).resolve().parents[1]
GPU = {"device": "cuda", "device_name": "NVIDIA H200", "threads": 16}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("measuring_tables")


def written(results: Path, series: str, records: list[dict[str, Any]]) -> Path:
    folder = results / series
    folder.mkdir(parents=True)
    lines = [json.dumps({**GPU, **record}) for record in records]
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return results


def cells(table: str, *begin: str) -> list[str]:
    """The other cells of the one row that begins with these."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    (found,) = (row[len(begin) :] for row in rows if row[: len(begin)] == list(begin))
    return found


def test_nothing_run_is_said(tables: ModuleType, tmp_path: Path) -> None:
    assert {make(tmp_path) for make in tables.TABLES.values()} == {"Not run yet."}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    seeds = [measured_record("convnet", error, 0.9, seed) for seed, error in enumerate((1.0, 3.0))]
    return written(tmp_path, "measured-networks", [measured_record("vit", 5.0), *seeds])


def test_measured_networks_are_means_with_deviations_over_seeds(
    tables: ModuleType, results: Path
) -> None:
    table = tables.measured(results)
    assert cells(table, "cifar10", "convnet") == [
        "10", "90.0 ± 0.0 % (90.0 %)", "2 ± 1 (0.1)", "2 ± 1 (0.1)", "0.01 ± 0", "0.02 ± 0",
        "20.0 ± 14.1 %", "20.0 ± 14.1 %",
    ]  # fmt: skip
    assert cells(table, "cifar10", "vit")[2] == "5 (0.1)", "one seed has no deviation"
    assert table.index("| convnet |") < table.index("| vit |"), "the order of the experiment"
    assert "3 records, seeds 0, 1, NVIDIA H200" in table and "- Holds: cifar10:" in table
    assert cells(tables.generators(results), "data", "network") == ["translation_x", "rotation"]
    assert cells(tables.generators(results), "cifar10", "convnet") == ["2 ± 1", "2 ± 1"]
    assert cells(tables.culprits(results), "cifar10", "vit")[:2] == [
        "`a` (Conv2d) 90 %, `b` (GELU) 10 %", "Conv2d 90 %, GELU 10 %"
    ]  # fmt: skip


def test_data_from_elsewhere_have_columns_of_their_own(tables: ModuleType, results: Path) -> None:
    table = tables.elsewhere(results)
    assert cells(table, "trained on cifar10", "error under") == ["train", "test", "MNIST"]
    assert cells(table, "convnet", "rotation") == ["1 ± 0.7", "2 ± 1", "20 ± 1e+01"]
    assert cells(table, "vit", "EQ-T") == ["0.01"] * 3


def test_records_without_data_from_elsewhere(tables: ModuleType, tmp_path: Path) -> None:
    record = measured_record("vit", 5.0)
    del record["data_sets"]["MNIST"]
    results = written(tmp_path, "measured-networks", [record])
    assert tables.elsewhere(results) == "Not run yet."
    assert "| vit |" in tables.measured(results)


def test_rotated_mnist_has_published_networks_between_ours(
    tables: ModuleType, tmp_path: Path
) -> None:
    records = [rotated_record("vit", error, seed=seed) for seed, error in enumerate((2.0, 1.0))]
    records.append(rotated_record("convnet-c4", 0.9, 1e-13))
    table = tables.rotated_table(written(tmp_path, "rotated-mnist", records))
    assert cells(table, "vit") == [
        "measured here", "1,234", "1.50 ± 0.71 %", "0.2 ± 0 (0.05)", "0.1 ± 0", "20.0 ± 0.0 %"
    ]  # fmt: skip
    assert cells(table, "finetuned MAE") == ["published", "", "1.14 %", "", "", ""]
    named = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert named[2:] == [
        "E(2)-CNN", "convnet-c4", "RotEqNet", "finetuned MAE", "TI-Pooling", "vit", "ORN", "H-NET",
        "G-CNN",
    ]  # fmt: skip
    assert "- Does not hold: the best network that was built is below" in table
