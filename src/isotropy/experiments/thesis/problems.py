"""Problems of the thesis of Finzi (2023) whose symmetry group is known (2.7, A.1.10, A.2.3).

Regression, on which an equivariant network is tried:

    o5         (x₁, x₂) in R⁵           sin‖x₁‖ − ‖x₂‖³/2 + x₁·x₂ / (‖x₁‖‖x₂‖)      2V → Scalar
    inertia    (mᵢ, xᵢ), five in R³     Σ mᵢ (xᵢ·xᵢ 1 − xᵢ xᵢᵀ)           5 Scalar + 5V → T(2)
    particle   p₁ … p₄ in R^{1,3}       4 L_{μν}(p₁, p₃) M^{μν}(p₂, p₄)               4V → Scalar

In `particle` η = diag(1, −1, −1, −1) and

    L = p₁ ⊗ p₃ − (p₁·p₃ − p₁·p₁) η        M = ηp₂ ⊗ ηp₄ − (p₂·p₄ − p₂·p₂) η

as the published code has it: the symmetrisation that the thesis prints is not applied there.
`modified-inertia` has the targets 𝓘 + 0.3 (𝓘ẑ)ẑᵀ, which are O(3) equivariant but for 17 % of them.
(The thesis prints 0.3 𝓘²ẑẑᵀ𝓘, which is 76 times as large as 𝓘; its code has the former.)

Inputs of a network are divided by one number a vector, which commutes with the group: the root of
the mean of x·x over examples and coordinates (`o5`), or of |x·x| by η (`particle`). Targets are
standardised. `inertia` is left as it is. Errors are told in the targets' own unit.

A double pendulum of springs in space, whose motion has a symmetry about the vertical axis:

    H = |p₁|²/2 + |p₂|²/2 + ½(|x₁| − 1)² + (|x₁ − x₂| − 1)² + z₁ + z₂

All constants are one, and the second spring has no ½, as in the published code. A
state is (x₁, x₂, p₁, p₂), 12 numbers, 4V of the rotations and reflections about z, O2eR3. The
motion is Hamiltonian, dx/dt = ∂H/∂p, dp/dt = −∂H/∂x, keeps H, and angular momentum about z,

    L = Σ (x × p)_z .

Wind is a constant force ε w on both masses, w = (−8, −5, 0): H − ε w·(x₁ + x₂). Its motion keeps
this energy, and has no symmetry about z but for ε = 0; the thesis takes ε = 0.01.

It starts near hanging still: x₁ ~ (0, 0, −1.5) + 0.2 N, x₂ ~ (0, 0, −3) + 0.2 N, p ~ 0.4 N. Each
trajectory of 30 s, a state every 0.2 s, gives one example: five states in a row, at a place that is
a multiple of five.

Any motion dz/dt = field(z) is followed from its start by `integrate`, with the Runge–Kutta method
of Dormand and Prince, in steps of fixed length, which a GPU can replay as one recorded graph. All
states of a batch are followed together; everything is differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
BROKEN = 0.3
"""Of the part of `modified-inertia` that is not equivariant."""
WIND = (-8.0, -5.0, 0.0)


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


def modified_inertia(masses: Tensor, positions: Tensor) -> Tensor:
    """𝓘 + 0.3 (𝓘ẑ)ẑᵀ, (…, 3, 3): the last column is 1.3 times that of the moment of inertia."""
    found = moment_of_inertia(masses, positions)
    last = found[..., 2:] * (1 + BROKEN)
    return torch.cat([found[..., :2], last], -1)


def _inertia(examples: int, generator: torch.Generator) -> RegressionData:
    return _of_points(examples, generator, moment_of_inertia)


def _modified_inertia(examples: int, generator: torch.Generator) -> RegressionData:
    return _of_points(examples, generator, modified_inertia)


def _of_points(
    examples: int, generator: torch.Generator, matrix: Callable[[Tensor, Tensor], Tensor]
) -> RegressionData:
    masses = torch.nn.functional.softplus(torch.randn(examples, 5, generator=generator))
    positions = torch.randn(examples, 5, 3, generator=generator)
    inputs = torch.cat([masses, positions.flatten(1)], 1)
    targets = matrix(masses, positions).flatten(1)
    ones = torch.ones(9)
    return RegressionData(inputs, targets, torch.ones(20), 0 * ones, ones, 5 * Scalar + 5 * V, T(2))


PROBLEMS: dict[str, Callable[[int, torch.Generator], RegressionData]] = {
    "o5": _o5,
    "inertia": _inertia,
    "modified-inertia": _modified_inertia,
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


@dataclass(frozen=True, eq=False)
class Moved:
    """Random elements of a group as they act on the inputs and the outputs of a function.

    inputs (elements, source size, source size); outputs (elements, target size, target size)
    """

    inputs: Tensor
    outputs: Tensor

    @classmethod
    def by(
        cls, source: Representation, target: Representation, count: int, generator: torch.Generator
    ) -> Moved:
        """`count` random elements; source and target are bound to the group."""
        elements = random_elements(source.group, count, generator)
        return cls(source.element(elements), target.element(elements))

    def error(self, function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """How far a function is from being equivariant, (…) of inputs (…, elements, source size).

        The mean over examples of ‖ρ₂(g) f(x) − f(ρ₁(g) x)‖ / (‖ρ₂(g) f(x)‖ + ‖f(ρ₁(g) x)‖), an
        element for each example (Finzi 2023, Eq. 3.3); between 0 and 1.
        """
        first, second = self.inputs.to(inputs), self.outputs.to(inputs)
        moved = function(torch.einsum("nij,...nj->...ni", first, inputs))
        wanted = torch.einsum("nij,...nj->...ni", second, function(inputs))
        sizes = moved.norm(dim=-1) + wanted.norm(dim=-1)
        return ((moved - wanted).norm(dim=-1) / sizes.clamp(min=1e-30)).mean(-1)


# -- motion and the pendulum -------------------------------------------------------------------

Field = Callable[[Tensor], Tensor]
"""d/dt of states (…, size)."""


def integrate(field: Field, start: Tensor, times: int, step: float, *, within: int) -> Tensor:
    """States (times, …) every `step` from `start` on, by `within` integration steps in each."""
    if within < 1:
        raise CallerError(f"expected at least 1 integration step in {step:g}, got {within}")
    state, states = start, [start]
    for _ in range(times - 1):
        state = advance(field, state, step, within)
        states.append(state)
    return torch.stack(states)


_STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
)
_WEIGHTS = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
"""The method of fifth order of Dormand and Prince (1980)."""


def advance(field: Field, state: Tensor, step: float, within: int) -> Tensor:
    """The state `step` later, by `within` steps of the Dormand–Prince method, six slopes each."""
    h = step / within
    for _ in range(within):
        slopes: list[Tensor] = []
        for stage in _STAGES:
            slopes.append(field(_combined(state, h, stage, slopes)))
        state = _combined(state, h, _WEIGHTS, slopes)
    return state


def _combined(state: Tensor, h: float, weights: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
    """state + h Σ weight · slope."""
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            state = torch.add(state, slope, alpha=h * weight)
    return state


STATE: Representation = 4 * V
STEP, DURATION, CHUNK = 0.2, 30.0, 5
ACCURATE = 2
"""Integration steps in one STEP that follow 30 s to a relative 1e-6 on average."""


def motion(states: Tensor, wind: float = 0.0) -> Tensor:
    """d/dt of states (…, 12), the derivatives of H written out; wind: ε."""
    first, second, p_first, p_second = states.unflatten(-1, (4, 3)).unbind(-2)
    between = first - second
    pull = 2 * (1 - 1 / between.norm(dim=-1, keepdim=True)) * between
    weight = torch.zeros_like(first)
    for axis, (blown, falling) in enumerate(zip(WIND, (0.0, 0.0, 1.0), strict=True)):
        weight[..., axis] = falling - wind * blown
    force_first = -(1 - 1 / first.norm(dim=-1, keepdim=True)) * first - pull - weight
    return torch.cat([p_first, p_second, force_first, pull - weight], -1)


def energy(states: Tensor, wind: float = 0.0) -> Tensor:
    """H (…) of states (…, 12)."""
    first, second, p_first, p_second = states.unflatten(-1, (4, 3)).unbind(-2)
    found = (p_first.square() + p_second.square()).sum(-1) / 2 + first[..., 2] + second[..., 2]
    found = found + (first.norm(dim=-1) - 1) ** 2 / 2 + ((first - second).norm(dim=-1) - 1) ** 2
    for axis, blown in enumerate(WIND):
        found = found - wind * blown * (first + second)[..., axis]
    return found


def pendulum_energies(examples: int, generator: torch.Generator, wind: float) -> RegressionData:
    """States as motions begin, and their energies, standardised."""
    states = initial_states(examples, generator)
    values = energy(states, wind)[:, None]
    return RegressionData(
        states.float(),
        values.float(),
        torch.ones(12),
        values.mean(0).float(),
        values.std(0, correction=0).float(),
        STATE,
        Scalar,
    )


def angular_momentum(states: Tensor) -> Tensor:
    """L about the vertical axis, of states (…, 12)."""
    coordinates = states.unflatten(-1, (4, 3))
    places, momenta = coordinates[..., :2, :], coordinates[..., 2:, :]
    crossed = places[..., 0] * momenta[..., 1] - places[..., 1] * momenta[..., 0]
    return crossed.sum(-1)


def initial_states(count: int, generator: torch.Generator) -> Tensor:
    """(count, 12) in float64."""
    noise = torch.randn(count, 4, 3, generator=generator, dtype=torch.float64)
    states = noise * torch.tensor([0.2, 0.2, 0.4, 0.4], dtype=torch.float64)[:, None]
    states[:, 0, 2] -= 1.5
    states[:, 1, 2] -= 3.0
    return states.flatten(1)


@dataclass(frozen=True, eq=False)
class PendulumData:
    """chunks (examples, CHUNK, 12): states every STEP; the first is where a prediction starts."""

    training: Tensor
    validation: Tensor
    test: Tensor

    def to(self, device: torch.device) -> PendulumData:
        """The same there."""
        return PendulumData(*(each.to(device) for each in vars(self).values()))


def pendulum_data(each: int, generator: torch.Generator, wind: float = 0.0) -> PendulumData:
    """`each` chunks for training, validation and test, in float64, every one of its own motion.

    wind: ε; the same generator gives the same starts and times for any
    """
    if each < 1:
        raise CallerError(f"expected at least 1 example of each kind, got {each}")
    times = round(DURATION / STEP)
    start = initial_states(3 * each, generator)
    paths = integrate(partial(motion, wind=wind), start, times, STEP, within=ACCURATE)
    places = CHUNK * torch.randint(times // CHUNK, (3 * each,), generator=generator)
    rows = places[:, None] + torch.arange(CHUNK)
    chunks = paths.transpose(0, 1)[torch.arange(3 * each)[:, None], rows]
    return PendulumData(*chunks.split(each))
