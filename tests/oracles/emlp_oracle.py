"""Equivariant maps and layers written out, from matrices alone: no bases, no kinds, no slices.

Matrices are row-major: vec(W)[o · in + i] = W[o, i], so that L W Rᵀ is (L ⊗ R) vec W.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


def map_projector(
    algebra: Sequence[tuple[np.ndarray, np.ndarray]],
    discrete: Sequence[tuple[np.ndarray, np.ndarray]],
    shape: tuple[int, int],
) -> np.ndarray:
    """The orthogonal projector (out · in, out · in) onto all W with dρ_out W = W dρ_in for each
    pair (dρ_out, dρ_in) of `algebra`, and ρ_out W = W ρ_in for each pair of `discrete`."""
    out, into = shape
    rows = [np.zeros((1, out * into))]
    for left, right in (*algebra, *discrete):
        rows.append(np.kron(left, np.eye(into)) - np.kron(np.eye(out), right.T))
    _, values, vectors = np.linalg.svd(np.concatenate(rows), full_matrices=True)
    zero = np.concatenate([values, np.zeros(out * into - len(values))]) < 1e-9
    return vectors[zero].conj().T @ vectors[zero]


def equivariance_error(
    function: Callable[[Tensor], Tensor], source: Tensor, target: Tensor, inputs: Tensor
) -> float:
    """The largest ‖f(ρ_in x) − ρ_out f(x)‖ of all inputs (batch, in), relative to the mean ‖f(x)‖
    and divided by the condition numbers of ρ_in and ρ_out."""
    with torch.no_grad():
        moved_first, moved_last = function(inputs @ source.mT), function(inputs) @ target.mT
        scale = function(inputs).norm(dim=1).mean()
        errors = (moved_first - moved_last).norm(dim=1) / scale
    conditions = torch.linalg.cond(source.double()) * torch.linalg.cond(target.double())
    return float(errors.max() / conditions)


def tensor_bilinear(
    objects: Mapping[int, Tensor],
    weights: Mapping[tuple[int, int, int, int], Tensor],
    dimension: int,
) -> dict[int, Tensor]:
    """0.5 W(x) x for tensors of an orthogonal group, one pair of objects at a time.

    objects: tensors of each rank, (copies, dimension^rank)
    weights: (copies out, pairs) for (rank of map, rank of source, rank of target, s), where object
             j of the map meets object j + s of the source; where the ranks of map and source add
             up to that of the target, objects are multiplied
    """
    found: dict[int, Tensor] = {}
    for (map_rank, source_rank, target_rank, first), weight in weights.items():
        total = found.setdefault(
            target_rank, weight.new_zeros(weight.shape[0], dimension**target_rank)
        )
        for k in range(weight.shape[0]):
            for j in range(weight.shape[1]):
                acting, source = objects[map_rank][j], objects[source_rank][j + first]
                if map_rank + source_rank == target_rank:
                    product = torch.outer(acting, source).ravel()
                else:
                    product = acting.view(dimension**target_rank, -1) @ source
                total[k] += 0.5 * weight[k, j] * product
    return found
