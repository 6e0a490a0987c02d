"""Pathways that the evidence is better without are switched off.

Precisions that grow make a pathway small, never zero, and of a product of two factors not even
that: as both get small so does their curvature, and with it what the evidence charges for them.
Whether a pathway is worth its parameters is a comparison of two models, with and without it. In the
Laplace approximation with one block a tensor it costs

    c_p = ½ Σ_θ [ δ‖θ‖² + log|H + δ| − P log δ ]      nats, over its tensors θ of P numbers each

and the evidence without it is higher by

    N · (mean log p(y|x) without − with) + c_p

with all other weights as they are, less what the prior charges for the change of a bias: what the
pathway adds to each channel on average goes to the bias of another, where that has one. (Tipping
and Faul 2003 compare so for single weights of linear models.) Pathways are tried from the one that
contributes least.

A symmetry is kept unless the data asks for more: only a pathway beside one with as much symmetry or
more can go. And the charge c_p is that of small changes: what takes away more than `LOST` at once
stays, however large its charge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

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
    """(C',): what a pathway adds to each channel, the mean over examples and pixels."""
    sums: list[Tensor] = []
    counts: list[int] = []

    def add(_: Pathway, outputs: Tensor) -> None:
        sums.append(outputs.sum((0, 2, 3)))
        counts.append(outputs[:, 0].numel())

    watch(network, [pathway], inputs, add)
    return torch.stack(sums).sum(0) / sum(counts)
