"""Networks by name: those of the invariance-learning paper, for clouds of points, and for motions.

    mlp      784–1000–10, tanh                                   795,010 parameters
    cnn      a LeNet: three convolutions, two linear layers, tanh   60,170 parameters
    resnet   Fixup ResNet of depth 8, widths 16, 32, 64             74,827 parameters on 32×32×3
    wrn      Fixup wide ResNet of depth 16, 4 times as wide      2,745,306 parameters on 32×32×3
    circular convolutions that go round the borders, so that translations are built in
    rff      1024 fixed random features √(2/D) cos(Wx + b), then one linear layer
    relu     one hidden ReLU layer of 1024, Xavier
    clouds   counts points in places, then one hidden layer

The first four are those of Immer et al. 2022, without normalisation layers; `rff` and `relu` are
those of van der Ouderaa & van der Wilk 2021 (Learning invariant weights). `residual_networks` has
`resnet` and `wrn`, `image_networks` `compact`, `oriented`, `pooled`, `turnable`, `convnet`,
`convnet-blur`, `vit` and `mixer`. Each factory takes the shape of one input and the number of
outputs, so that a run folder can rebuild its network from a name and arguments.

Clouds (batch, points, dimensions) are counted softly about a regular grid of places c,

    n_c(x) = Σ_p exp( −‖x_p − c‖² / 2w² )       w = 0.7 of the grid's step

so that counts, and everything behind them, are smooth in the points' coordinates and ranges over
motions of clouds can be learned through them. A sum over points is the same in every order; a
network that takes the points as one long row would have to learn each order by itself.

A network of a state (batch, 2m) = (x, p) says how it moves, directly or by an energy:

    neural ODE        dz/dt = f(z)                                     f: state → state
    Hamiltonian       dx/dt = ∂H/∂p,  dp/dt = −∂H/∂x                   H: state → scalar

If f is equivariant, or H invariant, so is the motion; what a continuous symmetry of H conserves is
then conserved by the motion that was learned (Noether; Finzi 2023, 2.7.2; Chen et al. 2018;
Greydanus et al. 2019). `experiments.dynamics` follows states in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional

from isotropy.checks import CallerError, check_at_least, check_axes, check_choice, shape_text
from isotropy.networks.zoo.image_networks import (
    blurred_convnet,
    compact,
    convnet,
    image_shape,
    mixer,
    oriented,
    pooled,
    turnable,
    vit,
)
from isotropy.networks.zoo.residual_networks import resnet, wrn

CELLS = 14
REACH = 2.2
WIDTH = 0.7
"""Of a cell's bump, in steps of the grid: neighbours overlap, and no place falls between them."""
FAINTEST = -40.0
"""Exponent at which a bump ends, e^−40: smaller numbers, and their products, are no normal numbers
in single precision, and products of matrices become twenty times slower by them."""


def mlp(shape: Sequence[int], outputs: int, *, hidden: int = 1000) -> nn.Module:
    """One hidden tanh layer on flattened inputs of the given shape."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


class Cosine(nn.Module):
    """√(2/D) cos(x) of D features."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = math.sqrt(2 / features)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs.cos()


class RandomFeatures(nn.Module):
    """√(2/D) cos(Wx + b) of (batch, …, inputs), with W ~ N(0, σ²) and b ~ U[0, 2π) drawn once.

    Products of features tend to exp(−σ²‖x − x′‖²/2) as their number D grows (Rahimi & Recht 2007).
    W and b are buffers, which are saved but not trained, drawn by torch's default generator.

    deviation: σ; 0.3 suits pictures of 28×28 pixels in [0, 1]
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, features: int, *, deviation: float = 0.3) -> None:
        super().__init__()
        check_at_least(features, 1, what="width of the random features")
        if not 0 < deviation < math.inf:
            raise CallerError(
                f"deviation of the random features: expected above 0, got {deviation:g}; 0.3 suits "
                "pictures in [0, 1]"
            )
        self.register_buffer("weight", deviation * torch.randn(features, inputs))
        self.register_buffer("bias", 2 * math.pi * torch.rand(features))
        self.activation = Cosine(features)

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.activation(functional.linear(inputs, self.weight, self.bias))
        return features


def rff(
    shape: Sequence[int], outputs: int, *, width: int = 1024, deviation: float = 0.3
) -> nn.Module:
    """One linear layer on `width` random features of flattened inputs; only it is trained."""
    features = RandomFeatures(math.prod(shape), width, deviation=deviation)
    return nn.Sequential(nn.Flatten(), features, nn.Linear(width, outputs))


def relu(shape: Sequence[int], outputs: int, *, width: int = 1024) -> nn.Module:
    """One hidden ReLU layer on flattened inputs; Xavier weights, biases zero (Glorot 2010)."""
    check_at_least(width, 1, what="width of the hidden layer")
    layers = (nn.Linear(math.prod(shape), width), nn.Linear(width, outputs))
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1])


def cnn(shape: Sequence[int], outputs: int) -> nn.Module:
    """The paper's LeNet, no padding; kernels 5, 3, 5 with tanh (28 px) or 5, 5, 5 with ReLU (32).

    Its third convolution must see at least 5×5 pixels; what it leaves is averaged to one pixel, so
    that larger images work too (at 28 and 32 px nothing is left to average).
    """
    channels, height, width = image_shape(shape)
    if min(height, width) < 28:
        raise CallerError(
            f"model cnn: expected images of at least 28×28 pixels, got {height}×{width}; use "
            "--image-size 28 or --model mlp"
        )
    small = min(height, width) < 32
    activation: type[nn.Module] = nn.Tanh if small else nn.ReLU
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 3 if small else 5),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 120, 5),
        activation(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(120, 84),
        activation(),
        nn.Linear(84, outputs),
    )


def circular(shape: Sequence[int], outputs: int, *, width: int = 16) -> nn.Module:
    """Convolutions that go round the borders, and an average over all pixels.

    Its outputs do not change when the content moves by whole pixels: translation is built in.
    """
    channels, _, _ = image_shape(shape)

    def layer(before: int, after: int, size: int) -> nn.Module:
        return nn.Conv2d(before, after, size, padding=size // 2, padding_mode="circular")

    return nn.Sequential(
        layer(channels, width, 5),
        nn.Tanh(),
        layer(width, 2 * width, 5),
        nn.Tanh(),
        layer(2 * width, 2 * width, 5),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, outputs),
    )


class SoftCounts(nn.Module):
    """Clouds (batch, points, dimensions) → how many points lie about each cell (batch, cells).

    dimensions: columns of a cloud, 1 to 3
    cells:      cells along each axis, from −reach to reach
    width:      of a cell's Gaussian bump, in steps from one cell to the next
    """

    def __init__(
        self,
        dimensions: int = 2,
        *,
        cells: int = CELLS,
        reach: float = REACH,
        width: float = WIDTH,
    ) -> None:
        super().__init__()
        if dimensions not in (1, 2, 3):
            raise CallerError(f"dimensions: expected 1, 2 or 3, got {dimensions}")
        check_at_least(cells, 2, what="cells along an axis")
        if not (reach > 0 and width > 0):
            raise CallerError(f"reach and width: expected above 0, got {reach} and {width}")
        self.dimensions = dimensions
        self.cells = cells
        self.width = width * 2 * reach / (cells - 1)
        self.register_buffer("places", torch.linspace(-reach, reach, cells), persistent=False)

    places: Tensor

    @property
    def features(self) -> int:
        """The number of cells in all."""
        return int(self.cells**self.dimensions)

    def forward(self, clouds: Tensor) -> Tensor:
        """Counts (batch, cells) of clouds (batch, points, dimensions)."""
        axes = ("batch", "points", "dimensions")
        check_axes(clouds, axes, what="clouds", advice="one cloud is x[None]")
        if clouds.shape[2] != self.dimensions:
            raise CallerError(
                f"clouds: expected (batch, points, {self.dimensions}), got {shape_text(clouds)}; "
                "dimensions= says how many columns there are"
            )
        offset = (clouds[..., None] - self.places.to(clouds)) / self.width
        # Along each axis (batch, points, cells); a cell in the plane has the product of two.
        first, *others = (-offset.square() / 2).clamp(min=FAINTEST).exp().unbind(2)
        if not others:
            return first.sum(1)
        last = others.pop()
        for bumps in others:
            first = (first[..., None] * bumps[..., None, :]).flatten(2)
        return (first.mT @ last).flatten(1)


def cloud_network(
    shape: Sequence[int], outputs: int, *, hidden: int = 50, cells: int = CELLS
) -> nn.Module:
    """Soft counts, then one hidden tanh layer, on clouds of shape (points, dimensions)."""
    if len(shape) != 2:
        raise CallerError(
            f"model clouds: expected clouds (points, dimensions), got inputs of {tuple(shape)}"
        )
    counts = SoftCounts(shape[1], cells=cells)
    return nn.Sequential(
        counts, nn.Linear(counts.features, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "rff": rff,
    "relu": relu,
    "cnn": cnn,
    "circular": circular,
    "resnet": resnet,
    "wrn": wrn,
    "clouds": cloud_network,
    "compact": compact,
    "oriented": oriented,
    "pooled": pooled,
    "turnable": turnable,
    "convnet": convnet,
    "convnet-blur": blurred_convnet,
    "vit": vit,
    "mixer": mixer,
}


def backbone(name: str, shape: Sequence[int], outputs: int, **arguments: Any) -> nn.Module:
    """A network by name, for inputs of `shape` (without the batch axis)."""
    factory = BACKBONES[check_choice(name, BACKBONES, what="model")]
    return factory(shape, outputs, **arguments)


class NeuralODE(nn.Module):
    """d/dt of states (batch, 2m) as the network gives it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, states: Tensor) -> Tensor:
        return self.network(states)


class HamiltonianNetwork(nn.Module):
    """d/dt of states (batch, 2m) from an energy; the network's output is (batch, 1)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def energy(self, states: Tensor) -> Tensor:
        """H (batch) of states (batch, 2m)."""
        return self.network(states)[..., 0]

    def forward(self, states: Tensor) -> Tensor:
        if states.shape[-1] % 2:
            raise CallerError(
                f"a Hamiltonian network: expected states (batch, 2m) of places and momenta, got "
                f"{states.shape[-1]} numbers"
            )
        slopes = grad(lambda given: self.energy(given).sum())(states)
        by_place, by_momentum = slopes.chunk(2, -1)
        return torch.cat([by_momentum, -by_place], -1)
