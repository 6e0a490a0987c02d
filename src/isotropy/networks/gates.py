"""Nonlinearities that commute with a group.

A function of single entries commutes with permutations of them and with nothing else. Any other
object v_i is scaled by a scalar of its own,

    v_i ↦ v_i σ(s_i)      scalars and permuted entries: x ↦ x σ(x)      (Finzi 2023, 2.6)

with σ the logistic function. `gated(R)` is one scalar s_i for each such object, and then R: so that
where R begins with its scalars, as hidden layers do, all scalars lie together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotropy.checks import CallerError, shape_text
from isotropy.symmetry.representations import (
    Representation,
    Scalar,
    Term,
    is_permutation,
    product_size,
)


def gated(representation: Representation) -> Representation:
    """One scalar for each product that does not permute entries, and then `representation`."""
    group = representation.group
    gates = sum(t.amount for t in representation.terms if not is_permutation(t.atoms, group))
    return gates * Scalar(group) + representation


class GatedNonlinearity(nn.Module):
    """(…, gated(R).size) → (…, R.size): products times σ of their scalars, the rest x σ(x).

    No parameters. Each σ(s_i) is copied to the entries of its product by a matrix of zeros and
    ones, which takes a CPU less time than indices do, forward and backward.
    """

    def __init__(self, representation: Representation) -> None:
        super().__init__()
        group = representation.group
        self._runs: list[tuple[int, bool]] = []
        """Entries that lie together, and whether they have gates."""
        sizes: list[int] = []
        for term in representation.terms:
            size = product_size(term.atoms, group)
            has_gates = not is_permutation(term.atoms, group)
            before = self._runs.pop()[0] if self._runs and self._runs[-1][1] == has_gates else 0
            self._runs.append((before + term.amount * size, has_gates))
            sizes += [size] * term.amount * has_gates
        self.gates = len(sizes)
        self.out_features = sum(length for length, _ in self._runs)
        self.in_features = self.gates + self.out_features
        spread = torch.eye(self.gates).repeat_interleave(torch.tensor(sizes, dtype=torch.int64), 1)
        self.register_buffer("spread", spread, persistent=False)

    spread: Tensor
    """(gates, entries with gates)."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-1] != self.in_features:
            raise CallerError(
                f"expected inputs (…, {self.in_features}), {self.gates} gates and "
                f"{self.out_features} entries, got {shape_text(inputs)}"
            )
        if not self.gates:
            return functional.silu(inputs)
        gates, *parts = inputs.split([self.gates, *(length for length, _ in self._runs)], -1)
        lengths = [length for length, has_gates in self._runs if has_gates]
        factors = iter((gates.sigmoid() @ self.spread).split(lengths, -1))
        found = [
            part * next(factors) if has_gates else functional.silu(part)
            for part, (_, has_gates) in zip(parts, self._runs, strict=True)
        ]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def extra_repr(self) -> str:
        return f"{self.in_features} to {self.out_features}, {self.gates} gates"


class PointwiseNonlinearity(nn.Module):
    """`function` of each entry, on a representation that permutes entries; refused on any other."""

    def __init__(
        self, representation: Representation, function: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        group = representation.group
        for term in representation.terms:
            if not is_permutation(term.atoms, group):
                raise CallerError(
                    f"a pointwise nonlinearity does not commute with {Term(1, term.atoms)} of "
                    f"{group}, which mixes entries or changes their signs; use GatedNonlinearity "
                    "after a layer to gated(representation)"
                )
        self.size, self.function = representation.size, function

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-1] != self.size:
            raise CallerError(f"expected inputs (…, {self.size}), got {shape_text(inputs)}")
        return self.function(inputs)
