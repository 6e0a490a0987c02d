"""The solver: takes what the structure of group and representation allows, and checks the result.

Methods, in the order in which they are tried; each returns None where it does not apply:

    orbits       permutations: orbits of index tuples, integers only
    signed       signed permutations: orbits of the double cover
    product      direct products: Kronecker products of the factors' bases
    invariants   O, SO, Sp, SU, SL, GL on tensors of V: first fundamental theorem
    blocks       coordinates that no generator mixes: one small problem a word of blocks
    weights      other Lie groups: columns of weight zero under a torus
    dense        small products: singular values of all constraints
    krylov       anything else: an iteration that needs only products with the constraints

Every basis is put back into the constraints: a residual above `TOLERANCE` is an error, so that no
vector that is not invariant goes unnoticed (`residual` says how surely). Solutions are kept in
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from isotropy.bases.invariants import invariant_basis, invariant_rank
from isotropy.bases.null_spaces import LARGEST, dense_null_space, krylov_basis
from isotropy.bases.orbits import orbit_basis, orbit_rank
from isotropy.bases.problem import Basis, Columns, Problem
from isotropy.bases.residual import residual
from isotropy.bases.splitting import block_basis, block_rank, product_basis, product_rank
from isotropy.bases.weights import weight_basis
from isotropy.checks import CallerError, check_choice
from isotropy.symmetry.groups.group import Group
from isotropy.symmetry.groups.representations import Product

TOLERANCE = 1e-8
"""The largest residual of a basis."""


class Method(NamedTuple):
    """One way to a basis, and to its rank alone where that is cheaper; None: does not apply."""

    basis: Callable[[Problem], Columns | None]
    rank: Callable[[Problem], int | None] | None = None


def _dense(problem: Problem) -> Columns | None:
    return dense_null_space(problem) if problem.size <= LARGEST else None


def solve(group: Group, atoms: Product, *, method: str | None = None) -> Basis:
    """The basis of the invariant vectors of one product.

    method: one of METHODS, to insist on it; the first that applies otherwise
    """
    if method is not None:
        return _solved(Problem(group, atoms), method)
    key = (group.key, tuple(atom.key(group) for atom in atoms))
    if key in _known:
        return replace(_known[key], seconds=0.0)
    found = _known[key] = _solved(Problem(group, atoms), None)
    return found


def rank(group: Group, atoms: Product, *, method: str | None = None) -> Basis:
    """`solve` without vectors: for products too large to write down, where a method can count.

    The residual is then None: there is nothing to put into the constraints.
    """
    problem = Problem(group, atoms)
    for name, each in _methods(method).items():
        started = time.perf_counter()
        found = None if each.rank is None else each.rank(problem)
        if found is not None:
            seconds = time.perf_counter() - started
            return Basis(found, problem.size, problem.shape, name, None, seconds)
    return solve(group, atoms, method=method)


METHODS: dict[str, Method] = {
    "orbits": Method(orbit_basis, orbit_rank),
    "signed": Method(partial(orbit_basis, signed=True), partial(orbit_rank, signed=True)),
    "product": Method(partial(product_basis, solve=solve), partial(product_rank, rank=rank)),
    "invariants": Method(invariant_basis, invariant_rank),
    "blocks": Method(partial(block_basis, solve=solve), partial(block_rank, rank=rank)),
    "weights": Method(weight_basis),
    "dense": Method(_dense),
    "krylov": Method(krylov_basis),
}

_known: dict[tuple[str, tuple[str, ...]], Basis] = {}


def forget() -> None:
    """Drop what is kept in memory."""
    _known.clear()


def _methods(method: str | None) -> dict[str, Method]:
    if method is None:
        return METHODS
    return {method: METHODS[check_choice(method, METHODS, what="method")]}


def _solved(problem: Problem, method: str | None) -> Basis:
    """The basis by the first method that applies."""
    started = time.perf_counter()
    for name, each in _methods(method).items():
        columns = each.basis(problem)
        if columns is not None:
            return _checked(problem, name, columns, time.perf_counter() - started)
    by = f" by {method!r}" if method else ""
    raise CallerError(f"no method finds the basis of {problem}{by}: {problem.size:,} entries")


def _checked(problem: Problem, method: str, columns: Columns, seconds: float) -> Basis:
    """What a method found, put into the constraints."""
    violation = residual(problem, columns)
    if not violation <= TOLERANCE:
        raise CallerError(
            f"the basis of {problem} by {method!r} violates its "
            f"constraints by {violation:.1e}, more than {TOLERANCE:.0e}; are the generators a "
            "representation of the group?"
        )
    rank = columns.shape[1]
    return Basis(rank, problem.size, problem.shape, method, violation, seconds, columns)
