"""A layer whose outputs hold norms and angles of pairs, and the standard networks beside it.

For inputs O₁ (batch, m), m even, and X = O₁W + b with W (m, m), e and o its even and odd columns
(counted from 0, so e comes first),

    r = √(e² + o² + 1e-8)        O₁ → [O₁, r, e/r, o/r, e·o/r²]        (batch, m) → (batch, 3m) .

A norm of a pair is an invariant of a two-dimensional irreducible part of a representation, and
e/r, o/r are cosine and sine of its angle. So moduli of a discrete Fourier transform, which shifts
leave alone, are one layer away; so are invariants of other cycles and of rotations. (Zhang and
Arodz, "Learning Invariance in Deep Neural Networks", section 4; the paper prints T for X in O₃ and
O₄. The 1e-8 keeps values and gradients finite where a pair is zero.)
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice

SMALLEST = 1e-8
"""Added to squared norms."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "selu": nn.SELU,
}
"""Of standard networks, by name."""
RICH = "rich"
NETWORKS = (RICH, *ACTIVATIONS)
"""Names that `network_for` takes."""


class RichLayer(nn.Module):
    """(batch, m) → (batch, 3m), as above; `weight` is a linear layer from m to m."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 2 or width % 2:
            raise CallerError(
                f"rich layer: expected an even width of at least 2, got {width}; put a linear "
                "layer to an even width in front of it, as rich_network does"
            )
        self.linear = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        pairs = self.linear(inputs)
        even, odd = pairs[:, 0::2], pairs[:, 1::2]
        norm = (even.square() + odd.square() + SMALLEST).sqrt()
        cosine, sine = even / norm, odd / norm
        return torch.cat((inputs, norm, cosine, sine, cosine * sine), 1)


def rich_network(inputs: int, outputs: int, layers: int = 2) -> nn.Sequential:
    """Rich layers and a linear map: (batch, inputs) → (batch, outputs).

    Widths grow as 3^layers · inputs. An odd number of inputs gets a linear layer first, to one
    more.
    """
    even = inputs + inputs % 2
    parts: list[nn.Module] = [nn.Linear(inputs, even)] if even != inputs else []
    parts += [RichLayer(even * 3**place) for place in range(layers)]
    return nn.Sequential(*parts, nn.Linear(even * 3**layers, outputs))


def standard_network(
    inputs: int, outputs: int, activation: str, layers: int = 4, width: int | None = None
) -> nn.Sequential:
    """Linear layers with an activation between them: (batch, inputs) → (batch, outputs).

    activation: one of `ACTIVATIONS`; selu starts from normal weights of variance 1/inputs of the
                layer and zero biases, others as torch's linear layers do
    layers:     linear layers, the last one included
    width:      of hidden layers, 8 · inputs by default, as in the paper
    """
    kind = ACTIVATIONS[check_choice(activation, ACTIVATIONS, what="activation")]
    hidden = width or 8 * inputs
    sizes = [inputs, *[hidden] * (layers - 1), outputs]
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        linear = nn.Linear(before, after)
        if kind is nn.SELU:
            nn.init.normal_(linear.weight, std=before**-0.5)
            nn.init.zeros_(linear.bias)
        parts += [linear, kind()]
    return nn.Sequential(*parts[:-1])


def network_for(
    name: str, inputs: int, outputs: int, layers: int, width: int | None = None
) -> nn.Sequential:
    """`rich_network` or `standard_network` by name (`NETWORKS`); width: of standard ones."""
    check_choice(name, NETWORKS, what="network")
    if name == RICH:
        return rich_network(inputs, outputs, layers)
    return standard_network(inputs, outputs, name, layers, width)
