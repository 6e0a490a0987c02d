"""Residual networks without normalisation layers (Fixup, Zhang et al. 2019; Immer et al. 2022).

    resnet   depth 6n + 2, widths w, 2w, 4w: n blocks a stage        74,827 parameters, 8 and 16
    wrn      depth 6n + 4, k times as wide as 16, 32, 64          2,745,306 parameters, 16 and 4

Convolutions have no biases; single numbers b (from 0) and s (from 1) take the place of
normalisations. A block f of each kind, with ρ = max(0, ·) and convolutions C₁ and C₂,

    resnet   ρ( s · C₂ (ρ(C₁ (x + b₁) + b₂) + b₃) + b₄ + shortcut )
    wrn      s · C₂ (ρ(C₁ a + b₂) + b₃) + b₄ + shortcut ,        a = ρ(x + b₁)

adds its shortcut: x itself, unless the block changes the number of channels. Then it is every
second pixel of x + b₁ beside channels of zeros (resnet), or a convolution of 1×1 pixels of a (wrn,
Zagoruyko & Komodakis 2016). Blocks start as their shortcuts, and networks with outputs of zero:

    C₁ ~ N(0, 2 / (outputs · 9 · blocks)),   C₂ = 0,   1×1 ~ N(0, 2 / outputs),   last layer 0

The first convolution starts as torch has it. Images are (batch, channels, height, width); before
the last layer stands an average over all pixels, so that any size of image works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_at_least
from isotropy.curvature.blocks import DenseRoots, Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule
from isotropy.networks.zoo.image_networks import image_shape


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
    """The exact 1×1 block of a scalar: its gradient, summed over samples and positions.

    derivative: of the loss by the scalar, from inputs and gradients, before it is summed
    """

    def __init__(self, name: str, derivative: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.parameters = (name,)
        self.derivative = derivative

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        return inputs.new_zeros(())  # the gradient alone says everything

    def reduce_gradient(
        self, module: nn.Module, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        per_row = self.derivative(inputs, gradient).flatten(2).sum(2)
        return per_row.unflatten(1, (-1, copies.count)).sum(2)

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient)
        return {self.parameters[0]: DenseRoots(total.reshape(-1, 1))}


register_rule(Bias, _ScalarRule("bias", lambda _, gradient: gradient))
register_rule(Scale, _ScalarRule("scale", lambda inputs, gradient: gradient * inputs))


class _Branch(nn.Module):
    """Two 3×3 convolutions with scalar biases and a scale; the second starts at zero."""

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int) -> None:
        super().__init__()
        self.bias_before = Bias()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bias_middle = Bias()
        self.bias_between = Bias()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.scale = Scale()
        self.bias_after = Bias()
        nn.init.normal_(self.conv1.weight, std=math.sqrt(2 / (outputs * 9) / blocks))
        nn.init.zeros_(self.conv2.weight)

    def branch(self, inputs: Tensor) -> Tensor:
        """conv, bias, ReLU, bias, conv, scale, bias."""
        middle = self.bias_between(functional.relu(self.bias_middle(self.conv1(inputs))))
        outputs: Tensor = self.bias_after(self.scale(self.conv2(middle)))
        return outputs


class _FixupBlock(_Branch):
    """bias, branch, + shortcut, ReLU.

    A block that halves the image adds the sub-sampled *biased* input, with zero channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int) -> None:
        super().__init__(inputs, outputs, stride, blocks)
        # One of stride² pixels: a module, so that `isotropy.build` can choose it by symmetry.
        self.subsampling = nn.AvgPool2d(1, stride) if stride > 1 else None

    def forward(self, inputs: Tensor) -> Tensor:
        biased = self.bias_before(inputs)
        shortcut = inputs
        if self.subsampling is not None:
            shortcut = self.subsampling(biased)
            shortcut = torch.cat([shortcut, torch.zeros_like(shortcut)], 1)
        return functional.relu(self.branch(biased) + shortcut)


class _WideBlock(_Branch):
    """bias, ReLU, branch, + shortcut.

    Where the number of channels changes, the shortcut is a 1×1 convolution after the first ReLU.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, blocks: int) -> None:
        super().__init__(inputs, outputs, stride, blocks)
        self.shortcut: nn.Conv2d | None = None
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            nn.init.normal_(self.shortcut.weight, std=math.sqrt(2 / outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        active = functional.relu(self.bias_before(inputs))
        shortcut = inputs if self.shortcut is None else self.shortcut(active)
        return self.branch(active) + shortcut


class _Stages(nn.Module):
    """A first convolution, three stages of blocks of width w, 2w, 4w, and a head that starts at 0.

    stem: channels of the first convolution
    """

    block: type[_Branch]

    def __init__(self, sizes: tuple[int, int], stem: int, width: int, per_stage: int) -> None:
        super().__init__()
        channels, outputs = sizes
        self.stem = nn.Conv2d(channels, stem, 3, padding=1, bias=False)
        self.stem_bias = Bias()
        layers: list[nn.Module] = []
        previous = stem
        for stage in range(3):
            for index in range(per_stage):
                stride = 2 if stage and index == 0 else 1
                layers.append(self.block(previous, width << stage, stride, 3 * per_stage))
                previous = width << stage
        self.blocks = nn.Sequential(*layers)
        self.head_bias = Bias()
        self.head = nn.Linear(previous, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """The head of the average over pixels."""
        found: Tensor = self.head(self.head_bias(hidden.mean((2, 3))))
        return found


class FixupResNet(_Stages):
    """Residual network without normalisation, Fixup initialisation (Zhang et al. 2019).

    depth = 6·(blocks per stage) + 2; three stages of width w, 2w, 4w; global average; linear head.
    """

    block = _FixupBlock

    def __init__(self, channels: int, outputs: int, width: int = 16, depth: int = 8) -> None:
        if depth < 8 or (depth - 2) % 6:
            raise CallerError(f"depth: expected 6·n + 2 with n of 1 or more, got {depth}")
        super().__init__((channels, outputs), width, width, (depth - 2) // 6)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.blocks(functional.relu(self.stem_bias(self.stem(images)))))


class FixupWideResNet(_Stages):
    """Wide residual network without normalisation, Fixup initialisation.

    depth = 6·(blocks per stage) + 4; three stages of width 16k, 32k, 64k after a first convolution
    of width 16; global average; linear head. width: k
    """

    block = _WideBlock

    def __init__(self, channels: int, outputs: int, depth: int = 16, width: int = 4) -> None:
        if depth < 10 or (depth - 4) % 6:
            raise CallerError(
                f"depth of a wide ResNet: expected 6·n + 4 with n of 1 or more, got {depth}; 10, "
                "16, 22 and 28 are such depths"
            )
        check_at_least(width, 1, what="width of a wide ResNet")
        super().__init__((channels, outputs), 16, 16 * width, (depth - 4) // 6)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(functional.relu(self.blocks(self.stem_bias(self.stem(images)))))


def resnet(shape: Sequence[int], outputs: int, *, width: int = 16, depth: int = 8) -> nn.Module:
    """Fixup ResNet on images."""
    return FixupResNet(image_shape(shape)[0], outputs, width=width, depth=depth)


def wrn(shape: Sequence[int], outputs: int, *, depth: int = 16, width: int = 4) -> nn.Module:
    """Fixup wide ResNet on images; `wrn:16-4` in words."""
    return FixupWideResNet(image_shape(shape)[0], outputs, depth=depth, width=width)
