"""Records as runs on rotated digits leave them: made up, but with the shapes of the real thing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from report_pages import INTERVALS, richer_changes

from isotropy.report.record import LearnRecord

EPOCHS, BURN_IN, TRAIN_EXAMPLES = 60, 10, 2000
UNITS = {
    "translation_x": "fraction of image width",
    "translation_y": "fraction of image width",
    "rotation": "degrees",
    "scale_x": "log factor",
    "scale_y": "log factor",
    "hyperbolic_rotation": "log factor",
}
FLOORS = {
    "translation_x": 0.009,
    "translation_y": 0.011,
    "scale_x": 0.012,
    "scale_y": 0.016,
    "hyperbolic_rotation": 0.008,
}


def synthetic_history(generator: np.random.Generator) -> list[dict[str, Any]]:
    """Ranges that stay put for the burn-in, then rise to the truth or sink to the noise floor."""
    history: list[dict[str, Any]] = []
    for epoch in range(1, EPOCHS + 1):
        learned = max(0, epoch - BURN_IN)
        ranges = {
            name: floor + (0.06 - floor) * math.exp(-learned / 6) + 0.002 * generator.random()
            for name, floor in FLOORS.items()
        }
        ranges["rotation"] = 4 + 171 / (1 + math.exp(-(learned - 18) / 4.5)) + generator.normal()
        likelihood = -TRAIN_EXAMPLES * (0.30 + 1.9 * math.exp(-epoch / 9))
        evidence = likelihood - TRAIN_EXAMPLES * (0.32 + 0.9 * math.exp(-learned / 12))
        known = epoch > BURN_IN
        history.append(
            {
                "epoch": epoch,
                "train_loss": -likelihood / TRAIN_EXAMPLES,
                "log_likelihood": likelihood if known else None,
                "log_evidence": evidence if known else None,
                "log_evidence_per_example": evidence / TRAIN_EXAMPLES if known else None,
                "ranges": {name: ranges[name] for name in UNITS},
                "test_accuracy": 0.82 - 0.55 * math.exp(-epoch / 14) if epoch % 2 == 0 else None,
                "train_accuracy": 0.91 - 0.62 * math.exp(-epoch / 10),
                "prior_precision": {"all": 1.2},
                "seconds": 3.2,
            }
        )
    return history


def turned(points: np.ndarray, degrees: float) -> np.ndarray:
    """Points (…, 2) turned about the centre of a 28 × 28 image."""
    angle = math.radians(degrees)
    matrix = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    result: np.ndarray = (points - 13.5) @ matrix.T + 13.5
    return result


def synthetic_record() -> LearnRecord:
    generator = np.random.default_rng(0)
    history = synthetic_history(generator)
    last = history[-1]
    symmetries = [
        {"name": name, "kind": "range", "low": -width, "high": width, "unit": UNITS[name]}
        for name, width in last["ranges"].items()
    ]
    grid = np.stack(np.meshgrid(np.linspace(0, 27, 7), np.linspace(0, 27, 7)), axis=-1)
    flows = np.stack([np.stack([grid, turned(grid, a)]) for a in generator.uniform(-175, 175, 8)])
    return LearnRecord(
        result={
            "schema": 1,
            "command": "learn",
            "isotropy": "0.1.0",
            "seed": 0,
            "device": "cpu",
            "seconds": 203.4,
            "run_folder": "runs/rotated-digits-0",
            "data": "embedded digits, rotated",
            "symmetries": symmetries,
            "log_evidence": last["log_evidence"],
            "log_evidence_per_example": last["log_evidence_per_example"],
            "test_accuracy": 0.813,
            "objective": "laplace",
            "curvature": "kfac-ggn",
            "samples": 16,
            "test_samples": 31,
            "epochs": EPOCHS,
            "train_examples": TRAIN_EXAMPLES,
            "test_examples": 1000,
            "versions": {"torch": "2.13.0", "python": "3.11"},
            "commit": "abc123",
        },
        config={
            "data": {"name": "digits", "variant": "rotated", "train_examples": TRAIN_EXAMPLES},
            "network": {"name": "mlp", "widths": [1000], "activation": "tanh"},
            "schedule": {
                "epochs": EPOCHS,
                "burn_in": BURN_IN,
                "batch_size": 1000,
                "learning_rate": 0.005,
                "range_learning_rate": 0.05,
            },
            "objective": {"name": "laplace", "prior": "layerwise", "final_step": None},
        },
        history=history,
        truth={name: 180.0 if name == "rotation" else 0.0 for name in UNITS},
        examples=generator.random((6, 9, 1, 14, 14)),
        flows=flows,
        image_shape=(28, 28),
    )


@pytest.fixture(scope="session")
def record() -> LearnRecord:
    return synthetic_record()


def richer_record() -> LearnRecord:
    """The same run with scalings found, a flip, and all that a judged, correlated run adds."""
    plain = synthetic_record()
    symmetries = [
        {**symmetry, "low": -0.24, "high": 0.24}
        if symmetry["name"].startswith("scale")
        else symmetry
        for symmetry in plain.result["symmetries"]
    ]
    for name, probability in (("horizontal_flip", 0.02), ("vertical_flip", 0.4987)):
        symmetries.append(
            {
                "name": name,
                "kind": "probability",
                "low": 0.0,
                "high": probability,
                "unit": "probability",
            }
        )
    symmetries = [{**each, "interval": INTERVALS.get(each["name"])} for each in symmetries]
    ranges = plain.history[-1]["ranges"]
    history = [
        {**row, "ranges": {**row["ranges"], "horizontal_flip": 0.02, "vertical_flip": 0.4987}}
        for row in plain.history
    ]
    schedule = {**plain.config["schedule"], "fallback": "diagonal"}
    return dataclasses.replace(
        plain,
        result={**plain.result, "symmetries": symmetries, **richer_changes(ranges)},
        config={**plain.config, "schedule": schedule},
        history=history,
        truth={**plain.truth, "vertical_flip": 0.5, "horizontal_flip": 0.0},
    )


@pytest.fixture(scope="session")
def light(richer: LearnRecord) -> LearnRecord:
    """The richer record without what takes long to draw."""
    return dataclasses.replace(richer, history=(), examples=None, flows=None, image_shape=None)


@pytest.fixture(scope="session")
def richer() -> LearnRecord:
    return richer_record()
