"""A pathway: one linear map of features, with a symmetry of its own, of several in one layer.

    y = Σ_p pathway_p(x)        maps      x (batch, C, X, Y)        y (batch, C', X', Y')
                                vectors   x (batch, n)              y (batch, n')

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 4 and 11.) A layer is the sum of its pathways
(`relaxed_layer.RelaxedLayer`). Each has a Gaussian prior; where its variance is zero so is the
pathway, and what is left has its symmetry exactly (Eq. 8). Kinds of pathways lie in files with the
curvature rules of their parameters: `fully_connected`, `sparse`, `group_convolution`,
`equivariant`, and here the convolution, the same filters at every place, equivariant to
translations,

    y(c', x') = Σ_c Σ_t θ(c', c, t) x(c, x' + t) + b(c')                                    (Eq. 3)

whose parameters are those of an nn.Conv2d. New ones have stride one and maps continued
periodically: they commute exactly with circular shifts, and where the layer has a stride it keeps
one polyphase component of what they return. One taken from an existing network is as it was there.

Pathways are affine, but for gates. One whose weights are gone can still add a constant, and where
that differs from place to place it tells later layers where things are. Hardening keeps it as a
`BiasMap`,

    y(c, x) = x(c, x) + b(c, x)        b (C, X, Y), or (C, 1, 1) if it is the same everywhere

whose curvature rule is beside it. Of vectors it is (n,), what an invariant bias cannot hold.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, shape_text
from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule

Size = tuple[int, ...]
"""Of features: channels, height and width of maps; the one of vectors."""
NOTHING = 1e-6
"""Largest entry up to which a constant counts as none, and differences as equality."""


@dataclass(frozen=True)
class LayerShape:
    """Sizes of the features a layer is between: source (C, X, Y) and target (C', X', Y') of maps,
    (n,) and (n',) of vectors."""

    source: Size
    target: Size

    @property
    def is_maps(self) -> bool:
        """Whether both have a height and a width."""
        return len(self.source) == len(self.target) == 3

    @property
    def stride(self) -> int:
        """X / X', the same for both axes; 1 of vectors.

        Raises CallerError where sizes are not multiples, or differently so.
        """
        if not self.is_maps:
            return 1
        (_, height, width), (_, rows, columns) = self.source, self.target
        factor = height // max(rows, 1)
        if (rows * factor, columns * factor) != (height, width) or factor < 1:
            raise CallerError(
                f"expected an output size that divides the input size {height}×{width} by one "
                f"whole number, got {rows}×{columns}"
            )
        return factor


class Pathway(nn.Module):
    """One pathway (batch, *source) → (batch, *target); subclasses say how.

    kind:           its name in words, command lines and records
    shape:          what the layer maps between
    reaches_target: whether outputs have the target's size; if not they have the source's, and the
                    layer keeps one polyphase component of them
    weights:        names of the parameters whose curvature says how much the pathway is used; all
                    but biases and what shapes filters
    scaled:         names of the parameters in which the outputs are linear, all together
    shaping:        names of the parameters that shape filters and do not scale them
    """

    kind: ClassVar[str]
    weights: Sequence[str]
    scaled: Sequence[str]
    shaping: Sequence[str] = ()
    reaches_target: bool

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape

    @torch.no_grad()
    def scale_(self, factor: float) -> None:
        """Multiply all outputs by `factor`, by changing `scaled`. Zero leaves a pathway that gives
        zeros and can still learn: some parameter has a gradient."""
        for name, parameter in self.named_parameters():
            if name in self.scaled:
                parameter.mul_(factor)

    @torch.no_grad()
    def zero_(self) -> None:
        """Set all parameters to zero but those that shape filters. Unlike `scale_(0.0)`, which
        some parameter could undo."""
        for name, parameter in self.named_parameters():
            if name not in self.shaping:
                parameter.zero_()

    @torch.no_grad()
    def constant(self) -> Tensor:
        """What the pathway adds whatever the inputs are, its outputs for zeros: of the target's
        size, or (C', X, Y) if it does not reach that."""
        like = next(self.parameters())
        found: Tensor = self(torch.zeros(1, *self.shape.source, dtype=like.dtype).to(like.device))
        return found[0]

    def absorb_(self, means: Tensor) -> bool:
        """Add `means` (C',) to all pixels of the outputs, or (n',) to vectors, by changing
        parameters, if there are any for it; whether there are. Pathways that are bound to a
        symmetry add what it allows."""
        return False

    def plain(self) -> nn.Module:
        """Ordinary layers with the same outputs, without what only learning needs. A copy."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        before, after = ("×".join(map(str, s)) for s in (self.shape.source, self.shape.target))
        return f"{before} → {after}"


class ConvolutionPathway(Pathway):
    """A convolution, `convolution`, as a pathway.

    shape:       what the layer maps between
    convolution: an nn.Conv2d (any stride, padding, dilation, groups), whose outputs have the size
                 of the layer's outputs, or that of its inputs and are down-sampled by the layer

    Raises CallerError for another type, other channels or other sizes.
    """

    kind = "conv"
    weights = ("convolution.weight",)
    scaled = ("convolution.weight", "convolution.bias")

    def __init__(self, shape: LayerShape, convolution: nn.Conv2d) -> None:
        super().__init__(shape)
        if type(convolution) is not nn.Conv2d:
            raise CallerError(
                f"a convolutional pathway: expected an nn.Conv2d, got "
                f"{type(convolution).__name__}; put its weights into an nn.Conv2d"
            )
        if not shape.is_maps:
            raise CallerError(
                f"a convolutional pathway: expected maps (channels, height, width), got "
                f"{_text(shape.source)} and {_text(shape.target)}"
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
        check_kernel(kernel, shape)
        inputs, outputs = shape.source[0], shape.target[0]
        bound = math.sqrt(6 / (inputs * kernel**2))
        filters = torch.empty(outputs, inputs, kernel, kernel)
        filters.uniform_(-bound, bound, generator=generator)
        return cls(shape, circular_convolution(filters, torch.zeros(outputs)))

    def forward(self, maps: Tensor) -> Tensor:
        return self.convolution(maps)

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


def check_kernel(kernel: int, shape: LayerShape) -> None:
    """Raise CallerError if filters have no centre, or reach further than one period of the maps."""
    _, height, width = shape.source
    if kernel < 1 or kernel % 2 == 0:
        raise CallerError(
            f"kernel: expected an odd number, for filters that have a centre, got {kernel}; take "
            "one more or less"
        )
    if kernel // 2 > min(height, width):
        raise CallerError(
            f"kernel: expected one of at most {2 * min(height, width) + 1} on maps of "
            f"{height}×{width}, which are continued by no more than one period, got {kernel}"
        )


def circular_convolution(filters: Tensor, bias: Tensor, groups: int = 1) -> nn.Conv2d:
    """An nn.Conv2d on periodic maps with copies of these; it draws no weights of its own."""
    outputs, inputs, kernel, _ = filters.shape
    found = nn.Conv2d(
        groups * inputs,
        outputs,
        kernel,
        padding=kernel // 2,
        padding_mode="circular",
        groups=groups,
        device="meta",
    )
    found.weight = nn.Parameter(filters.detach().clone(memory_format=torch.contiguous_format))
    found.bias = nn.Parameter(bias.detach().clone())
    return found


def _output_size(convolution: nn.Conv2d, source: Size) -> Size:
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


def _text(size: Size) -> str:
    return "×".join(map(str, size))


class BiasMap(nn.Module):
    """Adds `bias` (C, X, Y), or (C, 1, 1), to maps (batch, C, X, Y); or (n,) to vectors.

    Maps of another size get the bias resampled to it, bilinearly: a hardened network takes images
    of every size that its other layers take.
    """

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        if bias.ndim not in (1, 3):
            raise CallerError(
                f"bias map: expected (channels, height, width), or (n,) of vectors, got "
                f"{shape_text(bias)}"
            )
        self.bias = nn.Parameter(bias.detach().clone())

    @classmethod
    def of(cls, constant: Tensor) -> BiasMap | None:
        """The map of a constant (C, X, Y), of one pixel if all are equal; None if it is zero."""
        if constant.abs().max() <= NOTHING:
            return None
        if constant.ndim == 1:
            return cls(constant)
        means = constant.mean((1, 2), keepdim=True)
        return cls(means if varying_part(constant).abs().max() <= NOTHING else constant)

    def forward(self, maps: Tensor) -> Tensor:
        bias: Tensor = self.bias
        size = maps.shape[-2:]
        if bias.ndim == 3 and bias.shape[1:] not in (size, (1, 1)):
            bias = functional.interpolate(bias[None], size, mode="bilinear")[0]
        return maps + bias

    def extra_repr(self) -> str:
        return "×".join(map(str, self.bias.shape))


def varying_part(constant: Tensor) -> Tensor:
    """A constant (C, X, Y) without the mean of each channel: what differs from place to place."""
    return constant - constant.mean((1, 2), keepdim=True)


class _BiasMapRule(LayerRule):
    """With a bias for every pixel G ⊗ I, G = (1/T) Σ_n Σ_t ĝ ĝᵀ over the T pixels: that is a
    linear layer on inputs which say the place, whose A is N times the identity. With one for all,
    and of vectors, the exact block of gradients summed over pixels."""

    parameters = ("bias",)

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        return inputs.new_zeros(())  # the gradient alone says everything

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        assert isinstance(module, BiasMap)
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient)
        total = total.flatten(3) if total.ndim > 3 else total[..., None]
        if module.bias[0].numel() == 1:
            return {"bias": DenseRoots(total.sum(-1).flatten(0, 1))}
        _, batch, _, places = total.shape
        every = math.sqrt(batch) * torch.eye(places, dtype=total.dtype, device=total.device)
        rows = total.mT.flatten(0, 2) / math.sqrt(places)
        return {"bias": KroneckerRoots(every[None], rows[None])}


register_rule(BiasMap, _BiasMapRule())
