"""Whether a faster path learns the same ranges: rotated digits, several seeds, path by path.

    fast                 as `isotropy.learn` runs by itself
    reference            plain PyTorch in the same precision
    reference, float32   plain PyTorch without TF32, on a GPU

Random numbers are the same on every path, so that rounding alone tells them apart; training
amplifies rounding, and how far it gets is seen beside the spread over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.paths import PATHS, RunPath
from benchmarks.timing import goal
from isotropy.data.labelled import Split
from isotropy.data.variants import vary
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.zoo.specification import parse_network
from isotropy.workflows.learning import learn

VARIANT, SYMMETRY = "rotated", "rotation"
GOALS = {"degrees": 5.0, "other units": 0.05}
"""Means of two paths differ by at most so much: rotations, and every other range."""

Row = dict[str, dict[str, Any]]


def run(
    split: Split,
    device: torch.device,
    *,
    examples: int = 5000,
    epochs: int = 40,
    seeds: Sequence[int] = (0, 1, 2),
    network: str = "mlp",
    samples: int = 31,
) -> dict[str, Any]:
    """Ranges by path and symmetry: in each seed, their mean and spread."""
    examples = min(examples, len(split.train))
    train = split.train.subset(examples, seed=0)
    chosen = vary(Split(train=train, test=split.test), VARIANT)
    config = LearnConfig(samples=samples, epochs=epochs, search=False)
    ways: dict[str, tuple[RunPath, LearnConfig]] = {
        name: (path, config) for name, path in PATHS.items()
    }
    if device.type == "cuda":
        whole = replace(config, precision="float32")
        ways["reference, float32"] = (PATHS["reference"], whole)
    rows: dict[str, Row] = {}
    accuracies: dict[str, list[float | None]] = {}
    for name, (path, settings) in ways.items():
        found: dict[str, list[float]] = {}
        units: dict[str, str] = {}
        accuracies[name] = []
        for seed in seeds:
            with torch.random.fork_rng(devices=[]), path.context():
                torch.manual_seed(seed)
                result = learn(
                    parse_network(network).build(train.inputs.shape[1:], train.num_outputs),
                    chosen,
                    config=path.settings(replace(settings, seed=seed)),
                    device=device,
                )
            accuracies[name].append(result.test_accuracy)
            for symmetry in result.symmetries:
                found.setdefault(symmetry.name, []).append(symmetry.high)
                units[symmetry.name] = symmetry.unit
        rows[name] = {
            each: {
                "unit": units[each],
                "values": values,
                "mean": mean(values),
                "spread": stdev(values) if len(values) > 1 else 0.0,
            }
            for each, values in found.items()
        }
    return {
        "data": chosen.train.name,
        "network": network,
        "examples": examples,
        "samples": samples,
        "epochs": epochs,
        "seeds": list(seeds),
        "ranges": rows,
        "test_accuracy": accuracies,
        "goals": _goals(rows),
    }


def _goals(rows: dict[str, Row]) -> list[dict[str, Any]]:
    """How far each path's means lie from those of the fast one."""
    found = []
    fast = rows["fast"]
    for name in rows.keys() - {"fast"}:
        apart = {each: abs(fast[each]["mean"] - row["mean"]) for each, row in rows[name].items()}
        turned = apart.pop(SYMMETRY)
        for what, far, unit, wanted in (
            (SYMMETRY, turned, "degrees", GOALS["degrees"]),
            ("every other range", max(apart.values(), default=0.0), "", GOALS["other units"]),
        ):
            label = f"learned {what}: fast path against {name}, means over seeds apart by"
            found.append(goal(label, far, wanted, at="most", unit=unit))
    return sorted(found, key=lambda each: each["what"])


def table(report: dict[str, Any]) -> list[str]:
    """Lines to print."""
    lines = [
        f"ranges learned from {report['data']}, N = {report['examples']}, "
        f"{report['epochs']} epochs, {len(report['seeds'])} seeds"
    ]
    for name, row in report["ranges"].items():
        shown = ", ".join(
            f"{each} {found['mean']:.3g} ± {found['spread']:.1g}" for each, found in row.items()
        )
        lines.append(f"  {name:19} {shown}")
    return lines
