"""Problems that fall into smaller ones, against an SVD of all constraints: direct products from the
bases of their factors, and words of blocks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from basis_cases import O3, SO3, SU2, assert_basis, problem_of, projector_of, rotations

from isotropy.bases import problem as problems
from isotropy.bases import solving
from isotropy.bases.null_spaces import dense_null_space
from isotropy.bases.problem import Basis, Problem
from isotropy.bases.residual import residual
from isotropy.bases.splitting import (
    Block,
    block_basis,
    block_rank,
    blocks_of,
    product_basis,
    product_rank,
)
from isotropy.checks import CallerError
from isotropy.symmetry.groups.catalogue import SO, DkeR3, O2eR3, Scaling, SO2eR3
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.products import direct_product
from isotropy.symmetry.groups.representations import (
    BASE,
    PSEUDOSCALAR,
    Representation,
    T,
    V,
    irrep,
    of_factor,
)

Z3 = Group("Z(3)", discrete=[[1, 2, 0]])
Z4 = Group("Z(4)", discrete=[[1, 2, 3, 0]])
S3 = Group("S(3)", discrete=[[1, 0, 2], [1, 2, 0]])
SO2 = Group("SO(2)", algebra=[[[0, -1], [1, 0]]])
SHEAR = Group("shear", algebra=[[[0, 1], [0, 0]]])


def solve(group, atoms, sparsely=True):
    """The basis of one factor; entries that are zero are left out."""
    problem = Problem(group, atoms)
    columns = dense_null_space(problem)
    if sparsely:
        columns = sparse.csc_array(np.where(np.abs(columns) > 1e-14, columns, 0))
    return Basis(columns.shape[1], problem.size, problem.shape, "dense", 0.0, 0.0, columns)


def solve_densely(group, atoms):
    return solve(group, atoms, sparsely=False)


def written_out(columns):
    return columns.toarray() if sparse.issparse(columns) else columns


CASES = [
    ((SO3, S3), "VV", 2),
    ((S3, SO3), "VV", 2),
    ((O3, Z3), "Vd", 3),
    ((SO2, SHEAR, Z3), "Vd", 2 * 2 * 3),
    ((SHEAR, SO2), "VVdd", 6 * 6),
    ((SU2, Z3), "VVd", 0),
    ((SU2, Z3), "Vd", 3),
    ((SO3, S3), "V", 0),
    ((Z3, S3), "", 1),
]


@pytest.mark.parametrize("each", [solve, solve_densely])
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: " x ".join(map(str, case[0])) + f" {case[1] or 'Scalar'}"
)
def test_rank_and_span_are_the_oracles(case, each):
    groups, word, rank = case
    group = direct_product(*groups)
    problem = problem_of(group, word)
    found = product_basis(problem, each)
    assert product_rank(problem, each) == rank
    assert_basis(written_out(found), group, word, rank)
    assert residual(problem, found) < 1e-12 if rank else found.shape[1] == 0


def test_sparse_factors_give_sparse_columns():
    problem = problem_of(direct_product(Z4, Z3), "VV")
    orbits = sparse.csc_array(np.eye(4)[(np.arange(4)[:, None] - np.arange(4)).ravel() % 4] / 2)

    def by_orbits(group, atoms):
        if group == Z3:
            return solve(group, atoms)
        return Basis(4, 16, (4, 4), "orbits", 0.0, 0.0, orbits)

    found = product_basis(problem, by_orbits)
    assert sparse.issparse(found) and found.shape == (144, 12)
    assert residual(problem, found) < 1e-12


def test_maps_of_two_cyclic_groups_are_convolutions_in_two_dimensions():
    group = direct_product(Z4, Z3)
    found = written_out(product_basis(problem_of(group, "Vd"), solve))
    assert found.shape == (144, 12)
    kernel = torch.randn(1, 1, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    image = torch.randn(1, 1, 4, 3, generator=torch.Generator().manual_seed(1)).double()
    padded = torch.nn.functional.pad(image, (0, 2, 0, 3), mode="circular")
    wanted = torch.nn.functional.conv2d(padded, kernel).ravel().numpy()
    matrix = np.zeros((12, 12))
    for column in range(12):
        unit = torch.zeros(12, dtype=torch.float64)
        unit[column] = 1
        padded = torch.nn.functional.pad(unit.view(1, 1, 4, 3), (0, 2, 0, 3), mode="circular")
        matrix[:, column] = torch.nn.functional.conv2d(padded, kernel).ravel().numpy()
    np.testing.assert_allclose(matrix @ image.ravel().numpy(), wanted, atol=1e-12)
    inside = found @ (found.T @ matrix.ravel())
    np.testing.assert_allclose(inside, matrix.ravel(), atol=1e-12)


def test_axes_of_one_factor_alone():
    """V₁ ⊗ V ⊗ V₂ ⊗ V₂* of SO(3) × S(3)."""
    group = direct_product(SO3, S3)
    mixed = (of_factor(V, 0) * V * of_factor(V, 1) * of_factor(V.dual, 1))(group)
    problem = Problem(group, mixed.terms[0].atoms)
    found = written_out(product_basis(problem, solve))
    wanted = dense_null_space(problem)
    assert found.shape == wanted.shape == (243, 5)
    np.testing.assert_allclose(found @ found.T, wanted @ wanted.T, atol=1e-10)


def test_not_for_other_groups_and_atoms():
    group = direct_product(SO3, Z3)
    assert product_basis(problem_of(SO3, "VV"), solve) is None
    assert product_rank(problem_of(SO3, "VV"), solve) is None
    assert product_basis(Problem(group, (BASE, PSEUDOSCALAR)), solve) is None


def test_a_group_that_only_claims_to_be_a_product_is_not_believed():
    """With the rotations alone more is invariant than with both factors."""
    rotations_only = [np.kron(each, np.eye(3)) for each in rotations(3)]
    claims = Group("claims", algebra=rotations_only, factors=(SO3, Z3))
    problem = problem_of(claims, "VV")
    assert product_basis(problem, solve) is None
    assert np.trace(projector_of(claims, "VV")) > 3.5


def test_memory_is_checked_before_it_is_taken(monkeypatch):
    problem = problem_of(direct_product(Z4, Z3), "VV")
    monkeypatch.setattr(problems, "LARGEST_BYTES", 100)
    columns = sparse.csc_array(np.ones((16, 4)))
    with pytest.raises(CallerError, match="GB"):
        product_basis(problem, lambda group, atoms: Basis(4, 16, (4, 4), "", 0.0, 0.0, columns))


# -- blocks ------------------------------------------------------------------------------------

TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


def apart(*turns: int) -> Group:
    """SO(2) on planes that turn at different speeds, with their coordinates interleaved."""
    size = 2 * len(turns)
    matrix = np.zeros((size, size))
    for index, speed in enumerate(turns):
        places = [index, index + len(turns)]
        matrix[np.ix_(places, places)] = speed * TURN
    return Group(f"planes {turns}", algebra=[matrix])


BLOCKS: dict[str, tuple[Group, Representation]] = {
    "O(2) about an axis": (O2eR3(), T(4)),
    "SO(2) about an axis": (SO2eR3(), T(3)),
    "dihedral about an axis": (DkeR3(5), T(4)),
    "planes at speeds 1 and 2": (apart(1, 2), T(3)),
    "planes at one speed": (apart(1, 1), T(2)),
    "scalings": (Scaling(3), T(2, 1)),
    "scalings, map": (Scaling(2), T(2, 2)),
    "unlike atoms": (SO2eR3(), T(1) * irrep(2) * T(1)),
    "no discrete, no algebra": (Group("nothing", dimension=3), T(2)),
}


def tensors_of(group: Group, representation: Representation) -> Problem:
    (term,) = representation(group).terms
    return Problem(group, term.atoms)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_span_is_that_of_all_constraints(name: str) -> None:
    problem = tensors_of(*BLOCKS[name])
    found = block_basis(problem, solving.solve)
    assert sparse.issparse(found)
    expected = dense_null_space(problem)
    assert found.shape == expected.shape
    ours, _ = np.linalg.qr(found.toarray())
    np.testing.assert_allclose(ours @ ours.T, expected @ expected.T, atol=1e-12)
    assert block_rank(problem, solving.rank) == expected.shape[1]


def test_what_has_one_block_is_left_to_others() -> None:
    problem = tensors_of(SO(3), T(3))
    assert block_basis(problem, solving.solve) is None
    assert block_rank(problem, solving.rank) is None


def test_blocks_are_components() -> None:
    planes = blocks_of(BASE, apart(1, 2, 3))
    assert [block.coordinates for block in planes] == [(0, 3), (1, 4), (2, 5)]
    assert [block.is_trivial(O2eR3()) for block in blocks_of(BASE, O2eR3())] == [False, True]


def test_a_sign_is_not_trivial() -> None:
    """A coordinate that only a discrete generator moves still constrains."""
    group = Group("sign", algebra=[np.pad(TURN, (0, 1))], discrete=[np.diag([1.0, 1.0, -1.0])])
    assert not blocks_of(BASE, group)[1].is_trivial(group)
    problem = tensors_of(group, T(3))
    found = block_basis(problem, solving.solve)
    assert found is not None and found.shape[1] == dense_null_space(problem).shape[1] == 0


def test_a_block_is_a_representation() -> None:
    group = O2eR3()
    block = Block(BASE, (0, 1))
    elements = group.sample(4, torch.Generator().manual_seed(0))
    found = block.element(group, elements)
    assert torch.equal(found, elements[:, :2, :2])
    torch.testing.assert_close(block.element(group, elements[0] @ elements[1]), found[0] @ found[1])
    assert block != Block(BASE, (0, 2)) and block == Block(BASE, (0, 1))


def test_the_solver_takes_it() -> None:
    (term,) = T(6).terms
    found = solving.solve(O2eR3(), term.atoms)
    assert (found.method, found.rank) == ("blocks", 71)
    assert found.residual is not None and found.residual < 1e-12
