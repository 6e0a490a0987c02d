"""Where KFAC is the exact GGN, and where it must differ from it.

Exact blocks: one Linear layer with Gaussian likelihood, any number of examples and samples; every
layer for one example with one sample (Linear, or a convolution with one output pixel); the last
Linear layer for one example with any samples; biases and scalars always.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from network_cases import (
    LIKELIHOODS,
    NETWORKS,
    NetworkCase,
    assert_equal,
    conv_net,
    library_blocks,
    mlp,
    relative_difference,
)
from oracles.dense_ggn import dense_ggn, dense_ggn_blocks, group_blocks, softmax_curvature
from torch import nn

from isotropy.curvature.blocks import KroneckerFactors
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical

ONE_PIXEL = {
    "plain": conv_net,
    "without bias": lambda features: conv_net(features, bias=False),
    "groups": lambda features: conv_net(features, groups=2),
    "dilation": lambda features: conv_net(features, kernel_size=2, dilation=2),
    "stride": lambda features: conv_net(features, kernel_size=2, stride=2),
}


def _single_pixel(build) -> NetworkCase:
    return NetworkCase(lambda: build(2), (2, 3, 3))


# name: (network, likelihood, examples, samples, layers compared; None is all of them)
EXACT: dict[str, tuple[NetworkCase, str, int, int, tuple[str, ...] | None]] = {
    **{
        f"{name}, gaussian, N={count} S={samples}": (
            NETWORKS[name], "gaussian", count, samples, None)
        for name, count, samples in itertools.product(
            ("linear", "linear without bias"), (1, 5), (1, 4))
    },
    **{
        f"{name}, {likelihood}, N=1 S=1": (NETWORKS[name], likelihood, 1, 1, None)
        for name, likelihood in itertools.product(
            ("linear", "mlp", "in-place relu", "residual", "frozen head"), LIKELIHOODS)
    },
    **{
        f"one-pixel conv {name}, {likelihood}, N=1 S=1": (
            _single_pixel(build), likelihood, 1, 1, None)
        for (name, build), likelihood in itertools.product(ONE_PIXEL.items(), LIKELIHOODS)
    },
    **{
        f"last layer of {name}, {likelihood}, N=1 S={samples}": (
            NETWORKS[name], likelihood, 1, samples, (head,))
        for (name, head), likelihood, samples in itertools.product(
            (("mlp", "4"), ("conv plain", "3"), ("tokens", "head")), LIKELIHOODS, (1, 4))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_exact_blocks(name: str):
    case, likelihood, count, samples, layers = EXACT[name]
    kind = LIKELIHOODS[likelihood]
    built, rows = case.network(), case.rows(count, samples)
    exact = dense_ggn_blocks(built, rows, samples, kind.curvature)
    found = library_blocks(built, rows, samples, kind.build())
    compared = [n for n in found if layers is None or n.rpartition(".")[0] in layers]
    assert compared
    for parameter in compared:
        block = found[parameter]
        assert_equal(block, group_blocks(exact[parameter], len(block)), parameter)


@pytest.mark.parametrize(("count", "samples"), [(1, 3), (4, 1), (4, 3)])
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


# --- and where it must not be exact -------------------------------------------------------------

# name: (network, likelihood, examples, samples, a parameter whose block is not exact)
DIFFERENT: dict[str, tuple[str, str, int, int, str]] = {
    "softmax, N>1": ("linear", "categorical", 4, 1, "0.weight"),
    "softmax, N>1, last layer": ("residual", "categorical", 4, 1, "head.weight"),
    "first layer, S>1": ("mlp", "categorical", 1, 4, "0.weight"),
    "first layer, S>1, gaussian": ("mlp", "gaussian", 1, 4, "0.weight"),
    "first layer, N>1, gaussian": ("mlp", "gaussian", 4, 1, "0.weight"),
    "many pixels": ("conv plain", "gaussian", 1, 1, "0.weight"),
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
    built, rows = case.network(), case.rows(1, 1)
    whole = dense_ggn(built, rows, 1, softmax_curvature)
    weights = built[0].weight.numel()
    assert float(whole[:weights, weights:].abs().max()) > CLEARLY * float(whole.abs().max())

    grouped = _single_pixel(ONE_PIXEL["groups"])
    built, rows = grouped.network(), grouped.rows(1, 1)
    weight = dense_ggn_blocks(built, rows, 1, softmax_curvature)["0.weight"]
    half = len(weight) // 2
    assert float(weight[:half, half:].abs().max()) > CLEARLY * float(weight.abs().max())


def test_one_layer_is_exact_whatever_the_samples_look_like():
    """Not only for samples that are alike: the average over samples is all that counts."""
    built = mlp(4, 3).double()
    rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    kind = LIKELIHOODS["gaussian"]
    exact = dense_ggn_blocks(built, rows, 4, kind.curvature)
    for name, block in library_blocks(built, rows, 4, kind.build()).items():
        assert_equal(block[0], exact[name], name)


def test_the_comparison_fails_on_a_block_that_is_off():
    """A factor without its last example is not the exact block."""
    built, rows = nn.Linear(4, 3).double(), NETWORKS["linear"].rows(5, 2)
    kind = LIKELIHOODS["gaussian"]
    exact = dense_ggn_blocks(built, rows, 2, kind.curvature)["weight"]
    short = library_blocks(built, rows[:-2], 2, kind.build())["weight"][0]
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(short, exact, "weight")


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
    weights = {name for name, parameter in built.named_parameters() if parameter.ndim > 1}
    assert kronecker == weights
