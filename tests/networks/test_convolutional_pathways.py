"""The convolutional pathway: exact equivariance, sizes, initial weights, refusals, curvature."""

from __future__ import annotations

import math

import pytest
import torch
from network_cases import LIKELIHOODS, assert_equal, library_blocks, relative_difference
from oracles.dense_ggn import dense_ggn_blocks
from oracles.dense_kfac import dense_kfac
from torch import Tensor, nn
from user_networks import numbers, seeded

from isotropy.checks import CallerError
from isotropy.networks.pathways.pathway import ConvolutionPathway, LayerShape


def new(shape: LayerShape, kernel: int = 3) -> ConvolutionPathway:
    """In float64, with a bias."""
    pathway = ConvolutionPathway.new(shape, kernel, seeded(1)).double()
    assert pathway.convolution.bias is not None
    with torch.no_grad():
        pathway.convolution.bias.copy_(numbers(*pathway.convolution.bias.shape))
    return pathway


def by_definition(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Pixel by pixel, on a torus."""
    kernel, (height, width) = weight.shape[-1], maps.shape[2:]
    found = torch.zeros(len(maps), len(weight), height, width, dtype=maps.dtype)
    for x in range(height):
        for y in range(width):
            found[:, :, x, y] = bias
            for s in range(kernel):
                for t in range(kernel):
                    at = (x + s - kernel // 2) % height, (y + t - kernel // 2) % width
                    found[:, :, x, y] += maps[:, :, at[0], at[1]] @ weight[:, :, s, t].T
    return found


# kernel, map
SIZES = [(3, (4, 4)), (3, (5, 3)), (1, (2, 3)), (5, (4, 6)), (3, (2, 2)), (3, (1, 1)), (5, (2, 4))]


@pytest.mark.parametrize(("kernel", "size"), SIZES)
def test_outputs_are_those_of_the_definition(kernel: int, size: tuple[int, int]) -> None:
    shape = LayerShape((2, *size), (3, *size))
    pathway, maps = new(shape, kernel), numbers(2, 2, *size)
    convolution = pathway.convolution
    assert convolution.bias is not None
    with torch.no_grad():
        expected = by_definition(maps, convolution.weight, convolution.bias)
        assert_equal(pathway(maps), expected, "outputs")


CONVOLUTIONS = {
    "same": ({"padding": 1}, (6, 8, 6), True),
    "padding same": ({"kernel_size": (2, 4), "padding": "same"}, (6, 8, 6), True),
    "stride": ({"stride": 2, "padding": 1}, (6, 4, 3), True),
    "stride 2×1": ({"stride": (2, 1), "padding": 1}, (6, 4, 6), True),
    "valid": ({}, (6, 6, 4), True),
    "dilation": ({"dilation": (3, 2)}, (6, 2, 2), True),
    "groups": ({"groups": 2, "padding": 1, "padding_mode": "reflect"}, (6, 8, 6), True),
    "without bias": ({"padding": (1, 2), "bias": False}, (6, 8, 8), True),
    "waits": ({"padding": 1, "padding_mode": "circular"}, (6, 4, 3), False),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_any_convolution(name: str) -> None:
    settings, target, reaches = CONVOLUTIONS[name]
    shape = LayerShape((4, 8, 6), target)
    convolution = nn.Conv2d(4, 6, **{"kernel_size": 3, **settings}).double()  # type: ignore[arg-type]
    pathway, maps = ConvolutionPathway(shape, convolution), numbers(2, 4, 8, 6)
    assert pathway.reaches_target == reaches
    assert pathway.convolution is convolution
    found = pathway(maps)
    assert torch.equal(found, convolution(maps))
    assert found.shape[1:] == (target if reaches else (6, 8, 6))
    plain = pathway.plain()
    assert type(plain) is nn.Conv2d
    constants, takes = numbers(6, seed=1), convolution.bias is not None
    assert pathway.absorb_(constants) is takes
    assert_equal(pathway(maps), found + takes * constants[:, None, None], "constants", 1e-12)
    assert pathway.absorb_(-constants) is takes
    pathway.scale_(0.5)
    assert_equal(pathway(maps), found / 2, "scaled")
    assert torch.equal(plain(maps), found)  # a copy
    pathway.scale_(0.0)
    after = pathway(maps)
    assert not bool(after.any())
    (gradient,) = torch.autograd.grad(after.sum(), convolution.weight)
    assert float(gradient.abs().max()) > 0


def test_initial_weights() -> None:
    shape = LayerShape((8, 4, 4), (30, 4, 4))
    before = torch.get_rng_state()
    first, second = (ConvolutionPathway.new(shape, generator=seeded(3)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    weight, bias = first.convolution.weight.detach(), first.convolution.bias
    assert torch.equal(weight, second.convolution.weight)
    bound = math.sqrt(6 / (8 * 9))
    assert 0.97 * bound < float(weight.max()) <= bound
    assert bias is not None and not bool(bias.any())
    reference = nn.Conv2d(8, 30, 3)
    nn.init.kaiming_uniform_(reference.weight, nonlinearity="relu")
    assert float(weight.var()) == pytest.approx(float(reference.weight.detach().var()), rel=0.1)


class OwnConvolution(nn.Conv2d):
    """What a subclass does is not known."""


@pytest.mark.parametrize(
    ("convolution", "words"),
    [
        (nn.Conv2d(3, 3, 3, padding=1), "a convolution of 2 channels"),
        (nn.Conv2d(2, 4, 3, padding=1), "got 4×4×4"),
        (nn.Conv2d(2, 3, 3), "expected outputs 3×2×4, or 3×4×4 to be down-sampled, got 3×2×2"),
        (nn.Conv2d(2, 3, 3, padding=1), "divides the input size"),
        (OwnConvolution(2, 3, 3, padding=1), "expected an nn.Conv2d, got OwnConvolution"),
        (nn.Linear(2, 3), "expected an nn.Conv2d, got Linear"),
    ],
)
def test_convolutions_that_are_refused(convolution: nn.Module, words: str) -> None:
    shape = LayerShape((2, 4, 4), (3, 2, 4))
    with pytest.raises(CallerError, match=words):
        ConvolutionPathway(shape, convolution)  # type: ignore[arg-type]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_blocks(likelihood: str) -> None:
    """Those of the formula; for one example on one pixel those of the Gauss–Newton matrix."""
    kind = LIKELIHOODS[likelihood]
    for size, count in ((3, 2), (1, 1)):
        shape = LayerShape((2, size, size), (2, size, size))
        head = nn.Linear(2 * size**2, 3).double()
        network = nn.Sequential(new(shape), nn.Tanh(), nn.Flatten(), head)
        rows = numbers(count, *shape.source, seed=4)
        found = library_blocks(network, rows, 1, kind.build())
        expected = dense_kfac(network, "0.convolution", rows, 1, kind.curvature)
        assert_equal(found["0.convolution.weight"], expected["weight"], "weight")
        assert_equal(found["0.convolution.bias"][0], expected["bias"], "bias")
        exact = dense_ggn_blocks(network, rows, 1, kind.curvature)["0.convolution.weight"]
        difference = relative_difference(found["0.convolution.weight"][0], exact)
        assert difference < 1e-10 if size == 1 else difference > 0.05
