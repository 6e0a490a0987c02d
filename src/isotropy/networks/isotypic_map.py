"""An equivariant linear map in coordinates of irreducible parts: nothing to assemble.

    u_b = F_b x_b        v_λ = θ_λ u_λ + β_λ        y_c = F_cᵀ v_c        (`isotypic`)

u_λ (parts, d_λ · batch) holds the coordinates of every part of type λ in the input, of all products
together; θ_λ (parts out, parts in) mixes them. For SO(3) and 384 channels these are 24,000
multiplications an example instead of 147,000. β is there for the trivial λ alone: the bias.

Coefficients are the entries of θ_λ, one λ after another, (parts out, parts in, degree) row-major;
parts lie by kind, then by multiplicity, then by copy. One unit of a coefficient moves coordinates
of size one by one: that is the unit of a matrix entry, in which a learning rate is thought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isotropy.bases.maps import Kind
from isotropy.networks.exact_buffers import ExactBuffers
from isotropy.networks.isotypic import Splitting
from isotropy.networks.kind_parts import Parts, scale_to

TRIVIAL = 0
"""Number of the irreducible that does not move."""


@dataclass(frozen=True)
class _Type:
    """An irreducible that maps reach. runs: copies for each (kind, multiplicity) of the target."""

    number: int
    size: int
    degree: int
    parts_out: int
    parts_in: int
    runs: tuple[int, ...]

    @property
    def amount(self) -> int:
        """Coefficients."""
        return self.parts_out * self.parts_in * self.degree


class IsotypicMap(ExactBuffers):
    """y = W x + b on parts (`kind_parts`), from coefficients of W (rank,) and of b (bias_rank,)."""

    def __init__(
        self,
        sources: Sequence[Kind],
        targets: Sequence[Kind],
        splitting: Splitting,
        *,
        bias: bool,
    ) -> None:
        super().__init__()
        self._sources, self._targets = sources, targets
        self._types: list[_Type] = []
        of_target = [[len(f) for f in splitting.frames[kind.atoms]] for kind in targets]
        of_source = [[len(f) for f in splitting.frames[kind.atoms]] for kind in sources]
        for number, each in enumerate(splitting.irreducibles):
            runs = [
                k.copies for k, m in zip(targets, of_target, strict=True) for _ in range(m[number])
            ]
            parts_in = sum(k.copies * m[number] for k, m in zip(sources, of_source, strict=True))
            if runs and (parts_in or (bias and number == TRIVIAL)):
                self._types.append(
                    _Type(number, each.size, each.degree, sum(runs), parts_in, tuple(runs))
                )
            if each.degree > 1:
                self.add_exact(
                    f"ends_{number}", torch.from_numpy(each.ends.reshape(each.degree, -1))
                )
        self.rank = sum(each.amount for each in self._types)
        self.bias_rank = next(
            (each.parts_out for each in self._types if bias and each.number == TRIVIAL), 0
        )
        self._into = [
            self._add_frame(
                f"into_{k}", splitting.frames[kind.atoms], [t for t in self._types if t.parts_in]
            )
            for k, kind in enumerate(sources)
        ]
        self._out = [
            self._add_frame(f"out_{k}", splitting.frames[kind.atoms], self._types)
            for k, kind in enumerate(targets)
        ]

    def forward(self, coefficients: Tensor, bias: Tensor | None, parts: Sequence[Tensor]) -> Parts:
        batch = parts[0].shape[-1]
        pieces: dict[int, list[Tensor]] = {}
        matrices = coefficients.split([each.amount for each in self._types])
        for each, matrix, own in zip(self._types, matrices, self._by_type(parts), strict=True):
            found = self._mixed(each, matrix, bias, own, batch)
            pieces[each.number] = list(found.split(each.runs)) if len(each.runs) > 1 else [found]
        return [self._together(k, pieces, parts[0]) for k in range(len(self._targets))]

    def _by_type(self, parts: Sequence[Tensor]) -> list[Parts]:
        """For each irreducible that maps reach, its parts (copies, d, batch) in the inputs."""
        found: dict[int, Parts] = {each.number: [] for each in self._types}
        for frame, part in zip(self._into, parts, strict=True):
            if frame.numbers:
                for number, piece in zip(frame.numbers, self._split(frame, part), strict=True):
                    found[number].append(piece)
        return list(found.values())

    def _split(self, frame: _Frame, part: Tensor) -> Sequence[Tensor]:
        """Every irreducible part (copies, d, batch) of one kind."""
        if frame.name is not None:
            matrix = getattr(self, frame.name)
            part = torch.bmm(matrix.expand(part.shape[0], -1, -1), part)
        return part.split(frame.sizes, 1) if len(frame.sizes) > 1 else [part]

    def _mixed(
        self, each: _Type, matrix: Tensor, bias: Tensor | None, pieces: Parts, batch: int
    ) -> Tensor:
        """v_λ, (parts out, d, batch)."""
        own = bias if each.number == TRIVIAL else None
        if not pieces:  # a bias alone
            only = matrix.new_zeros(each.parts_out) if own is None else own
            return only[:, None, None].expand(-1, -1, batch)
        inputs = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if each.degree > 1:
            weight = matrix.view(-1, each.degree) @ getattr(self, f"ends_{each.number}")
            weight = weight.view(each.parts_out, each.parts_in, each.size, each.size)
            weight = weight.transpose(1, 2).reshape(
                each.parts_out * each.size, each.parts_in * each.size
            )
            found = weight @ inputs.flatten(0, 1)
        else:
            weight = matrix.view(each.parts_out, each.parts_in)
            flat = inputs.flatten(1)
            found = weight @ flat if own is None else torch.addmm(own[:, None], weight, flat)
        return found.view(each.parts_out, each.size, batch)

    def _together(self, k: int, pieces: dict[int, list[Tensor]], like: Tensor) -> Tensor:
        """One kind of the target from its irreducible parts, which are taken away from `pieces`."""
        frame, kind = self._out[k], self._targets[k]
        if not frame.numbers:
            return like.new_zeros(kind.copies, kind.size, like.shape[-1])
        own = [pieces[number].pop(0) for number in frame.numbers]
        found = own[0] if len(own) == 1 else torch.cat(own, 1)
        if frame.name is None:
            return found
        return torch.bmm(getattr(self, frame.name).T.expand(kind.copies, -1, -1), found)

    def draw(
        self,
        coefficients: Tensor,
        bias: Tensor | None,
        gain: float,
        bias_spread: float,
        generator: torch.Generator | None,
    ) -> None:
        """Fill with normal numbers: see `EquivariantLinear`."""
        fans = [
            sum(self._type(n).parts_in * self._type(n).degree for n in f.numbers) for f in self._out
        ]
        at = 0
        for each in self._types:
            matrix = coefficients[at : at + each.amount].view(each.parts_out, -1)
            at += each.amount
            row = 0
            for kind, frame, fan in zip(self._targets, self._out, fans, strict=True):
                rows = kind.copies * frame.numbers.count(each.number)
                if rows and each.parts_in:
                    spread = gain * (kind.size / fan / each.size) ** 0.5
                    matrix[row : row + rows].normal_(0, spread, generator=generator)
                if rows and each.number == TRIVIAL and bias is not None:
                    own = bias_spread * (kind.size / frame.numbers.count(TRIVIAL)) ** 0.5
                    bias[row : row + rows].normal_(0, own, generator=generator)
                row += rows

    def rescale_(self, coefficients: Tensor, parts: Sequence[Tensor], spread: float) -> None:
        """Scale W so that the coordinates of each irreducible part of the outputs have this
        standard deviation over examples. Parts that do not vary stay."""
        at = 0
        for each, pieces in zip(self._types, self._by_type(parts), strict=True):
            matrix = coefficients[at : at + each.amount]
            at += each.amount
            if pieces:
                found = self._mixed(each, matrix, None, pieces, parts[0].shape[-1])
                rows = matrix.view(each.parts_out, -1).split(each.runs)
                for own, values in zip(rows, found.split(each.runs), strict=True):
                    own.mul_(scale_to(spread, values))

    def _type(self, number: int) -> _Type:
        return next(each for each in self._types if each.number == number)

    def _add_frame(self, name: str, frames: Sequence[np.ndarray], types: list[_Type]) -> _Frame:
        chosen = [(t.number, t.size, each) for t in types for each in frames[t.number]]
        numbers = tuple(number for number, _, _ in chosen)
        sizes = [size for _, size, _ in chosen]
        if not chosen:
            return _Frame(None, numbers, sizes)
        matrix = np.concatenate([each for _, _, each in chosen])
        if np.array_equal(matrix, np.eye(matrix.shape[1])):
            return _Frame(None, numbers, sizes)
        self.add_exact(name, torch.from_numpy(matrix))
        return _Frame(name, numbers, sizes)


@dataclass(frozen=True)
class _Frame:
    """Irreducible parts of one kind: their numbers, their sizes, and the buffer of coordinates
    (Σ sizes, size), None where they are the kind's own."""

    name: str | None
    numbers: tuple[int, ...]
    sizes: list[int]
