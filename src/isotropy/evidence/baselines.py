"""What objectives train with: their augmentation, the loss over copies, the reward for width.

    loss of the average      −log p(y | Σ_s w_s f(x_s))
    average of the losses    −Σ_s w_s log p(y | f(x_s))        never below the former (Jensen)

Rows are (batch·copies, outputs), copies fastest; losses are means over the batch, in nats.
`objectives` says which objective takes which.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.curvature.copies import Copies
from isotropy.evidence.objectives import RECIPES
from isotropy.evidence.schedule import LearnConfig
from isotropy.likelihoods import Likelihood
from isotropy.networks.augmentations import START, Augmentation
from isotropy.networks.mixtures import augmentation_over
from isotropy.networks.random_copies import RandomCopies, trivial_augment
from isotropy.networks.softplus_ranges import SoftplusRanges
from isotropy.symmetry.actions import Action, compose
from isotropy.symmetry.finite_actions import FiniteAction


def augmentation_for(
    config: LearnConfig,
    actions: Action | FiniteAction | Sequence[Action | FiniteAction],
    *,
    dtype: torch.dtype = torch.float32,
) -> Augmentation:
    """The augmentation that a run with these settings trains with.

    trivial-augment has no use for the actions. augerino-original takes continuous ones only, and
    is the authors' own with `affine(AUGERINO_GENERATORS)`.
    """
    if config.objective == "trivial-augment":
        return RandomCopies(trivial_augment(), dtype=dtype)
    if config.objective == "augerino-original":
        given = list(actions) if isinstance(actions, Sequence) else [actions]
        continuous = [action for action in given if isinstance(action, Action)]
        if len(continuous) < len(given):
            other = next(action for action in given if not isinstance(action, Action))
            name = other.name if isinstance(other, FiniteAction) else type(other).__name__
            raise CallerError(
                f"objective augerino-original: expected Actions with ranges, got {name!r}; for "
                "finite groups use laplace or augerino"
            )
        return SoftplusRanges(
            compose(*continuous), start=config.start, caps=config.caps, dtype=dtype
        )
    learned = RECIPES[config.objective].learns
    return augmentation_over(
        actions,
        distribution=config.distribution,
        start=(config.start or START) if learned else (config.ranges or {}),
        caps=config.caps,
        dtype=dtype,
    )


def average_of_losses(
    likelihood: Likelihood, rows: Tensor, targets: Tensor, copies: Copies
) -> Tensor:
    """Σ_s w_s · mean over the batch of −log p(y | f(x_s)), for rows (batch·copies, outputs)."""
    if copies.weights is None:
        return likelihood.training_loss(rows, targets.repeat_interleave(copies.count, 0))
    split = copies.split(rows)
    losses = [likelihood.training_loss(split[:, s], targets) for s in range(copies.count)]
    return torch.stack(losses) @ copies.weights.to(rows.dtype)


def reward_for_width(augmentation: Augmentation) -> Tensor:
    """What is paid for width: ‖η‖₂ over all that is learned, or ‖w‖₂ of `SoftplusRanges`.

    The gradient of the norm is taken as 0 at 0.
    """
    if isinstance(augmentation, SoftplusRanges):
        return augmentation.reward()
    everything = torch.cat([parameter.flatten() for parameter in augmentation.learnable()])
    squared = everything.square().sum()
    return torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)
