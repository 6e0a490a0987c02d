"""A double pendulum of springs in space: motion with a symmetry about the vertical axis.

    H = |p₁|²/2 + |p₂|²/2 + ½(|x₁| − 1)² + (|x₁ − x₂| − 1)² + z₁ + z₂

(Finzi 2023, A.1.10, all constants one; the second spring has no ½, as in the published code.) A
state is (x₁, x₂, p₁, p₂), 12 numbers, 4V of the rotations and reflections about z, O2eR3. The
motion is Hamiltonian, dx/dt = ∂H/∂p, dp/dt = −∂H/∂x, keeps H, and angular momentum about z,

    L = Σ (x × p)_z .

It starts near hanging still: x₁ ~ (0, 0, −1.5) + 0.2 N, x₂ ~ (0, 0, −3) + 0.2 N, p ~ 0.4 N. Each
trajectory of 30 s, a state every 0.2 s, gives one example: five states in a row, at a place that is
a multiple of five.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.data.integration import integrate
from isotropy.symmetry.representations import Representation, V

STATE: Representation = 4 * V
STEP, DURATION, CHUNK = 0.2, 30.0, 5
ACCURATE = 2
"""Integration steps in one STEP that follow 30 s to a relative 1e-6 on average."""


def motion(states: Tensor) -> Tensor:
    """d/dt of states (…, 12), the derivatives of H written out."""
    first, second, p_first, p_second = states.unflatten(-1, (4, 3)).unbind(-2)
    between = first - second
    pull = 2 * (1 - 1 / between.norm(dim=-1, keepdim=True)) * between
    weight = torch.zeros_like(first)
    weight[..., 2] = 1.0
    force_first = -(1 - 1 / first.norm(dim=-1, keepdim=True)) * first - pull - weight
    return torch.cat([p_first, p_second, force_first, pull - weight], -1)


def angular_momentum(states: Tensor) -> Tensor:
    """L about the vertical axis, of states (…, 12)."""
    coordinates = states.unflatten(-1, (4, 3))
    places, momenta = coordinates[..., :2, :], coordinates[..., 2:, :]
    crossed = places[..., 0] * momenta[..., 1] - places[..., 1] * momenta[..., 0]
    return crossed.sum(-1)


def initial_states(count: int, generator: torch.Generator) -> Tensor:
    """(count, 12) in float64."""
    noise = torch.randn(count, 4, 3, generator=generator, dtype=torch.float64)
    states = noise * torch.tensor([0.2, 0.2, 0.4, 0.4], dtype=torch.float64)[:, None]
    states[:, 0, 2] -= 1.5
    states[:, 1, 2] -= 3.0
    return states.flatten(1)


@dataclass(frozen=True, eq=False)
class PendulumData:
    """chunks (examples, CHUNK, 12): states every STEP; the first is where a prediction starts."""

    training: Tensor
    validation: Tensor
    test: Tensor


def pendulum_data(each: int, generator: torch.Generator) -> PendulumData:
    """`each` chunks for training, validation and test, in float64, every one of its own motion."""
    if each < 1:
        raise CallerError(f"expected at least 1 example of each kind, got {each}")
    times = round(DURATION / STEP)
    start = initial_states(3 * each, generator)
    paths = integrate(motion, start, times, STEP, within=ACCURATE)
    places = CHUNK * torch.randint(times // CHUNK, (3 * each,), generator=generator)
    rows = places[:, None] + torch.arange(CHUNK)
    chunks = paths.transpose(0, 1)[torch.arange(3 * each)[:, None], rows]
    return PendulumData(*chunks.split(each))
