"""The solver: takes what the structure of group and representation allows, and checks the result.

Methods, in the order in which they are tried; each returns None where it does not apply:

    orbits       permutations: connected components, integers only
    signed       signed permutations: components of the double cover
    product      direct products: Kronecker products of the factors' bases
    invariants   O, SO, Sp, SU, SL, GL on tensors of V: first fundamental theorem
    dense        small products: singular values of all constraints
    weights      other Lie groups: columns of weight zero under a Cartan subalgebra
    krylov       anything else: an iteration that needs only products with the constraints

Every basis is put back into the constraints: a residual above `TOLERANCE` is an error, so that no
wrong rank goes unnoticed. Solutions are kept in memory, and on disk if asked (`store`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from isotropy.bases.dense import LARGEST, dense_null_space
from isotropy.bases.problem import Columns, Problem
from isotropy.bases.solution import Basis
from isotropy.checks import CallerError
from isotropy.symmetry.groups import Group
from isotropy.symmetry.representations import Product

TOLERANCE = 1e-8
"""The largest residual of a basis."""


class Method(NamedTuple):
    """One way to a basis, and to its rank alone where that is cheaper; None: does not apply."""

    basis: Callable[[Problem], Columns | None]
    rank: Callable[[Problem], int | None] | None = None


def _dense(problem: Problem) -> Columns | None:
    return dense_null_space(problem) if problem.size <= LARGEST else None


METHODS: dict[str, Method] = {"dense": Method(_dense)}

_known: dict[tuple[str, Product], Basis] = {}


def solve(group: Group, atoms: Product, *, method: str | None = None) -> Basis:
    """The basis of the invariant vectors of one product.

    method: one of METHODS, to insist on it; the first that applies otherwise
    """
    key = (group.key, atoms)
    if method is None and key in _known:
        return replace(_known[key], seconds=0.0)
    problem = Problem(group, atoms)
    started = time.perf_counter()
    for name, each in METHODS.items():
        columns = each.basis(problem) if method in (None, name) else None
        if columns is not None:
            break
    else:
        raise _unsolved(problem, method)
    seconds = time.perf_counter() - started
    residual = problem.residual(columns)
    if not residual <= TOLERANCE:
        raise CallerError(
            f"the basis of {'*'.join(map(str, atoms))} of {group} by {name!r} violates its "
            f"constraints by {residual:.1e}, more than {TOLERANCE:.0e}; are the generators a "
            "representation of the group?"
        )
    found = Basis(columns.shape[1], problem.size, problem.shape, name, residual, seconds, columns)
    if method is None:
        _known[key] = found
    return found


def rank(group: Group, atoms: Product, *, method: str | None = None) -> Basis:
    """`solve` without vectors: for products too large to write down, where a method can count.

    The residual is then None: there is nothing to put into the constraints.
    """
    problem = Problem(group, atoms)
    for name, each in METHODS.items():
        if each.rank is None or method not in (None, name):
            continue
        started = time.perf_counter()
        found = each.rank(problem)
        if found is not None:
            seconds = time.perf_counter() - started
            return Basis(found, problem.size, problem.shape, name, None, seconds)
    return solve(group, atoms, method=method)


def _unsolved(problem: Problem, method: str | None) -> CallerError:
    by = f" by {method!r}" if method else ""
    what = "*".join(map(str, problem.atoms)) or "Scalar"
    return CallerError(
        f"no method finds the basis of {what} of {problem.group}{by}: {problem.size:,} entries"
    )
