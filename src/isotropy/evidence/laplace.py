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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.batches import AnyFactors, AnyRoots, AnySpectrum, Curvature, spectra_of
from isotropy.curvature.copies import Copies
from isotropy.curvature.joint import JointSpectrum
from isotropy.curvature.kfac import KFAC
from isotropy.curvature.kronecker import DenseRoots
from isotropy.evidence.priors import GaussianPrior
from isotropy.likelihoods import Likelihood


class Batch(NamedTuple):
    """Orbit rows (batch·copies, …), copies fastest, targets (batch, …), and how to average.

    generator: where the Monte-Carlo Fisher draws its labels.
    """

    rows: Tensor
    targets: Tensor
    copies: Copies
    generator: torch.Generator | None = None


class NotFiniteError(RuntimeError):
    """A loss or an evidence became NaN or infinite; the message says where and what to try."""


@dataclass(frozen=True)
class LaplaceFit:
    """What one pass over the data leaves behind: all the evidence depends on but δ and the noise.

    statistic: the likelihood's, summed over `count` examples; spectra by block, which is a
    parameter's name or, for joint curvature, one for all; norms and sizes by parameter name.
    """

    spectra: dict[str, AnySpectrum]
    squared_norms: dict[str, Tensor]
    sizes: dict[str, int]
    statistic: Tensor
    count: int


class LaplaceEvidence:
    """Evidence of `network` under a likelihood and a prior, by the given curvature (KFAC)."""

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        prior: GaussianPrior,
        curvature: Curvature | None = None,
    ) -> None:
        self.network = network
        self.likelihood = likelihood
        self.prior = prior
        self.curvature: Curvature = curvature or KFAC(network)

    @property
    def curvature_name(self) -> str:
        """As in records: `kfac-ggn`, …"""
        return self.curvature.kind.name

    def fit(self, batches: Iterable[Batch]) -> LaplaceFit:
        """Pass one: factors and likelihood statistic over all batches, then eigenvalues."""
        factors: dict[str, AnyFactors] = {}
        statistics: list[Tensor] = []
        count = 0
        for rows, targets, copies, generator in batches:
            fixed = Copies(copies.count, _constant(copies.weights))
            found = self.curvature.batch(
                rows.detach(), fixed, self.likelihood, targets, generator=generator
            )
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
        names = self.curvature.parameter_names
        return LaplaceFit(
            spectra=spectra_of(factors, count),
            squared_norms={
                name: parameters[name].detach().double().square().sum() for name in names
            },
            sizes={name: parameters[name].numel() for name in names},
            statistic=statistic.detach(),
            count=count,
        )

    def value(self, fit: LaplaceFit) -> Tensor:
        """log Z in nats, summed over examples; differentiable in the precisions and the noise."""
        precisions = self.precisions(fit)
        scale = self.scale(fit)
        complexity = torch.zeros((), dtype=torch.float64, device=fit.statistic.device)
        for name in fit.sizes:
            precision = precisions[name]
            complexity = (
                complexity + precision * fit.squared_norms[name] - fit.sizes[name] * precision.log()
            )
        for block, spectrum in fit.spectra.items():
            precision = block_precision(spectrum, block, precisions)
            complexity = complexity + spectrum.log_determinant(scale, precision)
        return self.likelihood.log_likelihood(fit.statistic, fit.count) - complexity / 2

    def gradient(
        self, fit: LaplaceFit, batches: Iterable[Batch], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Pass two: the gradient of −log Z by `inputs`, on which the batches' rows depend.

        Some of the data suffices: the sum over the batches given is scaled up to all examples,
        an unbiased estimate when they are drawn uniformly.
        """
        with torch.no_grad():
            precisions = self.precisions(fit)
            scale = self.scale(fit)
            dtype = self.network.get_parameter(self.curvature.parameter_names[0]).dtype
            pullbacks = {
                block: [
                    v.to(dtype)
                    for v in spectrum.pullback(scale, block_precision(spectrum, block, precisions))
                ]
                for block, spectrum in fit.spectra.items()
            }
        total = [torch.zeros_like(tensor) for tensor in inputs]
        seen = 0
        for rows, targets, copies, generator in batches:
            found = self.curvature.batch(
                rows, copies, self.likelihood, targets, generator=generator, create_graph=True
            )
            statistic = self.likelihood.statistic(found.outputs, targets)
            outputs = [-self.likelihood.log_likelihood(statistic, len(targets))]
            cotangents = [torch.ones_like(outputs[0])]
            total_pullbacks = _joined(found.roots, pullbacks)
            for name, parts in total_pullbacks.items():
                for tensor, pullback in zip(found.roots[name].tensors(), parts, strict=True):
                    if tensor.requires_grad:
                        outputs.append(tensor)
                        cotangents.append(_times(tensor.detach(), pullback))
            part = torch.autograd.grad(
                outputs, inputs, cotangents, allow_unused=True, materialize_grads=True
            )
            total = [sum_ + new for sum_, new in zip(total, part, strict=True)]
            seen += len(targets)
        if not seen:
            raise CallerError("evidence gradient: expected at least one batch of data, got none")
        return [tensor * (fit.count / seen) for tensor in total]

    def effective_parameters(self, fit: LaplaceFit) -> dict[str, float]:
        """γ per block: how many of its parameters the data determines."""
        precisions = self.precisions(fit)
        scale = self.scale(fit)
        return {
            block: float(
                spectrum.effective_parameters(
                    scale, block_precision(spectrum, block, precisions)
                ).detach()
            )
            for block, spectrum in fit.spectra.items()
        }

    def precisions(self, fit: LaplaceFit) -> dict[str, Tensor]:
        """δ by parameter name; differentiable in the prior's."""
        return self.prior.precisions_at(fit.squared_norms, fit.sizes)

    def scale(self, fit: LaplaceFit) -> Tensor:
        """The factor between the blocks and the curvature, from the likelihood's noise."""
        return self.curvature.kind.scale(self.likelihood).to(fit.statistic)


def block_precision(spectrum: AnySpectrum, block: str, precisions: dict[str, Tensor]) -> Tensor:
    """The block's prior precision: one number, or one a parameter for a joint block."""
    if isinstance(spectrum, JointSpectrum):
        return spectrum.repeated(precisions)
    return precisions[block]


def _times(root: Tensor, pullback: Tensor) -> Tensor:
    """X V, where a diagonal V comes as a vector."""
    return root * pullback if pullback.ndim == 1 else root @ pullback


def _constant(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.detach()


def _joined(
    roots: Mapping[str, AnyRoots], pullbacks: dict[str, list[Tensor]]
) -> dict[str, list[Tensor]]:
    """Pullbacks by parameter, those of a bias added to its weight's where both share a root."""
    joined = {name: list(parts) for name, parts in pullbacks.items()}
    for name, root in roots.items():
        if isinstance(root, DenseRoots) and root.output_of in joined:
            (of_bias,) = joined.pop(name)
            of_inputs, of_outputs = joined[root.output_of]
            joined[root.output_of] = [of_inputs, of_outputs + of_bias]
    return joined
