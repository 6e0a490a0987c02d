"""An equivariant linear map whose matrix is assembled from a basis, for any group and product.

    W[k, o, l, i] = Σ_r θ[k, l, r] Q[r, o, i]      copies k, l; coordinates o, i  (`bases.maps`)

Taken where products do not split into irreducible parts, or are too large for it (`isotypic`). The
cost of W does not grow with the batch. Where a basis is large and its maps share no entry
(permutations), W is read off θ by indices. Each Q is scaled to a largest entry of one: so that a
coefficient has the unit of a matrix entry, in which a learning rate is thought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
import torch
from torch import Tensor
from torch.nn import functional

from isotropy.bases.maps import MapBasis, Pair
from isotropy.networks.equivariant.channels import ExactBuffers, Parts, scale_to

READ_OFF_FROM = 64
"""Rank of a pair from which a basis without shared entries is read off by indices."""


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

    def rescale_(self, coefficients: Tensor, parts: Sequence[Tensor], spread: float) -> None:
        """Scale W so that each kind of the outputs has this standard deviation over examples. Kinds
        that do not vary stay."""
        found = self(coefficients, None, parts)
        self.matrix.scale_(coefficients, [scale_to(spread, each) for each in found])


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
