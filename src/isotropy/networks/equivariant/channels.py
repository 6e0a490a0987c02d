"""What equivariant layers hand each other, and how many tensors of which rank a hidden layer holds.

Layers hand each other one tensor for each kind of product, the batch last:

    public      (…, size of R)             copies one after another, as R is written
    parts       (copies, size, batch)      one for each kind of product in R, as `kinds` has them

A matrix that mixes copies is then one product with (copies, size · batch), one that acts on
coordinates is a product for each copy, a gate is a factor (copies, 1, batch), and taking a few
copies or coordinates takes whole rows: nothing is transposed but the first input and the last
output. Constants of a layer stay exact: they are rounded anew whenever it is moved or converted.

Channels of a hidden layer are shared out over ranks. With d = dim V and some channels left, take
the largest rank r with (r + 1) dʳ ≤ what is left, and add d^(r−k) tensors of rank k for every
k ≤ r: each rank gets dʳ channels (Finzi 2023, A.1). 256 channels of a group on R³ are
70 T(0) + 23 T(1) + 7 T(2) + 2 T(3). Where V and its dual differ, tensors of rank r are shared out
over T(k, r − k) as the binomial coefficients say. They do not differ where the group keeps a form
(O(1,3), Sp): x ↦ B x makes one the other, T(k, r − k) is T(r), and one kind is cheaper than many.
Even ranks come first, then odd ones: a group with −1 maps neither to the other, and layers leave
out blocks that are zero.

Coefficients of layers are matrices that act alike at several positions, such as the coordinates of
an irreducible part. So their curvature has Kronecker form (`Shared`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from isotropy.bases.maps import kinds
from isotropy.checks import CallerError, shape_text
from isotropy.curvature.blocks import KroneckerRoots, PiecewiseRoots, Spans
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Maps, Representation, Scalar, T

LARGEST_RANK_ON_A_LINE = 3
"""On R¹ every tensor has one entry, and the rule above would not stop."""


def uniform_representation(channels: int, group: Group) -> Representation:
    """`channels` channels shared out over scalars, vectors and tensors alike."""
    if channels < 1:
        raise CallerError(f"expected at least one channel, got {channels}")
    amounts = rank_amounts(channels, group.dimension)
    found = Scalar(group) * 0
    for rank in (*range(0, len(amounts), 2), *range(1, len(amounts), 2)):
        if group.is_self_dual or keeps_form(group):
            found = found + T(rank)(group) * amounts[rank]
            continue
        for q, share in enumerate(_binomial_shares(amounts[rank], rank)):
            found = found + T(rank - q, q)(group) * share
    return found


def keeps_form(group: Group) -> bool:
    """Whether the group is known to keep a form B, so that x ↦ B x takes V to its dual."""
    return group.classical is not None and group.classical.form is not None


def rank_amounts(channels: int, dimension: int) -> list[int]:
    """How many tensors of rank 0, 1, … fill the channels."""
    amounts: list[int] = []
    while channels > 0:
        rank = 0
        while (rank + 2) * dimension ** (rank + 1) <= channels and (
            dimension > 1 or rank < LARGEST_RANK_ON_A_LINE
        ):
            rank += 1
        amounts.extend([0] * (rank + 1 - len(amounts)))
        for k in range(rank + 1):
            amounts[k] += dimension ** (rank - k)
        channels -= (rank + 1) * dimension**rank
    return amounts


def _binomial_shares(amount: int, rank: int) -> list[int]:
    """`amount` shared out over T(rank, 0), …, T(0, rank); what is left over goes where the largest
    fractions are."""
    exact = [Fraction(amount * comb(rank, q), 2**rank) for q in range(rank + 1)]
    shares = [int(each) for each in exact]
    # The largest fractions first; among equals the balanced ones, then those with fewer duals.
    order = sorted(range(rank + 1), key=lambda q: (shares[q] - exact[q], abs(2 * q - rank), q))
    for q in order[: amount - sum(shares)]:
        shares[q] += 1
    return shares


class ExactBuffers(nn.Module):
    """A module with constants that are rounded from float64 to whatever it is converted to.

    `.half().double()` leaves them as exact as they were, and none of them is saved.
    """

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


Parts = list[Tensor]


@dataclass(frozen=True)
class Shared:
    """A matrix W (m, f) among the coefficients of a layer, y = W a at each of d positions.

    spans:    where its columns lie among the coefficients (`curvature.blocks`)
    entering: a (f, d, batch)
    leaving:  what is asked by y (m, d, rows)
    """

    spans: Spans
    entering: Tensor
    leaving: Tensor


def shared_roots(uses: Sequence[Sequence[Shared]], places: int) -> PiecewiseRoots:
    """Roots of the coefficients of a layer of such matrices, the same ones in every use:

        A = Σ_n Σ_t a aᵀ        G = (1/T) Σ_n Σ_t g gᵀ        over the T positions t of all uses

    places: rows of the inputs that one example has in all uses together; T = d · places
    """
    pieces = []
    for own in zip(*uses, strict=True):
        positions = places * own[0].entering.shape[1]
        into, out = (
            torch.cat([tensor.flatten(1).mT for tensor in tensors])
            for tensors in ([s.entering for s in own], [s.leaving for s in own])
        )
        pieces.append(KroneckerRoots(into[None], out[None] / positions**0.5))
    return PiecewiseRoots(tuple(pieces), tuple(each.spans for each in uses[0]))


VANISHING = 1e-6
"""A standard deviation that rounding may leave of zero."""
LARGEST_FACTOR = 10.0
"""What is faint is raised by no more than this in one layer: it is of a high degree, and has few
large values instead of many small ones."""


def scale_to(spread: float, part: Tensor) -> float:
    """What brings the standard deviation of entries over examples, about their means, to `spread`:
    10 at most, and one where it is zero."""
    own = float(part.var(-1, correction=0).mean().sqrt())
    return min(spread / own, LARGEST_FACTOR) if own > VANISHING else 1.0


class OfParts(ExactBuffers):
    """A module (…, source.size) → (…, target.size) that works on parts: subclasses give `of_parts`.

    source, target: representations bound to one real group
    """

    def __init__(self, source: Representation, target: Representation) -> None:
        super().__init__()
        maps = Maps(source, target)
        if maps.group.is_complex:
            raise CallerError(
                f"a layer needs a real group, got {maps.group} on C^{maps.group.dimension}; bind "
                "the representation to group.real_form(), where V is the real parts and then the "
                "imaginary"
            )
        for name, given in (("source", maps.source), ("target", maps.target)):
            if not given.size:
                raise CallerError(f"expected a {name} of at least one product, got {given}")
        self.source, self.target = maps.source, maps.target
        self.in_features, self.out_features = self.source.size, self.target.size
        self.source_kinds, self.target_kinds = kinds(self.source), kinds(self.target)
        # Rows of parts among rows of the public order, and the other way; None: the same.
        self._add_order("source_order", [kind.places for kind in self.source_kinds])
        places = np.concatenate([np.zeros(0, int), *(k.places.ravel() for k in self.target_kinds)])
        self._add_order("target_order", [np.argsort(places)])

    source_order: Tensor | None
    target_order: Tensor | None

    @abstractmethod
    def of_parts(self, parts: Sequence[Tensor]) -> Parts:
        """Parts (copies, size, batch) of the target from those of the source."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-1] != self.in_features:
            raise CallerError(
                f"expected inputs (…, {self.in_features}) of {self.source}, got "
                f"{shape_text(inputs)}"
            )
        found = self.joined(self.of_parts(self.parts(inputs.reshape(-1, self.in_features))))
        return found.reshape(*inputs.shape[:-1], self.out_features)

    def parts(self, inputs: Tensor) -> Parts:
        """Parts of the source from inputs (batch, source.size)."""
        rows = inputs.T.contiguous()
        if self.source_order is not None:
            rows = rows.index_select(0, self.source_order)
        pieces = rows.split([kind.places.size for kind in self.source_kinds])
        return [
            piece.unflatten(0, (kind.copies, kind.size))
            for piece, kind in zip(pieces, self.source_kinds, strict=True)
        ]

    def target_parts(self, outputs: Tensor) -> Parts:
        """Parts of the target from outputs (batch, target.size): what `joined` joins."""
        rows = outputs.T
        if self.target_order is not None:
            rows = rows.index_select(0, self.target_order.argsort())
        pieces = rows.split([kind.places.size for kind in self.target_kinds])
        return [
            piece.unflatten(0, (kind.copies, kind.size))
            for piece, kind in zip(pieces, self.target_kinds, strict=True)
        ]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Outputs (batch, target.size) from parts of the target."""
        rows = torch.cat([part.flatten(0, 1) for part in parts])
        if self.target_order is not None:
            rows = rows.index_select(0, self.target_order)
        return rows.T

    def _add_order(self, name: str, places: Sequence[np.ndarray]) -> None:
        order = np.concatenate([np.zeros(0, int), *(each.ravel() for each in places)])
        is_same = np.array_equal(order, np.arange(len(order)))
        self.register_buffer(name, None if is_same else torch.from_numpy(order), persistent=False)
