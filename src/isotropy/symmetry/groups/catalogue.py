"""Every group by name: what a command line writes, and the generators it means.

E_ij is the matrix with a single 1. Infinitesimal generators (Finzi 2023, A.1.5):

    SO(n), O(n)   E_ij − E_ji                         SO(1,3)  boosts E_0i + E_i0 and rotations
    SL(n)         E_ij and E_ll − E_nn                GL(n)    E_ij
    SU(n), U(n)   E_ij − E_ji, i (E_ij + E_ji), and i (E_ll − E_nn) or i E_ll
    Sp(m)         keeps Ω = [[0, 1], [−1, 0]]:  E_ij − E_(m+j)(m+i), and the symmetric
                  E_(m+i)j + E_(m+j)i, E_i(m+j) + E_j(m+i), on 2m dimensions

`GROUPS` lists what can be written, `group_named("Z(4) x SO(3)")` reads it, and the name of every
group made here is read back as an equal group. In a pattern, small letters stand for whole numbers
and capitals for groups.

`Cube` turns six faces and `RubiksCube` 48 facets. Coordinates: x to the right, y up, z to the
viewer. Faces come in the order U F R B L D (up, front, right, back, left, down). A facet is the
place of its small cube in {−1, 0, 1}³ and an outward normal; the six centres never move and are
left out. Facets are numbered face by face and read in rows from the top left, as seen from outside,
with B above U and F above D. A quarter turn is clockwise as seen from outside the face with normal
n: v ↦ (n · v) n − n × v, on the place and the normal of every facet with place · n = 1.
Permutations tell where each facet goes, as `Group` wants them: facet i to places[i].

The ranks 2, 6, 22 that are published for Rubik's cube (Finzi 2023, Table A.3) are of another group.
There the turns of F, R, B, L and D come from that of U by exchanging whole faces without turning
them in their plane, which tears small cubes apart: the group has 24!²/2 ≈ 1.9·10⁴⁷ elements, where
Rubik's cube has 4.3·10¹⁹ and the ranks 2, 9, 51. `torn_facet_permutation` makes those turns.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Literal

import numpy as np
import scipy.sparse as sparse

from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Classical, Group, check_extent
from isotropy.symmetry.groups.language import NamedGroup, read_group
from isotropy.symmetry.groups.products import embed, semidirect_product, wreath_product

MINKOWSKI = np.diag([1.0, -1.0, -1.0, -1.0])
"""The form of the Lorentz groups, time first."""
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

# -- the turning cube --------------------------------------------------------------------------


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
    """The turn of `face` behind the published ranks: see above; for U it is the true one."""
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


# -- finite groups -----------------------------------------------------------------------------


def Trivial(n: int) -> Group:
    """Nothing but the identity, on R^n."""
    check_extent(f"Trivial({n})", _whole(n, 1, "Trivial(n)"))
    return Group(f"Trivial({n})", dimension=n)


def Z(n: int) -> Group:
    """Cyclic shifts of n coordinates."""
    check_extent(f"Z({n})", _whole(n, 1, "Z(n)"), discrete=1)
    return Group(f"Z({n})", discrete=[np.roll(np.arange(n), -1)])


def S(n: int) -> Group:
    """All permutations of n coordinates, by the n − 1 transpositions (0 j)."""
    check_extent(f"S({n})", _whole(n, 1, "S(n)"), discrete=n - 1)
    places = np.tile(np.arange(n), (n - 1, 1))
    places[:, 0] = np.arange(1, n)
    places[np.arange(n - 1), np.arange(1, n)] = 0
    return Group(f"S({n})", discrete=list(places), dimension=n)


def C(k: int) -> Group:
    """Rotations of the plane by multiples of 2π/k."""
    return Group(f"C({k})", discrete=[_rotation(_whole(k, 1, "C(k)"))])


def D(k: int) -> Group:
    """Symmetries of the regular polygon with k corners: C(k) and the reflection diag(−1, 1)."""
    return Group(f"D({k})", discrete=[_rotation(_whole(k, 1, "D(k)")), np.diag([-1.0, 1.0])])


def Parity() -> Group:
    """Space inverted in space-time: diag(1, −1, −1, −1)."""
    return Group("Parity", discrete=[MINKOWSKI])


def TimeReversal() -> Group:
    """Time inverted in space-time: diag(−1, 1, 1, 1)."""
    return Group("TimeReversal", discrete=[-MINKOWSKI])


def Cube() -> Group:
    """The 24 rotations of a cube, on its 6 faces."""
    return Group("Cube", discrete=[face_permutation("B"), face_permutation("R")])


def RubiksCube() -> Group:
    """Rubik's cube, on its 48 facets: the quarter turns U, F, R, B, L, D."""
    return Group("RubiksCube", discrete=[facet_permutation(face) for face in FACES])


def PublishedRubiksCube() -> Group:
    """The group behind the published ranks 2, 6, 22 of Rubik's cube, another one (see above)."""
    discrete = [torn_facet_permutation(face) for face in FACES]
    return Group("PublishedRubiksCube", discrete=discrete)


def GridGroup(k: int, n: int) -> Group:
    """Z(k) ⋉ (Z(n) × Z(n)): shifts of an n × n periodic grid and its turns by 360°/k, on
    R^k ⊗ R^n ⊗ R^n: k orientations, the index of orientation slow (k is 1, 2 or 4).

    A turn rotates the grid counterclockwise (rows downward) and moves each orientation to the next.
    """
    name, n = f"Grid({k},{n})", _whole(n, 1, "Grid(k,n)")
    if k not in (1, 2, 4):
        raise CallerError(f"{name}: expected 1, 2 or 4 turns, got {k}")
    check_extent(name, k * n * n, discrete=3)
    numbers = np.arange(k * n * n).reshape(k, n, n)
    # Where (orientation, row, column) goes.
    moved = [np.roll(numbers, -1, 1), np.roll(numbers, -1, 2)]
    if k > 1:
        turned = np.rot90(numbers, -4 // k, (1, 2))
        moved.append(np.roll(turned, -1, 0))
    return Group(name, discrete=[each.ravel() for each in moved])


# -- Lie groups --------------------------------------------------------------------------------


def SO(n: int) -> Group:
    """Rotations of R^n."""
    check_extent(f"SO({n})", _whole(n, 2, "SO(n)"), algebra=n * (n - 1) // 2)
    return Group(f"SO({n})", algebra=_skew(n), classical=Classical("SO", np.eye(n)))


def O(n: int) -> Group:  # noqa: E743
    """Rotations and reflections of R^n."""
    check_extent(f"O({n})", _whole(n, 1, "O(n)"), algebra=n * (n - 1) // 2)
    reflection = np.diag([-1.0] + [1.0] * (n - 1))
    classical = Classical("O", np.eye(n))
    return Group(f"O({n})", algebra=_skew(n), discrete=[reflection], classical=classical)


def SO13p() -> Group:
    """SO⁺(1,3): boosts and rotations."""
    return _lorentz("SO+(1,3)", "SO", 4)


def SO13() -> Group:
    """SO(1,3): boosts, rotations, and −1."""
    return _lorentz("SO(1,3)", "SO", 4, -np.eye(4))


def O13() -> Group:
    """O(1,3), the Lorentz group: boosts, rotations, −1 and the reversal of time."""
    return _lorentz("O(1,3)", "O", 4, -np.eye(4), -MINKOWSKI)


def SO11p() -> Group:
    """SO⁺(1,1): boosts along one axis."""
    return _lorentz("SO+(1,1)", "SO", 2)


def O11() -> Group:
    """O(1,1): boosts along one axis, −1 and the reversal of time."""
    return _lorentz("O(1,1)", "O", 2, -np.eye(2), -MINKOWSKI[:2, :2])


def Sp(m: int) -> Group:
    """Maps of R^2m (positions, then momenta) that keep Ω: xᵀΩy, Ω = [[0, 1], [−1, 0]]."""
    check_extent(f"Sp({m})", 2 * _whole(m, 1, "Sp(m)"), algebra=m * (2 * m + 1))
    unit = partial(_unit, 2 * m)
    algebra = [unit(i, j) - unit(m + j, m + i) for i in range(m) for j in range(m)]
    for i in range(m):
        for j in range(i + 1):
            algebra.append(np.maximum(unit(m + i, j), unit(m + j, i)))
            algebra.append(np.maximum(unit(i, m + j), unit(j, m + i)))
    form = np.kron([[0.0, 1.0], [-1.0, 0.0]], np.eye(m))
    return Group(f"Sp({m})", algebra=algebra, classical=Classical("Sp", form))


def SL(n: int) -> Group:
    """Maps of R^n that keep volume and orientation."""
    check_extent(f"SL({n})", _whole(n, 2, "SL(n)"), algebra=n * n - 1)
    algebra = _between(n) + [_unit(n, i, i) - _unit(n, n - 1, n - 1) for i in range(n - 1)]
    return Group(f"SL({n})", algebra=algebra, classical=Classical("SL"))


def GL(n: int) -> Group:
    """All invertible maps of R^n, by their connected half: −1 adds no condition on tensors."""
    check_extent(f"GL({n})", _whole(n, 1, "GL(n)"), algebra=n * n)
    algebra = [_unit(n, i, j) for i in range(n) for j in range(n)]
    return Group(f"GL({n})", algebra=algebra, classical=Classical("GL"))


def U(n: int) -> Group:
    """Unitary maps of C^n."""
    check_extent(f"U({n})", _whole(n, 1, "U(n)"), algebra=n * n)
    algebra = _skew_hermitian(n) + [1j * _unit(n, i, i) for i in range(n)]
    return Group(f"U({n})", algebra=algebra, classical=Classical("U"))


def SU(n: int) -> Group:
    """Unitary maps of C^n with determinant 1."""
    check_extent(f"SU({n})", _whole(n, 2, "SU(n)"), algebra=n * n - 1)
    diagonal = [1j * (_unit(n, i, i) - _unit(n, n - 1, n - 1)) for i in range(n - 1)]
    return Group(f"SU({n})", algebra=_skew_hermitian(n) + diagonal, classical=Classical("SU"))


def Scaling(n: int) -> Group:
    """Multiplication of R^n by positive numbers."""
    check_extent(f"Scaling({n})", _whole(n, 1, "Scaling(n)"), algebra=1)
    return Group(f"Scaling({n})", algebra=[sparse.eye_array(n)])


# -- embedded in space -------------------------------------------------------------------------


def SO2eR3() -> Group:
    """Rotations of R³ about the third axis."""
    return embed(SO(2), 3, name="SO2eR3")


def O2eR3() -> Group:
    """Rotations of R³ about the third axis, and reflections in planes through it."""
    return embed(O(2), 3, name="O2eR3")


def DkeR3(k: int) -> Group:
    """D(k) on the first two coordinates of R³."""
    return embed(D(k), 3, name=f"DkeR3({k})")


# -- by name -----------------------------------------------------------------------------------


GROUPS: dict[str, NamedGroup] = {
    "Trivial(n)": NamedGroup(Trivial, "the identity alone, on n coordinates"),
    "Z(n)": NamedGroup(Z, "cyclic shifts of n coordinates"),
    "S(n)": NamedGroup(S, "all permutations of n coordinates"),
    "C(k)": NamedGroup(C, "rotations of the plane by multiples of 360°/k"),
    "D(k)": NamedGroup(D, "C(k) and a reflection"),
    "SO(n)": NamedGroup(SO, "rotations of n dimensions"),
    "O(n)": NamedGroup(O, "rotations and reflections of n dimensions"),
    "SO+(1,3)": NamedGroup(SO13p, "boosts and rotations of space-time"),
    "SO(1,3)": NamedGroup(SO13, "SO+(1,3) and −1"),
    "O(1,3)": NamedGroup(O13, "the Lorentz group, with parity and time reversal"),
    "SO+(1,1)": NamedGroup(SO11p, "boosts along one axis"),
    "O(1,1)": NamedGroup(O11, "SO+(1,1), −1 and time reversal"),
    "Sp(m)": NamedGroup(Sp, "symplectic maps of 2m dimensions"),
    "SU(n)": NamedGroup(SU, "unitary maps of n complex dimensions with determinant 1"),
    "U(n)": NamedGroup(U, "unitary maps of n complex dimensions"),
    "SL(n)": NamedGroup(SL, "maps of n dimensions with determinant 1"),
    "GL(n)": NamedGroup(GL, "all invertible maps of n dimensions"),
    "Scaling(n)": NamedGroup(Scaling, "multiplication by positive numbers"),
    "Parity": NamedGroup(Parity, "inversion of space in space-time"),
    "TimeReversal": NamedGroup(TimeReversal, "inversion of time in space-time"),
    "Cube": NamedGroup(Cube, "rotations of a cube, on its 6 faces"),
    "RubiksCube": NamedGroup(RubiksCube, "Rubik's cube, on its 48 facets"),
    "Rubik": NamedGroup(RubiksCube, "the same"),
    "PublishedRubiksCube": NamedGroup(
        PublishedRubiksCube, "the group behind the ranks published for Rubik's cube, not the cube"
    ),
    "Grid(k,n)": NamedGroup(GridGroup, "shifts and k turns of an n × n grid, k orientations"),
    "SO2eR3": NamedGroup(SO2eR3, "rotations of space about the third axis"),
    "O2eR3": NamedGroup(O2eR3, "SO2eR3 and reflections in planes through the axis"),
    "DkeR3(k)": NamedGroup(DkeR3, "D(k) on the first two coordinates of space"),
    "Embedded(G,d,i)": NamedGroup(embed, "G on d coordinates, moving those from i on"),
    "Semidirect(N,H)": NamedGroup(semidirect_product, "N and H on one space, H normalising N"),
    "Wreath(G,H)": NamedGroup(wreath_product, "copies of G's space, permuted by H"),
    "Real(G)": NamedGroup(Group.real_form, "a complex group on real and imaginary parts"),
}
"""What can be written, and `A x B` for direct products."""


def group_named(text: str) -> Group:
    """The group written as `SO(3)`, `O(1,3)`, `RubiksCube`, `Z(4) x Z(4)`, `Wreath(Z(3),S(2))`."""
    return read_group(text, GROUPS)


# -- matrices ----------------------------------------------------------------------------------


def _whole(value: int, least: int, what: str) -> int:
    """The number if it is whole and large enough."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise CallerError(f"{what}: expected a whole number of at least {least}, got {value!r}")
    return number


def _unit(n: int, i: int, j: int) -> np.ndarray:
    """E_ij."""
    found = np.zeros((n, n))
    found[i, j] = 1.0
    return found


def _between(n: int) -> list[np.ndarray]:
    return [_unit(n, i, j) for i in range(n) for j in range(n) if i != j]


def _skew(n: int) -> list[np.ndarray]:
    return [_unit(n, i, j) - _unit(n, j, i) for i in range(n) for j in range(i)]


def _skew_hermitian(n: int) -> list[np.ndarray]:
    """Those without a diagonal."""
    pairs = [(i, j) for i in range(n) for j in range(i)]
    return _skew(n) + [1j * (_unit(n, i, j) + _unit(n, j, i)) for i, j in pairs]


def _lorentz(name: str, kind: Literal["O", "SO"], n: int, *discrete: np.ndarray) -> Group:
    """Boosts and rotations of one time and n − 1 space coordinates, and what is discrete."""
    boosts = [_unit(n, 0, i) + _unit(n, i, 0) for i in range(1, n)]
    rotations = [np.pad(each, ((1, 0), (1, 0))) for each in _skew(n - 1)]
    classical = Classical(kind, MINKOWSKI[:n, :n])
    return Group(name, algebra=boosts + rotations, discrete=discrete, classical=classical)


def _rotation(k: int) -> np.ndarray:
    """By 2π/k, exact for quarter and half turns, so that they are seen to permute coordinates."""
    cosine, sine = np.cos(2 * np.pi / k), np.sin(2 * np.pi / k)
    found = np.array([[cosine, -sine], [sine, cosine]])
    whole = np.round(found)
    return whole if np.abs(found - whole).max() < 1e-12 else found
