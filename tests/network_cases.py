"""Small networks in float64, one list for all tests of curvature and evidence.

A new kind of layer joins `NETWORKS` and inherits: its blocks against the formula written out, the
evidence's value and its two-pass gradient. Also the comparison that all of these use.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from network_modules import (
    CLASSES,
    EMBEDDING,
    Attention,
    HeadUsedTwice,
    NormUsedTwice,
    QueryKeyValue,
    Residual,
    Tokens,
    Transformer,
    Unused,
    UsedTwice,
)
from oracles.dense_ggn import OutputCurvature, gaussian_curvature, softmax_curvature
from torch import Tensor, nn

from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kinds import Copies
from isotropy.likelihoods import Categorical, Gaussian, Likelihood
from isotropy.networks.zoo.backbones import rff
from isotropy.networks.zoo.residual_networks import Bias, FixupResNet, Scale

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}
"""Largest difference that counts as equal, relative to the largest entry."""

NOISE = 0.7


def frozen_in_projection() -> nn.Module:
    network = Attention()
    network.attention.in_proj_weight.requires_grad_(False)
    network.attention.in_proj_bias.requires_grad_(False)
    return network


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise(widths):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(*layers[:-1])


def scalars() -> nn.Sequential:
    """Scalar Bias and Scale modules around a convolution."""
    modules = [Bias(), nn.Conv2d(1, 2, 2, bias=False), Scale(), nn.Tanh(), Bias(), nn.Flatten()]
    return nn.Sequential(*modules, Scale(), nn.Linear(8, CLASSES))


def fixup() -> FixupResNet:
    return FixupResNet(1, CLASSES, width=2, depth=8)


def random_features() -> nn.Module:
    """Nothing but the last layer has parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return rff((2, 2), CLASSES, width=3)


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
            for buffer in network.buffers():  # means and variances of batch normalisation
                if buffer.is_floating_point():
                    buffer.add_(torch.rand(buffer.shape, generator=generator, dtype=torch.float64))
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
    "padding same, even kernel": {"kernel_size": (2, 4), "padding": "same"},
    "dilation": {"kernel_size": 2, "dilation": 2},
    "padding valid": {"padding": "valid"},
    "groups": {"out_channels": 4, "groups": 2},
    "reflect": {"padding": (2, 1), "kernel_size": (5, 3), "padding_mode": "reflect"},
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


# kind: (channels and size of one input, settings by name)
OTHER_CONVOLUTIONS: dict[str, tuple[type[nn.Module], tuple[int, ...], dict[str, dict]]] = {
    "conv1d": (nn.Conv1d, (2, 6), {
        "plain": {},
        "padding same, even kernel": {"kernel_size": 4, "padding": "same"},
        "all together": {"out_channels": 4, "stride": 2, "padding": 3, "dilation": 2, "groups": 2,
                         "padding_mode": "reflect"},
    }),
    "conv3d": (nn.Conv3d, (2, 3, 2, 3), {
        "plain": {"kernel_size": 2},
        "all together": {"out_channels": 4, "kernel_size": (2, 1, 2), "stride": (1, 2, 1),
                         "padding": (1, 0, 1), "dilation": (1, 1, 2), "groups": 2,
                         "padding_mode": "replicate"},
    }),
    "transposed conv1d": (nn.ConvTranspose1d, (2, 3), {
        "plain": {},
        "rim": {"kernel_size": 2, "dilation": 3, "output_padding": 2},
    }),
    "transposed conv": (nn.ConvTranspose2d, (2, 2, 3), {
        "plain": {"kernel_size": 2},
        "without bias": {"kernel_size": (1, 2), "bias": False},
        "all together": {"out_channels": 4, "kernel_size": (2, 3), "stride": (2, 1),
                         "padding": (0, 2), "output_padding": (1, 1), "dilation": (1, 2),
                         "groups": 2},
    }),
    "transposed conv3d": (nn.ConvTranspose3d, (2, 2, 1, 2), {
        "all together": {"out_channels": 2, "kernel_size": (2, 1, 2), "stride": (1, 2, 2),
                         "padding": (1, 0, 0), "output_padding": (0, 1, 0), "groups": 2},
    }),
}  # fmt: skip


def _conv_case(
    settings: dict[str, object],
    kind: Callable[..., nn.Module] = nn.Conv2d,
    shape: tuple[int, ...] = IMAGE,
) -> NetworkCase:
    """The number of features follows from the convolution itself."""
    settings = {"in_channels": 2, "out_channels": 2, "kernel_size": 3, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that even kernels cost a copy
        features = kind(**settings)(torch.zeros(1, *shape)).numel()
    return NetworkCase(lambda: _before_head(kind(**settings), features), shape)


def _before_head(layer: nn.Module, features: int) -> nn.Sequential:
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES))


def _norm_case(norm: Callable[[], nn.Module], first: Callable[[], nn.Module], *shape: int):
    """A layer, a normalisation of what it returns, tanh and a head."""
    features = first()(torch.zeros(1, *shape)).numel()
    return NetworkCase(
        lambda: nn.Sequential(first(), *_before_head(norm(), features)), tuple(shape)
    )


NORMS: dict[str, NetworkCase] = {
    "layer norm": _norm_case(lambda: nn.LayerNorm(4), lambda: nn.Linear(3, 4), 3),
    "layer norm on tokens": _norm_case(lambda: nn.LayerNorm(4), lambda: nn.Linear(3, 4), 2, 3),
    # A bias would vanish in the mean that is taken off these.
    "layer norm on images": _norm_case(
        lambda: nn.LayerNorm((3, 2)), lambda: nn.Conv2d(1, 2, 2, bias=False), 1, 4, 3
    ),
    "layer norm without shift": _norm_case(
        lambda: nn.LayerNorm(4, bias=False), lambda: nn.Linear(3, 4), 3
    ),
    "rms norm": _norm_case(lambda: nn.RMSNorm(4), lambda: nn.Linear(3, 4), 2, 3),
    "group norm": _norm_case(lambda: nn.GroupNorm(2, 4), lambda: nn.Conv2d(1, 4, 2), 1, 3, 3),
    "instance norm": _norm_case(
        lambda: nn.InstanceNorm2d(2, affine=True), lambda: nn.Conv2d(1, 2, 2, bias=False), 1, 3, 3
    ),
    "instance norm, running": _norm_case(
        lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
        lambda: nn.Conv1d(1, 2, 2),
        1,
        4,
    ),
    "norm without parameters": _norm_case(
        lambda: nn.InstanceNorm2d(2), lambda: nn.Conv2d(1, 2, 2, bias=False), 1, 3, 3
    ),
    "batch norm on vectors": _norm_case(lambda: nn.BatchNorm1d(4), lambda: nn.Linear(3, 4), 3),
    "batch norm": _norm_case(lambda: nn.BatchNorm2d(2), lambda: nn.Conv2d(1, 2, 2), 1, 3, 3),
    "batch norm in space": _norm_case(
        lambda: nn.BatchNorm3d(2), lambda: nn.Conv3d(1, 2, (1, 2, 2)), 1, 2, 3, 3
    ),
    "norm used twice": NetworkCase(NormUsedTwice, (2, 3)),
}

ATTENTION: dict[str, NetworkCase] = {
    "attention": NetworkCase(Attention, (3, EMBEDDING)),
    "attention without weights": NetworkCase(lambda: Attention(weights=False), (3, EMBEDDING)),
    "attention without bias": NetworkCase(lambda: Attention(bias=False), (2, EMBEDDING)),
    "attention, masks": NetworkCase(lambda: Attention(("attention", "padding")), (3, EMBEDDING)),
    "attention, frozen in-projection": NetworkCase(frozen_in_projection, (2, EMBEDDING)),
    "query, key and value in one": NetworkCase(QueryKeyValue, (3, EMBEDDING)),
    "transformer": NetworkCase(Transformer, (2, EMBEDDING)),
    "transformer, norm first": NetworkCase(lambda: Transformer(norm_first=True), (2, EMBEDDING)),
}

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
    "random features": NetworkCase(random_features, (2, 2)),
    "frozen first layer": NetworkCase(frozen_first, (4,)),
    "frozen weight": NetworkCase(frozen_weight, (4,)),
    "frozen head": NetworkCase(frozen_head, (4,)),
    "conv last": NetworkCase(conv_last, (1, 5, 5)),
    "conv used twice": NetworkCase(lambda: UsedTwice(nn.Conv2d(2, 2, 2)), (2, 4, 4)),
    "conv, in-place relu": NetworkCase(in_place_conv, (1, 4, 4)),
    "cnn": NetworkCase(lambda: conv_on_both({"stride": 2, "padding": 1}, 4), (1, 8, 8)),
    "scalars": NetworkCase(scalars, (1, 3, 3)),
    "fixup": NetworkCase(fixup, (1, 4, 4)),
    **{f"conv {name}": _conv_case(settings) for name, settings in CONVOLUTIONS.items()},
    **{
        f"{kind} {name}": _conv_case(given, make, shape)
        for kind, (make, shape, settings) in OTHER_CONVOLUTIONS.items()
        for name, given in settings.items()
    },
    "transposed conv used twice": NetworkCase(
        lambda: UsedTwice(nn.ConvTranspose2d(2, 2, 2)), (2, 2, 2)
    ),
    **NORMS,
    **ATTENTION,
}


EVERY_RULE = (
    "mlp",
    "tokens",
    "used twice",
    "scalars",
    "conv all together",
    "transposed conv all together",
    "layer norm on tokens",
    "group norm",
    "attention",
)
"""A network for each layer rule, and for what each is shared over."""  # fmt: skip


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
    network: nn.Module,
    rows: Tensor,
    copies: int | Copies,
    likelihood: Likelihood,
    **options: object,
) -> dict[str, Tensor]:
    """The library's blocks by parameter name, written out, (groups, p, p)."""
    copies = Copies(copies) if isinstance(copies, int) else copies
    found = KFAC(network).batch(rows, copies, likelihood, **options)  # type: ignore[arg-type]
    scale = likelihood.curvature_scale().detach()
    count = len(rows) // copies.count
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


def assert_blocks_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal block by block, and under the same names."""
    assert found.keys() == expected.keys()
    for name, block in expected.items():
        assert_equal(found[name], block, name)
