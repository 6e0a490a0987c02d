"""Runs of `isotropy learn` on tables beside a ridge regression: results/tables.json.

    isotropy learn --data energy/data.csv.gz --out runs/energy
    python scripts/table_rows.py runs/energy runs/wine

Reads each run's table again, with the rows that it held out, and fits a ridge regression with
penalty 1 to the same standardised columns. Writes one row a run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import isotropy
from isotropy.data.labelled import Split

OUT = Path(__file__).parents[1] / "results" / "tables.json"
KEPT = ("data", "network", "epochs", "seed", "train_examples", "test_examples", "test_rmse",
        "test_log_likelihood", "log_evidence", "seconds", "device_name", "commit")  # fmt: skip


def ridge_rmse(split: Split, penalty: float = 1.0) -> float:
    """The error on the test rows in the target's unit of w = (XᵀX + penalty)⁻¹ Xᵀy."""
    assert split.test is not None and split.train.scaling is not None
    x, y = split.train.inputs.double(), split.train.targets.double()
    weights = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]).double(), x.T @ y)
    error = (split.test.inputs.double() @ weights - split.test.targets).square().mean().sqrt()
    assert split.train.scaling.target_deviation is not None
    return float(error) * split.train.scaling.target_deviation[0]


def row(folder: Path) -> dict[str, object]:
    """What is kept of a run, and the error of the ridge regression on the same rows."""
    config, result = (
        json.loads((folder / name).read_text()) for name in ("config.json", "result.json")
    )
    asked = config["request"]
    split = isotropy.read(
        asked["data"], asked["test_data"], seed=asked["seed"], target=asked["target"],
        task=asked["target_task"],
    )  # fmt: skip
    return {**{name: result[name] for name in KEPT}, "ridge_rmse": ridge_rmse(split)}


if __name__ == "__main__":
    rows = [row(Path(folder)) for folder in sys.argv[1:]]
    OUT.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    for each in rows:
        print(f"{each['data']:<10} RMSE {each['test_rmse']:.3f}, ridge {each['ridge_rmse']:.3f}")
