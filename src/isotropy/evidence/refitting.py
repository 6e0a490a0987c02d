"""Refits: the same training with the amount of symmetry held at a given value.

Whether a symmetry is real is a question about two models, one with and one without it, each with
the weights that suit it. Switching it off without refitting misjudges. A refit starts from the
weights, precisions and noise it is given and trains on with the ranges fixed; two refits with
the same start, budget and seeds differ in nothing but the ranges.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isotropy.evidence.training import Trainer
from isotropy.evidence.values import EvidenceValue
from isotropy.networks.invariant_model import InvariantModel


@dataclass(frozen=True)
class RefitPlan:
    """Budget of a refit: epochs, the rate the weights start from, and how prior steps go."""

    epochs: int
    weight_rate: float
    prior_rate: float
    burn_in: int = 0


def plan_for(trainer: Trainer) -> RefitPlan:
    """A quarter of the run's epochs, at half its starting rate."""
    config = trainer.config
    assert config.epochs is not None and config.prior_rate is not None
    return RefitPlan(
        epochs=max(2, config.epochs // 4),
        weight_rate=config.weight_rate / 2,
        prior_rate=config.prior_rate,
    )


def refit(
    trainer: Trainer,
    state: Mapping[str, Tensor],
    plan: RefitPlan,
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Trainer:
    """Train on from where `trainer` stands with the augmentation in `state`; it is left as it was.

    Copies that are all the same are made once: averaging them changes no number.
    """
    augmentation = copy.deepcopy(trainer.model.augmentation)
    augmentation.load_state_dict(dict(state))
    samples = 1 if augmentation.is_identity else trainer.model.samples
    config = replace(
        trainer.config,
        objective="fixed",
        epochs=plan.epochs,
        weight_rate=plan.weight_rate,
        prior_rate=plan.prior_rate,
        burn_in=plan.burn_in,
        bound="none",  # verdicts compare evidences of all data
        seed=seed,
    )
    again = Trainer(
        InvariantModel(copy.deepcopy(trainer.network), augmentation, samples),
        copy.deepcopy(trainer.likelihood),
        config,
        trainer.inputs,
        trainer.targets,
    )
    with torch.no_grad():
        again.prior.log_precisions.copy_(trainer.prior.log_precisions)
    for epoch in range(plan.epochs):
        again.run_epoch()
        if progress is not None:
            progress(epoch + 1)
    return again


def refit_evidence(again: Trainer, samples: int) -> EvidenceValue:
    """The evidence of a refit; `samples` copies, also where they are the same and made once."""
    return replace(again.evidence_value("refit"), samples=samples)
