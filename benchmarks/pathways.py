"""What a step of a relaxed network costs, beside the convolutional or equivariant one.

Forward and backward of the paper's architecture at 32 × 32 with ten channels in its first layer,
batches of 128: every sum of pathways against convolution alone; also one evidence pass over 200
examples. And of an EMLP of O(3) that learns the moment of inertia (384 channels, batches of 500):
relaxed, against the EMLP and an MLP of its widths together. Steps take turns, and the least seconds
of several rounds are compared. Ratios hold within one run.

    python -m benchmarks.pathways [--json] [--rounds 20] [--device cpu]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.curvature.kinds import Copies
from isotropy.evidence.laplace import Batch, GaussianPrior, LaplaceEvidence
from isotropy.likelihoods import Categorical
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.networks.pathways.relax import relax, relaxed_cnn
from isotropy.records import provenance
from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.representations import Scalar, T, V

MOST = 2.5
"""Steps of the convolutional network that a step of F-FC + CONV may take."""
MOST_OF_BOTH = 1.5
"""Steps of the EMLP and the MLP together that a step of the relaxed EMLP may take."""
VECTOR_CHANNELS, VECTOR_BATCH = 384, 500
BATCH = 128
EVIDENCE_EXAMPLES = 200
WIDTH = 10
SUMS = ("conv", "ffc", "ffc+conv", "sconv", "sfc+sconv")


def networks(device: torch.device, width: int) -> dict[str, nn.Module]:
    """One network a sum of pathways."""
    return {
        each: relaxed_cnn((3, 32, 32), 10, pathways=tuple(each.split("+")), width=width).to(device)
        for each in SUMS
    }


def vector_networks(device: torch.device, channels: int) -> dict[str, nn.Module]:
    """An EMLP for moments of inertia, the same relaxed, and the MLP of its widths."""
    emlp = EMLP(5 * Scalar + 5 * V, T(2), group_named("O(3)"), channels=channels)
    mlp = plain_mlp(emlp.in_features, emlp.out_features, channels=channels)
    made: dict[str, nn.Module] = {"emlp": emlp, "mlp": mlp, "relaxed emlp": relax(emlp)}
    return {name: each.to(device) for name, each in made.items()}


def _vector_step(network: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    functional.mse_loss(network(inputs), targets).backward()


def _step(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    network.zero_grad(set_to_none=True)
    functional.cross_entropy(network(images), labels).backward()


def _pass(evidence: LaplaceEvidence, images: Tensor, labels: Tensor) -> None:
    batch = Batch(images, labels, Copies(1), is_checked=True)
    evidence.fit([batch], values_only=True)


def run(
    rounds: int, device: torch.device, width: int = WIDTH, channels: int = VECTOR_CHANNELS
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    torch.manual_seed(0)
    images = torch.randn(max(BATCH, EVIDENCE_EXAMPLES), 3, 32, 32, device=device)
    labels = torch.randint(10, (len(images),), device=device)
    made = networks(device, width)
    steps: dict[str, Callable[[], None]] = {
        name: partial(_step, network, images[:BATCH], labels[:BATCH])
        for name, network in made.items()
    }
    seconds = fastest(steps, device, rounds)
    passes: dict[str, Callable[[], None]] = {}
    for name in ("conv", "ffc+conv"):
        network = made[name]
        names = tuple(name for name, _ in network.named_parameters())
        evidence = LaplaceEvidence(network, Categorical(), GaussianPrior(network, names, "tensor"))
        part = slice(0, EVIDENCE_EXAMPLES)
        passes[name] = partial(_pass, evidence, images[part], labels[part])
    evidences = fastest(passes, device, max(1, rounds // 10))
    vectors = vector_networks(device, channels)
    inputs, targets = (torch.randn(VECTOR_BATCH, n, device=device) for n in (20, 9))
    vector_steps = {n: partial(_vector_step, each, inputs, targets) for n, each in vectors.items()}
    vector_seconds = fastest(vector_steps, device, rounds)
    return {
        "benchmark": "pathways",
        "width": width,
        "batch": BATCH,
        **provenance(device),
        "seconds": seconds,
        "ratios": {name: each / seconds["conv"] for name, each in seconds.items()},
        "evidence_examples": EVIDENCE_EXAMPLES,
        "evidence_seconds": evidences,
        "vector_channels": channels,
        "vector_seconds": vector_seconds,
        "goals": [
            goal(
                "relaxed EMLP, forward and backward",
                vector_seconds["relaxed emlp"] / (vector_seconds["emlp"] + vector_seconds["mlp"]),
                MOST_OF_BOTH,
                at="most",
                unit="times EMLP and MLP together",
            ),
            goal(
                "F-FC + CONV, forward and backward",
                seconds["ffc+conv"] / seconds["conv"],
                MOST,
                at="most",
                unit="times convolution alone",
            ),
        ],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=20)
    add_device(parser)
    options = parser.parse_args(arguments)
    report = run(options.rounds, options.device)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}: first layer of {report['width']}, batches of {BATCH}"]
    lines += [f"  {name:10} {ratio:.2f} times conv" for name, ratio in report["ratios"].items()]
    passes = report["evidence_seconds"]
    lines.append(
        f"  an evidence pass over {report['evidence_examples']} examples: ffc+conv "
        f"{passes['ffc+conv'] / passes['conv']:.1f} times conv"
    )
    lines += [f"  {name:12} {1e3 * each:.1f} ms" for name, each in report["vector_seconds"].items()]
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
