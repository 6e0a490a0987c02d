"""Modules with a forward pass of their own, for the networks of `network_cases`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 3
EMBEDDING = 4


class Tokens(nn.Module):
    """One Linear layer shared over tokens (batch, tokens, features), their mean, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Linear(3, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.token(tokens).tanh().mean(1))


class UsedTwice(nn.Module):
    """A layer called twice, on its own output, which may be of another size; a mean and a head."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or nn.Linear(4, 4)
        self.head = nn.Linear(self.inner.bias.numel(), CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inner(self.inner(inputs).tanh()).tanh()
        return self.head(hidden.flatten(2).mean(2) if hidden.ndim > 2 else hidden)


class HeadUsedTwice(nn.Module):
    """The layer that ends the network is also called in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(CLASSES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.only(self.only(inputs).tanh())


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


class NormUsedTwice(nn.Module):
    """One normalisation on tokens and then on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.norm(self.token(tokens)).tanh().mean(1)))


class Attention(nn.Module):
    """torch's own self-attention on tokens, with masks, beside a way past it, and a head."""

    def __init__(self, masks: tuple[str, ...] = (), weights: bool = True, **settings: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(EMBEDDING, 2, batch_first=True, **settings)
        self.head = nn.Linear(EMBEDDING, CLASSES)
        self.masks, self.weights = masks, weights

    def forward(self, tokens: Tensor) -> Tensor:
        count = tokens.shape[1]
        settings: dict[str, object] = {"need_weights": self.weights}
        if "attention" in self.masks:
            settings["attn_mask"] = torch.ones(count, count, dtype=torch.bool).triu(1)
        if "padding" in self.masks:
            settings["key_padding_mask"] = (torch.arange(count) == count - 1).expand(
                len(tokens), -1
            )
        attended, weights = self.attention(tokens, tokens, tokens, **settings)
        assert (weights is not None) == self.weights
        return self.head((tokens + attended).tanh().mean(1))


class QueryKeyValue(nn.Module):
    """Self-attention of one Linear layer for all three and `scaled_dot_product_attention`."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(EMBEDDING, 3 * EMBEDDING)
        self.proj = nn.Linear(EMBEDDING, EMBEDDING)
        self.head = nn.Linear(EMBEDDING, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, size = tokens.shape
        q, k, v = self.qkv(tokens).reshape(batch, count, 3, 2, size // 2).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        attended = attended.transpose(1, 2).reshape(batch, count, size)
        return self.head((tokens + self.proj(attended)).tanh().mean(1))


class Transformer(nn.Module):
    """torch's own encoder layer, the mean over tokens, a head."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(
            EMBEDDING,
            2,
            5,
            activation="gelu",
            batch_first=True,
            **settings,  # type: ignore[arg-type]
        )
        self.head = nn.Linear(EMBEDDING, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens).mean(1))
