"""Brightness, contrast and amplitude: affine maps of the values, the same for all pixels.

An image v is its mean m and its deviation from it, v = m + u. The generators act on the two by

    brightness  b     dm = 1                  every value is raised by b
    contrast    c              du = u         deviations from the mean are multiplied by e^c
    amplitude   a     dm = m,  du = u         every value is multiplied by e^a

and an element is their one joint exponential, in closed form with φ(a) = (e^a − 1)/a:

    m ↦ e^a m + φ(a) b          u ↦ e^{a + c} u          velocity  b + c u + a v

The mean is that of one example over all its channels and positions, taken anew from whatever the
data are: m stays the mean of what it becomes, so that this is exactly a group action. Contrast
commutes with the two others; brightness and amplitude make the affine group of the line.

Data are (batch, channels, …) floating-point numbers: images, sequences, or anything else with
values of one kind. Nothing is clipped: that would not be a group, and has no slope.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isotropy.checks import CallerError, shape_text
from isotropy.symmetry.actions.action import (
    Action,
    Generator,
    check_different,
    check_floating,
    generators_named,
)
from isotropy.symmetry.actions.exponential import line_exponential

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
