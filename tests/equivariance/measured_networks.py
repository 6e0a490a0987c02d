"""Small networks of every kind that is measured, with the inputs they take.

`NETWORKS` names them; `built(name, dtype)` gives one with fixed weights and running statistics of
its own, in evaluation mode, and a batch of inputs. `Compute` makes a function a network; `draw` and
`filled` give numbers and weights that are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.images import affine
from isotropy.symmetry.actions.sequences import sequences


class Compute(nn.Module):
    """A function as a network, or as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Between(nn.Module):
    """A function of the input and of layers: what it does itself stands between these."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def filled(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network in double precision with weights that depend on the seed alone."""
    network = network.double()
    for number, parameter in enumerate(network.parameters()):
        parameter.data = 0.5 * draw(*parameter.shape, seed=100 * seed + number)
    return network


class ResidualBlock(nn.Module):
    """BatchNorm, ReLU in place and `y += r`, as residual networks are written."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        shape_changes = stride > 1 or before != after
        self.down = nn.Conv2d(before, after, 1, stride, bias=False) if shape_changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 1, 1)
        self.blocks = nn.Sequential(ResidualBlock(6, 6, 1), ResidualBlock(6, 8, 2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    """Attention written out; `formula` by einsum."""

    def __init__(self, width: int, heads: int, formula: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.formula = heads, formula

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        parts = self.qkv(x).reshape(batch, count, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        if self.formula:
            scores = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
            mixed = torch.einsum("bhij,bhjd->bhid", scores, v)
        else:
            mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, count, width))


class FusedAttention(nn.Module):
    """Attention by torch's own function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v)[:, 0]


class TorchAttention(nn.Module):
    """nn.MultiheadAttention, of which only the first result is used."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class TransformerBlock(nn.Module):
    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), attention
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token, learned positions; the class token is read out."""

    def __init__(self, attention: Callable[[int], nn.Module], tokens_out: bool = False) -> None:
        super().__init__()
        width = 8
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.3 * torch.randn(1, 10, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, attention(width)) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)
        self.tokens_out = tokens_out

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = self.norm(self.blocks(x))
        return self.head(x if self.tokens_out else x[:, 0])


class Mixer(nn.Module):
    """Patches by reshape and permute, then mixing over tokens and over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 16, 8)
        self.tokens = nn.ModuleList(self._mlp(9) for _ in range(2))
        self.channels = nn.ModuleList(self._mlp(8) for _ in range(2))
        self.head = nn.Linear(8, 5)

    @staticmethod
    def _mlp(width: int) -> nn.Module:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, height // 4, 4, width // 4, 4)
        x = self.embed(x.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * 16))
        for tokens, mix in zip(self.tokens, self.channels, strict=True):
            x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
            x = x + mix(x)
        return self.head(x.mean(1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 5),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 144, 10), nn.Tanh(), nn.Linear(10, 5))


class ChannelsLast(nn.Module):
    """Feature maps (batch, height, width, channels), split and put together again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x.permute(0, 2, 3, 1)))
        left, right = self.second(x).chunk(2, -1)
        left = self.depthwise(left.permute(0, 3, 1, 2)).movedim(1, -1)
        return self.head(torch.cat([torch.sigmoid(left), right], -1).mean((1, 2)))


class UNet(nn.Module):
    """An image to an image, down and up, with a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, 2, 1)
        self.up, self.leave = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.gelu(self.enter(x))
        return self.leave(torch.cat([first, self.up(F.gelu(self.down(first)))], 1))


class Autoencoder(nn.Module):
    """An image to a vector and back: the decoder unfolds it."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.GELU(), nn.Flatten())
        self.code, self.unfold = nn.Linear(36, 6), nn.Linear(6, 36)
        self.decode = nn.ConvTranspose2d(4, 3, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.unfold(self.code(self.encode(x))).view(-1, 4, 3, 3))


def sequence_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 6, 5, 2, 2),
        nn.GELU(),
        nn.Conv1d(6, 6, 3, padding=1),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


class SeveralInputs(nn.Module):
    """An image and a vector beside it, by keyword; a dictionary, a tuple and a number come out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.beside = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(2, 4)
        self.head = nn.Linear(4, 5)

    def forward(self, *, vector: Tensor, image: Tensor) -> dict[str, object]:
        maps = F.gelu(self.conv(image) + self.beside(vector)[..., None, None])
        # The maximum has no mean to hide behind: the head is not invariant.
        return {"scores": self.head(maps.amax((2, 3))), "both": (maps, vector), "count": 3}


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3, 12, 12)

    def action(self) -> Action:
        if len(self.shape) == 2:
            return sequences(("shift", "stretch"))
        return affine(("translation_x", "rotation"), padding="reflection")


NETWORKS = {
    "resnet": Case(ResNet),
    "vit": Case(lambda: VisionTransformer(lambda width: Attention(width, 2))),
    "vit by einsum": Case(lambda: VisionTransformer(lambda width: Attention(width, 2, True))),
    "vit fused": Case(lambda: VisionTransformer(FusedAttention)),
    "vit of torch": Case(lambda: VisionTransformer(TorchAttention)),
    "vit to tokens": Case(lambda: VisionTransformer(FusedAttention, tokens_out=True)),
    "mixer": Case(Mixer),
    "convolutional": Case(convolutional),
    "perceptron": Case(perceptron),
    "channels last": Case(ChannelsLast),
    "u-net": Case(UNet),
    "autoencoder": Case(Autoencoder),
    "sequence": Case(sequence_network, (2, 20)),
}


def settled(network: nn.Module) -> nn.Module:
    """In evaluation mode, with running statistics that are no longer zero and one."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 1.5)
    return network.eval()


def built(
    name: str, dtype: torch.dtype = torch.float64, batch: int = 3
) -> tuple[nn.Module, Tensor]:
    """A network of `NETWORKS` and a batch for it; the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        network = settled(NETWORKS[name].make().to(dtype))
        return network, torch.randn(batch, *NETWORKS[name].shape, dtype=dtype)


def smooth_images(batch: int, channels: int, size: int, highest: int, *, seed: int = 0) -> Tensor:
    """Periodic images (batch, channels, size, size) in float64 with few frequencies."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, channels, size, size)
    spectrum = torch.fft.fft2(torch.randn(shape, generator=generator, dtype=torch.float64))
    frequency = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64).abs()
    low = frequency <= highest
    return torch.fft.ifft2(spectrum * (low & low[:, None])).real
