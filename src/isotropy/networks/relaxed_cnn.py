"""The convolutional network of eight stages in which every layer is a sum of pathways.

    stage     1    2    3    4    5    6    7    8      α width; ReLU after each
    channels  α    2α   2α   4α   4α   8α   8α   16α
    halves    –    yes  –    yes  –    yes  yes  yes    X → X/32

then `hidden`, 16α → 64α with ReLU, and `head`, 64α → outputs (van der Ouderaa, Immer and van der
Wilk 2023, Table 6, whose rows 3, 5 and 8 are misprinted). No normalisation layers. With the
convolution alone every stage is equivariant to circular shifts, and the logits are invariant.

With a group convolution over H images are lifted, f(h, c, x) = image(c, x), all stages have |H|
times the channels, group-major, and `pool` takes the maximum over h before the hidden layer: with
that pathway alone logits are invariant to H too. Other pathways take (h, c) as ordinary channels.

Images are (batch, C, X, Y) with X and Y multiples of 32. Above 32 some pixels are left after stage
8, and `pool` takes the maximum over them too. Tested in tests/networks/test_relaxed_cnn.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_at_least
from isotropy.networks.image_networks import image_shape
from isotropy.networks.pathway import LayerShape
from isotropy.networks.pathways import PathwayOptions, RelaxedLayer, check_kinds, options_for
from isotropy.symmetry.groups import Group
from isotropy.symmetry.point_groups import PointGroup

STAGES: tuple[tuple[int, int], ...] = (
    (1, 1),
    (2, 2),
    (2, 1),
    (4, 2),
    (4, 1),
    (8, 2),
    (8, 2),
    (16, 2),
)
"""Channels in widths, and the factor by which the stage makes maps smaller."""

HIDDEN = 64
"""Units of the hidden layer, in widths."""

REDUCTION = 32
"""X over X of the last stage: the product of the factors."""


def relaxed_cnn(
    shape: Sequence[int],
    outputs: int,
    *,
    pathways: Sequence[str] = ("ffc", "conv"),
    width: int = 10,
    group: PointGroup | Group | str | None = None,
    options: PathwayOptions | None = None,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """The network for images of `shape` (C, X, Y), of `outputs` logits.

    pathways:  of every stage, by name (`networks.pathways`)
    width:     α; 10 in the paper, 2 with three pathways
    group:     of group convolutions; quarter turns if None. Only with such a pathway
    options:   what pathways are made with; its group gives way to `group`
    generator: draws initial weights; torch's own if None

    Raises CallerError for sizes that cannot be halved five times and for a group without use.
    """
    channels, *size = image_shape(shape)
    check_at_least(width, 1, what="width of the network")
    check_at_least(outputs, 1, what="outputs of the network")
    check_kinds(pathways)
    if any(pixels < 1 or pixels % REDUCTION for pixels in size):
        raise CallerError(
            f"expected images whose height and width are multiples of {REDUCTION} (the network "
            f"halves them five times), got {size[0]}×{size[1]}; resize them to "
            f"{REDUCTION}×{REDUCTION}"
        )
    options = options_for(pathways, group, options)
    order = 1 if options.group is None else options.group.order

    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if options.group is not None:
        layers["lift"] = Lift(order)
    before = (order * channels, size[0], size[1])
    for index, (multiple, stride) in enumerate(STAGES, start=1):
        after = (order * multiple * width, before[1] // stride, before[2] // stride)
        layers[f"stage{index}"] = RelaxedLayer.new(
            pathways, LayerShape(before, after), options, generator=generator
        )
        layers[f"relu{index}"] = nn.ReLU()
        before = after
    layers["pool"] = nn.Flatten() if before[1:] == (1, 1) and order == 1 else MapMaximum(order)
    layers["hidden"] = _linear(before[0] // order, HIDDEN * width, generator)
    layers["relu_hidden"] = nn.ReLU()
    layers["head"] = _linear(HIDDEN * width, outputs, generator)
    return nn.Sequential(layers)


class Lift(nn.Module):
    """Maps over a group, f(h, c, x) = image(c, x): (batch, C, X, Y) → (batch, |H|·C, X, Y)."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, images: Tensor) -> Tensor:
        return images.repeat(1, self.order, 1, 1)

    def extra_repr(self) -> str:
        return f"order={self.order}"


class MapMaximum(nn.Module):
    """Maximum over h and pixels, (batch, |H|·C, X, Y) → (batch, C)."""

    def __init__(self, order: int = 1) -> None:
        super().__init__()
        self.order = order

    def forward(self, maps: Tensor) -> Tensor:
        return maps.unflatten(1, (self.order, -1)).amax((1, 3, 4))

    def extra_repr(self) -> str:
        return f"order={self.order}"


def _linear(before: int, after: int, generator: torch.Generator | None) -> nn.Linear:
    """As the stages begin: kaiming-uniform for ReLU, and no bias yet."""
    layer = nn.utils.skip_init(nn.Linear, before, after, device=torch.get_default_device())
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
