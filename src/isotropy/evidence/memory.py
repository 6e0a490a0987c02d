"""How much memory a weight step takes, and how many examples of it fit.

What back-propagation needs is kept from the forward pass. Autograd hands over every tensor that it
keeps, so that one example tells how much that is:

    bytes of a weight step ≈ examples · (bytes kept for one) + 4 · (bytes of the parameters)

with values, gradients and Adam's two moments of the parameters. A batch that does not fit goes
through in parts whose gradients add up; the result is the same, and memory does not grow with the
number of examples.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

SHARE_OF_FREE = 0.5
"""Of what is free, half: fragments, workspaces and whatever else runs need the rest."""


def kept_bytes(network: nn.Module, rows: Tensor) -> int:
    """Bytes that autograd keeps of one forward pass, parameters and rows apart.

    The pass draws from a copy of the random state, and leaves buffers as they were.
    """
    parameters = {id(p) for p in network.parameters()} | {
        p.data_ptr() for p in network.parameters()
    }
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()
        if place.data_ptr() not in parameters:
            seen[place.data_ptr()] = place.nbytes()
        return tensor.detach()  # itself, it would hold its own graph for ever

    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = [rows.device] if rows.is_cuda else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        outputs = network(rows)
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])
    seen.pop(rows.untyped_storage().data_ptr(), None)
    own = outputs.untyped_storage()
    return sum(seen.values()) + (0 if own.data_ptr() in seen else own.nbytes())


def free_bytes(device: torch.device) -> int | None:
    """Bytes that could be had on a device; None where nobody says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds for reuse is free as well.
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    available = _available_bytes()
    if available is not None:
        return available
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _available_bytes(source: Path = Path("/proc/meminfo")) -> int | None:
    """What Linux could hand out, the cache of files counted in; None elsewhere.

    Pages that are free by themselves are few on a machine that has read much.
    """
    try:
        lines = source.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable" and rest.split()[:1] and rest.split()[0].isdecimal():
            return 1024 * int(rest.split()[0])
    return None


def step_bytes(network: nn.Module, inputs: Tensor, samples: int, examples: int) -> int:
    """Bytes of a weight step on `examples` of the inputs with `samples` copies each."""
    one = inputs[:1].expand(samples, *inputs.shape[1:])
    row_bytes = one.numel() * one.element_size()
    parameters = sum(p.numel() * p.element_size() for p in network.parameters())
    return examples * (kept_bytes(network, one.clone()) + row_bytes) + 4 * parameters


def fitting_micro_batch(
    network: nn.Module, inputs: Tensor, samples: int, batch_size: int, free: int | None = None
) -> int:
    """How many examples of a batch go through the network together: all, if they fit.

    free: bytes to fit into; by default half of what the inputs' device has free.
    """
    if free is None:
        found = free_bytes(inputs.device)
        if found is None:
            return batch_size
        free = int(SHARE_OF_FREE * found)
    whole = step_bytes(network, inputs, samples, batch_size)
    if whole <= free:
        return batch_size
    one = (whole - (fixed := step_bytes(network, inputs, samples, 0))) / batch_size
    return max(1, min(batch_size, int((free - fixed) / one)))
