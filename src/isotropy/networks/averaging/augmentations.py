"""Distributions over group elements whose amount can be learned.

An `Augmentation` draws noise, turns it and its own parameters into transformed copies of data, and
says with which weights outputs are averaged over the copies. `Ranges` over the generators of an
Action have uniform noise ε_j ~ U[−1, 1], independent per example, sample and generator:

    UniformRanges      a_k = η_k ε_k      generator k ranges over [−|η_k|, |η_k|]
    CorrelatedRanges   a = L ε            Cov(a) = L Lᵀ / 3

in the action's own coordinates; η = 0 is exactly the identity, and only |η_k| means anything.
Because ε is symmetric, every objective averaged over it is even in η_k and has no slope at 0.
Learning therefore starts at a small value (`START`), from which it leaves also in float64 and with
antithetic noise. A rotation's range is bounded by its period and any range by the caller's caps.
The bound is put on the parameter after each step (`project`), not inside the forward pass, where it
would cut off the gradient.

A common factor of two generators (content that grows by the same factor along x and y) is one
column of L with two equal entries, which independent ranges can only wrap in a square; Immer et al.
(2022), Section 5.4, name this as their limitation. Many L have one covariance, and parallel columns
would add up to a noise that is no longer uniform. After every step L is therefore brought to its
principal axes, orthogonal columns with the same L Lᵀ (`principal_axes`); what remains free is the
order and the signs of columns. What is reported does not depend on these: the half-width
Σ_j |L_kj| of each generator, which is the largest coordinate that occurs, and the correlations of
L Lᵀ. `mixtures` has finite groups.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice, shape_text
from isotropy.curvature.kinds import Copies
from isotropy.kernels.fused import is_capturing
from isotropy.symmetry.actions.action import Action, Composition

COPIES_SEED = 0
"""Scrambles the points that predictions are averaged over."""
START = 0.05
"""Half-width every learnable range starts from, in coordinates (radians, half widths, logs)."""


ALIKE = 0.95
"""Neighbouring lengths of axes with at least this quotient count as equal."""


@dataclass(frozen=True)
class Symmetry:
    """What was learned of one generator, in the unit users read."""

    name: str
    kind: str
    low: float
    high: float
    unit: str

    def as_dict(self) -> dict[str, str | float]:
        return asdict(self)


class Augmentation(nn.Module):
    """A distribution over transformations of data, with parameters that say how much.

    Noise is (batch, copies, numbers): what is drawn once and can be replayed. The same noise with
    other parameters gives the same copies moved by more or less.
    """

    action: Action

    @abstractmethod
    def noise(
        self,
        batch: int,
        samples: int,
        *,
        generator: torch.Generator | None = None,
        antithetic: bool = False,
    ) -> Tensor:
        """Fresh noise for `samples` copies of each of `batch` examples, or a few more."""

    def fixed_noise(self, samples: int, *, seed: int = COPIES_SEED) -> Tensor:
        """Noise (1, copies, numbers) for predictions, the same for the same seed.

        `Ranges` and mixtures with them spread the copies evenly; others draw them by the seed.
        """
        like = next(iter(self.parameters()), torch.zeros(()))
        generator = torch.Generator(like.device).manual_seed(seed)
        return self.noise(1, samples, generator=generator)

    @abstractmethod
    def forward(self, data: Tensor, noise: Tensor) -> Tensor:
        """Transformed copies (batch, copies, …) of data (batch, …) for given noise."""

    @abstractmethod
    def coordinates(self, noise: Tensor) -> Tensor:
        """The action's coordinates (…, coordinates) that belong to noise (…, numbers)."""

    def copies(self, count: int) -> Copies:
        """How outputs over `count` copies are averaged: equally, unless said otherwise."""
        return Copies(count)

    @abstractmethod
    def learnable(self) -> list[nn.Parameter]:
        """The parameters that say how much."""

    @abstractmethod
    def project(self) -> None:
        """Bring the parameters back within their bounds; call after each optimiser step."""

    @property
    @abstractmethod
    def is_identity(self) -> bool:
        """True when nothing is transformed at all."""

    def leaves_alone(self, data: Tensor) -> bool:
        """Whether copies of data need not be made at all, being the data themselves.

        What is being learned is differentiated also where it is zero. On a GPU, where one would
        wait for the answer, it is taken to move the data, as is everything in a CUDA graph.
        """
        learnable = any(parameter.requires_grad for parameter in self.parameters())
        if learnable and (torch.is_grad_enabled() or data.is_cuda):
            return False
        return not is_capturing(data) and self.is_identity

    @abstractmethod
    def symmetries(self) -> list[Symmetry]:
        """What the parameters mean, in the units users read."""

    @abstractmethod
    def law(self) -> dict[str, Any]:
        """The distribution in JSON: all that is needed to draw from it elsewhere."""


class Ranges(Augmentation):
    """Ranges over the generators of an action, drawn by noise that is uniform on [−1, 1].

    A kind of ranges has one learnable parameter and says what coordinates belong to noise, and how
    far they reach.
    """

    @abstractmethod
    def reach(self) -> Tensor:
        """The largest coordinate that occurs, (generators,), not negative."""

    def noise_factors(self) -> Tensor:
        """What noise is multiplied by in independent ranges, (generators,): the reach, or with a
        sign. With these signs the same noise gives the same copies; the distribution has none."""
        return self.reach()

    @property
    def is_identity(self) -> bool:
        return not bool(self.reach().detach().any())

    def noise(
        self,
        batch: int,
        samples: int,
        *,
        generator: torch.Generator | None = None,
        antithetic: bool = False,
    ) -> Tensor:
        """ε (batch, samples, coordinates), uniform on [−1, 1].

        antithetic: the second half of the samples is minus the first (`samples` even), which
        removes all odd orders in η from the average.
        """
        return uniform_noise(
            (batch, samples, self.action.coordinate_count),
            like=self.learnable()[0],
            generator=generator,
            antithetic=antithetic,
        )

    def fixed_noise(self, samples: int, *, seed: int = COPIES_SEED) -> Tensor:
        """ε (1, samples, coordinates), spread evenly over ranges that are not zero."""
        count, like = self.action.coordinate_count, self.learnable()[0].detach()
        unit = torch.eye(count, dtype=like.dtype, device=like.device)
        used = self.coordinates(unit).detach().ne(0).any(-1)
        noise = like.new_zeros(1, samples, count)
        noise[..., used] = (2 * even_points(samples, int(used.sum()), seed) - 1).to(like)
        return noise

    def forward(self, data: Tensor, noise: Tensor) -> Tensor:
        self.action.check_coordinates(noise, data)
        if self.leaves_alone(data):
            return data[:, None].expand(-1, noise.shape[1], *data.shape[1:])
        return self.action.act(self.coordinates(noise), data)

    def symmetries(self) -> list[Symmetry]:
        """The ranges as reported: low = −reach, high = reach in each generator's unit."""
        widths = self.reach().detach().tolist()
        found = []
        for generator, width in zip(self.action.generators, widths, strict=True):
            # Rounded to float32, π is a little more than π.
            reach = generator.in_units(min(width, generator.period or width))
            found.append(Symmetry(generator.name, "range", -reach, reach, generator.unit))
        return found

    def law(self) -> dict[str, Any]:
        return {
            "kind": "independent",
            "law": "content moves by exp(Σ a_k G_k), a_k uniform on [low, high], independent",
            "generators": generator_records(self.action),
            "actions": action_records(self.action),
            "half_widths": self.reach().detach().tolist(),
            "noise_factors": self.noise_factors().detach().tolist(),
        }


class UniformRanges(Ranges):
    """Independent uniform ranges over the generators of an action.

    half_widths: the learnable parameter η (generators,), in coordinates.
    start:  one number in coordinates for all, or half-widths by name in reported units.
    caps:   largest half-width by generator name, in reported units (degrees, …).
    """

    def __init__(
        self,
        action: Action,
        *,
        start: float | Mapping[str, float] = START,
        caps: Mapping[str, float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.action = action
        self.half_widths = nn.Parameter(torch.tensor(start_widths(action, start), dtype=dtype))
        self.register_buffer("bounds", range_bounds(action, caps or {}).to(dtype))
        counts = torch.tensor([generator.multiplicity for generator in action.generators])
        self.register_buffer("counts", counts, persistent=False)
        self.project()

    bounds: Tensor
    counts: Tensor

    def learnable(self) -> list[nn.Parameter]:
        return [self.half_widths]

    @torch.no_grad()
    def project(self) -> None:
        self.half_widths.clamp_(-self.bounds, self.bounds)

    def coordinates(self, noise: Tensor) -> Tensor:
        if self.action.coordinate_count == len(self.half_widths):
            return noise * self.half_widths
        return noise * self.half_widths.repeat_interleave(self.counts)

    def reach(self) -> Tensor:
        return self.half_widths.abs()

    def noise_factors(self) -> Tensor:
        return self.half_widths


class CorrelatedRanges(Ranges):
    """Correlated uniform ranges over the generators of an action.

    factor: the learnable matrix L (generators, generators), in coordinates.
    start:  a number for the diagonal, half-widths by name in reported units, or L itself.
    caps:   largest half-width by generator name, in reported units.
    """

    def __init__(
        self,
        action: Action,
        *,
        start: float | Mapping[str, float] | Tensor = START,
        caps: Mapping[str, float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        repeated = [g.name for g in action.generators if g.multiplicity > 1]
        if repeated:
            raise CallerError(
                f"correlated ranges: {repeated[0]!r} stands for many equal coordinates and has no "
                "single correlation; use independent ranges for it"
            )
        self.action = action
        self.factor = nn.Parameter(self._start(start).to(dtype))
        self.register_buffer("bounds", range_bounds(action, caps or {}).to(dtype))
        self._keep_bounds()

    bounds: Tensor

    def _start(self, start: float | Mapping[str, float] | Tensor) -> Tensor:
        size = len(self.action.generators)
        if isinstance(start, Tensor):
            if start.shape != (size, size):
                raise CallerError(
                    f"start: expected (generators, generators) = ({size}, {size}), got "
                    f"{shape_text(start)}"
                )
            return start.detach().clone()
        return torch.diag(torch.tensor(start_widths(self.action, start), dtype=torch.float64))

    @property
    def half_widths(self) -> Tensor:
        """Σ_j |L_kj| (generators,), in coordinates."""
        return self.factor.abs().sum(1)

    @torch.no_grad()
    def correlations(self) -> Tensor:
        """Correlation matrix of the coordinates; zero where a range is exactly zero."""
        covariance = (self.factor @ self.factor.mT).double()
        deviation = covariance.diagonal().sqrt()
        scale = torch.where(deviation > 0, 1 / deviation, 0.0)
        return scale[:, None] * covariance * scale

    def learnable(self) -> list[nn.Parameter]:
        return [self.factor]

    @torch.no_grad()
    def project(self) -> None:
        """Orthogonal columns with the same covariance, and half-widths within their bounds."""
        self.factor.copy_(principal_axes(self.factor))
        self._keep_bounds()

    @torch.no_grad()
    def _keep_bounds(self) -> None:
        self.factor.mul_((self.bounds / self.half_widths).clamp(max=1.0).nan_to_num(1.0)[:, None])

    def coordinates(self, noise: Tensor) -> Tensor:
        return noise @ self.factor.mT

    def reach(self) -> Tensor:
        return self.half_widths

    def law(self) -> dict[str, Any]:
        return {
            "kind": "correlated",
            "law": "content moves by exp(Σ a_k G_k), a = L ε, ε_j uniform on [−1, 1], independent",
            "generators": generator_records(self.action),
            "actions": action_records(self.action),
            "factor": self.factor.detach().tolist(),
            "correlations": self.correlations().tolist(),
        }


def principal_axes(factor: Tensor) -> Tensor:
    """L with orthogonal columns and the same L Lᵀ, as near to L as can be.

    Of all matrices with one covariance this is the one in which every direction has a noise of its
    own: parallel columns would add up to something that is no longer uniform. Axes of (nearly)
    equal length may be turned among themselves at will; they are left as L has them.
    """
    left, values, right = torch.linalg.svd(factor.double())  # L = U S Vᵀ
    axes = left * values
    columns = _matching(right)
    result = torch.empty_like(axes)
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and values[end] >= ALIKE * values[end - 1]:
            continue
        own = columns[start:end]
        turn, _, back = torch.linalg.svd(right[start:end][:, own])
        result[:, own] = axes[:, start:end] @ (turn @ back)
        start = end
    return result.to(factor.dtype)


def _matching(right: Tensor) -> Tensor:
    """For each axis the column of L that it makes up most, each column taken once."""
    remaining = right.abs().clone()
    columns = torch.zeros(len(right), dtype=torch.long, device=right.device)
    for _ in range(len(right)):
        axis, column = divmod(int(remaining.argmax()), len(right))
        columns[axis] = column
        remaining[axis, :] = -1
        remaining[:, column] = -1
    return columns


def start_widths(action: Action, start: float | Mapping[str, float]) -> list[float]:
    """Half-widths in coordinates: one number for all, or by name in reported units, others zero."""
    if not isinstance(start, Mapping):
        return [start] * len(action.generators)
    for name in start:
        check_choice(name, action.names, what="generator")
    return [each.from_units(start.get(each.name, 0.0)) for each in action.generators]


def range_bounds(action: Action, caps: Mapping[str, float], *, periodic: bool = True) -> Tensor:
    """Largest half-width of each generator in coordinates: its period, or the caller's cap.

    periodic: whether a period bounds a range
    """
    for name in caps:
        check_choice(name, action.names, what="generator")
    bounds = []
    for generator in action.generators:
        bound = generator.period if periodic and generator.period is not None else float("inf")
        if generator.name in caps:
            cap = caps[generator.name]
            if not cap >= 0:
                raise CallerError(
                    f"cap for {generator.name!r}: expected a half-width of at least 0 "
                    f"{generator.unit}, got {cap}"
                )
            bound = min(bound, generator.from_units(cap))
        bounds.append(bound)
    return torch.tensor(bounds, dtype=torch.float64)


def uniform_noise(
    shape: tuple[int, int, int],
    *,
    like: Tensor,
    generator: torch.Generator | None,
    antithetic: bool = False,
) -> Tensor:
    """(batch, samples, numbers), each uniform on [−1, 1]; antithetic: second half minus the first.

    A Latin hypercube (McKay, Beckman and Conover 1979): the samples of one example fall one into
    each of S equal parts of [−1, 1], for every number,

        ε_s = 2 (π(s) + u_s) / S − 1,      u_s uniform on [0, 1)

    Averages over S independent copies have the covariance Cov/S, which the curvature of the
    averaged network takes for curvature: E[ā āᵀ] = μμᵀ + Cov/S. The evidence then charges for
    width, and more so the fewer copies there are. Of stratified copies the covariance falls as
    S⁻³ along each generator. For what several generators do together the orders π are those of a
    lattice, moved at random: π_j(s) = z_j s + shift_j mod S (`lattice`).
    """
    batch, samples, numbers = shape
    if antithetic and samples % 2:
        raise CallerError(f"antithetic noise: expected even samples, got {samples}")
    drawn = samples // 2 if antithetic else samples
    draws: dict[str, Any] = {"generator": generator, "device": like.device, "dtype": like.dtype}
    places, order = torch.rand((2, batch, drawn, numbers), **draws)
    shifts = (torch.rand((batch, 1, numbers), **draws) * drawn).floor()
    steps = torch.arange(drawn, device=like.device, dtype=like.dtype)
    strata = order.argsort(1).to(like.dtype)
    for number, factor in enumerate(lattice(drawn, numbers)):
        if factor:
            strata[..., number] = (factor * steps + shifts[..., number]) % drawn
    epsilon = (strata + places) * (2 / drawn) - 1
    return torch.cat([epsilon, -epsilon], 1) if antithetic else epsilon


@lru_cache
def even_points(points: int, numbers: int, seed: int) -> Tensor:
    """Points (points, numbers) in [0, 1), float64, over which a mean is close to the integral.

    One number: the midpoints of S equal parts, whose error falls as S⁻², and faster than any power
    over a whole period. Several: the first points of a scrambled Sobol sequence, S^(−3/2) up to
    logarithms for smooth functions (Owen 1997), where independent points have S^(−1/2).
    """
    if not numbers:
        return torch.zeros(points, 0, dtype=torch.float64)
    if numbers == 1:
        return ((torch.arange(points, dtype=torch.float64) + 0.5) / points)[:, None]
    engine = torch.quasirandom.SobolEngine(numbers, scramble=True, seed=seed)
    return engine.draw(points, dtype=torch.float64)


@lru_cache
def lattice(points: int, numbers: int) -> tuple[int, ...]:
    """Factors z of a lattice of points (z_1 s, z_2 s, …) mod S whose planes are all well filled.

    One after the other: the z_j, without a common divisor with S, for which the shortest distance
    of two points (round the borders) in the planes of z_j with those before it is largest. Zero
    where none is left that is not ± one of them; there a random order is better.
    """
    chosen = [1][:numbers]
    while len(chosen) < numbers:
        left = [
            z
            for z in range(2, points // 2 + 1)
            if math.gcd(z, points) == 1 and z not in chosen and points - z not in chosen
        ]
        if not left:
            break
        chosen.append(max(left, key=lambda z: min(_shortest(points, known, z) for known in chosen)))
    return (*chosen, *(0,) * (numbers - len(chosen)))


def _shortest(points: int, first: int, second: int) -> int:
    """The least squared distance from one lattice point of a plane to another."""

    def along(factor: int, step: int) -> int:
        place = factor * step % points
        return min(place, points - place)

    return min(
        (along(first, step) ** 2 + along(second, step) ** 2 for step in range(1, points)), default=0
    )


def generator_records(action: Action) -> list[dict[str, Any]]:
    """The action's generators in JSON: name, unit, scale, and the matrix where there is one."""
    return [
        {
            "name": generator.name,
            "unit": generator.unit,
            "coordinate_per_unit": generator.coordinate_per_unit,
            "period": generator.period,
            **({"matrix": generator.matrix} if hasattr(generator, "matrix") else {}),
        }
        for generator in action.generators
    ]


OPTIONS = ("interpolation", "padding", "fill", "align_corners", "boundary")
"""What an Action may have been told besides its generators, and a law must repeat."""


def action_records(action: Action) -> list[dict[str, Any]]:
    """Which generators share one exponential, in the order they act, and their action's options."""
    parts = action.actions if isinstance(action, Composition) else (action,)
    return [
        {
            "generators": list(part.names),
            **{name: value for name in OPTIONS if (value := getattr(part, name, None)) is not None},
        }
        for part in parts
    ]
