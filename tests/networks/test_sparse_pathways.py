"""S-CONV and S-FC: outputs, symmetries, curvature blocks against formulas written out, sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from network_cases import assert_equal, library_blocks, relative_difference
from oracles import filter_basis_oracle as oracle
from oracles.dense_ggn import dense_ggn_blocks, gaussian_curvature, softmax_curvature
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical, Gaussian
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
LEARNED = {"learns_lengthscale": True, "learns_anchors": True}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


def test_sparse_convolutions_commute_with_shifts_and_factored_ones_do_not():
    assert shift_error(drawn(SparseConvolutionPathway)) < 1e-12
    assert shift_error(drawn(SparseConvolutionPathway, **LEARNED)) < 1e-12
    assert shift_error(drawn(SparseFactoredPathway)) > 0.1


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
def test_directions_may_be_taken_together(kind: type[Pathway]):
    network, rows = network_of(drawn(kind, **LEARNED)), maps_of(SHAPE)
    single = library_blocks(network, rows, 1, Categorical(), directions_at_once=1)
    together = library_blocks(network, rows, 1, Categorical(), directions_at_once=CLASSES)
    for name, block in single.items():
        assert_equal(together[name], block, name)


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


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_can_be_scaled_and_learn_from_zero(kind: type[Pathway]):
    made, maps = drawn(kind), maps_of(SHAPE)
    before = made(maps).detach()
    made.scale_(0.5)
    assert_equal(made(maps), before / 2, "half")
    made.scale_(0.0)
    outputs = made(maps)
    assert outputs.abs().max() == 0
    (outputs - 1).square().sum().backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in made.parameters())


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_convolution_takes_constants_and_factors_do_not(kind: type[Pathway], options):
    """The bias of the first factor is spread by the second, differently at every place."""
    made, maps = drawn(kind, **options), maps_of(SHAPE)
    constants = torch.randn(3, generator=seeded(9))
    before, saved = made(maps).detach(), copy.deepcopy(made.state_dict())
    takes = kind is SparseConvolutionPathway
    assert made.absorb_(constants) is takes
    assert_equal(made(maps), before + takes * constants[:, None, None], "outputs", 1e-12)
    moved = {name for name, each in made.state_dict().items() if not torch.equal(each, saved[name])}
    assert moved == ({"convolution.bias"} if takes else set())


def test_a_plain_sparse_convolution_is_an_ordinary_one():
    made, maps = drawn(SparseConvolutionPathway, **LEARNED), maps_of(SHAPE)
    plain = made.plain()
    assert type(plain) is nn.Conv2d
    assert plain.weight.requires_grad
    assert_equal(plain(maps), made(maps), "outputs")
    with torch.no_grad():
        plain.weight.zero_()
    assert made(maps).std() > 0


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


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_pathway_is_restored(kind: type[Pathway], options):
    saved, other = drawn(kind, **options), drawn(kind, seed=1, **options)
    maps = maps_of(SHAPE)
    assert relative_difference(other(maps), saved(maps)) > 0.1
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(maps), saved(maps))


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_rounds_and_no_more(kind: type[Pathway], options):
    shape = LayerShape((2, 8, 8), (3, 8, 8))
    made, maps = drawn(kind, shape, **options), maps_of(shape)
    expected = made(maps).detach()
    found = made.float()(maps.float())
    assert found.dtype == torch.float32
    assert_equal(found.double(), expected, "outputs", 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_come_from_the_generator_alone(kind: type[Pathway]):
    before = torch.get_rng_state()
    first, again, other = (kind(SHAPE, generator=seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    for (name, one), two, three in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(one, two)
        assert name.endswith("bias") or not torch.equal(one, three)


def test_initial_filters_keep_their_share_of_the_variance():
    """Half the anchors keep half the variance, in each of the factors."""
    shape = LayerShape((8, 16, 16), (8, 16, 16))
    maps = torch.randn(40, *shape.source, generator=seeded(3))
    sfc = SparseFactoredPathway(shape, generator=seeded())
    assert 0.2 < sfc(maps).var() < 0.3  # 1/4, of 1 before
    sconv = SparseConvolutionPathway(shape, generator=seeded())
    assert 0.9 < sconv(maps).var() < 1.4  # 5/9 of 2


# -- sizes ---------------------------------------------------------------------------------

WIDTHS = (1, 2, 2, 4, 4, 8, 8, 16)
SIZES = (32, 32, 16, 16, 8, 8, 4, 2, 1)


def table_6(kind: type[Pathway], alpha: int = 10, channels: int = 3) -> int:
    """Parameters of the architecture of Table 6 with these stages, and its two last layers."""
    widths = [channels, *(alpha * width for width in WIDTHS)]
    total = 0
    for stage in range(8):
        before, after = SIZES[stage], SIZES[stage + 1]
        shape = LayerShape((widths[stage], before, before), (widths[stage + 1], after, after))
        with torch.device("meta"):
            total += sum(p.numel() for p in kind(shape).parameters())
    return total + (16 * alpha + 1) * 64 * alpha + (64 * alpha + 1) * 10


def test_sizes_of_the_architecture_are_the_published_ones():
    assert table_6(SparseFactoredPathway) == 831_820
    assert round(table_6(SparseConvolutionPathway) / 1e6, 1) == 0.2


def test_lengthscales_and_anchors_add_one_and_two_each():
    bare, full = (SparseConvolutionPathway(SHAPE, **given) for given in ({}, LEARNED))
    counts = [sum(p.numel() for p in made.parameters()) for made in (bare, full)]
    assert counts == [3 * 2 * 5 + 3, 3 * 2 * 5 + 3 + 1 + 2 * 5]


@pytest.mark.parametrize("sparsity", [0.0, -1.0, 1.2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sparsity_out_of_range_is_refused_by_pathways(kind: type[Pathway], sparsity: float):
    with pytest.raises(CallerError, match="above 0 and at most 1"):
        kind(SHAPE, sparsity=sparsity)


@pytest.mark.parametrize(("kernel", "reason"), [(2, "odd"), (0, "odd"), (11, "at most 9")])
def test_kernels_that_do_not_fit_are_refused(kernel: int, reason: str):
    with pytest.raises(CallerError, match=reason):
        SparseConvolutionPathway(SHAPE, kernel=kernel)


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(CallerError, match="divides"):
        SparseConvolutionPathway(LayerShape((2, 4, 4), (3, 3, 3)))


def test_what_is_learned_can_be_read():
    text = repr(SparseConvolutionPathway(SHAPE, **LEARNED))
    assert "3×2×5 values for 3×3 pixels, learns lengthscale and anchors" in text
    assert "learns" not in repr(SparseFactoredPathway(SHAPE))
