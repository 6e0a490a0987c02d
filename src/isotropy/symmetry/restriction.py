"""Whether a group can be a subgroup of another, matrices of one being matrices of the other.

That every element of the one is an element of the other cannot be told from generators in general.
What is told, each a property that a subgroup inherits, of its generators A and h:

    the same V           the same dimension, and real matrices in a real group
    Lie algebra          every A is a combination of the group's A_i
    orthogonal, unitary  A is skew, h orthogonal or unitary, where the group's are
    permutations         h is one, where the group has no others
    a form B             hᵀ B h = B, where the group is known to keep B
    determinant 1        det h = 1, where the group's are
    finite groups        h is one of the elements, where the group has at most `LARGEST_SEARCHED`

The rest is believed.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sparse

from isotropy.checks import CallerError
from isotropy.symmetry.group_products import finite_elements
from isotropy.symmetry.groups import Group

ROUNDING = 1e-7
"""The largest violation, relative to the generator."""
LARGEST_SEARCHED = 200
"""Elements of a finite group up to which all are listed."""


def check_subgroup(subgroup: Group, group: Group) -> None:
    """Raise `CallerError` if `subgroup` lacks a property that subgroups of `group` have."""
    if subgroup == group:
        return
    start = f"expected a subgroup of {group}, got {subgroup}"
    if subgroup.dimension != group.dimension:
        raise CallerError(
            f"{start}: its matrices have {subgroup.dimension} rows, those of {group} "
            f"{group.dimension}; embed it as matrices of {group}"
        )
    if subgroup.is_complex and not group.is_complex:
        raise CallerError(f"{start}: its matrices are complex, those of {group} real")
    if not _is_within(subgroup, group):
        raise CallerError(f"{start}: its Lie algebra is not in that of {group}")
    if group.is_unitary and not subgroup.is_unitary:
        kind = "unitary" if group.is_complex else "orthogonal"
        raise CallerError(f"{start}: {group} is {kind}, {subgroup} is not")
    if group.is_permutation and not subgroup.is_permutation:
        raise CallerError(f"{start}: {group} permutes coordinates, {subgroup} does not")
    form = group.classical.form if group.classical is not None else None
    if form is not None and not all(_keeps(h.toarray(), form) for h in subgroup.discrete):
        raise CallerError(f"{start}: {group} keeps a form that {subgroup} does not keep")
    if has_determinant_one(group) and not has_determinant_one(subgroup):
        raise CallerError(f"{start}: {group} has determinant 1, {subgroup} has others")
    if not _is_among_elements(subgroup, group):
        raise CallerError(f"{start}: it has elements that {group} does not have")


def has_determinant_one(group: Group) -> bool:
    """Whether det g = 1 of every element: no A has a trace, and det h = 1."""
    traces = [each.trace() for each in group.algebra]
    determinants = [np.linalg.det(each.toarray()) for each in group.discrete]
    numbers = np.abs([*traces, *(each - 1 for each in determinants)])
    return bool(numbers.max(initial=0.0) <= ROUNDING)


def _is_within(subgroup: Group, group: Group) -> bool:
    """Every A of the subgroup is a real combination of the group's A_i."""
    inner, outer = (_real_rows(each) for each in (subgroup, group))
    if not inner.nnz or not outer.nnz:
        return not inner.nnz
    used = np.unique(np.concatenate([inner.indices, outer.indices]))
    rows, wanted = outer[:, used].toarray(), inner[:, used].toarray()
    found = np.linalg.lstsq(rows.T, wanted.T, rcond=None)[0]
    left = np.abs(rows.T @ found - wanted.T).max()
    return bool(left <= ROUNDING * max(1.0, float(np.abs(wanted).max())))


def _is_among_elements(subgroup: Group, group: Group) -> bool:
    """Adding the subgroup's generators to a finite group gives no new element."""
    elements = finite_elements(group, LARGEST_SEARCHED)
    if elements is None:
        return True
    both = Group(
        f"{group} and {subgroup}",
        discrete=[*group.discrete, *subgroup.discrete],
        dimension=group.dimension,
    )
    return finite_elements(both, len(elements)) is not None


def _real_rows(group: Group) -> sparse.csr_array:
    """Every A flattened, real and imaginary part after each other, (D, 2 d²)."""
    if not group.algebra:
        return sparse.csr_array((1, 2 * group.dimension**2))
    rows = sparse.vstack([each.reshape(1, -1) for each in group.algebra]).tocsr()
    return sparse.csr_array(sparse.hstack([rows.real, rows.imag]).tocsr())


def _keeps(element: np.ndarray, form: np.ndarray) -> bool:
    return bool(np.abs(element.T @ form @ element - form).max() <= ROUNDING * np.abs(form).max())
