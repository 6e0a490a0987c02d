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

from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.laplace import LaplaceEvidence, LaplaceFit, block_precision
from isotropy.evidence.layer_structure import (
    note_contributions,
    pathway_parameters,
    pathway_prefix,
    relaxed_layers,
)
from isotropy.networks.pathway import Pathway
from isotropy.networks.pathways import symmetry_rank

OFF_PRECISION = 1e12
"""Prior precision of what is switched off."""
LOST = 0.05
"""Nats per example that the network may lose with a pathway, before it adapts."""
ROWS = 500
"""Examples that the network is called on at once."""

Names = tuple[str, str]
"""A layer and a kind of pathway in it."""


@torch.no_grad()
def complexities(evidence: LaplaceEvidence, fit: LaplaceFit) -> dict[str, float]:
    """½ [δ‖θ‖² + log|H + δ| − P log δ] of every parameter tensor, in nats; its sum over all is what
    `evidence.value` takes off the log likelihood. Curvature is by blocks."""
    precisions = evidence.precisions(fit)
    return {
        name: volume + float(precisions[name] * fit.squared_norms[name]) / 2
        for name, volume in _volumes(evidence, fit).items()
    }


def _volumes(evidence: LaplaceEvidence, fit: LaplaceFit) -> dict[str, float]:
    """½ [log|H + δ| − P log δ] of every parameter tensor: how much of the prior's volume is left
    to the posterior."""
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
    volumes = _volumes(evidence, fit)
    count = fit.stands_for or fit.count
    note_contributions(network, inputs)
    layers = relaxed_layers(network)
    by_share = sorted(
        (share, name, kind)
        for name, layer in layers.items()
        for kind, share in (layer.contributions or {}).items()
        if (name, kind) not in off
    )
    before = _mean_log_likelihood(evidence, inputs, targets)
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
        after = _mean_log_likelihood(evidence, inputs, targets)
        saved = charged - _penalty(network, whole, precisions)
        saved += sum(volumes[each] for each in own if each in volumes)
        if count * (after - before) + saved > 0 and before - after < LOST:
            before = after
            shaping = {f"{pathway_prefix(name, kind)}{each}" for each in members[kind].shaping}
            found[name, kind] = [each for each in own if each in volumes and each not in shaping]
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

    def add(_: nn.Module, __: object, output: Tensor) -> None:
        sums.append(output.sum((0, 2, 3)))
        counts.append(output[:, 0].numel())

    handle = pathway.register_forward_hook(add)
    try:
        with evaluation_mode(network):
            for part in inputs.split(ROWS):
                network(part)
    finally:
        handle.remove()
    return torch.stack(sums).sum(0) / sum(counts)


def _mean_log_likelihood(evidence: LaplaceEvidence, inputs: Tensor, targets: Tensor) -> float:
    likelihood, total = evidence.likelihood, 0.0
    with evaluation_mode(evidence.network):
        for part, wanted in zip(inputs.split(ROWS), targets.split(ROWS), strict=True):
            statistic = likelihood.statistic(evidence.network(part), wanted)
            total += float(likelihood.log_likelihood(statistic, len(part)))
    return total / len(inputs)
