"""A motion followed in time: states at equal intervals from where it starts.

    dz/dt = field(z)          z(0) = start          states at 0, step, 2 step, …

By the Runge–Kutta method of Dormand and Prince, either with steps of fixed length, which a GPU can
replay as one recorded graph, or with torchdiffeq's adaptive ones. All states of a batch are
followed together; everything is differentiable.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from isotropy.checks import CallerError

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
