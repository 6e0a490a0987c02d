"""A table: which columns may be exchanged, and the error beside that of a ridge regression.

The price of a box in which width and height play the same part, and depth another one. Any other
table is read in the same way: `python learn_table.py TABLE.csv` (the last column is the target).
About a minute on two CPU cores.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import isotropy
from isotropy.networks.zoo.backbones import mlp


def boxes(path: Path, examples: int) -> Path:
    sides = np.random.default_rng(0).uniform(1, 3, (examples, 3))
    price = (sides[:, 0] * sides[:, 1]) ** 0.5 * (5 + sides[:, 2] ** 2)
    rows = np.column_stack([sides, price])
    np.savetxt(path, rows, delimiter=",", header="width,height,depth,price", comments="")
    return path


def ridge_rmse(data, penalty: float = 1.0) -> float:
    x, y, test = data.train.inputs, data.train.targets, data.test
    weights = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]), x.T @ y)
    error = (test.inputs @ weights - test.targets).square().mean().sqrt()
    return float(error) * data.train.scaling.target_deviation[0]


def main(source: str | None = None, epochs: int = 100, examples: int = 300) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        data = isotropy.read(source or boxes(Path(folder) / "boxes.csv", examples))
    names = ["permute:0:1", "permute:1:2", "sign_change"]
    actions = isotropy.actions_named(names, data.train.inputs.shape[1:], columns=data.train.columns)
    torch.manual_seed(0)
    network = mlp(data.train.inputs.shape[1:], data.train.num_outputs, hidden=50)
    config = isotropy.LearnConfig(epochs=epochs)
    result = isotropy.learn(network, data, actions=actions, config=config, verdicts=2)
    learned = {each.name: each.high for each in result.symmetries}
    return {**learned, "RMSE": result.record["test_rmse"], "ridge": ridge_rmse(data)}


if __name__ == "__main__":
    for name, value in main(*sys.argv[1:2]).items():
        print(f"{name:<16}{value:.3f}")
