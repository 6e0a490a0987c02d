"""Fill the tables of docs/scale.md: what a run costs on several ranks, by a model and as measured.

    python scripts/scale_table.py            rewrite the tables
    python scripts/scale_table.py --check    exit 1 if they are not what results/ gives

The model is in docs/scale.md. Its constants come from the epochs of WRN-16-4 that the benchmark
`deep_networks` timed, and from timed decompositions; how fast ranks send to each other is assumed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.curvature.low_rank import LARGEST_EXACT, RANK
from isotropy.networks.zoo.backbones import backbone

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "scale.md", ROOT / "results"
FEW = 10_000
"""Examples of an evidence pass that stand for all, and of its gradient."""
GRADIENT = 2_500
CORES = 2
"""Of the machine on which `distributed` ran."""
BYTES = 4
SENT = {8: 200e9, 64: 40e9}
"""Bytes a second that a rank sends: within a machine of 8 GPUs, and between machines. Assumed."""
READ = 500.0 * 16
"""Pictures a second that 16 cores beside a GPU decode. Assumed."""

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """A convolution or linear map: rows of its two factors, and output positions."""

    inputs: int
    outputs: int
    positions: int = 1

    @property
    def numbers(self) -> int:
        """Of a row's output."""
        return self.outputs * self.positions

    @property
    def products(self) -> int:
        """Multiplications of a row."""
        return self.inputs * self.numbers


def resnet_50() -> Iterator[Layer]:
    """The layers of ResNet-50 at 224 × 224 pixels (He et al. 2016), without batch normalisation."""
    yield Layer(3 * 49, 64, 112**2)
    before = 64
    for blocks, width, size in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            yield Layer(before, width, (size * stride) ** 2)
            yield Layer(9 * width, width, size**2)
            yield Layer(width, 4 * width, size**2)
            if block == 0:
                yield Layer(before, 4 * width, size**2)
            before = 4 * width
    yield Layer(before, 1000)


def layers_of(name: str) -> list[Layer]:
    """The layers of a network of the package at 32 × 32 pixels."""
    found: list[Layer] = []

    def seen(module: nn.Module, _: object, output: Tensor) -> None:
        weight = module.get_parameter("weight")
        found.append(Layer(weight[0].numel(), len(weight), output[0].numel() // len(weight)))

    network = backbone(name, (3, 32, 32), 10)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(seen)
    with torch.no_grad():
        network(torch.zeros(1, 3, 32, 32))
    return found


def numbers_of(layers: Iterable[Layer]) -> int:
    """Outputs of all layers for a row."""
    return sum(layer.numbers for layer in layers)


@dataclass(frozen=True)
class Machine:
    """Outputs of layers a second in each part, and the time of decompositions by rows."""

    weight_steps: float
    factors: float
    gradient: float
    decompositions: Mapping[int, float]

    def decomposition(self, rows: int) -> float:
        """Seconds, as of the next larger one that was timed; beyond those with the cube.

        Larger blocks than are kept exactly take no longer than the largest of those.
        """
        rows = min(rows, LARGEST_EXACT)
        for known, seconds in sorted(self.decompositions.items()):
            if rows <= known:
                return seconds
        return seconds * (rows / known) ** 3


def machine() -> Machine:
    """The H200, by WRN-16-4."""
    own = _read("bench/deep_networks-epoch-nvidia-h200.json")["epoch"]["WRN-16-4"]
    timed = _read("scale/decompositions-nvidia-h200.json")["seconds"]
    rows = numbers_of(layers_of("wrn")) * 10
    return Machine(
        rows * 50_000 / own["weight steps"],
        rows * FEW / own["factors and spectra"],
        rows * GRADIENT / own["gradient"],
        {int(rows): seconds for rows, seconds in timed.items()},
    )


def factor_numbers(rows: int) -> int:
    """Of a factor: all, or so many eigenvectors."""
    return rows * (rows if rows <= LARGEST_EXACT else RANK)


def imagenet(ranks: int, copies: int, batch: int) -> dict[str, float]:
    """Seconds of the parts of an epoch of ResNet-50 with its hyper step."""
    layers, own, examples = list(resnet_50()), machine(), 1_281_167
    rows = numbers_of(layers) * copies
    weights = sum(layer.inputs * layer.outputs for layer in layers)
    numbers = sum(factor_numbers(n) for layer in layers for n in (layer.inputs, layer.outputs))
    turns = 2 * (ranks - 1) / ranks * BYTES / SENT.get(ranks, math.inf)
    blocks = [own.decomposition(n) for layer in layers for n in (layer.inputs, layer.outputs)]
    return {
        "weight steps": rows * examples / own.weight_steps / ranks,
        "their sums over ranks": examples / batch * weights * turns,
        "reading": examples / READ / ranks,
        "factors": rows * FEW / own.factors / ranks,
        "their sums over ranks ": numbers * turns,
        "decompositions": max(sum(blocks) / ranks, max(blocks)),
        "gradient": rows * GRADIENT / own.gradient / ranks,
    }


def imagenet_table(copies: int = 10, batch: int = 256) -> str:
    """The parts on 1, 8 and 64 GPUs."""
    found = {ranks: imagenet(ranks, copies, batch) for ranks in (1, 8, 64)}
    lines = [
        f"| seconds, S = {copies}, batches of {batch} | 1 GPU | 8 GPUs | 64 GPUs |",
        "|---|---|---|---|",
    ]
    for name in found[1]:
        cells = " | ".join(_told(each[name]) for each in found.values())
        lines.append(f"| {name.strip()} | {cells} |")
    return "\n".join(lines)


def predicted_table() -> str:
    """What the model says of 2 and 4 processes on two cores, beside what was measured."""
    path = next(iter(sorted((RESULTS / "bench").glob("distributed-*.json"))), None)
    if path is None:
        return "Not run yet."
    report = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        "| part, in epochs of one process | 1 process | 2 processes | by the model | 4 processes | "
        "by the model |",
        "|---|---|---|---|---|---|",
    ]
    for name, own in report["in_epochs"].items():
        alone = own["1"]
        model = {count: alone / min(count, CORES) for count in (2, 4)}
        lines.append(
            f"| {name} | {alone:.2f} | {own['2']:.2f} | {model[2]:.2f} | {own['4']:.2f} | "
            f"{model[4]:.2f} |"
        )
    return "\n".join(lines)


def other_network() -> str:
    """How far the constants of WRN-16-4 are off for ResNet-8-16."""
    own = machine()
    took = _read("bench/deep_networks-epoch-nvidia-h200.json")["epoch"]["ResNet-8-16"]
    rows = numbers_of(layers_of("resnet")) * 20
    said = {
        "weight steps": rows * 50_000 / own.weight_steps,
        "factors and spectra": rows * FEW / own.factors,
        "gradient": rows * GRADIENT / own.gradient,
    }
    lines = ["| ResNet-8-16, seconds on an H200 | measured | by the model |", "|---|---|---|"]
    lines += [f"| {name} | {took[name]:.2f} | {each:.2f} |" for name, each in said.items()]
    return "\n".join(lines)


def _told(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _read(name: str) -> Report:
    found: Report = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


TABLES = {"ranks": predicted_table, "networks": other_network, "imagenet": imagenet_table}


def filled(text: str) -> str:
    """The page with its tables."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table()}\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    if options.check:
        sys.exit(0 if filled(text) == text else "docs/scale.md is out of date")
    PAGE.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
