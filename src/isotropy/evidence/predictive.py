"""The posterior predictive of an averaged network, linearised in its weights.

    f(x) ~ N( f̂(x), J(x) Σ J(x)ᵀ ) ,    Σ = (s H + diag δ)⁻¹ ,    J = ∂f̂(x)/∂θ

H, s and δ are those of a Laplace evidence: the curvature's blocks, the likelihood's scale and the
prior's precisions (Immer et al. 2022, Figure 1). The Gauss–Newton curvature is that of the network
made linear in its weights, so its posterior is read through that network, and not through the
network at sampled weights (Immer, Korzepa & Bauer 2021).

No block is inverted. Each has a root R with R Rᵀ = Σ, and J Σ Jᵀ = (J R)(J R)ᵀ:

    Kronecker    J R = (Uᵀ J W) / √(s λ ⊗ μ + δ)     J as (groups, out, in), the weight's own order
    dense        J R = J U / √(s λ + δ)
    diagonal     J R = J / √(s h + δ)
    joint        J R = J L⁻ᵀ                           s H + diag δ = L Lᵀ

Grouped convolutions have their groups slowest in the weight's own order, plain and transposed ones
alike, so that (groups, out, in) is a view of the flat weight. Parameters without a block (frozen
ones, the layers below `last-layer`) are constants. Roots and products are in float64; what is
returned has the dtype of the network's outputs. Oracle: Σ inverted densely, in
tests/evidence/test_predictive.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from isotropy.checks import CallerError, check_at_least, check_choice, shape_text
from isotropy.curvature.batches import AnySpectrum
from isotropy.curvature.copies import Copies
from isotropy.curvature.jacobians import averaged_outputs, example_gradients
from isotropy.curvature.joint import JointSpectrum
from isotropy.curvature.kronecker import DenseSpectrum, DiagonalSpectrum, KroneckerSpectrum
from isotropy.evidence.laplace import LaplaceEvidence, LaplaceFit, block_precision
from isotropy.likelihoods import Categorical, Gaussian
from isotropy.networks.invariant_model import InvariantModel

Method = Literal["probit", "monte-carlo", "plug-in"]
METHODS: tuple[Method, ...] = ("probit", "monte-carlo", "plug-in")

CHUNK = 2**23
"""Numbers held at once in Jacobians, and in drawn outputs; one example at least."""

_Root = Callable[[Tensor], Tensor]


class Predictive:
    """What `model` predicts, and how surely, under the posterior that `fit` describes.

    evidence, fit: a Laplace evidence of the model's network and a pass over the training data
    model:         the averaged network, with the weights that the fit was made with

    >>> predictive = Predictive(evidence, evidence.fit(batches), model)
    >>> mean, covariance = predictive.outputs(inputs, generator=generator)
    >>> noise = model.noise(len(inputs), generator=generator)
    >>> probabilities = predictive.probabilities(inputs, noise)        # replayable

    Every method takes noise (batch, copies, numbers) from `model.noise` or draws it anew.

    Raises CallerError if evidence, fit and model do not belong together.
    """

    def __init__(self, evidence: LaplaceEvidence, fit: LaplaceFit, model: InvariantModel) -> None:
        _check_together(evidence, fit, model)
        self.model = model
        self.likelihood = evidence.likelihood
        self._names = tuple(fit.sizes)
        self._parameters = sum(fit.sizes.values())
        self._members: dict[str, tuple[str, ...]] = {}
        self._roots: dict[str, _Root] = {}
        with torch.no_grad():
            precisions, scale = evidence.precisions(fit), evidence.scale(fit)
            for block, spectrum in fit.spectra.items():
                own = spectrum.sizes if isinstance(spectrum, JointSpectrum) else (block,)
                self._members[block] = tuple(own)
                precision = block_precision(spectrum, block, precisions)
                self._roots[block] = covariance_root(spectrum, scale, precision)

    @torch.no_grad()
    def outputs(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean f̂ (batch, outputs) and covariance J Σ Jᵀ (batch, outputs, outputs) at inputs.

        Inputs (batch, …) are taken in chunks; one example's Jacobian, outputs × parameters, is
        the least that is held.
        """
        parts = self._chunks(inputs, self._noise(inputs, noise, generator), jacobians=True)
        pairs = [self._of_chunk(rows, copies) for rows, copies in parts]
        means, covariances = zip(*pairs, strict=True)
        return torch.cat(means), torch.cat(covariances)

    @torch.no_grad()
    def means(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """f̂ (batch, outputs) alone, at the cost of a forward pass."""
        parts = self._chunks(inputs, self._noise(inputs, noise, generator), jacobians=False)
        return torch.cat([averaged_outputs(self.model.network, *part) for part in parts])

    @torch.no_grad()
    def probabilities(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        method: Method = "probit",
        *,
        draws: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Class probabilities E[softmax(f)], (batch, classes), for a categorical likelihood.

        method  probit       in closed form from mean and covariance (`probit`)
                monte-carlo  the mean over `draws` draws of f (`monte_carlo`)
                plug-in      softmax(f̂), without the posterior
        """
        check_choice(method, METHODS, what="method")
        if not isinstance(self.likelihood, Categorical):
            raise CallerError(
                f"probabilities: expected a categorical likelihood, got {self.likelihood.name}; "
                "for real-valued targets use observations()"
            )
        if method == "plug-in":
            return self.means(inputs, noise, generator=generator).softmax(-1)
        mean, covariance = self.outputs(inputs, noise, generator=generator)
        if method == "probit":
            return probit(mean, covariance)
        return monte_carlo(mean, covariance, draws=draws, generator=generator)

    @torch.no_grad()
    def observations(
        self,
        inputs: Tensor,
        noise: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of real-valued targets, each (batch, outputs).

        variance = diag(J Σ Jᵀ) + σ²: what the weights leave open, and the noise of an observation.
        """
        if not isinstance(self.likelihood, Gaussian):
            raise CallerError(
                f"observations: expected a gaussian likelihood, got {self.likelihood.name}; for "
                "classes use probabilities()"
            )
        mean, covariance = self.outputs(inputs, noise, generator=generator)
        return mean, covariance.diagonal(dim1=1, dim2=2) + self.likelihood.noise**2

    def _noise(
        self, inputs: Tensor, noise: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:
        if not len(inputs):
            raise CallerError(f"predictive: expected at least one input, got {shape_text(inputs)}")
        if noise is None:
            return self.model.noise(len(inputs), generator=generator)
        if len(inputs) != len(noise):
            raise CallerError(
                f"predictive: expected noise for each input, got inputs {shape_text(inputs)} and "
                f"noise {shape_text(noise)}; draw it with model.noise(len(inputs))"
            )
        return noise

    def _chunks(
        self, inputs: Tensor, noise: Tensor, *, jacobians: bool
    ) -> Iterator[tuple[Tensor, Copies]]:
        """Orbit rows (chunk·copies, …) and how they are averaged, chunk by chunk."""
        copies = Copies(1)
        moved = not self.model.augmentation.is_identity  # else all copies are the same
        if moved:
            given = self.model.augmentation.copies(noise.shape[1])
            copies = Copies(given.count, None if given.weights is None else given.weights.detach())
        size = max(1, CHUNK // (copies.count * inputs[0].numel()))
        if jacobians:
            first = self.model.orbit(inputs[:1], noise[:1]) if moved else inputs[:1]
            outputs = averaged_outputs(self.model.network, first, copies).shape[1]
            each = outputs * (self._parameters + copies.count * inputs[0].numel())
            size = max(1, CHUNK // each)
        for part, own in zip(inputs.split(size), noise.split(size), strict=True):
            yield (self.model.orbit(part, own) if moved else part), copies

    def _of_chunk(self, rows: Tensor, copies: Copies) -> tuple[Tensor, Tensor]:
        mean = averaged_outputs(self.model.network, rows, copies)
        batch, count = mean.shape
        identity = torch.eye(count, dtype=mean.dtype, device=mean.device)
        units = identity[:, None].expand(count, batch, count)
        found = example_gradients(self.model.network, self._names, rows, copies, units)
        covariance = torch.zeros(batch, count, count, dtype=torch.float64, device=mean.device)
        for block, root in self._roots.items():
            jacobian = torch.cat([found.pop(name) for name in self._members[block]], 1).double()
            half = root(jacobian).unflatten(0, (batch, count))
            covariance += half @ half.mT
        return mean, covariance.to(mean.dtype)


def covariance_root(spectrum: AnySpectrum, scale: Tensor, precision: Tensor) -> _Root:
    """X ↦ X R for rows X (rows, parameters) of a block, where R Rᵀ = (scale·H + precision)⁻¹.

    precision: one number, or (parameters,) for a joint block. Everything in float64.
    """
    if isinstance(spectrum, JointSpectrum):
        factor = torch.linalg.cholesky(spectrum.posterior_precision(scale, precision))
        return lambda rows: torch.linalg.solve_triangular(factor, rows.mT, upper=False).mT
    spread = (scale * spectrum.eigenvalues() + precision).rsqrt()
    if isinstance(spectrum, KroneckerSpectrum):
        outer, inner = spectrum.output_vectors, spectrum.input_vectors
        shape = (max(len(outer), len(inner)), outer.shape[1], inner.shape[1])
        by_shape = spread.reshape(shape)

        def kronecker_root(rows: Tensor) -> Tensor:
            return ((outer.mT @ rows.unflatten(1, shape) @ inner) * by_shape).flatten(1)

        return kronecker_root
    if isinstance(spectrum, DenseSpectrum):
        vectors = spectrum.vectors
        return lambda rows: (rows @ vectors) * spread
    assert isinstance(spectrum, DiagonalSpectrum)
    return lambda rows: rows * spread


def probit(mean: Tensor, covariance: Tensor) -> Tensor:
    """E[softmax(f)] for f ~ N(mean, covariance), approximately: (batch, classes).

        1/p_c ∝ Σ_k exp( −(m_c − m_k) / √(1 + π v_ck / 8) ) ,   v_ck = Var(f_c − f_k)

    The probit approximation of a logistic–Gaussian integral (MacKay 1992) for every pair of
    classes (Lu, Ie & Sha 2020), normalised to sum to one. For two classes it is MacKay's own
    formula. Differences alone enter, so that uncertainty common to all outputs, which softmax does
    not see, has no effect; formulas in the variances without the covariances lack this. For more
    classes it is off by about 0.01 at unit variances, more at large ones; `monte_carlo` is not.
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    of_pairs = (variance[..., :, None] + variance[..., None, :] - 2 * covariance).clamp_min(0.0)
    between = mean[..., :, None] - mean[..., None, :]
    logits = -(-between / (1 + math.pi / 8 * of_pairs).sqrt()).logsumexp(-1)
    return logits.softmax(-1)


def monte_carlo(
    mean: Tensor, covariance: Tensor, *, draws: int = 1000, generator: torch.Generator | None = None
) -> Tensor:
    """E[softmax(f)] for f ~ N(mean, covariance) by `draws` draws: (batch, classes).

    f = mean + C^½ ε with the symmetric root, and the same ε for every example: each probability is
    an unbiased estimate, it varies smoothly from input to input, and chunks change nothing.
    """
    check_at_least(draws, 1, what="draws")
    values, vectors = torch.linalg.eigh(covariance.double())
    root = (vectors * values.clamp_min(0.0).sqrt()[..., None, :]) @ vectors.mT
    classes = mean.shape[-1]
    epsilon = torch.randn(
        (draws, classes), generator=generator, dtype=mean.dtype, device=mean.device
    )
    parts = []
    size = max(1, CHUNK // (draws * classes))
    for centre, spread in zip(mean.split(size), root.to(mean.dtype).split(size), strict=True):
        drawn = centre[:, None] + epsilon @ spread  # (chunk, draws, classes)
        parts.append(drawn.softmax(-1).mean(1))
    return torch.cat(parts)


def _check_together(evidence: LaplaceEvidence, fit: LaplaceFit, model: InvariantModel) -> None:
    if model.network is not evidence.network:
        raise CallerError(
            "predictive: expected the model of the evidence's own network, got another network; "
            "build the evidence from model.network"
        )
    names = set(evidence.curvature.parameter_names)
    if set(fit.sizes) != names:
        odd = min(set(fit.sizes) ^ names)
        raise CallerError(
            f"predictive: expected a fit by the curvature {evidence.curvature_name}, got one that "
            f"differs in the parameter {odd!r}; make it with evidence.fit"
        )
    for name, before in fit.squared_norms.items():
        now = evidence.network.get_parameter(name).detach().double().square().sum()
        if not torch.isclose(now, before.to(now), rtol=1e-6, atol=0.0):
            raise CallerError(
                f"predictive: expected the weights that the fit was made with, got others in "
                f"{name!r}; make the fit again with evidence.fit"
            )
