"""The convolutional pathway: the same filters at every place, equivariant to translations.

    y(c', x') = Σ_c Σ_t θ(c', c, t) x(c, x' + t) + b(c')

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 3.) New ones have stride one and maps continued
periodically: they commute exactly with circular shifts, and where the layer has a stride it keeps
one polyphase component of what they return (`polyphase`). One taken from an existing network is as
it was there. The parameters are those of an nn.Conv2d, whose curvature rule serves. Maps are
(batch, C, X, Y).
"""

from __future__ import annotations

import copy
import math
from typing import Self

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.networks.pathways.pathway import LayerShape, MapSize, Pathway


class ConvolutionPathway(Pathway):
    """A convolution, `convolution`, as a pathway.

    shape:       what the layer maps between
    convolution: an nn.Conv2d (any stride, padding, dilation, groups), whose outputs have the size
                 of the layer's outputs, or that of its inputs and are down-sampled by the layer

    Raises CallerError for another type, other channels or other sizes.
    """

    kind = "conv"
    weights = ("convolution.weight",)

    def __init__(self, shape: LayerShape, convolution: nn.Conv2d) -> None:
        super().__init__(shape)
        if type(convolution) is not nn.Conv2d:
            raise CallerError(
                f"a convolutional pathway: expected an nn.Conv2d, got "
                f"{type(convolution).__name__}; put its weights into an nn.Conv2d"
            )
        found = _output_size(convolution, shape.source)
        waiting = (shape.target[0], *shape.source[1:])
        if found not in (shape.target, waiting):
            raise CallerError(
                f"a convolutional pathway from {_text(shape.source)}: expected outputs "
                f"{_text(shape.target)}, or {_text(waiting)} to be down-sampled, got "
                f"{_text(found)} from {convolution}"
            )
        self.reaches_target = found == shape.target
        if not self.reaches_target:
            _ = shape.stride  # refuses sizes that down-sampling cannot reach
        self.convolution = convolution

    @classmethod
    def new(
        cls, shape: LayerShape, kernel: int = 3, generator: torch.Generator | None = None
    ) -> Self:
        """A new one: stride one, periodic maps, filters kernel × kernel.

        generator: draws the filters, uniform within ±√(6/(C·kernel²)) (He et al. 2015: outputs
                   behind a ReLU keep their variance); the bias starts at zero.

        Raises CallerError if the kernel is even, or larger than the maps allow.
        """
        inputs, *size = shape.source
        if kernel < 1 or kernel % 2 == 0:
            raise CallerError(
                f"kernel: expected an odd number, for filters that have a centre, got {kernel}"
            )
        if kernel // 2 > min(size):
            raise CallerError(
                f"kernel: expected one of at most {2 * min(size) + 1} on maps of "
                f"{size[0]}×{size[1]}, which are continued by no more than one period, got {kernel}"
            )
        # Without a draw from torch's own generator, whose state it would change.
        convolution = nn.Conv2d(
            inputs,
            shape.target[0],
            kernel,
            padding=kernel // 2,
            padding_mode="circular",
            device="meta",
        )
        convolution.to_empty(device=torch.get_default_device())
        bound = math.sqrt(6 / (inputs * kernel**2))
        with torch.no_grad():
            convolution.weight.uniform_(-bound, bound, generator=generator)
            assert convolution.bias is not None
            convolution.bias.zero_()
        return cls(shape, convolution)

    def forward(self, maps: Tensor) -> Tensor:
        return self.convolution(maps)

    def scale_(self, factor: float) -> None:
        """Multiply filters and bias by `factor`."""
        with torch.no_grad():
            self.convolution.weight.mul_(factor)
            if self.convolution.bias is not None:
                self.convolution.bias.mul_(factor)

    def absorb_(self, means: Tensor) -> bool:
        """Add to the bias, if there is one."""
        if self.convolution.bias is None:
            return False
        with torch.no_grad():
            self.convolution.bias.add_(means)
        return True

    def plain(self) -> nn.Conv2d:
        """A copy of the nn.Conv2d, without the layer's down-sampling."""
        return copy.deepcopy(self.convolution)


def _output_size(convolution: nn.Conv2d, source: MapSize) -> MapSize:
    """Channels, height and width of what `convolution` makes of maps of this size."""
    if source[0] != convolution.in_channels:
        raise CallerError(
            f"a convolutional pathway from {_text(source)}: expected a convolution of "
            f"{source[0]} channels, got {convolution}"
        )
    # Two entries an axis, last axis first, as torch resolved them ("same" and "valid" too).
    padding = convolution._reversed_padding_repeated_twice
    sizes = []
    for axis, size in enumerate(source[1:]):
        before, after = padding[2 - 2 * axis], padding[3 - 2 * axis]
        reach = convolution.dilation[axis] * (convolution.kernel_size[axis] - 1) + 1
        sizes.append((size + before + after - reach) // convolution.stride[axis] + 1)
    return (convolution.out_channels, sizes[0], sizes[1])


def _text(size: MapSize) -> str:
    return "×".join(map(str, size))
