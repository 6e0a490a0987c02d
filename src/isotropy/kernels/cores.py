"""Operations on few numbers by one core of a CPU.

torch divides every operation among all threads and waits for the last of them. Where other programs
use the cores too, one thread has to wait for its turn, and the others wait for it, operation by
operation. Operations on few numbers gain nothing by several threads and lose much
(benchmarks/frozen_backbone.py, on a busy machine).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_one_core(condition: bool = True) -> Iterator[None]:
    """One thread for each operation inside, if the condition holds; as many as before after."""
    before = torch.get_num_threads()
    if not condition or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
