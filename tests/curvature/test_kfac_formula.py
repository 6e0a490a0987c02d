"""KFAC against its own formula (Eq. 7 and 15) written out densely, for every network of the list.

Weights of Linear layers, convolutions and attention have the Kronecker blocks of
`oracles.dense_kfac`; biases, scalars and normalisations the exact blocks of `oracles.dense_ggn`.
"""

from __future__ import annotations

import pytest
import torch
from network_cases import (
    LIKELIHOODS,
    NETWORKS,
    TOLERANCE,
    assert_equal,
    library_blocks,
    relative_difference,
)
from oracles.dense_ggn import dense_ggn_blocks
from oracles.dense_kfac import CONVOLUTIONS, TRANSPOSED, dense_kfac, patches_by_pixel, spelled_out
from torch import Tensor, nn
from torch.nn import functional

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical

COUNT = 3
KRONECKER = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)


def expected_blocks(network: nn.Module, rows: Tensor, samples: int, curvature) -> dict[str, Tensor]:
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


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_blocks_are_those_of_the_formula(network: str, likelihood: str, samples: int):
    case, kind = NETWORKS[network], LIKELIHOODS[likelihood]
    built, rows = case.network(), case.rows(COUNT, samples)
    found = library_blocks(built, rows, samples, kind.build())
    expected = expected_blocks(built.eval(), rows, samples, kind.curvature)
    assert found.keys() == expected.keys()
    for name, block in expected.items():
        assert_equal(found[name], block, name)


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_of_copies_are_repetitions(network: str):
    """A copy with twice the weight counts like two copies."""
    case = NETWORKS[network]
    built, rows = case.network(), case.rows(COUNT, 2)
    pairs = rows.unflatten(0, (-1, 2))
    repeated = torch.stack([pairs[:, 0], pairs[:, 1], pairs[:, 1]], 1).flatten(0, 1)
    weighted = Copies(2, torch.tensor([1.0, 2.0], dtype=torch.float64) / 3)
    found = KFAC(built).batch(rows, weighted, Categorical()).factors()
    expected = library_blocks(built, repeated, 3, Categorical())
    for name, factors in found.items():
        assert_equal(factors.dense(COUNT), expected[name], name)


@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_are_averaged_over_samples(network: str):
    case = NETWORKS[network]
    built, rows = case.network().eval(), case.rows(COUNT, 2)
    outputs = KFAC(built).batch(rows, Copies(2), Categorical()).outputs
    with torch.no_grad():
        plain = built(rows)
    assert_equal(outputs, (plain[0::2] + plain[1::2]) / 2, "outputs")
    assert not outputs.requires_grad


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_directions_at_once_do_not_matter(network: str, likelihood: str, create_graph: bool):
    case, kind = NETWORKS[network], LIKELIHOODS[likelihood]
    built, rows = case.network(), case.rows(COUNT, 2).requires_grad_(create_graph)
    one, two, many = (
        library_blocks(
            built, rows, 2, kind.build(), directions_at_once=count, create_graph=create_graph
        )
        for count in (1, 2, 100)
    )
    for name, block in one.items():
        assert_equal(two[name], block, name)
        assert_equal(many[name], block, name)


@pytest.mark.parametrize("network", ["mlp", "tokens", "used twice", "conv groups", "scalars"])
def test_factors_add_up_over_batches(network: str):
    case = NETWORKS[network]
    built, rows, kfac = case.network(), case.rows(4, 2), KFAC(case.network())
    whole = kfac.batch(rows, Copies(2), Categorical()).factors()
    first = kfac.batch(rows[:2], Copies(2), Categorical()).factors()
    rest = kfac.batch(rows[2:], Copies(2), Categorical()).factors()
    assert tuple(whole) == kfac.parameter_names == KFAC(built).parameter_names
    for name, factors in whole.items():
        together = (first[name] + rest[name]).dense(4)
        assert_equal(together, factors.dense(4), name)


@pytest.mark.parametrize("network", ["mlp", "conv groups", "scalars"])
def test_single_precision_is_near_double(network: str):
    case = NETWORKS[network]
    single = library_blocks(
        case.network(torch.float32), case.rows(COUNT, 2, torch.float32), 2, Categorical()
    )
    double = library_blocks(case.network(), case.rows(COUNT, 2), 2, Categorical())
    for name, block in single.items():
        assert block.dtype == torch.float32
        assert_equal(block, double[name].float(), name)


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


# --- the comparison notices what is wrong ---------------------------------------------------


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
