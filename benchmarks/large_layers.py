"""An evidence pass of an MLP with a large first layer: factors in parts beside exact ones.

    pass    factors and spectra of all examples, then the gradient by one range, as a hyper step
            takes them; the network is an MLP on colour pictures, 12,288 inputs at 64 × 64 pixels
    memory  on a GPU what was allocated at most, on a CPU by how much the process grew at most

The pass with factors in parts runs first. The exact one takes a matrix of inputs² numbers in double
precision, several times over: on a CPU a quarter of an hour and 6 GB.

    python -m benchmarks.large_layers [--json] [--rounds 1] [--device cuda] [--pixels 64]
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.curvature import low_rank
from isotropy.data.labelled import LabelledData
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.networks.zoo.backbones import backbone
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.runs.prepared import make_trainer

TIMES, GIGABYTES, NEAR = 5.0, 2.0, 1e-3
"""What is claimed: so many times as fast, at most so much memory, the evidence so near."""


def trainer_of(pixels: int, examples: int, device: torch.device) -> Trainer[Any]:
    """A run that is about to begin, on smooth random pictures."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(examples, 3, 8, 8, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size=(pixels, pixels), mode="bicubic")
    labels = torch.arange(examples) % 10
    data = LabelledData(images, labels, classes=tuple(map(str, range(10))), name="smooth")
    torch.manual_seed(0)
    network = backbone("mlp", (3, pixels, pixels), 10, hidden=100)
    config = LearnConfig(samples=2, search=False, curvature_batch=100)
    resolved = config.resolved(examples=examples, on_gpu=device.type == "cuda")
    return make_trainer(network, data, affine(("rotation",)), resolved, device)


def evidence_pass(trainer: Trainer[Any]) -> float:
    """Value and gradient; log Z."""
    fit = trainer.evidence.fit(trainer.orbit_batches("benchmark"))
    batches = trainer.orbit_batches("benchmark", graph=True)
    trainer.evidence.gradient(fit, batches, trainer.ranges)
    return float(trainer.evidence.value(fit).detach())


def _grown(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(
    device: torch.device, pixels: int = 64, examples: int = 500, rounds: int = 1
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    trainer = trainer_of(pixels, examples, device)
    kept = low_rank.LARGEST_EXACT, low_rank.THIN_FROM
    found: dict[str, Any] = {}
    try:
        for name, limits in (("in parts", (min(kept[0], 1000), kept[1])), ("exact", (10**9,) * 2)):
            low_rank.LARGEST_EXACT, low_rank.THIN_FROM = limits
            before = _grown(device)
            value = evidence_pass(trainer)
            grown = _grown(device) - (0 if device.type == "cuda" else before)
            tasks = {name: lambda: evidence_pass(trainer)}
            seconds = fastest(tasks, device, rounds)[name]
            found[name] = {"seconds": seconds, "bytes": grown, "log_evidence": value}
    finally:
        low_rank.LARGEST_EXACT, low_rank.THIN_FROM = kept
    parts, exact = found["in parts"], found["exact"]
    near = abs(parts["log_evidence"] / exact["log_evidence"] - 1)
    return {
        "benchmark": "large_layers",
        **provenance(device),
        "inputs": 3 * pixels * pixels,
        "examples": examples,
        "passes": found,
        "goals": [
            goal("evidence pass in parts against exact", exact["seconds"] / parts["seconds"],
                 TIMES, at="least", unit="times as fast"),
            goal("memory of the pass in parts", parts["bytes"] / 1e9, GIGABYTES, at="most",
                 unit="GB"),
            goal("log evidence in parts, relative difference", near, NEAR, at="most", unit=""),
        ],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=1)
    add_device(parser)
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--examples", type=int, default=500)
    options = parser.parse_args(arguments)
    report = run(options.device, options.pixels, options.examples, options.rounds)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}: an evidence pass of an MLP on {report['inputs']:,} inputs"]
    for name, row in report["passes"].items():
        lines.append(
            f"  {name}: {row['seconds']:.2f} s, {row['bytes'] / 1e9:.2f} GB, log Z "
            f"{row['log_evidence']:.1f}"
        )
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
