"""Rich layers against loops over pairs and the Fourier transform, and the standard networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.networks.rich_layer import (
    NETWORKS,
    RichLayer,
    network_for,
    rich_network,
    standard_network,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def by_loops(layer: RichLayer, inputs: Tensor) -> np.ndarray:
    """The paper's formula, an example and a pair at a time."""
    weight, bias = (p.detach().numpy() for p in (layer.linear.weight, layer.linear.bias))
    rows = []
    for row in inputs.numpy():
        x = weight @ row + bias
        both = [(x[k], x[k + 1]) for k in range(0, len(x), 2)]
        pairs = [(e, o, math.sqrt(e**2 + o**2 + 1e-8)) for e, o in both]
        rows.append([
            *row, *(r for _, _, r in pairs), *(e / r for e, _, r in pairs),
            *(o / r for _, o, r in pairs), *(e * o / r**2 for e, o, r in pairs),
        ])  # fmt: skip
    return np.array(rows)


def test_a_layer_is_the_formula() -> None:
    layer = RichLayer(6).double()
    inputs = drawn(5, 6)
    outputs = layer(inputs)
    assert outputs.shape == (5, 18)
    np.testing.assert_allclose(outputs.detach().numpy(), by_loops(layer, inputs), rtol=1e-12)


def test_a_layer_holds_the_moduli_and_phases_of_the_fourier_transform() -> None:
    size = 8
    places = torch.arange(size, dtype=torch.float64)
    layer = RichLayer(size).double()
    with torch.no_grad():
        layer.linear.bias.zero_()
        for frequency in range(1, size // 2 + 1):
            angle = 2 * math.pi * frequency * places / size
            layer.linear.weight[2 * frequency - 2] = angle.cos()
            layer.linear.weight[2 * frequency - 1] = -angle.sin()
    inputs = drawn(4, size)
    found = torch.fft.fft(inputs)[:, 1 : size // 2 + 1]
    _, norm, cosine, sine, _ = layer(inputs).split([size, 4, 4, 4, 4], 1)
    torch.testing.assert_close(norm, found.abs(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cosine + 1j * sine, found / found.abs(), rtol=1e-5, atol=1e-6)
    shifted = layer(inputs.roll(3, 1)).split([size, 4, 12], 1)[1]
    torch.testing.assert_close(shifted, norm)


@pytest.mark.parametrize("inputs", [torch.zeros(2, 4), torch.ones(2, 4), torch.full((2, 4), 3.0)])
@pytest.mark.parametrize("is_zero", [False, True])
def test_gradients_are_finite_where_pairs_vanish(inputs: Tensor, is_zero: bool) -> None:
    layer = RichLayer(4).double()
    if is_zero:
        nn.init.zeros_(layer.linear.weight)
        nn.init.zeros_(layer.linear.bias)
    given = inputs.double().requires_grad_()
    layer(given).square().sum().backward()
    assert torch.isfinite(given.grad).all()  # type: ignore[arg-type]
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
    if not is_zero:
        assert torch.autograd.gradcheck(layer, (given.detach().requires_grad_(),))


def test_gradcheck_at_zero() -> None:
    """Around a vanishing pair e/r is steep, 1e4 at the most, so steps are far smaller than that."""
    layer = RichLayer(2).double()
    nn.init.zeros_(layer.linear.bias)
    at = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (at,), eps=1e-9, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("width", [0, 1, 5])
def test_a_layer_of_odd_width_is_refused(width: int) -> None:
    with pytest.raises(CallerError, match=f"even width of at least 2, got {width}"):
        RichLayer(width)


@pytest.mark.parametrize(("inputs", "even"), [(4, 4), (5, 6)])
def test_a_network_grows_threefold_and_takes_odd_inputs(inputs: int, even: int) -> None:
    network = rich_network(inputs, 7, layers=2)
    assert [m.linear.in_features for m in network if isinstance(m, RichLayer)] == [even, 3 * even]
    assert isinstance(network[0], nn.Linear) == (even != inputs)
    assert network(torch.randn(3, inputs)).shape == (3, 7)


def test_standard_networks_have_the_papers_width_and_depth() -> None:
    network = standard_network(10, 30, "selu", layers=5)
    linear = [module for module in network if isinstance(module, nn.Linear)]
    assert [layer.out_features for layer in linear] == [80] * 4 + [30]
    assert abs(float(linear[1].weight.detach().std()) * math.sqrt(80) - 1) < 0.05
    assert not isinstance(network[-1], nn.SELU) and isinstance(network[1], nn.SELU)
    with pytest.raises(CallerError, match="unknown activation 'gelu'"):
        standard_network(4, 4, "gelu")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_by_name(name: str) -> None:
    assert network_for(name, 6, 3, 2)(torch.randn(2, 6)).shape == (2, 3)
