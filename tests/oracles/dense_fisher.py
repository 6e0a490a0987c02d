"""The curvature Λ of a likelihood in its outputs, by one of three Fishers.

    ggn   −∂² log p / ∂f̂²                               (`dense_ggn`)
    mc    (p_c/q_c) g gᵀ with g = −∂ log p(c | f̂)/∂f̂ at a drawn target c and q_c the number p_c:
          one in value, and what carries the derivative of p_c
    ef    g gᵀ at the true target

Outputs are (batch, outputs). Knows torch only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Normal
from torch.func import grad, vmap


def log_probability(outputs: Tensor, target: Tensor, noise: float | None) -> Tensor:
    """log p(y | f) of one example: class labels given logits, or real targets with this noise."""
    if noise is None:
        return Categorical(logits=outputs, validate_args=False).log_prob(target)
    return Normal(outputs, noise, validate_args=False).log_prob(target).sum()


def empirical_curvature(outputs: Tensor, targets: Tensor, noise: float | None) -> Tensor:
    """g gᵀ (batch, outputs, outputs), with g the gradient of −log p by autograd."""

    def loss(some: Tensor, target: Tensor) -> Tensor:
        return -log_probability(some, target, noise)

    gradient = vmap(grad(loss))(outputs, targets)
    return gradient[:, :, None] * gradient[:, None, :]


def drawn_targets(outputs: Tensor, noise: float | None, generator: torch.Generator) -> Tensor:
    """Targets from the model itself: a class by its probability, or means plus noise."""
    if noise is None:
        return torch.multinomial(outputs.detach().softmax(1), 1, generator=generator)[:, 0]
    # Which of ±ε is added makes no difference to the outer product.
    drawn = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)
    return outputs.detach() - noise * drawn


def sampled_curvature(outputs: Tensor, targets: Tensor, noise: float | None) -> Tensor:
    """(p_y/q_y) g gᵀ for drawn targets; for real ones g = (f − y)/σ² is a constant."""
    if noise is not None:
        return empirical_curvature(outputs.detach(), targets, noise)
    probability = outputs.softmax(1)[torch.arange(len(outputs)), targets]
    ratio = probability / probability.detach()
    return ratio[:, None, None] * empirical_curvature(outputs, targets, noise)
