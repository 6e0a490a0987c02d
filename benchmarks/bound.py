"""What a hyper step by a bound of the evidence costs, in weight steps, and how tight the bound is.

Cost, for an MLP on random images, in weight steps of the same run:

    function-space   one estimate from a few examples, and its step
    pass             one pass over all data, which precisions follow (`bound_fits`)
    step             a hyper step by the evidence of all data, which a bound takes the place of
    added            all of the function-space hyper steps and passes of a run, over its weight
                     steps; `added by steps` is the same without a bound

Tightness: nats an example below the evidence, after a short training on digits of 14 × 14 pixels.
The bound is compared with the evidence by the whole Gauss–Newton matrix, which is the same bound
with one batch of everything. Ratios hold within one run.

    python -m benchmarks.bound [--json] [--rounds 3] [--device cpu]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.data.readers import digits
from isotropy.evidence.bound import FunctionSpaceBound
from isotropy.evidence.laplace import Batch
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.kernels.captured import WARM_UP
from isotropy.kernels.precision import multiplying_in
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine

SHAPE = (1, 28, 28)
MOST = 1.2
"""Weight steps that a hyper step may cost."""
SIZES = (4, 16, 64)


class Setup(NamedTuple):
    """Examples, examples a weight step, copies; the network in words."""

    examples: int
    batch_size: int
    samples: int
    network: str = "mlp:200"

    @property
    def name(self) -> str:
        return f"{self.network}, N {self.examples}, batch {self.batch_size}, S {self.samples}"


SETUPS = (
    Setup(2000, 100, 16),
    Setup(1000, 50, 16),
    Setup(1000, 50, 31),
    Setup(5000, 1000, 31),
)
ON_GPU = Setup(10_000, 1000, 31, "mlp:1000")
"""The paper's network, too slow for a CPU here."""


def trainer_of(
    network: nn.Module, images: Tensor, labels: Tensor, device: torch.device, **settings: Any
) -> Trainer:
    """A run of this network; ranges move from the first step."""
    on_gpu = device.type == "cuda"
    config = LearnConfig(burn_in=0, **settings).resolved(examples=len(images), on_gpu=on_gpu)
    assert config.samples is not None
    model = InvariantModel(network.to(device), UniformRanges(affine()).to(device), config.samples)
    return Trainer(model, Categorical(), config, images.to(device), labels.to(device))


# -- cost --------------------------------------------------------------------------------------


def cost(setup: Setup, device: torch.device, rounds: int) -> dict[str, float]:
    """Every part in weight steps."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((setup.examples, *SHAPE), generator=generator)
    labels = torch.randint(10, (setup.examples,), generator=generator)
    settings = {"batch_size": setup.batch_size, "samples": setup.samples}
    network = parse_network(setup.network)
    runs = {
        bound: trainer_of(network.build(SHAPE, 10), images, labels, device, bound=bound, **settings)
        for bound in ("none", "function-space")
    }
    plain, config = runs["none"], runs["function-space"].config
    bound_steps = runs["function-space"].hyper
    plain.epoch = 1

    def by_bound() -> None:
        bound_steps.after_step(config.bound_every)

    if device.type == "cuda":  # the first calls are those before a graph is recorded
        for _ in range(WARM_UP + 1):
            by_bound()
    seconds = fastest(
        {
            "epoch": lambda: plain.weight_steps.epoch(1),
            "function-space": by_bound,
            "pass": lambda: plain.evidence.fit(plain.orbit_batches("factors")),
            "step": lambda: plain.hyper.take(plain),
        },
        device,
        rounds,
    )
    steps = -(-setup.examples // setup.batch_size)
    step = seconds.pop("epoch") / steps
    found = {name: value / step for name, value in seconds.items()}
    assert config.bound_fits
    found["added"] = (
        found["function-space"] / config.bound_every + found["pass"] / config.bound_fits / steps
    )
    found["added by steps"] = found["step"] / steps
    return found


# -- tightness ---------------------------------------------------------------------------------


def tightness(examples: int, epochs: int, device: torch.device) -> dict[str, Any]:
    """Nats an example, of the exact evidence and of what each bound loses."""
    data = digits().train
    images = nn.functional.avg_pool2d(data.inputs[:examples], 2)
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(images[0].numel(), 32), nn.Tanh(), nn.Linear(32, 10)
    )
    labels = data.targets[:examples]
    trainer = trainer_of(network, images, labels, device, epochs=epochs, samples=8)
    for _ in range(epochs):
        trainer.run_epoch()
    evidence = trainer.evidence
    bound = FunctionSpaceBound(network, evidence.likelihood, evidence.prior)
    noise = trainer.model.noise(examples, generator=torch.Generator(trainer.device).manual_seed(0))

    def batches(size: int, given: int = 0) -> list[Batch]:
        """All examples in batches of a size; with `given`, the others, each behind these."""
        rest = torch.arange(given, examples, device=trainer.device).split(size)
        before = torch.arange(given, device=trainer.device)
        return [batch_of(torch.cat([before, own])) for own in rest]

    def batch_of(chosen: Tensor) -> Batch:
        rows = trainer.model.orbit(trainer.inputs[chosen], noise[chosen])
        copies = trainer.model.augmentation.copies(noise.shape[1])
        return Batch(rows, trainer.targets[chosen], copies)

    with torch.no_grad():
        exact = float(bound.value(batches(examples)))
        lost = {
            "function-space": {size: (exact - float(bound.value(batches(size)))) for size in SIZES},
            "function-space, half conditioned": {
                size: (_complexity(bound, batches(size // 2, size // 2), size // 2)
                       - _complexity(bound, batches(examples), 0)) / 2
                for size in SIZES
            },
        }  # fmt: skip
    return {
        "examples": examples,
        "epochs": epochs,
        "exact_per_example": exact / examples,
        "lost_per_example": {
            name: {str(size): value / examples for size, value in row.items()}
            for name, row in lost.items()
        },
    }


def _complexity(bound: FunctionSpaceBound, batches: Sequence[Batch], given: int) -> float:
    """The determinant's part, as the mean of estimates, each weighted by its examples."""
    sizes = [len(batch.targets) - given for batch in batches]
    count = sum(sizes) + given
    values = [bound.estimate(batch, count, given).log_determinant for batch in batches]
    return sum(float(v) * size for v, size in zip(values, sizes, strict=True)) / sum(sizes)


def run(
    rounds: int,
    device: torch.device,
    setups: Sequence[Setup] = SETUPS,
    examples: int = 300,
    epochs: int = 40,
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    torch.manual_seed(0)
    with multiplying_in("tf32", device):
        costs = {setup.name: cost(setup, device, rounds) for setup in setups}
    return {
        "benchmark": "bound",
        **provenance(device),
        "weight_steps": costs,
        "tightness": tightness(examples, epochs, device),
        "goals": [
            goal(
                f"hyper step, function-space, {name}",
                row["function-space"],
                MOST,
                at="most",
                unit="weight steps",
            )
            for name, row in costs.items()
        ],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=3)
    add_device(parser)
    options = parser.parse_args(arguments)
    setups = (*SETUPS, ON_GPU) if options.device.type == "cuda" else SETUPS
    report = run(options.rounds, options.device, setups)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}: hyper steps in weight steps"]
    for name, row in report["weight_steps"].items():
        lines.append(f"  {name:36} " + "  ".join(f"{key} {row[key]:.2f}" for key in row))
    tight = report["tightness"]
    lines.append(
        f"nats an example, {tight['examples']} digits: whole Gauss–Newton "
        f"{tight['exact_per_example']:.3f}; the bound lies below"
    )
    for name, row in tight["lost_per_example"].items():
        values = "  ".join(f"batch {size} {value:.3f}" for size, value in row.items())
        lines.append(f"  {name:34} {values}")
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
