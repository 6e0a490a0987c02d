"""Networks by name: sizes, initialisation, curvature; counts of clouds; motions of states."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.experiments.thesis.problems import STATE, angular_momentum, initial_states, integrate
from isotropy.likelihoods import Categorical
from isotropy.networks.equivariant.emlp import EMLP, plain_mlp
from isotropy.networks.zoo.backbones import (
    BACKBONES,
    CELLS,
    REACH,
    WIDTH,
    HamiltonianNetwork,
    NeuralODE,
    RandomFeatures,
    SoftCounts,
    backbone,
    cloud_network,
)
from isotropy.symmetry.groups.catalogue import DkeR3, O2eR3
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Scalar

# name, shape of an input, arguments, parameters
CASES = {
    "mlp": ("mlp", (1, 28, 28), {}, 795_010),
    "rff": ("rff", (1, 28, 28), {}, 10_250),
    "relu": ("relu", (1, 28, 28), {}, 814_090),
    "cnn": ("cnn", (1, 28, 28), {}, 60_170),
    "cnn, 32 pixels": ("cnn", (3, 32, 32), {}, 62_006),
    "circular": ("circular", (1, 28, 28), {}, 39_210),
    "resnet": ("resnet", (3, 32, 32), {}, 74_827),
    "resnet, width 8": ("resnet", (3, 32, 32), {"width": 8}, 18_995),
    "wrn": ("wrn", (3, 32, 32), {}, 2_745_306),
    "wrn, depth 10, width 1": ("wrn", (1, 8, 8), {"depth": 10, "width": 1}, 77_099),
    "compact": ("compact", (3, 32, 32), {}, 10 * 516 + 608 + 1168 + 4640),
    "compact, sequences": ("compact", (2, 20), {"width": 2}, 10 * 27 + 22 + 28 + 104),
    "oriented": ("oriented", (1, 28, 28), {}, 32 * 73 + 10 * (16 * 32 + 1)),
    "pooled": ("pooled", (3, 32, 32), {}, 98_826),
    "turnable": ("turnable", (1, 28, 28), {}, 7_186),
    "turnable, few pixels": ("turnable", (3, 10, 8), {"width": 2}, 56 + 76 + 296 + 10 * 33),
    "oriented, colour": (
        "oriented",
        (3, 64, 32),
        {"width": 4},
        4 * 217 + 4 * 37 + 10 * (4 * 8 + 1),
    ),
    "clouds": ("clouds", (16, 2), {}, 10_360),
    "convnet": ("convnet", (3, 32, 32), {}, 288_298),
    "convnet, width 8": ("convnet", (1, 28, 28), {"width": 8}, 18_370),
    "convnet-blur": ("convnet-blur", (1, 28, 28), {"width": 8}, 18_370),
    "vit": ("vit", (3, 32, 32), {}, 809_354),
    "vit, width 32": ("vit", (1, 28, 28), {"width": 32}, 53_386),
    "mixer": ("mixer", (1, 28, 28), {}, 571_622),
}

every_case = pytest.mark.parametrize(
    ("name", "shape", "arguments", "count"), CASES.values(), ids=CASES
)


def build(name: str, shape, outputs: int = 10, **arguments) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return backbone(name, shape, outputs, **arguments)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def shaken(network: nn.Module) -> nn.Module:
    """The network away from Fixup's zeros, where all curvature below the head vanishes."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return network


def test_every_backbone_has_a_case():
    assert {name for name, *_ in CASES.values()} == set(BACKBONES)


@every_case
def test_number_of_parameters(name, shape, arguments, count):
    network = build(name, shape, **arguments)
    assert sum(parameter.numel() for parameter in network.parameters()) == count
    assert all(parameter.requires_grad for parameter in network.parameters())


@every_case
def test_outputs(name, shape, arguments, count):
    outputs = build(name, shape, outputs=7, **arguments)(draw(2, *shape))
    assert outputs.shape == (2, 7) and outputs.isfinite().all()


@every_case
def test_no_layer_looks_at_other_examples(name, shape, arguments, count):
    network = shaken(build(name, shape, **arguments))
    images = draw(3, *shape)
    torch.testing.assert_close(network(images)[:1], network(images[:1]), rtol=1e-4, atol=1e-4)


@every_case
def test_curvature_knows_every_layer(name, shape, arguments, count):
    network = shaken(build(name, shape, **arguments))
    curvature = KFAC(network)
    samples, batch = 2, 2
    images = draw(batch * samples, *shape)
    found = curvature.batch(images, Copies(samples), Categorical())
    torch.testing.assert_close(
        found.outputs, network(images).reshape(batch, samples, 10).mean(1).detach()
    )
    sizes = {label: parameter.numel() for label, parameter in network.named_parameters()}
    assert set(found.roots) == set(sizes)
    for label, factors in found.factors().items():
        assert math.prod(_sides(factors)) == sizes[label], label
        for tensor in factors.tensors():
            assert tensor.isfinite().all() and tensor.abs().max() > 0, label


def _sides(factors) -> list[int]:
    """The sides of a block's factors, whose product is the number of parameters."""
    return [tensor.shape[-1] for tensor in factors.tensors()]


# --- random features --------------------------------------------------------------------------


def test_random_features_are_the_kernel_of_their_deviation():
    """Mean of 2 cos(wᵀx + b) cos(wᵀy + b) = exp(−σ²‖x − y‖²/2); its deviation is below 1/√D."""
    torch.manual_seed(0)
    layer = RandomFeatures(3, 40_000, deviation=0.7).double()
    assert layer.weight.std().item() == pytest.approx(0.7, rel=0.01)
    assert layer.bias.min() >= 0 and 6.28 < layer.bias.max() < 2 * math.pi
    points = draw(5, 3, dtype=torch.float64)
    kernel = torch.exp(-(0.7**2) * torch.cdist(points, points).square() / 2)
    features = layer(points)
    torch.testing.assert_close(features @ features.mT, kernel, rtol=0, atol=4 / 200)


def test_random_features_are_saved_and_not_trained():
    network, other = build("rff", (1, 4, 4)), backbone("rff", (1, 4, 4), 10)
    images = draw(2, 1, 4, 4)
    assert set(network.state_dict()) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    assert [name for name, _ in network.named_parameters()] == ["2.weight", "2.bias"]
    other.load_state_dict(network.state_dict())
    assert torch.equal(network(images), other(images))
    torch.testing.assert_close(build("rff", (1, 4, 4))(images), network(images), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("rff", {"width": 0}, "width of the random features: expected at least 1, got 0"),
        ("rff", {"deviation": 0.0}, "deviation of the random features: expected above 0, got 0"),
        ("rff", {"deviation": -1.0}, "expected above 0, got -1"),
        ("rff", {"deviation": math.nan}, "expected above 0, got nan"),
        ("relu", {"width": 0}, "width of the hidden layer: expected at least 1, got 0"),
    ],
)
def test_features_of_no_size_are_refused(name, arguments, sentence):
    with pytest.raises(CallerError, match=sentence):
        backbone(name, (1, 4, 4), 10, **arguments)


# --- the smaller ones -----------------------------------------------------------------------

KERNELS = {28: ([5, 3, 5], nn.Tanh), 31: ([5, 3, 5], nn.Tanh), 32: ([5, 5, 5], nn.ReLU),
           64: ([5, 5, 5], nn.ReLU)}  # fmt: skip


@pytest.mark.parametrize("size", KERNELS)
def test_cnn_kernels_and_activation_by_size(size):
    kernels, activation = KERNELS[size]
    network = build("cnn", (1, size, size))
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    assert [layer.kernel_size[0] for layer in convolutions] == kernels
    assert [layer.out_channels for layer in convolutions] == [6, 16, 120]
    assert [layer.padding for layer in convolutions] == [(0, 0)] * 3
    kinds = {type(layer) for layer in network if isinstance(layer, nn.Tanh | nn.ReLU)}
    assert kinds == {activation}
    assert network(draw(2, 1, size, size)).shape == (2, 10)


@pytest.mark.parametrize("size", [28, 32])
def test_cnn_has_nothing_left_to_average(size):
    network = build("cnn", (1, size, size))
    place = next(k for k, layer in enumerate(network) if isinstance(layer, nn.AdaptiveAvgPool2d))
    assert network[:place](draw(1, 1, size, size)).shape == (1, 120, 1, 1)


REFUSED = {
    "cnn on small images": (
        lambda: backbone("cnn", (1, 8, 27), 10),
        "model cnn: expected images of at least 28×28 pixels, got 8×27; use --image-size 28 or "
        "--model mlp",
    ),
    "cnn on features": (
        lambda: backbone("cnn", (64,), 10),
        r"expected images \(channels, height, width\), got inputs of \(64,\)",
    ),
    "resnet on features": (lambda: backbone("resnet", (64,), 10), "expected images"),
    "unknown": (
        lambda: backbone("resnt", (3, 32, 32), 10),
        "unknown model 'resnt': expected one of mlp, rff, relu, cnn, circular, resnet, wrn, "
        "clouds, compact, oriented, pooled, turnable, convnet, convnet-blur, vit, mixer; did you "
        "mean 'resnet'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call, sentence):
    with pytest.raises(CallerError, match=sentence):
        call()


def test_circular_does_not_see_whole_pixel_translations():
    network = build("circular", (1, 12, 12), width=4).double()
    images = draw(3, 1, 12, 12, dtype=torch.float64)
    moved = images.roll((5, -3), (2, 3))
    torch.testing.assert_close(network(moved), network(images), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(network(images.flip(-1)), network(images))


DIMENSIONS = (1, 2, 3)


def clouds(dimensions: int, batch: int = 3, points: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dimensions)
    return torch.randn(batch, points, dimensions, generator=generator, dtype=torch.float64)


def counts_written_out(data: np.ndarray, cells: int, reach: float, width: float) -> np.ndarray:
    """Σ_p exp(−‖x_p − c‖² / 2w²), place by place, the last coordinate fastest."""
    axis = np.linspace(-reach, reach, cells)
    w = width * (axis[1] - axis[0])
    places = list(itertools.product(axis, repeat=data.shape[2]))
    return np.array(
        [
            [
                sum(np.exp(-((p - np.array(c)) ** 2).sum() / (2 * w**2)) for p in cloud)
                for c in places
            ]
            for cloud in data
        ]
    )


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_counts_are_the_sum_written_out(dimensions):
    counts = SoftCounts(dimensions, cells=4, reach=1.5, width=0.9).double()
    data = clouds(dimensions)
    expected = counts_written_out(data.numpy(), 4, 1.5, 0.9)
    assert counts.features == expected.shape[1] == 4**dimensions
    np.testing.assert_allclose(counts(data).numpy(), expected, atol=1e-6)  # places in float32


def test_defaults_are_those_of_the_worked_example():
    counts = SoftCounts()
    assert (CELLS, REACH, WIDTH) == (14, 2.2, 0.7) and counts.features == 196
    assert counts.width == pytest.approx(0.7 * 4.4 / 13)
    # One point on a place counts one there, and less elsewhere.
    found = counts(counts.places[torch.tensor([[[3, 8]]])])[0]
    assert found.argmax() == 3 * 14 + 8 and found.max() == 1


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_order_of_points_does_not_matter_and_their_places_do(dimensions):
    network = cloud_network((5, dimensions), 3, hidden=4, cells=5).double()
    data = clouds(dimensions)
    torch.testing.assert_close(network(data.flip(1)), network(data))
    assert (network(data + 0.3) - network(data)).abs().max() > 1e-3


def test_smooth_in_the_points():
    counts = SoftCounts(2, cells=3).double()
    data = clouds(2, batch=2, points=3).requires_grad_()
    assert torch.autograd.gradcheck(counts, data)
    assert torch.autograd.gradgradcheck(counts, data)


def test_follows_the_type_of_the_data():
    assert SoftCounts()(clouds(2)).dtype == torch.float64
    assert SoftCounts()(clouds(2).float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SoftCounts(4), "expected 1, 2 or 3, got 4"),
        (lambda: SoftCounts(cells=1), "at least 2, got 1"),
        (lambda: SoftCounts(reach=0.0), "above 0, got 0.0"),
        (lambda: SoftCounts(width=float("nan")), "above 0, got 2.2 and nan"),
        (lambda: SoftCounts()(torch.zeros(5, 2)), "batch, points, dimensions"),
        (lambda: SoftCounts()(torch.zeros(1, 5, 3)), r"\(batch, points, 2\), got \(1, 5, 3\)"),
        (lambda: cloud_network((1, 28, 28), 10), "clouds .points, dimensions."),
    ],
)
def test_mistakes(make, sentence):
    with pytest.raises(CallerError, match=sentence):
        make()


def states(count: int) -> torch.Tensor:
    return initial_states(count, torch.Generator().manual_seed(0))


def energy_network(group: Group | None) -> HamiltonianNetwork:
    """A Hamiltonian network of few channels, its energy steep enough to move states."""
    torch.manual_seed(0)
    if group is None:
        inner: nn.Module = plain_mlp(12, 1, channels=16, layers=1)
    else:
        generator = torch.Generator().manual_seed(0)
        inner = EMLP(STATE, Scalar, group, channels=24, layers=1, generator=generator)
    found = HamiltonianNetwork(inner).double()
    with torch.no_grad():
        list(found.parameters())[-2 if group is None else 0].mul_(10)
    return found


class Oscillators(nn.Module):
    """H = Σ (x² + 3 p²) / 2."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        places, momenta = given.chunk(2, -1)
        return (places.square() + 3 * momenta.square()).sum(-1, keepdim=True) / 2


def test_field_of_a_known_energy() -> None:
    given = states(4)
    places, momenta = given.chunk(2, -1)
    found = HamiltonianNetwork(Oscillators())(given)
    torch.testing.assert_close(found, torch.cat([3 * momenta, -places], -1))


def test_field_is_the_gradient_by_autograd_and_reaches_the_weights() -> None:
    network, given = energy_network(None), states(6).requires_grad_()
    (slopes,) = torch.autograd.grad(network.energy(given).sum(), given)
    found = network(given)
    torch.testing.assert_close(found, torch.cat([slopes[:, 6:], -slopes[:, :6]], 1))
    found.square().sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters()}
    unmoved = [n for n, g in gradients.items() if g is None or not bool(g.abs().sum() > 0)]
    assert unmoved == ["network.2.bias"]  # a constant of the energy moves nothing


def test_energy_is_conserved_by_its_motion() -> None:
    network = energy_network(None)
    with torch.no_grad():
        path = integrate(network, states(5), 20, 0.1, within=4)
        energies = network.energy(path)
    assert float((path[-1] - path[0]).abs().max()) > 0.1
    torch.testing.assert_close(energies, energies[:1].expand_as(energies), rtol=0, atol=1e-6)


def drift(group: Group | None, within: int = 4) -> float:
    """The largest change of angular momentum along the motion of an untrained network.

    within: integration steps in 0.1 s
    """
    with torch.no_grad():
        path = integrate(energy_network(group), states(4), 10, 0.1, within=within)
    assert float((path[-1] - path[0]).abs().max()) > 0.1
    momenta = angular_momentum(path)
    return float((momenta - momenta[:1]).abs().max())


@pytest.mark.slow
def test_a_continuous_symmetry_conserves_angular_momentum_and_a_coarse_one_does_not() -> None:
    assert drift(O2eR3(), within=128) < 1e-5
    assert drift(DkeR3(2)) > 1e-3
    assert drift(None) > 1e-3


def test_neural_ode_is_its_network() -> None:
    inner = plain_mlp(12, 12, channels=8, layers=1).double()
    given = states(3)
    assert torch.equal(NeuralODE(inner)(given), inner(given))


def test_odd_states_are_refused() -> None:
    with pytest.raises(CallerError, match=r"places and momenta, got 3 numbers"):
        HamiltonianNetwork(nn.Linear(3, 1))(torch.zeros(2, 3))
