"""Masked pretraining of a vision transformer (He et al. 2022, "Masked autoencoders").

Of the patches of an image a share is hidden, drawn anew at every step. The transformer sees the
others alone, a small decoder sees what became of them and a learned token for each hidden one, and
predicts the pixels of all patches:

    loss = mean over hidden patches and their pixels of (predicted − pixels)²

Labels are not used. Afterwards the decoder is thrown away, and the transformer is trained on as any
other network is. Pixels are as they are; the paper also tries patches of unit variance.

Axis order: images (batch, channels, height, width), tokens (batch, tokens, features), patches
(batch, tokens, channels · patch²), row by row as `Patches` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least
from isotropy.evidence.settings import cosine, stream
from isotropy.kernels.captured import CapturedFunction, adamw, held_by, set_rate
from isotropy.networks.zoo.image_networks import (
    POSITION_SIZE,
    AttentionBlock,
    Positions,
    VisionTransformer,
)


@dataclass(frozen=True)
class PretrainingSettings:
    """masked: the share of patches that is hidden; the decoder's sizes; Adam with decay.

    The rate grows from zero over `warm_up` of all steps, then falls along half a cosine to zero.
    """

    epochs: int = 200
    batch_size: int = 500
    rate: float = 1.5e-3
    decay: float = 0.05
    warm_up: float = 0.05
    masked: float = 0.75
    decoder_width: int = 64
    decoder_depth: int = 2
    decoder_heads: int = 4

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "decoder_depth", "decoder_heads"):
            check_at_least(getattr(self, name), 1, what=name.replace("_", " "))
        if not 0 < self.masked < 1:
            raise CallerError(f"masked: expected a share above 0 and below 1, got {self.masked}")


class MaskedAutoencoder(nn.Module):
    """A transformer that sees some patches, and a decoder that predicts the others.

    transformer: without its head, which is not used; it is trained in place
    """

    def __init__(self, transformer: VisionTransformer, settings: PretrainingSettings) -> None:
        super().__init__()
        projection = transformer.patches.projection
        width, channels, self.patch, _ = projection.weight.shape
        tokens, own = len(transformer.positions.vectors) - 1, settings.decoder_width
        self.transformer = transformer
        self.visible = max(1, round((1 - settings.masked) * tokens))
        if self.visible == tokens:
            raise CallerError(
                f"masked: expected a share that hides one or more of {tokens} patches, got "
                f"{settings.masked}"
            )
        self.narrow = nn.Linear(width, own)
        self.hidden_token = nn.Parameter(POSITION_SIZE * torch.randn(own))
        self.positions = Positions(tokens + 1, own)
        blocks = (
            AttentionBlock(own, settings.decoder_heads) for _ in range(settings.decoder_depth)
        )
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(own)
        self.pixels = nn.Linear(own, channels * self.patch**2)

    def patches(self, images: Tensor) -> Tensor:
        """Pixels by patch, (batch, tokens, channels · patch²)."""
        return nn.functional.unfold(images, self.patch, stride=self.patch).mT

    def forward(self, images: Tensor, order: Tensor) -> Tensor:
        """Predicted pixels of all patches, (batch, tokens, channels · patch²).

        order: (batch, tokens), a permutation of the patches for each image; those it has first
               are seen
        """
        own = self.transformer
        tokens = own.positions(own.class_token(own.patches(images)))
        seen = order[:, : self.visible]
        encoded = self._encoded(torch.cat([tokens[:, :1], _at(tokens[:, 1:], seen)], 1))
        hidden = self.hidden_token.expand(len(images), order.shape[1] - self.visible, -1)
        shuffled = torch.cat([encoded[:, 1:], hidden], 1)
        placed = torch.cat([encoded[:, :1], _at(shuffled, order.argsort(1))], 1)
        decoded = self.norm(self.blocks(self.positions(placed)))
        predicted: Tensor = self.pixels(decoded[:, 1:])
        return predicted

    def _encoded(self, tokens: Tensor) -> Tensor:
        narrow: Tensor = self.narrow(self.transformer.norm(self.transformer.blocks(tokens)))
        return narrow

    def loss(self, images: Tensor, order: Tensor) -> Tensor:
        """The mean of squares over the hidden patches alone."""
        hidden = order[:, self.visible :]
        errors = _at(self(images, order) - self.patches(images), hidden)
        return errors.square().mean()


def _at(tokens: Tensor, places: Tensor) -> Tensor:
    """tokens (batch, tokens, features) at places (batch, count)."""
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))


def pretrain(
    transformer: nn.Module, images: Tensor, settings: PretrainingSettings, *, seed: int
) -> list[float]:
    """Train `transformer` in place on images (examples, …) on its device; the loss by epoch.

    seed: decides the decoder's weights, the batches and what is hidden
    """
    if not isinstance(transformer, VisionTransformer):
        raise CallerError(
            f"masked pretraining: expected a vision transformer, as model vit is, got "
            f"{type(transformer).__name__}"
        )
    device = images.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MaskedAutoencoder(transformer, settings).to(device).train()
    unused = set(transformer.head.parameters())
    parameters = [each for each in model.parameters() if each not in unused]
    optimiser = adamw(parameters, rate=settings.rate, decay=settings.decay)
    total = torch.zeros((), device=device)

    def step(batch: Tensor, order: Tensor) -> None:
        optimiser.zero_grad(set_to_none=False)
        loss = model.loss(batch, order)
        loss.backward()
        optimiser.step()
        total.add_(loss.detach())

    take: Callable[..., None] = step
    if device.type == "cuda":
        take = CapturedFunction(step, lambda: [*parameters, total, *held_by(optimiser)])
    size = min(settings.batch_size, len(images))
    count = len(images) // size  # what is left over is drawn in another epoch
    steps, tokens, losses = settings.epochs * count, len(transformer.positions.vectors) - 1, []
    for epoch in range(settings.epochs):
        total.zero_()
        for number, chosen in enumerate(_batches(len(images), size, seed, epoch, device)):
            done = epoch * count + number
            warm = min(1.0, (done + 1) / max(1.0, settings.warm_up * steps))
            set_rate(optimiser, warm * cosine(settings.rate, 0.0, done / steps))
            drawn = stream(seed, "hidden patches", done, device)
            order = torch.rand(size, tokens, generator=drawn, device=device).argsort(1)
            take(images[chosen], order)
        losses.append(float(total) / count)
    if not math.isfinite(losses[-1]):
        raise CallerError("masked pretraining: the loss is no number; lower its rate")
    return losses


def _batches(
    examples: int, size: int, seed: int, epoch: int, device: torch.device
) -> Iterator[Tensor]:
    """Whole batches of one random order of the examples."""
    order = torch.randperm(examples, generator=stream(seed, "order", epoch)).to(device)
    yield from order[: examples // size * size].split(size)
