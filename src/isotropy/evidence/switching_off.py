"""Pathways that the evidence is better without are switched off.

Precisions that grow make a pathway small, never zero, and of a product of two factors not even
that: as both get small so does their curvature, and with it what the evidence charges for them.
Whether a pathway is worth its parameters is a comparison of two models, with and without it. In the
Laplace approximation with one block a tensor it costs

    c_p = ½ Σ_θ [ δ‖θ‖² + log|H + δ| − P log δ ]      nats, over its tensors θ of P numbers each

and the evidence without it is higher by

    N · (mean log p(y|x) without − with) + c_p

with all other weights as they are. (Tipping and Faul 2003 compare so for single weights of linear
models.) What the pathway adds to each channel on average goes to the bias of another, where that
has one. Pathways are tried from the one that contributes least.

A symmetry is kept unless the data asks for more: only a pathway beside one with as much symmetry or
more can go. And the charge c_p is that of small changes: what takes away more than `LOST` at once
stays, however large its charge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.laplace import LaplaceEvidence, LaplaceFit, block_precision
from isotropy.evidence.layer_structure import (
    note_contributions,
    pathway_parameters,
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
    precisions, scale = evidence.precisions(fit), evidence.scale(fit)
    found = {}
    for name, spectrum in fit.spectra.items():
        precision = block_precision(spectrum, name, precisions)
        charge = precision * fit.squared_norms[name] - fit.sizes[name] * precision.log()
        found[name] = float(charge + spectrum.log_determinant(scale, precision)) / 2
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
    network, charges = evidence.network, complexities(evidence, fit)
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
        others = [
            other
            for other_kind, other in layers[name].members().items()
            if other_kind != kind
            and (name, other_kind) not in {*off, *found}
            and symmetry_rank(other_kind) >= symmetry_rank(kind)
        ]
        if not others:
            continue
        own = [each for each in pathway_parameters(network, name, kind) if each in charges]
        restore = _take_out(network, layers[name].members()[kind], others, inputs)
        after = _mean_log_likelihood(evidence, inputs, targets)
        gain = count * (after - before) + sum(charges[each] for each in own)
        if gain > 0 and before - after < LOST:
            zeros = _zeroed(network, name, kind)
            found[name, kind], before = [each for each in zeros if each in charges], after
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
    pathway.scale_(0.0)
    for other in others:
        if other.absorb_(means):
            break

    def restore() -> None:
        for parameter, value in zip(changed, kept, strict=True):
            parameter.data.copy_(value)

    return restore


def _zeroed(network: nn.Module, layer: str, kind: str) -> list[str]:
    """Set weights and biases of a pathway to zero, all but what shapes filters; their names."""
    prefix = f"{layer}.pathways.{kind}." if layer else f"pathways.{kind}."
    pathway = relaxed_layers(network)[layer].members()[kind]
    found = []
    for name, parameter in pathway.named_parameters():
        if name in pathway.weights or name.rpartition(".")[2] == "bias":
            parameter.data.zero_()
            found.append(prefix + name)
    return found


def _channel_means(network: nn.Module, pathway: Pathway, inputs: Tensor) -> Tensor:
    """(C',): what a pathway adds to each channel, the mean over examples and pixels."""
    found: list[Tensor] = []
    handle = pathway.register_forward_hook(
        lambda _, __, output: found.append(output.transpose(0, 1).flatten(1))
    )
    try:
        with evaluation_mode(network):
            for part in inputs.split(ROWS):
                network(part)
    finally:
        handle.remove()
    return torch.cat(found, 1).mean(1)


def _mean_log_likelihood(evidence: LaplaceEvidence, inputs: Tensor, targets: Tensor) -> float:
    likelihood, total = evidence.likelihood, 0.0
    with evaluation_mode(evidence.network):
        for part, wanted in zip(inputs.split(ROWS), targets.split(ROWS), strict=True):
            statistic = likelihood.statistic(evidence.network(part), wanted)
            total += float(likelihood.log_likelihood(statistic, len(part)))
    return total / len(inputs)
