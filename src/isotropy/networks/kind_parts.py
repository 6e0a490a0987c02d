"""What equivariant layers hand each other: one tensor for each kind of product, the batch last.

    public      (…, size of R)             copies one after another, as R is written
    parts       (copies, size, batch)      one for each kind of product in R, as `kinds` has them

With the batch last, a matrix that mixes copies is one product with (copies, size · batch), one that
acts on coordinates is a product for each copy, a gate is a factor (copies, 1, batch), and taking a
few copies or coordinates takes whole rows: nothing is ever transposed but the first input and the
last output.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isotropy.bases.maps import kinds
from isotropy.checks import CallerError, shape_text
from isotropy.networks.exact_buffers import ExactBuffers
from isotropy.symmetry.representations import Maps, Representation

Parts = list[Tensor]
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
