"""Steps on precisions that foresee how the weights will follow.

The evidence at fixed weights has its best precision where δ = γ/‖θ‖². Weights that the data does
not need shrink when δ grows, δ grows again, and a pathway takes a hundred turns to be gone: with a
least-squares solution of c/h (c < 1) in directions of curvature h, each turn multiplies δ by 1/c.
Near a mode θ of precision δ₀ the loss is quadratic, and the mode of another precision is known: in
an eigenvector of the block, with w the weight along it,

    w(δ) = w (h + δ₀)/(h + δ)

    −log Z(δ) = ½ Σ [ w² (h + δ₀)(δ − δ₀)/(h + δ) + log(h + δ) − log δ ] + constant

where the first term is what prior and loss lose together on the way. At δ = δ₀ value and slope are
those of the evidence at fixed weights, so that both have the same fixed points; this one gets there
in a few turns (and is exact for a linear model with Gaussian noise). Directions without curvature
add a bounded amount, w² δ₀ (1 − δ₀/δ)/2, and do no harm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isotropy.checks import CallerError
from isotropy.curvature.kronecker import Spectrum
from isotropy.curvature.thin_spectra import squares_along
from isotropy.evidence.laplace import LaplaceEvidence, LaplaceFit


class MovingMode:
    """−log Z as a function of the prior's precisions, from one pass over the data with vectors.

    Constants aside: `loss()` is zero in the first term where the precisions are those of the fit.
    """

    @torch.no_grad()
    def __init__(self, evidence: LaplaceEvidence, fit: LaplaceFit) -> None:
        self.evidence, self.fit = evidence, fit
        self._start = {n: d.detach().clone() for n, d in evidence.precisions(fit).items()}
        scale = evidence.scale(fit).detach()
        parameters = dict(evidence.network.named_parameters())
        self._curvature: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}
        for name, spectrum in fit.spectra.items():
            if not isinstance(spectrum, Spectrum):
                raise CallerError("a joint curvature has no blocks of single parameters; use kfac")
            self._curvature[name] = scale * spectrum.eigenvalues()
            self._squares[name] = squares_along(spectrum, parameters[name].detach())

    def loss(self) -> Tensor:
        """The part of −log Z that depends on precisions, in nats."""
        precisions = self.evidence.precisions(self.fit)
        total = torch.zeros((), dtype=torch.float64, device=self.fit.statistic.device)
        for name, curvature in self._curvature.items():
            start, now = self._start[name], precisions[name]
            sharp = curvature + now
            lost = self._squares[name] * ((curvature + start) / sharp)
            total = total + (now - start) * lost.sum() + sharp.log().sum()
            total = total - len(curvature) * now.log()
        return total / 2
