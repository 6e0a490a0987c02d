"""Small networks for images and sequences: strided convolutions, stages of convolutions, tokens.

    compact  convolutions of stride 2 on what differs from the mean colour, a head on both
    oriented edges in eight directions by fixed filters, then strided convolutions and a head
    pooled   each image standardised by itself; 3×3 convolutions of widths w, 2w, 4w, …, with group
             normalisation, ReLU and maxima over 2×2 pixels until no side exceeds 4; a head on
             averages over quarters of the image
    turnable each image standardised by itself and brought to 16×16 (8×8) pixels; 3×3 convolutions
             of widths w, 2w, 4w, maxima over 2×2 pixels after the first two, a head on the places
             that are left. `build` and `relax` convert every layer: convolutions keep sizes, and
             what halves or resizes lies symmetrically on the grid
    convnet  three stages of two 3×3 convolutions with ReLU, widths w, 2w, 4w, halved after the
             first two stages; average over pixels; linear head
    vit      patches, a class token, learned positions, pre-norm blocks of attention and MLP
    mixer    patches, blocks that mix tokens and then channels, average over tokens

**compact**, which `--model auto` often takes, sees the mean colour m of its inputs x apart:

    h = (x − m) / spread → convolutions, tanh      outputs = head of (h, (m − centre) / spread)

Images in [0, 1] are far from zero mean and differ in it; under a Gaussian prior a network on them
often ends with all weights at zero, and learns shapes late if at all. Nothing is lost: the head
still has the mean colour. Each layer halves the sides, until the longest is at most 4; widths are
w, 2w, 4w, 4w, …, on 32×32×3 with w = 8 that is 7,964 parameters for three classes, so that its
Kronecker factors are small (515 at most) and copies cheap. The head sees where things are: with an
average over pixels a small network learned turned shapes much more slowly. Stride 2 takes the place
of pooling: both lose translations by single pixels, and striding costs a quarter.

**oriented** sees edges before it has learned anything, for tasks where every learned number is paid
for (`isotropy certify`). With the derivative g of a smoothed image and unit vectors e_k at k · 45°,

    edges_k = max(0, ⟨e_k, g⟩)     averaged and halved twice, divided by their size over the image

The filters are binomial: smoothing (1, 6, 15, 20, 15, 6, 1)/64 along one axis, and along the other
the same times (−3, …, 3). They are constants, and every machine has the same.

**Halving** is where a convolutional network loses translations by less than its stride: a maximum
over 2×2 pixels, of which every second is kept, folds high frequencies onto low ones. The `blur`
variant (Zhang 2019) takes the maximum at every pixel, then a binomial average, then every second:

    b = (1, 4, 6, 4, 1) / 16 along each axis        pixel j of the output about pixel 2j + ½

so that both kinds of halving leave the same pixels, and the networks differ in nothing else.

None of these has layers that look at other examples, and all layers have curvature rules. Every
operation is a module or a plain function of tensors: attention is written out as matrix products
and a softmax. Images are (batch, channels, height, width), sequences (batch, channels, length),
tokens (batch, tokens, width), row-major, the class token first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, check_at_least, check_choice
from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule

Pooling = Literal["max", "blur"]
POOLINGS: tuple[Pooling, ...] = ("max", "blur")
POSITION_SIZE = 0.2
"""Deviation of positions at the start: about the size of tokens, so that places differ at once."""


LAST_SIDE = 4
"""Layers are added until no side of the map is longer."""
FAINTEST_EDGE = 1e-3
"""Edges are divided by their size and this, for images with values in [0, 1]."""


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width; raises CallerError where the inputs are no images."""
    if len(shape) != 3:
        raise CallerError(
            f"expected images (channels, height, width), got inputs of {tuple(shape)}"
        )
    channels, height, width = shape
    return channels, height, width


# --- convolutions -------------------------------------------------------------------------


class CompactNetwork(nn.Module):
    """Convolutions on what differs from the mean colour, and a head on both.

    centre (channels,) and spread are constants; they are arguments and not part of the weights.
    """

    centre: Tensor

    def __init__(
        self, convolutions: nn.Sequential, head: nn.Linear, centre: Sequence[float], spread: float
    ) -> None:
        super().__init__()
        self.convolutions = convolutions
        self.head = head
        values = torch.tensor(list(centre), dtype=torch.get_default_dtype())
        self.register_buffer("centre", values, persistent=False)
        self.spread = float(spread)

    def forward(self, inputs: Tensor) -> Tensor:
        mean = inputs.mean(tuple(range(2, inputs.ndim)), keepdim=True)
        hidden = self.convolutions((inputs - mean) / self.spread).flatten(1)
        colour = (mean.flatten(1) - self.centre.to(inputs)) / self.spread
        outputs: Tensor = self.head(torch.cat([hidden, colour], 1))
        return outputs


def compact(
    shape: Sequence[int],
    outputs: int,
    *,
    width: int = 8,
    centre: Sequence[float] | None = None,
    spread: float = 1.0,
) -> nn.Module:
    """The network for images (channels, height, width) or sequences (channels, length).

    centre, spread: of the data, per channel and in all; zero and one by default
    """
    if len(shape) not in (2, 3):
        raise CallerError(
            "model compact: expected images (channels, height, width) or sequences (channels, "
            f"length), got inputs of {tuple(shape)}; use --model mlp"
        )
    check_at_least(width, 1, what="width of model compact")
    if not spread > 0:
        raise CallerError(f"model compact: expected a spread above 0, got {spread}")
    channels, *sides = shape
    if centre is not None and len(centre) != channels:
        raise CallerError(
            f"model compact: expected a centre for each of {channels} channels, got {len(centre)}"
        )
    convolution: Any = nn.Conv2d if len(sides) == 2 else nn.Conv1d
    layers: list[nn.Module] = []
    before, index = channels, 0
    while index == 0 or max(sides) > LAST_SIDE:
        after, kernel = width * min(4, 1 << index), 3 if index else 5
        layers += [convolution(before, after, kernel, stride=2, padding=kernel // 2), nn.Tanh()]
        sides = [(side + 1) // 2 for side in sides]
        before, index = after, index + 1
    places = sides[0] * (sides[1] if len(sides) == 2 else 1)
    head = nn.Linear(before * places + channels, outputs)
    return CompactNetwork(nn.Sequential(*layers), head, centre or [0.0] * channels, spread)


def data_statistics(inputs: Tensor) -> dict[str, Any]:
    """centre and spread of inputs (examples, channels, …), rounded as a record holds them.

    spread is the deviation of values within an example from the mean of their channel there.
    """
    flat = inputs.flatten(2)
    spread = float((flat - flat.mean(2, keepdim=True)).square().mean().sqrt())
    return {
        "centre": [round(value, 6) for value in flat.mean((0, 2)).tolist()],
        "spread": float(f"{spread:.4g}") if spread > 0 else 1.0,
    }


class BlurPool(nn.Module):
    """Binomial average over 5×5 pixels, of which every second is kept; the image is mirrored.

    (batch, channels, height, width) → (batch, channels, ⌈height/2⌉, ⌈width/2⌉)
    """

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        taps = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
        self.register_buffer("kernel", torch.outer(taps, taps), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        channels = images.shape[1]
        padded = functional.pad(images, (2, 2, 2, 2), mode="reflect")
        kernel = self.kernel.to(images).expand(channels, 1, 5, 5)
        return functional.conv2d(padded, kernel, stride=2, groups=channels)


class OrientedEdges(nn.Module):
    """Edges in eight directions, a quarter of the pixels along each axis.

    (batch, channels, height, width) → (batch, 8 · channels, ⌈height/4⌉, ⌈width/4⌉); the root mean
    square over an example is one, and a constant image away from its border is zero.
    """

    derivatives: Tensor
    directions: Tensor

    def __init__(self) -> None:
        super().__init__()
        smooth = torch.tensor([1.0, 6.0, 15.0, 20.0, 15.0, 6.0, 1.0]) / 64
        along = torch.outer(smooth, smooth * torch.arange(-3.0, 4.0))
        half = 0.5**0.5
        ways = [(1.0, 0.0), (half, half), (0.0, 1.0), (-half, half)]
        ways += [(-x, -y) for x, y in ways]
        self.register_buffer("derivatives", torch.stack([along, along.T]), persistent=False)
        self.register_buffer("directions", torch.tensor(ways), persistent=False)
        self.halved = nn.Sequential(BlurPool(), BlurPool())

    def forward(self, images: Tensor) -> Tensor:
        batch, channels, *sides = images.shape
        kernels = self.derivatives.to(images)[:, None]
        slopes = functional.conv2d(images.reshape(-1, 1, *sides), kernels, padding=3)
        edges = functional.conv2d(slopes, self.directions.to(images)[:, :, None, None]).relu()
        found: Tensor = self.halved(edges.view(batch, 8 * channels, *sides))
        size = found.square().mean((1, 2, 3), keepdim=True).sqrt()
        return found / (size + FAINTEST_EDGE)


def _large_enough(shape: Sequence[int], width: int, name: str) -> tuple[int, int, int]:
    """Channels, height and width of images that a network of this name takes."""
    channels, height, across = image_shape(shape)
    check_at_least(width, 1, what=f"width of model {name}")
    if min(height, across) < 8:
        raise CallerError(
            f"model {name}: expected images of at least 8×8 pixels, got {height}×{across}; use "
            "--image-size 8 or --model mlp"
        )
    return channels, height, across


def oriented(shape: Sequence[int], outputs: int, *, width: int = 32) -> nn.Module:
    """Oriented edges, 3×3 convolutions of stride 2 with ReLU until no side exceeds 4, a head."""
    channels, *sides = _large_enough(shape, width, "oriented")
    layers: list[nn.Module] = [OrientedEdges()]
    sides, before = [(side + 3) // 4 for side in sides], 8 * channels
    while len(layers) == 1 or max(sides) > LAST_SIDE:
        layers += [nn.Conv2d(before, width, 3, stride=2, padding=1), nn.ReLU()]
        sides, before = [(side + 1) // 2 for side in sides], width
    head = nn.Linear(before * sides[0] * sides[1], outputs)
    return nn.Sequential(*layers, nn.Flatten(), head)


class Standardised(nn.Module):
    """(x − mean) / deviation of each example by itself: no constants come from the data."""

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        deviation = flat.std(1, keepdim=True) + 1e-3
        return ((flat - flat.mean(1, keepdim=True)) / deviation).view_as(inputs)


def pooled(shape: Sequence[int], outputs: int, *, width: int = 32) -> nn.Module:
    """Standardised images, normalised convolutions and maxima in turns, quarters, a head.

    98,826 weights for 32×32×3, ten classes and w = 32.
    """
    channels, *sides = _large_enough(shape, width, "pooled")
    layers: list[nn.Module] = [Standardised()]
    before, stage = channels, 0
    while max(sides) > LAST_SIDE:
        after = width << min(stage, 2)
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(math.gcd(4, after), after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        sides, before, stage = [side // 2 for side in sides], after, stage + 1
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * before, outputs)
    )


def turnable(shape: Sequence[int], outputs: int, *, width: int = 6) -> nn.Module:
    """Three 3×3 convolutions with ReLU on images of 16×16 pixels, halved twice; a linear head.

    Images are averaged over bins to 16 pixels a side, or to 8 where a side has fewer than 16. The
    bins are the same seen from all sides, so that turns and mirrors of images are those of the
    maps. 7,186 weights for one channel, ten classes and w = 6.
    """
    channels, *sides = _large_enough(shape, width, "turnable")
    side = 16 if min(sides) >= 16 else 8
    layers: list[nn.Module] = [Standardised(), nn.AdaptiveAvgPool2d(side)]
    before = channels
    for stage in range(3):
        layers += [nn.Conv2d(before, width << stage, 3, padding=1), nn.ReLU()]
        before = width << stage
        if stage < 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * (side // 4) ** 2, outputs))


def convnet(
    shape: Sequence[int], outputs: int, *, width: int = 32, pooling: Pooling = "max"
) -> nn.Module:
    """Six 3×3 convolutions in three stages, halved twice by `pooling`; He initialisation.

    pooling: max keeps every second maximum, blur averages before it does
    """
    channels, *_ = _large_enough(shape, width, "convnet")
    check_choice(pooling, POOLINGS, what="pooling")
    layers: list[nn.Module] = []
    before = channels
    for stage in range(3):
        if stage:
            layers += _halved(pooling)
        for _ in range(2):
            layers += [nn.Conv2d(before, width << stage, 3, padding=1), nn.ReLU()]
            before = width << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def _halved(pooling: Pooling) -> list[nn.Module]:
    if pooling == "max":
        return [nn.MaxPool2d(2)]
    # Maxima of pixels i and i + 1 lie at i + ½; the blur keeps every second, 2j + ½, as MaxPool2d.
    return [nn.MaxPool2d(2, stride=1), BlurPool()]


def blurred_convnet(shape: Sequence[int], outputs: int, *, width: int = 32) -> nn.Module:
    """`convnet` with pooling="blur"."""
    return convnet(shape, outputs, width=width, pooling="blur")


# --- tokens -------------------------------------------------------------------------------


class Patches(nn.Module):
    """Images → tokens: a convolution whose stride is its size, pixels row by row."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.projection(images)
        return patches.flatten(2).mT


class ClassToken(nn.Module):
    """A learned token in front of the others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(POSITION_SIZE * torch.randn(width))

    def forward(self, tokens: Tensor) -> Tensor:
        own = self.token.expand(len(tokens), 1, -1)
        return torch.cat([own, tokens], 1)


class Positions(nn.Module):
    """A learned vector for each place, added to the token there."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(POSITION_SIZE * torch.randn(tokens, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.vectors


class _ClassTokenRule(LayerRule):
    """The exact block of the class token: its gradient, summed over copies."""

    parameters = ("token",)

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        return inputs.new_zeros(())  # the gradient alone says everything

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient)
        return {"token": DenseRoots(total[:, :, 0].flatten(0, 1))}


class _PositionsRule(LayerRule):
    """I ⊗ G with G = (1/T) Σ_n Σ_d Σ_t ĝ ĝᵀ over the T places.

    That is a linear layer on inputs which say the place, one of T: its A is N times the identity.
    In the block (1/N) · outputs ⊗ inputs the places are the slow index, so they stand as outputs.
    """

    parameters = ("vectors",)

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        return inputs.new_zeros(())

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient)
        _, batch, places, _ = total.shape
        every = math.sqrt(batch) * torch.eye(places, dtype=total.dtype, device=total.device)
        rows = total.flatten(0, 2)[None] / math.sqrt(places)
        return {"vectors": KroneckerRoots(rows, every[None])}


register_rule(ClassToken, _ClassTokenRule())
register_rule(Positions, _PositionsRule())


class SelfAttention(nn.Module):
    """softmax(q kᵀ/√d) v by heads, written out; q, k and v from one linear layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.softmax = nn.Softmax(-1)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        by_head = self.queries_keys_values(tokens).unflatten(2, (3, self.heads, -1))
        queries, keys, values = by_head.permute(2, 0, 3, 1, 4)  # (batch, heads, tokens, features)
        likeness = queries @ keys.mT / math.sqrt(queries.shape[-1])
        attended = (self.softmax(likeness) @ values).transpose(1, 2).flatten(2)
        projected: Tensor = self.projection(attended)
        return projected


def _perceptron(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class AttentionBlock(nn.Module):
    """x + attention(norm x), then x + MLP(norm x)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.channel_norm = nn.LayerNorm(width)
        self.channels = _perceptron(width, 4 * width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        changed: Tensor = tokens + self.channels(self.channel_norm(tokens))
        return changed


class MixerBlock(nn.Module):
    """x + (MLP over tokens of norm x), then x + (MLP over channels of norm x)."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(width)
        self.tokens = _perceptron(tokens, 2 * tokens)
        self.channel_norm = nn.LayerNorm(width)
        self.channels = _perceptron(width, 4 * width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.tokens(self.token_norm(tokens).mT).mT
        changed: Tensor = tokens + self.channels(self.channel_norm(tokens))
        return changed


class VisionTransformer(nn.Module):
    """Patches, class token, positions, blocks, norm, and a head on the class token.

    Dosovitskiy et al. 2021, small and without dropout.
    """

    def __init__(
        self,
        channels: int,
        tokens: int,
        outputs: int,
        width: int,
        depth: int,
        heads: int,
        patch: int,
    ) -> None:
        super().__init__()
        self.patches = Patches(channels, width, patch)
        self.class_token = ClassToken(width)
        self.positions = Positions(tokens + 1, width)
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.positions(self.class_token(self.patches(images)))
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


class Mixer(nn.Module):
    """Patches, mixing blocks, norm, and a head on the average token (Tolstikhin et al. 2021)."""

    def __init__(
        self, channels: int, tokens: int, outputs: int, width: int, depth: int, patch: int
    ) -> None:
        super().__init__()
        self.patches = Patches(channels, width, patch)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.patches(images))).mean(1))
        return logits


def vit(
    shape: Sequence[int],
    outputs: int,
    *,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    patch: int = 4,
) -> nn.Module:
    """A small vision transformer on images whose sides are whole numbers of patches."""
    channels, tokens = _patched(shape, patch, width, depth, "vit")
    if heads < 1 or width % heads:
        raise CallerError(
            f"model vit: expected a width that is a multiple of its {heads} heads, got {width}"
        )
    return VisionTransformer(channels, tokens, outputs, width, depth, heads, patch)


def mixer(
    shape: Sequence[int], outputs: int, *, width: int = 128, depth: int = 4, patch: int = 4
) -> nn.Module:
    """A small MLP-mixer on images whose sides are whole numbers of patches."""
    channels, tokens = _patched(shape, patch, width, depth, "mixer")
    return Mixer(channels, tokens, outputs, width, depth, patch)


def _patched(
    shape: Sequence[int], patch: int, width: int, depth: int, name: str
) -> tuple[int, int]:
    """Channels of an image and the number of its patches."""
    channels, height, across = image_shape(shape)
    check_at_least(width, 1, what=f"width of model {name}")
    check_at_least(depth, 1, what=f"depth of model {name}")
    check_at_least(patch, 1, what=f"patch of model {name}")
    if height % patch or across % patch:
        raise CallerError(
            f"model {name}: expected images whose sides are multiples of {patch} pixels, got "
            f"{height}×{across}; use --image-size {patch * max(1, round(across / patch))}"
        )
    return channels, height // patch * (across // patch)
