"""What each fast path gains: a whole run without it, as a ratio of the run with all of them.

One path is taken out at a time, and everything runs in turns within one process:

    mlp          MNIST's size, S = 31, batches of 1000
    resnet       Fixup ResNet of depth 8 and width 16 at CIFAR-10's size, S = 20, batches of 250
    wide         the same of depth 14 and width 64 (a WRN-16-4 without normalisation)
    relax        convolution and factored full connection at CIFAR-10's size, batches of 256
    soft         convolution and full connection there, fixed priors, bfloat16, 29 million weights
    certify      a certificate of `oriented:32` on the embedded digits, one entry of the grid

A whole run of the first three is an epoch of weight steps, an evidence pass and the gradient by the
ranges, as often as one another; of relax an epoch and the pass behind its hyper step, of soft an
epoch. Their images are random, which takes as long. A path earns its place by 1.5 times on one of
these runs; what a path does not touch in a network is left out of its rows.

    python -m benchmarks.ablation [--json] [--rounds 2] [--networks mlp,resnet] [--device cuda]
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.bounds import compressing
from isotropy.bounds.compressing import Grid
from isotropy.bounds.search import CertifyConfig
from isotropy.curvature import kfac
from isotropy.data.labelled import LabelledData
from isotropy.data.readers import digits
from isotropy.evidence.layers.settings import RelaxConfig
from isotropy.evidence.machine import fit_curvature_batch
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.kernels import compiled, fused, operations
from isotropy.kernels.precision import multiplying_in
from isotropy.likelihoods import Categorical
from isotropy.networks.pathways.relax import relaxed_cnn
from isotropy.networks.zoo.backbones import backbone
from isotropy.records import provenance
from isotropy.symmetry.actions import exponential
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.certifying import certify
from isotropy.workflows.runs.prepared import make_trainer

EARNS = 1.5
"""Times as long that a whole run must take without a path."""
Taken = Callable[[], AbstractContextManager[Any]]


def _without_module(name: str) -> Taken:
    """No kernels from the module of this name."""
    found = fused.imported
    return lambda: patch.object(
        fused, "imported", lambda each: None if each == name else found(each)
    )


def _without_stand_ins(stands: Mapping[Any, Any], *functions: Any) -> Taken:
    """torch's own functions where others stand in for them."""

    @contextmanager
    def taken() -> Iterator[None]:
        table: Any = stands
        before = {each: table.pop(each) for each in functions if each in table}
        try:
            yield
        finally:
            table.update(before)

    return taken


@dataclass(frozen=True)
class FastPath:
    """How one is taken out, which networks it can touch, and settings of a run without it."""

    taken: Taken = nullcontext
    networks: tuple[str, ...] = ("mlp", "resnet", "wide", "relax")
    settings: Mapping[str, Any] | None = None


_CONVOLVE = (functional.conv1d, functional.conv2d, functional.conv3d)
_BEND = (functional.relu, torch.relu, Tensor.relu, functional.tanh, torch.tanh, Tensor.tanh)
_POOL = (functional.max_pool2d, torch.max_pool2d)
_MOVING = ("mlp", "resnet", "wide")
_CONVOLUTIONAL = ("resnet", "wide", "relax")
PATHS: dict[str, FastPath] = {
    "warp kernel": FastPath(_without_module("isotropy.symmetry.actions.warp_triton"), _MOVING),
    "CUDA graphs": FastPath(settings={"captured": False}),
    "torch.compile": FastPath(networks=_CONVOLUTIONAL, settings={"compiled": False}),
    "channels last": FastPath(
        lambda: patch.object(compiled, "is_convolutional", lambda _: False), _CONVOLUTIONAL
    ),
    "constant convolutions": FastPath(
        _without_stand_ins(operations.RECORDED, *_CONVOLVE), _CONVOLUTIONAL
    ),
    "activations that keep slopes": FastPath(_without_stand_ins(operations.RECORDED, *_BEND)),
    "maxima as selections": FastPath(_without_stand_ins(operations.RECORDED, *_POOL), ("relax",)),
    "means of slopes": FastPath(
        lambda: patch.object(kfac, "mean_slopes", lambda *_: None), ("mlp",)
    ),
    "exponential by squarings": FastPath(
        lambda: patch.object(exponential, "_by_squaring", exponential.reference_exponential),
        _MOVING,
    ),
    "bfloat16": FastPath(networks=("soft",), settings={"precision": "float32"}),
    "first layers without weights once": FastPath(
        lambda: patch.object(compressing, "after_fixed_layers", lambda *given: given), ("certify",)
    ),
}


@dataclass(frozen=True)
class Case:
    """A run that a user would make: network, pixels, copies, batches, examples to time."""

    network: str
    shape: tuple[int, int, int]
    samples: int
    batch: int
    examples: int
    arguments: Mapping[str, Any]


CASES = {
    "mlp": Case("mlp", (1, 28, 28), 31, 1000, 20_000, {}),
    "resnet": Case("resnet", (3, 32, 32), 20, 250, 1_000, {}),
    "wide": Case("resnet", (3, 32, 32), 20, 50, 50, {"width": 64, "depth": 14}),
    "relax": Case("relax", (3, 32, 32), 1, 256, 5_120, {}),
    "soft": Case("soft", (3, 32, 32), 1, 256, 2_560, {"pathways": ("fc", "conv"), "width": 4}),
    "certify": Case("certify", (1, 28, 28), 1, 100, 2_000, {}),
}


def _data(case: Case, scale: float) -> LabelledData:
    generator = torch.Generator().manual_seed(0)
    examples = max(case.batch, int(case.examples * scale))
    inputs = torch.rand((examples, *case.shape), generator=generator)
    return LabelledData(inputs, torch.arange(examples) % 10, None, "random images")


def parts(
    case: Case, data: LabelledData, path: FastPath, device: torch.device
) -> dict[str, Callable[[], object]]:
    """The parts of a run without `path`, each a task that may be repeated."""
    settings = {
        "compiled": device.type == "cuda",
        "batch_size": case.batch,
        **(path.settings or {}),
    }
    torch.manual_seed(0)
    own = {"relax": _relax_tasks, "soft": _soft_tasks, "certify": _certify_tasks}
    make = own.get(case.network, _learn_tasks)
    with path.taken():
        tasks, precision = make(case, data, settings, device)

    def within(task: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with path.taken(), multiplying_in(precision, device):
                task()

        return run

    return {name: within(task) for name, task in tasks.items()}


def _learn_tasks(
    case: Case, data: LabelledData, settings: Mapping[str, Any], device: torch.device
) -> tuple[dict[str, Callable[[], object]], str]:
    model = backbone(case.network, case.shape, 10, **case.arguments).to(device)
    config = LearnConfig(samples=case.samples, gradient_batches=0, **settings)
    config = replace(config, epochs=1000, burn_in=1000)  # epochs take weight steps alone
    schedule = config.resolved(examples=len(data), on_gpu=device.type == "cuda")
    schedule = fit_curvature_batch(schedule, model, data.inputs[:1])
    trainer = make_trainer(model, data, affine(), schedule, device)

    def gradient() -> None:
        fit = trainer.evidence.fit(trainer.orbit_batches("factors"))
        trainer.evidence.gradient(fit, trainer.orbit_batches("ranges", graph=True), trainer.ranges)

    return {"epoch": trainer.run_epoch, "evidence": gradient}, schedule.precision


def _relax_tasks(
    case: Case, data: LabelledData, settings: Mapping[str, Any], device: torch.device
) -> tuple[dict[str, Callable[[], object]], str]:
    network = relaxed_cnn(case.shape, 10, **case.arguments).to(device)
    config = RelaxConfig(epochs=1000, burn_in=1000, **settings).resolved(
        examples=len(data), on_gpu=device.type == "cuda"
    )
    trainer = Trainer(
        network, Categorical().to(device), config, data.inputs.to(device), data.targets.to(device)
    )
    tasks = {"epoch": trainer.run_epoch, "evidence": lambda: trainer.hyper.fit(trainer)}
    return tasks, config.precision


def _soft_tasks(
    case: Case, data: LabelledData, settings: Mapping[str, Any], device: torch.device
) -> tuple[dict[str, Callable[[], object]], str]:
    asked = {"objective": "map", "precision": "bfloat16", **settings}
    tasks, precision = _relax_tasks(case, data, asked, device)
    return {"epoch": tasks["epoch"]}, precision


def _certify_tasks(
    case: Case, data: LabelledData, settings: Mapping[str, Any], device: torch.device
) -> tuple[dict[str, Callable[[], object]], str]:
    entry = Grid(dimensions=(150,), steps=(1.4,), betas=(1.0,), seeds=(0,))
    config = CertifyConfig(grid=entry, batch_size=case.batch, **case.arguments)
    digits_alone = digits().train.subset(len(data), 0)

    def certificate() -> None:
        certify("oriented:32", digits_alone, config=config, device=device)

    return {"certificate": certificate}, "float32"


def measured(
    name: str, device: torch.device, rounds: int, scale: float = 1.0
) -> dict[str, dict[str, float]]:
    """Times as long by path and part, and seconds a part with all paths under "all"."""
    case = CASES[name]
    data = _data(case, scale)
    chosen = {"all": FastPath(), **{n: p for n, p in PATHS.items() if name in p.networks}}
    found: dict[str, dict[str, float]] = {}
    for label, path in chosen.items():
        found[label] = fastest(parts(case, data, path, device), device, rounds)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    # What came first is timed once more, so that a machine that has slowed down is seen.
    again = fastest(parts(case, data, chosen["all"], device), device, rounds)
    unit = {part: min(each, again[part]) for part, each in found.pop("all").items()}
    whole = sum(unit.values())
    rows = {
        label: {
            "run": sum(row.values()) / whole,
            **{part: each / unit[part] for part, each in row.items()},
        }
        for label, row in found.items()
    }
    return {"all": {"run": whole, **unit}, **rows}


def run(
    networks: list[str], device: torch.device, rounds: int, scale: float = 1.0
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    found = {name: measured(name, device, rounds, scale) for name in networks}
    report: dict[str, Any] = {
        "benchmark": "ablation",
        **provenance(device),
        "seconds": {name: rows["all"] for name, rows in found.items()},
        "times_as_long": {
            name: {path: row for path, row in rows.items() if path != "all"}
            for name, rows in found.items()
        },
    }
    best = {
        path: max(rows[path]["run"] for rows in report["times_as_long"].values() if path in rows)
        for path in PATHS
        if any(path in rows for rows in report["times_as_long"].values())
    }
    report["goals"] = [
        goal(f"a run without {path}", ratio, EARNS, at="least", unit="times as long")
        for path, ratio in best.items()
    ]
    return report


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}: a run without each path, with all = 1"]
    for name, rows in report["times_as_long"].items():
        for path, row in rows.items():
            shown = "  ".join(f"{part} {ratio:5.2f}" for part, ratio in row.items())
            lines.append(f"  {name:7} {path:30} {shown}")
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=2)
    add_device(parser)
    parser.add_argument("--networks", default=",".join(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the examples to time")
    options = parser.parse_args(arguments)
    report = run(options.networks.split(","), options.device, options.rounds, options.scale)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
