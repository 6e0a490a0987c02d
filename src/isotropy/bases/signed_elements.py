"""Elements of a group of signed permutations, many at a time, in integers.

A row (places, signs) moves the unit vector of point i to signs[i] times that of places[i]. Beside
it stands a character c(h) = ±1, a sign that multiplies with the elements and acts on no point.
Where there are no signs at all, none are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Elements:
    """Signed permutations of points, one a row.

    places:     (count, points) int32: point i goes to places[i]
    signs:      (count, points) int8: times signs[i]; None where all are +1, and then
    characters: (count,) int8, c(h); None too
    """

    places: np.ndarray
    signs: np.ndarray | None = None
    characters: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.places)

    def rows(self, which: np.ndarray | slice) -> Elements:
        if self.signs is None or self.characters is None:
            return Elements(self.places[which])
        return Elements(self.places[which], self.signs[which], self.characters[which])

    def after(self, first: Elements) -> Elements:
        """Row by row, first the one and then this."""
        places = np.take_along_axis(self.places, first.places, 1)
        if self.signs is None or self.characters is None:
            return Elements(places)
        assert first.signs is not None
        signs = np.take_along_axis(self.signs, first.places, 1) * first.signs
        return Elements(places, signs, self.characters * first.characters)

    @cached_property
    def inverse(self) -> Elements:
        places = np.empty_like(self.places)
        points = np.arange(places.shape[1], dtype=np.int32)
        np.put_along_axis(places, self.places, np.broadcast_to(points, places.shape), 1)
        if self.signs is None:
            return Elements(places)
        return Elements(places, np.take_along_axis(self.signs, places, 1), self.characters)

    def distinct(self, points: int) -> Elements:
        """On the first `points` alone, each once, without those that change nothing, sorted."""
        cut = Elements(self.places[:, :points])
        keys = cut.places
        if self.signs is not None and self.characters is not None:
            cut = Elements(cut.places, self.signs[:, :points], self.characters)
            keys = np.concatenate([cut.places, self.signs[:, :points], self.characters[:, None]], 1)
        packed = np.ascontiguousarray(keys, dtype=np.int32)
        if not packed.shape[1]:
            return cut.rows(slice(0))
        names = packed.view(f"V{4 * packed.shape[1]}").ravel().tolist()
        seen = {name: row for row, name in enumerate(names)}
        nothing = Elements.identity(points, self.signs is not None)
        seen.pop(nothing.name, None)
        return cut.rows(np.array([seen[name] for name in sorted(seen)], np.int64))

    @property
    def name(self) -> bytes:
        """Tells apart sets of elements."""
        parts: list[np.ndarray] = [self.places]
        if self.signs is not None and self.characters is not None:
            parts += [self.signs, self.characters[:, None]]
        return np.concatenate(parts, 1, dtype=np.int32).tobytes()

    @staticmethod
    def identity(points: int, signed: bool) -> Elements:
        places = np.arange(points, dtype=np.int32)[None]
        if not signed:
            return Elements(places)
        return Elements(places, np.ones((1, points), np.int8), np.ones(1, np.int8))

    @staticmethod
    def stacked(parts: Sequence[Elements]) -> Elements:
        places = np.concatenate([part.places for part in parts])
        if parts[0].signs is None:
            return Elements(places)
        return Elements(
            places,
            np.concatenate([part.signs for part in parts]),
            np.concatenate([part.characters for part in parts]),
        )


def powers(elements: Elements) -> Elements:
    """All and their powers 2, 4, 8, …: long cycles are walked in few steps."""
    points = elements.places.shape[1]
    parts, last = [elements], elements
    for _ in range(points.bit_length() - 1):
        last = last.after(last).distinct(points)
        if not len(last):
            break
        parts.append(last)
    return Elements.stacked(parts)


def products(elements: Elements, count: int) -> Elements:
    """`count` products, each of about half of all elements, in their order."""
    number = np.arange(1, len(elements) + 1, dtype=np.uint64)
    # Bits of a multiplicative hash: as good as drawn at random, and always the same.
    spread = number * np.uint64(0x9E3779B97F4A7C15)
    parts = []
    for bit in range(count):
        taken = np.flatnonzero((spread >> np.uint64(40 + bit)) & np.uint64(1))
        found = elements.rows(taken if len(taken) else slice(1))
        while len(found) > 1:
            half = len(found) // 2
            pairs = found.rows(slice(half)).after(found.rows(slice(half, 2 * half)))
            found = Elements.stacked([pairs, found.rows(slice(2 * half, len(found)))])
        parts.append(found)
    return Elements.stacked(parts)
