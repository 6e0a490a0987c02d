"""`isotropy.screen`: from one plain network, which symmetries are worth a full run.

    found = isotropy.screen(network, (images, labels))
    found.screening.ranking        ['rotation', 'hyperbolic_rotation', …]
    found.start                    half-widths to start `isotropy.learn` from

Trains a copy of the network without any symmetry, a fraction of a full run, and asks its evidence
(`evidence.screening`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotropy.evidence.screening import Screening
from isotropy.evidence.screening import screen as climb
from isotropy.evidence.settings import LearnConfig
from isotropy.networks.averaging.augmentations import START
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.networks.zoo.specification import NetworkSpecification
from isotropy.records import make_folder, record_head
from isotropy.report.screen import screen_page
from isotropy.workflows.result import Result
from isotropy.workflows.runs import Actions, begin, check_actions, make_trainer

EPOCHS = 30
"""Epochs of the plain network: enough to fit the training data."""
FAINT = 0.02
"""Probability from which a finite element that was not wanted starts all the same."""


@dataclass(frozen=True, repr=False)
class ScreenResult(Result):
    """What was found, and half-widths to start a run from."""

    SHOWN = ("data", "network")

    screening: Screening
    start: dict[str, float]

    def page(self) -> str:
        return screen_page(self.record, self.config)


def screen(
    model: nn.Module,
    train: Any,
    test: Any = None,
    *,
    actions: Actions | None = None,
    config: LearnConfig | None = None,
    device: str | torch.device | None = None,
    folder: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    describe: Mapping[str, Any] | None = None,
    network: NetworkSpecification | None = None,
) -> ScreenResult:
    """Rank what may be a symmetry by what a plain network's evidence gains from a little of it.

    Arguments as for `learn`; progress is told sentences. `epochs` of the config are those of the
    plain network (30 by default).
    """
    settings = config or LearnConfig()
    epochs = settings.epochs or EPOCHS
    settings = replace(settings, objective="none", evidence="laplace", epochs=epochs, start=None)
    begun, actions = begin(
        model, train, test, seed=settings.seed, device=device, folder=folder, network=network
    ).acting(actions)
    split, place, resolved = begun.split, begun.place, begun.resolved(settings)
    trainer = make_trainer(model, split.train, actions, resolved, place)
    augmentation = augmentation_over(
        actions,
        distribution=_distribution(actions),
        caps=settings.caps,
        dtype=trainer.inputs.dtype,
    ).to(place)
    check_actions(augmentation, split.train)
    if folder is not None:
        make_folder(Path(folder))
    tell = progress or (lambda _: None)
    for epoch in range(resolved.epochs):
        last = trainer.run_epoch()
        if (epoch + 1) % 10 == 0:
            tell(f"plain network: epoch {epoch + 1} of {resolved.epochs}")
    screening = climb(
        trainer.evidence,
        augmentation,
        trainer.inputs,
        trainer.targets,
        seed=settings.seed,
        batch_size=resolved.curvature_batch,
        progress=tell,
    )
    record = {
        **record_head(
            "screen",
            seed=settings.seed,
            device=place,
            seconds=begun.seconds,
            run_folder=None,
        ),
        "data": split.train.name,
        "network": begun.network.name,
        "curvature": trainer.evidence.curvature_name,
        "train_examples": len(split.train),
        "training": {
            "epochs": resolved.epochs,
            "train_loss": last.train_loss,
            "train_accuracy": last.train_accuracy,
            "log_evidence_per_example": screening.log_evidence / len(split.train),
        },
        "units": {symmetry.name: symmetry.unit for symmetry in augmentation.symmetries()},
        "screening": screening.as_dict(),
    }
    faint = {
        symmetry.name: FAINT
        if symmetry.kind == "probability"
        else {g.name: g for g in augmentation.action.generators}[symmetry.name].in_units(START)
        for symmetry in augmentation.symmetries()
    }
    start = {name: max(amount, screening.start.get(name, 0.0)) for name, amount in faint.items()}
    kept = begun.config(resolved, describe)
    return ScreenResult(screening, start, record=record, config=kept).kept_in(folder)


def _distribution(actions: Actions) -> str:
    """Correlated where generators can be, so that pairs wanted together are seen."""
    generators = augmentation_over(actions).action.generators
    return "independent" if any(g.multiplicity > 1 for g in generators) else "correlated"
