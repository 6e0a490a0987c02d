"""A symmetry that a certified network is averaged over, and its price in bits.

    f̂(x) = Σ_s c_s f(g_s x)         the same copies g_s for every example, weights c_s

A finite group of the grid is one of the ten groups of symmetries of a square: log₂ 10 bits. A law
that was learned from the data is coded: how many of the catalogue's M actions there are and which,
log₂(M + 1) + log₂ C(M, k) bits, one of three paddings, and each amount in 8 bits,

    amount = code / 255 · limit,     limit: the generator's period, 1 for ranges without one and
                                     for probabilities (ranges in coordinates)

What is averaged over is the coded law, so that R̂ is counted with what the message says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice
from isotropy.networks.averaging.augmentations import Augmentation
from isotropy.networks.averaging.invariant_model import TEST_SAMPLES, InvariantModel
from isotropy.networks.averaging.mixtures import Mixture, augmentation_over, uniform_over
from isotropy.symmetry.actions.action import Action
from isotropy.symmetry.actions.catalogue import actions_named, known_names
from isotropy.symmetry.actions.finite import FiniteAction
from isotropy.symmetry.actions.warp import GRID_PADDINGS
from isotropy.symmetry.groups.point_groups import PointGroup

SQUARE_GROUPS = 10
"""Subgroups of the eight symmetries of a square."""
AMOUNT_BITS = 8
LARGEST = 2**AMOUNT_BITS - 1
PADDINGS = GRID_PADDINGS


@dataclass(frozen=True)
class CodedSymmetry:
    """A group by name, or a law by its actions and the codes of its amounts.

    shape:   of one example
    group:   such as "C(4)"; None for a law
    codes:   0 to 255 for each generator and element of the actions, by name
    samples: copies that a law with ranges is averaged over
    """

    shape: tuple[int, ...]
    group: str | None = None
    actions: tuple[str, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    padding: str = PADDINGS[0]
    samples: int = TEST_SAMPLES

    def __post_init__(self) -> None:
        check_choice(self.padding, PADDINGS, what="padding")
        if any(not 0 <= code <= LARGEST for code in self.codes.values()):
            raise CallerError(f"codes of a symmetry: expected 0 to {LARGEST}, got {self.codes}")

    @property
    def bits(self) -> float:
        """What the account charges for it."""
        if self.group is not None:
            return math.log2(SQUARE_GROUPS)
        known, used = len(known_names(self.shape)), len(self.actions)
        which = math.log2(known + 1) + math.log2(math.comb(known, used))
        return which + math.log2(len(PADDINGS)) + AMOUNT_BITS * len(self.codes)

    def augmentation(self) -> Augmentation:
        """What it means: the copies of an example and their weights."""
        if self.group is not None:
            return uniform_over([PointGroup.of(self.group).as_action()])
        made = _actions(self.actions, self.shape, self.padding)
        names = [name for each in made for name in each.names]
        if sorted(names) != sorted(self.codes):
            raise CallerError(
                f"codes of a symmetry: expected one for each of {', '.join(names)}, got "
                f"{', '.join(self.codes) or 'none'}"
            )
        start: dict[str, float] = {}
        for each in made:
            for name, limit, in_units in _limits(each):
                start[name] = in_units(self.codes[name] / LARGEST * limit)
        return augmentation_over(made, start=start).requires_grad_(False)

    def model(self, network: torch.nn.Module) -> InvariantModel:
        """The network averaged over it, in evaluation mode."""
        return InvariantModel(network, self.augmentation(), self.samples).eval()

    def as_dict(self) -> dict[str, Any]:
        own = {"group": self.group, "actions": list(self.actions), "codes": dict(self.codes)}
        return {**own, "padding": self.padding, "samples": self.samples}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], shape: Sequence[int]) -> CodedSymmetry:
        """What `as_dict` gave, for examples of this shape."""
        own = {**record, "actions": tuple(record["actions"])}
        return cls(tuple(shape), **own)


class Average:
    """Outputs of a network averaged over the copies of a symmetry; a `compressing.Predict`."""

    def __init__(self, symmetry: CodedSymmetry, like: Tensor) -> None:
        self.augmentation = symmetry.augmentation().requires_grad_(False).to(like).eval()
        self.noise = self.augmentation.fixed_noise(symmetry.samples).to(like)

    def __call__(self, network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        noise = self.noise.expand(len(inputs), -1, -1)
        outputs = network(self.augmentation(inputs, noise).flatten(0, 1))
        return self.augmentation.copies(noise.shape[1]).mean(outputs)


def coded_group(group: str, shape: Sequence[int]) -> CodedSymmetry:
    """A finite group of the grid, by name; raises CallerError where it does not act on images."""
    name = PointGroup.of(group).name
    if len(shape) != 3:
        raise CallerError(f"group {group}: expected images (channels, height, width), got {shape}")
    return CodedSymmetry(tuple(shape), group=name)


def coded_law(
    law: Augmentation,
    shape: Sequence[int],
    *,
    samples: int = TEST_SAMPLES,
    only: Collection[str] | None = None,
) -> CodedSymmetry:
    """A law with each amount rounded to 8 bits; parts that round to nothing are left out.

    only: generators and elements that stay; the others are set to zero

    Raises CallerError for correlated ranges and for Actions that are in no catalogue.
    """
    written = law.law()
    ranges = written if written["kind"] == "independent" else written.get("ranges")
    if written["kind"] == "correlated" or (ranges and ranges["kind"] == "correlated"):
        raise CallerError(
            "symmetries: expected independent ranges, got correlated ones, whose factors are not "
            "coded; learn them with --distribution independent"
        )
    names = [record["name"] for record in (ranges or {}).get("generators", ())]
    names += [each.name.replace(" ", "_") for each in _finite(law)]
    padding = next(
        (part["padding"] for part in (ranges or {}).get("actions", ()) if "padding" in part),
        PADDINGS[0],
    )
    padding = padding if padding in PADDINGS else PADDINGS[0]
    stays = {each.name for each in law.symmetries()} if only is None else set(only)
    amounts = {each.name: each.high * (each.name in stays) for each in law.symmetries()}
    actions, codes = [], {}
    for name in names:
        (made,) = _actions([name], shape, padding)
        own = {
            each: min(LARGEST, round(LARGEST * abs(amounts[each]) / max(in_units(limit), 1e-12)))
            for each, limit, in_units in _limits(made)
        }
        if any(own.values()):
            actions.append(name)
            codes.update(own)
    return CodedSymmetry(tuple(shape), None, tuple(actions), codes, padding, samples)


def _finite(law: Augmentation) -> Sequence[FiniteAction]:
    return law.finite if isinstance(law, Mixture) else ()


def _actions(
    names: Sequence[str], shape: Sequence[int], padding: str
) -> list[Action | FiniteAction]:
    try:
        return actions_named(list(names), shape, padding=padding)  # type: ignore[arg-type]
    except CallerError as error:
        raise CallerError(
            f"symmetries: expected actions of the catalogue, only these can be coded: {error}"
        ) from error


def _limits(action: Action | FiniteAction) -> list[tuple[str, float, Callable[[float], float]]]:
    """Of each generator or element its name, its largest amount, and how that is reported."""
    if isinstance(action, FiniteAction):
        return [(name, 1.0, lambda amount: amount) for name in action.names]
    return [(each.name, each.period or 1.0, each.in_units) for each in action.generators]
