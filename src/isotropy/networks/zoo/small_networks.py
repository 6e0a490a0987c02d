"""A network for clouds of points that does not ask for their order: it counts them in places.

    n_c(x) = Σ_p exp( −‖x_p − c‖² / 2w² )       c on a regular grid of places, w = 0.7 of its step

The counts are soft, so that they and everything behind them are smooth in the points' coordinates:
ranges over motions of clouds can be learned through them. A sum over points is the same in every
order; a network that takes the points as one long row would have to learn each order by itself.
Along each axis a point has its own bumps, and a cell's is their product, so that a cloud in the
plane costs one product of two matrices (points, cells):  exp(−‖d‖²) = exp(−d_x²) exp(−d_y²).

Axes: clouds (batch, points, dimensions) with one, two or three dimensions, counts (batch, cells),
the last coordinate fastest. Points beyond the grid's reach count for little and are lost far from
it: centre the clouds and bring them to about unit radius. Tested against the sum written out in
tests/networks/test_cloud_networks.py.

Networks that say how a state moves: a neural ODE, and a Hamiltonian network.

    neural ODE        dz/dt = f(z)                                     f: state → state
    Hamiltonian       dx/dt = ∂H/∂p,  dp/dt = −∂H/∂x                   H: state → scalar

A state (batch, 2m) is (x, p). If f is equivariant, or H invariant, so is the motion; what a
continuous symmetry of H conserves is then conserved by the motion that was learned (Noether).
(Finzi 2023, 2.7.2; Chen et al. 2018; Greydanus et al. 2019.) `experiments.thesis_problems` follows
states in time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import grad

from isotropy.checks import CallerError, check_at_least, check_axes, shape_text

CELLS = 14
REACH = 2.2
WIDTH = 0.7
"""Of a cell's bump, in steps of the grid: neighbours overlap, and no place falls between them."""
FAINTEST = -40.0
"""Exponent at which a bump ends, e^−40: smaller numbers, and their products, are no normal numbers
in single precision, and products of matrices become twenty times slower by them."""


class SoftCounts(nn.Module):
    """Clouds (batch, points, dimensions) → how many points lie about each cell (batch, cells).

    dimensions: columns of a cloud, 1 to 3
    cells:      cells along each axis, from −reach to reach
    width:      of a cell's Gaussian bump, in steps from one cell to the next
    """

    def __init__(
        self,
        dimensions: int = 2,
        *,
        cells: int = CELLS,
        reach: float = REACH,
        width: float = WIDTH,
    ) -> None:
        super().__init__()
        if dimensions not in (1, 2, 3):
            raise CallerError(f"dimensions: expected 1, 2 or 3, got {dimensions}")
        check_at_least(cells, 2, what="cells along an axis")
        if not (reach > 0 and width > 0):
            raise CallerError(f"reach and width: expected above 0, got {reach} and {width}")
        self.dimensions = dimensions
        self.cells = cells
        self.width = width * 2 * reach / (cells - 1)
        self.register_buffer("places", torch.linspace(-reach, reach, cells), persistent=False)

    places: Tensor

    @property
    def features(self) -> int:
        """The number of cells in all."""
        return int(self.cells**self.dimensions)

    def forward(self, clouds: Tensor) -> Tensor:
        """Counts (batch, cells) of clouds (batch, points, dimensions)."""
        axes = ("batch", "points", "dimensions")
        check_axes(clouds, axes, what="clouds", advice="one cloud is x[None]")
        if clouds.shape[2] != self.dimensions:
            raise CallerError(
                f"clouds: expected (batch, points, {self.dimensions}), got {shape_text(clouds)}; "
                "dimensions= says how many columns there are"
            )
        offset = (clouds[..., None] - self.places.to(clouds)) / self.width
        # Along each axis (batch, points, cells); a cell in the plane has the product of two.
        first, *others = (-offset.square() / 2).clamp(min=FAINTEST).exp().unbind(2)
        if not others:
            return first.sum(1)
        last = others.pop()
        for bumps in others:
            first = (first[..., None] * bumps[..., None, :]).flatten(2)
        return (first.mT @ last).flatten(1)


def cloud_network(
    shape: Sequence[int], outputs: int, *, hidden: int = 50, cells: int = CELLS
) -> nn.Module:
    """Soft counts, then one hidden tanh layer, on clouds of shape (points, dimensions)."""
    if len(shape) != 2:
        raise CallerError(
            f"model clouds: expected clouds (points, dimensions), got inputs of {tuple(shape)}"
        )
    counts = SoftCounts(shape[1], cells=cells)
    return nn.Sequential(
        counts, nn.Linear(counts.features, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


class NeuralODE(nn.Module):
    """d/dt of states (batch, 2m) as the network gives it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, states: Tensor) -> Tensor:
        return self.network(states)


class HamiltonianNetwork(nn.Module):
    """d/dt of states (batch, 2m) from an energy; the network's output is (batch, 1)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def energy(self, states: Tensor) -> Tensor:
        """H (batch) of states (batch, 2m)."""
        return self.network(states)[..., 0]

    def forward(self, states: Tensor) -> Tensor:
        if states.shape[-1] % 2:
            raise CallerError(
                f"a Hamiltonian network: expected states (batch, 2m) of places and momenta, got "
                f"{states.shape[-1]} numbers"
            )
        slopes = grad(lambda given: self.energy(given).sum())(states)
        by_place, by_momentum = slopes.chunk(2, -1)
        return torch.cat([by_momentum, -by_place], -1)
