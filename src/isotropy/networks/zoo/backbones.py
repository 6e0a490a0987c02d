"""The networks of the invariance-learning paper (Immer et al. 2022), without normalisation layers.

    mlp      784–1000–10, tanh                                   795,010 parameters
    cnn      a LeNet: three convolutions, two linear layers, tanh   60,170 parameters
    resnet   Fixup ResNet of depth 8, widths 16, 32, 64             74,827 parameters on 32×32×3

and, by the same kind of name, `clouds` for clouds of points (`small_networks`), `compact` for
pictures and sequences (`compact`), and the networks of `image_networks`: `convnet`,
`convnet-blur`, `vit`, `mixer`.

Each factory takes the shape of one input and the number of outputs, so that a run folder can
rebuild its network from a name and JSON arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.blocks import DenseRoots, Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule
from isotropy.networks.zoo.compact import compact
from isotropy.networks.zoo.image_networks import blurred_convnet, convnet, image_shape, mixer, vit
from isotropy.networks.zoo.small_networks import cloud_network


def mlp(shape: Sequence[int], outputs: int, *, hidden: int = 1000) -> nn.Module:
    """One hidden tanh layer on flattened inputs of the given shape."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


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


class Bias(nn.Module):
    """x + b with one scalar b for the whole tensor (Fixup)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.bias


class Scale(nn.Module):
    """s·x with one scalar s for the whole tensor (Fixup)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


class _ScalarRule(LayerRule):
    """The exact 1×1 block of a scalar: its gradient, summed over samples and positions."""

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        return inputs.new_zeros(())  # the gradient alone says everything

    def reduce_gradient(
        self, module: nn.Module, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        per_row = self.derivative(inputs, gradient).flatten(2).sum(2)
        return per_row.unflatten(1, (-1, copies.count)).sum(2)

    def derivative(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        raise NotImplementedError

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient)
        return {self.parameters[0]: DenseRoots(total.reshape(-1, 1))}


class _BiasRule(_ScalarRule):
    parameters = ("bias",)

    def derivative(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        return gradient


class _ScaleRule(_ScalarRule):
    parameters = ("scale",)

    def derivative(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        return gradient * inputs


register_rule(Bias, _BiasRule())
register_rule(Scale, _ScaleRule())


class _FixupBlock(nn.Module):
    """bias, conv, bias, ReLU, bias, conv, scale, bias, + shortcut, ReLU.

    A block that halves the image adds the sub-sampled *biased* input, with zero channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int) -> None:
        super().__init__()
        self.bias_before = Bias()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bias_middle = Bias()
        self.bias_between = Bias()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.scale = Scale()
        self.bias_after = Bias()
        self.stride = stride
        deviation = math.sqrt(2 / (outputs * 9) / blocks)
        nn.init.normal_(self.conv1.weight, std=deviation)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        biased = self.bias_before(inputs)
        shortcut = inputs
        if self.stride > 1:
            shortcut = biased[:, :, :: self.stride, :: self.stride]
            shortcut = torch.cat([shortcut, torch.zeros_like(shortcut)], 1)
        middle = self.bias_between(functional.relu(self.bias_middle(self.conv1(biased))))
        return functional.relu(self.bias_after(self.scale(self.conv2(middle))) + shortcut)


class FixupResNet(nn.Module):
    """Residual network without normalisation, Fixup initialisation (Zhang et al. 2019).

    depth = 6·(blocks per stage) + 2; three stages of width w, 2w, 4w; global average; linear head.
    """

    def __init__(self, channels: int, outputs: int, width: int = 16, depth: int = 8) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise CallerError(f"depth: expected 6·n + 2 with n of 1 or more, got {depth}")
        per_stage = (depth - 2) // 6
        blocks = 3 * per_stage
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.stem_bias = Bias()
        layers: list[nn.Module] = []
        previous = width
        for stage in range(3):
            for index in range(per_stage):
                stride = 2 if stage and index == 0 else 1
                layers.append(_FixupBlock(previous, width << stage, stride, blocks))
                previous = width << stage
        self.blocks = nn.Sequential(*layers)
        self.head_bias = Bias()
        self.head = nn.Linear(previous, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.stem_bias(self.stem(images)))
        pooled = self.blocks(hidden).mean((2, 3))
        logits: Tensor = self.head(self.head_bias(pooled))
        return logits


def resnet(shape: Sequence[int], outputs: int, *, width: int = 16, depth: int = 8) -> nn.Module:
    """Fixup ResNet on images."""
    return FixupResNet(image_shape(shape)[0], outputs, width=width, depth=depth)


BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "circular": circular,
    "resnet": resnet,
    "clouds": cloud_network,
    "compact": compact,
    "convnet": convnet,
    "convnet-blur": blurred_convnet,
    "vit": vit,
    "mixer": mixer,
}


def backbone(name: str, shape: Sequence[int], outputs: int, **arguments: Any) -> nn.Module:
    """A network by name, for inputs of `shape` (without the batch axis)."""
    factory = BACKBONES[check_choice(name, BACKBONES, what="model")]
    return factory(shape, outputs, **arguments)
