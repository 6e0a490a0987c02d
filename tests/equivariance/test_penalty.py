"""The penalty: its value, its gradient, what training with it does, and consistency."""

from __future__ import annotations

import copy

import pytest
import torch
from measured_networks import draw, filled
from torch import Tensor, nn
from torch.func import functional_call

from isotropy.checks import CallerError
from isotropy.equivariance.layouts import Follows, Grid
from isotropy.equivariance.lie_derivative import lie_derivative_penalty
from isotropy.symmetry.actions.action import compose
from isotropy.symmetry.actions.images import affine, intensity
from isotropy.symmetry.actions.points import points


def cloud_network() -> nn.Module:
    return filled(nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)))


PLANE = ("rotation", "translation_x", "scale")
# What these do to a cloud (points, 2) at first order.
VELOCITIES = (
    lambda cloud: torch.stack((-cloud[..., 1], cloud[..., 0]), -1),
    lambda cloud: torch.stack((torch.ones_like(cloud[..., 0]), 0 * cloud[..., 0]), -1),
    lambda cloud: cloud,
)


def slow_errors(network: nn.Module, clouds: Tensor, *, softmax: bool = False) -> Tensor:
    """mean ‖df(X x)‖²/dim for each generator, from the dense Jacobian."""

    def function(cloud: Tensor) -> Tensor:
        found = network(cloud[None])[0]
        return found.softmax(0) if softmax else found

    total = torch.zeros(3, dtype=torch.float64)
    for cloud in clouds:
        jacobian = torch.autograd.functional.jacobian(function, cloud)
        for number, velocity in enumerate(VELOCITIES):
            along = torch.einsum("kpd,pd->k", jacobian, velocity(cloud))
            total[number] += along.square().mean() / len(clouds)
    return total


@pytest.mark.parametrize("on", ["outputs", "probabilities"])
def test_value_is_the_weighted_mean_of_errors(on: str) -> None:
    network, clouds = cloud_network(), draw(5, 4, 2)
    wanted = slow_errors(network, clouds, softmax=on == "probabilities")
    action = points(2, PLANE)
    plain = lie_derivative_penalty(network, clouds, action, on=on)
    torch.testing.assert_close(plain, wanted.sum())
    weights = torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64)
    weighted = lie_derivative_penalty(network, clouds, action, on=on, weights=weights.tolist())
    torch.testing.assert_close(weighted, (weights * wanted).sum())


def image_network() -> nn.Module:
    return filled(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.GELU(), nn.Conv2d(2, 1, 3)))


GRADIENT_CASES = {
    "clouds": (cloud_network(), draw(3, 4, 2), points(2, PLANE), "auto"),
    "one direction": (cloud_network(), draw(3, 4, 2), points(2, ("rotation",)), "auto"),
    "images": (image_network(), draw(2, 1, 6, 6), affine(("rotation", "scale")), "auto"),
    "fourier": (
        image_network(), draw(2, 1, 6, 6), affine(("rotation",), interpolation="fourier"), "image"
    ),
    "brightness": (
        image_network(), draw(2, 1, 6, 6), compose(affine(("shear_x",)), intensity()),
        "invariant",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("network", "inputs", "action", "outputs"), GRADIENT_CASES.values(), ids=GRADIENT_CASES
)
def test_gradient_by_the_parameters(network, inputs, action, outputs) -> None:
    penalty = lie_derivative_penalty(network, inputs, action, outputs=outputs)
    names = [name for name, _ in network.named_parameters()]
    found = torch.autograd.grad(penalty, list(network.parameters()), materialize_grads=True)
    step = 1e-5
    for name, gradient, seed in zip(names, found, range(9), strict=False):
        direction = draw(*gradient.shape, seed=seed)
        values = []
        for sign in (1, -1):
            other = copy.deepcopy(network)
            other.get_parameter(name).data += sign * step * direction
            with torch.no_grad():
                values.append(lie_derivative_penalty(other, inputs, action, outputs=outputs))
        slope = (values[0] - values[1]) / (2 * step)
        torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-6, atol=1e-9)
    assert any(bool(gradient.any()) for gradient in found)


def test_an_output_that_follows_costs_nothing() -> None:
    class Vectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(draw(3))

        def forward(self, clouds: Tensor) -> Tensor:
            size = clouds.norm(dim=-1, keepdim=True)
            return clouds * (self.weight * torch.cat((size, size**2, size.sin()), -1)).sum(
                -1, keepdim=True
            )

    network, clouds, action = Vectors(), draw(3, 4, 2), points(2, ("rotation",))
    follows = lie_derivative_penalty(network, clouds, action, outputs=action)
    assert follows.item() < 1e-28
    same = lie_derivative_penalty(network, clouds, action, outputs=Follows(action))
    assert same.item() < 1e-28
    assert lie_derivative_penalty(network, clouds, action, outputs="invariant").item() > 1e-2


def test_consistency_regularisation_is_this_penalty() -> None:
    """E ‖f(T^a x) − f(T^b x)‖² → 2 Σ σ_k² ‖L_k f‖² for small a and b (A.3.2.1)."""
    network, clouds = cloud_network(), draw(2, 4, 2)
    action, deviations = points(2, PLANE), torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
    # The corners ±σ of all coordinates, in all 8 × 8 pairs: an expectation without noise.
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    gaps = []
    for scale in (1e-2, 1e-3):
        coordinates = (scale * deviations * corners).expand(2, -1, -1)
        with torch.no_grad():
            outputs = network(action.act(coordinates, clouds).flatten(0, 1)).unflatten(0, (2, 8))
            difference = outputs[:, :, None] - outputs[:, None]
            consistency = difference.square().sum(-1).mean()
            # Errors are per output dimension, of which there are three.
            weights = 2 * 3 * (scale * deviations) ** 2
            penalty = lie_derivative_penalty(network, clouds, action, weights=weights)
        gaps.append(abs(float(consistency / penalty) - 1))
    assert gaps[1] < 1e-5
    # What is left is of second order in the size of the motions.
    assert gaps[1] < 0.02 * gaps[0]


def test_dropout_may_draw() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    network = filled(network).train()
    penalty = lie_derivative_penalty(network, draw(3, 4, 2), points(2, PLANE))
    penalty.backward()
    assert torch.isfinite(penalty) and network[1].weight.grad is not None
    assert network.training


def test_several_outputs_and_inputs() -> None:
    class Two(nn.Module):
        def forward(self, cloud: Tensor, factor: Tensor) -> dict[str, Tensor]:
            return {"size": factor * cloud.square().sum((1, 2))[:, None], "x": cloud[:, 0]}

    inputs, action = {"cloud": draw(3, 4, 2), "factor": draw(3, 1)}, points(2, ("rotation",))
    assert lie_derivative_penalty(Two(), inputs, action, select="size").item() < 1e-28
    assert lie_derivative_penalty(Two(), inputs, action, select="x").item() > 1e-2


def test_one_number_for_each_example() -> None:
    class Mean(nn.Module):
        def forward(self, clouds: Tensor) -> Tensor:
            return 3 * clouds[..., 0].mean(1)

    found = lie_derivative_penalty(Mean(), draw(4, 5, 2), points(2, ("translation_x",)))
    assert found.item() == pytest.approx(9)


def test_what_would_mean_nothing_is_refused() -> None:
    action, images = affine(("rotation",)), draw(2, 1, 6, 6)
    batched = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).double()
    with pytest.raises(CallerError, match=r"layer '1' \(BatchNorm2d\) normalises by the statistic"):
        lie_derivative_penalty(batched.train(), images, action)
    assert torch.isfinite(lie_derivative_penalty(batched.eval(), images, action))
    with pytest.raises(CallerError, match="floating-point numbers, got torch.uint8"):
        lie_derivative_penalty(nn.Identity(), images.to(torch.uint8), action)
    for weights in ([1.0, 2.0], [-1.0]):
        with pytest.raises(CallerError, match="expected 1 numbers of at least zero"):
            lie_derivative_penalty(nn.Identity(), images, action, weights=weights)
    assert float(lie_derivative_penalty(nn.Identity(), images, action, outputs=Grid((2, 3)))) == 0


def test_parameters_may_be_given_from_outside() -> None:
    """Inside `functional_call` the gradient reaches what stands in for the parameters."""
    network, clouds, action = cloud_network(), draw(3, 4, 2), points(2, ("rotation",))
    inside = {
        name: value.detach().clone().requires_grad_() for name, value in network.named_parameters()
    }

    class Outer(nn.Module):
        def forward(self, data: Tensor) -> Tensor:
            return functional_call(network, inside, (data,))

    lie_derivative_penalty(Outer(), clouds, action).backward()
    lie_derivative_penalty(network, clouds, action).backward()
    torch.testing.assert_close(inside["1.weight"].grad, network[1].weight.grad)
