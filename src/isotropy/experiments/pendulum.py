"""A double pendulum of springs in space: motion with a symmetry about the vertical axis.

    H = |p₁|²/2 + |p₂|²/2 + ½(|x₁| − 1)² + (|x₁ − x₂| − 1)² + z₁ + z₂

(Finzi 2023, A.1.10, all constants one; the second spring has no ½, as in the published code.) A
state is (x₁, x₂, p₁, p₂), 12 numbers, 4V of the rotations and reflections about z, O2eR3. The
motion is Hamiltonian, dx/dt = ∂H/∂p, dp/dt = −∂H/∂x, keeps H, and angular momentum about z,

    L = Σ (x × p)_z .

It starts near hanging still: x₁ ~ (0, 0, −1.5) + 0.2 N, x₂ ~ (0, 0, −3) + 0.2 N, p ~ 0.4 N. Each
trajectory of 30 s, a state every 0.2 s, gives one example: five states in a row, at a place that is
a multiple of five.

Any motion dz/dt = field(z) is followed from its start by `integrate`, with the Runge–Kutta method
of Dormand and Prince: with steps of fixed length, which a GPU can replay as one recorded graph, or
with torchdiffeq's adaptive ones. All states of a batch are followed together; everything is
differentiable.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.groups.representations import Representation, V

Field = Callable[[Tensor], Tensor]
"""d/dt of states (…, size)."""


def torchdiffeq() -> ModuleType:
    """The package of adaptive integrators, if it is installed."""
    try:
        return importlib.import_module("torchdiffeq")
    except ImportError as error:
        raise CallerError(
            "adaptive steps need the package torchdiffeq: install isotropy[ode], or take steps of "
            "fixed length"
        ) from error


def integrate(
    field: Field,
    start: Tensor,
    times: int,
    step: float,
    *,
    within: int | None,
    tolerance: float = 1e-4,
) -> Tensor:
    """States (times, …) every `step` from `start` on.

    within:    steps of fixed length in one `step`; None for torchdiffeq's adaptive ones
    tolerance: relative, of adaptive steps
    """
    if within is None:
        moments = torch.arange(times, dtype=start.dtype, device=start.device) * step
        found: Tensor = torchdiffeq().odeint(
            lambda _, state: field(state), start, moments,
            rtol=tolerance, atol=tolerance * 1e-2, method="dopri5",
        )  # fmt: skip
        return found
    if within < 1:
        raise CallerError(f"expected at least 1 integration step in {step:g}, got {within}")
    state, states = start, [start]
    for _ in range(times - 1):
        state = advance(field, state, step, within)
        states.append(state)
    return torch.stack(states)


_STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
)
_WEIGHTS = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
"""The method of fifth order of Dormand and Prince (1980)."""


def advance(field: Field, state: Tensor, step: float, within: int) -> Tensor:
    """The state `step` later, by `within` steps of the Dormand–Prince method, six slopes each."""
    h = step / within
    for _ in range(within):
        slopes: list[Tensor] = []
        for stage in _STAGES:
            slopes.append(field(_combined(state, h, stage, slopes)))
        state = _combined(state, h, _WEIGHTS, slopes)
    return state


def _combined(state: Tensor, h: float, weights: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
    """state + h Σ weight · slope."""
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            state = torch.add(state, slope, alpha=h * weight)
    return state


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
