"""Layer rules beyond the formula that every network inherits (`test_kfac`).

Convolutions in one to three dimensions and transposed ones, normalisations, rules of one's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from network_cases import (
    CLASSES,
    LIKELIHOODS,
    NETWORKS,
    NORMS,
    NetworkCase,
    assert_blocks_equal,
    assert_equal,
    library_blocks,
)
from numerics import numbers
from oracles.dense_ggn import dense_ggn_blocks, softmax_curvature
from oracles.dense_kfac import TRANSPOSED, dense_kfac, reached_by_pixel
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature import layer_rules
from isotropy.curvature.blocks import DenseRoots, KroneckerFactors, Roots
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import (
    LayerRule,
    LinearRule,
    Use,
    _patches,
    _windows,
    check_running_statistics,
    register_rule,
    rule_for,
    supported_layers,
)
from isotropy.likelihoods import Categorical

ALL_TRANSPOSED = [name for name in NETWORKS if name.startswith("transposed conv")]


# --- dimensions ---------------------------------------------------------------------------------

# name: (convolution in few dimensions, the same with an axis of one pixel in front)
EMBEDDED = {
    "1 in 2": (
        nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2),
        nn.Conv2d(2, 4, (1, 3), stride=(1, 2), padding=(0, 2), dilation=(1, 2), groups=2),
    ),
    "2 in 3": (
        nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0), groups=2),
        nn.Conv3d(2, 4, (1, 3, 2), stride=(1, 1, 2), padding=(0, 1, 0), groups=2),
    ),
    "1 in 2, transposed": (
        nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ConvTranspose2d(2, 4, (1, 3), stride=(1, 2), padding=(0, 1), output_padding=(0, 1),
                           groups=2),
    ),
    "2 in 3, transposed": (
        nn.ConvTranspose2d(2, 4, 2, stride=(2, 1), padding=1, groups=2),
        nn.ConvTranspose3d(2, 4, (1, 2, 2), stride=(1, 2, 1), padding=(0, 1, 1), groups=2),
    ),
}  # fmt: skip


WINDOWS = {
    "plain": nn.Conv2d(3, 4, 3),
    "stride": nn.Conv2d(2, 4, (3, 2), stride=(2, 3)),
    "dilation": nn.Conv2d(2, 4, (2, 3), dilation=(3, 2)),
    "groups": nn.Conv2d(6, 4, 2, groups=2),
    "all": nn.Conv2d(4, 4, (3, 2), stride=(1, 2), dilation=(2, 1), groups=2),
    "transposed": nn.ConvTranspose2d(4, 2, 3, stride=2, dilation=2, groups=2),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_views_are_the_patches_that_the_kernel_of_two_dimensions_cuts(name: str):
    """The one on a GPU, the other on a CPU: values and gradients."""
    module = WINDOWS[name]
    images = numbers(3, module.weight.shape[1] * module.groups, 9, 8).requires_grad_()
    columns, views = _patches(module, images), _windows(module, images)
    assert torch.equal(columns, views)
    cotangent = numbers(*views.shape, seed=1)
    found, expected = (torch.autograd.grad(each, images, cotangent)[0] for each in (views, columns))
    assert_equal(found, expected, name)


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_axis_of_one_pixel_changes_nothing(name: str):
    """Two dimensions use another way to cut patches than one and three do."""
    few, many = EMBEDDED[name]
    with torch.no_grad():
        many.weight.copy_(few.weight.reshape(many.weight.shape))
        many.bias.copy_(few.bias)
    size = (5, 4)[: few.weight.ndim - 2]
    rows = numbers(6, 2, *size)
    features = few(torch.zeros(1, 2, *size).to(few.weight)).numel()
    head = nn.Linear(features, CLASSES)
    networks = [nn.Sequential(conv, nn.Tanh(), nn.Flatten(), head).double() for conv in (few, many)]
    found = library_blocks(networks[0], rows, 2, Categorical())
    expected = library_blocks(networks[1], rows[:, :, None], 2, Categorical())
    assert_blocks_equal(found, expected)


# --- transposed convolutions --------------------------------------------------------------------


@pytest.mark.parametrize("network", ALL_TRANSPOSED)
def test_oracle_patches_are_what_a_position_adds_to(network: str):
    """⟨c, conv(x)⟩ without its bias is Σ_t x_tᵀ W (patch of c that position t reaches)."""
    case = NETWORKS[network]
    conv = next(m for m in case.network().modules() if isinstance(m, TRANSPOSED))
    rows = case.rows(2, 1)
    outputs = conv(rows) - (0 if conv.bias is None else _shaped(conv.bias, conv))
    cotangent = numbers(*outputs.shape)
    patches = reached_by_pixel(conv, cotangent, rows.shape[2:])
    weight = conv.weight.reshape(conv.groups, -1, patches.shape[-1])
    inputs = rows.reshape(2, conv.groups, weight.shape[1], -1)
    made = torch.einsum("ngit,gio,ngto->n", inputs, weight, patches)
    assert_equal(made.detach(), (outputs * cotangent).flatten(1).sum(1).detach(), "pairing")


def _shaped(bias: Tensor, conv: nn.Module) -> Tensor:
    return bias.reshape(-1, *(1 for _ in conv.kernel_size))


def test_the_slow_factor_is_that_of_the_input():
    built = nn.Sequential(
        nn.ConvTranspose2d(4, 6, (2, 1), groups=2), nn.Flatten(), nn.Linear(6 * 3 * 2, CLASSES)
    ).double()
    rows = torch.randn(6, 4, 2, 2, dtype=torch.float64)
    batch = KFAC(built).batch(rows, Copies(3), Categorical())
    factors = batch.factors()["0.weight"]
    assert isinstance(factors, KroneckerFactors)
    assert factors.outputs.shape == (2, 2, 2)  # 4 input channels in 2 groups
    assert factors.inputs.shape == (2, 6, 6)  # 6 output channels in 2 groups, 2 pixels
    of_inputs, of_outputs = batch.roots["0.weight"].tensors()
    directions, examples, positions = CLASSES - 1, 2, 4
    assert of_outputs.shape[1] == examples * positions
    assert of_inputs.shape[1] == directions * examples * positions


class SizeGiven(nn.Module):
    """The size of the output is given at the call, one pixel more than the layer would choose."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(1, 2, 2, stride=2)
        self.head = nn.Linear(2, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        larger = self.conv(images, output_size=(5, 4))
        return self.head((larger.tanh() * torch.arange(4.0)).mean((2, 3)))


def test_an_output_size_given_at_the_call():
    case = NetworkCase(SizeGiven, (1, 2, 2))
    built, rows = case.network(), case.rows(3, 2)
    found = library_blocks(built, rows, 2, Categorical())
    for name, block in dense_kfac(built, "conv", rows, 2, softmax_curvature).items():
        assert_equal(found[f"conv.{name}"], block.reshape(found[f"conv.{name}"].shape), name)


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_unknown_padding_is_refused_by_name(kind: type[nn.Module]):
    conv = kind(1, 1, 3)
    conv.padding_mode = "mirror"
    with pytest.raises(CallerError, match=r"layer '0': expected one of .*circular.* got 'mirror'"):
        KFAC(nn.Sequential(conv))


# --- normalisations ------------------------------------------------------------------------------

BATCH_NORMS = [name for name in NORMS if name.startswith("batch norm")]


@pytest.mark.parametrize("network", BATCH_NORMS)
def test_batches_normalise_by_running_statistics(network: str):
    """An example's blocks do not depend on what else is in its batch, and no statistic moves."""
    case = NETWORKS[network]
    built, rows = case.network().train(), case.rows(3, 2)
    before = {name: buffer.clone() for name, buffer in built.named_buffers()}
    together = KFAC(built).batch(rows, Copies(2), Categorical()).factors()
    parts = [KFAC(built).batch(part, Copies(2), Categorical()).factors() for part in rows.split(2)]
    for name, factors in together.items():
        summed = parts[0][name] + parts[1][name] + parts[2][name]
        assert_equal(summed.dense(3), factors.dense(3), name)
    assert all(torch.equal(buffer, before[name]) for name, buffer in built.named_buffers())
    assert built.training and all(module.training for module in built.modules())


def test_other_running_statistics_are_other_blocks():
    case = NETWORKS["batch norm"]
    built, rows = case.network(), case.rows(3, 2)
    first = library_blocks(built, rows, 2, Categorical())
    built[1].running_mean += 1.0
    moved = library_blocks(built, rows, 2, Categorical())
    exact = dense_ggn_blocks(built.eval(), rows, 2, softmax_curvature)
    assert_equal(moved["1.weight"][0], exact["1.weight"], "weight")
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(first["1.weight"][0], exact["1.weight"], "weight")


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_without_running_statistics_it_is_refused(kind: type[nn.Module]):
    with pytest.raises(CallerError, match=f"layer 'n' of type {kind.__name__}: expected running"):
        check_running_statistics(kind(2, track_running_stats=False), "n")
    check_running_statistics(kind(2), "n")
    check_running_statistics(nn.InstanceNorm1d(2), "n")


def test_a_frozen_norm_has_no_block():
    built = NETWORKS["layer norm"].network()
    built[1].bias.requires_grad_(False)
    found = library_blocks(built, NETWORKS["layer norm"].rows(3, 2), 2, Categorical())
    assert "1.weight" in found and "1.bias" not in found


# --- rules of one's own -------------------------------------------------------------------------


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules registered in a test are gone after it."""
    monkeypatch.setattr(layer_rules, "_RULES", dict(layer_rules._RULES))


class LinearWithGain(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, CLASSES)
        self.gain = nn.Parameter(torch.ones(1))


def test_unknown_parameter_of_a_known_layer(own_rules: None):
    register_rule(LinearWithGain, LinearRule())
    with pytest.raises(CallerError, match="knows the parameters weight, bias, got 'gain' too"):
        KFAC(LinearWithGain())


class Gain(nn.Module):
    """y = gain · x, one gain a feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.gain


class GainRule(LayerRule):
    """The exact block: the gradient times the input, summed over samples."""

    parameters = ("gain",)

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        return inputs.new_zeros(())

    def reduce_gradient(
        self, module: nn.Module, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        return (gradient * inputs).unflatten(1, (-1, copies.count)).sum(2)

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        return {"gain": DenseRoots(sum(use.gradient for use in uses).flatten(0, 1))}


class SampleMeanGainRule(GainRule):
    """A wrong one: mean over samples of the input times sum of the gradient is not exact."""

    def reduce_gradient(
        self, module: nn.Module, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        return gradient.unflatten(1, (-1, copies.count)).sum(2) * copies.mean(inputs)


GAIN_CASE = NetworkCase(
    lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Gain(4), nn.Tanh(), nn.Linear(4, 3)), (4,)
)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_rule_of_ones_own(own_rules: None, likelihood: str):
    kind, network = LIKELIHOODS[likelihood], GAIN_CASE.network()
    rows = GAIN_CASE.rows(3, 3)
    with pytest.raises(CallerError, match="layer '2' of type Gain has no curvature rule"):
        KFAC(network)
    register_rule(Gain, GainRule())
    assert isinstance(rule_for(network[2]), GainRule) and "Gain" in supported_layers()
    exact = dense_ggn_blocks(network, rows, 3, kind.curvature)["2.gain"]
    assert_equal(library_blocks(network, rows, 3, kind.build())["2.gain"][0], exact, "gain")
    register_rule(Gain, SampleMeanGainRule())
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal(library_blocks(network, rows, 3, kind.build())["2.gain"][0], exact, "gain")


def test_rules_of_other_tests_are_gone():
    assert rule_for(Gain(2)) is None
    assert {"Bias", "Conv2d", "Linear", "Scale"} <= set(supported_layers())


def test_a_rule_without_roots_says_so():
    with pytest.raises(NotImplementedError):
        LayerRule().roots(nn.Linear(1, 1), [])
