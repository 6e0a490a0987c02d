"""Operations that can be differentiated twice: torch's values, and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from network_cases import ATTENTION, NETWORKS, NORMS, NetworkCase, assert_equal
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.kernels.operations import twice_differentiable
from isotropy.likelihoods import Categorical

EXACTLY = 1e-12


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]

# name: (shape of inputs, shape of gain and shift, the function of torch)
FUNCTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Norm]] = {
    "layer norm": ((3, 4), (4,), lambda x, w, b: functional.layer_norm(x, (4,), w, b)),
    "layer norm, two axes": (
        (3, 5, 4, 2), (4, 2),
        lambda x, w, b: functional.layer_norm(x, [4, 2], weight=w, bias=b, eps=0.1)),
    "group norm": ((3, 4), (4,), lambda x, w, b: functional.group_norm(x, 2, w, b)),
    "group norm on images": (
        (3, 6, 3, 2), (6,),
        lambda x, w, b: functional.group_norm(x, num_groups=2, weight=w, bias=b, eps=0.1)),
    "instance norm": (
        (3, 2, 5), (2,), lambda x, w, b: functional.instance_norm(x, weight=w, bias=b, eps=0.1)),
    "instance norm on images": (
        (3, 2, 3, 4), (2,), lambda x, w, b: functional.instance_norm(x, None, None, w, b)),
    "instance norm, running": (
        (3, 2, 5), (2,),
        lambda x, w, b: functional.instance_norm(
            x, torch.ones(2).to(x), 3 * torch.ones(2).to(x), w, b, False, 0.1, 0.2)),
}  # fmt: skip


@pytest.mark.parametrize("affine", [(), ("gain",), ("shift",), ("gain", "shift")])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_norms_have_the_values_of_torch(name: str, affine: tuple[str, ...]):
    shape, own, norm = FUNCTIONS[name]
    inputs = 2 * drawn(*shape) + 1
    gain = drawn(*own, seed=1) if "gain" in affine else None
    shift = drawn(*own, seed=2) if "shift" in affine else None
    with twice_differentiable():
        found = norm(inputs, gain, shift)
    assert_equal(found, norm(inputs, gain, shift), name, EXACTLY)


@pytest.mark.parametrize("function", [functional.hardsigmoid, functional.hardswish])
def test_hard_activations_have_torch_s_values_and_a_second_derivative(
    function: Callable[[Tensor], Tensor],
):
    inputs = (4 * drawn(3, 4)).requires_grad_()
    with twice_differentiable():
        found = function(inputs)
        assert torch.autograd.gradgradcheck(lambda x: function(x) ** 2, inputs)
    assert_equal(found, function(inputs), "values", EXACTLY)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_has_the_values_of_torch(masked: bool):
    q, k, v = (drawn(2, 2, 4, 3, seed=seed) for seed in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril() if masked else None
    with twice_differentiable():
        found = functional.scaled_dot_product_attention(q, k, v, mask)
    assert_equal(
        found, functional.scaled_dot_product_attention(q, k, v, mask), "attention", EXACTLY
    )


def test_other_functions_are_left_alone_and_everything_is_put_back():
    inputs = drawn(3, 4)
    with twice_differentiable():
        assert torch.equal(functional.relu(inputs), inputs.clamp_min(0))
        assert "Native" not in name_of_gradient(inputs)
    assert "NativeLayerNorm" in name_of_gradient(inputs)
    with pytest.raises(ZeroDivisionError), twice_differentiable():
        raise ZeroDivisionError
    assert "NativeLayerNorm" in name_of_gradient(inputs)


def name_of_gradient(inputs: Tensor) -> str:
    out = functional.layer_norm(inputs.detach().requires_grad_(), (4,))
    return type(out.grad_fn).__name__


# --- second derivatives -------------------------------------------------------------------------


def slope_by_differences(function: Callable[[Tensor], Tensor], at: Tensor, along: Tensor) -> Tensor:
    step = 1e-5
    with torch.no_grad():
        return (function(at + step * along) - function(at - step * along)) / (2 * step)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if not n.endswith("running")])
def test_gradients_by_gain_of_every_example_can_be_differentiated(name: str):
    """∂/∂x Σ_n ‖∂ loss_n / ∂ gain‖², with the gradients of all examples at once."""
    shape, own, norm = FUNCTIONS[name]
    inputs, along = drawn(*shape).requires_grad_(), drawn(*shape, seed=5)
    gain, shift = (drawn(*own, seed=seed) for seed in (1, 2))

    def loss(gain: Tensor, row: Tensor) -> Tensor:
        return norm(row[None], gain, shift).tanh().flatten().cumsum(0).square().sum()

    def size(rows: Tensor) -> Tensor:
        with twice_differentiable():
            return vmap(grad(loss), in_dims=(None, 0))(gain, rows).square().sum()

    found = (torch.autograd.grad(size(inputs), inputs)[0] * along).sum()
    assert_equal(found, slope_by_differences(size, inputs.detach(), along), name, 1e-6)


class ByFunction(nn.Module):
    """A group normalisation of a module of one's own, without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.group_norm(self.conv(images), 2)
        return self.head(hidden.square().mean((2, 3)))


TWICE = {
    **{name: NETWORKS[name] for name in ("mlp", "tokens", "cnn", "fixup")},
    **{n: c for n, c in NETWORKS.items() if "conv3d" in n or n.startswith("transposed")},
    **NORMS,
    **ATTENTION,
    "group norm by function": NetworkCase(ByFunction, (1, 3, 3)),
}


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("name", TWICE)
def test_curvature_can_be_differentiated(name: str, at_once: int):
    """The slope of Σ ‖root‖² along a direction of the rows, batched and one by one."""
    case = TWICE[name]
    rows = case.rows(2, 2).requires_grad_()
    along, kfac = drawn(*rows.shape, seed=5), KFAC(case.network())

    def size(rows: Tensor) -> Tensor:
        batch = kfac.batch(rows, Copies(2), Categorical(), create_graph=rows.requires_grad,
                           directions_at_once=at_once)  # fmt: skip
        return sum(t.square().sum() for root in batch.roots.values() for t in root.tensors())

    found = (torch.autograd.grad(size(rows), rows)[0] * along).sum()
    assert_equal(found, slope_by_differences(size, rows.detach(), along), name, 1e-6)
