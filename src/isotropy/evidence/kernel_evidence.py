"""The evidence of a Gaussian process in closed form, at the best scale and noise.

Targets Y (examples, outputs), whose columns have mean zero, are modelled as independent draws of

    y = f + ε,     f ~ N(0, s K),     ε ~ N(0, σ² I)

With K = U diag(λ) Uᵀ, the ratio r = s/σ² and d_i = 1 + r λ_i, the best noise is known and one
number is left to be found:

    σ²(r)    = (1/ND) Σ_i ‖u_iᵀ Y‖² / d_i
    log Z(r) = −½ ND (1 + log 2π σ²(r)) − ½ D Σ_i log d_i

At r = 0 this is the log likelihood of a constant. An example that counts with weight w (its
likelihood to the power of w) moves log Z, at the best r and σ², by

    ∂ log Z/∂w_n = E_posterior log p(y_n | f_n) = −½ D log 2πσ² − (‖y_n − μ_n‖² + D v_n)/2σ²

μ and v the mean and variance of f at n. Rasmussen and Williams (2006), "Gaussian processes for
machine learning", chapters 2 and 5. Oracles: scikit-learn and scipy, in
tests/evidence/test_kernel_evidence.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from isotropy.evidence.laplace import NotFiniteError

CONSTANT = 1e-20
"""Mean square of centred targets up to which they do not vary but by rounding."""
LOG_RATIOS = torch.linspace(-12.0, 16.0, 29, dtype=torch.float64)
"""Logarithms of r relative to the mean of K's diagonal, among which the best is bracketed."""


@dataclass(frozen=True, eq=False)
class KernelFit:
    """A Gaussian process at its best scale and noise.

    log_evidence: in nats, over all examples and outputs
    shares: (examples,) derivative of log Z by the weight of each example
    ratio, noise: r and σ²
    weights: (examples, outputs) α with μ(x) = k(x, examples) α, α = r (I + r K)⁻¹ Y
    vectors, shrunk: U and d
    """

    log_evidence: float
    shares: Tensor
    ratio: float
    noise: float
    weights: Tensor
    vectors: Tensor
    shrunk: Tensor

    def log_density(self, between: Tensor, own: Tensor, targets: Tensor) -> float:
        """Mean log density of other examples, in nats, over their outputs together.

        between (others, examples) and own (others,): the kernel to the examples, and its diagonal
        """
        mean = between @ self.weights
        projected = between @ self.vectors
        explained = self.ratio * (projected.square() / self.shrunk).sum(1)
        variance = self.noise * (1 + self.ratio * (own - explained).clamp_min(0))
        squares = (targets - mean).square().sum(1)
        outputs = targets.shape[1]
        densities = -0.5 * (outputs * (2 * math.pi * variance).log() + squares / variance)
        return float(densities.mean())


def constant_log_evidence(targets: Tensor) -> float:
    """What no kernel at all reaches: r = 0; infinite for targets that do not vary."""
    variance = float(targets.double().square().mean()) if targets.numel() else 0.0
    if variance <= CONSTANT:
        return math.inf
    return -0.5 * targets.numel() * (1 + math.log(2 * math.pi * variance))


def fit_kernel(kernel: Tensor, targets: Tensor, least_noise: float = 0.0) -> KernelFit:
    """The best scale and noise for a kernel (examples, examples) and centred targets, in float64.

    least_noise: what σ² may not fall below
    Raises NotFiniteError for a kernel without finite numbers above zero, and for targets that do
    not vary.
    """
    kernel, targets = kernel.double(), targets.double()
    size = float(kernel.diagonal().mean())
    if not (math.isfinite(float(kernel.sum())) and size > 0):
        raise NotFiniteError(
            f"the kernel of {len(kernel)} examples has a mean diagonal of {size:g}: expected a "
            "finite number above zero"
        )
    if math.isinf(constant_log_evidence(targets)):
        raise NotFiniteError("the targets are all the same: there is nothing to learn")
    values, vectors = torch.linalg.eigh((kernel + kernel.mT) / (2 * size))
    values = values.clamp_min(0)
    squares = (vectors.mT @ targets).square().sum(1)
    examples, outputs = targets.shape
    count = examples * outputs

    def noise_and_evidence(ratio: float) -> tuple[float, float]:
        shrunk = 1 + ratio * values
        best = float((squares / shrunk).sum()) / count
        noise = max(best, least_noise)
        evidence = -0.5 * count * (best / noise + math.log(2 * math.pi * noise))
        return noise, evidence - 0.5 * outputs * float(shrunk.log().sum())

    coarse = [noise_and_evidence(math.exp(log_ratio))[1] for log_ratio in LOG_RATIOS.tolist()]
    best = int(torch.tensor(coarse).argmax())
    found = minimize_scalar(
        lambda log_ratio: -noise_and_evidence(math.exp(log_ratio))[1],
        bounds=(
            float(LOG_RATIOS[max(best - 1, 0)]),
            float(LOG_RATIOS[min(best + 1, len(LOG_RATIOS) - 1)]),
        ),
        method="bounded",
    )
    ratio = math.exp(float(found.x))
    noise, evidence = noise_and_evidence(ratio)
    shrunk = 1 + ratio * values
    residuals = vectors @ ((vectors.mT @ targets) / shrunk[:, None])  # Y − μ = (I + r K)⁻¹ Y
    variances = noise * (1 - vectors.square() @ (1 / shrunk))
    spread = residuals.square().sum(1) + outputs * variances
    return KernelFit(
        log_evidence=evidence,
        shares=-0.5 * outputs * math.log(2 * math.pi * noise) - spread / (2 * noise),
        ratio=ratio / size,
        noise=noise,
        weights=ratio / size * residuals,
        vectors=vectors,
        shrunk=shrunk,
    )
