"""Every kind of curvature of a network averaged with weights, written out as dense matrices.

    f̂_n = Σ_s w_s f(x_ns)       H = Σ_n Ĵ_nᵀ Λ_n Ĵ_n ,    Ĵ_n = Σ_s w_s ∂f(x_ns)/∂θ

and Λ_n by one of three Fishers:

    ggn   −∂² log p / ∂f̂²                               (`dense_ggn`)
    mc    (p_c/q_c) g gᵀ with g = −∂ log p(c | f̂)/∂f̂ at a drawn target c and q_c the number p_c:
          one in value, and what carries the derivative of p_c
    ef    g gᵀ at the true target

KFAC of Linear layers, one position, any weights (Immer et al. 2022, Eq. 7 and 15):

    block = (1/N) G ⊗ A        A = Σ_n ā āᵀ ,      ā = Σ_s w_s a_s
                               G = Σ_n ḡ Λ_n ḡᵀ ,  ḡ = Σ_s ∂f̂/∂z_s

Rows are (batch·copies, …), copies fastest; everything is differentiable in rows and weights. Knows
torch only.
"""

from __future__ import annotations

import torch
from oracles.dense_ggn import trainable
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel


def weighted_average(rows: Tensor, weights: Tensor) -> Tensor:
    """Σ_s w_s row_s: (batch·copies, …) → (batch, …), one copy at a time."""
    count = len(weights)
    return sum(
        (weight * rows[number::count] for number, weight in enumerate(weights)),
        start=torch.zeros_like(rows[::count]),
    )


def weighted_outputs(network: nn.Module, rows: Tensor, weights: Tensor) -> Tensor:
    """f̂ (batch, outputs)."""
    return weighted_average(functional_call(network, trainable(network), (rows,)), weights)


def weighted_jacobian(
    network: nn.Module, names: tuple[str, ...], rows: Tensor, weights: Tensor
) -> Tensor:
    """Ĵ (batch, outputs, P) over the named parameters, in that order."""

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return weighted_average(functional_call(network, parameters, (rows,)), weights)

    given = trainable(network)
    found = jacrev(outputs, chunk_size=1)({name: given[name] for name in names})
    return torch.cat([found[name].flatten(2) for name in names], -1)


def sandwich(jacobian: Tensor, output_curvature: Tensor) -> Tensor:
    """Σ_n Ĵᵀ Λ Ĵ for Λ (batch, outputs, outputs)."""
    return torch.einsum("ncp,ncd,ndq->pq", jacobian, output_curvature, jacobian)


# --- the output curvature -----------------------------------------------------------------


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


# --- KFAC of Linear layers, with weights --------------------------------------------------


def weighted_kfac(
    network: nn.Module, layer: str, rows: Tensor, weights: Tensor, output_curvature: Tensor
) -> dict[str, Tensor]:
    """Blocks "weight" and "bias" of a Linear layer on (rows, features) that is used once."""
    module = network.get_submodule(layer)
    assert isinstance(module, nn.Linear)
    inputs: list[Tensor] = []

    def outputs(perturbation: Tensor) -> Tensor:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            inputs.append(arguments[0])
            return output + perturbation

        handle = module.register_forward_hook(hook)
        try:
            return weighted_outputs(network, rows, weights)
        finally:
            handle.remove()

    zeros = torch.zeros(len(rows), module.out_features, dtype=rows.dtype)
    outputs(zeros)
    averaged = weighted_average(inputs[0], weights)
    back = jacrev(outputs, chunk_size=1)(zeros).sum(2)  # copies of other examples do not count
    g_factor = sandwich(back, output_curvature).contiguous()
    a_factor = (averaged.T @ averaged).contiguous()
    return {"weight": torch.kron(g_factor, a_factor) / len(averaged), "bias": g_factor}
