"""Epochs and hyper steps of residual networks on a GPU, and what is told before a run beside it.

    epoch   ResNet-8-16 and WRN-16-4 at the size of CIFAR-10, 50,000 images, batches of 250, S = 20
            and 10, SGD, bfloat16 in weight steps: an epoch of weight steps, the factors of a hyper
            step with their spectra, its gradient, an epoch with its hyper step, and memory
    step    ResNet-8-16 at CIFAR-10's size, batches of 250, S = 20, making the copies included: as
            `isotropy.learn` takes it in TF32 and in bfloat16, and in plain PyTorch (no kernels, no
            graphs, nothing compiled, images as they lie in memory)
    told    seconds and bytes that `estimate_run` says, over those that the epochs then take

Images are random, which takes as long. On a CPU a few images, and ratios alone: of `epoch` to its
weight steps.

    python -m benchmarks.deep_networks [--json] [--rounds 4] [--device cuda] [--parts epoch]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.data.labelled import LabelledData
from isotropy.evidence.estimate import estimate_run
from isotropy.evidence.laplace import LaplaceFit
from isotropy.evidence.machine import fit_curvature_batch
from isotropy.evidence.settings import LearnConfig, LearnSchedule
from isotropy.evidence.training import Trainer
from isotropy.kernels.fused import reference_path
from isotropy.kernels.precision import multiplying_in
from isotropy.networks.zoo.backbones import backbone
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.runs.prepared import make_trainer

MILLISECONDS_ON_H200 = {"tf32": 16.0, "bfloat16": 11.0}
FACTOR = 2.0
"""What is told may be wrong by so much."""
SECONDS_ON_H200 = {
    "ResNet-8-16": {"weight steps": 3.0, "with its hyper step": 6.0},
    "WRN-16-4": {"weight steps": 5.0, "with its hyper step": 12.0},
}
GIGABYTES = 16.0
PARTS = ("epoch", "step", "told")


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
DEEP = {"epochs": 200, "burn_in": 0, "batch_size": 250, "optimiser": "sgd", "warm_up": 1.0,
        "curvature": "kfac-mc", "prior_steps": 4, "prior_structure": "tensor",
        "precision": "bfloat16", "compiled": True, "gradient_batches": 10}  # fmt: skip
EPOCHS = {
    "ResNet-8-16": Case("resnet", (3, 32, 32), 50_000, {**DEEP, "samples": 20}),
    "WRN-16-4": Case("wrn", (3, 32, 32), 50_000, {**DEEP, "samples": 10}),
}
SHORT = {**DEEP, **SMALL, "compiled": False, "precision": "float32", "curvature_examples": 8}


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


def epochs(case: Case, device: torch.device, rounds: int) -> dict[str, float]:
    """Seconds of the parts of an epoch, on a CPU in those of its weight steps; memory on a GPU."""
    on_gpu = device.type == "cuda"
    trainer = trainer_of(case, device)
    few, limit = trainer.hyper.few, trainer.hyper.gradient_limit
    fits: list[LaplaceFit] = []

    def weight_steps() -> None:
        trainer.weight_steps.epoch(1)

    def factors() -> None:
        found = trainer.evidence.fit(trainer.orbit_batches("factors", limit=few))
        fits[:] = [replace(found, stands_for=case.examples)]

    def gradient() -> None:
        batches = trainer.orbit_batches("ranges", limit=limit, graph=True)
        trainer.evidence.gradient(fits[0], batches, trainer.ranges)

    def with_hyper_step() -> None:
        weight_steps()
        trainer.hyper.take(trainer)

    parts = {
        "weight steps": weight_steps,
        "factors and spectra": factors,
        "gradient": gradient,
        "with its hyper step": with_hyper_step,
    }
    trainer.epoch = 1
    with multiplying_in(trainer.config.precision, device):
        for part in parts.values():  # compiled, captured and chosen the first time
            part()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        found = fastest(parts, device, rounds)
    if not on_gpu:
        return {name: each / found["weight steps"] for name, each in found.items()}
    return {**found, "gigabytes": torch.cuda.max_memory_allocated(device) / 1e9}


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


def run(device: torch.device, rounds: int, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Everything, or some parts of it, which the name then says, as one JSON object."""
    on_gpu = device.type == "cuda"
    cases = TOLD if on_gpu else {"resnet": Case("resnet", (3, 8, 8), 16, SMALL)}
    deep = EPOCHS if on_gpu else {"ResNet-8-16": Case("resnet", (3, 8, 8), 16, SHORT)}
    name = "-".join(["deep_networks", *(() if set(parts) == set(PARTS) else parts)])
    report: dict[str, Any] = {"benchmark": name, **provenance(device)}
    if "epoch" in parts:
        few = max(1, rounds // 2)
        report["epoch"] = {name: epochs(case, device, few) for name, case in deep.items()}
    if "step" in parts:
        report["step"] = steps(device, rounds)
    if "told" in parts:
        report["told"] = {name: told(case, device) for name, case in cases.items()}
    return report | {"goals": _goals(report)}


def _goals(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Claims about what was measured: those in seconds of an H200 alone."""
    goals = []
    if "H200" in report["device_name"]:
        for precision, number in report.get("step", {}).get("milliseconds", {}).items():
            if precision in MILLISECONDS_ON_H200:
                most = MILLISECONDS_ON_H200[precision]
                what = f"ResNet-8-16, S = 20, batch 250: weight step, {precision}"
                goals.append(goal(what, number, most, at="most", unit="ms"))
        for name, own in report.get("epoch", {}).items():
            goals += [
                goal(f"{name}: an epoch, {part}", own[part], most, at="most", unit="s")
                for part, most in SECONDS_ON_H200[name].items()
            ]
            goals.append(goal(f"{name}: memory", own["gigabytes"], GIGABYTES, at="most", unit="GB"))
    for name, row in report.get("told", {}).items():
        for part in ("seconds", "memory"):
            if part in row:
                wrong = max(row[part], 1 / row[part])
                what = f"{name}: {part} told before the run, wrong by a factor of"
                goals.append(goal(what, wrong, FACTOR, at="most", unit=""))
    return goals


def _table(report: dict[str, Any]) -> str:
    lines = [report["device_name"]]
    if "step" in report:
        shown = report["step"].get("milliseconds", report["step"]["times_as_long"])
        lines.append("weight step of ResNet-8-16")
        lines += [f"  {name:22} {number:8.2f}" for name, number in shown.items()]
    for name, parts in report.get("epoch", {}).items():
        lines.append(f"an epoch of {name}")
        lines += [f"  {part:22} {number:8.2f}" for part, number in parts.items()]
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=4)
    add_device(parser)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    report = run(options.device, options.rounds, options.parts)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
