"""Evidences written out densely: Laplace by log-determinants, linear regression in closed form.

    Laplace      log Z = log p(y | f̂) − ½ Σ_l [ δ_l ‖θ_l‖² + log|H_l + δ_l I| − p_l log δ_l ]
    regression   y ~ N(0, σ² I + Φ Φᵀ/δ)          exact, for y = Φ w + noise, w ~ N(0, I/δ)

All in nats, summed over examples. `slogdet` and not `eigh`, because autograd through eigenvectors
is singular at repeated eigenvalues. Knows torch only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal


def log_determinant_terms(blocks: dict[str, Tensor], precisions: dict[str, float]) -> Tensor:
    """Σ_l log|H_l + δ_l I| − p_l log δ_l, for blocks (p, p) or (groups, p, p)."""
    total = torch.zeros((), dtype=torch.float64)
    for name, block in blocks.items():
        identity = torch.eye(block.shape[-1], dtype=block.dtype)
        precision = torch.as_tensor(precisions[name], dtype=block.dtype)
        sign, log_determinant = torch.linalg.slogdet(block + precision * identity)
        assert bool((sign > 0).all()), f"{name}: H + P is not positive definite"
        size = block[..., 0].numel()
        total = total + log_determinant.sum() - size * precision.log()
    return total


def laplace_log_evidence(
    log_likelihood: Tensor,
    blocks: dict[str, Tensor],
    weights: dict[str, Tensor],
    precisions: dict[str, float],
) -> Tensor:
    """log Z of a block-diagonal Laplace approximation; differentiable in all tensors."""
    penalty = sum(precisions[name] * weights[name].square().sum() for name in blocks)
    return log_likelihood - (penalty + log_determinant_terms(blocks, precisions)) / 2


def categorical_log_likelihood(outputs: Tensor, labels: Tensor) -> Tensor:
    """Σ_n log softmax(f_n)_{y_n}."""
    return outputs.log_softmax(1)[torch.arange(len(labels)), labels].sum()


def gaussian_log_likelihood(outputs: Tensor, targets: Tensor, noise: float) -> Tensor:
    """Σ_n Σ_k log N(y_nk; f_nk, σ²)."""
    return Normal(outputs, noise).log_prob(targets).sum()


def regression_log_evidence(
    features: Tensor, targets: Tensor, noise: float, precision: float
) -> Tensor:
    """log p(y) of Bayesian linear regression, targets (examples, outputs) with own weights each."""
    count = len(features)
    covariance = noise**2 * torch.eye(count, dtype=features.dtype)
    covariance = covariance + features @ features.T / precision
    marginal = MultivariateNormal(torch.zeros(count, dtype=features.dtype), covariance)
    return marginal.log_prob(targets.T).sum()


def regression_posterior_mean(
    features: Tensor, targets: Tensor, noise: float, precision: float
) -> Tensor:
    """The most probable weights (features, outputs)."""
    matrix = features.T @ features / noise**2
    matrix = matrix + precision * torch.eye(len(matrix), dtype=features.dtype)
    return torch.linalg.solve(matrix, features.T @ targets / noise**2)
