"""KFAC against its own formula (Eq. 7 and 15) written out densely, and where it is the exact GGN.

Weights of Linear layers, convolutions and attention have the Kronecker blocks of
`oracles.dense_kfac`; biases, scalars and normalisations the exact blocks of `oracles.dense_ggn`.

Exact blocks: one Linear layer with Gaussian likelihood, any number of examples and samples; every
layer for one example with one sample (Linear, or a convolution with one position); the last Linear
layer for one example with any samples; biases and scalars always.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from network_cases import (
    CLASSES,
    EVERY_RULE,
    LIKELIHOODS,
    NETWORKS,
    TOLERANCE,
    NetworkCase,
    assert_blocks_equal,
    assert_equal,
    library_blocks,
    relative_difference,
)
from numerics import numbers
from oracles.dense_ggn import (
    OutputCurvature,
    Samples,
    average_over_samples,
    dense_ggn,
    dense_ggn_blocks,
    group_blocks,
    softmax_curvature,
)
from oracles.dense_kfac import CONVOLUTIONS, TRANSPOSED, dense_kfac, patches_by_pixel, spelled_out
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.blocks import KroneckerFactors
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical

COUNT = 3
KRONECKER = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
WEIGHTS = torch.tensor([0.5, 0.125, 0.375], dtype=torch.float64)

# --- every network against the formula ------------------------------------------------------------


def expected_blocks(
    network: nn.Module, rows: Tensor, samples: Samples, curvature: OutputCurvature
) -> dict[str, Tensor]:
    """Every block that the library should find, (groups, p, p)."""
    network = spelled_out(network)
    exact = dense_ggn_blocks(network, rows, samples, curvature)
    expected: dict[str, Tensor] = {}
    for layer_name, layer in network.named_modules():
        trainable = {n for n, p in layer.named_parameters(recurse=False) if p.requires_grad}
        written_out = {}
        if trainable and isinstance(layer, KRONECKER):
            written_out = dense_kfac(network, layer_name, rows, samples, curvature)
        for name in trainable:
            full = f"{layer_name}.{name}" if layer_name else name
            kronecker = written_out and name == "weight"
            block = written_out["weight"] if kronecker else exact[full][None]
            expected[full.replace("in_proj.", "in_proj_")] = block
            if name == "bias" and written_out:  # the oracles agree with each other, too
                assert_equal(written_out["bias"], exact[full], f"oracles on {full}")
    return expected


COPIES: dict[str, Copies] = {"one": Copies(1), "three": Copies(3), "weighted": Copies(3, WEIGHTS)}
FORMULA = [
    *((name, "categorical", "weighted") for name in NETWORKS),
    *itertools.product(EVERY_RULE, LIKELIHOODS, ["one"]),
    *itertools.product(EVERY_RULE, ["gaussian"], ["three"]),
]


@pytest.mark.parametrize(("network", "likelihood", "copies"), FORMULA)
def test_blocks_are_those_of_the_formula(network: str, likelihood: str, copies: str):
    case, kind, given = NETWORKS[network], LIKELIHOODS[likelihood], COPIES[copies]
    built, rows = case.network().eval(), case.rows(COUNT, given.count)
    samples = given.count if given.weights is None else given.weights
    expected = expected_blocks(built, rows, samples, kind.curvature)
    assert_blocks_equal(library_blocks(built, rows, given, kind.build()), expected)
    outputs = KFAC(built).batch(rows, given, kind.build()).outputs
    assert_equal(outputs, average_over_samples(built(rows).detach(), samples), "outputs")
    assert not outputs.requires_grad


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "network", [*EVERY_RULE, "in-place relu", "conv reflect", "rms norm", "batch norm", "fixup"]
)
def test_directions_at_once_do_not_matter(network: str, create_graph: bool):
    case = NETWORKS[network]
    built, rows = case.network(), case.rows(COUNT, 2).requires_grad_(create_graph)
    one, two, many = (
        library_blocks(
            built, rows, 2, Categorical(), directions_at_once=count, create_graph=create_graph
        )
        for count in (1, 2, 100)
    )
    assert_blocks_equal(two, one)
    assert_blocks_equal(many, one)


@pytest.mark.parametrize("network", EVERY_RULE)
def test_factors_add_up_over_batches(network: str):
    case = NETWORKS[network]
    rows, kfac = case.rows(4, 2), KFAC(case.network())
    whole, first, rest = (
        kfac.batch(part, Copies(2), Categorical()).factors() for part in (rows, rows[:2], rows[2:])
    )
    assert tuple(whole) == kfac.parameter_names
    for name, factors in whole.items():
        assert_equal((first[name] + rest[name]).dense(4), factors.dense(4), name)


@pytest.mark.parametrize("network", ["mlp", "conv groups", "scalars"])
def test_single_precision_is_near_double(network: str):
    case = NETWORKS[network]
    single = library_blocks(
        case.network(torch.float32), case.rows(COUNT, 2, torch.float32), 2, Categorical()
    )
    assert all(block.dtype == torch.float32 for block in single.values())
    double = library_blocks(case.network(), case.rows(COUNT, 2), 2, Categorical())
    assert_blocks_equal(single, {name: block.float() for name, block in double.items()})


@pytest.mark.parametrize("network", [name for name in NETWORKS if name.startswith("conv")])
def test_oracle_patches_make_the_convolution(network: str):
    """The pixel-by-pixel patches times the weight are what the convolution returns."""
    case = NETWORKS[network]
    built, rows = case.network(), case.rows(2, 1)
    conv = next(module for module in built.modules() if isinstance(module, CONVOLUTIONS))
    patches = patches_by_pixel(conv, rows)
    weight = conv.weight.reshape(conv.groups, -1, patches.shape[-1])
    made = torch.einsum("rgti,goi->rgot", patches, weight).flatten(1, 2)
    if conv.bias is not None:
        made = made + conv.bias[:, None]
    assert_equal(made.detach(), conv(rows).flatten(2).detach(), "convolution")


# --- copies with weights --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_the_mean_is_weighted_copy_by_copy(shape: tuple[int, ...]):
    rows = numbers(6, *shape)
    assert_equal(Copies(3, WEIGHTS).mean(rows), average_over_samples(rows, WEIGHTS), "weighted")
    assert_equal(Copies(3).mean(rows), average_over_samples(rows, 3), "equal")
    assert Copies(3).split(rows).shape == (2, 3, *shape)
    assert Copies(3, WEIGHTS).mean(rows.float()).dtype == torch.float32


def test_the_mean_is_differentiable_in_rows_and_weights():
    inputs = [numbers(6, 2).requires_grad_(), WEIGHTS.clone().requires_grad_()]
    assert torch.autograd.gradcheck(lambda r, w: Copies(3, w).mean(r), inputs)
    assert torch.autograd.gradgradcheck(lambda r, w: Copies(3, w).mean(r), inputs)


@pytest.mark.parametrize("weights", [torch.ones(2), torch.ones(3, 1), torch.ones(())])
def test_one_weight_a_copy(weights: Tensor):
    with pytest.raises(CallerError, match=r"weights of copies: expected \(3,\), one a copy, got"):
        Copies(3, weights)


def test_other_weights_are_noticed():
    case = NETWORKS["mlp"]
    built, rows = case.network(), case.rows(COUNT, 3)
    found, right = (
        library_blocks(built, rows, Copies(3, each), Categorical())
        for each in (WEIGHTS.flip(0), WEIGHTS)
    )
    assert all(relative_difference(found[name], right[name]) > 1e-2 for name in right)


def test_a_copy_without_weight_does_not_count():
    case = NETWORKS["mlp"]
    built, rows = case.network(), case.rows(COUNT, 3)
    copies = Copies(3, torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64))
    first = library_blocks(built, rows, copies, Categorical())
    rows[2::3] += 10.0
    assert_blocks_equal(library_blocks(built, rows, copies, Categorical()), first)


# --- where it is the exact GGN --------------------------------------------------------------------


def one_position(conv: type[nn.Module], *size: int, **settings: object) -> NetworkCase:
    """A convolution that uses its weight at one position only, tanh and a head."""
    settings = {"kernel_size": 3, **settings}

    def build() -> nn.Sequential:
        layer = conv(2, 2, **settings)
        features = layer(torch.zeros(1, 2, *size)).numel()
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES))

    return NetworkCase(build, (2, *size))


ONE_POSITION = {
    "conv": one_position(nn.Conv2d, 3, 3),
    "conv without bias": one_position(nn.Conv2d, 3, 3, bias=False),
    "conv, groups": one_position(nn.Conv2d, 3, 3, groups=2),
    "conv, dilation": one_position(nn.Conv2d, 3, 3, kernel_size=2, dilation=2),
    "conv, stride": one_position(nn.Conv2d, 3, 3, kernel_size=2, stride=2),
    "transposed without bias": one_position(nn.ConvTranspose2d, 1, 1, bias=False),
    "transposed, groups": one_position(nn.ConvTranspose2d, 1, 1, padding=(1, 0), groups=2),
    "transposed, rim": one_position(nn.ConvTranspose2d, 1, 1, stride=3, output_padding=(2, 1)),
}
# name: (network, examples, samples, layers compared; None is all of them)
EXACT: dict[str, tuple[NetworkCase, int, int, str | None]] = {
    **{
        f"{name}, N=1 S=1": (NETWORKS[name], 1, 1, None)
        for name in ("linear", "mlp", "in-place relu", "residual", "frozen head")
    },
    **{f"{name} at one position, N=1 S=1": (c, 1, 1, None) for name, c in ONE_POSITION.items()},
    **{
        f"last layer of {name}, N=1 S=4": (NETWORKS[name], 1, 4, head)
        for name, head in (("mlp", "4"), ("conv plain", "3"), ("tokens", "head"))
    },
}


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_blocks(name: str, likelihood: str):
    case, count, samples, layer = EXACT[name]
    kind, built, rows = LIKELIHOODS[likelihood], case.network(), case.rows(count, samples)
    exact = dense_ggn_blocks(built, rows, samples, kind.curvature)
    found = library_blocks(built, rows, samples, kind.build())
    compared = [n for n in found if layer is None or n.rpartition(".")[0] == layer]
    assert compared
    for parameter in compared:
        block = found[parameter]
        assert_equal(block, group_blocks(exact[parameter], len(block)), parameter)


@pytest.mark.parametrize("name", ["linear", "linear without bias"])
def test_one_linear_layer_with_gaussian_likelihood_is_exact(name: str):
    """Whatever the copies look like, and their weights: the average is all that counts."""
    case, kind = NETWORKS[name], LIKELIHOODS["gaussian"]
    built, rows = case.network(), 5 * case.rows(COUNT, 3)
    found = library_blocks(built, rows, Copies(3, WEIGHTS), kind.build())
    for parameter, exact in dense_ggn_blocks(built, rows, WEIGHTS, kind.curvature).items():
        assert_equal(found[parameter][0], exact, parameter)
    short = library_blocks(built, rows[:-3], Copies(3, WEIGHTS), kind.build())
    for parameter, block in short.items():
        assert relative_difference(block, found[parameter]) > 1e-2, "one example is missing"


@pytest.mark.parametrize(("count", "samples"), [(1, 3), (4, 3)])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ["mlp", "tokens", "used twice", "conv all together", "fixup"])
def test_biases_and_scalars_are_always_exact(name: str, likelihood: str, count: int, samples: int):
    case, kind = NETWORKS[name], LIKELIHOODS[likelihood]
    built, rows = case.network(), case.rows(count, samples)
    exact = dense_ggn_blocks(built, rows, samples, kind.curvature)
    found = library_blocks(built, rows, samples, kind.build())
    compared = [n for n in found if n.rpartition(".")[2] in ("bias", "scale")]
    assert compared
    for parameter in compared:
        assert_equal(found[parameter][0], exact[parameter], parameter)


# name: (network, likelihood, examples, samples, a parameter whose block is not exact)
DIFFERENT: dict[str, tuple[str, str, int, int, str]] = {
    "softmax, N>1": ("linear", "categorical", 4, 1, "0.weight"),
    "softmax, N>1, last layer": ("residual", "categorical", 4, 1, "head.weight"),
    "first layer, S>1": ("mlp", "categorical", 1, 4, "0.weight"),
    "first layer, S>1, gaussian": ("mlp", "gaussian", 1, 4, "0.weight"),
    "first layer, N>1, gaussian": ("mlp", "gaussian", 4, 1, "0.weight"),
    "many pixels": ("conv plain", "gaussian", 1, 1, "0.weight"),
    "many pixels, transposed": ("transposed conv plain", "categorical", 1, 1, "0.weight"),
    "many tokens": ("tokens", "gaussian", 1, 1, "token.weight"),
    "used twice": ("used twice", "gaussian", 1, 1, "inner.weight"),
}
CLEARLY = 0.05


@pytest.mark.parametrize("name", DIFFERENT)
def test_differs_where_it_must(name: str):
    network, likelihood, count, samples, parameter = DIFFERENT[name]
    case, kind = NETWORKS[network], LIKELIHOODS[likelihood]
    built, rows = case.network(), 4 * case.rows(count, samples)
    exact = dense_ggn_blocks(built, rows, samples, kind.curvature)[parameter]
    found = library_blocks(built, rows, samples, kind.build())[parameter]
    assert relative_difference(found[0], exact) > CLEARLY


def test_blocks_between_parameters_are_dropped():
    """The exact GGN couples weight and bias, and group and group; the library's blocks do not."""
    case = NETWORKS["linear"]
    whole = dense_ggn(case.network(), case.rows(1, 1), 1, softmax_curvature)
    weights = case.network()[0].weight.numel()
    assert float(whole[:weights, weights:].abs().max()) > CLEARLY * float(whole.abs().max())
    grouped = ONE_POSITION["conv, groups"]
    exact = dense_ggn_blocks(grouped.network(), grouped.rows(1, 1), 1, softmax_curvature)
    weight = exact["0.weight"]
    half = len(weight) // 2
    assert float(weight[:half, half:].abs().max()) > CLEARLY * float(weight.abs().max())


def test_oracle_is_the_hessian_of_a_linear_model():
    """For outputs linear in the parameters the GGN is the Hessian of the loss itself."""
    rows = NETWORKS["linear"].rows(4, 2)
    labels = LIKELIHOODS["categorical"].targets(4)
    built = NETWORKS["linear without bias"].network()

    def loss(weight: torch.Tensor) -> torch.Tensor:
        logits = (rows @ weight.reshape(3, 4).T).unflatten(0, (-1, 2)).mean(1)
        return nn.functional.cross_entropy(logits, labels, reduction="sum")

    hessian = torch.autograd.functional.hessian(loss, built.weight.detach().flatten())
    assert_equal(dense_ggn(built, rows, 2, softmax_curvature), hessian, "Hessian")


def test_weights_have_kronecker_blocks_and_no_others():
    case = NETWORKS["fixup"]
    built = case.network()
    factors = KFAC(built).batch(case.rows(2, 2), Copies(2), Categorical()).factors()
    kronecker = {name for name, block in factors.items() if isinstance(block, KroneckerFactors)}
    assert kronecker == {name for name, parameter in built.named_parameters() if parameter.ndim > 1}


# --- the comparison notices what is wrong ---------------------------------------------------------


def transposed_patches(images: Tensor, kernel: int) -> Tensor:
    """Patches with height and width exchanged: a mistake that keeps every shape."""
    return functional.unfold(images.mT, kernel).mT


def test_wrong_conventions_are_noticed():
    case, kind = NETWORKS["conv plain"], LIKELIHOODS["categorical"]
    built, samples = case.network(), 3
    rows = case.rows(COUNT, samples)
    conv, found = built[0], library_blocks(built, rows, samples, kind.build())["0.weight"]
    right = dense_kfac(built, "0", rows, samples, kind.curvature)["weight"]
    factors = KFAC(built).batch(rows, Copies(samples), kind.build()).factors()["0.weight"]
    a_factor, g_factor = factors.inputs[0], factors.outputs[0]
    swapped = transposed_patches(rows.unflatten(0, (-1, samples)).mean(1), 3).flatten(0, 1)
    wrong = {
        "samples slowest": dense_kfac(
            built, "0", rows.unflatten(0, (-1, samples)).transpose(0, 1).flatten(0, 1), samples,
            kind.curvature)["weight"][0],
        "not divided by N": torch.kron(g_factor, a_factor),
        "not divided by T": torch.kron(g_factor, a_factor) / COUNT * (9 - 3),
        "column-major": torch.kron(a_factor, g_factor) / COUNT,
        "patches transposed": torch.kron(g_factor, swapped.T @ swapped) / COUNT,
    }  # fmt: skip
    assert conv.kernel_size == (3, 3)
    assert relative_difference(found, right) < TOLERANCE[torch.float64]
    for what, block in wrong.items():
        assert relative_difference(found[0], block) > 1e-2, what


def test_a_nan_is_never_equal():
    with pytest.raises(AssertionError, match="nan"):
        assert_equal(torch.tensor([float("nan")]), torch.tensor([1.0]), "number")
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(torch.ones(1).double() + 1e-9, torch.ones(1).double(), "number")
