"""Records of the layer-equivariance series with made-up numbers, and what tables say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOT_RUN = "Not run yet."
LEARNED = "cifar10/original/ffc+conv/laplace"


def layer(name: str, shares: dict[str, float | None], **more: Any) -> dict[str, Any]:
    return {"name": name, "became": "conv", "effective": shares, **more}


CONFIG: dict[str, Any] = {"epochs": 40, "batch_size": 16, "augmentation": "none"}


def record(row: str, accuracy: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """A row as the series writes it, with numbers of ours."""
    table, problem, pathways, objective = row.split("/")
    kinds = pathways.split("+")
    shares: dict[str, float | None] = {kind: 1 / len(kinds) for kind in kinds}
    return {
        "row": row, "seed": 0, "table": table, "problem": problem, "pathways": pathways,
        "objective": objective, "test_accuracy": accuracy, "test_nll": 0.25,
        "num_parameters": 1234, "log_evidence_per_example": -0.5, "train_examples": 600,
        "layers": [layer("stage1", shares), layer("stage2", shares)], "hardened": None,
        "published": {}, "config": CONFIG, "seconds": 2.0,
        "device": "cuda", "device_name": "NVIDIA H200", "threads": 16, **more,
    }  # fmt: skip


def write_rows(results: Path, *records: dict[str, Any]) -> Path:
    folder = results / "layer-equivariance"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return results


def cells(table: str, *begin: str) -> list[str]:
    """The other cells of the one row that begins with these."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    (found,) = (row[len(begin) :] for row in rows if row[: len(begin)] == list(begin))
    return found


def claims(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("- ")]


def grouped(problem: str, shares: list[float | None], known: float) -> dict[str, Any]:
    """MNIST with three pathways: the share of gconv by layer, ffc has a tenth of the rest."""
    layers = []
    for number, share in enumerate(shares, start=1):
        rest = 1 - (share or 0)
        parts = {"ffc": 0.1 * rest, "conv": 0.9 * rest, "gconv": share}
        layers.append(layer(f"stage{number}", parts))
    row = f"groups-mnist/{problem}/ffc+conv+gconv/laplace"
    return record(row, layers=layers, published={"gconv": known, "accuracy": 99.21, "nll": 0.023})


def learned_layers(*shares: float | None) -> list[dict[str, Any]]:
    return [
        layer(
            f"stage{number}", {"ffc": None if share is None else 1 - share, "conv": share},
            contribution={"ffc": 0.012345, "conv": 0.9999}, weight_norm={"ffc": 0.0, "conv": None},
            prior_precision={"ffc": 3588348.5, "conv": 0.0751},
        )
        for number, share in enumerate(shares, start=1)
    ]  # fmt: skip
