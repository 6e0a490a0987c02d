"""Groups, given by their matrices alone, on which every method is tried, each with words of axes.

"V" is the space of the matrices, "d" its dual. Independent of the catalogue: none of them says
that it is classical, so that no shortcut is taken.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, product

import numpy as np
from oracles.basis_oracle import invariant_projector, word_factors

from isotropy.bases.problem import Problem
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import BASE


def unit(n: int, i: int, j: int) -> np.ndarray:
    found = np.zeros((n, n))
    found[i, j] = 1
    return found


def rotations(n: int, first: int = 0) -> list[np.ndarray]:
    return [unit(n, i, j) - unit(n, j, i) for i, j in combinations(range(first, n), 2)]


def reflection(n: int) -> np.ndarray:
    return np.diag([-1.0] + [1.0] * (n - 1))


def boosts() -> list[np.ndarray]:
    return [unit(4, 0, i) + unit(4, i, 0) for i in (1, 2, 3)]


def symplectic(m: int) -> list[np.ndarray]:
    n = 2 * m
    pairs = [(i, j) for i in range(m) for j in range(i + 1)]
    return [
        *(unit(n, i, j) - unit(n, m + j, m + i) for i, j in product(range(m), repeat=2)),
        *(unit(n, m + i, j) + unit(n, m + j, i) for i, j in pairs),
        *(unit(n, i, m + j) + unit(n, j, m + i) for i, j in pairs),
    ]


def special_unitary(n: int) -> list[np.ndarray]:
    symmetric = [1j * (unit(n, i, j) + unit(n, j, i)) for i, j in combinations(range(n), 2)]
    diagonal = [1j * (unit(n, i, i) - unit(n, i + 1, i + 1)) for i in range(n - 1)]
    return [*rotations(n), *symmetric, *diagonal]


def general_linear(n: int) -> list[np.ndarray]:
    return [unit(n, i, j) for i, j in product(range(n), repeat=2)]


def special_linear(n: int) -> list[np.ndarray]:
    mixed = [unit(n, i, j) for i, j in product(range(n), repeat=2) if i != j]
    return mixed + [unit(n, i, i) - unit(n, n - 1, n - 1) for i in range(n - 1)]


def turn(k: int) -> np.ndarray:
    c, s = np.cos(2 * np.pi / k), np.sin(2 * np.pi / k)
    return np.array([[c, -s], [s, c]])


def in_other_coordinates(group: Group, seed: int = 0) -> Group:
    """The same group: V in a basis that is not orthonormal, generators mixed with one another."""
    generator = np.random.default_rng(seed)
    n, count = group.dimension, len(group.algebra)
    basis = np.eye(n) + 0.3 * generator.standard_normal((n, n))
    back = np.linalg.inv(basis)
    algebra = [basis @ each.toarray() @ back for each in group.algebra]
    mixing = generator.standard_normal((count, count))
    mixed = [np.tensordot(row, np.stack(algebra), axes=1) for row in mixing]
    discrete = [basis @ each.toarray() @ back for each in group.discrete]
    return Group(f"{group.name}, skewed", algebra=mixed, discrete=discrete, dimension=n)


SO3 = Group("SO(3)", algebra=rotations(3))
SO4 = Group("SO(4)", algebra=rotations(4))
O3 = Group("O(3)", algebra=rotations(3), discrete=[reflection(3)])
LORENTZ = Group("SO+(1,3)", algebra=boosts() + rotations(4, 1))
ALL_LORENTZ = Group(
    "O(1,3)", algebra=boosts() + rotations(4, 1), discrete=[-np.eye(4), reflection(4)]
)
SP1, SP2 = Group("Sp(1)", algebra=symplectic(1)), Group("Sp(2)", algebra=symplectic(2))
SU2, SU3 = Group("SU(2)", algebra=special_unitary(2)), Group("SU(3)", algebra=special_unitary(3))
U2 = Group("U(2)", algebra=[*special_unitary(2), 1j * np.eye(2)])
GL2, SL3 = Group("GL(2)", algebra=general_linear(2)), Group("SL(3)", algebra=special_linear(3))
COMPLEX_GL2 = Group("GL(2, C)", algebra=[f * a for f in (1, 1j) for a in general_linear(2)])
SCALING = Group("Scaling(3)", algebra=[np.eye(3)])
HEISENBERG = Group("Heisenberg", algebra=[unit(3, 0, 1), unit(3, 1, 2), unit(3, 0, 2)])
TRANSLATION = Group("translation", algebra=[unit(2, 0, 1)])
E2 = Group(
    "E(2)",
    algebra=[unit(3, 0, 1) - unit(3, 1, 0), unit(3, 0, 2), unit(3, 1, 2)],
    discrete=[reflection(3)],
)
SL2_AND_SHIFTS = Group(
    "SL(2) and shifts",
    algebra=[
        *(unit(3, 0, 1), unit(3, 1, 0), unit(3, 0, 0) - unit(3, 1, 1)),
        *(unit(3, 0, 2), unit(3, 1, 2)),
    ],
)
TRIANGULAR = Group("triangular", algebra=[unit(2, 0, 0), unit(2, 0, 1), unit(2, 1, 1)])
D5 = Group("D(5)", discrete=[turn(5), reflection(2)])
O2_IN_SPACE = Group("O(2) in R3", algebra=[unit(3, 0, 1) - unit(3, 1, 0)], discrete=[reflection(3)])
TRIVIAL = Group("trivial", dimension=3)
DEPENDENT = Group("SO(3) with one generator twice", algebra=[*rotations(3), -2 * rotations(3)[0]])
SIGNED = Group("signed", discrete=[[[0, -1, 0], [1, 0, 0], [0, 0, 1]], [0, 2, 1]])
NOTHING = Group("zero generator", algebra=[np.zeros((2, 2))], discrete=[reflection(2)])

WITH_TORUS: list[tuple[Group, str, int]] = [
    (SO3, "", 1),
    (SO3, "V", 0),
    (SO3, "VV", 1),
    (SO3, "VVV", 1),
    (SO3, "VVVV", 3),
    (SO3, "VVVVV", 6),
    (SO4, "VV", 1),
    (SO4, "VVVV", 4),
    (O3, "VVV", 0),
    (O3, "VVVV", 3),
    (LORENTZ, "VVVV", 4),
    (LORENTZ, "VVdd", 4),
    (ALL_LORENTZ, "VVdd", 3),
    (SP1, "VVVV", 2),
    (SP2, "VVVV", 3),
    (SU2, "VVdd", 2),
    (SU2, "VVVV", 2),
    (SU3, "VVV", 1),
    (SU3, "VVdd", 2),
    (U2, "VVdd", 2),
    (U2, "VV", 0),
    (GL2, "VVdd", 2),
    (GL2, "VVV", 0),
    (SL3, "VVV", 1),
    (SL3, "VdVd", 2),
    (COMPLEX_GL2, "VdVd", 2),
    (SCALING, "Vd", 9),
    (SCALING, "VV", 0),
    (E2, "VVdd", 3),
    (E2, "ddd", 1),
    (SL2_AND_SHIFTS, "VVdd", 3),
    (TRIANGULAR, "VVdd", 2),
    (O2_IN_SPACE, "VVVV", 10),
    (DEPENDENT, "VVVV", 3),
    (in_other_coordinates(SO4), "VVVV", 4),
    (in_other_coordinates(SO3), "VVdd", 3),
    (in_other_coordinates(O3), "Vd", 1),
    (in_other_coordinates(LORENTZ), "VVdd", 4),
    (in_other_coordinates(SL3), "VVdd", 2),
    (in_other_coordinates(SU3), "VVdd", 2),
    (in_other_coordinates(SP2), "VVVV", 3),
    (in_other_coordinates(U2), "Vd", 1),
]
"""Groups of which some element of the algebra can be diagonalised; a word; the rank."""

WITHOUT_TORUS: list[tuple[Group, str, int]] = [
    (HEISENBERG, "VVV", 4),
    (HEISENBERG, "VVdd", 9),
    (TRANSLATION, "VVVV", 6),
    (D5, "VV", 1),
    (D5, "VVVVV", 1),
    (D5, "VVVVVV", 10),
    (in_other_coordinates(Group("one of D5", discrete=[turn(5)])), "VVdd", 6),
    (TRIVIAL, "VV", 9),
    (NOTHING, "VV", 2),
]

SMALL: list[tuple[Group, str, int]] = [
    (SO3, "VVV", 1),
    (O3, "VV", 1),
    (ALL_LORENTZ, "Vd", 1),
    (D5, "VVV", 0),
    (SU2, "VVd", 0),
    (E2, "Vdd", 2),
    (SIGNED, "VVV", 0),
    (SIGNED, "VV", 1),
    (SIGNED, "", 1),
    (TRIVIAL, "V", 3),
]
"""One of every kind of generator, small enough to write all constraints out."""


def case_name(case: tuple[Group, str, int]) -> str:
    return f"{case[0].name} {case[1] or 'Scalar'}"


def problem_of(group: Group, word: str) -> Problem:
    return Problem(group, tuple(BASE if letter == "V" else BASE.dual for letter in word))


def constraint_factors(
    group: Group, word: str
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Factors of the algebra's and of the discrete generators' images, for the oracle."""
    algebra = word_factors([a.toarray() for a in group.algebra], word, infinitesimal=True)
    discrete = word_factors([h.toarray() for h in group.discrete], word, infinitesimal=False)
    return algebra, discrete


def some_vectors(problem: Problem, count: int = 5) -> np.ndarray:
    """Vectors that are not invariant (size, count)."""
    generator = np.random.default_rng(0)
    found = generator.standard_normal((problem.size, count))
    if problem.is_complex:
        found = found + 1j * generator.standard_normal(found.shape)
    return found


@lru_cache
def projector_of(group: Group, word: str) -> np.ndarray:
    """What the oracle says."""
    return invariant_projector(*constraint_factors(group, word), group.dimension ** len(word))


def assert_basis(found: np.ndarray, group: Group, word: str, rank: int) -> None:
    """Orthonormal, of this rank, real where the group is, and of the span the oracle finds."""
    assert found.shape == (group.dimension ** len(word), rank)
    assert np.iscomplexobj(found) == group.is_complex
    np.testing.assert_allclose(found.conj().T @ found, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(found @ found.conj().T, projector_of(group, word), atol=1e-9)
