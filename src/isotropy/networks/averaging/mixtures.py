"""Finite groups as exact mixtures, alone or together with ranges over continuous generators.

    f̂(x) = Σ_g p_g E_a[ f(g(a) g x) ]          g runs over the product of the finite actions

Every element g gets the same number of copies, weighted by its probability, so that the average
is exact (and linear) in p; only the coordinates a are drawn. The element acts first, and then
the continuous part.

An involution and its complement are the same model (call the flipped picture the picture), so its
probability lies in [0, ½]. In general no element is likelier than the identity; `project` sees to
it. A random element (a drawn permutation, another library's augmentation) is itself an average and
has a probability up to 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError, check_choice
from isotropy.curvature.kinds import Copies
from isotropy.networks.averaging.augmentations import (
    COPIES_SEED,
    START,
    Augmentation,
    CorrelatedRanges,
    Symmetry,
    UniformRanges,
    even_points,
)
from isotropy.symmetry.actions.action import Action, compose
from isotropy.symmetry.actions.finite import FiniteAction

START_PROBABILITY = 0.1
DISTRIBUTIONS = ("independent", "correlated")


class NoRanges(Action):
    """The action without generators: a mixture over finite actions alone."""

    generators = ()

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """One unchanged copy per sample."""
        return data[:, None].expand(-1, coordinates.shape[1], *data.shape[1:])


class Mixture(Augmentation):
    """Finite actions in front of an augmentation with ranges.

    probabilities: one learnable vector per finite action, (elements without the identity,).
    start:  probability by element name; others start at `default`.
    caps:   largest probability by element name; elements with a cap of zero have no copies.
    """

    def __init__(
        self,
        ranges: Augmentation,
        finite: Sequence[FiniteAction],
        *,
        start: Mapping[str, float] | None = None,
        default: float = START_PROBABILITY,
        caps: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.ranges = ranges
        self.action = ranges.action
        self.finite = tuple(finite)
        names = [*self.action.names, *(name for action in finite for name in action.names)]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise CallerError(f"elements: expected different names, got {min(repeated)!r} twice")
        like = next(iter(ranges.parameters()))
        self.probabilities = nn.ParameterList(
            torch.tensor(
                [(start or {}).get(n, default) for n in action.names],
                dtype=like.dtype,
                device=like.device,
            )
            for action in finite
        )
        self.caps = {name: float(cap) for name, cap in (caps or {}).items()}
        for name, cap in self.caps.items():
            check_choice(name, names, what="element")
            if not cap >= 0:
                raise CallerError(f"cap for {name!r}: expected at least 0, got {cap}")
        # Parameters of a wrapped module (another library's ranges) are learned with the rest.
        wrapped = [getattr(action, "transform", None) for action in finite]
        self.transforms = nn.ModuleList(w for w in wrapped if isinstance(w, nn.Module))
        sizes = [range(-1, len(action.elements)) for action in finite]
        every = list(itertools.product(*sizes))  # −1 is the identity
        # An element that may not occur has no copies.
        self._possible = [n for n, combination in enumerate(every) if self._may_occur(combination)]
        self._combinations = [every[number] for number in self._possible]
        self._random = any(action.is_random for action in finite)
        self._keep_bounds()  # the ranges are within theirs, and stay as they were given

    def _may_occur(self, combination: Sequence[int]) -> bool:
        return not any(
            index >= 0 and self.caps.get(action.names[index]) == 0
            for index, action in zip(combination, self.finite, strict=True)
        )

    @property
    def wrapped_parameters(self) -> list[nn.Parameter]:
        """Parameters of wrapped transforms, which are learned with the rest."""
        return [p for p in self.transforms.parameters() if p.requires_grad]

    def learnable(self) -> list[nn.Parameter]:
        wrapped = self.wrapped_parameters
        own = [p for p in self.ranges.learnable() if p.numel()]
        return [*own, *self.probabilities, *wrapped]

    @torch.no_grad()
    def project(self) -> None:
        self.ranges.project()
        self._keep_bounds()

    @torch.no_grad()
    def _keep_bounds(self) -> None:
        for action, probabilities in zip(self.finite, self.probabilities, strict=True):
            largest = [self.caps.get(name, 1.0) for name in action.names]
            limit = torch.tensor(largest).to(probabilities)
            probabilities.copy_(probabilities.clamp(min=0.0).minimum(limit))
            if not action.is_random:
                probabilities.copy_(_below_identity(probabilities))
            else:
                probabilities.div_(probabilities.sum().clamp(min=1.0))

    @property
    def is_identity(self) -> bool:
        none = not any(bool(p.detach().any()) for p in self.probabilities)
        return none and (not self.action.generators or self.ranges.is_identity)

    def element_probabilities(self) -> Tensor:
        """Probability of every combination that may occur, one axis; differentiable."""
        joint = self.probabilities[0].new_ones(1)
        for probabilities in self.probabilities:
            with_identity = torch.cat([1 - probabilities.sum(0, keepdim=True), probabilities])
            joint = (joint[:, None] * with_identity).flatten()
        return joint[self._possible]

    @property
    def elements(self) -> int:
        """How many combinations of elements may occur, the identity included."""
        return len(self._combinations)

    def copies(self, count: int) -> Copies:
        each = self._each(count)
        return Copies(count, self.element_probabilities().repeat_interleave(each) / each)

    def noise(
        self,
        batch: int,
        samples: int,
        *,
        generator: torch.Generator | None = None,
        antithetic: bool = False,
    ) -> Tensor:
        """Noise of the ranges for every element's copies, and a number random elements draw by.

        `samples` is rounded up to a multiple of the number of elements; elements without
        any drawing need one copy each.
        """
        elements = len(self._combinations)
        each = math.ceil(samples / elements)
        if antithetic:
            each += each % 2
        if not self.action.generators:
            antithetic, each = False, each if self._random else 1
        parts = [
            self.ranges.noise(batch, each, generator=generator, antithetic=antithetic)
            for _ in range(elements)
        ]
        joined = torch.cat(parts, 1)
        if not self._random:
            return joined
        like = self.probabilities[0]
        seeds = torch.rand(
            (*joined.shape[:2], 1), generator=generator, device=like.device, dtype=like.dtype
        )
        return torch.cat([joined, seeds], 2)

    def fixed_noise(self, samples: int, *, seed: int = COPIES_SEED) -> Tensor:
        """The fixed noise of the ranges, the same for every element; see `noise` for its length."""
        elements = len(self._combinations)
        draws = bool(self.action.generators) or self._random
        each = math.ceil(samples / elements) if draws else 1
        joined = self.ranges.fixed_noise(each, seed=seed).repeat(1, elements, 1)
        if not self._random:
            return joined
        seeds = even_points(joined.shape[1], 1, seed).to(joined)
        return torch.cat([joined, seeds[None]], 2)

    def forward(self, data: Tensor, noise: Tensor) -> Tensor:
        each = self._each(noise.shape[1])
        if self.leaves_alone(data):
            return data[:, None].expand(-1, noise.shape[1], *data.shape[1:])
        moved = []
        for number, combination in enumerate(self._combinations):
            part = noise[:, number * each : (number + 1) * each]
            coordinates = part[..., :-1] if self._random else part
            if any(i >= 0 and a.is_random for i, a in zip(combination, self.finite, strict=True)):
                moved.append(self._random_copies(combination, data, part, coordinates))
                continue
            element = data
            for index, action in zip(combination, self.finite, strict=True):
                element = action.move(index, element) if index >= 0 else element
            moved.append(self.ranges(element, coordinates))
        return torch.cat(moved, 1)

    def under_element(self, action: int, index: int, count: int) -> Tensor:
        """Which of `count` copies (count,) are moved by element `index` of finite `action`."""
        moved = torch.tensor([combination[action] == index for combination in self._combinations])
        return moved.repeat_interleave(self._each(count))

    def coordinates(self, noise: Tensor) -> Tensor:
        return self.ranges.coordinates(noise[..., :-1] if self._random else noise)

    def _random_copies(
        self, combination: tuple[int, ...], data: Tensor, part: Tensor, coordinates: Tensor
    ) -> Tensor:
        """Copies under an element that draws: each copy of each example its own draw."""
        each = part.shape[1]
        rows = data[:, None].expand(-1, each, *data.shape[1:]).flatten(0, 1)
        generator = torch.Generator(device="cpu")
        generator.manual_seed(int(float(part[0, 0, -1]) * 2**32))
        for index, action in zip(combination, self.finite, strict=True):
            if index >= 0:
                rows = action.move(index, rows, generator=generator)
        flat = self.ranges(rows, coordinates.flatten(0, 1)[:, None])
        return flat.flatten(0, 1).unflatten(0, (-1, each))

    def _each(self, count: int) -> int:
        elements = len(self._combinations)
        if count % elements:
            raise CallerError(
                f"noise: expected a multiple of {elements} copies, one share for each element of "
                f"the finite group, got {count}; draw it with noise()"
            )
        return count // elements

    def without(self, names: Collection[str]) -> Augmentation:
        """The same law without the finite actions that have one of these elements."""
        left = [n for n, each in enumerate(self.finite) if not set(each.names) & set(names)]
        start = {
            name: amount
            for n in left
            for name, amount in zip(
                self.finite[n].names, self.probabilities[n].tolist(), strict=True
            )
        }
        finite = [self.finite[n] for n in left]
        return Mixture(self.ranges, finite, start=start, default=0.0) if left else self.ranges

    def symmetries(self) -> list[Symmetry]:
        found = self.ranges.symmetries() if self.action.generators else []
        for action, probabilities in zip(self.finite, self.probabilities, strict=True):
            for name, value in zip(action.names, probabilities.tolist(), strict=True):
                found.append(Symmetry(name, "probability", 0.0, value, "probability"))
        return found

    def law(self) -> dict[str, Any]:
        return {
            "kind": "mixture",
            "law": "a finite element by its probability (the identity has the rest), "
            "then the ranges",
            "ranges": self.ranges.law() if self.action.generators else None,
            "finite": [
                {
                    "name": action.name,
                    "probabilities": dict(zip(action.names, p.tolist(), strict=True)),
                }
                for action, p in zip(self.finite, self.probabilities, strict=True)
            ],
        }


def augmentation_over(
    actions: Action | FiniteAction | Sequence[Action | FiniteAction],
    *,
    distribution: str = "independent",
    start: float | Mapping[str, float] = START,
    caps: Mapping[str, float] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Augmentation:
    """One augmentation over everything that may be a symmetry.

    distribution: independent ranges, or correlated ones with a full covariance.
    start, caps: by name in reported units (probabilities for finite elements); one number as
        start is a half-width in coordinates, and finite elements then start at their own.
    """
    check_choice(distribution, DISTRIBUTIONS, what="distribution")
    given = list(actions) if isinstance(actions, Sequence) else [actions]
    if not given:
        raise CallerError("actions: expected at least one, got none")
    finite = [action for action in given if isinstance(action, FiniteAction)]
    continuous = [action for action in given if isinstance(action, Action)]
    if len(finite) + len(continuous) < len(given):
        odd = next(a for a in given if not isinstance(a, Action | FiniteAction))
        raise CallerError(
            f"actions: expected Actions or finite actions, got {type(odd).__name__}; wrap a "
            "random transform of another library in RandomTransform of "
            "isotropy.symmetry.actions.finite"
        )
    action = compose(*continuous) if continuous else NoRanges()
    element_names = [name for each in finite for name in each.names]
    for name in (*(start if isinstance(start, Mapping) else ()), *(caps or {})):
        check_choice(name, [*action.names, *element_names], what="generator")
    ranges_start: float | dict[str, float] = (
        {n: v for n, v in start.items() if n in action.names}
        if isinstance(start, Mapping)
        else start
    )
    kind = CorrelatedRanges if distribution == "correlated" else UniformRanges
    ranges = kind(
        action,
        start=ranges_start,
        caps={n: v for n, v in (caps or {}).items() if n in action.names},
        dtype=dtype,
    )
    if not finite:
        return ranges
    return Mixture(
        ranges,
        finite,
        start={n: v for n, v in start.items() if n in element_names}
        if isinstance(start, Mapping)
        else None,
        default=0.0 if isinstance(start, Mapping) else START_PROBABILITY,
        caps={n: v for n, v in (caps or {}).items() if n in element_names},
    )


def uniform_over(actions: Sequence[FiniteAction]) -> Augmentation:
    """The mixture in which every element of each action is as likely as the identity."""
    start = {name: 1 / (1 + len(each.names)) for each in actions for name in each.names}
    return augmentation_over(list(actions), start=start)


def _below_identity(probabilities: Tensor) -> Tensor:
    """Cut to a level t where no element exceeds the identity: t + Σ min(p, t) = 1."""
    total = probabilities.sum()
    if 1 - total >= probabilities.max():
        return probabilities
    ordered = probabilities.sort().values
    count = len(ordered)
    below = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    # With the k smallest left as they are, t = (1 − Σ of them) / (count − k + 1).
    remaining = torch.arange(count + 1, 0, -1, device=ordered.device).to(ordered)
    levels = (1 - below) / remaining
    fits = levels[:-1] <= ordered  # the first level that cuts what it says it cuts
    if not bool(fits.any()):  # too much by no more than rounding
        return probabilities
    level = levels[int(fits.int().argmax())]
    return probabilities.minimum(level)
