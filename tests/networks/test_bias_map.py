"""A bias for every channel and pixel: as few numbers as it takes, and none for nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Gaussian
from isotropy.networks.pathways.small_layers import NOTHING, BiasMap, varying_part

CHANNELS, HEIGHT, WIDTH = 3, 4, 5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_it_adds_its_numbers_to_every_example() -> None:
    bias, maps = numbers(CHANNELS, HEIGHT, WIDTH), numbers(2, CHANNELS, HEIGHT, WIDTH, seed=1)
    outputs = BiasMap(bias)(maps)
    for example in range(2):
        for channel in range(CHANNELS):
            expected = maps[example, channel] + bias[channel]
            assert torch.equal(outputs[example, channel], expected)


def test_it_learns() -> None:
    layer, maps = BiasMap(numbers(CHANNELS, HEIGHT, WIDTH)), numbers(2, CHANNELS, HEIGHT, WIDTH)
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    (gradient,) = torch.autograd.grad((layer(maps) * maps).sum(), layer.parameters())
    assert torch.allclose(gradient, maps.sum(0))


def test_nothing_is_no_layer() -> None:
    assert BiasMap.of(torch.zeros(CHANNELS, HEIGHT, WIDTH)) is None
    assert BiasMap.of(torch.full((CHANNELS, HEIGHT, WIDTH), -0.9 * NOTHING)) is None
    little = torch.zeros(CHANNELS, HEIGHT, WIDTH)
    little[1, 2, 3] = -2 * NOTHING
    assert BiasMap.of(little) is not None


def test_a_constant_that_is_equal_everywhere_has_one_number_a_channel() -> None:
    means = numbers(CHANNELS)
    layer = BiasMap.of(means[:, None, None].expand(-1, HEIGHT, WIDTH))
    assert layer is not None and layer.bias.shape == (CHANNELS, 1, 1)
    maps = numbers(2, CHANNELS, HEIGHT, WIDTH, seed=1)
    expected = maps + means[None, :, None, None]
    assert torch.allclose(layer(maps), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("difference", [0.9, 3.0])
def test_one_pixel_of_one_channel_makes_the_difference(difference: float) -> None:
    constant = numbers(CHANNELS)[:, None, None].repeat(1, HEIGHT, WIDTH)
    constant[2, 0, 4] += difference * NOTHING
    layer = BiasMap.of(constant)
    whole = (CHANNELS, HEIGHT, WIDTH)
    assert layer is not None
    assert layer.bias.shape == (whole if difference > 1 else (CHANNELS, 1, 1))
    assert (layer.bias - constant).abs().max() <= NOTHING


def test_other_constants_stay_as_they_are() -> None:
    constant = numbers(CHANNELS, HEIGHT, WIDTH)
    layer = BiasMap.of(constant)
    assert layer is not None and torch.equal(layer.bias, constant)
    constant.zero_()
    assert layer.bias.any(), "a copy"


def test_numbers_that_are_none_are_not_lost() -> None:
    constant = torch.zeros(CHANNELS, HEIGHT, WIDTH)
    constant[0, 0, 0] = torch.nan
    layer = BiasMap.of(constant)
    assert layer is not None and layer.bias.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_keep_their_type(dtype: torch.dtype) -> None:
    for constant in (numbers(CHANNELS, HEIGHT, WIDTH), torch.ones(CHANNELS, HEIGHT, WIDTH)):
        layer = BiasMap.of(constant.to(dtype))
        assert layer is not None and layer.bias.dtype == dtype


@pytest.mark.parametrize("shape", [(CHANNELS,), (HEIGHT, WIDTH), (1, CHANNELS, HEIGHT, WIDTH)])
def test_other_axes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CallerError, match=r"expected \(channels, height, width\), got \("):
        BiasMap(torch.zeros(shape))


def test_it_is_saved_and_told() -> None:
    bias = numbers(CHANNELS, HEIGHT, WIDTH)
    layer, other = BiasMap(bias), BiasMap(torch.zeros_like(bias))
    assert list(layer.state_dict()) == ["bias"]
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.bias, bias)
    assert str(layer) == "BiasMap(3×4×5)"


def test_the_varying_part_is_the_rest_beside_means() -> None:
    constant = numbers(CHANNELS, HEIGHT, WIDTH)
    found = varying_part(constant)
    for channel in range(CHANNELS):
        mean = float(constant[channel].sum()) / (HEIGHT * WIDTH)
        assert torch.allclose(found[channel], constant[channel] - mean)
    assert not varying_part(torch.ones(CHANNELS, HEIGHT, WIDTH)).any()


# --- curvature ------------------------------------------------------------------------------


class Placed(nn.Module):
    """A bias map in front of a head that looks at all pixels, and not in the same way."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.map = BiasMap(bias)
        self.head = nn.Linear(CHANNELS * HEIGHT * WIDTH, 2).double()

    def forward(self, maps: Tensor) -> Tensor:
        found: Tensor = self.head(self.map(maps).tanh().flatten(1))
        return found


def factors_and_jacobian(network: Placed, samples: int, batch: int) -> tuple[Any, Tensor]:
    """The block of the bias, and ∂f̂/∂bias (batch, outputs, …) by `torch.func`."""
    rows = numbers(batch * samples, CHANNELS, HEIGHT, WIDTH, seed=3)
    found = KFAC(network).batch(rows, Copies(samples), Gaussian()).factors()["map.bias"]
    parameters = {label: value.detach() for label, value in network.named_parameters()}

    def averaged(value: Tensor) -> Tensor:
        outputs = functional_call(network, {**parameters, "map.bias": value}, (rows,))
        return outputs.reshape(batch, samples, -1).mean(1)

    return found, jacrev(averaged)(parameters["map.bias"]).flatten(3)


def test_block_of_a_map_is_its_formula() -> None:
    batch, places = 4, HEIGHT * WIDTH
    network = Placed(numbers(CHANNELS, HEIGHT, WIDTH))
    found, jacobian = factors_and_jacobian(network, 2, batch)
    shared = torch.einsum("noct,nodt->cd", jacobian, jacobian) / places
    expected = torch.kron(shared, torch.eye(places, dtype=torch.float64))
    torch.testing.assert_close(found.dense(batch)[0], expected, rtol=1e-10, atol=1e-12)
    exact = torch.einsum("noct,nods->ctds", jacobian, jacobian).reshape(expected.shape)
    assert not torch.allclose(exact, expected, rtol=0.1)
    torch.testing.assert_close(exact.trace(), expected.trace())


def test_block_of_one_number_a_channel_is_exact() -> None:
    found, jacobian = factors_and_jacobian(Placed(numbers(CHANNELS, 1, 1)), 2, 4)
    expected = torch.einsum("noci,nodi->cd", jacobian, jacobian)
    torch.testing.assert_close(found.matrix, expected, rtol=1e-10, atol=1e-12)
