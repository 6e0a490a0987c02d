"""Runs of a small network stacked, against the same runs one after the other.

Eight seeds of the embedded digits (1000 images, rotated) with 16 copies of each, batches of 50,
two networks: a small MLP and the paper's CNN.

    epoch        a pass of weight steps of every run
    hyper step   evidence, steps on precisions and noise, gradient and step of the ranges

each for the runs in turn by their own `Trainer`s ("alone") and by a `StackedTrainer`, in turns
within one process. The ratio is seconds alone over seconds stacked. Stacking saves launches, so
that it pays where they are what one waits for: on a GPU.

    python -m benchmarks.stacked [--json] [--runs 8] [--examples 1000] [--rounds 3]
                                 [--networks mlp:200,cnn]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, fastest, goal, goal_lines, options_of, publish
from isotropy.data.embedded import digits
from isotropy.data.labelled import Split
from isotropy.data.variants import vary
from isotropy.evidence.precision import multiplying_in
from isotropy.evidence.schedule import LearnConfig
from isotropy.evidence.stacked import StackedTrainer
from isotropy.evidence.training import Trainer
from isotropy.networks.specification import parse_network
from isotropy.workflows.prepared_run import prepare_run
from isotropy.workflows.provenance import provenance

SAMPLES, BATCH = 16, 50
PARTS = ("epoch", "hyper step")
GOAL_ON_GPU = 2.0


def trainers_of(
    network: str, split: Split, runs: int, device: torch.device, samples: int = SAMPLES
) -> list[Trainer]:
    """Seeds 0 to `runs`, whose epochs are weight steps alone."""
    specification = parse_network(network)
    shape, outputs = tuple(split.train.inputs.shape[1:]), split.train.num_outputs
    config = LearnConfig(samples=samples, batch_size=BATCH, epochs=10**6, burn_in=10**5)
    found = []
    for seed in range(runs):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = specification.build(shape, outputs)
        made = prepare_run(model, split, replace(config, seed=seed), device=device)
        found.append(made.trainer)
    return found


class Case:
    """One network: the same runs twice, to be trained alone and stacked."""

    def __init__(
        self, network: str, split: Split, runs: int, device: torch.device, samples: int = SAMPLES
    ) -> None:
        self.device = device
        self.alone = trainers_of(network, split, runs, device, samples)
        self.stack = StackedTrainer(trainers_of(network, split, runs, device, samples))

    def tasks(self) -> dict[str, Any]:
        """By part and way."""
        return {
            "epoch, alone": self.epochs_alone,
            "epoch, stacked": self.stack.run_epoch,
            "hyper step, alone": self.hyper_steps_alone,
            "hyper step, stacked": self.hyper_step_stacked,
        }

    def epochs_alone(self) -> None:
        for trainer in self.alone:
            assert trainer.run_epoch().log_evidence is None, "the epoch took a hyper step too"

    def hyper_steps_alone(self) -> list[float]:
        found = []
        for trainer in self.alone:
            with multiplying_in(trainer.config.precision or "float32", self.device):
                found.append(trainer._hyper_step()[1])
        return found

    def hyper_step_stacked(self) -> list[float]:
        first = self.stack.trainers[0]
        with multiplying_in(first.config.precision or "float32", self.device):
            return [value for _, value in self.stack.hyper_step().values()]


def run(
    device: torch.device,
    rounds: int,
    *,
    runs: int = 8,
    examples: int = 1000,
    networks: Sequence[str] = ("mlp:200", "cnn"),
    samples: int = SAMPLES,
) -> dict[str, Any]:
    """The report: seconds and ratios by network and part."""
    split = vary(digits(), "rotated")
    split = replace(split, train=split.train.subset(examples, 0))
    found: dict[str, Any] = {}
    for network in networks:
        seconds = fastest(Case(network, split, runs, device, samples).tasks(), device, rounds)
        ratios = {part: seconds[f"{part}, alone"] / seconds[f"{part}, stacked"] for part in PARTS}
        found[network] = {"seconds": seconds, "ratios": ratios}
    goals = [
        goal(
            f"{runs} runs of {network} stacked: {part}",
            own["ratios"][part],
            GOAL_ON_GPU,
            at="least",
            unit="times as fast as one by one",
        )
        for network, own in found.items()
        for part in PARTS
        if device.type == "cuda"
    ]
    return {
        "schema": 1,
        "benchmark": "stacked",
        **provenance(device),
        "runs": runs,
        "examples": examples,
        "samples": samples,
        "networks": found,
        "goals": goals,
    }


def table(report: dict[str, Any]) -> str:
    """The report in words."""
    lines = [f"{report['runs']} runs, {report['examples']} examples, {report['device_name']}"]
    for network, own in report["networks"].items():
        for part, ratio in own["ratios"].items():
            alone, stacked = (own["seconds"][f"{part}, {way}"] for way in ("alone", "stacked"))
            lines.append(
                f"  {network}, {part}: {1e3 * alone:.1f} ms alone, {1e3 * stacked:.1f} ms stacked, "
                f"ratio {ratio:.2f}"
            )
    return "\n".join([*lines, *goal_lines(report)])


def main() -> None:
    """Parse options, run, print."""
    parser = options_of(__doc__, rounds=3)
    add_device(parser)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--networks", default="mlp:200,cnn")
    options = parser.parse_args()
    report = run(
        options.device,
        options.rounds,
        runs=options.runs,
        examples=options.examples,
        networks=options.networks.split(","),
        samples=options.samples,
    )
    publish(report, options, table(report))


if __name__ == "__main__":
    main()
