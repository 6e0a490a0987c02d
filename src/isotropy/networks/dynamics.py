"""Networks that say how a state moves: a neural ODE, and a Hamiltonian network.

    neural ODE        dz/dt = f(z)                                     f: state → state
    Hamiltonian       dx/dt = ∂H/∂p,  dp/dt = −∂H/∂x                   H: state → scalar

A state (batch, 2m) is (x, p). If f is equivariant, or H invariant, so is the motion; what a
continuous symmetry of H conserves is then conserved by the motion that was learned (Noether).
(Finzi 2023, 2.7.2; Chen et al. 2018; Greydanus et al. 2019.) `isotropy.data.integration` follows
states in time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import grad

from isotropy.checks import CallerError


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
