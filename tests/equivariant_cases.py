"""Groups and representations on which every equivariant layer and network is tried.

A new group joins the list and inherits the tests of layers and networks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isotropy.symmetry.groups.catalogue import group_named
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, T, V

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
"""Of an equivariance error, divided by condition numbers."""

VECTORS = 3 * V + 2 * Scalar
MIXED = 2 * V + 2 * V.dual + Scalar

CASES: dict[str, tuple[Representation, Representation]] = {
    "Trivial(3)": (VECTORS, V + Scalar),
    "Z(4)": (VECTORS, V + T(2)),
    "S(4)": (VECTORS, V + T(2)),
    "C(5)": (VECTORS, V + Scalar),
    "D(4)": (VECTORS, V + Scalar),
    "D(6)": (VECTORS, V + Scalar),
    "SO(2)": (VECTORS, V + Scalar),
    "SO(3)": (VECTORS, V + T(2)),
    "O(3)": (VECTORS, V + T(2)),
    "O(5)": (VECTORS, Scalar),
    "SO+(1,1)": (MIXED, V + Scalar),
    "O(1,1)": (MIXED, V.dual + Scalar),
    "SO+(1,3)": (VECTORS, V + V.dual + Scalar),
    "SO(1,3)": (MIXED, V + Scalar),
    "O(1,3)": (MIXED, V + Scalar),
    "Sp(1)": (MIXED, V + Scalar),
    "Sp(2)": (VECTORS, V + V.dual),
    "SL(2)": (MIXED, V + Scalar),
    "SL(3)": (MIXED, V.dual + Scalar),
    "GL(2)": (MIXED, V + Scalar),
    "Scaling(2)": (MIXED, V + Scalar),
    "SU(2)": (VECTORS, V + Scalar),
    "U(2)": (VECTORS, V + Scalar),
    "Parity": (VECTORS, V + Scalar),
    "Cube": (VECTORS, V),
    "RubiksCube": (V, V),
    "Grid(4,2)": (V, V),
    "O2eR3": (VECTORS, V + Scalar),
    "DkeR3(6)": (VECTORS, V + Scalar),
    "Z(2) x Z(3)": (VECTORS, V),
    "SO(2) x S(3)": (VECTORS, V),
    "Wreath(Z(2),S(2))": (VECTORS, V),
}


def bound(name: str) -> tuple[Group, Representation, Representation]:
    """The group in its real form, and what its case maps from and to."""
    group = group_named(name).real_form()
    source, target = CASES[name]
    return group, source(group), target(group)


def random_inputs(count: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, size, generator=generator, dtype=torch.float64).to(dtype)


def elements(group: Group, count: int = 5) -> Tensor:
    """Elements g = exp(A) h with ‖A‖ ≤ 1."""
    return group.sample(count, torch.Generator().manual_seed(3), largest=1.0)
