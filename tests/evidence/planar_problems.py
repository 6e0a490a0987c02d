"""Points of the plane with a symmetry that is known, small networks, and their training.

All in float64 and on the scale of a second: points (examples, 2), labels by what a case says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from isotropy.evidence.settings import LearnConfig
from isotropy.evidence.training import Trainer
from isotropy.likelihoods import Categorical
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.averaging.invariant_model import InvariantModel
from isotropy.networks.averaging.mixtures import augmentation_over
from isotropy.symmetry.actions.action import Action, Generator
from isotropy.symmetry.actions.finite import Element, FiniteAction, MapAction


class Turn(Action):
    """Rotations of the plane, once for every name: generators that do the same add up."""

    def __init__(self, *names: str) -> None:
        self.generators = tuple(
            Generator(name, "degrees", math.pi / 180, math.pi) for name in names or ("turn",)
        )

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        angle = coordinates.sum(-1)
        x, y = data[:, None, 0], data[:, None, 1]
        cosine, sine = angle.cos(), angle.sin()
        return torch.stack([cosine * x - sine * y, sine * x + cosine * y], -1)


class Stretch(Action):
    """Factors along x and y, given by their logarithms."""

    generators = (Generator("stretch_x", "log factor"), Generator("stretch_y", "log factor"))

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] * coordinates.exp()


class Push(Action):
    """Moves along x and y."""

    generators = (Generator("push_x", "units"), Generator("push_y", "units"))

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        return data[:, None] + coordinates


def mirror(axis: int) -> FiniteAction:
    """Coordinate `axis` changes its sign."""
    name = f"mirror_{'xy'[axis]}"
    signs = torch.tensor([-1.0, 1.0] if axis == 0 else [1.0, -1.0], dtype=torch.float64)
    return MapAction(name, {Element(name): lambda points: points * signs})


def points(count: int, seed: int = 0) -> Tensor:
    """All around, radii from ½ to 2."""
    generator = torch.Generator().manual_seed(seed)
    angle, radius = torch.rand(2, count, generator=generator, dtype=torch.float64)
    angle, radius = 2 * math.pi * angle, 0.5 + 1.5 * radius
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def by_radius(inputs: Tensor) -> Tensor:
    return (inputs.norm(dim=1) > 1.25).long()


def by_angle(inputs: Tensor) -> Tensor:
    """Sectors of 90°, which are the quadrants."""
    return 2 * (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def by_first(inputs: Tensor) -> Tensor:
    return (inputs[:, 0] > 0).long()


class Radius(nn.Module):
    """A network that sees the radius alone, so that a rotation changes nothing."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs.norm(dim=1, keepdim=True))


def mlp(outputs: int = 2, width: int = 10) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs))


CONFIG = LearnConfig(
    samples=16, test_samples=16, batch_size=20, curvature_batch=20, burn_in=0, weight_rate=0.05,
    prior_rate=0.1, gradient_batches=0,
)  # fmt: skip


def trainer_of(
    network: Callable[[], nn.Module],
    labels: Callable[[Tensor], Tensor],
    actions: Action | Sequence[Action | FiniteAction],
    *,
    ranges: dict[str, float] | None = None,
    examples: int = 40,
    epochs: int = 30,
    distribution: str = "independent",
    inputs: Tensor | None = None,
    **changes: object,
) -> Trainer:
    """Trained with the given amounts, in reported units, and without a step on them."""
    inputs = points(examples) if inputs is None else inputs
    augmentation: Augmentation = augmentation_over(
        actions, distribution=distribution, start=ranges or {}, dtype=torch.float64
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = InvariantModel(network().double(), augmentation, CONFIG.samples or 1)
    config = replace(
        CONFIG, objective="fixed", ranges={"": 0.0}, epochs=max(1, epochs),
        distribution=distribution, **changes,
    )  # fmt: skip
    resolved = config.resolved(examples=len(inputs), on_gpu=False)
    trainer = Trainer(model, Categorical(), resolved, inputs, labels(inputs))
    for _ in range(epochs):
        trainer.run_epoch()
    return trainer


def overfitted(
    labels: Callable[[Tensor], Tensor],
    *,
    inputs: Tensor | None = None,
    width: int = 20,
    prior_precision: float = 0.1,
    epochs: int = 40,
) -> Trainer:
    """A plain network under a weak prior, fitted to labels of which every sixth is wrong."""

    def wrong(data: Tensor) -> Tensor:
        found = labels(data).clone()
        found[::6] = 1 - found[::6]
        return found

    return trainer_of(
        lambda: mlp(2, width), wrong, Turn(), inputs=inputs, epochs=epochs, burn_in=epochs,
        prior_precision=prior_precision,
    )  # fmt: skip


def sectors(count: int = 60, seed: int = 0) -> Tensor:
    """Points within 10° of the diagonals, radii from ½ to 2: a common factor changes no sector."""
    draws = torch.rand(2, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    angle = math.pi / 4 + torch.arange(count) % 4 * math.pi / 2
    angle = angle + (2 * draws[0] - 1) * math.radians(10)
    radius = 0.5 * 4 ** draws[1]
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def by_sector(inputs: Tensor) -> Tensor:
    """Whether x and y have one sign."""
    return ((inputs[:, 0] > 0) ^ (inputs[:, 1] > 0)).long()
