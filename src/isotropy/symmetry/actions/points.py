"""Motions of point clouds: rotations, translations, scaling, and jitter of every point.

A cloud is (batch, points, dimensions), its columns x, y and, in space, z. The element with
coordinates a moves every point p of it:

    p ↦ exp(A) (p + j_p)          A = Σ_k a_k G_k ,  (d+1)×(d+1) ,  one joint exponential

where j_p is the point's own jitter, added first: one coordinate for each number of the cloud,
point by point and x, y, z within a point, all with one range. With A = [B | b], the velocity of a
point is B p + b + j_p.

Directions. In the plane y points up and a rotation is counter-clockwise (images, whose y points
down, say "as seen"). In space the axes are right-handed: a rotation about x turns y towards z,
about y z towards x, about z x towards y. Rotations and scalings are about the origin, so centre
the clouds first. Lengths are in the data's own unit. Coordinates of several rotations in space
are one rotation vector, in radians along its axis, not Euler angles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, check_axes, shape_text
from isotropy.symmetry.actions.action import (
    Action,
    MatrixGenerator,
    check_different,
    check_floating,
    generators_named,
)

_DEGREE = math.pi / 180
JITTER = "jitter"


def _turn(name: str, meaning: str, matrix: tuple[tuple[float, ...], ...]) -> MatrixGenerator:
    return MatrixGenerator(name, "degrees", _DEGREE, math.pi, meaning, matrix=matrix)


def _length(name: str, meaning: str, matrix: tuple[tuple[float, ...], ...] = ()) -> MatrixGenerator:
    return MatrixGenerator(name, "unit length", meaning=meaning, matrix=matrix)


# fmt: off
_IN_THE_PLANE = (
    _turn("rotation", "points turn counter-clockwise, y up",
          ((0, -1, 0), (1, 0, 0))),
    _length("translation_x", "points move along x", ((0, 0, 1), (0, 0, 0))),
    _length("translation_y", "points move along y", ((0, 0, 0), (0, 0, 1))),
    MatrixGenerator("scale", "log factor", meaning="points move away from the origin",
                   matrix=((1, 0, 0), (0, 1, 0))),
    _length(JITTER, "each coordinate of each point grows by an amount of its own"),
)
_IN_SPACE = (
    _turn("rotation_x", "points turn about x, from y towards z",
          ((0, 0, 0, 0), (0, 0, -1, 0), (0, 1, 0, 0))),
    _turn("rotation_y", "points turn about y, from z towards x",
          ((0, 0, 1, 0), (0, 0, 0, 0), (-1, 0, 0, 0))),
    _turn("rotation_z", "points turn about z, from x towards y",
          ((0, -1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0))),
    _length("translation_x", "points move along x", ((0, 0, 0, 1), (0, 0, 0, 0), (0, 0, 0, 0))),
    _length("translation_y", "points move along y", ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 0))),
    _length("translation_z", "points move along z", ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1))),
    MatrixGenerator("scale", "log factor", meaning="points move away from the origin",
                   matrix=((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0))),
    _length(JITTER, "each coordinate of each point grows by an amount of its own"),
)
# fmt: on

POINT_GENERATORS: dict[int, dict[str, MatrixGenerator]] = {
    2: {generator.name: generator for generator in _IN_THE_PLANE},
    3: {generator.name: generator for generator in _IN_SPACE},
}
"""The tables, by dimension. The multiplicity of jitter is set when the size of a cloud is known."""


class PointAction(Action):
    """Affine maps and jitter acting on point clouds (batch, points, dimensions).

    dimensions: columns of a cloud
    count:      points of a cloud, where they must be a certain number (for jitter)
    """

    generators: tuple[MatrixGenerator, ...]
    is_exact = True

    def __init__(
        self, generators: Sequence[MatrixGenerator], *, dimensions: int, count: int | None = None
    ) -> None:
        check_different(generators)
        self.generators = tuple(generators)
        self.dimensions = dimensions
        self.count = count
        rows = [generator.matrix for generator in generators if generator.matrix]
        # The last row of an algebra element is zero; padding puts it there.
        matrices = torch.tensor(rows, dtype=torch.float64).reshape(-1, dimensions, dimensions + 1)
        self._matrices = torch.nn.functional.pad(matrices, (0, 0, 0, 1))

    def element(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """exp(A) as (linear part (…, d, d), shift (…, d)), from all coordinates but jitter."""
        algebra = torch.einsum("...k,kij->...ij", coordinates, self._matrices.to(coordinates))
        exponential = torch.linalg.matrix_exp(algebra)
        return exponential[..., :-1, :-1], exponential[..., :-1, -1]

    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Move clouds (batch, points, dimensions); returns (batch, samples, points, dimensions)."""
        self._check_clouds(data)
        self.check_coordinates(coordinates, data)
        affine, jitter = self._parts(coordinates, data)
        moved = data[:, None] if jitter is None else data[:, None] + jitter
        if not len(self._matrices):
            return moved
        linear, shift = self.element(affine)
        return moved @ linear.mT + shift[..., None, :]

    def velocity(self, direction: Tensor, data: Tensor) -> Tensor:
        """B p + b + j_p for each point of clouds (batch, points, dimensions)."""
        self._check_clouds(data)
        self.check_direction(direction, data)
        affine, jitter = self._parts(direction, data)
        total = torch.zeros_like(data) if jitter is None else torch.zeros_like(data) + jitter
        if len(self._matrices):
            matrices = self._matrices[:, :-1].to(total)
            algebra = torch.einsum("...k,kij->...ij", affine, matrices)
            total = total + data @ algebra[..., :-1].mT + algebra[..., None, :, -1]
        return total

    def _parts(self, coordinates: Tensor, data: Tensor) -> tuple[Tensor, Tensor | None]:
        """The coordinates (…, matrices) of the affine map, and the jitter (…, points, d) if any."""
        coordinates = coordinates.to(data.dtype)
        parts = coordinates.split([each.multiplicity for each in self.generators], -1)
        affine, jitter = [coordinates[..., :0]], None
        for generator, part in zip(self.generators, parts, strict=True):
            if generator.matrix:
                affine.append(part)
            else:
                jitter = part.unflatten(-1, data.shape[1:])
        return torch.cat(affine, -1), jitter

    def _check_clouds(self, data: Tensor) -> None:
        axes = ("batch", "points", "dimensions")
        check_axes(data, axes, what="clouds", advice="one cloud is x[None]")
        if data.shape[2] != self.dimensions:
            advice = "; move feature columns elsewhere" if data.shape[2] > self.dimensions else ""
            raise CallerError(
                f"clouds: expected (batch, points, {self.dimensions}), the columns of which are "
                f"coordinates of points and nothing else, got {shape_text(data)}{advice}"
            )
        if self.count is not None and data.shape[1] != self.count:
            raise CallerError(
                f"clouds: expected (batch, {self.count}, {self.dimensions}), got "
                f"{shape_text(data)}; count= says how many points a cloud has"
            )
        check_floating(data, "clouds")


def points(
    dimensions: int = 2, generators: Sequence[str] | None = None, count: int | None = None
) -> PointAction:
    """The Action on point clouds with generators chosen by name.

    dimensions: 2 or 3
    generators: names from `POINT_GENERATORS[dimensions]`; all but jitter by default
    count:      points of a cloud; needed for jitter, which has a coordinate for each number
    """
    if dimensions not in POINT_GENERATORS:
        raise CallerError(f"dimensions: expected 2 or 3, got {dimensions}")
    table = POINT_GENERATORS[dimensions]
    names = [name for name in table if name != JITTER] if generators is None else generators
    chosen = generators_named(names, table)
    if count is not None:
        check_at_least(count, 1, what="count")
        chosen = [
            dataclasses.replace(each, multiplicity=count * dimensions)
            if each.name == JITTER
            else each
            for each in chosen
        ]
    elif any(generator.name == JITTER for generator in chosen):
        raise CallerError(
            "jitter has a coordinate for each number of a cloud, and their number must be known: "
            f"expected count=, as in points({dimensions}, {tuple(names)!r}, count=100), got none"
        )
    return PointAction(chosen, dimensions=dimensions, count=count)
