"""A linear layer that commutes with a group, parameterised in a basis of all such layers.

    y = W x + b      W = Σ_i θ_i Q_i  (Finzi 2023, 2.4)      ρ_out(g) W = W ρ_in(g)  for all g

The parameters are the coefficients θ and nothing else. Where products of representations split into
irreducible parts the layer works on these, and W is never formed (`isotypic`); elsewhere W is
assembled from the solver's basis and applied as any dense matrix (`assembled`). Either basis is
orthogonal, and its elements are scaled so that a coefficient has the unit of a matrix entry: a rate
at which the weights of a plain layer learn is right for coefficients, too. Constants are rounded
anew from double precision whenever the layer is moved or converted: `.double()` is as exact as a
layer made in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isotropy.bases.maps import map_basis
from isotropy.checks import CallerError
from isotropy.networks.equivariant.assembled import AssembledMap
from isotropy.networks.equivariant.channels import OfParts, Parts
from isotropy.networks.equivariant.isotypic import IsotypicMap, splitting
from isotropy.symmetry.groups.representations import Representation, Scalar

GAIN = 0.8
"""Initial standard deviation of W x, for inputs of standard deviation one."""


class EquivariantLinear(OfParts):
    """y = W x + b on (…, source.size) → (…, target.size), with ρ_out(g) y(x) = y(ρ_in(g) x).

    source, target: representations bound to one real group
    bias:      whether to add b, an invariant vector of `target`
    generator: draws the initial coefficients; torch's own if None

    Initial coefficients are normal, and such that every entry of W x has the standard deviation
    0.8 where those of x have 1: for a kind of products of size o that is reached by n orthonormal
    maps Q, theirs have the variance 0.64 o / n. (The paper projects an orthogonal matrix onto the
    basis. That leaves each kind with the share of variance that its maps have among all matrices,
    3 % for vectors of SO(3), and a few layers with next to nothing.) Those of b have the variance
    of a plain layer's, 1 / (3 in) an entry, and are symmetric about zero.

    Raises `CallerError` if the group is complex, or no map exists at all.
    """

    def __init__(
        self,
        source: Representation,
        target: Representation,
        *,
        bias: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(source, target)
        source, target = self.source, self.target
        atoms = [kind.atoms for kind in (*self.source_kinds, *self.target_kinds)]
        split = splitting(source.group, atoms)
        self.map: IsotypicMap | AssembledMap
        if split is not None:
            self.map = IsotypicMap(self.source_kinds, self.target_kinds, split, bias=bias)
        else:
            biases = map_basis(Scalar >> target) if bias else None
            self.map = AssembledMap(map_basis(source >> target), biases)
        if not self.map.rank and source.size and target.size:
            raise CallerError(
                f"no linear map but zero goes from {source} to {target} with {source.group}; add "
                "products to one of them, or use a smaller group"
            )
        self.coefficients = nn.Parameter(torch.empty(self.map.rank))
        bias_rank = self.map.bias_rank
        self.bias_coefficients = nn.Parameter(torch.empty(bias_rank)) if bias_rank else None
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the coefficients anew."""
        bias_spread = (3 * max(self.in_features, 1)) ** -0.5
        with torch.no_grad():
            self.map.draw(self.coefficients, self.bias_coefficients, GAIN, bias_spread, generator)

    def rescale_(self, parts: Sequence[Tensor], spread: float) -> Parts:
        """Scale W so that every irreducible part of the outputs has this standard deviation over
        the examples `parts`, whatever their distribution; the outputs. Where products do not split,
        every kind has. What does not vary stays."""
        with torch.no_grad():
            self.map.rescale_(self.coefficients, parts, spread)
            return self.of_parts(parts)

    def of_parts(self, parts: Sequence[Tensor]) -> Parts:
        return self.map(self.coefficients, self.bias_coefficients, parts)

    @property
    def weight(self) -> Tensor:
        """W (out, in)."""
        one = torch.eye(
            self.in_features, dtype=self.coefficients.dtype, device=self.coefficients.device
        )
        found = self.joined(self.map(self.coefficients, None, self.parts(one)))
        return found.T

    @property
    def bias(self) -> Tensor | None:
        """b (out,), or None where there is none or no invariant vector."""
        if self.bias_coefficients is None:
            return None
        zero = self.coefficients.new_zeros(1, self.in_features)
        own = self.coefficients, self.bias_coefficients
        return self.joined(self.map(*own, self.parts(zero)))[0]

    def plain_state(self) -> dict[str, Tensor]:
        """Parameters of `export()` as functions of the coefficients, by name."""
        bias = self.bias
        return {"weight": self.weight} if bias is None else {"weight": self.weight, "bias": bias}

    def export(self) -> nn.Linear:
        """A plain layer with the same outputs."""
        weight, bias = self.weight.detach(), self.bias
        plain = nn.Linear(
            self.in_features,
            self.out_features,
            bias=bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            plain.weight.copy_(weight)
            if bias is not None:
                plain.bias.copy_(bias)
        return plain

    def extra_repr(self) -> str:
        return (
            f"{self.source} >> {self.target}, {self.source.group}, "
            f"{self.coefficients.numel()} coefficients, bias={self.bias_coefficients is not None}"
        )
