"""How long the bound over the last layer takes to its optimum: solved, and by sampled gradients.

Random features of digits, no copies, a fixed prior. Both start from the prior, in one run on one
machine. The optimum is that of a solve to the end.

    newton     a solve that stops once it gains little: its time, and how far below it ends
    sampled    weight steps of one draw each (Adam, the best of a few rates), until the bound is
               within 0.01 nats an example of the optimum. It is looked at after every few epochs,
               which is not timed. A run that is not there after `LIMIT` times the time of the solve
               is stopped: the ratio is then at least that

    python -m benchmarks.elbo [--json] [--device cpu] [--out FOLDER]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, goal, goal_lines, options_of, publish
from isotropy.data.readers import digits
from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import UniformRanges
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine

NEAR = 0.01
"""Nats an example."""
LEAST = 10.0
"""Times as fast."""
LIMIT = 15.0
RATES = (3e-3, 1e-2)
PRIOR_PRECISION = 1 / 72
EPOCHS = 10_000
LOOKS = 5
"""Epochs between two looks at the bound."""


def trainer_of(network: str, examples: int, device: torch.device, **settings: Any) -> Trainer:
    """A run without copies, on the first digits."""
    data = digits().train
    torch.manual_seed(0)
    model = InvariantModel(
        parse_network(network).build((1, 28, 28), 10), UniformRanges(affine(), start=0.0), 1
    ).to(device)
    config = LearnConfig(
        objective="none", evidence="elbo", epochs=EPOCHS, prior_precision=PRIOR_PRECISION,
        **settings,
    ).resolved(examples=examples, on_gpu=device.type == "cuda")  # fmt: skip
    inputs, labels = data.inputs[:examples].to(device), data.targets[:examples].to(device)
    return Trainer(model, Categorical(), config, inputs, labels)


class Clock:
    """Seconds of a device's work."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.started = self._now()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._now() - self.started


def solved(network: str, examples: int, device: torch.device) -> dict[str, float]:
    """Seconds of a solve, the optimum, and what the solve lacks of it, in nats an example."""
    trainer = trainer_of(network, examples, device)
    evidence = trainer.evidence
    trainer.evidence_value("warm up")  # what is made on first use is made
    clock = Clock(device)
    fit = evidence.fit(trainer.orbit_batches("compared"))
    seconds = clock.seconds
    value = float(evidence.value(fit).detach())
    evidence.tolerance = 1e-9
    for _ in range(3):
        best = evidence.fit(trainer.orbit_batches("compared"))
        evidence.posterior.mean.copy_(best.mean)
        evidence.posterior.root.copy_(best.root)
    optimum = float(evidence.value(best).detach())
    return {
        "seconds": seconds,
        "optimum": optimum / examples,
        "lacking": (optimum - value) / examples,
    }


def sampled(
    network: str, examples: int, device: torch.device, rate: float, aim: float, limit: float
) -> dict[str, Any]:
    """Seconds of weight steps until the bound is above `aim`, or until there were `limit`."""
    settings = {"weight_rate": rate, "elbo_solver": "sampled"}
    trainer = trainer_of(network, examples, device, **settings)
    spent, value = 0.0, float("-inf")
    while value < aim and spent < limit:
        clock = Clock(device)
        for _ in range(LOOKS):
            trainer.epoch += 1
            trainer.weight_steps.epoch(trainer.epoch)
        spent += clock.seconds
        value = trainer.evidence_value("compared").per_example
    return {"rate": rate, "seconds": spent, "reached": value >= aim, "lacking": aim + NEAR - value}


def run(
    device: torch.device,
    networks: Sequence[str] = ("rff:512",),
    examples: int = 2000,
    limit: float = LIMIT,
) -> dict[str, Any]:
    """Everything, as one JSON object."""
    found: dict[str, Any] = {}
    for network in networks:
        newton = solved(network, examples, device)
        aim, most = newton["optimum"] - NEAR, limit * newton["seconds"]
        tried = [sampled(network, examples, device, rate, aim, most) for rate in RATES]
        there = [each for each in tried if each["reached"]] or tried
        best = min(there, key=lambda each: (each["seconds"], each["lacking"]))
        found[network] = {
            "newton": newton,
            "sampled": tried,
            "ratio": best["seconds"] / newton["seconds"],
            "at_least": not best["reached"],
        }
    return {
        "benchmark": "elbo",
        **provenance(device),
        "examples": examples,
        "networks": found,
        "goals": [
            *(
                goal(f"solve against sampled gradients, {name}", row["ratio"], LEAST,
                     at="least", unit="times as fast")
                for name, row in found.items()
            ),
            *(
                goal(f"solve below the optimum, {name}", row["newton"]["lacking"], NEAR,
                     at="most", unit="nats an example")
                for name, row in found.items()
            ),
        ],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=1)
    add_device(parser)
    options = parser.parse_args(arguments)
    report = run(options.device)
    publish(report, options, _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['device_name']}: seconds to within {NEAR} nats of the optimum"]
    for name, row in report["networks"].items():
        newton = row["newton"]
        lines.append(
            f"  {name}, {report['examples']} digits: newton {newton['seconds']:.2f} s, "
            f"{newton['lacking']:.4f} below {newton['optimum']:.3f}"
        )
        for each in row["sampled"]:
            end = "there" if each["reached"] else f"{each['lacking']:.3f} below"
            lines.append(f"    sampled, rate {each['rate']:g}: {each['seconds']:.1f} s, {end}")
    return "\n".join([*lines, *goal_lines(report)])


if __name__ == "__main__":
    main()
