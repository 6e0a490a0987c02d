"""How pathways that the data does not need get to zero: precisions, weights, and a last comparison.

**Precisions foresee the weights** (`MovingMode`). The evidence at fixed weights has its best
precision where δ = γ/‖θ‖². Weights that the data does not need shrink when δ grows, δ grows again,
and a pathway takes a hundred turns to be gone: with a least-squares solution of c/h (c < 1) in
directions of curvature h, each turn multiplies δ by 1/c. Near a mode θ of precision δ₀ the loss is
quadratic, and the mode of another precision is known: in an eigenvector of the block, with w the
weight along it,

    w(δ) = w (h + δ₀)/(h + δ)

    −log Z(δ) = ½ Σ [ w² (h + δ₀)(δ − δ₀)/(h + δ) + log(h + δ) − log δ ] + constant

where the first term is what prior and loss lose together on the way. At δ = δ₀ value and slope are
those of the evidence at fixed weights, so that both have the same fixed points; this one gets there
in a few turns (and is exact for a linear model with Gaussian noise). Directions without curvature
add a bounded amount, w² δ₀ (1 − δ₀/δ)/2, and do no harm.

**Weights follow precisions without bound** (`ProximalAdam`). Adam on the mean loss alone, with
moments m and v of its gradient, takes the priors in by a proximal step:

    θ ← (θ − r m̂/(√v̂ + ε)) / (1 + r d/(√v̂ + ε))            d = δ/N, r the rate

The denominator is the exact minimiser of the penalty ½ d θ² in the metric that Adam gives to the
step. At rest  m̂ = −d θ,  the same point as with the penalty in the gradient; but there precisions
above 2/(r d) make steps that overshoot, and below it they rob the loss of its share in v. Here no
precision is too high: as δ goes to infinity θ goes to zero and stays finite on the way. Rates, step
counts and precisions are tensors on the parameters' device, so that a step can be part of a CUDA
graph.

**Pathways are switched off** (`switch_off`). Precisions that grow make a pathway small, never zero,
and of a product of two factors not even that: as both get small so does their curvature, and with
it what the evidence charges for them. Whether a pathway is worth its parameters is a comparison of
two models, with and without it. In the Laplace approximation with one block a tensor it costs

    c_p = ½ Σ_θ [ δ‖θ‖² + log|H + δ| − P log δ ]      nats, over its tensors θ of P numbers each

and the evidence without it is higher by

    N · (mean log p(y|x) without − with) + c_p

with all other weights as they are, less what the prior charges for the change of a bias: what the
pathway adds to each channel on average goes to the bias of another, where that has one. (Tipping
and Faul 2003 compare so for single weights of linear models.) Pathways are tried from the one that
contributes least. A symmetry is kept unless the data asks for more: only a pathway beside one with
as much symmetry or more can go. And the charge c_p is that of small changes: what takes away more
than `LOST` at once stays, however large its charge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.checks import CallerError
from isotropy.curvature.blocks import Spectrum
from isotropy.curvature.thin_spectra import squares_along
from isotropy.evidence.laplace import LaplaceEvidence, LaplaceFit, block_precision
from isotropy.evidence.layers.structure import (
    note_contributions,
    pathway_parameters,
    pathway_prefix,
    relaxed_layers,
    watch,
)
from isotropy.evidence.predictive import plain_scores
from isotropy.networks.pathways.pathway import Pathway
from isotropy.networks.pathways.relaxed_layer import symmetry_rank


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


OFF_PRECISION = 1e12
"""Prior precision of what is switched off."""
LOST = 0.05
"""Nats per example that the network may lose with a pathway, before it adapts."""

Names = tuple[str, str]
"""A layer and a kind of pathway in it."""


@torch.no_grad()
def volumes(evidence: LaplaceEvidence, fit: LaplaceFit) -> dict[str, float]:
    """½ [log|H + δ| − P log δ] of every parameter tensor, in nats: what is left to the posterior of
    the prior's volume. With ½ δ‖θ‖² of all that is what `evidence.value` takes off the log
    likelihood. Curvature is by blocks."""
    precisions, scale = evidence.precisions(fit), evidence.scale(fit)
    found = {}
    for name, spectrum in fit.spectra.items():
        precision = block_precision(spectrum, name, precisions)
        size = fit.sizes[name]
        found[name] = float(spectrum.log_determinant(scale, precision) - size * precision.log()) / 2
    return found


@torch.no_grad()
def switch_off(
    evidence: LaplaceEvidence,
    fit: LaplaceFit,
    inputs: Tensor,
    targets: Tensor,
    off: Collection[Names] = (),
) -> dict[Names, list[str]]:
    """Set to zero what the evidence is better without; the names of its parameters.

    inputs, targets: some of the examples the fit stands for, from which mean log likelihoods are
                     estimated
    off:             what is switched off already
    """
    network, precisions = evidence.network, evidence.precisions(fit)
    left = volumes(evidence, fit)
    count = fit.stands_for or fit.count
    note_contributions(network, inputs)
    layers = relaxed_layers(network)
    by_share = sorted(
        (share, name, kind)
        for name, layer in layers.items()
        for kind, share in (layer.contributions or {}).items()
        if (name, kind) not in off
    )
    before = plain_scores(network, evidence.likelihood, inputs, targets).log_likelihood
    found: dict[Names, list[str]] = {}
    for _, name, kind in by_share:
        members = layers[name].members()
        beside = [
            other
            for other in members
            if other != kind
            and (name, other) not in {*off, *found}
            and symmetry_rank(other) >= symmetry_rank(kind)
        ]
        if not beside:
            continue
        own, *theirs = (pathway_parameters(network, name, each) for each in (kind, *beside))
        whole = [*own, *(each for names in theirs for each in names)]
        charged = _penalty(network, whole, precisions)
        restore = _take_out(network, members[kind], [members[other] for other in beside], inputs)
        after = plain_scores(network, evidence.likelihood, inputs, targets).log_likelihood
        saved = charged - _penalty(network, whole, precisions)
        saved += sum(left[each] for each in own if each in left)
        if count * (after - before) + saved > 0 and before - after < LOST:
            before = after
            shaping = {f"{pathway_prefix(name, kind)}{each}" for each in members[kind].shaping}
            found[name, kind] = [each for each in own if each in left and each not in shaping]
        else:
            restore()
    return found


def _take_out(
    network: nn.Module, pathway: Pathway, others: Sequence[Pathway], inputs: Tensor
) -> Callable[[], None]:
    """Set a pathway to zero and give what it adds on average to another; how to undo it."""
    changed = [parameter for each in (pathway, *others) for parameter in each.parameters()]
    kept = [each.clone() for each in changed]
    means = _channel_means(network, pathway, inputs)
    pathway.zero_()
    for other in others:
        if other.absorb_(means):
            break

    def restore() -> None:
        for parameter, value in zip(changed, kept, strict=True):
            parameter.data.copy_(value)

    return restore


def _penalty(network: nn.Module, names: Sequence[str], precisions: Mapping[str, Tensor]) -> float:
    """½ Σ δ‖θ‖² over these parameters, in nats."""
    terms = [
        float(precisions[name] * network.get_parameter(name).double().square().sum())
        for name in names
        if name in precisions
    ]
    return sum(terms) / 2


def _channel_means(network: nn.Module, pathway: Pathway, inputs: Tensor) -> Tensor:
    """(C',): what a pathway adds to each channel, the mean over examples and pixels; (n,) of
    vectors."""
    sums: list[Tensor] = []
    counts: list[int] = []

    def add(_: Pathway, outputs: Tensor) -> None:
        sums.append(outputs.sum((0, *range(2, outputs.ndim))))
        counts.append(outputs[:, 0].numel())

    watch(network, [pathway], inputs, add)
    return torch.stack(sums).sum(0) / sum(counts)
