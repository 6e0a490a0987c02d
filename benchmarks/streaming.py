"""Resident memory while a million images of 28×28 are learned from that are never held.

Each image is made when it is read: a bar in one of ten directions, with noise, by its number. One
epoch of weight steps of a small MLP, the hyper step after it, and the evidence of all examples at
the end. Memory is that of this process, a few times a second; workers that make images ahead have
their own. As one tensor the images would take 3.1 GB.

    python -m benchmarks.streaming [--json] [--examples 1000000] [--workers 1]
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

if __package__ in (None, ""):  # run as a file: the folder above is where `benchmarks` is found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import add_device, goal, goal_lines, options_of, publish
from isotropy.data.streams.streamed import streamed
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.zoo.specification import parse_network
from isotropy.records import provenance
from isotropy.symmetry.actions.images import affine
from isotropy.workflows.runs.prepared import make_trainer

EXAMPLES = 1_000_000
SIDE, CLASSES = 28, 10
MOST_GROWTH = 100.0
"""Megabytes; three in a hundred of what the images would take."""
EVERY = 0.25
"""Seconds between two looks at memory."""
LINES = 40
"""Looks that a report keeps."""


class Bars(Dataset[Any]):
    """Images (1, 28, 28) of bars in ten directions, made when they are asked for."""

    classes = tuple(str(each) for each in range(CLASSES))

    def __init__(self, count: int) -> None:
        self.count = count
        axis = np.arange(SIDE) - (SIDE - 1) / 2
        angles = np.pi * np.arange(CLASSES)[:, None, None] / CLASSES
        across = axis[:, None] * np.cos(angles) - axis * np.sin(angles)
        self.bars = np.exp(-((across / 2) ** 2)).astype(np.float32)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        noise = np.random.default_rng(number).random((SIDE, SIDE), dtype=np.float32)
        label = number * 7919 % 10007 % CLASSES
        return torch.from_numpy(0.7 * self.bars[label] + 0.3 * noise)[None], label


def resident() -> float:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Memory:
    """What was resident when: part of the run, seconds, megabytes."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float]] = []
        self.part, self.started = "begin", time.perf_counter()

    def look(self) -> None:
        self.rows.append((self.part, time.perf_counter() - self.started, resident()))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks in another thread inside."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(EVERY):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.look()

    def of(self, part: str) -> list[float]:
        """Megabytes during a part."""
        return [megabytes for own, _, megabytes in self.rows if own == part]

    def some(self) -> list[list[Any]]:
        """Evenly spaced rows."""
        step = max(1, math.ceil(len(self.rows) / LINES))
        return [[part, round(s, 1), round(mb, 1)] for part, s, mb in self.rows[::step]]


def run(
    examples: int,
    *,
    samples: int = 2,
    workers: int | None = None,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """One epoch and one evidence pass over so many images, as one JSON object."""
    place = device or torch.device("cpu")
    memory, seconds = Memory(), {}
    torch.manual_seed(0)
    network = parse_network("mlp:64").build((1, SIDE, SIDE), CLASSES)
    data = streamed(Bars(examples), workers=workers)
    few = LearnConfig(epochs=1, samples=samples, burn_in=0, search=False, batch_size=500)
    schedule = few.resolved(examples=examples, on_gpu=place.type == "cuda")
    with memory.watched():
        trainer = make_trainer(network, data, affine(("rotation",)), schedule, place)
        # What a first step and a first pass allocate is kept; growth counts from there.
        trainer.evidence.fit(trainer.orbit_batches("warm-up", limit=schedule.curvature_batch))
        memory.look()
        before = resident()
        for part, work in (("epoch", trainer.run_epoch), ("evidence", trainer.final_evidence)):
            memory.part, started = part, time.perf_counter()
            found = work()
            memory.look()
            seconds[part] = time.perf_counter() - started
    assert found is not None
    peak = max(max(memory.of(part)) for part in seconds)
    report: dict[str, Any] = {
        "benchmark": "streaming",
        **provenance(place),
        "examples": examples,
        "samples": samples,
        "workers": data.workers,
        "seconds": seconds,
        "log_evidence_per_example": found.nats / examples,
        "as_one_tensor_megabytes": data.bytes_in_memory / 1e6,
        "before_megabytes": before,
        "peak_megabytes": peak,
        "grown_megabytes": peak - before,
        "resident": memory.some(),
    }
    what = f"{examples:,} images of {SIDE}×{SIDE}: growth of resident memory"
    report["goals"] = [goal(what, peak - before, MOST_GROWTH, at="most", unit="MB")]
    return report


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['examples']:,} images, {report['as_one_tensor_megabytes']:.0f} MB as one tensor",
        *(f"{part:9} {seconds:7.1f} s" for part, seconds in report["seconds"].items()),
        f"resident  {report['before_megabytes']:.0f} MB before, {report['peak_megabytes']:.0f} MB "
        "at most",
    ]
    return "\n".join([*lines, *goal_lines(report)])


def main(arguments: list[str] | None = None) -> None:
    parser = options_of(__doc__, rounds=1)
    add_device(parser)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args(arguments)
    report = run(options.examples, workers=options.workers, device=options.device)
    publish(report, options, _table(report))


if __name__ == "__main__":
    main()
