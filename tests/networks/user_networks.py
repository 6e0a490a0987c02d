"""Networks as users write them, for building, relaxing and hardening; and random numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isotropy.networks.pathways.relaxed_layer import RelaxedLayer


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform numbers from 0 to 1."""
    return torch.rand(shape, generator=seeded(seed), dtype=dtype)


def images(channels: int = 3, size: int = 12, batch: int = 4) -> Tensor:
    return torch.randn(batch, channels, size, size, dtype=torch.float64, generator=seeded(5))


class Block(nn.Module):
    """A residual block, with a strided first convolution and a projection beside it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride))

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.conv2(torch.relu(self.bn1(self.conv1(maps))))
        return torch.relu(inner + self.shortcut(maps))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
        self.blocks = nn.ModuleList([Block(4, 4, 1), Block(4, 8, 2)])
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images).relu()
        for block in self.blocks:
            maps = block(maps)
        return self.head(maps.mean((2, 3)))


class OwnConvolution(nn.Conv2d):
    """A subclass, which may do anything."""


class Odd(nn.Module):
    """All that there is besides ordinary convolutions, and one convolution under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.again = self.twice
        self.own = OwnConvolution(4, 4, 3, padding=1)
        self.back = nn.ConvTranspose2d(4, 4, 2, 2)
        self.along = nn.Conv1d(4, 4, 3, padding=1)
        self.squeeze = nn.Conv2d(4, 4, 1)
        self.unused = nn.Conv2d(4, 4, 3)
        self.normal = torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.again(self.twice(self.first(images)).relu()).relu()
        maps = self.normal(self.back(self.own(maps)))
        maps = maps + self.along(maps.flatten(2)).view_as(maps)
        means = maps.mean((2, 3), keepdim=True)
        return self.head(self.squeeze(means).flatten(1))


class TwoSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.shared = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.shared(self.first(images))
        return self.shared(nn.functional.max_pool2d(maps, 2)).mean((2, 3))


def strange_convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, (5, 3), stride=(2, 1), padding=(2, 0), padding_mode="reflect"),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, dilation=2, padding="same", groups=2),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, stride=2, groups=6, bias=False),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def small_sequence() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


MODELS = {
    "sequence": small_sequence,
    "resnet": ResNet,
    "odd": Odd,
    "strange": strange_convolutions,
    "one layer": lambda: nn.Conv2d(3, 4, 3),
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    model(images())  # lazy layers are made
    return model


def relaxed_names(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, RelaxedLayer)]


def layers_of(model: nn.Module) -> dict[str, RelaxedLayer]:
    return {name: m for name, m in model.named_modules() if isinstance(m, RelaxedLayer)}


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def disturb(model: nn.Module) -> None:
    """Parameters as if something had been learned: no pathway is zero any more."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, dtype=parameter.dtype, generator=seeded(9))
            parameter.add_(0.1 * noise)
