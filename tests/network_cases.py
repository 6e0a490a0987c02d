"""Small networks in float64, one list for all tests of curvature and evidence.

A new kind of layer joins `NETWORKS` and inherits: its blocks against the formula written out, the
evidence's value and its two-pass gradient. Also the comparison that all of these use.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from oracles.dense_ggn import OutputCurvature, gaussian_curvature, softmax_curvature
from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.backbones import Bias, FixupResNet, Scale

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}
"""Largest difference that counts as equal, relative to the largest entry."""

CLASSES = 3
NOISE = 0.7


class Tokens(nn.Module):
    """One Linear layer shared over tokens (batch, tokens, features), their mean, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Linear(3, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.token(tokens).tanh().mean(1))


class UsedTwice(nn.Module):
    """A Linear layer called twice, on its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.inner(self.inner(inputs).tanh()).tanh())


class HeadUsedTwice(nn.Module):
    """The layer that ends the network is also called in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(CLASSES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.only(self.only(inputs).tanh())


class ConvUsedTwice(nn.Module):
    """A convolution called on images of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 2)
        self.head = nn.Linear(2, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(self.conv(images).tanh()).tanh().mean((2, 3)))


class Unused(nn.Module):
    """A layer is called, but nothing is made of what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.aside = nn.Linear(3, 2)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        self.aside(hidden)
        return self.head(hidden)


class Residual(nn.Module):
    """Two paths that join again, and an output that is not a layer's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(CLASSES, CLASSES)
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.head((inputs + self.inner(inputs)).tanh())


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise(widths):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(*layers[:-1])


def conv_net(features: int, **settings: object) -> nn.Sequential:
    """A convolution, tanh, and a head on the `features` numbers that it leaves."""
    settings = {"in_channels": 2, "out_channels": 2, "kernel_size": 3, **settings}
    conv = nn.Conv2d(**settings)  # type: ignore[arg-type]
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES))


def scalars() -> nn.Sequential:
    """Scalar Bias and Scale modules around a convolution."""
    modules = [Bias(), nn.Conv2d(1, 2, 2, bias=False), Scale(), nn.Tanh(), Bias(), nn.Flatten()]
    return nn.Sequential(*modules, Scale(), nn.Linear(8, CLASSES))


def fixup() -> FixupResNet:
    return FixupResNet(1, CLASSES, width=2, depth=8)


def frozen_first() -> nn.Sequential:
    network = mlp(4, 3, 3, CLASSES)
    network[0].requires_grad_(False)
    return network


def frozen_weight() -> nn.Sequential:
    network = mlp(4, 3, CLASSES)
    network[0].weight.requires_grad_(False)
    return network


def frozen_head() -> nn.Sequential:
    network = mlp(4, 3, CLASSES)
    network[2].requires_grad_(False)
    return network


def dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Tanh(), nn.Linear(3, CLASSES))


def conv_last() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, CLASSES, 3), nn.Flatten())


def conv_on_both(first: dict[str, object], size: int) -> nn.Sequential:
    """Two convolutions, a pool and a head; `size` numbers are left for the head."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, **first),  # type: ignore[arg-type]
        nn.Tanh(),
        nn.Conv2d(2, 4, 2, stride=2, groups=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(size, CLASSES),
    )


def in_place_conv() -> nn.Sequential:
    modules = [nn.Conv2d(1, 2, 2), nn.ReLU(inplace=True), nn.Conv2d(2, 2, 2), nn.ReLU(inplace=True)]
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(8, CLASSES))


@dataclass(frozen=True)
class NetworkCase:
    """How to build a network and the shape of one input."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def network(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The network with every parameter drawn at random, none of them zero, in a fixed way."""
        network = self.build().to(dtype)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in network.parameters():
                draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                fan = max(1, parameter[0].numel())
                parameter.copy_(draw / fan**0.5 + (parameter.numel() == 1))
        return network

    def rows(self, count: int, samples: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Inputs (count·samples, …); the samples of an example are alike but not the same."""
        generator = torch.Generator().manual_seed(2)
        examples = torch.randn(count, 1, *self.shape, generator=generator, dtype=torch.float64)
        noise = torch.randn(count, samples, *self.shape, generator=generator, dtype=torch.float64)
        return (examples + 0.7 * noise).flatten(0, 1).to(dtype)


IMAGE = (2, 5, 4)

CONVOLUTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "without bias": {"bias": False},
    "kernel 2×3": {"kernel_size": (2, 3)},
    "stride": {"stride": 2},
    "stride 2×1": {"stride": (2, 1)},
    "padding": {"padding": 1},
    "padding 1×0": {"padding": (1, 0)},
    "padding same, even kernel": {"kernel_size": (2, 4), "padding": "same"},
    "padding valid": {"padding": "valid"},
    "dilation": {"kernel_size": 2, "dilation": 2},
    "groups": {"out_channels": 4, "groups": 2},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "reflect": {"padding": (2, 1), "kernel_size": (5, 3), "padding_mode": "reflect"},
    "replicate": {"padding": (2, 1), "padding_mode": "replicate"},
    "all together": {
        "out_channels": 4,
        "kernel_size": (3, 2),
        "stride": (2, 1),
        "padding": (1, 2),
        "dilation": (1, 2),
        "groups": 2,
        "padding_mode": "circular",
    },
}


def _conv_case(settings: dict[str, object]) -> NetworkCase:
    """The number of features follows from the convolution itself."""
    made = nn.Conv2d(**{"in_channels": 2, "out_channels": 2, "kernel_size": 3, **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that even kernels cost a copy
        features = made(torch.zeros(1, *IMAGE)).numel()
    return NetworkCase(lambda: conv_net(features, **settings), IMAGE)


NETWORKS: dict[str, NetworkCase] = {
    "linear": NetworkCase(lambda: mlp(4, CLASSES), (4,)),
    "network is the layer": NetworkCase(lambda: nn.Linear(4, CLASSES), (4,)),
    "linear without bias": NetworkCase(lambda: nn.Linear(4, CLASSES, bias=False), (4,)),
    "mlp": NetworkCase(lambda: mlp(4, 3, 3, CLASSES), (4,)),
    "mlp, activation last": NetworkCase(lambda: mlp(4, 3, CLASSES).append(nn.Tanh()), (4,)),
    "in-place relu": NetworkCase(
        lambda: mlp(4, 3, 3, CLASSES, activation=lambda: nn.ReLU(inplace=True)), (4,)
    ),
    "dropout": NetworkCase(dropout, (4,)),
    "tokens": NetworkCase(Tokens, (3, 3)),
    "used twice": NetworkCase(UsedTwice, (4,)),
    "head used twice": NetworkCase(HeadUsedTwice, (CLASSES,)),
    "unused": NetworkCase(Unused, (4,)),
    "residual": NetworkCase(Residual, (CLASSES,)),
    "frozen first layer": NetworkCase(frozen_first, (4,)),
    "frozen weight": NetworkCase(frozen_weight, (4,)),
    "frozen head": NetworkCase(frozen_head, (4,)),
    "conv last": NetworkCase(conv_last, (1, 5, 5)),
    "conv used twice": NetworkCase(ConvUsedTwice, (2, 4, 4)),
    "conv, in-place relu": NetworkCase(in_place_conv, (1, 4, 4)),
    "cnn": NetworkCase(lambda: conv_on_both({"stride": 2, "padding": 1}, 4), (1, 8, 8)),
    "scalars": NetworkCase(scalars, (1, 3, 3)),
    "fixup": NetworkCase(fixup, (1, 4, 4)),
    **{f"conv {name}": _conv_case(settings) for name, settings in CONVOLUTIONS.items()},
}


@dataclass(frozen=True)
class LikelihoodCase:
    """A likelihood of the library with what the oracles need to know of it."""

    build: Callable[[], Likelihood]
    curvature: OutputCurvature

    def targets(self, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        if isinstance(self.build(), Categorical):
            return torch.randint(CLASSES, (count,), generator=generator)
        drawn = torch.randn(count, CLASSES, generator=generator, dtype=torch.float64)
        return drawn.to(dtype)


LIKELIHOODS: dict[str, LikelihoodCase] = {
    "categorical": LikelihoodCase(Categorical, softmax_curvature),
    "gaussian": LikelihoodCase(lambda: Gaussian(NOISE), gaussian_curvature(NOISE)),
}


def library_blocks(
    network: nn.Module, rows: Tensor, samples: int, likelihood: Likelihood, **options: object
) -> dict[str, Tensor]:
    """The library's blocks by parameter name, written out, (groups, p, p)."""
    found = KFAC(network).batch(rows, samples, likelihood, **options)  # type: ignore[arg-type]
    scale = likelihood.curvature_scale().detach()
    count = len(rows) // samples
    return {name: factors.dense(count) * scale for name, factors in found.factors().items()}


def relative_difference(got: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected entry (the plain difference where that is 0)."""
    assert got.shape == expected.shape, f"{tuple(got.shape)} against {tuple(expected.shape)}"
    size = float(expected.detach().abs().max())
    return float((got - expected).detach().abs().max()) / (size or 1.0)


def assert_equal(got: Tensor, expected: Tensor, what: str, tolerance: float | None = None) -> None:
    """Equal within the table's tolerance for the dtype of `got`; a NaN is never equal."""
    difference = relative_difference(got, expected)
    allowed = TOLERANCE[got.dtype] if tolerance is None else tolerance
    assert difference <= allowed, f"{what}: relative difference {difference:.2e} > {allowed:.0e}"
