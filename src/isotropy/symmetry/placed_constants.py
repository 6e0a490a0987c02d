"""Constants that are copied once to every device and type that they are wanted in.

A copy from the CPU waits for it, and no CUDA graph can record that: whoever computes with a table
of numbers has it where the data are, from the first use on.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PlacedConstant:
    """A tensor of numbers, handed out on the device and in the type of the data beside it."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._placed: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, data: Tensor) -> Tensor:
        """The constant where `data` are."""
        if torch.compiler.is_compiling():  # an exported program has its own constants
            return self.values.to(data)
        place = (data.device, data.dtype)
        if place not in self._placed:
            with torch.inference_mode(False):  # to serve outside of it as well
                placed = self.values.to(*place)
            if not _has_memory(placed):
                return placed
            self._placed[place] = placed
        return self._placed[place]


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor may be kept: a tracer's or a transform's stands for one within it alone."""
    try:
        return type(tensor) is Tensor and tensor.data_ptr() != 0
    except RuntimeError:
        return False
