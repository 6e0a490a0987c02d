"""Whether ρ, a function of the group's matrices, is a representation of the group.

    ρ(1) = 1,    ρ(g h) = ρ(g) ρ(h),    exp(dρ(A)) = ρ(exp A)

on sampled elements g, h and every infinitesimal generator A, each within `TOLERANCE` of the norms
on its right. The last two are compared on a few random vectors, so that ρ of size n takes O(n²)
work. A representation given by its user (`custom`) is checked whenever it is bound to a new group;
sums, products, duals and restrictions of representations are representations by construction.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.linalg import expm_multiply
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.symmetry.atoms import Atom
from isotropy.symmetry.groups import Group

TOLERANCE = 1e-8
"""The largest violation, relative to the norms of ρ(g) and ρ(h)."""
PAIRS = 3
"""How many g and h are sampled."""
VECTORS = 3
"""On how many vectors both sides are compared."""
LARGEST = 1.0
"""The Frobenius norm of the largest Σ z_i A_i: boosts and scalings grow exponentially with it."""


def check_atom(atom: Atom, group: Group, *, generator: torch.Generator | None = None) -> None:
    """Raise `CallerError` unless `atom` is a representation of `group`; see the module."""
    generator = generator or torch.Generator().manual_seed(0)
    _check_values(atom, group)
    elements = group.sample(2 * PAIRS, generator, largest=LARGEST)
    vectors = torch.randn(atom.size(group), VECTORS, generator=generator, dtype=torch.float64)
    vectors = (vectors / torch.linalg.vector_norm(vectors, dim=0)).to(elements.dtype)
    for g, h in elements.unflatten(0, (PAIRS, 2)):
        left, right, both = (_image(atom, group, each) for each in (g, h, g @ h))
        scale = float(torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right))
        expected = left @ (right @ vectors)
        _check_equal(both @ vectors, expected, scale, "ρ(gh) = ρ(g)ρ(h)", atom, group)
    _check_derivatives(atom, group, vectors)


def _check_values(atom: Atom, group: Group) -> None:
    """ρ(1) is a finite square matrix of the group's numbers, and the identity."""
    identity = torch.eye(group.dimension, dtype=group.algebra_tensor().dtype)
    image = _image(atom, group, identity)
    if not isinstance(image, Tensor) or image.ndim != 2 or image.shape[0] != image.shape[1]:
        got = f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else repr(type(image))
        raise CallerError(
            f"ρ of {atom}, a representation of {group}: expected a square matrix for a matrix "
            f"{tuple(identity.shape)}, got {got}"
        )
    if image.dtype != identity.dtype:
        raise CallerError(
            f"ρ of {atom}, a representation of {group}: expected {identity.dtype} for "
            f"{identity.dtype}, got {image.dtype}; let constants follow the dtype of the argument, "
            "and take the real form of what is complex"
        )
    expected = torch.eye(len(image), dtype=image.dtype)
    _check_equal(image, expected, len(image) ** 0.5, "ρ(1) = 1", atom, group)


def _check_derivatives(atom: Atom, group: Group, vectors: Tensor) -> None:
    for generator, image in zip(group.algebra_tensor(), atom.algebra(group), strict=True):
        if not np.isfinite(image.data).all():
            raise CallerError(
                f"{atom} is not a representation of {group}: its derivative at the identity has a "
                "NaN or an infinity; ρ has to be smooth there, beware of square roots of zero"
            )
        step = LARGEST / max(LARGEST, float(torch.linalg.matrix_norm(generator)))
        moved = _image(atom, group, torch.linalg.matrix_exp(step * generator))
        expected = torch.from_numpy(expm_multiply(step * image, vectors.numpy()))
        scale = float(torch.linalg.matrix_norm(moved))
        _check_equal(moved @ vectors, expected, scale, "ρ(exp A) = exp(dρ(A))", atom, group)


def _image(atom: Atom, group: Group, element: Tensor) -> Tensor:
    """ρ(g), all of it finite."""
    image = atom.element(group, element)
    if isinstance(image, Tensor) and not bool(torch.isfinite(image).all()):
        raise CallerError(
            f"{atom} is not a representation of {group}: ρ(g) of an element has a NaN or an "
            "infinity"
        )
    return image


def _check_equal(
    found: Tensor, expected: Tensor, scale: float, law: str, atom: Atom, group: Group
) -> None:
    """‖found − expected‖ within the tolerance of `scale`."""
    worst = float(torch.linalg.matrix_norm(found - expected)) / max(scale, 1.0)
    if not worst <= TOLERANCE:
        raise CallerError(
            f"{atom} is not a representation of {group}: expected {law}, got a relative difference "
            f"of {worst:.1e}; write ρ as a smooth function of the group's matrix g that keeps "
            "products"
        )
