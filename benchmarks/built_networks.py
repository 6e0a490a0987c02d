"""Networks with a group built in: how exact they are, and what that is worth on turned digits.

    exact      the package's `convnet` and `resnet` with C(4) and D(4): the largest change of an
               output under any element, relative to the largest output, in float32
    accuracy   a small convolutional network and the same with C(4) and D(4) built in, with about as
               many parameters, trained alike on the embedded digits turned by any angle, 3 seeds

Nothing is timed.

    python -m benchmarks.built_networks [--json] [--epochs 30] [--seeds 3]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import isotropy
from benchmarks.timing import goal, goal_lines, options_of, publish
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import digits
from isotropy.data.variants import vary
from isotropy.networks.zoo.backbones import backbone
from isotropy.records import provenance

GROUPS = ("C(4)", "D(4)")
EXACT = 1e-5
BATCH = 25


def turned(images: torch.Tensor, group: str) -> list[torch.Tensor]:
    """Images under every element of C(4) or D(4)."""
    mirrored = [images, images.flip(3)] if group.startswith("D") else [images]
    return [each.rot90(quarter, (2, 3)) for each in mirrored for quarter in range(4)]


@torch.no_grad()
def largest_change(network: nn.Module, images: torch.Tensor, group: str) -> float:
    """Of any output under any element, relative to the largest output."""
    outputs = network.eval()(images)
    changes = [(network(each) - outputs).abs().max() for each in turned(images, group)]
    return float(max(changes) / outputs.abs().max())


def exactness() -> dict[str, dict[str, Any]]:
    """By network and group: the largest change, and what was said of the building."""
    torch.manual_seed(0)
    shape = (3, 32, 32)
    found = {}
    for name in ("convnet", "resnet"):
        network = backbone(name, shape, 10)
        with torch.no_grad():  # layers that start at zero would say nothing
            for parameter in network.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        for group in GROUPS:
            built = isotropy.build(network, group, example=shape)
            change = largest_change(built.model, torch.randn(4, *shape), group)
            found[f"{name}, {group}"] = {"change": change, "said": built.sentence}
    return found


def plain_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def accuracy(network: nn.Module, train: LabelledData, test: LabelledData, epochs: int) -> float:
    """On test data, after some epochs of Adam."""
    optimiser, order = torch.optim.Adam(network.parameters(), lr=1e-3), torch.Generator()
    for epoch in range(epochs):
        for batch in torch.randperm(len(train), generator=order.manual_seed(epoch)).split(BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(network(train.inputs[batch]), train.targets[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        return float((network.eval()(test.inputs).argmax(1) == test.targets).double().mean())


def accuracies(seeds: Sequence[int], epochs: int, examples: int) -> dict[str, Any]:
    """Parameters and test accuracies of the plain network and of those built from it."""
    split = vary(digits(), "rotated")
    assert split.test is not None
    train = split.train.take(torch.arange(min(examples, len(split.train))))
    found: dict[str, Any] = {}
    for seed in seeds:
        torch.manual_seed(seed)
        plain = plain_network()
        built = {group: isotropy.build(plain, group, example=(1, 28, 28)).model for group in GROUPS}
        for name, network in {"plain": plain, **built}.items():
            row = found.setdefault(name, {"accuracy": []})
            row["parameters"] = sum(p.numel() for p in network.parameters())
            row["accuracy"].append(accuracy(network, train, split.test, epochs))
    return found


def run(seeds: Sequence[int], epochs: int, examples: int = 2000) -> dict[str, Any]:
    """Everything, as one JSON object."""
    report: dict[str, Any] = {
        "benchmark": "built_networks",
        **provenance(torch.device("cpu")),
        "seeds": list(seeds),
        "epochs": epochs,
        "exact": exactness(),
        "accuracy": accuracies(seeds, epochs, examples),
    }
    goals = [
        goal(f"{name} built in: largest change", row["change"], EXACT, at="most", unit="")
        for name, row in report["exact"].items()
    ]
    rows = report["accuracy"]
    for group in GROUPS:
        gains = zip(rows[group]["accuracy"], rows["plain"]["accuracy"], strict=True)
        least = min(100 * (ours - plain) for ours, plain in gains)
        what = f"turned digits, {group} built in: points above the plain network, worst seed"
        goals.append(goal(what, least, 0.0, at="least", unit="points"))
    report["goals"] = goals
    return report


def _table(report: dict[str, Any]) -> str:
    lines = ["test accuracy on turned digits"]
    for name, row in report["accuracy"].items():
        shown = "  ".join(f"{each:.1%}" for each in row["accuracy"])
        lines.append(f"  {name:6} {row['parameters']:7,} parameters  {shown}")
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    report = run(range(options.seeds), options.epochs)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
