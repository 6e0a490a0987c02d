"""The generalised Gauss–Newton of an averaged network, written out as one dense matrix.

    H = Σ_n Ĵ_nᵀ Λ_n Ĵ_n ,    Ĵ_n = Σ_s w_s ∂f(x_ns)/∂θ ,    Λ_n = −∂² log p(y_n | f̂_n) / ∂f̂²

(Immer et al. 2022, Eq. 11 and 12), by `torch.func` Jacobians of the whole network. Rows are
(batch·samples, …) with samples fastest; `samples` is how many there are, with weights w_s = 1/S,
or the weights themselves (samples,). Parameters are vectorised row-major. Everything is
differentiable in rows and weights. Knows torch only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

OutputCurvature = Callable[[Tensor], Tensor]
"""From averaged outputs (batch, outputs) to Λ (batch, outputs, outputs)."""

Samples = int | Tensor
"""How many samples an example has, or the weight of each."""


def softmax_curvature(outputs: Tensor) -> Tensor:
    """Λ = diag(p) − p pᵀ of class labels given logits."""
    p = outputs.softmax(-1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def gaussian_curvature(noise: float) -> OutputCurvature:
    """Λ = I/σ² of real targets with noise of standard deviation σ."""

    def curvature(outputs: Tensor) -> Tensor:
        identity = torch.eye(outputs.shape[-1], dtype=outputs.dtype)
        return (identity / noise**2).expand(len(outputs), -1, -1)

    return curvature


def average_over_samples(rows: Tensor, samples: Samples) -> Tensor:
    """Σ_s w_s row_s: (batch·samples, …) → (batch, …), one sample at a time."""
    weights = [1 / samples] * samples if isinstance(samples, int) else samples
    parts = [weight * rows[number :: len(weights)] for number, weight in enumerate(weights)]
    return torch.stack(parts).sum(0)


def trainable(network: nn.Module) -> dict[str, Tensor]:
    """The parameters that have a block, by name."""
    return {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}


def averaged_outputs(
    network: nn.Module, parameters: dict[str, Tensor], rows: Tensor, samples: Samples
) -> Tensor:
    """f̂ (batch, outputs) with the given values for the parameters."""
    with sdpa_kernel(SDPBackend.MATH):  # the other kernels cannot be differentiated twice
        return average_over_samples(functional_call(network, parameters, (rows,)), samples)


def averaged_jacobians(network: nn.Module, rows: Tensor, samples: Samples) -> dict[str, Tensor]:
    """Ĵ by parameter name, (batch, outputs, parameters of that tensor)."""

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        return averaged_outputs(network, parameters, rows, samples)

    # One row at a time: torch 2.13 has a wrong derivative of the batched gradient of layer_norm.
    found = jacrev(outputs, chunk_size=1)(trainable(network))
    return {name: jacobian.flatten(2) for name, jacobian in found.items()}


def averaged_jacobian(
    network: nn.Module, rows: Tensor, samples: Samples, names: Iterable[str] | None = None
) -> Tensor:
    """Ĵ (batch, outputs, P) over the named parameters, in that order; None: all trainable."""
    found = averaged_jacobians(network, rows, samples)
    return torch.cat([found[name] for name in names or found], -1)


def dense_ggn(
    network: nn.Module, rows: Tensor, samples: Samples, output_curvature: OutputCurvature
) -> Tensor:
    """H (P, P) over all trainable parameters, in the order of `named_parameters`."""
    outputs = averaged_outputs(network, trainable(network), rows, samples)
    return sandwich(averaged_jacobian(network, rows, samples), output_curvature(outputs))


def dense_ggn_blocks(
    network: nn.Module, rows: Tensor, samples: Samples, output_curvature: OutputCurvature
) -> dict[str, Tensor]:
    """The diagonal blocks of H by parameter name."""
    curvature = output_curvature(averaged_outputs(network, trainable(network), rows, samples))
    return {
        name: sandwich(jacobian, curvature)
        for name, jacobian in averaged_jacobians(network, rows, samples).items()
    }


def group_blocks(block: Tensor, groups: int) -> Tensor:
    """The diagonal blocks of a grouped convolution's weight block, (groups, p/g, p/g)."""
    size = len(block) // groups
    parts = [slice(first, first + size) for first in range(0, len(block), size)]
    return torch.stack([block[part, part] for part in parts])


def sandwich(jacobian: Tensor, curvature: Tensor) -> Tensor:
    """Σ_n Ĵᵀ Λ Ĵ for Λ (batch, outputs, outputs)."""
    return torch.einsum("ncp,ncd,ndq->pq", jacobian, curvature, jacobian)
