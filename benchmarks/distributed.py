"""An evidence pass and an epoch shared by two and by four processes, beside one with one thread.

    pass      a hyper step: factors, spectra, and gradient by the ranges
    epoch     weight steps
    factors   the first part of a pass, with sums over ranks and spectra
    gradient  the second part

The CNN of the embedded digits, 16 copies. Times are those of the slowest rank; all processes are
started once, and take turns. Needs two cores that are otherwise idle, on which four processes can
be no faster than two. Times are told in those of an epoch of one process.

    python -m benchmarks.distributed [--json] [--rounds 4]
"""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import goal, goal_lines, options_of, publish
from isotropy.data.readers import digits
from isotropy.evidence.settings import LearnConfig
from isotropy.kernels.ranks import shared_run
from isotropy.networks.zoo.backbones import backbone
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.runs.prepared import make_trainer

RANKS = (1, 2, 4)
TIMES_FASTER = 1.7
PARTS = ("pass", "epoch", "factors", "gradient")
EXAMPLES, COPIES = 1000, 16


def serve(rank: int, count: int, port: int, examples: int, end: Connection) -> None:
    """One process: trains when it is told to, and says how long it took."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if count > 1:
        place = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=count)
    data = digits().train.subset(examples, 0)
    torch.manual_seed(0)
    network = backbone("cnn", tuple(data.inputs.shape[1:]), 10)
    settings = LearnConfig(samples=COPIES, search=False, batch_size=100, curvature_batch=50)
    schedule = settings.resolved(examples=examples, on_gpu=False)
    with shared_run():
        trainer = make_trainer(network, data, affine(), schedule, torch.device("cpu"))
    trainer.epoch = 1
    evidence, limit = trainer.evidence, trainer.hyper.gradient_limit
    fit = evidence.fit(trainer.orbit_batches("factors"))

    def gradient() -> None:
        batches = trainer.orbit_batches("ranges", limit=limit, graph=True)
        evidence.gradient(fit, batches, trainer.ranges)

    parts: dict[str, Callable[[], object]] = {
        "pass": lambda: trainer.hyper.take(trainer),
        "epoch": lambda: trainer.weight_steps.epoch(1),
        "factors": lambda: evidence.fit(trainer.orbit_batches("factors")),
        "gradient": gradient,
    }
    while name := end.recv():
        started = time.perf_counter()
        parts[name]()
        end.send(time.perf_counter() - started)


def start(count: int, examples: int) -> list[Any]:
    """The ends of so many processes of one group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ends = []
    for rank in range(count):
        here, there = context.Pipe()
        arguments = (rank, count, port, examples, there)
        context.Process(target=serve, args=arguments, daemon=True).start()
        ends.append(here)
    return ends


def seconds(ends: list[Any], name: str) -> float:
    """Of the slowest rank."""
    for end in ends:
        end.send(name)
    return max(end.recv() for end in ends)


def run(rounds: int, examples: int = EXAMPLES, ranks: Sequence[int] = RANKS) -> dict[str, Any]:
    """Everything, as one JSON object; the fastest of the rounds counts."""
    groups = {count: start(count, examples) for count in ranks}
    least = {name: dict.fromkeys(groups, math.inf) for name in PARTS}
    for turn in range(rounds + 1):
        for name, own in least.items():
            for count, ends in groups.items():
                took = seconds(ends, name)
                if turn:  # the first warms up
                    own[count] = min(own[count], took)
    for ends in groups.values():
        for end in ends:
            end.send("")
    unit = least["epoch"][1]
    report: dict[str, Any] = {
        "benchmark": "distributed",
        **provenance(torch.device("cpu")),
        "examples": examples,
        "in_epochs": {
            name: {str(count): each / unit for count, each in own.items()}
            for name, own in least.items()
        },
        "times_faster": {name: least[name][1] / least[name][2] for name in ("pass", "epoch")},
    }
    report["goals"] = [
        goal(f"{name}, two processes: times as fast", times, TIMES_FASTER, at="least", unit="")
        for name, times in report["times_faster"].items()
    ]
    return report


def _table(report: dict[str, Any]) -> str:
    lines = [f"{name:8} {times:6.2f} × as fast" for name, times in report["times_faster"].items()]
    for name, own in report["in_epochs"].items():
        told = ", ".join(f"{count}: {each:.3f}" for count, each in own.items())
        lines.append(f"{name:8} in epochs of one process, by processes: {told}")
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    options = options_of(__doc__, rounds=4).parse_args(arguments)
    report = run(options.rounds)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
