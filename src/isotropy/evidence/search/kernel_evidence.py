"""How well a Gaussian process predicts each example from all others, in closed form.

Targets Y (examples, outputs), whose columns have mean zero, are modelled as independent draws of

    y = f + ε,     f ~ N(0, s K),     ε ~ N(0, σ² I)

With K = U diag(λ) Uᵀ, the ratio r = s/σ², d_i = 1 + r λ_i and A = (I + r K)⁻¹ = U diag(1/d) Uᵀ, an
example that is left out is predicted with an error and a variance that follow from all examples,

    y_n − μ_₋n = (A Y)_n / A_nn          v_₋n = σ² / A_nn

so that the leave-one-out predictive density, at the best noise, has one number left to be found:

    σ²(r) = (1/ND) Σ_n ‖(A Y)_n‖² / A_nn
    L(r)  = Σ_n log N(y_n; μ_₋n, v_₋n I) = −½ ND (1 + log 2πσ²(r)) + ½ D Σ_n log A_nn

At r = 0 this is the log likelihood of a constant. It is the criterion by which amounts are
compared. The evidence log Z is kept beside it, at its own best r and σ²:

    σ²(r) = (1/ND) Σ_i ‖u_iᵀ Y‖² / d_i       log Z(r) = −½ ND (1 + log 2π σ²(r)) − ½ D Σ_i log d_i

log Z is what examples one after the other are predicted with, each from those before it: a mean of
leave-p-out densities over all p. Most of these are about few examples, where averaging over too
much still pays, and on some hundred examples log Z prefers amounts that predict worse.

    Rasmussen, Williams (2006), "Gaussian processes for machine learning", 5.4.1 and 5.4.2
    Fong, Holmes (2020), "On the marginal likelihood and cross-validation"

Oracles: refitting without each example, scikit-learn and scipy, in
tests/evidence/test_kernel_evidence.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from isotropy.curvature.eigen import eigenpairs
from isotropy.evidence.laplace import NotFiniteError

CONSTANT = 1e-20
"""Mean square of centred targets up to which they do not vary but by rounding."""
LOG_RATIOS = torch.linspace(-12.0, 16.0, 29, dtype=torch.float64)
"""Logarithms of r relative to the mean of K's diagonal, among which the best is bracketed."""


@dataclass(frozen=True, eq=False)
class KernelFit:
    """A Gaussian process at the scale and noise with which examples left out are predicted best.

    log_predictive: L, in nats over all examples and outputs
    densities: (examples,) the log density of each, left out; L is their sum
    log_evidence: log Z at its own best scale and noise, in nats over all examples and outputs
    ratio, noise: r and σ²
    weights: (examples, outputs) α with μ(x) = k(x, examples) α, α = r (I + r K)⁻¹ Y
    vectors, shrunk: U and d
    """

    log_predictive: float
    densities: Tensor
    log_evidence: float
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
        return float(_log_normal(squares, variance, targets.shape[1]).mean())


def constant_log_predictive(targets: Tensor) -> float:
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
    if math.isinf(constant_log_predictive(targets)):
        raise NotFiniteError("the targets are all the same: there is nothing to learn")
    values, vectors = eigenpairs((kernel + kernel.mT) / (2 * size), what="the kernel")
    spectrum = _Spectrum(values.clamp_min(0), vectors, vectors.mT @ targets, least_noise)
    ratio = _best_ratio(lambda ratios: spectrum.left_out(ratios)[1].sum(1), values)
    noise, densities = (each[0] for each in spectrum.left_out(values.new_tensor([ratio])))
    at_most = values.new_tensor([_best_ratio(spectrum.log_evidence, values)])
    shrunk = 1 + ratio * spectrum.values
    residuals = vectors @ (spectrum.projected / shrunk[:, None])  # A Y
    return KernelFit(
        log_predictive=float(densities.sum()),
        densities=densities,
        log_evidence=float(spectrum.log_evidence(at_most)),
        ratio=ratio / size,
        noise=float(noise),
        weights=ratio / size * residuals,
        vectors=vectors,
        shrunk=shrunk,
    )


@dataclass(frozen=True, eq=False)
class _Spectrum:
    """λ and U of a kernel, and projected = Uᵀ Y (examples, outputs)."""

    values: Tensor
    vectors: Tensor
    projected: Tensor
    least_noise: float

    def left_out(self, ratios: Tensor) -> tuple[Tensor, Tensor]:
        """σ² (ratios,) and log densities (ratios, examples) of examples that are left out."""
        outputs = self.projected.shape[1]
        shrunk = 1 + ratios * self.values[:, None]  # (examples, ratios)
        diagonal = self.vectors.square() @ (1 / shrunk)  # A_nn
        columns = (self.projected[:, None] / shrunk[:, :, None]).flatten(1)
        residuals = (self.vectors @ columns).unflatten(1, (len(ratios), outputs))
        scaled = residuals.square().sum(2) / diagonal
        noise = (scaled.mean(0) / outputs).clamp_min(self.least_noise)
        variances = noise / diagonal
        return noise, _log_normal(scaled / diagonal, variances, outputs).mT

    def log_evidence(self, ratios: Tensor) -> Tensor:
        """log Z (ratios,) at the best noise."""
        outputs = self.projected.shape[1]
        count = self.projected.numel()
        shrunk = 1 + ratios * self.values[:, None]
        squares = (self.projected.square().sum(1)[:, None] / shrunk).sum(0)
        noise = (squares / count).clamp_min(self.least_noise)
        determinants = shrunk.log().sum(0)
        return -0.5 * (
            count * (2 * math.pi * noise).log() + squares / noise + outputs * determinants
        )


def _log_normal(squares: Tensor, variance: Tensor, outputs: int) -> Tensor:
    """Log density of `outputs` independent normal errors with this sum of squares."""
    return -0.5 * (outputs * (2 * math.pi * variance).log() + squares / variance)


def _best_ratio(function: Callable[[Tensor], Tensor], like: Tensor) -> float:
    """Where a function of r is largest: the best of `LOG_RATIOS`, refined between neighbours."""
    best = int(function(LOG_RATIOS.exp().to(like)).argmax())
    found = minimize_scalar(
        lambda log_ratio: -float(function(like.new_tensor([math.exp(log_ratio)]))),
        bounds=(
            float(LOG_RATIOS[max(best - 1, 0)]),
            float(LOG_RATIOS[min(best + 1, len(LOG_RATIOS) - 1)]),
        ),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return math.exp(float(found.x))
