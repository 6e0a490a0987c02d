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
    Directions of all blocks lie in one row, (directions,), so that a step is a few operations
    whatever the number of blocks.
    """

    @torch.no_grad()
    def __init__(self, evidence: LaplaceEvidence, fit: LaplaceFit) -> None:
        self.evidence, self.fit = evidence, fit
        scale = evidence.scale(fit).detach()
        parameters = dict(evidence.network.named_parameters())
        curvature, squares = [], []
        for name, spectrum in fit.spectra.items():
            if not isinstance(spectrum, Spectrum):
                raise CallerError("a joint curvature has no blocks of single parameters; use kfac")
            curvature.append(scale * spectrum.eigenvalues())
            squares.append(squares_along(spectrum, parameters[name].detach()))
        counts = torch.tensor([len(each) for each in curvature], device=scale.device)
        self._counts = counts
        self._block = torch.arange(len(counts), device=scale.device).repeat_interleave(counts)
        self._curvature = torch.cat(curvature)
        self._start = self._precisions().index_select(0, self._block)
        self._before = self._curvature + self._start
        self._pull = torch.cat(squares) * self._before

    def loss(self) -> Tensor:
        """The part of −log Z that depends on precisions, in nats; its slope is written out."""
        precisions = self._precisions()
        value, slope = self._value_and_slope(precisions.detach())
        return value + ((precisions - precisions.detach()) * slope).sum()

    def _value_and_slope(self, precisions: Tensor) -> tuple[Tensor, Tensor]:
        """−log Z, and its derivative by δ of each block: with a = w² (h + δ₀)/(h + δ),

        ½ Σ [ (a (h + δ₀) + 1)/(h + δ) − 1/δ ]
        """
        now = precisions.index_select(0, self._block)
        sharp = self._curvature + now
        pull = self._pull / sharp
        lost = (pull * (now - self._start)).sum() + sharp.log().sum()
        each = pull.mul_(self._before).add_(1).div_(sharp)
        slope = torch.zeros_like(precisions).index_add_(0, self._block, each)
        value = lost - (self._counts * precisions.log()).sum()
        return value / 2, (slope - self._counts / precisions) / 2

    def _precisions(self) -> Tensor:
        """δ of every block, in the order of the fit."""
        found = self.evidence.precisions(self.fit)
        return torch.stack([found[name] for name in self.fit.spectra])
