"""A bias for every channel and pixel: as few numbers as it takes, and none for nothing."""

from __future__ import annotations

import pytest
import torch
from network_cases import assert_equal, library_blocks
from oracles.dense_ggn import averaged_jacobians, dense_ggn_blocks, gaussian_curvature
from torch import Tensor, nn
from user_networks import numbers

from isotropy.checks import CallerError
from isotropy.likelihoods import Gaussian
from isotropy.networks.pathways.small_layers import NOTHING, BiasMap, varying_part

CHANNELS, HEIGHT, WIDTH = 3, 4, 5


def test_it_adds_its_numbers_to_every_example() -> None:
    bias, maps = numbers(CHANNELS, HEIGHT, WIDTH), numbers(2, CHANNELS, HEIGHT, WIDTH, seed=1)
    outputs = BiasMap(bias)(maps)
    for example in range(2):
        for channel in range(CHANNELS):
            expected = maps[example, channel] + bias[channel]
            assert torch.equal(outputs[example, channel], expected)


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


@pytest.mark.parametrize("shape", [(CHANNELS,), (HEIGHT, WIDTH), (1, CHANNELS, HEIGHT, WIDTH)])
def test_other_axes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CallerError, match=r"expected \(channels, height, width\), got \("):
        BiasMap(torch.zeros(shape))


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


def test_blocks() -> None:
    """Of one number a channel the exact one, of a map its formula G ⊗ I."""
    places, rows = HEIGHT * WIDTH, numbers(4 * 2, CHANNELS, HEIGHT, WIDTH, seed=3)
    for pixels in (1, places):
        shape = (CHANNELS, 1, 1) if pixels == 1 else (CHANNELS, HEIGHT, WIDTH)
        network = Placed(numbers(*shape))
        found = library_blocks(network, rows, 2, Gaussian())["map.bias"][0]
        exact = dense_ggn_blocks(network, rows, 2, gaussian_curvature(1.0))["map.bias"]
        jacobian = averaged_jacobians(network, rows, 2)["map.bias"].unflatten(2, (CHANNELS, -1))
        shared = torch.einsum("noct,nodt->cd", jacobian, jacobian) / pixels
        assert_equal(found, torch.kron(shared, torch.eye(pixels, dtype=torch.float64)), "formula")
        torch.testing.assert_close(exact.trace(), found.trace())
        assert torch.allclose(found, exact, rtol=0.1) == (pixels == 1)
