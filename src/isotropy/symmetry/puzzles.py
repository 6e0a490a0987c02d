"""The turning cube: its six faces under rotations, and Rubik's cube with its 48 facets.

Coordinates: x to the right, y up, z to the viewer. Faces come in the order U F R B L D (up, front,
right, back, left, down). A facet is the place of its small cube in {−1, 0, 1}³ and an outward
normal; the six centres never move and are left out. Facets are numbered face by face and read in
rows from the top left, as seen from outside, with B above U and F above D. A quarter turn is
clockwise as seen from outside the face with normal n:

    v ↦ (n · v) n − n × v

on the place and the normal of every facet with place · n = 1. Permutations tell where each facet
goes, as `groups` wants them: facet i to places[i].

The ranks 2, 6, 22 that are published for Rubik's cube (Finzi 2023, Table A.3) are of another group.
There the turns of F, R, B, L and D come from that of U by exchanging whole faces without turning
them in their plane, which tears small cubes apart: the group has 24!²/2 ≈ 1.9·10⁴⁷ elements, where
Rubik's cube has 4.3·10¹⁹ and the ranks 2, 9, 51. `torn_facet_permutation` makes those turns.
"""

from __future__ import annotations

import numpy as np

FACES: dict[str, tuple[int, ...]] = {
    "U": (0, 1, 0),
    "F": (0, 0, 1),
    "R": (1, 0, 0),
    "B": (0, 0, -1),
    "L": (-1, 0, 0),
    "D": (0, -1, 0),
}
"""The outward normal of every face."""

_UP = {"U": (0, 0, -1), "D": (0, 0, 1)}
"""Which way is up on a face; y on the other four."""

_Facet = tuple[tuple[int, ...], tuple[int, ...]]


def face_permutation(face: str) -> np.ndarray:
    """Where each of the 6 faces goes when the whole cube makes a quarter turn about `face`."""
    normals = list(FACES.values())
    return np.array([normals.index(_turned(each, FACES[face])) for each in normals])


def facet_permutation(face: str) -> np.ndarray:
    """Where each of the 48 facets goes when the layer of `face` makes a quarter turn."""
    facets, normal = _facets(), FACES[face]
    number = {facet: index for index, facet in enumerate(facets)}
    places = np.arange(len(facets))
    for index, (place, outward) in enumerate(facets):
        if np.dot(place, normal) == 1:
            places[index] = number[_turned(place, normal), _turned(outward, normal)]
    return places


def torn_facet_permutation(face: str) -> np.ndarray:
    """The turn of `face` behind the published ranks: see the module; for U it is the true one."""
    faces = list(FACES)
    to_up = np.arange(6)
    # Quarter turns of the whole cube that bring the face to U, of which only the faces' places are
    # used: a sticker keeps its number within its face.
    for about in {"F": "R", "R": "B", "B": "L", "L": "F", "D": "RR"}.get(face, ""):
        to_up = face_permutation(about)[to_up]
    assert faces[to_up[faces.index(face)]] == "U"
    relabelled = (8 * to_up[:, None] + np.arange(8)).ravel()
    return np.argsort(relabelled)[facet_permutation("U")[relabelled]]


def _facets() -> list[_Facet]:
    found: list[_Facet] = []
    for face, normal in FACES.items():
        up = np.array(_UP.get(face, (0, 1, 0)))
        right = np.cross(up, normal)
        for row in (1, 0, -1):
            for column in (-1, 0, 1):
                if row or column:
                    found.append((_integers(normal + row * up + column * right), normal))
    return found


def _turned(vector: tuple[int, ...], normal: tuple[int, ...]) -> tuple[int, ...]:
    along = np.dot(vector, normal) * np.array(normal)
    return _integers(along - np.cross(normal, vector))


def _integers(vector: np.ndarray) -> tuple[int, ...]:
    return tuple(int(each) for each in vector)
