"""How exactly a GPU multiplies: float32 as it is, or TF32 on its matrix units.

    float32   24 bits of each factor
    tf32      11 bits of each factor, products and sums in float32: several times faster

Ranges that are learned do not tell the two apart (benchmarks/orbit_training.py); determinants
are always in float64. On a CPU both are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32"]
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32")

_TORCH_NAMES = {"float32": "highest", "tf32": "high"}


@contextmanager
def multiplying_in(precision: str, device: torch.device) -> Iterator[None]:
    """Matrix products and convolutions in this precision inside, in the caller's choice after."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(_TORCH_NAMES[precision])
    try:
        with torch.backends.cudnn.flags(
            enabled=torch.backends.cudnn.enabled,
            benchmark=torch.backends.cudnn.benchmark,
            deterministic=torch.backends.cudnn.deterministic,
            allow_tf32=precision == "tf32",
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
