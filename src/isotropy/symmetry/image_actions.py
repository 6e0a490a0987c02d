"""The affine group acting on images, with one table that names every generator once.

The element with coordinates a moves the *content* of the image by exp(A), A = Σ_k a_k G_k
(a left action: an image read as a function of the plane becomes image(exp(−A) p)).
x points right, y points down, the unit of length is half the image's width; see `warp`.

LILA (Immer et al. 2022) puts exp(Σ ε_k η_k G_k) into the sampling grid instead, which is the
inverse motion. Its ε is symmetric, so ranges agree; the table gives the sign for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_choice
from isotropy.symmetry.actions import Action, Generator
from isotropy.symmetry.affine_exponential import affine_exponential
from isotropy.symmetry.warp import Interpolation, Padding, affine_warp

_DEGREE = math.pi / 180


@dataclass(frozen=True)
class AffineGenerator(Generator):
    """A generator of the affine group: rows of [B | b], the upper part of its 3×3 matrix."""

    matrix: tuple[tuple[float, float, float], tuple[float, float, float]] = (
        (0.0, 0.0, 0.0),
        (0.0, 0.0, 0.0),
    )


# fmt: off
GENERATORS: dict[str, AffineGenerator] = {
    generator.name: generator
    for generator in (
        AffineGenerator(
            "translation_x", "fraction of image width", 2.0,
            meaning="content moves right", papers="LILA η1 (tx), sign −, unit half a width",
            matrix=((0, 0, 1), (0, 0, 0))),
        AffineGenerator(
            "translation_y", "fraction of image width", 2.0,
            meaning="content moves down", papers="LILA η2 (ty), sign −, unit half a width",
            matrix=((0, 0, 0), (0, 0, 1))),
        AffineGenerator(
            "rotation", "degrees", _DEGREE, period=math.pi,
            meaning="content turns counter-clockwise as seen",
            papers="LILA η3 (rot), same sign, radians",
            matrix=((0, 1, 0), (-1, 0, 0))),
        AffineGenerator(
            "scale_x", "log factor",
            meaning="content grows horizontally", papers="LILA η4 (sx), sign −",
            matrix=((1, 0, 0), (0, 0, 0))),
        AffineGenerator(
            "scale_y", "log factor",
            meaning="content grows vertically", papers="LILA η5 (sy), sign −",
            matrix=((0, 0, 0), (0, 1, 0))),
        AffineGenerator(
            "hyperbolic_rotation", "log factor",
            meaning="content grows along the falling diagonal and shrinks along the rising one",
            papers="LILA η6 (there called shear), sign −",
            matrix=((0, 1, 0), (1, 0, 0))),
        AffineGenerator(
            "shear_x", "tangent",
            meaning="rows below the centre move right, rows above it left",
            papers="Lie derivative: shear",
            matrix=((0, 1, 0), (0, 0, 0))),
        AffineGenerator(
            "shear_y", "tangent",
            meaning="columns right of the centre move down, columns left of it up",
            matrix=((0, 0, 0), (1, 0, 0))),
        AffineGenerator(
            "scale", "log factor",
            meaning="content grows in both directions", papers="Augerino generator 4",
            matrix=((1, 0, 0), (0, 1, 0))),
        AffineGenerator(
            "aspect", "log factor",
            meaning="content grows horizontally and shrinks vertically",
            papers="Augerino generator 5, sign −",
            matrix=((1, 0, 0), (0, -1, 0))),
    )
}
# fmt: on

LILA_GENERATORS = (
    "translation_x",
    "translation_y",
    "rotation",
    "scale_x",
    "scale_y",
    "hyperbolic_rotation",
)


class AffineAction(Action):
    """Affine maps of the plane acting on images by resampling.

    >>> action = affine(("rotation",))
    >>> turned = action.act(torch.full((1, 1, 1), math.pi / 2), image)   # a quarter turn
    """

    generators: tuple[AffineGenerator, ...]

    def __init__(
        self,
        generators: Sequence[AffineGenerator],
        *,
        interpolation: Interpolation = "bilinear",
        padding: Padding = "zeros",
        align_corners: bool = True,
    ) -> None:
        names = [generator.name for generator in generators]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated or not names:
            came = f"{sorted(repeated)[0]!r} twice" if repeated else "none"
            raise CallerError(f"generators: expected one or more different names, got {came}")
        self.generators = tuple(generators)
        self.interpolation: Interpolation = interpolation
        self.padding: Padding = padding
        self.align_corners = align_corners
        self._matrices = torch.tensor([g.matrix for g in generators], dtype=torch.float64)

    def element(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """The affine map exp(A) as (linear part (…, 2, 2), shift (…, 2)), moving content."""
        matrices = self._matrices.to(coordinates)
        algebra = torch.einsum("...k,kij->...ij", coordinates, matrices)
        return affine_exponential(algebra[..., :2], algebra[..., 2])

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Resample images (batch, channels, height, width) under exp(A), samples of each."""
        self.check_coordinates(coordinates, data)
        if not data.is_floating_point():
            raise CallerError(
                f"images: expected floating-point pixels, got {data.dtype}; convert with "
                "x.float() / 255"
            )
        # The output pixel p shows what was at exp(A)⁻¹ p = exp(−A) p.
        linear, shift = self.element(-coordinates.to(data.dtype))
        return affine_warp(
            data,
            linear,
            shift,
            interpolation=self.interpolation,
            padding=self.padding,
            align_corners=self.align_corners,
        )


def affine(
    generators: Sequence[str] = LILA_GENERATORS,
    *,
    interpolation: Interpolation = "bilinear",
    padding: Padding = "zeros",
    align_corners: bool = True,
) -> AffineAction:
    """The affine Action on images with generators chosen by name (LILA's six by default).

    Padding with zeros shows black, or the mean colour of data that was standardised.
    """
    chosen = [GENERATORS[check_choice(name, GENERATORS, what="generator")] for name in generators]
    return AffineAction(
        chosen, interpolation=interpolation, padding=padding, align_corners=align_corners
    )
