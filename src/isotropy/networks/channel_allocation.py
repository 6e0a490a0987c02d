"""How many tensors of which rank a hidden layer holds.

With d = dim V and some channels left, take the largest rank r with (r + 1) dʳ ≤ what is left, and
add d^(r−k) tensors of rank k for every k ≤ r: each rank gets dʳ channels (Finzi 2023, A.1). 256
channels of a group on R³ are 70 T(0) + 23 T(1) + 7 T(2) + 2 T(3).

Where V and its dual differ, tensors of rank r are shared out over T(k, r − k) as the binomial
coefficients say. They do not differ where the group keeps a form (O(1,3), Sp): x ↦ B x makes one
the other, T(k, r − k) is T(r), and one kind is cheaper than many. Even ranks come first, then odd
ones: a group with −1 maps neither to the other, and layers leave out blocks that are zero.
"""

from __future__ import annotations

from math import comb

import torch

from isotropy.checks import CallerError
from isotropy.symmetry.groups import Group
from isotropy.symmetry.representations import Representation, Scalar, T

LARGEST_RANK_ON_A_LINE = 3
"""On R¹ every tensor has one entry, and the rule above would not stop."""


def uniform_representation(
    channels: int, group: Group, *, generator: torch.Generator | None = None
) -> Representation:
    """`channels` channels shared out over scalars, vectors and tensors alike.

    generator: tensors left over by the binomial coefficients are drawn with it; without one they
               go where the largest fractions are
    """
    if channels < 1:
        raise CallerError(f"expected at least one channel, got {channels}")
    amounts = rank_amounts(channels, group.dimension)
    found = Scalar(group) * 0
    for rank in (*range(0, len(amounts), 2), *range(1, len(amounts), 2)):
        if group.is_self_dual or keeps_form(group):
            found = found + T(rank)(group) * amounts[rank]
            continue
        for q, share in enumerate(_binomial_shares(amounts[rank], rank, generator)):
            found = found + T(rank - q, q)(group) * share
    return found


def keeps_form(group: Group) -> bool:
    """Whether the group is known to keep a form B, so that x ↦ B x takes V to its dual."""
    return group.classical is not None and group.classical.form is not None


def rank_amounts(channels: int, dimension: int) -> list[int]:
    """How many tensors of rank 0, 1, … fill the channels."""
    amounts: list[int] = []
    while channels > 0:
        rank = 0
        while (rank + 2) * dimension ** (rank + 1) <= channels and (
            dimension > 1 or rank < LARGEST_RANK_ON_A_LINE
        ):
            rank += 1
        amounts.extend([0] * (rank + 1 - len(amounts)))
        for k in range(rank + 1):
            amounts[k] += dimension ** (rank - k)
        channels -= (rank + 1) * dimension**rank
    return amounts


def _binomial_shares(amount: int, rank: int, generator: torch.Generator | None) -> list[int]:
    """`amount` shared out over T(rank, 0), …, T(0, rank)."""
    coefficients = [comb(rank, q) for q in range(rank + 1)]
    whole, left = divmod(amount, 2**rank)
    shares = [whole * each for each in coefficients]
    if generator is not None:
        chances = torch.tensor(coefficients, dtype=torch.float64)
        if left:
            for q in torch.multinomial(chances, left, True, generator=generator).tolist():
                shares[q] += 1
        return shares
    exact = [left * each / 2**rank for each in coefficients]
    shares = [share + int(part) for share, part in zip(shares, exact, strict=True)]
    # The largest fractions first; among equals the balanced ones, then those with fewer duals.
    order = sorted(range(rank + 1), key=lambda q: (int(exact[q]) - exact[q], abs(2 * q - rank), q))
    for q in order[: amount - sum(shares)]:
        shares[q] += 1
    return shares
