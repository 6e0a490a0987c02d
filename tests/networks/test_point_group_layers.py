"""Layers of maps on a point group of the grid: their sums written out, and their curvature.

What a filter meets at an element and a position is the derivative of that output by the filter,
which the layer is linear in; blocks are written out densely from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from network_cases import LIKELIHOODS, assert_equal, library_blocks, relative_difference
from oracles.dense_ggn import OutputCurvature, average_over_samples, dense_ggn_blocks
from oracles.dense_kfac import layer_jacobians
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional
from user_networks import disturb, images, numbers, seeded

from isotropy.networks.building import group_network
from isotropy.networks.equivariant.point_group_layers import (
    GroupPooling,
    PerChannel,
    PointGroupConv2d,
    PolyphaseDownsampling,
)
from isotropy.networks.zoo.backbones import backbone
from isotropy.symmetry.groups.point_groups import PointGroup

GROUPS = [PointGroup.of(name) for name in ("C(2)", "C(4)", "D(1)", "D(2)", "D(4)")]
every_group = pytest.mark.parametrize("group", GROUPS, ids=str)


def layer_of(group: str, lifts: bool, **settings: Any) -> PointGroupConv2d:
    """From 2 to 4 channels an element, in float64, with random parameters."""
    plain = nn.Conv2d(2, 4, **{"kernel_size": 3, **settings}).double()
    layer = PointGroupConv2d(PointGroup.of(group), plain, (2, 4), lifts=lifts)
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=seed) / parameter[0].numel() ** 0.5)
    return layer


# --- layers by their formulas ---------------------------------------------------------------------


@every_group
@pytest.mark.parametrize("lifts", [True, False])
def test_convolution_is_its_sum(group: PointGroup, lifts: bool) -> None:
    layer, order = layer_of(group.name, lifts, padding=1), group.order
    maps = images(2 if lifts else 2 * order, 6, 2)
    found = layer(maps).unflatten(1, (4, order))
    parts = maps.unflatten(1, (2, -1))
    for h in range(order):
        wanted = layer.bias[:, None, None].expand(2, 4, 6, 6)
        for k in range(1 if lifts else order):
            filters = group.act(layer.weight if lifts else layer.weight[:, k], h)
            seen = parts[:, :, 0 if lifts else group.product[h, k]]
            wanted = wanted + functional.conv2d(seen, filters, padding=1)
        torch.testing.assert_close(found[:, :, h], wanted)


@every_group
def test_pooling_is_its_mean_and_invariant(group: PointGroup) -> None:
    maps, layer = images(2 * group.order, 4), GroupPooling(group)
    found, parts = layer(maps), maps.unflatten(1, (2, -1))
    wanted = sum(group.act(parts[:, :, h], int(group.inverse[h])) for h in range(group.order))
    torch.testing.assert_close(found, wanted / group.order)
    slow = parts.transpose(1, 2).flatten(1, 2)
    for g in range(group.order):
        moved = group.act_on_features(slow, g).unflatten(1, (group.order, 2))
        torch.testing.assert_close(layer(moved.transpose(1, 2).flatten(1, 2)), found)


def test_norm_sees_elements_as_pixels() -> None:
    maps = images(12, 5)
    norm = nn.BatchNorm2d(3).double()
    found = PerChannel(norm, 4)(maps).unflatten(1, (3, 4))
    parts = maps.unflatten(1, (3, 4))
    mean, variance = parts.mean((0, 2, 3, 4)), parts.var((0, 2, 3, 4), unbiased=False)
    wanted = (parts - mean[:, None, None, None]) / (variance[:, None, None, None] + norm.eps).sqrt()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(norm.running_mean, 0.1 * mean)


def test_polyphase_by_squares_is_chosen_by_other_maps() -> None:
    maps, others = images(2, 6), images(1, 6).flip(0)
    found = PolyphaseDownsampling(2, norm="l2")(maps, by=others)
    for example, other, kept in zip(maps, others, found, strict=True):
        parts = [(other[0, i::2, j::2] ** 2).sum() for i in (0, 1) for j in (0, 1)]
        i, j = divmod(int(torch.stack(parts).argmax()), 2)
        assert torch.equal(kept, example[:, i::2, j::2])


# --- curvature ------------------------------------------------------------------------------------

# group, whether it lifts, size of the maps, settings of the plain convolution
CONVOLUTIONS: dict[str, tuple[str, bool, int, dict[str, Any]]] = {
    "lifts": ("C(4)", True, 4, {}),
    "lifts, reflections": ("D(4)", True, 3, {"padding": 1}),
    "mixes": ("C(4)", False, 3, {"padding": 1}),
    "mixes, no commuting": ("D(4)", False, 3, {"kernel_size": 2}),
    "no bias": ("D(1)", False, 4, {"bias": False}),
    "stride": ("C(4)", False, 5, {"stride": 2}),
    "dilation": ("C(2)", False, 5, {"kernel_size": 2, "dilation": 2}),
    "circular": ("D(2)", False, 3, {"padding": 1, "padding_mode": "circular"}),
    "groups": ("C(4)", False, 3, {"groups": 2}),
    "groups, lifts": ("C(4)", True, 4, {"groups": 2, "padding": 1, "padding_mode": "reflect"}),
    "oblong": ("D(2)", True, 4, {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0)}),
}


def filter_inputs(layer: PointGroupConv2d, maps: Tensor) -> Tensor:
    """(batch, groups, |H|, T, inputs): how outputs of a channel depend on its own filter."""

    def outputs(weight: Tensor) -> Tensor:
        found = functional_call(layer, {"weight": weight}, (maps,)).flatten(2)
        return found.unflatten(1, (4, layer.group.order))

    slopes = jacrev(outputs)(layer.weight.detach()).flatten(5)  # (batch, C', |H|, T, C', inputs)
    return torch.stack([slopes[:, c, :, :, c] for c in range(0, 4, 4 // layer.groups)], 1)


def dense_blocks(
    network: nn.Module, rows: Tensor, samples: int, curvature: OutputCurvature
) -> Tensor:
    """Kronecker blocks (groups, p, p) of the first layer's weight, by the formula."""
    layer = network[0]  # type: ignore[index]
    assert isinstance(layer, PointGroupConv2d)
    (inputs,), (jacobian,), outputs = layer_jacobians(network, layer, rows, samples)
    count, order, groups = len(outputs), layer.group.order, layer.groups
    middle = curvature(outputs)
    into = filter_inputs(layer, average_over_samples(inputs, samples))
    back = torch.stack(
        [of_n[:, n * samples : (n + 1) * samples].sum(1) for n, of_n in enumerate(jacobian)]
    )  # (batch, outputs, C'·H, X, Y)
    back = back.flatten(3).unflatten(2, (groups, -1, order))
    found = []
    for group in range(groups):
        a_factor, g_factor = torch.zeros(()), torch.zeros(())
        for n, h, t in itertools.product(range(count), range(order), range(back.shape[-1])):
            vector, slopes = into[n, group, h, t], back[n, :, group, :, h, t]
            a_factor = a_factor + torch.outer(vector, vector)
            g_factor = g_factor + slopes.T @ middle[n] @ slopes
        found.append(torch.kron(g_factor / (order * back.shape[-1]), a_factor) / count)
    return torch.stack(found)


def network_with(layer: PointGroupConv2d, shape: tuple[int, ...]) -> nn.Module:
    head = nn.Linear(layer(torch.zeros(1, *shape).double()).numel(), 3).double()
    with torch.no_grad():
        head.weight.copy_(0.3 * numbers(*head.weight.shape, seed=5))
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), head)


@pytest.mark.parametrize(
    ("likelihood", "samples"), [("categorical", 1), ("categorical", 2), ("gaussian", 1)]
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_blocks_are_those_of_the_formula(name: str, likelihood: str, samples: int) -> None:
    group, lifts, size, settings = CONVOLUTIONS[name]
    layer, kind = layer_of(group, lifts, **settings), LIKELIHOODS[likelihood]
    shape = (2 if lifts else 2 * layer.group.order, size, size)
    network, rows = network_with(layer, shape), numbers(2 * samples, *shape)
    found = library_blocks(network, rows, samples, kind.build())
    wanted = dense_blocks(network, rows, samples, kind.curvature)
    assert_equal(found["0.weight"], wanted, "weight")
    if layer.bias is not None:
        exact = dense_ggn_blocks(network, rows, samples, kind.curvature)["0.bias"]
        assert_equal(found["0.bias"][0], exact, "bias")


class OnePlace(nn.Module):
    """Every channel of one element at one pixel."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, maps: Tensor) -> Tensor:
        return maps.unflatten(1, (-1, self.order))[:, :, -1, 1, 0]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("lifts", [True, False])
@pytest.mark.parametrize("group", ["C(4)", "D(4)"])
def test_exact_where_all_places_see_the_same_and_one_is_seen(
    group: str, lifts: bool, likelihood: str
) -> None:
    """A has |H|T equal terms and G one, so that the block is the exact g gᵀ ⊗ a aᵀ."""
    layer = layer_of(group, lifts, padding=1, padding_mode="circular")
    order, kind = layer.group.order, LIKELIHOODS[likelihood]
    head = nn.Linear(4, 3).double()
    network = nn.Sequential(layer, nn.Tanh(), OnePlace(order), head)
    colours = numbers(1, 2, 1, 1)
    rows = colours.repeat_interleave(1 if lifts else order, 1).expand(-1, -1, 4, 4)
    exact = dense_ggn_blocks(network, rows, 1, kind.curvature)
    found = library_blocks(network, rows, 1, kind.build())
    for parameter in ("0.weight", "0.bias"):
        assert_equal(found[parameter][0], exact[parameter], parameter)
    # With pixels that differ it is an approximation.
    rows = numbers(1, *rows.shape[1:])
    exact = dense_ggn_blocks(network, rows, 1, kind.curvature)
    found = library_blocks(network, rows, 1, kind.build())
    assert relative_difference(found["0.weight"][0], exact["0.weight"]) > 0.05


def strided() -> nn.Module:
    """Strides that become polyphase components, norms, and a head that sees positions."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1),
        nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, 3),
    )  # fmt: skip


@pytest.mark.parametrize("group", ["C(4)", "D(4)"])
@pytest.mark.parametrize(
    "make", [strided, lambda: backbone("resnet", (1, 8, 8), 3, width=4)], ids=["strided", "resnet"]
)
def test_every_parameter_of_a_built_network_has_curvature(
    make: Callable[[], nn.Module], group: str
) -> None:
    """With a graph to the inputs, as learning a symmetry on top of the group needs it."""
    built = group_network(make().double(), PointGroup.of(group), (1, 8, 8), generator=seeded())
    network = built.model.eval()
    disturb(network)  # half of the resnet starts at zero
    assert len(built.replaced) >= 2
    rows, kind = numbers(4, 1, 8, 8).requires_grad_(), LIKELIHOODS["categorical"]
    found = library_blocks(network, rows, 2, kind.build(), create_graph=True)
    assert set(found) == {name for name, _ in network.named_parameters()}
    assert all(bool(block.any()) for block in found.values())
    total = sum((block.sum() for block in found.values()), torch.zeros(()).double())
    (gradient,) = torch.autograd.grad(total, rows)
    assert bool(gradient.isfinite().all()) and float(gradient.abs().max()) > 0
