"""Groups made of groups (Finzi 2023, A.1.7), and whether one group can be a subgroup of another.

    embed               on R^D, moving d coordinates in a row and leaving the others in place
    direct_product      G × H on V ⊗ W, the index of V slow:    A ⊗ 1, 1 ⊗ B;   g ⊗ 1, 1 ⊗ h
    semidirect_product  N ⋊ H on one space, where H normalises N: the generators of both
    wreath_product      G ≀ H on R^m ⊗ V, H permuting m copies of V: G on every copy by itself

A direct product remembers its `factors`: its bases are Kronecker products of theirs.

That every element of one group is in another cannot be told from generators in general.
`check_subgroup` asks for what a subgroup inherits, of its generators A and h, and believes more:

    the same V           the same dimension, and real matrices in a real group
    Lie algebra          every A is a combination of the group's A_i
    orthogonal, unitary  A is skew, h orthogonal or unitary, where the group's are
    permutations         h is one, where the group has no others
    a form B             hᵀ B h = B, where the group is known to keep B
    determinant 1        det h = 1, where the group's are
    finite groups        h is one of the elements, where the group has at most `LARGEST_SEARCHED`
"""

from __future__ import annotations

import operator
from functools import lru_cache
from math import prod

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from isotropy.checks import CallerError
from isotropy.symmetry.groups.group import Group, Span, check_extent, signed_permutation

LARGEST_ENUMERATED = 2000
"""Elements of a finite normal subgroup up to which all are listed, to see whether it is normal."""
LARGEST_SEARCHED = 200
"""Elements of a finite group up to which all are listed, to look for those of a subgroup."""
ROUNDING = 1e-7
"""The largest violation of a property that subgroups inherit, relative to the generator."""


def embed(group: Group, dimension: int, first: int = 0, *, name: str | None = None) -> Group:
    """The same group on `dimension` coordinates, of which it moves d, from `first` on."""
    whole = name or f"Embedded({group},{dimension},{first})"
    dimension, first = operator.index(dimension), operator.index(first)
    after = dimension - first - group.dimension
    if first < 0 or after < 0:
        raise CallerError(
            f"{whole}: expected {group.dimension} coordinates of {group} within {dimension}, "
            f"starting from 0 to {max(dimension - group.dimension, 0)}, got first={first}"
        )
    check_extent(whole, dimension, discrete=len(group.discrete))

    def placed(block: sparse.csr_array, elsewhere: float) -> sparse.csr_array:
        parts = [elsewhere * sparse.eye_array(first), block, elsewhere * sparse.eye_array(after)]
        return sparse.block_diag(parts, format="csr")

    return Group(
        whole,
        algebra=[placed(each, 0.0) for each in group.algebra],
        discrete=[placed(each, 1.0) for each in group.discrete],
        dimension=dimension,
    )


def direct_product(first: Group, *others: Group) -> Group:
    """G × H × … on V ⊗ W ⊗ …, the first index slow."""
    factors = tuple(each for group in (first, *others) for each in group.factors or (group,))
    if len(factors) == 1:
        return first
    sizes = [each.dimension for each in factors]
    name, dimension = " x ".join(each.name for each in factors), prod(sizes)
    counts = {
        "algebra": sum(len(each.algebra) for each in factors),
        "discrete": sum(len(each.discrete) for each in factors),
    }
    check_extent(name, dimension, **counts)
    algebra: list[sparse.csr_array] = []
    discrete: list[sparse.csr_array] = []
    for index, factor in enumerate(factors):
        before = sparse.eye_array(prod(sizes[:index]))
        after = sparse.eye_array(prod(sizes[index + 1 :]))
        for given, found in ((factor.algebra, algebra), (factor.discrete, discrete)):
            found += [sparse.kron(sparse.kron(before, each), after, "csr") for each in given]
    return Group(
        name,
        algebra=algebra,
        discrete=discrete,
        dimension=dimension,
        factors=factors,
    )


@lru_cache(maxsize=64)
def is_direct_product(group: Group) -> bool:
    """Whether the generators are those of `direct_product` of its factors, in its order."""
    return bool(group.factors) and direct_product(*group.factors) == group


def semidirect_product(normal: Group, acting: Group) -> Group:
    """N ⋊ H on the space on which both act: the group of all n h.

    Raises unless H normalises N, that is h n h⁻¹ is in N for all generators:

        h A h⁻¹  in 𝔫        [B, A]  in 𝔫        n B n⁻¹ − B  in 𝔫        h n h⁻¹  in N

    for A in 𝔫 and n of N, B in 𝔥 and h of H. The last is checked where N is finite with at most
    `LARGEST_ENUMERATED` elements, and believed elsewhere. That N and H meet in 1 only is not
    checked: where they do not, N H is a group all the same.
    """
    if normal.dimension != acting.dimension:
        raise CallerError(
            f"semidirect product: expected two groups on one space, got {normal} on "
            f"{normal.dimension} dimensions and {acting} on {acting.dimension}; embed the smaller"
        )
    _check_normal(normal, acting)
    return Group(
        f"Semidirect({normal},{acting})",
        algebra=[*normal.algebra, *acting.algebra],
        discrete=[*normal.discrete, *acting.discrete],
        dimension=normal.dimension,
    )


def wreath_product(group: Group, permuting: Group) -> Group:
    """G ≀ H on R^m ⊗ V: H permutes m copies of V, and G acts on each copy by itself.

    The Lie algebra is that of all copies. A discrete generator of G acts on one copy of each orbit
    of H alone: conjugating with H brings it to the others.
    """
    name = f"Wreath({group},{permuting})"
    if not permuting.is_permutation:
        raise CallerError(
            f"{name}: expected a group of permutations to move the copies, such as S(n) or Z(n), "
            f"got {permuting}"
        )
    copies, size = permuting.dimension, group.dimension
    discrete = len(group.discrete) + len(permuting.discrete)
    check_extent(name, copies * size, algebra=copies * len(group.algebra), discrete=discrete)
    total = sparse.eye_array(copies * size)

    def on_copy(index: int, block: sparse.csr_array) -> sparse.csr_array:
        chosen = sparse.csr_array(([1.0], ([index], [index])), (copies, copies))
        return sparse.kron(chosen, block, "csr")

    identity = sparse.eye_array(size)
    return Group(
        name,
        algebra=[on_copy(copy, each) for copy in range(copies) for each in group.algebra],
        discrete=[
            *(
                sparse.csr_array(total + on_copy(copy, each - identity))
                for copy in _one_of_each_orbit(permuting)
                for each in group.discrete
            ),
            *(sparse.kron(each, identity, "csr") for each in permuting.discrete),
        ],
        dimension=copies * size,
    )


def _one_of_each_orbit(group: Group) -> list[int]:
    joined = sparse.csr_array((group.dimension, group.dimension))
    for each in group.discrete:
        joined = joined + each
    _, labels = connected_components(joined, directed=False)
    return [int(each) for each in np.unique(labels, return_index=True)[1]]


# -- is one group normalised by another? -------------------------------------------------------


def _check_normal(normal: Group, acting: Group) -> None:
    span = Span(normal.algebra)
    for k, h in enumerate(acting.discrete):
        inverse = _inverse(h)
        for i, a in enumerate(normal.algebra):
            if not span.contains(h @ a @ inverse):
                raise _not_normal(normal, acting, f"h{k} A{i} h{k}⁻¹ is not in its algebra")
    for j, b in enumerate(acting.algebra):
        for i, a in enumerate(normal.algebra):
            if not span.contains(b @ a - a @ b, float(_norm(a) * _norm(b))):
                raise _not_normal(normal, acting, f"[B{j}, A{i}] is not in its algebra")
        for i, n in enumerate(normal.discrete):
            if not span.contains(n @ b @ _inverse(n) - b, _norm(b)):
                raise _not_normal(normal, acting, f"n{i} B{j} n{i}⁻¹ − B{j} is not in its algebra")
    elements = finite_elements(normal, LARGEST_ENUMERATED) if acting.discrete else None
    if elements is None:
        return
    for k, h in enumerate(acting.discrete):
        for i, n in enumerate(normal.discrete):
            if _label(h @ n @ _inverse(h)) not in elements:
                raise _not_normal(normal, acting, f"h{k} n{i} h{k}⁻¹ is not in it")


def finite_elements(group: Group, largest: int) -> dict[bytes, sparse.csr_array] | None:
    """Every element of a finite group; None if it has a Lie algebra or more than `largest`, or
    elements with entries of 10⁶ and more."""
    if group.algebra:
        return None
    identity = sparse.csr_array(sparse.eye_array(group.dimension))
    found = {_label(identity): identity}
    latest = [identity]
    while latest:
        fresh = []
        for element in latest:
            for generator in group.discrete:
                product = sparse.csr_array(generator @ element)
                if not np.abs(product.data).max() < 1e6:
                    return None  # powers grow without end
                label = _label(product)
                if label not in found:
                    found[label] = product
                    fresh.append(product)
        if len(found) > largest:
            return None
        latest = fresh
    return found


def _label(matrix: sparse.csr_array) -> bytes:
    """Equal for matrices that agree to 6 digits, as elements of one finite group do or do not."""
    entries = sparse.csr_array(matrix)
    entries.sort_indices()
    # 0.4 of the last digit beside the grid, so that 0, ±1 and ±½ are never at its edge.
    numbers = np.floor(np.stack([entries.data.real, entries.data.imag]) * 1e6 + 0.4)
    numbers = numbers.astype(np.int64)
    kept = numbers.any(0)
    rows = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
    return np.concatenate([rows[kept], entries.indices[kept], *numbers[:, kept]]).tobytes()


def _inverse(matrix: sparse.csr_array) -> sparse.csr_array:
    if signed_permutation(matrix) is not None:
        return sparse.csr_array(matrix.T)
    return sparse.csr_array(np.linalg.inv(matrix.toarray()))


def _norm(matrix: sparse.csr_array) -> float:
    return float(np.linalg.norm(matrix.data))


def _not_normal(normal: Group, acting: Group, why: str) -> CallerError:
    return CallerError(
        f"semidirect product: {acting} does not normalise {normal}: {why}; the normal subgroup "
        "comes first"
    )


# -- is one group within another? --------------------------------------------------------------


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
    span = Span(group.algebra)
    if not all(span.contains(each) for each in subgroup.algebra):
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


def _keeps(element: np.ndarray, form: np.ndarray) -> bool:
    return bool(np.abs(element.T @ form @ element - form).max() <= ROUNDING * np.abs(form).max())
