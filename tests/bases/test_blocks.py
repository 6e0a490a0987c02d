"""Words of blocks against all constraints at once: same span, same rank, and when to split."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
import torch

from isotropy.bases.null_spaces import dense_null_space
from isotropy.bases.problem import Problem
from isotropy.bases.solving import rank, solve
from isotropy.bases.splitting import Block, block_basis, block_rank, blocks_of
from isotropy.symmetry.groups.atoms import BASE
from isotropy.symmetry.groups.catalogue import SO, DkeR3, O2eR3, Scaling, SO2eR3
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Representation, T, irrep

TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


def apart(*turns: int) -> Group:
    """SO(2) on planes that turn at different speeds, with their coordinates interleaved."""
    size = 2 * len(turns)
    matrix = np.zeros((size, size))
    for index, speed in enumerate(turns):
        places = [index, index + len(turns)]
        matrix[np.ix_(places, places)] = speed * TURN
    return Group(f"planes {turns}", algebra=[matrix])


CASES: dict[str, tuple[Group, Representation]] = {
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


def problem_of(group: Group, representation: Representation) -> Problem:
    (term,) = representation(group).terms
    return Problem(group, term.atoms)


@pytest.mark.parametrize("name", CASES)
def test_the_span_is_that_of_all_constraints(name: str) -> None:
    problem = problem_of(*CASES[name])
    found = block_basis(problem, solve)
    assert sparse.issparse(found)
    expected = dense_null_space(problem)
    assert found.shape == expected.shape
    ours, _ = np.linalg.qr(found.toarray())
    np.testing.assert_allclose(ours @ ours.T, expected @ expected.T, atol=1e-12)
    assert block_rank(problem, rank) == expected.shape[1]


def test_what_has_one_block_is_left_to_others() -> None:
    problem = problem_of(SO(3), T(3))
    assert block_basis(problem, solve) is None
    assert block_rank(problem, rank) is None


def test_blocks_are_components() -> None:
    planes = blocks_of(BASE, apart(1, 2, 3))
    assert [block.coordinates for block in planes] == [(0, 3), (1, 4), (2, 5)]
    assert [block.is_trivial(O2eR3()) for block in blocks_of(BASE, O2eR3())] == [False, True]


def test_a_sign_is_not_trivial() -> None:
    """A coordinate that only a discrete generator moves still constrains."""
    group = Group("sign", algebra=[np.pad(TURN, (0, 1))], discrete=[np.diag([1.0, 1.0, -1.0])])
    assert not blocks_of(BASE, group)[1].is_trivial(group)
    problem = problem_of(group, T(3))
    found = block_basis(problem, solve)
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
    found = solve(O2eR3(), term.atoms)
    assert (found.method, found.rank) == ("blocks", 71)
    assert found.residual is not None and found.residual < 1e-12
