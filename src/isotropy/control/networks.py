"""Networks of signed permutations: hard and soft linear layers, and MLPs of them.

    hard    y = E x + b             E[g o, g i] = s_o s_i E[o, i]    for all elements g of a group
    soft    y = (E + c F) x + b + c f          F and f without any symmetry, zero at first

E is read off one coefficient for each orbit of pairs (o, i), with a sign. An orbit that meets
itself with the other sign is zero. All equivariant maps are of this form (Finzi 2023, 2.4); the
soft layer is a residual pathway prior on top of them (3.3). The two matrices are added before they
meet the inputs, so that a soft layer costs one product of matrices as a plain one does.

Hidden layers are copies of the group's regular representation. Its elements are permuted without
signs, so that any function of single entries commutes with the group, and neither gates nor
contractions are needed.

c is `free_rate`. Adam takes steps of the length of its rate, whatever the gradient, so that c is
the rate of the free part in that of the rest. Initial entries of E and b have the distribution of
`nn.Linear`, drawn by torch's global generator as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.control.groups import SignedAction, still

MODELS = ("mlp", "emlp", "rpp", "rpp-trivial")
"""Plain, hard, soft, and soft with the trivial group; `policies` tells more."""
FREE_RATE, FREE_PENALTY = 0.1, 1e-6
"""Of the free parts of policies, unless others are given: c and λ."""


def orbits(target: SignedAction, source: SignedAction) -> tuple[np.ndarray, np.ndarray, int]:
    """Which coefficient each entry (out, in) of E is, with which sign (0: none), and how many.

    Entries move together: g takes (o, i) to (g o, g i). An orbit is named by its smallest entry.
    """
    shape = target.size, source.size
    best = np.arange(shape[0] * shape[1]).reshape(shape)
    signs, clashes = np.ones(shape), np.zeros(shape, dtype=bool)
    for g in range(target.elements):
        image = target.places[g][:, None] * shape[1] + source.places[g]
        sign = target.signs[g][:, None] * source.signs[g]
        is_smaller, is_equal = image < best, image == best
        clashes = np.where(is_smaller, False, clashes | (is_equal & (sign != signs)))
        best, signs = np.where(is_smaller, image, best), np.where(is_smaller, sign, signs)
    names, numbers = np.unique(best[~clashes], return_inverse=True)
    index = np.zeros(shape, dtype=np.int64)
    index[~clashes] = numbers
    return index, np.where(clashes, 0.0, signs), len(names)


class TiedEntries(nn.Module):
    """A tensor read off coefficients, one an orbit: `coefficients` (rank,)."""

    index: Tensor
    signs: Tensor

    def __init__(self, target: SignedAction, source: SignedAction, bound: float) -> None:
        super().__init__()
        index, signs, rank = orbits(target, source)
        self.shape, self.has_signs = index.shape, bool((signs != 1).any())
        self.coefficients = nn.Parameter(torch.empty(rank).uniform_(-bound, bound))
        buffers = {
            "index": torch.from_numpy(index.ravel()),
            "signs": torch.from_numpy(signs.ravel()).float(),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self) -> Tensor:
        if not len(self.coefficients):
            return self.signs.new_zeros(self.shape)
        found = self.coefficients.index_select(0, self.index)
        return (found * self.signs if self.has_signs else found).view(self.shape)

    @torch.no_grad()
    def nearest(self, given: Tensor) -> Tensor:
        """The tensor of this form that is nearest to one of its shape."""
        if not len(self.coefficients):
            return torch.zeros_like(given)
        sums, counts = (
            torch.zeros_like(self.coefficients).index_add_(0, self.index, each)
            for each in (given.flatten() * self.signs, self.signs.abs())
        )
        return ((sums / counts)[self.index] * self.signs).view(self.shape)


class GroupLinear(nn.Module):
    """A layer of the module: (batch, source.size) → (batch, target.size).

    free_rate: c of a soft layer; None for a hard one
    """

    def __init__(
        self, source: SignedAction, target: SignedAction, *, free_rate: float | None = None
    ) -> None:
        super().__init__()
        bound = source.size**-0.5
        self.matrix = TiedEntries(target, source, bound)
        self.constant = TiedEntries(target, still(target.elements), bound)
        self.free_rate = free_rate
        if free_rate is not None:
            self.free_matrix = nn.Parameter(torch.zeros(target.size, source.size))
            self.free_constant = nn.Parameter(torch.zeros(target.size))

    @property
    def weight(self) -> Tensor:
        """E + c F, (out, in)."""
        found: Tensor = self.matrix()
        if self.free_rate is None:
            return found
        return torch.add(found, self.free_matrix, alpha=self.free_rate)

    @property
    def bias(self) -> Tensor:
        """b + c f, (out,)."""
        found: Tensor = self.constant().flatten()
        if self.free_rate is None:
            return found
        return torch.add(found, self.free_constant, alpha=self.free_rate)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.weight, self.bias)

    @torch.no_grad()
    def scale_(self, factor: float) -> None:
        """Multiply all parameters."""
        for each in self.parameters():
            each.mul_(factor)

    @torch.no_grad()
    def softness(self) -> float:
        """How much of the weight breaks the group: ‖W − P W‖ / ‖W‖, P the projection on E's."""
        weight = self.weight
        return float((weight - self.matrix.nearest(weight)).norm() / weight.norm())

    def free_parameters(self) -> list[nn.Parameter]:
        """F and f; none of a hard layer."""
        return [] if self.free_rate is None else [self.free_matrix, self.free_constant]

    def extra_repr(self) -> str:
        kind = "hard" if self.free_rate is None else "soft"
        return f"{self.matrix.shape[1]} to {self.matrix.shape[0]}, {kind}"


class LayerMaker:
    """Makes layers of one group, and hidden ones of copies of its regular representation."""

    def __init__(self, regular: SignedAction, free_rate: float | None) -> None:
        self.regular, self.free_rate = regular, free_rate

    def hidden(self, width: int) -> SignedAction:
        """Copies of the regular representation, of about this width and at least one."""
        return self.regular.copies(max(1, width // self.regular.size))

    def linear(self, source: SignedAction, target: SignedAction) -> GroupLinear:
        return GroupLinear(source, target, free_rate=self.free_rate)

    def trunk(
        self, source: SignedAction, widths: Sequence[int], activation: Callable[[], nn.Module]
    ) -> tuple[nn.Sequential, SignedAction]:
        """Hidden layers with an activation after each, and how their outputs move."""
        sizes = [source, *map(self.hidden, widths)]
        found: list[nn.Module] = []
        for first, second in pairwise(sizes):
            found += [self.linear(first, second), activation()]
        return nn.Sequential(*found), sizes[-1]

    def network(
        self,
        source: SignedAction,
        target: SignedAction,
        widths: Sequence[int],
        activation: Callable[[], nn.Module],
    ) -> nn.Sequential:
        """Hidden layers and a linear one."""
        trunk, last = self.trunk(source, widths, activation)
        return nn.Sequential(*trunk, self.linear(last, target))


def group_layers(network: nn.Module) -> Iterator[tuple[str, GroupLinear]]:
    """The layers of this module in a network, by name."""
    for name, each in network.named_modules():
        if isinstance(each, GroupLinear):
            yield name, each


def softness(network: nn.Module) -> dict[str, float]:
    """How much of each layer breaks the group (`GroupLinear.softness`)."""
    return {name: each.softness() for name, each in group_layers(network)}


def with_rotation(observation: Tensor, place: int, used: int) -> Tensor:
    """The first numbers of observations (batch, numbers), a quaternion as a matrix, row by row.

    place: where the quaternion (w, x, y, z) begins; used: numbers that are taken
    """
    before, quaternion, after = observation[:, :used].split([place, 4, used - place - 4], 1)
    w, x, y, z = functional.normalize(quaternion, dim=1).unbind(1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    matrix = torch.stack([each for row in rows for each in row], 1)
    return torch.cat([before, matrix, after], 1)
