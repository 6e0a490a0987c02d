"""Networks of motion: the field of an energy, and what a symmetry of it conserves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.experiments.thesis_problems import STATE, angular_momentum, initial_states, integrate
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.networks.zoo.small_networks import HamiltonianNetwork, NeuralODE
from isotropy.symmetry.groups.catalogue import DkeR3, O2eR3
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Scalar


def states(count: int) -> torch.Tensor:
    return initial_states(count, torch.Generator().manual_seed(0))


def energy_network(group: Group | None) -> HamiltonianNetwork:
    """A Hamiltonian network of few channels, its energy steep enough to move states."""
    torch.manual_seed(0)
    if group is None:
        inner: nn.Module = plain_mlp(12, 1, channels=16, layers=1)
    else:
        generator = torch.Generator().manual_seed(0)
        inner = EMLP(STATE, Scalar, group, channels=24, layers=1, generator=generator)
    found = HamiltonianNetwork(inner).double()
    with torch.no_grad():
        list(found.parameters())[-2 if group is None else 0].mul_(10)
    return found


class Oscillators(nn.Module):
    """H = Σ (x² + 3 p²) / 2."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        places, momenta = given.chunk(2, -1)
        return (places.square() + 3 * momenta.square()).sum(-1, keepdim=True) / 2


def test_field_of_a_known_energy() -> None:
    given = states(4)
    places, momenta = given.chunk(2, -1)
    found = HamiltonianNetwork(Oscillators())(given)
    torch.testing.assert_close(found, torch.cat([3 * momenta, -places], -1))


def test_field_is_the_gradient_by_autograd_and_reaches_the_weights() -> None:
    network, given = energy_network(None), states(6).requires_grad_()
    (slopes,) = torch.autograd.grad(network.energy(given).sum(), given)
    found = network(given)
    torch.testing.assert_close(found, torch.cat([slopes[:, 6:], -slopes[:, :6]], 1))
    found.square().sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    unmoved = [n for n, g in gradients.items() if g is None or not bool(g.abs().sum() > 0)]
    assert unmoved == ["network.2.bias"]  # a constant of the energy moves nothing


def test_energy_is_conserved_by_its_motion() -> None:
    network = energy_network(None)
    with torch.no_grad():
        path = integrate(network, states(5), 20, 0.1, within=4)
        energies = network.energy(path)
    assert float((path[-1] - path[0]).abs().max()) > 0.1
    torch.testing.assert_close(energies, energies[:1].expand_as(energies), rtol=0, atol=1e-6)


def drift(group: Group | None, within: int = 4) -> float:
    """The largest change of angular momentum along the motion of an untrained network.

    within: integration steps in 0.1 s
    """
    with torch.no_grad():
        path = integrate(energy_network(group), states(4), 10, 0.1, within=within)
    assert float((path[-1] - path[0]).abs().max()) > 0.1
    momenta = angular_momentum(path)
    return float((momenta - momenta[:1]).abs().max())


@pytest.mark.slow
def test_a_continuous_symmetry_conserves_angular_momentum_and_a_coarse_one_does_not() -> None:
    assert drift(O2eR3(), within=128) < 1e-5
    assert drift(DkeR3(2)) > 1e-3
    assert drift(None) > 1e-3


def test_neural_ode_is_its_network() -> None:
    inner = plain_mlp(12, 12, channels=8, layers=1).double()
    given = states(3)
    assert torch.equal(NeuralODE(inner)(given), inner(given))


def test_odd_states_are_refused() -> None:
    with pytest.raises(CallerError, match=r"places and momenta, got 3 numbers"):
        HamiltonianNetwork(nn.Linear(3, 1))(torch.zeros(2, 3))
