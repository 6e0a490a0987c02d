"""A linear layer that commutes with a group, parameterised in the basis of all such layers.

    y = W x + b      W = Σ_i θ_i Q_i  (Finzi 2023, 2.4)      ρ_out(g) W = W ρ_in(g)  for all g

The parameters are the coefficients θ and nothing else; Q is orthonormal and found for each pair of
products (`isotropy.bases.maps`). A pass assembles W, one small product a pair,

    W[k, o, l, i] = Σ_r θ[k, l, r] Q[r, o, i]      copies k, l; coordinates o, i

and applies it as any dense matrix: its cost does not grow with the batch, so that a layer costs
about what `nn.Linear` costs. Kinds of products between which there are no maps fall into parts,
as even and odd tensors of O(n) do; where those lie one after another in input and output, W is a
few dense matrices instead of one that is mostly zero. Where a basis is large and its maps share no
entry (permutations), W is read off θ by indices. The basis is rounded anew from double precision
whenever the layer is moved or converted: `.double()` is as exact as a layer made in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.bases.maps import Kind, MapBasis, Pair, map_basis
from isotropy.checks import CallerError, shape_text
from isotropy.symmetry.representations import Representation, Scalar

READ_OFF_FROM = 64
"""Rank of a pair from which a basis without shared entries is read off by indices."""
GAIN = 0.8
"""Initial standard deviation of W x, for inputs of standard deviation one."""
WORTH_SPLITTING = 0.8
"""Share of W in its parts, below which they are applied one by one."""


class EquivariantLinear(nn.Module):
    """y = W x + b on (…, source.size) → (…, target.size), with ρ_out(g) y(x) = y(ρ_in(g) x).

    source, target: representations bound to one real group
    bias:      whether to add b, an invariant vector of `target`
    generator: draws the initial coefficients; torch's own if None

    Initial coefficients are normal, and such that every entry of W x has the standard deviation
    0.8 where those of x have 1: for a kind of products of size o that is reached by Σ a r
    coefficients each, their variance is 0.64 o / Σ a r. (The paper projects an orthogonal matrix
    onto the basis. That leaves each kind with the share of variance that its maps have among all
    matrices, 3 % for vectors of SO(3), and a few layers with next to nothing.) Those of b have the
    variance of a plain layer's, 1 / (3 in) an entry, and are symmetric about zero.

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
        super().__init__()
        _check_real(source)
        maps = map_basis(source >> target)
        self.source, self.target = maps.maps.source, maps.maps.target
        self.out_features, self.in_features = maps.shape
        if not maps.rank and source.size and target.size:
            raise CallerError(
                f"no linear map but zero goes from {source} to {target} with {source.group}; add "
                "products to one of them, or use a smaller group"
            )
        self.weight_map = AssembledMap(maps)
        self.coefficients = nn.Parameter(torch.empty(maps.rank))
        self.bias_map: AssembledMap | None = None
        self.register_parameter("bias_coefficients", None)
        if bias:
            biases = map_basis(Scalar >> target)
            if biases.rank:
                self.bias_map = AssembledMap(biases)
                self.bias_coefficients = nn.Parameter(torch.empty(biases.rank))
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the coefficients anew."""
        with torch.no_grad():
            self.weight_map.draw(
                self.coefficients, lambda o, fan: GAIN * (o / fan) ** 0.5, generator
            )
            if self.bias_map is not None:
                spread = 1 / (3 * max(self.in_features, 1))
                self.bias_map.draw(
                    self.bias_coefficients, lambda o, fan: (spread * o / fan) ** 0.5, generator
                )

    @property
    def weight(self) -> Tensor:
        """W (out, in)."""
        return self.weight_map(self.coefficients)

    @property
    def bias(self) -> Tensor | None:
        """b (out,), or None where there is none or no invariant vector."""
        return None if self.bias_map is None else self.bias_map(self.bias_coefficients)[:, 0]

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-1] != self.in_features:
            raise CallerError(
                f"expected inputs (…, {self.in_features}) of {self.source}, got "
                f"{shape_text(inputs)}"
            )
        if not self.weight_map.is_split:
            return functional.linear(inputs, self.weight, self.bias)
        bias = self.bias
        widths, heights = self.weight_map.widths, self.weight_map.heights
        pieces = inputs.split(widths, -1)
        biases = [None] * len(heights) if bias is None else bias.split(heights)
        matrices = self.weight_map.parts(self.coefficients)
        found = [
            functional.linear(piece, matrix, own)
            for piece, matrix, own in zip(pieces, matrices, biases, strict=True)
            if matrix.shape[0]
        ]
        return torch.cat(found, -1)

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
            f"{self.coefficients.numel()} coefficients, bias={self.bias_map is not None}"
        )


class ExactBuffers(nn.Module):
    """A module with constants that are rounded from float64 to whatever it is converted to."""

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, Tensor] = {}

    def add_exact(self, name: str, exact: Tensor) -> None:
        """A buffer that is not saved."""
        self._exact[name] = exact
        self.register_buffer(name, exact.to(torch.get_default_dtype()), persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, exact in self._exact.items():
            moved = getattr(self, name)
            setattr(self, name, exact.to(device=moved.device, dtype=moved.dtype))
        return self


class AssembledMap(ExactBuffers):
    """W (out, in) from its coefficients (rank,); holds the basis as buffers that are not saved.

    is_split: whether W falls into parts worth applying one by one
    heights, widths: rows and columns of each part, which may be none
    """

    def __init__(self, basis: MapBasis) -> None:
        super().__init__()
        self.shape = basis.shape
        self._parts = _connected(basis)
        targets = [kind for part in self._parts for kind in part[0]]
        sources = [kind for part in self._parts for kind in part[1]]
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._spans: list[int] = []
        for number, (pair, span) in enumerate(basis.spans()):
            place = basis.targets.index(pair.target), basis.sources.index(pair.source)
            self._blocks[place] = self._add_block(f"basis_{number}", number, pair)
            self._spans.append(span.stop - span.start)
        self._rows = [kind.places.size for kind in basis.targets]
        self._columns = [kind.places.size for kind in basis.sources]
        self.heights = [sum(self._rows[k] for k in rows) for rows, _ in self._parts]
        self.widths = [sum(self._columns[k] for k in columns) for _, columns in self._parts]
        self._add_order("row_order", [basis.targets[k] for k in targets])
        self._add_order("column_order", [basis.sources[k] for k in sources])
        used = sum(h * w for h, w in zip(self.heights, self.widths, strict=True))
        in_order = self.row_order is None and self.column_order is None
        self.is_split = in_order and used < WORTH_SPLITTING * self.shape[0] * self.shape[1]

    row_order: Tensor | None
    column_order: Tensor | None

    def parts(self, coefficients: Tensor) -> list[Tensor]:
        """The matrix (height, width) of every part."""
        own = coefficients.split(self._spans)
        return [
            _stacked(
                [
                    [
                        self._assembled(self._blocks[row, column], own)
                        if (row, column) in self._blocks
                        else coefficients.new_zeros(self._rows[row], self._columns[column])
                        for column in columns
                    ]
                    for row in rows
                ]
            )
            if rows and columns
            else coefficients.new_zeros(height, width)
            for (rows, columns), height, width in zip(
                self._parts, self.heights, self.widths, strict=True
            )
        ]

    def forward(self, coefficients: Tensor) -> Tensor:
        matrices = self.parts(coefficients)
        weight = matrices[0]
        if len(matrices) > 1:
            weight = _stacked(
                [
                    [
                        matrix if i == j else matrix.new_zeros(matrix.shape[0], width)
                        for j, width in enumerate(self.widths)
                    ]
                    for i, matrix in enumerate(matrices)
                ]
            )
        if self.row_order is not None:
            weight = weight.index_select(0, self.row_order)
        if self.column_order is not None:
            weight = weight.index_select(1, self.column_order)
        return weight

    def draw(
        self,
        coefficients: Tensor,
        spread: Callable[[int, int], float],
        generator: torch.Generator | None,
    ) -> None:
        """Fill with normal numbers of standard deviation spread(o, Σ a r), by kind of target."""
        parts = coefficients.split(self._spans)
        for row in range(len(self._rows)):
            own = [block for (r, _), block in self._blocks.items() if r == row]
            fan = sum(block.coefficients[1] * block.coefficients[2] for block in own)
            for block in own:
                parts[block.number].normal_(0, spread(block.size[0], fan), generator=generator)

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
        if out == into == 1:
            return found.view(copies_out, copies_in)
        found = found.view(copies_out, copies_in, out, into).transpose(1, 2)
        return found.reshape(copies_out * out, copies_in * into)

    def _add_block(self, name: str, number: int, pair: Pair) -> _Block:
        is_read_off = pair.is_sparse and pair.rank >= READ_OFF_FROM
        if is_read_off:
            entries = pair.columns.tocoo()
            values = np.zeros(pair.columns.shape[0])
            values[entries.row] = entries.data
            index = np.full(pair.columns.shape[0], pair.rank)  # the coefficient that is zero
            index[entries.row] = entries.col
            self.add_exact(name, torch.from_numpy(values))
            self.register_buffer(f"{name}_index", torch.from_numpy(index), persistent=False)
        else:
            flat = pair.elements.reshape(pair.rank, -1)
            self.add_exact(name, torch.from_numpy(np.ascontiguousarray(flat)))
        size = pair.target.size, pair.source.size
        return _Block(name, number, pair.coefficients, size, is_read_off)

    def _add_order(self, name: str, kinds: list[Kind]) -> None:
        """Where each coordinate lies after equal products are put together; None: where it was."""
        places = np.concatenate([kind.places.ravel() for kind in kinds] or [np.zeros(0, int)])
        ordered = np.array_equal(places, np.arange(len(places)))
        order = None if ordered else torch.from_numpy(np.argsort(places))
        self.register_buffer(name, order, persistent=False)


@dataclass(frozen=True)
class _Block:
    """One pair of kinds in an `AssembledMap`; `size` is (o, i)."""

    name: str
    number: int
    coefficients: tuple[int, int, int]
    size: tuple[int, int]
    is_read_off: bool


def _connected(basis: MapBasis) -> list[tuple[list[int], list[int]]]:
    """Parts of W: kinds of the target and of the source that maps connect, by their numbers."""
    numbers = {
        id(kind): k for kinds in (basis.targets, basis.sources) for k, kind in enumerate(kinds)
    }
    pairs = [(numbers[id(pair.target)], numbers[id(pair.source)]) for pair in basis.pairs]
    left = [({row}, {c for r, c in pairs if r == row}) for row in range(len(basis.targets))]
    found: list[tuple[set[int], set[int]]] = []
    for rows, columns in left:
        touched = [part for part in found if part[1] & columns]
        found = [part for part in found if part not in touched]
        rows = rows.union(*(part[0] for part in touched))
        columns = columns.union(*(part[1] for part in touched))
        found.append((rows, columns))
    used = {column for _, columns in found for column in columns}
    parts = [(sorted(rows), sorted(columns)) for rows, columns in found]
    return sorted(parts) + [([], [k]) for k in range(len(basis.sources)) if k not in used]


def _stacked(blocks: list[list[Tensor]]) -> Tensor:
    rows = [row[0] if len(row) == 1 else torch.cat(row, 1) for row in blocks]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _check_real(representation: Representation) -> None:
    group = representation.group
    if group.is_complex:
        raise CallerError(
            f"a layer needs a real group, got {group} on C^{group.dimension}; bind the "
            "representation to group.real_form(), where V is the real parts and then the imaginary"
        )
