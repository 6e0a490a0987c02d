"""What each layer of a relaxed network has become: how much of each pathway the data determines.

For a pathway with weights θ, curvature eigenvalues h and prior precision δ (van der Ouderaa, Immer
and van der Wilk 2023, D.1 and D.2):

    effective    γ = Σ h / (h + δ)                      of P parameters
    normalised   γ / P
    relative     (γ / P) / Σ over the layer's pathways of the same

A pathway of two weights, such as a factored one, has the sums of both; biases do not count. Its
prior precision is the higher one of its weights: a product is off where one of its factors is. One
without weights, a gate, counts as determined, and has no prior. A
layer has become the pathways that hold at least a tenth of the relative number, or make at least a
tenth of what it makes of its inputs (`note_contributions`), and a bias map if constants that differ
from place to place are as large as that. The first alone would overlook a large pathway of which
the data determines a few directions: by the parameter that is next to nothing, and yet it can carry
what no convolution knows, such as where a digit is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from isotropy.curvature.recording import evaluation_mode
from isotropy.evidence.laplace import LaplaceEvidence, LaplaceFit
from isotropy.networks.pathways.pathway import Pathway
from isotropy.networks.pathways.relaxed_layer import FREE, RelaxedLayer

COUNTS_FROM = 0.1
"""Relative effective number of parameters, or part of the outputs, from which a pathway counts."""
OFF = "off"
BIAS_MAP = "bias map"
ROWS = 500
"""Examples that pathways are watched on at once."""


@dataclass(frozen=True)
class PathwayUse:
    """One pathway: parameters P (biases aside), γ, γ/P, share among the layer's, δ, ‖θ‖².

    precisions:   δ of every tensor of the pathway, biases too, by its name in the pathway
    contribution: how much it makes of the layer's inputs (`RelaxedLayer.contributions`), if known
    """

    parameters: int
    effective: float
    normalised: float
    relative: float
    prior_precision: float | None
    weight_norm: float
    precisions: dict[str, float]
    contribution: float | None = None


@dataclass(frozen=True)
class LayerStructure:
    """One relaxed layer by its name in the network."""

    name: str
    pathways: dict[str, PathwayUse]
    bias_map: float | None = None

    @property
    def relative(self) -> dict[str, float]:
        """Relative effective number of parameters by pathway."""
        return {kind: use.relative for kind, use in self.pathways.items()}

    @property
    def became(self) -> str:
        """Pathways that count, the largest first; `off` if the data determines nothing."""
        contributions = {kind: use.contribution or 0.0 for kind, use in self.pathways.items()}
        return became(self.relative, contributions, self.bias_map or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """As in records."""
        uses = self.pathways.items()
        columns = ("normalised", "parameters", "prior_precision", "weight_norm", "contribution")
        return {
            "name": self.name,
            "became": self.became,
            "effective": self.relative,
            **{name: {kind: getattr(use, name) for kind, use in uses} for name in columns},
            "bias_map": self.bias_map,
            "precisions": {
                f"{kind}.{name}": value
                for kind, use in uses
                for name, value in use.precisions.items()
            },
        }


def became(
    relative: Mapping[str, float], contributions: Mapping[str, float], bias_map: float = 0.0
) -> str:
    """In a word what a layer has become: `conv`, `conv + ffc`, `conv + bias map`, `off`."""
    if not any(relative.values()):
        return OFF
    largest = {kind: max(share, contributions[kind]) for kind, share in relative.items()}
    used = [kind for kind, share in largest.items() if share >= COUNTS_FROM]
    found = sorted(used, key=lambda kind: -contributions[kind])
    return " + ".join([*found, *[BIAS_MAP] * (bias_map >= COUNTS_FROM)])


def relaxed_layers(network: nn.Module) -> dict[str, RelaxedLayer]:
    """The relaxed layers of a network by name, in its own order."""
    found = network.named_modules()
    return {name: module for name, module in found if isinstance(module, RelaxedLayer)}


def free_parameters(network: nn.Module) -> list[str]:
    """Names of the parameters of fully connected pathways that are beside others."""
    return [
        name
        for layer, module in relaxed_layers(network).items()
        for kind in module.members()
        if kind in FREE and not set(module.members()) <= set(FREE)
        for name in pathway_parameters(network, layer, kind)
    ]


def pathway_parameters(network: nn.Module, layer: str, kind: str) -> list[str]:
    """Names of the trained parameters of one pathway of a layer."""
    prefix = pathway_prefix(layer, kind)
    found = network.named_parameters()
    return [name for name, each in found if name.startswith(prefix) and each.requires_grad]


def pathway_prefix(layer: str, kind: str) -> str:
    """What names of a pathway's parameters begin with in the network."""
    return f"{layer}.pathways.{kind}." if layer else f"pathways.{kind}."


def layer_structures(
    network: nn.Module, evidence: LaplaceEvidence, fit: LaplaceFit
) -> list[LayerStructure]:
    """Every relaxed layer, from the curvature of one pass over the data."""
    effective = evidence.effective_parameters(fit)
    precisions = {name: float(value.detach()) for name, value in evidence.precisions(fit).items()}
    found = []
    for layer, module in relaxed_layers(network).items():
        uses = {}
        for kind, pathway in module.members().items():
            prefix = pathway_prefix(layer, kind)
            names = [prefix + name for name in pathway.weights]
            size = sum(fit.sizes[name] for name in names)
            gamma = sum(effective[name] for name in names)
            own = {n.removeprefix(prefix): d for n, d in precisions.items() if n.startswith(prefix)}
            uses[kind] = PathwayUse(
                parameters=size,
                effective=gamma,
                normalised=gamma / size if size else 1.0,
                relative=0.0,
                prior_precision=max((precisions[name] for name in names), default=None),
                weight_norm=sum(float(fit.squared_norms[name]) for name in names),
                precisions=own,
                contribution=(module.contributions or {}).get(kind),
            )
        total = sum(use.normalised for use in uses.values())
        if total > 0:
            uses = {k: replace(use, relative=use.normalised / total) for k, use in uses.items()}
        found.append(LayerStructure(layer, uses, module.bias_map))
    return found


@torch.no_grad()
def note_contributions(network: nn.Module, inputs: Tensor) -> None:
    """Write into every relaxed layer what each pathway makes of `inputs`, and its bias map.

    c_p = ‖L_p x‖ / √(Σ_q ‖L_q x‖²)  with  L_p x = pathway_p(x) − pathway_p(0), norms over examples,
    channels and pixels, each pathway at its own resolution: root mean squares are compared. The
    bias map is what of the sum of constants breaks the symmetry (`RelaxedLayer.varying`), over the
    same root.
    """
    squares: dict[Pathway, list[Tensor]] = {}
    constants = {
        pathway: pathway.constant()
        for layer in relaxed_layers(network).values()
        for pathway in layer.members().values()
    }

    def note(pathway: Pathway, outputs: Tensor) -> None:
        linear = outputs - constants[pathway]
        axes = tuple(range(1, linear.ndim))
        squares.setdefault(pathway, []).append(linear.double().square().mean(axes))

    watch(network, constants, inputs, note)
    for layer in relaxed_layers(network).values():
        members = layer.members()
        means = {k: float(torch.cat(squares[p]).mean()) for k, p in members.items()}
        total = sum(means.values()) or 1.0
        layer.contributions = {kind: (mean / total) ** 0.5 for kind, mean in means.items()}
        reaching = [constants[p] for p in members.values() if p.reaches_target]
        varying = layer.varying(torch.stack(reaching).sum(0)) if reaching else inputs.new_zeros(1)
        layer.bias_map = float(varying.double().square().mean() / total) ** 0.5


@torch.no_grad()
def watch(
    network: nn.Module,
    pathways: Iterable[Pathway],
    inputs: Tensor,
    note: Callable[[Pathway, Tensor], None],
) -> None:
    """Call the network on `inputs`, in evaluation mode, and `note` on every output of these."""

    def hook(module: nn.Module, _: object, outputs: Tensor) -> None:
        assert isinstance(module, Pathway)
        note(module, outputs)

    handles = [pathway.register_forward_hook(hook) for pathway in pathways]
    try:
        with evaluation_mode(network):
            for part in inputs.split(ROWS):
                network(part)
    finally:
        for handle in handles:
            handle.remove()
