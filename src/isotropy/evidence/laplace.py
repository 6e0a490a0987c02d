"""The differentiable Laplace evidence of an averaged network, in two passes over the data.

    log Z ≈ log p(y | f̂) − ½ [ Σ_l δ_l ‖θ_l‖² + log|H + P| − log|P| ]       P = diag(δ)

(Immer et al. 2022, Eq. 9, with the prior inside the determinant, which the paper's print omits.)
H is block diagonal, one block per parameter tensor; see `curvature`.

The value needs one pass without a graph (`fit`). Its gradient in whatever the inputs depend on,
the augmentation's ranges above all, needs a second pass over all or some batches (`gradient`),
by the vector–Jacobian scheme of Section 4.3:

    ∂ log|H + P| = ⟨ V, Σ_batches ∂ factors(batch) ⟩ ,   V = ∂ log|H + P| / ∂ factors  (pass one)

so memory is set by the batch and never by the number of examples. With the same noise in both
passes this is exactly the gradient of the value; with fresh noise it is unbiased given V.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kronecker import DenseRoots, Factors, Roots, Spectrum, all_spectra
from isotropy.evidence.priors import GaussianPrior
from isotropy.likelihoods import Likelihood

Batch = tuple[Tensor, Tensor]
"""Orbit rows (batch·samples, …), samples fastest, and targets (batch, …)."""


class NotFiniteError(RuntimeError):
    """A loss or an evidence became NaN or infinite; the message says where and what to try."""


@dataclass(frozen=True)
class LaplaceFit:
    """What one pass over the data leaves behind: all the evidence depends on but δ and the noise.

    statistic: the likelihood's, summed over `count` examples; spectra by parameter name.
    """

    spectra: dict[str, Spectrum]
    squared_norms: dict[str, Tensor]
    sizes: dict[str, int]
    statistic: Tensor
    count: int


class LaplaceEvidence:
    """Evidence of `network` under a likelihood and a prior, outputs averaged over `samples`."""

    curvature_name = "kfac-ggn"

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        prior: GaussianPrior,
        samples: int,
        kfac: KFAC | None = None,
    ) -> None:
        self.network = network
        self.likelihood = likelihood
        self.prior = prior
        self.samples = samples
        self.kfac = kfac or KFAC(network)

    def fit(self, batches: Iterable[Batch]) -> LaplaceFit:
        """Pass one: factors and likelihood statistic over all batches, then eigenvalues."""
        factors: dict[str, Factors] = {}
        statistics: list[Tensor] = []
        count = 0
        for rows, targets in batches:
            found = self.kfac.batch(rows.detach(), self.samples, self.likelihood)
            for name, block in found.factors().items():
                factors[name] = factors[name] + block if name in factors else block  # type: ignore[operator]
            self.likelihood.check_targets(targets, found.outputs)
            statistics.append(self.likelihood.statistic(found.outputs, targets).double())
            count += len(targets)
        if not count:
            raise CallerError("evidence: expected at least one batch of data, got none")
        statistic = torch.stack(statistics).sum()
        for name, block in factors.items():
            if not all(bool(torch.isfinite(t).all()) for t in block.tensors()):
                raise NotFiniteError(
                    f"the curvature of {name!r} is not finite: the network's outputs or their "
                    "derivatives overflow; lower the learning rate or rescale the inputs"
                )
        parameters = dict(self.network.named_parameters())
        return LaplaceFit(
            spectra=all_spectra(factors, count),
            squared_norms={
                name: parameters[name].detach().double().square().sum() for name in factors
            },
            sizes={name: parameters[name].numel() for name in factors},
            statistic=statistic.detach(),
            count=count,
        )

    def value(self, fit: LaplaceFit) -> Tensor:
        """log Z in nats, summed over examples; differentiable in the precisions and the noise."""
        precisions = self.prior.precisions()
        scale = self._scale(fit)
        complexity = torch.zeros((), dtype=torch.float64, device=fit.statistic.device)
        for name, spectrum in fit.spectra.items():
            precision = precisions[name]
            complexity = (
                complexity
                + precision * fit.squared_norms[name]
                + spectrum.log_determinant(scale, precision)
                - fit.sizes[name] * precision.log()
            )
        return self.likelihood.log_likelihood(fit.statistic, fit.count) - complexity / 2

    def gradient(
        self, fit: LaplaceFit, batches: Iterable[Batch], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Pass two: the gradient of −log Z by `inputs`, on which the batches' rows depend.

        Some of the data suffices: the sum over the batches given is scaled up to all examples,
        an unbiased estimate when they are drawn uniformly.
        """
        with torch.no_grad():
            precisions = self.prior.precisions()
            scale = self._scale(fit)
            pullbacks = {
                name: [v.to(self._dtype(name)) for v in spectrum.pullback(scale, precisions[name])]
                for name, spectrum in fit.spectra.items()
            }
        total = [torch.zeros_like(tensor) for tensor in inputs]
        seen = 0
        for rows, targets in batches:
            found = self.kfac.batch(rows, self.samples, self.likelihood, create_graph=True)
            statistic = self.likelihood.statistic(found.outputs, targets)
            outputs = [-self.likelihood.log_likelihood(statistic, len(targets))]
            cotangents = [torch.ones_like(outputs[0])]
            total_pullbacks = _joined(found.roots, pullbacks)
            for name, parts in total_pullbacks.items():
                for tensor, pullback in zip(found.roots[name].tensors(), parts, strict=True):
                    if tensor.requires_grad:
                        outputs.append(tensor)
                        cotangents.append(tensor.detach() @ pullback)
            part = torch.autograd.grad(
                outputs, inputs, cotangents, allow_unused=True, materialize_grads=True
            )
            total = [sum_ + new for sum_, new in zip(total, part, strict=True)]
            seen += len(targets)
        if not seen:
            raise CallerError("evidence gradient: expected at least one batch of data, got none")
        return [tensor * (fit.count / seen) for tensor in total]

    def effective_parameters(self, fit: LaplaceFit) -> dict[str, float]:
        """γ per parameter tensor: how many of its parameters the data determines."""
        precisions = self.prior.precisions()
        scale = self._scale(fit)
        return {
            name: float(spectrum.effective_parameters(scale, precisions[name]).detach())
            for name, spectrum in fit.spectra.items()
        }

    def _scale(self, fit: LaplaceFit) -> Tensor:
        return self.likelihood.curvature_scale().to(fit.statistic)

    def _dtype(self, name: str) -> torch.dtype:
        return self.network.get_parameter(name).dtype


def _joined(roots: dict[str, Roots], pullbacks: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    """Pullbacks by parameter, those of a bias added to its weight's where both share a root."""
    joined = {name: list(parts) for name, parts in pullbacks.items()}
    for name, root in roots.items():
        if isinstance(root, DenseRoots) and root.output_of in joined:
            (of_bias,) = joined.pop(name)
            of_inputs, of_outputs = joined[root.output_of]
            joined[root.output_of] = [of_inputs, of_outputs + of_bias]
    return joined
