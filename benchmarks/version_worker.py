"""One version of the library at work: told by lines which part to run, it answers with seconds.

    python -m benchmarks.version_worker EXAMPLES SIZE SAMPLES NETWORK…

It says first what it is, `{"from": FOLDER, "parts": [PART, …]}`, then for each line `NETWORK: PART`
how many seconds that took. Whoever starts it chooses the version by PYTHONPATH; of the library
only names that every version has are used.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import isotropy
from benchmarks.training_parts import TrainingParts
from isotropy.evidence.schedule import LearnConfig, resolve
from isotropy.evidence.sizing import fit_curvature_batch
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical
from isotropy.networks.augmentations import UniformRanges
from isotropy.networks.invariant_model import InvariantModel
from isotropy.networks.specification import parse_network
from isotropy.symmetry.image_actions import affine


def parts_of(network: str, examples: int, size: int, samples: int) -> TrainingParts:
    """A trainer on random square images, its burn-in never ending."""
    torch.manual_seed(0)
    images = torch.rand(examples, 1, size, size)
    labels = torch.arange(examples) % 10
    model = parse_network(network).build((1, size, size), 10)
    config = LearnConfig(samples=samples, epochs=1000, burn_in=1000, gradient_batches=0)
    settings = resolve(config, examples=examples, on_gpu=False)
    settings = fit_curvature_batch(settings, model, images[:1])
    averaged = InvariantModel(model, UniformRanges(affine()), samples)
    return TrainingParts(Trainer(averaged, Categorical(), settings, images, labels))


def main() -> None:
    networks = sys.argv[4:]
    examples, size, samples = (int(word) for word in sys.argv[1:4])
    tasks = {
        f"{network}: {part}": task
        for network in networks
        for part, task in parts_of(network, examples, size, samples).tasks().items()
    }
    _say({"from": str(Path(isotropy.__file__ or "").parent), "parts": list(tasks)})
    for line in sys.stdin:
        started = time.perf_counter()
        tasks[line.strip()]()
        _say(time.perf_counter() - started)


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
