"""How exactly a GPU multiplies: float32, tf32, or bfloat16 in weight steps alone.

float32 has 24 bits of each factor, tf32 11 bits, with products and sums in float32, several times
faster. Ranges that are learned do not tell the two apart (benchmarks/orbit_training.py);
determinants are always in float64. On a CPU both are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bfloat16")

_TORCH_NAMES = {"float32": "highest", "tf32": "high", "bfloat16": "high"}


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
            allow_tf32=precision != "float32",
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
