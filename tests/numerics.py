"""Numbers to test with, and slopes by finite differences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal draws in double precision, the same for the same seed."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Draws from 0 to 1 in double precision, the same for the same seed."""
    return torch.rand(shape, generator=seeded(seed), dtype=torch.float64)


def doubles(*values: float) -> list[Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def central_slopes(value: Callable[[], Tensor], parameter: Tensor, step: float = 1e-5) -> Tensor:
    """∂ value / ∂ parameter, entry by entry, by moving the parameter itself to each side."""
    slopes = []
    with torch.no_grad():
        flat = parameter.view(-1)
        for index in range(flat.numel()):
            values = []
            for move in (step, -2 * step):
                flat[index] += move
                with torch.enable_grad():
                    values.append(value().detach())
            flat[index] += step
            slopes.append((values[0] - values[1]) / (2 * step))
    return torch.stack(slopes).reshape(parameter.shape)
