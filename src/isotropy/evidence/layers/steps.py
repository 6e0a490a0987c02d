"""Steps of relaxed training: precisions that foresee the weights, weights of any precision.

The evidence at fixed weights has its best precision where δ = γ/‖θ‖². Weights that the data does
not need shrink when δ grows, δ grows again, and a pathway takes a hundred turns to be gone: with a
least-squares solution of c/h (c < 1) in directions of curvature h, each turn multiplies δ by 1/c.
Near a mode θ of precision δ₀ the loss is quadratic, and the mode of another precision is known
(`MovingMode`): in an eigenvector of the block, with w the weight along it,

    w(δ) = w (h + δ₀)/(h + δ)

    −log Z(δ) = ½ Σ [ w² (h + δ₀)(δ − δ₀)/(h + δ) + log(h + δ) − log δ ] + constant

where the first term is what prior and loss lose together on the way. At δ = δ₀ value and slope are
those of the evidence at fixed weights, so that both have the same fixed points; this one gets there
in a few turns (and is exact for a linear model with Gaussian noise). Directions without curvature
add a bounded amount, w² δ₀ (1 − δ₀/δ)/2, and do no harm.

Weights then meet precisions without bound. `ProximalAdam` is Adam on the mean loss alone, with
moments m and v of its gradient, and takes the priors in by a proximal step:

    θ ← (θ − r m̂/(√v̂ + ε)) / (1 + r d/(√v̂ + ε))            d = δ/N, r the rate

The denominator is the exact minimiser of the penalty ½ d θ² in the metric that Adam gives to the
step. At rest  m̂ = −d θ,  the same point as with the penalty in the gradient; but there precisions
above 2/(r d) make steps that overshoot, and below it they rob the loss of its share in v. Here no
precision is too high: as δ goes to infinity θ goes to zero and stays finite on the way. Rates, step
counts and precisions are tensors on the parameters' device, so that a step can be part of a CUDA
graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.blocks import Spectrum, squares_along
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


EPSILON = 1e-8


class ProximalAdam:
    """The steps of one list of parameters.

    decays (parameters,): d = δ/N of each, written by whoever learns them
    rate: a tensor, written by whoever has the schedule
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.betas = betas
        device = self.parameters[0].device
        self.rate = torch.tensor(rate, device=device, dtype=torch.float64)
        self.param_groups = [{"params": self.parameters, "lr": self.rate}]
        self.steps = torch.zeros((), device=device, dtype=torch.float64)
        self.decays = torch.zeros(len(self.parameters), device=device)
        self.means = [torch.zeros_like(each) for each in self.parameters]
        self.squares = [torch.zeros_like(each) for each in self.parameters]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients."""
        for each in self.parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients of the mean loss; a parameter without one only decays."""
        first, second = self.betas
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters
        ]
        self.steps += 1
        torch._foreach_lerp_(self.means, gradients, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - second)
        towards_mean = 1 - first**self.steps
        towards_square = 1 - second**self.steps
        # r / (√v̂ + ε), the length of a step for each entry
        lengths = list(torch._foreach_div(self.squares, towards_square))
        torch._foreach_sqrt_(lengths)
        torch._foreach_add_(lengths, EPSILON)
        torch._foreach_reciprocal_(lengths)
        torch._foreach_mul_(lengths, self.rate)
        moves = torch._foreach_mul(lengths, self.means)
        torch._foreach_div_(moves, towards_mean)
        torch._foreach_sub_(self.parameters, moves)
        torch._foreach_mul_(lengths, list(self.decays.unbind()))
        torch._foreach_add_(lengths, 1.0)
        torch._foreach_div_(self.parameters, lengths)

    def state_dict(self) -> dict[str, Any]:
        """Moments and number of steps, in the form of torch's optimisers.

        Rate and decays are not in it: whoever writes them does so again.
        """
        each = enumerate(zip(self.means, self.squares, strict=True))
        state = {i: {"mean": m, "square": s, "steps": self.steps} for i, (m, s) in each}
        return {"state": state, "param_groups": []}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave, copied in place: a CUDA graph finds it where it was."""
        for index, own in state["state"].items():
            self.means[index].copy_(own["mean"])
            self.squares[index].copy_(own["square"])
            self.steps.copy_(own["steps"])

    def state(self) -> Iterator[Tensor]:
        """What a step reads and writes beside parameters and gradients."""
        yield from (self.rate, self.steps, self.decays, *self.means, *self.squares)
