"""When a computation runs as one Triton kernel, and how such a kernel is launched.

The warp has a reference in plain torch operations and a fused kernel for GPUs. The kernel is taken
by itself for plain tensors of one type on one CUDA device where Triton can be imported, but not

    while a program is compiled or exported: it is to run without this library
    within `reference_path()`, for tests and benchmarks

Nothing is read back from the device in a launch, so that a CUDA graph can capture it once a first
call has compiled the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_only_reference: ContextVar[bool] = ContextVar("_only_reference", default=False)


@contextmanager
def reference_path() -> Iterator[None]:
    """Within this context there are no chunks and no kernels: every path is its reference."""
    token = _only_reference.set(True)
    try:
        yield
    finally:
        _only_reference.reset(token)


def is_plain() -> bool:
    """Whether only plain torch operations are wanted: for reference, or for an exported program."""
    return _only_reference.get() or torch.compiler.is_compiling()


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being recorded where `tensor` is: nothing can be waited for then."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def fused_module(name: str, *tensors: Tensor) -> ModuleType | None:
    """The module of this name if its kernels can take these tensors, None if not."""
    first = tensors[0]
    if not runs_kernels(first.device) or first.dtype not in DTYPES or is_plain():
        return None
    for each in tensors:
        # A subclass stands for something else than the numbers at its address.
        if type(each) not in (Tensor, torch.nn.Parameter):
            return None
        if each.device != first.device or each.dtype != first.dtype:
            return None
    return imported(name)


def runs_kernels(device: torch.device) -> bool:
    """Whether there can be kernels on this device."""
    return device.type == "cuda"


@cache
def imported(name: str) -> ModuleType | None:
    """The module of this name, or None where Triton is missing."""
    try:
        return import_module(name)
    except ImportError:
        return None


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run a Triton kernel in so many programs on the first argument's device, if there are any."""
    if not programs:
        return
    device = arguments[0].device
    if device.type != "cuda":  # Triton interprets
        kernel[(programs,)](*arguments, **constants)
        return
    # Triton launches on the current device, whatever the tensors say.
    with torch.cuda.device(device):
        kernel[(programs,)](*arguments, **constants)
