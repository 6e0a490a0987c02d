"""Actions with smooth data for them. A new Action joins `CASES` and inherits the whole contract in
`test_action_contract.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.symmetry.actions.action import Action, compose
from isotropy.symmetry.actions.images import GENERATORS, INTENSITY_GENERATORS, affine, intensity
from isotropy.symmetry.actions.linear import linear_action
from isotropy.symmetry.actions.points import points
from isotropy.symmetry.actions.sequences import sequences


@dataclass(frozen=True)
class Case:
    """An Action, and what its contract is tried on.

    smooth:      one example (1, …) on which an element and its inverse are the identity
    rough:       a small batch (2, …) for derivatives and layout
    interpolation_error: how far acting twice may be from acting once (zero where it is exact)
    has_second_derivatives: in reverse over reverse mode
    difference_error: how far central differences of a step of 1e-5 may be from the velocity,
                      relative to it: much more where the interpolant bends abruptly at a sample
    unfit:       data of a wrong shape, and what the sentence about it says
    """

    action: Action
    smooth: Tensor
    rough: Tensor
    unfit: Tensor
    sentence: str
    interpolation_error: float = 1e-12
    has_second_derivatives: bool = True
    difference_error: float = 1e-8


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Uniform numbers on [0, 1], the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def coordinates(*values: float) -> Tensor:
    """One example, one sample: (1, 1, generators)."""
    return torch.tensor(values, dtype=torch.float64)[None, None]


def bump(length: int, at: float = 0.0, spread: float = 0.12) -> Tensor:
    """A smooth sequence (1, 1, length) with one hill, `at` half lengths after the middle."""
    place = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2) / (length / 2)
    return torch.exp(-((place - at) ** 2) / (2 * spread**2))[None, None]


def spot(size: int, spread: float = 0.2) -> Tensor:
    """A smooth image (1, 1, size, size) with one hill off the middle."""
    return bump(size, 0.2, spread)[..., None] * bump(size, 0.1, spread)[..., None, :]


PLANE = ("rotation", "translation_x", "translation_y", "scale", "jitter")
SPACE = (
    "rotation_x", "rotation_y", "rotation_z", "translation_x", "translation_y", "translation_z",
    "scale", "jitter",
)  # fmt: skip
# With jitter an element is two steps, so the contract of groups holds for each alone.
CASES = {
    "plane": Case(
        points(2, PLANE, count=5), draw(1, 5, 2), draw(2, 5, 2), draw(2, 5, 3),
        r"clouds: expected \(batch, points, 2\), .*feature columns",
    ),
    "space": Case(
        points(3, SPACE, count=4), draw(1, 4, 3), draw(2, 4, 3), draw(2, 4),
        r"clouds: expected \(batch, points, dimensions\), got \(2, 4\)",
    ),
    "circular sequence": Case(
        sequences(boundary="circular"), bump(301, 0.1), draw(2, 3, 6), draw(2, 6),
        r"sequences: expected \(batch, channels, length\), got \(2, 6\); add a channel axis",
        interpolation_error=2e-3, difference_error=5e-5,
    ),
    "sequence in silence": Case(
        sequences(boundary="zeros"), bump(301, 0.1), draw(2, 3, 7), draw(2, 1, 6, 6),
        r"sequences: expected \(batch, channels, length\), got \(2, 1, 6, 6\)$",
        interpolation_error=2e-3, difference_error=5e-5,
    ),
    "intensity": Case(
        intensity(tuple(INTENSITY_GENERATORS)), draw(1, 3, 4, 5), draw(2, 3, 2, 2), draw(2),
        r"data: expected \(batch, channels, …\), got \(2\)",
    ),
    "composition": Case(
        compose(affine(("rotation", "scale"), interpolation="bicubic"), intensity()),
        spot(65), draw(2, 1, 5, 6), draw(2, 5, 6), "images: .*add a channel axis",
        interpolation_error=2e-2, has_second_derivatives=False, difference_error=5e-5,
    ),
    "every generator of images": Case(
        affine(tuple(GENERATORS), interpolation="bicubic"),
        spot(65), draw(2, 2, 5, 6), draw(2, 5, 6), "images: .*add a channel axis",
        interpolation_error=2e-2, has_second_derivatives=False, difference_error=5e-5,
    ),
    "image in black": Case(
        affine(("rotation", "scale_x", "translation_y"), padding="zeros"),
        spot(129), draw(2, 2, 5, 6), draw(2, 5, 6), "images: .*add a channel axis",
        interpolation_error=2e-2, has_second_derivatives=False, difference_error=5e-5,
    ),
    "image in its mean colour": Case(
        affine(("rotation", "scale_x", "translation_y"), padding="mean", fill=(0.0, 0.4)),
        spot(129).expand(-1, 2, -1, -1) + torch.tensor([0.0, 0.4]).double()[:, None, None],
        draw(2, 2, 5, 6), draw(2, 5, 6), "images: .*add a channel axis",
        interpolation_error=2e-2, has_second_derivatives=False, difference_error=5e-5,
    ),
    "periodic image": Case(
        affine(("rotation", "shear_x", "scale", "translation_x"), interpolation="fourier"),
        spot(33, 0.1), draw(2, 2, 4, 5), draw(2, 4, 5), "images: .*add a channel axis",
        interpolation_error=2e-3,
    ),
    "vectors": Case(
        linear_action({"turn": [[0, -1, 0], [1, 0, 0], [0, 0, 0]], "boost": draw(3, 3, seed=7)}),
        draw(1, 3), draw(2, 3), draw(2, 4), r"vectors: expected \(batch, …, 3\), .* got \(2, 4\)",
    ),
    "lists of vectors": Case(
        linear_action({"boost": draw(3, 3, seed=7)}),
        draw(1, 2, 3), draw(2, 5, 3), draw(3), r"vectors: expected \(batch, …, 3\), .* got \(3\)",
    ),
}  # fmt: skip
