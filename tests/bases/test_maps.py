"""All maps between two sums against the null space of W ↦ ρ_out W − W ρ_in, written out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from oracles.emlp_oracle import map_projector

from isotropy.bases import problem as problems
from isotropy.bases.maps import MapBasis, kinds, map_atoms, map_basis, normal_form
from isotropy.checks import CallerError
from isotropy.symmetry.groups.catalogue import GL, O13, SO, SU, D, O, S, SO13p, Sp, Z
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import BASE, Maps, P, Representation, Scalar, T, V

CASES = [
    (SO(3), V >> V * V),
    (SO(3), (2 * V + Scalar) >> (V * V + 2 * V)),
    (SO(3), (V + Scalar + V.dual) >> (Scalar + V + 2 * Scalar)),
    (O(3), (V + P) >> (P * V * V + P + V)),
    (S(3), (V + V * V) >> (Scalar + V + V * V)),
    (Z(4), 2 * V >> V * V),
    (D(4), (V * V + V) >> (V + V * V)),
    (SO13p(), (V + V.dual) >> (V * V.dual + V + Scalar)),
    (O13(), (V.dual * V) >> (V * V.dual)),
    (Sp(1), (V + V.dual * V) >> (V.dual + V * V)),
    (GL(2), (V * V.dual + V) >> (V.dual * V + V)),
    (SU(2), (V + V.dual) >> (V * V.dual * V + V)),
    (Group("nothing", dimension=2), (V + Scalar) >> V),
]


def matrices(representation: Representation) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """dρ(A_i), by differences of ρ, and ρ(h_k)."""
    group = representation.group

    def rho(element: np.ndarray) -> np.ndarray:
        return representation.element(torch.from_numpy(element)).numpy()

    step, identity = 1e-6, np.eye(group.dimension)
    algebra = []
    for each in group.algebra_tensor().numpy():
        forward, backward = rho(identity + step * each), rho(identity - step * each)
        algebra.append(np.round((forward - backward) / (2 * step), 8))
    return algebra, [rho(each) for each in group.discrete_tensor().numpy()]


def expected(maps: Maps) -> np.ndarray:
    (left_algebra, left), (right_algebra, right) = matrices(maps.target), matrices(maps.source)
    return map_projector(
        list(zip(left_algebra, right_algebra, strict=True)),
        list(zip(left, right, strict=True)),
        (maps.target.size, maps.source.size),
    )


def written_out(found: MapBasis) -> np.ndarray:
    """All maps, (rank, out, in)."""
    return np.array([found.matrix(unit) for unit in np.eye(found.rank)]).reshape(-1, *found.shape)


@pytest.mark.parametrize(("group", "maps"), CASES, ids=lambda case: str(case))
def test_the_basis_spans_all_maps_and_no_more(group, maps):
    found = map_basis(maps(group))
    projector = expected(maps(group))
    columns = written_out(found).reshape(found.rank, -1).T
    assert found.rank == round(np.trace(projector).real)
    assert np.abs(columns.conj().T @ columns - np.eye(found.rank)).max(initial=0) < 1e-10
    assert np.abs(columns @ columns.conj().T - projector).max() < 1e-7  # differences of ρ
    assert found.residual < 1e-10


@pytest.mark.parametrize(("group", "maps"), CASES, ids=lambda case: str(case))
def test_matrices_are_sums_of_the_basis_and_project_back(group, maps):
    found = map_basis(maps(group))
    random = np.random.default_rng(0)
    coefficients = random.normal(size=found.rank)
    matrix = found.matrix(coefficients)
    assert np.allclose(matrix, np.tensordot(coefficients, written_out(found), 1), atol=1e-13)
    assert np.allclose(found.project(matrix), coefficients, atol=1e-12)
    other = random.normal(size=found.shape)
    by_hand = [np.vdot(each, other) for each in written_out(found)]
    assert np.allclose(found.project(other), by_hand, atol=1e-12)


def test_products_that_are_the_same_share_a_kind_and_a_solution():
    group = O(3)
    representation = (V + Scalar + V.dual + 2 * V)(group)
    vectors, scalars = kinds(representation)
    assert vectors.places.tolist() == [[0, 1, 2], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    assert scalars.places.tolist() == [[3]]
    assert normal_form((BASE, BASE.dual), group) == (BASE, BASE)
    assert map_atoms((BASE,), (BASE,), group) == (BASE, BASE)
    assert map_atoms((BASE,), (BASE,), SO13p()) == (BASE, BASE.dual)
    first, second = map_basis(V(group) >> V(group)), map_basis(Scalar(group) >> T(2)(group))
    assert first.pairs[0].solution.columns is second.pairs[0].solution.columns


def test_a_permutation_group_has_sparse_blocks():
    group = S(4)
    (pair,) = map_basis((V * V >> V * V)(group)).pairs
    assert pair.is_sparse and sparse.issparse(pair.columns)
    assert pair.rank == 15  # partitions of four things into at most four parts
    assert pair.elements.shape == (15, 16, 16)


def test_pairs_without_maps_are_left_out_but_counted_as_solved():
    found = map_basis((V + Scalar)(O(3)) >> (V + Scalar)(O(3)))
    assert [pair.rank for pair in found.pairs] == [1, 1]
    assert len(found.solutions) == 4
    assert map_basis(V(O(3)) >> Scalar(O(3))).rank == 0


def test_maps_too_large_to_write_out_say_their_size(monkeypatch):
    (pair,) = map_basis((V * V >> V * V)(S(4))).pairs
    monkeypatch.setattr(problems, "LARGEST_BYTES", 1000)
    with pytest.raises(CallerError, match="15 maps of 16 × 16 written out takes"):
        _ = pair.elements


def test_wrong_shapes_are_refused():
    found = map_basis(V(SO(3)) >> V(SO(3)))
    with pytest.raises(CallerError, match="expected 1 coefficients.*got shape \\(2,\\)"):
        found.matrix(np.ones(2))
    with pytest.raises(CallerError, match="expected a matrix \\(3, 3\\)"):
        found.project(np.ones((3, 4)))
