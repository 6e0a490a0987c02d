"""A compact convolutional network for images and sequences, which `--model auto` often takes.

    m = mean of x over places               its mean colour, (batch, channels)
    h = (x − m) / spread → convolutions of stride 2, tanh
    outputs = head of (h as one vector, (m − centre) / spread)

Widths are w, 2w, 4w, 4w, …: each layer halves the sides, until the longest is at most 4. The first
kernel has 5 places a side, the others 3. On 32×32×3 with w = 8 that is 8–16–32 channels and 7,964
parameters for three classes, so that its Kronecker factors are small (515 at most) and copies
cheap.

The mean colour goes past the convolutions. Pictures in [0, 1] are far from zero mean and differ in
it; under a Gaussian prior a network on them often ends with all weights at zero, and learns shapes
late if at all. Nothing is lost: the head still has the mean colour. centre and spread are constants
of the data (`data_statistics`), recorded with the other arguments of the network.

The head sees where things are: there is no average over pixels, with which a small network learned
turned shapes much more slowly. No layer looks at other examples, and all have curvature rules.
Stride 2 takes the place of pooling: both lose translations by single pixels, and striding costs a
quarter. Axes: images (batch, channels, height, width), sequences (batch, channels, length).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least

LAST_SIDE = 4
"""Layers are added until no side of the map is longer."""


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
