"""Adam with a proximal prior: its steps, where it comes to rest, and precisions without bound."""

import pytest
import torch
from torch import nn

from isotropy.evidence.layers.steps import ProximalAdam


def _problem() -> tuple[nn.Parameter, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    wanted = torch.randn(12, generator=generator, dtype=torch.float64)
    start = torch.randn(5, generator=generator, dtype=torch.float64)
    return nn.Parameter(start), matrix, wanted


def _step(optimiser: ProximalAdam, weight: nn.Parameter, matrix, wanted) -> None:
    optimiser.zero_grad()
    (0.5 * (matrix @ weight - wanted).square().mean()).backward()
    optimiser.step()


def test_without_a_prior_it_is_torchs_adam():
    weight, matrix, wanted = _problem()
    twin = nn.Parameter(weight.detach().clone())
    ours = ProximalAdam([weight], rate=0.01)
    theirs = torch.optim.Adam([twin], lr=0.01)
    for _ in range(20):
        _step(ours, weight, matrix, wanted)
        theirs.zero_grad()
        (0.5 * (matrix @ twin - wanted).square().mean()).backward()
        theirs.step()
    torch.testing.assert_close(weight, twin, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("decay", [0.1, 10.0])
def test_it_rests_where_loss_and_prior_balance(decay):
    weight, matrix, wanted = _problem()
    optimiser = ProximalAdam([weight], rate=0.05)
    optimiser.decays.fill_(decay)
    for step in range(4000):
        optimiser.rate.fill_(0.05 * 0.5 ** (step / 250))
        _step(optimiser, weight, matrix, wanted)
    gram = matrix.T @ matrix / 12 + decay * torch.eye(5, dtype=torch.float64)
    exact = torch.linalg.solve(gram, matrix.T @ wanted / 12)
    torch.testing.assert_close(weight.detach(), exact, rtol=1e-4, atol=1e-6)


def test_no_precision_is_too_high():
    weight = nn.Parameter(torch.randn(50, generator=torch.Generator().manual_seed(1)))
    optimiser = ProximalAdam([weight], rate=0.01)
    optimiser.decays.fill_(1e9)
    for _ in range(50):
        optimiser.zero_grad()
        (weight - 1).square().sum().backward()
        optimiser.step()
        assert torch.isfinite(weight).all()
    assert weight.abs().max() < 1e-6


def test_a_parameter_without_a_gradient_only_decays():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimiser = ProximalAdam([used, unused], rate=0.01)
    optimiser.decays.copy_(torch.tensor([0.0, 1.0]))
    used.sum().backward()
    optimiser.step()
    assert (used < 1).all() and (unused.abs() < 1e-3).all()


def test_a_state_that_is_taken_over_goes_on_as_if_nothing_had_happened() -> None:
    def optimiser(start: float) -> ProximalAdam:
        return ProximalAdam([nn.Parameter(torch.full((2,), start))], rate=0.1)

    def steps(steps: ProximalAdam, count: int) -> None:
        for _ in range(count):
            steps.parameters[0].grad = 1 - steps.parameters[0].detach()
            steps.step()

    one, other = optimiser(3.0), optimiser(0.0)
    steps(one, 3)
    addresses = [each.data_ptr() for each in other.state()]
    other.load_state_dict(one.state_dict())
    other.parameters[0].data.copy_(one.parameters[0])
    assert [each.data_ptr() for each in other.state()] == addresses
    steps(one, 2)
    steps(other, 2)
    assert torch.equal(one.parameters[0], other.parameters[0])
    assert all(torch.equal(a, b) for a, b in zip(one.state(), other.state(), strict=True))
