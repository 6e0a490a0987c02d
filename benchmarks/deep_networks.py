"""A weight step of a convolutional network on a GPU, and what is told before a run beside it.

    step    ResNet-8-16 at CIFAR-10's size, batches of 250, S = 20, making the copies included: as
            `isotropy.learn` takes it in TF32 and in bfloat16, and in plain PyTorch (no kernels, no
            graphs, nothing compiled, images as they lie in memory)
    told    seconds and bytes that `estimate_run` says, over those that the epochs then take

Images are random, which takes as long. On a CPU a few images, and ratios alone.

    python -m benchmarks.deep_networks [--json] [--rounds 4] [--device cuda]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.data.labelled import LabelledData
from isotropy.evidence.estimate import estimate_run
from isotropy.evidence.machine import fit_curvature_batch
from isotropy.evidence.settings import LearnConfig, LearnSchedule
from isotropy.evidence.training import Trainer
from isotropy.kernels.fused import reference_path
from isotropy.networks.zoo.backbones import backbone
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.runs.prepared import make_trainer

MILLISECONDS_ON_H200 = {"tf32": 16.0, "bfloat16": 11.0}
FACTOR = 2.0
"""What is told may be wrong by so much."""


@dataclass(frozen=True)
class Case:
    """A run whose time is told: a network, pixels, examples and settings."""

    network: str
    shape: tuple[int, int, int]
    examples: int
    settings: Mapping[str, Any] = field(default_factory=dict)


TOLD = {
    "mlp": Case("mlp", (1, 28, 28), 60_000, {"epochs": 30}),
    "resnet, precisions": Case(
        "resnet",
        (3, 32, 32),
        2500,
        {"epochs": 12, "samples": 20, "batch_size": 250, "refine": False, "compiled": True},
    ),
    "resnet, ranges": Case(
        "resnet",
        (3, 32, 32),
        1500,
        {"epochs": 6, "samples": 20, "batch_size": 250, "burn_in": 2, "compiled": True},
    ),
}
SMALL = {"epochs": 2, "samples": 2, "batch_size": 8, "burn_in": 0}


def trainer_of(case: Case, device: torch.device, **settings: Any) -> Trainer[LearnSchedule]:
    """A trainer as `isotropy.learn` makes it, on random images whose mean says the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(case.examples) % 10
    images = torch.rand((case.examples, *case.shape), generator=generator)
    images = 0.5 * images + 0.05 * labels[:, None, None, None]
    data = LabelledData(images, labels, None, "random images")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = backbone(case.network, case.shape, 10).to(device)
    config = LearnConfig(**{"search": False, **case.settings, **settings})
    schedule = config.resolved(examples=case.examples, on_gpu=device.type == "cuda")
    schedule = fit_curvature_batch(schedule, model, images[:1], device)
    return make_trainer(model, data, affine(), schedule, device)


def steps(device: torch.device, rounds: int) -> dict[str, Any]:
    """Milliseconds of a weight step on a GPU, and times as long as in TF32, by path."""
    on_gpu = device.type == "cuda"
    case = Case("resnet", (3, 32, 32), 5000) if on_gpu else Case("resnet", (3, 8, 8), 16)
    size = {"samples": 20, "batch_size": 250} if on_gpu else {"samples": 2, "batch_size": 8}
    never = {"epochs": 1000, "burn_in": 1000, **size}
    plain = {"captured": False, "compiled": False}
    paths = {
        "tf32": ({"compiled": on_gpu}, nullcontext),
        "bfloat16": ({"compiled": on_gpu, "precision": "bfloat16"}, nullcontext),
        "plain PyTorch, tf32": (plain, reference_path),
    }
    seconds, described = {}, {}
    for name, (settings, context) in paths.items():
        with context():
            trainer = trainer_of(case, device, **never, **settings)
            trainer.weight_steps.network_pass.channels_last &= name in MILLISECONDS_ON_H200
            seconds[name] = fastest({name: trainer.run_epoch}, device, rounds)[name]
        described[name] = trainer.weight_steps.network_pass.described()
        del trainer
    batches = case.examples // size["batch_size"]
    found: dict[str, Any] = {
        "described": described,
        "times_as_long": {name: each / seconds["tf32"] for name, each in seconds.items()},
    }
    if on_gpu:
        found["milliseconds"] = {name: 1000 * each / batches for name, each in seconds.items()}
    return found


def told(case: Case, device: torch.device) -> dict[str, float]:
    """What was told over what was taken, in seconds and, on a GPU, in bytes."""
    on_gpu = device.type == "cuda"
    trainer = trainer_of(case, device)
    estimate = estimate_run(trainer)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    for _ in range(trainer.config.epochs):
        trainer.run_epoch()
    if on_gpu:
        torch.cuda.synchronize(device)
    took = time.perf_counter() - started
    found = {"seconds": estimate.seconds / took}
    if on_gpu:
        found |= {"memory": estimate.memory / torch.cuda.max_memory_allocated(device)}
        found |= {"took": took, "gigabytes": torch.cuda.max_memory_allocated(device) / 1e9}
    return found


def run(device: torch.device, rounds: int) -> dict[str, Any]:
    """Everything, as one JSON object."""
    on_gpu = device.type == "cuda"
    cases = TOLD if on_gpu else {"resnet": Case("resnet", (3, 8, 8), 16, SMALL)}
    report: dict[str, Any] = {
        "benchmark": "deep_networks",
        **provenance(device),
        "step": steps(device, rounds),
        "told": {name: told(case, device) for name, case in cases.items()},
    }
    goals = []
    if "H200" in report["device_name"]:
        goals += [
            goal(
                f"ResNet-8-16, S = 20, batch 250: weight step, {precision}",
                report["step"]["milliseconds"][precision],
                most,
                at="most",
                unit="ms",
            )
            for precision, most in MILLISECONDS_ON_H200.items()
        ]
    for name, row in report["told"].items():
        for part in ("seconds", "memory"):
            if part in row:
                wrong = max(row[part], 1 / row[part])
                what = f"{name}: {part} told before the run, wrong by a factor of"
                goals.append(goal(what, wrong, FACTOR, at="most", unit=""))
    report["goals"] = goals
    return report


def _table(report: dict[str, Any]) -> str:
    shown = report["step"].get("milliseconds", report["step"]["times_as_long"])
    lines = [f"{report['device_name']}: weight step of ResNet-8-16"]
    lines += [f"  {name:22} {number:8.2f}" for name, number in shown.items()]
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=4)
    add_device(parser)
    options = parser.parse_args(arguments)
    report = run(options.device, options.rounds)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
