"""FC and F-FC: outputs by their definition, initial variance, blocks by the formula and exact ones.

Oracles: `pathway_oracle` (Eq. 5 by loops, App. C.1 by explicit vectors) and `dense_ggn`. Products
by channel, which both halves of F-FC are: values, orders in memory, derivatives, and vmap.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import TypeVar

import pytest
import torch
from network_cases import LIKELIHOODS, assert_equal, library_blocks, relative_difference
from oracles.dense_ggn import dense_ggn_blocks, gaussian_curvature
from oracles.dense_kfac import dense_kfac
from oracles.pathway_oracle import dense_factored_kfac, factored_forward
from torch import Tensor, nn
from user_networks import numbers, seeded

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.networks.pathways.fully_connected import (
    FactoredPathway,
    FullyConnectedPathway,
    products_by_channel,
)
from isotropy.networks.pathways.pathway import LayerShape, Pathway

KINDS: dict[str, type[FactoredPathway] | type[FullyConnectedPathway]] = {
    "fc": FullyConnectedPathway,
    "ffc": FactoredPathway,
}
SHAPES = {
    "plain": LayerShape((2, 3, 2), (3, 3, 2)),
    "stride": LayerShape((3, 4, 2), (2, 2, 1)),
    "one channel in": LayerShape((1, 2, 3), (2, 2, 3)),
    "one channel out": LayerShape((2, 2, 3), (1, 2, 3)),
    "one pixel": LayerShape((3, 2, 2), (4, 1, 1)),
}
CLASSES = 3
Module = TypeVar("Module", bound=nn.Module)


def drawn(module: Module) -> Module:
    """In float64 with every parameter random, biases too."""
    module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            scale = max(1, parameter[0].numel()) ** 0.5
            parameter.copy_(numbers(*parameter.shape, seed=number + 1) / scale)
    return module


def network_of(pathway: Pathway, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    features = math.prod(pathway.shape.target)
    return drawn(nn.Sequential(pathway, activation(), nn.Flatten(), nn.Linear(features, CLASSES)))


def inputs_for(shape: LayerShape, count: int = 3, samples: int = 1) -> Tensor:
    examples = numbers(count, 1, *shape.source, seed=20)
    return (examples + 0.5 * numbers(count, samples, *shape.source, seed=21)).flatten(0, 1)


# --- outputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_factored_outputs_are_those_of_the_definition(name: str) -> None:
    shape = SHAPES[name]
    pathway, maps = drawn(FactoredPathway(shape)), inputs_for(shape)
    with torch.no_grad():
        expected = factored_forward(
            maps,
            pathway.spread.weight.unflatten(2, shape.target[1:]),
            pathway.spread.bias.unflatten(0, shape.target[1:]),
            pathway.readout.weight.transpose(0, 1).unflatten(2, shape.source[1:]),
            pathway.readout.bias,
        )
        found = pathway(maps)
    assert found.shape == (len(maps), *shape.target)
    assert_equal(found, expected, "outputs")


@pytest.mark.parametrize("name", SHAPES)
def test_fully_connected_outputs(name: str) -> None:
    shape = SHAPES[name]
    pathway, maps = drawn(FullyConnectedPathway(shape)), inputs_for(shape)
    weight = pathway.linear.weight.view(*shape.target, *shape.source)
    bias = pathway.linear.bias.view(shape.target)
    expected = torch.einsum("ncxy,dpqcxy->ndpq", maps, weight) + bias
    assert_equal(pathway(maps), expected, "outputs")


@pytest.mark.parametrize("name", SHAPES)
def test_a_factored_pathway_is_a_fully_connected_one(name: str) -> None:
    """θ(c', c, x', y', x, y) = θ1(c', c, x', y') θ2(c', c, x, y)."""
    shape = SHAPES[name]
    factored, whole = drawn(FactoredPathway(shape)), FullyConnectedPathway(shape).double()
    with torch.no_grad():
        theta1, theta2 = factored.spread.weight, factored.readout.weight
        whole.linear.weight.copy_(
            torch.einsum("dcp,cdx->dpcx", theta1, theta2).reshape(whole.linear.weight.shape)
        )
        constant = theta1.sum(1) * factored.readout.bias[:, None] + factored.spread.bias
        whole.linear.bias.copy_(constant.flatten())
    maps = inputs_for(shape)
    assert_equal(factored(maps), whole(maps), "outputs")


# --- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_numbers_of_parameters(name: str) -> None:
    shape = SHAPES[name]
    (c, x, y), (d, p, q) = shape.source, shape.target
    counts = {k: sum(t.numel() for t in make(shape).parameters()) for k, make in KINDS.items()}
    assert counts == {
        "fc": d * p * q * (c * x * y + 1),
        "ffc": (d * c * x * y + d) + (p * q * d * c + p * q),
    }


def test_initial_bounds() -> None:
    shape = LayerShape((4, 8, 8), (6, 8, 8))
    factored = FactoredPathway(shape, generator=seeded())
    whole = FullyConnectedPathway(shape, generator=seeded())
    for weight, bound in (
        (factored.readout.weight, math.sqrt(3 / 64)),
        (factored.spread.weight, math.sqrt(3 / 4)),
        (whole.linear.weight, 1 / math.sqrt(256)),
    ):
        assert 0.97 * bound < float(weight.detach().max()) <= bound
        assert -bound <= float(weight.detach().min()) < -0.97 * bound


def test_initial_outputs_have_the_variance_of_the_inputs() -> None:
    shape = LayerShape((10, 8, 8), (20, 8, 8))
    pathway = FactoredPathway(shape, generator=seeded())
    maps = torch.randn(200, *shape.source, generator=seeded(1))
    with torch.no_grad():
        assert float(pathway.readout(maps).var()) == pytest.approx(1, rel=0.1)
        assert float(pathway(maps).var()) == pytest.approx(1, rel=0.1)


def test_scaling_leaves_the_first_factor() -> None:
    pathway = FactoredPathway(SHAPES["plain"])
    before = copy.deepcopy(pathway.readout.state_dict())
    pathway.scale_(0.25)
    assert all(torch.equal(before[n], t) for n, t in pathway.readout.state_dict().items())


# --- curvature -----------------------------------------------------------------------------------


def natural(found: dict[str, Tensor], shape: LayerShape) -> dict[str, Tensor]:
    """The library's blocks of the two weights as single matrices, in the order of App. C.1.

    (C, C'·XY, C'·XY) → (C'·C·XY)², and (C', C·X'Y', C·X'Y') → (X'Y'·C'·C)².
    """
    (c, *before), (d, *after) = shape.source, shape.target
    pixels, places = math.prod(before), math.prod(after)
    theta2 = torch.zeros(d, c, pixels, d, c, pixels, dtype=torch.float64)
    for channel, block in enumerate(found["0.readout.weight"]):
        theta2[:, channel, :, :, channel] = block.view(d, pixels, d, pixels)
    theta1 = torch.zeros(places, d, c, places, d, c, dtype=torch.float64)
    for channel, block in enumerate(found["0.spread.weight"]):
        theta1[:, channel, :, :, channel] = block.view(c, places, c, places).permute(1, 0, 3, 2)
    return {
        "readout": theta2.view(d * c * pixels, -1),
        "spread": theta1.view(places * d * c, -1),
    }


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", SHAPES)
def test_factored_blocks_are_those_of_the_formula(name: str, likelihood: str, samples: int) -> None:
    shape, kind = SHAPES[name], LIKELIHOODS[likelihood]
    network, rows = network_of(FactoredPathway(shape)), inputs_for(shape, 2, samples)
    found = library_blocks(network, rows, samples, kind.build())
    expected = dense_factored_kfac(network, "0.readout", "0.spread", rows, samples, kind.curvature)
    for which, block in natural(found, shape).items():
        assert_equal(block, expected[which], which)
    exact = dense_ggn_blocks(network, rows, samples, kind.curvature)
    for bias in ("0.readout.bias", "0.spread.bias"):
        assert_equal(found[bias][0], exact[bias], bias)


class UsedTwice(nn.Module):
    """A factored layer called twice, on its own output."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.add_module("0", FactoredPathway(shape))
        self.head = nn.Linear(math.prod(shape.target), CLASSES)

    def forward(self, maps: Tensor) -> Tensor:
        layer = self.get_submodule("0")
        return self.head(layer(layer(maps).tanh()).tanh().flatten(1))


def test_factored_blocks_of_a_layer_used_twice() -> None:
    shape, kind = LayerShape((2, 2, 3), (2, 2, 3)), LIKELIHOODS["categorical"]
    network, rows = drawn(UsedTwice(shape)), inputs_for(shape, 2, 2)
    found = library_blocks(network, rows, 2, kind.build())
    expected = dense_factored_kfac(network, "0.readout", "0.spread", rows, 2, kind.curvature)
    for which, block in natural(found, shape).items():
        assert_equal(block, expected[which], which)


@pytest.mark.parametrize("samples", [1, 2])
def test_fully_connected_blocks_are_those_of_the_formula(samples: int) -> None:
    shape, kind = LayerShape((2, 2, 1), (1, 2, 1)), LIKELIHOODS["categorical"]
    network, rows = network_of(FullyConnectedPathway(shape)), inputs_for(shape, 3, samples)
    found = library_blocks(network, rows, samples, kind.build())
    expected = dense_kfac(network, "0.linear", rows, samples, kind.curvature)
    assert_equal(found["0.linear.weight"], expected["weight"], "weight")
    assert_equal(found["0.linear.bias"][0], expected["bias"], "bias")


def test_no_factor_of_all_pixels_of_all_channels() -> None:
    shape = LayerShape((5, 4, 4), (6, 2, 2))
    network = network_of(FactoredPathway(shape))
    roots = KFAC(network).batch(inputs_for(shape), Copies(1), LIKELIHOODS["categorical"].build())
    sizes = {
        name: [tuple(factor.shape) for factor in root.factors().tensors()]
        for name, root in roots.roots.items()
        if name.startswith("0.")
    }
    assert sizes == {
        "0.readout.weight": [(5, 16, 16), (1, 6, 6)],
        "0.readout.bias": [(6, 6)],
        "0.spread.weight": [(1, 4, 4), (6, 5, 5)],
        "0.spread.bias": [(4, 4)],
    }


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(
    ("name", "exact"),
    [("one channel in", "readout"), ("one channel out", "spread")],
)
def test_exact_for_one_example_and_one_position(name: str, exact: str, likelihood: str) -> None:
    """C = 1 for θ2, C' = 1 for θ1; any other half of the two is not exact."""
    shape, kind = SHAPES[name], LIKELIHOODS[likelihood]
    network, rows = network_of(FactoredPathway(shape)), inputs_for(shape, 1)
    found = library_blocks(network, rows, 1, kind.build())
    dense = dense_ggn_blocks(network, rows, 1, kind.curvature)
    for half in ("readout", "spread"):
        block, whole = found[f"0.{half}.weight"], dense[f"0.{half}.weight"]
        if half == exact:
            assert_equal(block[0], whole, half)
        else:
            assert relative_difference(torch.block_diag(*block), whole) > 0.05


@pytest.mark.parametrize(
    ("name", "half"), [("one channel in", "readout"), ("one channel out", "spread")]
)
def test_exact_for_any_examples_where_gradients_are_the_same(name: str, half: str) -> None:
    """No activation and Gaussian noise: g does not depend on the example."""
    shape = SHAPES[name]
    network, rows = network_of(FactoredPathway(shape), nn.Identity), inputs_for(shape, 4)
    kind = LIKELIHOODS["gaussian"]
    found = library_blocks(network, rows, 1, kind.build())
    dense = dense_ggn_blocks(network, rows, 1, gaussian_curvature(0.7))
    assert_equal(found[f"0.{half}.weight"][0], dense[f"0.{half}.weight"], half)


@pytest.mark.parametrize("directions", [1, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_through_the_blocks(kind: str, directions: int) -> None:
    """By the inputs: pullbacks of the spectra against autograd through slogdet."""
    shape, likelihood = SHAPES["plain"], LIKELIHOODS["categorical"].build()
    network, rows = network_of(KINDS[kind](shape)), inputs_for(shape, 3).requires_grad_()
    scale, precision = (torch.tensor(number).double() for number in (1.3, 0.4))
    found = KFAC(network).batch(
        rows, Copies(1), likelihood, create_graph=True, directions_at_once=directions
    )
    expected, ours = torch.zeros((), dtype=torch.float64), []
    for root in found.roots.values():
        block = root.factors().dense(3)
        identity = torch.eye(block.shape[-1], dtype=torch.float64)
        expected = expected + torch.linalg.slogdet(scale * block + precision * identity)[1].sum()
        spectrum = root.detach().factors().spectrum(3)
        for factor, pullback in zip(
            root.factors().tensors(), spectrum.pullback(scale, precision), strict=True
        ):
            ours.append((factor * pullback).sum())
    (gradient,) = torch.autograd.grad(torch.stack(ours).sum(), rows, retain_graph=True)
    (autograd,) = torch.autograd.grad(expected, rows)
    assert float(autograd.abs().max()) > 1e-3
    assert_equal(gradient, autograd, "gradient", tolerance=1e-8)


BATCH, CHANNELS, INNER, OUTER, DIRECTIONS = 5, 3, 4, 2, 6


def expected(rows: Tensor, matrices: Tensor) -> Tensor:
    """Channel by channel."""
    return torch.stack([rows[:, g] @ matrices[g] for g in range(len(matrices))], 1)


# Rows and matrices as they lie in memory, first axis outermost, and how they are read.
ROWS = {
    "pixels last": lambda: numbers(BATCH, CHANNELS, INNER),
    "batch last": lambda: numbers(CHANNELS, INNER, BATCH).permute(2, 0, 1),
    "channels last": lambda: numbers(BATCH, INNER, CHANNELS).mT,
}
MATRICES = {
    "as it is": lambda: numbers(CHANNELS, INNER, OUTER, seed=1),
    "transposed": lambda: numbers(CHANNELS, OUTER, INNER, seed=1).mT,
}
CASES = list(itertools.product(ROWS, MATRICES, (False, True)))


@pytest.mark.parametrize(("rows", "matrices", "batch_last"), CASES)
def test_values(rows: str, matrices: str, batch_last: bool) -> None:
    x, weight = ROWS[rows](), MATRICES[matrices]()
    found = products_by_channel(x, weight, batch_last=batch_last)
    assert_equal(found, expected(x, weight), "products")
    assert found.stride(0 if batch_last else 2) == 1


@pytest.mark.parametrize(("rows", "matrices", "batch_last"), CASES)
def test_derivatives(rows: str, matrices: str, batch_last: bool) -> None:
    """First and second, backward and forward."""
    x, weight = ROWS[rows]().requires_grad_(), MATRICES[matrices]().requires_grad_()

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return products_by_channel(x, weight, batch_last=batch_last)

    assert torch.autograd.gradcheck(product, (x, weight), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product, (x, weight))


@pytest.mark.parametrize("batch_last", [False, True])
def test_the_gradient_of_a_weight_lies_in_memory_as_the_weight(batch_last: bool) -> None:
    for weight in (numbers(CHANNELS, INNER, OUTER), numbers(CHANNELS, OUTER, INNER)):
        weight.requires_grad_()
        matrices = weight if weight.shape[1] == INNER else weight.mT
        found = products_by_channel(ROWS["pixels last"](), matrices, batch_last=batch_last)
        (gradient,) = torch.autograd.grad(found.square().sum(), weight)
        assert gradient.stride() == weight.stride()


@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("dims", [(0, None), (2, None), (None, 0), (None, 1), (0, 0), (3, 2)])
def test_vmap(dims: tuple[int | None, int | None], batch_last: bool) -> None:
    of_rows, of_matrices = dims
    x = numbers(BATCH, CHANNELS, INNER) if of_rows is None else numbers(
        DIRECTIONS, BATCH, CHANNELS, INNER)  # fmt: skip
    weight = numbers(CHANNELS, INNER, OUTER) if of_matrices is None else numbers(
        DIRECTIONS, CHANNELS, INNER, OUTER)  # fmt: skip
    singles = [
        expected(x if of_rows is None else x[d], weight if of_matrices is None else weight[d])
        for d in range(DIRECTIONS)
    ]
    found = torch.func.vmap(
        lambda x, weight: products_by_channel(x, weight, batch_last=batch_last), in_dims=dims
    )(
        x if of_rows is None else x.movedim(0, of_rows),
        weight if of_matrices is None else weight.movedim(0, of_matrices),
    )
    assert_equal(found, torch.stack(singles), "products")


@pytest.mark.parametrize("batch_last", [False, True])
def test_many_directions_of_back_propagation(batch_last: bool) -> None:
    """As KFAC asks for them, and differentiable once more."""
    x = numbers(BATCH, CHANNELS, INNER).requires_grad_()
    weight = numbers(CHANNELS, INNER, OUTER, seed=1).requires_grad_()
    output = products_by_channel(x, weight, batch_last=batch_last)
    cotangents = numbers(DIRECTIONS, BATCH, CHANNELS, OUTER, seed=2)

    def pulled(cotangent: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            output, (x, weight), cotangent, retain_graph=True, create_graph=True
        )

    of_rows, of_weight = torch.func.vmap(pulled)(cotangents)
    for direction, cotangent in enumerate(cotangents):
        by_rows, by_weight = pulled(cotangent)
        assert_equal(of_rows[direction], by_rows, "by rows")
        assert_equal(of_weight[direction], by_weight, "by matrices")
    (again,) = torch.autograd.grad(of_rows.square().sum(), weight)
    once = sum(pulled(cotangent)[0].square().sum() for cotangent in cotangents)
    assert_equal(again, torch.autograd.grad(once, weight)[0], "second derivative")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["stride", "one pixel"])
def test_autocast_rounds_products_and_leaves_float64(kind: str, shape: str) -> None:
    pathway = drawn(KINDS[kind](SHAPES[shape]))
    maps = numbers(4, *pathway.shape.source, seed=9)
    right = pathway(maps)
    exact = torch.autograd.grad(right.square().sum(), list(pathway.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pathway(maps), right)
        found = pathway.float()(maps.float())
    assert relative_difference(found.double(), right) < 2e-2
    gradients = torch.autograd.grad(found.float().square().sum(), list(pathway.parameters()))
    for ours, theirs in zip(gradients, exact, strict=True):
        assert relative_difference(ours.double(), theirs) < 5e-2
