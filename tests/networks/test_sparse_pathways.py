"""S-CONV and S-FC: outputs, symmetries, curvature blocks against formulas written out, sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from network_cases import assert_equal, library_blocks, relative_difference
from oracles import filter_basis_oracle as oracle
from oracles.dense_ggn import dense_ggn_blocks, gaussian_curvature, softmax_curvature
from torch import Tensor, nn
from user_networks import seeded

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical, Gaussian
from isotropy.networks.pathways.filter_basis import BasisOptions
from isotropy.networks.pathways.pathway import LayerShape, Pathway
from isotropy.networks.pathways.sparse import (
    SparseConvolutionPathway,
    SparseFactoredPathway,
    SparseLayer,
)

SHAPE = LayerShape((2, 4, 4), (3, 4, 4))
KINDS = [SparseConvolutionPathway, SparseFactoredPathway]
CLASSES = 3
FORMS = ("convolution", "readout", "spread")
LEARNED = {"basis": BasisOptions(learns_lengthscale=True, learns_anchors=True)}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def drawn(kind: type[Pathway], shape: LayerShape = SHAPE, seed: int = 0, **options) -> Pathway:
    """A pathway with biases and lengthscales away from where they start."""
    made = kind(shape, generator=seeded(seed), **options)
    generator = seeded(seed + 100)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith(("bias", "lengthscale")):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return made


def maps_of(shape: LayerShape, count: int = 3, seed: int = 7) -> Tensor:
    return torch.randn(count, *shape.source, generator=seeded(seed))


def network_of(pathway: Pathway, seed: int = 5) -> nn.Sequential:
    features = pathway(maps_of(pathway.shape, 1)).numel()
    head = nn.Linear(features, CLASSES)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(seed)) / features**0.5)
    return nn.Sequential(pathway, nn.Tanh(), nn.Flatten(), head)


def sparse_layers(pathway: nn.Module) -> dict[str, SparseLayer]:
    return {name: m for name, m in pathway.named_modules() if isinstance(m, SparseLayer)}


def phi_of(layer: SparseLayer) -> Tensor:
    return torch.from_numpy(
        oracle.functions(layer.anchors.detach().numpy(), layer.lengthscale.item(), *layer.size)
    )


def filters_of(layer: SparseLayer) -> Tensor:
    return (layer.values @ phi_of(layer)).detach().unflatten(-1, layer.size)


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("target", [(3, 4, 4), (3, 2, 2)], ids=["same size", "halved"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_formula(kind: type[Pathway], target, options):
    shape = LayerShape((2, 4, 4), target)
    made, maps = drawn(kind, shape, **options), maps_of(shape)
    if isinstance(made, SparseConvolutionPathway):
        expected = oracle.convolved(maps, filters_of(made.convolution), made.convolution.bias)
        assert made.reaches_target == (target[1] == 4)
    else:
        assert isinstance(made, SparseFactoredPathway)
        expected = oracle.factored(
            maps, filters_of(made.readout), made.readout.bias, filters_of(made.spread)
        )
        assert made.reaches_target
    assert_equal(made(maps), expected, "outputs")


def test_maps_need_not_be_square():
    shape = LayerShape((1, 6, 4), (2, 3, 2))
    maps = maps_of(shape)
    factored = drawn(SparseFactoredPathway, shape)
    expected = oracle.factored(
        maps, filters_of(factored.readout), factored.readout.bias, filters_of(factored.spread)
    )
    assert_equal(factored(maps), expected, "factored")
    sparse = drawn(SparseConvolutionPathway, shape, kernel=5).convolution
    assert_equal(sparse(maps), oracle.convolved(maps, filters_of(sparse), sparse.bias), "5×5")


# -- symmetry ------------------------------------------------------------------------------


def shift_error(pathway: Pathway) -> float:
    """Largest difference between shifting before and after, over the largest output."""
    maps = maps_of(SHAPE)
    found = [
        relative_difference(
            pathway(maps.roll((down, right), (2, 3))), pathway(maps).roll((down, right), (2, 3))
        )
        for down, right in [(1, 0), (0, 1), (2, 3)]
    ]
    return max(found)


def spread_over_places(outputs: Tensor) -> float:
    return (outputs.amax((2, 3)) - outputs.amin((2, 3))).max().item()


def test_without_frequency_the_factored_pathway_sees_sums_and_returns_constants():
    made = drawn(SparseFactoredPathway, **LEARNED)
    maps = maps_of(SHAPE)
    order = torch.randperm(16, generator=seeded(2))
    shuffled = maps.flatten(2)[:, :, order].unflatten(2, (4, 4))

    def change(pathway: Pathway) -> float:
        return relative_difference(pathway(shuffled), pathway(maps))

    blind, flat = copy.deepcopy(made), copy.deepcopy(made)
    with torch.no_grad():
        blind.readout.lengthscale.zero_()
        flat.spread.lengthscale.zero_()
    # Reading out alone: where things are does not matter, but the output has a place for each.
    assert change(blind) < 1e-12
    assert spread_over_places(blind(maps)) > 0.1
    assert shift_error(blind) > 0.1
    # Spreading alone: the same everywhere, but it matters where things are.
    assert spread_over_places(flat(maps)) < 1e-12
    assert change(flat) > 0.1
    assert shift_error(flat) > 0.1
    with torch.no_grad():
        blind.spread.lengthscale.zero_()
    assert change(blind) < 1e-12
    assert spread_over_places(blind(maps)) < 1e-12
    assert shift_error(blind) < 1e-12
    sums = torch.zeros_like(maps)
    sums[:, :, 0, 0] = maps.sum((2, 3))
    assert_equal(blind(maps), blind(sums), "sums")
    assert blind(maps).std(0).max() > 0.01  # they are not zero


# -- curvature -----------------------------------------------------------------------------


def expected_of_values(
    network: nn.Module, name: str, rows: Tensor, samples: int = 1, curvature=softmax_curvature
) -> Tensor:
    layer = network.get_submodule(name)
    assert isinstance(layer, SparseLayer)
    form = name.rpartition(".")[2]
    assert form in FORMS
    return oracle.dense_block(network, layer, form, phi_of(layer), rows, samples, curvature)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("options", [{}, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_values_are_those_of_the_formula(kind: type[Pathway], options, samples: int):
    network = network_of(drawn(kind, **options))
    rows = maps_of(SHAPE, 3 * samples)
    found = library_blocks(network, rows, samples, Categorical())
    for name in sparse_layers(network):
        expected = expected_of_values(network, name, rows, samples)
        block = torch.block_diag(*found[f"{name}.values"])
        assert_equal(block, expected, name)
        assert (
            len(found[f"{name}.values"])
            == {"convolution": 1, "readout": 2, "spread": 3}[name.rpartition(".")[2]]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_biases_and_lengthscales_are_exact(kind: type[Pathway]):
    network = network_of(drawn(kind, **LEARNED))
    rows = maps_of(SHAPE)
    exact = dense_ggn_blocks(network, rows, 1, softmax_curvature)
    found = library_blocks(network, rows, 1, Categorical())
    checked = [name for name in found if name.startswith("0.") and not name.endswith("values")]
    assert len(checked) == (2 if kind is SparseConvolutionPathway else 3)
    for name in checked:
        assert found[name].abs().max() > 0
        assert_equal(found[name][0], exact[name], name, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_block_of_a_lengthscale_is_that_of_finite_differences(kind: type[Pathway]):
    network = network_of(drawn(kind, **LEARNED))
    rows, step = maps_of(SHAPE), 1e-5
    found = library_blocks(network, rows, 1, Categorical())
    for name, layer in sparse_layers(network).items():
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                kept = layer.lengthscale.clone()
                layer.lengthscale += sign * step
                ends.append(network(rows))
                layer.lengthscale.copy_(kept)
        slopes = (ends[0] - ends[1]) / (2 * step)  # (batch, outputs)
        curvature = softmax_curvature(network(rows).detach())
        expected = torch.einsum("nk,nkl,nl->", slopes, curvature, slopes)
        assert_equal(found[f"{name}.lengthscale"], expected.reshape(1, 1, 1), name, 1e-6)


@pytest.mark.parametrize(
    ("kind", "shape", "layer"),
    [
        (SparseConvolutionPathway, LayerShape((3, 1, 1), (2, 1, 1)), "convolution"),
        (SparseFactoredPathway, LayerShape((1, 4, 4), (3, 2, 2)), "readout"),
        (SparseFactoredPathway, LayerShape((3, 4, 4), (1, 2, 2)), "spread"),
    ],
)
def test_one_example_at_one_position_has_the_exact_block(kind, shape: LayerShape, layer: str):
    """Channels are the positions of a factored layer: input channels, then output channels."""
    network = network_of(drawn(kind, shape, **LEARNED))
    rows = maps_of(shape, 1)
    name = f"0.{layer}.values"
    for likelihood, curvature in (
        (Gaussian(0.7), gaussian_curvature(0.7)),
        (Categorical(), softmax_curvature),
    ):
        found = torch.block_diag(*library_blocks(network, rows, 1, likelihood)[name])
        assert_equal(found, dense_ggn_blocks(network, rows, 1, curvature)[name], name)


@pytest.mark.parametrize("kind", KINDS)
def test_several_positions_make_it_an_approximation(kind: type[Pathway]):
    network = network_of(drawn(kind))
    rows = maps_of(SHAPE, 1)
    found = library_blocks(network, rows, 1, Categorical())
    exact = dense_ggn_blocks(network, rows, 1, softmax_curvature)
    for name in sparse_layers(network):
        block = torch.block_diag(*found[f"{name}.values"])
        assert relative_difference(block, exact[f"{name}.values"]) > 0.1


class Twice(nn.Module):
    """One pathway, applied to its own outputs."""

    def __init__(self, pathway: Pathway) -> None:
        super().__init__()
        self.pathway = pathway
        self.head = network_of(pathway)[-1]

    def forward(self, maps: Tensor) -> Tensor:
        return self.head(self.pathway(self.pathway(maps).tanh()).tanh().flatten(1))


@pytest.mark.parametrize("kind", KINDS)
def test_uses_of_a_layer_are_positions(kind: type[Pathway]):
    shape = LayerShape((2, 3, 3), (2, 3, 3))
    network, rows = Twice(drawn(kind, shape, **LEARNED)), maps_of(shape)
    found = library_blocks(network, rows, 1, Categorical())
    exact = dense_ggn_blocks(network, rows, 1, softmax_curvature)
    for name in sparse_layers(network):
        block = torch.block_diag(*found[f"{name}.values"])
        assert_equal(block, expected_of_values(network, name, rows), name)
        omega = f"{name}.lengthscale"
        assert_equal(found[omega][0], exact[omega], omega, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_log_determinants_can_be_differentiated_by_inputs(kind: type[Pathway]):
    """As autograd through the formula written out does it; weights are constants."""
    network = network_of(drawn(kind, **LEARNED))
    rows = maps_of(SHAPE, 2).requires_grad_()
    for name in sparse_layers(network):
        wanted = expected_of_values(network, name, rows)
        identity = torch.eye(len(wanted))
        (expected,) = torch.autograd.grad(torch.linalg.slogdet(wanted + identity)[1], rows)
        batch = KFAC(network).batch(rows, Copies(1), Categorical(), create_graph=True)
        block = torch.block_diag(*batch.roots[f"{name}.values"].factors().dense(2))
        (found,) = torch.autograd.grad(torch.linalg.slogdet(block + identity)[1], rows)
        assert expected.abs().max() > 0
        assert_equal(found, expected, name, 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_anchors_are_constants_of_the_evidence(kind: type[Pathway]):
    network = network_of(drawn(kind, **LEARNED))
    names = KFAC(network).parameter_names
    assert {n for n, _ in network.named_parameters()} - set(names) == {
        f"{layer}.anchors" for layer in sparse_layers(network)
    }


# -- training, scaling, plain forms --------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_a_gradient(kind: type[Pathway]):
    made = drawn(kind, **LEARNED)
    made(maps_of(SHAPE)).square().sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_a_plain_factored_pathway_has_a_basis_that_is_fixed():
    made, maps = drawn(SparseFactoredPathway, **LEARNED), maps_of(SHAPE)
    plain = made.plain()
    assert_equal(plain(maps), made(maps), "outputs", 1e-12)
    assert {name for name, _ in plain.named_parameters()} == {
        "readout.values", "readout.bias", "spread.values"
    }  # fmt: skip
    assert made.readout.learns_lengthscale
    plain.scale_(0.0)
    assert made(maps).std() > 0


def test_initial_filters_keep_their_share_of_the_variance():
    """Half the anchors keep half the variance, in each of the factors."""
    shape = LayerShape((8, 16, 16), (8, 16, 16))
    maps = torch.randn(40, *shape.source, generator=seeded(3))
    sfc = SparseFactoredPathway(shape, generator=seeded())
    assert 0.2 < sfc(maps).var() < 0.3  # 1/4, of 1 before
    sconv = SparseConvolutionPathway(shape, generator=seeded())
    assert 0.9 < sconv(maps).var() < 1.4  # 5/9 of 2


# -- sizes ---------------------------------------------------------------------------------


def test_lengthscales_and_anchors_add_one_and_two_each():
    bare, full = (SparseConvolutionPathway(SHAPE, **given) for given in ({}, LEARNED))
    counts = [sum(p.numel() for p in made.parameters()) for made in (bare, full)]
    assert counts == [3 * 2 * 5 + 3, 3 * 2 * 5 + 3 + 1 + 2 * 5]


def test_what_is_learned_can_be_read():
    text = repr(SparseConvolutionPathway(SHAPE, **LEARNED))
    assert "3×2×5 values for 3×3 pixels, learns lengthscale and anchors" in text
    assert "learns" not in repr(SparseFactoredPathway(SHAPE))
