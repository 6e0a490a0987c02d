"""The function-space bound written out: a whole Jacobian, symmetric roots, blocks picked by index.

    log|H + P| − log|P| = log|I + R J P⁻¹ Jᵀ Rᵀ| ≤ Σ_blocks log|I + (R J P⁻¹ Jᵀ Rᵀ)_block|

J (examples, outputs, parameters) stacks the Jacobians of the averaged network, R is block diagonal
with any root of every example's output curvature: Λ_n = R_nᵀ R_n. The root here is one of two:

    by classes   √p_c (p − e_c) for every class but the last, the rest by a Householder reflection,
                 spelled out as a product of matrices
    identity/σ   for Gaussian noise

Knows torch only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from oracles.dense_ggn import sandwich
from torch import Tensor


def softmax_root(outputs: Tensor) -> Tensor:
    """R (batch, classes − 1, classes) with RᵀR = diag(p) − ppᵀ."""
    roots = []
    for p in outputs.softmax(-1):
        classes = len(p)
        plain = p.sqrt()[:, None] * (p[None, :] - torch.eye(classes, dtype=p.dtype))
        last = torch.zeros(classes, dtype=p.dtype)
        last[-1] = 1
        normal = p.sqrt() + last  # reflects √p to minus the last axis
        mirror = torch.eye(classes, dtype=p.dtype)
        mirror = mirror - 2 * torch.outer(normal, normal) / (normal @ normal)
        roots.append((mirror @ plain)[:-1])
    return torch.stack(roots)


def gaussian_root(outputs: Tensor, noise: Tensor | float) -> Tensor:
    """R (batch, outputs, outputs) = I/σ."""
    identity = torch.eye(outputs.shape[-1], dtype=outputs.dtype)
    return (identity / noise).expand(len(outputs), -1, -1)


def whole_kernel(jacobian: Tensor, root: Tensor, precisions: Tensor) -> Tensor:
    """R J P⁻¹ Jᵀ Rᵀ as (batch, directions, batch, directions); precisions one a parameter."""
    rows = torch.einsum("ndc,ncp->ndp", root, jacobian)
    return torch.einsum("ndp,mep,p->ndme", rows, rows, 1 / precisions)


def exact_log_determinant(jacobian: Tensor, curvature: Tensor, precisions: Tensor) -> Tensor:
    """log|H + P| − log|P| over the parameters; curvature Λ (batch, outputs, outputs)."""
    matrix = sandwich(jacobian, curvature) + torch.diag(precisions)
    sign, value = torch.linalg.slogdet(matrix)
    assert bool(sign > 0)
    return value - precisions.log().sum()


def split_log_determinant(kernel: Tensor, partition: Sequence[Sequence[int]]) -> Tensor:
    """Σ over blocks of log|I + K_block|: batches of example numbers, all their directions."""
    total = torch.zeros((), dtype=kernel.dtype)
    for batch in partition:
        pairs = [(n, d) for n in batch for d in range(kernel.shape[1])]
        examples, chosen = (list(part) for part in zip(*pairs, strict=True))
        block = kernel[examples, chosen][:, examples, chosen]
        total = total + torch.linalg.slogdet(torch.eye(len(pairs)).to(block) + block)[1]
    return total
