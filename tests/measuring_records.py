"""Records of the series of chapter 4 of the thesis, as their runs leave them."""

from __future__ import annotations

import copy
from typing import Any

from isotropy.experiments.runner import read_table


def measured_record(
    network: str, error: float, accuracy: float = 0.9, seed: int = 0
) -> dict[str, Any]:
    """Errors ten times as large on the first other set as on test data, and half on training."""

    def numbers(scale: float) -> dict[str, Any]:
        own = {"error": scale * error, "floor": 0.1}
        exact = {"inconsistency": 0.1 * error}
        return {"accuracy": accuracy, "eq_t": 0.01, "eq_t_frac": 0.02,
                "errors": {"translation_x": own, "rotation": own},
                "exact": {"whole-pixel shifts": exact, "quarter turns": exact}}  # fmt: skip

    kinds = {"convnet": ("ReLU", "Conv2d"), "vit": ("Conv2d", "GELU")}
    large, small = kinds.get(network.partition("-")[0], ("Linear", "Tanh"))
    layers = [{"name": "a", "kind": large, "norm": 2.0, "share": 0.9, "eq_t": None},
              {"name": "b", "kind": small, "norm": 1.0, "share": 0.1, "eq_t": None}]  # fmt: skip
    return {
        "row": f"cifar10/{network}", "problem": "cifar10", "network": network, "seed": seed,
        "epochs": 10, "parameters": 5, "seconds": 1.0,
        "data_sets": {"train": numbers(0.5), "test": numbers(1.0), "MNIST": numbers(10.0)},
        "layers": {name: copy.deepcopy(layers) for name in ("translation_x", "rotation")},
    }  # fmt: skip


def rotated_record(
    network: str, error: float, turned: float = 0.1, seed: int = 0
) -> dict[str, Any]:
    symmetry = read_table("rotated-mnist")["networks"][network].get("symmetry")
    own = {"error": turned, "inconsistency": 0.2}
    return {
        "row": network, "network": network, "symmetry": symmetry, "seed": seed, "seconds": 1.0,
        "parameters": 1234, "test_error": error, "quarter_turns": own,
        "rotation": {"error": 2 * turned, "floor": 0.05},
    }  # fmt: skip
