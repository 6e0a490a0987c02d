"""Constants of a module that stay exact: rounded anew whenever it is moved or converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


class ExactBuffers(nn.Module):
    """A module with constants that are rounded from float64 to whatever it is converted to.

    `.half().double()` leaves them as exact as they were, and none of them is saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, Tensor] = {}

    def add_exact(self, name: str, exact: Tensor) -> None:
        """A buffer that is not saved."""
        self._exact[name] = exact
        self.register_buffer(name, exact.to(torch.get_default_dtype()), persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, exact in self._exact.items():
            moved = getattr(self, name)
            setattr(self, name, exact.to(device=moved.device, dtype=moved.dtype))
        return self
