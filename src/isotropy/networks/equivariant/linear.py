"""A linear layer that commutes with a group, parameterised in a basis of all such layers.

    y = W x + b      W = Σ_i θ_i Q_i  (Finzi 2023, 2.4)      ρ_out(g) W = W ρ_in(g)  for all g

The parameters are the coefficients θ and nothing else. Where products of representations split
into irreducible parts the layer works on these, and W is never formed (`isotypic`). Where they do
not, or are too large for it, W is assembled from the solver's basis and applied as a dense matrix:

    W[k, o, l, i] = Σ_r θ[k, l, r] Q[r, o, i]      copies k, l; coordinates o, i  (`bases.maps`)

at a cost that does not grow with the batch; where a basis is large and its maps share no entry
(permutations), W is read off θ by indices. Either basis is orthogonal, and its elements are scaled
to a largest entry of one, so that a coefficient has the unit of a matrix entry: a rate at which
the weights of a plain layer learn is right for coefficients, too. Constants are rounded anew from
double precision whenever the layer is moved or converted: `.double()` is as exact as a layer made
in float64.

**Curvature.** In irreducible coordinates coefficients are those of linear layers that are shared by
the coordinates of a part (`isotypic`); where W is assembled, those of one from all Q_r x_l to the
copies of a kind of the target, shared by its coordinates o. Blocks are Kronecker either way, the
bias has its exact one. Oracle: tests/oracles/dense_ggn.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.bases.maps import MapBasis, Pair, map_basis
from isotropy.checks import CallerError
from isotropy.curvature.blocks import Roots
from isotropy.curvature.layer_rules import LayerRule, Use, bias_roots, register_rule
from isotropy.networks.equivariant.channels import (
    ExactBuffers,
    OfParts,
    Parts,
    Shared,
    scale_to,
    shared_roots,
)
from isotropy.networks.equivariant.isotypic import IsotypicMap, splitting
from isotropy.symmetry.groups.representations import Representation, Scalar

READ_OFF_FROM = 64
"""Rank of a pair from which a basis without shared entries is read off by indices."""


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

    def invariant_vectors(self) -> Tensor:
        """What the coefficients of b are of: orthogonal columns (out, rank)."""
        if self.bias_coefficients is None:
            return self.coefficients.new_zeros(self.out_features, 0)
        nothing = self.parts(self.coefficients.new_zeros(1, self.in_features))
        no_weights = torch.zeros_like(self.coefficients)
        one = torch.eye(len(self.bias_coefficients)).to(self.coefficients)
        return torch.stack(
            [self.joined(self.map(no_weights, row, nothing))[0] for row in one], 1
        ).detach()

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


class AssembledMap(ExactBuffers):
    """y = W x + b on parts (`channels`), from coefficients of W (rank,) and of b (bias_rank,).

    biases: maps from `Scalar` to the target, or None for no bias
    """

    def __init__(self, basis: MapBasis, biases: MapBasis | None) -> None:
        super().__init__()
        self.matrix = AssembledMatrix(basis)
        self.vector = AssembledMatrix(biases) if biases is not None and biases.rank else None
        self.rank = basis.rank
        self.bias_rank = 0 if self.vector is None else self.vector.rank
        self._sizes = [(kind.copies, kind.size) for kind in basis.targets]

    def forward(self, coefficients: Tensor, bias: Tensor | None, parts: Sequence[Tensor]) -> Parts:
        weight, rows = self.matrix(coefficients), torch.cat([part.flatten(0, 1) for part in parts])
        if self.vector is None or bias is None:
            found = weight @ rows
        else:
            found = torch.addmm(self.vector(bias), weight, rows)
        pieces = found.split([copies * size for copies, size in self._sizes])
        return [piece.unflatten(0, s) for piece, s in zip(pieces, self._sizes, strict=True)]

    def draw(
        self,
        coefficients: Tensor,
        bias: Tensor | None,
        gain: float,
        bias_spread: float,
        generator: torch.Generator | None,
    ) -> None:
        """Fill with normal numbers: see `EquivariantLinear`."""
        self.matrix.draw(coefficients, gain, generator)
        if self.vector is not None and bias is not None:
            self.vector.draw(bias, bias_spread, generator)

    def shared(self, parts: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Shared]:
        """θ for inputs and gradients by outputs, both as parts; one for each kind of the target."""
        return self.matrix.shared(parts, gradients)

    def rescale_(self, coefficients: Tensor, parts: Sequence[Tensor], spread: float) -> None:
        """Scale W so that each kind of the outputs has this standard deviation over examples. Kinds
        that do not vary stay."""
        found = self(coefficients, None, parts)
        self.matrix.scale_(coefficients, [scale_to(spread, each) for each in found])


class EquivariantLinearRule(LayerRule):
    """`EquivariantLinear`: every axis of inputs but the first and last is of positions, too."""

    parameters = ("coefficients", "bias_coefficients")

    def roots(self, module: nn.Module, uses: Sequence[Use]) -> dict[str, Roots]:
        """Axes: inputs (batch, …, in), gradients (directions, batch, …, out)."""
        assert isinstance(module, EquivariantLinear)
        shared = [
            module.map.shared(
                module.parts(use.inputs.flatten(0, -2)),
                module.target_parts(use.gradient.flatten(0, -2)),
            )
            for use in uses
        ]
        places = sum(use.inputs[0, ..., 0].numel() for use in uses)
        roots: dict[str, Roots] = {"coefficients": shared_roots(shared, places)}
        if module.bias_coefficients is not None:
            vectors = module.invariant_vectors()
            by_row = [(use.gradient @ vectors) for use in uses]
            sums = [each.flatten(2, -2).sum(2) if each.ndim > 3 else each for each in by_row]
            roots["bias_coefficients"] = bias_roots(sums)
        return roots


register_rule(EquivariantLinear, EquivariantLinearRule())


class AssembledMatrix(ExactBuffers):
    """W (out, in) from its coefficients (rank,), equal products together in rows and columns."""

    def __init__(self, basis: MapBasis) -> None:
        super().__init__()
        self.rank = basis.rank
        self._blocks = {
            (basis.targets.index(pair.target), basis.sources.index(pair.source)): self._add_block(
                f"basis_{number}", number, pair
            )
            for number, pair in enumerate(basis.pairs)
        }
        self._spans = [int(np.prod(pair.coefficients)) for pair in basis.pairs]
        self._rows = [kind.places.size for kind in basis.targets]
        self._columns = [kind.places.size for kind in basis.sources]

    def forward(self, coefficients: Tensor) -> Tensor:
        own = coefficients.split(self._spans)
        blocks = [
            [
                self._assembled(self._blocks[r, c], own)
                if (r, c) in self._blocks
                else coefficients.new_zeros(height, width)
                for c, width in enumerate(self._columns)
            ]
            for r, height in enumerate(self._rows)
        ]
        return torch.cat([torch.cat(row, 1) for row in blocks])

    def shared(self, parts: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Shared]:
        """θ of all pairs with one kind of the target, for inputs and gradients as parts."""
        ends = list(accumulate(self._spans))
        found = []
        for row, gradient in enumerate(gradients):
            own = [(block, column) for (r, column), block in self._blocks.items() if r == row]
            if own:
                spans = [(ends[b.number] - self._spans[b.number], ends[b.number]) for b, _ in own]
                into = [
                    torch.einsum("roi,lib->lrob", self._elements(block), parts[column])
                    for block, column in own
                ]
                entering = torch.cat([each.flatten(0, 1) for each in into])
                found.append(Shared(tuple(spans), entering, gradient))
        return found

    def _elements(self, block: _Block) -> Tensor:
        """Q (rank, o, i) of one pair."""
        basis = getattr(self, block.name)
        if block.is_read_off:
            index = getattr(self, f"{block.name}_index")
            rows = functional.one_hot(index, block.coefficients[2] + 1)[:, :-1]
            basis = rows.T.to(basis) * basis
        return basis.unflatten(1, block.size)

    def draw(self, coefficients: Tensor, gain: float, generator: torch.Generator | None) -> None:
        """Normal numbers, such that W x has standard deviation `gain` where x has one of 1."""
        parts = coefficients.split(self._spans)
        for row in range(len(self._rows)):
            own = [block for (r, _), block in self._blocks.items() if r == row]
            fan = sum(block.coefficients[1] * block.coefficients[2] for block in own)
            for block in own:
                spread = gain * (block.size[0] / fan) ** 0.5
                orthonormal = parts[block.number].normal_(0, spread, generator=generator)
                scales = getattr(self, f"{block.name}_scale")
                orthonormal.view(-1, block.coefficients[2]).div_(scales)

    def scale_(self, coefficients: Tensor, factors: Sequence[float]) -> None:
        """Multiply W by a number for each kind of the target."""
        parts = coefficients.split(self._spans)
        for (row, _), block in self._blocks.items():
            parts[block.number].mul_(factors[row])

    def _assembled(self, block: _Block, parts: tuple[Tensor, ...]) -> Tensor:
        """W of one pair of kinds, (copies out · o, copies in · i)."""
        copies_out, copies_in, rank = block.coefficients
        out, into = block.size
        part = parts[block.number].view(copies_out * copies_in, rank)
        basis = getattr(self, block.name)
        if block.is_read_off:
            index = getattr(self, f"{block.name}_index")
            found = functional.pad(part, (0, 1)).index_select(1, index) * basis
        else:
            found = part @ basis
        found = found.view(copies_out, copies_in, out, into).transpose(1, 2)
        return found.reshape(copies_out * out, copies_in * into)

    def _add_block(self, name: str, number: int, pair: Pair) -> _Block:
        is_read_off = pair.is_sparse and pair.rank >= READ_OFF_FROM
        largest = abs(pair.columns).max(0)
        scales = 1 / (largest.toarray().ravel() if sparse.issparse(largest) else largest)
        if is_read_off:
            entries = pair.columns.tocoo()
            values = np.zeros(pair.columns.shape[0])
            values[entries.row] = entries.data * scales[entries.col]
            index = np.full(pair.columns.shape[0], pair.rank)  # the coefficient that is zero
            index[entries.row] = entries.col
            self.add_exact(name, torch.from_numpy(values))
            self.register_buffer(f"{name}_index", torch.from_numpy(index), persistent=False)
        else:
            flat = pair.elements.reshape(pair.rank, -1) * scales[:, None]
            self.add_exact(name, torch.from_numpy(np.ascontiguousarray(flat)))
        self.add_exact(f"{name}_scale", torch.from_numpy(scales))
        size = pair.target.size, pair.source.size
        return _Block(name, number, pair.coefficients, size, is_read_off)


@dataclass(frozen=True)
class _Block:
    """One pair of kinds in an `AssembledMatrix`; `size` is (o, i)."""

    name: str
    number: int
    coefficients: tuple[int, int, int]
    size: tuple[int, int]
    is_read_off: bool
