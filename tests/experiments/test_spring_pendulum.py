"""The double spring pendulum: its motion is Hamiltonian, and is followed accurately."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from isotropy.checks import CallerError
from isotropy.experiments.thesis.problems import (
    ACCURATE,
    CHUNK,
    STEP,
    angular_momentum,
    initial_states,
    integrate,
    motion,
    pendulum_data,
)


def hamiltonian(states: torch.Tensor) -> torch.Tensor:
    """The energy of states (…, 12)."""
    first, second, p_first, p_second = states.unflatten(-1, (4, 3)).unbind(-2)
    kinetic = (p_first.square().sum(-1) + p_second.square().sum(-1)) / 2
    upper = (first.norm(dim=-1) - 1).square() / 2
    lower = ((first - second).norm(dim=-1) - 1).square()
    return kinetic + upper + lower + first[..., 2] + second[..., 2]


def starts(count: int) -> torch.Tensor:
    return initial_states(count, torch.Generator().manual_seed(0))


def test_energy_by_hand() -> None:
    state = torch.zeros(12, dtype=torch.float64)
    state[2], state[5], state[6], state[10] = -2.0, -4.0, 3.0, 1.0
    # Springs stretched by 1 each, heights −2 and −4, momenta 3 and 1; no ½ at the second spring.
    assert float(hamiltonian(state)) == pytest.approx(0.5 + 1.0 - 6.0 + 4.5 + 0.5)


def test_motion_is_that_of_the_hamiltonian() -> None:
    states = starts(20).requires_grad_()
    (slopes,) = torch.autograd.grad(hamiltonian(states).sum(), states)
    expected = torch.cat([slopes[:, 6:], -slopes[:, :6]], 1)
    torch.testing.assert_close(motion(states), expected)


def test_symmetry_about_the_vertical_axis_only() -> None:
    turn = torch.tensor([[0.6, -0.8, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    tilt = turn[[2, 0, 1]][:, [2, 0, 1]]
    states = starts(5).unflatten(1, (4, 3))
    energy = hamiltonian(states.flatten(1))
    torch.testing.assert_close(hamiltonian((states @ turn.T).flatten(1)), energy)
    assert not torch.allclose(hamiltonian((states @ tilt.T).flatten(1)), energy)


def test_energy_and_angular_momentum_are_kept_for_thirty_seconds() -> None:
    begin = starts(20)
    path = integrate(motion, begin, 150, STEP, within=ACCURATE)
    for kept in (hamiltonian, angular_momentum):
        torch.testing.assert_close(kept(path), kept(begin).expand(150, 20), rtol=0, atol=1e-5)
    assert float(angular_momentum(begin).std()) > 0.1


@pytest.mark.parametrize(("within", "allowed"), [(1, 3e-5), (ACCURATE, 1e-6)])
def test_steps_of_fixed_length_follow_a_piece(within: int, allowed: float) -> None:
    begin = starts(10)
    found = integrate(motion, begin, CHUNK, STEP, within=within).numpy()
    times = STEP * np.arange(CHUNK)
    worst = 0.0
    for n, state in enumerate(begin.numpy()):
        exact = solve_ivp(
            lambda _, z: motion(torch.from_numpy(z)).numpy(),
            (0, times[-1]), state, t_eval=times, rtol=1e-10, atol=1e-12,
        )  # fmt: skip
        worst = max(worst, float(np.abs(found[:, n] - exact.y.T).max()))
    assert 0 < worst < allowed


def test_integration_has_order_five() -> None:
    begin = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def circle(z: torch.Tensor) -> torch.Tensor:
        return torch.stack([z[1], -z[0]])

    angle = torch.tensor(1.0, dtype=torch.float64)
    exact = torch.stack([angle.cos(), -angle.sin()])
    errors = [
        float((integrate(circle, begin, 2, 1.0, within=n)[-1] - exact).norm()) for n in (2, 4, 8)
    ]
    assert np.allclose(np.log2(np.divide(errors[:-1], errors[1:])), 5, atol=0.35)


def test_integration_is_differentiable() -> None:
    rate = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    begin = torch.ones(1, dtype=torch.float64)
    integrate(lambda z: rate * z, begin, 2, 1.0, within=8)[-1].sum().backward()
    assert float(rate.grad) == pytest.approx(float(rate.detach().exp()), rel=1e-6)


def test_chunks_are_pieces_of_motions() -> None:
    data = pendulum_data(12, torch.Generator().manual_seed(0))
    for part in (data.training, data.validation, data.test):
        assert part.shape == (12, CHUNK, 12)
        again = integrate(motion, part[:, 0], CHUNK, STEP, within=ACCURATE)
        torch.testing.assert_close(again.transpose(0, 1), part, rtol=0, atol=1e-8)
    energies = hamiltonian(torch.cat([data.training, data.validation, data.test])[:, 0])
    assert len(energies.unique()) == 36
    fresh = pendulum_data(12, torch.Generator().manual_seed(0))
    assert torch.equal(data.test, fresh.test)


def test_refused() -> None:
    with pytest.raises(CallerError, match="at least 1 example"):
        pendulum_data(0, torch.Generator())
    with pytest.raises(CallerError, match="at least 1 integration step in 0.2, got 0"):
        integrate(motion, starts(1), 2, STEP, within=0)
