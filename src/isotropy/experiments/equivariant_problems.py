"""Regression problems whose symmetry group is known: what an equivariant network is tried on.

    o5         (x₁, x₂) in R⁵           sin‖x₁‖ − ‖x₂‖³/2 + x₁·x₂ / (‖x₁‖‖x₂‖)      2V → Scalar
    inertia    (mᵢ, xᵢ), five in R³     Σ mᵢ (xᵢ·xᵢ 1 − xᵢ xᵢᵀ)           5 Scalar + 5V → T(2)
    particle   p₁ … p₄ in R^{1,3}       4 L_{μν}(p₁, p₃) M^{μν}(p₂, p₄)               4V → Scalar

(Finzi 2023, 2.7.1 and A.1.10.) In `particle` η = diag(1, −1, −1, −1) and

    L = p₁ ⊗ p₃ − (p₁·p₃ − p₁·p₁) η        M = ηp₂ ⊗ ηp₄ − (p₂·p₄ − p₂·p₂) η

as the published code has it: the symmetrisation that the thesis prints is not applied there.

Inputs of a network are divided by one number a vector, which commutes with the group: the root of
the mean of x·x over examples and coordinates (`o5`), or of |x·x| by η (`particle`). Targets are
standardised. `inertia` is left as it is. Errors are told in the targets' own unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, T, V

VALIDATION, TEST = 1000, 5000
LARGEST_TRAINING = 30_000
BOOSTS = 0.3
"""Boosts and scalings of random elements are this much smaller than rotations."""

_ETA = (1.0, -1.0, -1.0, -1.0)


@dataclass(frozen=True, eq=False)
class RegressionData:
    """Examples of one problem, and what a network's inputs and outputs are scaled by.

    inputs:       (examples, source size)
    targets:      (examples, target size)
    input_scale:  (source size), by which inputs are divided
    target_mean, target_scale: (target size), with which outputs are taken back
    source, target: how both transform, not yet bound to a group
    """

    inputs: Tensor
    targets: Tensor
    input_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    source: Representation
    target: Representation


def regression_problem(
    name: str,
    generator: torch.Generator,
    examples: int = LARGEST_TRAINING + VALIDATION + TEST,
) -> RegressionData:
    """One of PROBLEMS; scales are of all examples, so that they are the same for every N."""
    make = PROBLEMS[check_choice(name, PROBLEMS, what="problem")]
    if examples < 2:
        raise CallerError(f"expected at least 2 examples, got {examples}; scales need them")
    return make(examples, generator)


# -- the problems ------------------------------------------------------------------------------


def invariant_function(vectors: Tensor) -> Tensor:
    """The O(5) invariant function of (…, 2, 5)."""
    first, second = vectors[..., 0, :], vectors[..., 1, :]
    lengths = first.norm(dim=-1), second.norm(dim=-1)
    cosine = (first * second).sum(-1) / (lengths[0] * lengths[1])
    return lengths[0].sin() - lengths[1] ** 3 / 2 + cosine


def moment_of_inertia(masses: Tensor, positions: Tensor) -> Tensor:
    """(…, 3, 3) of point masses (…, points) at (…, points, 3)."""
    squares = (masses * positions.square().sum(-1)).sum(-1)
    outer = torch.einsum("...i,...ij,...ik->...jk", masses, positions, positions)
    identity = torch.eye(3, dtype=positions.dtype, device=positions.device)
    return squares[..., None, None] * identity - outer


def matrix_element(momenta: Tensor) -> Tensor:
    """Electron–muon scattering: the Lorentz invariant of four momenta (…, 4, 4)."""
    eta = torch.diag(momenta.new_tensor(_ETA))
    p, q, p_out, q_out = momenta.unbind(-2)  # the pairs are (1, 3) and (2, 4)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("...i,ij,...j->...", a, eta, b)[..., None, None]

    electron = p[..., :, None] * p_out[..., None, :] - (dot(p, p_out) - dot(p, p)) * eta
    muon = (q @ eta)[..., :, None] * (q_out @ eta)[..., None, :]
    muon = muon - (dot(q, q_out) - dot(q, q)) * eta
    return 4 * (electron * muon).sum((-2, -1))


def _o5(examples: int, generator: torch.Generator) -> RegressionData:
    vectors = torch.randn(examples, 2, 5, generator=generator)
    scale = vectors.square().mean((0, 2)).sqrt()
    return _scaled(vectors, scale, invariant_function(vectors), 2 * V)


def _particle(examples: int, generator: torch.Generator) -> RegressionData:
    momenta = torch.randn(examples, 4, 4, generator=generator) / 4
    squares = (momenta.square() * momenta.new_tensor(_ETA)).sum(-1)
    return _scaled(momenta, squares.abs().mean(0).sqrt(), matrix_element(momenta), 4 * V)


def _scaled(
    vectors: Tensor, scale: Tensor, values: Tensor, source: Representation
) -> RegressionData:
    """vectors (examples, vectors, d), scale (vectors), values (examples): a scalar target."""
    return RegressionData(
        vectors.flatten(1),
        values[:, None],
        scale.repeat_interleave(vectors.shape[-1]),
        values.mean()[None],
        values.std(correction=0)[None],
        source,
        Scalar,
    )


def _inertia(examples: int, generator: torch.Generator) -> RegressionData:
    masses = torch.nn.functional.softplus(torch.randn(examples, 5, generator=generator))
    positions = torch.randn(examples, 5, 3, generator=generator)
    inputs = torch.cat([masses, positions.flatten(1)], 1)
    targets = moment_of_inertia(masses, positions).flatten(1)
    ones = torch.ones(9)
    return RegressionData(inputs, targets, torch.ones(20), 0 * ones, ones, 5 * Scalar + 5 * V, T(2))


PROBLEMS: dict[str, Callable[[int, torch.Generator], RegressionData]] = {
    "o5": _o5,
    "inertia": _inertia,
    "particle": _particle,
}


# -- elements for augmentation -----------------------------------------------------------------


def random_elements(group: Group, count: int, generator: torch.Generator) -> Tensor:
    """Many elements (count, d, d) at once, in float64: exp(Σ z_i A_i) times powers of every h_k.

    z is normal, BOOSTS times that where A_i is symmetric. Then three rounds of all discrete
    generators, each element in an order of its own, to powers in −5 … 4.
    """
    dimension = group.dimension
    algebra, discrete = group.algebra_tensor(), group.discrete_tensor()
    elements = torch.eye(dimension, dtype=algebra.dtype).repeat(count, 1, 1)
    if len(algebra):
        sizes = torch.where((algebra == algebra.mT).all(-1).all(-1), BOOSTS, 1.0).double()
        weights = sizes * torch.randn(count, len(algebra), generator=generator, dtype=sizes.dtype)
        inner = torch.einsum("ci,ijk->cjk", weights.to(algebra.dtype), algebra)
        elements = torch.linalg.matrix_exp(inner)
    if len(discrete):
        exponents = range(-5, 5)
        powers = torch.stack([torch.linalg.matrix_power(discrete, power) for power in exponents], 1)
        for _ in range(3):
            order = torch.rand(count, len(discrete), generator=generator).argsort(1)
            chosen = torch.randint(len(exponents), order.shape, generator=generator)
            for place in range(len(discrete)):
                elements = elements @ powers[order[:, place], chosen[:, place]]
    return elements
