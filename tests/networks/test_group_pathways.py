"""Group convolutions: their definition, equivariance, curvature, counts and refusals.

Oracles follow the definitions pixel by pixel from the matrices of the group's elements; inputs of a
filter are collected one element and one position at a time, blocks are written out densely.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from network_cases import LIKELIHOODS, assert_equal, library_blocks, relative_difference
from oracles.dense_ggn import OutputCurvature, dense_ggn_blocks
from oracles.dense_kfac import layer_jacobians
from torch import Tensor, nn
from user_networks import numbers

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.networks.equivariant.point_group_layers import PolyphaseDownsampling
from isotropy.networks.pathways.group_convolution import (
    FORMS,
    GroupConvolution,
    GroupConvolutionPathway,
)
from isotropy.networks.pathways.pathway import LayerShape
from isotropy.symmetry.groups.point_groups import PointGroup

GROUPS = ("Trivial(2)", "C(2)", "C(4)", "D(1)", "D(2)", "D(4)", "Z(2)")
EXACT = 1e-12


def with_random_parameters(module: nn.Module) -> nn.Module:
    """In float64, biases included."""
    module = module.double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=seed) / parameter[0].numel() ** 0.5)
    return module


def pathway(
    group: str, form: str, size: tuple[int, int] = (6, 6), kernel: int = 3
) -> GroupConvolutionPathway:
    """From 2 to 3 channels an element."""
    order = PointGroup.of(group).order
    shape = LayerShape((2 * order, *size), (3 * order, *size))
    made = with_random_parameters(GroupConvolutionPathway(shape, group, form=form, kernel=kernel))
    assert isinstance(made, GroupConvolutionPathway)
    return made


# --- the oracle ---------------------------------------------------------------------------------


def filter_inputs(matrices: np.ndarray, maps: Tensor, kernel: int, mixes: bool) -> Tensor:
    """a(h, x) = f(h k, c, x + h u): (batch, H, X·Y, [k ·] c · u), one number at a time.

    matrices (|H|, 2, 2) act on (x to the right, y up); maps (batch, H, C, X, Y), circular.
    """
    height, width = maps.shape[-2:]
    reach = kernel // 2
    rows = []
    for h, of_h in enumerate(matrices):
        seen = [h]
        if mixes:
            products = [of_h @ of_k for of_k in matrices]
            seen = [int((matrices == each).all((1, 2)).argmax()) for each in products]
        for row, column in itertools.product(range(height), range(width)):
            entries = []
            for place, channel in itertools.product(seen, range(maps.shape[2])):
                for down, right in itertools.product(range(-reach, reach + 1), repeat=2):
                    x, y = of_h @ np.array([right, -down])
                    at = ((row - int(y)) % height, (column + int(x)) % width)
                    entries.append(maps[:, place, channel, at[0], at[1]])
            rows.append(torch.stack(entries, -1))
    return torch.stack(rows, 1).unflatten(1, (len(matrices), height * width))


def convolved(layer: GroupConvolution, maps: Tensor) -> Tensor:
    """The layer by its definition, group of channels by group."""
    matrices, blocks = layer.group.elements.numpy(), layer.blocks
    parts = maps.unflatten(1, (len(matrices), blocks, -1))
    weights = layer.weight.reshape(blocks, layer.channels[1] // blocks, -1)
    found = []
    for block in range(blocks):
        inputs = filter_inputs(matrices, parts[:, :, block], layer.kernel, layer.mixes)
        found.append(torch.einsum("nhti,oi->nhot", inputs, weights[block]))
    return (
        (torch.cat(found, 2) + layer.bias[:, None])
        .flatten(1, 2)
        .reshape(len(maps), -1, *maps.shape[2:])
    )


def dense_blocks(
    network: nn.Module, name: str, rows: Tensor, samples: int, curvature: OutputCurvature
) -> dict[str, Tensor]:
    """Kronecker blocks of the weight (blocks, p, p) and the exact one of the bias, by formula."""
    layer = network.get_submodule(name)
    assert isinstance(layer, GroupConvolution)
    (inputs,), (jacobian,), outputs = layer_jacobians(network, layer, rows, samples)
    matrices, blocks = layer.group.elements.numpy(), layer.blocks
    count, order = len(outputs), len(matrices)
    middle = curvature(outputs)
    mean = inputs.unflatten(0, (count, samples)).mean(1).unflatten(1, (order, blocks, -1))
    back = torch.stack(
        [of_n[:, n * samples : (n + 1) * samples].sum(1) for n, of_n in enumerate(jacobian)]
    )  # (batch, outputs, H·C', X, Y)
    back = back.flatten(3).unflatten(2, (order, blocks, -1))
    positions = order * back.shape[-1]
    found = []
    for block in range(blocks):
        into = filter_inputs(matrices, mean[:, :, block], layer.kernel, layer.mixes)
        a_factor, g_factor = torch.zeros(()), torch.zeros(())
        for n, h, t in itertools.product(range(count), range(order), range(back.shape[-1])):
            vector, slopes = into[n, h, t], back[n, :, h, block, :, t]
            a_factor = a_factor + torch.outer(vector, vector)
            g_factor = g_factor + slopes.T @ middle[n] @ slopes
        found.append(torch.kron(g_factor / positions, a_factor) / count)
    total = back.sum((2, 5)).flatten(2)
    bias = torch.einsum("nip,nij,njq->pq", total, middle, total)
    return {"weight": torch.stack(found), "bias": bias[None]}


# --- what it computes ---------------------------------------------------------------------------

# name: (group, channels an element, kernel, mixes, blocks, size)
LAYERS: dict[str, tuple[str, tuple[int, int], int, bool, int, tuple[int, int]]] = {
    "pointwise": ("C(4)", (2, 3), 3, False, 1, (4, 4)),
    "pointwise, reflections": ("D(4)", (1, 2), 3, False, 1, (3, 3)),
    "channel by channel": ("D(4)", (2, 2), 3, False, 2, (3, 3)),
    "full": ("C(4)", (2, 3), 3, True, 1, (3, 3)),
    "full, no commuting": ("D(4)", (1, 2), 3, True, 1, (3, 3)),
    "full, oblong": ("D(2)", (2, 1), 3, True, 1, (3, 4)),
    "full, wraps": ("C(4)", (1, 1), 3, True, 1, (2, 2)),
    "mixing, one pixel": ("D(4)", (2, 2), 1, True, 1, (2, 2)),
    "mixing channel by channel": ("D(4)", (2, 4), 1, True, 2, (2, 2)),
    "mixing blocks, three pixels": ("C(4)", (4, 2), 3, True, 2, (2, 2)),
    "five pixels": ("D(1)", (1, 1), 5, True, 1, (4, 3)),
    "no group": ("Trivial(2)", (2, 3), 3, True, 1, (3, 4)),
}


def layer_named(name: str) -> tuple[GroupConvolution, tuple[int, int, int]]:
    group, channels, kernel, mixes, blocks, size = LAYERS[name]
    made = GroupConvolution(PointGroup.of(group), channels, kernel, mixes=mixes, blocks=blocks)
    layer = with_random_parameters(made)
    assert isinstance(layer, GroupConvolution)
    return layer, (layer.group.order * channels[0], *size)


def network_with(layer: GroupConvolution, shape: tuple[int, int, int]) -> nn.Module:
    features = layer.group.order * layer.channels[1] * shape[1] * shape[2]
    head = nn.Linear(features, 3)
    nn.init.trunc_normal_(head.weight, std=0.3, generator=torch.Generator().manual_seed(5))
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), head).double()


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_follow_the_definition(name: str):
    layer, shape = layer_named(name)
    maps = numbers(2, *shape)
    assert_equal(layer(maps), convolved(layer, maps), name, EXACT)
    assert_equal(layer.plain()(maps), layer(maps), f"plain {name}", EXACT)


def test_without_a_group_it_is_a_convolution():
    layer, shape = layer_named("no group")
    plain = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular").double()
    plain.weight, plain.bias = nn.Parameter(layer.weight[:, 0]), layer.bias
    assert_equal(layer(numbers(2, *shape)), plain(numbers(2, *shape)), "convolution", EXACT)


# --- equivariance -------------------------------------------------------------------------------

SHIFTS = ((0, 0), (1, 0), (0, 2), (3, 5))


def worst_error(layer: nn.Module, group: PointGroup, maps: Tensor) -> float:
    """Largest |layer(T g·f) − T g·layer(f)| over elements g and circular shifts T, relative."""

    def moved(values: Tensor, g: int, shift: tuple[int, int]) -> Tensor:
        return group.act_on_features(values, g).roll(shift, (-2, -1))

    with torch.no_grad():
        outputs = layer(maps)
        assert float(outputs.var(0).mean()) > 1e-3  # a constant layer passes trivially
        errors = [
            relative_difference(layer(moved(maps, g, shift)), moved(outputs, g, shift))
            for g, shift in itertools.product(range(group.order), SHIFTS)
        ]
    return max(errors)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GROUPS)
def test_equivariant_to_the_group_and_to_shifts(name: str, form: str):
    made = pathway(name, form)
    assert worst_error(made, made.group, numbers(3, *made.shape.source)) < EXACT


@pytest.mark.parametrize(("size", "kernel"), [((5, 5), 3), ((2, 2), 3), ((1, 1), 3), ((7, 7), 5)])
@pytest.mark.parametrize("form", FORMS)
def test_equivariant_at_every_size(form: str, size: tuple[int, int], kernel: int):
    made = pathway("D(4)", form, size, kernel)
    assert worst_error(made, made.group, numbers(3, *made.shape.source)) < EXACT


def test_the_check_fails_on_other_layers():
    group = PointGroup.of("D(4)")
    maps = numbers(3, 16, 6, 6)
    plain = nn.Conv2d(16, 24, 3, padding=1, padding_mode="circular").double()
    assert worst_error(plain, group, maps) > 0.1

    class FromTheLeft(GroupConvolution):
        """Sees f(k h) where f(h k) should be."""

        def __init__(self) -> None:
            super().__init__(group, (2, 3), 3, mixes=True)
            self.quotients = group.product[:, group.inverse].T.contiguous()

    assert worst_error(with_random_parameters(FromTheLeft()), group, maps) > 0.1


def test_lifted_images_give_invariant_numbers():
    """Repeat, convolve, down-sample, convolve, largest over elements and pixels."""
    group = PointGroup.of("C(4)")
    first = with_random_parameters(
        GroupConvolutionPathway(LayerShape((4, 8, 8), (8, 4, 4)), group, form="pointwise")
    )
    second = with_random_parameters(
        GroupConvolutionPathway(LayerShape((8, 4, 4), (12, 4, 4)), group, form="full")
    )
    assert isinstance(first, GroupConvolutionPathway)
    assert not first.reaches_target and second.reaches_target
    down = PolyphaseDownsampling(2, (8, 8))

    def summary(images: Tensor) -> Tensor:
        maps = down(first(images.repeat(1, group.order, 1, 1))).relu()
        return second(maps).unflatten(1, (group.order, -1)).amax((1, 3, 4))

    images = numbers(3, 1, 8, 8)
    expected = summary(images).detach()
    assert float(expected.var(0).min()) > 1e-3
    for g, shift in itertools.product(range(group.order), SHIFTS):
        moved = group.act(images, g).roll(shift, (-2, -1))
        assert_equal(summary(moved).detach(), expected, f"{g}, {shift}", EXACT)


# --- curvature ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "samples"), [("categorical", 1), ("categorical", 2), ("gaussian", 1)]
)
@pytest.mark.parametrize("name", LAYERS)
def test_blocks_are_those_of_the_formula(name: str, likelihood: str, samples: int):
    layer, shape = layer_named(name)
    network, kind = network_with(layer, shape), LIKELIHOODS[likelihood]
    rows = numbers(2 * samples, *shape)
    found = library_blocks(network, rows, samples, kind.build())
    for parameter, block in dense_blocks(network, "0", rows, samples, kind.curvature).items():
        assert_equal(found[f"0.{parameter}"], block, parameter)
    exact = dense_ggn_blocks(network, rows, samples, kind.curvature)["0.bias"]
    assert_equal(found["0.bias"][0], exact, "exact bias")


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_exact_for_one_datum_one_pixel_and_no_group(likelihood: str, mixes: bool):
    made = GroupConvolution(PointGroup.of("Trivial(2)"), (2, 3), 3, mixes=mixes)
    layer = with_random_parameters(made)
    network, kind = network_with(layer, (2, 1, 1)), LIKELIHOODS[likelihood]
    rows = numbers(1, 2, 1, 1)
    exact = dense_ggn_blocks(network, rows, 1, kind.curvature)
    found = library_blocks(network, rows, 1, kind.build())
    for parameter in ("0.weight", "0.bias"):
        assert_equal(found[parameter][0], exact[parameter], parameter)


def test_not_exact_for_several_elements():
    layer, shape = layer_named("mixing, one pixel")
    network, kind = network_with(layer, (shape[0], 1, 1)), LIKELIHOODS["gaussian"]
    rows = numbers(1, shape[0], 1, 1)
    exact = dense_ggn_blocks(network, rows, 1, kind.curvature)["0.weight"]
    found = library_blocks(network, rows, 1, kind.build())["0.weight"][0]
    assert relative_difference(found, exact) > 0.05


def test_wrong_frames_are_noticed():
    """Patches that are not brought into the frame of the filter make another block."""
    layer, shape = layer_named("pointwise")
    network, kind, rows = network_with(layer, shape), LIKELIHOODS["gaussian"], numbers(2, *shape)
    found = KFAC(network).batch(rows, Copies(1), kind.build()).factors()["0.weight"]
    matrices = layer.group.elements.numpy()
    factors = [
        torch.einsum("nhti,nhtj->ij", patches, patches)
        for patches in (
            filter_inputs(frames, rows.unflatten(1, (4, -1)), 3, False)
            for frames in (
                matrices,
                np.tile(np.eye(2, dtype=int), (4, 1, 1)),
                matrices.transpose(0, 2, 1),
            )
        )
    ]
    assert_equal(found.inputs[0], factors[0], "A")
    for wrong in factors[1:]:
        assert relative_difference(wrong, factors[0]) > 0.05


@pytest.mark.parametrize("form", FORMS)
def test_every_part_of_a_pathway_has_curvature(form: str):
    """In a network with down-sampling."""
    order = PointGroup.of("C(4)").order
    shape = LayerShape((order, 4, 4), (2 * order, 2, 2))
    made = with_random_parameters(GroupConvolutionPathway(shape, "C(4)", form=form))
    assert isinstance(made, GroupConvolutionPathway)
    modules = [made, PolyphaseDownsampling(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)]
    network = nn.Sequential(*modules).double()
    rows, kind = numbers(2, order, 4, 4), LIKELIHOODS["categorical"]
    found = library_blocks(network, rows, 1, kind.build())
    assert set(made.weights) <= {name for name, _ in made.named_parameters()}
    for parameter in made.weights:
        layer = f"0.{parameter.removesuffix('.weight')}"
        for name, block in dense_blocks(network, layer, rows, 1, kind.curvature).items():
            assert_equal(found[f"{layer}.{name}"], block, f"{layer}.{name}")


# --- what a layer does with it ------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["C(4)", "D(4)"])
def test_constants_are_taken_as_far_as_the_group_allows(name: str, form: str):
    """Copies of a channel, one for each element, get the mean of what they are given."""
    made = pathway(name, form)
    maps, constants = numbers(3, *made.shape.source), numbers(made.shape.target[0], seed=9)
    order, before = made.group.order, made(maps).detach()
    assert made.absorb_(constants)
    allowed = torch.stack([constants[channel::3].mean() for channel in range(3)]).repeat(order)
    assert relative_difference(allowed, constants) > 0.1
    assert_equal(made(maps).detach(), before + allowed[:, None, None], "outputs", EXACT)
    assert worst_error(made, made.group, maps) < EXACT


@pytest.mark.parametrize("form", FORMS)
def test_plain_layers_have_the_same_outputs(form: str):
    made = pathway("D(4)", form)
    maps, plain = numbers(2, *made.shape.source), made.plain()
    assert_equal(plain(maps).detach(), made(maps).detach(), "plain", EXACT)
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in plain.parameters())


# --- initial weights -----------------------------------------------------------------


def test_initial_weights():
    shape = LayerShape((80, 4, 4), (160, 4, 4))  # 20 to 40 channels an element

    def made(form: str, seed: int = 0) -> GroupConvolutionPathway:
        generator = torch.Generator().manual_seed(seed)
        return GroupConvolutionPathway(shape, "C(4)", form=form, generator=generator)

    bounds = {
        ("pointwise", "convolution"): math.sqrt(6 / (20 * 9)),
        ("full", "convolution"): math.sqrt(6 / (4 * 20 * 9)),
        ("separable", "spatial"): math.sqrt(6 / 9),
        ("depthwise", "spatial"): math.sqrt(6 / 9),
        ("depthwise", "channels"): math.sqrt(6 / 20),
        ("separable", "mixing"): math.sqrt(6 / (4 * 20)),
    }
    for (form, name), bound in bounds.items():
        weight = made(form).steps[name].weight.detach()
        assert 0.95 * bound < float(weight.abs().max()) <= bound
        assert float(weight.var()) == pytest.approx(bound**2 / 3, rel=0.3)
        assert torch.equal(weight, made(form).steps[name].weight)
        assert not torch.equal(weight, made(form, seed=1).steps[name].weight)
    assert made("depthwise").steps["mixing"].weight.unique().tolist() == [0.25]
    for form in FORMS:
        biases = [p for n, p in made(form).named_parameters() if n.endswith("bias")]
        assert biases and not any(bool(bias.any()) for bias in biases)


# --- refusals -----------------------------------------------------------------------------------


def shape_of(source: int, target: int, size: tuple[int, int] = (6, 6)) -> LayerShape:
    return LayerShape((source, *size), (target, *size))


REFUSED: dict[str, tuple[LayerShape, dict[str, object], str]] = {
    "source channels": (
        shape_of(10, 8), {},
        r"over C\(4\), source: expected a multiple of the group's 4 elements as channels, got 10; "
        "take 8 or 12, and lift images by repeating their channels 4 times",
    ),
    "target channels": (shape_of(8, 10), {}, r"target: .*got 10; take 8 or 12"),
    "few channels": (shape_of(3, 8), {}, "got 3; take 4, and lift"),
    "no channels": (shape_of(0, 8), {}, "got 0; take 4"),
    "oblong": (shape_of(4, 4, (6, 4)), {}, r"expected square maps, .*got 6×4; cut .*D\(2\)"),
    "form": (shape_of(4, 4), {"form": "seperable"}, "did you mean 'separable'"),
    "group": (shape_of(6, 6), {"group": "C(3)"}, r"C\(3\) does not act on the grid"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    shape, options, sentence = REFUSED[name]
    with pytest.raises(CallerError, match=sentence):
        GroupConvolutionPathway(shape, **{"group": "C(4)", **options})  # type: ignore[arg-type]
