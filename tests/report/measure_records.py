"""Made-up records of `isotropy measure`, with the real shapes: one network, and several."""

from __future__ import annotations

import copy
from typing import Any

from report_pages import PROVENANCE

UNITS = {
    "translation_x": "half an image width",
    "rotation": "radian",
    "scale": "log factor",
    "amplitude": "log factor",
}
LAYERS = (
    ("features.0", "Conv2d", 0.02),
    ("features.1", "ReLU", 0.31),
    ("features.3", "MaxPool2d", 0.41),
    ("flatten", "flatten", 0.0),
    ("add", "add", -0.05),
    ("head", "Linear", 0.11),
    ("softmax", "softmax", 0.2),
)


def measured_action(name: str, error: float, layers: int = len(LAYERS)) -> dict[str, Any]:
    """A transformation: floors of a tenth, seven layers (or more) with shares that add up to 1."""
    rows = [
        {
            "name": kind_name if repeat == 0 else f"{kind_name}.{repeat}",
            "kind": kind,
            "norm": abs(share) * error**0.5 + 0.01 * error,
            "norm_error": 0.002 * error**0.5,
            "share": share if repeat == 0 else 0.0,
            "layout": "image",
            "judged_at": "head" if kind == "flatten" else None,
        }
        for repeat in range(-(-layers // len(LAYERS)))
        for kind_name, kind, share in LAYERS
    ]
    return {
        "name": name,
        "unit": UNITS.get(name, "log factor"),
        "error": error,
        "standard_error": 0.05 * error,
        "resampling_floor": None if name == "amplitude" else 0.1 * error,
        "resampling_floor_standard_error": None if name == "amplitude" else 0.01 * error,
        "attribution": {"method": "forward", "probes": None, "closure": 2.5e-7},
        "remark": None,
        "layers": rows[:layers],
        "finite": {
            "amounts": "±15 degrees",
            "samples": 8,
            "error": 0.3 * error,
            "standard_error": 0.02 * error,
            "resampling_floor": 0.01 * error,
            "inconsistency": 0.031,
            "inconsistency_standard_error": 0.004,
        },
    }


def entry(
    model: str = "cnn",
    data: str = "test",
    *,
    factor: float = 1.0,
    accuracy: float | None = 0.93,
    layers: int = len(LAYERS),
) -> dict[str, Any]:
    errors = {"translation_x": 0.0123, "rotation": 0.523, "scale": 0.041, "amplitude": 3.2e-6}
    return {
        "model": model,
        "parameters": 12345,
        "data": data,
        "data_name": "embedded digits",
        "examples": 100,
        "accuracy": accuracy,
        "output": "invariant",
        "output_dimension": 10,
        "actions": [
            measured_action(name, factor * error, layers) for name, error in errors.items()
        ],
        "exact": [
            {
                "name": "quarter turns",
                "what": "90°, 180°, 270°",
                "error": 0.12,
                "standard_error": 0.01,
                "inconsistency": 0.71,
            },
            {
                "name": "whole-pixel shifts",
                "what": "1 to 4 pixels, round the borders",
                "error": 0.004,
                "standard_error": 0.001,
                "inconsistency": None,
            },
        ],
        "translation_metrics": {
            "eq_t": {"error": 0.0004, "decibel": 34.5},
            "eq_t_frac": {"error": 0.0011, "decibel": None},
            "range": 0.125,
        },
    }


def measure_record(*entries: dict[str, Any]) -> dict[str, Any]:
    """One entry by default."""
    chosen = list(entries) or [entry()]
    about = {key: value for key, value in PROVENANCE.items() if key not in ("data", "network")}
    return copy.deepcopy(
        {
            "schema": 1,
            "command": "measure",
            **about,
            "on": "probabilities",
            "interpolation": "bilinear",
            "padding": "reflection",
            "actions": chosen[0]["actions"],
            "entries": chosen,
            "gaps": [],
            "drifts": [],
        }
    )


def comparison_record() -> dict[str, Any]:
    """Four models on two data sets under two transformations, one of them missing once."""
    factors = {"mlp": 40.0, "cnn": 1.0, "cnn with blur": 0.4, "vit": 6.0}
    entries = [
        entry(model, data, factor=factor * more, accuracy=0.95 - 0.01 * place - 0.02 * (more - 1))
        for place, (model, factor) in enumerate(factors.items())
        for data, more in (("test", 1.0), ("rotated", 1.5))
    ]
    for each in entries:
        each["actions"] = each["actions"][:2]
    entries[-1]["actions"].pop(1)
    record = measure_record(*entries)
    for model, factor in factors.items():
        for name, size in (("translation_x", 0.006), ("rotation", 0.001)):
            record["gaps"].append(
                {
                    "model": model,
                    "action": name,
                    "from": "test",
                    "to": "rotated",
                    "difference": factor * size,
                    "standard_error": factor * 0.001 + 0.0001,
                }
            )
    record["drifts"] = [
        {
            "data": "test",
            "action": "rotation",
            "from": "before",
            "to": "after",
            "difference": -0.2,
            "standard_error": 0.01,
        }
    ]
    return record
