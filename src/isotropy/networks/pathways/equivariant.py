"""Pathways of networks that are equivariant by construction, and what sets them free.

    layer   y = E x + W x + b            E an equivariant layer, W and b without any symmetry
    gate    y = gate(v) + w ⊙ v σ(v)     gate: v_i ↦ v_i σ(s_i) of objects (`equivariant.emlp`)

(Finzi 2023, 3.3: a residual pathway prior, W = E + W_b with a Gaussian prior on each.) The sums are
relaxed layers like any other; their pathways are

    equivariant   an `EquivariantLinear`, or the `PointGroupConv2d` of a network that was built
    gate          a `GatedNonlinearity`, without parameters
    free-gate     w ⊙ v σ(v), w (R.size,), of the objects v in gated(R) without their scalars s

Bilinear layers stay as they are: beside W and the free gate they break no symmetry that these do
not, and the thesis leaves them out too. What is free starts at zero, so that a network relaxed has
the outputs, and the symmetry, that it had.

**Curvature.** Those of equivariant layers are beside them. A free gate's weights have the diagonal
of theirs, h = Σ_n Σ_d j² with j = Σ_s ĝ ⊙ v σ(v) over copies s. Vectors are (batch, n).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError
from isotropy.curvature.blocks import DiagonalRoots, Roots
from isotropy.curvature.kinds import Copies
from isotropy.curvature.layer_rules import LayerRule, Use, register_rule
from isotropy.networks.equivariant.emlp import GatedNonlinearity
from isotropy.networks.equivariant.linear import EquivariantLinear
from isotropy.networks.equivariant.point_group_layers import PointGroupConv2d
from isotropy.networks.pathways.pathway import LayerShape, Pathway

EquivariantLayer = EquivariantLinear | PointGroupConv2d


class EquivariantPathway(Pathway):
    """A layer that commutes with a group, `layer`, as a pathway.

    layer: an EquivariantLinear, between vectors of its sizes; or a PointGroupConv2d

    Raises CallerError for another type, or another size of vectors.
    """

    kind = "equivariant"
    reaches_target = True

    def __init__(self, shape: LayerShape, layer: EquivariantLayer) -> None:
        super().__init__(shape)
        if isinstance(layer, EquivariantLinear):
            own = LayerShape((layer.in_features,), (layer.out_features,))
            if own != shape:
                raise CallerError(
                    f"an equivariant pathway from {shape.source} to {shape.target}: expected a "
                    f"layer of these sizes, got {layer}"
                )
            self.weights = ("layer.coefficients",)
            self.scaled = ("layer.coefficients", "layer.bias_coefficients")
        elif isinstance(layer, PointGroupConv2d):
            self.weights, self.scaled = ("layer.weight",), ("layer.weight", "layer.bias")
        else:
            raise CallerError(
                "an equivariant pathway: expected an EquivariantLinear or a PointGroupConv2d, got "
                f"{type(layer).__name__}"
            )
        self.layer = layer

    def forward(self, maps: Tensor) -> Tensor:
        return self.layer(maps)

    @torch.no_grad()
    def allowed(self, constant: Tensor) -> Tensor:
        """The part of a constant, of the target's size, that the group leaves where it is."""
        if isinstance(self.layer, PointGroupConv2d):
            by_element = constant.unflatten(0, (-1, self.layer.group.order))
            return by_element.mean((1, 2, 3), keepdim=True).expand_as(by_element).flatten(0, 1)
        vectors = self.layer.invariant_vectors()
        return vectors @ self._coefficients(vectors, constant)

    @torch.no_grad()
    def absorb_(self, means: Tensor) -> bool:
        """Add what the group allows to the bias, if there is one."""
        layer = self.layer
        if isinstance(layer, PointGroupConv2d):
            if layer.bias is None:
                return False
            layer.bias.add_(means.unflatten(0, (-1, layer.group.order)).mean(1))
            return True
        if layer.bias_coefficients is None:
            return False
        layer.bias_coefficients.add_(self._coefficients(layer.invariant_vectors(), means))
        return True

    @staticmethod
    def _coefficients(vectors: Tensor, wanted: Tensor) -> Tensor:
        """Of the combination of columns (n, rank), orthogonal, that is nearest to a vector (n,)."""
        return (vectors.mT @ wanted) / vectors.square().sum(0)

    def plain(self) -> EquivariantLayer:
        """A copy of the layer."""
        return copy.deepcopy(self.layer)


class GatePathway(Pathway):
    """The gate of an equivariant network, `gate`: (batch, gated(R).size) → (batch, R.size)."""

    kind = "gate"
    weights = scaled = ()
    reaches_target = True
    nothing: Tensor

    def __init__(self, shape: LayerShape, gate: GatedNonlinearity) -> None:
        super().__init__(shape)
        self.gate = gate
        self.register_buffer("nothing", torch.zeros(shape.target), persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        return self.gate(maps)

    def constant(self) -> Tensor:
        """Nothing: a gate of zeros is zero."""
        return self.nothing

    def plain(self) -> GatedNonlinearity:
        """A copy of the gate."""
        return copy.deepcopy(self.gate)


class FreeGate(nn.Module):
    """w ⊙ v σ(v) of the last entries v of (batch, n): `weight` (size of v,), zero at first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def values(self, inputs: Tensor) -> Tensor:
        """v σ(v)."""
        return functional.silu(inputs[..., inputs.shape[-1] - len(self.weight) :])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * self.values(inputs)

    def extra_repr(self) -> str:
        return str(len(self.weight))


class FreeGatePathway(Pathway):
    """w ⊙ v σ(v), entry by entry: `gate` is a `FreeGate`. It has no symmetry but permutations."""

    kind = "free-gate"
    weights = scaled = ("gate.weight",)
    reaches_target = True

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.gate = FreeGate(shape.target[0])

    def forward(self, maps: Tensor) -> Tensor:
        return self.gate(maps)

    def plain(self) -> FreeGate:
        """A copy of the gate."""
        return copy.deepcopy(self.gate)


class FreeGateRule(LayerRule):
    """The diagonal of the block of w."""

    parameters = ("weight",)

    def reduce_inputs(self, module: nn.Module, inputs: Tensor, copies: Copies) -> Tensor:
        """Nothing: `reduce_gradient` sees the inputs, copy by copy."""
        return inputs.new_zeros(())

    def reduce_gradient(
        self, module: nn.Module, inputs: Tensor, gradient: Tensor, copies: Copies
    ) -> Tensor:
        """j, (directions, batch, n)."""
        assert isinstance(module, FreeGate)
        found = gradient * module.values(inputs)
        return found.unflatten(1, (-1, copies.count)).sum(2)

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        total = sum((use.gradient for use in uses[1:]), start=uses[0].gradient)
        return {"weight": DiagonalRoots(total.flatten(0, 1))}


register_rule(FreeGate, FreeGateRule())
