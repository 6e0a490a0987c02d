"""Mean values and mean slopes by kernels against torch's own φ and its derivatives.

They run on a CUDA device, or on a CPU if Triton interprets (`TRITON_INTERPRET=1`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from triton_cases import CAN_RUN, DEVICE, needs_triton

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.kernels import fused
from isotropy.kernels.activations import gelu, relu, sigmoid, silu, tanh
from isotropy.likelihoods import Categorical

if CAN_RUN:
    from isotropy.curvature import mean_slopes as mean_slopes_module
    from isotropy.curvature.mean_slopes import curve_of, mean_slopes
    from isotropy.kernels import slope_kernels
    from isotropy.kernels.slope_kernels import value_and_slope

pytestmark = needs_triton

CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "gelu by tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "silu": functional.silu,
    "elu": lambda z: functional.elu(z, alpha=0.7),
    "selu": functional.selu,
    "leaky relu": lambda z: functional.leaky_relu(z, 0.2),
    "softplus": lambda z: functional.softplus(z, beta=2.0, threshold=3.0),
    "mish": functional.mish,
    "hardtanh": lambda z: functional.hardtanh(z, -0.5, 0.8),
    "relu6": functional.relu6,
    "sin": torch.sin,
    "cos": torch.cos,
}
STRAIGHT = ("relu", "leaky relu", "hardtanh", "relu6")
every_curve = pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
LEAN = {"tanh": tanh, "relu": relu, "sigmoid": sigmoid, "silu": silu, "gelu": gelu}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def points(rows: int, features: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """From far below to far above zero, and close to it."""
    wide = draw(rows, features) * 3
    wide[::3] *= 1e-3
    wide[0, :2] = wide.new_tensor([40.0, -40.0])
    return wide.to(dtype).requires_grad_()


def expected(curve: Callable[[Tensor], Tensor], inputs: Tensor, copies: int) -> tuple[Tensor, ...]:
    values = curve(inputs)
    (slopes,) = torch.autograd.grad(values, inputs, torch.ones_like(values), create_graph=True)
    return tuple(each.unflatten(0, (-1, copies)).mean(1) for each in (values, slopes))


def found(curve: Callable[[Tensor], Tensor], inputs: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    kind = curve_of(curve(inputs))
    assert kind is not None
    return mean_slopes(inputs, kind, copies)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-14) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@every_curve
@pytest.mark.parametrize(("copies", "features"), [(4, 7), (11, 150)])
def test_means_and_their_gradient_are_torch_s(curve, copies: int, features: int) -> None:
    inputs = points(2 * copies, features)
    ours, theirs = found(curve, inputs, copies), expected(curve, inputs, copies)
    seeds = [draw(2, features, seed=seed) for seed in (1, 2)]
    gradients = []
    for one, other, seed in zip(ours, theirs, seeds, strict=True):
        close(one, other)
        (alone,) = torch.autograd.grad(one, inputs, seed, retain_graph=True)
        # A slope that is constant between kinks has no graph in torch.
        gradients.append(torch.zeros_like(inputs))
        if other.requires_grad:
            (gradients[-1],) = torch.autograd.grad(other, inputs, seed, retain_graph=True)
        close(alone, gradients[-1], 1e-13)
    close(torch.autograd.grad(ours, inputs, seeds)[0], sum(gradients), 1e-13)


@pytest.mark.parametrize(
    ("name", "of"),
    [(name, [0]) for name in CURVES]
    + [(name, of) for name in CURVES if name not in STRAIGHT for of in ([1], [0, 1])],
)
def test_second_derivatives_of_the_means_with_directions_at_once(name: str, of: list[int]) -> None:
    inputs = draw(6, 5).requires_grad_()
    seeds = [draw(4, 2, 5, seed=seed).requires_grad_() for seed in of]
    weights = draw(4, 6, 5, seed=3)

    def derivatives(means: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        chosen = [means[at] for at in of]
        gradients = torch.func.vmap(
            lambda *seed: torch.autograd.grad(chosen, inputs, seed, create_graph=True)[0]
        )(*seeds)
        wanted = (inputs, *seeds)
        return gradients, *torch.autograd.grad(gradients, wanted, weights, materialize_grads=True)

    ours, theirs = (derivatives(each(CURVES[name], inputs, 3)) for each in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        close(one, other, 1e-12)


@every_curve
def test_single_precision_is_right_to_single_precision(curve) -> None:
    inputs = points(14, 9, torch.float32)
    double = inputs.detach().double().requires_grad_()
    ours, theirs = found(curve, inputs, 7), expected(curve, double, 7)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        close(one.double(), other, 2e-6)


def test_small_values_keep_their_digits_in_single_precision() -> None:
    inputs = (draw(6, 9, dtype=torch.float32) * 1e-4).requires_grad_()
    for curve in (torch.tanh, functional.elu):
        values, _ = found(curve, inputs, 1)
        torch.testing.assert_close(values, curve(inputs), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    inputs = draw(6, 9, dtype=dtype).requires_grad_()
    values, slopes = found(torch.tanh, inputs, 3)
    assert values.dtype == slopes.dtype == dtype
    theirs = expected(torch.tanh, inputs.detach().float().requires_grad_(), 3)
    for one, other in zip((values, slopes), theirs, strict=True):
        close(one.float(), other, 1e-2)


@every_curve
def test_value_and_slope_of_every_number(curve) -> None:
    inputs = points(30, 70).unflatten(0, (5, 6))
    values, slopes = value_and_slope(inputs.detach(), curve_of(curve(inputs)))
    expected = curve(inputs)
    close(values, expected)
    close(slopes, torch.autograd.grad(expected.sum(), inputs)[0])


def test_one_copy_of_one_example() -> None:
    inputs = points(1, 3)
    values, slopes = found(torch.tanh, inputs, 1)
    close(values, inputs.tanh())
    close(torch.autograd.grad(slopes.sum(), inputs)[0], -2 * values * (1 - values**2))


def test_strided_rows_and_no_rows() -> None:
    wide = draw(6, 10)
    inputs = wide[:, ::2].requires_grad_()
    close(found(torch.tanh, inputs, 2)[0], inputs.tanh().unflatten(0, (3, 2)).mean(1))
    nothing = draw(0, 4).requires_grad_()
    values, slopes = found(torch.tanh, nothing, 2)
    assert values.shape == slopes.shape == (0, 4)
    assert torch.autograd.grad((values.sum(), slopes.sum()), nothing)[0].shape == (0, 4)


@pytest.mark.parametrize("name", LEAN)
def test_functions_that_keep_their_slope_are_known(name: str) -> None:
    inputs = points(4, 3)
    assert curve_of(LEAN[name](inputs)) == curve_of(CURVES[name](inputs))


def test_other_functions_are_not() -> None:
    inputs = points(4, 3)
    assert curve_of(inputs.exp()) is None
    assert curve_of(inputs) is None
    assert curve_of(functional.hardswish(inputs)) is None


# --- in the curvature of a network ----------------------------------------------------------


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*layers).to(DEVICE, torch.float64)


NETWORKS = {
    "one hidden layer": lambda: network(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
    "two hidden layers": lambda: network(
        nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 6), nn.ELU(), nn.Linear(6, 3)
    ),
    "no such end": lambda: network(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh()),
}


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_roots_and_their_gradient_are_those_of_the_reference(
    name: str, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "runs_kernels", lambda device: True)
    calls: list[int] = []
    monkeypatch.setattr(
        mean_slopes_module,
        "means",
        lambda *given: calls.append(1) or slope_kernels.means(*given),
    )
    curvature = KFAC(NETWORKS[name]())

    def derivatives(directions: int | None) -> list[Tensor]:
        inputs = draw(2 * copies, 4).requires_grad_()
        found = curvature.batch(
            inputs,
            Copies(copies),
            Categorical(),
            create_graph=True,
            directions_at_once=directions,
        )
        tensors = [
            tensor
            for root in found.roots.values()
            for tensor in vars(root).values()
            if isinstance(tensor, Tensor)
        ]
        total = sum(each.square().sum() for each in tensors)
        return [found.outputs, *tensors, torch.autograd.grad(total, inputs)[0]]

    with fused.reference_path():
        expected = derivatives(1)
    assert not calls
    for directions in (1, 3):
        for one, other in zip(derivatives(directions), expected, strict=True):
            close(one, other, 1e-11)
    assert bool(calls) == (name != "no such end")
