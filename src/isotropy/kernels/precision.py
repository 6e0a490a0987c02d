"""How exactly a device multiplies: float32, tf32 or bfloat16.

float32 has 24 bits of each factor, tf32 11 bits, with products and sums in float32, several times
faster. Ranges that are learned do not tell the two apart (benchmarks/orbit_training.py);
determinants are always in float64. On a CPU both are one.

bfloat16 has 8 bits. It is for weight steps alone, on request: on a GPU, and on a CPU with
instructions for it (`has_bfloat16`). There layers of which no gradient is taken are in it without a
request, where they are precise enough, and about twice as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

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


@cache
def _cpu_multiplies_bfloat16() -> bool:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def has_bfloat16(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products of this type are faster in bfloat16: float32 on a CPU made for it."""
    return device.type == "cpu" and dtype == torch.float32 and _cpu_multiplies_bfloat16()
