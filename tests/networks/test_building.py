"""Networks that have a group of the grid exactly, and what cannot be built."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from user_networks import disturb, seeded, size_of

from isotropy.checks import CallerError
from isotropy.networks.building import group_network
from isotropy.networks.equivariant.point_group_layers import Downsampled
from isotropy.networks.zoo.backbones import backbone
from isotropy.symmetry.groups.point_groups import PointGroup

GROUPS = [PointGroup.of(name) for name in ("C(2)", "C(4)", "D(1)", "D(2)", "D(4)")]
every_group = pytest.mark.parametrize("group", GROUPS, ids=str)


class BasicBlock(nn.Module):
    """As torchvision writes it: one ReLU for both activations, an optional `downsample`."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module | None = None
        if stride > 1:
            projection = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(after))

    def forward(self, maps: Tensor) -> Tensor:
        shortcut = maps if self.downsample is None else self.downsample(maps)
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(maps)))))
        inner += shortcut
        return self.relu(inner)


class ResNet(nn.Module):
    """Two stages behind a strided stem and an overlapping maximum."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2 * width, 5)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer2(self.layer1(maps))
        return self.fc(torch.flatten(self.avgpool(maps), 1))


class Functional(nn.Module):
    """A LeNet whose activations and pooling are functions, with a head that sees positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(256, 20), nn.Linear(20, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        maps = functional.max_pool2d(torch.relu(self.conv2(maps)), 2)
        return self.fc2(torch.relu(self.fc1(maps.flatten(1))))


class Joined(nn.Module):
    """Maps are concatenated, in the middle one filter a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding="same", padding_mode="reflect")
        self.grow = nn.Conv2d(12, 6, 3, padding=2, dilation=2)
        self.apart = nn.Conv2d(18, 18, 3, padding=1, groups=18)
        self.norm = nn.GroupNorm(3, 18)
        self.slope = nn.PReLU(18)
        self.outputs = nn.Conv2d(18, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images)
        maps = torch.cat([maps, torch.tanh(self.grow(maps))], 1)
        return self.outputs(self.slope(self.norm(self.apart(maps)))).mean((2, 3))


def fixup() -> nn.Module:
    """The package's own residual network; its head and half of its convolutions start at zero."""
    network = backbone("resnet", (3, 16, 16), 5, width=8)
    disturb(network)
    return network


NETWORKS = {
    "resnet": (ResNet, (3, 32, 32)),
    "functional": (Functional, (1, 28, 28)),
    "joined": (Joined, (3, 10, 10)),
    "convnet": (lambda: backbone("convnet", (3, 16, 16), 5, width=8), (3, 16, 16)),
    "convnet-blur": (lambda: backbone("convnet-blur", (1, 16, 16), 5, width=8), (1, 16, 16)),
    "compact": (lambda: backbone("compact", (3, 32, 32), 5), (3, 32, 32)),
    "fixup": (fixup, (3, 16, 16)),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def network_of(name: str) -> tuple[nn.Module, tuple[int, int, int]]:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    return make(), shape


def some_images(shape: tuple[int, int, int], batch: int = 6) -> Tensor:
    return torch.randn(batch, *shape, generator=seeded(3))


def error(model: nn.Module, inputs: Tensor, moved: Tensor) -> float:
    """Relative to how much outputs vary over the batch."""
    with torch.no_grad():
        one, other = model(inputs), model(moved)
    return float((one - other).norm() / (one - one.mean(0)).norm())


# --- whole networks -------------------------------------------------------------------------------


@every_network
@pytest.mark.parametrize("group", [GROUPS[1], GROUPS[4]], ids=str)
def test_built_networks_are_invariant_and_of_the_same_size(name: str, group: PointGroup) -> None:
    network, shape = network_of(name)
    built = group_network(network, group, shape, generator=seeded())
    inputs = some_images(shape)
    for mode in (False, True):
        model = copy.deepcopy(built.model).train(mode)
        errors = [error(model, inputs, group.act(inputs, h)) for h in range(1, group.order)]
        assert max(errors) < 1e-5
        # One example alone may be moved: statistics do not tell.
        alone = torch.cat([group.act(inputs[:1], 1), inputs[1:]])
        assert error(model, inputs, alone) < 1e-5
    assert built.error < 1e-5
    assert abs(size_of(built.model) / size_of(network) - 1) < 0.25


@every_network
def test_what_is_not_in_the_group_changes_outputs(name: str) -> None:
    network, shape = network_of(name)
    turns = group_network(network, GROUPS[1], shape, generator=seeded()).model.eval()
    inputs = some_images(shape)
    assert error(turns, inputs, inputs.flip(-1)) > 1e-3
    flips = group_network(network, GROUPS[2], shape, generator=seeded()).model.eval()
    assert error(flips, inputs, inputs.flip(-1)) < 1e-5
    assert error(flips, inputs, inputs.rot90(1, (-2, -1))) > 1e-3


@every_network
def test_built_networks_learn_and_leave_the_given_one_alone(name: str) -> None:
    network, shape = network_of(name)
    before = copy.deepcopy(network.state_dict())
    model = group_network(network, GROUPS[1], shape, generator=seeded()).model.train()
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    inputs, labels = some_images(shape), torch.arange(6) % 3
    optimiser, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(8):
        loss = functional.cross_entropy(model(inputs), labels)
        optimiser.zero_grad()
        loss.backward()
        for key, each in model.named_parameters():
            assert each.grad is not None and bool(each.grad.isfinite().all()), key
            if each.ndim > 1:
                assert bool(each.grad.abs().max() > 0), key
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.95 * losses[0]
    model.eval()
    assert error(model, inputs, GROUPS[1].act(inputs, 1)) < 1e-4


def test_strides_that_are_not_symmetric_are_replaced() -> None:
    network, shape = network_of("resnet")
    built = group_network(network, GROUPS[1], shape)
    assert set(built.replaced) == {"conv1", "maxpool", "layer2.0.conv1", "layer2.0.downsample.0"}
    assert isinstance(built.model.maxpool, Downsampled)
    # On odd maps every second pixel lies symmetrically.
    odd = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 25, 2))
    built = group_network(odd, GROUPS[1], (3, 9, 9))
    assert built.replaced == {} and built.model[0].stride == (2, 2)


def test_width_keeps_channels_if_asked() -> None:
    network, shape = network_of("convnet")
    built = group_network(network, GROUPS[1], shape, width="same channels").model
    assert built[0].weight.shape == network[0].weight.shape
    assert built[2].weight.shape == (8, 4, 8, 3, 3)
    assert built[-1].linear.weight.shape == network[-1].weight.shape
    with pytest.raises(CallerError, match="width"):
        group_network(network, GROUPS[1], shape, width="same")  # type: ignore[arg-type]


def test_maps_add_up_where_channels_are_few() -> None:
    """A shortcut with zeros has twice the channels of its inputs, whatever share is kept."""
    network = backbone("resnet", (1, 8, 8), 3, width=4)
    built = group_network(network, GROUPS[4], (1, 8, 8), generator=seeded())
    outputs = [block.conv2.weight.shape[0] for block in built.model.blocks]
    assert built.error < 1e-5 and outputs[1:] == [2 * outputs[0], 4 * outputs[0]]


def test_spread_of_weights_follows_the_given_network() -> None:
    network, shape = network_of("convnet")
    built = group_network(
        network, GROUPS[1], shape, width="same channels", generator=seeded()
    ).model
    old, new = network[7].weight, built[7].weight
    spreads = [float(each.detach().std()) * each[0].numel() ** 0.5 for each in (new, old)]
    ratio = spreads[0] / spreads[1]
    assert ratio == pytest.approx(1, abs=0.05)
    nn.init.zeros_(network[7].weight)
    zeros = group_network(network, GROUPS[1], shape, generator=seeded()).model
    assert not bool(zeros[7].weight.any())
    again = group_network(network, GROUPS[1], shape, generator=seeded()).model
    assert torch.equal(zeros[0].weight, again[0].weight)


def test_units_that_are_never_above_zero_hide_no_symmetry() -> None:
    """As random weights of few units may have them; the network keeps its own weights."""
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.Threshold(50.0, 0.0), nn.Flatten()
    network = nn.Sequential(*layers, nn.Linear(256, 2))
    images = some_images((3, 8, 8))
    found = group_network(network, GROUPS[1], (3, 8, 8), generator=seeded())
    assert found.error < 1e-5
    outputs = found.model(images)
    assert outputs.equal(outputs[:1].expand_as(outputs)), "no weight of its own was changed"


# --- refusals -------------------------------------------------------------------------------------


class Sliced(nn.Module):
    """Takes every second pixel in its forward code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(self.first(images)[..., ::2, ::2])).mean((2, 3)))


class Skewed(nn.Module):
    """Weights pixels, without parameters."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps * torch.arange(maps.shape[-1], dtype=maps.dtype)


class Fixed(nn.Module):
    """Fixes the number of features that it flattens."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8 * 16, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(images).view(-1, 8 * 16))


def linear(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, 2)]


REFUSED = {
    "no convolution": (nn.Sequential(*linear(192)), "got none"),
    "sliced": (Sliced(), "before layer second breaks the symmetry"),
    "skewed": (
        nn.Sequential(nn.Conv2d(3, 4, 1), Skewed(), nn.ReLU(), *linear(256)),
        "layer 1 breaks the symmetry",
    ),
    "norm of pixels": (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.LayerNorm([4, 8, 8]), *linear(256)),
        "layer 1: a LayerNorm on maps",
    ),
    "transposed": (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 4, 2, 2), *linear(1024)),
        "layer 1: a ConvTranspose2d",
    ),
    "oblong kernel": (nn.Sequential(nn.Conv2d(3, 4, (3, 1)), *linear(192)), "layer 0: .*both axes"),
    "stride of three": (
        nn.Sequential(nn.Conv2d(3, 4, 1, 3), *linear(36)),
        "layer 0: its stride .3, 3. on maps of 8×8",
    ),
    "fixed features": (Fixed(), "flatten maps with"),
    "maps": (nn.Conv2d(3, 4, 3), "expected outputs"),
    "tokens": (backbone("vit", (3, 8, 8), 2, width=8), "class_token: a ClassToken on features"),
    "constant": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Threshold(1e9, 0.0), *linear(144)),
        "hardly depend on random images",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    network, words = REFUSED[case]
    with pytest.raises(CallerError, match=words):
        group_network(network, GROUPS[1], (3, 8, 8))


def test_shapes_are_refused() -> None:
    network, _ = network_of("convnet")
    with pytest.raises(CallerError, match="square images"):
        group_network(network, GROUPS[1], (3, 16, 24))
    with pytest.raises(CallerError, match="expected images"):
        group_network(network, GROUPS[2], (16, 16))
    assert group_network(network, GROUPS[3], (3, 16, 24)).error < 1e-5
