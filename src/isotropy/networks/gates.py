"""Nonlinearities that commute with a group.

A function of single entries commutes with permutations of them and with nothing else. Any other
object v_i is scaled by a scalar of its own,

    v_i ↦ v_i σ(s_i)      scalars and permuted entries: x ↦ x σ(x)      (Finzi 2023, 2.6)

with σ the logistic function. `gated(R)` is one scalar s_i for each such object, and then R: so that
where R begins with its scalars, as hidden layers do, all scalars lie together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor
from torch.nn import functional

from isotropy.networks.kind_parts import OfParts, Parts
from isotropy.symmetry.representations import (
    Representation,
    Scalar,
    is_permutation,
)


def gated(representation: Representation) -> Representation:
    """One scalar for each product that does not permute entries, and then `representation`."""
    group = representation.group
    gates = sum(t.amount for t in representation.terms if not is_permutation(t.atoms, group))
    return gates * Scalar(group) + representation


class GatedNonlinearity(OfParts):
    """(…, gated(R).size) → (…, R.size): products times σ of their scalars, the rest x σ(x).

    No parameters.
    """

    def __init__(self, representation: Representation) -> None:
        super().__init__(gated(representation), representation)
        group = representation.group
        self._kinds = [kind.atoms for kind in self.source_kinds]
        self._has_gates = [not is_permutation(kind.atoms, group) for kind in self.target_kinds]
        # Gates lie in the order of the products, parts by kind.
        starts = [
            (kind.places[copy, 0], k)
            for k, (kind, has_gates) in enumerate(
                zip(self.target_kinds, self._has_gates, strict=True)
            )
            for copy in range(kind.copies * has_gates)
        ]
        self.gates = len(starts)
        order = np.argsort(np.argsort([place for place, _ in starts]))
        self._add_order("gate_order", [order])

    gate_order: Tensor | None

    def of_parts(self, parts: Sequence[Tensor]) -> Parts:
        own = dict(zip(self._kinds, parts, strict=True))
        gates: Iterator[Tensor] = iter(())
        if self.gates:
            scalars = own[()]
            drawn, own[()] = scalars.split([self.gates, scalars.shape[0] - self.gates])
            factors = drawn.sigmoid()
            if self.gate_order is not None:
                factors = factors.index_select(0, self.gate_order)
            pairs = zip(self.target_kinds, self._has_gates, strict=True)
            gates = iter(factors.split([kind.copies for kind, has_gates in pairs if has_gates]))
        found = []
        for kind, has_gates in zip(self.target_kinds, self._has_gates, strict=True):
            part = own[kind.atoms]
            found.append(part * next(gates) if has_gates else functional.silu(part))
        return found

    def extra_repr(self) -> str:
        return f"{self.in_features} to {self.out_features}, {self.gates} gates"
