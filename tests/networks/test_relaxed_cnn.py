"""The eight-stage network: its size, its names, and the symmetry it has in the limit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from user_networks import layers_of, seeded

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical
from isotropy.networks.pathways.relax import Lift, MapMaximum, relaxed_cnn
from isotropy.networks.pathways.relaxed_layer import PathwayOptions

MIXED = ("ffc", "conv", "gconv")


def images(batch: int = 3, channels: int = 2, size: int = 32) -> Tensor:
    return torch.randn(batch, channels, size, size, dtype=torch.float64, generator=seeded(5))


def network_of(
    pathways: tuple[str, ...], *, channels: int = 2, size: int = 32, width: int = 2
) -> nn.Sequential:
    return relaxed_cnn(
        (channels, size, size), 5, pathways=pathways, width=width, generator=seeded(1)
    ).double()


def disturb(network: nn.Module) -> None:
    """Parameters as after some training: biases are not zero, nor weights all alike."""
    generator = seeded(8)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
            parameter.add_(noise * (parameter.abs().mean() + 0.02))


def keep_only(network: nn.Module, kept: str) -> None:
    for layer in layers_of(network).values():
        for kind, pathway in layer.members().items():
            if kind != kept:
                pathway.scale_(0)


# --- size -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pathways", "width", "channels", "outputs", "expected"),
    [
        (("conv",), 10, 3, 10, 338_770),
        (("fc",), 10, 3, 10, 133_635_690),
        (("fc", "conv"), 10, 3, 10, 133_865_010),
        (("ffc",), 10, 3, 10, 1_542_625),
        (("ffc", "conv"), 10, 3, 10, 1_771_945),
        (MIXED, 2, 3, 10, 1_237_527),
        (MIXED, 2, 1, 10, 1_105_843),
        # Table 1: 112.7 M, 0.4 M and 1.8 M.
        (("fc",), 10, 1, 40, 112_683_400),
        (("conv",), 10, 1, 40, 357_820),
        (("ffc", "conv"), 10, 1, 40, 1_750_035),
        # Table 7: group convolutions alone.
        (("gconv",), 10, 3, 10, 338_770),
        (("gconv-full",), 10, 3, 10, 1_025_380),
        (("gconv-separable",), 10, 3, 10, 214_550),
        (("gconv-separable",), 13, 3, 10, 358_463),
        (("gconv-depthwise",), 10, 3, 10, 139_725),  # printed as 139,735; the next row is exact
        (("gconv-depthwise",), 16, 3, 10, 346_215),
    ],
)
def test_it_has_the_published_number_of_parameters(pathways, width, channels, outputs, expected):
    with torch.device("meta"):  # the largest would take half a gigabyte
        network = relaxed_cnn((channels, 32, 32), outputs, pathways=pathways, width=width)
    assert all(parameter.is_meta for parameter in network.parameters())
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_sparse_pathways_have_the_published_number_of_parameters():
    network = relaxed_cnn((3, 32, 32), 10, pathways=("sfc",), generator=seeded())
    assert sum(parameter.numel() for parameter in network.parameters()) == 831_820


# --- shape and names --------------------------------------------------------------------------


def test_stages_are_named_and_sized_as_in_the_table():
    network = network_of(("conv",), channels=3)
    layers = layers_of(network)
    assert list(layers) == [f"stage{index}" for index in range(1, 9)]
    targets = [layer.shape.target for layer in layers.values()]
    assert targets == [
        (2, 32, 32),
        (4, 16, 16),
        (4, 16, 16),
        (8, 8, 8),
        (8, 8, 8),
        (16, 4, 4),
        (16, 2, 2),
        (32, 1, 1),
    ]
    assert (network.hidden.in_features, network.hidden.out_features) == (32, 128)
    assert (network.head.in_features, network.head.out_features) == (128, 5)
    names = [name for name, _ in network.named_children()]
    assert names[:2] == ["stage1", "relu1"]
    assert names[-5:] == ["relu8", "pool", "hidden", "relu_hidden", "head"]


def test_logits_have_a_sensible_size_at_first():
    for pathways in (("conv",), ("ffc", "conv"), MIXED):
        network = relaxed_cnn((3, 32, 32), 10, pathways=pathways, width=4, generator=seeded())
        logits = network(images(20, 3).float())
        assert logits.shape == (20, 10)
        assert 0.05 < logits.std() < 20


def test_the_generator_alone_draws_it():
    state = torch.get_rng_state()
    first, second = (
        relaxed_cnn((1, 32, 32), 3, pathways=MIXED, width=1, generator=seeded(2)) for _ in range(2)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


def test_a_group_lifts_the_image_and_multiplies_channels():
    network = relaxed_cnn((3, 32, 32), 5, pathways=("conv", "gconv"), width=1, group="D(4)")
    layers = layers_of(network)
    assert layers["stage1"].shape.source == (24, 32, 32)
    assert layers["stage8"].shape.target == (8 * 16, 1, 1)
    assert network.hidden.in_features == 16
    assert network.lift.order == network.pool.order == 8


def test_lifting_repeats_the_image_for_each_element():
    lifted = Lift(3)(images()).unflatten(1, (3, 2))
    assert all(torch.equal(lifted[:, h], images()) for h in range(3))


def test_the_maximum_is_over_elements_and_pixels():
    maps = torch.randn(2, 6, 4, 5, generator=seeded())
    found = MapMaximum(3)(maps)
    assert found.shape == (2, 2)
    for n in range(2):
        for c in range(2):
            assert found[n, c] == max(float(maps[n, 2 * h + c].max()) for h in range(3))


# --- symmetry in the limit --------------------------------------------------------------------


def turned(maps: Tensor, turns: int) -> Tensor:
    return torch.rot90(maps, turns, (2, 3))


SHIFTS = [(1, 0), (0, 3), (7, 12), (31, 16)]


@pytest.mark.parametrize("size", [32, 64])
def test_with_the_convolution_alone_logits_are_invariant_to_circular_shifts(size):
    network, inputs = network_of(("ffc", "conv"), size=size), images(size=size)
    disturb(network)
    shifted = [inputs.roll(shift, (2, 3)) for shift in SHIFTS]
    relaxed = network(inputs)
    assert all((network(each) - relaxed).abs().max() > 1e-3 for each in shifted)
    keep_only(network, "conv")
    strict = network(inputs)
    assert (strict[0] - strict[1]).abs().max() > 1e-3  # it tells images apart
    for each in shifted:
        assert (network(each) - strict).abs().max() < 1e-10
    assert (network(turned(inputs, 1)) - strict).abs().max() > 1e-3


@pytest.mark.parametrize("form", ["gconv", "gconv-full", "gconv-separable", "gconv-depthwise"])
def test_with_the_group_convolution_alone_they_are_invariant_to_quarter_turns_too(form):
    network, inputs = network_of(("ffc", "conv", form), width=1), images(2)
    disturb(network)
    assert (network(turned(inputs, 1)) - network(inputs)).abs().max() > 1e-3
    keep_only(network, form)
    strict = network(inputs)
    assert (strict[0] - strict[1]).abs().max() > 1e-3
    for turns in range(4):
        for shift in ((0, 0), (7, 12)):
            moved = turned(inputs.roll(shift, (2, 3)), turns)
            assert (network(moved) - strict).abs().max() < 1e-10
    # Of the turns only: a reflection is another image.
    assert (network(inputs.flip(3)) - strict).abs().max() > 1e-3


def test_with_reflections_in_the_group_they_are_invariant_to_these():
    network = relaxed_cnn(
        (1, 32, 32), 4, pathways=("gconv",), width=1, group="D(4)", generator=seeded(1)
    ).double()
    disturb(network)
    inputs = images(channels=1)
    for moved in (inputs.flip(3), turned(inputs, 3).flip(2), inputs.mT):
        assert (network(moved) - network(inputs)).abs().max() < 1e-10


def test_a_convolution_beside_the_group_is_invariant_to_shifts_alone():
    network, inputs = network_of(MIXED), images()
    disturb(network)
    for layer in layers_of(network).values():
        layer.members()["ffc"].scale_(0)
    assert (network(inputs.roll((5, 2), (2, 3))) - network(inputs)).abs().max() < 1e-10
    assert (network(turned(inputs, 1)) - network(inputs)).abs().max() > 1e-3


# --- learning ---------------------------------------------------------------------------------


def test_every_parameter_has_curvature():
    options = PathwayOptions(free_start=1.0)
    network = relaxed_cnn(
        (1, 32, 32), 3, pathways=MIXED, width=1, options=options, generator=seeded()
    )
    inputs = images(2, 1).float()
    curvature = KFAC(network)
    assert set(curvature.parameter_names) == {name for name, _ in network.named_parameters()}
    found = curvature.batch(inputs, Copies(1), Categorical())
    assert set(found.roots) == set(curvature.parameter_names)
    for name, root in found.roots.items():
        assert all(bool(each.isfinite().all() and each.any()) for each in root.tensors()), name


# --- refused ----------------------------------------------------------------------------------


def test_it_refuses_what_does_not_fit():
    with pytest.raises(CallerError, match="multiples of 32.*got 28×28; resize them to 32×32"):
        relaxed_cnn((1, 28, 28), 10)
    with pytest.raises(CallerError, match="multiples of 32.*got 32×48"):
        relaxed_cnn((1, 32, 48), 10)
    with pytest.raises(CallerError, match=r"expected images \(channels, height, width\)"):
        relaxed_cnn((32, 32), 10)
    with pytest.raises(CallerError, match="unknown pathway 'cnv'"):
        relaxed_cnn((1, 32, 32), 10, pathways=("cnv",))
    with pytest.raises(CallerError, match="none of the pathways conv uses it"):
        relaxed_cnn((1, 32, 32), 10, pathways=("conv",), group="C(4)")
    with pytest.raises(CallerError, match="does not act on the grid"):
        relaxed_cnn((1, 32, 32), 10, pathways=("gconv",), group="C(3)")
    with pytest.raises(CallerError, match="width of the network: expected at least 1, got 0"):
        relaxed_cnn((1, 32, 32), 10, width=0)
    with pytest.raises(CallerError, match="outputs of the network"):
        relaxed_cnn((1, 32, 32), 0)


def test_options_reach_the_pathways():
    options = PathwayOptions(kernel=5)
    network = relaxed_cnn((1, 32, 32), 2, pathways=("conv",), width=1, options=options)
    assert network.stage1.members()["conv"].convolution.kernel_size == (5, 5)
