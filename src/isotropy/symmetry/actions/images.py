"""Actions on images: affine motions of the plane, and affine maps of the values.

**The plane** (`affine`). The element with coordinates a moves the *content* of the image by exp(A),
A = Σ_k a_k G_k (a left action: an image read as a function of the plane becomes image(exp(−A) p)).
x points right, y points down, the unit of length is half the image's width; see `warp`. One table
names every generator once.

LILA (Immer et al. 2022) puts exp(Σ ε_k η_k G_k) into the sampling grid instead, which is the
inverse motion. Its ε is symmetric, so ranges agree; the table gives the sign for each. So does the
thesis on Lie derivatives, but for its scale, and a derivative's norm has no sign.

Close to the identity images move with the velocity X v(p) = −∇v(p)·(B p + b). The slopes are those
of the interpolant at the pixels' centres, differences of neighbours (`neighbour_slope`).

**Values** (`intensity`), the same map for all pixels. An image v is its mean m and its deviation
from it, v = m + u. The generators act on the two by

    brightness  b     dm = 1                  every value is raised by b
    contrast    c              du = u         deviations from the mean are multiplied by e^c
    amplitude   a     dm = m,  du = u         every value is multiplied by e^a

and an element is their one joint exponential, in closed form with φ(a) = (e^a − 1)/a:

    m ↦ e^a m + φ(a) b          u ↦ e^{a + c} u          velocity  b + c u + a v

The mean is that of one example over all its channels and positions, taken anew from whatever the
data are: m stays the mean of what it becomes, so that this is exactly a group action. Contrast
commutes with the two others; brightness and amplitude make the affine group of the line. Nothing is
clipped: that would not be a group, and has no slope.

Data are floating-point numbers (batch, channels, height, width); `intensity` takes (batch,
channels, …), sequences or anything else with values of one kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_axes, check_choice, shape_text
from isotropy.symmetry.actions.action import (
    Action,
    Extension,
    Generator,
    MatrixGenerator,
    band_limited_slope,
    check_different,
    check_floating,
    generators_named,
    neighbour_slope,
)
from isotropy.symmetry.actions.exponential import (
    PlacedConstant,
    affine_exponential,
    line_exponential,
)
from isotropy.symmetry.actions.warp import (
    INTERPOLATIONS,
    PADDINGS,
    GridPadding,
    Interpolation,
    Padding,
    affine_warp,
    half_extent,
    pixel_centres,
)

_DEGREE = math.pi / 180


# fmt: off
GENERATORS: dict[str, MatrixGenerator] = {
    generator.name: generator
    for generator in (
        MatrixGenerator(
            "translation_x", "fraction of image width", 2.0,
            meaning="content moves right", papers="LILA η1 (tx), sign −, unit half a width",
            matrix=((0, 0, 1), (0, 0, 0))),
        MatrixGenerator(
            "translation_y", "fraction of image width", 2.0,
            meaning="content moves down", papers="LILA η2 (ty), sign −, unit half a width",
            matrix=((0, 0, 0), (0, 0, 1))),
        MatrixGenerator(
            "rotation", "degrees", _DEGREE, period=math.pi,
            meaning="content turns counter-clockwise as seen",
            papers="LILA η3 (rot), same sign, radians",
            matrix=((0, 1, 0), (-1, 0, 0))),
        MatrixGenerator(
            "scale_x", "log factor",
            meaning="content grows horizontally",
            papers="LILA η4 (sx), Lie derivative: stretch; sign −",
            matrix=((1, 0, 0), (0, 0, 0))),
        MatrixGenerator(
            "scale_y", "log factor",
            meaning="content grows vertically",
            papers="LILA η5 (sy), Lie derivative: stretch; sign −",
            matrix=((0, 0, 0), (0, 1, 0))),
        MatrixGenerator(
            "hyperbolic_rotation", "log factor",
            meaning="content grows along the falling diagonal and shrinks along the rising one",
            papers="LILA η6 (there called shear), sign −",
            matrix=((0, 1, 0), (1, 0, 0))),
        MatrixGenerator(
            "shear_x", "tangent",
            meaning="rows below the centre move right, rows above it left",
            papers="Lie derivative: shear, sign −",
            matrix=((0, 1, 0), (0, 0, 0))),
        MatrixGenerator(
            "shear_y", "tangent",
            meaning="columns right of the centre move down, columns left of it up",
            papers="Lie derivative: shear, sign −",
            matrix=((0, 0, 0), (1, 0, 0))),
        MatrixGenerator(
            "scale", "log factor",
            meaning="content grows in both directions",
            papers="Augerino generator 4; Lie derivative: scale, same sign",
            matrix=((1, 0, 0), (0, 1, 0))),
        MatrixGenerator(
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

    interpolation: "bilinear", "bicubic", or "fourier", which reads the image as a periodic function
                   of its height and width, without error and without padding
    padding:       what lies beyond the border: "zeros", "border" (the nearest pixel),
                   "reflection", "mean" (the colour `fill`); no use to "fourier"
    fill:          for "mean", a number per channel, the training set's mean; data with another
                   number of channels, a network's maps, go on as with "border"
    align_corners: whether half a width reaches the centre of the last pixel (True) or its edge.
                   None is True, but False for "fourier": its period is W pixels, so that a shift
                   means the same on a map with half as many of them.
    """

    generators: tuple[MatrixGenerator, ...]
    grid_axes = 2

    def __init__(
        self,
        generators: Sequence[MatrixGenerator],
        *,
        interpolation: Interpolation = "bilinear",
        padding: Padding = "zeros",
        fill: Sequence[float] | None = None,
        align_corners: bool | None = None,
    ) -> None:
        check_different(generators)
        check_choice(interpolation, INTERPOLATIONS, what="interpolation")
        check_choice(padding, PADDINGS, what="padding")
        self.generators = tuple(generators)
        self.interpolation: Interpolation = interpolation
        self.padding: Padding = padding
        self.fill = _checked_fill(padding, fill)
        self.align_corners = interpolation != "fourier" if align_corners is None else align_corners
        matrices = torch.tensor([g.matrix for g in generators], dtype=torch.float64)
        self._matrices = PlacedConstant(matrices)
        colour = torch.tensor(self.fill or (), dtype=torch.float64)[:, None, None]
        self._colour = PlacedConstant(colour)
        # Whether anything moves along x, along y: what does not needs no slope.
        self._is_moved = matrices.any(-1).any(0).tolist()

    def element(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """The affine map exp(A) as (linear part (…, 2, 2), shift (…, 2)), moving content."""
        matrices = self._matrices.like(coordinates)
        if coordinates.device.type == "cuda":
            # There a product of matrices may round its factors to 11 bits (TF32), angles too.
            algebra = (coordinates[..., None, None] * matrices).sum(-3)
        else:
            algebra = torch.einsum("...k,kij->...ij", coordinates, matrices)
        return affine_exponential(algebra[..., :2], algebra[..., 2])

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Resample images (batch, channels, height, width) under exp(A), samples of each."""
        self.check_coordinates(coordinates, data)
        check_floating(data, "images", "x.float() / 255")
        # The output pixel p shows what was at exp(A)⁻¹ p = exp(−A) p.
        linear, shift = self.element(-coordinates.to(data.dtype))
        fill = self._fill_of(data)
        moved = affine_warp(
            data if fill is None else data - fill,
            linear,
            shift,
            interpolation=self.interpolation,
            padding=self._grid_padding(data),
            align_corners=self.align_corners,
        )
        return moved if fill is None else moved + fill

    def _grid_padding(self, data: Tensor) -> GridPadding:
        """The padding that is sampled with, of data (batch, channels, height, width)."""
        if self.padding != "mean":
            return self.padding
        return "border" if self._fill_of(data) is None else "zeros"

    def _fill_of(self, data: Tensor) -> Tensor | None:
        """The colour that is zero to the sampler (channels, 1, 1), where there is one."""
        if self.fill is None or self.interpolation == "fourier":
            return None
        if data.ndim != 4 or data.shape[1] != len(self.fill):
            return None
        return self._colour.like(data)

    def velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """X v(p) = −∇v(p)·(B p + b) of maps (batch, channels, height, width) of any size.

        ∇v is the interpolant's central slope, beyond the border as the padding says; the unit of
        length is half the width of the map that is given.
        """
        if self.interpolation == "fourier":
            return self.ideal_velocity(direction, data)
        fill = self._fill_of(data)
        data = data if fill is None else data - fill  # slopes differ at the border alone
        weight = 0.75 if self.interpolation == "bicubic" else 0.5
        return self._transport(direction, data, neighbour_slope, weight)

    def ideal_velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """The velocity of the band-limited image through the pixels.

        It goes on beyond the border without a jump: mirrored about the border pixels' centres
        where that is the padding (reflection with `align_corners`), else about their edges, also
        where the padding is zeros; periodic where the interpolation is.
        """
        return self._transport(direction, data, band_limited_slope, 1.0)

    def _extension(self, data: Tensor) -> Extension:
        """How an image goes on beyond its border, as `action` says it."""
        if self.interpolation == "fourier":
            return "circular"
        if self.padding == "reflection":
            return "mirror" if self.align_corners else "edge"
        return "zeros" if self._grid_padding(data) == "zeros" else "edge"

    def _transport(
        self,
        direction: Tensor,
        data: Tensor,
        slope: Callable[[Tensor, int, Extension], Tensor],
        weight: float,
    ) -> Tensor:
        """−weight · slope(data)·(B p + b), with slopes per pixel."""
        check_axes(
            data,
            ("batch", "channels", "height", "width"),
            what="images",
            advice="add a channel axis with x[:, None]" if data.ndim == 3 else "",
        )
        self.check_direction(direction, data)
        check_floating(data, "images", "x.float() / 255")
        height, width = data.shape[2:]
        # Places in single precision at least: in half precision neighbouring pixels coincide.
        wide = torch.promote_types(data.dtype, torch.float32)
        like = torch.empty((), dtype=wide, device=data.device)
        unit = half_extent(width, self.align_corners)
        x, y = pixel_centres(width, unit, like), pixel_centres(height, unit, like)[:, None]
        matrices = (-weight * unit * self._matrices.values).to(like)
        algebra = torch.einsum("...k,kij->...ij", direction.to(wide), matrices)
        total: Tensor | None = None
        for row, axis in ((0, 3), (1, 2)):
            if not self._is_moved[row]:
                continue
            across, down, shift = algebra[..., row, :, None, None, None].unbind(-4)
            flow = (across * x + down * y + shift).to(data.dtype)  # ([batch,] 1, height, width)
            along = slope(data, axis, self._extension(data))
            total = along * flow if total is None else torch.addcmul(total, along, flow)
        return torch.zeros_like(data) if total is None else total


def _checked_fill(padding: Padding, fill: Sequence[float] | None) -> tuple[float, ...] | None:
    if padding != "mean":
        if fill is not None:
            raise CallerError(
                f"fill: expected none with padding {padding!r}, got {list(fill)}; it is the colour "
                'of padding "mean"'
            )
        return None
    if not fill or not all(math.isfinite(value) for value in fill):
        raise CallerError(
            "padding 'mean': expected the colour to fill with, one finite number per channel, got "
            f"{fill}; give fill=images.mean((0, 2, 3)).tolist()"
        )
    return tuple(float(value) for value in fill)


def affine(
    generators: Sequence[str] = LILA_GENERATORS,
    *,
    interpolation: Interpolation = "bilinear",
    padding: Padding = "zeros",
    fill: Sequence[float] | None = None,
    align_corners: bool | None = None,
) -> AffineAction:
    """The affine Action on images with generators chosen by name (LILA's six by default).

    Padding with zeros shows black, or the mean colour of data that was standardised; for pictures
    whose edges are not near zero `data.borders.chosen_padding` has a better one. The options are
    those of `AffineAction`.
    """
    return AffineAction(
        generators_named(generators, GENERATORS),
        interpolation=interpolation,
        padding=padding,
        fill=fill,
        align_corners=align_corners,
    )


INTENSITY_GENERATORS: dict[str, Generator] = {
    generator.name: generator
    for generator in (
        Generator("brightness", "grey level", meaning="every value is raised"),
        Generator("contrast", "log factor", meaning="values move away from their mean"),
        Generator(
            "amplitude",
            "log factor",
            meaning="every value moves away from zero",
            papers="Lie derivative: brighten (saturate)",
        ),
    )
}


class IntensityAction(Action):
    """Affine maps of the values of each example, (batch, channels, …)."""

    is_exact = True

    def __init__(self, generators: Sequence[Generator]) -> None:
        check_different(generators)
        generators_named([each.name for each in generators], INTENSITY_GENERATORS)
        self.generators = tuple(generators)

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Change the values of data (batch, channels, …); returns (batch, samples, channels, …)."""
        self.check_coordinates(coordinates, data)
        _check_values(data)
        given = dict(zip(self.names, coordinates.to(data.dtype).unbind(-1), strict=True))
        zero = torch.zeros(coordinates.shape[:2], device=data.device, dtype=data.dtype)
        brightness, contrast, amplitude = (
            given.get(name, zero) for name in ("brightness", "contrast", "amplitude")
        )
        factor, raised = line_exponential(amplitude, brightness)
        mean = data.flatten(1).mean(1)[:, None]  # (batch, 1)
        # One multiplication and one sum per value: e^{a+c} v + (e^a m + φ(a) b − e^{a+c} m).
        slope = factor * contrast.exp()
        offset = raised + (factor - slope) * mean
        shape = (*coordinates.shape[:2], *(1 for _ in data.shape[1:]))
        return slope.reshape(shape) * data[:, None] + offset.reshape(shape)

    def velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """b + c u + a v for data (batch, channels, …), u the deviation from the mean; like it."""
        self.check_direction(direction, data)
        _check_values(data)
        shape = (*direction.shape[:-1], *(1 for _ in data.shape[direction.ndim - 1 :]))
        amounts = direction.to(data.dtype).unbind(-1)
        given = {name: each.reshape(shape) for name, each in zip(self.names, amounts, strict=True)}
        zero = torch.zeros((), device=data.device, dtype=data.dtype)
        contrast = given.get("contrast", zero)
        # (a + c) v + (b − c m): one multiplication and one sum per value.
        offset = given.get("brightness", zero)
        if "contrast" in given:
            mean = data.flatten(1).mean(1).reshape(-1, *(1 for _ in data.shape[1:]))
            offset = offset - contrast * mean
        return (given.get("amplitude", zero) + contrast) * data + offset


def _check_values(data: Tensor) -> None:
    if data.ndim < 2:
        raise CallerError(
            f"data: expected (batch, channels, …), got {shape_text(data)}; add a channel axis "
            "with x[:, None]"
        )
    check_floating(data, "data", "x.float() / 255")


def intensity(names: Sequence[str] = ("brightness", "contrast")) -> IntensityAction:
    """The Action on values with generators chosen by name: brightness, contrast, amplitude."""
    return IntensityAction(generators_named(names, INTENSITY_GENERATORS))
