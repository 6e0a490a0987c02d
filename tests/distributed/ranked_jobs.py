"""What ranks do in the tests; see `ranked_runs`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stream_cases import Items
from torch import Tensor, nn

import isotropy
from isotropy.evidence.settings import LearnConfig
from isotropy.kernels.ranks import group, ranks

SETTINGS: dict[str, Any] = {
    "epochs": 4, "samples": 3, "test_samples": 2, "batch_size": 10, "burn_in": 0, "search": False,
    "curvature_batch": 4, "gradient_batches": 2, "prior_structure": "tensor", "weight_rate": 0.02,
}  # fmt: skip


def spots(count: int = 23) -> tuple[Tensor, Tensor]:
    """Images (count, 1, 6, 6) in float64, and their classes; a count that no share divides."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % 3
    images = torch.rand(count, 1, 6, 6, generator=generator, dtype=torch.float64)
    images[torch.arange(count), 0, labels, labels + 1] += 2
    return images, labels


def networks(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(group().number)  # weights are those of the first rank all the same
        if name == "mlp":
            layers: list[nn.Module] = [nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3)]
        else:
            layers = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)]
        return nn.Sequential(*layers).double()


def learned(
    network: str,
    settings: dict[str, Any],
    folder: str | None = None,
    resume: bool = False,
    train: Any = None,
) -> dict[str, Any]:
    """A short run; all numbers that it ends with."""
    config = LearnConfig(**{**SETTINGS, **settings})
    result = isotropy.learn(
        networks(network),
        spots() if train is None else train,
        spots(9),
        actions=isotropy.affine(("rotation", "translation_x")),
        config=config,
        folder=folder,
        resume=resume,
        verdicts=2 if config.search else 0,
    )
    trainer = result.trainer
    network_weights = list(trainer.network.parameters())
    return {
        "ranges": np.concatenate([each.detach().numpy().ravel() for each in trainer.ranges]),
        "precisions": trainer.prior.log_precisions.detach().numpy(),
        "weights": np.concatenate([p.detach().numpy().ravel() for p in network_weights]),
        "evidence": np.array([result.record["log_evidence"] or 0.0]),
        "losses": np.array([row["train_loss"] for row in result.history]),
        "accuracies": np.array([row["train_accuracy"] for row in result.history]),
    }


def relaxed(settings: dict[str, Any]) -> dict[str, Any]:
    """A short run of relaxed layers; all numbers that it ends with."""
    own = {
        "epochs": 60, "batch_size": 8, "burn_in": 0, "update_every": 5, "curvature_batch": 4,
        "weight_rate": 0.05, "prior_steps": 3, **settings,
    }  # fmt: skip
    network = isotropy.relax(networks("cnn"), ("fc", "conv"), example=(1, 6, 6)).double()
    result = isotropy.learn_layers(network, spots(), spots(9), config=isotropy.RelaxConfig(**own))
    trainer = result.trainer
    weights = [p.detach().numpy().ravel() for p in trainer.network.parameters()]
    return {
        "precisions": trainer.prior.log_precisions.detach().numpy(),
        "weights": np.concatenate(weights),
        "evidence": np.array([result.record["log_evidence"] or 0.0]),
        "losses": np.array([row["train_loss"] for row in result.record["epochs"]]),
    }


def streamed(network: str, settings: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The same on data that are read while they are used, and the numbers that were read."""
    items = Items(*spots())
    data = isotropy.streamed(items, workers=0, sample=12)
    items.asked.clear()
    return learned(network, settings, train=data), items.asked


def interrupted(network: str, folder: str, epochs: int) -> None:
    """The same, cut off after so many epochs."""

    class Cut(Exception):
        pass

    def progress(told: Any) -> None:
        if told.row.epoch == epochs:
            raise Cut

    from isotropy.workflows.runs import prepared

    prepared.CHECKPOINT_SECONDS = 0.0
    with contextlib.suppress(Cut):
        isotropy.learn(
            networks(network),
            spots(),
            spots(9),
            actions=isotropy.affine(("rotation", "translation_x")),
            config=LearnConfig(**SETTINGS),
            folder=folder,
            progress=progress,
            verdicts=0,
        )


def sums() -> list[Any]:
    """What collectives give on this rank."""
    assert ranks().count == 1  # nothing is shared outside of a run
    own = group()
    first, second = torch.full((2,), float(own.number + 1)), torch.full((3,), own.number + 1)
    own.add_([first, second])
    third = torch.full((2, 2), float(own.number))
    own.agree_([third])
    return [
        own.number, own.count, first.tolist(), second.tolist(), third.tolist(),
        own.told(f"rank {own.number}"), own.gathered(own.number), own.by_first(lambda: own.number),
        own.in_turn([f"{share} of {own.number}" for share in range(2 - own.number)]),
    ]  # fmt: skip


def different(what: str) -> str:
    """The sentence where one rank has other data or settings."""
    images, labels = spots()
    if group().number == 1 and what == "data":
        images = images + 1
    config = LearnConfig(**SETTINGS, **({"bound": "function-space"} if what == "bound" else {}))
    try:
        isotropy.learn(networks("mlp"), (images, labels), config=config, verdicts=0)
    except isotropy.CallerError as error:
        return str(error)
    return "nothing was refused"


def files(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())
