"""Convolutions in one to three dimensions, and transposed ones, beyond what every layer inherits.

The blocks themselves are compared with the formula in `test_kfac_formula`, case by case.
"""

from __future__ import annotations

import pytest
import torch
from network_cases import (
    CLASSES,
    LIKELIHOODS,
    NETWORKS,
    NetworkCase,
    assert_equal,
    library_blocks,
    relative_difference,
)
from oracles.dense_ggn import dense_ggn_blocks, group_blocks, softmax_curvature
from oracles.dense_kfac import TRANSPOSED, dense_kfac, reached_by_pixel
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.blocks import KroneckerFactors
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import _patches, _windows
from isotropy.likelihoods import Categorical

CLEARLY = 0.05
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
    generator = torch.Generator().manual_seed(0)
    shape = (3, module.weight.shape[1] * module.groups, 9, 8)
    images = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    columns, views = _patches(module, images), _windows(module, images)
    assert torch.equal(columns, views)
    seed = torch.randn(views.shape, generator=generator, dtype=torch.float64)
    found, expected = (torch.autograd.grad(each, images, seed)[0] for each in (views, columns))
    assert_equal(found, expected, name)


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_axis_of_one_pixel_changes_nothing(name: str):
    """Two dimensions use another way to cut patches than one and three do."""
    few, many = EMBEDDED[name]
    with torch.no_grad():
        many.weight.copy_(few.weight.reshape(many.weight.shape))
        many.bias.copy_(few.bias)
    size = (5, 4)[: few.weight.ndim - 2]
    rows = torch.randn(6, 2, *size, generator=torch.Generator().manual_seed(0)).double()
    features = few(torch.zeros(1, 2, *size).to(few.weight)).numel()
    head = nn.Linear(features, CLASSES)
    networks = [nn.Sequential(conv, nn.Tanh(), nn.Flatten(), head).double() for conv in (few, many)]
    found = library_blocks(networks[0], rows, 2, Categorical())
    expected = library_blocks(networks[1], rows[:, :, None], 2, Categorical())
    for parameter, block in found.items():
        assert_equal(block, expected[parameter], parameter)


# --- transposed convolutions --------------------------------------------------------------------


@pytest.mark.parametrize("network", ALL_TRANSPOSED)
def test_oracle_patches_are_what_a_position_adds_to(network: str):
    """⟨c, conv(x)⟩ without its bias is Σ_t x_tᵀ W (patch of c that position t reaches)."""
    case = NETWORKS[network]
    conv = next(m for m in case.network().modules() if isinstance(m, TRANSPOSED))
    rows = case.rows(2, 1)
    outputs = conv(rows) - (0 if conv.bias is None else _shaped(conv.bias, conv))
    cotangent = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).double()
    patches = reached_by_pixel(conv, cotangent, rows.shape[2:])
    weight = conv.weight.reshape(conv.groups, -1, patches.shape[-1])
    inputs = rows.reshape(2, conv.groups, weight.shape[1], -1)
    made = torch.einsum("ngit,gio,ngto->n", inputs, weight, patches)
    assert_equal(made.detach(), (outputs * cotangent).flatten(1).sum(1).detach(), "pairing")


def _shaped(bias: Tensor, conv: nn.Module) -> Tensor:
    return bias.reshape(-1, *(1 for _ in conv.kernel_size))


ONE_POSITION = {
    "plain": {},
    "without bias": {"bias": False},
    "stride": {"stride": 2},
    "padding": {"padding": (1, 0)},
    "rim": {"stride": 3, "output_padding": (2, 1)},
    "groups": {"groups": 2},
}


def _one_position(settings: dict[str, object]) -> NetworkCase:
    def build() -> nn.Sequential:
        conv = nn.ConvTranspose2d(2, 2, (3, 2), **settings)
        features = conv(torch.zeros(1, 2, 1, 1)).numel()
        return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES))

    return NetworkCase(build, (2, 1, 1))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ONE_POSITION)
def test_one_input_position_is_exact(name: str, likelihood: str):
    case, kind = _one_position(ONE_POSITION[name]), LIKELIHOODS[likelihood]
    built, rows = case.network(), case.rows(1, 1)
    exact = dense_ggn_blocks(built, rows, 1, kind.curvature)
    for parameter, block in library_blocks(built, rows, 1, kind.build()).items():
        assert_equal(block, group_blocks(exact[parameter], len(block)), parameter)


def test_many_input_positions_are_not():
    case = NETWORKS["transposed conv plain"]
    built, rows = case.network(), 4 * case.rows(1, 1)
    exact = dense_ggn_blocks(built, rows, 1, softmax_curvature)["0.weight"]
    found = library_blocks(built, rows, 1, Categorical())["0.weight"][0]
    assert relative_difference(found, exact) > CLEARLY


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
