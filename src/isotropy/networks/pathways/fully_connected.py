"""Pathways that connect every pixel with every other, as one matrix (FC) and in two factors (F-FC).

    FC     y = W x + b                             W (C'X'Y', CXY)

    F-FC   z(c', c)      = Σ_xy x(c, x, y) θ2(c', c, x, y) + b2(c')           read out
           y(c', x', y') = Σ_c θ1(c', c, x', y') z(c', c) + b1(x', y')        spread

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 1 and 5.) The second has C'C(XY + X'Y') weights
in place of C'CXYX'Y'. Both halves of it are matrix products, one for each c and one for each c',
and parameters are kept in the order in which these read them:

    θ2  `readout.weight` (C, C', X·Y)        b2  `readout.bias` (C',)
    θ1  `spread.weight`  (C', C, X'·Y')      b1  `spread.bias` (X'·Y',)

Curvature (App. C.1). To θ2 as a matrix (C', C·XY) the layer is Linear with C positions: at the
position c its input a_c is x(c) among zeros and the gradient of its output is g_c = ∂/∂z(·, c). So
A = Σ_n Σ_c a_c a_cᵀ, of size (CXY)², has one block a channel and is never formed; all share one G.

    θ2   A_c  = Σ_n x(c) x(c)ᵀ      (XY, XY)     G = (1/C) Σ_n Σ_d Σ_c g_c g_cᵀ        (C', C')
    θ1   A_c' = Σ_n z(c') z(c')ᵀ    (C, C)       G = (1/C') Σ_n Σ_d Σ_c' g_c' g_c'ᵀ    (X'Y', X'Y')

with g_c' = ∂/∂y(c', ·); blocks are (1/N) G ⊗ A_c. Biases have their exact blocks.

Both halves are products of vectors with a matrix of their own for each channel,

    y(n, g, m) = Σ_k x(n, g, k) W(g, k, m)        x (batch, channels, k)    W (channels, k, m)

and no large map is moved for them. One matrix product a channel reads x where it lies if either the
batch or k lies side by side in memory. The first half writes z with the batch last, in the order
(c, c', n), which the second reads as it is; so it is with the gradient of z on the way back. Maps
themselves keep their pixels last. Many directions of back-propagation at once (`torch.func.vmap`)
are more rows, not more matrices.

Maps are (batch, C, X, Y). Oracle: tests/oracles/pathway_oracle.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.curvature.blocks import KroneckerRoots, Roots
from isotropy.curvature.layer_rules import (
    LayerRule,
    LinearRule,
    Use,
    bias_roots,
    register_rule,
)
from isotropy.networks.pathways.pathway import LayerShape, Pathway


class BatchLastLinear(nn.Linear):
    """y = W x + b of vectors (batch, n), with the batch side by side in memory.

    So equivariant layers, which it is added to, hand their features on: nothing is transposed.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.addmm(self.bias[:, None], self.weight, inputs.T).T


register_rule(BatchLastLinear, LinearRule())


class FullyConnectedPathway(Pathway):
    """y = W x + b of flattened maps: `linear` is an nn.Linear from C·X·Y to C'·X'·Y'; of vectors
    as they are.

    generator: draws the initial weights, uniform within ±1/√(CXY); the bias starts at zero.
    """

    kind = "fc"
    weights = ("linear.weight",)
    scaled = ("linear.weight", "linear.bias")
    reaches_target = True

    def __init__(self, shape: LayerShape, *, generator: torch.Generator | None = None) -> None:
        super().__init__(shape)
        inputs, outputs = math.prod(shape.source), math.prod(shape.target)
        # Without a draw from torch's own generator, whose state it would change.
        kind = nn.Linear if shape.is_maps else BatchLastLinear
        self.linear = kind(inputs, outputs, device="meta")
        self.linear.to_empty(device=torch.get_default_device())
        bound = 1 / math.sqrt(inputs)
        with torch.no_grad():
            self.linear.weight.uniform_(-bound, bound, generator=generator)
            self.linear.bias.zero_()

    def forward(self, maps: Tensor) -> Tensor:
        if not self.shape.is_maps:
            return self.linear(maps)
        return self.linear(maps.flatten(1)).unflatten(1, self.shape.target)

    def plain(self) -> nn.Module:
        """Flatten, Linear, Unflatten; of vectors the Linear alone."""
        own = self.linear
        linear = nn.Linear(own.in_features, own.out_features, device="meta")
        linear.weight, linear.bias = copy.deepcopy(own.weight), copy.deepcopy(own.bias)
        if not self.shape.is_maps:
            return linear
        return nn.Sequential(nn.Flatten(), linear, nn.Unflatten(1, self.shape.target))


class ReadOut(nn.Module):
    """z(c', c) = Σ_xy x(c, x, y) θ2(c', c, x, y) + b2(c'), (batch, C, X, Y) → (batch, C', C).

    weight (C, C', X·Y), bias (C',).
    """

    def __init__(self, inputs: int, outputs: int, pixels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, pixels))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, maps: Tensor) -> Tensor:
        return read_out(maps, self.weight) + self.bias[:, None]


class Spread(nn.Module):
    """y(c', x'y') = Σ_c θ1(c', c, x'y') z(c', c) + b1(x'y'), (batch, C', C) → (batch, C', X'·Y').

    weight (C', C, X'·Y'), bias (X'·Y',).
    """

    def __init__(self, inputs: int, outputs: int, pixels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, pixels))
        self.bias = nn.Parameter(torch.zeros(pixels))

    def forward(self, values: Tensor) -> Tensor:
        return spread(values, self.weight) + self.bias


def read_out(maps: Tensor, weight: Tensor) -> Tensor:
    """Σ_xy maps(c, x, y) weight(c, c', xy): (batch, C, X, Y), (C, C', X·Y) → (batch, C', C)."""
    return products_by_channel(maps.flatten(2), weight.mT, batch_last=True).mT


def spread(values: Tensor, weight: Tensor) -> Tensor:
    """Σ_c values(c', c) weight(c', c, xy): (batch, C', C), (C', C, X·Y) → (batch, C', X·Y)."""
    return products_by_channel(values, weight, batch_last=False)


def products_by_channel(rows: Tensor, matrices: Tensor, *, batch_last: bool) -> Tensor:
    """(batch, channels, k), (channels, k, m) → (batch, channels, m).

    batch_last: what lies side by side in memory, the batch of the result or its last axis; the
    gradient of `rows` has it the other way round. Values are the same.
    Under autocast both are in its type, as of torch's own products.
    """
    place = rows.device.type
    if torch.is_autocast_enabled(place) and torch.float64 not in (rows.dtype, matrices.dtype):
        lower = torch.get_autocast_dtype(place)
        rows, matrices = rows.to(lower), matrices.to(lower)
    found: Tensor = _Products.apply(rows, matrices, batch_last)
    return found


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, matrices: Tensor, batch_last: bool) -> Tensor:
        if batch_last:
            return torch.bmm(matrices.mT, rows.permute(1, 2, 0)).permute(2, 0, 1)
        return torch.bmm(rows.transpose(0, 1), matrices).transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
        rows, matrices, ctx.batch_last = inputs
        ctx.save_for_backward(rows, matrices)
        ctx.save_for_forward(rows, matrices)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, matrices = ctx.saved_tensors
        of_rows = of_matrices = None
        if ctx.needs_input_grad[0]:
            of_rows = products_by_channel(gradient, matrices.mT, batch_last=not ctx.batch_last)
        if ctx.needs_input_grad[1]:
            # Transposed where `matrices` is a transposed parameter, which then has its own order.
            if matrices.stride(-1) == 1:
                of_matrices = torch.bmm(rows.permute(1, 2, 0), gradient.transpose(0, 1))
            else:
                of_matrices = torch.bmm(gradient.permute(1, 2, 0), rows.transpose(0, 1)).mT
        return of_rows, of_matrices, None

    @staticmethod
    def jvp(
        ctx: Any, rows_change: Tensor | None, matrices_change: Tensor | None, _: None
    ) -> Tensor:
        rows, matrices = ctx.saved_tensors
        parts = []
        if rows_change is not None:
            parts.append(products_by_channel(rows_change, matrices, batch_last=ctx.batch_last))
        if matrices_change is not None:
            parts.append(products_by_channel(rows, matrices_change, batch_last=ctx.batch_last))
        return sum(parts[1:], start=parts[0])

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, int | None, None],
        rows: Tensor,
        matrices: Tensor,
        batch_last: bool,
    ) -> tuple[Tensor, int]:
        of_rows, of_matrices, _ = in_dims
        if of_matrices is None:
            assert of_rows is not None
            folded = rows.movedim(of_rows, 0).flatten(0, 1)
            found = products_by_channel(folded, matrices, batch_last=batch_last)
            return found.unflatten(0, (info.batch_size, -1)), 0
        matrices = matrices.movedim(of_matrices, 0)
        if of_rows is not None:
            rows = rows.movedim(of_rows, 0)
        return torch.einsum("...ngk,...gkm->...ngm", rows, matrices), 0


class FactoredPathway(Pathway):
    """The fully connected map in two factors: `readout` (θ2, b2), then `spread` (θ1, b1).

    generator: draws the initial weights, θ2 uniform within ±√(3/(XY)) and θ1 within ±√(3/C):
               entries of x with variance one give z and y that variance. Biases start at zero.
    """

    kind = "ffc"
    weights = ("readout.weight", "spread.weight")
    scaled = ("spread.weight", "spread.bias")  # the first half keeps its size
    reaches_target = True

    def __init__(self, shape: LayerShape, *, generator: torch.Generator | None = None) -> None:
        super().__init__(shape)
        (inputs, *before), (outputs, *after) = shape.source, shape.target
        self.readout = ReadOut(inputs, outputs, math.prod(before))
        self.spread = Spread(inputs, outputs, math.prod(after))
        with torch.no_grad():
            for weight, fan in (
                (self.readout.weight, math.prod(before)),
                (self.spread.weight, inputs),
            ):
                bound = math.sqrt(3 / fan)
                weight.uniform_(-bound, bound, generator=generator)

    def forward(self, maps: Tensor) -> Tensor:
        return self.spread(self.readout(maps)).unflatten(2, self.shape.target[1:])

    def plain(self) -> FactoredPathway:
        """A copy: these two products are ordinary layers already."""
        return copy.deepcopy(self)


class ReadOutRule(LayerRule):
    """θ2 (C, C', X·Y): one A for each input channel, one G for all."""

    parameters = ("weight", "bias")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """Axes: inputs (batch, C, X, Y), gradients (directions, batch, C', C)."""
        return {
            "weight": KroneckerRoots(
                inputs=read_out_rows([use.inputs.flatten(2) for use in uses]),
                outputs=shared_rows([use.gradient.mT for use in uses]),
            ),
            "bias": bias_roots([use.gradient.sum(-1) for use in uses]),
        }


class SpreadRule(LayerRule):
    """θ1 (C', C, X'·Y'): one A for each output channel, one G for all.

    The index c of the weight is slower than its pixel. So A, of c, is what `KroneckerRoots` calls
    the factor of the outputs, and G, of pixels, that of the inputs. It is A that is divided by the
    number of positions here: the block is the same, and gradients of whole maps are not copied.
    """

    parameters = ("weight", "bias")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """Axes: inputs (batch, C', C), gradients (directions, batch, C', X'·Y')."""
        gradients = [use.gradient for use in uses]
        values = read_out_rows([use.inputs for use in uses])
        return {
            "weight": KroneckerRoots(
                inputs=_joined(gradients), outputs=values / _root_of_positions(gradients)
            ),
            "bias": bias_roots([gradient.sum(-2) for gradient in gradients]),
        }


def read_out_rows(parts: Sequence[Tensor]) -> Tensor:
    """Roots of one factor a channel: (batch, channels, k) of every use → (channels, rows, k)."""
    joined = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    return joined.transpose(0, 1)


def shared_rows(parts: Sequence[Tensor]) -> Tensor:
    """Root of the factor that all channels share, each of them a position of the weight.

    (directions, batch, positions, k) of every use → (1, rows, k), divided by √T for the positions
    T of all uses.
    """
    return _joined(parts) / _root_of_positions(parts)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    joined = torch.cat(list(parts), -2) if len(parts) > 1 else parts[0]
    return joined.flatten(0, -2)[None]


def _root_of_positions(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(part.shape[-2] for part in parts))


register_rule(ReadOut, ReadOutRule())
register_rule(Spread, SpreadRule())
