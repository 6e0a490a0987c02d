"""An Action: a group given by its generators, and how its elements move one kind of data.

A group element is addressed by its Lie-algebra coordinates a = (a_1, …, a_K):

    g(a) = exp(Σ_k a_k G_k)        (one joint exponential, not a product of flows)

An Action moves data by g(a): `act(coordinates, data)`, with

    coordinates  (batch, samples, generators)
    data         (batch, …)
    result       (batch, samples, …)      samples are the fast axis when flattened

Coordinates are what is computed with (radians, half image widths, log factors); each
`Generator` says how they are reported (degrees, fraction of image width, …).
Augmentations, measuring and testing see only Actions, so a user's own Action is at home
everywhere:

    class Brightness(Action):
        generators = (Generator("brightness", unit="grey level"),)
        def act(self, coordinates, data):
            return data[:, None] + coordinates[..., 0, None, None, None]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from isotropy.checks import CallerError, shape_text


@dataclass(frozen=True)
class Generator:
    """One direction in a Lie algebra, with the words and the unit in which it is reported.

    name:     what users and files call it
    unit:     unit of reported numbers
    coordinate_per_unit: coordinate = coordinate_per_unit × reported number
    period:   half-width of the largest range that makes sense, in coordinates (π for a
              rotation: beyond it the orbit covers itself), or None
    meaning:  what a positive coordinate does to the content
    papers:   what the papers call it, and their sign and scale where these differ
    """

    name: str
    unit: str
    coordinate_per_unit: float = 1.0
    period: float | None = None
    meaning: str = ""
    papers: str = ""

    def in_units(self, coordinate: float) -> float:
        """A coordinate as it is reported."""
        return coordinate / self.coordinate_per_unit

    def from_units(self, reported: float) -> float:
        """A reported number as a coordinate."""
        return reported * self.coordinate_per_unit


class Action(ABC):
    """A set of generators and how the elements they generate move data."""

    generators: tuple[Generator, ...]

    @abstractmethod
    def act(self, coordinates: Tensor, data: Tensor) -> Tensor:
        """Move `data` (batch, …) by g(coordinates) (batch, samples, generators).

        Returns (batch, samples, …). Coordinates of zero must return the data unchanged.
        """

    @property
    def names(self) -> tuple[str, ...]:
        """The generators' names, in the order of the coordinates."""
        return tuple(generator.name for generator in self.generators)

    def check_coordinates(self, coordinates: Tensor, data: Tensor) -> None:
        """Raise unless the coordinates are (batch, samples, generators) for this data."""
        wanted = (data.shape[0], len(self.generators))
        if coordinates.ndim != 3 or (coordinates.shape[0], coordinates.shape[2]) != wanted:
            raise CallerError(
                f"coordinates: expected (batch, samples, generators) = ({wanted[0]}, samples, "
                f"{wanted[1]}) for the generators {', '.join(self.names)}, got "
                f"{shape_text(coordinates)}"
            )
