"""What a step of an equivariant network costs, beside a plain one of equal size.

Forward and backward of `EMLP` and `plain_mlp`, 3 layers of 384 channels, batches of 500, for one
problem a group; also what finding all bases and making the network takes, once. Steps take turns,
and the least seconds of several rounds are compared. Ratios hold within one run.

    python -m benchmarks.equivariant_networks [--json] [--rounds 20] [--device cpu]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.bases.solving import forget
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.records import provenance
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import Representation, Scalar, T, V

MOST = 2.5
"""Steps of the plain network that a step of the equivariant one may take."""
BATCH = 500
PROBLEMS: dict[str, tuple[Representation, Representation]] = {
    "SO(3)": (5 * Scalar + 5 * V, T(2)),
    "O(5)": (2 * V, Scalar),
    "S(4)": (2 * V, V),
    "SO+(1,3)": (4 * V, Scalar),
    "D(5)": (2 * V, Scalar),
    "D(6)": (2 * V, Scalar),
}


def compared(name: str, device: torch.device, rounds: int, channels: int) -> dict[str, float]:
    """Seconds of a step by both networks, their ratio, and seconds of making the equivariant."""
    group = group_named(name)
    source, target = (each(group) for each in PROBLEMS[name])
    forget()
    started = time.perf_counter()
    networks: dict[str, nn.Module] = {"emlp": EMLP(source, target, channels=channels)}
    making = time.perf_counter() - started
    networks["mlp"] = plain_mlp(source.size, target.size, channels=channels)
    inputs = torch.randn(BATCH, source.size, device=device)
    steps: dict[str, Callable[[], None]] = {
        kind: partial(_step, network.to(device), inputs) for kind, network in networks.items()
    }
    seconds = fastest(steps, device, rounds)
    return {
        **seconds,
        "ratio": seconds["emlp"] / seconds["mlp"],
        "making": making,
        "parameters": float(sum(each.numel() for each in networks["emlp"].parameters())),
    }


def _step(network: nn.Module, inputs: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    network(inputs).square().mean().backward()


def run(rounds: int, device: torch.device, channels: int = 384) -> dict[str, Any]:
    """Everything, as one JSON object."""
    torch.manual_seed(0)
    found = {name: compared(name, device, rounds, channels) for name in PROBLEMS}
    return {
        "benchmark": "equivariant_networks",
        "channels": channels,
        "batch": BATCH,
        **provenance(device),
        "networks": found,
        "goals": [
            goal(
                f"{name}, forward and backward",
                row["ratio"],
                MOST,
                at="most",
                unit="times a plain network's",
            )
            for name, row in found.items()
        ],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=20)
    add_device(parser)
    options = parser.parse_args(arguments)
    report = run(options.rounds, options.device)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}: {report['channels']} channels, batches of {BATCH}"]
    for name, row in report["networks"].items():
        lines.append(
            f"  {name:10} {row['ratio']:.2f} times a plain step; made in {row['making']:.2f} s"
        )
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
