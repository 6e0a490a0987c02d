"""Channels are shared out as the paper says; irreducible parts have common coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from equivariant_cases import CASES, bound, elements
from hypothesis import given
from hypothesis import strategies as st

from isotropy.bases.maps import kinds
from isotropy.checks import CallerError
from isotropy.networks.equivariant import isotypic
from isotropy.networks.equivariant.channels import rank_amounts, uniform_representation
from isotropy.networks.equivariant.isotypic import Splitting, splitting
from isotropy.symmetry.groups.catalogue import GL, SL, SO, SU, O, S, SO13p, Sp, Z
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, Scalar, T, Term, V


def test_the_published_example():
    assert rank_amounts(256, 3) == [70, 23, 7, 2]
    group = SO(3)
    expected = 70 * Scalar + 7 * T(2) + 23 * T(1) + 2 * T(3)  # even ranks first
    assert uniform_representation(256, group) == expected(group)


@given(channels=st.integers(1, 600), dimension=st.integers(1, 7))
def test_every_channel_is_used(channels, dimension):
    amounts = rank_amounts(channels, dimension)
    assert sum(n * dimension**rank for rank, n in enumerate(amounts)) == channels
    assert all(amounts)


@given(channels=st.integers(1, 400))
def test_duals_share_the_ranks_as_binomial_coefficients_say(channels):
    found = uniform_representation(channels, GL(2))
    assert found.size == channels
    by_rank: dict[int, list[int]] = {}
    for term in found.terms:
        by_rank.setdefault(len(term.atoms), []).append(term.amount)
    for rank, amount in enumerate(rank_amounts(channels, 2)):
        assert sum(by_rank[rank]) == amount
    vectors = {str(term.atoms): term.amount for term in found.terms if len(term.atoms) == 1}
    if len(vectors) == 2:
        first, second = vectors.values()
        assert abs(first - second) <= 1


def test_what_is_left_over_goes_where_the_largest_fractions_are():
    assert rank_amounts(48, 2) == [14, 7, 3, 1]
    written = str(uniform_representation(48, SL(2)))
    assert written == "14Scalar + V*V + V*V' + V'*V' + 4V + 3V' + V*V*V'"


@pytest.mark.parametrize("group", [O(3), SO13p(), Sp(1)], ids=str)
def test_no_duals_where_the_group_keeps_a_form(group):
    found = uniform_representation(100, group)
    assert all(atom.name == "V" for term in found.terms for atom in term.atoms)


def test_a_line_has_tensors_of_low_rank_only():
    sign = Group("sign", discrete=[[[-1.0]]])
    found = uniform_representation(50, sign)
    assert found.size == 50 and max(len(term.atoms) for term in found.terms) == 3


def test_no_channels_are_refused():
    with pytest.raises(CallerError, match="at least one channel, got 0"):
        uniform_representation(0, SO(3))


SHEAR = Group("shear", algebra=[np.array([[0.0, 1.0], [0.0, 0.0]])])


def split(representation: Representation) -> Splitting:
    found = splitting(representation.group, [kind.atoms for kind in kinds(representation)])
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_parts_fill_products_and_all_copies_of_one_move_alike(name):
    group, source, target = bound(name)
    found = split(source + target)
    for element in elements(group):
        moves: dict[int, np.ndarray] = {}
        for atoms, frames in found.frames.items():
            matrix = Representation((Term(1, atoms),), group).element(element).numpy()
            stacked = np.concatenate([part for frame in frames for part in frame])
            assert np.allclose(stacked @ stacked.T, np.eye(len(matrix)), atol=1e-11)
            for number, frame in enumerate(frames):
                for part in frame:
                    move = part @ matrix @ part.T
                    assert np.allclose(part @ matrix, move @ part, atol=1e-9)
                    assert np.allclose(move, moves.setdefault(number, move), atol=1e-9)
        assert np.allclose(moves[0], 1)
        for number, each in enumerate(found.irreducibles):
            for end in each.ends:
                assert np.allclose(end @ moves[number], moves[number] @ end, atol=1e-9)


def test_known_irreducibles():
    tensors = Scalar + V + T(2) + T(3)
    rotations = split(tensors(SO(3)))
    assert [(each.size, each.degree) for each in rotations.irreducibles] == [
        (1, 1),
        (3, 1),
        (5, 1),
        (7, 1),
    ]
    amounts = {len(atoms): [len(f) for f in fs] for atoms, fs in rotations.frames.items()}
    assert amounts == {0: [1, 0, 0, 0], 1: [0, 1, 0, 0], 2: [1, 1, 1, 0], 3: [1, 3, 2, 1]}
    assert np.array_equal(next(iter(rotations.frames.values()))[0], np.ones((1, 1, 1)))
    # Planes of the Fourier transform, complex; spinors, quaternionic; two-forms of space-time.
    assert [(e.size, e.degree) for e in split(V(Z(5))).irreducibles] == [(1, 1), (2, 2), (2, 2)]
    assert (4, 4) in [(e.size, e.degree) for e in split(V(SU(2).real_form())).irreducibles]
    assert sorted((e.size, e.degree) for e in split((V + T(2))(SO13p())).irreducibles) == [
        (1, 1),
        (4, 1),
        (6, 2),
        (9, 1),
    ]


def test_a_product_that_is_irreducible_keeps_its_coordinates():
    found = split((V + T(2))(O(5)))
    frames = next(f for atoms, f in found.frames.items() if len(atoms) == 1)
    assert np.array_equal(frames[1], np.eye(5)[None])


def test_coordinates_do_not_depend_on_the_basis_that_was_found(monkeypatch):
    """Another orthonormal basis of the same maps, other eigenvectors: the same maps in the end."""
    first = split((V + T(2))(S(4)))
    isotypic._splitting.cache_clear()
    eigh = np.linalg.eigh

    def turned(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = eigh(matrix)
        return values, -vectors

    monkeypatch.setattr(np.linalg, "eigh", turned)
    second = split((V + T(2))(S(4)))
    isotypic._splitting.cache_clear()
    for atoms, frames in first.frames.items():
        for other, others in second.frames.items():
            for number, frame in enumerate(frames):
                # What θ multiplies is F_outᵀ F_in.
                expected = np.einsum("mio,nis->mnos", frame, first.frames[other][number])
                found = np.einsum("mio,nis->mnos", second.frames[atoms][number], others[number])
                assert np.allclose(found, expected, atol=1e-10)


def test_none_where_there_is_no_splitting():
    assert splitting(SHEAR, [kind.atoms for kind in kinds(V(SHEAR))]) is None
    large = V(Z(200))
    assert splitting(large.group, [kind.atoms for kind in kinds(large)]) is None


def test_a_splitting_that_is_wrong_is_noticed():
    group = O(3)
    found = split((V + T(2))(group))
    homs = isotypic._Homomorphisms(isotypic.map_basis((V + T(2))(group) >> (V + T(2))(group)))
    without_scalar = {atoms: own for atoms, own in found.frames.items() if atoms}
    good = Splitting(found.irreducibles, without_scalar)
    assert isotypic._reproduces(good, homs)
    atoms = next(atoms for atoms in without_scalar if len(atoms) == 2)
    frames = [each.copy() for each in without_scalar[atoms]]
    widest = max(range(len(frames)), key=lambda k: frames[k].size)
    frames[widest] = frames[widest][:, ::-1]
    frames[widest][0, 0] += 0.1
    assert not isotypic._reproduces(
        Splitting(found.irreducibles, {**without_scalar, atoms: tuple(frames)}), homs
    )
