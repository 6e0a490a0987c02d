"""Sparse pathways: convolution (S-CONV) and two factors (S-FC), with filters in a basis.

    S-CONV   y(c', x')     = Σ_c Σ_t x(c, x' + t) [u φ](c', c, t) + b(c')

    S-FC     z(c', c)      = Σ_xy x(c, x, y) [u2 φ2](c', c, x, y) + b2(c')       read out
             y(c', x', y') = Σ_c [u1 φ1](c', c, x', y') z(c', c)                 spread

(van der Ouderaa, Immer and van der Wilk 2023, Eq. 6 and 7; App. A exchanges the two.) They are the
convolution and the factored pathway (`fully_connected`) with filters from P values each in
place of all pixels; the basis φ (P, pixels) and its lengthscale ω are in `filter_basis`. Each of
u, u1, u2 has anchors and an ω of its own, common to all channels. Parameters:

    u   `convolution.values` (C', C, P)          b   `convolution.bias` (C',)
    u2  `readout.values`     (C, C', P)          b2  `readout.bias` (C',)
    u1  `spread.values`      (C', C, P)

Curvature (App. C.2). Filters are linear in values, so that φ projects the side of the Kronecker
factors that has pixels, here its roots, before a product is formed:

    u    A = Σ_n Σ_t (φ a)(φ a)ᵀ   over patches a (C, pixels)          G as for a convolution
    u2   A_c = Σ_n φ2 x(c) (φ2 x(c))ᵀ                                  G as for θ2
    u1   A_c' as for θ1                     G = (1/C') Σ_n Σ_d Σ_c' φ1 g_c' (φ1 g_c')ᵀ
    ω    Σ_n Σ_d j²      j = ⟨g, the layer with filters u ∂φ/∂ω and no bias, of its input⟩

The last is exact, as are the blocks of biases; with several copies of an example, j is taken from
the mean of the inputs and the sum of the gradients, as Kronecker blocks are (`layer_rules`).
Anchors that are learned are constants of the evidence.

With ω = 0 in both halves S-FC has filters that are constant over pixels: y is the same at every
place and depends on the sums of x over pixels alone, whatever the order of the pixels. It is then
invariant to translations and, being constant, equivariant. One half is not enough: with ω = 0 in
`readout` y does not depend on where things are in x but is still a pattern in place, and with
ω = 0 in `spread` it is constant but depends on where they are. S-CONV is equivariant for any ω.
Maps are (batch, C, X, Y). Oracle: tests/oracles/filter_basis_oracle.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.curvature.blocks import DenseRoots, KroneckerRoots, Roots
from isotropy.curvature.layer_rules import LayerRule, Use, bias_roots, register_rule
from isotropy.networks.pathways.filter_basis import BasisOptions, FilterBasis
from isotropy.networks.pathways.fully_connected import (
    read_out,
    read_out_rows,
    shared_rows,
    spread,
)
from isotropy.networks.pathways.pathway import (
    LayerShape,
    Pathway,
    check_kernel,
    circular_convolution,
)


class SparseLayer(FilterBasis):
    """A layer that is linear in its filters, and these in `values` (…, P): filters = u φ.

    size:      height and width of filters
    channels:  the first two axes of `values`
    bound:     values at first are those whose filters are nearest to filters drawn uniformly
               within ± `bound` at every pixel; about the share P / pixels of their variance stays
    options:   of the basis
    generator: draws anchors, then filters; torch's own if None

    bias_axis: the axis of `values` that `bias` has an entry for, zero at first; None: no bias
    """

    bias_axis: ClassVar[int | None] = None

    def __init__(
        self,
        size: tuple[int, int],
        channels: tuple[int, int],
        bound: float,
        options: BasisOptions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(size, options, generator=generator)
        drawn = torch.empty(*channels, size[0] * size[1])
        drawn.uniform_(-bound, bound, generator=generator)
        self.values = nn.Parameter(self.fitted(drawn))
        if self.bias_axis is not None:
            self.bias = nn.Parameter(torch.zeros(channels[self.bias_axis]))

    def filters(self) -> Tensor:
        """u φ (…, pixels)."""
        return self.values @ self.functions()

    def applied(self, inputs: Tensor, filters: Tensor) -> Tensor:
        """Outputs by these filters (…, pixels), without a bias."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        learned = "lengthscale " * self.learns_lengthscale + "anchors" * self.learns_anchors
        values = "×".join(map(str, self.values.shape))
        also = f", learns {' and '.join(learned.split())}" if learned else ""
        return f"{values} values for {self.size[0]}×{self.size[1]} pixels{also}"


class SparseConvolution(SparseLayer):
    """S-CONV with stride one on periodic maps, (batch, C, X, Y) → (batch, C', X, Y).

    values (C', C, P), bias (C',). `channels` are C' and C; height and width of filters are odd.
    """

    bias_axis = 0

    def forward(self, maps: Tensor) -> Tensor:
        return functional.conv2d(self._continued(maps), self._square(self.filters()), self.bias)

    def applied(self, inputs: Tensor, filters: Tensor) -> Tensor:
        return functional.conv2d(self._continued(inputs), self._square(filters))

    def projected(self, maps: Tensor, functions: Tensor) -> Tensor:
        """φ of the patch at every place, (batch, C, X, Y) → (batch, X·Y, C·P).

        A convolution too, of one channel by P filters: no patch is cut out.
        """
        batch, channels = maps.shape[:2]
        by_channel = self._continued(maps).flatten(0, 1)[:, None]
        found = functional.conv2d(by_channel, self._square(functions[:, None]))
        return found.reshape(batch, channels * len(functions), -1).mT

    def _continued(self, maps: Tensor) -> Tensor:
        down, right = self.size[0] // 2, self.size[1] // 2
        return functional.pad(maps, (right, right, down, down), mode="circular")

    def _square(self, filters: Tensor) -> Tensor:
        return filters.unflatten(-1, self.size)


class SparseReadOut(SparseLayer):
    """z = x · (u2 φ2) + b2, (batch, C, X, Y) → (batch, C', C): values (C, C', P), bias (C',)."""

    bias_axis = 1

    def forward(self, maps: Tensor) -> Tensor:
        return read_out(maps, self.filters()) + self.bias[:, None]

    def applied(self, inputs: Tensor, filters: Tensor) -> Tensor:
        return read_out(inputs, filters)


class SparseSpread(SparseLayer):
    """y = (u1 φ1) · z, (batch, C', C) → (batch, C', X'·Y'): values (C', C, P), no bias."""

    def forward(self, values: Tensor) -> Tensor:
        return spread(values, self.filters())

    def applied(self, inputs: Tensor, filters: Tensor) -> Tensor:
        return spread(inputs, filters)


class SparseConvolutionPathway(Pathway):
    """A convolution by filters in a basis, `convolution` (Eq. 6).

    basis:     options of the basis
    kernel:    height and width of filters, odd
    generator: draws anchors and filters, uniform within ±√(6/(C·kernel²)) before they are fitted

    Raises CallerError for an even kernel, one that is too large, or a sparsity out of (0, 1].
    """

    kind = "sconv"
    weights = ("convolution.values",)
    scaled = ("convolution.values", "convolution.bias")
    shaping = ("convolution.anchors", "convolution.lengthscale")

    def __init__(
        self,
        shape: LayerShape,
        basis: BasisOptions | None = None,
        *,
        kernel: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(shape)
        inputs, outputs = shape.source[0], shape.target[0]
        check_kernel(kernel, shape)
        self.reaches_target = shape.stride == 1
        self.convolution = SparseConvolution(
            (kernel, kernel),
            (outputs, inputs),
            math.sqrt(6 / (inputs * kernel**2)),
            basis,
            generator=generator,
        )

    def forward(self, maps: Tensor) -> Tensor:
        return self.convolution(maps)

    def absorb_(self, means: Tensor) -> bool:
        """Add to the bias."""
        with torch.no_grad():
            self.convolution.bias.add_(means)
        return True

    def plain(self) -> nn.Conv2d:
        """An nn.Conv2d with these filters, without the layer's down-sampling."""
        filters = self.convolution.filters().unflatten(-1, self.convolution.size)
        return circular_convolution(filters, self.convolution.bias)


class SparseFactoredPathway(Pathway):
    """The fully connected map in two factors in bases: `readout`, then `spread` (Eq. 7).

    basis:     options of the bases of both factors
    generator: draws anchors and filters, uniform within ±√(3/(XY)) and ±√(3/C) before they are
               fitted

    Raises CallerError for a sparsity out of (0, 1].
    """

    kind = "sfc"
    weights = ("readout.values", "spread.values")
    scaled = ("spread.values",)  # the first half keeps its size
    shaping = (
        "readout.anchors", "readout.lengthscale", "spread.anchors", "spread.lengthscale",
    )  # fmt: skip
    reaches_target = True

    def __init__(
        self,
        shape: LayerShape,
        basis: BasisOptions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(shape)
        (inputs, height, width), (outputs, rows, columns) = shape.source, shape.target
        bound = math.sqrt(3 / (height * width))
        self.readout = SparseReadOut(
            (height, width), (inputs, outputs), bound, basis, generator=generator
        )
        self.spread = SparseSpread(
            (rows, columns), (outputs, inputs), math.sqrt(3 / inputs), basis, generator=generator
        )

    def forward(self, maps: Tensor) -> Tensor:
        return self.spread(self.readout(maps)).unflatten(2, self.shape.target[1:])

    def plain(self) -> SparseFactoredPathway:
        """A copy whose anchors and lengthscales are constants: it has fewer parameters than its
        filters written out would be."""
        made = copy.deepcopy(self)
        made.readout.fix()
        made.spread.fix()
        return made


class SparseRule(LayerRule):
    """Values by a Kronecker block, bias and ω by exact ones; anchors are constants."""

    parameters = ("values", "bias", "lengthscale")
    constants = ("anchors",)

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """One entry for each parameter that the layer has."""
        assert isinstance(module, SparseLayer)
        roots: dict[str, Roots] = {
            "values": self.of_values(module, module.functions().detach(), uses)
        }
        bias = self.of_bias(uses)
        if bias is not None:
            roots["bias"] = bias
        if module.learns_lengthscale:
            filters = module.values.detach() @ module.slopes()
            slopes = [
                torch.einsum(
                    "dnf,nf->dn",
                    use.gradient.flatten(2),
                    module.applied(use.inputs, filters).flatten(1),
                )
                for use in uses
            ]
            roots["lengthscale"] = DenseRoots(sum(slopes[1:], start=slopes[0]).reshape(-1, 1))
        return roots

    def of_values(
        self, module: SparseLayer, functions: Tensor, uses: Sequence[Use]
    ) -> KroneckerRoots:
        """Roots of the block of u; functions: φ (P, pixels)."""
        raise NotImplementedError

    def of_bias(self, uses: Sequence[Use]) -> DenseRoots | None:
        """Root of the exact block of the bias, if there is one."""
        return None


class SparseConvolutionRule(SparseRule):
    """S-CONV. Gradients are (directions, batch, C', X, Y)."""

    def of_values(
        self, module: SparseLayer, functions: Tensor, uses: Sequence[Use]
    ) -> KroneckerRoots:
        assert isinstance(module, SparseConvolution)
        into = [module.projected(use.inputs, functions).flatten(0, 1) for use in uses]
        back = [use.gradient.flatten(3).mT for use in uses]
        return KroneckerRoots(inputs=torch.cat(into)[None], outputs=shared_rows(back))

    def of_bias(self, uses: Sequence[Use]) -> DenseRoots:
        return bias_roots([use.gradient.flatten(3).sum(3) for use in uses])


class SparseReadOutRule(SparseRule):
    """The first half of S-FC. Gradients are (directions, batch, C', C)."""

    def of_values(
        self, module: SparseLayer, functions: Tensor, uses: Sequence[Use]
    ) -> KroneckerRoots:
        return KroneckerRoots(
            inputs=read_out_rows([use.inputs.flatten(2) @ functions.mT for use in uses]),
            outputs=shared_rows([use.gradient.mT for use in uses]),
        )

    def of_bias(self, uses: Sequence[Use]) -> DenseRoots:
        return bias_roots([use.gradient.sum(-1) for use in uses])


class SparseSpreadRule(SparseRule):
    """The second half of S-FC. Gradients are (directions, batch, C', X'·Y').

    The index c of u1 is slower than that of anchors, so that A is what `KroneckerRoots` calls the
    factor of the outputs, and G that of the inputs (as in `fully_connected`).
    """

    def of_values(
        self, module: SparseLayer, functions: Tensor, uses: Sequence[Use]
    ) -> KroneckerRoots:
        return KroneckerRoots(
            inputs=shared_rows([use.gradient @ functions.mT for use in uses]),
            outputs=read_out_rows([use.inputs for use in uses]),
        )


register_rule(SparseConvolution, SparseConvolutionRule())
register_rule(SparseReadOut, SparseReadOutRule())
register_rule(SparseSpread, SparseSpreadRule())
