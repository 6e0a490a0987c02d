"""Memory and time of the curvature from the shapes of the weights alone: nothing is allocated.

A layer with weight (outputs, inputs) has two Kronecker factors, of inputs² and outputs² numbers; of
a convolution inputs are channels × places of the kernel. Each is kept in the network's precision
with its eigenvectors in double precision, and decomposed one after the other:

    bytes = Σ n² (bytes of a number + 8) + max n² · 3 · 8        n over inputs and outputs

the last term for a copy in double precision and the workspace of the decomposition. Finding
eigenvectors takes about 10 n³ operations each, at 2·10¹⁰ a second on a core of a CPU; a GPU is
faster, and how long the rest of a run takes is measured before it starts (`estimate`). The first
layer of an MLP on 3·224·224 inputs asks for 816 GB. The whole matrix over P parameters has n = P;
the other structures are small. Networks on torch's meta device will do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.curvature.kinds import kind_named
from isotropy.evidence.memory import free_bytes

OPERATIONS_PER_SECOND = 2e10
LONG_SECONDS = 3.0
"""From here on the time of decompositions is told."""

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class FactorMemory:
    """Bytes of all factors, and the layer with the largest: its name, side and bytes.

    seconds: of the decompositions in one evidence pass, on one core of a CPU
    """

    total: int
    layer: str
    side: int
    largest: int
    seconds: float

    @property
    def text(self) -> str:
        """A sentence: memory, and time where there is much of it."""
        told = f"the factors of the curvature take {max(self.total / 1e9, 0.001):.2g} GB"
        if self.seconds < LONG_SECONDS:
            return told
        return (
            f"{told}, and an evidence pass about {self.seconds:.0f} s for their eigenvalues, most "
            f"of it for layer {self.layer!r} with {self.side} × {self.side} numbers; --image-size "
            "and --model compact make that less"
        )


def factor_memory(network: nn.Module, curvature: str) -> FactorMemory:
    """What the curvature of a network takes; the network may be on the meta device."""
    structure = kind_named(curvature).structure
    kept = decomposed = largest = side = 0
    seconds = 0.0
    layer = ""

    def add(name: str, sides: tuple[int, ...], item: int) -> None:
        nonlocal kept, decomposed, largest, side, layer, seconds
        own = sum(n * n * (item + 8) for n in sides) + max(sides) ** 2 * 24
        seconds += sum(10 * n**3 for n in sides) / OPERATIONS_PER_SECOND
        kept += sum(n * n * (item + 8) for n in sides)
        decomposed = max(decomposed, max(sides) ** 2 * 24)
        if own > largest:
            layer, side, largest = name, max(sides), own

    if structure == "kfac":
        for name, module in network.named_modules():
            if isinstance(module, _LAYERS):
                weight = module.weight
                inputs = weight.numel() // max(weight.shape[0], 1)
                add(name or "the network", (inputs, weight.shape[0]), weight.element_size())
    elif structure == "full":
        count = sum(p.numel() for p in network.parameters() if p.requires_grad)
        add("all layers together", (count,), 4)
    return FactorMemory(kept + decomposed, layer, side, largest, seconds)


def check_factor_memory(
    network: nn.Module,
    curvature: str,
    device: torch.device,
    *,
    free: int | None = None,
) -> FactorMemory:
    """What the curvature takes; raises CallerError where it is more than is free on the device.

    free: bytes that are free; asked of the device by default, and not checked where nobody knows
    """
    found = factor_memory(network, curvature)
    free = free_bytes(device) if free is None else free
    if free is not None and found.total > free:
        raise CallerError(
            f"curvature {curvature}: layer {found.layer!r} has a factor of {found.side} × "
            f"{found.side} numbers, {_gigabytes(found.largest)} with its eigenvectors, and "
            f"{_gigabytes(free)} are free; make the inputs smaller (--image-size 32), take a "
            "network with small layers (--model compact), or a curvature without factors "
            "(--curvature diagonal-ggn)"
        )
    return found


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:,.3g} GB" if number < 1e12 else f"{number / 1e9:,.0f} GB"
