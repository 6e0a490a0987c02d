"""Directions that other data suggest: θ = θ₀ + S P q Δ.

The prior of a certificate may depend on other data in any way, not only by its start θ₀. With A the
second moments of a layer's inputs on the other data, (fan_in, fan_in), the weights (outputs,
fan_in) of that layer are moved by

    (P q Δ) S,      S = c (A + ε tr(A)/fan_in · I)^(−1/4)

Without S coordinates move all weights by as much, and outputs most where inputs are large. A whole
whitening (exponent −1/2) would move outputs alike in all directions, and the weakest inputs are
noise: −1/4 lies between. c is one number for all layers, by which S has determinant 1 over all
weights it moves, so that the step sizes of a grid suit it as they do without. Biases and layers of
other kinds are not stretched.

**Decoding is exact.** Entries of S are multiples of 2⁻¹². With integer signs and levels all sums
are integers, which float64 holds exactly (`subspace`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.bounds.subspace import Projector
from isotropy.checks import CallerError

EXPONENT, DAMPING = -0.25, 1e-2
"""Of the second moments; ε."""
UNIT = 2.0**-12
"""Of which the entries of S are multiples."""
LARGEST = 2**24
"""Entries of S in units, which float32 holds exactly."""
EXAMPLES, CHUNK = 10_000, 500
"""Of the other data, whose moments are taken; and how many at once."""
LARGEST_FAN = 4096
"""Inputs of a layer, of which a square matrix is kept."""


@dataclass(frozen=True)
class Stretch:
    """S of every layer in units, int32 (fan_in, fan_in), by the name of its weights."""

    blocks: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for name, block in self.blocks.items():
            square = block.ndim == 2 and block.shape[0] == block.shape[1]
            if block.dtype != torch.int32 or not square:
                raise CallerError(f"stretch of {name}: expected a square matrix of int32")
            if int(block.abs().max()) >= LARGEST:
                raise CallerError(f"stretch of {name}: expected entries below 2²⁴ units")

    def sha256(self) -> str:
        """Of names, shapes and values, in the order of names, little-endian."""
        found = hashlib.sha256()
        for name in sorted(self.blocks):
            values = self.blocks[name].cpu().contiguous().numpy()
            found.update(f"{name} {tuple(values.shape)}\n".encode())
            found.update(values.astype("<i4").tobytes())
        return found.hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """For a file, by name."""
        return {f"stretch/{name}": block for name, block in self.blocks.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self | None:
        """What `tensors` gave; None where there is none among them."""
        start = "stretch/"
        own = {
            name.removeprefix(start): each
            for name, each in tensors.items()
            if name.startswith(start)
        }
        return cls(own) if own else None


class Stretched(Projector):
    """S P: a projector whose moves are stretched layer by layer; not for sums of projectors."""

    def __init__(self, inner: Projector, stretch: Stretch, network: nn.Module) -> None:
        super().__init__(inner.num_weights, inner.dimension, inner.scale * UNIT)
        if type(inner).signs_times is Projector.signs_times:
            raise CallerError("a stretched subspace needs one kind of projector, got a sum")
        self.inner = inner
        self.sizes: list[int] = []
        self.places: list[tuple[int, int]] = []
        known = dict(network.named_parameters())
        if not set(stretch.blocks) <= set(known):
            raise CallerError("the stretch is of another network: names of weights differ")
        for place, (name, weight) in enumerate(known.items()):
            self.sizes.append(weight.numel())
            block = stretch.blocks.get(name)
            if block is None:
                continue
            if weight.ndim < 2 or weight[0].numel() != len(block):
                raise CallerError(f"the stretch of {name} is of weights of another size")
            self.places.append((place, len(block)))
            self._keep(f"block{place}", block.numpy())

    def signs_times(self, coordinates: Tensor) -> Tensor:
        parts = list(self.inner.signs_times(coordinates).split(self.sizes))
        stretched = {place for place, _ in self.places}
        for place, fan in self.places:
            block: Tensor = self.get_buffer(f"block{place}").to(coordinates.dtype)
            parts[place] = (parts[place].view(-1, fan) @ block).flatten()
        # Weights that are not stretched: S is 1, which is 1/UNIT units.
        return torch.cat(
            [each if place in stretched else each / UNIT for place, each in enumerate(parts)]
        )

    def exact(self, levels: Tensor, step: float) -> Tensor:
        """As `Projector.exact`; raises CallerError where float64 would not add up exactly."""
        rows = [self.get_buffer(f"block{place}").double().abs().sum(0) for place, _ in self.places]
        most = max((float(row.max()) for row in rows), default=1.0)
        if float(levels.double().abs().sum()) * max(most, 1 / UNIT) >= 2**52:
            raise CallerError("levels: expected numbers that S adds up to less than 2⁵²")
        return super().exact(levels, step)


@torch.no_grad()
def stretch_of(network: nn.Module, inputs: Tensor) -> Stretch:
    """S of a network's layers, from inputs (batch, …) that are not counted by the certificate.

    Linear layers and convolutions of two dimensions in one group, with at most 4,096 inputs.
    """
    names = {id(weight): name for name, weight in network.named_parameters()}
    moments: dict[str, Tensor] = {}
    layers: dict[str, int] = {}

    def seen(layer: nn.Module, arguments: tuple[Any, ...], _: Any) -> None:
        rows = _inputs_of(layer, arguments[0]).double()
        name = names[id(layer.weight)]
        moments[name] = moments.get(name, 0) + rows.T @ rows
        layers[name] = layers.get(name, 0) + len(rows)

    hooks = [
        each.register_forward_hook(seen) for each in network.modules() if _can_be_stretched(each)
    ]
    try:
        network.eval()
        for part in inputs[:EXAMPLES].split(CHUNK):
            network(part)
    finally:
        for hook in hooks:
            hook.remove()
    found, weights = {}, dict(network.named_parameters())
    logarithm, moved = 0.0, 0
    for name, total in moments.items():
        moment = total.cpu() / layers[name]
        mean = float(moment.diagonal().mean())
        if not mean > 0:  # no input ever was above zero: such weights do nothing
            continue
        values, vectors = torch.linalg.eigh(moment)
        roots = (values.clamp(min=0) + DAMPING * mean) ** EXPONENT
        found[name] = (vectors * roots) @ vectors.T
        count = weights[name].numel()
        logarithm += float(roots.log().mean()) * count
        moved += count
    factor = torch.tensor(-logarithm / max(moved, 1)).double().exp() / UNIT
    rounded = {name: (each * factor).round() for name, each in found.items()}
    return Stretch({name: each.to(torch.int32) for name, each in rounded.items()})


def _can_be_stretched(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        if layer.groups != 1 or not plain:
            return False
    elif not isinstance(layer, nn.Linear):
        return False
    return layer.weight[0].numel() <= LARGEST_FAN


def _inputs_of(layer: nn.Module, inputs: Tensor) -> Tensor:
    """What every output is a linear function of: (rows, fan_in)."""
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        patches = functional.unfold(
            inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        return patches.transpose(1, 2).flatten(0, 1)
    return inputs.flatten(0, -2)
